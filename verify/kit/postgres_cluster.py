"""A PostgreSQL server for tests and benchmarks: on loopback, in a temporary directory, which is removed afterwards."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import psycopg
from sqlalchemy import URL

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "postgres.py"
SERVER_USER = "postgres"
OWNER = "icetower"
HOST = "127.0.0.1"
READY_WITHIN_S = 60
STOPPED_WITHIN_S = 60
STARTS_MAX = 5
# Nothing here outlives its users, so that nothing has to reach the disk.
SETTINGS = {"listen_addresses": HOST, "fsync": "off", "full_page_writes": "off", "max_connections": "200"}


class Account(NamedTuple):
    """As whom a program runs; None is as ourselves."""

    user: int | None = None
    group: int | None = None
    extra_groups: list[int] | None = None

    def own(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)


class NoPostgres(Exception):
    """PostgreSQL's programs are not here; the message says how to get them."""


@contextmanager
def running(settings: Mapping[str, str] | None = None) -> Generator[URL]:
    """A server of our own, as the URL of its first database and of somebody who may do everything in it.

    A password keeps the machine's other users out, who reach loopback too. Raises `NoPostgres`.

    Args:
        settings: of PostgreSQL, besides `SETTINGS` or in their place.
    """
    programs = _programs()
    home = Path(tempfile.mkdtemp(prefix="icetower-postgres-"))
    try:
        account = _account()
        account.own(home)
        password = secrets.token_urlsafe()
        _initialise(programs, home, password, account)
        with _started(programs, home, password, account, settings or {}) as port:
            yield URL.create("postgresql+psycopg", OWNER, password, HOST, port, "postgres")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def database(server: URL, name: str) -> Generator[URL]:
    """A new, empty database there."""
    with _connected(server) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    try:
        yield server.set(database=name)
    finally:
        with _connected(server) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _connected(server: URL) -> psycopg.Connection:
    url = server.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True, connect_timeout=READY_WITHIN_S)


def _programs() -> Path:
    found = subprocess.run([sys.executable, TOOL], capture_output=True, text=True)
    if found.returncode != 0:
        raise NoPostgres(found.stderr.strip())
    return Path(found.stdout.strip())


def _account() -> Account:
    """As whom its programs run: as us, but never as root, which they refuse."""
    if os.geteuid() != 0:
        return Account()
    user = pwd.getpwnam(SERVER_USER)
    return Account(user.pw_uid, user.pw_gid, [])


def _environment() -> dict[str, str]:
    """Messages in English, and none of the PG… variables by which somebody's own server is found."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _initialise(programs: Path, home: Path, password: str, account: Account) -> None:
    secret = home / "password"
    secret.touch(0o600)
    secret.write_text(password)
    account.own(secret)
    done = subprocess.run(
        [
            *(programs / "initdb", "--pgdata", home / "data", "--username", OWNER, "--pwfile", secret),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"),
        ],
        user=account.user,
        group=account.group,
        extra_groups=account.extra_groups,
        cwd=home,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    secret.unlink()
    assert done.returncode == 0, f"initdb failed: {done.stdout}{done.stderr}"


@contextmanager
def _started(programs: Path, home: Path, password: str, account: Account, more: Mapping[str, str]) -> Generator[int]:
    """The port on which it answers. Somebody may take a port between our choice and its start: then another one."""
    log = home / "log"
    for _ in range(STARTS_MAX):
        port = _free_port()
        with log.open("wb") as output:
            server = _start(programs, home, port, output, account, more)
        try:
            if _answers(server, port, password):
                yield port
                return
        finally:
            _stop(server)
    raise AssertionError(f"PostgreSQL did not start: {log.read_text()}")


def _start(
    programs: Path, home: Path, port: int, output: IO[bytes], account: Account, more: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # If we are killed, the kernel stops it in our place (where there is `setpriv`: on Linux). Ctrl-C is for us alone:
    # tests clean up before their database goes.
    watched = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
    settings = {**SETTINGS, **more, "port": str(port), "unix_socket_directories": str(home)}
    return subprocess.Popen(
        [
            *watched,
            *(str(programs / "postgres"), "-D", str(home / "data")),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ],
        user=account.user,
        group=account.group,
        extra_groups=account.extra_groups,
        cwd=home,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _answers(server: subprocess.Popen[bytes], port: int, password: str) -> bool:
    """Wait until it does; False if it has ended instead, or takes too long."""
    url = URL.create("postgresql", OWNER, password, HOST, port, "postgres")
    pause_s = 0.05
    for _ in range(int(READY_WITHIN_S / pause_s)):
        try:
            _connected(url).close()
        except psycopg.OperationalError:
            try:
                server.wait(pause_s)
            except subprocess.TimeoutExpired:
                continue
            return False
        return True
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Its fast shutdown, or what is left if that takes too long."""
    for request in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(request)
            with suppress(subprocess.TimeoutExpired):
                server.wait(STOPPED_WITHIN_S)

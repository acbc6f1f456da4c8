"""What `icetower doctor` looks at: each check says whether it is well, what is wrong, and the command that mends it.

Nothing here needs a tower that starts. What was not given (a configuration, say) makes later checks go by the defaults.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from sqlalchemy import text
from sqlalchemy.engine import make_url

from icetower.agent.causes import without_password
from icetower.ambient import Ambient
from icetower.cli.own_tower import CONFIG_FILE, SECRET_NAME, address
from icetower.cli.screens import size_text
from icetower.database import Database, shown_url
from icetower.errors import IcetowerError
from icetower.gateway.settings import Settings, load_settings
from icetower.storage.file_io import FileIOStorage

JAVA_MIN = 17
SKEW_WARN_MS, SKEW_FAIL_MS = 2_000, 30_000
"""HTTP tells the time in whole seconds. Iceberg's Java client refuses a snapshot more than a minute in its past."""
TIMEOUT_S = 5.0
STORAGE_TIMEOUT_S = 10.0


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `mend`: the command, or the change, that mends it; empty if nothing is to be done."""

    name: str
    state: State
    said: str
    mend: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, said: str) -> Check:
    return Check(name, State.OK, said)


def warn(name: str, said: str, mend: str) -> Check:
    return Check(name, State.WARN, said, mend)


def fail(name: str, said: str, mend: str) -> Check:
    return Check(name, State.FAIL, said, mend)


def checks(config: Path | None, ambient: Ambient, doing: Callable[[str], None]) -> Iterator[Check]:
    """All checks, one after the other.

    Args:
        config: the tower's configuration file; None: there is none, and the defaults apply.
        doing: is given the name of what is looked at next.
    """
    settings, found = _configuration(config)
    yield from found
    if settings is None:
        settings = Settings()
    data = Path(settings.server.data).absolute()
    parts: Sequence[tuple[str, Callable[[], Iterator[Check]]]] = (
        ("data directory", lambda: _data(data)),
        ("disk", lambda: _disk(data, settings.server.disk_min_bytes)),
        ("upstream", lambda: _upstream(settings, data, ambient)),
        ("storage", lambda: _storage(settings, data, ambient)),
        ("tower", lambda: _tower(settings, ambient)),
        ("escalations", lambda: _escalations(settings)),
        ("pyiceberg", _pyiceberg),
        ("java", _java),
        ("spark", _spark),
        ("jars", _jars),
    )
    for name, look in parts:
        doing(name)
        try:
            yield from look()
        except Exception as error:  # noqa: BLE001 - the others are looked at even so; its text may hold a secret
            yield fail(
                name, f"could not be looked at ({type(error).__name__})", "report it, with `icetower support-bundle`"
            )


def _configuration(path: Path | None) -> tuple[Settings | None, list[Check]]:
    name = "configuration"
    if path is None:
        return Settings(), [ok(name, f"no {CONFIG_FILE} here, and no ICETOWER_CONFIG: the defaults apply")]
    try:
        settings = load_settings(path)
        settings.escalations.channels(os.environ)
    except IcetowerError as error:
        return None, [
            fail(name, error.message, f"correct {path}, or write a new one with `icetower init --config FILE`")
        ]
    found = [ok(name, f"{path.absolute()} can be read")]
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH) and _has_secrets(settings):
        found.append(warn(name, f"others may read {path}, which has secrets", f"chmod 600 {path}"))
    return settings, found


def _has_secrets(settings: Settings) -> bool:
    return bool(settings.storage or settings.escalations.webhooks or "@" in (settings.upstream.uri or ""))


def _data(data: Path) -> Iterator[Check]:
    name, token = "data directory", data / SECRET_NAME
    if not data.exists():
        parent = next(each for each in data.parents if each.exists())
        if os.access(parent, os.W_OK):
            yield warn(name, f"{data} does not exist yet", "icetower serve, whose first start makes it")
        else:
            yield fail(
                name,
                f"{data} does not exist, and {parent} may not be written to",
                f"sudo install -d -m 700 -o $USER {data}",
            )
        return
    if not data.is_dir():
        yield fail(name, f"{data} is a file", "name a folder in [server] data")
        return
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        yield fail(name, f"this user may not write to {data}", f"sudo chown -R $USER {data}")
        return
    yield ok(name, f"{data} may be written to")
    for file in (data / "control.db", data / "catalog.db", token):
        if file.exists() and file.stat().st_mode & 0o077:
            kind = "the administrator's token" if file == token else "the database"
            yield fail("permissions", f"others may read or write {kind} {file}", f"chmod 600 {file}")
        elif file.exists() and not os.access(file, os.R_OK | os.W_OK):
            yield fail("permissions", f"this user may not read and write {file}", f"sudo chown $USER {file}")
    if token.exists():
        yield ok("administrator's token", f"{token} is there")
    elif (data / "control.db").exists():
        mend = "use ICETOWER_TOKEN with another administrator's token"
        yield warn("administrator's token", f"there is a tower's database, and no {token}", mend)


def _disk(data: Path, least_bytes: int) -> Iterator[Check]:
    place = next(each for each in (data, *data.parents) if each.exists())
    free = shutil.disk_usage(place).free
    said = f"{size_text(free)} free below {place}"
    if free < least_bytes:
        mend = f"free {size_text(least_bytes - free)} there, or lower [server] disk_min_bytes"
        yield fail("disk", f"{said}, and the tower wants {size_text(least_bytes)} (server.disk_min_bytes)", mend)
    elif free < 2 * least_bytes:
        yield warn("disk", f"{said}, not much more than the tower wants", "free some room there")
    else:
        yield ok("disk", said)


def _upstream(settings: Settings, data: Path, ambient: Ambient) -> Iterator[Check]:
    from icetower.cli.found_catalogs import catalog_missing, contents_for_serving

    name, uri = "upstream", settings.upstream.uri
    if uri is None:
        yield ok(name, f"the tower's own catalog, in {data / 'catalog.db'}")
        return
    try:
        found = contents_for_serving(uri)
        warning = catalog_missing(uri, settings.upstream.catalog, found)
        url = make_url(uri)
    except IcetowerError as error:
        yield fail(name, error.message, "correct [upstream] uri, or start the database")
        return
    except Exception as error:  # noqa: BLE001 - of the URL's parser or of a driver that is missing; may quote the URL
        mend = "correct [upstream] uri: sqlite:////path/catalog.db or postgresql+psycopg://user@host/name"
        yield fail(name, f"[upstream] uri cannot be used ({type(error).__name__})", mend)
        return
    if warning is not None:
        yield warn(name, warning, f"name one of {', '.join(found.counts)} in [upstream] catalog")
    else:
        yield ok(name, f"{shown_url(url)} answers; catalog {settings.upstream.catalog}")
    if url.get_backend_name() == "postgresql":
        yield _database_clock(uri, ambient)


def _database_clock(uri: str, ambient: Ambient) -> Check:
    database = Database(uri)
    try:
        before_ms = ambient.now_ms()
        seconds = database.run_now(
            lambda connection: connection.execute(text("select extract(epoch from clock_timestamp())")).scalar_one()
        )
        return _skew("clock of the database", float(seconds) * 1000, before_ms, ambient.now_ms())
    finally:
        database.close()


def _skew(name: str, theirs_ms: float, before_ms: int, after_ms: int) -> Check:
    """Compare a clock with this machine's, which was asked before and after."""
    ahead_ms = theirs_ms - after_ms if theirs_ms > after_ms else min(0.0, theirs_ms - before_ms)
    said = f"{abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'} this machine's"
    mend = "timedatectl set-ntp true, on both machines"
    if abs(ahead_ms) >= SKEW_FAIL_MS:
        return fail(name, f"{said}: clients refuse snapshots from another time", mend)
    return warn(name, said, mend) if abs(ahead_ms) >= SKEW_WARN_MS else ok(name, "agrees with this machine's")


def _storage(settings: Settings, data: Path, ambient: Ambient) -> Iterator[Check]:
    name, warehouse = "storage", settings.upstream.warehouse or f"file://{data}/warehouse"
    shown = without_password(warehouse)
    parts = urlsplit(warehouse)
    if parts.scheme in ("", "file"):
        place = Path(parts.path if parts.scheme else warehouse)
        there = next(each for each in (place, *place.parents) if each.exists())
        if not there.is_dir():
            yield fail(name, f"{there} is a file, and no folder", "name a folder in [upstream] warehouse")
            return
        if there != place and os.access(there, os.W_OK):
            yield ok(name, f"{place} does not exist yet; the first table makes it")
            return
        if not os.access(there, os.W_OK):
            yield fail(name, f"this user may not write to {there}", f"sudo chown $USER {there}")
            return
    file = f"{warehouse.rstrip('/')}/icetower-doctor-{ambient.uuid4()}"
    try:
        asyncio.run(_written_and_deleted(settings, file))
        yield ok(name, f"{shown}: a file was written, read and deleted")
    except IcetowerError as error:
        cause = error.message if not settings.storage else type(error).__name__  # others' texts may quote credentials
        mend = "correct [storage] and [upstream] warehouse; is the endpoint reachable from here?"
        yield fail(name, f"{shown} cannot be written to, read from or deleted from: {without_password(cause)}", mend)
        return
    endpoint = settings.storage.get("s3.endpoint", "")
    if endpoint.startswith(("http://", "https://")):
        yield from _http_clock("clock of the storage", endpoint, ambient)


async def _written_and_deleted(settings: Settings, file: str) -> None:
    storage = FileIOStorage(settings.storage, threads=1, timeout_s=STORAGE_TIMEOUT_S)
    try:
        await storage.write(file, b"icetower doctor")
        try:
            await storage.read(file)
        finally:
            await storage.delete(file)
    finally:
        await storage.close()


def _http_clock(name: str, uri: str, ambient: Ambient) -> Iterator[Check]:
    """The clock of a server, by the `Date` of an answer; nothing where it says none."""
    before_ms = ambient.now_ms()
    try:
        date = httpx2.head(uri, timeout=TIMEOUT_S).headers.get("date")
        said = None if date is None else parsedate_to_datetime(date)
    except (httpx2.HTTPError, ValueError):
        return
    if said is not None:
        at = said if said.tzinfo else said.replace(tzinfo=UTC)
        # Whole seconds, cut: it is up to a second later there.
        yield _skew(name, at.timestamp() * 1000, before_ms - 1000, ambient.now_ms())


def _tower(settings: Settings, ambient: Ambient) -> Iterator[Check]:
    uri = address(settings.server.host, settings.server.port)
    host, port = urlsplit(uri).hostname or "", settings.server.port
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except OSError:
        yield warn("port", f"{port} is free: no tower serves {uri}", "icetower serve")
        return
    try:
        answer = httpx2.get(f"{uri}/readyz", timeout=TIMEOUT_S)
        state: Any = answer.json()
        components = dict(state["components"])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        yield fail(
            "port",
            f"something else than a tower listens at {host}:{port}",
            "icetower serve --port N, or end the other program",
        )
        return
    wrong = sorted(name for name, each in components.items() if each != "ok")
    if wrong:
        yield fail(
            "tower", f"{uri} serves, and is not ready: {', '.join(wrong)}", "icetower status, and the lines above"
        )
    else:
        yield ok("tower", f"{uri} serves and is ready")
    yield from _http_clock("clock of the tower", f"{uri}/healthz", ambient)


def _escalations(settings: Settings) -> Iterator[Check]:
    """Whether anybody hears of an escalation, or of a request for partitions."""
    name, told = "escalations", settings.escalations
    if told.smtp_host is not None:
        yield ok(name, f"mail goes by {told.smtp_host}")
    elif told.webhooks:
        yield ok(name, f"webhooks: {', '.join(sorted(told.webhooks))}; no mail is sent")
    else:
        yield warn(
            name,
            "no mail server and no webhook: who is named in contracts is told nothing, and has to look at the page",
            "set [escalations] smtp_host and sender, or webhooks (docs/operations.md)",
        )


def _pyiceberg() -> Iterator[Check]:
    wanted = next(
        (
            found[1]
            for each in requires("icetower") or ()
            if (found := re.match(r"pyiceberg(?:\[[^]]*\])?==([\w.]+)", each))
        ),
        None,
    )
    here = _version("pyiceberg")
    if here is None:
        yield fail("pyiceberg", "it is not installed", f"pip install 'pyiceberg=={wanted}'")
    elif wanted is not None and here != wanted:
        yield fail(
            "pyiceberg", f"version {here}, and this Icetower needs {wanted}", f"pip install 'pyiceberg=={wanted}'"
        )
    else:
        yield ok("pyiceberg", f"version {here}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> Iterator[Check]:
    mend = "make java, or set JAVA_HOME to a Java of version 17 or later; only the jobs on Spark need it"
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    if program is None:
        yield warn("java", "there is none on the PATH", mend)
        return
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S * 4, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        yield warn("java", f"{program} cannot be run ({type(error).__name__})", mend)
        return
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < JAVA_MIN:
        yield warn("java", f"{program} is version {found[1] if found else 'unknown'}, and Spark needs {JAVA_MIN}", mend)
    else:
        yield ok("java", f"{program}, version {found[1]}")


def _spark() -> Iterator[Check]:
    here = _version("pyspark")
    if here is None:
        yield warn("spark", "PySpark is not installed; only the jobs on Spark need it", "pip install 'icetower[spark]'")
    elif not here.startswith("4.1."):
        yield fail("spark", f"PySpark {here}, and Iceberg's runtime here is for 4.1", "pip install 'icetower[spark]'")
    else:
        yield ok("spark", f"PySpark {here}")


def _jars() -> Iterator[Check]:
    if importlib.util.find_spec("pyspark") is None:
        return
    from icetower.pipelines.session import ICEBERG_RUNTIME

    group, artifact, wanted = ICEBERG_RUNTIME.split(":")
    # Java goes by the system's list of users, whatever HOME says.
    homes = {Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)}
    if not any(jar for home in homes for jar in home.glob(f".ivy2*/jars/{group}_{artifact}-{wanted}.jar")):
        yield warn("jars", f"{artifact} {wanted} is not in Spark's cache: the first job fetches it", "make jars")
    else:
        yield ok("jars", f"{artifact} {wanted}")

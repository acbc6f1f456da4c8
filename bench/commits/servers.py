"""The servers under test, each a process of its own on its own SQLite file and warehouse."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from icetower.demo import slow_io

ROOT = Path(__file__).resolve().parent.parent.parent
OWN_PATH = os.pathsep.join((str(ROOT), str(ROOT / "src")))
"""The tower finds the slow FileIO here, and its own source beside this one, whatever is installed."""

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
SETTINGS = "storage_threads = 256\nqueue_deadline_s = 60\n"
"""What a tower is given whose storage is slow."""

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
JAVA_SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


class Trouble(Exception):
    """A side could not be run; the message says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. `token`: its administrator's secret; None where nobody asks for one."""

    uri: str
    token: str | None
    process_id: int
    database: Path

    def cpu_s(self) -> float:
        """Processor time that the process has used until now, user and system, in seconds."""
        return cpu_s(self.process_id)


def cpu_s(process_id: int) -> float:
    """Processor time of a process and of its children that have ended, in seconds; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_S


@contextmanager
def tower(
    folder: Path,
    profile: str,
    seed: int,
    *,
    launcher: Sequence[str] = (),
    tally: Path | None = None,
    settings: str = SETTINGS,
) -> Generator[Server]:
    """`icetower serve` with the profile's latency in its storage.

    Args:
        launcher: a module of ours that serves instead, and what it is told after the settings.
        tally: counts the files of metadata that it writes.
        settings: of the server, in TOML, besides its port and its data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, written = folder / "data", folder / "tower.toml"
    storage = slow_io.properties(profile, seed, tally)
    written.write_text(
        f"[server]\nport = 0\n{settings}"
        f"data = {json.dumps(str(data))}\n[storage]\n"
        + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in storage.items())
    )
    program: list[str | Path] = [ROOT / ".venv" / "bin" / "icetower", "serve", "--config", written]
    if launcher:
        program = [sys.executable, "-m", launcher[0], str(written), *launcher[1:]]
    with _process(program, folder / "tower.log", {"PYTHONPATH": OWN_PATH, "COLUMNS": "1000"}) as child:
        line = _first_line(child, folder / "tower.log")
        secret = (data / "admin.token").read_text().strip()
        yield Server(line.split()[2], secret, child.pid, data / "catalog.db")


@contextmanager
def reference(folder: Path, java: Path, library: Path) -> Generator[Server]:
    """Iceberg's Java reference server on a SQLite file, without storage latency."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    database = folder / "catalog.db"
    environment = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{database}",
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
    }
    # Its log goes to slf4j-simple, of which every commit writes several lines.
    program = [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{library}/*", JAVA_SERVER]
    with _process(program, folder / "java.log", environment) as child:
        uri, deadline_s = f"http://127.0.0.1:{port}", time.monotonic() + START_TIMEOUT_S
        while child.poll() is None and time.monotonic() < deadline_s:
            try:
                urllib.request.urlopen(f"{uri}/v1/config", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                yield Server(uri, None, child.pid, database)
                return
        raise Trouble(f"the reference server did not start, see {folder / 'java.log'}")


@contextmanager
def _process(
    program: list[str | Path], log: Path, environment: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CATALOG_")}
    with log.open("ab") as errors:
        child = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**kept, **environment}
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _first_line(child: subprocess.Popen[bytes], log: Path) -> str:
    """What the tower says once it is ready; whatever it says later is thrown away, so that it never waits for us."""
    lines: queue.Queue[bytes] = queue.Queue()

    def drain() -> None:
        assert child.stdout is not None
        lines.put(child.stdout.readline())
        while child.stdout.read(65536):
            pass

    threading.Thread(target=drain, daemon=True).start()
    try:
        line = lines.get(timeout=START_TIMEOUT_S).decode()
    except queue.Empty:
        line = ""
    if not line.startswith("icetower: serving"):
        raise Trouble(f"the tower did not start, see {log}:\n{log.read_text()[-2000:]}")
    return line

"""Iceberg's own REST server, of its test fixtures, on a SQLite file."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tools import java
from verify.rck import run as rck

HERE = Path(__file__).resolve().parent
START_TIMEOUT_S = 60.0


@contextmanager
def reference_server(directory: Path) -> Generator[str]:
    """Serve from a directory of its own for the time of the block; gives the URI. Raises `rck.Trouble`."""
    java_path = java.find()
    library = rck.jars(java_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{directory / 'catalog.db'}",
        "CATALOG_WAREHOUSE": str(directory / "warehouse"),
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
    }
    command = [java_path, "-Xmx512m", "-cp", f"{library}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    with (directory / "server.log").open("w") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _wait(f"http://127.0.0.1:{port}", child)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _wait(uri: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while child.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{uri}/v1/config", timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise rck.Trouble("the reference server did not start")

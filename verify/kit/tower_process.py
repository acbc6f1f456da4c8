"""A real `icetower serve` process for the tests, and short ways to speak to it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from pyiceberg.catalog import Catalog, load_catalog

from icetower.agent import Tower

READY_WITHIN_S = 60
STOPPED_WITHIN_S = 60
HTTP_TIMEOUT_S = 60.0

SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "region", "type": "string", "required": False},
    ],
}


def command(*arguments: str) -> list[str]:
    """The command line of the program, as a user's shell would run it."""
    return [str(Path(sys.executable).parent / "icetower"), *arguments]


class TowerProcess:
    """`icetower serve` on a free port of loopback.

    Attributes:
        uri: as the program printed it.
        secret: the administrator's.
    """

    def __init__(self, data: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        self.log = data.parent / f"{data.name}.stderr"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                command("serve", "--port", "0", "--data", str(data), *arguments),
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
            )
        try:
            self.ready_line = self._first_line()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.uri = self.ready_line.split()[2]
        self.secret = (data / "admin.token").read_text().strip()
        self.admin = Tower(self.uri, self.secret)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            assert ready.select(READY_WITHIN_S), f"the tower is not ready: {self.log.read_text()}"
        line = self.process.stdout.readline().decode()
        assert line.startswith("icetower: serving http://"), f"{line!r}: {self.log.read_text()}"
        return line

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.admin.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOPPED_WITHIN_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def client(self, token: str | None = None, **headers: str) -> httpx2.Client:
        """Plain HTTP as a principal; by default as the administrator."""
        return httpx2.Client(
            base_url=self.uri,
            headers={"Authorization": f"Bearer {token or self.secret}", **headers},
            timeout=HTTP_TIMEOUT_S,
        )

    def catalog(self, token: str | None = None, **properties: str) -> Catalog:
        """PyIceberg as a principal; by default as the administrator."""
        return load_catalog("tower", **Tower(self.uri, token or self.secret).pyiceberg_properties(), **properties)

    def principal(self, name: str, contract: str) -> str:
        """A new principal with a contract (YAML without its two first lines) of its own; its secret."""
        self.admin.apply_contract(f"version: 1\nagent: {name}\n{contract}")
        return self.admin.create_principal(name, name)

    def outcomes(self, table: str) -> list[str]:
        """How the attempts to commit to a table ended, newest first."""
        attempts = self.admin.commits(limit=1000, table=table)
        return [each["outcome"] for each in attempts if each["outcome"] != "done" and each["operation"] != "read"]


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error of an answer; its code is the status, and none of its fields is missing or empty."""
    error = response.json()["error"]
    assert error["code"] == response.status_code
    fields = {"message", "type", "code", "rule", "partitions", "snapshot", "files", "next_step"}
    assert set(error) == fields | {"owner", "wait_until_ms", "escalated_to", "request_id"}
    assert all(error[field] for field in ("message", "type", "rule", "next_step"))
    return error

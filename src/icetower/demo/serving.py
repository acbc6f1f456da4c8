"""A tower of the demo's own: `icetower serve` as a process, with the demo's contracts in force."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from icetower.agent import Tower
from icetower.demo import plan
from icetower.errors import IcetowerError
from icetower.pipelines.interrupts import before_leaving

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_SERVING = re.compile(r"icetower: serving (\S+)")


@dataclass(frozen=True, slots=True)
class Serving:
    """A running tower; `token` is the administrator's secret, and `secret_file` the file that has it."""

    uri: str
    token: str
    secret_file: Path

    def catalog(self, secret: str) -> dict[str, str]:
        """Properties of a catalog, for PyIceberg, of the principal with that secret."""
        return {"type": "rest", "uri": self.uri, "token": secret}


@contextmanager
def tower_process(folder: Path, storage: Mapping[str, str]) -> Generator[Serving]:
    """A tower on a free port that keeps its data under `folder`; at the end it drains and stops.

    `storage`: the FileIO properties of its `[storage]` settings.

    Raises `IcetowerError` when it does not report within `START_TIMEOUT_S` that it serves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, settings = folder / "serve.log", folder / "icetower.toml"
    properties = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in storage.items())
    data = json.dumps(str(folder / "tower"))
    settings.write_text(f"[server]\nport = 0\ndata = {data}\n[storage]\n{properties}", encoding="utf-8")
    command = [sys.executable, "-c", "from icetower.cli import main; main()", "serve", "--config", str(settings)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)  # noqa: S603 - our own program
    before_leaving(process.terminate)
    try:
        uri = _await_line(process, log)
        secret_file = folder / "tower" / "admin.token"
        yield Serving(uri, secret_file.read_text(encoding="utf-8").strip(), secret_file)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def leave_up(serving: Serving, console: Console) -> None:
    """Say where the tower is, and wait until somebody has seen enough (Ctrl-C, or SIGTERM)."""
    console.print(f"The tower of this run is up: {serving.uri}", soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"Its administrator's token is in {serving.secret_file}", soft_wrap=True, highlight=False, markup=False
    )
    console.print("Ctrl-C stops it.", highlight=False)
    enough = threading.Event()
    before = {each: signal.signal(each, lambda *_: enough.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not enough.wait(1.0):  # not without an end: signals are handled between two waits
            pass
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _await_line(process: subprocess.Popen[bytes], log: Path) -> str:
    pause = threading.Event()
    for _ in range(int(START_TIMEOUT_S / 0.1)):
        if found := _SERVING.search(log.read_text(encoding="utf-8", errors="replace")):
            return found[1]
        if process.poll() is not None:
            break
        pause.wait(0.1)
    raise IcetowerError(
        f"`icetower serve` did not come up; {log} ends with:\n{log.read_text(errors='replace')[-2000:]}"
    )


def register_agents(tower: Tower, days: int) -> Mapping[str, str]:
    """Apply every contract of the demo and create a principal for each; returns their secrets by name."""
    secrets: dict[str, str] = {}
    for name in (*(agent.name for agent in plan.AGENTS), plan.MEDIATOR, plan.AUDITOR):
        tower.apply_contract(plan.contract_text(name, days))
        secrets[name] = tower.create_principal(name, name)
    return secrets

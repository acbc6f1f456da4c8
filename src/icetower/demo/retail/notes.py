"""What an agent notes of each hour, for people to look at: it never goes by its notes. And where it is to be killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from icetower.ambient import SystemAmbient

STAGES = ("read", "writing", "committed")
"""The rows of an hour are read; its commit is on its way; it is acknowledged, and not noted yet."""

MIDWAY_S = 0.4
"""How long after a write began it is killed in the middle."""


@dataclass(frozen=True, slots=True)
class Death:
    """An agent's process is killed (-9) when the agent comes to a stage of this hour, or of a later one."""

    agent: str
    hour: int
    stage: str


class Hour:
    """An hour that an agent works on."""

    def __init__(self, number: int, deaths: Path, death: Death | None) -> None:
        self.number = number
        self._deaths = deaths
        self._death = death

    def reached(self, stage: str) -> None:
        """Tell that the work has come to a stage."""
        if self._death is None or self._death.stage != stage:
            return
        if stage == "writing":
            threading.Timer(MIDWAY_S, self._die).start()
        else:
            self._die()

    def _die(self) -> None:
        with self._deaths.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(self._death)) + "\n" if self._death else "")
        os.kill(os.getpid(), signal.SIGKILL)


class Notes:
    """The notes of one agent in a folder, and the deaths that are still before it."""

    def __init__(self, folder: Path, agent: str, deaths: Sequence[Death] = ()) -> None:
        self._folder = folder
        self._agent = agent
        self._deaths = deaths
        self._clock = SystemAmbient()

    @contextmanager
    def hour(self, number: int) -> Generator[Hour]:
        """Around the work on an hour. It is noted when it is done."""
        began_s = self._clock.monotonic_s()
        death = next((each for each in self._deaths if each.agent == self._agent and each.hour <= number), None)
        yield Hour(number, deaths_in(self._folder), death)
        seconds = round(self._clock.monotonic_s() - began_s, 3)
        line = json.dumps({"hour": number, "seconds": seconds, "at_ms": self._clock.now_ms()})
        with notes_in(self._folder, self._agent).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")


def notes_in(folder: Path, agent: str) -> Path:
    """The file of an agent's notes, one JSON object a line."""
    return folder / f"{agent}.jsonl"


def deaths_in(folder: Path) -> Path:
    """The file of the deaths that have been died."""
    return folder / "deaths.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects in a file, one a line; the last line may be cut."""
    found: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found

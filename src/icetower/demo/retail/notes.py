"""What agents and jobs note, for people to look at: they never go by their notes. And where they are to be killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from icetower.ambient import SystemAmbient

STAGES = ("read", "writing", "committed")
"""Of an agent's hour: its rows are read; its commit is on its way; it is acknowledged, and not noted yet."""

MIDWAY_S = 0.4
"""How long after a write began it is killed in the middle."""


@dataclass(frozen=True, slots=True)
class Death:
    """The process of an agent or a job is killed (-9).

    Attributes:
        name: the agent or the job.
        hour: in the agent's work on this hour, or on a later one; a job's: when all agents have done that hour.
        stage: the agent or the job comes to it.
    """

    name: str
    hour: int
    stage: str


@dataclass(frozen=True, slots=True)
class Ends:
    """The deaths that are before an agent or a job, and the file where they are noted."""

    folder: Path
    name: str
    deaths: Sequence[Death] = ()

    def reached(self, stage: str, hour: Callable[[], int]) -> None:
        """Tell that the work has come to a stage, and ask for the hour if it matters."""
        own = [death for death in self.deaths if (death.name, death.stage) == (self.name, stage)]
        death = next((each for each in own if each.hour <= hour()), None)
        if death is not None and stage == "writing":
            threading.Timer(MIDWAY_S, self._die, (death,)).start()
        elif death is not None:
            self._die(death)

    def _die(self, death: Death) -> None:
        with deaths_in(self.folder).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(death)) + "\n")
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour that an agent works on."""

    number: int
    ends: Ends

    def reached(self, stage: str) -> None:
        """Tell that the work has come to a stage."""
        self.ends.reached(stage, lambda: self.number)


class Notes:
    """The notes of one agent in a folder, and the deaths that are still before it."""

    def __init__(self, folder: Path, agent: str, deaths: Sequence[Death] = ()) -> None:
        self._folder = folder
        self._agent = agent
        self._ends = Ends(folder, agent, deaths)
        self._clock = SystemAmbient()

    @contextmanager
    def hour(self, number: int) -> Generator[Hour]:
        """Around the work on an hour. It is noted when it is done."""
        began_s = self._clock.monotonic_s()
        yield Hour(number, self._ends)
        seconds = round(self._clock.monotonic_s() - began_s, 3)
        line = json.dumps({"hour": number, "seconds": seconds, "at_ms": self._clock.now_ms()})
        with notes_in(self._folder, self._agent).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")


def hour_of(folder: Path, agents: Sequence[str]) -> int:
    """The hour that all of these agents have done, by their notes."""
    return min(max((note["hour"] for note in read_lines(notes_in(folder, name))), default=0) for name in agents)


def notes_in(folder: Path, agent: str) -> Path:
    """The file of an agent's notes, or of what a job reports, one JSON object a line."""
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

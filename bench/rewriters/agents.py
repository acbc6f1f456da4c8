"""The agents, as threads of a few processes: rewriters until their work is done, appenders until all of it is."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.rewriters.seats import IN_VAIN, Seat, rows
from bench.rewriters.ways import WAYS, room
from bench.rewriters.work import APPENDED_ROWS, RETRIES, Case, thinking_s

PROCESSES = 4
IDS_OF_AN_AGENT = 1_000_000


@dataclass(slots=True)
class Rewrite:
    """One rewrite, with all its attempts.

    Attributes:
        took_s: from when it began until it landed, or was given up.
        thought_s: of each attempt that came to a commit.
        failures: the exceptions of those that were in vain, by name.
    """

    partition: int
    landed: bool = False
    took_s: float = 0.0
    thought_s: list[float] = field(default_factory=list[float])
    failures: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Appended:
    """What one appender has done.

    Attributes:
        ids: of the rows that were acknowledged.
        failures: why others were not.
        took_s: of each append that landed, with all that it has waited.
    """

    ids: list[int] = field(default_factory=list[int])
    failures: Counter[str] = field(default_factory=Counter[str])
    took_s: list[float] = field(default_factory=list[float])


def rewrites(seat: Seat, case: Case, sleep: Callable[[float], None] = time.sleep) -> list[Rewrite]:
    """All rewrites of one rewriter."""
    chance = random.Random(case.seed * 1000 + seat.agent)
    return [_rewrite(seat, case, chance, sleep) for _ in range(case.rewrites)]


def _rewrite(seat: Seat, case: Case, chance: random.Random, sleep: Callable[[float], None]) -> Rewrite:
    done, way = Rewrite(chance.randrange(case.partitions)), WAYS[case.side]
    began_s = time.monotonic()
    for _ in range(1 + RETRIES):
        thinks_s = thinking_s(case, chance)

        def think(thinks_s: float = thinks_s) -> None:
            sleep(thinks_s)
            done.thought_s.append(thinks_s)

        try:
            way(seat, done.partition, think)
        except IN_VAIN as error:
            done.failures[type(error).__name__] += 1
        else:
            done.landed = True
            break
    done.took_s = time.monotonic() - began_s
    return done


def appends(seat: Seat, case: Case, until: Path) -> Appended:
    """All appends of one appender: a few rows to some partition, each after a thought, until a file is there."""
    chance = random.Random(case.seed * 1000 + seat.agent)
    done, number = Appended(), seat.agent * IDS_OF_AN_AGENT
    while not until.exists():
        time.sleep(thinking_s(case, chance))
        ids = list(range(number, number + APPENDED_ROWS))
        number += APPENDED_ROWS
        partition, began_s = chance.randrange(case.partitions), time.monotonic()
        try:
            with room(seat, partition) as said:
                seat.table().append(rows(ids, partition), snapshot_properties={**seat.summary(), **said})
        except IN_VAIN as error:
            done.failures[type(error).__name__] += 1
        else:
            done.ids += ids
            done.took_s.append(time.monotonic() - began_s)
    return done


def _rewriters(seats: Sequence[Seat], case: Case) -> list[Rewrite]:
    with ThreadPoolExecutor(len(seats)) as threads:
        return [each for its in threads.map(lambda seat: rewrites(seat, case), seats) for each in its]


def _appenders(seats: Sequence[Seat], case: Case, until: Path) -> list[Appended]:
    with ThreadPoolExecutor(len(seats)) as threads:
        return list(threads.map(lambda seat: appends(seat, case, until), seats))


def run(case: Case, seats: Sequence[Seat], folder: Path) -> tuple[list[Rewrite], list[Appended], float]:
    """All agents; how long the rewriters took together, in seconds."""
    until = folder / "rewriters.done"
    rewriting, appending = seats[: case.rewriters], seats[case.rewriters :]
    parts = max(PROCESSES // 2, 1)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2 * parts, mp_context=context) as processes:
        began_s = time.monotonic()
        others = [processes.submit(_appenders, its, case, until) for its in _dealt(appending, parts)]
        mine = [processes.submit(_rewriters, its, case) for its in _dealt(rewriting, parts)]
        try:
            rewritten = [each for future in mine for each in future.result()]
            took_s = time.monotonic() - began_s
        finally:
            until.touch()
        return rewritten, _all(others), took_s


def _all(futures: Sequence[Future[list[Appended]]]) -> list[Appended]:
    return [each for future in futures for each in future.result()]


def _dealt(seats: Sequence[Seat], parts: int) -> list[Sequence[Seat]]:
    return [its for at in range(parts) if (its := seats[at::parts])]

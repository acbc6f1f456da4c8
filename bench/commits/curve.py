"""The curve over history: how many commits a second a table takes after so many of them.

Icetower's table really gets its twenty thousand commits, by protocol-level writers, once without retention and once
with it on a faster clock, in several rounds. A peer is measured at a few lengths of history that were generated: one
writer, which nobody disturbs, since at these lengths several would only take each other's turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pyiceberg.catalog import load_catalog

from bench.commits import protocol_writers, pyiceberg_writers, servers, sides, verify
from bench.commits.history import lengthen
from bench.commits.operations import Operation, Spread, figures
from bench.commits.prepared import prepare
from bench.commits.protocol_writers import COMMIT_PATH, Load, Request
from bench.commits.pyiceberg_writers import Job
from bench.commits.sides import Case
from icetower.demo import slow_io
from icetower.protocol.marks import RETENTION_AGE_MAX_MS

WRITERS = 256
STEP = 1_000
PEER_SIZES = (0, 1_000, 5_000, 10_000, 20_000)
PEER_S = 20.0
CLOCK_FACTOR = 120.0
RETENTION = {RETENTION_AGE_MAX_MS: "600000"}
LIMIT_S = 600.0

WITHOUT, WITH, PEER = "Icetower", "Icetower with retention", "PyIceberg, SQL catalog (one writer)"


Point = tuple[int, float]
"""Commits in the history, and commits a second there."""
Curves = Mapping[str, Sequence[Sequence[float]]]
"""Name → points: commits in the history, and commits a second in each round."""


def curves(commits: int, rounds: int, folder: Callable[[], Path]) -> Iterator[tuple[str, list[Point], bool]]:
    """Each curve of each round, the peer's once: its name, its points, and whether the table was exact.

    Exact is also that history was cut where that was asked for, and nowhere else.
    """
    for _ in range(rounds):
        yield WITHOUT, *_tower(commits, folder(), {}, 1.0)
        yield WITH, *_tower(commits, folder(), RETENTION, CLOCK_FACTOR)
    yield PEER, [(size, _peer(size, folder())) for size in PEER_SIZES if size <= commits], True


def together(known: Sequence[Sequence[float]], points: Sequence[Point]) -> list[list[float]]:
    """The points of the rounds so far, and those of another one."""
    before = {int(point[0]): list(point) for point in known}
    return [[*before.get(size, [size]), rate] for size, rate in points]


def medians(points: Sequence[Sequence[float]]) -> list[Point]:
    """A curve by the medians of its rounds: a point takes seconds, and one pause of the machine is a fifth of it."""
    return [(int(size), Spread.of(rates).median) for size, *rates in points]


def _tower(commits: int, folder: Path, properties: dict[str, str], clock_factor: float) -> tuple[list[Point], bool]:
    case = Case(sides.PREPARED, WRITERS, "s3", LIMIT_S, properties=properties)
    launcher = ("bench.commits.fast_clock", str(clock_factor)) if clock_factor != 1.0 else ()
    with servers.tower(folder, case.profile, case.seed, launcher=launcher) as server:
        catalog = load_catalog("bench", **sides.rest(server))
        sides.create(catalog, case)
        tokens = protocol_writers.principals(server, WRITERS)
        loads: list[Load] = []
        points: list[Point] = []
        for done in range(0, commits, STEP):
            # Retention keeps what commits on their way were written on, so each step's are written on the head.
            ids = range(sides.PREPARED_FROM + done, sides.PREPARED_FROM + done + STEP)
            requests = [Request(c.row_id, c.body) for c in prepare(verify.head_of(server.database), ids)]
            os.sync()  # what was prepared is not to be flushed while the tower flushes its own
            loads.append(protocol_writers.replay(server.uri, COMMIT_PATH, tokens, requests, LIMIT_S))
            points += [(done + at, rate) for at, rate in rates(loads[-1].operations, loads[-1].from_s)]
        operations = [operation for load in loads for operation in load.operations]
        load = Load(operations, loads[0].from_s, sum(load.cpu_s for load in loads))
        row = sides.record_of(case, sides.Work(load), server.database, 0, None)
        kept = len(verify.head_of(server.database)["snapshots"])
        expired = kept < commits / 2 if properties else kept == commits + 1
        return points, row["exact"] and row["acknowledged"] == commits and expired


def rates(operations: Sequence[Operation], from_s: float, step: int = STEP) -> list[Point]:
    """After each `step` acknowledged commits, how many came a second since the step before."""
    ends = sorted(operation.end_s for operation in operations if operation.outcome == "ok")
    found: list[Point] = []
    before_s = from_s
    for at in range(step, len(ends) + 1, step):
        found.append((at, step / max(ends[at - 1] - before_s, 1e-9)))
        before_s = ends[at - 1]
    return found


def _peer(size: int, folder: Path, seconds: float = PEER_S) -> float:
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "catalog.db"
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{folder}/warehouse"}
    sides.create(load_catalog("bench", **properties), Case(sides.DIRECT, 1))
    lengthen(database, size)
    load = pyiceberg_writers.run([Job(0, properties | slow_io.properties("s3", 100), seconds)])
    return figures(load.operations, from_s=load.from_s + sides.WARM_S, to_s=load.from_s + seconds).commits_per_s

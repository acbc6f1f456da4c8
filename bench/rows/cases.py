"""The runs, their order, and the figures that they must reach. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.commits.operations import Spread
from bench.commits.schedule import Promise

Record = Mapping[str, Any]
"""One run as it is kept: its figures, and the round in which it was made."""

DOOR = "rows door"
APPENDS = "fast path"
TOWER = "PyIceberg, Icetower"
DIRECT = "PyIceberg, SQL catalog"
DUCKLAKE = "DuckLake, PostgreSQL"
SIDES = (DOOR, APPENDS, TOWER, DIRECT, DUCKLAKE)

SECTIONS = ("headlines", "grid")
ROUNDS = 3
AGENTS, AGENTS_ALL = (1, 32, 256), (1, 8, 32, 64, 128, 256)
BATCHES = (1, 100)
"""Rows of one request."""
SECONDS, GRID_S, SHORT_S = 8.0, 6.0, 1.5
LAKE_TIMES = 2.5
"""So much longer DuckLake runs: its agents that lose a race wait for seconds."""

ROWS_PER_S_MAX = 120_000
REQUESTS_PER_S_MAX = 4_000
"""For which requests are prepared: more than will be sent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        rows: of each request.
        profile: name of the storage latency.
        seconds: for how long new requests are begun.
    """

    side: str
    agents: int
    rows: int = 1
    profile: str = "none"
    seconds: float = SECONDS
    seed: int = 1

    @property
    def requests_max(self) -> int:
        """For how many requests bodies are prepared."""
        slowest_s = 0.05 if self.profile == "s3" else 0.002
        rate = min(REQUESTS_PER_S_MAX, ROWS_PER_S_MAX / self.rows, self.agents / slowest_s)
        return max(2 * self.agents, int(rate * self.seconds))


def headlines(rounds: int = ROUNDS) -> Iterator[tuple[int, Case]]:
    """The runs with a promise: each round makes all of them. DuckLake runs right after the door that it is held to."""
    for number in range(1, rounds + 1):
        for agents in (64, 128, 256):
            sides = Case(DOOR, agents, seed=number), Case(DUCKLAKE, agents, seconds=SECONDS * LAKE_TIMES, seed=number)
            yield from ((number, case) for case in (sides if number % 2 else sides[::-1]))
        for agents in (1, 32):
            yield number, Case(DOOR, agents, seed=number)
        for rows in BATCHES:
            yield number, Case(DOOR, 256, rows, "s3", seed=number)


def grid(*, full: bool) -> Iterator[tuple[int, Case]]:
    """Every side by agents, rows a request and latency, once. DuckLake's inlined rows go to no storage."""
    for agents in AGENTS_ALL if full else AGENTS:
        for rows in BATCHES:
            for profile in ("none", "s3"):
                for side in SIDES if profile == "none" else SIDES[:-1]:
                    seconds = (SECONDS if full else GRID_S) * (LAKE_TIMES if side == DUCKLAKE else 1)
                    yield 1, Case(side, agents, rows, profile, seconds, 7)


def short() -> Iterator[tuple[int, Case]]:
    """Every side, and the door with many rows a request: whether they run, and nothing about how fast."""
    for side in SIDES:
        yield 1, Case(side, 2, 1, "none", SHORT_S)
    yield 1, Case(DOOR, 4, 100, "s3", SHORT_S)


def promises(records: Sequence[Record]) -> list[Promise]:
    """All promises, from the headline runs."""
    found: list[Promise] = []
    for agents, times in ((64, 6), (128, 10), (256, 10)):
        found += [
            Promise(f"{agents} agents of one row, against DuckLake", times, _ratio(records, agents), "x"),
            Promise("… p99", 1_000, _spread(records, _of(DOOR, agents), "p99_ms"), "ms", at_most=True),
        ]
    far, many = _of(DOOR, 256, 1, "s3"), _of(DOOR, 256, 100, "s3")
    doors = [record for record in records if record["side"] == DOOR]
    return [
        *found,
        Promise("one agent, no latency: p50", 25, _spread(records, _of(DOOR, 1), "p50_ms"), "ms", at_most=True),
        Promise("S3, 256 agents of one row", 1_000, _spread(records, far, "requests_per_s"), "acks/s"),
        Promise("S3, 256 agents of 100 rows", 30_000, _spread(records, many, "rows_per_s"), "rows/s"),
        Promise("requests to the door that succeed", 100, _least(doors, "success", 100), "%"),
        Promise("data files of the door, from 32 agents", 20, _files(doors), "files/s", at_most=True),
        Promise("runs whose table is not exactly what was acknowledged", 0, _wrong(records), "runs", at_most=True),
    ]


_Key = tuple[str, int, int, str]


def key(record: Record) -> _Key:
    """The side, agents, rows a request and storage of a run."""
    return record["side"], record["agents"], record["rows"], record["profile"]


def _of(side: str, agents: int, rows: int = 1, profile: str = "none") -> _Key:
    return side, agents, rows, profile


def _spread(records: Sequence[Record], of: _Key, figure: str) -> Spread | None:
    values = [record[figure] for record in records if key(record) == of]
    return Spread.of(values) if values else None


def _ratio(records: Sequence[Record], agents: int) -> Spread | None:
    """The door's rate over DuckLake's in the same round, so that whatever else the machine did is in both."""
    theirs = {r["round"]: r["requests_per_s"] for r in records if key(r) == _of(DUCKLAKE, agents)}
    pairs = [
        (record["requests_per_s"], theirs[record["round"]])
        for record in records
        if key(record) == _of(DOOR, agents) and record["round"] in theirs
    ]
    ratios = [mine / other if other else float("inf") for mine, other in pairs]
    return Spread.of(ratios) if ratios else None


def _least(records: Sequence[Record], figure: str, scale: float) -> Spread | None:
    """Of all runs: the worst counts, whichever it was."""
    values = [record[figure] * scale for record in records]
    return Spread(min(values), min(values), max(values)) if values else None


def _files(records: Sequence[Record]) -> Spread | None:
    """Of all runs with at least 32 agents: the one with the most counts."""
    values = [record["files_per_s"] for record in records if record["agents"] >= 32]
    return Spread(min(values), max(values), max(values)) if values else None


def _wrong(records: Sequence[Record]) -> Spread | None:
    wrong = float(sum(not record["exact"] for record in records))
    return Spread(wrong, wrong, wrong) if records else None

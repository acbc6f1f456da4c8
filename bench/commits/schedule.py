"""Which runs are made, in which order, and what must come out of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.commits.curve import WITH, Curves, medians
from bench.commits.operations import Spread
from bench.commits.sides import APPENDS, DIRECT, LOCKED, OPTIMISTIC, PREPARED, REFERENCE, TOWER, Case

Record = Mapping[str, Any]
"""One run as it is kept: its figures, and the round in which it was made."""

SECTIONS = ("headlines", "grid", "history")
ROUNDS = 3
WRITERS, WRITERS_ALL = (1, 32, 128), (1, 8, 32, 128, 256, 512)
PROTOCOL_S, CLIENTS_S, ALONE_S = 8.0, 9.0, 6.0
RATES_MAX = {APPENDS: 2_500, PREPARED: 900}


def headlines(rounds: int = ROUNDS) -> Iterator[tuple[int, Case]]:
    """The rows with a promise: each round makes all of them, one side after the other."""
    for number in range(1, rounds + 1):
        for side in (PREPARED, OPTIMISTIC, LOCKED):
            yield number, Case(side, 256, "s3", PROTOCOL_S, number)
        for side in (TOWER, REFERENCE, DIRECT):
            yield number, Case(side, 16, "none", CLIENTS_S, number)
        for side in (TOWER, DIRECT):
            yield number, Case(side, 1, "none", ALONE_S, number)
        yield number, Case(APPENDS, 512, "s3", PROTOCOL_S, number, RATES_MAX[APPENDS])


def grid(*, full: bool) -> Iterator[tuple[int, Case]]:
    """Every side by writers, once. The default subset leaves out what takes long and tells little."""
    for writers in WRITERS_ALL if full else WRITERS:
        for profile in ("none", "s3") if full else ("s3",):
            for side in (DIRECT, TOWER, PREPARED, APPENDS, OPTIMISTIC, LOCKED):
                seconds = CLIENTS_S if side in (DIRECT, TOWER) else PROTOCOL_S
                rate_max = _rate_max(side, writers, profile)
                yield 1, Case(side, writers, profile, seconds if full else seconds * 0.75, 7, rate_max)
            if profile == "none":
                yield 1, Case(REFERENCE, writers, profile, CLIENTS_S, 7)


def _rate_max(side: str, writers: int, profile: str) -> int:
    """More than will be sent, and not much more: what is prepared is made before each run."""
    most = RATES_MAX.get(side, 0)
    return min(most, writers * (12 if profile == "s3" else 400))


@dataclass(frozen=True, slots=True)
class Promise:
    """What a figure must be, and what it was.

    Attributes:
        wanted: at least so much; with `at_most`, at most.
        found: over the rounds; None where the runs for it were not made.
    """

    name: str
    wanted: float
    found: Spread | None
    unit: str = ""
    at_most: bool = False

    @property
    def kept(self) -> bool:
        """Judged by the median."""
        if self.found is None:
            return False
        return self.found.median <= self.wanted if self.at_most else self.found.median >= self.wanted

    @property
    def short_by(self) -> float:
        """How much is lacking; 0 where the promise is kept."""
        if self.found is None or self.kept:
            return 0.0
        return abs(self.found.median - self.wanted)


def promises(records: Sequence[Record], history: Curves) -> list[Promise]:
    """All promises of the benchmark, from the headline runs and the curves over history."""
    appends, prepared = (APPENDS, 512, "s3"), (PREPARED, 256, "s3")
    tower = (TOWER, 16, "none")
    return [
        Promise("S3, 256 protocol writers", 300, _spread(records, prepared, "commits_per_s"), "commits/s"),
        Promise("… of which succeed", 100, _spread(records, prepared, "success", 100), "%"),
        Promise("… against plain OCC", 50, _ratio(records, prepared, (OPTIMISTIC, 256, "s3"), "commits_per_s"), "x"),
        Promise(
            "no latency, 16 PyIceberg writers, against the Java reference",
            2.5,
            _ratio(records, tower, (REFERENCE, 16, "none"), "commits_per_s"),
            "x",
        ),
        Promise("… of which succeed", 100, _spread(records, tower, "success", 100), "%"),
        Promise(
            "no latency, one writer: p50 against the SQL catalog",
            1.15,
            _ratio(records, (TOWER, 1, "none"), (DIRECT, 1, "none"), "p50_ms"),
            "x",
            at_most=True,
        ),
        Promise("S3, 512 agents' SDK appends", 1_000, _spread(records, appends, "commits_per_s"), "acks/s"),
        Promise("… of which succeed", 100, _spread(records, appends, "success", 100), "%"),
        Promise("… metadata files", 20, _spread(records, appends, "metadata_files_per_s"), "files/s", at_most=True),
        Promise("… not attributable", 0, _spread(records, appends, "unattributed"), "appends", at_most=True),
        Promise("history with retention: its lowest point, of its first", 80, _lowest(history.get(WITH, ())), "%"),
        Promise("runs whose table is not exactly what was acknowledged", 0, _wrong(records), "runs", at_most=True),
    ]


def _of(records: Sequence[Record], case: tuple[str, int, str]) -> list[Record]:
    return [record for record in records if (record["side"], record["writers"], record["profile"]) == case]


def _spread(records: Sequence[Record], case: tuple[str, int, str], figure: str, scale: float = 1) -> Spread | None:
    values = [record[figure] * scale for record in _of(records, case)]
    return Spread.of(values) if values else None


def _ratio(
    records: Sequence[Record], case: tuple[str, int, str], other: tuple[str, int, str], figure: str
) -> Spread | None:
    """Within a round, so that whatever else the machine did at the time is in both."""
    theirs = {record["round"]: record[figure] for record in _of(records, other)}
    pairs = [(record[figure], theirs[record["round"]]) for record in _of(records, case) if record["round"] in theirs]
    ratios = [mine / other if other else float("inf") for mine, other in pairs]
    return Spread.of(ratios) if ratios else None


def _lowest(points: Sequence[Sequence[float]]) -> Spread | None:
    """Of the medians of the rounds: the lowest of twenty noisy points would tell of the noise."""
    if not points:
        return None
    rates = [rate for _, rate in medians(points)]
    lowest = min(rates) / rates[0] * 100
    return Spread(lowest, lowest, lowest)


def _wrong(records: Sequence[Record]) -> Spread | None:
    if not records:
        return None
    wrong = float(sum(not record["exact"] for record in records))
    return Spread(wrong, wrong, wrong)

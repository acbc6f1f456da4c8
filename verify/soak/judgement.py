"""What a run must show: memory that stays, everybody served alike, every acknowledged row there once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.commits.operations import Operation, percentile

MIB = 1024 * 1024
RSS_MAX_BYTES = 1024 * MIB
GROWTH = 0.05
GROWTH_BYTES = 24 * MIB
"""In the second half memory may grow by the larger of these: what an allocator's arenas move by."""

FAIR = 2.0
WRITES_MIN = 20
"""Of how many writes of a principal its p95 says anything."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The tower's resident set over a run, in bytes: where its second half begins and ends, and its largest."""

    begins: float
    ends: float
    largest: int

    @classmethod
    def of(cls, samples: Sequence[tuple[float, int]], from_s: float, to_s: float) -> Memory:
        """Of (time, bytes) between two times. Both ends are medians of a sixth of the run, for what comes and goes."""
        half_s, some_s = (from_s + to_s) / 2, (to_s - from_s) / 6
        first = [size for at_s, size in samples if half_s <= at_s < half_s + some_s]
        last = [size for at_s, size in samples if to_s - some_s < at_s <= to_s]
        if not first or not last:
            raise ValueError("the run was too short to see the tower's memory in its second half")
        return cls(median(first), median(last), max(size for at_s, size in samples if from_s <= at_s <= to_s))

    @property
    def flat(self) -> bool:
        """Whether the second half ends as it began."""
        return self.ends - self.begins <= max(GROWTH_BYTES, GROWTH * self.begins)

    def faults(self) -> list[str]:
        """What is wrong with it."""
        found: list[str] = []
        if not self.flat:
            found.append(f"memory grew in the second half from {self.begins / MIB:.0f} to {self.ends / MIB:.0f} MiB")
        if self.largest > RSS_MAX_BYTES:
            found.append(f"memory came to {self.largest / MIB:.0f} MiB, over {RSS_MAX_BYTES / MIB:.0f}")
        return found


@dataclass(frozen=True, slots=True)
class Fairness:
    """Each principal's p95, in seconds.

    Attributes:
        principals: how many had enough writes to be judged.
        median_s: of the median principal.
        worst_s: of the slowest one, which is `worst`.
    """

    principals: int
    median_s: float
    worst_s: float
    worst: int

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> Fairness:
        """Of the writes of all principals, failed ones too: they took their time."""
        by_principal: dict[int, list[float]] = {}
        for operation in operations:
            by_principal.setdefault(operation.writer, []).append(operation.end_s - operation.start_s)
        p95 = {who: percentile(sorted(times), 95) for who, times in by_principal.items() if len(times) >= WRITES_MIN}
        if not p95:
            return cls(0, 0.0, 0.0, 0)
        worst = max(p95, key=lambda who: p95[who])
        return cls(len(p95), median(p95.values()), p95[worst], worst)

    def faults(self, principals: int) -> list[str]:
        """What is wrong with it. `principals`: how many there were."""
        if self.principals < principals / 2:
            few = f"only {self.principals} of {principals} principals had {WRITES_MIN} writes"
            return [f"{few}: longer, or with less think time"]
        if self.worst_s > FAIR * self.median_s:
            worst = f"principal {self.worst} has a p95 of {self.worst_s:.2f} s"
            return [f"{worst}, over {FAIR:.0f} times the median principal's {self.median_s:.2f} s"]
        return []


def rows_faults(table: str, operations: Sequence[Operation], rows: Mapping[int, int]) -> list[str]:
    """Whether a table holds what its agents were answered. `rows`: how often each id is in it."""
    found: list[str] = []
    done = {operation.row_id for operation in operations if operation.outcome == "ok"}
    missing = sorted(done - rows.keys())
    doubled = sorted(row_id for row_id, count in rows.items() if count > 1)
    for what, which in (("acknowledged rows are missing", missing), ("rows are there twice", doubled)):
        if which:
            found.append(f"{table}: {len(which)} {what}, the first is {which[0]}")
    return found

"""What was measured: single commits, and the figures made of them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Operation:
    """One commit as its writer saw it.

    Attributes:
        row_id: of the row that it appends.
        start_s, end_s: on the machine's monotonic clock, which all processes share.
        outcome: ``ok``, ``conflict`` (certainly not in the table) or the name of another error, after which it may be.
        retries: attempts beyond the first.
        writer: which of the writers.
    """

    row_id: int
    start_s: float
    end_s: float
    outcome: str
    retries: int = 0
    writer: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one side.

    Attributes:
        commits_per_s: acknowledged within the window.
        success: acknowledged, of all that were tried; 0 to 1.
        p50_ms, p99_ms: of the acknowledged, from the first attempt to the answer; NaN where there are none.
        failures: outcome → how many.
    """

    window_s: float
    commits: int
    tried: int
    commits_per_s: float
    success: float
    p50_ms: float
    p99_ms: float
    retries: int
    failures: dict[str, int] = field(default_factory=dict[str, int])


def figures(operations: Iterable[Operation], *, from_s: float, to_s: float) -> Figures:
    """The figures of the operations that ended within a window of the monotonic clock.

    Where all writers ended before the window did (there was no more to send), the window ends with the last of them.
    """
    ended = [op for op in operations if from_s <= op.end_s]
    to_s = min(to_s, max((op.end_s for op in ended), default=to_s))
    inside = [op for op in ended if op.end_s <= to_s]
    good = [op for op in inside if op.outcome == "ok"]
    window_s = max(to_s - from_s, 1e-9)
    latencies_ms = sorted((op.end_s - op.start_s) * 1000 for op in good)
    return Figures(
        window_s=window_s,
        commits=len(good),
        tried=len(inside),
        commits_per_s=len(good) / window_s,
        success=len(good) / len(inside) if inside else 0.0,
        p50_ms=percentile(latencies_ms, 50),
        p99_ms=percentile(latencies_ms, 99),
        retries=sum(op.retries for op in inside),
        failures=dict(Counter(op.outcome for op in inside if op.outcome != "ok")),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted numbers; NaN of none."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """The least, the median and the greatest of repeated measurements."""

    least: float
    median: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Raises `ValueError` where there are none."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("nothing was measured")
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return cls(ordered[0], median, ordered[-1])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The table after a run, held against what its writers were told.

    Attributes:
        missing: acknowledged, and not in the table.
        doubled: in the table more than once.
        unexpected: in the table though its writer was told that it is not.
    """

    missing: tuple[int, ...]
    doubled: tuple[int, ...]
    unexpected: tuple[int, ...]

    @property
    def exact(self) -> bool:
        """Whether every acknowledged commit is in the table exactly once, and none that was refused."""
        return not (self.missing or self.doubled or self.unexpected)


def unattributed(
    operations: Iterable[Operation], keys: Mapping[int, str], reported: Iterable[tuple[str, str | None]]
) -> tuple[int, ...]:
    """Rows of acknowledged appends that the table's group files do not name exactly once with principal and key.

    Args:
        keys: row id → the key under which it was sent.
        told: principal and key of every append in the group files.
    """
    counted = Counter(reported)
    good = {op.row_id: (f"writer-{op.writer}", keys[op.row_id]) for op in operations if op.outcome == "ok"}
    return tuple(sorted(row_id for row_id, owner in good.items() if counted[owner] != 1))


def judge(operations: Iterable[Operation], found: Iterable[int], *, before: Iterable[int] = ()) -> Verdict:
    """Hold the rows that were found in a table against the operations.

    Args:
        found: ids of all rows in the table, with repetitions.
        before: ids that were there before the run.
    """
    counted = Counter(found)
    outcomes: dict[int, set[str]] = {}
    for operation in operations:
        outcomes.setdefault(operation.row_id, set()).add(operation.outcome)
    acknowledged = {row_id for row_id, seen in outcomes.items() if "ok" in seen} | set(before)
    refused = {row_id for row_id, seen in outcomes.items() if seen == {"conflict"}}
    strangers = {row_id for row_id in counted if row_id not in outcomes and row_id not in acknowledged}
    return Verdict(
        missing=tuple(sorted(acknowledged - counted.keys())),
        doubled=tuple(sorted(row_id for row_id, times in counted.items() if times > 1)),
        unexpected=tuple(sorted((refused & counted.keys()) | strangers)),
    )

"""What was measured: writes as their agents saw them, and the figures of one run. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.commits.operations import percentile
from bench.patterns.rows import Write

CUT_OFF = "cut off"
"""The failure of a try that had not ended in time."""


@dataclass(slots=True)
class Attempted:
    """A write that an agent began.

    Attributes:
        decided_ms: when, on the machine's clock.
        tries_ms: how long each of its tries took.
        answered: the agent was told that it has landed.
        sequence: of the commit that landed, where the answer says so.
        visible_ms: when its rows could be read in the table, or newer ones of the same products; None: never.
    """

    write: Write
    decided_ms: int
    tries_ms: list[float] = field(default_factory=list[float])
    answered: bool = False
    sequence: int | None = None
    visible_ms: int | None = None
    failures: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Stored:
    """What a run has left, and what reading the table costs then.

    Attributes:
        data_files, delete_files: live in the table.
        files: all that lie in storage: those of logs and deltas, old versions and metadata, too.
        read_ms: reading all rows of the table, the median of some times.
    """

    data_files: int
    delete_files: int
    files: int
    read_ms: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One side's run.

    Attributes:
        due, begun, landed: writes: that begin if none is late, that began, and that landed; `rows`: of these.
        offered_rows_per_s: if every write began when it should and landed.
        rows_per_s: until the last of them was visible.
        wasted_pct: the share of the agents' tries, by their time, that came to nothing.
        lag_p50_ms, lag_p99_ms: from decision to visible. `tries`: statements, or appends, that ended, and
            `try_p50_ms` of them.
        batches: of the job, if there is one; `batch_ms`: the median of their durations.
        exact: the table has what the writes that landed leave, no more and no less.
    """

    side: str
    shape: str
    agents: int
    round: int
    due: int
    begun: int
    landed: int
    rows: int
    seconds: float
    offered_rows_per_s: float
    rows_per_s: float
    success_pct: float
    wasted_pct: float
    lag_p50_ms: float
    lag_p99_ms: float
    try_p50_ms: float
    tries: int
    data_files: int
    delete_files: int
    files: int
    read_ms: float
    batches: int
    batch_ms: float
    exact: bool
    failures: Mapping[str, int]


def figures(
    case: tuple[str, str, int, int],
    attempts: Sequence[Attempted],
    stored: Stored,
    *,
    began_ms: int,
    seconds: float,
    due: int,
    offered_rows_per_s: float,
    batches_ms: Sequence[float],
    exact: bool,
) -> Figures:
    """The figures of a run of `seconds`, in which agents began to write at `began_ms`."""
    landed = [each for each in attempts if each.visible_ms is not None]
    times = [each.visible_ms - each.decided_ms for each in landed if each.visible_ms is not None]
    ended_ms = max((each.visible_ms for each in landed if each.visible_ms is not None), default=began_ms)
    took_s = max((ended_ms - began_ms) / 1000, seconds)
    rows = sum(len(each.write.rows) for each in landed)
    spent = sum(sum(each.tries_ms) for each in attempts)
    useful = sum(each.tries_ms[-1] for each in landed if each.tries_ms)
    lags = sorted(max(time, 0) for time in times)
    tries = sorted(time for each in attempts for time in each.tries_ms)
    side, shape, agents, number = case
    return Figures(
        side=side,
        shape=shape,
        agents=agents,
        round=number,
        due=due,
        begun=len(attempts),
        landed=len(landed),
        rows=rows,
        seconds=round(took_s, 2),
        offered_rows_per_s=round(offered_rows_per_s, 1),
        rows_per_s=round(rows / took_s, 2),
        success_pct=round(100 * len(landed) / len(attempts), 1) if attempts else math.nan,
        wasted_pct=round(100 * (spent - useful) / spent, 1) if spent else 0.0,
        lag_p50_ms=percentile(lags, 50),
        lag_p99_ms=percentile(lags, 99),
        try_p50_ms=percentile(tries, 50),
        tries=len(tries) - sum(each.failures.count(CUT_OFF) for each in attempts),
        data_files=stored.data_files,
        delete_files=stored.delete_files,
        files=stored.files,
        read_ms=round(stored.read_ms, 1),
        batches=len(batches_ms),
        batch_ms=round(statistics.median(batches_ms)) if batches_ms else math.nan,
        exact=exact,
        failures=_counted(each for attempt in attempts for each in attempt.failures),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found

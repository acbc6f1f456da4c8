"""The counters of a run, in memory that does not grow with it, and the figures derived from them.

Latencies are kept in bins that are each 0.1 % wide, so that percentiles are exact to less than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from icetower_simulator.compiled import compiled
from icetower_simulator.setup import KINDS

BEGUN, WHOLE = 0, 1
"""Windows: the transactions that began between two times; and the whole run, with latencies of its middle 80 %."""
COMMITTED, FAILED, RETRIES, LATENCY_MS, TIMED = range(5)
_FIELDS = 5
_LEAST_MS = 0.1
_BINS_PER_E = 1000
_BINS = 18_432
"""Up to ten million milliseconds."""
TALLY = np.dtype(
    [
        ("counts", np.float64, (2, len(KINDS), _FIELDS)),
        ("first", np.float64),
        ("last", np.float64),
        ("arrived", np.int64),
        ("swaps", np.int64),
        ("reads", np.int64),
        ("writes", np.int64),
        ("catalog_reads", np.int64),
        ("catalog_commits", np.int64),
        ("events", np.int64),
    ]
)
"""Counts by window and kind, when the first and the last transaction of the window began, and totals of the run."""


def new_tally() -> tuple[Any, Any]:
    """A tally, and bins of latencies by window and kind."""
    tally = np.zeros(1, TALLY)[0]
    tally["first"], tally["last"] = math.inf, -math.inf
    return tally, np.zeros((2, len(KINDS), _BINS), np.int32)


@compiled
def count_end(
    tally: Any,
    bins: Any,
    kind: int,
    committed: bool,
    begun: bool,
    whole: bool,
    retries: int,
    latency: float,
    submitted: float,
) -> None:
    """Count an ended transaction. `begun`: it counts in that window. `whole`: its latency counts over the whole run."""
    field = COMMITTED if committed else FAILED
    tally.counts[WHOLE, kind, field] += 1
    if begun:
        tally.counts[BEGUN, kind, field] += 1
        tally.first = min(tally.first, submitted)
        tally.last = max(tally.last, submitted)
    if not committed:
        return
    place = min(int(math.log(max(latency, _LEAST_MS) / _LEAST_MS) * _BINS_PER_E), _BINS - 1)
    for window in range(2):
        if begun if window == BEGUN else whole:
            bins[window, kind, place] += 1
            tally.counts[window, kind, TIMED] += 1
            tally.counts[window, kind, RETRIES] += retries
            tally.counts[window, kind, LATENCY_MS] += latency


@dataclass(frozen=True, slots=True)
class Figures:
    """A run's figures for some of its transactions. Without transactions, percentages and latencies are nan."""

    committed: int
    failed: int
    success_pct: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    mean_retries: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: one setup, one seed.

    Attributes:
        commits_per_s: commits in the window `BEGUN`, divided by the time between its first start and its last.
        arrived, in_flight: over the whole run; `in_flight`: neither visible in the table nor failed when it ended.
        swaps: of the catalog's pointer that succeeded.
        reads, writes: of storage; `catalog_reads`, `catalog_commits`: requests to the catalog.
        events: the number of simulated events.
        figures: by window, of all kinds; `by_kind`: by window and kind; `fresh`: by window, with latencies until the
            write is visible in its table, which is later than its acknowledgement if a log or a staging table is used.
    """

    commits_per_s: float
    arrived: int
    in_flight: int
    swaps: int
    reads: int
    writes: int
    catalog_reads: int
    catalog_commits: int
    events: int
    figures: tuple[Figures, Figures]
    by_kind: tuple[tuple[Figures, ...], tuple[Figures, ...]]
    fresh: tuple[Figures, Figures]

    @property
    def committed(self) -> int:
        return self.figures[WHOLE].committed

    @property
    def failed(self) -> int:
        return self.figures[WHOLE].failed


def outcome(tally: Any, bins: Any, in_flight: int, fresh: tuple[Figures, Figures] | None = None) -> Outcome:
    """The outcome from a finished tally. Writes are visible when acknowledged, unless `fresh` is given."""
    counts = tally["counts"]
    kinds = range(len(KINDS))
    first, last = float(tally["first"]), float(tally["last"])
    figures = (_figures(counts[BEGUN], bins[BEGUN]), _figures(counts[WHOLE], bins[WHOLE]))
    return Outcome(
        commits_per_s=float(counts[BEGUN, :, COMMITTED].sum()) / (last - first) * 1000 if last > first else 0.0,
        arrived=int(tally["arrived"]),
        in_flight=in_flight,
        swaps=int(tally["swaps"]),
        reads=int(tally["reads"]),
        writes=int(tally["writes"]),
        catalog_reads=int(tally["catalog_reads"]),
        catalog_commits=int(tally["catalog_commits"]),
        events=int(tally["events"]),
        figures=figures,
        fresh=fresh or figures,
        by_kind=(
            tuple(_figures(counts[BEGUN, [kind]], bins[BEGUN, [kind]]) for kind in kinds),
            tuple(_figures(counts[WHOLE, [kind]], bins[WHOLE, [kind]]) for kind in kinds),
        ),
    )


def _figures(counts_by_kind: Any, bins_by_kind: Any) -> Figures:
    counts, bins = counts_by_kind.sum(axis=0), bins_by_kind.sum(axis=0)
    ended, timed = counts[COMMITTED] + counts[FAILED], counts[TIMED]
    p50, p95, p99 = (percentile_ms(bins, part) / 1000 for part in (0.50, 0.95, 0.99))
    return Figures(
        committed=int(counts[COMMITTED]),
        failed=int(counts[FAILED]),
        success_pct=100 * float(counts[COMMITTED] / ended) if ended else math.nan,
        mean_s=float(counts[LATENCY_MS] / timed) / 1000 if timed else math.nan,
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        mean_retries=float(counts[RETRIES] / timed) if timed else math.nan,
    )


def percentile_ms(bins: Any, part: float) -> float:
    """A percentile of the latencies in the bins, interpolated between its two neighbours; nan if there are none."""
    total = int(bins.sum())
    if total == 0:
        return math.nan
    rank = part * (total - 1)
    low = math.floor(rank)
    cumulated = np.cumsum(bins)
    values = [_value_ms(bins, cumulated, place) for place in (low, min(low + 1, total - 1))]
    return values[0] + (rank - low) * (values[1] - values[0])


def _value_ms(bins: Any, cumulated: Any, rank: int) -> float:
    """The latency at a rank; latencies of one bin are taken as spread evenly within it."""
    place = int(np.searchsorted(cumulated, rank, side="right"))
    within = (rank - (cumulated[place] - bins[place]) + 0.5) / bins[place]
    return _LEAST_MS * math.exp((place + within) / _BINS_PER_E)

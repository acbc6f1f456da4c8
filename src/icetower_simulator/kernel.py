"""The parts that both compiled simulations share: arrivals, random choices, and the count of ended transactions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from icetower_simulator.compiled import compiled
from icetower_simulator.randoms import STATE, exponential, normal, uniform
from icetower_simulator.setup import FAST_APPEND, MERGE_APPEND, OVERWRITE, Setup
from icetower_simulator.sums import IO
from icetower_simulator.tallies import TALLY, count_end

NEVER = 1e300

COMMON_FIELDS: list[tuple[str, Any]] = [
    ("exponential", np.int64),
    ("gap_mu", np.float64),
    ("gap_sigma", np.float64),
    ("runtime_mu", np.float64),
    ("runtime_sigma", np.float64),
    ("runtime_floor", np.float64),
    ("fast_share", np.float64),
    ("append_share", np.float64),
    ("duration", np.float64),
    ("window_start", np.float64),
    ("window_end", np.float64),
    ("writers", np.int64),
    ("cpu_free", np.float64),
    ("free", np.int64),
    ("order", np.int64),
    ("arrivals", STATE),
    ("io", IO),
    ("tally", TALLY),
]
"""Fields of every run's record: its setup in numbers (times in milliseconds), when the shared processor is free, how
many rows are free, the number of the last event, its generators, and its tally."""


def common_values(setup: Setup) -> dict[str, float]:
    """The setup's values for the common fields."""
    model = setup.effective_model
    start, end = setup.window
    sigma = setup.runtime_sigma
    return {
        "exponential": model.arrivals == "exponential",
        "gap_mu": math.log(setup.inter_arrival_ms),
        "gap_sigma": setup.arrival_sigma,
        "runtime_mu": math.log(setup.runtime_s * 1000) - (sigma**2 / 2 if model.mean_runtime else 0.0),
        "runtime_sigma": sigma,
        "runtime_floor": setup.runtime_floor_s * 1000,
        "fast_share": setup.fast_append_ratio,
        "append_share": setup.fast_append_ratio + setup.merge_append_ratio,
        "duration": setup.duration_s * 1000,
        "window_start": start * 1000,
        "window_end": end * 1000,
        "writers": setup.writers,
    }


def zipf(count: int, skew: float) -> Any:
    """Cumulated shares of `count` places by Zipf's law."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    cumulated = np.cumsum(weights / weights.sum())
    cumulated[-1] = 1.0
    return cumulated


@compiled
def draw_gap(run: Any) -> float:
    """The time until the next arrival."""
    if run.exponential:
        return math.exp(run.gap_mu) * exponential(run.arrivals)
    return math.exp(run.gap_mu + run.gap_sigma * normal(run.arrivals))


@compiled
def draw_kind(run: Any) -> int:
    """The kind of a transaction."""
    share = uniform(run.arrivals)
    return FAST_APPEND if share < run.fast_share else MERGE_APPEND if share < run.append_share else OVERWRITE


@compiled
def draw_runtime(run: Any) -> float:
    """How long a transaction works before it commits."""
    return max(math.exp(run.runtime_mu + run.runtime_sigma * normal(run.arrivals)), run.runtime_floor)


@compiled
def count_transaction(run: Any, tally: Any, bins: Any, row: Any, now: float, committed: bool, retries: int) -> None:
    """Count a transaction that has ended, in the windows that it belongs to."""
    begun = run.window_start <= row.submitted < run.window_end
    whole = row.submitted > 0.1 * run.duration and now < 0.9 * run.duration
    count_end(tally, bins, row.kind, committed, begun, whole, retries, now - row.started, row.submitted)


@compiled
def free_row(run: Any, rows: Any, slot: int) -> None:
    """Put a row back on the stack of free rows."""
    rows[run.free].free = slot
    run.free += 1

"""The planner's advice for each workload that was measured, beside what measured best. Pure, but for the simulation.

A side holds a workload as the planner has it: 95 % of the writes that were due have landed, and 99 % of these were
visible within the freshness. Of sides that hold, one is fresher than another if it is more than twice as fresh.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.patterns.records import Figures
from bench.patterns.rows import HOT
from icetower_simulator.planner import SUCCESS_PCT, Workload, plan

FRESHNESS_S = 30.0
CATALOG_MS = 2.0
"""A round trip to a catalog on the same machine."""
MEASURED_AS: Mapping[str, tuple[str, ...]] = {
    "direct": ("optimistic", "isolated"),
    "icetower": ("group",),
    "wal": ("wal",),
    "collector": ("collector",),
    "slots": ("slots",),
}
"""The planner's patterns, by the side that is one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one workload.

    Attributes:
        advised: the sides in the planner's order; those that it says hold come in `advised_hold`, too.
        measured_hold: the sides that held, the freshest first; `best`: those among them that are as fresh as the first.
    """

    shape: str
    agents: int
    advised: tuple[str, ...]
    advised_hold: tuple[str, ...]
    measured_hold: tuple[str, ...]
    best: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """The first that it advises is among the best, and it is right about which sides hold at all."""
        return bool(self.advised_hold) == bool(self.best) and (not self.best or self.advised_hold[0] in self.best)


def workload(
    shape: str,
    agents: int,
    period_s: float,
    work_s: float,
    job_s: float,
    interval_s: float,
    slot_s: float,
    engine_writes_per_s: float | None = None,
) -> Workload:
    """The workload of a run, as somebody would describe it to the planner.

    Args:
        work_s: of one MERGE that nobody disturbs; `job_s`: of one batch.
        interval_s: between two batches; `slot_s`: an agent's turn.
        engine_writes_per_s: how many MERGEs this machine does in a second.
    """
    hot = shape == HOT
    return Workload(
        title=f"{agents} agents, {shape} rows",
        agents=agents,
        writes_per_hour=3600 / period_s,
        appends=0.0,
        partitions=1 if hot else agents,
        own_partitions=not hot,
        conflicts=1.0 if hot else 0.0,
        work_s=work_s,
        catalog_latency_ms=CATALOG_MS,
        freshness_s=FRESHNESS_S,
        job_s=job_s,
        interval_s=interval_s,
        slot_s=slot_s,
        engine_writes_per_s=engine_writes_per_s,
    )


def verdict(asked: Workload, shape: str, found: Sequence[Figures]) -> Verdict:
    """Hold the advice against the figures of one workload, of all sides and rounds."""
    sides = list(dict.fromkeys(each.side for each in found))
    side_of = {pattern: side for side in sides for pattern in MEASURED_AS.get(side, ())}
    advice = [(side_of[each.candidate.name], each) for each in plan(asked).advice if each.candidate.name in side_of]
    due = {side: [each for each in found if each.side == side] for side in sides}
    fresh = {side: _fresh_s(its) for side, its in due.items() if side in side_of.values()}
    holds = sorted((side for side, time in fresh.items() if time <= asked.freshness_s), key=lambda side: fresh[side])
    best = tuple(side for side in holds if fresh[side] <= 2 * fresh[holds[0]])
    return Verdict(
        shape,
        asked.agents,
        tuple(dict.fromkeys(side for side, _ in advice)),
        tuple(dict.fromkeys(side for side, each in advice if each.today.holds(asked))),
        tuple(holds),
        best,
    )


def _fresh_s(found: Sequence[Figures]) -> float:
    """How long 99 % of the writes took to be visible; infinite if fewer than 95 % of those that were due landed."""
    landed = statistics.median(100 * each.landed / each.due for each in found)
    return math.inf if landed < SUCCESS_PCT else statistics.median(each.lag_p99_ms for each in found) / 1000

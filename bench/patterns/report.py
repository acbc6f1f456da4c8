"""Tables of `make bench-patterns`. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.commits.operations import Spread
from bench.commits.pages import Shown, number, spread_text
from bench.patterns.advice import Verdict
from bench.patterns.records import Figures

DIRECT = "direct"
BETTER = 10.0
"""So many times the rows a second of a direct MERGE are wanted of the mediator and of the collector."""
WANTED_AGENTS, WANTED_SHAPE, WANTED_OF = 32, "hot", ("wal", "collector")


def grouped(found: Sequence[Figures]) -> list[list[Figures]]:
    """The rounds of each side, by shape and number of agents, in the order in which they were run."""
    groups: dict[tuple[str, int, str], list[Figures]] = {}
    for each in found:
        groups.setdefault((each.shape, each.agents, each.side), []).append(each)
    return list(groups.values())


def figure_table(found: Sequence[Figures]) -> Shown:
    """A line for each side: the spread of the rates, and medians of the rest."""
    ratios = _ratios(found)
    rows: list[tuple[str, ...]] = []
    for its in sorted(grouped(found), key=lambda its: (its[0].shape != WANTED_SHAPE, its[0].agents)):
        first = its[0]
        times = ratios.get((first.shape, first.agents, first.side))
        rows.append(
            (
                first.shape,
                f"{first.agents}",
                first.side,
                spread_text(_spread(its, lambda each: each.rows_per_s), single=len(its) == 1),
                _median(its, lambda each: 100 * each.landed / each.due),
                _median(its, lambda each: each.success_pct),
                _median(its, lambda each: each.wasted_pct),
                _median(its, lambda each: each.lag_p50_ms / 1000),
                _median(its, lambda each: each.lag_p99_ms / 1000),
                f"{first.data_files} + {first.delete_files}",
                _median(its, lambda each: each.files),
                _median(its, lambda each: each.read_ms),
                "–" if times is None else spread_text(times, single=len(its) == 1),
                "yes" if all(each.exact for each in its) else "NO",
            )
        )
    columns = (
        "rows", "agents", "side", "rows/s", "landed of due %", "success %", "wasted %", "lag p50 s", "lag p99 s",
        "data + delete files", "files in storage", "read ms", "× direct", "exact",
    )  # fmt: skip
    return Shown(
        "The runs (rates: least / median / greatest of the rounds; the rest: medians)", columns, tuple(rows), left=3
    )


def _median(its: Sequence[Figures], value: Callable[[Figures], float]) -> str:
    return number(statistics.median(value(each) for each in its))


def _spread(its: Sequence[Figures], value: Callable[[Figures], float]) -> Spread:
    return Spread.of([value(each) for each in its])


def _ratios(found: Sequence[Figures]) -> dict[tuple[str, int, str], Spread]:
    """The rows a second against a direct MERGE of the same round."""
    direct = {(each.shape, each.agents, each.round): each.rows_per_s for each in found if each.side == DIRECT}
    of: dict[tuple[str, int, str], list[float]] = {}
    for each in found:
        base = direct.get((each.shape, each.agents, each.round))
        if base is not None and each.side != DIRECT:
            of.setdefault((each.shape, each.agents, each.side), []).append(
                each.rows_per_s / base if base else float("inf")
            )
    return {group: Spread.of(values) for group, values in of.items()}


def promise_table(found: Sequence[Figures]) -> Shown:
    """What is wanted at 32 agents on hot rows: PASS, or by how much it is short."""
    rows: list[tuple[str, ...]] = []
    ratios = _ratios(found)
    for side in WANTED_OF:
        its = [e for e in found if (e.side, e.shape, e.agents) == (side, WANTED_SHAPE, WANTED_AGENTS)]
        if not its:
            continue
        success = min(each.success_pct for each in its)
        rows.append((f"{side}: success", "100 %", number(success), "PASS" if success == 100 else "short"))
        times = ratios.get((WANTED_SHAPE, WANTED_AGENTS, side))
        if times is not None:
            kept = "PASS" if times.median >= BETTER else f"short by {number(BETTER - times.median)}"
            rows.append((f"{side}: rows/s × direct", f"{BETTER:.0f}", spread_text(times, single=len(its) == 1), kept))
    return Shown(f"Wanted at {WANTED_AGENTS} agents on hot rows", ("what", "wanted", "measured", ""), tuple(rows))


def advice_table(verdicts: Sequence[Verdict]) -> Shown:
    """The planner's first choice beside the side that measured best."""
    rows = tuple(
        (
            each.shape,
            f"{each.agents}",
            ", ".join(each.advised_hold) or "none holds",
            ", ".join(each.measured_hold) or "none held",
            " or ".join(each.best) or "–",
            "yes" if each.agrees else "NO",
        )
        for each in verdicts
    )
    columns = ("rows", "agents", "the planner: hold, best first", "measured: held, freshest first", "best", "agrees")
    return Shown("The planner's advice against what was measured", columns, rows, left=6)

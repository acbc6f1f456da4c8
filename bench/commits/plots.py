"""The plots of the benchmark as SVG; the same results give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from bench.commits.curve import Curves, medians
from bench.commits.operations import Spread
from bench.commits.schedule import Record
from bench.commits.sides import APPENDS, DIRECT, LOCKED, OPTIMISTIC, PREPARED, REFERENCE, SIDES, TOWER
from bench.experiments.plots import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY, STYLE

LOOKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        DIRECT: {"color": ORANGE, "marker": "s", "linestyle": (0, (4, 3))},
        REFERENCE: {"color": PINK, "marker": "s", "linestyle": (0, (4, 3))},
        TOWER: {"color": SKY, "marker": "o", "linestyle": (0, (4, 3))},
        PREPARED: {"color": BLUE, "marker": "o"},
        APPENDS: {"color": GREEN, "marker": "^"},
        OPTIMISTIC: {"color": RED, "marker": "o"},
        LOCKED: {"color": INK, "marker": "x"},
    }
)
PROFILE_NAMES = {"none": "no storage latency", "s3": "S3 latency"}


def all_plots(results: Mapping[str, Any]) -> dict[str, str]:
    """Every plot that there is something for, by the name of its file."""
    found: dict[str, str] = {}
    runs: Mapping[str, list[Record]] = results.get("runs", {})
    records = [*runs.get("grid", ()), *runs.get("headlines", ())]
    with mpl.rc_context(STYLE):
        if records:
            found["bench-commit-writers.svg"] = _by_writers(records)
        if results.get("history"):
            found["bench-commit-history.svg"] = _history(results["history"])
    return found


def _by_writers(records: Sequence[Record]) -> str:
    profiles = [profile for profile in PROFILE_NAMES if any(record["profile"] == profile for record in records)]
    figure = Figure(figsize=(4.4 * len(profiles) + 0.4, 6.6), layout=ConstrainedLayoutEngine())
    axes = figure.subplots(2, len(profiles), squeeze=False)
    for at, profile in enumerate(profiles):
        here = [record for record in records if record["profile"] == profile]
        _lines(axes[0][at], here, "commits_per_s", f"Acknowledged commits a second, {PROFILE_NAMES[profile]}")
        _lines(axes[1][at], here, "success", "Commits that succeed, %", scale=100)
        axes[1][at].set_xlabel("writers on one table")
        axes[1][at].set_yscale("linear")
        axes[1][at].set_ylim(0, 104)
    return svg(figure)


def _lines(axis: Axes, records: Sequence[Record], figure: str, title: str, scale: float = 1) -> None:
    writers = sorted({record["writers"] for record in records})
    for side in SIDES:
        points = []
        for count in writers:
            found = sorted(r[figure] * scale for r in records if (r["side"], r["writers"]) == (side, count))
            if found:
                points.append((count, found[len(found) // 2]))
        if points:
            axis.plot(*zip(*points, strict=True), label=side, **LOOKS[side])
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(FixedLocator(writers))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.set_title(title)


def _history(curves: Curves) -> str:
    figure = Figure(figsize=(7.2, 4.2), layout=ConstrainedLayoutEngine())
    axis = figure.subplots()
    looks = (BLUE, ORANGE, RED, PINK, GREEN)
    for (name, points), color in zip(curves.items(), looks, strict=False):
        line = medians(points)
        axis.plot(*zip(*line, strict=True), label=name, color=color, marker="o" if len(line) < 10 else None)
        sizes, least, greatest = zip(*((size, min(rates), max(rates)) for size, *rates in points), strict=True)
        axis.fill_between(sizes, least, greatest, color=color, alpha=0.15, linewidth=0)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.set_title("Commits a second, S3 latency")
    axis.set_xlabel("commits in the table's history")
    return svg(figure)


def isolation_plot(
    records: Sequence[Record], sides: Sequence[str], claims: Sequence[tuple[str, str]], per_s: float
) -> str:
    """Four figures of each failure mode, a bar for each side: medians of the rounds, and lines from least to greatest.

    Args:
        per_s: the load that is drawn, where there are several.
    """
    panels = (
        ("retried", 100, "Commits that are retried, %"),
        ("success", 100, "Commits that succeed, %"),
        ("p99_ms", 1, "Latency, ms: bar p99, mark p50"),
        ("metadata_each", 1, "Metadata files written for one commit"),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 6.8), layout=ConstrainedLayoutEngine())
        for axis, (name, scale, title) in zip(figure.subplots(2, 2).flat, panels, strict=True):
            _bars(axis, [r for r in records if r["per_s"] in (0.0, per_s)], sides, claims, name, scale)
            axis.set_title(title)
        return svg(figure)


def _bars(
    axis: Axes,
    records: Sequence[Record],
    sides: Sequence[str],
    claims: Sequence[tuple[str, str]],
    name: str,
    scale: float,
) -> None:
    width = 0.8 / len(sides)
    for number, side in enumerate(sides):
        places: list[float] = []
        found: list[Spread] = []
        marks: list[float] = []
        for at, (claim, layout) in enumerate(claims):
            own = [r for r in records if (r["claim"], r["layout"], r["side"]) == (claim, layout, side)]
            if own:
                places.append(at + (number - (len(sides) - 1) / 2) * width)
                found.append(Spread.of(record[name] * scale for record in own))
                marks.append(Spread.of(record["p50_ms"] for record in own).median)
        heights = [spread.median for spread in found]
        whiskers = [
            [spread.median - spread.least for spread in found],
            [spread.greatest - spread.median for spread in found],
        ]
        axis.bar(places, heights, width * 0.9, label=side, color=LOOKS[side]["color"])
        axis.errorbar(places, heights, yerr=whiskers, fmt="none", ecolor=INK, elinewidth=1)
        if name == "p99_ms":
            axis.plot(places, marks, linestyle="none", marker="_", markersize=9, color=INK)
    axis.set_xticks(range(len(claims)), [_two_lines(*claim) for claim in claims], fontsize=8)
    axis.grid(visible=False, axis="x")


def _two_lines(claim: str, layout: str) -> str:
    return f"appends,\n{layout}" if claim == "retry rate" else "\n".join(claim.rsplit(" ", 1))


def svg(figure: Figure) -> str:
    """The figure with one legend for all of its axes."""
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=3, handlelength=2.6)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

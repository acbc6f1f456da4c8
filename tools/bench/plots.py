"""The plots of the benchmark as SVG; the same results give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from experiments.plots import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY, STYLE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from bench.course import Record
from bench.sides import APPENDS, DIRECT, LOCKED, OPTIMISTIC, PREPARED, REFERENCE, SIDES, TOWER

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
        axes[1][at].set_ylim(0, 104)
        axes[1][at].set_yscale("linear")
    return _svg(figure)


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


def _history(curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    figure = Figure(figsize=(7.2, 4.2), layout=ConstrainedLayoutEngine())
    axis = figure.subplots()
    looks = (BLUE, ORANGE, RED, PINK, GREEN)
    for (name, points), color in zip(curves.items(), looks, strict=False):
        axis.plot(*zip(*points, strict=True), label=name, color=color, marker="o" if len(points) < 10 else None)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.set_title("Commits a second, S3 latency")
    axis.set_xlabel("commits in the table's history")
    return _svg(figure)


def _svg(figure: Figure) -> str:
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=3, handlelength=2.6)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

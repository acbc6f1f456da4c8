"""The plot of `make bench-rows` as SVG; the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from bench.commits.plots import PROFILE_NAMES, svg
from bench.experiments.plots import BLUE, GREEN, ORANGE, RED, SKY, STYLE
from bench.rows.cases import APPENDS, DIRECT, DOOR, DUCKLAKE, SIDES, TOWER, Record

NAME = "bench-rows-agents.svg"
LOOKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        DOOR: {"color": BLUE, "marker": "o"},
        APPENDS: {"color": GREEN, "marker": "^"},
        TOWER: {"color": SKY, "marker": "o", "linestyle": (0, (4, 3))},
        DIRECT: {"color": ORANGE, "marker": "s", "linestyle": (0, (4, 3))},
        DUCKLAKE: {"color": RED, "marker": "x"},
    }
)


def by_agents(records: Sequence[Record]) -> str:
    """Requests a second, and how long they take, by the number of agents that send one row each."""
    single = [record for record in records if record["rows"] == 1]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 6.6), layout=ConstrainedLayoutEngine())
        for axes, name, title in zip(
            figure.subplots(2, len(PROFILE_NAMES), squeeze=False),
            ("requests_per_s", "p99_ms"),
            ("Requests of one row a second", "p99, ms"),
            strict=True,
        ):
            for axis, (profile, where) in zip(axes, PROFILE_NAMES.items(), strict=True):
                # DuckLake's inlined rows go to no storage: its line belongs into both.
                here = [r for r in single if r["profile"] == profile or r["side"] == DUCKLAKE]
                _lines(axis, here, name)
                axis.set_title(f"{title}, {where}")
                axis.set_xlabel("agents on one table")
        return svg(figure)


def _lines(axis: Axes, records: Sequence[Record], name: str) -> None:
    agents = sorted({record["agents"] for record in records})
    for side in SIDES:
        points: list[tuple[int, float]] = []
        for count in agents:
            found = sorted(r[name] for r in records if (r["side"], r["agents"]) == (side, count))
            if found:
                points.append((count, found[len(found) // 2]))
        if points:
            axis.plot(*zip(*points, strict=True), label=side, **LOOKS[side])
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(FixedLocator(agents))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_major_formatter(ScalarFormatter())

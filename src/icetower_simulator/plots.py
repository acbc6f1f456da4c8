"""Plots of an experiment as SVG: lines along one axis, or heat maps over two. Each names its model.

In heat maps, cells are hatched where fewer than 95 % of the transactions commit, and more densely below 80 %.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FormatStrFormatter

from icetower_simulator.experiments import Comparison, Experiment, Row
from icetower_simulator.planner import SUCCESS_PCT, Plan

INK, SOFT, GRID = "#22262b", "#6b737c", "#e4e7ea"
# Colours that colour-blind people can tell apart (Okabe and Ito).
COLORS = ("#1468a8", "#c8501e", "#1a8f6a", "#e39a1c", "#b8679c", "#56b4e9", "#8a7a10", "#555555")
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 4.5,
    "figure.facecolor": "white",
    "svg.hashsalt": "icetower",
    "svg.fonttype": "path",
}
LABELS: Mapping[str, str] = {
    "inter_arrival_ms": "scale of the time between arrivals (ms)",
    "fast_append_ratio": "share of fast appends",
    "catalog_latency_ms": "catalog latency (ms)",
    "commits_per_s": "commits a second",
    "success_pct": "committed (%)",
    "mean_s": "mean commit latency (s)",
    "storage": "storage",
    "tables": "tables",
    "partitions": "partitions",
    "pattern": "pattern",
}
KIND_NAMES: Mapping[str, str] = {
    "append": "fast appends",
    "merge_append": "merge appends",
    "overwrite": "validated overwrites",
}
LOOKS: Mapping[str, tuple[str, str]] = {
    "group": ("#1468a8", "o"),
    "appends": ("#56b4e9", "s"),
    "optimistic": ("#c8501e", "v"),
    "isolated": ("#e39a1c", "^"),
    "lock": ("#b8679c", "P"),
    "intents": ("#8a7a10", "D"),
    "wal": ("#1a8f6a", "<"),
    "collector": ("#7bc8a4", ">"),
    "slots": ("#555555", "X"),
}
"""Colour and marker of each pattern in plans."""
PERCENTILES = (("p50_s", "P50"), ("p95_s", "P95"), ("p99_s", "P99"))
HATCH_BELOW = ((80.0, "xxxx"), (95.0, "////"))


def plots(experiment: Experiment, model: str, rows: Sequence[Row], compared: Sequence[Comparison]) -> dict[str, str]:
    """Every plot of an experiment, by its file's name without the suffix. The same rows give the same bytes."""
    if not experiment.sweep:
        return {}
    with mpl.rc_context(STYLE):
        if experiment.draw == "heat" and len(experiment.sweep) == 2:
            return _heat_maps(experiment, model, rows)
        return {"": _curves(experiment, model, rows, compared)}


def label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def as_svg(figure: Figure) -> str:
    """The figure as SVG, without the date and other metadata that would differ each time."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


# ── Lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _curves(experiment: Experiment, model: str, rows: Sequence[Row], compared: Sequence[Comparison]) -> str:
    """Throughput, success and latency along the axis swept last; one line for each combination of the others."""
    *others, axis = experiment.sweep
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    figure.suptitle(f"{experiment.name}: {experiment.title} (model {model})", x=0.01, ha="left", fontsize=11)
    rate, success, latency = figure.subplots(1, 3)
    groups = _grouped(rows, others)
    for number, (name, group) in enumerate(groups):
        color = COLORS[number % len(COLORS)]
        xs, places = _axis(experiment.sweep[axis], group, axis)
        for panel, figure_name in ((rate, "commits_per_s"), (success, "success_pct")):
            _line(panel, xs, group, figure_name, color=color, label=name)
        if len(groups) == 1:
            for (percentile, name_shown), shade in zip(PERCENTILES, COLORS, strict=False):
                _line(latency, xs, group, percentile, color=shade, label=name_shown)
        else:
            _line(latency, xs, group, "p50_s", color=color, label=f"{name}, P50")
            _line(latency, xs, group, "p99_s", color=color, linestyle=":", marker="", label=f"{name}, P99")
        for panel in (rate, success, latency):
            panel.set_xticks(range(len(places)), [str(place) for place in places], fontsize=8)
    _crosses(rate, success, latency, axis, experiment, compared)
    for panel, title in ((rate, "commits a second"), (success, "committed (%)"), (latency, "commit latency (s)")):
        panel.set_title(title)
        panel.set_xlabel(label(axis))
        panel.grid(visible=True)
        if panel is not latency or len(groups) == 1:
            panel.set_ylim(bottom=0)
    success.set_ylim(0, 103)
    if len(groups) > 1:
        latency.set_yscale("log")
        latency.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        rate.legend(fontsize=8)
    else:
        latency.legend(fontsize=8)
    return as_svg(figure)


def _grouped(rows: Sequence[Row], others: Sequence[str]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(_series_part(name, row[name]) for name in others), []).append(row)
    return list(groups.items())


def _series_part(name: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{label(name)} {value}"


def _axis(values: Sequence[Any], group: Sequence[Row], axis: str) -> tuple[list[int], list[Any]]:
    """Positions along the axis, evenly spaced, the lightest load first."""
    numbers = all(isinstance(value, int | float) for value in values)
    places = sorted(values, reverse=axis == "inter_arrival_ms") if numbers else list(values)
    return [places.index(row[axis]) for row in group], places


def _line(panel: Any, xs: Sequence[int], group: Sequence[Row], name: str, **style: Any) -> None:
    points = sorted(
        (x, row[name], row.get(f"{name}_sd") or 0.0)
        for x, row in zip(xs, group, strict=True)
        if row.get(name) is not None
    )
    if not points:
        return
    places, values, spread = (np.array(each) for each in zip(*points, strict=True))
    panel.plot(places, values, **{"marker": "o"} | style)
    panel.fill_between(places, values - spread, values + spread, color=style["color"], alpha=0.15, linewidth=0)


def _crosses(
    rate: Any, success: Any, latency: Any, axis: str, experiment: Experiment, compared: Sequence[Comparison]
) -> None:
    """Published figures as crosses, if they depend on this axis alone."""
    panels = {"commits_per_s": rate, "success_pct": success, **{name: latency for name, _ in PERCENTILES}}
    _, places = _axis(experiment.sweep[axis], (), axis)
    for each in compared:
        if each.figure in panels and set(each.where) == {axis}:
            panels[each.figure].plot(
                places.index(each.where[axis]),
                float(each.printed),
                "x",
                color=INK,
                markersize=7,
                markeredgewidth=1.5,
                zorder=5,
            )
    if compared:
        rate.plot([], [], "x", color=INK, markersize=7, markeredgewidth=1.5, label="as published")
        rate.legend(fontsize=8)


# ── Heat maps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _heat_maps(experiment: Experiment, model: str, rows: Sequence[Row]) -> dict[str, str]:
    """Success and latency of each kind of transaction; throughput of all."""
    drawn = {"throughput": _heat_map(experiment, model, rows, "commits_per_s", "success_pct", "commits a second")}
    for kind, name_shown in KIND_NAMES.items():
        if any(row.get(f"{kind}_success_pct") is not None for row in rows):
            success = f"{kind}_success_pct"
            drawn[f"{kind}-success"] = _heat_map(
                experiment, model, rows, success, success, f"{name_shown}, committed (%)"
            )
            title = f"{name_shown}, mean commit latency (s)"
            drawn[f"{kind}-latency"] = _heat_map(experiment, model, rows, f"{kind}_mean_s", success, title)
    return drawn


def _heat_map(experiment: Experiment, model: str, rows: Sequence[Row], name: str, success: str, title: str) -> str:
    down, across = experiment.sweep
    ys, xs = (sorted(experiment.sweep[axis]) for axis in (down, across))
    values = np.full((len(ys), len(xs)), np.nan)
    shares = np.full((len(ys), len(xs)), np.nan)
    for row in rows:
        place = ys.index(row[down]), xs.index(row[across])
        values[place] = np.nan if row.get(name) is None else row[name]
        shares[place] = np.nan if row.get(success) is None else row[success]
    figure = Figure(figsize=(7.6, 0.9 + 0.42 * len(ys) + 0.6), layout="constrained")
    panel = figure.subplots()
    percent = name.endswith("_pct")
    norm = Normalize(0, 100) if percent else _log_norm(values)
    image = panel.imshow(values, cmap="viridis" if percent else "viridis_r", norm=norm, aspect="auto", origin="lower")
    plain = FormatStrFormatter("%g")
    bar = figure.colorbar(image, ax=panel, pad=0.02, format=plain)
    bar.ax.yaxis.set_minor_formatter(plain)
    bar.ax.tick_params(which="both", labelsize=8)
    for (y, x), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        _cell(panel, x, y, float(shares[y, x]))
        dark = norm(value) < 0.55 if percent else norm(value) > 0.45
        text = f"{value:.0f}" if percent or value >= 99.5 else f"{value:.2f}" if value < 1 else f"{value:.1f}"
        panel.text(
            x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else INK,
            bbox={"boxstyle": "round,pad=0.12", "facecolor": image.cmap(norm(value)), "edgecolor": "none"},
        )  # fmt: skip
    panel.set_xticks(range(len(xs)), [f"{value:g}" for value in xs])
    panel.set_yticks(range(len(ys)), [f"{value:g}" for value in ys])
    panel.set_xlabel(label(across))
    panel.set_ylabel(label(down))
    panel.set_title(f"{experiment.name}: {title}\nmodel {model}; hatched: below 95 % committed, densely below 80 %")
    return as_svg(figure)


def _log_norm(values: Any) -> Any:
    known = values[~np.isnan(values) & (values > 0)]
    if not known.size or known.min() == known.max():
        return Normalize(0, 1)
    return LogNorm(float(known.min()), float(known.max()))


def _cell(panel: Any, x: int, y: int, share: float) -> None:
    for below, hatch in HATCH_BELOW:
        if share < below:
            cell = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch=hatch, edgecolor="#ffffffaa", linewidth=0)
            panel.add_patch(cell)
            return


# ── Plans ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def plan_plot(plan: Plan) -> str:
    """Success and freshness of every pattern by the load, with the required values, as SVG."""
    workload = plan.workload
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 4.2), layout="constrained")
        figure.suptitle(
            f"{workload.title}: {workload.rate_per_s:.3g} writes a second today (simulated, model client)",
            x=0.01,
            ha="left",
            fontsize=11,
        )
        success, fresh = figure.subplots(1, 2)
        for each in plan.advice:
            color, marker = LOOKS[each.candidate.name]
            style: Any = {"color": color, "marker": marker, "markersize": 4}
            style |= {"linestyle": "-" if each.today.holds(workload) else (0, (3, 2)), "linewidth": 1.5}
            loads = [assessed.times for assessed in each.curve]
            success.plot(loads, [assessed.success_pct for assessed in each.curve], label=each.candidate.name, **style)
            fresh.plot(loads, [assessed.fresh_p99_s for assessed in each.curve], **style)
        success.axhline(SUCCESS_PCT, color=SOFT, linewidth=1, linestyle=":")
        fresh.axhline(workload.freshness_s, color=SOFT, linewidth=1, linestyle=":")
        fresh.set_yscale("log")
        fresh.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        success.set_ylim(-3, 103)
        success.set_title(f"committed (%); {SUCCESS_PCT:g} % are wanted")
        fresh.set_title(f"visible within, P99 (s); {workload.freshness_s:g} s are wanted")
        for panel in (success, fresh):
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
            panel.axvline(1, color=GRID, linewidth=1.2, zorder=0)
            panel.set_xlabel("times today's load")
            panel.grid(visible=True)
        figure.legend(*success.get_legend_handles_labels(), fontsize=8.5, loc="outside right center")
        return as_svg(figure)

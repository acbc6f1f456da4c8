"""The plots of both experiments as SVG, from their records; the same records give the same bytes.

A line is the mean over the seeds, and the band around it holds eight of ten of them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from statistics import fmean, quantiles
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator

from bench.experiments import clustering, path_statistics
from bench.experiments.path_statistics import PRECISE, TODAY
from bench.experiments.records import Record, chosen, mean_percent, percent
from bench.experiments.single_run import RULES
from bench.experiments.tables import runs_each

INK, SOFT, GRID = "#22262b", "#6b737c", "#e4e7ea"
# Colours that people with colour-blindness tell apart (Okabe and Ito).
RED, ORANGE, BLUE, GREEN, PINK, SKY, YELLOW = (
    "#c8501e",
    "#e39a1c",
    "#1468a8",
    "#1a8f6a",
    "#b8679c",
    "#56b4e9",
    "#d9c934",
)
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
    "axes.grid": True,
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

VARIANT_STYLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        TODAY: {"color": RED, "marker": "o"},
        "precise, per partition": {"color": ORANGE, "marker": "s", "linestyle": (0, (4, 3))},
        PRECISE: {"color": BLUE, "marker": "o"},
    }
)
VARIANT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        TODAY: "Iceberg today",
        "precise, per partition": "precise check, delete file per partition",
        PRECISE: "precise check, delete file per data file",
    }
)
PARTITIONING_NAMES: Mapping[str, str] = MappingProxyType(
    {"category": "partitions by category", "bucket": "partitions by bucket of the key", "day": "partitions by day"}
)
LAYOUT_STYLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "by key range, sorted": {"color": BLUE, "marker": "o"},
        "by key range, unsorted": {"color": BLUE, "marker": "o", "linestyle": (0, (4, 3)), "markerfacecolor": "white"},
        "by day, sorted": {"color": RED, "marker": "s"},
        "by day, unsorted": {"color": RED, "marker": "s", "linestyle": (0, (4, 3)), "markerfacecolor": "white"},
    }
)
RULE_COLORS: Mapping[str, str] = MappingProxyType(
    {"C1": RED, "C3a": ORANGE, "C3b": YELLOW, "C4": SKY, "C5": PINK, "C6": BLUE}
)
RULE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "C1": "C1: added data that the filter may cover",
        "C3a": "C3a: new delete files that the filter may cover",
        "C3b": "C3b: new deletes of a replaced file",
        "C4": "C4: the file that rows are deleted from is gone",
        "C5": "C5: a new deletion vector of the same file",
        "C6": "C6: the file to be replaced is gone",
    }
)


def all_plots(records: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """Every plot as SVG, by the name of its file."""
    first, second = records[path_statistics.NAME], records[clustering.NAME]
    with mpl.rc_context(STYLE):
        return {
            "path-statistics-writers.svg": _concurrency(first),
            "path-statistics-files.svg": _files_touched(first),
            "path-statistics-size.svg": _sizes(first),
            "path-statistics-runs.svg": _runs(first),
            "clustering-scatter.svg": _scatter(second),
            "clustering-checks.svg": _checks(second),
            "clustering-filters.svg": _filters(second),
        }


# ── Experiment 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _concurrency(records: Sequence[Record]) -> str:
    figure, axes = _panels(
        f"With 16 writers the precise check saves {_saved(records)} of false conflicts",
        "Merge-on-read UPDATEs that begin at once, each of 4 rows in 2 data files; snapshot isolation; 16 data files "
        "in each of 8 partitions",
        3,
    )
    for axis, name in zip(axes, path_statistics.PARTITIONINGS, strict=True):
        _variants(axis, chosen(records, sweep="writers", partitioning=name), path_statistics.WRITERS)
        _finish(axis, PARTITIONING_NAMES[name], "writers at once")
    axes[0].set_ylabel("false conflicts, % of writers")
    return _svg(figure, axes[0], columns=4)


def _saved(records: Sequence[Record]) -> str:
    """By how much false conflicts fall at 16 writers, from the least to the most of the partitionings."""
    found = chosen(records, sweep="writers", x=16)
    saved = [
        1 - mean_percent(chosen(each, variant=PRECISE), "false") / mean_percent(chosen(each, variant=TODAY), "false")
        for each in (chosen(found, partitioning=name) for name in path_statistics.PARTITIONINGS)
    ]
    return f"{100 * min(saved):.0f} to {100 * max(saved):.0f} %"


def _files_touched(records: Sequence[Record]) -> str:
    figure, axes = _panels(
        "The gain is largest for writers that touch few files",
        "16 merge-on-read UPDATEs at once, each of one row in each of its data files; snapshot isolation; 16 data "
        "files in a partition",
        3,
    )
    for axis, name in zip(axes, path_statistics.PARTITIONINGS, strict=True):
        _variants(axis, chosen(records, sweep="files touched", partitioning=name), path_statistics.FILES_TOUCHED)
        _finish(axis, PARTITIONING_NAMES[name], "data files touched by each writer")
    axes[0].set_ylabel("false conflicts, % of writers")
    return _svg(figure, axes[0], columns=4)


def _sizes(records: Sequence[Record]) -> str:
    figure, axes = _panels(
        "More files make the precise check finer; more rows make its refusals true",
        "16 merge-on-read UPDATEs at once, partitions by day; snapshot isolation; else 4 rows in 2 data files of 16",
        2,
    )
    sweeps = (
        (
            "files in partition",
            path_statistics.FILES_IN_PARTITION,
            "the same rows in more files",
            "data files in a day",
        ),
        ("rows", path_statistics.ROWS, "more rows in the same two files", "rows changed by each writer"),
    )
    for axis, (sweep, values, title, label) in zip(axes, sweeps, strict=True):
        _variants(axis, chosen(records, sweep=sweep), values, true=False)
        found = chosen(records, sweep=sweep, variant=PRECISE)
        true = [percent(chosen(found, x=x), "true") for x in values]
        _line(axis, values, true, color=GREEN, marker="^", label="true conflicts, precise check")
        _finish(axis, title, label)
    axes[0].set_ylabel("refused, % of writers")
    return _svg(figure, axes[1], columns=3)


def _runs(records: Sequence[Record]) -> str:
    today, precise = (runs_each(records, "day", variant, 32) for variant in path_statistics.DRAINED)
    figure, axes = _panels(
        f"By day, 32 writers: each command runs {today:.1f} times today, {precise:.1f} times with the precise check",
        "Merge-on-read UPDATEs of 4 rows in 2 data files; refused ones begin again, all at once, until everybody is in",
        3,
    )
    for axis, name in zip(axes, path_statistics.PARTITIONINGS, strict=True):
        for variant in path_statistics.DRAINED:
            found = chosen(records, sweep="writers", partitioning=name, variant=variant)
            values = [[each["runs"] / x for each in chosen(found, x=x)] for x in path_statistics.WRITERS]
            label = VARIANT_NAMES[variant]
            _line(axis, path_statistics.WRITERS, values, label=label, **VARIANT_STYLES[variant])
        axis.xaxis.set_major_locator(FixedLocator((2, 8, 16, 24, 32)))
        _finish(axis, PARTITIONING_NAMES[name], "writers at once", top=None)
    axes[0].set_ylabel("runs for each command")
    axes[0].set_ylim(bottom=1)
    return _svg(figure, axes[0], columns=2)


def _variants(axis: Axes, records: Sequence[Record], values: Sequence[float], *, true: bool = True) -> None:
    for variant, style in VARIANT_STYLES.items():
        found = chosen(records, variant=variant)
        refused = [percent(chosen(found, x=x), "false") for x in values]
        _line(axis, values, refused, label=VARIANT_NAMES[variant], **style)
    if true:
        means = [mean_percent(chosen(records, variant=TODAY, x=x), "true") for x in values]
        axis.plot(values, means, color=SOFT, linestyle=(0, (1, 2)), linewidth=1.5, label="true conflicts")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(values))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:.0f}")


# ── Experiment 2 ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _scatter(records: Sequence[Record]) -> str:
    figure, axes = _panels(
        "At snapshot isolation merge-on-read is refused by partition, copy-on-write by file",
        "16 MERGEs at once, each matching 4 rows by key and changing 2; 8 data files in each of 32 partitions",
        4,
    )
    panels = (
        ("copy-on-write", "snapshot", "copy-on-write, snapshot", "C6: the very file"),
        ("copy-on-write", "serializable", "copy-on-write, serializable", "C1: key ranges of new files"),
        ("merge-on-read", "snapshot", "merge-on-read, both levels", "C3a: the partition"),
        (clustering.PRECISE, "snapshot", "merge-on-read, snapshot, precise", "C3a: the very file"),
    )
    for axis, (mode, level, title, check) in zip(axes, panels, strict=True):
        for layout, style in LAYOUT_STYLES.items():
            found = chosen(records, mode=mode, level=level, layout=layout, filter="keys")
            refused = [percent(chosen(found, scatter=x), "false") for x in clustering.SCATTER]
            _line(axis, clustering.SCATTER, refused, label=f"partitions {layout.replace(', ', ', files ')}", **style)
        _finish(axis, f"{title}\n{check}", "scatter of a writer's rows")
    axes[0].set_ylabel("false conflicts, % of writers")
    return _svg(figure, axes[0], columns=4)


def _checks(records: Sequence[Record]) -> str:
    figure, axes = _panels(
        "Merge-on-read meets C3a at either level; copy-on-write meets C6, and C1 where serializable",
        "16 MERGEs at once; partitions by key range, files not sorted; means, stacked; hatched: true conflicts",
        3,
        rows=2,
    )
    cells = [(level, mode) for level in clustering.LEVELS for mode in clustering.MODES]
    for axis, (level, mode) in zip(axes, cells, strict=True):
        found = chosen(records, mode=mode, level=level.value, layout="by key range, unsorted", filter="keys")
        bottom = [0.0] * len(clustering.SCATTER)
        for rule in RULES:
            means = [fmean(percent(chosen(found, scatter=x), f"{rule}_false")) for x in clustering.SCATTER]
            if not any(means):
                continue
            top = [low + mean for low, mean in zip(bottom, means, strict=True)]
            axis.fill_between(clustering.SCATTER, bottom, top, color=RULE_COLORS[rule], linewidth=0)
            bottom = top
        true = [fmean(percent(chosen(found, scatter=x), "true")) for x in clustering.SCATTER]
        top = [low + mean for low, mean in zip(bottom, true, strict=True)]
        axis.fill_between(
            clustering.SCATTER, bottom, top, facecolor="white", edgecolor=INK, hatch="//////", linewidth=0.5
        )
        _finish(axis, f"{mode}, {level.value}", "scatter of a writer's rows" if axis in axes[3:] else "", top=75)
    for axis in axes[::3]:
        axis.set_ylabel("commits refused, %")
    for rule in ("C1", "C3a", "C3b", "C4", "C6"):
        axes[0].fill_between([], [], [], color=RULE_COLORS[rule], label=RULE_NAMES[rule])
    return _svg(figure, axes[0], columns=3)


def _filters(records: Sequence[Record]) -> str:
    figure, axes = _panels(
        "A filter by key helps only where files are sorted by key",
        "16 copy-on-write MERGEs at once, serializable, partitions by day; what their filter says of the keys",
        2,
    )
    styles: Mapping[str, Mapping[str, Any]] = {
        "nothing": {"color": RED, "marker": "s", "label": "nothing"},
        "range of keys": {"color": ORANGE, "marker": "o", "label": "from which to which: BETWEEN"},
        "keys": {"color": BLUE, "marker": "o", "label": "each of them: IN"},
    }
    for axis, files in zip(axes, ("sorted", "unsorted"), strict=True):
        for label, style in styles.items():
            found = chosen(records, mode="copy-on-write", level="serializable", layout=f"by day, {files}", filter=label)
            refused = [percent(chosen(found, scatter=x), "false") for x in clustering.SCATTER]
            _line(axis, clustering.SCATTER, refused, **style)
        _finish(axis, f"a day's files {'' if files == 'sorted' else 'not '}sorted by key", "scatter of a writer's rows")
    axes[0].set_ylabel("false conflicts, % of writers")
    return _svg(figure, axes[0], columns=3)


# ── Drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _panels(title: str, subtitle: str, columns: int, rows: int = 1) -> tuple[Figure, list[Axes]]:
    width_in = {2: 9.0, 3: 10.5, 4: 12.5}[columns]
    height_in = 1.9 + 2.45 * rows
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03, rect=(0, 0, 1, 1 - 0.62 / height_in))
    figure = Figure(figsize=(width_in, height_in), layout=layout)
    figure.text(0.08 / width_in, 1 - 0.12 / height_in, title, size=13, weight="bold", va="top")
    figure.text(0.08 / width_in, 1 - 0.40 / height_in, subtitle, size=9, color=SOFT, va="top")
    return figure, list(figure.subplots(rows, columns, sharey=True, sharex=rows > 1, squeeze=False).flat)


def _line(axis: Axes, x: Sequence[float], values: Sequence[Sequence[float]], **style: Any) -> None:
    axis.plot(x, [fmean(each) for each in values], clip_on=False, zorder=3, **style)
    bounds = [quantiles(each, n=10, method="inclusive") for each in values]
    low, high = [each[0] for each in bounds], [each[-1] for each in bounds]
    axis.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)


def _finish(axis: Axes, title: str, label: str, top: float | None = 100) -> None:
    axis.set_title(title)
    axis.set_xlabel(label)
    if top is not None:
        axis.set_ylim(0, top)


def _svg(figure: Figure, labelled: Axes, columns: int) -> str:
    handles, labels = labelled.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, handlelength=2.6, columnspacing=1.8)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # Trailing blanks, which Matplotlib leaves in paths, are nobody's joy in a repository.
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

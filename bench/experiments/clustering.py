"""Experiment 2: how the spread of updates over files and partitions drives false conflicts.

One knob, `scatter`: at 0 every writer's rows have neighbouring keys in a range of its own; at 1 they come from all over
the table. Around it: whether partitions are ranges of keys or days, whether the files of a partition are sorted by key,
whether commands write copy-on-write, merge-on-read or some of each, the isolation level, and what the filter says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from bench.experiments.records import Point
from bench.experiments.single_run import Setup
from bench.experiments.work import Filter, Work
from bench.experiments.world import Layout, Partitioning
from icetower.iceberg.validation import Level

NAME = "clustering"
SEEDS = 10

SCATTER = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)
MODES: Mapping[str, float] = MappingProxyType({"copy-on-write": 1.0, "merge-on-read": 0.0, "half and half": 0.5})
"""The share of writers that write copy-on-write."""
PRECISE = "merge-on-read, precise"
LEVELS = (Level.SNAPSHOT, Level.SERIALIZABLE)
_BY: Mapping[str, Partitioning] = MappingProxyType({"by key range": "category", "by day": "day"})
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        f"{partitions}, {files}": Layout(partitioning, partitions=32, files=8, rows=25, clustered=files == "sorted")
        for partitions, partitioning in _BY.items()
        for files in ("sorted", "unsorted")
    }
)
FILTERS: Mapping[str, Filter] = MappingProxyType({"keys": "keys", "range of keys": "range", "nothing": "nothing"})


def work(layout: Layout) -> Work:
    """16 MERGEs that each match 4 rows by key and change 2 of them. The writer knows no row's day."""
    return Work(
        layout,
        verbs=("merge",),
        rows=4,
        changed=0.5,
        files=None,
        inserts=0,
        names_partitions=layout.partitioning == "category",
    )


def points() -> Iterator[Point]:
    """Everything that is run, for each seed."""
    for scatter in SCATTER:
        for laid_out, layout in LAYOUTS.items():
            usual = replace(work(layout), scatter=scatter)
            for mode, copies in MODES.items():
                for level in LEVELS:
                    yield _point(mode, level, laid_out, "keys", replace(usual, copies=copies))
            yield _point(PRECISE, Level.SNAPSHOT, laid_out, "keys", usual, precise=True)
            for label, pushed in FILTERS.items():
                if pushed != "keys" and layout.partitioning == "day":
                    for mode in ("copy-on-write", "merge-on-read"):
                        asked = replace(usual, copies=MODES[mode], filter=pushed)
                        yield _point(mode, Level.SERIALIZABLE, laid_out, label, asked)


def _point(mode: str, level: Level, layout: str, label: str, done: Work, *, precise: bool = False) -> Point:
    labels = {"mode": mode, "level": level.value, "layout": layout, "filter": label, "scatter": done.scatter}
    return Point(labels, Setup(done, level=level, precise=precise))

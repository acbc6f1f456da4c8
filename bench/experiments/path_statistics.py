"""Experiment 1: delete files that are about one data file, and a check that knows it (Vanlightly's idea).

Merge-on-read writers begin at once on one table. As it is, C3a minds every new delete file in a partition that the
writer's filter covers. With `Operation.precise_deletes` it minds only those about a data file that the writer touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from bench.experiments.records import Point
from bench.experiments.single_run import Setup
from bench.experiments.work import Verb, Work
from bench.experiments.world import Layout, Partitioning
from icetower.iceberg.validation import Level

NAME = "path-statistics"
SEEDS = 12

PARTITIONINGS: tuple[Partitioning, ...] = ("category", "bucket", "day")
WRITERS = (2, 4, 8, 16, 32)
FILES_TOUCHED = (1, 2, 4, 8, 16)
FILES_IN_PARTITION = (2, 4, 8, 16, 32, 64)
ROWS = (2, 4, 8, 16, 32, 64)
ROWS_IN_PARTITION = 800

TODAY, PRECISE = "today", "precise, per data file"
VARIANTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        TODAY: {},
        "precise, per partition": {"granularity": "partition", "precise": True},
        PRECISE: {"precise": True},
        "today, per partition": {"granularity": "partition"},
        "today, vectors": {"format": 3},
        "precise, vectors": {"format": 3, "precise": True},
    }
)
"""How deletes are written and checked; format 2 and a delete file per data file where nothing else is said."""
COMPARED = tuple(VARIANTS)[:3]
DRAINED = (TODAY, PRECISE)

COMMANDS: Mapping[str, tuple[Verb, ...]] = MappingProxyType(
    {
        "UPDATE": ("update",),
        "MERGE": ("merge",),
        "DELETE": ("delete",),
        "UPDATE and DELETE": ("update", "delete"),
    }
)


def work(partitioning: Partitioning) -> Work:
    """What is done where a sweep says nothing else: 16 UPDATEs of 4 rows in 2 of a partition's 16 files."""
    return Work(Layout(partitioning, partitions=8, files=16, rows=ROWS_IN_PARTITION // 16))


def points() -> Iterator[Point]:
    """Everything that is run, for each seed."""
    for partitioning in PARTITIONINGS:
        usual = work(partitioning)
        for writers in WRITERS:
            for variant in COMPARED if writers != usual.writers else VARIANTS:
                drains = variant in DRAINED
                yield _point("writers", partitioning, variant, writers, replace(usual, writers=writers), drains=drains)
        for files in FILES_TOUCHED:
            for variant in COMPARED:
                yield _point("files touched", partitioning, variant, files, replace(usual, rows=files, files=files))
    usual = work("day")
    for variant in COMPARED:
        for files in FILES_IN_PARTITION:
            layout = replace(usual.layout, files=files, rows=ROWS_IN_PARTITION // files)
            yield _point("files in partition", "day", variant, files, replace(usual, layout=layout))
        for rows in ROWS:
            yield _point("rows", "day", variant, rows, replace(usual, rows=rows))
    for label, verbs in COMMANDS.items():
        # Of a MERGE's ON condition only what is said of the target alone can be pushed: here, the day.
        told_work = replace(usual, verbs=verbs, filter="nothing" if label == "MERGE" else "keys")
        for level in (Level.SNAPSHOT, Level.SERIALIZABLE):
            for variant in (TODAY, PRECISE, "today, vectors", "precise, vectors"):
                yield _point(f"commands, {level}", "day", variant, label, told_work, level=level)


def _point(
    sweep: str,
    partitioning: str,
    variant: str,
    at: float | str,
    done: Work,
    *,
    drains: bool = False,
    level: Level = Level.SNAPSHOT,
) -> Point:
    setup = replace(Setup(done, level=level, drains=drains), **VARIANTS[variant])
    return Point({"sweep": sweep, "partitioning": partitioning, "variant": variant, "x": at}, setup)

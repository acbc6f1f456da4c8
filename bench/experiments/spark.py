"""A command turned into the operation that Spark would commit, with the files that it would write.

Source: Spark 4.1 of Apache Iceberg 1.12, `SparkPositionDeltaWrite`, `SparkWrite`, `PositionDeleteWriter`; the flags are
those of `icetower_client_model.isolation`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Literal

from bench.experiments.table import Table, View
from bench.experiments.work import Command
from bench.experiments.world import JSON, Place, Row
from icetower.iceberg.validation import Level
from icetower_client_model.isolation import Command as CommandKind
from icetower_client_model.isolation import Engine, flags

Granularity = Literal["file", "partition"]
"""The table property ``write.delete.granularity``: whether a delete file is about one data file, or about all of a
partition. Spark takes `file` if nobody says otherwise. Deletion vectors are always about one."""


def prepare(
    table: Table, view: View, command: Command, writer: int, *, level: Level, granularity: Granularity
) -> JSON | None:
    """The operation of a writer that reads `view`, its files written; None if the table has nothing for it to do."""
    found = [place for key in sorted(command.changes) for place in view.places(key)]
    if not found and not command.inserts:
        return None
    op = _copied(table, view, command, found, writer) if command.copies else None
    op = op or _merged(table, view, command, found, writer, granularity)
    command_run = CommandKind.COPY_ON_WRITE if command.copies else CommandKind(command.verb)
    asked = flags(Engine.SPARK, command_run, level, table.format_version)
    return asked.operation(
        start=view.snapshot_id, conflict_filter=command.where, references=sorted({place.file for place in found}), **op
    )


def _copied(table: Table, view: View, command: Command, found: Iterable[Place], writer: int) -> JSON:
    """Every data file with a row that changes is written anew."""
    removed = sorted({place.file for place in found})
    added: list[str] = []
    for number, file in enumerate(removed):
        rows = tuple(row for row in map(command.on, view.rows(file)) if row is not None)
        if rows:
            added.append(f"w{writer}d{number}")
            table.add_data(added[-1], rows)
    added += _written(table, command.inserts, f"w{writer}i")
    return {"add": added, "remove": removed}


def _merged(
    table: Table, view: View, command: Command, found: Iterable[Place], writer: int, granularity: Granularity
) -> JSON:
    """Positions of changed rows go into delete files, and the rows as they are now into new data files."""
    found = tuple(found)
    now = (row for row in (command.on(place.row) for place in found) if row is not None)
    added = _written(table, (*now, *command.inserts), f"w{writer}d")
    per_file = granularity == "file" or table.format_version >= 3
    groups: dict[object, set[tuple[str, int]]] = {}
    for place in found:
        group = place.file if per_file else table.layout.partition_of(place.row)
        groups.setdefault(group, set()).add((place.file, place.position))
    deletes: list[str] = []
    superseded: list[str] = []
    for number, (group, positions) in enumerate(groups.items()):
        if per_file:  # what is already deleted there moves into the new delete file
            for name in view.deletes.get(str(group), ()):
                superseded.append(name)
                positions |= table.positions[name]
        deletes.append(f"w{writer}x{number}")
        table.add_deletes(deletes[-1], frozenset(positions))
    op: JSON = {"add_deletes": deletes}
    if added:
        op["add"] = added
    if superseded:
        op["remove_deletes"] = superseded
    return op


def _written(table: Table, rows: Iterable[Row], name: str) -> list[str]:
    """New data files of these rows, one in each partition."""
    by_partition: dict[object, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(table.layout.partition_of(row), []).append(row)
    names = (f"{name}{number}" for number in count())
    added: list[str] = []
    for group in by_partition.values():
        added.append(next(names))
        table.add_data(added[-1], tuple(group))
    return added

"""The checks that an engine turns on for each command at each isolation level. Pure.

Iceberg's operations check almost nothing by themselves: the engine asks for checks, and names the snapshot to start
from and the filter. The table below lists what the engines' own code asks for; every row names its source.

"Serializable" promises less than its name: no other writer may have added data that this command's filter would have
matched. Rows that an INSERT … SELECT or a MERGE's source has read, and other tables, are never checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from icetower.errors import BadRequest
from icetower.iceberg.validation import Level
from icetower_client_model.operations import Flag, Kind

JSON = Mapping[str, Any]


class Engine(StrEnum):
    """The engine that writes."""

    SPARK = "spark"
    FLINK = "flink"
    TRINO = "trino"
    PYICEBERG = "pyiceberg"


class Command(StrEnum):
    """The engine's command, as far as it determines the checks.

    COPY_ON_WRITE: a DELETE, UPDATE or MERGE that rewrites files. DELETE, UPDATE and MERGE are those that write delete
    files (merge-on-read). UPSERT: equality deletes of a stream. DELETE_WHERE: removal of whole files by a filter.
    """

    APPEND = "append"
    COPY_ON_WRITE = "copy-on-write"
    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"
    UPSERT = "upsert"
    OVERWRITE = "overwrite"
    OVERWRITE_PARTITIONS = "overwrite-partitions"
    DELETE_WHERE = "delete-where"
    COMPACTION = "compaction"
    COMPACT_DELETES = "compact-deletes"


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings of the operation that an engine builds.

    Attributes:
        kind: the operation.
        validate: the checks that it turns on, in the engine's order.
        start: whether it names the snapshot that it has read (``validateFromSnapshot``).
        conflict_filter: whether it passes on the filters that it pushed into its scan.
        references: whether it names the data files that its delete files refer to (``validateDataFilesExist``).
        sequence_number: whether its new files take the sequence number of the snapshot that it read.
        removes_vectors: whether it removes the deletion vectors of data files that it replaces.
        source: the place in the engine's code.
    """

    kind: Kind
    validate: tuple[Flag, ...]
    start: bool
    conflict_filter: bool
    references: bool
    sequence_number: bool
    removes_vectors: bool
    source: str

    def operation(
        self,
        *,
        start: int | None = None,
        conflict_filter: Any = True,
        references: Sequence[str] = (),
        sequence_number: int | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """An operation of a case, with this engine's settings.

        Args:
            start: the snapshot that was read; None if the table was empty.
            conflict_filter: the filter pushed into the scan, in Iceberg's JSON; True if there was none.
            references: names of the data files that the added delete files refer to.
            sequence_number: that of the snapshot that was read.
            changes: the files that it adds and removes: ``add=["B"]``, ``remove=["A"]``, …
        """
        asked = {
            "start": start if self.start else None,
            "conflict_filter": conflict_filter if self.conflict_filter else None,
            "validate": [flag.value for flag in self.validate],
            "references": list(references) if self.references else [],
            "sequence_number": sequence_number if self.sequence_number else None,
        }
        return {
            "kind": self.kind.value,
            **{key: value for key, value in asked.items() if value not in (None, [])},
            **changes,
        }


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the table: the settings, and the checks of each level. None: the command has no such level."""

    kind: Kind
    source: str
    none: tuple[Flag, ...] | None = None
    snapshot: tuple[Flag, ...] | None = None
    serializable: tuple[Flag, ...] | None = None
    start: bool = False
    conflict_filter: bool = False
    references: bool = False
    sequence_number: bool = False
    removes_vectors: bool = False


_SPARK = "Spark 4.1, org.apache.iceberg.spark.source."
_FLINK = "Flink 2.1, org.apache.iceberg.flink.sink.IcebergCommitter, "
_TRINO = "Trino, io.trino.plugin.iceberg.IcebergMetadata, "
_PYICEBERG = "PyIceberg 0.12, pyiceberg/table/update/snapshot.py, "
_ACTIONS = "Spark 4.1, org.apache.iceberg.actions."
_MINIMAL = (Flag.NO_CONFLICTING_DELETES,)
_UPDATES = (Flag.DELETED_FILES, Flag.NO_CONFLICTING_DELETES)
_PHANTOMS = Flag.NO_CONFLICTING_DATA


def _merge_on_read(source: str, *validate: Flag) -> _Row:
    return _Row(
        Kind.ROW_DELTA,
        source,
        snapshot=validate,
        serializable=(*validate, _PHANTOMS),
        start=True,
        conflict_filter=True,
        references=True,
    )


_SPARK_DELTA = _SPARK + "SparkPositionDeltaWrite.PositionDeltaBatchWrite.commit"

_TABLE: Mapping[tuple[Engine, Command], _Row] = MappingProxyType(
    {
        (Engine.SPARK, Command.APPEND): _Row(Kind.APPEND, _SPARK + "SparkWrite.BatchAppend.commit", none=()),
        (Engine.SPARK, Command.COPY_ON_WRITE): _Row(
            Kind.OVERWRITE,
            _SPARK + "SparkWrite.CopyOnWriteOperation.commit",
            snapshot=_MINIMAL,
            serializable=(_PHANTOMS, *_MINIMAL),
            start=True,
            conflict_filter=True,
            removes_vectors=True,
        ),
        (Engine.SPARK, Command.DELETE): _merge_on_read(_SPARK_DELTA),
        (Engine.SPARK, Command.UPDATE): _merge_on_read(_SPARK_DELTA, *_UPDATES),
        (Engine.SPARK, Command.MERGE): _merge_on_read(_SPARK_DELTA, *_UPDATES),
        # The level is the write option `isolation-level`, the start `validate-from-snapshot-id`: they are set only if
        # the job sets them; the table's properties have no effect.
        (Engine.SPARK, Command.OVERWRITE): _Row(
            Kind.OVERWRITE,
            _SPARK + "SparkWrite.OverwriteByFilter.commit",
            none=(),
            snapshot=_MINIMAL,
            serializable=(*_MINIMAL, _PHANTOMS),
            start=True,
        ),
        (Engine.SPARK, Command.OVERWRITE_PARTITIONS): _Row(
            Kind.REPLACE_PARTITIONS,
            _SPARK + "SparkWrite.DynamicOverwrite.commit",
            none=(),
            snapshot=_MINIMAL,
            serializable=(_PHANTOMS, *_MINIMAL),
            start=True,
        ),
        (Engine.SPARK, Command.DELETE_WHERE): _Row(Kind.DELETE, _SPARK + "SparkTable.deleteWhere", none=()),
        (Engine.SPARK, Command.COMPACTION): _Row(
            Kind.REWRITE,
            _ACTIONS + "RewriteDataFilesCommitManager.commitFileGroups",
            snapshot=(),
            start=True,
            sequence_number=True,
            removes_vectors=True,
        ),
        (Engine.SPARK, Command.COMPACT_DELETES): _Row(
            Kind.REWRITE, _ACTIONS + "RewritePositionDeletesCommitManager.commit", snapshot=(), start=True
        ),
        (Engine.FLINK, Command.APPEND): _Row(Kind.APPEND, _FLINK + "commitDeltaTxn", none=()),
        (Engine.FLINK, Command.UPSERT): _Row(Kind.ROW_DELTA, _FLINK + "commitDeltaTxn", none=()),
        (Engine.FLINK, Command.OVERWRITE_PARTITIONS): _Row(
            Kind.REPLACE_PARTITIONS, _FLINK + "replacePartitions", none=()
        ),
        (Engine.TRINO, Command.APPEND): _Row(Kind.APPEND, _TRINO + "finishInsert", none=()),
        # One level for all commands: write.delete.isolation-level.
        (Engine.TRINO, Command.DELETE): _merge_on_read(_TRINO + "finishWrite, no data written"),
        (Engine.TRINO, Command.UPDATE): _merge_on_read(_TRINO + "finishWrite, data written", *_UPDATES),
        (Engine.TRINO, Command.MERGE): _merge_on_read(_TRINO + "finishWrite, data written", *_UPDATES),
        (Engine.PYICEBERG, Command.APPEND): _Row(Kind.FAST_APPEND, _PYICEBERG + "_FastAppendFiles", none=()),
        # PyIceberg has checks of its own; these of Iceberg's are the closest: by predicate C3a and C2, by files C3b.
        (Engine.PYICEBERG, Command.COPY_ON_WRITE): _Row(
            Kind.OVERWRITE,
            _PYICEBERG + "_SnapshotProducer._validate_concurrency",
            snapshot=_MINIMAL,
            serializable=(_PHANTOMS, *_MINIMAL),
            start=True,
            conflict_filter=True,
        ),
    }
)


def flags(engine: Engine, command: Command, level: Level, format_version: int) -> Flags:
    """The settings of `engine` for `command` at `level`.

    Args:
        format_version: of the table, 1 to 3.

    Raises:
        BadRequest: the engine has no such command, the command no such level, or the format no such files.
    """
    row = _TABLE.get((engine, command))
    if row is None:
        known = ", ".join(other.value for at, other in _TABLE if at is engine)
        raise BadRequest(
            f"{engine} has no command {command}, as far as is known: take one of {known}", rule="isolation"
        )
    validate: tuple[Flag, ...] | None = getattr(row, level.value)
    if validate is None:
        offered = ", ".join(levels(engine, command))
        raise BadRequest(f"{engine} {command} has no level {level}: take one of {offered}", rule="isolation")
    if row.kind is Kind.ROW_DELTA and format_version < 2:
        raise BadRequest(f"format version {format_version} has no delete files: {command} needs 2", rule="isolation")
    return Flags(
        kind=row.kind,
        validate=validate,
        start=row.start and level is not Level.NONE,
        conflict_filter=row.conflict_filter,
        references=row.references,
        sequence_number=row.sequence_number,
        removes_vectors=row.removes_vectors and format_version >= 3,
        source=row.source,
    )


def levels(engine: Engine, command: Command) -> tuple[Level, ...]:
    """The command's levels; none if the engine has no such command."""
    row = _TABLE.get((engine, command))
    return () if row is None else tuple(level for level in Level if getattr(row, level.value) is not None)


def known(format_version: int) -> Iterator[tuple[Engine, Command, Level]]:
    """Every combination for which `flags` has an answer in this format version, in the order of the table."""
    for (engine, command), row in _TABLE.items():
        if row.kind is not Kind.ROW_DELTA or format_version >= 2:
            yield from ((engine, command, level) for level in levels(engine, command))


# ── Table properties ────────────────────────────────────────────────────────────────────────────────────────────────

LEVEL_PROPERTIES: Mapping[Command, str] = MappingProxyType(
    {command: f"write.{command}.isolation-level" for command in (Command.DELETE, Command.UPDATE, Command.MERGE)}
)
"""The table property with the level of a command (Iceberg's `TableProperties`); Trino uses DELETE's for all."""

DEFAULT_LEVEL = Level.SERIALIZABLE


def level_of(properties: Mapping[str, str], command: Command) -> Level:
    """The level that a table's properties set for DELETE, UPDATE or MERGE, in either write mode.

    Raises:
        BadRequest: the property has another value (Iceberg: ``Unknown isolation level``), or there is no property.
    """
    name = LEVEL_PROPERTIES.get(command)
    if name is None:
        raise BadRequest(
            f"no table property sets a level for {command}; only for {', '.join(LEVEL_PROPERTIES)}", rule="isolation"
        )
    value = properties.get(name, DEFAULT_LEVEL.value)
    if value.lower() not in (Level.SNAPSHOT, Level.SERIALIZABLE):
        raise BadRequest(f"{name} is {value!r}: set it to serializable or snapshot", rule="isolation")
    return Level(value.lower())

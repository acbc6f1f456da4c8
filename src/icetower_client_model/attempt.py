"""An operation compared with one state of the table: the input of the rules, and their answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.deletes import DeleteIndex, Place, place_key
from icetower.iceberg.entries import Files, Live
from icetower.iceberg.expressions import TRUE, Column, Expression, columns_of, text
from icetower.iceberg.literals import value_text
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.pruning import NULL_POINTER, OVERFLOW, Pruner
from icetower.iceberg.records import DataFile, ManifestFile
from icetower.iceberg.validation import Conflict
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower_client_model.history import History, history
from icetower_client_model.operations import Operation

_ADDING_DELETES = frozenset({"overwrite", "delete"})
DELETES = 1
"""The content of delete manifests."""


@dataclass(frozen=True, slots=True)
class Clear:
    """A rule was checked and does not object. `considered`: the number of entries that it found harmless."""

    considered: int = 0


Verdict = Clear | Conflict | None
"""None: the operation does not turn this rule on."""


class PartitionSet:
    """Partitions by (spec id, tuple), matched exactly and never across specs."""

    def __init__(self, partitions: Iterable[Place], specs: Mapping[int, PartitionSpec]) -> None:
        self._partitions = {place_key(place): place for place in partitions}
        self._specs = specs

    def has(self, spec_id: int, partition: tuple[Any, ...]) -> bool:
        """Whether this is one of them."""
        return place_key((spec_id, partition)) in self._partitions

    @property
    def text(self) -> str:
        """As in Iceberg's messages: ``[category=a, category=b]``."""
        parts = [
            f"{part.name}={'null' if value is None else value_text(value)}"
            for spec_id, partition in sorted(self._partitions.values(), key=lambda place: place[0])
            for part, value in zip(self._specs[spec_id].fields, partition, strict=True)
        ]
        return f"[{', '.join(parts)}]"


Where = Expression | PartitionSet | None
"""The scope of a check: a row filter, partitions, or no limit."""


@dataclass(frozen=True)
class Attempt:
    """An operation compared with one state of the table.

    Attributes:
        head: the table's current state.
        files: the manifests that may be read.
        parent: the snapshot that the commit would follow; None in an empty table.
    """

    operation: Operation
    head: HeadState
    files: Files
    parent: Mapping[str, Any] | None
    _pruners: dict[tuple[Expression, int], Pruner] = field(
        default_factory=dict[tuple[Expression, int], Pruner], compare=False, repr=False
    )

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """The columns of the table's current schema by name."""
        return columns_of(self.head.schema)

    @cached_property
    def columns_by_id(self) -> Mapping[int, Column]:
        """The same columns by field id."""
        return {column.id: column for column in self.columns.values()}

    @cached_property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All partition specs of the table by id."""
        return self.head.specs

    def pruner(self, expression: Expression, spec_id: int) -> Pruner:
        """Evaluates `expression` on files of a partition spec."""
        key = (expression, spec_id)
        if key not in self._pruners:
            self._pruners[key] = Pruner(expression, self.specs[spec_id], self.columns)
        return self._pruners[key]

    def added(self, operations: frozenset[str], content: int) -> History:
        """What snapshots since the writer's start added. Raises `UnknownHistory`, `NeedsFile`."""
        assert self.parent is not None
        return history(self.head, self.files, self.parent, self.operation.start, operations, content)

    def might_match(self, where: Where, row: ManifestFile) -> bool:
        """Whether a manifest can hold entries in the scope `where`; decided without opening it."""
        if not isinstance(where, PartitionSet) and where is not None and where != TRUE:
            return self.pruner(where, row.spec_id).manifest_might_match(row)
        return True

    def matches(self, where: Where, file: DataFile, spec_id: int) -> bool:
        """Whether a file can hold rows in the scope `where`: by its partition first, then by its column statistics."""
        if isinstance(where, PartitionSet):
            return where.has(spec_id, file.partition)
        if where is None or where == TRUE:
            return True
        pruner = self.pruner(where, spec_id)
        return pruner.partition_might_match(file.partition) and pruner.rows_might_match(file)

    @property
    def start_sequence_number(self) -> int:
        """The sequence number of the writer's start; 0 if it named none, or if that snapshot has expired."""
        start = self.head.snapshots.get(self.operation.start) if self.operation.start is not None else None
        return 0 if start is None else Snapshot(start).sequence_number

    def new_deletes(self, where: Where) -> tuple[DeleteIndex, ...]:
        """The delete files since the start in the scope `where`, one index for each snapshot, the newest first.

        A deletion vector of one snapshot may supersede another's, so one index cannot hold them all.

        Raises:
            UnknownHistory: see `history`.
            Corrupt: a snapshot added two deletion vectors for one file.
        """
        if self.parent is None or self.head.format_version < 2:
            return ()
        by_snapshot: dict[int, list[Live]] = {}
        for row in self.added(_ADDING_DELETES, DELETES).rows:
            by_snapshot.setdefault(row.added_snapshot_id, []).extend(self._newer(row, where))
        return tuple(DeleteIndex(deletes, self.specs, self.columns_by_id) for deletes in by_snapshot.values())

    def _newer(self, row: ManifestFile, where: Where) -> Iterator[Live]:
        start = self.start_sequence_number
        if (row.added_files != 0 or row.existing_files != 0) and self.might_match(where, row):
            for live in self.files.live(row):
                # Not by snapshot id: an entry that a merge carried over counts if its number is new enough.
                file = live.entry.file
                # A file without records is skipped if a filter or partitions are given: statistics come first.
                empty = isinstance(where, PartitionSet) and file.record_count == 0
                if (live.sequence_number or 0) > start and not empty and self.matches(where, file, row.spec_id):
                    yield live


def conflict_of(failed: ValidationFailed) -> Conflict | None:
    """If Iceberg itself fails on a filter, the JVM's exception as a conflict; None if the input is invalid."""
    errors = {NULL_POINTER: "NullPointerException", OVERFLOW: "ArithmeticException"}
    error = errors.get(str(failed.rule))
    return None if error is None else Conflict("null-pointer", error, failed.message)


def text_of(where: Where) -> str:
    """A scope as Iceberg's messages print it."""
    if isinstance(where, PartitionSet):
        return where.text
    return "null" if where is None else text(where)

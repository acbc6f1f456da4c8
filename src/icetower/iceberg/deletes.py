"""Which delete files apply to a data file (Apache Iceberg 1.12, `DeleteFileIndex`; specification: "Scan Planning").

Equality deletes of an unpartitioned spec apply to the whole table, others to their partition of their spec; both only
to data with a smaller sequence number, and only where the value ranges of their columns can meet. Then comes the
file's deletion vector or, if it has none, position deletes: by path where they name one file, else every one of its
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from icetower.iceberg.entries import Live
from icetower.iceberg.expressions import Column
from icetower.iceberg.literals import compare, value_text
from icetower.iceberg.metrics import metrics_of
from icetower.iceberg.partitions import PartitionSpec, partition_key
from icetower.iceberg.records import EQUALITY_DELETES, DataFile, is_vector, referenced_file

Place = tuple[int, tuple[Any, ...]]
"""A partition: the id of its spec, and its tuple."""


class Corrupt(Exception):
    """Delete files contradict each other or their data file; the message is Iceberg's."""


def place_key(place: Place) -> Place:
    """What to compare and hash instead of a partition; see `partition_key`."""
    return place[0], partition_key(place[1])


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """No fields, or none but `void` ones."""
    return all(part.transform == "void" for part in spec.fields)


def vector_text(file: DataFile) -> str:
    """A deletion vector as Iceberg's messages name it."""
    offset, size = file.record.get("content_offset"), file.record.get("content_size_in_bytes")
    return f"DV{{location={file.path}, offset={offset}, length={size}, referencedDataFile={file.referenced_data_file}}}"


class DeleteIndex:
    """Delete files, ready to be asked which of them apply to a data file.

    Raises:
        Corrupt: two deletion vectors for one data file.
    """

    def __init__(
        self, deletes: Iterable[Live], specs: Mapping[int, PartitionSpec], columns: Mapping[int, Column]
    ) -> None:
        self._columns = columns
        self._specs = specs
        self._global: list[Live] = []
        self._equality: dict[Place, list[Live]] = {}
        self._positions: dict[Place, list[Live]] = {}
        self._by_path: dict[str, list[Live]] = {}
        self._vectors: dict[str, Live] = {}
        for live in deletes:
            self._add(live, specs)

    def _add(self, live: Live, specs: Mapping[int, PartitionSpec]) -> None:
        file = live.entry.file
        place = place_key((live.row.spec_id, file.partition))
        if file.content == EQUALITY_DELETES:
            everywhere = is_unpartitioned(specs[live.row.spec_id])
            (self._global if everywhere else self._equality.setdefault(place, [])).append(live)
        elif is_vector(file):
            path = str(file.referenced_data_file)
            known = self._vectors.setdefault(path, live)
            if known is not live:
                texts = f"{vector_text(file)} and {vector_text(known.entry.file)}"
                raise Corrupt(f"Can't index multiple DVs for {path}: {texts}")
        else:
            path = referenced_file(file)
            group = self._by_path.setdefault(path, []) if path is not None else self._positions.setdefault(place, [])
            group.append(live)

    @property
    def files(self) -> tuple[Live, ...]:
        """Every delete file in the index: equality deletes first, then position deletes, then vectors."""
        groups = (*self._equality.values(), *self._positions.values(), *self._by_path.values())
        return (*self._global, *(live for group in groups for live in group), *self._vectors.values())

    def applying_to(self, file: DataFile, spec_id: int, sequence_number: int) -> tuple[Live, ...]:
        """The delete files that apply to a data file of this (data) sequence number.

        Raises:
            Corrupt: a deletion vector or file-scoped delete of another partition than its data file, or older than it.
        """
        place = place_key((spec_id, file.partition))
        found = [
            live
            for live in (*self._global, *self._equality.get(place, ()))
            if _number(live) > sequence_number and self._may_delete_from(live.entry.file, file)
        ]
        vector = self._vectors.get(file.path)
        if vector is not None:
            if _number(vector) < sequence_number:
                raise Corrupt(
                    f"DV data sequence number ({_number(vector)}) must be greater than or equal to data file sequence "
                    f"number ({sequence_number})"
                )
            self._check_same_partition(vector, file, spec_id)
            return (*found, vector)
        found += (live for live in self._positions.get(place, ()) if _number(live) >= sequence_number)
        by_path = [live for live in self._by_path.get(file.path, ()) if _number(live) >= sequence_number]
        for live in by_path:
            self._check_same_partition(live, file, spec_id)
        return (*found, *by_path)

    def _may_delete_from(self, deletes: DataFile, data: DataFile) -> bool:
        """Whether an equality delete file can name rows of a data file, by its columns' ranges and nulls."""
        ours, theirs = metrics_of(data), metrics_of(deletes)
        check_ranges = ours.has_bounds and theirs.has_bounds
        for column_id in deletes.record.get("equality_ids") or ():
            column = self._columns.get(column_id)
            if column is None:  # dropped since: nothing to compare, so the deletes may apply
                continue
            if _may_hold_null(ours.null_value_counts, column) and _may_hold_null(theirs.null_value_counts, column):
                continue
            if _all_null(ours.null_value_counts, ours.value_counts, column) and _no_null(
                theirs.null_value_counts, column
            ):
                return False
            if _all_null(theirs.null_value_counts, theirs.value_counts, column) and _no_null(
                ours.null_value_counts, column
            ):
                return False
            if not check_ranges:
                continue
            lower, upper = ours.lower(column_id, column.type), ours.upper(column_id, column.type)
            least, most = theirs.lower(column_id, column.type), theirs.upper(column_id, column.type)
            if lower is None or upper is None or least is None or most is None:
                continue
            if compare(lower, most, column.type) > 0 or compare(least, upper, column.type) > 0:
                return False
        return True

    def _check_same_partition(self, deletes: Live, file: DataFile, spec_id: int) -> None:
        theirs, partition = deletes.row.spec_id, deletes.entry.file.partition
        pair = f"for delete file {deletes.path} and data file {file.path}: metadata is corrupted"
        if theirs != spec_id:
            raise Corrupt(f"Mismatched partition specs ({theirs}, {spec_id}) {pair}")
        if partition_key(partition) != partition_key(file.partition):
            texts = ", ".join(partition_text(self._specs[spec_id], each) for each in (partition, file.partition))
            raise Corrupt(f"Mismatched partition tuples ({texts}) {pair}")


def partition_text(spec: PartitionSpec, partition: tuple[Any, ...]) -> str:
    """A partition tuple as Iceberg's messages print it."""
    pairs = zip(spec.fields, partition, strict=True)
    return f"PartitionData{{{', '.join(f'{part.name}={_plain(value)}' for part, value in pairs)}}}"


def _plain(value: Any) -> str:
    return "null" if value is None else value_text(value)


def _number(live: Live) -> int:
    assert live.sequence_number is not None
    return live.sequence_number


Counts = Mapping[int, int] | None


def _no_null(nulls: Counts, column: Column) -> bool:
    if column.required:
        return True
    count = None if nulls is None else nulls.get(column.id)
    return count is not None and count <= 0


def _all_null(nulls: Counts, values: Counts, column: Column) -> bool:
    if column.required or nulls is None or values is None:
        return False
    count = nulls.get(column.id)
    return count is not None and count == values.get(column.id)


def _may_hold_null(nulls: Counts, column: Column) -> bool:
    if column.required:
        return False
    count = None if nulls is None else nulls.get(column.id)
    return count is None or count > 0

"""What an audit keeps of a manifest's entry: who, where and how many rows, without the statistics of columns. Pure.

A history names each file many times over, and statistics are most of an entry; the few rules that ask for them have the
manifest opened again (`NeedsFile`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from icetower.iceberg.deletes import Place
from icetower.iceberg.partitions import partition_key
from icetower.iceberg.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    Entry,
    ManifestFile,
    is_vector,
    referenced_file,
)


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One entry of a manifest, with what it inherits from its row. One that is carried over unchanged is one object.

    Attributes:
        key: what makes the file one file: its path; for deletion vectors also where in it, and for which data file.
        target: the one data file that position deletes or a deletion vector are about; None if many, or not said.
        offset, length_bytes: of a deletion vector in its file.
        equality_ids: columns of equality deletes.
        place: its partition, ready to be compared.
        manifest: path of the manifest in which it was met first.
    """

    key: str
    status: int
    content: int
    path: str
    file_format: str
    spec_id: int
    partition: tuple[Any, ...]
    place: Place
    records: int
    size_bytes: int
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None
    target: str | None
    offset: int | None
    length_bytes: int | None
    equality_ids: tuple[int, ...]
    manifest: str

    @property
    def is_data(self) -> bool:
        return self.content == DATA

    @property
    def is_vector(self) -> bool:
        """Whether it is a deletion vector."""
        return self.offset is not None

    @property
    def is_loose(self) -> bool:
        """Whether it is a position delete file that doesn't say which data file it is about."""
        return self.content == POSITION_DELETES and self.target is None

    @property
    def is_equality(self) -> bool:
        return self.content == EQUALITY_DELETES

    @property
    def what(self) -> str:
        """What to call it."""
        if self.is_data:
            return "data file"
        if self.is_vector:
            return "deletion vector"
        return "equality delete file" if self.is_equality else "position delete file"


def key_of(file: DataFile) -> str:
    """What makes a file one file."""
    if file.content == DATA or not is_vector(file):
        return file.path
    return f"{file.path}\n{file.record.get('content_offset')}\n{file.referenced_data_file}"


@dataclass(slots=True)
class Inheriting:
    """What the entries of one manifest inherit, one after the other (specification: "Sequence Number Inheritance", "Row
    Lineage").

    Attributes:
        next_row_id: what the next data file without a first row id gets; None in manifests that give none.
    """

    row: ManifestFile
    next_row_id: int | None
    places: dict[tuple[Any, ...], Place]

    @staticmethod
    def of(row: ManifestFile) -> Inheriting:
        return Inheriting(row, row.first_row_id if row.content == DATA else None, {})

    def says_all(self, entry: Entry) -> bool:
        """Whether the entry inherits nothing, so that the same bytes mean the same in any manifest."""
        return (
            entry.status == EXISTING
            and entry.snapshot_id is not None
            and entry.sequence_number is not None
            and entry.file_sequence_number is not None
            and (entry.file.first_row_id is not None) == (self.next_row_id is not None)
        )

    def item(self, entry: Entry) -> Item:
        """The next entry."""
        row, file = self.row, entry.file
        number = row.sequence_number
        inherits = entry.status == ADDED or number == 0
        row_id = None
        if self.next_row_id is not None:
            row_id = file.first_row_id
            if row_id is None and entry.status != DELETED:
                row_id, self.next_row_id = self.next_row_id, self.next_row_id + file.record_count
        sequence = entry.sequence_number
        file_sequence = entry.file_sequence_number
        own_vector = file.content != DATA and is_vector(file)
        partition = file.partition
        place = self.places.get(partition)
        if place is None:
            place = self.places[partition] = (row.spec_id, partition_key(partition))
        return Item(
            key=key_of(file) if own_vector else file.path,
            status=entry.status,
            content=file.content,
            path=file.path,
            file_format=file.file_format,
            spec_id=row.spec_id,
            partition=partition,
            place=place,
            records=file.record_count,
            size_bytes=file.size_bytes,
            snapshot_id=row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
            sequence_number=(number if inherits else 0) if sequence is None else sequence,
            file_sequence_number=(number if inherits else 0) if file_sequence is None else file_sequence,
            first_row_id=row_id,
            target=None if file.content == DATA else referenced_file(file),
            offset=(file.record.get("content_offset") or 0) if own_vector else None,
            length_bytes=file.record.get("content_size_in_bytes") if own_vector else None,
            equality_ids=tuple(file.record.get("equality_ids") or ()),
            manifest=row.path,
        )

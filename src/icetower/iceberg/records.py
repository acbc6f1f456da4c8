"""What manifest lists and manifests hold, as records. `manifests` is the door to them; import from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

PATH_FIELD_ID = 2147483546
"""Column `file_path` of position delete files (specification: "Reserved Field IDs")."""


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """What a manifest list says of one partition field; bounds in Iceberg's single-value serialisation."""

    contains_null: bool
    contains_nan: bool | None
    lower: bytes | None
    upper: bytes | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One row of a manifest list (specification: "Manifest Lists"). `content`: 0 data, 1 deletes."""

    path: str
    length_bytes: int
    spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files: int | None
    existing_files: int | None
    deleted_files: int | None
    added_rows: int | None
    existing_rows: int | None
    deleted_rows: int | None
    partitions: tuple[FieldSummary, ...] | None
    key_metadata: bytes | None
    first_row_id: int | None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data or delete file as a manifest names it.

    `partition` holds one value per field of the manifest's spec, in the spec's order, in Avro's native Python form with
    logical types left as the raw integers that Iceberg's transforms give (days, hours, microseconds, unscaled decimal
    bytes turned into `Decimal`, UUID as 16 bytes).
    `record` is the whole `data_file` Avro record but for its partition, by the specification's field names whatever
    the file called them, for writing back without loss.
    """

    content: int
    path: str
    file_format: str
    partition: tuple[Any, ...]
    record_count: int
    size_bytes: int
    first_row_id: int | None
    referenced_data_file: str | None
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a manifest. `sequence_number` and `file_sequence_number` are None where they are inherited."""

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    file: DataFile


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as read. `spec_fields`: the partition fields (JSON) of its header; `schema`: its JSON schema.

    `length_bytes`: how long the file is; None where it was not read from one. `unpacked_bytes` is the length of its
    entries, unpacked, and `header_bytes` that of its header: they tell how much memory it takes, and are no part of
    what the manifest says. `partition_types`: the Avro types that the values of `spec_fields` were written as, in a
    manifest that was read.
    """

    entries: tuple[Entry, ...]
    spec_id: int
    spec_fields: tuple[Mapping[str, Any], ...]
    schema: Mapping[str, Any]
    content: int
    format_version: int
    length_bytes: int | None = None
    unpacked_bytes: int = field(default=0, compare=False)
    header_bytes: int = field(default=0, compare=False)
    partition_types: tuple[Any, ...] = field(default=(), compare=False)


_ROW_BYTES, _SUMMARY_BYTES = 730, 165
"""What a row of a manifest list takes in memory, and what it says of one partition field, without texts and bounds."""

_ENTRY_BYTES, _ITEM_BYTES = 1_000, 224
"""An entry of a manifest, and one item of its lists: what it says of one column."""

_HEADER_FACTOR = 8
"""What a manifest's header takes in memory when it is parsed, by the characters of its JSON."""


def memory_of_row(row: ManifestFile) -> int:
    """What a row of a manifest list takes in memory, in bytes, as was measured with CPython 3.11."""
    return _ROW_BYTES + _SUMMARY_BYTES * len(row.partitions or ()) + texts_of_row(row)


def texts_of_row(row: ManifestFile) -> int:
    """How long the texts and bounds of a row of a manifest list are."""
    size = len(row.path) + len(row.key_metadata or b"")
    for field_ in row.partitions or ():
        size += len(field_.lower or b"") + len(field_.upper or b"")
    return size


def memory_of_manifest(manifest: Manifest) -> int:
    """What a manifest takes in memory, in bytes. Most of it are its columns' statistics, each value in a record."""
    items = sum(items_of(entry.file) for entry in manifest.entries)
    own = manifest.unpacked_bytes + _HEADER_FACTOR * manifest.header_bytes
    return _ENTRY_BYTES * (len(manifest.entries) + 1) + _ITEM_BYTES * items + own


def items_of(file: DataFile) -> int:
    """How many items the lists of a file's record have: mostly what it says of single columns."""
    return sum([len(value) for value in file.record.values() if isinstance(value, list)])


def is_vector(file: DataFile) -> bool:
    """Whether it is a deletion vector (format version 3)."""
    return file.content == POSITION_DELETES and file.file_format.lower() == "puffin"


def referenced_file(file: DataFile, *, by_bounds: bool = False) -> str | None:
    """The one data file that a position delete file or deletion vector is about; None if it may be about many.

    Either it says so, or the bounds of its path column are equal. Iceberg's readers look at no partition then
    (`ContentFileUtil`, `DeleteFileIndex`).

    Args:
        by_bounds: by the bounds alone, whatever it says.
    """
    if file.content != POSITION_DELETES:
        return None
    if file.referenced_data_file is not None and not by_bounds:
        return file.referenced_data_file
    lower, upper = (_path_bound(file.record.get(name)) for name in ("lower_bounds", "upper_bounds"))
    return lower.decode("utf-8", "replace") if lower is not None and lower == upper else None


def _path_bound(bounds: Any) -> bytes | None:
    """Avro's maps with whole numbers as keys are lists of records."""
    if isinstance(bounds, Mapping):
        return bounds.get(PATH_FIELD_ID)
    return next((pair["value"] for pair in bounds or () if pair["key"] == PATH_FIELD_ID), None)


FileKey = tuple[str, Any, Any]


def key_of(file: DataFile) -> FileKey:
    """What makes two names one file to Iceberg: the path, and for deletion vectors where in the file they lie.

    Source: `DeleteFileSet`, `DataFileSet`. `iceberg.entry_checks.key_of` trusts less.
    """
    if file.content == DATA:
        return (file.path, None, None)
    return (file.path, file.record.get("content_offset"), file.record.get("content_size_in_bytes"))

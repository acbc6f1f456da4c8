"""Manifest lists and manifests: bytes ↔ records, format versions 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldSummary:
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


EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data or delete file as a manifest names it.

    `partition` holds one value per field of the manifest's spec, in the spec's order, in Avro's native Python form with
    logical types left as the raw integers that Iceberg's transforms give (days, hours, microseconds, unscaled decimal
    bytes turned into `Decimal`, UUID as 16 bytes).
    `record` is the whole `data_file` Avro record as read, for writing back without loss.
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
    """A manifest as read. `spec_fields` are the partition fields (JSON) that its header names; `schema` its JSON schema."""

    entries: tuple[Entry, ...]
    spec_id: int
    spec_fields: tuple[Mapping[str, Any], ...]
    schema: Mapping[str, Any]
    content: int
    format_version: int

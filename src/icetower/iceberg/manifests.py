"""Manifest lists and manifests: bytes ↔ records, format versions 1, 2 and 3.

Reading takes files as Iceberg's Java library, PyIceberg and others write them: fields are known by field id, columns
that an older format lacks become None (sequence numbers and content: 0).

Sources: specification, "Manifests", "Manifest Lists", "Appendix A: Avro".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from icetower.errors import ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.avro_schemas import AvroSchema, manifest_list_schema, manifest_schema, names_by_id
from icetower.iceberg.manifest_writing import assign_first_row_ids, manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.partitions import FIRST_PARTITION_FIELD_ID
from icetower.iceberg.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    Entry,
    FieldSummary,
    Manifest,
    ManifestFile,
)

__all__ = [
    "ADDED",
    "DATA",
    "DELETED",
    "EQUALITY_DELETES",
    "EXISTING",
    "POSITION_DELETES",
    "DataFile",
    "Entry",
    "FieldSummary",
    "Manifest",
    "ManifestFile",
    "assign_first_row_ids",
    "manifest_row",
    "read_manifest",
    "read_manifest_list",
    "write_manifest",
    "write_manifest_list",
]

_NO_PARTITION: AvroSchema = {"type": "record", "name": "r102", "fields": []}
_LIST_NAMES = names_by_id([manifest_list_schema(1), manifest_list_schema(3)])
_ENTRY_NAMES = names_by_id([manifest_schema(1, _NO_PARTITION), manifest_schema(3, _NO_PARTITION)])


def read_manifest_list(
    data: bytes, cache: avro_files.RowCache[ManifestFile] | None = None, *, most_new: int | None = None
) -> tuple[ManifestFile, ...]:
    """The rows of a manifest list, in the file's order.

    Args:
        cache: rows of other lists. A list repeats nearly all of its parent's, byte by byte.
        most_new: so many rows that are not known yet are decoded here and now.

    Raises:
        ValidationFailed: not a readable manifest list.
        LongFile: it has more of them.
    """
    if cache is not None:
        what = "the manifest list"
        return avro_files.read_each(data, rename=list_name, what=what, make=_row, cache=cache, most_new=most_new)
    file = avro_files.read(data, rename=list_name, what="the manifest list")
    return tuple(map(_row, file.records))


def _row(record: Mapping[str, Any]) -> ManifestFile:
    try:
        return manifest_file(record)
    except (KeyError, TypeError, AttributeError) as error:
        raise malformed("the manifest list", error) from error


def read_manifest(data: bytes, *, most_bytes: int | None = None) -> Manifest:
    """A manifest with all its entries, in the file's order, as written: nothing is inherited yet.

    Args:
        most_bytes: how long it may be, unpacked, to be read here and now.

    Raises:
        ValidationFailed: not a readable manifest.
        LongFile: it is longer than `most_bytes`.
    """
    file = avro_files.read(data, rename=entry_name, what="the manifest", most_bytes=most_bytes)
    try:
        shape = shape_of(file.header, file.schema)
        return Manifest(
            entries=tuple(entry_of(record, shape) for record in file.records),
            spec_id=shape.spec_id,
            spec_fields=shape.spec_fields,
            schema=orjson.loads(file.header.get("schema", "{}")),
            content=1 if file.header.get("content", "data") == "deletes" else 0,
            format_version=int(file.header.get("format-version", "1")),
            length_bytes=len(data),
            unpacked_bytes=file.unpacked_bytes,
            header_bytes=sum(map(len, file.header.values())),
            partition_types=tuple(written for _, written in shape.decode),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise malformed("the manifest", error) from error


@dataclass(frozen=True, slots=True)
class Shape:
    """What a manifest's header says of its partitions, and how their values are written."""

    spec_id: int
    spec_fields: tuple[Mapping[str, Any], ...]
    decode: tuple[tuple[str, AvroSchema], ...]


def shape_of(header: Mapping[str, str], schema: AvroSchema) -> Shape:
    """What to know of a manifest before its entries. Raises `ValueError`, `KeyError`, `TypeError`.

    Args:
        schema: with which it was written.
    """
    fields = _spec_fields(header.get("partition-spec", "[]"))
    decode = tuple(_decoder(schema, field["field-id"]) for field in fields)
    return Shape(int(header.get("partition-spec-id", "0")), fields, decode)


def malformed(what: str, error: Exception) -> ValidationFailed:
    """A file that lacks a field."""
    message = f"{what} lacks what the specification requires ({type(error).__name__}: {error}); write it again"
    return ValidationFailed(message, rule="manifest.readable")


def list_name(field_id: int, name: str) -> str:
    """What this package calls a field of a manifest list."""
    return _LIST_NAMES.get(field_id, name)


def entry_name(field_id: int, name: str) -> str:
    """What this package calls a field of a manifest."""
    # Names of partition fields are free, and may be any other field's name after sanitising.
    return f"partition_{field_id}" if field_id >= FIRST_PARTITION_FIELD_ID else _ENTRY_NAMES.get(field_id, name)


def manifest_file(row: Mapping[str, Any]) -> ManifestFile:
    """A row of a manifest list, by `list_name`'s names. Raises `KeyError` for a field that it must have."""
    summaries = row.get("partitions")
    return ManifestFile(
        path=row["manifest_path"],
        length_bytes=row["manifest_length"],
        spec_id=row["partition_spec_id"],
        content=row.get("content") or 0,
        sequence_number=row.get("sequence_number") or 0,
        min_sequence_number=row.get("min_sequence_number") or 0,
        added_snapshot_id=row["added_snapshot_id"],
        added_files=row.get("added_files_count"),
        existing_files=row.get("existing_files_count"),
        deleted_files=row.get("deleted_files_count"),
        added_rows=row.get("added_rows_count"),
        existing_rows=row.get("existing_rows_count"),
        deleted_rows=row.get("deleted_rows_count"),
        partitions=None if summaries is None else tuple(_summary(summary) for summary in summaries),
        key_metadata=row.get("key_metadata"),
        first_row_id=row.get("first_row_id"),
    )


def _summary(summary: Mapping[str, Any]) -> FieldSummary:
    return FieldSummary(
        contains_null=summary["contains_null"],
        contains_nan=summary.get("contains_nan"),
        lower=summary.get("lower_bound"),
        upper=summary.get("upper_bound"),
    )


def _spec_fields(header: str) -> tuple[Mapping[str, Any], ...]:
    """The header's partition fields, each with its field id (version 1 may leave it out)."""
    parsed = orjson.loads(header)
    fields: list[dict[str, Any]] = parsed["fields"] if isinstance(parsed, dict) else parsed
    return tuple({"field-id": FIRST_PARTITION_FIELD_ID + at, **field} for at, field in enumerate(fields))


def _decoder(schema: AvroSchema, field_id: int) -> tuple[str, AvroSchema]:
    """The name that a partition field was read by, and its Avro type as written."""
    found = avro_files.field_schema(schema, 2, 102, field_id)
    if found is None:  # what has no id is no value of that field to any reader, whatever it is called
        raise ValueError(f"there is no partition field {field_id}")
    return f"partition_{field_id}", found


def entry_of(record: Mapping[str, Any], shape: Shape) -> Entry:
    """An entry as written, by `entry_name`'s names. Raises as `shape_of`."""
    file = dict(record["data_file"])
    partition = file.pop("partition", {})
    if record["status"] not in (EXISTING, ADDED, DELETED):
        raise ValueError(f"an entry has status {record['status']}")
    return Entry(
        status=record["status"],
        snapshot_id=record.get("snapshot_id"),
        sequence_number=record.get("sequence_number"),
        file_sequence_number=record.get("file_sequence_number"),
        file=DataFile(
            content=file.get("content") or DATA,
            path=file["file_path"],
            file_format=file["file_format"],
            partition=tuple(_partition_value(partition.get(name), schema) for name, schema in shape.decode),
            record_count=file["record_count"],
            size_bytes=file["file_size_in_bytes"],
            first_row_id=file.get("first_row_id"),
            referenced_data_file=file.get("referenced_data_file"),
            record=file,
        ),
    )


def _partition_value(raw: Any, schema: AvroSchema) -> Any:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if raw is None or logical not in ("decimal", "uuid"):
        return raw
    if logical == "decimal":
        return avro_files.decimal_of(raw, schema)
    return raw if isinstance(raw, bytes) else bytes.fromhex(raw.replace("-", ""))

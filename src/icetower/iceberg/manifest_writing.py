"""Writing of manifest lists and manifests, in the table's format version.

Header keys and schemas are those of the specification ("Manifests", "Manifest Lists"), so that every reader takes them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson

from icetower.errors import ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.avro_schemas import decimal_width_bytes, manifest_schema, parse_decimal, partition_schema
from icetower.iceberg.listing import Listing, assign_row_ids, write_listing
from icetower.iceberg.partitions import resolve_fields
from icetower.iceberg.records import ADDED, DELETED, EXISTING, Entry, FieldSummary, ManifestFile

# Version 1 requires the field and nobody reads it (specification: "Deprecated. Always write a default in v1").
_BLOCK_SIZE_BYTES = 64 * 1024 * 1024


def write_manifest_list(
    manifests: Iterable[ManifestFile],
    *,
    format_version: int,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
    first_row_id: int | None,
) -> bytes:
    """A manifest list in the format of the table, whatever format its rows were read from.

    Args:
        first_row_id: the snapshot's first row id; version 3 only. Assign the rows' ids before: `assign_first_row_ids`.

    Raises:
        ValidationFailed: a row that the format cannot hold: delete manifests in version 1, unknown counts in
            version 2, data manifests without row ids in version 3.
    """
    return write_listing(
        Listing.of(manifests),
        format_version=format_version,
        snapshot_id=snapshot_id,
        parent_id=parent_id,
        sequence_number=sequence_number,
        first_row_id=first_row_id,
    )


def assign_first_row_ids(manifests: Iterable[ManifestFile], next_row_id: int) -> tuple[tuple[ManifestFile, ...], int]:
    """Give every data manifest that lacks one a first row id, in order; the rows, and the table's next row id.

    Existing rows are counted too: their files may come from before version 3 and have no ids of their own
    (specification: "First Row ID Assignment"; S2).

    Raises:
        ValidationFailed: a manifest without ids whose row counts are unknown.
    """
    listing, next_row_id = assign_row_ids(Listing.of(manifests), next_row_id)
    return listing.rows, next_row_id


def write_manifest(
    entries: Iterable[Entry],
    *,
    spec_fields: Sequence[Mapping[str, Any]],
    spec_id: int,
    schema: Mapping[str, Any],
    format_version: int,
    content: int,
    snapshot_id: int,
) -> bytes:
    """A manifest of one spec and one content (0 data, 1 deletes).

    ADDED and DELETED entries get `snapshot_id`, EXISTING ones keep theirs. ADDED entries inherit:
    neither file sequence number nor first row id are written, and a data sequence number only where the entry carries
    one (compaction keeps the old files' number). The others keep their own, which they must have.

    Args:
        spec_fields: partition fields as in the table's metadata (JSON).
        schema: the table's schema (JSON), with its ``schema-id``; it must have every source column of the spec.

    Raises:
        ValidationFailed: an entry that the format cannot hold, named by its file.
    """
    fields = resolve_fields(spec_fields, [schema])
    kinds = [field.result_type for field in fields]
    shape = partition_schema([(field.field_id, field.name, field.result_type) for field in fields])
    names = [column["name"] for column in shape["fields"]]
    rows = [_entry_row(entry, names, kinds, format_version, content, snapshot_id) for entry in entries]
    header = {
        "schema": orjson.dumps(schema).decode(),
        "schema-id": str(schema.get("schema-id", 0)),
        "partition-spec": orjson.dumps([dict(field) for field in spec_fields]).decode(),
        "partition-spec-id": str(spec_id),
        "format-version": str(format_version),
    }
    if format_version >= 2:
        header["content"] = "deletes" if content else "data"
    return avro_files.write(manifest_schema(format_version, shape), rows, header)


def _entry_row(
    entry: Entry, names: Sequence[str], kinds: Sequence[str], format_version: int, content: int, snapshot_id: int
) -> dict[str, Any]:
    file, inherits = entry.file, entry.status == ADDED
    owner = entry.snapshot_id if entry.status == EXISTING else snapshot_id
    lacking = (
        (owner is None and "an EXISTING entry needs the snapshot that added its file")
        or (min(file.content, 1) != content and "data and delete files live in separate manifests")
        or (format_version >= 2 and not inherits and entry.sequence_number is None and "it needs its sequence number")
        or (len(file.partition) != len(kinds) and f"its partition has {len(file.partition)} values, not {len(kinds)}")
    )
    if lacking:
        raise ValidationFailed(f"the entry of {file.path} cannot be written: {lacking}", rule="manifest.writable")
    columns = zip(names, file.partition, kinds, strict=True)
    return {
        "status": entry.status,
        "snapshot_id": owner,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": None if inherits else entry.file_sequence_number,
        "data_file": {
            "block_size_in_bytes": _BLOCK_SIZE_BYTES,
            **file.record,
            "content": file.content,
            "first_row_id": None if inherits else file.first_row_id,
            "partition": {name: _avro_value(value, kind) for name, value, kind in columns},
        },
    }


def _avro_value(value: Any, kind: str) -> Any:
    if not isinstance(value, Decimal):
        return value
    precision, scale = parse_decimal(kind) or (38, 0)
    return _unscaled(value, scale).to_bytes(decimal_width_bytes(precision), "big", signed=True)


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    return number * 10 ** (scale + int(exponent))


def manifest_row(
    path: str,
    data: bytes,
    entries: Sequence[Entry],
    *,
    spec_fields: Sequence[Mapping[str, Any]],
    spec_id: int,
    schema: Mapping[str, Any],
    content: int,
    snapshot_id: int,
    sequence_number: int,
) -> ManifestFile:
    """The manifest list's row for a manifest that `write_manifest` made of the same arguments.

    `sequence_number` is the snapshot's, and what ADDED entries inherit. The first row id is left to
    `assign_first_row_ids`.
    """
    kinds = [field.result_type for field in resolve_fields(spec_fields, [schema])]
    return row_of(
        path,
        len(data),
        entries,
        kinds=kinds,
        spec_id=spec_id,
        content=content,
        snapshot_id=snapshot_id,
        sequence_number=sequence_number,
    )


def row_of(
    path: str,
    length_bytes: int,
    entries: Sequence[Entry],
    *,
    kinds: Sequence[str],
    spec_id: int,
    content: int,
    snapshot_id: int,
    sequence_number: int,
) -> ManifestFile:
    """What a manifest list says of a manifest with these entries.

    Args:
        kinds: result types of the partition fields.
        sequence_number: the snapshot's. Entries that inherit it are no older than any other.
    """
    live = (entry.sequence_number for entry in entries if entry.status != DELETED)

    def files(status: int) -> int:
        return sum(entry.status == status for entry in entries)

    def rows(status: int) -> int:
        return sum(entry.file.record_count for entry in entries if entry.status == status)

    return ManifestFile(
        path=path,
        length_bytes=length_bytes,
        spec_id=spec_id,
        content=content,
        sequence_number=sequence_number,
        min_sequence_number=min((number for number in live if number is not None), default=sequence_number),
        added_snapshot_id=snapshot_id,
        added_files=files(ADDED),
        existing_files=files(EXISTING),
        deleted_files=files(DELETED),
        added_rows=rows(ADDED),
        existing_rows=rows(EXISTING),
        deleted_rows=rows(DELETED),
        partitions=tuple(
            summarise([entry.file.partition[at] for entry in entries], kind) for at, kind in enumerate(kinds)
        ),
        key_metadata=None,
        first_row_id=None,
    )


def summarise(values: Iterable[Any], kind: str) -> FieldSummary:
    """Bounds over all values of one partition field; NaN and null are flags, not bounds."""
    values = list(values)
    known = [value for value in values if value is not None]
    numbers = [value for value in known if not (isinstance(value, float) and math.isnan(value))]
    # -0.0 sorts before 0.0 in every reader of bounds, but not in Python.
    in_order = sorted(numbers, key=lambda v: (v, math.copysign(1, v)) if isinstance(v, float) else v)
    return FieldSummary(
        contains_null=len(known) < len(values),
        contains_nan=len(numbers) < len(known),
        lower=single_value(in_order[0], kind) if in_order else None,
        upper=single_value(in_order[-1], kind) if in_order else None,
    )


def single_value(value: Any, kind: str) -> bytes:
    """Iceberg's binary form of one value (specification, Appendix D: "Binary single-value serialization")."""
    match kind:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int" | "date":
            return struct.pack("<i", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return value.encode()
        case _ if isinstance(value, bytes):
            return value
        case _ if decimal := parse_decimal(kind):
            number = _unscaled(value, decimal[1])
            # As few bytes as two's complement needs; -128 fits one byte, 128 doesn't.
            return number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)
        case _:
            return struct.pack("<q", value)

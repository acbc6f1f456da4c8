"""Avro schemas of manifest lists and manifests, for writing, with the field ids of the specification.

Sources: specification, "Manifests", "Manifest Lists" and "Appendix A: Format-specific Requirements, Avro".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from icetower.errors import ValidationFailed

AvroSchema = Any


def _field(field_id: int, name: str, kind: AvroSchema, *, optional: bool = False) -> dict[str, Any]:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}
    return {"name": name, "type": kind, "field-id": field_id}


def _map(field_id: int, name: str, key_id: int, value: str) -> dict[str, Any]:
    """Avro's maps have string keys: a map from column ids is an array of pairs."""
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{key_id + 1}",
        "fields": [_field(key_id, "key", "int"), _field(key_id + 1, "value", value)],
    }
    return _field(field_id, name, {"type": "array", "items": pair, "logicalType": "map"}, optional=True)


def _list(field_id: int, name: str, element_id: int, element: AvroSchema) -> dict[str, Any]:
    return _field(field_id, name, {"type": "array", "items": element, "element-id": element_id}, optional=True)


_FIELD_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field(509, "contains_null", "boolean"),
        _field(518, "contains_nan", "boolean", optional=True),
        _field(510, "lower_bound", "bytes", optional=True),
        _field(511, "upper_bound", "bytes", optional=True),
    ],
}
_PARTITIONS = _list(507, "partitions", 508, _FIELD_SUMMARY)
_KEY_METADATA = _field(519, "key_metadata", "bytes", optional=True)
_COUNTS = ((504, "added_files_count"), (505, "existing_files_count"), (506, "deleted_files_count"))
_ROWS = ((512, "added_rows_count"), (513, "existing_rows_count"), (514, "deleted_rows_count"))


def manifest_list_schema(format_version: int) -> AvroSchema:
    """Schema of a manifest list's rows. Version 1 has neither sequence numbers nor content; version 3 adds row ids."""
    fields = [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
    ]
    if format_version == 1:
        fields.append(_field(503, "added_snapshot_id", "long"))
        fields += [_field(field_id, name, "int", optional=True) for field_id, name in _COUNTS]
        fields.append(_PARTITIONS)
        fields += [_field(field_id, name, "long", optional=True) for field_id, name in _ROWS]
        fields.append(_KEY_METADATA)
    else:
        fields.append(_field(517, "content", "int"))
        fields += [_field(515, "sequence_number", "long"), _field(516, "min_sequence_number", "long")]
        fields.append(_field(503, "added_snapshot_id", "long"))
        fields += [_field(field_id, name, "int") for field_id, name in _COUNTS]
        fields += [_field(field_id, name, "long") for field_id, name in _ROWS]
        fields += [_PARTITIONS, _KEY_METADATA]
    if format_version >= 3:
        fields.append(_field(520, "first_row_id", "long", optional=True))
    return {"type": "record", "name": "manifest_file", "fields": fields}


def manifest_schema(format_version: int, partition: AvroSchema) -> AvroSchema:
    """Schema of a manifest's entries, around the record schema of its partition tuple."""
    fields = [_field(0, "status", "int"), _field(1, "snapshot_id", "long", optional=format_version > 1)]
    if format_version > 1:
        fields += [_field(3, "sequence_number", "long", optional=True)]
        fields += [_field(4, "file_sequence_number", "long", optional=True)]
    data_file = {"type": "record", "name": "r2", "fields": _data_file_fields(format_version, partition)}
    return {"type": "record", "name": "manifest_entry", "fields": [*fields, _field(2, "data_file", data_file)]}


def _data_file_fields(format_version: int, partition: AvroSchema) -> list[dict[str, Any]]:
    fields = [_field(134, "content", "int")] if format_version > 1 else []
    fields += [
        _field(100, "file_path", "string"),
        _field(101, "file_format", "string"),
        _field(102, "partition", partition),
        _field(103, "record_count", "long"),
        _field(104, "file_size_in_bytes", "long"),
    ]
    if format_version == 1:
        fields.append(_field(105, "block_size_in_bytes", "long"))
    fields += [
        _map(108, "column_sizes", 117, "long"),
        _map(109, "value_counts", 119, "long"),
        _map(110, "null_value_counts", 121, "long"),
        _map(137, "nan_value_counts", 138, "long"),
        _map(125, "lower_bounds", 126, "bytes"),
        _map(128, "upper_bounds", 129, "bytes"),
        _field(131, "key_metadata", "bytes", optional=True),
        _list(132, "split_offsets", 133, "long"),
    ]
    if format_version > 1:
        fields.append(_list(135, "equality_ids", 136, "int"))
    fields.append(_field(140, "sort_order_id", "int", optional=True))
    if format_version >= 3:
        fields.append(_field(142, "first_row_id", "long", optional=True))
    if format_version > 1:
        fields.append(_field(143, "referenced_data_file", "string", optional=True))
    if format_version >= 3:
        fields.append(_field(144, "content_offset", "long", optional=True))
        fields.append(_field(145, "content_size_in_bytes", "long", optional=True))
    return fields


def partition_schema(fields: Sequence[tuple[int, str, str]]) -> AvroSchema:
    """Record schema of a partition tuple.

    Args:
        fields: field id, name, and Iceberg type of the transform's result, in the spec's order.

    Raises:
        ValidationFailed: a type that Iceberg does not partition by.
    """
    named: set[str] = set()
    columns = [_partition_field(field_id, name, _primitive(kind, named)) for field_id, name, kind in fields]
    return {"type": "record", "name": "r102", "fields": columns}


def _partition_field(field_id: int, name: str, kind: AvroSchema) -> dict[str, Any]:
    field = _field(field_id, sanitised(name), kind, optional=True)
    if field["name"] != name:
        field["iceberg-field-name"] = name
    return field


def sanitised(name: str) -> str:
    """The name that Iceberg writes where Avro does not allow `name` (specification, Appendix A, Avro: names)."""

    def escape(character: str, *, first: bool) -> str:
        if re.fullmatch(r"[A-Za-z_]" if first else r"[A-Za-z0-9_]", character):
            return character
        return f"_{character}" if character in "0123456789" else f"_x{ord(character):X}"

    return "".join(escape(character, first=not position) for position, character in enumerate(name))


_SIMPLE: dict[str, AvroSchema] = {
    **{kind: kind for kind in ("boolean", "int", "long", "float", "double", "string")},
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
}


def _primitive(kind: str, named: set[str]) -> AvroSchema:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind == "uuid":
        return _fixed("uuid_fixed", 16, named, {"logicalType": "uuid"})
    if decimal := parse_decimal(kind):
        precision, scale = decimal
        extra = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return _fixed(f"decimal_{precision}_{scale}", decimal_width_bytes(precision), named, extra)
    if fixed := re.fullmatch(r"fixed\[(\d{1,10})\]", kind, re.ASCII):
        return _fixed(f"fixed_{fixed[1]}", int(fixed[1]), named, {})
    raise ValidationFailed(f"a partition of type {kind!r} cannot be written: Iceberg doesn't partition by that type")


def holds_values_of(written: AvroSchema, kind: str) -> bool:
    """Whether readers take partition values that were written so for the values of an Iceberg type that they stand for.

    Readers go by what a file says of itself: milliseconds are not the microseconds of a ``timestamp``, and one scale of
    a decimal is not another. Types that were promoted since may be written as they were (specification, "Schema
    Evolution"), and plain Avro types without a logical one, as writers of version 1 have left them.

    Args:
        written: the field's Avro type, without the null that may be beside it.
    """
    found = written if isinstance(written, dict) else {"type": written}
    base, logical = found.get("type"), found.get("logicalType")
    if decimal := parse_decimal(kind):
        return base in ("fixed", "bytes") and logical == "decimal" and found.get("scale", 0) == decimal[1]
    if kind == "uuid":
        plain = base == "fixed" and found.get("size") == 16 and logical in (None, "uuid")
        return plain or (base == "string" and logical == "uuid")
    if kind == "binary" or kind.startswith("fixed"):
        return base in ("bytes", "fixed") and logical is None
    bases, logicals = _WRITTEN_AS.get(kind, ((kind,), ()))
    return base in bases and (logical is None or logical in logicals)


_WRITTEN_AS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "long": (("long", "int"), ()),
    "double": (("double", "float"), ()),
    "date": (("int",), ("date",)),
    "time": (("long",), ("time-micros",)),
    **dict.fromkeys(("timestamp", "timestamptz"), (("long",), ("timestamp-micros", "local-timestamp-micros"))),
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), (("long",), ("timestamp-nanos", "local-timestamp-nanos"))),
}
"""Avro types, and the logical types that they may have. Those that are not here are written as themselves."""


def _fixed(name: str, size: int, named: set[str], extra: dict[str, Any]) -> AvroSchema:
    # Avro would have a repeated type refer to the first by name, but PyIceberg cannot read references.
    unique = name if name not in named else f"{name}_{len(named)}"
    named.add(unique)
    return {"type": "fixed", "name": unique, "size": size, **extra}


def parse_decimal(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a type such as ``decimal(12, 2)``, or None for any other type."""
    match = re.fullmatch(r"decimal\(\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)", kind, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def decimal_width_bytes(precision: int) -> int:
    """The fewest bytes that hold every unscaled value of that precision (specification, Appendix A: decimal)."""
    return ((10**precision - 1).bit_length() + 8) // 8


def names_by_id(schemas: Iterable[AvroSchema]) -> dict[int, str]:
    """The name of every field of record schemas, nested ones included, by field id."""
    names: dict[int, str] = {}
    for schema in schemas:
        kind = schema[-1] if isinstance(schema, list) else schema
        if not isinstance(kind, dict):
            continue
        names |= names_by_id([kind["items"]] if "items" in kind else [])
        for field in kind.get("fields", ()):
            names[field["field-id"]] = field["name"]
            names |= names_by_id([field["type"]])
    return names

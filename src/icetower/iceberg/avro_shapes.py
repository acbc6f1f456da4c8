"""What the schema of an Avro file may be: records that nest no deeper than it says, and no field from no bytes.

fastavro reads, in C, whatever a schema says. What is refused here would end the process, or fill its memory and time
from a few bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

AvroSchema = Any
PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_WORDS = PRIMITIVE | {"record", "error", "array", "map", "fixed", "enum"}
"""What is no reference to a type by its name."""


def check_shape(schema: AvroSchema) -> None:
    """Raises `ValueError`, or `KeyError` and the like for what is no schema."""
    _check_depth(schema, ())
    named = dict(named_types(schema))
    _check_widths(schema, named)
    if not _takes_bytes(schema, named, {}):
        raise ValueError("its records take no bytes")


def named_types(schema: AvroSchema) -> Iterator[tuple[str, AvroSchema]]:
    """The types that a schema names, with their names."""
    if isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from named_types(part)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("fixed", "record", "enum"):
            yield schema["name"], schema
        for key in ("type", "items", "values", "fields"):
            yield from named_types(cast("AvroSchema", schema.get(key)))


def _check_depth(schema: AvroSchema, within: tuple[str, ...]) -> None:
    """A type within itself nests as deep as the bytes say, and fastavro, in C, reads it until the stack has ended, and
    the process with it. No file of Iceberg's has one.

    Args:
        within: the names of the types around this one, without their namespaces.
    """
    if isinstance(schema, str):
        if schema not in _WORDS and schema.rpartition(".")[2] in within:
            raise ValueError(f"its type {schema[:100]!r} is a part of itself")
    elif isinstance(schema, list):
        for part in cast("list[Any]", schema):
            _check_depth(part, within)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "error"):
            within = (*within, str(schema.get("name")).rpartition(".")[2])
        for key in ("type", "items", "values"):
            _check_depth(cast("AvroSchema", schema.get(key)), within)
        for field in cast("list[Any]", schema.get("fields") or []):
            _check_depth(field["type"], within)


def _check_widths(schema: AvroSchema, named: Mapping[str, AvroSchema]) -> None:
    """What takes no bytes could be claimed by the thousand million: as items of a list, or as fields of records that
    stand twice in the next. Iceberg writes one such field, the partition of a file of an unpartitioned table."""
    if isinstance(schema, list):
        for part in cast("list[Any]", schema):
            _check_widths(part, named)
    elif isinstance(schema, dict):
        for key in ("items", "values"):
            if key in schema and not _takes_bytes(schema[key], named, {}):
                raise ValueError("it has a list of values that take no bytes")
        for key in ("type", "items", "values"):
            _check_widths(cast("AvroSchema", schema.get(key)), named)
        fields = cast("list[Any]", schema.get("fields") or [])
        for field in fields:
            _check_widths(field["type"], named)
        without = [field["type"] for field in fields if not _takes_bytes(field["type"], named, {})]
        if len(without) > 1 or not all(_is_empty(each, named) for each in without):
            raise ValueError("it has fields that take no bytes")


def _is_empty(schema: AvroSchema, named: Mapping[str, AvroSchema]) -> bool:
    """Whether it is a record without fields."""
    schema = named.get(schema) if isinstance(schema, str) else schema
    return isinstance(schema, dict) and schema.get("type") == "record" and not schema.get("fields")


def _takes_bytes(schema: AvroSchema, named: Mapping[str, AvroSchema], known: dict[str, bool]) -> bool:
    """`known`: the answer for types by their names. One that is being asked about takes none within itself."""
    if isinstance(schema, str) and schema in named:
        if schema not in known:
            known[schema] = False
            known[schema] = _takes_bytes(named[schema], named, known)
        return known[schema]
    if not isinstance(schema, dict):
        return schema != "null"
    if schema.get("type") == "record":
        return any(_takes_bytes(field["type"], named, known) for field in schema["fields"])
    if schema.get("type") == "fixed":
        return schema["size"] > 0
    return _takes_bytes(schema["type"], named, known)

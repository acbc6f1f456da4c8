"""The columns of a table as Arrow has them, with the ids by which Iceberg knows them, and their defaults. Pure.

Sources: Iceberg's specification, "Parquet" (types and field ids), "Default values", and Appendix D (JSON form of
single values).
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.iceberg.schemas import Type
from icetower.recent import IdentityKey, bounded_cache, weight_of_schemas
from icetower.rows.arrow import pyarrow
from icetower.rows.nested_defaults import NestedDefaults
from icetower.rows.values import converted

Json = Mapping[str, Any]
FIELD_ID = b"PARQUET:field_id"
COLUMNS_MAX = 2_000
"""Of a table that takes rows at the door, nested ones not counted."""

SHARED_MAX_BYTES = 16 * 1024 * 1024
"""Of tables' schemas that are kept, for the requests to come."""

_ZERO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIXED = re.compile(r"fixed\[(\d{1,6})\]", re.ASCII)


class Unwritable(Exception):
    """A type that is not written from rows. `args[0]`: the type."""


@dataclass(frozen=True)
class RowSchema:
    """What the rows of a table look like.

    Attributes:
        fields: Arrow's, in the table's order, with their ids.
        defaults: by name, what a row has that leaves the column out, as Python values for Arrow.
        nested: by name, the defaults of fields within the column's values, where there are any.
        unwritable: columns that rows must leave out, with their types: variants, geometries.
    """

    fields: tuple[Any, ...]
    defaults: Mapping[str, Any]
    nested: Mapping[str, NestedDefaults]
    unwritable: Mapping[str, str]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def filled(self, values: Mapping[str, Any]) -> RowSchema:
        """With other defaults for the columns that are here. A moment fits a column of moments, or of days."""
        here = [name for name in values if name in self.names]
        if not here:
            return self
        by_name = {field.name: field.type for field in self.fields}
        return replace(
            self, defaults={**self.defaults, **{name: _fitting(values[name], by_name[name]) for name in here}}
        )

    @cached_property
    def arrow(self) -> Any:
        """As an Arrow schema."""
        return pyarrow().schema(self.fields)


def _fitting(value: Any, kind: Any) -> Any:
    """A moment in UTC as a column of moments, or of days, has it: in the form of what is converted from JSON."""
    types = pyarrow().types
    if not isinstance(value, dt.datetime):
        return value
    if types.is_timestamp(kind):
        return (value - _ZERO) // dt.timedelta(microseconds=1) * (1_000 if kind.unit == "ns" else 1)
    return value.date() if types.is_date(kind) else value


def row_schema(metadata: Json) -> RowSchema:
    """Of a table's current schema.

    Raises:
        ValidationFailed: ``rows.schema``: the table requires a column that cannot be written from rows, or has too
            many columns.
    """
    schemas: Sequence[Json] = metadata["schemas"]
    return _row_schema(IdentityKey(next(s for s in schemas if s["schema-id"] == metadata["current-schema-id"])))


@bounded_cache(SHARED_MAX_BYTES, weight_of_schemas)
def _row_schema(schema: IdentityKey) -> RowSchema:
    columns: Sequence[Json] = schema.parts[0]["fields"]
    if not 0 < len(columns) <= COLUMNS_MAX:
        raise ValidationFailed(
            f"the table has {len(columns)} columns; rows are taken for tables of 1 to {COLUMNS_MAX}. Append files",
            rule="rows.schema",
        )
    fields: list[Any] = []
    defaults: dict[str, Any] = {}
    nested: dict[str, NestedDefaults] = {}
    unwritable: dict[str, str] = {}
    for column in columns:
        try:
            field = _field(column)
        except Unwritable as error:
            if column.get("required"):
                raise ValidationFailed(
                    f"the table requires its column {column['name']}, and a value of type {error.args[0]} cannot be "
                    "written from rows; append files",
                    rule="rows.schema",
                ) from None
            unwritable[column["name"]] = str(error.args[0])
            continue
        fields.append(field)
        if column.get("write-default") is not None:
            defaults[column["name"]] = default_value(column["write-default"], column["type"], field.type)
        within = NestedDefaults.of(column["type"], _default_within)
        if within is not None:
            nested[column["name"]] = within
    return RowSchema(tuple(fields), defaults, nested, unwritable)


def _default_within(value: Any, type_: Type) -> tuple[Any, Any]:
    """A default as rows of JSON have it, and as Arrow takes it."""
    found = default_value(value, type_, arrow_type(type_))
    if isinstance(found, bytes) and type_ != "uuid":
        return f"base64:{base64.b64encode(found).decode()}", found
    return found if type_ in ("float", "double") else value, found


def _field(column: Json, name: str | None = None) -> Any:
    pa = pyarrow()
    kind = arrow_type(column["type"])
    metadata = {FIELD_ID: str(column["id"]).encode()}
    return pa.field(name or column["name"], kind, nullable=not column.get("required"), metadata=metadata)


def arrow_type(type_: Type) -> Any:
    """Raises `Unwritable`."""
    pa = pyarrow()
    if isinstance(type_, str):
        return _primitive(type_, pa)
    match type_["type"]:
        case "struct":
            return pa.struct([_field(field) for field in type_["fields"]])
        case "list":
            element = {"id": type_["element-id"], "type": type_["element"], "required": type_["element-required"]}
            return pa.list_(_field(element, "element"))
        case "map":
            key = {"id": type_["key-id"], "type": type_["key"], "required": True}
            value = {"id": type_["value-id"], "type": type_["value"], "required": type_["value-required"]}
            return pa.map_(_field(key, "key"), _field(value, "value"))
        case other:
            raise Unwritable(other)


def _primitive(type_: str, pa: Any) -> Any:
    plain = {
        "boolean": pa.bool_,
        "int": pa.int32,
        "long": pa.int64,
        "float": pa.float32,
        "double": pa.float64,
        "date": pa.date32,
        "string": pa.string,
        "binary": pa.binary,
        "uuid": pa.uuid,
    }.get(type_)
    if plain is not None:
        return plain()
    if type_ == "time":
        return pa.time64("us")
    if type_.startswith("timestamp"):
        unit = "ns" if type_.endswith("_ns") else "us"
        return pa.timestamp(unit, "UTC" if type_.startswith("timestamptz") else None)
    decimal = parse_decimal(type_)
    if decimal:
        return pa.decimal128(*decimal)
    fixed = _FIXED.fullmatch(type_)
    if fixed:
        return pa.binary(int(fixed[1]))
    raise Unwritable(type_)


def default_value(value: Any, type_: Type, kind: Any) -> Any:
    """A default of the table's metadata as a Python value for Arrow: binary ones are written there in hexadecimal."""
    if type_ == "binary" or (isinstance(type_, str) and _FIXED.fullmatch(type_)):
        return bytes.fromhex(value)
    if isinstance(value, int) and type_ in ("float", "double"):
        return float(value)
    return converted(value, kind, "write-default")

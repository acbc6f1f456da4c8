"""Schemas as JSON: canonical form, names, fresh ids, what a format version allows.

Sources: specification, "Schemas and Data Types" and "Appendix C"; Iceberg's `Schema`, `TypeUtil`, `AssignFreshIds`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg.default_values import check_default
from icetower.iceberg.shapes import JSON, flag, integer, integers, objects, optional_integer, text

_TIMES = frozenset({"date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_PLAIN_TYPES = _TIMES | {"boolean", "int", "long", "float", "double", "string", "uuid", "binary", "variant", "unknown"}
_FIRST_VERSION = {"timestamp_ns": 3, "timestamptz_ns": 3, "variant": 3, "unknown": 3, "geometry": 3, "geography": 3}
_DEFAULTS_FIRST_VERSION = 3
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*\)", re.ASCII)
_FIXED = re.compile(r"fixed\[\s*([0-9]{1,10})\s*\]", re.ASCII)
"""Java reads these numbers as its `int`; a wider one, or digits of another script, would make the table unreadable."""

_INT_MAX = 2**31 - 1
_GEO = re.compile(r"(geometry|geography)(\(.*\))?")

Type = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A field anywhere in a schema. `parents` are the ids of the fields around it, outermost first."""

    id: int
    name: str
    short_name: str
    type: Type
    required: bool
    parents: tuple[int, ...]
    has_initial_default: bool


def kind(type_: Type) -> str:
    """The type's name without its parameters: ``decimal``, ``struct``, ``geometry``."""
    return re.split(r"[(\[]", type_, maxsplit=1)[0] if isinstance(type_, str) else str(type_["type"])


def is_primitive(type_: Type) -> bool:
    """A type that may be partitioned and sorted by; variant is not one."""
    return isinstance(type_, str) and type_ != "variant"


def canonical(schema: Mapping[str, Any], where: str = "schema") -> JSON:
    """A schema in the one form that Iceberg writes, so that equal schemas are equal JSON apart from `schema-id`.

    Raises:
        BadRequest: a bad shape, an unknown type, an id or a full name used twice, a field that can't be an identifier.
    """
    if schema.get("type") != "struct":
        raise BadRequest(f"Cannot parse {where}: type must be 'struct', not {schema.get('type')!r}", rule="shape")
    result: JSON = {"type": "struct", "schema-id": optional_integer(schema, "schema-id", where, bits=32) or 0}
    if schema.get("identifier-field-ids"):
        result["identifier-field-ids"] = sorted(set(integers(schema, "identifier-field-ids", where, bits=32)))
    result["fields"] = [_field(field, where) for field in objects(schema, "fields", where)]
    by_id = _checked_columns(result, where)
    _check_identifiers(result, by_id)
    return result


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two canonical schemas are the same, ids of the schemas apart (Iceberg: `sameSchema`)."""
    return one["fields"] == other["fields"] and one.get("identifier-field-ids") == other.get("identifier-field-ids")


def columns(schema: Mapping[str, Any]) -> Iterator[Column]:
    """Every field of a schema, nested ones after the one that holds them."""
    return _struct_columns(schema, "", "", ())


def columns_by_id(schema: Mapping[str, Any]) -> dict[int, Column]:
    """Every field by id."""
    return {column.id: column for column in columns(schema)}


def columns_by_name(schema: Mapping[str, Any]) -> dict[str, Column]:
    """Every field by full name (``a.element.b``), and by its short name (``a.b``) where that is free."""
    found = list(columns(schema))
    names = {column.short_name: column for column in found}
    names.update((column.name, column) for column in found)
    return names


class Columns:
    """A schema's columns, by id and by name; each map is made when it is wanted, once."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    @cached_property
    def by_id(self) -> Mapping[int, Column]:
        return columns_by_id(self.schema)

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        return columns_by_name(self.schema)


def highest_id(schema: Mapping[str, Any]) -> int:
    """The highest field id, 0 for a schema without fields."""
    return max((column.id for column in columns(schema)), default=0)


def with_fresh_ids(schema: Mapping[str, Any], schema_id: int) -> tuple[JSON, int]:
    """The canonical schema with its ids assigned anew from 1, and the highest id.

    The ids of a struct's own fields come before those within them (Iceberg: `AssignFreshIds`).
    """
    last = 0

    def next_id() -> int:
        nonlocal last
        last += 1
        return last

    renumbered: dict[int, int] = {}
    fields = _fresh_fields(schema["fields"], next_id, renumbered)
    fresh: JSON = {"type": "struct", "schema-id": schema_id}
    if schema.get("identifier-field-ids"):
        fresh["identifier-field-ids"] = sorted(renumbered[field_id] for field_id in schema["identifier-field-ids"])
    fresh["fields"] = fields
    return fresh, last


def check_version(schema: Mapping[str, Any], format_version: int) -> None:
    """Refuse what the format version doesn't have.

    Raises:
        BadRequest: a type or an initial default that came with a later version.
    """
    problems: list[str] = []
    for column in sorted(columns(schema), key=lambda column: column.id):
        first = _FIRST_VERSION.get(kind(column.type), 1)
        if format_version < first:
            problems.append(f"Invalid type for {column.name}: {column.type} is not supported until v{first}")
        elif column.has_initial_default and format_version < _DEFAULTS_FIRST_VERSION:
            problems.append(
                f"Invalid initial default for {column.name}: a non-null default is not supported until"
                f" v{_DEFAULTS_FIRST_VERSION}"
            )
    if problems:
        raise BadRequest(f"Invalid schema for v{format_version}:\n- " + "\n- ".join(problems), rule="schema.version")


def _field(field: Mapping[str, Any], where: str) -> JSON:
    name = text(field, "name", where)
    inside = f"{where} field {name!r}"
    result: JSON = {
        "id": integer(field, "id", inside, bits=32),
        "name": name,
        "required": flag(field, "required", inside),
        "type": _type(field.get("type"), inside),
    }
    if field.get("doc") is not None:
        result["doc"] = text(field, "doc", inside)
    for default in ("initial-default", "write-default"):
        if field.get(default) is not None:
            check_default(field[default], result["type"], f"{inside}: {default}")
            result[default] = field[default]
    return result


def _type(value: Any, where: str) -> Type:
    if isinstance(value, str):
        return _named_type(value, where)
    if isinstance(value, dict):
        match value.get("type"):
            case "struct":
                return {"type": "struct", "fields": [_field(field, where) for field in objects(value, "fields", where)]}
            case "list":
                return {
                    "type": "list",
                    "element-id": integer(value, "element-id", where, bits=32),
                    "element": _type(value.get("element"), where),
                    "element-required": flag(value, "element-required", where),
                }
            case "map":
                return {
                    "type": "map",
                    "key-id": integer(value, "key-id", where, bits=32),
                    "key": _type(value.get("key"), where),
                    "value-id": integer(value, "value-id", where, bits=32),
                    "value": _type(value.get("value"), where),
                    "value-required": flag(value, "value-required", where),
                }
            case _:
                pass
    raise BadRequest(f"Cannot parse {where}: type: not a type: {value!r}", rule="shape")


def _named_type(value: str, where: str) -> str:
    lowered = value.strip().lower()
    if lowered in _PLAIN_TYPES:
        return lowered
    if match := _DECIMAL.fullmatch(lowered):
        precision, scale = int(match[1]), int(match[2])
        if precision > 38:
            raise BadRequest(f"Cannot parse {where}: type: decimals with precision larger than 38 are not supported")
        _check_int(scale, value, where)
        return f"decimal({precision}, {scale})"
    if match := _FIXED.fullmatch(lowered):
        _check_int(int(match[1]), value, where)
        return f"fixed[{int(match[1])}]"
    if _GEO.fullmatch(lowered):
        # The parameters name coordinate systems, where case may matter.
        return lowered.split("(")[0] + value.strip()[len(lowered.split("(")[0]) :]
    raise BadRequest(f"Cannot parse {where}: type: not a primitive type: {value[:100]!r}", rule="shape")


def _check_int(number: int, type_: str, where: str) -> None:
    if number > _INT_MAX:
        raise BadRequest(
            f"Cannot parse {where}: type: the number in {type_[:100]!r} is larger than {_INT_MAX}, which Iceberg's "
            "Java cannot read",
            rule="shape",
        )


def _checked_columns(schema: Mapping[str, Any], where: str) -> dict[int, Column]:
    by_id: dict[int, Column] = {}
    names: set[str] = set()
    for column in columns(schema):
        if column.id in by_id:
            raise BadRequest(
                f"Invalid {where}: multiple fields for id {column.id}: {by_id[column.id].name} and {column.name}",
                rule="schema.ids",
            )
        if column.name in names:
            raise BadRequest(f"Invalid {where}: multiple fields for name {column.name}", rule="schema.names")
        by_id[column.id] = column
        names.add(column.name)
    return by_id


def _check_identifiers(schema: Mapping[str, Any], by_id: Mapping[int, Column]) -> None:
    for field_id in schema.get("identifier-field-ids", ()):
        column = by_id.get(field_id)
        problem = None
        if column is None:
            problem = f"Cannot add fieldId {field_id} as an identifier field: field does not exist"
        elif not is_primitive(column.type):
            problem = f"Cannot add field {column.name} as an identifier field: not a primitive type field"
        elif column.type in ("float", "double"):
            problem = f"Cannot add field {column.name} as an identifier field: must not be float or double field"
        elif not column.required or not all(by_id[parent].required for parent in column.parents):
            problem = f"Cannot add field {column.name} as an identifier field: it or a field around it is optional"
        elif any(kind(by_id[parent].type) != "struct" for parent in column.parents):
            problem = f"Cannot add field {column.name} as an identifier field: must not be nested in a list or map"
        if problem:
            raise ValidationFailed(problem, rule="schema.identifier")


def _struct_columns(struct: Mapping[str, Any], prefix: str, short: str, parents: tuple[int, ...]) -> Iterator[Column]:
    for field in struct["fields"]:
        name, short_name = prefix + field["name"], short + field["name"]
        column = Column(
            field["id"], name, short_name, field["type"], field["required"], parents, "initial-default" in field
        )
        yield column
        yield from _nested_columns(column)


def _nested_columns(column: Column) -> Iterator[Column]:
    if isinstance(column.type, str):
        return
    parents, type_ = (*column.parents, column.id), column.type
    match type_["type"]:
        case "struct":
            yield from _struct_columns(type_, column.name + ".", column.short_name + ".", parents)
        case "list":
            yield from _part(column, "element", parents, required=type_["element-required"])
        case _:
            yield from _part(column, "key", parents, required=True)
            yield from _part(column, "value", parents, required=type_["value-required"])


def _part(holder: Column, part: str, parents: tuple[int, ...], *, required: bool) -> Iterator[Column]:
    assert not isinstance(holder.type, str)
    type_: Type = holder.type[part]
    # Iceberg's short names skip the `element` and `value` of structs: `points.x` is `points.element.x`.
    short = holder.short_name if kind(type_) == "struct" and part != "key" else f"{holder.short_name}.{part}"
    own_short = f"{holder.short_name}.{part}"
    column = Column(holder.type[f"{part}-id"], f"{holder.name}.{part}", own_short, type_, required, parents, False)
    yield column
    yield from _nested_columns(
        Column(column.id, column.name, short, type_, required, parents, has_initial_default=False)
    )


def _fresh_fields(fields: list[JSON], next_id: Callable[[], int], renumbered: dict[int, int]) -> list[JSON]:
    ids = [next_id() for _ in fields]
    renumbered.update((field["id"], fresh) for field, fresh in zip(fields, ids, strict=True))
    return [
        {**field, "id": fresh, "type": _fresh_type(field["type"], next_id, renumbered)}
        for field, fresh in zip(fields, ids, strict=True)
    ]


def _fresh_type(type_: Type, next_id: Callable[[], int], renumbered: dict[int, int]) -> Type:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "struct":
        return {"type": "struct", "fields": _fresh_fields(type_["fields"], next_id, renumbered)}
    parts = ("element",) if type_["type"] == "list" else ("key", "value")
    fresh: JSON = dict(type_)
    for part in parts:
        fresh[f"{part}-id"] = renumbered[type_[f"{part}-id"]] = next_id()
    for part in parts:
        fresh[part] = _fresh_type(type_[part], next_id, renumbered)
    return fresh


def source_of(field: Mapping[str, Any]) -> int:
    """The id of the column that a partition or sort field comes from.

    Version 3 lets writers name it as `source-ids`. `specs` makes fields canonical that come with a commit; those of a
    registered metadata file stay as they are written there.
    """
    return field["source-id"] if "source-id" in field else field["source-ids"][0]


def schema_of(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The newest schema that has every source column of a spec; the current one may have dropped some."""
    sources = set(map(source_of, spec["fields"]))
    current = metadata["current-schema-id"]
    newest_first = sorted(metadata["schemas"], key=lambda s: (s["schema-id"] == current, s["schema-id"]), reverse=True)
    for schema in newest_first:
        if sources <= columns_by_id(schema).keys():
            return schema
    return newest_first[0]


def read_as(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """What says how a file without a schema of its own is read: the current schema, and the mapping of its names."""
    current = metadata["current-schema-id"]
    schema = next(schema for schema in metadata["schemas"] if schema["schema-id"] == current)
    return schema, (metadata.get("properties") or {}).get("schema.name-mapping.default")

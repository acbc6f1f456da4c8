"""Partition specs and sort orders as JSON: canonical form, ids, binding to a schema.

Sources: specification, "Partition Specs", "Partition Transforms", "Sorting"; Iceberg's `PartitionSpec`, `SortOrder`,
`TableMetadata`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg.schemas import (
    Column,
    Columns,
    Type,
    columns_by_id,
    columns_by_name,
    is_primitive,
    kind,
    source_of,
)
from icetower.iceberg.shapes import JSON, integer, integers, objects, optional_integer, text

FIRST_FIELD_ID = 1000
UNSORTED: JSON = {"order-id": 0, "fields": []}

_TEMPORAL = frozenset({"date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_SOURCES: Mapping[str, frozenset[str]] = {
    "bucket": _TEMPORAL | {"int", "long", "decimal", "time", "string", "uuid", "fixed", "binary"},
    "truncate": frozenset({"int", "long", "decimal", "string", "binary"}),
    "year": _TEMPORAL,
    "month": _TEMPORAL,
    "day": _TEMPORAL,
    "hour": _TEMPORAL - {"date"},
}
_WITH_WIDTH_NAMES = ("bucket", "truncate")
_WITH_WIDTH = tuple(f"{name}[" for name in _WITH_WIDTH_NAMES)
_SIMPLE = frozenset({"identity", "year", "month", "day", "hour", "void"})
_WIDTH = re.compile(r"(\w+)\[\s*(?:([0-9]+)\s*)?\]", re.ASCII)
_INT_MAX = 2**31 - 1


def canonical_spec(spec: Mapping[str, Any], where: str = "partition-spec") -> JSON:
    """A spec in canonical form. A field without id, or with id 0, has none yet: its `field-id` is left out.

    Raises:
        BadRequest: a bad shape, an empty name, a name used twice.
    """
    fields: list[JSON] = []
    names: set[str] = set()
    for field in objects(spec, "fields", where):
        name = text(field, "name", where)
        inside = f"{where} field {name!r}"
        if not name or name in names:
            fault = f"Cannot use partition name more than once: {name}" if name else "Cannot use empty partition name"
            raise BadRequest(f"{fault} ({where})", rule="spec.names")
        names.add(name)
        result: JSON = {"name": name, "transform": _transform(field, inside), "source-id": _source(field, inside)}
        field_id = optional_integer(field, "field-id", inside, bits=32)
        if field_id:
            result["field-id"] = field_id
        fields.append(result)
    return {"spec-id": optional_integer(spec, "spec-id", where, bits=32) or 0, "fields": fields}


def canonical_order(order: Mapping[str, Any], where: str = "sort-order") -> JSON:
    """A sort order in canonical form.

    Raises:
        BadRequest: a bad shape, an unknown direction or null order.
    """
    fields: list[JSON] = []
    for i, field in enumerate(objects(order, "fields", where)):
        inside = f"{where}.fields[{i}]"
        direction, nulls = text(field, "direction", inside).lower(), text(field, "null-order", inside).lower()
        if direction not in ("asc", "desc"):
            raise BadRequest(f"Cannot parse {inside}: direction: Invalid sort direction: {direction}", rule="shape")
        if nulls not in ("nulls-first", "nulls-last"):
            raise BadRequest(f"Cannot parse {inside}: null-order: Unexpected null order: {nulls}", rule="shape")
        fields.append(
            {
                "transform": _transform(field, inside),
                "source-id": _source(field, inside),
                "direction": direction,
                "null-order": nulls,
            }
        )
    return {"order-id": optional_integer(order, "order-id", where, bits=32) or 0, "fields": fields}


def fresh_spec(spec: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> JSON:
    """A canonical spec of a new table: sources by name from the schema as sent to the fresh one, ids from 1000."""
    before, after = columns_by_id(old), columns_by_name(new)
    fields: list[JSON] = []
    for i, field in enumerate(spec["fields"]):
        source = _known_source(field, before, "partition")
        fields.append({**field, "source-id": after[source.name].id, "field-id": FIRST_FIELD_ID + i})
    return {"spec-id": 0, "fields": fields}


def fresh_order(order: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> JSON:
    """A canonical sort order of a new table: sources by name from the schema as sent to the fresh one."""
    if not order["fields"]:
        return UNSORTED
    before, after = columns_by_id(old), columns_by_name(new)
    fields = [{**field, "source-id": after[_known_source(field, before, "sort").name].id} for field in order["fields"]]
    return {"order-id": 1, "fields": fields}


def without_ids(spec: Mapping[str, Any]) -> list[JSON]:
    """What two specs are compared by: names, transforms and sources in their order (Iceberg: `compatibleWith`)."""
    return [_without_id(field) for field in spec["fields"]]


def lent_ids(spec: Mapping[str, Any]) -> dict[tuple[Any, Any], int]:
    """The ids of a spec's fields by their source and transform."""
    return {
        (source_of(field), field["transform"]): field["field-id"] for field in spec["fields"] if "field-id" in field
    }


def with_ids(spec: Mapping[str, Any], lent: Mapping[tuple[Any, Any], int], last_assigned: int) -> JSON:
    """The spec with an id for each field that has none.

    An equal field (source and transform) of a known spec lends its id (`lent`); otherwise ids go on from
    `last_assigned`.
    """
    taken = {field["field-id"] for field in spec["fields"] if "field-id" in field}
    last = max([last_assigned, FIRST_FIELD_ID - 1, *taken])
    fields: list[JSON] = []
    for field in spec["fields"]:
        field_id = field.get("field-id")
        if field_id is None:
            field_id = lent.get((source_of(field), field["transform"]))
            if field_id is None or field_id in taken:
                last += 1
                field_id = last
            taken.add(field_id)
        fields.append({**_without_id(field), "field-id": field_id})
    return {"spec-id": spec["spec-id"], "fields": fields}


def check_spec(spec: Mapping[str, Any], columns: Columns) -> None:
    """Refuse a spec that the schema can't carry (Iceberg: `PartitionSpec.checkCompatibility`).

    Raises:
        ValidationFailed: a missing or nested source, or a transform that doesn't fit its type.
    """
    by_id = columns.by_id
    for field in spec["fields"]:
        if field["transform"] == "void":  # what v1 puts in the place of a dropped field
            continue
        shown = f"{field.get('field-id')}: {field['name']}: {field['transform']}({source_of(field)})"
        source = by_id.get(source_of(field))
        if source is None:
            raise ValidationFailed(f"Cannot find source column for partition field: {shown}", rule="spec.source")
        if not is_primitive(source.type):
            raise ValidationFailed(f"Cannot partition by non-primitive source field: {source.name}", rule="spec.source")
        _check_transform(field["transform"], source.type)
        for parent in source.parents:
            if kind(by_id[parent].type) != "struct":
                raise ValidationFailed(f"Invalid partition field parent: {by_id[parent].name}", rule="spec.source")


def check_spec_names(spec: Mapping[str, Any], columns: Columns) -> None:
    """Refuse a partition field that has the name of a column other than its source.

    Raises:
        BadRequest: there is one.
    """
    by_name, by_id = columns.by_name, columns.by_id
    for field in spec["fields"]:
        namesake = by_name.get(field["name"])
        if namesake is not None and source_of(field) in by_id and namesake.id != source_of(field):
            raise BadRequest(
                f"Cannot create identity partition sourced from different field in schema: {field['name']}",
                rule="spec.names",
            )


def check_order(order: Mapping[str, Any], columns: Columns) -> None:
    """Refuse a sort order that the schema can't carry (Iceberg: `SortOrder.checkCompatibility`).

    Raises:
        ValidationFailed: a missing or nested source, or a transform that doesn't fit its type.
    """
    by_id = columns.by_id
    for field in order["fields"]:
        source = by_id.get(source_of(field))
        if source is None:
            shown = f"{field['transform']}({source_of(field)}) {field['direction']} {field['null-order']}"
            raise ValidationFailed(f"Cannot find source column for sort field: {shown}", rule="order.source")
        if not is_primitive(source.type):
            raise ValidationFailed(f"Cannot sort by non-primitive source field: {source.name}", rule="order.source")
        _check_transform(field["transform"], source.type)


def has_sequential_ids(spec: Mapping[str, Any]) -> bool:
    """Whether the ids are 1000, 1001, …, as v1 wants them: its manifests don't carry them."""
    return all(field["field-id"] == FIRST_FIELD_ID + i for i, field in enumerate(spec["fields"]))


def highest_field_id(specs: Sequence[Mapping[str, Any]]) -> int:
    """The highest partition field id, 999 where there is none."""
    return max((field["field-id"] for spec in specs for field in spec["fields"]), default=FIRST_FIELD_ID - 1)


def _transform(field: Mapping[str, Any], where: str) -> str:
    """The transform as Iceberg writes it. Unknown ones are kept: readers treat them as opaque."""
    value = text(field, "transform", where)
    lowered = value.strip().lower()
    if lowered in _SIMPLE:
        return lowered
    match = _WIDTH.fullmatch(lowered)
    if lowered.startswith(_WITH_WIDTH) and (match is None or not match[2]):
        raise BadRequest(f"Cannot parse {where}: transform: not a width: {value[:100]!r}", rule="shape")
    if match and match[2]:
        # Java reads the width of transforms that it does not know, too, as its `int`.
        if len(match[2]) > 10 or not 1 <= int(match[2]) <= _INT_MAX:
            raise BadRequest(
                f"Cannot parse {where}: transform: width must be positive, and at most {_INT_MAX}: {value[:100]}",
                rule="shape",
            )
        if match[1] in _WITH_WIDTH_NAMES:
            return f"{match[1]}[{int(match[2])}]"
    return value


def _source(field: Mapping[str, Any], where: str) -> int:
    # Version 3 lets writers name the one source as `source-ids`.
    if "source-id" not in field and field.get("source-ids"):
        sources = integers(field, "source-ids", where, bits=32)
        if len(sources) == 1:
            return sources[0]
        raise BadRequest(f"Cannot parse {where}: source-ids: transforms of several columns are unknown", rule="shape")
    return integer(field, "source-id", where, bits=32)


def _check_transform(transform: str, source: Type) -> None:
    name = transform.split("[")[0]
    allowed = _SOURCES.get(name)
    fits = allowed is None or kind(source) in allowed
    if name == "identity":
        fits = kind(source) not in ("geometry", "geography", "variant")
    if not fits:
        raise ValidationFailed(f"Invalid source type {source} for transform: {transform}", rule="spec.transform")


def _known_source(field: Mapping[str, Any], columns: Mapping[int, Column], noun: str) -> Column:
    source = columns.get(source_of(field))
    if source is None:
        raise ValidationFailed(
            f"Cannot find source column for {noun} field: {field['transform']}({source_of(field)})",
            rule="spec.source" if noun == "partition" else "order.source",
        )
    return source


def _without_id(field: Mapping[str, Any]) -> JSON:
    return {key: value for key, value in field.items() if key != "field-id"}

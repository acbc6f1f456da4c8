"""Are a Parquet file's columns the table's? By field id, as readers find them, and with types that readers take.

Readers of Iceberg know columns by the field ids in the file's schema. A column without one reads as null, whatever it
is called (trap S6), and one with an id that the table has not given out yet would come up as another column's values
some day. Source: specification, "Column Projection", "Name Mapping", Appendix A: "Parquet"; "Schema Evolution".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.types as arrow

from icetower.errors import ValidationFailed
from icetower.table.avro_schemas import parse_decimal

FIELD_ID = b"PARQUET:field_id"
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of values in a file.

    Attributes:
        index: its position among the file's columns of values.
        id: its field id, by the file or by the table's name mapping.
        kind: Iceberg's type in the table; None for a column that the table has dropped.
        stored: its type in the file.
        repeated: whether it is in a list or map.
        must_be_filled: the table requires it, and the file's schema would allow nulls.
    """

    index: int
    id: int
    kind: str | None
    stored: pa.DataType
    repeated: bool
    must_be_filled: bool
    name: str


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What a table's columns ask of a file.

    Attributes:
        fields: of the current schema (JSON).
        known: ids of all columns that the table has or had.
        mapping: of `schema.name-mapping.default` (JSON), or None.
    """

    fields: Sequence[Json]
    known: frozenset[int]
    mapping: Sequence[Json] | None


def leaves_of(schema: pa.Schema, table: TableColumns, path: str) -> tuple[Leaf, ...]:
    """The file's columns of values, in its order.

    Args:
        path: of the file, for messages.

    Raises:
        ValidationFailed: ``append.field-ids``, ``append.columns`` (an id twice, or one that the table never gave out,
            or a required column that is missing) or ``append.types``.
    """
    fields = [schema.field(at) for at in range(len(schema.names))]
    names = table.mapping if table.mapping is not None and not any(_has_ids(field) for field in fields) else None
    walk = _Walk(table.known, path)
    walk.struct(fields, table.fields, names, "", nullable=False, repeated=False)
    return tuple(walk.leaves)


def _has_ids(field: pa.Field) -> bool:
    """Whether the field or one in it has an id: then readers don't look at names."""
    return FIELD_ID in (field.metadata or {}) or any(_has_ids(child) for child in _children(field.type))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if arrow.is_struct(kind):
        return [kind.field(at) for at in range(kind.num_fields)]
    if arrow.is_map(kind):
        return [kind.key_field, kind.item_field]
    if arrow.is_list(kind) or arrow.is_large_list(kind) or arrow.is_fixed_size_list(kind):
        return [kind.value_field]
    return []


class _Walk:
    def __init__(self, known: frozenset[int], path: str) -> None:
        self.leaves: list[Leaf] = []
        self._seen: set[int] = set()
        self._known = known
        self._path = path

    def struct(
        self,
        fields: Sequence[pa.Field],
        wanted: Sequence[Json],
        names: Sequence[Json] | None,
        where: str,
        *,
        nullable: bool,
        repeated: bool,
    ) -> None:
        by_id = {field["id"]: field for field in wanted}
        present: set[int] = set()
        for field in fields:
            name = where + field.name
            mapped = _named(names, field.name)
            field_id = self._id_of(field, names, mapped, name)
            if field_id not in by_id and field_id not in self._known:
                raise self._wrong(
                    "append.columns",
                    f"its column {name} has field id {field_id}, which the table has never given out; write it with "
                    "the table's schema",
                )
            present.add(field_id)
            target = by_id.get(field_id)
            required = bool(target and target["required"]) and not nullable and not repeated
            self.field(
                field,
                field_id,
                None if target is None else target["type"],
                mapped,
                name,
                required=required,
                nullable=nullable or field.nullable,
                repeated=repeated,
            )
        for field in wanted:
            if field["required"] and field["id"] not in present and "initial-default" not in field:
                raise self._wrong(
                    "append.columns", f"it lacks the column {where}{field['name']}, which the table requires"
                )

    def field(
        self,
        field: pa.Field,
        field_id: int,
        wanted: Any,
        mapped: Json | None,
        name: str,
        *,
        required: bool,
        nullable: bool,
        repeated: bool,
    ) -> None:
        if field_id in self._seen:
            raise self._wrong("append.columns", f"it has the field id {field_id} twice, again at {name}")
        self._seen.add(field_id)
        stored = _plain(field.type)
        children = _children(stored)
        if wanted == "variant":
            self._variant(children, field_id, name)
        elif not children:
            kind = cast("str | None", wanted)
            if wanted is not None and not (isinstance(wanted, str) and fits(stored, wanted)):
                shown = wanted if isinstance(wanted, str) else wanted["type"]
                raise self._wrong(
                    "append.types", f"its column {name} is stored as {stored}, and the table has it as {shown}"
                )
            fill = required and field.nullable
            self.leaves.append(Leaf(len(self.leaves), field_id, kind, stored, repeated, fill, name))
        else:
            self._nested(stored, children, wanted, mapped, name, nullable=nullable, repeated=repeated)

    def _nested(
        self,
        stored: pa.DataType,
        children: Sequence[pa.Field],
        wanted: Any,
        mapped: Json | None,
        name: str,
        *,
        nullable: bool,
        repeated: bool,
    ) -> None:
        """A struct, list or map; `wanted` None: dropped from the table, so that whatever is in it counts as known."""
        names = None if mapped is None else mapped.get("fields") or []
        form = "struct" if arrow.is_struct(stored) else "map" if arrow.is_map(stored) else "list"
        if wanted is not None and (isinstance(wanted, str) or wanted["type"] != form):
            shown = wanted if isinstance(wanted, str) else wanted["type"]
            raise self._wrong("append.types", f"its column {name} is a {form}, and the table has it as {shown}")
        if form == "struct":
            inside: Sequence[Json] = [] if wanted is None else wanted["fields"]
            self.struct(children, inside, names, f"{name}.", nullable=nullable, repeated=repeated)
            return
        for part, child in zip(("key", "value") if form == "map" else ("element",), children, strict=True):
            inner = f"{name}.{part}"
            part_names = _named(names, part)
            child_id = self._id_of(child, names, part_names, inner)
            if wanted is not None and child_id != wanted[f"{part}-id"]:
                raise self._wrong(
                    "append.columns",
                    f"its column {inner} has field id {child_id}, and the table's has {wanted[f'{part}-id']}",
                )
            child_type = None if wanted is None else wanted[part]
            self.field(child, child_id, child_type, part_names, inner, required=False, nullable=True, repeated=True)

    def _variant(self, children: Sequence[pa.Field], field_id: int, name: str) -> None:
        if [child.name for child in children][:2] != ["metadata", "value"]:
            raise self._wrong("append.types", f"its column {name} is no variant: it needs the parts metadata and value")
        for child in children:
            for stored in _leaf_types(child.type):
                self.leaves.append(Leaf(len(self.leaves), field_id, None, stored, True, False, name))

    def _id_of(self, field: pa.Field, names: Sequence[Json] | None, mapped: Json | None, name: str) -> int:
        text = (field.metadata or {}).get(FIELD_ID)
        if text is not None:
            return int(text)
        found = None if mapped is None else mapped.get("field-id")
        if found is not None:
            return int(found)
        hint = (
            "the table's name mapping does not name it: add it to schema.name-mapping.default"
            if names is not None
            else "write it with the table's field ids, or set schema.name-mapping.default for files without any"
        )
        raise self._wrong("append.field-ids", f"its column {name} has no field id, so engines would read nulls; {hint}")

    def _wrong(self, rule: str, problem: str) -> ValidationFailed:
        return ValidationFailed(f"{self._path} does not fit the table: {problem}", rule=rule, files=(self._path,))


def _named(names: Sequence[Json] | None, name: str) -> Json | None:
    """The entry of a name mapping for a name, if there is one."""
    return next((entry for entry in names or () if name in (entry.get("names") or ())), None)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of what is stored, without dictionaries and extensions, which are Arrow's own notes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if arrow.is_dictionary(kind) else kind


def _leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    children = _children(_plain(kind))
    for child in children:
        yield from _leaf_types(child.type)
    if not children:
        yield _plain(kind)


def fits(stored: pa.DataType, kind: str) -> bool:
    """Whether readers take a stored type for a column of the type `kind`: the same, or one that it was widened from."""
    test = _FITTING.get(kind)
    if test is not None:
        return test(stored)
    if decimal := parse_decimal(kind):
        return arrow.is_decimal(stored) and stored.precision <= decimal[0] and stored.scale == decimal[1]
    if kind.startswith("fixed["):
        return arrow.is_fixed_size_binary(stored) and stored.byte_width == int(kind[6:-1])
    return kind.startswith(("geometry", "geography")) and _is_binary(stored)


def _is_text(stored: pa.DataType) -> bool:
    return arrow.is_string(stored) or arrow.is_large_string(stored)


def _is_binary(stored: pa.DataType) -> bool:
    return arrow.is_binary(stored) or arrow.is_large_binary(stored)


def _is_time(stored: pa.DataType, *, zone: bool, units: tuple[str, ...]) -> bool:
    return arrow.is_timestamp(stored) and stored.unit in units and (stored.tz is not None) == zone


_SMALL_INTS = (pa.int8(), pa.int16(), pa.int32())
_FITTING = {
    "boolean": arrow.is_boolean,
    "int": lambda t: t in _SMALL_INTS,
    "long": lambda t: t in _SMALL_INTS or arrow.is_int64(t),
    "float": arrow.is_float32,
    "double": lambda t: arrow.is_float32(t) or arrow.is_float64(t),
    "date": arrow.is_date32,
    "time": lambda t: t == pa.time64("us"),
    "timestamp": lambda t: _is_time(t, zone=False, units=("us", "ms")),
    "timestamptz": lambda t: _is_time(t, zone=True, units=("us", "ms")),
    "timestamp_ns": lambda t: _is_time(t, zone=False, units=("ns",)),
    "timestamptz_ns": lambda t: _is_time(t, zone=True, units=("ns",)),
    "string": _is_text,
    "binary": _is_binary,
    "uuid": lambda t: arrow.is_fixed_size_binary(t) and t.byte_width == 16,
}

"""Are a Parquet file's columns the table's? By field id, as readers find them, and with types that readers take.

Readers of Iceberg know columns by the field ids in the file's schema. A column without one reads as null, whatever it
is called (trap S6), and one with an id that the table has not given out yet would come up as another column's values
some day.

Sources: Iceberg's specification, "Column Projection", "Name Mapping", Appendix A: "Parquet", "Schema Evolution";
Apache Parquet's format, `parquet.thrift` and "Logical Types".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.parquet.thrift import Struct, inner, whole

Json = Mapping[str, Any]

DEPTH_MAX = 64
_REQUIRED, _REPEATED = 0, 2
_PHYSICAL = ("boolean", "int32", "int64", "int96", "float", "double", "binary")
_FIXED = 7
_UNITS = {1: "ms", 2: "us", 3: "ns"}
# Converted types, which came before logical ones: the same things under numbers of their own.
_CONVERTED = {
    0: "string",
    4: "string",
    6: "date",
    7: "time-ms",
    8: "time-us",
    9: "timestamptz-ms",
    10: "timestamptz-us",
    **dict.fromkeys(range(11, 15), "unsigned"),
    19: "string",
}
_INT32, _INT64, _BINARY = 1, 2, 6
_CARRIERS: Mapping[str, tuple[int, ...]] = {
    "string": (_BINARY,),
    "uuid": (_FIXED,),
    "date": (_INT32,),
    "time-ms": (_INT32,),
    "time": (_INT64,),
    "decimal": (_INT32, _INT64, _BINARY, _FIXED),
}
"""By the beginning of a type's name, the physical types that may hold it; the first that fits counts."""

_LOGICAL = {1: "string", 4: "string", 6: "date", 12: "string", 14: "uuid"}


@dataclass(frozen=True, slots=True)
class Node:
    """A column of a file's schema, nested ones included.

    Attributes:
        repeated: whether it is there any number of times, as the helper group in a list is.
        form: ``leaf``, ``struct``, ``list`` or ``map``.
        stored: of a leaf, what is stored, by a name of ours.
        physical: of a leaf, its physical type's number.
        path: of a leaf, the names from the top, as its chunks repeat them.
        children: a list's element, a map's key and value, a struct's fields; helper groups between are left out.
    """

    name: str
    field_id: int | None
    optional: bool
    repeated: bool
    form: str
    stored: str = ""
    physical: int = -1
    path: tuple[bytes, ...] = ()
    index: int = -1
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of values in a file.

    Attributes:
        index: its position among the file's columns of values.
        id: its field id, by the file or by the table's name mapping.
        kind: Iceberg's type in the table; None for a column that the table has dropped.
        repeated: whether it is in a list or map.
        must_be_filled: the table requires it, and the file's schema would allow nulls.
    """

    index: int
    id: int
    kind: str | None
    stored: str
    physical: int
    path: list[bytes]
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


# -- the file's schema ------------------------------------------------------------------------------------------------


def read_schema(elements: Sequence[Struct]) -> tuple[Node, ...]:
    """The columns at the top of a file's schema (`SchemaElement`s, each group before what is in it).

    Raises:
        ValueError: it is no tree, nests deeper than `DEPTH_MAX`, or repeats something that is no list.
    """
    reader = _Schema(elements)
    fields = [reader.node((), DEPTH_MAX) for _ in range(reader.children())]
    if reader.at != len(elements):
        raise ValueError("the schema has columns that belong to nothing")
    if any(field.repeated for field in fields):
        raise ValueError("the schema repeats a column that is no list")
    return tuple(fields)


class _Schema:
    def __init__(self, elements: Sequence[Struct]) -> None:
        self._elements = elements
        self.at = 0
        self._leaves = 0

    def children(self) -> int:
        """Goes on to the next element, and tells how many it has inside."""
        if self.at >= len(self._elements):
            raise ValueError("the schema is torn")
        element = self._elements[self.at]
        self.at += 1
        return whole(element, 5, 0)

    def node(self, path: tuple[bytes, ...], depth: int) -> Node:
        count = self.children()
        element = self._elements[self.at - 1]
        raw = element.get(4)
        if depth == 0 or not isinstance(raw, bytes):
            raise ValueError("the schema nests too deep, or has a column without a name")
        name, path = raw.decode(), (*path, raw)
        repetition = whole(element, 3, _REQUIRED)
        field_id = whole(element, 9) if 9 in element else None
        optional, repeated = repetition != _REQUIRED, repetition == _REPEATED
        if 1 in element:
            self._leaves += 1
            stored, physical = _stored(element), whole(element, 1)
            return Node(name, field_id, optional, repeated, "leaf", stored, physical, path, self._leaves - 1)
        inside = tuple(self.node(path, depth - 1) for _ in range(count))
        form, children = _group(name, element, inside)
        return Node(name, field_id, optional, repeated, form, children=children)


def _group(name: str, element: Struct, inside: tuple[Node, ...]) -> tuple[str, tuple[Node, ...]]:
    """What a group is, and what is in it, without the helper group of lists and maps."""
    logical = element.get(10)
    marks = set(logical) if isinstance(logical, dict) else set[int]()
    converted = element.get(6)
    helper = inside[0] if len(inside) == 1 and inside[0].repeated else None
    if helper is not None and (3 in marks or converted == 3):
        # The old way has two levels: what is repeated is the element itself.
        two_levels = len(helper.children) != 1 or helper.name in ("array", f"{name}_tuple")
        return "list", (helper,) if two_levels else helper.children
    if helper is not None and (2 in marks or converted in (1, 2)) and len(helper.children) == 2:
        return "map", helper.children
    if any(child.repeated for child in inside):
        raise ValueError(f"the schema repeats something in {name!r}, which is no list")
    return "struct", inside


def _stored(element: Struct) -> str:
    """What a column stores, by a name of ours: ``int32``, ``string``, ``timestamptz-us``, ``decimal(9, 2)``.

    ``unknown``: a type that nothing here reads, or one that its physical type cannot carry ("Logical Types").
    """
    stored, physical = _named_type(element), whole(element, 1)
    carriers = next((found for name, found in _CARRIERS.items() if stored.startswith(name)), None)
    return stored if carriers is None or physical in carriers else "unknown"


def _named_type(element: Struct) -> str:
    physical = whole(element, 1)
    if physical == _FIXED:
        plain = f"fixed[{whole(element, 2)}]"
    elif 0 <= physical < len(_PHYSICAL):
        plain = _PHYSICAL[physical]
    else:
        raise ValueError(f"the schema has the unknown type {physical}")
    logical = element.get(10)
    if isinstance(logical, dict) and logical:
        return _logical(logical, plain)
    converted = element.get(6)
    if converted == 5:
        return f"decimal({whole(element, 8)}, {whole(element, 7, 0)})"
    if converted is None or converted in (15, 16, 17, 18):  # signed numbers of whatever width, kept in 32 or 64 bits
        return plain
    return _CONVERTED.get(converted, "unknown") if isinstance(converted, int) else "unknown"


def _logical(logical: Struct, plain: str) -> str:
    mark = next(iter(logical))
    if mark == 5:
        decimal = inner(logical, 5)
        return f"decimal({whole(decimal, 2)}, {whole(decimal, 1)})"
    if mark in (7, 8):
        said = inner(logical, mark)
        unit = _UNITS.get(next(iter(inner(said, 2)), 0), "?")
        kind = "time" if mark == 7 else "timestamptz" if said.get(1) is True else "timestamp"
        return f"{kind}-{unit}"
    if mark == 10:
        return plain if inner(logical, 10).get(2) is True else "unsigned"
    return _LOGICAL.get(mark, "unknown" if mark not in (17, 18) else plain)


# -- against the table's ----------------------------------------------------------------------------------------------


def leaves_of(nodes: Sequence[Node], table: TableColumns, path: str) -> tuple[Leaf, ...]:
    """The file's columns of values, in its order.

    Args:
        path: of the file, for messages.

    Raises:
        ValidationFailed: ``append.field-ids``, ``append.columns`` (an id twice, or one that the table never gave out,
            or a required column that is missing) or ``append.types``.
    """
    names = table.mapping if table.mapping is not None and not any(_has_ids(node) for node in nodes) else None
    walk = _Walk(table.known, path)
    walk.struct(nodes, table.fields, names, "", nullable=False, repeated=False)
    return tuple(sorted(walk.leaves, key=lambda leaf: leaf.index))


def _has_ids(node: Node) -> bool:
    """Whether the column or one in it has an id: then readers don't look at names."""
    return node.field_id is not None or any(_has_ids(child) for child in node.children)


class _Walk:
    def __init__(self, known: frozenset[int], path: str) -> None:
        self.leaves: list[Leaf] = []
        self._seen: set[int] = set()
        self._known = known
        self._path = path

    def struct(
        self,
        nodes: Sequence[Node],
        wanted: Sequence[Json],
        names: Sequence[Json] | None,
        where: str,
        *,
        nullable: bool,
        repeated: bool,
    ) -> None:
        by_id = {field["id"]: field for field in wanted}
        present: set[int] = set()
        for node in nodes:
            name = where + node.name
            mapped = _named(names, node.name)
            field_id = self._id_of(node, names, mapped, name)
            if field_id not in by_id and field_id not in self._known:
                raise self._wrong(
                    "append.columns",
                    f"its column {name} has field id {field_id}, which the table has never given out; write it with "
                    "the table's schema",
                )
            present.add(field_id)
            target = by_id.get(field_id)
            required = bool(target and target["required"]) and not nullable and not repeated
            kind = None if target is None else target["type"]
            within = nullable or node.optional
            self.node(node, field_id, kind, mapped, name, required=required, nullable=within, repeated=repeated)
        for field in wanted:
            if field["required"] and field["id"] not in present and "initial-default" not in field:
                raise self._wrong(
                    "append.columns", f"it lacks the column {where}{field['name']}, which the table requires"
                )

    def node(
        self,
        node: Node,
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
        if wanted == "variant":
            self._variant(node, field_id, name)
        elif node.form == "leaf":
            if wanted is not None and not (isinstance(wanted, str) and fits(node.stored, wanted)):
                shown = wanted if isinstance(wanted, str) else wanted["type"]
                raise self._wrong(
                    "append.types", f"its column {name} is stored as {node.stored}, and the table has it as {shown}"
                )
            self._leaf(node, field_id, wanted, name, repeated, required and node.optional)
        else:
            self._nested(node, wanted, mapped, name, nullable=nullable, repeated=repeated)

    def _leaf(self, node: Node, field_id: int, kind: str | None, name: str, repeated: bool, fill: bool) -> None:
        stored, physical = node.stored, node.physical
        self.leaves.append(Leaf(node.index, field_id, kind, stored, physical, list(node.path), repeated, fill, name))

    def _nested(
        self, node: Node, wanted: Any, mapped: Json | None, name: str, *, nullable: bool, repeated: bool
    ) -> None:
        """A struct, list or map; `wanted` None: dropped from the table, so that whatever is in it counts as known."""
        names = None if mapped is None else mapped.get("fields") or []
        if wanted is not None and (isinstance(wanted, str) or wanted["type"] != node.form):
            shown = wanted if isinstance(wanted, str) else wanted["type"]
            raise self._wrong("append.types", f"its column {name} is a {node.form}, and the table has it as {shown}")
        if node.form == "struct":
            inside: Sequence[Json] = [] if wanted is None else wanted["fields"]
            self.struct(node.children, inside, names, f"{name}.", nullable=nullable, repeated=repeated)
            return
        parts = ("key", "value") if node.form == "map" else ("element",)
        for part, child in zip(parts, node.children, strict=True):
            place = f"{name}.{part}"
            part_names = _named(names, part)
            child_id = self._id_of(child, names, part_names, place)
            if wanted is not None and child_id != wanted[f"{part}-id"]:
                raise self._wrong(
                    "append.columns",
                    f"its column {place} has field id {child_id}, and the table's has {wanted[f'{part}-id']}",
                )
            kind = None if wanted is None else wanted[part]
            self.node(child, child_id, kind, part_names, place, required=False, nullable=True, repeated=True)

    def _variant(self, node: Node, field_id: int, name: str) -> None:
        if [child.name for child in node.children][:2] != ["metadata", "value"]:
            raise self._wrong("append.types", f"its column {name} is no variant: it needs the parts metadata and value")
        waiting = list(node.children)
        while waiting:
            part = waiting.pop()
            waiting += part.children
            if part.form == "leaf":
                self._leaf(part, field_id, None, name, True, False)

    def _id_of(self, node: Node, names: Sequence[Json] | None, mapped: Json | None, name: str) -> int:
        if node.field_id is not None:
            return node.field_id
        found = None if mapped is None else mapped.get("field-id")
        if isinstance(found, int):
            return found
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


def fits(stored: str, kind: str) -> bool:
    """Whether readers take what is stored for a column of the type `kind`: the same, or what it was widened from."""
    wanted = _FITTING.get(kind)
    if wanted is not None:
        return stored in wanted
    if decimal := parse_decimal(kind):
        found = parse_decimal(stored)
        return found is not None and found[0] <= decimal[0] and found[1] == decimal[1]
    if kind.startswith("fixed["):
        return stored == kind
    return kind.startswith(("geometry", "geography")) and stored == "binary"


_FITTING: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "int": ("int32",),
    "long": ("int32", "int64"),
    "float": ("float",),
    "double": ("float", "double"),
    "date": ("date",),
    "time": ("time-us",),
    "timestamp": ("timestamp-us", "timestamp-ms"),
    "timestamptz": ("timestamptz-us", "timestamptz-ms"),
    "timestamp_ns": ("timestamp-ns",),
    "timestamptz_ns": ("timestamptz-ns",),
    "string": ("string",),
    "binary": ("binary",),
    "uuid": ("uuid", "fixed[16]"),
}

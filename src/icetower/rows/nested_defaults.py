"""The defaults of fields within structs, for rows that leave them out there. Pure.

Source: Iceberg's specification, "Default values": each field has a `write-default` of its own, also those of structs,
of structs in lists, and of structs in maps. A field that is given as null is null. A struct that is null, or left out,
has no fields, and so no defaults. The tower takes defaults for fields of primitive types alone (`schema.default`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from icetower.iceberg.schemas import Type
from icetower.rows.arrow import array as made
from icetower.rows.arrow import listed, mapped, pyarrow

LeftOut = Callable[[Any, int], None]
"""Is called with a default, and how often it is written at this place."""

OfType = Callable[[Any, Type], tuple[Any, Any]]
"""A default of the table's metadata, as rows of JSON have it and as Arrow takes it."""


@dataclass(frozen=True, slots=True)
class NestedDefaults:
    """The defaults within a type that is not primitive.

    Attributes:
        json: of a struct: by field, its default as rows of JSON have it.
        arrow: the same, as Arrow takes it.
        inner: what is within its fields, by name; of a list within `element`, of a map within `key` and `value`.
    """

    json: Mapping[str, Any]
    arrow: Mapping[str, Any]
    inner: Mapping[str, NestedDefaults]

    @classmethod
    def of(cls, type_: Type, of_type: OfType) -> NestedDefaults | None:
        """Of a type of Iceberg; None where there are none."""
        if isinstance(type_, str):
            return None
        json: dict[str, Any] = {}
        arrow: dict[str, Any] = {}
        parts: dict[str, Type] = {}
        match type_["type"]:
            case "struct":
                for field in type_["fields"]:
                    parts[field["name"]] = field["type"]
                    if field.get("write-default") is not None:
                        json[field["name"]], arrow[field["name"]] = of_type(field["write-default"], field["type"])
            case "list":
                parts["element"] = type_["element"]
            case "map":
                parts = {"key": type_["key"], "value": type_["value"]}
            case _:
                return None
        inner = {name: found for name, part in parts.items() if (found := cls.of(part, of_type)) is not None}
        return cls(json, arrow, inner) if json or inner else None

    # -- rows of JSON -----------------------------------------------------------------------------------------------

    def filled(self, value: Any, kind: Any, left_out: LeftOut) -> Any:
        """A value with the defaults of what it leaves out. What does not fit the type stays as it is.

        Args:
            kind: the type, as Arrow has it.
        """
        types = pyarrow().types
        if types.is_struct(kind) and isinstance(value, dict):
            return self._filled_struct(cast("dict[str, Any]", value), kind, left_out)
        if types.is_list(kind) and isinstance(value, list):
            within = self.inner["element"]
            return [within.filled(each, kind.value_type, left_out) for each in cast("list[Any]", value)]
        if types.is_map(kind):
            return self._filled_map(value, kind, left_out)
        return value

    def _filled_struct(self, given: dict[str, Any], kind: Any, left_out: LeftOut) -> dict[str, Any]:
        found = dict(given)
        for name, default in self.json.items():
            if name not in given:
                left_out(default, 1)
                found[name] = default
        for name, within in self.inner.items():
            if name in given:
                found[name] = within.filled(given[name], kind.field(name).type, left_out)
        return found

    def _filled_map(self, value: Any, kind: Any, left_out: LeftOut) -> Any:
        key, item = self.inner.get("key"), self.inner.get("value")
        if isinstance(value, dict) and item is not None:
            named = cast("dict[str, Any]", value)
            return {name: item.filled(each, kind.item_type, left_out) for name, each in named.items()}
        if not isinstance(value, list):
            return value
        pairs = cast("list[Any]", value)
        return [
            [
                each[0] if key is None else key.filled(each[0], kind.key_type, left_out),
                each[1] if item is None else item.filled(each[1], kind.item_type, left_out),
            ]
            if isinstance(each, list) and len(cast("list[Any]", each)) == 2
            else each
            for each in pairs
        ]

    # -- Arrow ------------------------------------------------------------------------------------------------------

    def widened(self, array: Any, kind: Any, left_out: LeftOut) -> Any:
        """An array with the fields that its structs lack, where these have defaults. Others stay as they are.

        Args:
            array: of one chunk.
            kind: the type that is wanted; that of the array may differ.
        """
        types = pyarrow().types
        if types.is_struct(kind) and types.is_struct(array.type):
            return self._widened_struct(array, kind, left_out)
        if types.is_list(kind) and (types.is_list(array.type) or types.is_large_list(array.type)):
            return self._widened_list(array, kind, left_out)
        if types.is_map(kind) and types.is_map(array.type):
            return self._widened_map(array, kind, left_out)
        return array

    def _widened_struct(self, array: Any, kind: Any, left_out: LeftOut) -> Any:
        pa = pyarrow()
        theirs = [each.name for each in array.type]
        wanted = [each.name for each in kind if each.name in theirs or each.name in self.arrow]
        if [name for name in wanted if name in theirs] != theirs or len(wanted) < kind.num_fields:
            return array  # in another order, with others, or without one that has no default: it is refused as it is
        parts: list[Any] = []
        fields: list[Any] = []
        changed = False
        for field in kind:
            if field.name in theirs:
                at = theirs.index(field.name)
                part, own = array.field(at), array.type.field(at)
                within = self.inner.get(field.name)
                if within is not None:
                    part, before = within.widened(part, field.type, left_out), part
                    changed = changed or part is not before
                parts.append(part)
                fields.append(own.with_type(part.type))
            else:
                left_out(self.arrow[field.name], len(array))
                parts.append(made([self.arrow[field.name]] * len(array), field.type))
                fields.append(field)
        if theirs == wanted and not changed:
            return array
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())

    def _widened_list(self, array: Any, kind: Any, left_out: LeftOut) -> Any:
        pa = pyarrow()
        old = array.flatten()
        values = self.inner["element"].widened(old, kind.value_type, left_out)
        if values is old:
            return array
        shape = pa.large_list if pa.types.is_large_list(array.type) else pa.list_
        return listed(array, shape(array.type.value_field.with_type(values.type)), values)

    def _widened_map(self, array: Any, kind: Any, left_out: LeftOut) -> Any:
        there = array.filter(array.is_valid())
        old = there.keys, there.items
        parts = [
            part if within is None else within.widened(part, want, left_out)
            for part, within, want in zip(
                old, (self.inner.get("key"), self.inner.get("value")), (kind.key_type, kind.item_type), strict=True
            )
        ]
        if all(before is after for before, after in zip(old, parts, strict=True)):
            return array
        key, item = array.type.key_field, array.type.item_field
        return mapped(
            array, pyarrow().map_(key.with_type(parts[0].type), item.with_type(parts[1].type)), parts[0], parts[1]
        )

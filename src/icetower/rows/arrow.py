"""pyarrow, imported where it is needed first, and arrays of all types that a table may have.

The import takes a third of a second, and most towers' commits do without.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from importlib import import_module
from typing import Any


@cache
def pyarrow() -> Any:
    return import_module("pyarrow")


@cache
def compute() -> Any:
    return import_module("pyarrow.compute")


@cache
def parquet() -> Any:
    return import_module("pyarrow.parquet")


def array(values: Sequence[Any], kind: Any) -> Any:
    """As `pyarrow.array`, which does not make UUIDs that lie within other types. Raises as it does."""
    pa = pyarrow()
    stored = _stored(kind)
    made = pa.array(values, stored)
    return made if stored == kind else _of_kind(made, kind)


def _stored(kind: Any) -> Any:
    """A type with the storage of each extension type in its place."""
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_stored(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = (each.with_type(_stored(each.type)) for each in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    return kind


def _of_kind(array: Any, kind: Any) -> Any:
    """An array of `_stored(kind)` as one of `kind`."""
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array)
    if pa.types.is_struct(kind):
        parts = [_of_kind(array.field(at), each.type) for at, each in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return listed(array, kind, _of_kind(array.flatten(), kind.value_type))
    if pa.types.is_map(kind):
        there = array.filter(array.is_valid())
        keys = _of_kind(there.keys, kind.key_type)
        return mapped(array, kind, keys, _of_kind(there.items, kind.item_type))
    return array


def without_required_nulls(array: Any, kind: Any) -> Any:
    """The array with values in place of the nulls that a required field has where what it lies in is null.

    Arrow may have them there, and neither a cast nor Parquet takes them. Other nulls of required fields stay.

    Args:
        kind: says which fields are required; the array's own type may differ by the types of its values.
    """
    pa = pyarrow()
    types = pa.types
    if types.is_struct(kind) and types.is_struct(array.type):
        gone = array.is_null()
        old = [array.field(at) for at in range(kind.num_fields)]
        new = [without_required_nulls(part, each.type) for part, each in zip(old, kind, strict=True)]
        if array.null_count:
            new = [part if each.nullable else _put(part, gone) for part, each in zip(new, kind, strict=True)]
        if all(before is after for before, after in zip(old, new, strict=True)):
            return array
        return pa.StructArray.from_arrays(new, fields=list(array.type), mask=gone)
    if types.is_list(kind) and (types.is_list(array.type) or types.is_large_list(array.type)):
        old_values = array.flatten()
        values = without_required_nulls(old_values, kind.value_type)
        return array if values is old_values else listed(array, array.type, values)
    if types.is_map(kind) and types.is_map(array.type):
        there = array.filter(array.is_valid())
        old_items = there.items
        items = without_required_nulls(old_items, kind.item_type)
        return array if items is old_items else mapped(array, array.type, there.keys, items)
    return array


def _put(part: Any, gone: Any) -> Any:
    """An arbitrary value where `gone` is true."""
    pa, pc = pyarrow(), compute()
    if not part.null_count:
        return part
    positions = pc.if_else(gone, pa.scalar(len(part)), pa.array(range(len(part)), pa.int64()))
    return pa.concat_arrays([part, array([_any_value(part.type)], part.type)]).take(positions)


def _any_value(kind: Any) -> Any:
    types = pyarrow().types
    if types.is_struct(kind):
        return {each.name: None if each.nullable else _any_value(each.type) for each in kind}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return []
    if types.is_null(kind):
        return None
    for is_kind, value in (
        (types.is_boolean, False),
        (types.is_decimal, Decimal(0)),
        (types.is_string, ""),
        (types.is_large_string, ""),
        (types.is_binary, b""),
        (types.is_large_binary, b""),
        (types.is_date, dt.date(1970, 1, 1)),
    ):
        if is_kind(kind):
            return value
    if types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    return bytes(16) if isinstance(kind, pyarrow().BaseExtensionType) else 0


def listed(array: Any, kind: Any, values: Any) -> Any:
    """Lists as long as those of an array, and null where they are, of the values of those that are not null."""
    pa = pyarrow()
    shape = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return shape.from_arrays(_offsets(array, shape), values, type=kind, mask=array.is_null())


def mapped(array: Any, kind: Any, keys: Any, items: Any) -> Any:
    pa = pyarrow()
    return pa.MapArray.from_arrays(_offsets(array, pa.ListArray), keys, items, type=kind, mask=array.is_null())


def _offsets(array: Any, shape: Any) -> Any:
    pa, pc = pyarrow(), compute()
    whole = pa.int64() if shape is pa.LargeListArray else pa.int32()
    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(whole)
    return pa.concat_arrays([pa.array([0], whole), pc.cumulative_sum(lengths)])

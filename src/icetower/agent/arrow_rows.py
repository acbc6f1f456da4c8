"""Rows of Arrow as the rows door takes them: plain values, in a record batch within its bounds. Needs PyArrow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Any

from icetower.agent.spelling import fields_of
from icetower.errors import UsageError
from icetower.protocol.row_limits import BODY_MAX_BYTES


def plain_table(table: Any) -> Any:
    """A table of the same rows with a single chunk a column, and without dictionaries, views, runs and extensions.

    Raises:
        UsageError: a column's values cannot be made plain, or two columns have one name.
    """
    pa = import_module("pyarrow")
    names: list[str] = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the rows have the column {twice} twice")
    columns = [_plain(_whole(table.column(at), pa), name, pa) for at, name in enumerate(names)]
    return pa.Table.from_arrays(
        columns, schema=pa.schema(list(zip(names, (each.type for each in columns), strict=True)))
    )


def _whole(column: Any, pa: Any) -> Any:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _plain(array: Any, name: str, pa: Any) -> Any:
    kind = _plain_type(array.type, pa)
    if kind == array.type:
        return array
    try:
        if pa.types.is_run_end_encoded(array.type):
            array = import_module("pyarrow.compute").run_end_decode(array)
        found = array if array.type == kind else array.cast(kind)
        found.validate(full=True)
        return found
    except (pa.ArrowException, NotImplementedError):
        pass
    try:
        return pa.array(array.to_pylist(), kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"the column {name} of type {array.type} cannot be sent as {kind}: {error}") from error


def _plain_type(kind: Any, pa: Any) -> Any:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind if kind.extension_name == "arrow.uuid" else _plain_type(kind.storage_type, pa)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type, pa)
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([field.with_type(_plain_type(field.type, pa)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type, pa), _plain_type(kind.item_type, pa))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type, pa)))
    if types.is_list(kind) or types.is_list_view(kind) or types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type, pa)))
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def weight(table: Any) -> int:
    """The bytes of a plain table's values, whichever buffers hold them: the same for equal rows."""
    pa, pc = import_module("pyarrow"), import_module("pyarrow.compute")
    return sum(_weight(_whole(table.column(at), pa), pa, pc) for at in range(table.num_columns))


def _weight(array: Any, pa: Any, pc: Any) -> int:
    types, kind, bits = pa.types, array.type, len(array) // 8 + 1
    if isinstance(kind, pa.BaseExtensionType):
        return _weight(array.storage, pa, pc)
    if types.is_struct(kind):
        return bits + sum(_weight(each, pa, pc) for each in array.flatten())
    if types.is_map(kind):
        there = array.filter(array.is_valid())
        return bits + 4 * len(array) + _weight(there.keys, pa, pc) + _weight(there.items, pa, pc)
    if types.is_list(kind) or types.is_large_list(kind):
        return bits + 8 * len(array) + _weight(array.flatten(), pa, pc)
    if any(
        is_kind(kind) for is_kind in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
    ):
        return bits + 8 * len(array) + (pc.sum(pc.binary_length(array)).as_py() or 0)
    try:
        return bits + len(array) * ((kind.bit_width + 7) // 8)
    except ValueError:  # null
        return bits


def stream(table: Any) -> bytes:
    """An Arrow IPC stream of a plain table, in one record batch and uncompressed."""
    pa = import_module("pyarrow")
    body = _stream(table, pa)
    if len(body) > BODY_MAX_BYTES:
        # Under a null there may be a value yet, which nobody sees and which would travel along.
        body = _stream(pa.Table.from_pylist(table.to_pylist(), schema=table.schema), pa)
    return body


def _stream(table: Any, pa: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def fingerprint(table: Any) -> str:
    """Stands for the rows and their types."""
    digest = hashlib.sha256("\n".join(f"{field.name}: {field.type}" for field in table.schema).encode())
    for row in table.to_pylist(maps_as_pydicts=None):
        line = json.dumps(row, sort_keys=True, default=str)
        digest.update(b"\n" + line.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def joined(tables: Sequence[Any]) -> Any:
    """The rows of several plain tables; a column that one lacks is null there."""
    pa = import_module("pyarrow")
    try:
        return plain_table(pa.concat_tables(tables, promote_options="default"))
    except pa.ArrowException as error:
        raise UsageError(f"the columns of rows that go together differ: {error}") from error


def as_arrow(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows of Python as a table, with the types that their values have."""
    pa = import_module("pyarrow")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: list[Any] = []
    for name in names:
        try:
            columns.append(pa.array([_inferable(row.get(name)) for row in rows]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"the values of column {name} have no common type: {error}") from error
    return pa.Table.from_arrays(columns, names=names)


def _inferable(value: Any) -> Any:
    """A value of which PyArrow finds the type."""
    if isinstance(value, Enum):
        return _inferable(value.value)
    if isinstance(value, list | tuple):
        return [_inferable(each) for each in value]
    inner = fields_of(value)
    return value if inner is None else {name: _inferable(each) for name, each in inner.items()}

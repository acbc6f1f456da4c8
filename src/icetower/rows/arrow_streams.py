"""Arrow IPC streams of others, read by pyarrow, validated whole, and bounded.

Their messages have been walked already (`protocol.arrow_streams`). Here layouts are refused that share values (views,
runs), columns that share one buffer, and types whose values take no bytes.
"""

from __future__ import annotations

from typing import Any

from icetower.errors import ValidationFailed
from icetower.protocol.arrow_streams import refuse
from icetower.protocol.row_limits import BODY_MAX_BYTES
from icetower.rows.arrow import pyarrow

DECODED_TIMES_MAX = 4
"""So many times its length a stream may have decoded: validity bitmaps and padding add a little."""

DECODED_SLACK_BYTES = 64 * 1024
LEAVES_MAX = BODY_MAX_BYTES // 4
"""Values of one request, however deep they lie: as many as there is room for, of four bytes each. Of booleans, a body
could hold thirty times as many."""


def read_stream(data: bytes) -> Any:
    """The stream as a `pyarrow.Table`, of which everything was validated.

    Raises:
        BadRequest: ``rows.arrow``: no such stream, or one in a form that is not taken.
        ValidationFailed: ``limit.rows``.
    """
    pa = pyarrow()
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            for field in reader.schema:
                _check_type(field.type, field.name, pa.types)
            batches: list[Any] = []
            for batch in reader:
                batch.validate(full=True)
                batches.append(batch)
            table = pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, NotImplementedError) as error:
        refuse(f"it cannot be read: {str(error)[:300]}", error)
    values = sum(_leaves(chunk) for column in table.columns for chunk in column.chunks)
    if values > LEAVES_MAX:
        raise ValidationFailed(
            f"the stream has {values} values, those within lists and structs included; at most {LEAVES_MAX} go into "
            "one request. Send several, each under a key of its own",
            rule="limit.rows",
        )
    if table.nbytes > DECODED_TIMES_MAX * len(data) + DECODED_SLACK_BYTES:
        refuse(f"its {len(data)} bytes stand for {table.nbytes}; columns must not share their buffers")
    return table


def _leaves(array: Any) -> int:
    """How many values an array has, with those that lie within them in their place."""
    pa = pyarrow()
    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_leaves(part) for part in array.flatten())
    if pa.types.is_map(kind):
        return _leaves(array.keys) + _leaves(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return max(len(array), _leaves(array.values))
    return len(array)


_PLAIN = (
    "is_boolean",
    "is_integer",
    "is_floating",
    "is_decimal128",
    "is_decimal256",
    "is_string",
    "is_large_string",
    "is_binary",
    "is_large_binary",
    "is_fixed_size_binary",
    "is_date",
    "is_time",
    "is_timestamp",
)


def _check_type(kind: Any, path: str, types: Any, depth: int = 0) -> None:
    """Raises `BadRequest` for a type whose values may share memory, or that no column of a table has."""
    pa = pyarrow()
    if depth > 16:
        refuse(f"the column {path[:200]} nests deeper than 16 levels")
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return
        refuse(f"the column {path[:200]} is of the extension type {kind.extension_name[:200]}")
    # What takes no bytes may be there without end, but for a column itself, whose rows are counted.
    if (types.is_null(kind) and depth == 0) or any(getattr(types, is_kind)(kind) for is_kind in _PLAIN):
        if types.is_fixed_size_binary(kind) and kind.byte_width == 0:
            refuse(f"the column {path[:200]} is of values without bytes")
        # Read here, where it raises no more than a refusal: its bytes need be no UTF-8.
        if types.is_timestamp(kind) and not (kind.tz or "").isprintable():
            refuse(f"the column {path[:200]} has a time zone with characters that are not printed")
        # Arrow takes any scale from a stream, and pyarrow's cast crashes at some.
        if types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
            refuse(f"the column {path[:200]} is of {kind}; its scale must be between 0 and its precision")
        return
    nested = types.is_list(kind) or types.is_large_list(kind) or types.is_struct(kind) or types.is_map(kind)
    if not nested or not kind.num_fields:
        refuse(f"the column {path[:200]} is of type {str(kind)[:200]}; send plain values")
    for position in range(kind.num_fields):
        inner = kind.field(position)
        _check_type(inner.type, f"{path}.{inner.name}", types, depth + 1)

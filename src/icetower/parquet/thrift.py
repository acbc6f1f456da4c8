"""Thrift's compact protocol, read with care: Parquet's footers and page headers as plain values by field id.

pyarrow reads them too. But it ends the whole process over some that are damaged (an exception of C++ that nothing
catches, as for a histogram of the wrong length in 26.0), and takes as much memory as a page's header asks for. What
strangers have written is read here first.

Source: Apache Thrift, "Thrift compact protocol encoding".
"""

from __future__ import annotations

from typing import TypeAlias, Union

Value: TypeAlias = Union[bool, int, bytes, "list[Value]", "dict[int, Value]", None]
Struct: TypeAlias = dict[int, Value]
"""Values by field id. Floating-point numbers are skipped: None."""

DEPTH_MAX = 16
FIELD_ID_MAX = 2**15 - 1
_STOP, _TRUE, _FALSE = 0, 1, 2
_NUMBERS = (4, 5, 6)
_STRUCT = 12
_LISTS = (9, 10)
_LONG_LIST = 15


def read_struct(data: bytes, at: int = 0, *, after: int = 0, until: int = 0) -> tuple[Struct, int]:
    """A struct, and where it ends.

    Args:
        after: the id of the field that was read before `at`, for one that is read from its middle on.
        until: the id of the last field that is wanted; 0: all of them.

    Raises:
        ValueError: it is torn, nests deeper than `DEPTH_MAX`, or has what no such struct can have.
    """
    try:
        return _struct(data, at, DEPTH_MAX, after, until or FIELD_ID_MAX)
    except IndexError:
        raise ValueError("a struct is torn") from None


def _struct(data: bytes, at: int, depth: int, field_id: int = 0, until: int = FIELD_ID_MAX) -> tuple[Struct, int]:
    """What is met all the time is read in place: a call for each number would take most of the time."""
    if depth == 0:
        raise ValueError(f"a struct nests deeper than {DEPTH_MAX} levels")
    found: Struct = {}
    head = data[at]
    while head != _STOP and field_id < until:
        at += 1
        kind = head & 0x0F
        if head > 0x0F:
            field_id += head >> 4
        else:
            number, at = _varint(data, at)
            field_id = _zigzag(number)
        if field_id in found:  # which of the two counts would depend on the reader
            raise ValueError(f"a struct has the field {field_id} twice")
        if kind in _NUMBERS:
            number = data[at]
            if number < 0x80:
                at += 1
            else:
                number, at = _varint(data, at)
            found[field_id] = (number >> 1) ^ -(number & 1)
        elif kind == _STRUCT:
            found[field_id], at = _struct(data, at, depth - 1)
        elif kind in (_TRUE, _FALSE):
            found[field_id] = kind == _TRUE
        else:
            found[field_id], at = _value(data, at, kind, depth)
        head = data[at]
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Value, int]:
    if kind in _NUMBERS:
        number, at = _varint(data, at)
        return _zigzag(number), at
    if kind in _LISTS:
        return _list(data, at, depth)
    match kind:  # maps occur in nothing that Parquet has
        case 1 | 2 | 3:  # in a list, a truth value takes a byte
            return data[at], at + 1
        case 7:
            return None, at + 8
        case 8:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a text is torn")
            return data[at : at + size], at + size
        case 12:
            return _struct(data, at, depth - 1)
        case _:
            raise ValueError(f"a struct has a value of the unknown kind {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Value], int]:
    if depth == 0:
        raise ValueError(f"a list nests deeper than {DEPTH_MAX} levels")
    size, kind = data[at] >> 4, data[at] & 0x0F
    at += 1
    if size == _LONG_LIST:
        size, at = _varint(data, at)
    if size > len(data) - at:  # every item takes a byte at least
        raise ValueError("a list is torn")
    items: list[Value] = []
    for _ in range(size):
        if kind == _STRUCT:
            item, at = _struct(data, at, depth - 1)
        else:
            item, at = _value(data, at, kind, depth - 1)
        items.append(item)
    return items, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def whole(struct: Struct, field_id: int, default: int | None = None) -> int:
    """A whole number of a struct. Raises `ValueError` where there is none, and no default."""
    value = struct.get(field_id, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"a struct has no number {field_id}")
    return value


def inner(struct: Struct, field_id: int) -> Struct:
    """A struct within a struct. Raises `ValueError` where there is none."""
    value = struct.get(field_id)
    if not isinstance(value, dict):
        raise ValueError(f"a struct has no struct {field_id}")
    return value


def structs(struct: Struct, field_id: int) -> list[Struct]:
    """A list of structs; empty where there is none. Raises `ValueError` for a list of something else."""
    value = struct.get(field_id, [])
    if not isinstance(value, list):
        raise ValueError(f"a struct has no list {field_id}")
    found = [item for item in value if isinstance(item, dict)]
    if len(found) < len(value):
        raise ValueError(f"the list {field_id} of a struct holds something else than structs")
    return found

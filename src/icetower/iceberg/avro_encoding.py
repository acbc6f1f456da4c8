"""Avro's binary encoding, compiled: a schema becomes a function once, which then is called for every value.

A general encoder tries every branch of a union on a value, down to its last item. What Iceberg writes has one kind of
union, the option: null or one other type. There the question is only whether the value is None, and a manifest is
written in a third of the time. Enums are left out, which Iceberg never writes.

Logical types are not looked at: values come raw, as `avro_files.write` takes them. What is refused is what does not
fit, Python's own liberties included: a bool is no number, and an int has no more than 32 bits.

Source: Avro specification, "Binary Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn

AvroSchema = Any
Encoder = Callable[[bytearray, Any], None]
"""Appends a value to the bytes. Where it raises, a part of the value may have been appended: throw the bytes away."""

MISFITS = (ValueError, TypeError, OverflowError, struct.error)
"""What an encoder raises of a value that does not fit its schema."""


def encoder(schema: AvroSchema) -> Encoder:
    """The function that encodes values of a schema, which is given as `fastavro.parse_schema` returns it.

    A field that a record lacks is null; what a record has beyond its fields is left out.

    Raises:
        ValueError: a union that is not an option, or a type that is not known.
    """
    return _compiled(schema, dict(_PRIMITIVES))


def put_long(out: bytearray, number: int) -> None:
    """Zigzag, then seven bits a byte, the lowest first. The caller sees to it that the number has 64 bits."""
    rest = number << 1 ^ number >> 63
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)


def _compiled(schema: AvroSchema, known: dict[str, Encoder]) -> Encoder:
    """`known`: encoders by the type's name; named types are added as they are met, as Avro defines them once."""
    if isinstance(schema, list):
        return _option(schema, known)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "record":
            return _record(schema, known)
        case "array":
            return _array(_compiled(schema["items"], known))
        case "map":
            return _map(_compiled(schema["values"], known))
        case "fixed":
            return known.setdefault(schema["name"], _fixed(schema["size"]))
        case str() if kind in known:
            return known[kind]
        case dict() | list():
            return _compiled(kind, known)
        case _:
            raise ValueError(f"the type {kind!r} is not known")


def _option(branches: Sequence[AvroSchema], known: dict[str, Encoder]) -> Encoder:
    others = [branch for branch in branches if branch != "null"]
    if len(branches) != 2 or len(others) != 1:
        raise ValueError(f"a union of {len(branches)} types is not an option: null and one other type")
    put_other = _compiled(others[0], known)
    null, other = (0, 2) if branches[0] == "null" else (2, 0)  # zigzag: the branches 0 and 1

    def put(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(null)
        else:
            out.append(other)
            put_other(out, value)

    return put


def _record(schema: Mapping[str, Any], known: dict[str, Encoder]) -> Encoder:
    fields: list[tuple[str, Encoder]] = []

    def put(out: bytearray, value: Any) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):  # an abstract class takes far longer to ask
            _refuse(value, "record")
        get, name = value.get, ""
        try:
            for name, put_field in fields:
                put_field(out, get(name))
        except MISFITS as error:
            raise ValueError(f"{name}: {error}") from error

    known[schema["name"]] = put  # before its fields, since they may hold records of the same type
    fields += [(field["name"], _compiled(field["type"], known)) for field in schema["fields"]]
    return put


def _array(put_item: Encoder) -> Encoder:
    def put(out: bytearray, value: Any) -> None:
        if type(value) is not list and (isinstance(value, _TEXTS) or not isinstance(value, Sequence)):
            _refuse(value, "array")
        if value:
            put_long(out, len(value))
            for item in value:
                put_item(out, item)
        out.append(0)

    return put


def _map(put_value: Encoder) -> Encoder:
    def put(out: bytearray, value: Any) -> None:
        if not isinstance(value, Mapping):
            _refuse(value, "map")
        if value:
            put_long(out, len(value))
            for key, item in value.items():
                _put_string(out, key)
                put_value(out, item)
        out.append(0)

    return put


def _fixed(size: int) -> Encoder:
    def put(out: bytearray, value: Any) -> None:
        if not isinstance(value, bytes) or len(value) != size:
            _refuse(value, f"fixed of {size} bytes")
        out += value

    return put


def _integer(kind: str, bits: int) -> Encoder:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def put(out: bytearray, value: Any) -> None:
        if type(value) is not int:
            if isinstance(value, bool) or not isinstance(value, Integral):
                _refuse(value, kind)
            value = int(value)
        if 0 <= value < 64:
            out.append(value << 1)  # one byte: most counts, ids and flags are small
        elif least <= value <= most:
            put_long(out, value)
        else:
            raise OverflowError(f"{value} has more than {bits} bits")

    return put


def _real(kind: str, layout: str) -> Encoder:
    pack = struct.Struct(layout).pack

    def put(out: bytearray, value: Any) -> None:
        if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
            _refuse(value, kind)
        out += pack(value)

    return put


def _put_null(out: bytearray, value: Any) -> None:
    if value is not None:
        _refuse(value, "null")


def _put_boolean(out: bytearray, value: Any) -> None:
    if not isinstance(value, bool):
        _refuse(value, "boolean")
    out.append(value)


def _put_bytes(out: bytearray, value: Any) -> None:
    if not isinstance(value, _BYTES):
        _refuse(value, "bytes")
    put_long(out, len(value))
    out += value


def _put_string(out: bytearray, value: Any) -> None:
    if not isinstance(value, str):
        _refuse(value, "string")
    data = value.encode()
    put_long(out, len(data))
    out += data


def _refuse(value: Any, kind: str) -> NoReturn:
    raise TypeError(f"{'null' if value is None else f'a {type(value).__name__}'} is not a {kind}")


_BYTES = (bytes, bytearray)
_TEXTS = (str, *_BYTES)
_PRIMITIVES: Mapping[str, Encoder] = {
    "null": _put_null,
    "boolean": _put_boolean,
    "int": _integer("int", 32),
    "long": _integer("long", 64),
    "float": _real("float", "<f"),
    "double": _real("double", "<d"),
    "bytes": _put_bytes,
    "string": _put_string,
}

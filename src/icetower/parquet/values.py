"""What a Parquet footer holds in bytes: its schema, and the values of its statistics, read as Iceberg has them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Literal

from icetower.iceberg.avro_schemas import parse_decimal
from icetower.parquet.thrift import Struct, read_struct

COLUMNS_MAX = 20_000
_WIDE = Context(prec=60)
_DECIMAL_MAX_BYTES = 64


def schema_elements(footer: bytes) -> tuple[list[Struct], int]:
    """The schema's elements and where they end. Every writer begins with the version and the schema.

    Raises `ValueError`.
    """
    at = 1
    while footer[at] > 0x7F:
        at += 1
    if footer[:1] != b"\x15" or footer[at + 1 : at + 2] != b"\x19":  # a number as field 1, a list as field 2
        raise ValueError("it does not begin with a schema")
    at += 2
    count, kind = footer[at] >> 4, footer[at] & 0x0F
    at += 1
    if count == 15:
        count = shift = 0
        while True:
            byte, at = footer[at], at + 1
            count |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
    if kind != 12 or not 0 < count <= COLUMNS_MAX:
        raise ValueError(f"its schema has {count} columns, and at most {COLUMNS_MAX} are read")
    elements: list[Struct] = []
    for _ in range(count):
        element, at = read_struct(footer, at)
        elements.append(element)
    return elements, at


NUMBERS = frozenset(
    {
        *("boolean", "int32", "int64", "float", "double", "date", "time-us"),
        *(f"{kind}-{unit}" for kind in ("timestamp", "timestamptz") for unit in ("ms", "us", "ns")),
    }
)
_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


def reader(stored: str, physical: int, kind: str) -> Callable[[bytes], Any] | None:
    """From a footer's bytes to the internal value of a column of the type `kind`; None where there is none.

    The readers raise `ValueError` or `struct.error` for bytes that are no such value.
    """
    if decimal := parse_decimal(kind):
        return _decimal_reader(physical, *decimal)
    if kind == "string":
        return bytes.decode
    if kind == "binary":
        return lambda raw: raw
    if kind == "uuid" or kind.startswith("fixed["):
        return _fixed_reader(16 if kind == "uuid" else int(kind[len("fixed[") : -1]))
    packed = {0: struct.Struct("<?"), 1: _INT, 2: _LONG, 4: _FLOAT, 5: _DOUBLE}.get(physical)
    if packed is None:
        return None
    unpack = packed.unpack
    if kind in ("float", "double"):
        return lambda raw: None if math.isnan(number := unpack(raw)[0]) else number
    if stored.endswith("-ms"):
        return lambda raw: _in_long(unpack(raw)[0] * 1000)
    return lambda raw: unpack(raw)[0]


def _decimal_reader(physical: int, precision: int, scale: int) -> Callable[[bytes], Any]:
    width_bytes = {1: 4, 2: 8}.get(physical)
    order: Literal["little", "big"] = "little" if width_bytes else "big"
    beyond = 10**precision

    def read(raw: bytes) -> Decimal:
        if len(raw) != (width_bytes or len(raw)) or not 0 < len(raw) <= _DECIMAL_MAX_BYTES:
            raise ValueError(f"a decimal has {len(raw)} bytes")
        number = int.from_bytes(raw, order, signed=True)
        if not -beyond < number < beyond:
            raise ValueError(f"a decimal has more than {precision} digits")
        return Decimal(number).scaleb(-scale, _WIDE)

    return read


def _fixed_reader(length_bytes: int) -> Callable[[bytes], Any]:
    def read(raw: bytes) -> bytes:
        if len(raw) != length_bytes:  # a cut one is no value of the type
            raise ValueError(f"a value has {len(raw)} bytes instead of {length_bytes}")
        return raw

    return read


def _in_long(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ValueError("a time is beyond what 64 bits hold")
    return number

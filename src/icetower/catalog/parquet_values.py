"""What a Parquet footer holds in bytes: its schema, and the values of its statistics, read as Iceberg has them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Literal

from icetower.catalog.thrift import Struct, read_struct
from icetower.table.avro_schemas import parse_decimal

COLUMNS_MAX = 20_000
_WIDE = Context(prec=60)


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

    What the readers raise for bytes that are no such value: `ValueError`, `struct.error`.
    """
    if decimal := parse_decimal(kind):
        scale = decimal[1]
        order: Literal["little", "big"] = "little" if physical in (1, 2) else "big"
        return lambda raw: Decimal(int.from_bytes(raw, order, signed=True)).scaleb(-scale, _WIDE)
    if kind == "string":
        return bytes.decode
    if kind in ("binary", "uuid") or kind.startswith("fixed["):
        return lambda raw: raw
    packed = {0: struct.Struct("<?"), 1: _INT, 2: _LONG, 4: _FLOAT, 5: _DOUBLE}.get(physical)
    if packed is None:
        return None
    unpack = packed.unpack
    if kind in ("float", "double"):
        return lambda raw: None if math.isnan(number := unpack(raw)[0]) else number
    if stored.endswith("-ms"):
        return lambda raw: unpack(raw)[0] * 1000
    return lambda raw: unpack(raw)[0]

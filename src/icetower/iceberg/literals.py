"""Values in filters: how they become a column's internal value, how Iceberg orders them, and how it prints them.

Internal values are those of partition tuples (`icetower.iceberg.records.DataFile`): days for dates, microseconds (or
nanoseconds) since 1970 for timestamps, `Decimal`, 16 bytes for UUIDs, `bytes` for binary and fixed. Types are
Iceberg's names (``long``, ``decimal(9, 2)``). Source: Iceberg 1.12, `Literals`, `Comparators` and `Conversions`.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import Enum
from typing import Any, TypeAlias
from uuid import UUID

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.iceberg.partitions import PartitionField, human_value

Value: TypeAlias = bool | int | float | str | bytes | Decimal | UUID
"""A literal as a filter carries it, or an internal value."""

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
FLOATING = ("float", "double")
_FLOAT_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
DECIMAL_CHARACTERS_MAX = 400
"""Of a decimal as text; Iceberg's have 38 digits."""
_DECIMAL_TEXT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,9})?")
_DAY_NS = 86_400_000_000_000
_WIDE = Context(prec=1000)
_DOUBLE = PartitionField(0, "", "identity", "", "double", "double", 0)

_JAVA_CLASSES = {
    bool: ("java.lang.Boolean", "Boolean"),
    int: ("java.lang.Long", "Long"),
    float: ("java.lang.Double", "Double"),
    str: ("java.lang.String", "String"),
    Decimal: ("java.math.BigDecimal", "Decimal"),
    bytes: ("java.nio.HeapByteBuffer", "Binary"),
    UUID: ("java.util.UUID", "UUID"),
}


class Range(Enum):
    """A number that its column's type can't hold."""

    BELOW = -1
    ABOVE = 1


def convert(value: Value, kind: str) -> Value | Range | None:
    """A literal as an internal value of type `kind`; a `Range` where the type is too narrow; None if Iceberg won't.

    A whole number counts as Iceberg's `long`, which is what its JSON gives.

    Raises:
        ValidationFailed: a text that is no date, time, timestamp, UUID or number though the type asks for one.
    """
    match value:
        case bool():
            return value if kind == "boolean" else None
        case int():
            return _from_int(value, kind)
        case float():
            return _from_float(value, kind)
        case str():
            return _from_text(value, kind)
        case Decimal():
            return value if parse_decimal(kind) else None
        case bytes():
            return value if kind == "binary" or kind == f"fixed[{len(value)}]" else None
        case UUID():
            return value.bytes if kind == "uuid" else None


def order_key(value: Value, kind: str) -> Any:
    """What to compare instead of an internal value of type `kind`, so that Java's order comes out.

    Java puts NaN above all numbers and -0.0 below 0.0, and takes a UUID for two signed numbers.
    """
    if kind in FLOATING:
        number = float(value)  # pyright: ignore[reportArgumentType]
        return (1, 0.0, 0.0) if math.isnan(number) else (0, number, math.copysign(1, number))
    if kind == "uuid" and isinstance(value, bytes):
        return struct.unpack(">qq", value)
    return value


def compare(left: Value | None, right: Value, kind: str) -> int:
    """Below, at or above 0, as Iceberg's comparators of literals: null comes first."""
    if left is None:
        return -1
    a, b = order_key(left, kind), order_key(right, kind)
    return (a > b) - (a < b)


def identity_key(value: Value, kind: str) -> Any:
    """What makes a value itself in a Java set: 1.0 and 1.00 are one decimal in order, and two in a set."""
    return value.as_tuple() if isinstance(value, Decimal) else order_key(value, kind)


def is_nan(value: Value | None) -> bool:
    """Whether this is the floating-point value that is no number."""
    return isinstance(value, float) and math.isnan(value)


def literal_text(value: Value) -> str:
    """A literal as Iceberg prints it in a filter: texts in double quotes, unescaped; bytes as ``X'0A'``."""
    return f'"{value}"' if isinstance(value, str) else value_text(value)


def value_text(value: Value) -> str:
    """A value as Java prints it."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return human_value(_DOUBLE, value)
        case bytes():
            return f"X'{value.hex().upper()}'"
        case _:
            return str(value)


def java_class(value: Value) -> str:
    """The Java class of the value, as it stands in Iceberg's messages."""
    return _JAVA_CLASSES[type(value)][0]


def literal_class(value: Value) -> str:
    """The class of Iceberg's literal for the value, as it stands in its messages."""
    return f"org.apache.iceberg.expressions.Literals${_JAVA_CLASSES[type(value)][1]}Literal"


def wrap(number: int, bits: int) -> int:
    """Java's arithmetic: what is left of a number in two's complement of that many bits."""
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half


def _from_int(value: int, kind: str) -> Value | Range | None:
    match kind:
        case "int" | "date":
            return value if INT_MIN <= value <= INT_MAX else Range.ABOVE if value > 0 else Range.BELOW
        case "long" | "time" | "timestamp" | "timestamptz":
            return value
        case "timestamp_ns" | "timestamptz_ns":  # a bare number counts as microseconds here too
            return _in_long(value * 1000, value, kind)
        case "float":
            return _single_of_whole(value)
        case "double":
            return float(value)
        case _:
            return _rescaled(Decimal(value), kind)


def _from_float(value: float, kind: str) -> Value | Range | None:
    match kind:
        case "float":
            return Range.ABOVE if value > _FLOAT_MAX else Range.BELOW if value < -_FLOAT_MAX else _single(value)
        case "double":
            return value
        case _ if parse_decimal(kind) and math.isinf(value):
            raise _unreadable(value_text(value), kind)
        case _:
            return _rescaled(Decimal(repr(value)), kind)


def _single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _single_of_whole(value: int) -> float:
    # By way of a double it would be rounded twice; 40 bits, the last of which stands for all below, are rounded once.
    spare = max(0, abs(value).bit_length() - 40)
    kept = (abs(value) >> spare) | (abs(value) & ((1 << spare) - 1) != 0)
    return _single(math.copysign(kept << spare, value))


def _rescaled(value: Decimal, kind: str) -> Decimal | None:
    decimal = parse_decimal(kind)
    return _unsigned_zero(value.quantize(Decimal(1).scaleb(-decimal[1]), ROUND_HALF_UP, _WIDE)) if decimal else None


def _unsigned_zero(value: Decimal) -> Decimal:
    return value if value else value.copy_abs()  # Java's decimals know no -0


def _from_text(value: str, kind: str) -> Value | None:
    match kind:
        case "string":
            return value
        case "date":
            return wrap(_days(value, kind), 32)
        case "time":
            return _nanos_of_day(value, value, kind) // 1000
        case "timestamp" | "timestamptz":  # Java cuts the rest off towards 1970
            nanos = _nanos(value, kind)
            return _in_long(nanos // 1000 if nanos >= 0 else -(-nanos // 1000), value, kind)
        case "timestamp_ns" | "timestamptz_ns":
            return _in_long(_nanos(value, kind), value, kind)
        case "uuid":
            return _uuid(value)
        case "binary":
            return _from_hex(value)
        case _ if kind.startswith("fixed["):
            data = _from_hex(value)
            return data if data is not None and kind == f"fixed[{len(data)}]" else None
        case _ if parse_decimal(kind):
            if len(value) > DECIMAL_CHARACTERS_MAX or not _DECIMAL_TEXT.fullmatch(value):
                raise _unreadable(value, kind)
            return _unsigned_zero(Decimal(value))  # keeps the scale that is written
        case _:
            return None


def _days(text: str, kind: str, whole: str = "") -> int:
    found = re.fullmatch(r"(\d{4}|\+\d{5,9}|-\d{4,9})-(\d\d)-(\d\d)", text, re.ASCII)
    try:
        if found is None or found[1] == "-0000":
            raise ValueError
        year = int(found[1])
        near = 2000 + year % 400  # the calendar repeats after 400 years, and `datetime` ends at year 9999
        days = date(near, int(found[2]), int(found[3])).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        raise _unreadable(whole or text, kind) from None
    return days + (year - near) // 400 * 146_097


def _nanos_of_day(text: str, whole: str, kind: str) -> int:
    found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{0,9}))?)?", text, re.ASCII)
    if found is None:
        raise _unreadable(whole, kind)
    seconds = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3] or 0)
    return seconds * 10**9 + int((found[4] or "").ljust(9, "0"))


def _nanos(text: str, kind: str) -> int:
    """Nanoseconds since 1970 of a text such as ``2020-01-31T10:00:00.5+01:00``; types without zone take no offset."""
    day, _, rest = text.upper().partition("T")
    zoned = kind.startswith("timestamptz")
    found = re.fullmatch(r"([^Z+-]*)(Z|([+-])(\d\d):([0-5]\d)(?::([0-5]\d))?)?", rest, re.ASCII)
    if found is None or bool(found[2]) != zoned:
        raise _unreadable(text, kind)
    hours, minutes, seconds = (int(found[at] or 0) for at in (4, 5, 6))
    offset_s = (hours * 60 + minutes) * 60 + seconds
    if offset_s > 18 * 3600:
        raise _unreadable(text, kind)
    local = _days(day, kind, text) * _DAY_NS + _nanos_of_day(found[1], text, kind)
    return local - (-offset_s if found[3] == "-" else offset_s) * 10**9


def _uuid(text: str) -> bytes:
    # Java takes short groups too, and keeps the low digits of long ones.
    groups = text.split("-")
    if len(text) > 36 or len(groups) != 5 or not all(re.fullmatch("[0-9a-fA-F]{1,15}", each) for each in groups):
        raise _unreadable(text, "uuid")
    return bytes.fromhex(
        "".join(each.zfill(digits)[-digits:] for each, digits in zip(groups, (8, 4, 4, 4, 12), strict=True))
    )


def _from_hex(text: str) -> bytes | None:
    return bytes.fromhex(text) if re.fullmatch("([0-9a-fA-F]{2})*", text) else None


def _in_long(number: int, written: Value, kind: str) -> int:
    if not LONG_MIN <= number <= LONG_MAX:
        raise _unreadable(value_text(written), kind)
    return number


def _unreadable(text: str, kind: str) -> ValidationFailed:
    example = {
        "date": "2020-01-31",
        "time": "10:15:30",
        "timestamp": "2020-01-31T10:15:30",
        "timestamptz": "2020-01-31T10:15:30+00:00",
        "timestamp_ns": "2020-01-31T10:15:30.000000001",
        "timestamptz_ns": "2020-01-31T10:15:30.000000001+00:00",
        "uuid": "f79c3e09-677c-4bbd-a479-3f349cb785e7",
    }.get(kind, "12.34")
    return ValidationFailed(
        f"the filter's value {text!r} is no {kind}; write it like {example!r}", rule="filter.literal"
    )

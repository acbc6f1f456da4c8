"""Partition transforms: what they make of a value, and what a filter on a column says about its partitions.

An inclusive projection matches every partition that may hold a matching row; a strict one matches only partitions
whose rows all match. Source: Iceberg 1.12, `Transform` and its classes, `ProjectionUtil`; specification, "Partition
Transforms" and Appendix B. Old quirks are kept, for the sake of equal verdicts; each says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import mmh3

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.iceberg.expressions import SETS, UNARY, Bound, Predicate
from icetower.iceberg.literals import Value, wrap

KEPT_CHARACTERS_MAX = 200
_WIDE = Context(prec=1000)
_TIMES = ("year", "month", "day", "hour")
_SECOND_US, _SECOND_NS = 10**6, 10**9
_BITS = {
    **dict.fromkeys(("int", "date"), 32),
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), 64),
}


def apply(transform: str, source_type: str, value: Value | None) -> Value | None:
    """The partition value of a column's internal value; null stays null.

    Raises:
        ValidationFailed: a transform that is unknown, or that doesn't take the type.
    """
    if value is None or transform.lower() == "void":
        return None
    return _function_of(transform, source_type)(value)


def project(transform: str, source_type: str, field_name: str, predicate: Bound) -> Predicate | None:
    """The inclusive projection on the partition field `field_name`; None where nothing can be said.

    Its literals are internal values of the field's type.
    """
    return _project(transform, source_type, field_name, predicate, strict=False)


def project_strict(transform: str, source_type: str, field_name: str, predicate: Bound) -> Predicate | None:
    """The strict projection on the partition field `field_name`; None where nothing can be said."""
    return _project(transform, source_type, field_name, predicate, strict=True)


def _project(transform: str, source_type: str, field: str, predicate: Bound, *, strict: bool) -> Predicate | None:
    kind, width = _parse(transform)
    if kind == "identity":
        return Predicate(predicate.op, field, predicate.literals)
    if kind not in ("bucket", "truncate", *_TIMES):
        return None
    if predicate.op in UNARY:
        return Predicate(predicate.op, field)
    function = _function_of(transform, source_type)
    if predicate.op in SETS:
        if predicate.op != ("not-in" if strict else "in"):
            return None
        projected = Predicate(predicate.op, field, tuple(function(value) for value in predicate.literals))
    else:
        found = _project_literal(kind, width, source_type, predicate, function, strict=strict)
        if found is None:
            return None
        projected = Predicate(found[0], field, (found[1],))
    if kind in _TIMES and not (kind == "day" and source_type == "date"):
        return _off_by_one(projected, strict=strict)
    return projected


def _project_literal(
    kind: str, width: int, source_type: str, predicate: Bound, function: Callable[[Any], Value], *, strict: bool
) -> tuple[str, Value] | None:
    op, value = predicate.op, predicate.literals[0]
    if kind == "bucket":
        return (op, function(value)) if op == ("not-eq" if strict else "eq") else None
    if isinstance(value, str):
        return _project_text(op, value, width, strict=strict)
    if isinstance(value, bytes):
        return _project_array(op, function(value), strict=strict)
    if strict:
        step, projected = {"lt": (0, "lt"), "lt-eq": (1, "lt"), "gt": (0, "gt"), "gt-eq": (-1, "gt")}.get(op, (0, op))
        return (projected, function(_stepped(value, step, source_type))) if op not in ("eq",) else None
    step, projected = {"lt": (-1, "lt-eq"), "gt": (1, "gt-eq")}.get(op, (0, op))
    return (projected, function(_stepped(value, step, source_type))) if op != "not-eq" else None


def _project_text(op: str, value: str, width: int, *, strict: bool) -> tuple[str, Value] | None:
    short = value[:width]
    if op not in ("starts-with", "not-starts-with"):
        return _project_array(op, short, strict=strict)
    # Iceberg counts characters outside the basic plane twice here, but once when it cuts.
    length = len(value.encode("utf-16-le")) // 2
    if length < width:
        return op, value
    if length == width:
        return "eq" if op == "starts-with" else "not-eq", value
    return (op, short) if (op == "not-starts-with") is strict else None


def _project_array(op: str, short: Value, *, strict: bool) -> tuple[str, Value] | None:
    if op in ("lt", "lt-eq"):
        return "lt" if strict else "lt-eq", short
    if op in ("gt", "gt-eq"):
        return "gt" if strict else "gt-eq", short
    return (op, short) if op == ("not-eq" if strict else "eq") else None


def _stepped(value: Any, step: int, source_type: str) -> Any:
    """The next or last value of a discrete type; over the end Java's numbers begin again."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return _WIDE.add(value, Decimal((int(step < 0), (abs(step),), exponent)))  # pyright: ignore[reportArgumentType]
    return wrap(value + step, _BITS[source_type])


def _off_by_one(projected: Predicate, *, strict: bool) -> Predicate:
    """Iceberg up to 0.10 gave times before 1970 the next partition, so both are allowed for."""
    op, values = projected.op, [int(value) for value in projected.literals]  # pyright: ignore[reportArgumentType]
    if op in SETS:
        return Predicate(op, projected.column, (*values, *(value + 1 for value in values if value < 0)))
    first = values[0]
    if (op == "lt-eq" and first < 0) or (strict and op == "gt" and first <= 0):
        return Predicate(op, projected.column, (first + 1,))
    if op in ("eq", "not-eq") and first < 0:
        return Predicate("in" if op == "eq" else "not-in", projected.column, (first, first + 1))
    return projected


def _parse(transform: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\w+)\[(\d{1,10})\]", transform, re.ASCII)
    if found is None:
        return transform.lower(), 0
    name = found[1].lower()
    return (name, int(found[2])) if name in ("bucket", "truncate") else (transform, 0)


def _function_of(transform: str, source_type: str) -> Callable[[Any], Value]:
    """A transform of a type. What is written at length is not kept: a type's parameters may have any length."""
    long = len(transform) + len(source_type) > KEPT_CHARACTERS_MAX
    return _function.__wrapped__(transform, source_type) if long else _function(transform, source_type)


@lru_cache(maxsize=1024)
def _function(transform: str, source_type: str) -> Callable[[Any], Value]:
    kind, width = _parse(transform)
    hashed = _HASHED.get(source_type.split("[")[0]) if not parse_decimal(source_type) else _decimal_bytes
    match kind:
        case "identity":
            return lambda value: value
        case "bucket" if hashed is not None and width > 0:
            return lambda value: (mmh3.hash(hashed(value)) & 0x7FFFFFFF) % width
        case "truncate" if source_type in ("int", "long") and width > 0:
            return lambda value: _truncate_whole(value, width, _BITS[source_type])
        case "truncate" if parse_decimal(source_type) and width > 0:
            return lambda value: _truncate_decimal(value, width)
        case "truncate" if source_type in ("string", "binary") and width > 0:
            return lambda value: value[:width]
        case "year" | "month" | "day" if source_type == "date":
            return lambda value: _of_date(kind, value)
        case "year" | "month" | "day" | "hour" if source_type in ("timestamp", "timestamptz"):
            return lambda value: wrap(_of_instant(kind, value, _SECOND_US), 32)
        case "year" | "month" | "day" | "hour" if source_type in ("timestamp_ns", "timestamptz_ns"):
            return lambda value: _of_instant(kind, value, _SECOND_NS)
        case _:
            raise ValidationFailed(
                f"the partition transform {transform!r} can't be applied to a column of type {source_type}; "
                "take one that Iceberg's specification allows for it",
                rule="transform",
            )


def _long_bytes(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _decimal_bytes(value: Decimal) -> bytes:
    number = _unscaled(value)
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


_HASHED: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("int", "long", "date", "time", "timestamp", "timestamptz"), _long_bytes),
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), lambda nanos: _long_bytes(nanos // 1000)),
    "string": str.encode,
    **dict.fromkeys(("uuid", "binary", "fixed"), bytes),
}


def _unscaled(value: Decimal) -> int:
    return int(value.scaleb(-int(value.as_tuple().exponent), _WIDE))


def _truncate_whole(value: int, width: int, bits: int) -> int:
    # As in Java, where `%` takes the sign of its left side and sums wrap round.
    left = abs(value) % width * (1 if value >= 0 else -1)
    moved = wrap(left + width, bits)
    return wrap(value - abs(moved) % width * (1 if moved >= 0 else -1), bits)


def _truncate_decimal(value: Decimal, width: int) -> Decimal:
    number = _unscaled(value)
    return Decimal(number - number % width).scaleb(int(value.as_tuple().exponent), _WIDE)


def _of_date(kind: str, days: int) -> int:
    if kind == "day":
        return days
    return _whole_units(kind, days) if days >= 0 else _whole_units(kind, days + 1) - 1


def _of_instant(kind: str, value: int, second: int) -> int:
    """Years, months, days or hours since 1970 of a timestamp with `second` parts a second, rounded down.

    Before 1970 and one part short of a full second, Iceberg lands a second too early: the unit may be one too low.
    """
    seconds = value // second
    if value >= 0:
        return _of_parts(kind, seconds * second + value % second, second)
    return _of_parts(kind, seconds * second + (value + 1) % second, second) - 1


def _of_parts(kind: str, parts: int, second: int) -> int:
    if kind == "hour":
        return _towards_zero(parts, 3600 * second)
    return _whole_units(kind, _towards_zero(parts, 86_400 * second))


def _whole_units(kind: str, days: int) -> int:
    """Full days, months or years between 1970-01-01 and a day, signed."""
    if kind == "day":
        return days
    eras, rest = divmod(days, 146_097)  # the calendar repeats after 400 years, and `datetime` ends at year 9999
    day = date(1970, 1, 1) + timedelta(rest)
    months = (400 * eras + day.year - 1970) * 12 + day.month - 1
    if days < 0 and day.day > 1:
        months += 1
    return months if kind == "month" else _towards_zero(months, 12)


def _towards_zero(number: int, divisor: int) -> int:
    return number // divisor if number >= 0 else -(-number // divisor)

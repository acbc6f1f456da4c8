"""Default values of columns as table metadata writes them: what Iceberg's Java could not read is refused. Pure.

Source: specification, Appendix D ("JSON single-value serialization"), and Iceberg's `SingleValueParser`.
"""

from __future__ import annotations

import re
from datetime import date, time
from typing import Any

from icetower.errors import BadRequest

# Digits are ASCII's: Python's \d and int() take those of every script, Java's parsers of dates and decimals do not.
_TIME = r"(\d{2}:\d{2}(?::\d{2}(?:\.\d{1,%d})?)?)"
_MICROS, _NANOS = re.compile(_TIME % 6, re.ASCII), re.compile(_TIME % 9, re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FIXED = re.compile(r"fixed\[(\d{1,10})\]", re.ASCII)
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)", re.ASCII)
_HEX = re.compile(r"([0-9a-fA-F]{2})*")
_BITS = {"int": 32, "long": 64}


def check_default(value: Any, type_: Any, what: str) -> None:
    """Raises `BadRequest` where `value` (JSON) is no default of a column of that type, which `what` names."""
    if not (isinstance(type_, str) and _fits(value, type_)):
        shown = type_ if isinstance(type_, str) else "struct, list or map"
        raise BadRequest(
            f"{what} is {str(value)[:100]!r}, which is no value of a {shown} column as Iceberg writes it in JSON "
            "(specification, Appendix D); columns with fields of their own take no default",
            rule="schema.default",
        )


def _fits(value: Any, type_: str) -> bool:
    if type_ == "boolean":
        return isinstance(value, bool)
    if type_ in _BITS:
        half = 1 << (_BITS[type_] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -half <= value < half
    if type_ in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str):
        return False
    if type_ == "string":
        return True
    if type_ == "binary":
        return _HEX.fullmatch(value) is not None
    if type_ == "uuid":
        return _UUID.fullmatch(value) is not None
    if found := _FIXED.fullmatch(type_):
        return _HEX.fullmatch(value) is not None and len(value) == 2 * int(found[1])
    if found := _DECIMAL.fullmatch(type_):
        return _is_decimal(value, int(found[1]), int(found[2]))
    return _is_moment(value, type_)


def _is_decimal(value: str, precision: int, scale: int) -> bool:
    found = _NUMBER.fullmatch(value)
    return (
        found is not None
        and len(found[2] or "") == scale
        and len((found[1] + (found[2] or "")).lstrip("0")) <= precision
    )


def _is_moment(value: str, type_: str) -> bool:
    if type_ == "date":
        return _is_date(value)
    if type_ == "time":
        return _is_time(value, _MICROS)
    zoned = type_ in ("timestamptz", "timestamptz_ns")
    if not zoned and type_ not in ("timestamp", "timestamp_ns"):
        return False
    day, separator, rest = value.partition("T")
    if zoned:
        rest, offset, _ = rest.partition("+00:00")
        if not offset or value.count("+") != 1 or not value.endswith("+00:00"):
            return False
    return bool(separator) and _is_date(day) and _is_time(rest, _NANOS if type_.endswith("_ns") else _MICROS)


def _is_date(value: str) -> bool:
    if not _DATE.fullmatch(value):
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_time(value: str, form: re.Pattern[str]) -> bool:
    if not form.fullmatch(value):
        return False
    try:
        time.fromisoformat(value.partition(".")[0])
    except ValueError:
        return False
    return True

"""Values of every type that a table may be partitioned by, and texts of what transforms make of them.

The values of one pool lie near each other, so that they share partitions; now and then one is extreme.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

KINDS = {
    "timestamptz": 8, "timestamp": 6, "timestamp_ns": 3, "timestamptz_ns": 3, "date": 7, "int": 6, "long": 6,
    "string": 6, "decimal(9, 2)": 4, "binary": 3, "uuid": 2, "boolean": 2, "fixed[4]": 1, "time": 1,
}  # fmt: skip
"""Types by how often they are met."""

TIMES = ("year", "month", "day", "hour")
BUCKETS = (2, 3, 4, 6, 8, 16)
WIDTHS = (1, 2, 3, 5, 10, 100)
DAY_S = 86_400
LEAST = {"int": -(2**31), "date": -(2**31), "long": -(2**63)}
"""The least value of a type; timestamps have a long's."""

_EPOCH = dt.date(1970, 1, 1).toordinal()
_DAYS = tuple(
    dt.date.fromisoformat(text).toordinal() - _EPOCH
    for text in ("1970-01-01", "1970-01-01", "1969-12-31", "1968-02-29", "1900-03-01", "2016-02-28", "2017-01-31")
)
_STEPS_S = (0, 0, 1, 1799, 3600, 7200, DAY_S - 1, DAY_S, 2 * DAY_S, 27 * DAY_S, 31 * DAY_S, 366 * DAY_S)
_WORDS = ("", "a", "ab", "abc", "abd", "abcdefghijkl", "b", "ba", "é", "éa", "\U0001f600", "\U0001f600x", "z", "null")
_ARRAYS = (b"", b"\x00", b"\x00\x01", b"\x00\x02", b"a", b"ab", b"abc", b"\xff", b"\xff\xff", b"\xff\xff\x01")


def transforms_of(kind: str) -> tuple[str, ...]:
    """The transforms that a type takes (specification, "Partition Transforms"), the usual ones more than once."""
    buckets = tuple(f"bucket[{count}]" for count in BUCKETS)
    widths = tuple(f"truncate[{width}]" for width in WIDTHS)
    if kind.startswith("timestamp"):
        return (*("identity",) * 3, *TIMES, *TIMES, *buckets[:3])
    if kind == "date":
        return ("identity", *TIMES[:3], *TIMES[:3], *buckets[:3])
    if kind in ("int", "long", "string", "binary") or kind.startswith("decimal"):
        return ("identity",) * 4 + buckets + widths
    return ("identity",) if kind == "boolean" else ("identity", *buckets)


def pool(rng: Random, kind: str, now_ms: int) -> list[Any]:
    """A few values of a type, with null now and then."""
    draw = _drawing(rng, kind, now_ms)
    found = [draw() for _ in range(rng.randint(2, 5))]
    if rng.random() < 0.3:
        found.append(None)
    return list(dict.fromkeys(found))


def _drawing(rng: Random, kind: str, now_ms: int) -> Callable[[], Any]:
    if kind.startswith("timestamp") or kind in LEAST:
        return _numbers(rng, kind, now_ms)
    match kind:
        case "string":
            return lambda: rng.choice(_WORDS)
        case "binary":
            return lambda: rng.choice(_ARRAYS)
        case "boolean":
            return lambda: rng.random() < 0.5
        case "uuid":
            return lambda: uuid.UUID(int=rng.choice((0, 1, 1 << 64, (1 << 128) - 1, 1 << 127))).bytes
        case "fixed[4]":
            return lambda: bytes((rng.choice((0, 255)), 0, 0, rng.randrange(4)))
        case "time":
            return lambda: rng.choice((0, 1, DAY_S * 10**6 - 1, 3600 * 10**6))
        case _:
            near = rng.choice((0, -300, 12_345))
            return lambda: Decimal(rng.choice((near + rng.randint(-3, 220), 0, 999_999_900, -999_999_900))).scaleb(-2)


def _numbers(rng: Random, kind: str, now_ms: int) -> Callable[[], int]:
    least = LEAST.get(kind, LEAST["long"])
    if kind in ("int", "long"):
        near, steps = rng.choice((0, 0, -7, 95, 1000)), (0, 1, 2, 3, 4, 5, 9, 10, 30, -1, -3)
        unit = odd = 1
    elif kind == "date":
        near, steps = rng.choice((*_DAYS, now_ms // 1000 // DAY_S)), (0, 0, 1, 2, 27, 31, 59, 366)
        unit = odd = 1
    else:
        unit = 10**9 if kind.endswith("_ns") else 10**6
        near = rng.choice((*(day * DAY_S for day in _DAYS), now_ms // 3_600_000 * 3600, now_ms // 1000)) * unit
        steps, odd = _STEPS_S, unit - 1

    def draw() -> int:
        if rng.random() < 0.06:
            return rng.choice((least, least + 1, least + 6, -least - 1, -least - 3))
        # A part of a second, its last one too: before 1970 Iceberg puts that into an earlier hour.
        part = rng.choice((0, 0, 1, -1, odd, odd)) if unit > 1 else 0
        return near + rng.choice((1, 1, 1, -1)) * rng.choice(steps) * unit + part

    return draw


def days_before(year: int, month: int) -> int:
    """Days from 1970 to the first day of a month (0 to 11), in whatever year: the calendar repeats after 400."""
    eras, rest = divmod(year - 1970, 400)
    return dt.date(1970 + rest, month + 1, 1).toordinal() - _EPOCH + eras * 146_097


# ------------------------------------------------------------------------------------------------ texts for a contract


def text_of(transform: str, kind: str, value: Any) -> str | None:
    """A value of a transform as a contract writes it; None where nobody could."""
    if transform in TIMES:
        return _time_text(transform, value)
    if transform.startswith("bucket") or kind in ("int", "long"):
        return str(value)
    match kind:
        case "date":
            return _time_text("day", value)
        case "string":
            return value if not re.fullmatch(r"now.*", value) else None
        case "boolean":
            return "true" if value else "false"
        case "uuid":
            return str(uuid.UUID(bytes=value))
        case "time":
            return str((dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)).time())  # noqa: DTZ001
        case _ if kind.startswith("timestamp"):
            return _moment_text(kind, value)
        case _:
            return value.hex() if isinstance(value, bytes) else str(value)


def _time_text(unit: str, value: int) -> str | None:
    try:
        if unit in ("year", "month"):
            year, month = (value, 0) if unit == "year" else divmod(value, 12)
            return f"{dt.date(1970 + year, 1, 1).year:04d}" + (f"-{month + 1:02d}" if unit == "month" else "")
        days, hour = divmod(value, 24) if unit == "hour" else (value, 0)
        day = dt.date.fromordinal(_EPOCH + days).isoformat()
    except (ValueError, OverflowError):
        return None  # before the year 1, or after 9999
    return f"{day}T{hour:02d}" if unit == "hour" else day


def _moment_text(kind: str, value: int) -> str | None:
    micros, rest = divmod(value, 1000) if kind.endswith("_ns") else (value, 0)
    try:
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)  # noqa: DTZ001
    except OverflowError:
        return None
    return None if rest else moment.isoformat()

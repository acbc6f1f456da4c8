"""Values of a contract's regions, understood by partition field: text → the raw value that manifests hold.

Specification: "Partition Transforms". Days, hours, months and years are counted from 1970, times in microseconds
(`timestamp_ns`: nanoseconds), UUIDs are 16 bytes, binary values are written in hexadecimal.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any

from icetower.contracts.regions import NOW, Extent, Values
from icetower.contracts.slots import Turn
from icetower.iceberg.partitions import PartitionField

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T-](\d\d))?)?)?")
_CALENDAR = ("year", "month", "day", "hour")
_NOW = re.compile(rf"{NOW}(?:([+-]\d{{1,9}})([mhdw]))?")
_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class NotUnderstood(ValueError):
    """A value of a contract means nothing for the field that it is given for; the text says why."""


class Membership(Enum):
    """Whether a set of values is inside an extent, a region or a contract, outside of it, or neither for certain."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    PARTLY = "partly"


@dataclass(frozen=True, slots=True)
class Compiled:
    """An extent for one partition field. `values` None: the half-open range from `start` to `end`."""

    values: frozenset[Any] | None
    start: Any = None
    end: Any = None

    def of(self, raw: Any) -> Membership:
        """Where one value lies, which may be of any type that a manifest can hold."""
        if self.values is not None:
            return _membership(raw in self.values)
        if raw is None:
            return Membership.OUTSIDE
        try:
            return _membership((self.start is None or raw >= self.start) and (self.end is None or raw < self.end))
        except TypeError:
            return Membership.OUTSIDE  # not a value of this field, whatever the manifest says

    def of_span(self, low: Any, high: Any, count: int | None) -> Membership:
        """Where the values from `low` to `high` lie, of which there are `count` (None: more than can be listed)."""
        if self.values is not None:
            held = sum(value is not None and low <= value <= high for value in self.values)
            return Membership.OUTSIDE if not held else _inside_if(held == count)
        if (self.end is not None and low >= self.end) or (self.start is not None and high < self.start):
            return Membership.OUTSIDE
        return _inside_if((self.start is None or low >= self.start) and (self.end is None or high < self.end))

    def of_prefix(self, prefix: Any) -> Membership:
        """Where all texts lie that begin with `prefix` (or all byte strings)."""
        if self.values is not None:
            return _outside_if(not any(value is not None and value.startswith(prefix) for value in self.values))
        start, end = self.start, self.end
        if end is not None and (prefix >= end):
            return Membership.OUTSIDE
        if start is not None and start > prefix and not start.startswith(prefix):
            return Membership.OUTSIDE
        return _inside_if((start is None or prefix >= start) and (end is None or not end.startswith(prefix)))

    def of_some(self, values: Collection[Any]) -> Membership:
        """Where a few values lie, one of which it is."""
        found = {self.of(value) for value in values}
        return found.pop() if len(found) == 1 else Membership.PARTLY


def _membership(held: bool) -> Membership:
    return Membership.INSIDE if held else Membership.OUTSIDE


def _inside_if(held: bool) -> Membership:
    return Membership.INSIDE if held else Membership.PARTLY


def _outside_if(apart: bool) -> Membership:
    return Membership.OUTSIDE if apart else Membership.PARTLY


def compile_extent(field: PartitionField, extent: Extent, now_ms: int) -> Compiled:
    """What `extent` means for `field` at `now_ms` (milliseconds since 1970). Raises `NotUnderstood`."""
    if isinstance(extent, Turn):
        return _of_turn(field, extent, now_ms)
    if isinstance(extent, Values):
        parse = _parser(field, now_ms, exact=True)
        return Compiled(frozenset(None if text is None else _read(parse, text, field) for text in extent.values))
    parse = _parser(field, now_ms, exact=False)
    start, end = (None if text is None else _read(parse, text, field) for text in (extent.start, extent.end))
    return Compiled(None, start, end)


def _of_turn(field: PartitionField, turn: Turn, now_ms: int) -> Compiled:
    unit = "day" if field.transform == "identity" and field.source_type == "date" else field.transform
    unit_ms = {"hour": 3_600_000, "day": 86_400_000}.get(unit, 1)
    held = turn.held(now_ms)
    first, end = (_at(field, moment_ms, "a slot") for moment_ms in held or turn.slot(now_ms))
    if unit in ("month", "year") or any(ms % unit_ms for ms in (turn.every_ms, turn.start_ms, turn.end_ms)):
        raise NotUnderstood(
            f"a slot {turn} is not of whole {unit}s, as {field.name} ({field.transform}) counts; slots that are "
            "shorter need a column of times that the table is partitioned by as it is"
        )
    return Compiled(frozenset()) if held is None else Compiled(None, first, end)


def _read(parse: Callable[[str], Any], text: str, field: PartitionField) -> Any:
    try:
        return parse(text)
    except (ValueError, InvalidOperation, OverflowError) as error:
        reason = str(error) if isinstance(error, NotUnderstood) else f"cannot be read as {_form(field)}"
        raise NotUnderstood(f"value {text!r} of {field.name} ({field.transform}): {reason}") from None


def _form(field: PartitionField) -> str:
    forms = {"year": "a year like 2017", "month": "a month like 2017-01", "day": "a day like 2017-01-31"}
    forms["hour"] = "an hour like 2017-01-31T05"
    kind = field.transform if field.transform in forms else _type_of(field)
    return forms.get(kind, f"{kind}")


def _type_of(field: PartitionField) -> str:
    return "int" if field.transform.startswith("bucket") else field.source_type


def _parser(field: PartitionField, now_ms: int, *, exact: bool) -> Callable[[str], Any]:
    """How texts for `field` are read; a bound of a range (not `exact`) may be coarser than the field: its beginning."""
    parse = _parser_of_texts(field, exact=exact)

    def read(text: str) -> Any:
        moment_ms = moment_of(text, now_ms)
        return parse(text) if moment_ms is None else _at(field, moment_ms, text)

    return read


def moment_of(text: str, now_ms: int) -> int | None:
    """The moment that ``now``, ``now+2h`` or ``now-30m`` names, in milliseconds; None for any other text."""
    found = _NOW.fullmatch(text)
    if found is None:
        return None
    return now_ms + (0 if found[1] is None else int(found[1]) * _UNITS_MS[found[2]])


def depends_on_now(extent: Extent) -> bool:
    """Whether an extent is another at another time."""
    if isinstance(extent, Turn):
        return True
    texts = extent.values if isinstance(extent, Values) else (extent.start, extent.end)
    return any(text is not None and _NOW.fullmatch(text) is not None for text in texts)


def grain_ms(field: PartitionField, extent: Extent) -> int:
    """For so many milliseconds, from a multiple of them on, an extent relative to now means the same for `field`."""
    if isinstance(extent, Turn):
        return 1
    return 60_000 if field.transform in _CALENDAR or field.source_type == "date" else 1


def _at(field: PartitionField, moment_ms: int, text: str) -> Any:
    """The field's value at a moment: the day, hour or microsecond that it lies in."""
    unit = field.transform
    if unit == "identity":
        if field.source_type == "date":
            unit = "day"
        elif field.source_type.startswith("timestamp"):
            return moment_ms * (1_000_000 if field.source_type.endswith("_ns") else 1_000)
    if unit not in _CALENDAR:
        raise NotUnderstood(f"{text} is a time, and {field.transform} of {field.source_type} has none")
    hours = moment_ms // 3_600_000
    if unit in ("hour", "day"):
        return hours if unit == "hour" else hours // 24
    date = dt.date.fromordinal(_EPOCH_DAY + hours // 24)
    return date.year - 1970 if unit == "year" else (date.year - 1970) * 12 + date.month - 1


def _parser_of_texts(field: PartitionField, *, exact: bool) -> Callable[[str], Any]:
    transform = field.transform
    if transform in _CALENDAR:
        return lambda text: _calendar(text, transform, exact=exact)
    if bucket := re.fullmatch(r"bucket\[(\d{1,10})\]", transform, re.ASCII):
        return lambda text: _bucket(text, int(bucket[1]), exact=exact)
    if transform == "identity" or transform.startswith("truncate["):
        return lambda text: _typed(text, field.source_type, exact=exact)
    raise NotUnderstood(f"partition field {field.name} has the transform {transform!r}, whose values mean nothing here")


def _bucket(text: str, buckets: int, *, exact: bool) -> int:
    number = int(text)
    if not 0 <= number <= (buckets - 1 if exact else buckets):
        raise NotUnderstood(f"there are only the buckets 0 to {buckets - 1}")
    return number


def _calendar(text: str, unit: str, *, exact: bool) -> int:
    """Years, months, days or hours since 1970."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    given = sum(part is not None for part in match.groups())
    wanted = _CALENDAR.index(unit) + 1
    if given > wanted or (exact and given < wanted):
        raise ValueError(text)
    year, month, day, hour = (
        int(part) if part is not None else least for part, least in zip(match.groups(), (1, 1, 1, 0), strict=True)
    )
    date = dt.date(year, month, day)
    if hour > 23:
        raise ValueError(text)
    if unit == "year":
        return year - 1970
    if unit == "month":
        return (year - 1970) * 12 + month - 1
    days = date.toordinal() - _EPOCH_DAY
    return days if unit == "day" else days * 24 + hour


def _typed(text: str, source_type: str, *, exact: bool) -> Any:
    """A value of a source type (specification: "Primitive Types")."""
    if source_type in ("int", "long"):
        return int(text)
    if source_type in ("float", "double"):
        return float(text)
    if source_type.startswith("decimal"):
        return Decimal(text)
    if source_type == "boolean":
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if source_type == "string":
        return text
    if source_type == "date":
        return _calendar(text, "day", exact=exact)
    if source_type == "time":
        moment = dt.time.fromisoformat(text)
        if moment.tzinfo is not None:
            raise ValueError(text)
        return _micros(dt.datetime.combine(dt.date(1970, 1, 1), moment))
    if source_type.startswith("timestamp"):
        return _timestamp(text, source_type)
    if source_type == "uuid":
        return uuid.UUID(text).bytes
    if source_type == "binary" or source_type.startswith("fixed"):
        return bytes.fromhex(text)
    raise NotUnderstood(f"values of the type {source_type} mean nothing here")


def _timestamp(text: str, source_type: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    zoned = source_type.startswith("timestamptz")
    if moment.tzinfo is not None:
        if not zoned:
            raise NotUnderstood(f"a {source_type} has no time zone")
        moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
    micros = _micros(moment)
    return micros * 1000 if source_type.endswith("_ns") else micros


def _micros(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001

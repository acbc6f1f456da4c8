"""Values of a contract's regions, understood by partition field: text → the raw value that manifests hold.

Specification: "Partition Transforms". Days, hours, months and years are counted from 1970, times in microseconds
(`timestamp_ns`: nanoseconds), UUIDs are 16 bytes, binary values are written in hexadecimal.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from icetower.contracts.model import Extent, Values
from icetower.table.partitions import PartitionField

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T-](\d\d))?)?)?")
_CALENDAR = ("year", "month", "day", "hour")


class NotUnderstood(ValueError):
    """A value of a contract means nothing for the field that it is given for; the text says why."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """An extent for one partition field. `values` None: the half-open range from `start` to `end`."""

    values: frozenset[Any] | None
    start: Any = None
    end: Any = None

    def holds(self, raw: Any) -> bool:
        if self.values is not None:
            return raw in self.values
        if raw is None:
            return False
        try:
            return bool((self.start is None or raw >= self.start) and (self.end is None or raw < self.end))
        except TypeError:
            return False  # not a value of this field, whatever the manifest says


def compile_extent(field: PartitionField, extent: Extent) -> Compiled:
    """What `extent` means for `field`. Raises `NotUnderstood`."""
    if isinstance(extent, Values):
        parse = _parser(field, exact=True)
        return Compiled(frozenset(None if text is None else _read(parse, text, field) for text in extent.values))
    parse = _parser(field, exact=False)
    start, end = (None if text is None else _read(parse, text, field) for text in (extent.start, extent.end))
    return Compiled(None, start, end)


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


def _parser(field: PartitionField, *, exact: bool) -> Callable[[str], Any]:
    """How texts for `field` are read; a bound of a range (not `exact`) may be coarser than the field: its beginning."""
    transform = field.transform
    if transform in _CALENDAR:
        return lambda text: _calendar(text, transform, exact=exact)
    if bucket := re.fullmatch(r"bucket\[(\d+)\]", transform):
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

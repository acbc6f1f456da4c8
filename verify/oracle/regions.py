"""Is one row in what a contract grants? Read from docs/contracts.md, row by row: value, transform, extent.

Nothing of `icetower.contracts` is used here. Texts are read by rules of their own, so that a mistake of the gate's in
reading one shows as well. What a transform makes of a value is `iceberg.transforms`, which is held against Iceberg.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from icetower.contracts.model import Operation
from icetower.errors import ValidationFailed
from verify.oracle.cases import Case, Extent, Region, Row, Rule, Term
from verify.oracle.tables import applied

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
_LENGTHS = {"year": 4, "month": 7, "day": 10, "hour": 13}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICRO = dt.timedelta(microseconds=1)

GRANTED_BY: dict[Operation, frozenset[Operation]] = {
    operation: frozenset({operation, Operation.OVERWRITE})
    for operation in (Operation.APPEND, Operation.DELETE, Operation.REPLACE, Operation.OVERWRITE)
}
"""Who may overwrite may do the others too."""


class Grants:
    """What the rules of a case grant, row by row."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._columns = {column.name: at for at, column in enumerate(case.columns) if column.name is not None}
        self._meanings: dict[tuple[Term, int], tuple[str, int] | None] = {}
        self._told: dict[tuple[int, tuple[str, int], Any], bool | None] = {}

    def owns(self, rule: Rule, row: Row, spec: int) -> bool:
        """Whether a rule's regions hold a row of a file of `spec`. What cannot be determined is not owned."""
        if rule.regions is not None and not any(self._holds(region, row, spec) is True for region in rule.regions):
            return False
        return all(self._holds(region, row, spec) is False for region in rule.excluded)

    def granting(self, operation: Operation) -> tuple[Rule, ...]:
        return tuple(rule for rule in self._case.rules if rule.operations & GRANTED_BY[operation])

    def grants(self, operation: Operation, row: Row, spec: int) -> bool:
        return any(self.owns(rule, row, spec) for rule in self.granting(operation))

    def _holds(self, region: Region, row: Row, spec: int) -> bool | None:
        found = [self._within(term, extent, row, spec) for term, extent in region]
        return False if False in found else None if None in found else True

    def _within(self, term: Term, extent: Extent, row: Row, spec: int) -> bool | None:
        """Whether a row's value of a term lies in an extent; None where the term or the extent means nothing."""
        if (term, spec) not in self._meanings:
            self._meanings[term, spec] = self.meaning(term, spec)
        meant = self._meanings[term, spec]
        if meant is None:
            return None
        key = (id(extent), meant, row[meant[1]])
        if key not in self._told:
            self._told[key] = self._tell(extent, *meant, row)
        return self._told[key]

    def _tell(self, extent: Extent, transform: str, at: int, row: Row) -> bool | None:
        kind = self._case.columns[at].kind
        known = read(extent, transform, kind, self._case.now_ms)
        try:
            return None if known is None else known.holds(applied(transform, kind, row[at]))
        except ValidationFailed:
            return None

    def meaning(self, term: Term, spec: int) -> tuple[str, int] | None:
        """Transform and column of a term, for files of `spec`; None where the table has none, or too many."""
        if term.transform is not None:
            at = self._columns.get(term.name)
            return None if at is None else (term.transform, at)
        fields = self._case.specs[spec] if spec < len(self._case.specs) else ()
        for field in fields:
            if field.name == term.name and field.transform != "void":
                return field.transform, field.column
        elsewhere = {
            (field.transform, field.column)
            for each in self._case.specs
            for field in each
            if field.name == term.name and field.transform != "void"
        }
        return elsewhere.pop() if len(elsewhere) == 1 else None


class Known:
    """An extent with its texts read."""

    def __init__(self, values: Iterable[Any] | None, start: Any, end: Any) -> None:
        self.values = None if values is None else list(values)
        self.start = start
        self.end = end

    def holds(self, value: Any) -> bool:
        if self.values is not None:
            return value in self.values
        if value is None:
            return False
        return (self.start is None or self.start <= value) and (self.end is None or value < self.end)


def read(extent: Extent, transform: str, kind: str, now_ms: int) -> Known | None:
    """What an extent means for a transform of a type; None where it means nothing."""
    try:
        if extent.values is not None:
            return Known([None if t is None else _value(t, transform, kind, now_ms) for t in extent.values], None, None)
        sides = (extent.start, extent.end)
        start, end = (None if text is None else _bound(text, transform, kind, now_ms) for text in sides)
    except (ValueError, ArithmeticError, LookupError):
        return None
    return Known(None, start, end)


def _bound(text: str, transform: str, kind: str, now_ms: int) -> Any:
    """The value that a bound of a range means. A time may be coarser than asked for, and means where it begins."""
    if transform.startswith("bucket") and text == transform[7:-1]:
        return int(text)  # the end of all buckets
    unit = "day" if kind == "date" and transform == "identity" else transform
    for coarser in _FORMATS if unit in _FORMATS else ():
        if coarser == unit:
            break
        if (found := _moment(text, coarser)) is not None:
            return _in_unit(found, unit)
    return _value(text, transform, kind, now_ms)


def _value(text: str, transform: str, kind: str, now_ms: int) -> Any:
    relative = re.fullmatch(r"now(?:([+-]\d+)([mhdw]))?", text)
    if relative is not None:
        seconds = 0 if relative[1] is None else int(relative[1]) * _UNITS_S[relative[2]]
        return _at(_EPOCH + dt.timedelta(milliseconds=now_ms, seconds=seconds), transform, kind)
    if transform in _FORMATS:
        return _in_unit(_needed(_moment(text, transform)), transform)
    if transform.startswith("bucket"):
        number = int(text)
        if not 0 <= number < int(transform[7:-1]):
            raise ValueError(text)
        return number
    return _typed(text, kind)


def _needed(moment: dt.datetime | None) -> dt.datetime:
    if moment is None:
        raise ValueError
    return moment


def _moment(text: str, unit: str) -> dt.datetime | None:
    try:
        found = dt.datetime.strptime(text, _FORMATS[unit]).replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return found if len(text) == _LENGTHS[unit] else None


def _in_unit(moment: dt.datetime, unit: str) -> int:
    if unit == "year":
        return moment.year - 1970
    if unit == "month":
        return (moment.year - 1970) * 12 + moment.month - 1
    return (moment - _EPOCH) // dt.timedelta(**{f"{unit}s": 1})


def _at(moment: dt.datetime, transform: str, kind: str) -> int:
    """A moment that is relative to the clock: the unit that it lies in, or itself."""
    if transform in _FORMATS:
        return _in_unit(moment, transform)
    if transform == "identity" and kind == "date":
        return _in_unit(moment, "day")
    if transform == "identity" and kind.startswith("timestamp"):
        return (moment - _EPOCH) // _MICRO * (1000 if kind.endswith("_ns") else 1)
    raise ValueError(transform)


def _typed(text: str, kind: str) -> Any:
    match kind:
        case "int" | "long":
            return int(text)
        case "string":
            return text
        case "boolean":
            return {"true": True, "false": False}[text]
        case "date":
            return _in_unit(_needed(_moment(text, "day")), "day")
        case "uuid":
            return uuid.UUID(text).bytes
        case "time":
            moment = dt.time.fromisoformat(text)
            seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
            return seconds * 10**6 + moment.microsecond
        case _ if kind.startswith("timestamp"):
            moment = dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
            return (moment - _EPOCH) // _MICRO * (1000 if kind.endswith("_ns") else 1)
        case _ if kind.startswith("decimal"):
            return Decimal(text)
        case _:
            return bytes.fromhex(text)

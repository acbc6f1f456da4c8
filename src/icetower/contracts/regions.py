"""Tables by their names and rows by their partitions, as contracts speak of them: what they are, and how written. Pure.

Values of regions stay text here: what they mean depends on the partition field, which only the table knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from icetower.contracts.fields import JSON, Kind, listed, object_schema
from icetower.contracts.reading import Reader
from icetower.contracts.slots import EVERY, TURN_SCHEMA, Turn, read_turn, turn_json
from icetower.contracts.terms import parse_term
from icetower.protocol.names import Identifier, Namespace

EVERY_PARTITION = "all"
NOW = "now"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Tables by name. `last`: a table's name, ``*`` for every table of the namespace, ``**`` for those under it too."""

    namespace: Namespace
    last: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.last))

    def matches(self, table: Identifier) -> bool:
        if self.last == "**":
            return table.namespace[: len(self.namespace)] == self.namespace
        return table.namespace == self.namespace and self.last in ("*", table.name)

    def covers_namespace(self, namespace: Namespace) -> bool:
        """Whether the pattern grants something on every table that `namespace` may ever hold."""
        if self.last == "**":
            return namespace[: len(self.namespace)] == self.namespace
        return self.last == "*" and namespace == self.namespace

    def reaches(self, namespace: Namespace) -> bool:
        """Whether a table that the pattern matches may lie in `namespace` or under it."""
        return self.namespace[: len(namespace)] == namespace or self.covers_namespace(namespace)


def parse_pattern(text: str) -> Pattern | None:
    """A pattern of its text, or None where it is none: `ns.table`, `ns.*`, `ns.**` or `**`."""
    *namespace, last = text.split(".")
    if any(not level or "*" in level for level in namespace):
        return None
    if last == "**" or (namespace and last and ("*" not in last or last == "*")):
        return Pattern(tuple(namespace), last)
    return None


@dataclass(frozen=True, slots=True)
class Range:
    """Half open: from `start` up to, not including, `end`; None where a side is not bounded. Never holds null.

    Either may be ``now``, ``now+2h`` or ``now-30m``.
    """

    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Values:
    """A set of values; None stands for null."""

    values: tuple[str | None, ...]


Extent = Range | Values | Turn


@dataclass(frozen=True, slots=True)
class Region:
    """Rows for which every term lies within its extent; a term that is not named may have any value.

    A term is the name of a partition field, or a transform of a column: ``day(ts)``, ``bucket(16, product_id)``. With a
    `Turn` it may be ``now``, the clock itself: then the agent owns the rows while its turn is on, and none else.
    """

    fields: tuple[tuple[str, Extent], ...]


def is_clock(name: str, extent: Extent) -> bool:
    """Whether a line of a region speaks of the clock, and of no column."""
    return name == NOW and isinstance(extent, Turn)


def with_joined(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """The regions, and the unions of those that differ in one term only: lists, and ranges that follow each other.

    Two half months own a month together, which neither does by itself. Nothing of what the texts mean is known here.
    """
    alike: dict[tuple[int, Region], list[Extent]] = {}
    for region in regions:
        for at, (name, extent) in enumerate(region.fields):
            rest = Region((*region.fields[:at], (name, _ANY), *region.fields[at + 1 :]))
            alike.setdefault((at, rest), []).append(extent)
    found = dict.fromkeys(regions)
    for (at, rest), extents in alike.items():
        for union in _unions(extents) if len(extents) > 1 else ():
            found[Region((*rest.fields[:at], (rest.fields[at][0], union), *rest.fields[at + 1 :]))] = None
    return tuple(found)


_ANY = Values(())


def _unions(extents: list[Extent]) -> Iterator[Extent]:
    lists = [extent.values for extent in extents if isinstance(extent, Values)]
    if len(lists) > 1:
        yield Values(tuple(dict.fromkeys(value for values in lists for value in values)))
    after = {extent.start: extent for extent in extents if isinstance(extent, Range) and extent.start is not None}
    for first in (extent for extent in extents if isinstance(extent, Range)):
        last, left = first, dict(after)
        while last.end is not None and last.end in left:
            last = left.pop(last.end)
        if last is not first:
            yield Range(first.start, last.end)


# ── As they are written ──────────────────────────────────────────────────────────────────────────────────────────────


def _read_pattern(reader: Reader) -> Pattern:
    pattern = parse_pattern(reader.text())
    if pattern is None:
        raise reader.wrong(
            f"is {reader.text()!r}; write a table with its namespace, such as 'pricing.product_prices', "
            "or 'pricing.*', 'pricing.**' or '**'"
        )
    return pattern


TABLES = Kind(
    _read_pattern,
    {
        "description": "A table with its namespace; ns.* its tables, ns.** all under it, ** all.",
        "type": "string",
        "pattern": r"^(\*\*|[^.*]+(\.[^.*]+)*\.([^.*]+|\*\*?))$",
    },
    str,
)


def _read_region(reader: Reader) -> Region:
    fields = reader.open_fields()
    if not fields:
        raise reader.wrong(f"names no partition field; to own every partition write 'partitions: {EVERY_PARTITION}'")
    for name, value in fields.items():
        try:
            parse_term(name)
        except ValueError as error:
            raise value.wrong(str(error)) from None
    return Region(tuple((name, _extent(value)) for name, value in sorted(fields.items())))


def _extent(reader: Reader) -> Extent:
    if reader.is_mapping():
        if EVERY in reader.open_fields():
            return read_turn(reader)
        bounds = reader.fields(required=(), optional=("from", "to"))
        if not bounds:
            raise reader.wrong("is an empty range; give 'from', 'to' or both")
        start, end = (bounds[side].text() if side in bounds else None for side in ("from", "to"))
        if start is not None and end is not None and _plainly_empty(start, end):
            raise reader.wrong(f"is the range from {start} to {end}, which holds nothing; 'to' is not included")
        return Range(start, end)
    if reader.is_list():
        values = tuple(item.text_or_null() for item in reader.items())
        if not values:
            raise reader.wrong("is an empty list; leave the region out to own nothing")
        return Values(values)
    return Values((reader.text_or_null(),))


_ISO = re.compile(r"\d{4}(-\d\d){0,2}(T\d\d)?")


def _plainly_empty(start: str, end: str) -> bool:
    """True where the bounds can be compared without knowing the field: two dates of one form, or two whole numbers."""
    if re.fullmatch(r"-?\d+", start) and re.fullmatch(r"-?\d+", end):
        return int(start) >= int(end)
    return bool(_ISO.fullmatch(start) and _ISO.fullmatch(end)) and len(start) == len(end) and start >= end


def _extent_json(extent: Extent) -> Any:
    if isinstance(extent, Values):
        return list(extent.values)
    if isinstance(extent, Turn):
        return turn_json(extent)
    return {side: text for side, text in (("from", extent.start), ("to", extent.end)) if text is not None}


_SCALAR = ["string", "number", "boolean"]
_PLAIN = ("identity", "year", "month", "day", "hour", "years", "months", "days", "hours", "date", "date_hour")
_SIZED = ("bucket", "truncate")


def _terms() -> str:
    """A name without parentheses, or a transform, in letters of either case."""
    column = r"[^(),\s]([^(),]*[^(),\s])?"
    plain, sized = ("|".join(map(_either_case, names)) for names in (_PLAIN, _SIZED))
    number = r"0*[1-9]\d*"
    call = (
        rf"(({plain})\(\s*{column}\s*\)|({sized})\(\s*{number}\s*,\s*{column}\s*\)"
        rf"|({sized})\(\s*{column}\s*,\s*{number}\s*\)|({sized})\[{number}\]\(\s*{column}\s*\))"
    )
    return rf"^([^()]*|\s*{call}\s*)$"


def _either_case(word: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


_VALUE: JSON = {"type": [*_SCALAR, "null"]}
_BOUND: JSON = {"description": "A value; or now, now+2h, now-30m (m, h, d or w).", "type": _SCALAR}
_RANGE: JSON = {
    "description": "From a value up to, not including, another.",
    **object_schema({"from": _BOUND, "to": _BOUND}, minProperties=1),
}
ROWS = listed(
    Kind(
        _read_region,
        {
            "description": "Rows for which all of this holds: partition fields by name, or transforms of columns such "
            "as day(ts), bucket(16, id) or truncate(10, sku).",
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"minLength": 1, "pattern": _terms(), "not": {"const": "<<"}},
            "additionalProperties": {
                "description": "A value, a list of values, a range {from: …, to: …}, or a slot {every: …, from: …, "
                "to: …}.",
                "anyOf": [_VALUE, {"type": "array", "minItems": 1, "items": _VALUE}, _RANGE, TURN_SCHEMA],
            },
        },
        lambda region: {name: _extent_json(extent) for name, extent in region.fields},
    )
)
"""Regions."""
OWNED_ROWS = Kind(
    lambda reader: None if reader.is_text(EVERY_PARTITION) else ROWS.read(reader),
    {"anyOf": [{"const": EVERY_PARTITION}, {"description": "Regions of rows, which add up.", **ROWS.schema}]},
    lambda regions: EVERY_PARTITION if regions is None else ROWS.written(regions),
)
"""Regions, or every partition: None."""

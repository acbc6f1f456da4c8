"""From regions to boxes: what the terms of some regions are measured along, so that they can be compared. Pure.

Terms of one column share an axis where each tells the other: years, months, days, hours and moments; two truncations of
a number; two numbers of buckets. A table's `Layout` says which column a partition field is of, and of which type.
Without one (contracts are checked before their tables are there) fields are distinguished by name, and types guessed by
how the values are written; what that leaves open is said by `Axes.why_unsure`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.contracts.boxes import (
    HIGHEST,
    LOWEST,
    Box,
    Cut,
    Spans,
    after,
    before,
    difference,
    intersection,
    span,
    spans_of,
)
from icetower.contracts.model import Rule
from icetower.contracts.owning import Prefix, source_of, width_of
from icetower.contracts.regions import NOW, Extent, Range, Region, is_clock
from icetower.contracts.slots import Turn
from icetower.contracts.terms import Layout, parse_term
from icetower.contracts.values import Compiled, NotUnderstood, compile_extent, moment_of
from icetower.contracts.wording import CALENDAR, CYCLE, OFFSET, spans_text
from icetower.errors import ValidationFailed
from icetower.iceberg.partitions import PartitionField, PartitionSpec, result_of
from icetower.iceberg.transforms import apply

BUCKETS_MAX = 65_536
"""The most buckets to which two numbers of buckets are brought."""
SLOTS_MAX = 1_500
"""The most slots of one rule in the time after which all turns begin again, for turns to be compared."""
_WHOLE = re.compile(r"-?\d+")
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d([T-]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?)?)?")


@dataclass(frozen=True, slots=True)
class Axis:
    """What some terms are measured along.

    Attributes:
        field: in whose values.
        column: that column, or the partition field whose column is unknown.
        known: whether it is a column.
        guessed: whether the order of its values is.
    """

    field: PartitionField
    column: str | int
    known: bool
    guessed: bool


@dataclass(frozen=True, slots=True)
class _Term:
    """What a name in a region means.

    Attributes:
        field: None: the table has nothing of that name.
        column, known, guessed: as of its axis.
    """

    name: str
    field: PartitionField | None
    column: str | int
    known: bool = True
    guessed: bool = False


class Axes:
    """The axes of some regions, which are all that will be asked about.

    Args:
        layout, spec: what their names mean for a table, and its partition spec; None: it is not at hand.
        now_ms: the moment for what is relative to now, in milliseconds since 1970; None: times relative to now are
            compared with each other alone.
        as_text: values whose type is not known are taken for texts, not for numbers.
    """

    def __init__(
        self,
        regions: Iterable[Region],
        *,
        layout: Layout | None = None,
        spec: PartitionSpec | None = None,
        now_ms: int | None = None,
        as_text: bool = False,
    ) -> None:
        extents: dict[str, list[Extent]] = {}
        for region in regions:
            for name, extent in region.fields:
                extents.setdefault(name, []).append(extent)
        self._now_ms = now_ms
        terms = [_term(name, some, layout, spec, as_text) for name, some in extents.items()]
        self._offsets = _only_relative(terms, extents) if now_ms is None else frozenset[str]()
        self._cycles = _cycles(terms, extents)
        self._terms = {term.name: term for term in terms}
        self._axes = _axes_of(terms, self._offsets, self._cycles)

    def box(self, region: Region) -> Box | None:
        """The rows of a region; None where it holds none.

        Raises:
            NotUnderstood: a name or a value means nothing, or times relative to now stand beside others.
        """
        box: dict[Any, Spans] = {}
        for name, extent in region.fields:
            term, axis = self._terms[name], self._axes.get(name)
            if term.field is None or axis is None:
                raise NotUnderstood(f"the table has no partition field and no column for {name!r}")
            spans = self._spans(term.field, axis.field, name, extent)
            box[axis] = box[axis] & spans if axis in box else spans
            if not box[axis]:
                return None
        return box

    def boxes(self, rule: Rule) -> list[Box]:
        """The rows that a rule speaks of. Raises `NotUnderstood`, and `TooMany` for a contract beyond all measure."""
        given = [{}] if rule.partitions is None else [self.box(region) for region in rule.partitions]
        taken = [self.box(region) for region in rule.excluded]
        return difference((box for box in given if box is not None), (box for box in taken if box is not None))

    def understands(self, region: Region) -> bool:
        """Whether `box` can tell."""
        try:
            self.box(region)
        except NotUnderstood:
            return False
        return True

    def meet(self, one: Region, other: Region) -> bool:
        """Whether two regions may have a row in common. Raises `NotUnderstood`."""
        boxes = self.box(one), self.box(other)
        return boxes[0] is not None and boxes[1] is not None and intersection(boxes[0], boxes[1]) is not None

    def words(self, box: Box) -> str:
        """Which rows a box holds, as ``day(ts) is from 2017-01-01 to 2017-02-01 and bucket(16, id) is 3``."""
        order = list(dict.fromkeys(self._axes.values()))
        texts = (f"{axis.field.name} is {spans_text(axis.field, box[axis])}" for axis in sorted(box, key=order.index))
        return " and ".join(texts)

    def inhabited(self, boxes: Iterable[Box]) -> list[Box]:
        """The boxes as far as there are such values: of buckets only so many."""
        domains = {axis: _domain(axis) for axis in self._axes.values()}
        found = (intersection(box, {a: d for a, d in domains.items() if a in box and d is not None}) for box in boxes)
        return [box for box in found if box is not None]

    def why_unsure(self, one: Region, other: Region) -> str | None:
        """Why the boxes of two regions may meet where no row does; None: where they meet, a row may lie."""
        if missing := [name for region in (one, other) for name, _ in region.fields if name not in self._axes]:
            return f"the table has no partition field and no column for {missing[0]!r}"
        mine, theirs = ({self._axes[name]: name for name, _ in region.fields} for region in (one, other))
        for axis, name in mine.items():
            for another, its_name in theirs.items():
                if axis in theirs or another in mine:
                    continue
                if not (axis.known and another.known):
                    return f"without the table it is unknown how {name} and {its_name} are related"
                if axis.column == another.column:
                    return f"{name} and {its_name} are of one column, and neither tells the other"
        return None

    def guessed(self, *regions: Region) -> bool:
        """Whether another type of a column could change the answer."""
        return any(self._terms[name].guessed for region in regions for name, _ in region.fields)

    def hull(self, axis: Axis, boxes: Iterable[Box]) -> Spans | None:
        """The values of an axis within which a gap is one: all buckets, or from the first value owned to the last.

        None where nothing can be said of what is between two values.
        """
        if (domain := _domain(axis)) is not None:
            return Spans(domain.pieces)
        cuts = [cut for box in boxes if axis in box for piece in box[axis].pieces for cut in piece]
        ends = [cut for cut in cuts if not cut[0]]
        if not ends or not isinstance(ends[0][1], int) or isinstance(ends[0][1], bool):
            return None
        return span(min(ends), max(ends))

    # ---------------------------------------------------------------------------------------------------------- values

    def _spans(self, field: PartitionField, along: PartitionField, name: str, extent: Extent) -> Spans:
        if isinstance(extent, Turn):
            if not is_clock(name, extent):
                compile_extent(field, extent, 0)  # whether it means anything
            if name in self._cycles:
                return _slots(extent, self._cycles[name], clock=is_clock(name, extent))
            if self._now_ms is None:
                raise NotUnderstood(f"some values of {name} come round with the clock, and others do not")
        if name in self._offsets:
            return _offsets(extent)
        if self._now_ms is None and any(moment_of(text, 0) is not None for text in _texts(extent)):
            raise NotUnderstood(f"some values of {name} are relative to now, and others are not")
        compiled = compile_extent(field, extent, self._now_ms or 0)
        if any(raw != raw for raw in compiled.values or ()):
            raise NotUnderstood(f"a value of {name} is not a number, and has no place in an order")
        if field.transform == along.transform:
            return _in_order(compiled)
        if along.transform.startswith("bucket["):
            return _in_buckets(compiled, width_of(field), width_of(along))
        try:
            return _in_units(_in_column(field, compiled), along)
        except (ValueError, OverflowError, ArithmeticError, ValidationFailed) as error:
            raise NotUnderstood(f"values of {name} tell nothing of {field.source_name}") from error


def rules_regions(rules: Iterable[Rule]) -> list[Region]:
    """All regions of some rules, those that they take away included."""
    return [region for rule in rules for region in (*(rule.partitions or ()), *rule.excluded)]


def is_relative(region: Region) -> bool:
    """Whether the region moves with the clock."""
    return any(
        isinstance(extent, Turn) or any(moment_of(text, 0) is not None for text in _texts(extent))
        for _, extent in region.fields
    )


def _domain(axis: Axis) -> Spans | None:
    """All values that there are along an axis; None where their number has no end."""
    if axis.field.transform.startswith(CYCLE):
        return span(before(0), before(width_of(axis.field)))
    if not axis.field.transform.startswith("bucket["):
        return None
    return Spans(((before(0), before(width_of(axis.field))),), null=True)


# ------------------------------------------------------------------------------------------------------ names and types


def _term(
    name: str, extents: Sequence[Extent], layout: Layout | None, spec: PartitionSpec | None, as_text: bool
) -> _Term:
    if name == NOW and all(isinstance(extent, Turn) for extent in extents):
        return _Term(name, _field(name, "identity", "the clock", "timestamptz"), "the clock")
    if layout is not None:
        field = layout.field(name, spec or PartitionSpec(-1, ()))
        return _Term(name, field, 0 if field is None else field.source_id)
    texts = [text for extent in extents for text in _texts(extent)]
    term = parse_term(name)
    column = name if term is None else term.column
    if term is not None and (term.transform in CALENDAR or term.transform.startswith("bucket[")):
        kind = "timestamp" if term.transform in CALENDAR else "int"
        return _Term(name, _field(name, term.transform, column, kind), column)
    transform, kind = _guess(texts, as_text)
    if all(isinstance(extent, Turn) for extent in extents):
        transform, kind = "identity", "timestamp"
    if term is not None:
        # Of a transform that is named, only the type is guessed.
        return _Term(name, _field(name, term.transform, column, kind), column, guessed=kind == "long")
    return _Term(name, _field(name, transform, column, kind), column, known=False, guessed=kind == "long")


def _field(name: str, transform: str, column: str, kind: str) -> PartitionField:
    return PartitionField(-1, name, transform, column, kind, result_of(transform, kind), -1)


def _guess(texts: Sequence[str], as_text: bool) -> tuple[str, str]:
    """Transform and source type of which values so written may be; words are taken for texts."""
    absolute = [text for text in texts if moment_of(text, 0) is None]
    if not as_text and absolute == list(texts) and all(_WHOLE.fullmatch(text) for text in texts):
        return "identity", "long"
    if all(_DATE.fullmatch(text) for text in absolute):
        if any(text.endswith("m") or ":" in text for text in texts):  # now+30m is finer than any calendar
            return "identity", "timestamp"
        depths = [text[1:].replace("T", "-").count("-") for text in absolute]
        return CALENDAR[max(depths, default=3)], "timestamp"
    return "identity", "string"


def _texts(extent: Extent) -> list[str]:
    if isinstance(extent, Turn):
        return []
    given = (extent.start, extent.end) if isinstance(extent, Range) else extent.values
    return [text for text in given if text is not None]


def _only_relative(terms: Sequence[_Term], extents: Mapping[str, Sequence[Extent]]) -> frozenset[str]:
    """The names that can be compared by how far from now their bounds lie: what is said of their column moves, in one
    unit of the calendar."""
    found: set[str] = set()
    for group in _by_column(terms):
        units = {None if term.field is None else term.field.transform for term in group}
        if len(units) == 1 and all(_moves(extents[term.name]) for term in group):
            found |= {term.name for term in group}
    return frozenset(found)


def _cycles(terms: Sequence[_Term], extents: Mapping[str, Sequence[Extent]]) -> Mapping[str, int]:
    """The names with turns alone, and after how many milliseconds all turns of their column begin again."""
    found: dict[str, int] = {}
    for group in _by_column(terms):
        turns = [extent for term in group for extent in extents[term.name]]
        periods = [extent.every_ms for extent in turns if isinstance(extent, Turn)]
        if turns and len(periods) == len(turns) and math.lcm(*periods) // min(periods) <= SLOTS_MAX:
            found |= {term.name: math.lcm(*periods) for term in group}
    return found


def _by_column(terms: Iterable[_Term]) -> list[list[_Term]]:
    """The terms that may share an axis: of one column, its buckets apart."""
    groups: dict[tuple[str | int, bool, bool], list[_Term]] = {}
    for term in terms:
        if term.field is not None:
            buckets = term.field.transform.startswith("bucket[")
            groups.setdefault((term.column, term.known, buckets), []).append(term)
    return list(groups.values())


def _moves(extents: Sequence[Extent]) -> bool:
    """Whether all are ranges that are relative to now on each side that they have."""
    return all(
        isinstance(extent, Range) and all(moment_of(text, 0) is not None for text in _texts(extent))
        for extent in extents
    )


def _axes_of(terms: Iterable[_Term], offsets: frozenset[str], cycles: Mapping[str, int]) -> Mapping[str, Axis]:
    """Name → its axis. Terms of one column share one, as far as they can."""
    found: dict[str, Axis] = {}
    for group in _by_column(terms):
        fields = [term.field for term in group if term.field is not None]
        shared = _shared(fields)
        for term, field in zip(group, fields, strict=True):
            along = shared or field
            if term.name in offsets:
                along = replace(along, transform=OFFSET)
            elif term.name in cycles:
                along = replace(fields[0], transform=f"{CYCLE}{cycles[term.name]}]")
            found[term.name] = Axis(along, term.column, term.known, any(each.guessed for each in group))
    return found


def _shared(fields: Sequence[PartitionField]) -> PartitionField | None:
    """One field along which the values of all can be measured; None where there is none."""
    first = fields[0]
    transforms = {field.transform for field in fields}
    if len(transforms) == 1:
        return first
    if first.transform.startswith("bucket["):
        buckets = math.lcm(*map(width_of, fields))
        name = f"bucket({buckets}, {first.source_name})"
        named = next((field for field in fields if width_of(field) == buckets), None)
        return None if buckets > BUCKETS_MAX else named or replace(first, name=name, transform=f"bucket[{buckets}]")
    if any(field.source_type != first.source_type for field in fields):
        return None  # of guessed types, one must be wrong
    if transforms <= {*CALENDAR}:
        return max(fields, key=lambda field: CALENDAR.index(field.transform))
    named = next((field for field in fields if field.transform == "identity"), None)
    return named or replace(first, name=first.source_name, transform="identity", result_type=first.source_type)


# ------------------------------------------------------------------------------------------------- values along an axis


def _cut(raw: Any, lowest_or_highest: Cut) -> Cut:
    return lowest_or_highest if raw is None else before(raw)


def _point(raw: Any) -> Spans:
    counted = isinstance(raw, int) and not isinstance(raw, bool)
    return span(before(raw), before(raw + 1) if counted else after(raw))


def _union(spans: Iterable[Spans], *, null: bool) -> Spans:
    some = list(spans)
    return spans_of((piece for each in some for piece in each.pieces), null=null or any(each.null for each in some))


def _in_order(compiled: Compiled) -> Spans:
    """Along the very same field."""
    if compiled.values is None:
        return span(_cut(compiled.start, LOWEST), _cut(compiled.end, HIGHEST))
    return _union((_point(raw) for raw in compiled.values if raw is not None), null=None in compiled.values)


def _in_buckets(compiled: Compiled, buckets: int, wanted: int) -> Spans:
    """Buckets among a multiple of their number."""
    held = range(buckets)
    if compiled.values is None:
        held = range(compiled.start or 0, buckets if compiled.end is None else compiled.end)
    numbers = (raw for raw in (held if compiled.values is None else compiled.values) if raw is not None)
    return _union(
        (_point(number) for raw in numbers for number in range(raw, wanted, buckets)),
        null=None in (compiled.values or ()),
    )


def _in_column(field: PartitionField, compiled: Compiled) -> Spans:
    """Along the column itself. Raises `NotUnderstood` where a value tells nothing of its order."""
    if compiled.values is None:
        return span(_bound(field, compiled.start, LOWEST), _bound(field, compiled.end, HIGHEST))
    return _union(
        (column_spans(field, raw) for raw in compiled.values if raw is not None), null=None in compiled.values
    )


def _in_units(spans: Spans, along: PartitionField) -> Spans:
    """What lies along a column, along a transform of it that each of its ends is a beginning of."""
    if along.transform == "identity":
        return spans

    def converted(cut: Cut) -> Cut:
        return cut if cut[0] else before(apply(along.transform, along.source_type, cut[1]))

    return Spans(tuple((converted(start), converted(end)) for start, end in spans.pieces), spans.null)


def column_spans(field: PartitionField, raw: Any) -> Spans:
    """The values of the column that go with one value of a field. Raises `NotUnderstood` where it tells nothing."""
    if field.transform.startswith("truncate[") and isinstance(raw, int) and raw % width_of(field):
        return Spans(())
    source = source_of(field, raw)
    if source is None:
        raise NotUnderstood(f"{raw} of {field.name} tells nothing of {field.source_name}")
    if isinstance(source, Prefix):
        return span(before(source.text), after_prefix(source.text))
    return _point(source.low) if source.low == source.high else _interval(source.low, source.high)


def _interval(low: Any, high: Any) -> Spans:
    return span(before(low), before(high + 1) if isinstance(high, int) else after(high))


def _bound(field: PartitionField, raw: Any, end: Cut) -> Cut:
    """Where in the column a bound of a range of a field lies."""
    if raw is None:
        return end
    if field.transform.startswith("truncate["):
        width = width_of(field)
        if isinstance(raw, int):
            return before(-(-raw // width) * width)
        if isinstance(raw, str | bytes):
            return before(raw) if len(raw) <= width else after_prefix(raw[:width])
        raise NotUnderstood(f"{raw} of {field.name} tells nothing of {field.source_name}")
    source = source_of(field, raw)
    if source is None or isinstance(source, Prefix):
        raise NotUnderstood(f"{raw} of {field.name} tells nothing of {field.source_name}")
    return before(source.low)


def after_prefix(prefix: str | bytes) -> Cut:
    """Behind all texts that begin so."""
    if isinstance(prefix, bytes):
        cut = prefix.rstrip(b"\xff")
        return before(cut[:-1] + bytes([cut[-1] + 1])) if cut else HIGHEST
    text = prefix.rstrip(chr(0x10FFFF))
    if not text:
        return HIGHEST
    following = ord(text[-1]) + 1
    return before(
        text[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)
    )  # surrogates are no characters


def _offsets(extent: Extent) -> Spans:
    """Milliseconds from now on."""
    assert isinstance(extent, Range)
    start, end = (None if text is None else moment_of(text, 0) for text in (extent.start, extent.end))
    return span(_cut(start, LOWEST), _cut(end, HIGHEST))


def _slots(turn: Turn, period_ms: int, *, clock: bool) -> Spans:
    """The slots of a turn within a time after which all turns begin again. What is written by the clock alone, and not
    by a column, is the agent's in its time of grace, too."""
    length_ms = turn.length_ms + (turn.grace_ms if clock else 0)
    starts = range(turn.start_ms, period_ms, turn.every_ms)
    pieces = [(start, min(start + length_ms, period_ms)) for start in starts]
    if starts[-1] + length_ms > period_ms:
        pieces.append((0, starts[-1] + length_ms - period_ms))
    return spans_of((before(start), before(end)) for start, end in pieces)

"""Do two contracts own partitions in common? Exactly, where their terms can be compared; elsewhere "may". Pure.

Slots that move with the clock are compared by how far from now they lie. Where one moves and the other does not, they
are looked at whenever a bound of the one reaches a bound of the other, from now on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.contracts.axes import Axes, is_relative, rules_regions
from icetower.contracts.boxes import TooMany, difference, intersection, merged
from icetower.contracts.model import FILE_OPERATIONS, Contract, Operation, Rule
from icetower.contracts.regions import Extent, Pattern, Range, Region
from icetower.contracts.slots import Turn
from icetower.contracts.terms import Layout, parse_term
from icetower.contracts.values import NotUnderstood, compile_extent, moment_of
from icetower.contracts.wording import CALENDAR, UNIT_MS
from icetower.iceberg.partitions import PartitionField, PartitionSpec

MOMENTS_MAX = 400
"""Moments at which moving regions are looked at."""
EVERYTHING = Region(())
"""What a rule of all partitions speaks of."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two rules by which two agents own something in common.

    Attributes:
        tables: the tables concerned.
        one, other: the position of the rule in its contract's `tables`.
        operations: what files each may write there.
        partitions: which, in words; empty for all of them.
        unsure: why it may be none after all; None where there is no doubt.
        from_ms: the moment from which on, milliseconds since 1970; None: now.
    """

    tables: Pattern
    one: int
    other: int
    operations: tuple[frozenset[Operation], frozenset[Operation]]
    partitions: str
    unsure: str | None
    from_ms: int | None


def overlaps(
    one: Contract,
    other: Contract,
    *,
    now_ms: int,
    tables: Pattern | None = None,
    layout: Layout | None = None,
    spec: PartitionSpec | None = None,
) -> Iterator[Overlap]:
    """Where two contracts own partitions in common, rule by rule.

    Args:
        now_ms: milliseconds since 1970.
        tables: only there; None: wherever both name a table.
        layout, spec: what names mean for the table, and its partition spec; None: it is not at hand.
    """
    for position, rule in enumerate(one.tables):
        for its_position, its_rule in enumerate(other.tables):
            common = common_tables(rule.pattern, its_rule.pattern)
            if common is not None and tables is not None:
                common = common_tables(common, tables)
            operations = written(rule), written(its_rule)
            if common is None or not all(operations):
                continue
            found = _meeting(rule, its_rule, now_ms, layout, spec)
            if found is not None:
                yield Overlap(common, position, its_position, operations, *found)


def written(rule: Rule) -> frozenset[Operation]:
    """What files a rule lets its agent write, to partitions that it owns."""
    if rule.partitions == ():
        return frozenset()
    return frozenset(operation for operation in FILE_OPERATIONS if rule.grants(operation))


def common_tables(one: Pattern, other: Pattern) -> Pattern | None:
    """The tables that two patterns have in common, as a pattern."""
    wide, narrow = sorted((one, other), key=lambda pattern: (_breadth(pattern), -len(pattern.namespace)), reverse=True)
    if wide.last == "**":
        return narrow if narrow.namespace[: len(wide.namespace)] == wide.namespace else None
    return narrow if wide.namespace == narrow.namespace and wide.last in ("*", narrow.last) else None


def _breadth(pattern: Pattern) -> int:
    return ("*", "**").index(pattern.last) + 1 if pattern.last in ("*", "**") else 0


Meeting = tuple[str, str | None, int | None]
"""Which partitions, why it is not certain, and from when on."""


def _meeting(rule: Rule, other: Rule, now_ms: int, layout: Layout | None, spec: PartitionSpec | None) -> Meeting | None:
    """What two rules own in common, the first time that they do."""
    regions = rules_regions([rule, other])
    if any(map(is_relative, regions)):
        if _never(rule, other, layout, spec):
            return None
        axes = Axes(regions, layout=layout, spec=spec)
        if all(axes.understands(region) for region in regions):
            found = _common(rule, other, axes)
            return None if found is None else (*found, None)
    for moment_ms in _moments(regions, now_ms, layout, spec):
        found = _meeting_at(rule, other, moment_ms, layout, spec)
        if found is not None:
            return (*found, None if moment_ms == now_ms else moment_ms)
    return None


def _never(rule: Rule, other: Rule, layout: Layout | None, spec: PartitionSpec | None) -> bool:
    """Whether what does not move keeps two rules apart, whatever the clock says: that saves looking at many moments."""
    one, another = ([_still(region) for region in _regions(each)] for each in (rule, other))
    axes = Axes([*one, *another], layout=layout, spec=spec, now_ms=0)
    try:
        return not any(axes.meet(mine, theirs) for mine in one for theirs in another)
    except NotUnderstood:
        return False


def _still(region: Region) -> Region:
    """A region without what moves."""
    return Region(tuple(each for each in region.fields if not is_relative(Region((each,)))))


def _meeting_at(
    rule: Rule, other: Rule, now_ms: int, layout: Layout | None, spec: PartitionSpec | None
) -> tuple[str, str | None] | None:
    regions = rules_regions([rule, other])
    axes = Axes(regions, layout=layout, spec=spec, now_ms=now_ms)
    found = _common(rule, other, axes)
    if layout is None and axes.guessed(*regions):
        again = _common(rule, other, Axes(regions, now_ms=now_ms, as_text=True))
        if (found is None) != (again is None):
            return (found or again or ("", None))[0], "that depends on the type of a column, which only the table has"
    return found


def _common(rule: Rule, other: Rule, axes: Axes) -> tuple[str, str | None] | None:
    """Partitions in words, and why they may be none; the certain ones, where there are any."""
    excluded = [*rule.excluded, *other.excluded]
    certain: list[Any] = []
    doubtful: list[Any] = []
    reason = None
    for region in _regions(rule):
        for its_region in _regions(other):
            try:
                common = _both(region, its_region, excluded, axes)
            except (NotUnderstood, TooMany) as problem:
                common, why = [{}], str(problem) or "they are cut into too many pieces to compare"
            else:
                pairs = itertools.combinations((region, its_region, *excluded), 2)
                why = next((doubt for pair in pairs if (doubt := axes.why_unsure(*pair))), None)
            if why is None:
                certain += common
            elif common:
                doubtful += common
                reason = reason or why
    if not certain and not doubtful:
        return None
    shown = merged(certain or doubtful)
    words = "" if {} in shown else " or ".join(axes.words(box) for box in shown[:3])
    more = "" if {} in shown or len(shown) <= 3 else f" or {len(shown) - 3} regions more"
    return words + more, None if certain else reason


def _regions(rule: Rule) -> Sequence[Region]:
    return (EVERYTHING,) if rule.partitions is None else rule.partitions


def _both(region: Region, other: Region, excluded: Sequence[Region], axes: Axes) -> list[Any]:
    one, another = axes.box(region), axes.box(other)
    both = None if one is None or another is None else intersection(one, another)
    taken = (axes.box(each) for each in excluded)
    return [] if both is None else axes.inhabited(difference([both], (box for box in taken if box is not None)))


# -------------------------------------------------------------------------------------------------------- moving bounds


def _moments(
    regions: Sequence[Region], now_ms: int, layout: Layout | None, spec: PartitionSpec | None
) -> Sequence[int]:
    """Now, and the moments from now on at which a bound that moves reaches one that does not."""
    moments = {now_ms}
    offsets: set[tuple[int, str]] = set()
    fixed: set[int] = set()
    turns: set[Turn] = set()
    for region in regions:
        for name, extent in region.fields:
            if isinstance(extent, Turn):
                turns.add(extent)
            unit = _unit(name, layout, spec)
            for text in _bounds(extent):
                moment_ms = moment_of(text, 0)
                if moment_ms is not None:
                    offsets.add((moment_ms, unit))
                elif (at_ms := _moment_of(text, now_ms)) is not None:
                    fixed.add(at_ms)
    units = {unit for _, unit in offsets}
    if len(units) > 1:  # such as hours of the day against the day
        step_ms = 3_600_000 if units <= {"hour", "day"} else 86_400_000
        moments |= {(now_ms // step_ms + count) * step_ms for count in range(1, 33)}
    for offset_ms, unit in offsets:
        for at_ms in fixed:
            step_ms = UNIT_MS[unit]
            moments |= {at_ms - offset_ms + delta for delta in (-step_ms - 1, -step_ms, -1, 0, step_ms)}
    # A slot has all of its rows at any time of it. Those are asked about that lie at a fixed bound, or come next.
    for turn in turns:
        ends = (at_ms + delta for at_ms in fixed for delta in (-turn.every_ms, -1, 0, turn.every_ms))
        moments |= {turn.slot(at_ms)[0] for at_ms in (now_ms, *ends)}
    return sorted(moment for moment in moments if moment >= now_ms)[:MOMENTS_MAX]


def _unit(name: str, layout: Layout | None, spec: PartitionSpec | None) -> str:
    """In which unit of the calendar a term counts; hours, where that is not known."""
    try:
        field = None if layout is None else layout.field(name, spec or PartitionSpec(-1, ()))
        term = parse_term(name)
    except ValueError:
        return "hour"
    transform = field.transform if field is not None else term.transform if term is not None else ""
    return transform if transform in CALENDAR else "hour"


def _bounds(extent: Extent) -> Sequence[str]:
    if isinstance(extent, Turn):
        return ()
    given = (extent.start, extent.end) if isinstance(extent, Range) else extent.values
    return [text for text in given if text is not None]


def _moment_of(text: str, now_ms: int) -> int | None:
    """The moment that a fixed time begins at; None where it is no time."""
    field = PartitionField(-1, "", "identity", "", "timestamptz", "timestamptz", -1)
    try:
        compiled = compile_extent(field, Range(_padded(text), None), now_ms)
    except NotUnderstood:
        return None
    return compiled.start // 1000


def _padded(text: str) -> str:
    """A year or a month by its first day."""
    return text + "-01-01" if len(text) == 4 else text + "-01" if len(text) == 7 else text

"""Do all rows that a partition may hold lie in what a contract owns?

A partition says something about its rows: a value of each of its fields. A region asks for something: a value of each
of its terms. Where both are the same transform of the same column it is a comparison; where they are not (the table was
partitioned otherwise since, or the contract names columns) it is asked what the one tells about the other:

    exactly     identity tells every transform; an hour its day, month and year; bucket[32] its bucket[16]
    a span      a month is a span of days, truncate[10] of numbers, truncate[3] the texts with a prefix
    a few       bucket[8] is two buckets of bucket[16]
    nothing     a bucket tells no value, and a partition without a field of the column nothing at all

INSIDE is said only of what holds for every row; what is neither inside nor outside for certain is PARTLY.
Specification: "Partition Transforms".
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from icetower.contracts.model import Rule
from icetower.contracts.patterns import handed_out
from icetower.contracts.regions import Extent, Region, is_clock, with_joined
from icetower.contracts.slots import Turn
from icetower.contracts.terms import Layout
from icetower.contracts.values import Compiled, Membership, NotUnderstood, compile_extent, depends_on_now, grain_ms
from icetower.errors import ValidationFailed
from icetower.iceberg.partitions import PartitionField, PartitionSpec
from icetower.iceberg.transforms import apply
from icetower.recent import IdentityKey

INSIDE, OUTSIDE, PARTLY = Membership.INSIDE, Membership.OUTSIDE, Membership.PARTLY
_CALENDAR = ("year", "month", "day", "hour")
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_HOURS_TWICE = 2**32 - 2**63 // 3_600_000_000 - 1
"""From here on an hour has two meanings: Java's numbers of hours begin again within the range of microseconds."""
_NOT_VALUES = (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError, ValidationFailed)
"""What a value of another type in a manifest makes of a computation with it."""
COMPILED_MAX = 4096
"""Rules of contracts, each for one spec, whose meaning is kept with a layout."""


class Ownership:
    """What a contract's rules own of a table at one time.

    What they mean for a spec is worked out once for as long as rule, layout and spec are the same objects.

    Args:
        now_ms: milliseconds since 1970, for what is owned relative to ``now``.
    """

    def __init__(self, rules: Sequence[Rule], layout: Layout, now_ms: int) -> None:
        self.now_ms = now_ms
        self.reason = ""
        """Why something could not be determined, the first time."""
        self._rules = rules
        self._layout = layout
        self._spec: PartitionSpec | None = None
        self._judges: list[Judge] = []

    def of(self, spec: PartitionSpec, partition: tuple[Any, ...]) -> Membership:
        """Where the rows of a partition lie: INSIDE where one rule owns it whole."""
        if len(partition) != len(spec.fields):
            self.note("the partition has another number of values than its spec has fields")
            return PARTLY
        if spec is not self._spec:
            self._judges = [_kept(rule, self._layout, spec) for rule in self._rules]
            self._spec = spec
        return _any(self._judges, partition, self)

    def note(self, reason: str) -> None:
        self.reason = self.reason or reason


Judge = Callable[[tuple[Any, ...], Ownership], Membership]


def _kept(rule: Rule, layout: Layout, spec: PartitionSpec) -> Judge:
    key = IdentityKey(rule, spec)
    found: Judge | None = layout.compiled.get(key)
    if found is None:
        if len(layout.compiled) >= COMPILED_MAX:
            layout.compiled.clear()
        found = layout.compiled[key] = _compiled(rule, layout, spec)
    return found


def _compiled(rule: Rule, layout: Layout, spec: PartitionSpec) -> Judge:
    """Where partitions lie to a rule."""
    # Which of the slots that are handed out is whose, the intents of the slots say.
    owned = handed_out(rule.partitions) if rule.partitions and rule.claim_within_ms else rule.partitions
    given = None if owned is None else [_region(each, layout, spec) for each in with_joined(owned)]
    excluded = [_region(region, layout, spec) for region in rule.excluded]

    def judge(partition: tuple[Any, ...], asked: Ownership) -> Membership:
        inside = INSIDE if given is None else _any(given, partition, asked)
        if inside is OUTSIDE or not excluded:
            return inside
        taken = _any(excluded, partition, asked)
        return OUTSIDE if taken is INSIDE else inside if taken is OUTSIDE else PARTLY

    return judge


def _region(region: Region, layout: Layout, spec: PartitionSpec) -> Judge:
    judges: list[Judge] = []
    for name, extent in region.fields:
        if isinstance(extent, Turn) and is_clock(name, extent):
            judges.append(_while(extent))
            continue
        try:
            field = layout.field(name, spec)
            if field is None:
                raise NotUnderstood(f"the table has no partition field and no column for {name!r}")
            judges.append(_term(field, extent, spec))
        except NotUnderstood as problem:
            judges.append(_unknown(str(problem)))
    return judges[0] if len(judges) == 1 else lambda partition, asked: _all(judges, partition, asked)


def _while(turn: Turn) -> Judge:
    """Everything, while the turn is on."""
    return lambda _, asked: OUTSIDE if turn.held(asked.now_ms) is None else INSIDE


def _unknown(reason: str) -> Judge:
    def judge(partition: tuple[Any, ...], asked: Ownership) -> Membership:
        asked.note(reason)
        return PARTLY

    return judge


def _term(wanted: PartitionField, extent: Extent, spec: PartitionSpec) -> Judge:
    """What the fields of a spec tell together about one term. Raises `NotUnderstood`."""
    telling = [
        (position, field)
        for position, field in enumerate(spec.fields)
        if field.source_id == wanted.source_id and field.transform != "void"
    ]
    always = _relations(telling, wanted, compile_extent(wanted, extent, 0))
    if not telling:
        return _unknown(
            f"partition spec {spec.spec_id} of these files has no field of the column {wanted.source_name} for "
            f"{wanted.name!r}, so they may hold any value of it"
        )
    moves, grain = depends_on_now(extent), grain_ms(wanted, extent)
    unsure = (
        f"{wanted.name!r} is {wanted.transform} of {wanted.source_name}, and partition spec {spec.spec_id} of "
        f"these files has {', '.join(field.transform for _, field in telling)} of it"
    )

    @lru_cache(maxsize=1)
    def at(grains: int) -> Sequence[tuple[int, Relation]]:
        return _relations(telling, wanted, compile_extent(wanted, extent, grains * grain))

    def judge(partition: tuple[Any, ...], asked: Ownership) -> Membership:
        try:
            relations = at(asked.now_ms // grain) if moves else always
        except NotUnderstood as problem:  # no clock that is right says so
            asked.note(str(problem))
            return PARTLY
        found = _decided([_guarded(relation, partition[position]) for position, relation in relations])
        if found is PARTLY:
            asked.note(unsure)
        return found

    return judge


Relation = Callable[[Any], Membership]


def _relations(
    telling: Sequence[tuple[int, PartitionField]], wanted: PartitionField, extent: Compiled
) -> list[tuple[int, Relation]]:
    return [(position, _relation(field, wanted, extent)) for position, field in telling]


# ------------------------------------------------------------------------------------------------ three-valued logic


def _any(judges: Iterable[Judge], partition: tuple[Any, ...], asked: Ownership) -> Membership:
    found = OUTSIDE
    for judge in judges:
        membership = judge(partition, asked)
        if membership is INSIDE:
            return INSIDE
        if membership is PARTLY:
            found = PARTLY
    return found


def _all(judges: Iterable[Judge], partition: tuple[Any, ...], asked: Ownership) -> Membership:
    found = INSIDE
    for judge in judges:
        membership = judge(partition, asked)
        if membership is OUTSIDE:
            return OUTSIDE
        if membership is PARTLY:
            found = PARTLY
    return found


def _decided(memberships: Sequence[Membership]) -> Membership:
    """Several say something about one thing. Where they contradict each other no row is there, or the values lie."""
    if len(memberships) == 1:
        return memberships[0]
    found = set(memberships) - {PARTLY}
    return found.pop() if len(found) == 1 else PARTLY


def _guarded(relation: Relation, raw: Any) -> Membership:
    try:
        return relation(raw)
    except _NOT_VALUES:
        return PARTLY


# ------------------------------------------------------------------------- what one transform tells about another


def _relation(have: PartitionField, want: PartitionField, extent: Compiled) -> Relation:
    """Value of `have` → where the values of `want` lie that go with it; both are of one column."""
    if have.transform == want.transform:
        return extent.of
    relation_of = _bucket_relation(have, want, extent) or (lambda raw: _by_source(have, want, extent, raw))
    return lambda raw: extent.of(None) if raw is None else relation_of(raw)


def _bucket_relation(have: PartitionField, want: PartitionField, extent: Compiled) -> Relation | None:
    """Two numbers of buckets tell of each other what their greatest common divisor leaves of the hash."""
    if not (have.transform.startswith("bucket[") and want.transform.startswith("bucket[")):
        return None
    buckets, wanted = width_of(have), width_of(want)
    step = math.gcd(buckets, wanted)
    return lambda raw: extent.of_some(range(raw % step, wanted, step))


def _by_source(have: PartitionField, want: PartitionField, extent: Compiled, raw: Any) -> Membership:
    kind = have.source_type
    source = source_of(have, raw)
    if source is None:
        return PARTLY
    if isinstance(source, Interval) and source.low == source.high:
        return extent.of(apply(want.transform, kind, source.low))
    if want.transform.startswith("bucket["):  # any of them
        buckets = width_of(want)
        return extent.of_span(0, buckets - 1, buckets)
    if isinstance(source, Prefix):
        return _of_prefix(source.text, want, extent)
    low, high = source.low, source.high
    if want.transform == "identity" and kind.startswith("timestamp") and low < 0:
        high += 1_000_000_000 if kind.endswith("_ns") else 1_000_000  # Iceberg puts some a second too early before 1970
    first, last = apply(want.transform, kind, low), apply(want.transform, kind, high)
    return extent.of_span(first, last, _count(want, first, last))


def _of_prefix(prefix: str | bytes, want: PartitionField, extent: Compiled) -> Membership:
    if want.transform.startswith("truncate[") and width_of(want) <= len(prefix):
        return extent.of(prefix[: width_of(want)])
    return extent.of_prefix(prefix)


def _count(field: PartitionField, first: Any, last: Any) -> int | None:
    """How many values a monotone transform has from `first` to `last`; None where that is not a matter of counting."""
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    step = width_of(field) if field.transform.startswith("truncate[") else 1
    return (last - first) // step + 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Source values from `low` to `high`, both included."""

    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class Prefix:
    """All texts that begin so, or all byte strings."""

    text: str | bytes


def source_of(field: PartitionField, raw: Any) -> Interval | Prefix | None:
    """The values of the source column that go with a partition value; None where it tells nothing of their order."""
    transform, kind = field.transform, field.source_type
    if transform == "identity":
        return Interval(raw, raw)
    if transform in _CALENDAR:
        first, after = _first_day(transform, raw), _first_day(transform, raw + 1)
        if kind == "date":
            return Interval(first, after - 1)
        parts = 86_400 * (1_000_000_000 if kind.endswith("_ns") else 1_000_000)
        if transform == "hour":
            return Interval(raw * parts // 24, (raw + 1) * parts // 24 - 1) if abs(raw) < _HOURS_TWICE else None
        return Interval(first * parts, after * parts - 1)
    if transform.startswith("truncate["):
        return _truncated(raw, kind, width_of(field))
    return None


def _truncated(raw: Any, kind: str, width: int) -> Interval | Prefix | None:
    if isinstance(raw, str | bytes):
        return Interval(raw, raw) if len(raw) < width else Prefix(raw)
    if isinstance(raw, Decimal):
        exponent = int(raw.as_tuple().exponent)
        return Interval(raw, raw + Decimal(width - 1).scaleb(exponent))
    end = raw + width - 1
    # Java's numbers begin again at their end: the last truncated value of a type has the first rows, too.
    return Interval(raw, end) if end < 2 ** (31 if kind == "int" else 63) else None


def _first_day(unit: str, number: int) -> int:
    """Days since 1970 at which a year, month or day begins (an hour: anything, it is not asked for)."""
    if unit in ("day", "hour"):
        return number
    year, month = divmod(number, 12) if unit == "month" else (number, 0)
    return dt.date(1970 + year, month + 1, 1).toordinal() - _EPOCH_DAY


def width_of(field: PartitionField) -> int:
    """The number in ``bucket[16]`` or ``truncate[10]``."""
    return int(field.transform[field.transform.index("[") + 1 : -1])

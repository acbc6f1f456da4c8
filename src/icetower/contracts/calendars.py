"""Calendars: which contract may take a slot, and from when on. Pure.

The contracts whose entries for a table have `claim_within`, and slots of one length of the same rows, share a calendar.
Each slot has a line of them. First come those whose turn it is, of several the one that has had least time lately; then
the others, in the order of their next turns. The first may take the slot from its beginning on, and each of the others
once those before it have let their `claim_within` pass. So a slot that is missed goes to the next, and contracts with
one and the same turn share it fairly.

A slot that is handed to nobody else, without `claim_within`, is its own contract's from its beginning on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, TypeVar

from icetower.contracts.axes import Axes
from icetower.contracts.deliveries import Slot
from icetower.contracts.model import Contract, Operation, Rule
from icetower.contracts.overlaps import written
from icetower.contracts.regions import Pattern, Region
from icetower.contracts.slots import Turn, span_text
from icetower.contracts.values import NotUnderstood
from icetower.protocol.names import Identifier

K = TypeVar("K")
T = TypeVar("T")
LINES_KEPT = 32
"""Of one calendar: of slots that go on and come next, and of those that several have as their own."""
Lately = Callable[[int, int], Mapping[str, int]]
"""Moment, and the length of the slots → how long each contract has had slots of the table lately before it."""


def _nothing(_: int, __: int) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a slot, and what their holder may do to them. The regions have the slot as a turn, without grace."""

    operations: frozenset[Operation]
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """A slot that a contract may take.

    Attributes:
        from_ms: from then on; milliseconds since 1970.
        parts: what it may write in it.
        before: how many contracts may take it before.
    """

    slot: Slot
    from_ms: int
    parts: tuple[Part, ...]
    before: int


class _Kind(NamedTuple):
    """Which slots they are. Those that are handed out and are alike are one calendar."""

    term: str
    length_ms: int
    rests: frozenset[Region]
    handed_out: bool


@dataclass(frozen=True, slots=True)
class _Seat:
    """A contract's place in one calendar.

    Attributes:
        rests: the rows of its slots, whenever they are.
        claim_within_ms: None: its slots are its own alone.
        entries: the regions of each rule, each with the name of the line by which it comes round.
    """

    contract: str
    term: str
    length_ms: int
    rests: frozenset[Region]
    claim_within_ms: int | None
    turns: tuple[Turn, ...]
    entries: tuple[tuple[Rule, tuple[Region, ...]], ...]

    @property
    def kind(self) -> _Kind:
        return _Kind(self.term, self.length_ms, self.rests, self.claim_within_ms is not None)

    def beside(self, other: _Seat) -> bool:
        """Whether both are of one calendar."""
        return self.claim_within_ms is not None and self.kind == other.kind

    def next_ms(self, now_ms: int) -> int:
        """The beginning of its own slot that goes on, or comes next."""
        return min(turn.slot(now_ms)[0] for turn in self.turns)

    def meets_turns(self, other: _Seat) -> bool:
        """Whether both have some slot as their own, at some time."""
        return any(_alike(turn, its) for turn in self.turns for its in other.turns)

    def meets(self, starts_ms: int, ends_ms: int) -> bool:
        """Whether a slot of its own goes on at some moment of a time."""
        return self.next_ms(starts_ms) < ends_ms


def openings(
    own: Contract, others: Iterable[Contract], table: Identifier, now_ms: int, lately: Lately = _nothing
) -> list[Opening]:
    """As `Calendars.openings`.

    Args:
        others: the other contracts in force.
    """
    return Calendars(others, table).openings(own, now_ms, lately)


class Calendars:
    """Who shares which slots of one table, found once for some contracts and asked at any moment.

    Args:
        contracts: those in force.
    """

    def __init__(self, contracts: Iterable[Contract], table: Identifier) -> None:
        self._table = table
        self._groups: dict[_Kind, dict[str, _Seat]] = {}
        self._views: dict[str, tuple[Contract, list[_View]]] = {}
        self._shared: dict[_Kind, _Calendar] = {}
        self._size = 0
        for each in contracts:
            for seat in _seats(each, table) if not each.shadow else ():
                self._groups.setdefault(seat.kind, {})[seat.contract] = seat
                self._size += 1

    def __len__(self) -> int:
        """How many places are kept."""
        return 1 + self._size

    def openings(self, own: Contract, now_ms: int, lately: Lately = _nothing) -> list[Opening]:
        """The slots of the table that a contract may take next, by when it may.

        Where those before it in line take longer than each slot that comes next, one that it cannot take. Empty: it
        has no slots that come round there.

        Args:
            own: it counts in place of a contract of its name.
        """
        found: list[Opening] = []
        for view in self._view(own):
            found += _alone(view.mine, now_ms) if view.calendar is None else _shared(view, now_ms, lately)
        in_time = [each for each in found if each.from_ms < each.slot.ends_ms]
        in_time.sort(key=lambda each: (each.from_ms, each.slot.starts_ms))
        return in_time or sorted(found, key=lambda each: each.slot.starts_ms)[:1]

    def _view(self, own: Contract) -> list[_View]:
        known = self._views.get(own.name)
        if known is not None and known[0] is own:
            return known[1]
        found: list[_View] = []
        for mine in _seats(own, self._table):
            plain = Turn(mine.length_ms, 0, mine.length_ms)
            calendar = None if mine.claim_within_ms is None else self._calendar_of(mine)
            found.append(_View(mine, calendar, () if calendar is None else _parts(mine, plain)))
        if len(self._views) > self._size:  # by contracts that are in force no more
            self._views.clear()
        self._views[own.name] = own, found
        return found

    def _calendar_of(self, mine: _Seat) -> _Calendar:
        """The calendar of a place: that of all others in it, where it is the one that they know."""
        members = self._groups.get(mine.kind, {})
        if members.get(mine.contract) != mine:
            return _Calendar(tuple((members | {mine.contract: mine}).values()), self._strangers(mine.kind))
        if mine.kind not in self._shared:
            self._shared[mine.kind] = _Calendar(tuple(members.values()), self._strangers(mine.kind))
        return self._shared[mine.kind]

    def _strangers(self, kind: _Kind) -> tuple[_Seat, ...]:
        """Those whose slots may have rows of another kind of slots."""
        return tuple(
            seat
            for other, seats in self._groups.items()
            if other != kind and not _apart(kind.rests, other.rests)
            for seat in seats.values()
        )


def _seats(contract: Contract, table: Identifier) -> Iterator[_Seat]:
    yield from _seats_of(contract, contract.rules_for(table))


def _seats_of(contract: Contract, rules: Iterable[Rule]) -> Iterator[_Seat]:
    groups: dict[tuple[str, int, bool], list[tuple[Rule, Turn, Region]]] = {}
    for rule in rules if not contract.administrator else ():
        for region in rule.partitions or () if written(rule) else ():
            found = next(((name, extent) for name, extent in region.fields if isinstance(extent, Turn)), None)
            if found is not None:
                key = found[0], found[1].length_ms, rule.claim_within_ms is not None
                groups.setdefault(key, []).append((rule, found[1], region))
    for (term, length_ms, _), entries in groups.items():
        rules_of = dict.fromkeys(rule for rule, _, _ in entries)
        yield _Seat(
            contract.name,
            term,
            length_ms,
            frozenset(_without(region, term) for _, _, region in entries),
            min((rule.claim_within_ms for rule in rules_of if rule.claim_within_ms is not None), default=None),
            tuple(dict.fromkeys(turn for _, turn, _ in entries)),
            tuple((rule, tuple(region for each, _, region in entries if each is rule)) for rule in rules_of),
        )


def _without(region: Region, term: str) -> Region:
    return Region(tuple(each for each in region.fields if each[0] != term))


def _alone(mine: _Seat, now_ms: int) -> Iterator[Opening]:
    """The slots of a contract that hands none out: the one that goes on or comes next, and the one after it."""
    for turn in mine.turns:
        first = turn.slot(now_ms)
        for starts_ms, ends_ms in (first, turn.slot(first[1])):
            slot = Slot(mine.term, starts_ms, ends_ms, ends_ms + turn.grace_ms)
            plain = Turn(turn.every_ms, turn.start_ms, turn.end_ms)
            yield Opening(slot, starts_ms, _parts(mine, plain, turn), 0)


class _Calendar:
    """Those who share the slots of one kind, and the line of each slot.

    Args:
        strangers: those whose slots may have the same rows, and who do not hand them out alike.
    """

    def __init__(self, members: Sequence[_Seat], strangers: Sequence[_Seat]) -> None:
        self._members = members
        self._strangers = strangers
        self._rivals: dict[tuple[Turn, ...], tuple[_Seat, ...]] = {}
        self._lines: OrderedDict[tuple[int, tuple[Turn, ...]], _Line] = OrderedDict()
        self._met: OrderedDict[int, frozenset[str]] = OrderedDict()

    def line(self, starts_ms: int, lately: Lately) -> _Line:
        """Of the slot that begins then."""
        return self._line((starts_ms, ()), self._members, lately)

    def head(self, mine: _Seat, starts_ms: int, lately: Lately) -> _Line:
        """As much of the line of a member's own slot as it takes to find the member in it."""
        if mine.turns not in self._rivals:
            self._rivals[mine.turns] = tuple(each for each in self._members if each.meets_turns(mine))
        return self._line((starts_ms, mine.turns), self._rivals[mine.turns], lately)

    def _line(self, key: tuple[int, tuple[Turn, ...]], members: Sequence[_Seat], lately: Lately) -> _Line:
        known = self._lines.get(key)
        if known is None:
            known = _Line.of(members, key[0], {})
        if known.equal > 1:
            had = lately(key[0], members[0].length_ms)
            if had != known.had:
                known = _Line.of(members, key[0], had)
        if len(members) > 1:
            _keep(self._lines, key, known)
        return known

    def is_anothers(self, starts_ms: int, contract: str) -> bool:
        """Whether a slot is that of a contract that does not hand it out."""
        met = self._met.get(starts_ms)
        if met is None:
            ends_ms = starts_ms + self._members[0].length_ms
            met = frozenset(each.contract for each in self._strangers if each.meets(starts_ms, ends_ms))
        _keep(self._met, starts_ms, met)
        return bool(met - {contract})


class _View(NamedTuple):
    """A contract's place, its calendar, and what it may write in any slot of that; None: it shares none."""

    mine: _Seat
    calendar: _Calendar | None
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """The contracts that may take one slot, in their order.

    Attributes:
        places: of each, how many are before it, and how long it leaves the slot to them.
        equal: of how many of them it is the turn.
        had: how long each of these has had slots lately.
    """

    contracts: tuple[str, ...]
    places: Mapping[str, tuple[int, int]]
    equal: int
    had: Mapping[str, int]

    @classmethod
    def of(cls, members: Sequence[_Seat], starts_ms: int, had: Mapping[str, int]) -> _Line:
        nexts = [(each.next_ms(starts_ms), each) for each in members]
        nexts.sort(key=lambda one: (one[0], had.get(one[1].contract, 0) if one[0] == starts_ms else 0, one[1].contract))
        waits_ms = accumulate((each.claim_within_ms or 0 for _, each in nexts), initial=0)
        places = {
            each.contract: (at, wait_ms) for at, ((_, each), wait_ms) in enumerate(zip(nexts, waits_ms, strict=False))
        }
        return cls(tuple(places), places, sum(at == starts_ms for at, _ in nexts), had)


def _keep(kept: OrderedDict[K, T], key: K, found: T) -> None:
    kept[key] = found
    kept.move_to_end(key)
    while len(kept) > LINES_KEPT:
        kept.popitem(last=False)


def _shared(view: _View, now_ms: int, lately: Lately) -> Iterator[Opening]:
    """The slots that go on and come next, of one's own and of others; also those that it comes too late for."""
    mine, calendar, parts = view
    assert calendar is not None
    length_ms, grace_ms = mine.length_ms, mine.turns[0].grace_ms
    on_ms = now_ms // length_ms * length_ms
    own = [mine.next_ms(on_ms), mine.next_ms(mine.next_ms(on_ms) + length_ms)]
    for starts_ms in sorted({on_ms, on_ms + length_ms, *own}):
        if starts_ms in own:
            line = calendar.head(mine, starts_ms, lately)
        elif calendar.is_anothers(starts_ms, mine.contract):
            continue
        else:
            line = calendar.line(starts_ms, lately)
        ends_ms = starts_ms + length_ms
        before, wait_ms = line.places[mine.contract]
        slot = Slot(mine.term, starts_ms, ends_ms, ends_ms + grace_ms)
        yield Opening(slot, starts_ms + wait_ms, parts, before)


def _apart(some: frozenset[Region], others: frozenset[Region]) -> bool:
    """Whether the slots of two contracts are known to have no rows in common, at whatever time."""
    axes = Axes([*some, *others], now_ms=0)
    try:
        return not any(axes.meet(mine, its) for mine in some for its in others)
    except NotUnderstood:
        return False


def _parts(mine: _Seat, turn: Turn, only: Turn | None = None) -> tuple[Part, ...]:
    """What a contract may write in a slot. `only`: of the regions that come round so."""
    found: list[Part] = []
    for rule, regions in mine.entries:
        held = [region for region in regions if only is None or (mine.term, only) in region.fields]
        slots = tuple(Region((*_without(region, mine.term).fields, (mine.term, turn))) for region in held)
        if slots:
            found.append(Part(written(rule), tuple(dict.fromkeys(slots))))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Row:
    """The slot of a contract that goes on or comes next, at the tables of one entry.

    Attributes:
        claim_within_ms: None: nobody else may take it.
        line: the contracts that may take it, in their order.
    """

    tables: str
    contract: str
    slot: Slot
    claim_within_ms: int | None
    line: tuple[str, ...]


def rows(contracts: Sequence[Contract], now_ms: int) -> list[Row]:
    """Whose turn it is where, and whose comes next."""
    seats: dict[Pattern, list[_Seat]] = {}
    for contract in contracts:
        for pattern in dict.fromkeys(rule.pattern for rule in contract.tables):
            rules = [rule for rule in contract.tables if rule.pattern == pattern]
            seats.setdefault(pattern, []).extend(_seats_of(contract, rules))
    found: list[Row] = []
    for tables, there in seats.items():
        calendars: dict[_Kind, list[_Seat]] = {}
        for seat in there:
            calendars.setdefault(seat.kind, []).append(seat)
        for kind, members in calendars.items():
            lines = _lines(members, now_ms) if kind.handed_out else {}
            for seat in members:
                turn = min(seat.turns, key=lambda each: each.slot(now_ms)[0])
                starts_ms, ends_ms = turn.slot(now_ms)
                slot = Slot(seat.term, starts_ms, ends_ms, ends_ms + turn.grace_ms)
                line = lines.get(starts_ms, (seat.contract,))
                found.append(Row(str(tables), seat.contract, slot, seat.claim_within_ms, line))
    return sorted(found, key=lambda each: (each.tables, each.slot.starts_ms, each.contract))


def _lines(members: Sequence[_Seat], now_ms: int) -> dict[int, tuple[str, ...]]:
    """By when it begins, the line of the slot of each member that goes on or comes next, as of `_Line.of`.

    From one slot to the next only those change their places whose own slot has ended meanwhile.
    """
    length_ms, starts = members[0].length_ms, sorted({each.next_ms(now_ms) for each in members})
    waiting = sorted(((each.next_ms(starts[0]), each.contract, each) for each in members), key=itemgetter(0, 1))
    found: dict[int, tuple[str, ...]] = {}
    for starts_ms in starts:
        over = bisect_right(waiting, starts_ms - length_ms, key=itemgetter(0))
        again = [(each.next_ms(starts_ms), contract, each) for _, contract, each in waiting[:over]]
        if again:
            waiting = sorted([*waiting[over:], *again], key=itemgetter(0, 1))
        found[starts_ms] = tuple([contract for _, contract, _ in waiting])
    return found


# ── What a review finds ──────────────────────────────────────────────────────────────────────────────────────────────


def problems(own: Contract, position: int, others: Iterable[Contract]) -> Iterator[tuple[str, str]]:
    """Why a calendar that an entry is of cannot work: a finding's rule, and what is wrong."""
    rule = own.tables[position]
    if rule.claim_within_ms is None:
        return
    named = [[each for each in other.tables if each.pattern == rule.pattern] for other in others]
    theirs = [seat for other, rules in zip(others, named, strict=True) for seat in _seats_of(other, rules)]
    for mine in _seats_of(own, [rule]):
        calendar = [mine, *(seat for seat in theirs if mine.beside(seat))]
        if len(calendar) == 1:
            yield (
                "slots.alone",
                _ALONE.format(tables=rule.pattern, agent=own.name, length=span_text(mine.length_ms), term=mine.term),
            )
            continue
        whose = [seat for seat in calendar if seat.meets_turns(mine)]
        passed_ms = sum(seat.claim_within_ms or 0 for seat in whose if seat is not mine)
        if passed_ms >= mine.length_ms:
            yield (
                "slots.late",
                _LATE.format(
                    number=len(whose),
                    tables=rule.pattern,
                    passed=span_text(passed_ms),
                    length=span_text(mine.length_ms),
                ),
            )


_ALONE = (
    "slots of {tables} that {agent} misses go to nobody: no other contract has 'claim_within' with slots of {length} "
    "on {term} of the same rows there"
)
_LATE = (
    "{number} contracts share a slot of {tables}. Once the others have each let their 'claim_within' pass, {passed} "
    "together, nothing of the {length} is left for the last in line; shorten 'claim_within', or lengthen the slots"
)


def _alike(turn: Turn, other: Turn) -> bool:
    """Whether two turns of one length have a slot in common, at some time."""
    return (turn.start_ms - other.start_ms) % math.gcd(turn.every_ms, other.every_ms) == 0

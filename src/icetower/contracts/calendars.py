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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from icetower.contracts.axes import Axes
from icetower.contracts.deliveries import Slot
from icetower.contracts.model import Contract, Operation, Rule
from icetower.contracts.overlaps import written
from icetower.contracts.regions import Region
from icetower.contracts.slots import Turn, span_text
from icetower.contracts.values import NotUnderstood
from icetower.protocol.names import Identifier

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
        line: the contracts that may take it, in their order.
    """

    slot: Slot
    from_ms: int
    parts: tuple[Part, ...]
    line: tuple[str, ...]


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

    def beside(self, other: _Seat) -> bool:
        """Whether both are of one calendar."""
        mine, its = ((each.term, each.length_ms, each.rests) for each in (self, other))
        return mine == its and None not in (self.claim_within_ms, other.claim_within_ms)

    def next_ms(self, now_ms: int) -> int:
        """The beginning of its own slot that goes on, or comes next."""
        return min(turn.slot(now_ms)[0] for turn in self.turns)

    def meets(self, starts_ms: int, ends_ms: int) -> bool:
        """Whether a slot of its own goes on at some moment of a time."""
        return self.next_ms(starts_ms) < ends_ms


def openings(
    own: Contract, others: Iterable[Contract], table: Identifier, now_ms: int, lately: Lately = _nothing
) -> list[Opening]:
    """The slots of a table that a contract may take next, by when it may.

    Args:
        others: the other contracts in force.
    """
    theirs = [seat for each in others if not each.shadow for seat in _seats(each, table)]
    found: list[Opening] = []
    for mine in _seats(own, table):
        found += _alone(mine, now_ms) if mine.claim_within_ms is None else _shared(mine, theirs, now_ms, lately)
    return sorted(found, key=lambda each: (each.from_ms, each.slot.starts_ms))


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
            yield Opening(slot, starts_ms, _parts(mine, plain, turn), (mine.contract,))


def _shared(mine: _Seat, theirs: Sequence[_Seat], now_ms: int, lately: Lately) -> Iterator[Opening]:
    length_ms = mine.length_ms
    calendar = [mine, *(seat for seat in theirs if mine.beside(seat))]
    strangers = [seat for seat in theirs if not mine.beside(seat) and not _apart(mine, seat)]
    on_ms = now_ms // length_ms * length_ms
    own = [mine.next_ms(on_ms), mine.next_ms(mine.next_ms(on_ms) + length_ms)]
    for starts_ms in sorted({on_ms, on_ms + length_ms, *own}):
        ends_ms = starts_ms + length_ms
        if starts_ms not in own and any(each.meets(starts_ms, ends_ms) for each in strangers):
            continue  # that of somebody who does not hand it out
        line = in_line(calendar, starts_ms, lately)
        before = line[: line.index(mine)]
        from_ms = starts_ms + sum(each.claim_within_ms or 0 for each in before)
        if from_ms < ends_ms:
            turn = mine.turns[0]
            slot = Slot(mine.term, starts_ms, ends_ms, ends_ms + turn.grace_ms)
            plain = Turn(length_ms, 0, length_ms)
            yield Opening(slot, from_ms, _parts(mine, plain), tuple(each.contract for each in line))


def _apart(one: _Seat, other: _Seat) -> bool:
    """Whether the slots of two contracts are known to have no rows in common, at whatever time."""
    axes = Axes([*one.rests, *other.rests], now_ms=0)
    try:
        return not any(axes.meet(mine, its) for mine in one.rests for its in other.rests)
    except NotUnderstood:
        return False


def in_line(calendar: Sequence[_Seat], starts_ms: int, lately: Lately) -> list[_Seat]:
    """The contracts of a calendar in the order in which they may take a slot."""
    whose = [each for each in calendar if each.next_ms(starts_ms) == starts_ms]
    had = lately(starts_ms, whose[0].length_ms) if len(whose) > 1 else {}
    whose.sort(key=lambda each: (had.get(each.contract, 0), each.contract))
    rest = [each for each in calendar if each not in whose]
    return [*whose, *sorted(rest, key=lambda each: (each.next_ms(starts_ms), each.contract))]


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
    found: list[Row] = []
    for contract in contracts:
        for tables in dict.fromkeys(rule.pattern for rule in contract.tables):
            calendar = [
                (each.name, seat)
                for each in contracts
                for seat in _seats_of(each, [rule for rule in each.tables if rule.pattern == tables])
            ]
            for _, seat in (each for each in calendar if each[0] == contract.name):
                turn = min(seat.turns, key=lambda each: each.slot(now_ms)[0])
                starts_ms, ends_ms = turn.slot(now_ms)
                slot = Slot(seat.term, starts_ms, ends_ms, ends_ms + turn.grace_ms)
                others = [its for name, its in calendar if name != contract.name and seat.beside(its)]
                line = tuple(each.contract for each in in_line([seat, *others], starts_ms, _nothing))
                found.append(Row(str(tables), contract.name, slot, seat.claim_within_ms, line))
    return sorted(found, key=lambda each: (each.tables, each.slot.starts_ms, each.contract))


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
        whose = [seat for seat in calendar if any(_alike(turn, other) for turn in mine.turns for other in seat.turns)]
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

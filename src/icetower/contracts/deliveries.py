"""How an agent's rows come into a table: by which pattern, through which table, and in which slot. Pure.

A contract may name one pattern for a table, or one for each operation. What an operation is named for in `operations`
goes before what it is granted by another (`overwrite` grants `append`); of several patterns the stricter holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from icetower.contracts.model import Contract, Operation, Rule
from icetower.contracts.patterns import STRICTER, THROUGH, Orchestration, bounded_by_clock, handed_out
from icetower.contracts.regions import Extent, Pattern, Region, Values
from icetower.contracts.slots import Turn
from icetower.contracts.terms import parse_term
from icetower.contracts.values import moment_of
from icetower.protocol.names import Identifier

_UNIT_MS = {"hour": 3_600_000, "day": 86_400_000}


@dataclass(frozen=True, slots=True)
class Slot:
    """A time in which an agent may commit.

    Attributes:
        term: what its rows must lie in, as the contract has it: ``identity(slot)``; ``now``: any rows that it owns.
        starts_ms, ends_ms: half open, milliseconds since 1970.
        until_ms: the end of its grace.
    """

    term: str
    starts_ms: int
    ends_ms: int
    until_ms: int

    def __str__(self) -> str:
        of = "" if self.term == "now" else f" of {self.term}"
        return f"from {moment_text(self.starts_ms)} to {moment_text(self.ends_ms)} UTC{of}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The way of one operation's rows.

    Attributes:
        rules: the entries of the contract that say so.
        through: the table that they are appended to; None: the table itself, or it is not known.
    """

    pattern: Orchestration
    rules: tuple[Rule, ...]
    through: Pattern | None


def delivery_of(contract: Contract, table: Identifier, operation: Operation) -> Delivery | None:
    """How rows come in by an operation; None: the contract does not grant it."""
    granting = [rule for rule in contract.rules_for(table) if rule.grants(operation) and rule.partitions != ()]
    named = [rule for rule in granting if operation in rule.operations] or granting
    if not named:
        return None
    pattern = max((rule.orchestration for rule in named), key=STRICTER.index)
    rules = tuple(rule for rule in named if rule.orchestration is pattern)
    return Delivery(pattern, rules, through_of(contract, table, rules) if pattern in THROUGH else None)


def through_of(contract: Contract, table: Identifier, rules: Iterable[Rule]) -> Pattern | None:
    """The log or delta table of a table: the one that is named, or the only other one that may be appended to."""
    for rule in rules:
        if rule.through is not None:
            return rule.through
    found = {
        rule.pattern
        for rule in contract.tables
        if rule.orchestration not in THROUGH
        and rule.grants(Operation.APPEND)
        and rule.pattern.namespace == table.namespace
        and not rule.pattern.matches(table)
    }
    return found.pop() if len(found) == 1 else None


# ── Slots ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def has_slots(rule: Rule) -> bool:
    """Whether a rule grants writes in slots."""
    return rule.orchestration is Orchestration.SCHEDULER or any(True for _ in _turns(rule))


@lru_cache(maxsize=256)
def without_slots(rule: Rule) -> Rule:
    """A rule as if it were always its turn."""
    regions = tuple(
        Region(tuple((name, extent) for name, extent in region.fields if not bounded_by_clock(extent)))
        for region in rule.partitions or ()
    )
    return replace(rule, partitions=regions)


def with_every_slot(rule: Rule) -> Rule:
    """A rule with every slot that may be its agent's, where slots are handed out."""
    return replace(rule, partitions=handed_out(rule.partitions)) if rule.partitions and rule.claim_within_ms else rule


def next_slot(rules: Iterable[Rule], now_ms: int, *, least_ms: int = 0) -> Slot | None:
    """The slot that goes on and of which `least_ms` are left, or else the next one; None: the rules have none."""
    found = [
        slot
        for rule in rules
        for name, extent in lines_of(rule)
        if (slot := _slot(name, extent, now_ms, least_ms)) is not None
    ]
    return min(found, key=lambda slot: slot.starts_ms, default=None)


def moment_text(ms: int) -> str:
    """A moment as messages name it: to the second, where it is one."""
    moment = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{ms % 1000:03d}" if ms % 1000 else "")


def lines_of(rule: Rule) -> Iterator[tuple[str, Extent]]:
    """Of each region the line by which it moves: one that comes round before a range.

    A range that moves with the clock makes slots under the pattern `scheduler` alone; else it bounds what is owned, and
    any time is right.
    """
    slots = bounded_by_clock if rule.orchestration is Orchestration.SCHEDULER else _comes_round
    for region in rule.partitions or ():
        lines = [(name, extent) for name, extent in region.fields if slots(extent)]
        yield from sorted(lines, key=lambda line: not isinstance(line[1], Turn))[:1]


def _comes_round(extent: Extent) -> bool:
    return isinstance(extent, Turn)


def _turns(rule: Rule) -> Iterator[Turn]:
    return (extent for region in rule.partitions or () for _, extent in region.fields if isinstance(extent, Turn))


def _slot(name: str, extent: Extent, now_ms: int, least_ms: int) -> Slot | None:
    if isinstance(extent, Turn):
        starts, ends = extent.slot(now_ms)
        if ends - max(now_ms, starts) < least_ms <= extent.length_ms:
            starts, ends = extent.slot(ends)
        return Slot(name, starts, ends, ends + extent.grace_ms)
    if isinstance(extent, Values) or extent.start is None:
        return None
    offset_ms = moment_of(extent.start, 0) or 0
    unit_ms = _UNIT_MS.get(_transform_of(name), 1)
    starts = (max(now_ms, now_ms + offset_ms)) // unit_ms * unit_ms
    ends = starts + unit_ms - (offset_ms if unit_ms == 1 else 0)
    return Slot(name, starts, ends, ends)


def _transform_of(name: str) -> str:
    term = parse_term(name)
    return "" if term is None else term.transform

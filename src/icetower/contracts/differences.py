"""What one version of a contract gives and takes that another doesn't, in words. Pure.

What is granted is compared as sets of rows (`boxes.py`), not as lines: rules that are written otherwise and say the
same differ in nothing, and of a range that grows only what it grows by is gained. Where the terms cannot be compared,
whole regions are named instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from icetower.contracts.axes import Axes, rules_regions
from icetower.contracts.boxes import Box, TooMany, difference, merged
from icetower.contracts.fields import Saying, fields_of
from icetower.contracts.model import FILE_OPERATIONS, IMPLIED, NARROWER_ON_A_PART, Contract, Operation, Rule
from icetower.contracts.overlaps import common_tables
from icetower.contracts.regions import Pattern, Region
from icetower.contracts.values import NotUnderstood
from icetower.contracts.wording import operations_text, region_text
from icetower.counting import series

NAMED_MAX = 4
"""Regions that are named one by one."""


class Kind(StrEnum):
    """Which way a contract changes. `CHANGES` is neither more nor less."""

    GAINS = "gains"
    LOSES = "loses"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that two versions differ in.

    Attributes:
        words: the whole of it, but for the agent's name: ``gains overwrite on a.b where day(ts) is 2017-01-01``.
        tables: the tables concerned, as a pattern; None: the whole contract.
        partitions: which, in words; empty for all of them, or where it is no matter of partitions.
        rule: the position in `tables` of an entry of the newer version that it is about; None: it has none.
        clause: the field of the contract that it comes from.
    """

    kind: Kind
    words: str
    tables: Pattern | None = None
    operations: frozenset[Operation] = frozenset()
    partitions: str = ""
    rule: int | None = None
    clause: str = "tables"


def changes(old: Contract | None, new: Contract | None) -> tuple[Change, ...]:
    """What changes between two versions of one contract; None: it is not in force.

    What is gained comes first, then what is lost.
    """
    before, after = old or _NOTHING, new or _NOTHING
    found = [*_granted(before, after), *_held_to(before, after), *_clauses(before, after)]
    return tuple(sorted(found, key=lambda change: list(Kind).index(change.kind)))


_NOTHING = Contract("nobody")


# -------------------------------------------------------------------------------------------- operations and partitions


@dataclass(frozen=True, slots=True)
class _Where:
    """Some partitions, in words: those that `text` names; without it all, or all but those that `but` names."""

    text: str = ""
    but: str = ""


def _granted(before: Contract, after: Contract) -> Iterator[Change]:
    """What is granted on which tables, pattern by pattern."""
    for kind, less, more in ((Kind.GAINS, before, after), (Kind.LOSES, after, before)):
        for pattern in _patterns(more):
            found: dict[_Where, set[Operation]] = {}
            for operation in Operation:
                if (where := _more(less, more, pattern, operation)) is not None:
                    found.setdefault(where, set()).add(operation)
            _drop_what_is_implied(found)
            kept = _kept(less, pattern) if kind is Kind.LOSES else ""
            for where, operations in found.items():
                position = _position(after, pattern, operations)
                yield Change(
                    kind,
                    f"{kind} {operations_text(operations)} on {_tables_text(kind, pattern, where)}{kept}",
                    pattern,
                    frozenset(operations),
                    where.text or (f"all but where {where.but}" if where.but else ""),
                    position,
                    "reads" if position is None and pattern in after.reads else "tables",
                )


def _tables_text(kind: Kind, pattern: Pattern, where: _Where) -> str:
    if where.text:
        return f"{pattern} where {where.text}"
    if not where.but:
        return str(pattern)
    if kind is Kind.GAINS:
        return f"all partitions of {pattern}, no longer only where {where.but}"
    return f"all partitions of {pattern} but where {where.but}"


def _drop_what_is_implied(found: dict[_Where, set[Operation]]) -> None:
    """Who may write a part of a table may read it: that need not be said beside it."""
    whole = found.get(_Where(), set())
    others = {operation for where, operations in found.items() if where != _Where() for operation in operations}
    if any(Operation.READ in IMPLIED.get(operation, ()) for operation in others):
        whole.discard(Operation.READ)
        if not whole:
            found.pop(_Where(), None)


def _patterns(contract: Contract) -> list[Pattern]:
    return list(dict.fromkeys(rule.pattern for rule in contract.rules))


def _position(contract: Contract, pattern: Pattern, operations: Iterable[Operation]) -> int | None:
    named = [(position, rule) for position, rule in enumerate(contract.tables) if rule.pattern == pattern]
    granting = [position for position, rule in named if any(rule.grants(operation) for operation in operations)]
    return next(iter((*granting, *(position for position, _ in named))), None)


def _kept(contract: Contract, pattern: Pattern) -> str:
    """The narrower patterns by which a part of what is lost stays."""
    under = [str(p) for p in _patterns(contract) if p != pattern and common_tables(p, pattern) == p]
    return f", but for what it is granted on {series(under)}" if under else ""


def _more(less: Contract, more: Contract, pattern: Pattern, operation: Operation) -> _Where | None:
    """The partitions that one version grants an operation on and the other doesn't; None: there are none.

    Rules of wider patterns reach all the tables of a narrower one, too.
    """
    mine = [rule for rule in more.rules if rule.pattern == pattern and rule.grants(operation)]
    theirs = [rule for rule in less.rules if common_tables(rule.pattern, pattern) == pattern and rule.grants(operation)]
    if operation not in FILE_OPERATIONS | NARROWER_ON_A_PART or all(rule.partitions == () for rule in mine + theirs):
        return _Where() if operation not in FILE_OPERATIONS and mine and not theirs else None
    mine, theirs = ([rule for rule in rules if rule.partitions != ()] for rules in (mine, theirs))
    if any(rule.whole for rule in theirs) or not mine:
        return None
    found = _beyond(mine, theirs)
    if found and theirs and any(rule.whole for rule in mine) and all(rule.partitions for rule in theirs):
        # In words of what is not meant, since the rest has no end.
        return _Where(but=_several([_rule_text(rule) for rule in theirs]))
    if any(rule.whole for rule in mine) and not theirs:
        return _Where()
    return _Where(_several(found)) if found else None


def _several(texts: Sequence[str]) -> str:
    more = len(texts) - NAMED_MAX
    return ", or ".join([*texts[:NAMED_MAX], *([f"in {more} regions more"] if more > 0 else [])])


def _beyond(mine: Sequence[Rule], theirs: Sequence[Rule]) -> list[str]:
    """What some rules speak of and others don't, in words; a region that cannot be compared as it is written."""
    axes = Axes(rules_regions([*mine, *theirs]))
    had = {(region, rule.excluded) for rule in theirs for region in _regions(rule)}
    left: list[Box] = []
    written: list[str] = []
    for rule in mine:
        for region in _regions(rule):
            if (region, rule.excluded) in had:
                continue
            try:
                left += _left(axes, region, rule.excluded, theirs)
            except (NotUnderstood, TooMany):
                written.append(_rule_text(replace(rule, partitions=(region,))))
    return [*(axes.words(box) for box in merged(left)), *written]


def _left(axes: Axes, region: Region, excluded: Sequence[Region], theirs: Sequence[Rule]) -> list[Box]:
    """What no region of theirs holds, of those that can be compared. Raises `NotUnderstood` and `TooMany`."""
    left = _boxes(axes, region, excluded)
    for rule in theirs:
        for other in _regions(rule):
            try:
                _require_comparable(axes, (region, *excluded, other, *rule.excluded))
                taken = _boxes(axes, other, rule.excluded)
            except NotUnderstood:
                continue
            left = axes.inhabited(difference(left, taken))
    return left


def _boxes(axes: Axes, region: Region, excluded: Sequence[Region]) -> list[Box]:
    _require_comparable(axes, (region, *excluded))
    given, taken = ([axes.box(each) for each in some] for some in ((region,), excluded))
    return axes.inhabited(difference((b for b in given if b is not None), (b for b in taken if b is not None)))


def _require_comparable(axes: Axes, regions: Sequence[Region]) -> None:
    for pair in itertools.combinations(regions, 2):
        if why := axes.why_unsure(*pair):
            raise NotUnderstood(why)


def _regions(rule: Rule) -> Sequence[Region]:
    return (Region(()),) if rule.partitions is None else rule.partitions


def _rule_text(rule: Rule) -> str:
    """The partitions of a rule, as they are written."""
    given = [region_text(region) for region in rule.partitions or () if region.fields]
    text = ", or ".join(given) or "it is any partition"
    taken = ", or ".join(region_text(region) for region in rule.excluded)
    return f"{text}, except where {taken}" if taken else text


# ----------------------------------------------------------------------------------- what writes to a table are held to


def _held_to(before: Contract, after: Contract) -> Iterator[Change]:
    """What else the rules say of tables that both versions name; and of those that only one does, what is not usual."""
    for pattern in dict.fromkeys((*_patterns(before), *_patterns(after))):
        old, new = ([rule for rule in contract.tables if rule.pattern == pattern] for contract in (before, after))
        if not new:
            continue
        for saying, value in _sayings():
            was, now = (_together(saying, value, rules) for rules in (old, new))
            if was != now:
                position = next((i for i, rule in enumerate(after.tables) if rule.pattern == pattern), None)
                yield Change(_kind(saying, was, now), saying.words(was, now).format(pattern), pattern, rule=position)


def _sayings() -> Iterator[tuple[Saying, Callable[[Rule], Any]]]:
    """What rules say beside operations and partitions, and where."""
    for attribute, field in fields_of(Rule).items():
        if field.kind.part is not None:
            for inner, each in fields_of(field.kind.part).items():
                if each.saying is not None:
                    yield each.saying, attrgetter(f"{attribute}.{inner}")
        elif field.saying is not None:
            yield field.saying, attrgetter(attribute)


def _together(saying: Saying, value: Callable[[Rule], Any], rules: Sequence[Rule]) -> Any:
    """What some rules of one pattern come to; what goes without saying, where there are none."""
    if saying.of_writers:
        rules = [rule for rule in rules if any(rule.grants(operation) for operation in FILE_OPERATIONS)]
    return saying.together([value(rule) for rule in rules])


def _kind(saying: Saying, was: Any, now: Any) -> Kind:
    if saying.gains is None:
        return Kind.CHANGES
    return Kind.GAINS if saying.gains(was, now) else Kind.LOSES


# ---------------------------------------------------------------------------------------------------------- the clauses


def _clauses(before: Contract, after: Contract) -> Iterator[Change]:
    if after is _NOTHING:
        return
    for attribute, field in fields_of(Contract).items():
        was, now = (getattr(contract, attribute) for contract in (before, after))
        if was == now or attribute in ("name", "tables", "reads"):
            continue
        if field.saying is not None:
            yield Change(_kind(field.saying, was, now), field.saying.words(was, now), clause=field.name)
            continue
        said, says = ("" if value == field.default else field.text(value) for value in (was, now))
        has = f"has {field.name}: {says}" if says else f"has no {field.name} any more"
        yield Change(Kind.CHANGES, f"{has}; before: {said}" if said else has, clause=field.name)

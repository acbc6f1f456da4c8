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
from typing import Any

from icetower.contracts.axes import Axes, rules_regions
from icetower.contracts.boxes import Box, TooMany, difference, merged
from icetower.contracts.model import (
    FILE_OPERATIONS,
    IMPLIED,
    Contract,
    Escalation,
    Idempotency,
    Isolation,
    KeyWay,
    Operation,
    Orchestration,
    Orphans,
    Pattern,
    Region,
    Retries,
    Revocation,
    Role,
    Rule,
)
from icetower.contracts.overlaps import common_tables
from icetower.contracts.reading import duration_text, size_text
from icetower.contracts.values import NotUnderstood
from icetower.contracts.wording import operations_text, region_text, series
from icetower.counting import counted

NAMED_MAX = 4
"""Regions that are named one by one."""
_STRICTER = (Orchestration.DIRECT, Orchestration.SCHEDULER, Orchestration.MEDIATOR)


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
    if operation not in FILE_OPERATIONS:
        return _Where() if mine and not theirs else None
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
        old, new = (_rules(contract, pattern) for contract in (before, after))
        if not new:
            continue
        for said in _SAYINGS:
            was, now = said.of(old), said.of(new)
            if was != now:
                kind = Kind.CHANGES if said.kind is None else said.kind(was, now)
                words = said.words(was, now).format(pattern)
                position = next((i for i, rule in enumerate(after.tables) if rule.pattern == pattern), None)
                yield Change(kind, words, pattern, rule=position)


def _rules(contract: Contract, pattern: Pattern) -> list[Rule]:
    return [rule for rule in contract.tables if rule.pattern == pattern]


@dataclass(frozen=True, slots=True)
class _Saying:
    """One thing that rules say beside operations and partitions.

    Attributes:
        of: what some rules of one pattern come to together; what goes without saying, where there are none.
        words: of what was and what is, with ``{}`` for the pattern.
        kind: which way it goes; None: neither.
    """

    of: Callable[[Sequence[Rule]], Any]
    words: Callable[[Any, Any], str]
    kind: Callable[[Any, Any], Kind] | None = None


def _flag(name: str, on: str, off: str, kind: Kind) -> _Saying:
    other = Kind.LOSES if kind is Kind.GAINS else Kind.GAINS
    return _Saying(
        lambda rules: any(getattr(rule, name) for rule in rules),
        lambda _, now: on if now else off,
        lambda _, now: kind if now else other,
    )


def _isolation(rules: Sequence[Rule]) -> Isolation | None:
    levels = {rule.isolation for rule in rules}
    if Isolation.SERIALIZABLE in levels:
        return Isolation.SERIALIZABLE
    return Isolation.SNAPSHOT if levels == {Isolation.SNAPSHOT} else None


def _orchestration(rules: Sequence[Rule]) -> Orchestration:
    return max((rule.orchestration for rule in rules), key=_STRICTER.index, default=Orchestration.DIRECT)


def _reads_owned(rules: Sequence[Rule]) -> bool:
    writing = [rule for rule in rules if any(rule.grants(operation) for operation in FILE_OPERATIONS)]
    return bool(writing) and all(rule.reads_owned for rule in writing)


def _quota(name: str, limit: Callable[[int], str]) -> _Saying:
    def of(rules: Sequence[Rule]) -> int | None:
        given = (getattr(rule.quota, name) for rule in rules)
        return min((value for value in given if value is not None), default=None)

    def words(was: int | None, now: int | None) -> str:
        if now is None:
            return f"gains writes to {{}} without a limit of {limit(was or 0)}"
        before = "" if was is None else f", before: {limit(was)}"
        return f"is limited to {limit(now)} on {{}}{before}"

    return _Saying(
        of, words, lambda was, now: Kind.GAINS if now is None or (was or 0) > 0 < now - (was or now) else Kind.LOSES
    )


_SAYINGS: tuple[_Saying, ...] = (
    _flag(
        "blind_appends",
        "gains rebasing of its appends to {} unchecked (blind_appends)",
        "loses rebasing of its appends to {} unchecked (blind_appends)",
        Kind.GAINS,
    ),
    _flag("strict", "loses all rebasing on {} (strict)", "gains rebasing on {} again (strict no more)", Kind.LOSES),
    _flag(
        "require_key",
        "needs an idempotency key for each commit to {} (require_key)",
        "needs no idempotency key on {} any more (require_key)",
        Kind.LOSES,
    ),
    _flag(
        "prove_partitions",
        "must prove the partitions of its files on {} (prove_partitions)",
        "need not prove the partitions of its files on {} any more (prove_partitions)",
        Kind.LOSES,
    ),
    _Saying(
        _reads_owned,
        lambda _, now: (
            "promises that its writes to {} depend on owned partitions only (read_scope: owned)"
            if now
            else "promises no more what its writes to {} depend on (read_scope)"
        ),
    ),
    _Saying(
        _isolation,
        lambda was, now: (
            f"is held to {now} isolation on {{}}{f', before: {was}' if was else ''}"
            if now
            else f"is held to {was} isolation on {{}} no more"
        ),
    ),
    _Saying(_orchestration, lambda was, now: f"writes to {{}} by the pattern {now}, before: {was}"),
    _Saying(
        lambda rules: all(rule.own_location for rule in rules),
        lambda _, now: (
            "loses writing files anywhere under {} (write_location: own)"
            if now
            else "gains writing files anywhere under {} (write_location: table)"
        ),
        lambda _, now: Kind.LOSES if now else Kind.GAINS,
    ),
    _quota("commits_per_minute", lambda count: f"{counted(count, 'commit')} a minute"),
    _quota("files_per_commit", lambda count: f"{counted(count, 'file')} a commit"),
    _quota("bytes_per_commit", lambda count: f"{size_text(count)} a commit"),
)


# ---------------------------------------------------------------------------------------------------------- the clauses


def _clauses(before: Contract, after: Contract) -> Iterator[Change]:
    if after is _NOTHING:
        return
    if before.shadow != after.shadow:
        yield (
            Change(Kind.GAINS, "is evaluated and logged only, and admits everything (mode: shadow)", clause="mode")
            if after.shadow
            else Change(Kind.LOSES, "is enforced from now on (mode: enforce)", clause="mode")
        )
    for (clause, was), (_, now) in zip(_said(before), _said(after), strict=True):
        if was != now:
            has = f"has {clause}: {now}" if now else f"has no {clause} any more"
            yield Change(Kind.CHANGES, f"{has}; before: {was}" if was else has, clause=clause)


def _said(contract: Contract) -> list[tuple[str, str]]:
    """What the clauses of a contract say; nothing where one is not there."""
    return [
        ("owner", contract.owner or ""),
        ("role", "" if contract.role is Role.AGENT else contract.role.value),
        ("description", contract.description),
        ("retries", "" if contract.retries is None else retries_text(contract.retries)),
        ("escalation", "" if contract.escalation is None else escalation_text(contract.escalation)),
        ("idempotency", "" if contract.idempotency is None else idempotency_text(contract.idempotency)),
        ("orphans", "" if contract.orphans is None else orphans_text(contract.orphans)),
        ("revocation", "" if contract.revocation is None else revocation_text(contract.revocation)),
        ("quotas", "" if contract.requests_at_once is None else requests_text(contract.requests_at_once)),
    ]


def retries_text(retries: Retries) -> str:
    """The clause in words, as are those below."""
    shortest, longest = (duration_text(ms / 1000) for ms in (retries.min_wait_ms, retries.max_wait_ms))
    return f"up to {retries.attempts} retries, {shortest} to {longest} apart"


def escalation_text(escalation: Escalation) -> str:
    """To whom, and after what."""
    webhook = f" and the webhook {escalation.webhook}" if escalation.webhook else ""
    failures = f"{counted(escalation.after_failures, 'failure')} in a row within {duration_text(escalation.within_s)}"
    return f"to {escalation.to}{webhook} after {failures}"


def idempotency_text(idempotency: Idempotency) -> str:
    """Whether a key is needed, how it comes and how long it counts."""
    ways = series([way.value for way in KeyWay if way in idempotency.how], "or")
    window = "" if idempotency.window_s is None else f", remembered for {duration_text(idempotency.window_s)}"
    return f"a key {'is required' if idempotency.required else 'may come'} by {ways}{window}"


def orphans_text(orphans: Orphans) -> str:
    """How often they are looked for, and their end."""
    end = "deleted" if orphans.delete else "reported"
    every, older = duration_text(orphans.detect_every_s), duration_text(orphans.older_than_s)
    return f"looked for every {every}; what is older than {older} is {end}"


def requests_text(at_once: int) -> str:
    """How many go on at the same time."""
    return f"{counted(at_once, 'request')} at once"


def revocation_text(revocation: Revocation) -> str:
    """By whom."""
    return f"by administrators{f' and by {series(revocation.by)}' if revocation.by else ' only'}"

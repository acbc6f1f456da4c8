"""Who is refused, why and since when, and what to do about it: attempts that did not land, by rule. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icetower.ledger.activity import Group
from icetower.ledger.attempts import NOT_LANDED, Attempt, Outcome
from icetower.rules import Refusal, Rule

WHO_MAX = 6
"""Principals at tables that one rule names."""
RULES_MAX = 12
"""Rules that the first screen shows."""

_ORDER = (Outcome.UNKNOWN, Outcome.REFUSED, Outcome.CONFLICT)
"""What needs somebody first: whether a commit has landed, and what stays wrong before what clients send again."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the caller does next, by the name that errors carry, and the condition where a rule has several."""

    step: str
    means: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """One principal at one table.

    Attributes:
        last: the number of the newest attempt in the log.
    """

    principal: str
    table: str
    times: int
    first_ms: int
    last_ms: int
    last: int


@dataclass(frozen=True, slots=True)
class ByRule:
    """All attempts that one rule ended, in one way.

    Attributes:
        meaning: of the rule, as its table says; empty for one that it does not have.
        who: those whose last attempt is the newest, a few; `more` others.
        sample: the newest attempt, where it was read.
    """

    rule: str
    outcome: Outcome
    meaning: str
    advice: tuple[Advice, ...]
    times: int
    first_ms: int
    last_ms: int
    last: int
    who: tuple[Refused, ...]
    more: int
    sample: Attempt | None = None


def by_rule(groups: Iterable[Group], rules: Mapping[str, Rule], next_steps: Mapping[str, str]) -> list[ByRule]:
    """Attempts that did not land, by rule: those first that need somebody, and of these the latest first."""
    found: dict[tuple[Outcome, str], list[Group]] = {}
    for group in groups:
        if group.outcome in NOT_LANDED:
            found.setdefault((group.outcome, group.rule or ""), []).append(group)
    ended = [_ended(outcome, rule, some, rules, next_steps) for (outcome, rule), some in found.items()]
    return sorted(ended, key=lambda each: (_ORDER.index(each.outcome), -each.last_ms, each.rule))


def _ended(
    outcome: Outcome, rule: str, groups: Sequence[Group], rules: Mapping[str, Rule], next_steps: Mapping[str, str]
) -> ByRule:
    known = rules.get(rule)
    latest = sorted(groups, key=lambda each: -each.last)
    who = tuple(Refused(g.principal, g.table, g.times, g.first_ms, g.last_ms, g.last) for g in latest[:WHO_MAX])
    return ByRule(
        rule,
        outcome,
        "" if known is None else known.meaning,
        () if known is None else advice_of(known, outcome, next_steps),
        sum(group.times for group in groups),
        min(group.first_ms for group in groups),
        max(group.last_ms for group in groups),
        latest[0].last,
        who,
        len(latest) - len(who),
    )


def advice_of(rule: Rule, outcome: Outcome, next_steps: Mapping[str, str]) -> tuple[Advice, ...]:
    """What may be done about attempts that a rule ended in this way."""
    fitting = [refusal for refusal in rule.refusals if _fits(refusal, outcome)] or rule.refusals
    steps = {refusal.next_step: refusal for refusal in reversed(fitting)}
    several = len(steps) > 1
    return tuple(
        Advice(step, next_steps.get(step, ""), refusal.condition if several else "")
        for step, refusal in reversed(steps.items())
    )


def _fits(refusal: Refusal, outcome: Outcome) -> bool:
    if outcome is Outcome.UNKNOWN:
        return refusal.status in (500, 502, 504)
    conflict = refusal.status == 409 and refusal.next_step != "wait_until"
    return conflict == (outcome is Outcome.CONFLICT)


@dataclass(frozen=True, slots=True)
class Tally:
    """How attempts ended: landed, refused, conflicts, unknown, and copies of what had landed before."""

    landed: int = 0
    refused: int = 0
    conflicts: int = 0
    unknown: int = 0
    replayed: int = 0

    @classmethod
    def of(cls, counted: Mapping[Outcome, int]) -> Tally:
        return cls(
            sum(counted.get(each, 0) for each in (Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED)),
            counted.get(Outcome.REFUSED, 0),
            counted.get(Outcome.CONFLICT, 0),
            counted.get(Outcome.UNKNOWN, 0),
            counted.get(Outcome.REPLAYED, 0),
        )

    @property
    def failed(self) -> int:
        return self.refused + self.conflicts + self.unknown


@dataclass(frozen=True, slots=True)
class Health:
    """How one principal, or one table, has fared lately. `last_ms` None: it was not seen."""

    name: str
    tally: Tally
    last_ms: int | None
    others: tuple[str, ...] = ()


def health(groups: Iterable[Group], *, of_tables: bool) -> dict[str, Health]:
    """By principal, or by table: how its attempts ended, the last one, and at which tables (or by which principals)."""
    counted: dict[str, dict[Outcome, int]] = {}
    last: dict[str, int] = {}
    others: dict[str, dict[str, None]] = {}
    for group in groups:
        name, other = (group.table, group.principal) if of_tables else (group.principal, group.table)
        counts = counted.setdefault(name, {})
        counts[group.outcome] = counts.get(group.outcome, 0) + group.times
        last[name] = max(last.get(name, 0), group.last_ms)
        others.setdefault(name, {})[other] = None
    return {name: Health(name, Tally.of(counts), last[name], tuple(others[name])) for name, counts in counted.items()}

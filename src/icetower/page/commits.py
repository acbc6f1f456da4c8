"""One attempt, as its page says it: the phases with their shares, and what its end means. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from icetower.ledger.attempts import NUMBERED, Attempt, Outcome
from icetower.page.refusals import Advice, advice_of
from icetower.rules import Table

WIDTH = 720
"""Of the bar of phases, in its own units."""

MEANING = {
    Outcome.DIRECT: "It was committed on the head that its writer had prepared it on.",
    Outcome.REBASED: "Others had committed meanwhile. The tower put it on the new head, and its writer did not retry.",
    Outcome.APPENDED: "It came by the fast path: its files went into a snapshot that several appends may share.",
    Outcome.DONE: "It was done. It is no commit of rows.",
    Outcome.REFUSED: "It was refused: nothing of it is in the table.",
    Outcome.CONFLICT: "Something stood in its way. Its client refreshes and tries again by itself.",
    Outcome.REPLAYED: "It had landed before, under the same key: its writer got that answer again.",
    Outcome.UNKNOWN: "Nobody could tell in time whether it has landed. Look for its rows before writing them again.",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase. `x`, `width`: of its part of the bar."""

    name: str
    took_ms: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Commit:
    """One attempt.

    Attributes:
        rest_ms: of its latency, what no phase accounts for: reading its files, waiting for places, logging.
        by: how it is known when it is sent again.
        means: of the rule that refused it.
    """

    phases: tuple[Phase, ...]
    rest_ms: float
    outcome_means: str
    by: str
    means: str
    advice: tuple[Advice, ...]
    end_to_end_ms: int | None


def commit_of(number: int, attempt: Attempt, rules: Table) -> Commit:
    """What the page of an attempt says."""
    known = (
        ("judge", attempt.judge_ms),
        ("queue", attempt.queue_wait_ms or None),
        ("plan", attempt.plan_ms),
        ("write", attempt.write_ms),
        ("swap", attempt.swap_ms),
    )
    taken = [(name, took_ms) for name, took_ms in known if took_ms is not None]
    total = max(attempt.latency_ms, sum(took_ms for _, took_ms in taken), 0.001)
    phases, x = list[Phase](), 0.0
    for name, took_ms in taken:
        width = WIDTH * took_ms / total
        phases.append(Phase(name, took_ms, round(x, 1), round(max(width, 1.0), 1)))
        x += width
    rule = rules.rules.get(attempt.rule or "")
    return Commit(
        tuple(phases),
        max(0.0, attempt.latency_ms - sum(took_ms for _, took_ms in taken)),
        MEANING[attempt.outcome],
        _known_by(attempt),
        "" if rule is None else rule.meaning,
        () if rule is None else advice_of(rule, attempt.outcome, rules.next_steps),
        None if attempt.decided_ms is None else attempt.at_ms - attempt.decided_ms,
    )


def _known_by(attempt: Attempt) -> str:
    if attempt.key_hash is not None:
        return "an idempotency key"
    if attempt.work is None:
        return "nothing: sent again, it would be another write"
    return "a number of its application" if attempt.work.startswith(NUMBERED) else "its files or its snapshots"

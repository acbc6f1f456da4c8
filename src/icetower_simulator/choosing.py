"""Which way of writing docs/choosing.md chooses for a workload: five questions, and the first yes decides. Pure.

The planner simulates ways and ranks them by numbers. What a way gives besides (no work in vain, checks before anybody
sees the rows) is asked for here, so that its advice names intents, slots and branches where the document does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from icetower_simulator.experiments import Row
from icetower_simulator.planner import Plan, Workload


@dataclass(frozen=True, slots=True)
class Choice:
    """What is chosen for a workload.

    Attributes:
        question: the number of the one that is answered with yes, from 1 on; 0: none is.
        asked: its words.
        ways: what is chosen, in words.
        patterns: as which the plan has it; branches are not simulated, and commit as `group` once they are published.
    """

    question: int
    asked: str
    ways: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def proposed(self) -> str:
        """The pattern of the contracts to start from."""
        return "branches" if "a branch" in self.ways else self.patterns[0]

    def as_json(self, done: Plan) -> Row:
        """With whether each of the patterns holds today's load."""
        return {
            "question": self.question,
            "ways": list(self.ways),
            "patterns": {name: _holds(done, name) for name in self.patterns},
        }

    def text(self, done: Plan) -> str:
        """In one sentence."""
        held = [f"{name} {'holds' if _holds(done, name) else 'does not hold'} this load" for name in self.patterns]
        why = f"question {self.question}: {self.asked} Yes" if self.question else "no question is answered with yes"
        return f"docs/choosing.md chooses {' and '.join(self.ways)} ({why}); {', '.join(held)}"


def _holds(done: Plan, name: str) -> bool:
    return any(each.candidate.name == name and each.today.holds(done.workload) for each in done.advice)


def at_once(workload: Workload) -> float:
    """How many writes that change the same rows are at work at once, on average; 1: as many as could take turns."""
    changing = workload.rate_per_s * (1 - workload.appends) * workload.conflicts
    return changing * workload.work_s / workload.partitions


_Ways = tuple[tuple[str, ...], tuple[str, ...]]
_APPEND: _Ways = ("an append", "the write-ahead log"), ("appends", "wal")
_COLLECTOR: _Ways = ("the collector", "the write-ahead log"), ("collector", "wal")
_CONTRACT: _Ways = ("a contract with its own partitions",), ("isolated", "group")
_SLOT: _Ways = ("a slot",), ("slots",)
_INTENT: _Ways = ("an intent",), ("intents",)
_BRANCH: _Ways = ("a branch",), ("group",)
_BOTH: _Ways = ("a branch", "an intent"), ("intents",)


def _thinking(workload: Workload) -> _Ways:
    """A branch alone does not protect long work on rows that others write, too."""
    if not workload.checked_first:
        return _INTENT
    return _BOTH if workload.contended else _BRANCH


QUESTIONS: tuple[tuple[str, Callable[[Workload], bool], Callable[[Workload], _Ways]], ...] = (
    (
        "Does it only add rows, and are seconds of delay fine if hundreds of others do, too?",
        lambda workload: workload.appends == 1 and not workload.checked_first,
        lambda _: _APPEND,
    ),
    (
        "Do many agents change the same rows, more often than they could take turns?",
        lambda workload: at_once(workload) >= 1,
        lambda _: _COLLECTOR,
    ),
    (
        "Does it own its rows: partitions that nobody else writes to?",
        lambda workload: workload.own_partitions and not workload.checked_first,
        lambda _: _CONTRACT,
    ),
    (
        "Does it write at a fixed pace, by the clock?",
        lambda workload: workload.by_the_clock and not workload.checked_first,
        lambda _: _SLOT,
    ),
    (
        "Does it think for long about rows that others also write, or is its work checked before anybody sees it?",
        lambda workload: workload.checked_first or workload.contended,
        _thinking,
    ),
)
"""The questions of docs/choosing.md, when a workload answers one with yes, and what is chosen then."""


def choose(workload: Workload) -> Choice:
    """What the first question that a workload answers with yes chooses."""
    for number, (words, answers, ways) in enumerate(QUESTIONS, 1):
        if answers(workload):
            return Choice(number, words, *ways(workload))
    return Choice(0, "", ("a contract",), ("group",))

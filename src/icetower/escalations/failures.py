"""Retry budgets, by counting: how often in a row has a principal failed at a table? Pure.

A failure is a refusal that the agent has to answer for: a true conflict, a violated contract, a malformed commit. What
the tower, the catalog or the storage has to answer for is none: whatever is 5xx, whatever may be sent again as it is
(`next_step: retry`: a full queue, a contract that changed meanwhile), a catalog that points at nothing. Nor are rows
that others hold. A replay is neither success nor failure: it tells of an earlier attempt. A stale commit fails only
when its client gives up (`escalations.stale`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from icetower.contracts.model import Escalation
from icetower.errors import IcetowerError

STOPPED = "contract.escalated"
"""The rule by which a stopped agent is refused."""

BUDGET_MAX = 1_000
"""Failures that one budget can allow: so many are kept of a streak."""

OWN_MAX = 5_000
"""Failures that are kept of one principal; the tables at which it failed longest ago go first."""

KEPT_MAX = 100_000
"""Failures that are kept of all; the principals that failed longest ago go first."""

_NOT_THEIRS = ("upstream", "contract.revoked", "intent.held", STOPPED)


@dataclass(frozen=True, slots=True)
class Failure:
    """When (milliseconds since 1970), and by which rule."""

    at_ms: int
    rule: str


def counts(error: IcetowerError) -> bool:
    """Whether an error is a failure of whoever sent the commit."""
    theirs = not any(error.rule == rule or error.rule.startswith(f"{rule}.") for rule in _NOT_THEIRS)
    return 400 <= error.status < 500 and error.next_step != "retry" and theirs


def budget(escalation: Escalation) -> int:
    """How many failures in a row open an escalation."""
    return min(escalation.after_failures, BUDGET_MAX)


def summary(failures: Iterable[Failure]) -> str:
    """The rules of some failures, most frequent first: ``contract.partitions (4), conflict.C1``."""
    rules = Counter(failure.rule for failure in failures).most_common()
    return ", ".join(rule if times == 1 else f"{rule} ({times})" for rule, times in rules)


@dataclass(slots=True)
class _Own:
    """The streaks of one principal, by table; the one that grew last is last."""

    streaks: OrderedDict[str, deque[Failure]] = field(default_factory=OrderedDict[str, deque[Failure]])
    kept: int = 0

    def add(self, table: str, failure: Failure, escalation: Escalation) -> deque[Failure]:
        streak = self.streaks.pop(table, None) or deque[Failure]()
        before = len(streak)
        streak.append(failure)
        while streak[0].at_ms < failure.at_ms - escalation.within_s * 1000 or len(streak) > budget(escalation):
            streak.popleft()
        self.streaks[table] = streak
        self.kept += len(streak) - before
        while self.kept > OWN_MAX:
            self.forget(next(iter(self.streaks)))
        return streak

    def forget(self, table: str) -> None:
        self.kept -= len(self.streaks.pop(table, ()))


class Streaks:
    """Failures in a row, by principal and table, in bounded memory.

    An agent that fails at thousands of tables pushes out its own streaks, never those of others, until `KEPT_MAX`.
    """

    def __init__(self) -> None:
        self._principals: OrderedDict[str, _Own] = OrderedDict()
        self._kept = 0

    def __len__(self) -> int:
        """Failures that are kept."""
        return self._kept

    def failed(self, principal: str, table: str, failure: Failure, escalation: Escalation) -> Sequence[Failure] | None:
        """Count a failure. The failures of the streak where they have used up the budget, oldest first; else None."""
        own = self._principals.pop(principal, None) or _Own()
        before = own.kept
        streak = own.add(table, failure, escalation)
        self._principals[principal] = own
        self._kept += own.kept - before
        while self._kept > KEPT_MAX:
            _, gone = self._principals.popitem(last=False)
            self._kept -= gone.kept
        return tuple(streak) if len(streak) >= budget(escalation) else None

    def ended(self, principal: str, table: str) -> None:
        """The streak is over: by a success, or since it has become a person's business."""
        own = self._principals.get(principal)
        if own is None:
            return
        before = own.kept
        own.forget(table)
        self._kept += own.kept - before
        if not own.kept:
            del self._principals[principal]

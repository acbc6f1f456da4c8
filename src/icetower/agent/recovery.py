"""An agent's reaction to a refusal: the step that its `next_step` and its fields ask for, regardless of its text.

def write(tower: Tower, key: str) -> None:  # one attempt, on the table as it is now
    table = load_catalog("tower", **tower.pyiceberg_properties()).load_table("sales.orders")
    table.append(rows, snapshot_properties=keyed(key))

carry_out(write, tower, "sales.orders", operations=["append"], reason="the nightly load")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icetower.agent.client import Tower
from icetower.agent.failures import error_of
from icetower.agent.keys import new_key, next_key
from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import CommitConflict, IcetowerError, Unavailable

T = TypeVar("T")

ATTEMPTS_MAX = 20
PATIENCE_S = 600.0
"""How long a piece of work is tried, in seconds, including waits for people."""
POLL_S = 5.0
"""The time between two checks whether a person has decided."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often work is tried again after refusals that ask for it at once, and how long it waits before."""

    attempts: int
    first_wait_s: float = 0.1
    wait_max_s: float = 5.0


def retries_of(tower: Tower) -> Retries | None:
    """What the caller's contract says in `retries`; None if it says nothing, or the tower does not answer."""
    try:
        said = tower.me().get("retries")
    except IcetowerError:
        return None
    return None if said is None else Retries(said["attempts"], said["min_wait_ms"] / 1000, said["max_wait_ms"] / 1000)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often work is tried. Retries are also bounded by the contract's `retries`, if it states them.

    Attributes:
        pause: a function that waits for a number of seconds.
    """

    attempts_max: int = ATTEMPTS_MAX
    total_s: float = PATIENCE_S
    poll_s: float = POLL_S
    pause: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    ambient: Ambient = field(default_factory=SystemAmbient)


def carry_out(
    work: Callable[[Tower, str], T],
    tower: Tower,
    table: str,
    *,
    operations: Sequence[str],
    reason: str,
    key: str | None = None,
    authenticate: Callable[[], Tower] | None = None,
    patience: Patience | None = None,
    understand: Callable[[BaseException], IcetowerError | None] | None = None,
) -> T:
    """Do some work that ends in a commit, and take the next step after every refusal that has one.

    refresh, retry       try again after a pause
    wait_until           try again at that time
    new_key              try again with another key, which is always the same one for a key (`next_key`)
    request_partition    request the partitions, and try again when they are granted
    escalated_to         try again when a person has closed the escalation
    authenticate         try again with new credentials
    anything else        stop

    Args:
        work: one attempt: it loads the table and writes with the key that it is passed. It may raise the exceptions of
            the SDK and of PyIceberg (`refusal_of`).
        table: the table that it writes to, ``namespace.table``.
        operations: the work's operations, as contracts name them; for a request for partitions.
        reason: for the person who decides on such a request.
        key: the key of the first attempt; by default a new one. Keep it with the work, for its next run.
        authenticate: returns a tower with new credentials; None: new credentials are not available.
        patience: the limits on time and attempts.
        understand: finds the refusal behind what `work` raises; by default `refusal_of`.

    Raises:
        IcetowerError: a refusal without a next step, or the last one when the patience is used up.
    """
    run = _Run(tower, table, operations, reason, key or new_key(), authenticate, patience or Patience())
    for _ in range(run.patience.attempts_max - 1):
        try:
            return work(run.tower, run.key)
        except Exception as raised:
            refusal = (understand or refusal_of)(raised)
            if refusal is None:
                raise
            if not run.may_retry(refusal):
                raise refusal from raised
    return work(run.tower, run.key)


def refusal_of(raised: BaseException) -> IcetowerError | None:
    """The refusal behind an exception, with all its fields; None if it is something else.

    PyIceberg's exceptions have only its message; the answer itself is in their cause.
    """
    if isinstance(raised, IcetowerError):
        return raised
    for error in (raised, raised.__cause__):
        response: Any = getattr(error, "response", None)
        if response is not None and hasattr(response, "status_code") and hasattr(response, "content"):
            return error_of(int(response.status_code), bytes(response.content))
        if isinstance(error, OSError) and getattr(error, "request", None) is not None:
            return Unavailable(f"no tower answers: {type(error).__name__}; is it running?", rule="client.connection")
        if f"{type(error).__module__}.{type(error).__name__}" == "pyiceberg.exceptions.ValidationException":
            # PyIceberg has looked itself at what landed since it read the table, and did not ask the tower.
            return CommitConflict(str(error))
    return None


class _Run:
    """The attempts of one piece of work."""

    def __init__(
        self,
        tower: Tower,
        table: str,
        operations: Sequence[str],
        reason: str,
        key: str,
        authenticate: Callable[[], Tower] | None,
        patience: Patience,
    ) -> None:
        self.tower = tower
        self.key = key
        self.patience = patience
        self._table = table
        self._operations = operations
        self._reason = reason
        self._authenticate = authenticate
        self._until_s = patience.ambient.monotonic_s() + patience.total_s
        self._retries: Retries | None = None
        self._retried = 0
        self._granted: set[tuple[str, ...]] = set()

    def may_retry(self, refusal: IcetowerError) -> bool:
        """Take the refusal's next step; returns whether the work may be tried again."""
        match refusal.next_step:
            case "refresh" | "retry":
                return self._retry()
            case "wait_until":
                return self._wait(((refusal.wait_until_ms or 0) - self.patience.ambient.now_ms()) / 1000)
            case "new_key":
                self.key = next_key(self.key)
                return True
            case "request_partition":
                return self._obtain_grant(refusal)
            case "escalated_to":
                return self._await_decision(lambda: not self._is_stopped())
            case "authenticate" if self._authenticate is not None:
                self.tower = self._authenticate()
                return True
            case _:
                return False

    def _retry(self) -> bool:
        """Wait for longer each time, unless the contract's retries are used up."""
        if self._retries is None:
            self._retries = retries_of(self.tower) or Retries(self.patience.attempts_max)
        if self._retried >= self._retries.attempts:
            return False
        longest_s = min(self._retries.first_wait_s * 2.0**self._retried, self._retries.wait_max_s)
        self._retried += 1
        return self._wait(longest_s * (0.5 + self.patience.ambient.uniform() / 2))

    def _wait(self, seconds: float) -> bool:
        """Wait, if the patience allows it; returns whether it did."""
        if self.patience.ambient.monotonic_s() + seconds > self._until_s:
            return False
        if seconds > 0:
            self.patience.pause(seconds)
        return True

    def _obtain_grant(self, refusal: IcetowerError) -> bool:
        # Granted once and refused again: the contract was not changed accordingly.
        if refusal.partitions in self._granted:
            return False
        try:
            asked = self.tower.request_partitions(
                self._table, refusal.partitions, operations=self._operations, reason=self._reason
            )
        except IcetowerError:  # it may not request partitions
            return False
        self._granted.add(refusal.partitions)
        answers: list[str] = []

        def answered() -> bool:
            answers.append(self.tower.request(asked["id"])["state"])
            return answers[-1] != "open"

        return self._await_decision(answered) and answers[-1] == "granted"

    def _is_stopped(self) -> bool:
        return any(each["table"] == self._table for each in self.tower.escalations(state="open"))

    def _await_decision(self, look: Callable[[], bool]) -> bool:
        """Wait until a person has decided; returns False if the patience is used up before."""
        while True:
            try:
                if look():
                    return True
            except IcetowerError as error:
                if error.next_step != "retry":
                    return False
            if not self._wait(self.patience.poll_s):
                return False

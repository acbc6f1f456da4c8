"""An agent's reaction to a refusal: the step that its `next_step` and its fields ask for, regardless of its text.

def write(tower: Tower, key: str) -> None:  # one attempt, on the table as it is now
    table = load_catalog("tower", **tower.pyiceberg_properties()).load_table("sales.orders")
    table.append(rows, snapshot_properties=keyed(key))

carry_out(write, tower, "sales.orders", operations=["append"], reason="the nightly load")
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from icetower.agent.client import Tower
from icetower.agent.failures import error_of
from icetower.agent.keys import new_key, next_key
from icetower.agent.steps import Pause, Step, Steps, Work, driven
from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import CommitConflict, IcetowerError, TooManyRequests, Unavailable

log = logging.getLogger("icetower")

T = TypeVar("T")

ATTEMPTS_MAX = 20
PATIENCE_S = 600.0
"""How long a piece of work is tried, in seconds, including waits for people."""
GUARDED = "guard.rows"
"""The rule by which an overwrite is refused that nobody can have meant, until a person has approved it."""
POLL_S = 5.0
"""The time between two checks whether a person has decided."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often work is tried again after refusals that ask for it at once, and how long it waits before."""

    attempts: int
    first_wait_s: float = 0.1
    wait_max_s: float = 5.0


def retries_in(me: Mapping[str, Any]) -> Retries | None:
    """What the caller's contract says in `retries`; None if it says nothing."""
    said = me.get("retries")
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

    def take(self, step: Step) -> Any:
        """Carry out a step of work whose requests a `Tower` sends."""
        if isinstance(step, Pause):
            return self.pause(step.seconds)
        assert isinstance(step, Work)
        return step.call()


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
    escalated_to         try again when a person has closed the escalation, or approved the overwrite
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
    limits, asked = patience or Patience(), _OfTower(tower)

    def renew() -> None:
        assert authenticate is not None
        asked.tower = authenticate()

    recovery = Recovery(
        asked, table, operations, reason, key or new_key(), limits, None if authenticate is None else renew
    )

    for _ in range(limits.attempts_max - 1):
        try:
            return work(asked.tower, recovery.key)
        except Exception as raised:
            refusal = (understand or refusal_of)(raised)
            if refusal is None:
                raise
            if not driven(recovery.after(refusal), limits.take):
                raise refusal from raised
    return work(asked.tower, recovery.key)


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


class Control(Protocol):
    """What is asked of the tower's control API after a refusal. Each raises `IcetowerError`."""

    def me(self) -> Steps[Mapping[str, Any]]: ...

    def request_partitions(
        self, table: str, partitions: Sequence[str], *, operations: Sequence[str], reason: str
    ) -> Steps[Mapping[str, Any]]: ...

    def request(self, id_: str) -> Steps[Mapping[str, Any]]: ...

    def requests(self) -> Steps[Sequence[Mapping[str, Any]]]:
        """The newest first, open or closed."""
        ...

    def escalations(self) -> Steps[Sequence[Mapping[str, Any]]]:
        """Those that are open."""
        ...


class _OfTower:
    """The control API by a `Tower`, whose calls block."""

    def __init__(self, tower: Tower) -> None:
        self.tower = tower

    def me(self) -> Steps[Mapping[str, Any]]:
        return (yield Work(lambda: self.tower.me()))

    def request_partitions(
        self, table: str, partitions: Sequence[str], *, operations: Sequence[str], reason: str
    ) -> Steps[Mapping[str, Any]]:
        return (
            yield Work(lambda: self.tower.request_partitions(table, partitions, operations=operations, reason=reason))
        )

    def request(self, id_: str) -> Steps[Mapping[str, Any]]:
        return (yield Work(lambda: self.tower.request(id_)))

    def requests(self) -> Steps[Sequence[Mapping[str, Any]]]:
        return (yield Work(lambda: self.tower.requests()))

    def escalations(self) -> Steps[Sequence[Mapping[str, Any]]]:
        return (yield Work(lambda: self.tower.escalations(state="open")))


class Recovery:
    """What is done about the refusals of one piece of work.

    Attributes:
        key: under which the work is tried next.
    """

    def __init__(
        self,
        control: Control,
        table: str,
        operations: Sequence[str],
        reason: str,
        key: str,
        patience: Patience,
        authenticate: Callable[[], object] | None = None,
    ) -> None:
        self.key = key
        self._control = control
        self._patience = patience
        self._table = table
        self._operations = operations
        self._reason = reason
        self._authenticate = authenticate
        self._until_s = patience.ambient.monotonic_s() + patience.total_s
        self._retries: Retries | None = None
        self._retried = 0
        self._held_back = 0
        self._granted: set[tuple[str, ...]] = set()
        self._open: str | None = None

    def after(self, refusal: IcetowerError, *, least_s: float = 0.0) -> Steps[bool]:
        """Take the refusal's next step; returns whether the work may be tried again.

        A refusal after which it may not says which request for partitions was not answered, if one was not.

        Args:
            least_s: a retry waits for so many seconds at least, as the answer has said in `Retry-After`.
        """
        again = yield from self._step(refusal, least_s)
        if not again and self._open is not None:
            refusal.message += f"; request {self._open} for it has not been answered yet"
            refusal.args = (refusal.message,)
        return again

    def _step(self, refusal: IcetowerError, least_s: float) -> Steps[bool]:
        match refusal.next_step:
            case "refresh" | "retry" | "wait_until" if (
                isinstance(refusal, TooManyRequests) and refusal.wait_until_ms is None
            ):
                return (yield from self._hold_back(least_s))
            case "refresh" | "retry":
                return (yield from self._retry(least_s))
            case "wait_until":
                until_s = ((refusal.wait_until_ms or 0) - self._patience.ambient.now_ms()) / 1000
                return (yield from self._wait(max(until_s, least_s)))
            case "new_key":
                self.key = next_key(self.key)
                return True
            case "request_partition":
                return (yield from self._obtain_grant(refusal))
            case "escalated_to" if refusal.rule == GUARDED:
                return (yield from self._await_approval())
            case "escalated_to":
                self._say(refusal.message)
                return (yield from self._await_decision(self._is_released))
            case "authenticate" if self._authenticate is not None:
                yield Work(self._authenticate)
                return True
            case _:
                return False

    def _retry(self, least_s: float) -> Steps[bool]:
        """Wait for longer each time, unless the contract's retries are used up."""
        if self._retries is None:
            try:
                said = retries_in((yield from self._control.me()))
            except IcetowerError:
                said = None
            self._retries = said or Retries(self._patience.attempts_max)
        if self._retried >= self._retries.attempts:
            return False
        self._retried += 1
        return (yield from self._wait(max(least_s, self._pause_s(self._retries, self._retried))))

    def _hold_back(self, least_s: float) -> Steps[bool]:
        """Wait while the tower has too much on its way: it is no failure, so that it counts for no retry."""
        self._held_back += 1
        return (yield from self._wait(max(least_s, self._pause_s(Retries(0), self._held_back))))

    def _pause_s(self, retries: Retries, number: int) -> float:
        longest_s = min(retries.first_wait_s * 2.0 ** min(number - 1, 60), retries.wait_max_s)
        return longest_s * (0.5 + self._patience.ambient.uniform() / 2)

    def _wait(self, seconds: float) -> Steps[bool]:
        """Wait, if the patience allows it; returns whether it did."""
        if self._patience.ambient.monotonic_s() + seconds > self._until_s:
            return False
        if seconds > 0:
            yield Pause(seconds)
        return True

    def _obtain_grant(self, refusal: IcetowerError) -> Steps[bool]:
        # Granted once and refused again: the contract was not changed accordingly.
        if refusal.partitions in self._granted:
            return False
        try:
            asked = yield from self._control.request_partitions(
                self._table, refusal.partitions, operations=self._operations, reason=self._reason
            )
        except IcetowerError:  # it may not request partitions
            return False
        self._granted.add(refusal.partitions)
        return (yield from self._is_granted(asked["id"]))

    def _await_approval(self) -> Steps[bool]:
        """Wait for the answer to the request that the refusal of an overwrite has opened."""
        try:
            asked = yield from self._control.requests()
        except IcetowerError:
            return False
        own = next((each for each in asked if each["table"] == self._table and "guard" in each), None)
        if own is None or (own["state"] != "open" and "taken_by" in own["guard"]):
            return False
        return (yield from self._is_granted(own["id"]))

    def _is_granted(self, id_: str) -> Steps[bool]:
        """Wait for the answer to a request; returns whether it is granted."""
        answers: list[str] = []
        self._open = id_
        self._say(f"request {id_} for {self._table} is open, and nobody has answered it yet")

        def answered() -> Steps[bool]:
            answers.append((yield from self._control.request(id_))["state"])
            if answers[-1] != "open":
                self._open = None
            return self._open is None

        return (yield from self._await_decision(answered)) and answers[-1] == "granted"

    def _is_released(self) -> Steps[bool]:
        return all(each["table"] != self._table for each in (yield from self._control.escalations()))

    def _say(self, why: str) -> None:
        """A program that waits for a person does not look as if it hung."""
        left_s = max(0.0, self._until_s - self._patience.ambient.monotonic_s())
        log.warning("%s; this waits for a person's answer, at most %.0f s", why, left_s)

    def _await_decision(self, look: Callable[[], Steps[bool]]) -> Steps[bool]:
        """Wait until a person has decided; returns False if the patience is used up before."""
        while True:
            try:
                if (yield from look()):
                    return True
            except IcetowerError as error:
                if error.next_step != "retry":
                    return False
            if not (yield from self._wait(self._patience.poll_s)):
                return False

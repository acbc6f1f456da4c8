"""What an agent does about a refusal: what its `next_step` and its fields say, whatever its words are.

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
from icetower.agent.keys import new_key
from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import IcetowerError, Unavailable

T = TypeVar("T")

ATTEMPTS_MAX = 20
PATIENCE_S = 600.0
"""How long a piece of work is carried on, in seconds, its waits for people included."""
POLL_S = 5.0
"""Between two looks whether a person has decided."""
_FIRST_WAIT_S, _WAIT_MAX_S = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long and how often something is tried.

    Attributes:
        pause: waits for some seconds.
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
) -> T:
    """Do some work that ends in a commit, and go on after every refusal from which there is a way.

    refresh, retry       once more, after a while
    wait_until           once more, at that time
    new_key              once more, under a new key
    request_partition    ask for the partitions, and once more when they are granted
    escalated_to         once more when a person has closed the escalation
    authenticate         once more with new credentials
    all else             stop

    Args:
        work: one attempt: loads what it writes to, and writes under the key that it is given. It raises what the SDK or
            PyIceberg does (`refusal_of`).
        table: the table that it writes to, ``namespace.table``.
        operations: what it does there, as contracts name it; for a request of partitions.
        reason: for whoever decides on such a request.
        key: the key of the first attempt; by default a fresh one. It is kept with the work, for its next run.
        authenticate: a tower with new credentials; None: there are none to be had.
        patience: for how long.

    Raises:
        IcetowerError: the refusal from which there is no way, or for which the patience was not enough.
    """
    run = _Run(tower, table, operations, reason, key or new_key(), authenticate, patience or Patience())
    for _ in range(run.patience.attempts_max - 1):
        try:
            return work(run.tower, run.key)
        except Exception as raised:
            refusal = refusal_of(raised)
            if refusal is None:
                raise
            if not run.goes_on(refusal):
                raise refusal from raised
    return work(run.tower, run.key)


def refusal_of(raised: BaseException) -> IcetowerError | None:
    """The refusal behind an exception, with all its fields; None: it is something else.

    PyIceberg's exceptions have its message alone; the answer itself is in their cause.
    """
    if isinstance(raised, IcetowerError):
        return raised
    for error in (raised, raised.__cause__):
        response: Any = getattr(error, "response", None)
        if response is not None and hasattr(response, "status_code") and hasattr(response, "content"):
            return error_of(int(response.status_code), bytes(response.content))
        if isinstance(error, OSError) and getattr(error, "request", None) is not None:
            return Unavailable(f"no tower answers: {type(error).__name__}; is it running?", rule="client.connection")
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
        self._wait_s = _FIRST_WAIT_S
        self._granted: set[tuple[str, ...]] = set()

    def goes_on(self, refusal: IcetowerError) -> bool:
        """Do what the refusal says, and say whether the work may be tried once more."""
        match refusal.next_step:
            case "refresh" | "retry":
                wait_s = self._wait_s * (0.5 + self.patience.ambient.uniform() / 2)
                self._wait_s = min(self._wait_s * 2, _WAIT_MAX_S)
                return self._waited(wait_s)
            case "wait_until":
                return self._waited(((refusal.wait_until_ms or 0) - self.patience.ambient.now_ms()) / 1000)
            case "new_key":
                self.key = new_key(self.patience.ambient)
                return True
            case "request_partition":
                return self._is_granted(refusal)
            case "escalated_to":
                return self._decided(lambda: not self._is_stopped())
            case "authenticate" if self._authenticate is not None:
                self.tower = self._authenticate()
                return True
            case _:
                return False

    def _waited(self, seconds: float) -> bool:
        """Whether there was patience for a wait."""
        if self.patience.ambient.monotonic_s() + seconds > self._until_s:
            return False
        if seconds > 0:
            self.patience.pause(seconds)
        return True

    def _is_granted(self, refusal: IcetowerError) -> bool:
        # Granted once and refused again: the contract says something else than its owner does.
        if refusal.partitions in self._granted:
            return False
        try:
            asked = self.tower.request_partitions(
                self._table, refusal.partitions, operations=self._operations, reason=self._reason
            )
        except IcetowerError:  # it may not even ask
            return False
        self._granted.add(refusal.partitions)
        answers: list[str] = []

        def answered() -> bool:
            answers.append(self.tower.request(asked["id"])["state"])
            return answers[-1] != "open"

        return self._decided(answered) and answers[-1] == "granted"

    def _is_stopped(self) -> bool:
        return any(each["table"] == self._table for each in self.tower.escalations(state="open"))

    def _decided(self, look: Callable[[], bool]) -> bool:
        """Whether a person has decided before the patience was used up."""
        while True:
            try:
                if look():
                    return True
            except IcetowerError as error:
                if error.next_step != "retry":
                    return False
            if not self._waited(self.patience.poll_s):
                return False

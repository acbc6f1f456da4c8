"""Commits that were refused for now, and are expected again: a client's own retries are no failures. Pure (trap A9).

A stale commit is answered 409, upon which Iceberg's clients refresh, validate and send it again by themselves, a few
times. To count each of these answers as a failure would stop an agent for what its client does as it should. A piece
of work fails when its client gives up: it was sent more often than its contract's `retries.attempts` allow, or it was
not sent again within twice `retries.max_wait`. A quota of commits a minute refuses with 409, too, and the same clients
send again at once, whatever time the answer names; so these tries are one failure as well.

A piece of work is known by its key, or by the ids of its snapshots, which both clients keep from one try to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from icetower.contracts.model import Retries
from icetower.errors import Conflict, IcetowerError
from icetower.escalations.failures import Failure
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal

OWN_MAX = 1_000
"""Pieces of work that are expected of one principal at one table; the oldest beyond them counts as given up."""

KEPT_MAX = 20_000
"""Pieces of work that are expected of all; beyond them the oldest place is forgotten."""


def is_stale(error: IcetowerError) -> bool:
    """Whether a client is expected to send it again: a 409 that asks it to refresh, or to wait for its quota."""
    return isinstance(error, Conflict) and error.next_step in ("refresh", "wait_until")


@dataclass(slots=True)
class _Work:
    sends: int
    failure: Failure
    until_ms: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A piece of work that was not sent again in time, or not within its attempts."""

    principal: Principal
    table: Identifier
    failure: Failure


@dataclass(slots=True)
class _Place:
    """What is expected of one principal at one table, the work that was refused last at the end."""

    principal: Principal
    table: Identifier
    works: OrderedDict[Hashable, _Work]


class StaleWork:
    """Pieces of work that are expected again, in bounded memory."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, Identifier], _Place] = OrderedDict()
        self._kept = 0

    def __len__(self) -> int:
        return self._kept

    def refused(
        self, principal: Principal, table: Identifier, name: Hashable, failure: Failure, wait_until_ms: int = 0
    ) -> list[GivenUp]:
        """Note that a piece of work was refused as stale. Returns what that shows to be given up.

        Args:
            name: what the work is known by, from one try to the next; None for a commit without a key and snapshots.
            wait_until_ms: it is not expected before this time (milliseconds since 1970).
        """
        retries = principal.contract.retries or Retries()
        place = self._places.pop((principal.name, table), None) or _Place(principal, table, OrderedDict())
        self._places[principal.name, table] = place
        place.principal = principal
        work = place.works.pop(name, None)
        self._kept -= work is not None
        sends = 1 if work is None else work.sends + 1
        if sends > retries.attempts + 1:
            return [GivenUp(principal, table, failure)]
        place.works[name] = _Work(sends, failure, max(failure.at_ms, wait_until_ms) + 2 * retries.max_wait_ms)
        self._kept += 1
        gone: list[GivenUp] = []
        if len(place.works) > OWN_MAX:
            _, oldest = place.works.popitem(last=False)
            self._kept -= 1
            gone.append(GivenUp(principal, table, oldest.failure))
        while self._kept > KEPT_MAX and len(self._places) > 1:
            _, forgotten = self._places.popitem(last=False)
            self._kept -= len(forgotten.works)
        return gone

    def ended(self, principal: str, table: Identifier) -> None:
        """Something of the principal has landed there: what was refused before is no failure in a row any more."""
        place = self._places.pop((principal, table), None)
        if place is not None:
            self._kept -= len(place.works)

    def overdue(self, now_ms: int) -> list[GivenUp]:
        """What was not sent again in time, oldest first; it is expected no longer."""
        found: list[GivenUp] = []
        for where, place in list(self._places.items()):
            for name, work in list(place.works.items()):
                if work.until_ms < now_ms:
                    found.append(GivenUp(place.principal, place.table, work.failure))
                    del place.works[name]
                    self._kept -= 1
            if not place.works:
                del self._places[where]
        return sorted(found, key=lambda each: each.failure.at_ms)

    def next_ms(self) -> int | None:
        """When the next piece of work is overdue, milliseconds since 1970; None: nothing is expected."""
        return min(
            (work.until_ms + 1 for place in self._places.values() for work in place.works.values()), default=None
        )

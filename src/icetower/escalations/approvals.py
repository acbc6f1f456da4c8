"""What a guard has refused, and a person may approve: by the requests that are there (`admission.guards`).

The refusal opens a request for the owner of the writer's contract. An administrator grants it, and the write may be
sent again: once, within a day, with about as many rows as the person has seen. Nothing ties it to the files: engines
delete them when they are refused, and write others.

A request stays as it was opened, so that a person grants what they have read. An overwrite of more rows that comes
while a request is open is refused, and opens one of its own when it is sent again after the answer.

An approval is taken by one commit when that is let in, and is free again where the commit is then refused: a stale
overwrite may have to come twice. It stays taken where nobody knows whether the commit has landed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icetower.admission.guards import RULE, Excess, unapproved
from icetower.ambient import Ambient
from icetower.errors import Conflict, ContractViolation
from icetower.escalations.escalations import Escalations
from icetower.escalations.store import REQUESTS_A_DAY_MAX, Store
from icetower.escalations.tickets import Decision, Kind, Ticket, subject_of
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry

APPROVED_FOR_MS = 24 * 3600 * 1000
"""After this an approval that nobody has used is none any more."""

MORE_ROWS_MAX = 0.1
"""By so much of what a person has seen the rows may be more when the write is sent again."""

TRIES = 5
LOOKED_AT = REQUESTS_A_DAY_MAX


@dataclass(frozen=True, slots=True)
class Meant:
    """The request for one overwrite that nobody can have meant, as `tickets.Wanted` is one for partitions."""

    table: Identifier
    excess: Excess

    @property
    def details(self) -> dict[str, Any]:
        """The details of the ticket for it."""
        excess = self.excess
        return {
            "partitions": [],
            "operations": ["overwrite"],
            "reason": f"refused by {RULE}: {excess}",
            "guard": {
                "ref": excess.ref,
                "rows_added": excess.rows_added,
                "rows_removed": excess.rows_removed,
                "times": excess.times,
            },
        }

    def subject(self, principal: str) -> str:
        """One at a time of a principal, for a branch of a table."""
        return subject_of(Kind.REQUEST, principal, RULE, *self.table.namespace, self.table.name, self.excess.ref)


class Standing(StrEnum):
    """What the newest request for such an overwrite means to a commit."""

    NONE = "none"
    WAITS = "waits"
    FREE = "free"
    TAKEN_BY_IT = "taken by it"


def standing(ticket: Ticket | None, excess: Excess, work: str, now_ms: int) -> Standing:
    """What a request means to a commit. `work`: what the commit is known by, of `work_of`. Pure."""
    if ticket is None:
        return Standing.NONE
    if ticket.closing is None:
        return Standing.WAITS
    guard: Mapping[str, Any] = ticket.details["guard"]
    if ticket.closing.decision is not Decision.GRANTED or not _covers(guard, excess):
        return Standing.NONE
    if guard.get("taken_by") == work:
        return Standing.TAKEN_BY_IT
    fresh = now_ms <= ticket.closing.at_ms + APPROVED_FOR_MS
    return Standing.FREE if fresh and guard.get("taken_by") is None else Standing.NONE


def best(tickets: Sequence[Ticket], excess: Excess, work: str, now_ms: int) -> tuple[Ticket | None, Standing]:
    """Of the requests for a branch, the one that helps a commit most: an approval holds beside a request that is open.

    Pure.

    Args:
        tickets: newest first.
    """
    stand = [(standing(ticket, excess, work, now_ms), ticket) for ticket in tickets]
    for wanted in (Standing.TAKEN_BY_IT, Standing.FREE, Standing.WAITS):
        for found, ticket in stand:
            if found is wanted:
                return ticket, found
    return (tickets[0] if tickets else None), Standing.NONE


def waits(ticket: Ticket, excess: Excess) -> str:
    """How the open request of a branch stands, to a commit that it may be about. Pure."""
    guard: Mapping[str, Any] = ticket.details["guard"]
    if _covers(guard, excess):
        return f"request {ticket.id} waits for its answer"
    return (
        f"request {ticket.id} waits for its answer, is about an overwrite that adds {guard['rows_added']:,} rows, and "
        "does not cover this one, which opens a request of its own when it is sent again after that answer"
    )


def _covers(guard: Mapping[str, Any], excess: Excess) -> bool:
    return excess.rows_added <= guard["rows_added"] * (1 + MORE_ROWS_MAX)


def work_of(work: Hashable) -> str:
    """What a commit is known by, from one try of its client to the next, as a hash."""
    return hashlib.sha256(repr(work).encode("utf-8", "surrogatepass")).hexdigest()


class Approvals:
    """One a tower. Raises `Unavailable` where the registry's database cannot be asked."""

    def __init__(self, registry: Registry, escalations: Escalations, ambient: Ambient) -> None:
        self._store = Store(registry)
        self._escalations = escalations
        self._ambient = ambient

    async def take(self, principal: Principal, table: Identifier, excess: Excess, work: Hashable) -> str:
        """Take the approval for a commit. The id of its request.

        Raises:
            ContractViolation: ``guard.rows``: nobody has approved it. A request for it is open then.
        """
        meant, name = Meant(table, excess), work_of(work)
        for _ in range(TRIES):
            asked = await self._store.newest(meant.subject(principal.name), LOOKED_AT)
            ticket, found = best(asked, excess, name, self._ambient.now_ms())
            if ticket is None or found is Standing.NONE:
                raise await self._ask(principal, meant, ticket)
            if found is Standing.TAKEN_BY_IT:
                return ticket.id
            if found is Standing.WAITS:
                raise unapproved(principal, table, excess, ticket.contact, waits(ticket, excess))
            guard: Mapping[str, Any] = ticket.details["guard"]
            taken = {**guard, "taken_by": name, "taken_ms": self._ambient.now_ms()}
            if await self._store.amend(ticket, {**ticket.details, "guard": taken}):
                return ticket.id
        raise unapproved(principal, table, excess, None, "its request changes too often to be read")

    async def release(self, id_: str) -> None:
        """The commit that has taken an approval was refused: the approval is free again."""
        ticket = await self._store.find(Kind.REQUEST, id_)
        guard = {name: value for name, value in ticket.details["guard"].items() if not name.startswith("taken_")}
        await self._store.amend(ticket, {**ticket.details, "guard": guard})

    async def look(self, principal: Principal, table: Identifier, excess: Excess, work: Hashable) -> str:
        """As `take`, for a dry run: nothing is taken, and no request is opened."""
        meant = Meant(table, excess)
        asked = await self._store.newest(meant.subject(principal.name), LOOKED_AT)
        ticket, found = best(asked, excess, work_of(work), self._ambient.now_ms())
        if ticket is not None and found in (Standing.FREE, Standing.TAKEN_BY_IT):
            return ticket.id
        if ticket is not None and found is Standing.WAITS:
            raise unapproved(principal, table, excess, ticket.contact, waits(ticket, excess))
        raise unapproved(
            principal, table, excess, None, "nobody has approved it; to commit it opens a request for that"
        )

    async def _ask(self, principal: Principal, meant: Meant, last: Ticket | None) -> ContractViolation:
        """Open a request. The refusal that names it."""
        closing = None if last is None else last.closing
        before = ""
        if closing is not None and closing.decision is Decision.DENIED:
            before = f"; the last one was denied by {closing.by}: {closing.note}"
        table, excess = meant.table, meant.excess
        try:
            asked, new = await self._escalations.ask(principal, meant)
        except Conflict as full:
            return unapproved(principal, table, excess, None, f"no request could be opened for it: {full.message}")
        if not new:  # another tower has opened it meanwhile
            return unapproved(principal, table, excess, asked.contact, waits(asked, excess))
        return unapproved(principal, table, excess, asked.contact, f"request {asked.id} is open for it{before}")


class DryApprovals:
    """What `Approvals` would answer."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    async def take(self, principal: Principal, table: Identifier, excess: Excess, work: Hashable) -> str:
        """See `Approvals.look`."""
        return await self._approvals.look(principal, table, excess, work)

    async def release(self, id_: str) -> None:
        """Nothing was taken."""

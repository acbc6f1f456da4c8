"""Whether a principal is stopped at a table, when it comes to that, and what people and agents do about it.

An escalation belongs to a principal and a table, by their names. It outlives restarts, and every change of the
contract: a team that changes its agent's contract has not yet looked at what the agent did. Only an administrator
closes it. While the contract is in shadow mode it admits everything, so nothing is counted, and nobody is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress

from icetower.ambient import Ambient
from icetower.contracts.model import Contract
from icetower.database import Together
from icetower.errors import BadRequest, Conflict, ContractViolation, IcetowerError
from icetower.escalations.failures import STOPPED, Failure, Streaks, counts
from icetower.escalations.notifier import Notifier
from icetower.escalations.sending import Channels, Sender
from icetower.escalations.stale import StaleWork, is_stale
from icetower.escalations.store import Store
from icetower.escalations.tickets import (
    DECISIONS,
    Channel,
    Closing,
    Decision,
    Delivery,
    Kind,
    Ticket,
    Wish,
    check_escalation,
    checked_note,
    escalation_details,
    mail_address,
    stop_of,
    time_text,
)
from icetower.observe.events import Event, Events, one_line
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry

NO_MAIL = "the tower's settings name no mail server"
_STOPS = "stops"

log = logging.getLogger("icetower")


class Escalations:
    """One a tower."""

    def __init__(self, registry: Registry, ambient: Ambient, channels: Channels, events: Events | None = None) -> None:
        self._registry = registry
        self._ambient = ambient
        self._channels = channels
        self._events = events or Events(ambient)
        self._store = Store(registry)
        self._streaks = Streaks()
        self._stale = StaleWork()
        self._watching: asyncio.Task[None] | None = None
        # The open escalations as they were at a number of the registry's changes. Each request has the number read, so
        # that what another tower opened or closed holds from the next request on.
        self._stops: tuple[int, Mapping[str, Ticket]] = (-1, {})
        self._reading: Together[str, tuple[int, Mapping[str, Ticket]]] = Together(self._read_stops)
        self._notifier = Notifier(self._store, Sender(channels, ambient), ambient)

    def start(self) -> None:
        """Begin to send, on the event loop that runs."""
        self._notifier.start()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._notifier.close()

    # -- stops ----------------------------------------------------------------------------------------------------

    async def require_free(self, principal: Principal, table: Identifier) -> None:
        """Raises `ContractViolation` (`contract.escalated`) where an escalation is open."""
        if _governed(principal):
            stop = await self._stop(principal.name, table)
            if stop is not None:
                raise _stopped(stop)

    async def failed(
        self, principal: Principal, table: Identifier, error: IcetowerError, *, work: Hashable = None
    ) -> IcetowerError:
        """Count an attempt that failed, and open an escalation where it has used up the budget.

        It is durable when this returns, so that the agent's next attempt is stopped. A stale commit counts only when
        its client gives up (`escalations.stale`).

        Args:
            work: what the commit is known by, from one try of its client to the next: its key, or its snapshots' ids.

        Returns:
            The error to answer with: the commit's own, or that the agent is stopped already.
        """
        if not _governed(principal) or not counts(error):
            return error
        try:
            stop = await self._stop(principal.name, table)
            if stop is not None:
                return _stopped(stop)
            failure = Failure(self._ambient.now_ms(), error.rule)
            if is_stale(error) and principal.contract.escalation is not None:
                for gone in self._stale.refused(principal, table, work, failure, error.wait_until_ms or 0):
                    await self._count(gone.principal, gone.table, gone.failure)
                self._watch()
            else:
                await self._count(principal, table, failure)
        except IcetowerError as fault:
            # The refusal stands either way; the next failure comes to it again.
            log.warning("no escalation of %s at %s: %s", principal.name, one_line(str(table)), fault.message)
        return error

    def succeeded(self, principal: str, table: Identifier) -> None:
        """An attempt has landed: its failures are no longer in a row."""
        if self._stale:  # most agents never fail, and this is in the way of every commit
            self._stale.ended(principal, table)
        if self._streaks:
            self._streaks.ended(principal, stop_of(principal, table))

    async def give_up_overdue(self) -> None:
        """Count the stale commits that their clients did not send again in time."""
        for gone in self._stale.overdue(self._ambient.now_ms()):
            try:
                await self._count(gone.principal, gone.table, gone.failure)
            except IcetowerError as fault:
                name = gone.principal.name
                log.warning("no escalation of %s at %s: %s", name, one_line(str(gone.table)), fault.message)

    def _watch(self) -> None:
        """Look when stale commits are overdue, as long as some are expected: a client that gives up says nothing."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._look_out())

    async def _look_out(self) -> None:
        while (due_ms := self._stale.next_ms()) is not None:
            await self._ambient.sleep(max(0.1, (due_ms - self._ambient.now_ms()) / 1000))
            await self.give_up_overdue()

    async def _count(self, principal: Principal, table: Identifier, failure: Failure) -> None:
        clause = principal.contract.escalation
        if clause is None:
            return
        failures = self._streaks.failed(principal.name, stop_of(principal.name, table), failure, clause)
        if failures is not None:
            await self._escalate(principal, table, failures)

    async def _escalate(self, principal: Principal, table: Identifier, failures: Sequence[Failure]) -> None:
        contract = principal.contract
        assert contract.escalation is not None
        ticket = self._ticket(
            Kind.ESCALATION,
            stop_of(principal.name, table),
            principal,
            table,
            contract.escalation.to,
            escalation_details(contract, failures),
        )
        try:
            opened = await self._store.escalate(ticket, failures)
        except Conflict:
            self._streaks.ended(principal.name, ticket.subject)  # not again at each further failure
            raise
        if opened:
            self._events.say(
                Event.ESCALATION,
                id=ticket.id,
                principal=ticket.principal,
                contract=ticket.contract,
                table=ticket.table,
                rules=ticket.rules,
                contact=ticket.contact,
                message=ticket.title,
            )
            self._notifier.wake()
        self._stops = await self._reading.ask(_STOPS)
        if ticket.subject in self._stops[1]:
            self._streaks.ended(principal.name, ticket.subject)

    async def _stop(self, principal: str, table: Identifier) -> Ticket | None:
        if self._stops[0] < self._registry.number:
            self._stops = await self._reading.ask(_STOPS)
        stops = self._stops[1]
        return stops.get(stop_of(principal, table)) if stops else None

    async def _read_stops(self, asked: Sequence[str]) -> Mapping[str, tuple[int, Mapping[str, Ticket]]]:
        found = await self._store.stops()
        return dict.fromkeys(asked, found)

    # -- people, and agents that ask --------------------------------------------------------------------------------

    async def ask(self, principal: Principal, wanted: Wish) -> tuple[Ticket, bool]:
        """Open a request for the owner of a principal's contract; and whether it is new: of one wish one is open.

        Raises:
            Conflict: too many are open, or were made today.
        """
        clause = principal.contract.escalation
        contact = principal.contract.owner or (clause and clause.to)
        ticket = self._ticket(
            Kind.REQUEST, wanted.subject(principal.name), principal, wanted.table, contact, wanted.details
        )
        asked, new = await self._store.ask(ticket)
        if new:
            self._notifier.wake()
        return asked, new

    async def close_ticket(self, kind: Kind, id_: str, by: str, decision: Decision, note: str) -> Ticket:
        """Close a ticket, in a person's name, with a note.

        Raises:
            BadRequest: a note that is none, or a decision that is none on a ticket of this kind.
            NotFound, Conflict: there is none such; it was closed before.
        """
        if decision not in DECISIONS[kind]:
            raise BadRequest(
                f"decision: {decision} is none on a {kind}; write {' or '.join(sorted(DECISIONS[kind]))}",
                rule=f"{kind}.decision",
            )
        closing = Closing(self._ambient.now_ms(), by, decision, checked_note(note))
        closed = await self._store.close(kind, id_, closing)
        if kind is Kind.ESCALATION:
            self._streaks.ended(closed.principal, closed.subject)
        return closed

    async def find(self, kind: Kind, id_: str, principal: str | None = None) -> Ticket:
        """One ticket, of a principal where one is given. Raises `NotFound`."""
        return await self._store.find(kind, id_, principal)

    async def list(self, kind: Kind, *, principal: str | None, open_: bool | None, limit: int) -> list[Ticket]:
        """Tickets of a kind, newest first; of one principal, open or closed ones only, where it is said."""
        return await self._store.list(kind, principal=principal, open_=open_, limit=limit)

    def check(self, contract: Contract) -> list[str]:
        """Whether this tower can do what a contract's escalation says. Warnings; raises `BadRequest`."""
        return check_escalation(contract, list(self._channels.webhooks), mails=self._channels.mail_server is not None)

    # -- small things -----------------------------------------------------------------------------------------------

    def _ticket(
        self,
        kind: Kind,
        subject: str,
        principal: Principal,
        table: Identifier,
        contact: str | None,
        details: Mapping[str, object],
    ) -> Ticket:
        now_ms = self._ambient.now_ms()
        webhook = principal.contract.escalation and principal.contract.escalation.webhook
        return Ticket(
            id=self._ambient.uuid7(),
            kind=kind,
            subject=subject,
            principal=principal.name,
            contract=principal.contract.name,
            table=one_line(str(table)),
            contact=contact and one_line(contact),
            details=details,
            opened_ms=now_ms,
            deliveries=self.deliveries(webhook, contact, now_ms),
        )

    def wake(self) -> None:
        """There is something new to send, that another room has opened."""
        self._notifier.wake()

    def deliveries(self, webhook: str | None, contact: str | None, now_ms: int) -> tuple[Delivery, ...]:
        """A webhook and a mail where both can be; that nobody hears of it is shown, too."""
        sent = [] if webhook is None else [Delivery(Channel.WEBHOOK, webhook, next_ms=now_ms)]
        if contact is not None and mail_address(contact) is not None:
            if self._channels.mail_server is not None:
                sent.append(Delivery(Channel.MAIL, one_line(contact), next_ms=now_ms))
            elif not sent:
                sent.append(Delivery(Channel.MAIL, one_line(contact), fault=NO_MAIL))
        return tuple(sent)


def _governed(principal: Principal) -> bool:
    return not principal.administrator and not principal.contract.shadow


def _stopped(stop: Ticket) -> ContractViolation:
    return ContractViolation(
        f"{stop.title} ({stop.rules}), since {time_text(stop.opened_ms)}. Nothing of this commit was done, and nothing "
        f"of another to this table will be until {stop.contact} has looked at it and an administrator has closed "
        f"escalation {stop.id} (`icetower escalations close`)",
        rule=STOPPED,
        next_step="escalated_to",
        escalated_to=stop.contact,
    )

"""Tickets and their notifications, in the registry's database: for every tower on it, and over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from icetower.errors import Conflict, NotFound
from icetower.escalations.failures import Failure
from icetower.escalations.tickets import Channel, Closing, Decision, Delivery, Kind, Ticket
from icetower.registry.registry import Registry
from icetower.registry.schema import deliveries, tickets

OPEN_MAX: Mapping[Kind, int] = {Kind.ESCALATION: 100, Kind.REQUEST: 20, Kind.ALERT: 1_000}
"""Tickets of a kind that one principal can have open."""

REQUESTS_A_DAY_MAX = 50
"""Requests that one principal can open in 24 hours, closed ones included."""

CLOSED_MAX = 10_000
"""Closed tickets that are kept; the oldest give way."""

CLOSED_FIRST = "closed before it was sent"

DAY_MS = 24 * 3600 * 1000

_OPEN = tickets.c.closed_ms.is_(None)


class Store:
    """Raises `Unavailable` where the database cannot be asked, in all that it does."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    # ---------------------------------------------------------------------------------------------------- what is open

    async def stops(self) -> tuple[int, dict[str, Ticket]]:
        """The open escalations, by subject, and a number of the registry's changes that they are not older than."""
        query = select(tickets).where(_OPEN, tickets.c.kind == Kind.ESCALATION)
        number, rows = await self._registry.read(lambda connection: connection.execute(query).all())
        return number, {row.subject: _ticket(row, ()) for row in rows}

    async def escalate(self, ticket: Ticket, failures: Sequence[Failure]) -> bool:
        """Open an escalation, unless one is open: of several that come to it at once, one does. Whether it was opened.

        Failures before a person last closed one do not count again: `failures`, the whole budget, must all be later.

        Raises:
            Conflict: the principal has as many open ones as it may have.
        """

        def work(connection: Connection) -> bool:
            same = select(func.max(tickets.c.closed_ms)).where(tickets.c.subject == ticket.subject)
            closed_ms = connection.execute(same).scalar()
            if closed_ms is not None and failures[0].at_ms <= closed_ms:
                return False
            if _find_open(connection, ticket.subject) is not None:
                return False
            _require_room(connection, ticket)
            _insert(connection, ticket)
            return True

        return await self._registry.change(work)

    async def ask(self, ticket: Ticket) -> tuple[Ticket, bool]:
        """Open a request, or find the one that is open for the same; and whether it was opened.

        Raises:
            Conflict: the principal has as many open ones as it may have, or has asked too often today.
        """

        def work(connection: Connection) -> tuple[Ticket, bool]:
            found = _find_open(connection, ticket.subject)
            if found is not None:
                return _with_deliveries(connection, [found])[0], False
            _require_room(connection, ticket)
            today = _count(connection, ticket, tickets.c.opened_ms > ticket.opened_ms - DAY_MS)
            if today >= REQUESTS_A_DAY_MAX:
                raise Conflict(
                    f"{ticket.principal} has made {today} requests within a day, which is the most; ask again later",
                    rule="request.quota",
                    next_step="none",
                )
            _insert(connection, ticket)
            return ticket, True

        return await self._registry.change(work, quietly=True)

    async def close(self, kind: Kind, id_: str, closing: Closing) -> Ticket:
        """Close a ticket; what has not been sent of it is not sent any more.

        Raises:
            NotFound: there is none of this kind and id.
            Conflict: it was closed before.
        """

        def work(connection: Connection) -> Ticket:
            row = _find(connection, kind, id_)
            if row.closed_ms is not None:
                raise Conflict(
                    f"{kind} {id_} was closed before, by {row.closed_by}: {row.note}",
                    rule=f"{kind}.closed",
                    next_step="none",
                )
            close_now(connection, id_, closing)
            return _with_deliveries(connection, [_find(connection, kind, id_)])[0]

        return await self._registry.change(work, quietly=kind is Kind.REQUEST)

    async def find(self, kind: Kind, id_: str, principal: str | None = None) -> Ticket:
        """One ticket, of a principal where one is given. Raises `NotFound`."""

        def work(connection: Connection) -> Ticket:
            row = _find(connection, kind, id_)
            if principal is not None and row.principal != principal:
                raise _none(kind, id_)
            return _with_deliveries(connection, [row])[0]

        return (await self._registry.read(work))[1]

    async def newest(self, subject: str, count: int) -> list[Ticket]:
        """The ticket for a subject that is open, then those that were closed last; without their deliveries."""
        query = select(tickets).where(tickets.c.subject == subject)
        query = query.order_by(_OPEN.desc(), tickets.c.closed_ms.desc(), tickets.c.id.desc()).limit(count)
        _, rows = await self._registry.read(lambda connection: connection.execute(query).all())
        return [_ticket(row, ()) for row in rows]

    async def amend(self, ticket: Ticket, details: Mapping[str, Any]) -> bool:
        """Give a ticket other details. Whether it still stood as `ticket` has it; otherwise nothing is changed."""
        same = (tickets.c.id == ticket.id) & (tickets.c.details == json.dumps(ticket.details))
        same &= _OPEN if ticket.closing is None else ~_OPEN
        amended = update(tickets).where(same).values(details=json.dumps(details))
        return await self._registry.change(lambda connection: connection.execute(amended).rowcount == 1, quietly=True)

    async def list(
        self, kind: Kind, *, principal: str | None = None, open_: bool | None = None, limit: int = 100
    ) -> list[Ticket]:
        """Tickets of a kind, newest first; of one principal, and open or closed ones only, where it is said."""
        query = select(tickets).where(tickets.c.kind == kind)
        if principal is not None:
            query = query.where(tickets.c.principal == principal)
        if open_ is not None:
            query = query.where(_OPEN if open_ else ~_OPEN)
        query = query.order_by(tickets.c.opened_ms.desc(), tickets.c.id.desc()).limit(limit)

        def work(connection: Connection) -> list[Ticket]:
            return _with_deliveries(connection, connection.execute(query).all())

        return (await self._registry.read(work))[1]

    # -------------------------------------------------------------------------------------------------- what is to send

    async def claim(self, now_ms: int, until_ms: int, count: int) -> tuple[list[tuple[Ticket, Delivery]], int | None]:
        """Take up to `count` deliveries that are due, for this tower alone until `until_ms`; and when the next is due.

        The attempt is counted before it is made: a tower that dies of it does not try for ever.
        """
        due = select(deliveries).where(deliveries.c.next_ms <= now_ms).order_by(deliveries.c.next_ms).limit(count)
        next_due = select(func.min(deliveries.c.next_ms))

        def work(connection: Connection) -> tuple[list[tuple[Ticket, Delivery]], int | None]:
            claimed: list[tuple[Ticket, Delivery]] = []
            for row in connection.execute(due).all():
                claim = {"attempts": row.attempts + 1, "next_ms": until_ms}
                connection.execute(update(deliveries).where(_is(row.matter, row.way)).values(**claim))
                found = connection.execute(select(tickets).where(tickets.c.id == row.matter)).one()
                claimed.append((_ticket(found, ()), _delivery(row, **claim)))
            return claimed, connection.execute(next_due).scalar()

        # Most often there is nothing to do, and nothing is to be written for that.
        _, next_ms = await self._registry.read(lambda connection: connection.execute(next_due).scalar())
        if next_ms is None or next_ms > now_ms:
            return [], next_ms
        return await self._registry.change(work, quietly=True)

    async def settle(self, ticket: Ticket, delivery: Delivery) -> None:
        """Keep what became of an attempt, unless another tower has taken the delivery over.

        Of a ticket that was closed meanwhile nothing is sent again.
        """
        values = {"next_ms": delivery.next_ms, "delivered_ms": delivery.delivered_ms, "fault": delivery.fault}
        mine = _is(ticket.id, delivery.channel) & (deliveries.c.attempts == delivery.attempts)
        if delivery.delivered_ms is None:
            mine &= deliveries.c.next_ms.is_not(None)

        def work(connection: Connection) -> None:
            connection.execute(update(deliveries).where(mine).values(**values))

        await self._registry.change(work, quietly=True)


# ---------------------------------------------------------------------------------- in the transaction of somebody else


def open_now(connection: Connection, ticket: Ticket) -> bool:
    """Open a ticket, unless one is open for the same. Whether it was."""
    if _find_open(connection, ticket.subject) is not None:
        return False
    _insert(connection, ticket)
    return True


def close_now(connection: Connection, id_: str, closing: Closing) -> None:
    """Close a ticket that is open; what has not been sent of it is not sent any more."""
    values = {
        "closed_ms": closing.at_ms,
        "closed_by": closing.by,
        "decision": closing.decision.value,
        "note": closing.note,
    }
    connection.execute(update(tickets).where(tickets.c.id == id_, _OPEN).values(**values))
    unsent = (deliveries.c.matter == id_) & deliveries.c.next_ms.is_not(None)
    connection.execute(update(deliveries).where(unsent).values(next_ms=None, fault=CLOSED_FIRST))
    _sweep(connection)


def tell_end_now(connection: Connection, id_: str, at_ms: int) -> None:
    """Have the end of a closed ticket sent to whoever has heard of its beginning."""
    arrived = (deliveries.c.matter == id_) & deliveries.c.delivered_ms.is_not(None)
    # The attempts go on to be counted: one that another tower has under way since before is not taken for this one.
    connection.execute(update(deliveries).where(arrived).values(next_ms=at_ms))


# ------------------------------------------------------------------------------------------------------------- queries


def _is(ticket: str, way: str) -> ColumnElement[bool]:
    return (deliveries.c.matter == ticket) & (deliveries.c.way == way)


def _find(connection: Connection, kind: Kind, id_: str) -> Row[Any]:
    row = connection.execute(select(tickets).where(tickets.c.id == id_, tickets.c.kind == kind)).one_or_none()
    if row is None:
        raise _none(kind, id_)
    return row


def _none(kind: Kind, id_: str) -> NotFound:
    return NotFound(f"there is no {kind} {id_}; the list has their ids", rule=f"{kind}.exists")


def _find_open(connection: Connection, subject: str) -> Row[Any] | None:
    return connection.execute(select(tickets).where(tickets.c.subject == subject, _OPEN)).one_or_none()


def _count(connection: Connection, ticket: Ticket, condition: ColumnElement[bool]) -> int:
    """How many tickets of this kind its principal has for which something holds."""
    own = (tickets.c.principal == ticket.principal) & (tickets.c.kind == ticket.kind)
    return connection.execute(select(func.count()).select_from(tickets).where(own, condition)).scalar_one()


def _require_room(connection: Connection, ticket: Ticket) -> None:
    most = OPEN_MAX[ticket.kind]
    if _count(connection, ticket, _OPEN) >= most:
        raise Conflict(
            f"{ticket.principal} has {most} open {ticket.kind}s, and no more are opened until some of them are closed",
            rule=f"{ticket.kind}.quota",
            next_step="none",
        )


def _insert(connection: Connection, ticket: Ticket) -> None:
    connection.execute(
        insert(tickets).values(
            id=ticket.id,
            kind=ticket.kind.value,
            subject=ticket.subject,
            principal=ticket.principal,
            contract=ticket.contract,
            target=ticket.table,
            contact=ticket.contact,
            details=json.dumps(ticket.details),
            opened_ms=ticket.opened_ms,
        )
    )
    for delivery in ticket.deliveries:
        connection.execute(
            insert(deliveries).values(
                matter=ticket.id,
                way=delivery.channel.value,
                address=delivery.address,
                attempts=delivery.attempts,
                next_ms=delivery.next_ms,
                fault=delivery.fault,
            )
        )


def _sweep(connection: Connection) -> None:
    """Let go of the oldest closed tickets beyond `CLOSED_MAX`."""
    closed = select(tickets.c.closed_ms).where(~_OPEN).order_by(tickets.c.closed_ms.desc())
    last_ms = connection.execute(closed.offset(CLOSED_MAX).limit(1)).scalar()
    if last_ms is None:
        return
    gone = tickets.c.closed_ms <= last_ms
    connection.execute(delete(deliveries).where(deliveries.c.matter.in_(select(tickets.c.id).where(gone))))
    connection.execute(delete(tickets).where(gone))


def _with_deliveries(connection: Connection, rows: Sequence[Row[Any]]) -> list[Ticket]:
    query = (
        select(deliveries).where(deliveries.c.matter.in_([row.id for row in rows])).order_by(deliveries.c.way.desc())
    )
    found: dict[str, list[Delivery]] = {}
    for row in connection.execute(query) if rows else ():
        found.setdefault(row.matter, []).append(_delivery(row))
    return [_ticket(row, found.get(row.id, ())) for row in rows]


def _delivery(row: Row[Any], **changed: Any) -> Delivery:
    kept = {name: getattr(row, name) for name in ("address", "attempts", "next_ms", "delivered_ms", "fault")}
    return Delivery(Channel(row.way), **(kept | changed))


def _ticket(row: Row[Any], sent: Iterable[Delivery]) -> Ticket:
    closing = None
    if row.closed_ms is not None:
        closing = Closing(row.closed_ms, row.closed_by, Decision(row.decision), row.note)
    return Ticket(
        id=row.id,
        kind=Kind(row.kind),
        subject=row.subject,
        principal=row.principal,
        contract=row.contract,
        table=row.target,
        contact=row.contact,
        details=json.loads(row.details),
        opened_ms=row.opened_ms,
        closing=closing,
        deliveries=tuple(sent),
    )

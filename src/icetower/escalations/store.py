"""Matters and the word that is sent of them, in the registry's database: for every tower on it, and over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from icetower.errors import Conflict, NotFound
from icetower.escalations.failures import Failure
from icetower.escalations.matters import Closing, Decision, Delivery, Kind, Matter, Way
from icetower.registry.registry import Registry
from icetower.registry.schema import deliveries, matters

OPEN_MAX: Mapping[Kind, int] = {Kind.ESCALATION: 100, Kind.REQUEST: 20}
"""Matters of a kind that one principal can have open."""

REQUESTS_A_DAY_MAX = 50
"""Requests that one principal can open in 24 hours, closed ones included."""

CLOSED_MAX = 10_000
"""Closed matters that are kept; the oldest give way."""

CLOSED_FIRST = "closed before it was sent"

DAY_MS = 24 * 3600 * 1000

_OPEN = matters.c.closed_ms.is_(None)


class Store:
    """Raises `Unavailable` where the database cannot be asked, in all that it does."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    # ---------------------------------------------------------------------------------------------------- what is open

    async def stops(self) -> tuple[int, dict[str, Matter]]:
        """The open escalations, by subject, and a number of the registry's changes that they are not older than."""
        query = select(matters).where(_OPEN, matters.c.kind == Kind.ESCALATION)
        number, rows = await self._registry.read(lambda connection: connection.execute(query).all())
        return number, {row.subject: _matter(row, ()) for row in rows}

    async def escalate(self, matter: Matter, failures: Sequence[Failure]) -> bool:
        """Open an escalation, unless one is open: of several that come to it at once, one does. Whether it was opened.

        Failures before a person last closed one do not count again: `failures`, the whole budget, must all be later.

        Raises:
            Conflict: the principal has as many open ones as it may have.
        """

        def work(connection: Connection) -> bool:
            same = select(func.max(matters.c.closed_ms)).where(matters.c.subject == matter.subject)
            closed_ms = connection.execute(same).scalar()
            if closed_ms is not None and failures[0].at_ms <= closed_ms:
                return False
            if _find_open(connection, matter.subject) is not None:
                return False
            _require_room(connection, matter)
            _insert(connection, matter)
            return True

        return await self._registry.change(work)

    async def ask(self, matter: Matter) -> tuple[Matter, bool]:
        """Open a request, or find the one that is open for the same; and whether it was opened.

        Raises:
            Conflict: the principal has as many open ones as it may have, or has asked too often today.
        """

        def work(connection: Connection) -> tuple[Matter, bool]:
            found = _find_open(connection, matter.subject)
            if found is not None:
                return _with_deliveries(connection, [found])[0], False
            _require_room(connection, matter)
            today = _count(connection, matter, matters.c.opened_ms > matter.opened_ms - DAY_MS)
            if today >= REQUESTS_A_DAY_MAX:
                raise Conflict(
                    f"{matter.principal} has made {today} requests within a day, which is the most; ask again later",
                    rule="request.quota",
                    next_step="none",
                )
            _insert(connection, matter)
            return matter, True

        return await self._registry.change(work, quietly=True)

    async def close(self, kind: Kind, id_: str, closing: Closing) -> Matter:
        """Close a matter; what has not been sent of it is not sent any more.

        Raises:
            NotFound: there is none of this kind and id.
            Conflict: it was closed before.
        """

        def work(connection: Connection) -> Matter:
            row = _find(connection, kind, id_)
            if row.closed_ms is not None:
                raise Conflict(
                    f"{kind} {id_} was closed before, by {row.closed_by}: {row.note}",
                    rule=f"{kind}.closed",
                    next_step="none",
                )
            values = {
                "closed_ms": closing.at_ms,
                "closed_by": closing.by,
                "decision": closing.decision.value,
                "note": closing.note,
            }
            connection.execute(update(matters).where(matters.c.id == id_).values(**values))
            unsent = (deliveries.c.matter == id_) & deliveries.c.next_ms.is_not(None)
            connection.execute(update(deliveries).where(unsent).values(next_ms=None, fault=CLOSED_FIRST))
            _sweep(connection)
            return _with_deliveries(connection, [_find(connection, kind, id_)])[0]

        return await self._registry.change(work, quietly=kind is Kind.REQUEST)

    async def find(self, kind: Kind, id_: str, principal: str | None = None) -> Matter:
        """One matter, of a principal where one is given. Raises `NotFound`."""

        def work(connection: Connection) -> Matter:
            row = _find(connection, kind, id_)
            if principal is not None and row.principal != principal:
                raise _none(kind, id_)
            return _with_deliveries(connection, [row])[0]

        return (await self._registry.read(work))[1]

    async def list(
        self, kind: Kind, *, principal: str | None = None, open_: bool | None = None, limit: int = 100
    ) -> list[Matter]:
        """Matters of a kind, newest first; of one principal, and open or closed ones only, where it is said."""
        query = select(matters).where(matters.c.kind == kind)
        if principal is not None:
            query = query.where(matters.c.principal == principal)
        if open_ is not None:
            query = query.where(_OPEN if open_ else ~_OPEN)
        query = query.order_by(matters.c.opened_ms.desc(), matters.c.id.desc()).limit(limit)

        def work(connection: Connection) -> list[Matter]:
            return _with_deliveries(connection, connection.execute(query).all())

        return (await self._registry.read(work))[1]

    # -------------------------------------------------------------------------------------------------- what is to send

    async def claim(self, now_ms: int, until_ms: int, count: int) -> tuple[list[tuple[Matter, Delivery]], int | None]:
        """Take up to `count` deliveries that are due, for this tower alone until `until_ms`; and when the next is due.

        The attempt is counted before it is made: a tower that dies of it does not try for ever.
        """
        due = select(deliveries).where(deliveries.c.next_ms <= now_ms).order_by(deliveries.c.next_ms).limit(count)
        next_due = select(func.min(deliveries.c.next_ms))

        def work(connection: Connection) -> tuple[list[tuple[Matter, Delivery]], int | None]:
            claimed: list[tuple[Matter, Delivery]] = []
            for row in connection.execute(due).all():
                claim = {"attempts": row.attempts + 1, "next_ms": until_ms}
                connection.execute(update(deliveries).where(_is(row.matter, row.way)).values(**claim))
                found = connection.execute(select(matters).where(matters.c.id == row.matter)).one()
                claimed.append((_matter(found, ()), _delivery(row, **claim)))
            return claimed, connection.execute(next_due).scalar()

        # Most often there is nothing to do, and nothing is to be written for that.
        _, next_ms = await self._registry.read(lambda connection: connection.execute(next_due).scalar())
        if next_ms is None or next_ms > now_ms:
            return [], next_ms
        return await self._registry.change(work, quietly=True)

    async def settle(self, matter: Matter, delivery: Delivery) -> None:
        """Keep what became of an attempt, unless another tower has taken the delivery over.

        Of a matter that was closed meanwhile nothing is sent again.
        """
        values = {"next_ms": delivery.next_ms, "delivered_ms": delivery.delivered_ms, "fault": delivery.fault}
        mine = _is(matter.id, delivery.way) & (deliveries.c.attempts == delivery.attempts)
        if delivery.delivered_ms is None:
            mine &= deliveries.c.next_ms.is_not(None)

        def work(connection: Connection) -> None:
            connection.execute(update(deliveries).where(mine).values(**values))

        await self._registry.change(work, quietly=True)


# ------------------------------------------------------------------------------------------------------------- queries


def _is(matter: str, way: str) -> ColumnElement[bool]:
    return (deliveries.c.matter == matter) & (deliveries.c.way == way)


def _find(connection: Connection, kind: Kind, id_: str) -> Row[Any]:
    row = connection.execute(select(matters).where(matters.c.id == id_, matters.c.kind == kind)).one_or_none()
    if row is None:
        raise _none(kind, id_)
    return row


def _none(kind: Kind, id_: str) -> NotFound:
    return NotFound(f"there is no {kind} {id_}; the list has their ids", rule=f"{kind}.exists")


def _find_open(connection: Connection, subject: str) -> Row[Any] | None:
    return connection.execute(select(matters).where(matters.c.subject == subject, _OPEN)).one_or_none()


def _count(connection: Connection, matter: Matter, condition: ColumnElement[bool]) -> int:
    """How many matters of this kind its principal has for which something holds."""
    own = (matters.c.principal == matter.principal) & (matters.c.kind == matter.kind)
    return connection.execute(select(func.count()).select_from(matters).where(own, condition)).scalar_one()


def _require_room(connection: Connection, matter: Matter) -> None:
    most = OPEN_MAX[matter.kind]
    if _count(connection, matter, _OPEN) >= most:
        raise Conflict(
            f"{matter.principal} has {most} open {matter.kind}s, and no more are opened until some of them are closed",
            rule=f"{matter.kind}.quota",
            next_step="none",
        )


def _insert(connection: Connection, matter: Matter) -> None:
    connection.execute(
        insert(matters).values(
            id=matter.id,
            kind=matter.kind.value,
            subject=matter.subject,
            principal=matter.principal,
            contract=matter.contract,
            target=matter.table,
            contact=matter.contact,
            details=json.dumps(matter.details),
            opened_ms=matter.opened_ms,
        )
    )
    for delivery in matter.deliveries:
        connection.execute(
            insert(deliveries).values(
                matter=matter.id,
                way=delivery.way.value,
                address=delivery.address,
                attempts=delivery.attempts,
                next_ms=delivery.next_ms,
                fault=delivery.fault,
            )
        )


def _sweep(connection: Connection) -> None:
    """Let go of the oldest closed matters beyond `CLOSED_MAX`."""
    closed = select(matters.c.closed_ms).where(~_OPEN).order_by(matters.c.closed_ms.desc())
    last_ms = connection.execute(closed.offset(CLOSED_MAX).limit(1)).scalar()
    if last_ms is None:
        return
    gone = matters.c.closed_ms <= last_ms
    connection.execute(delete(deliveries).where(deliveries.c.matter.in_(select(matters.c.id).where(gone))))
    connection.execute(delete(matters).where(gone))


def _with_deliveries(connection: Connection, rows: Sequence[Row[Any]]) -> list[Matter]:
    query = (
        select(deliveries).where(deliveries.c.matter.in_([row.id for row in rows])).order_by(deliveries.c.way.desc())
    )
    found: dict[str, list[Delivery]] = {}
    for row in connection.execute(query) if rows else ():
        found.setdefault(row.matter, []).append(_delivery(row))
    return [_matter(row, found.get(row.id, ())) for row in rows]


def _delivery(row: Row[Any], **changed: Any) -> Delivery:
    kept = {name: getattr(row, name) for name in ("address", "attempts", "next_ms", "delivered_ms", "fault")}
    return Delivery(Way(row.way), **(kept | changed))


def _matter(row: Row[Any], sent: Iterable[Delivery]) -> Matter:
    closing = None
    if row.closed_ms is not None:
        closing = Closing(row.closed_ms, row.closed_by, Decision(row.decision), row.note)
    return Matter(
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

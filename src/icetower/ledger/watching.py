"""What others follow: changes of tables and namespaces as events, and reports of clients on their commits.

Both are logs with numbers that grow in the order in which they were written, and keep a bounded number of rows. They
are written with the log of attempts, behind the answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Table, delete, func, select

from icetower.ledger.attempts import insert_rows, take_order_lock
from icetower.ledger.schema import client_reports as reports
from icetower.ledger.schema import events

EVENTS_MAX = 50_000
REPORTS_MAX = 100_000
EVENT_CHARACTERS_MAX = 64 * 1024
TRIMMED_EVERY = 256
"""A log may have so many rows more than it keeps, or a hundredth of these, whichever is less."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A change as an event.

    Attributes:
        kind: of the operation, such as `update-table`.
        objects: the tables or namespaces that it is about, each as its levels; of a rename both names.
        uuid: of the table.
        event: as it is answered.
    """

    at_ms: int
    kind: str
    objects: tuple[tuple[str, ...], ...]
    uuid: str | None
    event: str


@dataclass(frozen=True, slots=True)
class Reported:
    """What a client says of a commit that has landed, as it counts it.

    Attributes:
        snapshot_id: that it added.
        attempts: how often it sent the commit, the last time included. The log of attempts has
            those that reached the tower, so the two are never added up.
        total_ms: from its first try to its end; None: it does not say.
    """

    at_ms: int
    principal: str
    table: str
    snapshot_id: int
    operation: str
    attempts: int
    total_ms: float | None


@dataclass(frozen=True, slots=True)
class Changes:
    """Events with their numbers. `oldest`, `newest`: numbers of the whole log; None: it is empty."""

    events: tuple[tuple[int, Changed], ...]
    oldest: int | None
    newest: int | None


def write_watched(
    connection: Connection, changed: Sequence[Changed], reported: Sequence[Reported], events_max: int
) -> None:
    """Append to both logs, and let the oldest go where they are full.

    As the log of attempts is written: whoever sees a number has seen all lower ones.
    """
    if not changed and not reported:
        return
    take_order_lock(connection)
    if changed and events_max:
        rows = [
            {
                "at_ms": each.at_ms,
                "kind": each.kind,
                "objects": orjson.dumps(each.objects).decode(),
                "uuid": each.uuid,
                "event": each.event,
            }
            for each in changed
        ]
        insert_rows(connection, events, rows)
        _trim(connection, events, events_max, len(rows))
    if reported:
        rows = [
            {
                "at_ms": each.at_ms,
                "principal": each.principal,
                "table_name": each.table,
                "snapshot_id": each.snapshot_id,
                "operation": each.operation,
                "attempts": each.attempts,
                "total_ms": each.total_ms,
            }
            for each in reported
        ]
        insert_rows(connection, reports, rows)
        _trim(connection, reports, REPORTS_MAX, len(rows))


def read_changes(connection: Connection, after: int, since_ms: int, limit: int) -> Changes:
    """The first events after the one with a number, from a time on."""
    query = select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
    if since_ms:
        first = select(func.min(events.c.id)).where(events.c.at_ms >= since_ms)
        found = connection.execute(first).scalar()
        query = query.where(events.c.id >= (found or 2**31 - 1))
    rows = [(row.id, _changed(row)) for row in connection.execute(query)]
    oldest = connection.execute(select(func.min(events.c.id))).scalar()
    newest = connection.execute(select(func.max(events.c.id))).scalar()
    return Changes(tuple(rows), oldest, newest)


def read_reports(connection: Connection, since_ms: int, limit: int) -> tuple[Reported, ...]:
    """What clients have reported since a time, newest first. Of one snapshot there may be several reports."""
    query = select(reports).where(reports.c.at_ms >= since_ms).order_by(reports.c.id.desc()).limit(limit)
    return tuple(
        Reported(row.at_ms, row.principal, row.table_name, row.snapshot_id, row.operation, row.attempts, row.total_ms)
        for row in connection.execute(query)
    )


def _changed(row: Any) -> Changed:
    objects = tuple(tuple(levels) for levels in json.loads(row.objects))
    return Changed(row.at_ms, row.kind, objects, row.uuid, row.event)


def _trim(connection: Connection, table: Table, rows_max: int, added: int) -> None:
    """Let the oldest go, once in `TRIMMED_EVERY` rows."""
    newest = connection.execute(select(func.max(table.c.id))).scalar_one()
    if newest % max(1, min(TRIMMED_EVERY, rows_max // 100)) < added:
        connection.execute(delete(table).where(table.c.id <= newest - rows_max))

"""What the newest attempts of the log come to, for whoever looks at the page of a tower: counted in the database.

The log is read backwards by its numbers, so that a look costs the same however long the log is.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from icetower.database import read_at_once
from icetower.ledger.attempts import Outcome
from icetower.ledger.schema import attempts

ACTIVITY_ROWS_MAX = 20_000
"""Attempts that one look counts."""
GROUPS_MAX = 2_000
"""Groups that one look gives; those that went on last."""


@dataclass(frozen=True, slots=True)
class Group:
    """Attempts of one principal at one table that ended alike.

    Attributes:
        first_ms, last_ms: of these attempts, milliseconds since 1970.
        last: the number of the newest one in the log.
    """

    principal: str
    table: str
    outcome: Outcome
    rule: str | None
    times: int
    first_ms: int
    last_ms: int
    last: int


@dataclass(frozen=True, slots=True)
class Activity:
    """The newest attempts, counted.

    Attributes:
        groups: the latest first.
        counted: how many attempts were counted, by outcome.
        since_ms: when the oldest of them was logged; None: there is none.
        complete: whether that is the whole log, and every group of it.
    """

    groups: tuple[Group, ...]
    counted: dict[Outcome, int]
    since_ms: int | None
    complete: bool


def read_activity(connection: Connection, principal: str | None, rows_max: int) -> Activity:
    """Count the newest `rows_max` attempts; `principal`: only this one's among them."""
    own = attempts.c
    # One at a time: asked for both at once, SQLite reads the whole table.
    newest = connection.execute(select(func.max(own.id))).scalar()
    oldest = connection.execute(select(func.min(own.id))).scalar()
    if newest is None or oldest is None:
        return Activity((), {}, None, complete=True)
    first = max(newest - rows_max + 1, oldest)
    since_ms = connection.execute(select(own.at_ms).where(own.id >= first).order_by(own.id).limit(1)).scalar()
    last = func.max(own.id).label("last")
    by = (own.principal, own.table_name, own.outcome, own.rule)
    query = select(
        *by,
        func.count().label("times"),
        func.min(own.at_ms).label("first_ms"),
        func.max(own.at_ms).label("last_ms"),
        last,
    )
    query = query.where(own.id >= first)
    if principal is not None:
        query = query.where(own.principal == principal)
    rows = read_at_once(connection, query.group_by(*by).order_by(last.desc()).limit(GROUPS_MAX + 1))
    groups = tuple(Group(name, table, Outcome(outcome), *rest) for name, table, outcome, *rest in rows[:GROUPS_MAX])
    counts = select(own.outcome, func.count().label("n")).where(own.id >= first)
    if principal is not None:
        counts = counts.where(own.principal == principal)
    counted = {Outcome(row.outcome): row.n for row in connection.execute(counts.group_by(own.outcome))}
    return Activity(groups, counted, since_ms, complete=first == oldest and len(rows) <= GROUPS_MAX)

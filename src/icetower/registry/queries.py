"""What the registry's transactions ask of credentials, principals and contracts."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, or_, select, update

from icetower.contracts.model import ADMINISTRATOR_NAME, VIEWER_NAME
from icetower.registry import versions
from icetower.registry.schema import changes, contracts, credentials, principals

VALUES_MAX = 1_000
"""Parameters of one statement, of which databases allow only so many."""


def same(left: str, right: str) -> bool:
    """Whether two texts are equal, in a time that does not tell how far."""
    return hmac.compare_digest(left.encode(), right.encode("utf-8", "surrogatepass"))


def live_credentials(connection: Connection, presented: Iterable[str], now_ms: int) -> dict[str, Row[Any]]:
    """The live credentials among these hashes. Looking them up by hash tells an attacker nothing: they can't choose
    hashes."""
    live = or_(credentials.c.expires_ms.is_(None), credentials.c.expires_ms > now_ms)
    found = {
        row.hash: row for row in _among(connection, select(credentials).where(live), credentials.c.hash, presented)
    }
    return {hash_: found[hash_] for hash_ in presented if hash_ in found and same(found[hash_].hash, hash_)}


def ended_credentials(connection: Connection, presented: Iterable[str], now_ms: int, kept_ms: int) -> dict[str, str]:
    """Those among these hashes that have ended, not longer ago than `kept_ms`, and whose they were."""
    query = select(credentials).where(credentials.c.expires_ms <= now_ms, credentials.c.expires_ms > now_ms - kept_ms)
    found = {row.hash: row for row in _among(connection, query, credentials.c.hash, presented)}
    return {hash_: found[hash_].principal for hash_ in presented if hash_ in found and same(found[hash_].hash, hash_)}


def in_force(connection: Connection, names: Iterable[str]) -> dict[str, tuple[Row[Any], Row[Any] | None]]:
    """Principals that are not revoked: each with the newest version of its contract, where it has one."""
    unrevoked = select(principals).where(principals.c.revoked_ms.is_(None))
    people = _among(connection, unrevoked, principals.c.name, names)
    bound = {person.contract for person in people}
    latest = {row.name: row for row in _among(connection, versions.newest(), contracts.c.name, bound)}
    return {person.name: (person, latest.get(person.contract)) for person in people}


def bindings(connection: Connection, names: Sequence[str]) -> dict[str, tuple[str, int] | None]:
    """Principal → its contract and that contract's version; None where that is revoked."""
    found: dict[str, tuple[str, int] | None] = {}
    for name, (row, latest) in in_force(connection, names).items():
        if row.contract in (ADMINISTRATOR_NAME, VIEWER_NAME):
            found[name] = (row.contract, 0)
        else:
            found[name] = None if latest is None or latest.text is None else (row.contract, latest.version)
    return found


def number_of_changes(connection: Connection) -> int:
    """How often the registry was changed. To be read first: what is read after it is never older."""
    return connection.execute(select(changes.c.number)).scalar_one()


def numbers(connection: Connection, beside: ColumnElement[int] | None) -> tuple[int, int]:
    """The same, and in the same statement a number that another room counts its changes by; -1 without one."""
    if beside is None:
        return number_of_changes(connection), -1
    row = connection.execute(select(changes.c.number, beside)).one()
    return row[0], row[1]


def count_change(connection: Connection) -> None:
    """What was read before may not hold any more."""
    connection.execute(update(changes).values(number=changes.c.number + 1))


def _among(
    connection: Connection, query: Select[Any], column: ColumnElement[str], values: Iterable[str]
) -> list[Row[Any]]:
    """The rows of a query where a column has one of these values, which may be many."""
    wanted = sorted(set(values))
    return [
        row
        for start in range(0, len(wanted), VALUES_MAX)
        for row in connection.execute(query.where(column.in_(wanted[start : start + VALUES_MAX])))
    ]

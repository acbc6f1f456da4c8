"""Which history of a table a key belongs to: what became of a commit whose snapshots the table does not have.

A table that is registered at an older metadata file has lost what came after it, and two tables may be registered from
one file. So that a snapshot was in a table with this uuid says nothing of whether its rows are in this one. The ledger
calls done only what it has seen expire while its branch had it, under this name and since it was registered last.

The number of registrations goes up before the catalog's pointer is set: a tower that dies in between leaves keys whose
fate is unknown, and no wrong answer. The number is never cached: each decision reads it in its own transaction, so that
towers with one ledger agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from sqlalchemy import Connection, case, insert, select, update

from icetower.ledger.hashes import EXPIRED, REGISTRATION, TORN, hashed
from icetower.ledger.schema import expired, registrations
from icetower.protocol.names import Identifier
from icetower.registry.sql import take_write_lock

BEFORE = -1
"""The registration of keys that were kept before expiries were: no snapshot in the table means that it has expired."""


class Fate(Enum):
    """What became of a commit none of whose snapshots is in the table."""

    EXPIRED = auto()
    """Its snapshots have expired: its rows were in the table then, so that it is done."""
    LEFT_BEHIND = auto()
    """The table was registered at a version from before it: nothing of it is in the table."""
    REGISTERED_ANEW = auto()
    """A table with this uuid was registered anew, and it is unknown whether this one has its rows."""
    GONE = auto()
    """Its snapshots went in a way that was not seen here; it is unknown whether the table has its rows."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the ledger tells it from others: several names may stand for one uuid."""

    uuid: str
    identifier: Identifier


@dataclass(frozen=True, slots=True)
class History:
    """Where a table stands by now.

    Attributes:
        known: how often its uuid was registered, under any name.
        number: how often it had been when this name was registered last; None if it never was.
        sequence_number: the last one of the file that it was registered at; None where the catalog's pointer may not
            have been set.
    """

    known: int
    number: int | None
    sequence_number: int | None

    def expired_id(self, table: TableName, snapshot_id: int) -> bytes:
        """Under which it is kept that a snapshot has expired in this history."""
        if not self.known:  # there is one table of this uuid, whatever its name
            names: tuple[str, ...] = ()
        elif self.number is not None:
            names = (str(self.number),)
        else:
            names = (*table.identifier.namespace, table.identifier.name)
        return hashed(EXPIRED, table.uuid, *names, str(snapshot_id))

    def fate(self, *, seen: bool, registration: int, sequence_number: int | None) -> Fate:
        """What became of a commit.

        Args:
            seen: whether any snapshot of it was seen to expire in this history.
            registration: how often the uuid had been registered when its key was kept.
            sequence_number: the lowest of its snapshots, where it is known.
        """
        if seen or (registration == BEFORE and not self.known):
            return Fate.EXPIRED
        # It landed before its key was kept, so before the file was registered; and no snapshot in that file's past has
        # a higher number than the file itself.
        before = self.number is not None and registration < self.number
        if before and sequence_number is not None and self.sequence_number is not None:
            beyond = sequence_number > self.sequence_number
            return Fate.LEFT_BEHIND if beyond else Fate.REGISTERED_ANEW
        return Fate.REGISTERED_ANEW if self.known else Fate.GONE


def history_of(connection: Connection, table: TableName) -> History:
    names = _uuid_id(table.uuid), _name_id(table)
    rows = {
        bytes(row.id): row for row in connection.execute(select(registrations).where(registrations.c.id.in_(names)))
    }
    every, own = (rows.get(name) for name in names)
    known = 0 if every is None else every.number
    return History(known, *((None, None) if own is None else (own.number, own.sequence_number)))


def numbers_of(connection: Connection, uuids: Iterable[str]) -> dict[str, int]:
    """How often each of some uuids was registered, where it ever was."""
    by_id = {_uuid_id(uuid): uuid for uuid in uuids}
    rows = connection.execute(select(registrations.c.id, registrations.c.number).where(registrations.c.id.in_(by_id)))
    return {by_id[bytes(name)]: number for name, number in rows}


def begin(connection: Connection, table: TableName) -> int:
    """A new history for a name; the number of its registration. Must be the first thing in its transaction."""
    take_write_lock(connection)
    number = history_of(connection, table).known + 1
    for name in (_uuid_id(table.uuid), _name_id(table)):
        changed = update(registrations).where(registrations.c.id == name).values(number=number, sequence_number=None)
        if connection.execute(changed).rowcount == 0:
            connection.execute(insert(registrations).values(id=name, number=number))
    return number


def confirm(connection: Connection, table: TableName, number: int, sequence_number: int) -> None:
    """The catalog's pointer was set. Where another registration came in between, it is unknown which of them stands."""
    ours = case((registrations.c.number == number, sequence_number))
    connection.execute(update(registrations).where(registrations.c.id == _name_id(table)).values(sequence_number=ours))


def seen_to_expire(connection: Connection, table: TableName, history: History, snapshot_ids: Sequence[int]) -> bool:
    """Whether any of some snapshots was seen to expire in a history, or to be cut off from its branch."""
    names = [history.expired_id(table, snapshot_id) for snapshot_id in snapshot_ids]
    return connection.execute(select(expired.c.id).where(expired.c.id.in_(names)).limit(1)).first() is not None


def torn_id(uuid: str, snapshot_id: int) -> bytes:
    """Under which it is kept that a snapshot is what was left of a commit when the rest was rolled back."""
    return hashed(TORN, uuid, str(snapshot_id))


def _uuid_id(uuid: str) -> bytes:
    return hashed(REGISTRATION, uuid)


def _name_id(table: TableName) -> bytes:
    return hashed(REGISTRATION, table.uuid, *table.identifier.namespace, table.identifier.name)

"""Verdicts of checks: that a named check has passed, or failed, for exactly one snapshot.

Checks are jobs outside of the tower, which report here. A snapshot never changes, so that a verdict holds for as long
as the snapshot does. Clients choose ids, and another snapshot can come under the same id: so a verdict is kept with a
hash of the content, and counts for that content alone. A lost control database loses them: then the checks run again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from icetower.ambient import Ambient
from icetower.database import Database
from icetower.ledger.door import LedgerDoor
from icetower.ledger.hashes import CONTENT, VERDICT, hashed
from icetower.ledger.schema import verdicts
from icetower.protocol.snapshots import Snapshot

KEPT_MS = 90 * 24 * 3600 * 1000
DETAILS_CHARACTERS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What a check has found.

    Attributes:
        name: of the check.
        details: what it says to people.
        principal: who reported it.
    """

    name: str
    passed: bool
    details: str
    principal: str
    at_ms: int


class Verdicts:
    """The ledger makes its table: open it after a `Ledger` on the same database.

    Raises `UpstreamFailed` in all that it does, where the database cannot be asked.
    """

    def __init__(self, database: Database, ambient: Ambient) -> None:
        self._database = LedgerDoor(database)
        self._ambient = ambient

    async def report(
        self, uuid: str, snapshot: Snapshot, name: str, *, passed: bool, details: str, principal: str
    ) -> CheckVerdict:
        """Keep a verdict in place of the principal's earlier one of this check; it is durable when this returns.

        Args:
            snapshot: as the table has it now.
        """
        now_ms = self._ambient.now_ms()
        verdict = CheckVerdict(name, passed, details[:DETAILS_CHARACTERS_MAX], principal, now_ms)
        row = {
            "id": hashed(VERDICT, uuid, str(snapshot.id), name, principal),
            "uuid": uuid,
            "snapshot_id": snapshot.id,
            "name": name,
            "passed": passed,
            "details": verdict.details,
            "principal": principal,
            "at_ms": now_ms,
            "content": _content_of(snapshot),
        }

        def write(connection: Connection) -> None:
            connection.execute(delete(verdicts).where(verdicts.c.id == row["id"]))
            connection.execute(delete(verdicts).where(verdicts.c.at_ms < now_ms - KEPT_MS))
            connection.execute(insert(verdicts), [row])

        await self._database.run(write, write=True)
        return verdict

    async def of(self, uuid: str, snapshot: Snapshot, by: Collection[str]) -> dict[str, CheckVerdict]:
        """The last verdict of each check on a snapshot that one of these principals has reported, by its name.

        Args:
            snapshot: as the table has it now.
        """
        query = (
            select(verdicts)
            .where(verdicts.c.snapshot_id == snapshot.id, verdicts.c.content == _content_of(snapshot))
            .where(verdicts.c.uuid == uuid, verdicts.c.principal.in_(sorted(by)))
            .order_by(verdicts.c.at_ms, verdicts.c.id)
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return {row.name: CheckVerdict(row.name, row.passed, row.details, row.principal, row.at_ms) for row in rows}


def _content_of(snapshot: Snapshot) -> bytes:
    return hashed(CONTENT, *map(str, snapshot.content))

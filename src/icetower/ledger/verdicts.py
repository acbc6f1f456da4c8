"""Verdicts of checks: that a named check has passed, or failed, for exactly one snapshot.

Checks are jobs outside of the tower, which report here. A snapshot never changes, so that a verdict holds for as long
as the snapshot does. A lost control database loses them: then the checks run again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from icetower.ambient import Ambient
from icetower.database import Database
from icetower.ledger.door import LedgerDoor
from icetower.ledger.hashes import VERDICT, hashed
from icetower.ledger.schema import verdicts

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
        self, uuid: str, snapshot_id: int, name: str, *, passed: bool, details: str, principal: str
    ) -> CheckVerdict:
        """Keep a verdict in place of the principal's earlier one of this check; it is durable when this returns."""
        now_ms = self._ambient.now_ms()
        verdict = CheckVerdict(name, passed, details[:DETAILS_CHARACTERS_MAX], principal, now_ms)
        row = {
            "id": hashed(VERDICT, uuid, str(snapshot_id), name, principal),
            "uuid": uuid,
            "snapshot_id": snapshot_id,
            "name": name,
            "passed": passed,
            "details": verdict.details,
            "principal": principal,
            "at_ms": now_ms,
        }

        def write(connection: Connection) -> None:
            connection.execute(delete(verdicts).where(verdicts.c.id == row["id"]))
            connection.execute(delete(verdicts).where(verdicts.c.at_ms < now_ms - KEPT_MS))
            connection.execute(insert(verdicts), [row])

        await self._database.run(write, write=True)
        return verdict

    async def of(self, uuid: str, snapshot_id: int, by: Collection[str]) -> dict[str, CheckVerdict]:
        """The last verdict of each check on a snapshot that one of these principals has reported, by its name."""
        query = (
            select(verdicts)
            .where(verdicts.c.snapshot_id == snapshot_id, verdicts.c.uuid == uuid, verdicts.c.principal.in_(sorted(by)))
            .order_by(verdicts.c.at_ms, verdicts.c.id)
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return {row.name: CheckVerdict(row.name, row.passed, row.details, row.principal, row.at_ms) for row in rows}

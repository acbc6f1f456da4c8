"""The figures of agents' writes, asked for from the event loop: see `metrics`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from icetower.database import Database
from icetower.ledger.door import LedgerDoor
from icetower.ledger.metrics import (
    Measured,
    Report,
    Wanted,
    Windows,
    count_logged,
    note_once,
    read_busiest,
    read_noted,
    read_outcomes,
    read_reports,
    read_totals,
    read_windows,
    write_reports,
)

T = TypeVar("T")


class Measures:
    """The ledger makes its tables: open it after a `Ledger` on the same database.

    Raises `UpstreamFailed` in all that it does, where the database cannot be asked.
    """

    def __init__(self, database: Database) -> None:
        self._database = LedgerDoor(database)

    async def count(self) -> None:
        """Count what is logged: what is read after this has all attempts that were logged before it."""
        await self._database.run(count_logged, write=True)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Several questions of `metrics`, answered from one state of the database."""
        return await self._database.run(work)

    async def windows(self, wanted: Wanted, *, limit: int, before: tuple[int, bytes] | None = None) -> Windows:
        """A page of figures by window, newest first; `before`: where the page before it ended."""
        return await self._database.run(lambda connection: read_windows(connection, wanted, limit, before))

    async def busiest(self, wanted: Wanted, *, limit: int, attempts_min: int = 1) -> list[Measured]:
        """The windows with most attempts."""
        return await self._database.run(
            lambda connection: read_busiest(connection, wanted, limit, attempts_min=attempts_min)
        )

    async def totals(self, wanted: Wanted, *, limit: int) -> list[Measured]:
        """Figures since ever, those with most attempts first."""
        return await self._database.run(lambda connection: read_totals(connection, wanted, limit))

    async def outcomes(self) -> dict[tuple[str, str], int]:
        """Attempts since ever by outcome and rule."""
        return await self._database.run(read_outcomes)

    async def report(self, reports: Sequence[Report], *, instead_of: Collection[str] = ()) -> None:
        """Keep what was measured; it is durable when this returns. Of the tables `instead_of` nothing else is kept."""
        await self._database.run(lambda c: write_reports(c, reports, instead_of=instead_of), write=True)

    async def note(self, reports: Sequence[Report]) -> int:
        """Keep and count what was noticed, each of them once, whichever tower noticed it. How many were new."""
        return await self._database.run(lambda connection: note_once(connection, reports), write=True)

    async def noted(self, kind: str) -> int:
        """How many were noticed since ever."""
        return await self._database.run(lambda connection: read_noted(connection, kind))

    async def reports(self, kinds: Iterable[str], *, since_ms: int = 0, limit: int) -> list[Report]:
        """The newest reports of some kinds."""
        asked = tuple(kinds)
        return await self._database.run(lambda c: read_reports(c, asked, since_ms=since_ms, limit=limit))

"""The ledger's way to its database: what fails there is an error that callers of the tower can be answered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from icetower.database import Database
from icetower.errors import UpstreamFailed

T = TypeVar("T")


class LedgerDoor:
    """A database as the ledger asks it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_sqlite = database.is_sqlite

    async def run(self, work: Callable[[Connection], T], *, write: bool = False, alone: bool = False) -> T:
        """One transaction, as `Database.run`.

        Raises:
            DiskFull, DatabaseBusy: nothing was changed.
            UpstreamFailed: the ledger cannot be read, or cannot be written for certain.
        """
        try:
            return await self._database.run(work, write=write, alone=alone)
        except SQLAlchemyError as error:
            # Only the kind: the driver's text may quote statements, values and paths.
            kind = type(getattr(error, "orig", None) or error).__name__
            raise UpstreamFailed(
                f"the ledger (control.db) cannot be {'written' if write else 'read'} ({kind}); look at its disk and "
                "its file, then send this again",
                rule="ledger.available",
            ) from error

"""Who has committed to which table, or may have: kept before the first commit of a principal to a table is swapped in.

Only for these is a refused commit looked for. Everybody else is refused for the price of a lookup by a primary key,
however many tables there are, and whatever the request names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from icetower.ambient import Ambient
from icetower.database import Together
from icetower.errors import IcetowerError
from icetower.ledger.hashes import WRITER, hashed
from icetower.protocol.names import Identifier
from icetower.recent import Recent

KEPT_WAIT_S = 1.0
"""A commit waits no longer for its writer to be kept: a slow disk of the ledger's stops no commits."""

KEPT_ANEW_MS = 24 * 3600 * 1000
"""A writer that goes on is kept anew, so that its row lives on. It lives for 30 days at least, by default."""

REMEMBERED_MAX = 200_000
"""Writers that a tower remembers, so that it need not write them again."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A principal at a table: by the table's uuid, or, for commits that give none, by its name."""

    principal: str
    table: str

    @classmethod
    def of(cls, principal: str, uuid: str, name: Identifier | None) -> Writer:
        """`uuid` empty: the table goes by its name."""
        return cls(principal, f"uuid {uuid.lower()}" if uuid else f"name {name}")

    @property
    def id(self) -> bytes:
        """Under which it is stored."""
        return hashed(WRITER, self.principal, self.table)


class KeepsWriters(Protocol):
    """What of the ledger is asked."""

    async def keep_writers(self, these: Collection[Writer]) -> None: ...

    async def find_writers(self, these: Collection[Writer]) -> frozenset[Writer]: ...


class Writers:
    """One a tower."""

    def __init__(self, ledger: KeepsWriters, ambient: Ambient) -> None:
        self._ledger = ledger
        self._ambient = ambient
        self._kept_ms: Recent[int] = Recent(REMEMBERED_MAX)
        self._keeping = Together(self._keep)

    async def keep(self, principal: str, tables: Collection[tuple[str, Identifier]]) -> None:
        """A principal is about to commit to tables, each given by its uuid and its name. It is durable on return.

        Where the ledger cannot be written, or not soon, it is tried again with the next commit.
        """
        at = {Writer.of(principal, uuid, name) for table in tables for uuid, name in (table, ("", table[1]))}
        now_ms = self._ambient.now_ms()
        new = [writer for writer in at if (self._kept_ms.get(_name(writer)) or 0) + KEPT_ANEW_MS <= now_ms]
        if new:
            asked = asyncio.gather(*(self._keeping.ask(writer) for writer in new), return_exceptions=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(asked, KEPT_WAIT_S)

    async def among(self, writers: Collection[Writer]) -> frozenset[Writer]:
        """Those who have committed, or may have. Raises `IcetowerError` where the ledger cannot be asked."""
        known = {writer for writer in writers if self._kept_ms.get(_name(writer)) is not None}
        return frozenset(known) | await self._ledger.find_writers(set(writers) - known)

    async def _keep(self, writers: Sequence[Writer]) -> Mapping[Writer, None]:
        for writer in writers:
            self._kept_ms.put(_name(writer), 0, 1)  # known here, also where the ledger cannot be written
        with suppress(IcetowerError):
            await self._ledger.keep_writers(writers)
            for writer in writers:
                self._kept_ms.put(_name(writer), self._ambient.now_ms(), 1)
        return dict.fromkeys(writers)


def _name(writer: Writer) -> str:
    return writer.id.hex()

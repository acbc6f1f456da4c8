"""What the page reads: bounded, indexed, and shared by all who look at the same within a moment."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from icetower.admission import permissions
from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.contracts.model import Contract
from icetower.errors import CommitConflict, IcetowerError, NoSuchTable, Unavailable
from icetower.escalations.escalations import Escalations
from icetower.escalations.tickets import Kind, Ticket
from icetower.files.parsing import Parsing
from icetower.gateway.page_owners import Owners
from icetower.gateway.page_thread import PageThread
from icetower.ledger.activity import Activity
from icetower.ledger.attempts import Attempt, NumberedPage, Search
from icetower.page.refusals import Health, health
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.registry.registry import PrincipalRecord, Registry
from icetower.registry.versions import ContractVersion, parsed
from icetower.service.journal import Journal
from icetower.upstream.port import Upstream

T = TypeVar("T")

KEPT_S = 1.0
"""What was read is shown for so long; who did it sees it at once, since what acts forgets it."""
SLOW_KEPT_S = 3.0
"""Of what takes longer to read: names of tables, and owners of partitions."""
UNCHANGED_KEPT_S = 60.0
"""Of what is known by the number of the registry's changes, while that is the same."""
KEPT_MAX = 256
TICKETS_MAX = 200
TABLES_MAX = 10_000
JUDGED_S = 0.05
"""So long one look asks contracts whose a table's partitions are."""
LIVE_SCANNED_MAX = 20_000
ESCAPE = "\\"
"""In YAML any word may be written with it."""
READ_TIMEOUT_S = 20.0


class Briefly:
    """What was read a moment ago, by name; each is read once at a time, however many ask for it."""

    def __init__(self, ambient: Ambient, kept_max: int = KEPT_MAX) -> None:
        self._ambient = ambient
        self._kept_max = kept_max
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, name: Hashable, read: Callable[[], Awaitable[T]], kept_s: float = KEPT_S) -> T:
        """What `read` reads, or has read less than `kept_s` ago. Raises what it raises, and keeps no error."""
        now_s = self._ambient.monotonic_s()
        found = self._kept.get(name)
        if found is None or (found[1].done() and (now_s >= found[0] + kept_s or found[1].exception() is not None)):

            async def bounded() -> T:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    return await read()

            found = now_s, asyncio.create_task(bounded())
            self._kept[name] = found
            self._kept.move_to_end(name)
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        try:
            return await asyncio.shield(found[1])
        except TimeoutError as error:
            raise Unavailable("reading that took too long; look again in a moment") from error

    def forget(self) -> None:
        """Read everything anew: something was done."""
        self._kept.clear()


@dataclass(frozen=True, slots=True)
class Reading:
    """One for a tower."""

    registry: Registry
    journal: Journal
    escalations: Escalations
    upstream: Upstream
    heads: Heads
    parsing: Parsing
    ambient: Ambient
    briefly: Briefly
    thread: PageThread

    # ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def activity(self, own: str | None) -> Activity:
        """What the newest attempts come to; of one principal, where it is given."""

        async def read() -> Activity:
            return await (await self.journal.read_through()).activity(principal=own)

        return await self.briefly.get(("activity", own), read)

    async def fared(self, own: str | None, *, of_tables: bool) -> Mapping[str, Health]:
        """The same by principal, or by table: how each has fared."""

        async def read() -> Mapping[str, Health]:
            groups = (await self.activity(own)).groups
            return await self.thread.run(lambda: health(groups, of_tables=of_tables))

        return await self.briefly.get(("fared", own, of_tables), read)

    async def attempts(
        self, principal: Principal, wanted: Search, *, limit: int, before: int | None = None
    ) -> NumberedPage:
        """A page of the log. Searches take turns: each reads tens of thousands of rows."""

        async def read() -> NumberedPage:
            ledger = await self.journal.read_through()
            try:
                async with self.parsing.searches.turn(principal.name):
                    return await ledger.search_numbered(wanted, limit=limit, before=before)
            except CommitConflict as error:
                raise Unavailable(error.message) from error

        return await self.briefly.get(("attempts", wanted, limit, before), read)

    async def stream(self, table: str, own: str | None, limit: int) -> NumberedPage:
        """The newest attempts at a table."""

        async def read() -> NumberedPage:
            ledger = await self.journal.read_through()
            wanted = Search(table=table, principal=own)
            return await ledger.search_numbered(wanted, limit=limit, scanned_max=LIVE_SCANNED_MAX)

        return await self.briefly.get(("stream", table, own, limit), read)

    async def attempt(self, number: int) -> Attempt | None:
        """One attempt by its number."""
        found = (await self.numbered([number])).get(number)
        if found is None:  # it may be on its way
            await self.journal.flush()
            found = (await self.numbered([number])).get(number)
        return found

    async def numbered(self, numbers: Sequence[int]) -> dict[int, Attempt]:
        """Attempts by their numbers, which they have once they are written."""
        return await self.journal.ledger.attempts_of(numbers) if numbers else {}

    # ── Principals, contracts, tickets ───────────────────────────────────────────────────────────────────────────

    async def principals(self) -> list[PrincipalRecord]:
        name = ("principals", await self._number_of_changes())
        return await self.briefly.get(name, self.registry.principals, UNCHANGED_KEPT_S)

    async def contracts(self) -> list[ContractVersion]:
        """The newest version of every contract, by name; revoked ones have no text."""
        name = ("contracts", await self._number_of_changes())
        return await self.briefly.get(name, self.registry.contracts, UNCHANGED_KEPT_S)

    async def _number_of_changes(self) -> int:
        return await self.briefly.get("changes", self.registry.number_of_changes)

    async def in_force(self, *mentioned: str) -> list[Contract]:
        """The contracts in force whose text has one of these words. Others cannot be meant.

        A contract that is new takes milliseconds to read, and there may be hundreds.
        """
        changes = await self._number_of_changes()  # first: what is read after it is never older
        versions = await self.contracts()

        async def read() -> list[Contract]:
            return await self.thread.run(
                lambda: [parsed(name, text) for name, text in _mentioning(versions, mentioned).items()]
            )

        return await self.briefly.get(("in force", mentioned, changes), read, UNCHANGED_KEPT_S)

    async def tickets(self, kind: Kind, own: str | None, *, open_: bool | None = True) -> list[Ticket]:
        async def read() -> list[Ticket]:
            return await self.escalations.list(kind, principal=own, open_=open_, limit=TICKETS_MAX)

        return await self.briefly.get(("tickets", kind, own, open_), read)

    # ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def tables(self, principal: Principal) -> list[Identifier]:
        """The names of the tables that a principal may see, sorted; the first `TABLES_MAX` of them."""

        async def read() -> list[Identifier]:
            async with self.parsing.listing(principal.name):
                return await self.upstream.all_tables(TABLES_MAX)

        try:
            names = await self.briefly.get("tables", read, SLOW_KEPT_S)
        except CommitConflict as error:
            raise Unavailable(error.message) from error
        return [name for name in dict.fromkeys(names) if permissions.visible(principal, name)]

    async def owners(self, principal: Principal, table: Identifier) -> Owners | None:
        """Who can tell whose the partitions of a table are; None: it cannot be read now.

        An agent hears of its own contract alone.
        """
        everybody = principal.sees_all

        async def read() -> Owners:
            head = await self.heads.load(table)
            texts: Mapping[str, str | Contract] = {principal.contract.name: principal.contract}
            if everybody:
                texts = _mentioning(await self.contracts(), (table.name, "*"))
            return Owners(table, head.metadata, texts, self.ambient.now_ms(), everybody=everybody)

        try:
            return await self.briefly.get(
                ("owners", str(table), None if everybody else principal.name), read, SLOW_KEPT_S
            )
        except IcetowerError:
            return None

    def owned(self, owners: Owners | None, wanted: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
        """By the names of partitions, the contracts that own them, as `Owners.of`; for the page's thread.

        Args:
            wanted: names of partitions, each with the contracts of those that wrote to it.
        """
        if owners is None:
            return {}
        until_s = self.ambient.monotonic_s() + JUDGED_S
        return owners.of(wanted, lambda: self.ambient.monotonic_s() < until_s)

    async def require_table(self, principal: Principal, name: str) -> Identifier:
        """A table that a principal may see. Raises `NoSuchTable`, whether it is hidden or missing."""
        table = Identifier.parse(name)
        if not permissions.visible(principal, table):
            raise NoSuchTable(f"there is no table {table} that {principal.name} may see")
        return table


def _mentioning(versions: Sequence[ContractVersion], words: Sequence[str]) -> dict[str, str]:
    """Of contracts in force the texts that have one of these words, by name."""
    asked = (*words, ESCAPE)
    return {
        version.name: version.text
        for version in versions
        if version.text is not None and any(word in version.text for word in asked)
    }

"""What the page reads: bounded, indexed, and shared by all who look at the same within a moment."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from icetower.admission import permissions
from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.contracts.model import FILE_OPERATIONS, Contract, Role
from icetower.contracts.owning import Ownership
from icetower.contracts.regions import Values
from icetower.contracts.terms import Layout
from icetower.contracts.values import Membership, NotUnderstood, compile_extent
from icetower.errors import CommitConflict, IcetowerError, NoSuchTable, Unavailable
from icetower.escalations.escalations import Escalations
from icetower.escalations.tickets import Kind, Ticket
from icetower.files.parsing import Parsing
from icetower.iceberg.partitions import PartitionSpec, known_specs, partition_name
from icetower.ledger.activity import Activity
from icetower.ledger.attempts import Attempt, NumberedPage, Search
from icetower.protocol.names import Identifier, Namespace
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
KEPT_MAX = 256
TICKETS_MAX = 200
NAMESPACES_MAX = 500
TABLES_MAX = 10_000
JUDGED_MAX = 20_000
"""Pairs of a contract and a partition that one look judges."""
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

    # ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def activity(self, own: str | None) -> Activity:
        """What the newest attempts come to; of one principal, where it is given."""

        async def read() -> Activity:
            return await (await self.journal.read_through()).activity(principal=own)

        return await self.briefly.get(("activity", own), read)

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

    async def numbered(self, numbers: Sequence[int]) -> dict[int, Attempt]:
        """Attempts by their numbers."""
        return await (await self.journal.read_through()).attempts_of(numbers) if numbers else {}

    # ── Principals, contracts, tickets ───────────────────────────────────────────────────────────────────────────

    async def principals(self) -> list[PrincipalRecord]:
        return await self.briefly.get("principals", self.registry.principals)

    async def contracts(self) -> list[ContractVersion]:
        """The newest version of every contract, by name; revoked ones have no text."""
        return await self.briefly.get("contracts", self.registry.contracts)

    async def in_force(self, *mentioned: str) -> list[Contract]:
        """The contracts in force whose text has one of these words. Others cannot be meant.

        A contract that is new takes milliseconds to read, and there may be hundreds.
        """
        words, found = (*mentioned, ESCAPE), list[Contract]()
        for version in await self.contracts():
            if version.text is not None and any(word in version.text for word in words):
                found.append(parsed(version.name, version.text))
                await self.ambient.sleep(0)
        return found

    async def tickets(self, kind: Kind, own: str | None, *, open_: bool | None = True) -> list[Ticket]:
        async def read() -> list[Ticket]:
            return await self.escalations.list(kind, principal=own, open_=open_, limit=TICKETS_MAX)

        return await self.briefly.get(("tickets", kind, own, open_), read)

    # ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def tables(self, principal: Principal) -> list[Identifier]:
        """The names of the tables that a principal may see, sorted; the first `TABLES_MAX` of them."""

        async def read() -> list[Identifier]:
            found: list[Identifier] = []
            async with self.parsing.listing(principal.name):
                waiting = deque[Namespace](await self.upstream.list_namespaces())
                for _ in range(NAMESPACES_MAX):
                    if not waiting or len(found) >= TABLES_MAX:
                        break
                    namespace = waiting.popleft()
                    found += await self.upstream.list_tables(namespace)
                    waiting += await self.upstream.list_namespaces(namespace)
            return sorted(found[:TABLES_MAX])

        try:
            names = await self.briefly.get("tables", read, SLOW_KEPT_S)
        except CommitConflict as error:
            raise Unavailable(error.message) from error
        return [name for name in dict.fromkeys(names) if permissions.visible(principal, name)]

    async def owners(self, principal: Principal, table: Identifier, partitions: Sequence[str]) -> dict[str, str]:
        """By the names of partitions, the contracts that own them; "" where none does. What is unknown is left out.

        An agent hears of its own contract alone.
        """
        try:
            head = await self.heads.load(table)
        except IcetowerError:
            return {}
        specs, layout, now_ms = known_specs(head.metadata), Layout.of(head.metadata), self.ambient.now_ms()
        contracts = await self.in_force(table.name, "*") if principal.sees_all else [principal.contract]
        owning = [
            (contract.name, Ownership(rules, layout, now_ms))
            for contract in sorted(contracts, key=lambda each: each.role is not Role.AGENT)
            if contract.role is not Role.MAINTENANCE
            and (
                rules := [
                    rule
                    for rule in contract.rules_for(table)
                    if not rule.whole and any(rule.grants(operation) for operation in FILE_OPERATIONS)
                ]
            )
        ]
        found: dict[str, str] = {}
        for name in partitions[: max(1, JUDGED_MAX // max(1, len(owning)))]:
            place = place_of(name, list(specs.values()), now_ms)
            if place is None:
                continue
            await self.ambient.sleep(0)
            owner = next((who for who, owned in owning if owned.of(*place) is Membership.INSIDE), "")
            if owner or principal.sees_all:
                found[name] = owner
        return found

    async def require_table(self, principal: Principal, name: str) -> Identifier:
        """A table that a principal may see. Raises `NoSuchTable`, whether it is hidden or missing."""
        table = Identifier.parse(name)
        if not permissions.visible(principal, table):
            raise NoSuchTable(f"there is no table {table} that {principal.name} may see")
        return table


def place_of(name: str, specs: Sequence[PartitionSpec], now_ms: int) -> tuple[PartitionSpec, tuple[Any, ...]] | None:
    """A partition by its name, as the log has it; None where the name could be of another one, too."""
    for spec in specs:
        if not spec.fields:
            continue
        texts = _values_of(name, [field.name for field in spec.fields])
        if texts is None:
            continue
        try:
            found = [
                compile_extent(field, Values((None if text == "null" else text,)), now_ms).values
                for field, text in zip(spec.fields, texts, strict=True)
            ]
            partition = tuple(next(iter(values or ())) for values in found)
            if partition_name(spec, partition) == name:
                return spec, partition
        except (NotUnderstood, StopIteration, ValueError, TypeError, OverflowError, AttributeError):
            continue
    return None


def _values_of(name: str, fields: Sequence[str]) -> list[str] | None:
    """The texts after each `field=`; None where one of these could stand in a value as well."""
    marks = [f"{fields[0]}=", *(f"/{field}=" for field in fields[1:])]
    if not name.startswith(marks[0]) or any(name.count(mark) != 1 for mark in marks[1:]):
        return None
    texts, rest = [], name[len(marks[0]) :]
    for mark in marks[1:]:
        value, found, rest = rest.partition(mark)
        if not found:
            return None
        texts.append(value)
    return [*texts, rest]

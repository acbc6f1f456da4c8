"""Slots handed out as intents: the next one of a contract, and who holds which."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission import permissions
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.contracts.calendars import Calendars, Row, rows
from icetower.contracts.deliveries import Slot
from icetower.contracts.model import Operation
from icetower.contracts.regions import parse_pattern
from icetower.contracts.terms import Layout
from icetower.errors import BadRequest
from icetower.iceberg.partitions import spec_of
from icetower.intents.book import Book
from icetower.intents.fencing import fence_of
from icetower.intents.model import Intent, State
from icetower.intents.slots import Later, Taker, had_ms, take, waiting
from icetower.intents.store import Store
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.service.in_force import InForce
from icetower.service.intents import Again, Intents, Seen, seen_in

HAD_KEPT = 64
"""Of so many slots it is kept who has had how much time before them."""


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A contract's slot that goes on or comes next, and the intents by which it is held."""

    row: Row
    held: Sequence[Intent]


class Slots:
    """One a tower."""

    def __init__(self, store: Store, intents: Intents, heads: Heads, in_force: InForce, ambient: Ambient) -> None:
        self._store = store
        self._intents = intents
        self._heads = heads
        self._in_force = in_force
        self._ambient = ambient
        self._had: OrderedDict[tuple[str, int, int], tuple[object, Mapping[str, int]]] = OrderedDict()

    async def take(self, principal: Principal, taker: Taker, shadow: ShadowRecorder, wait_s: float) -> Seen:
        """Hand out the next slot of a table, waiting for it.

        Raises:
            BadRequest: the contract has no slots that come round there (``slot.none``).
            Conflict: there was none to take for as long as was waited (``slot.waiting``).
            ContractViolation: the contract does not let the principal read the table.
            IcetowerError: as of `intents.slots.take`.
        """
        shadow.allow(principal, permissions.require, Operation.READ, taker.table)

        async def attempt() -> tuple[Seen | Later, Again | None]:
            found, uuid, mark = await self._take(principal, taker)
            if isinstance(found, Seen):
                return found, None
            in_s = (found.from_ms - self._ambient.now_ms()) / 1000
            return found, Again(in_s, lambda: self._intents.book.mark(uuid) is not mark)

        if wait_s > 0:
            found = await self._intents.repeated(principal, wait_s, attempt)
        else:
            found, _, _ = await self._take(principal, taker)
        if isinstance(found, Later):
            raise waiting(found, taker.table)
        return found

    async def give_back(self, principal: Principal, seen: Seen) -> None:
        """Let go of a slot that was taken for somebody who may not have it any more."""
        await self._intents.release(principal, seen.intent.id)

    async def _take(self, principal: Principal, taker: Taker) -> tuple[Seen | Later, str, object]:
        """What a try comes to, the table's uuid, and the mark of the intents on it that it has seen."""
        metadata = (await self._heads.load(taker.table)).metadata
        uuid = str(metadata["table-uuid"])
        calendars = await self._in_force.calendars(taker.table)

        def ask(book: Book, now_ms: int) -> tuple[Seen | Later, str, object]:
            book.settle(now_ms)
            book.overtake(uuid, fence_of(metadata), now_ms)
            found = self._taken(book, principal, taker, calendars, metadata, now_ms)
            return (found if isinstance(found, Later) else seen_in(book, found)), uuid, book.mark(uuid)

        return await self._store.ask(ask)

    def _taken(
        self, book: Book, principal: Principal, taker: Taker, calendars: Calendars, metadata: Any, now_ms: int
    ) -> Intent | Later:
        contract, uuid = principal.contract, str(metadata["table-uuid"])

        def lately(before_ms: int, length_ms: int) -> Mapping[str, int]:
            return self._had_before(book, uuid, before_ms, length_ms)

        found = calendars.openings(contract, now_ms, lately)
        if not found:
            raise BadRequest(
                f"contract {contract.name} has no slots that come round on {taker.table}; give it some, such as "
                "{now: {every: 2m, from: 0s, to: 1m}}, or write at any time that it lets",
                rule="slot.none",
            )
        return take(book, now_ms, taker, found, metadata)

    def _had_before(self, book: Book, uuid: str, before_ms: int, length_ms: int) -> Mapping[str, int]:
        """As of `intents.slots.had_ms`, counted anew once the table's intents have changed."""
        key, mark = (uuid, before_ms, length_ms), book.mark(uuid)
        known = self._had.pop(key, None)
        if known is None or known[0] is not mark:
            known = mark, had_ms([*book.ended(), *book.live()], uuid, before_ms, length_ms)
        self._had[key] = known
        while len(self._had) > HAD_KEPT:
            self._had.popitem(last=False)
        return known[1]

    async def held(self, principal: Principal, uuid: str) -> Slot | None:
        """The slot of a table that a principal holds, the first of them."""

        def ask(book: Book, now_ms: int) -> Slot | None:
            intents = [each for each in book.live() if each.principal == principal.name and each.claims_on(uuid)]
            slots = (each.slot for each in intents if each.slot is not None and each.holds(now_ms))
            return min(slots, key=lambda slot: slot.starts_ms, default=None)

        if self._intents.book.is_free(uuid) and self._store.is_current:
            return None
        return await self._store.ask(ask)

    async def column(self, table: Identifier, slot: Slot) -> str | None:
        """The column whose values lie in a slot; None: any rows may be written in that time."""
        return column_of(slot, (await self._heads.load(table)).metadata)

    async def rows(self, principal: Principal, table: Identifier | None = None) -> list[SlotRow]:
        """Whose turn it is where and whose comes next, and who holds what of it.

        Who sees all sees all contracts; others see those that share an entry for their tables with them.
        """
        contracts = await self._in_force.contracts()
        now_ms = self._ambient.now_ms()
        intents = [each for each in await self._intents.live() if each.slot is not None and each.state is State.HELD]
        mine = {str(rule.pattern) for rule in principal.contract.tables}
        found: list[SlotRow] = []
        for row in rows(contracts, now_ms):
            pattern = parse_pattern(row.tables)
            if pattern is None or not (principal.sees_all or row.tables in mine):
                continue
            if table is not None and not pattern.matches(table):
                continue
            held = [
                each for each in intents if _is_of(each, row, pattern.matches(Identifier.parse(each.claims[0].table)))
            ]
            found.append(SlotRow(row, held))
        return found


def column_of(slot: Slot, metadata: Any) -> str | None:
    """The column whose values lie in a slot; None: any rows may be written in that time."""
    field = (
        None
        if slot.term == "now"
        else Layout.of(metadata).field(slot.term, spec_of(metadata, metadata["default-spec-id"]))
    )
    return None if field is None else field.source_name


def _is_of(intent: Intent, row: Row, of_its_tables: bool) -> bool:
    slot = intent.slot
    return of_its_tables and slot is not None and (slot.term, slot.starts_ms) == (row.slot.term, row.slot.starts_ms)

"""Intents: declared before the work, renewed during it, released after it; and what their holders hear meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from icetower.admission import permissions
from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.commit.queue import Committed
from icetower.contracts.check import appends_blindly, requires_intents
from icetower.contracts.model import REQUIRED, Operation, Rule
from icetower.contracts.regions import Region
from icetower.errors import BadRequest, ContractViolation, IcetowerError, TooManyRequests
from icetower.intents.book import Book, fenced, held_text, refused_for
from icetower.intents.fencing import (
    Fencing,
    check_intended,
    fence_of,
    finer,
    hinders,
    is_blind,
    names_ended,
    not_taken,
    touched,
)
from icetower.intents.model import Claim, End, Intent, State, Wanted
from icetower.intents.regions import EVERYTHING, Boxes, boxes_of_filter, boxes_of_regions, boxes_of_rules, inside
from icetower.intents.store import Store
from icetower.ledger.shadow import Shadowed
from icetower.observe.held_rows import HeldRows
from icetower.protocol.marks import INTENT, INTENTS
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal
from icetower.service.attempts import partitions_of

M = TypeVar("M", Admitted, AdmittedAppend)
T = TypeVar("T")

POLL_S = 0.25
"""So often a tower on which somebody waits looks what other towers have changed."""
NAP_S_MAX = 1.0
"""After so long an attempt is made again in any case: somebody may have set a clock, or changed a contract."""
WAITING_MAX = 200
"""Requests of one principal that wait for intents at once."""
SLOTS_WAITING_MAX = 10
"""Those that wait for slots: it has one of a table at a time, and each looks through the calendar again and again."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Rows of one table that somebody wants to hold.

    Attributes:
        regions, filter_: one of them, or none: all that the contract owns.
        said: the same as JSON.
        operations: what is to be done to them.
    """

    table: Identifier
    operations: frozenset[Operation]
    regions: Sequence[Region] | None = None
    filter_: Any = None
    said: str = "all"
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """An intent as its holder sees it.

    Attributes:
        warnings: what has happened to its rows, as JSON.
        in_the_way: whom it waits for.
        broken: it was another's, and has ended by this very call.
    """

    intent: Intent
    warnings: Sequence[str] = ()
    in_the_way: Sequence[Intent] = ()
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """When an attempt is worth another try.

    Attributes:
        in_s: after so many seconds.
        moved: or once this says that what it depends on has changed; asked whenever the book has.
    """

    in_s: float
    moved: Callable[[], bool]


Attempt = Callable[[], Awaitable[tuple[T, Again | None]]]
"""Returns what it has come to; with None it is done."""


class Intents:
    """One a tower.

    Args:
        note: keeps what a contract in shadow mode would have refused.

    Attributes:
        warned: how many warnings holders were given.
        ignored: commits that landed in rows of others, as `intents: required` would not have let them.
    """

    def __init__(
        self,
        store: Store,
        fencing: Fencing,
        heads: Heads,
        ambient: Ambient,
        note: Callable[[Shadowed], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._note = note
        self._heads = heads
        self._ambient = ambient
        self._fencing = fencing
        self._waiting: dict[tuple[str, bool], int] = {}
        self._watching: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self.warned = 0
        self.ignored = HeldRows(ambient)

    @property
    def book(self) -> Book:
        """As it was known last."""
        return self._store.book

    @property
    def closing(self) -> bool:
        """Whether the tower stops: nobody is to wait any more."""
        return self._closing.is_set()

    # -- of holders -----------------------------------------------------------------------------------------------

    async def declare(
        self,
        principal: Principal,
        wishes: Sequence[Wish],
        shadow: ShadowRecorder,
        *,
        id_: str | None = None,
        ttl_ms: int,
        queue: bool = False,
    ) -> Seen:
        """Grant an intent, or let it wait.

        Args:
            id_: chosen by the caller; the same intent under the same id is there once.
            queue: wait where others hold the rows; else it is refused.

        Raises:
            Conflict: others hold some of the rows (``intent.held``).
            ContractViolation: the contract does not let the principal do that to these rows.
            BadRequest: the rows cannot be understood, or `exclusive` is asked for where nothing heeds it.
            TooManyRequests: the principal has as many intents as it may have.
            Forbidden: the intent of this id has ended.
        """
        claims: list[Claim] = []
        fences: dict[str, int] = {}
        for wish in wishes:
            claim, fence = await self._claim(principal, wish, shadow)
            claims.append(claim)
            fences[claim.uuid] = fence
        wanted = Wanted(
            id_ or self._ambient.uuid7(), principal.name, principal.contract.name, tuple(claims), ttl_ms, queue
        )

        def ask(book: Book, now_ms: int) -> Seen:
            book.settle(now_ms)
            for uuid, fence in fences.items():
                book.overtake(uuid, fence, now_ms)
            return seen_in(book, book.declare(wanted, now_ms))

        found = await self._store.ask(ask)
        if not found.intent.live:  # declared under this id before, and over
            raise fenced(found.intent)
        return found

    async def renew(self, principal: Principal, id_: str, ttl_ms: int | None = None) -> Seen:
        """Let an intent live on. Raises `Forbidden` (``intent.fenced``) where it has ended, and `NotFound`."""

        def ask(book: Book, now_ms: int) -> Seen:
            book.settle(now_ms)
            return seen_in(book, book.renew(id_, principal.name, now_ms, ttl_ms))

        return await self._store.ask(ask)

    async def release(self, principal: Principal, id_: str) -> Seen:
        """End an intent; an administrator breaks anybody's. One that has ended stays as it is. Raises `NotFound`."""

        def ask(book: Book, now_ms: int) -> Seen:
            book.settle(now_ms)
            intent = book.find(id_)
            others = intent is not None and intent.principal != principal.name
            if not (others and principal.administrator):
                book.require(id_, principal.name)
            broken = others and intent is not None and intent.live
            ended = book.end(id_, End.BROKEN if others else End.RELEASED, now_ms, principal.name)
            return replace(seen_in(book, ended), broken=broken)

        return await self._store.ask(ask)

    async def find(self, principal: Principal, id_: str) -> Seen:
        """One intent: one's own, or for who sees all anybody's. Raises `NotFound`."""

        def ask(book: Book, now_ms: int) -> Seen:
            book.settle(now_ms)
            intent = book.find(id_) if principal.sees_all else None
            return seen_in(book, intent or book.require(id_, principal.name))

        return await self._store.ask(ask)

    async def live(self) -> Sequence[Intent]:
        """All that are held or wait, in the order in which they were declared."""
        return await self._store.ask(lambda book, now_ms: [each for each in book.live() if now_ms < each.expires_ms])

    async def lately(self, since_ms: int, wanted: Callable[[Intent], bool], limit: int) -> tuple[list[Seen], int]:
        """What is held, what waits, and what has ended since a time, of what is wanted; and how many more there are.

        Those that wait come first, with whom they wait for, then those that are held, then what has ended last.
        """

        def ask(book: Book, now_ms: int) -> tuple[list[Seen], int]:
            live = [each for each in book.live() if now_ms < each.expires_ms and wanted(each)]
            ended = [each for each in book.ended() if (each.ended_ms or 0) >= since_ms and wanted(each)]
            ended.sort(key=lambda each: -(each.ended_ms or 0))
            live.sort(key=lambda each: (each.state is not State.QUEUED, each.number))
            found = [*live, *ended]
            return [seen_in(book, each) for each in found[:limit]], max(0, len(found) - limit)

        return await self._store.ask(ask)

    async def wait(
        self, principal: Principal, id_: str, wait_s: float, *, seen: int = 0, known: State | None = None
    ) -> Seen:
        """One's intent, as soon as it is something else than the caller knows, or has more warnings than were `seen`.

        It comes after `wait_s` at the latest. While an intent that is in line is asked for, it lives.

        Args:
            known: its state; None: as it is found first.

        Raises:
            NotFound: the principal has none of that id.
            TooManyRequests: too many requests of the principal wait.
        """
        began_s = self._ambient.monotonic_s()
        async with self._place(principal):
            while True:
                moved = self._store.moved()
                found = await self._store.ask(lambda book, now_ms: _kept_alive(book, id_, principal.name, now_ms))
                intent = found.intent
                known = known or intent.state
                left_s = wait_s - (self._ambient.monotonic_s() - began_s)
                over = left_s <= 0 or intent.state is not known or not intent.live or self._closing.is_set()
                if over or len(found.warnings) > seen:
                    return found
                nap_s = min(left_s, intent.ttl_ms / 3000) if intent.state is State.QUEUED else left_s
                await self._either(moved, nap_s)

    async def repeated(self, principal: Principal, wait_s: float, attempt: Attempt[T]) -> T:
        """What an attempt comes to, which is made again whenever something may have changed, and at the end.

        Raises:
            TooManyRequests: too many requests of the principal wait.
        """
        began_s = self._ambient.monotonic_s()
        async with self._place(principal, slots=True):
            while True:
                moved = self._store.moved()
                found, again = await attempt()
                now_s = self._ambient.monotonic_s()
                left_s = wait_s - (now_s - began_s)
                if again is None or left_s <= 0 or self._closing.is_set():
                    return found
                nap_s = max(0.005, min(left_s, again.in_s, NAP_S_MAX))
                await self._either(moved, nap_s)
                while moved.is_set() and not again.moved() and not self._closing.is_set():
                    moved, nap_left_s = self._store.moved(), now_s + nap_s - self._ambient.monotonic_s()
                    if nap_left_s <= 0:
                        break
                    await self._either(moved, nap_left_s)

    async def withdraw(self, principal: Principal, seen: Seen) -> IcetowerError | None:
        """End an intent that has waited for as long as it was to, and say who stood in the way; None: it is held."""
        intent = seen.intent

        def ask(book: Book, now_ms: int) -> IcetowerError | None:
            book.settle(now_ms)
            now = book.require(intent.id, principal.name)
            if now.state is State.HELD:
                return None
            in_the_way = book.waits_for(now.id)
            book.end(now.id, End.RELEASED, now_ms, principal.name)
            return refused_for(in_the_way, now.claims) if in_the_way else fenced(now)

        return await self._store.ask(ask)

    # -- of commits -----------------------------------------------------------------------------------------------

    async def admit(self, member: M, metadata: Any) -> M:
        """As `Fencing.admit`."""
        return await self._fencing.admit(member, metadata)

    @asynccontextmanager
    async def judging(self, principal: Principal, updates: Updates) -> AsyncGenerator[None]:
        """Within, a commit is held against its contract. Waiting for a slot is no way out for one that names an intent
        which has ended: it is refused in the next slot, too.
        """
        try:
            yield
        except ContractViolation as refused:
            summaries = [each.summary for each in updates.snapshots]
            if refused.rule == "contract.slot" and any(INTENT in each for each in summaries):
                with suppress(IcetowerError):  # the control database cannot be asked
                    if await self._store.ask(lambda book, now_ms: names_ended(book, now_ms, principal.name, summaries)):
                        refused.next_step = "fix_request"
            raise

    async def would(
        self,
        principal: Principal,
        table: Identifier,
        metadata: Any,
        places: Sequence[tuple[int, tuple[Any, ...]]],
        operations: frozenset[Operation],
        *,
        slot_required: bool = False,
    ) -> None:
        """Raises what would refuse a commit of these operations to these partitions now."""
        contract, names = principal.contract, frozenset(each.value for each in operations)
        required, blind = requires_intents(contract, table), appends_blindly(contract, table)
        await self._store.ask(
            lambda book, now_ms: check_intended(
                book,
                now_ms,
                principal.name,
                table,
                metadata,
                places,
                names,
                required=required,
                blind=blind,
                slot_required=slot_required,
            )
        )

    def landed(self, member: Admitted | AdmittedAppend, done: Committed) -> None:
        """A commit has landed: whoever holds rows that it touches hears of it."""
        metadata = done.head.metadata
        uuid = str(metadata.get("table-uuid"))
        if done.outcome == "replayed" or (self.book.is_free(uuid) and not member.slot_shadowed):
            return
        boxes, operations = touched(member, metadata)
        if not operations:
            return
        own = None if member.under is None else member.under.id
        places = member.places if isinstance(member, AdmittedAppend) else _places(member)
        partitions = partitions_of(done.head, places)
        under = None if own is None else self.book.find(own)
        if member.slot_shadowed and (under is None or under.slot is None):
            self._shadowed(member, "slot.taken", not_taken(member.identifier, ()).message, operations, partitions)
        if self.book.is_free(uuid):
            return
        warning = {
            "table": str(member.identifier),
            "snapshot-id": done.snapshots[-1] if done.snapshots else None,
            "principal": member.principal,
            "operations": sorted(operations),
            "partitions": list(partitions),
        }

        def ask(book: Book, now_ms: int) -> tuple[int, list[Intent]]:
            text = json.dumps({**warning, "at-ms": now_ms})
            near = [each for each in book.near(uuid, boxes) if each.id != own and each.holds(now_ms)]
            exactly = finer(member, metadata, boxes, [claim for each in near for claim in each.claims_on(uuid)])
            hit = [
                each
                for each in near
                if any(hinders(claim, exactly, operations, blind=False) for claim in each.claims_on(uuid))
            ]
            for intent in hit:
                book.warn(intent.id, text)
            blind = bool(hit) and is_blind(member, metadata.get("properties") or {})
            refusing = [
                each
                for each in hit
                if any(hinders(claim, exactly, operations, blind=blind) for claim in each.claims_on(uuid))
            ]
            return len(hit), refusing

        async def tell() -> None:
            try:
                warned, refusing = await self._store.ask(ask)
            except IcetowerError:
                return  # it has landed all the same, and the holder's commit is checked against it
            self.warned += warned
            if refusing:
                self._ignored(member, refusing, operations, partitions)

        self._later(tell())

    def _ignored(
        self,
        member: Admitted | AdmittedAppend,
        holding: Sequence[Intent],
        operations: frozenset[str],
        partitions: Sequence[str],
    ) -> None:
        """A commit has landed that `intents: required` would have refused."""
        self.ignored.ignored(str(member.identifier), member.principal, [each.principal for each in holding])
        if isinstance(member, Admitted) and member.intents_shadowed:
            message = f"rows of {member.identifier} that this commit touches are held: {held_text(holding)}"
            self._shadowed(member, "intent.held", message, operations, partitions)

    def _shadowed(
        self,
        member: Admitted | AdmittedAppend,
        rule: str,
        message: str,
        operations: frozenset[str],
        partitions: Sequence[str],
    ) -> None:
        """Note a refusal that did not happen, since the contract is in shadow mode."""
        self._note(
            Shadowed(
                principal=member.principal,
                contract=member.contract,
                contract_version=member.contract_version,
                about=str(member.identifier),
                operation=max(operations),
                rule=rule,
                message=message,
                partitions=tuple(partitions),
                at_ms=self._ambient.now_ms(),
            )
        )

    # -- the rest -------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """The tower closes: whoever waits is answered as things stand."""
        self._closing.set()

    async def close(self) -> None:
        """Write what is to be written."""
        self.let_go()
        while self._chores:
            await asyncio.wait(self._chores)
        if self._watching is not None:
            self._watching.cancel()
        await self._store.close()

    async def _claim(self, principal: Principal, wish: Wish, shadow: ShadowRecorder) -> tuple[Claim, int]:
        """The claim on one table, and the fence that the table knows."""
        shadow.allow(principal, permissions.require, Operation.READ, wish.table)
        for operation in sorted(wish.operations):
            shadow.allow(principal, permissions.require, operation, wish.table)
        head = await self._heads.load(wish.table)
        metadata, now_ms = head.metadata, self._ambient.now_ms()
        properties = metadata.get("properties") or {}
        if wish.exclusive and properties.get(INTENTS) != REQUIRED:
            raise BadRequest(
                f"exclusive asks that nobody's commits come into the rows, and {wish.table} lets them in; run "
                f"`icetower tables set {wish.table} --intents {REQUIRED}` ({INTENTS}={REQUIRED}), or leave it out",
                rule="intent.exclusive",
            )
        owned = EVERYTHING if _is_unbound(principal) else boxes_of_rules(_rules(principal, wish), metadata, now_ms)
        boxes = _boxes(wish, metadata, now_ms, owned)
        if not inside(boxes, owned):
            raise ContractViolation(
                f"{principal.name} may not hold these rows of {wish.table}: contract {principal.contract.name} owns "
                f"only some of them for {' and '.join(sorted(wish.operations))}. Declare what it owns, or leave "
                "partitions and filter out",
                rule="contract.partitions",
                next_step="request_partition",
            )
        base = (metadata.get("refs") or {}).get("main", {}).get("snapshot-id")
        operations = frozenset(each.value for each in wish.operations)
        claim = Claim(str(wish.table), str(metadata["table-uuid"]), boxes, operations, wish.said, wish.exclusive, base)
        return claim, fence_of(metadata)

    @asynccontextmanager
    async def _place(self, principal: Principal, *, slots: bool = False) -> AsyncGenerator[None]:
        """A place among those who wait, for intents or for slots."""
        name, most = (principal.name, slots), SLOTS_WAITING_MAX if slots else WAITING_MAX
        if self._waiting.get(name, 0) >= most:
            raise TooManyRequests(
                f"{most} requests of {principal.name} wait for {'slots' if slots else 'intents'} already; ask without "
                "wait_s",
                rule="intent.waiting",
                next_step="retry",
            )
        self._waiting[name] = self._waiting.get(name, 0) + 1
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]

    async def _watch(self) -> None:
        """While somebody waits: end what is not renewed, and hear of what other towers change."""
        while self._waiting:
            due_ms = self.book.due_ms()
            due_s = POLL_S if due_ms is None else (due_ms - self._ambient.now_ms()) / 1000
            await self._ambient.sleep(max(0.005, min(POLL_S, due_s)))
            try:
                await self._store.ask(lambda book, now_ms: book.settle(now_ms))
            except IcetowerError:
                continue  # whoever waits asks by itself, and hears it

    async def _either(self, moved: asyncio.Event, most_s: float) -> None:
        """Wait until the book is changed, the tower closes, or a time has passed."""
        waits = [
            asyncio.create_task(moved.wait()),
            asyncio.create_task(self._closing.wait()),
            asyncio.create_task(self._ambient.sleep(most_s)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


def seen_in(book: Book, intent: Intent) -> Seen:
    return Seen(intent, tuple(book.warnings(intent.id)), book.waits_for(intent.id))


def _kept_alive(book: Book, id_: str, principal: str, now_ms: int) -> Seen:
    """An intent; one that waits lives on, since somebody asks for it."""
    book.settle(now_ms)
    intent = book.require(id_, principal)
    if intent.state is State.QUEUED and now_ms > intent.renewed_ms + intent.ttl_ms // 4:
        intent = book.renew(id_, principal, now_ms)
    return seen_in(book, intent)


def _is_unbound(principal: Principal) -> bool:
    return principal.administrator or principal.contract.shadow


def _rules(principal: Principal, wish: Wish) -> list[Rule]:
    rules = principal.contract.rules_for(wish.table)
    return [rule for rule in rules if all(rule.grants(operation) for operation in wish.operations)]


def _boxes(wish: Wish, metadata: Any, now_ms: int, owned: Boxes) -> Boxes:
    """The rows that are wanted. Raises `BadRequest`."""
    if wish.regions is not None:
        return boxes_of_regions(wish.regions, metadata, now_ms)
    if wish.filter_ is None:
        return owned
    schema = next(each for each in metadata["schemas"] if each.get("schema-id", 0) == metadata["current-schema-id"])
    try:
        return boxes_of_filter(wish.filter_, schema)
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            f"the filter cannot be read ({error}); write Iceberg's expression JSON", rule="filter.json"
        ) from error


def _places(member: Admitted) -> list[tuple[int, tuple[Any, ...]]]:
    return [
        (each.spec_id, each.file.partition) for change in member.changes for each in (*change.added, *change.removed)
    ]

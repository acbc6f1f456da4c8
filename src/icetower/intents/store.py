"""The book of intents in the control database: for every tower on it, and over restarts.

The book is in memory, and each change of it has a number in the database. Whatever is asked of the book waits until all
that asks meanwhile can be asked in one transaction. It is computed in a draft, and written only where the database
still stands at the number that the book knows. Where another tower was faster, the draft is undone, what that one has
changed is read, and the same is computed again: two towers never grant what conflicts.

The transaction that writes intents also looks up the principals that declare them, renew them or are granted them. A
principal that is revoked by then gets nothing. A revocation ends the intents of its principals in its own transaction
(`end_revoked`): no tower grants or heeds them after it.

Nothing is answered before it is written. After an error of the database nobody knows what was written: the book is read
anew, as a whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import SQLAlchemyError

from icetower.ambient import Ambient
from icetower.contracts.deliveries import Slot
from icetower.database import Database
from icetower.errors import IcetowerError, Unavailable
from icetower.intents.book import ENDED_MAX, Book
from icetower.intents.model import REVOCATION, Claim, End, Intent, News, State
from icetower.intents.regions import boxes_of_text, boxes_text
from icetower.intents.schema import counters, intents, tables, warnings
from icetower.registry.queries import VALUES_MAX
from icetower.registry.sql import migrate, take_write_lock

NUMBER_OF_CHANGES: ColumnElement[int] = select(counters.c.number).scalar_subquery()
"""For whoever asks the control database something else, and may read it along."""

T = TypeVar("T")
LookUp = Callable[[Connection, Collection[str]], frozenset[str]]
"""Those of some principals that may not act any more."""
Ask = Callable[[Book, int], T]
"""Asks or changes the book at a moment; raises an `IcetowerError` before it has changed anything."""

TOGETHER_MAX = 256
"""So many are asked in one transaction."""
ROUNDS_MAX = 50
"""So often in a row another tower may be faster."""
PRUNED_EVERY = 500
"""Ended intents are removed once so many more than are kept have ended here."""


@dataclass(slots=True)
class _Waiting(Generic[T]):
    ask: Ask[T]
    answer: asyncio.Future[T]


class Store:
    """Open it once; its tables are made or brought up to date then.

    Args:
        read_lately: the highest number of changes that was read along with something else, most often a moment ago.
        revoked: asked, in the transaction that writes them, about the principals whose live intents are written.

    Attributes:
        book: as it was known last. It may have been changed since by another tower; `ask` reads that first.
    """

    def __init__(
        self,
        database: Database,
        ambient: Ambient,
        read_lately: Callable[[], int] = lambda: 1 << 62,
        revoked: LookUp = lambda _, __: frozenset(),
    ) -> None:
        self._database = database
        self._ambient = ambient
        self._read_lately = read_lately
        self._revoked = revoked
        self._waiting: list[_Waiting[Any]] = []
        self._working: asyncio.Task[None] | None = None
        self._moved: asyncio.Event | None = None
        self._ended_here = 0
        self._known = False
        self.book = Book()
        migrate(database, Path(__file__).parent / "migrations", version_table="intents_version")

    async def ask(self, ask: Ask[T]) -> T:
        """What `ask` returns, with all that it has changed written.

        Raises:
            IcetowerError: what `ask` raised.
            Unavailable: the database cannot be asked. What was to be changed may have been.
        """
        waiting = _Waiting(ask, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await asyncio.shield(waiting.answer)

    @property
    def is_current(self) -> bool:
        """Whether the book knows all changes up to the last number that was read along with something else.

        What is asked of it may then be asked at once (`now`). A draft that is not written yet shows in it.
        """
        return self._known and self.book.number >= self._read_lately()

    def now(self, ask: Ask[T]) -> T:
        """What `ask` returns, which changes nothing."""
        return ask(self.book, self._ambient.now_ms())

    def moved(self) -> asyncio.Event:
        """An event that is set when the book is changed next, here or by another tower that this one has heard of."""
        if self._moved is None:
            self._moved = asyncio.Event()
        return self._moved

    async def close(self) -> None:
        """Finish what waits."""
        while self._working is not None:
            await asyncio.wait([self._working])

    # -- rounds ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
                try:
                    await self._answer(group)
                except Exception as error:  # noqa: BLE001 - it is theirs who wait
                    for each in group:
                        _settle(each, _Raised(error))
                finally:
                    for each in group:
                        each.answer.cancel()  # only where this task itself was: nobody waits for ever
        finally:
            self._working = None

    async def _answer(self, group: Sequence[_Waiting[Any]]) -> None:
        barred: frozenset[str] = frozenset()
        for round_ in range(ROUNDS_MAX):
            book, now_ms = self.book, self._ambient.now_ms()
            book.begin()
            if barred:
                book.bar(barred, now_ms)
            answers = [_asked(each.ask, book, now_ms) for each in group]
            try:
                news = await self._exchange(book)
            except BaseException:
                self._forget()
                raise
            if news is None:
                changed = book.has_changed
                self._ended_here += sum(not intent.live for intent in book.changed)
                book.keep(book.number + 1)
                if changed:
                    self._tell()
                for each, answer in zip(group, answers, strict=True):
                    _settle(each, answer)
                await self._prune()
                return
            book.undo()
            if isinstance(news, frozenset):
                barred |= news
                continue
            if news.whole:
                book = self.book = Book()
            book.learn(news)
            self._known = True
            self._tell()
            if round_ > 2:  # two towers that lose to each other must not keep step
                await self._ambient.sleep(0.002 * round_ * self._ambient.uniform())
        raise Unavailable(
            f"{ROUNDS_MAX} times in a row another tower has changed intents at the same moment; try again",
            rule="intent.available",
        )

    async def _exchange(self, book: Book) -> News | frozenset[str] | None:
        """Write the draft.

        Nothing is written where the book does not know all changes, or has live intents of principals that are revoked:
        returns the changes, or the principals.
        """
        rows = _Rows.of(book) if book.has_changed else None
        known = book.number if self._known else -1
        acting = {intent.principal for intent in book.changed if intent.live}

        def work(connection: Connection) -> News | frozenset[str] | None:
            if rows is not None:
                take_write_lock(connection)
            at = connection.execute(select(counters)).one()
            if at.number != known:
                return _news(connection, at, known)
            if acting and (revoked := self._revoked(connection, acting)):
                return revoked
            if rows is not None:
                rows.write(connection, known + 1)
            return None

        try:
            return await self._database.run(work, write=rows is not None)
        except SQLAlchemyError as error:
            raise Unavailable(
                f"the intents cannot be asked for ({type(error).__name__}); nothing is let into rows that may be held, "
                "until they can be",
                rule="intent.available",
            ) from error

    def _forget(self) -> None:
        """Nobody knows what was written."""
        self.book, self._known = Book(), False

    def _tell(self) -> None:
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    async def _prune(self) -> None:
        """Now and then, remove what has ended long ago."""
        if self._ended_here < PRUNED_EVERY:
            return
        self._ended_here = 0
        kept = self.book.ended()
        if len(kept) < ENDED_MAX:
            return
        floor = kept[0].changed

        def work(connection: Connection) -> None:
            gone = (intents.c.state == State.ENDED.value) & (intents.c.changed < floor)
            connection.execute(delete(warnings).where(warnings.c.intent.in_(select(intents.c.id).where(gone))))
            connection.execute(delete(intents).where(gone))
            connection.execute(update(counters).values(pruned=floor))

        try:
            await self._database.run(work, write=True)
        except (SQLAlchemyError, IcetowerError):
            return  # the next time


def end_revoked(connection: Connection, principals: Sequence[str], now_ms: int) -> None:
    """End all intents of some principals, in the transaction that revokes them or their contract.

    It counts as a change of the book, which every tower reads before it grants or refuses anything. The next tower that
    settles its book grants the intents that waited for the ended ones (`Book.learn`).
    """
    number = connection.execute(select(counters.c.number)).scalar_one() + 1
    values = {
        "state": State.ENDED.value,
        "ended": End.BROKEN.value,
        "ended_ms": now_ms,
        "ended_by": REVOCATION,
        "changed": number,
    }
    count = 0
    for start in range(0, len(principals), VALUES_MAX):
        theirs = intents.c.principal.in_(principals[start : start + VALUES_MAX])
        live = intents.c.state != State.ENDED.value
        count += connection.execute(update(intents).where(live, theirs).values(values)).rowcount
    if count:
        connection.execute(update(counters).values(number=number))


@dataclass(frozen=True, slots=True)
class _Raised:
    """What was raised in place of an answer."""

    error: BaseException


def _asked(ask: Ask[T], book: Book, now_ms: int) -> T | _Raised:
    try:
        return ask(book, now_ms)
    except IcetowerError as error:
        return _Raised(error)


def _settle(waiting: _Waiting[Any], answer: Any) -> None:
    if waiting.answer.done():
        return
    if isinstance(answer, _Raised):
        waiting.answer.set_exception(answer.error)
        waiting.answer.exception()  # whoever has gone away reads it no more
    else:
        waiting.answer.set_result(answer)


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_LIVES = ("ttl_ms", "state", "renewed_ms", "fence", "granted_ms", "ended", "ended_ms", "ended_by", "changed")
"""What changes of an intent after it was declared."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a draft comes to in the database; built on the event loop, since the book must not change meanwhile."""

    new: Sequence[dict[str, Any]]
    old: Sequence[dict[str, Any]]
    granted: Sequence[dict[str, Any]]
    warned: Sequence[dict[str, Any]]
    fence: int
    order: int

    @classmethod
    def of(cls, book: Book) -> _Rows:
        changed = book.changed
        new = [
            _values(intent) | {"claims": _claims_text(intent)} for intent in changed if not book.was_there(intent.id)
        ]
        old = [_values(intent) for intent in changed if book.was_there(intent.id)]
        granted = [{"uuid": uuid, "granted": fence} for uuid, fence in book.changed_grants.items()]
        warned = [{"intent": id_, "warning": warning} for id_, warning in book.new_warnings]
        return cls(new, old, granted, warned, book.fence, book.order)

    def write(self, connection: Connection, number: int) -> None:
        if self.new:
            connection.execute(insert(intents), [{**row, "changed": number} for row in self.new])
        if self.old:
            changes = [{"b_id": row["id"], **{name: row[name] for name in _LIVES[:-1]}} for row in self.old]
            values = {name: bindparam(name) for name in _LIVES[:-1]} | {"changed": number}
            connection.execute(update(intents).where(intents.c.id == bindparam("b_id")).values(values), changes)
        for row in self.granted:
            into = upsert(tables).values(**row, changed=number)
            set_ = {"granted": row["granted"], "changed": number}
            connection.execute(into.on_conflict_do_update(index_elements=["uuid"], set_=set_))
        if self.warned:
            connection.execute(insert(warnings), [{**row, "changed": number} for row in self.warned])
        connection.execute(update(counters).values(number=number, fence=self.fence, ordered=self.order))


def _news(connection: Connection, at: Row[Any], known: int) -> News:
    """What was changed after the change `known`; all there is, where some of that has been removed since."""
    if known < at.pruned:
        known = -1
    found = connection.execute(select(intents).where(intents.c.changed > known).order_by(intents.c.changed))
    granted = connection.execute(select(tables).where(tables.c.changed > known))
    warned = connection.execute(select(warnings).where(warnings.c.changed > known).order_by(warnings.c.id))
    return News(
        known < 0,
        at.number,
        at.fence,
        at.ordered,
        [_intent(row) for row in found],
        {row.uuid: row.granted for row in granted},
        [(row.intent, row.warning) for row in warned],
    )


def _values(intent: Intent) -> dict[str, Any]:
    return {
        "id": intent.id,
        "number": intent.number,
        "principal": intent.principal,
        "contract": intent.contract,
        "ttl_ms": intent.ttl_ms,
        "state": intent.state.value,
        "declared_ms": intent.declared_ms,
        "renewed_ms": intent.renewed_ms,
        "fence": intent.fence,
        "granted_ms": intent.granted_ms,
        "ended": None if intent.ended is None else intent.ended.value,
        "ended_ms": intent.ended_ms,
        "ended_by": intent.ended_by,
    }


def _intent(row: Row[Any]) -> Intent:
    return Intent(
        row.id,
        row.number,
        row.principal,
        row.contract,
        tuple(_claim(said) for said in json.loads(row.claims)),
        row.ttl_ms,
        State(row.state),
        row.declared_ms,
        row.renewed_ms,
        row.fence,
        row.granted_ms,
        None if row.ended is None else End(row.ended),
        row.ended_ms,
        row.ended_by,
        row.changed,
    )


def _claims_text(intent: Intent) -> str:
    return json.dumps(
        [
            {
                "table": claim.table,
                "uuid": claim.uuid,
                "boxes": boxes_text(claim.boxes),
                "operations": sorted(claim.operations),
                "said": claim.said,
                "exclusive": claim.exclusive,
                "base": claim.base,
                "slot": None if claim.slot is None else astuple(claim.slot),
            }
            for claim in intent.claims
        ]
    )


def _claim(said: Any) -> Claim:
    return Claim(
        said["table"],
        said["uuid"],
        boxes_of_text(said["boxes"]),
        frozenset(said["operations"]),
        said["said"],
        bool(said["exclusive"]),
        said["base"],
        None if said.get("slot") is None else Slot(*said["slot"]),
    )

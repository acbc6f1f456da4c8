"""A revocation ends the leases of its principals at every tower, and whoever is revoked is granted none after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.contracts.model import ADMINISTRATOR_NAME
from icetower.database import Database, sqlite_url
from icetower.errors import Conflict, Forbidden
from icetower.intents.book import Book
from icetower.intents.model import REVOCATION, End, Intent, State
from icetower.intents.store import NUMBER_OF_CHANGES, Store, end_revoked
from icetower.registry.registry import RESERVED_NAME, Registry, revoked_among
from tests.intents.world import Clock, box, claim, require_fair, wanted

WITHIN_S = 60
TEXT = "version: 1\nagent: a\ntables: [{table: ns.t, operations: [overwrite], partitions: all}]\n"


class Towers:
    """Two towers on one control database: ann and bob under one contract, and zoe, an administrator."""

    def __init__(self, path: Path) -> None:
        self.databases = [Database(sqlite_url(path / "control.db"), own=True) for _ in range(2)]
        self.registries = [
            Registry(database, SystemAmbient(), beside=NUMBER_OF_CHANGES, on_revoked=end_revoked)
            for database in self.databases
        ]
        self.stores = [Store(database, Clock(), revoked=revoked_among) for database in self.databases]

    async def begin(self) -> None:
        await self.registries[0].apply_contract(load(TEXT, source="test"), by="zoe", text=TEXT)
        for name, contract in (("ann", "a"), ("bob", "a"), ("zoe", ADMINISTRATOR_NAME)):
            await self.registries[0].create_principal(name, contract)

    async def declare(self, at: int, who: str, id_: str, *, queue: bool = True, day: int = 1) -> Intent:
        wish = wanted(id_, claim(box([day])), principal=who, queue=queue)
        return await self.stores[at].ask(lambda book, now_ms: _settled(book, now_ms).declare(wish, now_ms))

    async def find(self, at: int, id_: str) -> Intent:
        found = await self.stores[at].ask(lambda book, now_ms: _settled(book, now_ms).find(id_))
        assert found is not None
        return found

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
        for database in self.databases:
            database.close()


def _settled(book: Book, now_ms: int) -> Book:
    book.settle(now_ms)
    require_fair(book.live())
    return book


def at_towers(path: Path, story: Callable[[Towers], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        towers = Towers(path)
        try:
            await towers.begin()
            await asyncio.wait_for(story(towers), WITHIN_S)
        finally:
            await towers.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("revoked", ["ann", "a"])
@pytest.mark.parametrize("at", [0, 1])
def test_what_was_held_and_what_waited_ends_and_others_come(tmp_path: Path, revoked: str, at: int) -> None:
    async def story(towers: Towers) -> None:
        await towers.declare(0, "ann", "held")
        assert (await towers.declare(0, "ann", "in-line")).state is State.QUEUED
        assert (await towers.declare(0, "zoe", "next")).state is State.QUEUED
        registry = towers.registries[at]
        await (registry.revoke_principal("ann") if revoked == "ann" else registry.revoke_contract("a", by="zoe"))
        for tower in (0, 1):
            assert (await towers.find(tower, "next")).state is State.HELD
            for id_ in ("held", "in-line"):
                gone = await towers.find(tower, id_)
                assert (gone.state, gone.ended, gone.ended_by) == (State.ENDED, End.BROKEN, REVOCATION)
        assert (await towers.find(1, "held")).ended_ms is not None

    at_towers(tmp_path, story)


def test_nobody_else_loses_a_lease_and_a_changed_contract_takes_none(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        await towers.declare(0, "ann", "anns")
        await towers.declare(0, "bob", "bobs", day=2)
        wider = TEXT + "reads: [other.*]\n"
        await towers.registries[0].apply_contract(load(wider, source="test"), by="zoe", text=wider)
        assert (await towers.find(1, "anns")).state is State.HELD
        await towers.registries[0].revoke_principal("ann")
        assert (await towers.find(1, "bobs")).state is State.HELD
        number = towers.stores[1].book.number
        await towers.registries[0].revoke_principal("ann")  # there is nothing left to end
        await towers.find(1, "bobs")
        assert towers.stores[1].book.number == number

    at_towers(tmp_path, story)


@pytest.mark.parametrize("at", [0, 1])
def test_a_request_that_was_let_in_before_its_principal_was_revoked_gets_nothing(tmp_path: Path, at: int) -> None:
    """It asks beside others, who get what they ask for."""

    async def story(towers: Towers) -> None:
        await towers.declare(0, "bob", "held")
        await towers.declare(0, RESERVED_NAME, "without-authentication", day=3)
        await towers.registries[0].revoke_principal("ann")
        refused, waits, other = await asyncio.gather(
            towers.declare(at, "ann", "late", day=2),
            towers.declare(at, "ann", "in-line"),
            towers.declare(at, "bob", "beside", day=2, queue=False),
            return_exceptions=True,
        )
        for each in (refused, waits):
            assert isinstance(each, Forbidden)
            assert each.rule == "contract.revoked"
        assert isinstance(other, Intent)
        assert other.state is State.HELD
        assert [each.id for each in towers.stores[at].book.live()] == ["held", "without-authentication", "beside"]
        with pytest.raises(Conflict):
            await towers.declare(at, "zoe", "later", queue=False)

    at_towers(tmp_path, story)


def test_whoever_was_revoked_around_the_book_leaves_the_line_at_the_grant(tmp_path: Path) -> None:
    """By a tower that does not end leases itself."""

    async def story(towers: Towers) -> None:
        await towers.declare(0, "bob", "held")
        await towers.declare(0, "ann", "first")
        await towers.declare(0, "zoe", "second")
        await Registry(towers.databases[1], SystemAmbient()).revoke_principal("ann")

        def release(book: Book, now_ms: int) -> None:
            book.end("held", End.RELEASED, now_ms, "bob")

        await towers.stores[1].ask(release)
        assert (await towers.find(0, "first")).ended is End.BROKEN
        assert (await towers.find(0, "second")).state is State.HELD

    at_towers(tmp_path, story)


def test_who_is_revoked_renews_nothing(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        await towers.declare(0, "ann", "held")
        await Registry(towers.databases[1], SystemAmbient()).revoke_principal("ann")
        with pytest.raises(Forbidden):
            await towers.stores[1].ask(lambda book, now_ms: book.renew("held", "ann", now_ms))

    at_towers(tmp_path, story)

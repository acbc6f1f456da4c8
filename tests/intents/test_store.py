"""The book in a database that two towers share: over crashes, duplicates, clocks that jump, and a database restored."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from icetower.admission.admitted import AdmittedAppend, UnderIntent
from icetower.database import Database, sqlite_url
from icetower.errors import Conflict, Forbidden, IcetowerError, Unavailable
from icetower.intents import store as stores
from icetower.intents.book import ENDED_MAX, Book
from icetower.intents.fencing import judged
from icetower.intents.model import Claim, End, Intent, State
from icetower.intents.store import Ask, Store
from tests.intents.test_book import CLAIMS
from tests.intents.world import DAYS, Cells, Clock, Table, append, box, cells, claim, conflict, require_fair, wanted

T = TypeVar("T")
NOW = 1_000_000


@cache
def migrated() -> Path:
    """A control database with the tables of intents."""
    path = Path(tempfile.mkdtemp()) / "control.db"
    database = Database(sqlite_url(path), own=True)
    Store(database, Clock())
    database.close()
    return path


def unsynced(connection: Any, record: Any) -> None:
    """No test here pulls the plug."""
    del record
    connection.execute("PRAGMA synchronous=OFF").close()


class Tower:
    """One tower's store, and its clock."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self.path = path
        self.database = Database(sqlite_url(path), own=True)
        event.listen(self.database.engine, "connect", unsynced)
        self.store = Store(self.database, clock)
        self.fails = ""

        run = self.database.run

        async def failing(work: Callable[[Any], Any], *, write: bool = False) -> Any:
            how, self.fails = (self.fails, "") if write else ("", self.fails)
            if how == "before":
                raise OperationalError("INSERT", {}, Exception("disk I/O error"))
            found = await run(work, write=write)
            if how == "after":  # it was committed, and nobody was answered
                raise OperationalError("COMMIT", {}, Exception("disk I/O error"))
            return found

        self.database.run = failing  # type: ignore[method-assign]

    def close(self) -> None:
        self.database.close()


class Towers(RuleBasedStateMachine):
    """Two towers on one database, and a table on which holders commit."""

    def __init__(self) -> None:
        super().__init__()
        source = migrated()
        self.was, stores.migrate = stores.migrate, lambda *_, **__: None  # type: ignore[assignment]
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "control.db"
        shutil.copy(source, self.path)
        self.runner = asyncio.Runner()
        self.towers = [Tower(self.path, Clock(NOW + skew)) for skew in (0, 1_500)]
        self.ids = 0
        self.asked: dict[str, Any] = {}
        self.fences: dict[str, int] = {}
        self.table = Table(required=True)
        self.under_way: list[tuple[int, str, int, AdmittedAppend, Cells]] = []

    def run(self, at: int, ask: Ask[T]) -> T:
        return self.runner.run(self.towers[at].store.ask(ask))

    def settled(self, at: int, work: Callable[[Book, int], T]) -> T:
        def ask(book: Book, now_ms: int) -> T:
            book.settle(now_ms)
            return work(book, now_ms)

        return self.run(at, ask)

    def attempt(self, at: int, work: Callable[[Book, int], T]) -> T | None:
        try:
            return self.settled(at, work)
        except IcetowerError:
            return None

    # -- what agents do -------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 1), claims=CLAIMS, who=st.sampled_from("abc"), ttl=st.integers(1, 20_000), q=st.booleans())
    def declare(self, at: int, claims: list[Claim], who: str, ttl: int, q: bool) -> None:
        self.ids += 1
        asked = self.asked[str(self.ids)] = wanted(str(self.ids), *claims, principal=who, ttl_ms=ttl, queue=q)
        self.attempt(at, lambda book, now_ms: book.declare(asked, now_ms))

    @rule(at=st.integers(0, 1), pick=st.integers(0, 50))
    def declare_again(self, at: int, pick: int) -> None:
        """By whoever has lost the answer, at either tower: it is there once, with one fence."""
        if self.asked:
            id_ = list(self.asked)[pick % len(self.asked)]
            asked = self.asked[id_]
            found = self.attempt(at, lambda book, now_ms: book.declare(asked, now_ms))
            if found is not None and found.fence is not None:
                assert self.fences.setdefault(id_, found.fence) == found.fence

    @rule(first=CLAIMS, second=CLAIMS)
    def race(self, first: list[Claim], second: list[Claim]) -> None:
        """Both towers are asked at the same moment."""
        asks: list[Any] = []
        for at, claims in ((0, first), (1, second)):
            self.ids += 1
            asked = self.asked[str(self.ids)] = wanted(str(self.ids), *claims, principal=f"racer {at}")
            asks.append(self.towers[at].store.ask(lambda book, now_ms, asked=asked: book.declare(asked, now_ms)))

        async def together() -> None:
            await asyncio.gather(*asks, return_exceptions=True)

        self.runner.run(together())

    @rule(at=st.integers(0, 1), pick=st.integers(0, 50))
    def renew(self, at: int, pick: int) -> None:
        each = self.pick(at, pick)
        if each is not None:
            self.attempt(at, lambda book, now_ms: book.renew(each.id, each.principal, now_ms))

    @rule(at=st.integers(0, 1), pick=st.integers(0, 50))
    def release(self, at: int, pick: int) -> None:
        each = self.pick(at, pick)
        if each is not None:
            self.attempt(at, lambda book, now_ms: book.end(each.id, End.RELEASED, now_ms, each.principal))

    @rule(at=st.integers(0, 1), pick=st.integers(0, 50), day=st.integers(0, DAYS - 1), at_once=st.booleans())
    def commit(self, at: int, pick: int, day: int, at_once: bool) -> None:
        """Who was granted an intent once commits to one partition: it passes the gate, and its swap may come later."""
        if not self.fences:
            return
        id_ = list(self.fences)[pick % len(self.fences)]
        asked, fence, places = self.asked[id_], self.fences[id_], [(day, 0)]
        member = append(*places, principal=asked.principal, under=UnderIntent(id_, fence, 0))
        try:
            under = self.run(at, lambda book, now_ms: judged(book, now_ms, member, self.table.metadata))
        except IcetowerError:
            return
        assert under is not None
        touched: Cells = frozenset(("t", *place) for place in places)
        assert touched <= cells(asked.claims)
        self.towers[at].clock.ms += 100
        self.under_way.append((at, id_, fence, member, touched))
        if at_once:
            self.swap(len(self.under_way) - 1)

    @rule(pick=st.integers(0, 50))
    def swap(self, pick: int) -> None:
        """A commit that is under way is asked once more, and lands."""
        if not self.under_way:
            return
        at, id_, fence, member, touched = self.under_way.pop(pick % len(self.under_way))
        table = self.table
        try:
            again = self.run(at, lambda book, now_ms: judged(book, now_ms, member, table.metadata))
        except IcetowerError:
            return
        assert again is not None
        rivals = [one for one in table.landed if one[2] & touched and one[1] > fence]
        # Nobody has landed there whose intent was granted later, and shares nothing: this one is no zombie.
        assert not [one for one in rivals if conflict(self.asked[one[0]].claims, self.asked[id_].claims)]
        table.fence = max(table.fence, again.highest)
        table.landed.append((id_, fence, touched))

    # -- what happens to them -------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 1), by=st.sampled_from([1, 700, 5_000, 30_000, -900, -120_000]))
    def clock(self, at: int, by: int) -> None:
        self.towers[at].clock.ms += by

    @rule(by=st.sampled_from([1, 1_000, 15_000]))
    def time_passes(self, by: int) -> None:
        for tower in self.towers:
            tower.clock.ms += by

    @rule(at=st.integers(0, 1))
    def crash(self, at: int) -> None:
        """A tower that remembers nothing, and what was under way at it is gone."""
        self.under_way = [each for each in self.under_way if each[0] != at]
        tower = self.towers[at]
        tower.close()
        self.towers[at] = Tower(self.path, tower.clock)

    @rule(at=st.integers(0, 1), how=st.sampled_from(["before", "after"]))
    def database_fails(self, at: int, how: str) -> None:
        self.towers[at].fails = how

    @rule(at=st.integers(0, 1))
    def settle(self, at: int) -> None:
        self.attempt(at, lambda book, now_ms: book.settle(now_ms))

    # -- what holds -----------------------------------------------------------------------------------------------

    def pick(self, at: int, pick: int) -> Intent | None:
        live = self.run(at, lambda book, now_ms: book.live())
        return live[pick % len(live)] if live else None

    @invariant()
    def both_know_the_same_and_it_is_fair(self) -> None:
        first, second = (self.run(at, lambda book, now_ms: book.live()) for at in (0, 1))
        assert [(each.id, each.state, each.fence, each.expires_ms) for each in first] == [
            (each.id, each.state, each.fence, each.expires_ms) for each in second
        ]
        require_fair(first)
        for each in first:
            if each.fence is not None:
                assert self.fences.setdefault(each.id, each.fence) == each.fence

    def teardown(self) -> None:
        for tower in self.towers:
            tower.fails = ""
        for _ in range(2):
            self.towers[0].clock.ms += 200_000
            self.settled(0, lambda book, now_ms: None)
        assert self.run(1, lambda book, now_ms: book.live()) == []
        self.runner.close()
        for tower in self.towers:
            tower.close()
        stores.migrate = self.was
        shutil.rmtree(self.folder)


TestTowers = Towers.TestCase
TestTowers.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


@pytest.mark.sharp
class TestTowersLong(Towers.TestCase):
    """The same with a thousand seeds; ICETOWER_INTENT_SEEDS has more."""

    settings = settings(
        max_examples=int(os.environ.get("ICETOWER_INTENT_SEEDS", "1000")), stateful_step_count=25, deadline=None
    )


def opened(path: Path, clock: Clock | None = None) -> Tower:
    return Tower(path, clock or Clock(NOW))


def test_an_intent_lives_over_a_restart_with_all_that_it_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "control.db"
        first = opened(path)
        asked = wanted("a", claim(box([0, 2], [1]), operations="delete", exclusive=True), claim(uuid="u"))
        declared = await first.store.ask(lambda book, now_ms: book.declare(asked, now_ms))
        await first.store.ask(lambda book, now_ms: book.warn("a", '{"snapshot-id": 1}'))
        first.close()
        second = opened(path)
        found = await second.store.ask(lambda book, now_ms: (book.find("a"), book.warnings("a"), book.granted))
        assert found == (declared, ['{"snapshot-id": 1}'], {"t": 1, "u": 1})
        second.close()

    asyncio.run(scenario())


def test_a_tower_hears_what_another_one_has_granted(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, other = opened(tmp_path / "control.db"), opened(tmp_path / "control.db")
        await other.store.ask(lambda book, now_ms: None)
        await one.store.ask(lambda book, now_ms: book.declare(wanted("a"), now_ms))
        with pytest.raises(Conflict):
            await other.store.ask(lambda book, now_ms: book.declare(wanted("b", queue=False), now_ms))
        moved = other.store.moved()
        await one.store.ask(lambda book, now_ms: book.end("a", End.RELEASED, now_ms, "ann"))
        assert not moved.is_set()
        await other.store.ask(lambda book, now_ms: None)
        assert moved.is_set()
        assert (await other.store.ask(lambda book, now_ms: book.declare(wanted("b"), now_ms))).fence == 2
        one.close()
        other.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["before", "after"])
def test_nothing_is_known_after_an_error_and_all_is_read_again(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        tower = opened(tmp_path / "control.db")
        await tower.store.ask(lambda book, now_ms: None)
        tower.fails = how
        with pytest.raises(Unavailable) as failed:
            await tower.store.ask(lambda book, now_ms: book.declare(wanted("a"), now_ms))
        assert failed.value.rule == "intent.available"
        there = await tower.store.ask(lambda book, now_ms: book.find("a"))
        assert (there is not None) is (how == "after")
        again = await tower.store.ask(lambda book, now_ms: book.declare(wanted("a"), now_ms))
        assert (again.state, again.fence) == (State.HELD, 1)
        tower.close()

    asyncio.run(scenario())


def restore(path: Path, backup: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    shutil.copy(backup, path)


def test_a_restored_database_lets_no_zombie_in(tmp_path: Path) -> None:
    """Trap K4: the table knows a later fence than the database, which was lost or restored from a backup."""

    async def scenario() -> None:
        path, clock, table = tmp_path / "control.db", Clock(NOW), Table()
        tower = opened(path, clock)
        old = await tower.store.ask(lambda book, now_ms: book.declare(wanted("old"), now_ms))
        tower.close()
        backup = tmp_path / "backup.db"
        shutil.copy(path, backup)

        tower = opened(path, clock)
        await tower.store.ask(lambda book, now_ms: book.end("old", End.BROKEN, now_ms, "admin"))
        new = await tower.store.ask(lambda book, now_ms: book.declare(wanted("new", principal="bob"), now_ms))
        assert new.fence is not None
        member = append((0, 0), principal="bob", under=UnderIntent("new", new.fence, 0))
        under = await tower.store.ask(lambda book, now_ms: judged(book, now_ms, member, table.metadata))
        assert under is not None
        table.fence = under.highest
        tower.close()

        restore(path, backup)
        tower = opened(path, clock)
        assert old.fence is not None
        zombie = append((0, 0), under=UnderIntent("old", old.fence, 0))
        with pytest.raises(Forbidden) as refused:
            await tower.store.ask(lambda book, now_ms: judged(book, now_ms, zombie, table.metadata))
        assert refused.value.rule == "intent.fenced"
        assert "overtaken" in refused.value.message
        after = await tower.store.ask(lambda book, now_ms: book.declare(wanted("after"), now_ms))
        assert after.fence is not None
        assert after.fence > table.fence
        tower.close()

    asyncio.run(scenario())


def test_what_has_ended_long_ago_is_removed_and_a_tower_that_slept_knows_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, other = opened(tmp_path / "control.db"), opened(tmp_path / "control.db")
        held = await one.store.ask(lambda book, now_ms: book.declare(wanted("first", claim(uuid="first")), now_ms))
        assert await other.store.ask(lambda book, now_ms: book.find("first")) == held
        await one.store.ask(lambda book, now_ms: book.end("first", End.RELEASED, now_ms, "ann"))

        def many(start: int) -> Callable[[Book, int], None]:
            def ask(book: Book, now_ms: int) -> None:
                for number in range(start, start + 400):
                    book.declare(wanted(str(number)), now_ms)
                    book.end(str(number), End.RELEASED, now_ms, "ann")

            return ask

        for start in range(0, 2 * ENDED_MAX, 400):
            await one.store.ask(many(start))
        rows = await one.database.run(lambda c: c.exec_driver_sql("SELECT count(*) FROM intents").scalar_one())
        assert rows <= ENDED_MAX + stores.PRUNED_EVERY + 400
        assert await other.store.ask(lambda book, now_ms: book.live()) == []
        assert await other.store.ask(lambda book, now_ms: book.find("first")) is None
        one.close()
        other.close()

    asyncio.run(scenario())


def test_who_goes_away_takes_nothing_from_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        tower = opened(tmp_path / "control.db")
        gone = asyncio.create_task(tower.store.ask(lambda book, now_ms: book.declare(wanted("a"), now_ms)))
        stays = asyncio.create_task(tower.store.ask(lambda book, now_ms: len(book.live())))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == 1
        await tower.store.close()
        tower.close()

    asyncio.run(scenario())

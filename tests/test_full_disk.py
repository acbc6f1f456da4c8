"""A database without room, or locked by another process: certain failures are clear at once, and reads go on (A4)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, event

from icetower.ambient import SystemAmbient
from icetower.commit.group_keys import GroupKeys
from icetower.database import BUSY_TIMEOUT_MS, WRITE_OPTION, Database
from icetower.errors import DatabaseBusy, DiskFull
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import Tower, open_tower
from icetower.ledger.ledger import Attempt, Outcome
from icetower.protocol.names import Identifier
from icetower.service.journal import Journal
from icetower.storage.file_io import FileIOStorage
from icetower.upstream.port import Swap
from icetower.upstream.sql import SqlUpstream

T = Identifier(("db",), "t")
COMMIT = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def execute(statement: str) -> Callable[[Connection], Any]:
    return lambda connection: connection.exec_driver_sql(statement).fetchall()


@pytest.fixture
def database(tmp_path: Path) -> Any:
    database = Database(f"sqlite:///{tmp_path}/some.db", name="some.db")
    database.run_now(lambda connection: connection.exec_driver_sql("CREATE TABLE t (x)"), write=True)
    yield database
    database.close()


def no_room(database: Database) -> Callable[[], None]:
    """SQLite finds no room for another page from now on; what is returned gives it room again."""
    full = True

    def limit(driver: Any, _record: Any, _proxy: Any) -> None:
        pages = driver.execute("PRAGMA page_count").fetchone()[0] if full else 1 << 30
        driver.execute(f"PRAGMA max_page_count={pages}")

    event.listen(database.engine, "checkout", limit)

    def room() -> None:
        nonlocal full
        full = False

    return room


class _Full(sqlite3.OperationalError):
    sqlite_errorname = "SQLITE_FULL"


@contextmanager
def nothing_is_committed(patch: pytest.MonkeyPatch, *databases: Database) -> Iterator[None]:
    """COMMIT of whatever writes finds the disk full."""
    writing = threading.local()

    def full(driver: Any) -> None:
        if writing.now:
            raise _Full("database or disk is full")
        driver.commit()

    def begun(connection: Connection) -> None:
        writing.now = connection.get_execution_options()[WRITE_OPTION]

    with patch.context() as inside:
        for database in databases:
            event.listen(database.engine, "begin", begun)
            inside.setattr(database.engine.dialect, "do_commit", full)
        yield


class TestDatabase:
    def test_a_full_disk_is_certain_and_nothing_was_changed(self, database: Database) -> None:
        room = no_room(database)

        def write(connection: Connection) -> None:
            for _ in range(10):
                connection.exec_driver_sql("INSERT INTO t VALUES (?)", ("x" * 4096,))

        with pytest.raises(DiskFull, match=r"some\.db.*SQLITE_FULL") as full:
            asyncio.run(database.run(write, write=True))
        assert (full.value.status, full.value.rule) == (507, "disk.full")
        assert database.run_now(execute("SELECT count(*) FROM t")) == [(0,)]
        room()
        asyncio.run(database.run(write, write=True))
        assert database.run_now(execute("SELECT count(*) FROM t")) == [(10,)]

    def test_a_database_that_may_not_be_written_is_certain_too(self, database: Database) -> None:
        event.listen(database.engine, "checkout", lambda driver, *_: driver.execute("PRAGMA query_only=ON"))
        with pytest.raises(DiskFull, match="SQLITE_READONLY"):
            database.run_now(lambda connection: connection.exec_driver_sql("INSERT INTO t VALUES (1)"), write=True)

    def test_reads_go_on_while_another_process_holds_the_lock(self, database: Database, tmp_path: Path) -> None:
        holder = sqlite3.connect(tmp_path / "some.db", isolation_level=None)

        async def story() -> None:
            holder.execute("BEGIN IMMEDIATE")
            insert = "INSERT INTO t VALUES (1)"
            writes = [
                asyncio.create_task(database.run(lambda connection: connection.exec_driver_sql(insert), write=True))
                for _ in range(3)
            ]
            for _ in range(5):
                assert await database.run(execute("SELECT count(*) FROM t")) == [(0,)]
            assert not any(write.done() for write in writes)
            holder.execute("ROLLBACK")
            await asyncio.gather(*writes)
            assert await database.run(execute("SELECT count(*) FROM t")) == [(3,)]

        run(story())
        holder.close()

    def test_a_lock_that_stays_is_busy_and_not_unknown(self, tmp_path: Path) -> None:
        database = Database(f"sqlite:///{tmp_path}/some.db", busy_timeout_ms=1)
        database.run_now(lambda connection: connection.exec_driver_sql("CREATE TABLE t (x)"), write=True)
        holder = sqlite3.connect(tmp_path / "some.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy, match="SQLITE_BUSY"):
            asyncio.run(database.run(execute("SELECT 1"), write=True))
        holder.close()
        database.close()

    def test_who_has_waited_for_the_thread_waits_the_less_for_the_lock(self, database: Database) -> None:
        """Thirty writers behind a lock wait as long as one, and not thirty times as long."""
        asked_s = SystemAmbient().monotonic_s() - 6
        question = execute("PRAGMA busy_timeout")
        ((left_ms,),) = database.run_now(question, write=True, asked_s=asked_s)
        assert 0 < left_ms <= BUSY_TIMEOUT_MS - 6_000
        assert database.run_now(question) == [(BUSY_TIMEOUT_MS,)]

    def test_a_commit_without_room_is_no_unknown_swap(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        database = Database(f"sqlite:///{tmp_path}/catalog.db")
        upstream = SqlUpstream(database, "main")

        async def story() -> None:
            await upstream.create_namespace(("db",), {})
            await upstream.create_table(T, "m0")

            with nothing_is_committed(monkeypatch, database), pytest.raises(DiskFull):
                await upstream.swap([Swap(T, "m0", "m1")])
            assert await upstream.location(T) == "m0"
            await upstream.swap([Swap(T, "m0", "m1")])

        run(story())
        database.close()


def test_a_warehouse_without_room_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="ENOSPC"):
        run(FileIOStorage().write(f"{tmp_path}/file", b"x"))
    assert list(tmp_path.iterdir()) == []


class TestTower:
    """Over HTTP, in process."""

    @pytest.fixture
    def tower(self, tmp_path: Path) -> Tower:
        settings = load_settings(None, data=str(tmp_path / "data"), queue_deadline_s=1)
        return open_tower(settings, SystemAmbient(), open_to_all=True)

    @staticmethod
    def client(tower: Tower) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=build(tower)), base_url="http://127.0.0.1", timeout=60
        )

    @staticmethod
    async def table(http: httpx2.AsyncClient) -> None:
        schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
        (await http.post("/v1/namespaces", json={"namespace": ["db"]})).raise_for_status()
        (await http.post("/v1/namespaces/db/tables", json={"name": "t", "schema": schema})).raise_for_status()

    def test_a4_a_commit_on_a_full_disk_is_507_at_once_and_the_log_catches_up(
        self, tower: Tower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        control, catalog = tower.records.databases

        async def story() -> None:
            async with self.client(tower) as http:
                await self.table(http)
                await tower.records.journal.flush()
                started = await tower.records.ledger.recent()
                with nothing_is_committed(monkeypatch, control, catalog):
                    answers = await asyncio.gather(
                        *(http.post("/v1/namespaces/db/tables/t", json=COMMIT) for _ in range(40))
                    )
                    with pytest.raises(DiskFull):
                        await tower.records.journal.flush()
                assert {answer.status_code for answer in answers} == {507}
                assert {answer.json()["error"]["rule"] for answer in answers} == {"disk.full"}
                assert len(await tower.records.ledger.recent()) == len(started)
                assert (await http.post("/v1/namespaces/db/tables/t", json=COMMIT)).status_code == 200
                await tower.records.journal.flush()
                logged = await tower.records.ledger.recent()
                assert [each.outcome for each in logged[: len(logged) - len(started)]] == [
                    Outcome.DIRECT,
                    *[Outcome.REFUSED] * 40,
                ]
                await tower.close()

        with caplog.at_level(logging.WARNING, "icetower"):
            run(story())
        assert "the ledger is behind" in caplog.text

    def test_a4_a_commit_to_a_locked_catalog_is_held_and_lands_or_hears_409(self, tower: Tower, tmp_path: Path) -> None:
        catalog = tower.records.databases[1]
        event.listen(catalog.engine, "checkout", lambda driver, *_: driver.execute("PRAGMA busy_timeout=1"))
        holder = sqlite3.connect(tmp_path / "data" / "catalog.db", isolation_level=None)

        async def story() -> None:
            async with self.client(tower) as http:
                await self.table(http)
                holder.execute("BEGIN IMMEDIATE")
                refused = await http.post("/v1/namespaces/db/tables/t", json=COMMIT)
                assert (refused.status_code, refused.json()["error"]["rule"]) == (409, "queue.deadline")
                held = asyncio.create_task(http.post("/v1/namespaces/db/tables/t", json=COMMIT))
                # Others read meanwhile, and are not behind it.
                assert (await http.get("/v1/namespaces/db/tables/t")).status_code == 200
                assert not held.done()
                holder.execute("ROLLBACK")
                assert (await held).status_code == 200
                await tower.close()

        run(story())
        holder.close()


class _Ledger:
    """A ledger that cannot be written while `full`."""

    def __init__(self) -> None:
        self.full = True
        self.written: list[str] = []

    async def write(self, batch: Any) -> None:
        if self.full:
            raise DiskFull("there is no room")
        self.written += [attempt.principal for attempt in batch.attempts]


class _Ambient(SystemAmbient):
    """Nobody sleeps: whoever wants to is woken by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.awake = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.awake.wait()


def test_what_cannot_be_written_waits_within_a_bound_and_the_log_says_what_was_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        ledger, ambient = _Ledger(), _Ambient()
        journal = Journal(ledger, GroupKeys(None, None, None), ambient, items_max=1_000)  # type: ignore[arg-type]
        attempts = [Attempt(f"a{n}", "db.t", "append", Outcome.DIRECT) for n in range(1_200)]
        journal.put(*attempts[:700])
        for _ in range(4):
            with pytest.raises(DiskFull):
                await journal.flush()
        journal.put(*attempts[700:])
        ledger.full = False
        ambient.awake.set()
        while len(ledger.written) < 1_000:
            await journal.flush()
        assert ledger.written == [attempt.principal for attempt in attempts[200:]]
        await journal.close()

    with caplog.at_level(logging.WARNING, "icetower"):
        run(story())
    assert "200 entries were dropped" in caplog.text

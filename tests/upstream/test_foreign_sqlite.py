"""A SQLite catalog of the user's keeps its journal mode, and stays as easy to copy as it was (issue 16, point 20)."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.errors import DatabaseBusy
from icetower.gateway.settings import Settings
from icetower.gateway.tower import open_tower
from icetower.protocol.names import Identifier
from icetower.upstream.port import Swap
from icetower.upstream.sql import SqlUpstream

T = Identifier(("db",), "t")


def journal_mode(file: Path) -> str:
    connection = sqlite3.connect(file)
    try:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]
    finally:
        connection.close()


def heads(file: Path) -> list[str]:
    connection = sqlite3.connect(file)
    try:
        return [row[0] for row in connection.execute("SELECT metadata_location FROM iceberg_tables")]
    finally:
        connection.close()


async def _with_a_table(upstream: SqlUpstream) -> None:
    await upstream.create_namespace(("db",), {})
    await upstream.create_table(T, "m0")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "theirs.db"


@pytest.fixture
def database(file: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{file}")
    yield database
    database.close()


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_a_foreign_database_keeps_its_journal_mode(tmp_path: Path, file: Path, mode: str) -> None:
    there = sqlite3.connect(file)
    there.execute(f"PRAGMA journal_mode={mode}")
    there.execute("CREATE TABLE something (of TEXT)")
    there.close()
    settings = Settings.model_validate(
        {
            "server": {"data": str(tmp_path / "data")},
            "upstream": {"uri": f"sqlite:///{file}", "catalog": "prod", "warehouse": f"file://{tmp_path}/wh"},
        }
    )

    async def work() -> None:
        tower = open_tower(settings, SystemAmbient())
        assert isinstance(tower.lake.upstream, SqlUpstream)
        await _with_a_table(tower.lake.upstream)
        await tower.lake.upstream.swap([Swap(T, "m0", "m1")])
        if mode != "wal":
            # The file alone has everything, while the tower is running: `cp` is a backup.
            shutil.copy(file, tmp_path / "copy.db")
            assert heads(tmp_path / "copy.db") == ["m1"]
            assert not file.with_name("theirs.db-wal").exists()
        await tower.close()

    asyncio.run(work())
    # Of the modes but WAL, none is stored in the file.
    assert journal_mode(file) == ("wal" if mode == "wal" else "delete")
    assert journal_mode(tmp_path / "data/control.db") == "wal"


def test_the_databases_of_icetower_itself_are_in_wal_mode(tmp_path: Path) -> None:
    async def work() -> None:
        await open_tower(Settings.model_validate({"server": {"data": str(tmp_path)}}), SystemAmbient()).close()

    asyncio.run(work())
    assert (journal_mode(tmp_path / "control.db"), journal_mode(tmp_path / "catalog.db")) == ("wal", "wal")


def test_a_reader_that_keeps_a_commit_waiting_too_long_is_a_certain_failure(database: Database, file: Path) -> None:
    """In rollback mode COMMIT waits for readers; one that gives up has written nothing, and nobody calls it unknown."""
    upstream = SqlUpstream(database, "main")
    hasty = Database(f"sqlite:///{file}", busy_timeout_ms=20)
    reader = sqlite3.connect(file, isolation_level=None)

    async def work() -> None:
        await _with_a_table(upstream)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM iceberg_tables").fetchall()
        with pytest.raises(DatabaseBusy, match="nothing was changed"):
            await SqlUpstream(hasty, "main").swap([Swap(T, "m0", "m1")])
        assert await upstream.location(T) == "m0"
        reader.execute("ROLLBACK")
        await upstream.swap([Swap(T, "m0", "m1")])

    asyncio.run(work())
    reader.close()
    hasty.close()
    assert heads(file) == ["m1"]


def test_readers_and_a_writer_of_other_programs_are_waited_for(database: Database, file: Path) -> None:
    """Thirty swaps beside a program that reads and writes the same rollback-mode file all the time: none fails."""
    upstream = SqlUpstream(database, "main")

    def beside() -> None:
        other = sqlite3.connect(file, timeout=10, isolation_level=None)
        for number in range(30):
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE iceberg_tables SET previous_metadata_location = ?", (str(number),))
            other.execute("COMMIT")
            other.execute("SELECT * FROM iceberg_tables").fetchall()
        other.close()

    async def work() -> None:
        await _with_a_table(upstream)
        others = asyncio.create_task(asyncio.to_thread(beside))
        for number in range(30):
            await upstream.swap([Swap(T, f"m{number}", f"m{number + 1}")])
        await others

    asyncio.run(work())
    assert heads(file) == ["m30"]

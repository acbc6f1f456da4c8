"""The SQL upstream beside PyIceberg's catalog on one database, its old layouts, and its uncertain ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy.engine import make_url

from icetower.database import WRITE_OPTION, Database
from icetower.errors import (
    AlreadyExists,
    BadRequest,
    CommitStateUnknown,
    NamespaceNotEmpty,
    NoSuchTable,
    UpstreamFailed,
)
from icetower.protocol.names import Identifier
from icetower.upstream import sql
from icetower.upstream.port import Swap, SwapLost, SwapUnknown
from icetower.upstream.sql import SqlUpstream

SCHEMA = Schema(NestedField(1, "id", LongType()))
T = Identifier(("db",), "t")
V0 = """CREATE TABLE iceberg_tables(catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
    PRIMARY KEY (catalog_name, table_namespace, table_name))"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database: a SQLite file, or a PostgreSQL schema of its own."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/catalog.db"
        return
    postgres: str = request.getfixturevalue("postgres_url")
    schema = f"test_{uuid.uuid4().hex}"
    owner = Database(postgres)
    execute(owner, f"CREATE SCHEMA {schema}")
    yield make_url(postgres).update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(False)
    execute(owner, f"DROP SCHEMA {schema} CASCADE")
    owner.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def upstream(database: Database) -> SqlUpstream:
    return SqlUpstream(database, "main")


@pytest.fixture
def theirs(url: str, upstream: SqlUpstream, tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("main", uri=url, warehouse=f"file://{tmp_path}/wh")
    yield catalog
    catalog.engine.dispose()


def execute(database: Database, statement: str) -> list[Any]:
    def work(connection: Any) -> list[Any]:
        result = connection.exec_driver_sql(statement)
        return list(result) if result.returns_rows else []

    return database.run_now(work, write=True)


class TestBesidePyIceberg:
    def test_what_we_create_they_read(self, upstream: SqlUpstream, theirs: SqlCatalog, tmp_path: Path) -> None:
        theirs.create_namespace("src")
        location = theirs.create_table("src.t", SCHEMA).metadata_location

        async def ours() -> None:
            await upstream.create_namespace(("db", "deep"), {"owner": "ann"})
            await upstream.create_table(Identifier(("db", "deep"), "t"), location)

        asyncio.run(ours())
        assert theirs.list_namespaces("db") == [("db", "deep")]
        assert theirs.load_namespace_properties("db.deep")["owner"] == "ann"
        assert theirs.list_tables("db.deep") == [("db", "deep", "t")]
        assert theirs.load_table("db.deep.t").metadata_location == location

    def test_what_they_create_we_read(self, upstream: SqlUpstream, theirs: SqlCatalog) -> None:
        theirs.create_namespace("db.deep", {"owner": "bob"})
        theirs.create_namespace("bare")
        table = theirs.create_table("db.deep.t", SCHEMA)

        async def ours() -> None:
            assert await upstream.list_namespaces() == [("bare",), ("db",)]
            assert await upstream.namespace_properties(("db", "deep")) == {"owner": "bob"}
            assert await upstream.namespace_properties(("bare",)) == {}
            identifier = Identifier(("db", "deep"), "t")
            assert await upstream.list_tables(("db", "deep")) == [identifier]
            assert await upstream.location(identifier) == table.metadata_location
            # Their namespace has no marker: removing its last property must not take it away.
            await upstream.create_namespace(("other",), {})
            await upstream.rename_table(identifier, Identifier(("other",), "t"))
            await upstream.update_namespace(("db", "deep"), ["owner"], {})
            assert await upstream.namespace_exists(("db", "deep"))

        asyncio.run(ours())
        assert theirs.load_table("other.t").metadata_location == table.metadata_location

    def test_each_notices_the_other_s_swap(self, upstream: SqlUpstream, theirs: SqlCatalog, database: Database) -> None:
        theirs.create_namespace("db")
        stale = theirs.create_table("db.t", SCHEMA)
        first = stale.metadata_location
        second = theirs.load_table("db.t").transaction().set_properties(a="1").commit_transaction().metadata_location
        with pytest.raises(SwapLost) as lost:
            asyncio.run(upstream.swap([Swap(T, first, "ours")]))
        assert lost.value.found == second
        asyncio.run(upstream.swap([Swap(T, second, first)]))
        assert theirs.load_table("db.t").metadata_location == first
        assert execute(database, "SELECT previous_metadata_location FROM iceberg_tables") == [(second,)]

    def test_catalogs_in_one_database_do_not_see_each_other(self, upstream: SqlUpstream, database: Database) -> None:
        async def ours() -> None:
            other = SqlUpstream(database, "other")
            await upstream.create_namespace(("db",), {})
            await upstream.create_table(T, "m0")
            assert await other.list_namespaces() == []
            with pytest.raises(SwapLost):
                await other.swap([Swap(T, "m0", "m1")])
            assert await upstream.location(T) == "m0"

        asyncio.run(ours())


class TestLayout:
    def test_a_view_is_no_table_but_occupies_its_name(
        self, upstream: SqlUpstream, theirs: SqlCatalog, database: Database
    ) -> None:
        execute(database, "INSERT INTO iceberg_tables VALUES ('main', 'db', 't', 'v0', NULL, 'VIEW')")

        async def ours() -> None:
            assert await upstream.namespace_exists(("db",))
            assert await upstream.list_tables(("db",)) == []
            assert await upstream.all_tables(9) == []
            with pytest.raises(NoSuchTable):
                await upstream.location(T)
            with pytest.raises(NoSuchTable):
                await upstream.drop_table(T)
            with pytest.raises(SwapLost):
                await upstream.swap([Swap(T, "v0", "m1")])
            with pytest.raises(AlreadyExists, match=r"^View already exists"):
                await upstream.create_table(T, "m0")
            other = Identifier(("db",), "u")
            await upstream.create_table(other, "m0")
            with pytest.raises(AlreadyExists, match=r"^View already exists"):
                await upstream.rename_table(other, T)
            await upstream.drop_table(other)
            with pytest.raises(NamespaceNotEmpty):
                await upstream.drop_namespace(("db",))

        asyncio.run(ours())
        with pytest.raises(NoSuchTableError):
            theirs.load_table("db.t")
        assert execute(database, "SELECT metadata_location FROM iceberg_tables") == [("v0",)]

    def test_rows_without_a_type_are_tables(self, upstream: SqlUpstream, database: Database) -> None:
        execute(database, "INSERT INTO iceberg_tables VALUES ('main', 'db', 't', 'm0', NULL, NULL)")
        asyncio.run(upstream.swap([Swap(T, "m0", "m1")]))
        assert asyncio.run(upstream.location(T)) == "m1"

    def test_an_old_layout_gets_the_column_and_keeps_its_tables(self, database: Database) -> None:
        execute(database, V0)
        execute(database, "INSERT INTO iceberg_tables VALUES ('main', 'db', 't', 'm0', NULL)")
        for _ in range(2):
            upstream = SqlUpstream(database, "main")
        assert asyncio.run(upstream.list_tables(("db",))) == [T]
        asyncio.run(upstream.swap([Swap(T, "m0", "m1")]))
        assert execute(database, "SELECT metadata_location, iceberg_type FROM iceberg_tables") == [("m1", None)]

    def test_the_marker_is_reserved_and_hidden(self, upstream: SqlUpstream, database: Database) -> None:
        async def ours() -> None:
            with pytest.raises(BadRequest, match="exists"):
                await upstream.create_namespace(("db",), {"exists": "no"})
            await upstream.create_namespace(("db",), {})
            with pytest.raises(BadRequest, match="exists"):
                await upstream.update_namespace(("db",), [], {"exists": "no"})
            assert (await upstream.update_namespace(("db",), ["exists"], {})).missing == ["exists"]

        asyncio.run(ours())
        rows = execute(database, "SELECT property_key, property_value FROM iceberg_namespace_properties")
        assert rows == [("exists", "true")]

    def test_a_dot_in_a_level_is_refused_everywhere(self, upstream: SqlUpstream) -> None:
        """It would be spelled like two levels: somebody else's namespace."""
        dotted = ("a.b",)
        table = Identifier(dotted, "t")

        async def ours() -> None:
            await upstream.create_namespace(("a", "b"), {})
            await upstream.create_table(Identifier(("a", "b"), "t"), "m0")
            for attempt in (
                upstream.namespace_exists(dotted),
                upstream.namespace_properties(dotted),
                upstream.create_namespace(dotted, {}),
                upstream.drop_namespace(dotted),
                upstream.update_namespace(dotted, [], {"a": "1"}),
                upstream.list_tables(dotted),
                upstream.list_namespaces(dotted),
                upstream.location(table),
                upstream.create_table(table, "m1"),
                upstream.drop_table(table),
                upstream.rename_table(table, T),
                upstream.rename_table(Identifier(("a", "b"), "t"), table),
                upstream.swap([Swap(table, "m0", "m1")]),
            ):
                with pytest.raises(BadRequest, match="dot"):
                    await attempt
            # A table's name has a column of its own.
            await upstream.create_table(Identifier(("a",), "b.t"), "m2")
            assert await upstream.location(Identifier(("a", "b"), "t")) == "m0"

        asyncio.run(ours())


class TestSwapsUnderWay:
    """A swap of another server, which has changed the row, and whose COMMIT has not come yet."""

    def test_a4_sqlite_waits_for_nobody(self, tmp_path: Path) -> None:
        """It undoes a transaction with its process, and a lock of the file must not keep refusals from being told."""
        database = Database(url := f"sqlite:///{tmp_path}/catalog.db")
        upstream = SqlUpstream(database, "main")

        async def story() -> None:
            await upstream.create_namespace(("db",), {})
            await upstream.create_table(T, "m0")
            with _under_way(url):
                assert await upstream.settled_location(T) == "m0"

        asyncio.run(story())
        database.close()

    @pytest.mark.parametrize("url", ["postgres"], indirect=True)
    @pytest.mark.parametrize(("ends", "head"), [("commit", "m1"), ("rollback", "m0")])
    def test_a3_a_settled_head_is_told_only_when_the_swap_has_ended(
        self, upstream: SqlUpstream, url: str, ends: str, head: str
    ) -> None:
        async def story() -> None:
            await upstream.create_namespace(("db",), {})
            await upstream.create_table(T, "m0")
            with _under_way(url) as end:
                asked = [asyncio.create_task(upstream.settled_location(T)) for _ in range(3)]
                # Readers see the old head meanwhile, and whoever believes it may refuse what is about to land.
                assert [await upstream.location(T) for _ in range(5)] == ["m0"] * 5
                assert not any(each.done() for each in asked)
                end(ends)
                assert await asyncio.gather(*asked) == [head] * 3

        asyncio.run(story())

    @pytest.mark.parametrize("url", ["postgres"], indirect=True)
    def test_a_swap_that_does_not_end_is_a_failure_and_holds_up_no_other_table(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sql, "SETTLED_S", 0.2)
        database = Database(url, busy_timeout_ms=200)
        upstream = SqlUpstream(database, "main")

        async def story() -> None:
            await upstream.create_namespace(("db",), {})
            await upstream.create_table(T, "m0")
            await upstream.create_table(other := Identifier(("db",), "u"), "n0")
            with _under_way(url) as end:
                with pytest.raises(UpstreamFailed, match="nothing was changed"):
                    await upstream.settled_location(T)
                assert await upstream.settled_location(other) == "n0"
                end("rollback")
            assert await upstream.settled_location(T) == "m0"

        asyncio.run(story())
        database.close()


@contextmanager
def _under_way(url: str) -> Generator[Callable[[str], None]]:
    """Changes the row of the table as a swap to m1 does, and waits to be told how that ends."""
    database = Database(url)
    with database.engine.connect() as connection:
        connection.execution_options(**{WRITE_OPTION: True})
        connection.begin()
        connection.exec_driver_sql("UPDATE iceberg_tables SET metadata_location = 'm1' WHERE table_name = 't'")
        yield lambda ends: getattr(connection, ends)()
        connection.rollback()
    database.close()


class TestUncertainEnds:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/catalog.db"

    @pytest.fixture
    def table(self, upstream: SqlUpstream) -> SqlUpstream:
        asyncio.run(upstream.create_namespace(("db",), {}))
        asyncio.run(upstream.create_table(T, "m0"))
        return upstream

    @pytest.mark.parametrize(("lands", "head"), [(True, "m1"), (False, "m0")])
    def test_an_error_at_commit_leaves_the_swap_unknown(
        self, table: SqlUpstream, database: Database, monkeypatch: pytest.MonkeyPatch, lands: bool, head: str
    ) -> None:
        real = database.engine.dialect.do_commit

        def broken(connection: Any) -> None:
            if lands:
                real(connection)
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patch:
            patch.setattr(database.engine.dialect, "do_commit", broken)
            with pytest.raises(SwapUnknown):
                asyncio.run(table.swap([Swap(T, "m0", "m1")]))
        assert asyncio.run(table.location(T)) == head

    def test_an_error_at_commit_of_anything_else_is_unknown_too(
        self, table: SqlUpstream, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(connection: Any) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(database.engine.dialect, "do_commit", broken)
        with pytest.raises(CommitStateUnknown):
            asyncio.run(table.create_table(Identifier(("db",), "u"), "m0"))

    def test_a_lock_never_had_is_a_certain_failure(
        self, table: SqlUpstream, database: Database, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database.run_now(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout=1"))
        asyncio.run(database.run(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout=1")))
        holder = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(UpstreamFailed, match="nothing was changed") as failed:
                asyncio.run(table.swap([Swap(T, "m0", "m1")]))
            assert "UPDATE" not in failed.value.message
            assert "m1" not in failed.value.message
            assert asyncio.run(table.location(T)) == "m0"
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        asyncio.run(table.swap([Swap(T, "m0", "m1")]))

    def test_a_writer_between_read_and_write_is_waited_for_not_met_halfway(self, table: SqlUpstream, url: str) -> None:
        """Without BEGIN IMMEDIATE a transaction that has read cannot write once another process has."""

        async def both() -> None:
            other = Database(url)
            neighbour = SqlUpstream(other, "main")
            names = [Identifier(("db",), f"n{n}") for n in range(40)]
            try:
                await asyncio.gather(
                    *((table, neighbour)[n % 2].create_table(name, "m0") for n, name in enumerate(names))
                )
                assert len(await table.list_tables(("db",))) == 41
            finally:
                other.close()

        asyncio.run(both())

    def test_a_database_that_is_not_there_is_named_without_its_password(self) -> None:
        database = Database("sqlite:////nowhere/at/all.db")
        with pytest.raises(UpstreamFailed) as failed:
            SqlUpstream(database, "main")
        database.close()
        assert "nowhere" not in failed.value.message


def _swap_from_a_process(url: str, writer: int, goal: int, answers: Any) -> None:
    """Add `goal` links to the chain of heads; report those that were acknowledged."""

    async def work() -> list[tuple[str, str]]:
        database = Database(url)
        upstream = SqlUpstream(database, "main")
        won: list[tuple[str, str]] = []
        while len(won) < goal:
            head = await upstream.location(T)
            new = f"{writer}-{len(won)}"
            try:
                await upstream.swap([Swap(T, head, new)])
            except SwapLost:
                continue
            won.append((head, new))
        database.close()
        return won

    answers.put(asyncio.run(work()))


def _commit_from_pyiceberg(url: str, warehouse: str, goal: int, answers: Any) -> None:
    catalog = SqlCatalog("main", uri=url, warehouse=warehouse)
    done: list[str] = []
    while len(done) < goal:
        table = catalog.load_table("db.real")
        try:
            table.transaction().set_properties({f"theirs{len(done)}": "1"}).commit_transaction()
        except CommitFailedException:
            continue
        done.append(f"theirs{len(done)}")
        try:
            catalog.create_table("db.noise", SCHEMA)
            catalog.drop_table("db.noise")
        except TableAlreadyExistsError:
            continue
    catalog.engine.dispose()
    answers.put(done)


def _run_all(targets: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=target, args=(*arguments, answers)) for target, arguments in targets]
    for process in processes:
        process.start()
    results = [answers.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return results


@pytest.mark.full
class TestSeveralProcesses:
    def test_each_head_has_exactly_one_successor(self, upstream: SqlUpstream, url: str) -> None:
        asyncio.run(upstream.create_namespace(("db",), {}))
        asyncio.run(upstream.create_table(T, "m0"))
        links = [link for won in _run_all([(_swap_from_a_process, (url, w, 50)) for w in range(3)]) for link in won]
        successor = dict(links)
        assert len(successor) == len(links) == 150
        chain = ["m0"]
        while chain[-1] in successor:
            chain.append(successor[chain[-1]])
        assert len(chain) == 151
        assert asyncio.run(upstream.location(T)) == chain[-1]

    def test_beside_a_busy_pyiceberg_nothing_is_lost_or_doubled(
        self, upstream: SqlUpstream, theirs: SqlCatalog, url: str, tmp_path: Path
    ) -> None:
        theirs.create_namespace("db")
        theirs.create_table("db.real", SCHEMA)
        asyncio.run(upstream.create_table(T, "m0"))
        warehouse = f"file://{tmp_path}/wh"
        results = _run_all(
            [
                (_commit_from_pyiceberg, (url, warehouse, 20)),
                (_swap_from_a_process, (url, 0, 60)),
                (_swap_from_a_process, (url, 1, 60)),
            ]
        )
        successor = dict(link for won in results for link in won if isinstance(link, tuple))
        assert len(successor) == 120
        head, steps = "m0", 0
        while head in successor:
            head, steps = successor[head], steps + 1
        assert (steps, head) == (120, asyncio.run(upstream.location(T)))
        assert len(theirs.load_table("db.real").properties) == 20

"""One SQL database behind an async door: SQLite by default, PostgreSQL by URL.

SQLAlchemy Core runs in a few threads of its own, one transaction a call, so that the event loop never waits for a disk.
Reads and writes have threads of their own: while another process locks the database, or the disk is slow, writes wait
and reads go on. SQLite gets one thread that writes: it has one writer anyway, and a queue in front of it beats its lock
waits.

Some failures certainly changed nothing: a full disk, a lock that somebody else held all the time. These are raised as
`DiskFull` and `DatabaseBusy`, wherever in the transaction they happened; all others stay SQLAlchemy's own.

A database of Icetower's own is in WAL mode, in which readers and the writer do not wait for each other. The journal
mode of any other SQLite file belongs to its owner: it is stored in the file, and in WAL mode a plain copy lacks the
newest commits. Such a file is opened in the mode that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import orjson
from sqlalchemy import URL, Connection, Select, create_engine, event, func, select
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import StaticPool

from icetower.ambient import SystemAmbient
from icetower.errors import ConfigurationError, DatabaseBusy, DiskFull, IcetowerError
from icetower.threads import Threads

T = TypeVar("T")
Question = TypeVar("Question")
Answer = TypeVar("Answer")

BUSY_TIMEOUT_MS = 10_000
"""How long a call may wait for a lock of another process, its wait for a thread included."""

SQLITE_READERS = 4
SERVER_READERS = 4
SERVER_WRITERS = 8
WRITE_OPTION = "icetower_write"
ALONE_OPTION = "icetower_alone"
_JOURNAL = "journal_mode"
_WAITED_MS = 1_000
_POSTGRES_DISK_FULL = "53100"
_FULL = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"})
"""A quota is an error of writing to SQLite, and a full disk under its shared memory one of size."""


def _sqlite_settings(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling begins too late to hold a lock over read-then-write; ours is explicit.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _sqlite_wal(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL").close()


def _sqlite_begin(connection: Connection) -> None:
    # A transaction that means to write takes the lock first: one that reads, then writes, can be refused halfway
    # (SQLITE_BUSY without any wait) once another process has written in between.
    options = connection.get_execution_options()
    if not options.get(ALONE_OPTION, False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITE_OPTION, False) else "BEGIN")


def sqlite_url(file: Path) -> str:
    """The URL of a SQLite database, whatever characters its path has."""
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def shown_url(url: URL) -> str:
    """A URL for messages: without its password, and without its options, of which some are passwords, too."""
    return url.set(query={}).render_as_string(hide_password=True)


def open_engine(url: str, *, own: bool = False) -> Engine:
    """An engine for a SQLAlchemy URL. Raises `ConfigurationError` for a URL that cannot be understood.

    Args:
        own: the database is Icetower's own, so that its journal mode may be set.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "the database URL cannot be understood; write it as sqlite:////absolute/path.db or "
            "postgresql+psycopg://user:password@host/name",
            rule="configuration.database",
        ) from error
    if parsed.get_backend_name() != "sqlite":
        try:
            connections = SERVER_READERS + SERVER_WRITERS
            return create_engine(parsed, pool_size=connections, max_overflow=0, pool_pre_ping=True)
        except (ImportError, ArgumentError) as error:
            raise ConfigurationError(
                f"no driver for {parsed.drivername} is installed; for PostgreSQL install icetower[postgres] and write "
                "the URL as postgresql+psycopg://user:password@host/name",
                rule="configuration.database",
            ) from error
    in_memory = parsed.database in (None, "", ":memory:")
    arguments: dict[str, Any] = {"connect_args": {"check_same_thread": False}}
    if in_memory:
        arguments["poolclass"] = StaticPool
    else:
        arguments |= {"pool_size": SQLITE_READERS + 1, "max_overflow": 1}  # one more for who runs in its own thread
    engine = create_engine(parsed, **arguments)
    event.listen(engine, "connect", _sqlite_settings)
    if own:
        event.listen(engine, "connect", _sqlite_wal)
    event.listen(engine, "begin", _sqlite_begin)
    return engine


def read_at_once(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[Sequence[Any]]:
    """The rows of a query whose columns are all whole numbers, texts or null, in their order.

    Python's driver of SQLite gives the interpreter's lock away at each step, and each row is one. While the event loop
    is busy a thread waits for that lock longer than SQLite works: two thousand rows, one by one, take a tenth of a
    second. So SQLite makes one text of them. Numbers with a point would lose digits by that, and bytes cannot be in it.
    """
    if connection.dialect.name != "sqlite":
        return list(connection.execute(query))
    found = query.subquery()
    text: str = connection.execute(select(func.json_group_array(func.json_array(*found.c)))).scalar_one()
    return orjson.loads(text)


class Database:
    """A database and the threads that talk to it.

    Args:
        own: the database is Icetower's own; False leaves the journal mode of a SQLite file as it is.
        name: what messages call it.
        busy_timeout_ms: how long a call to SQLite waits for another process's lock.
    """

    def __init__(
        self, url: str, *, own: bool = False, name: str = "the database", busy_timeout_ms: int = BUSY_TIMEOUT_MS
    ) -> None:
        self.engine = open_engine(url, own=own)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._name = name
        self._busy_timeout_ms = busy_timeout_ms
        self._clock = SystemAmbient()
        self._one_at_a_time = Lock()
        if self.is_sqlite:
            event.listen(self.engine, "connect", self._note_settings)
        if isinstance(self.engine.pool, StaticPool):  # one connection
            self._readers = self._writers = Threads(1, "sql")
        else:
            self._readers = Threads(SQLITE_READERS if self.is_sqlite else SERVER_READERS, "sql-read")
            self._writers = Threads(1 if self.is_sqlite else SERVER_WRITERS, "sql-write")

    async def run(self, work: Callable[[Connection], T], *, write: bool = False, alone: bool = False) -> T:
        """Run `work` in one transaction: committed when it returns, rolled back when it raises.

        Args:
            write: takes SQLite's write lock before anything is read; say so whenever `work` writes.
            alone: `work` reads, by one statement: it needs no transaction around it, which takes longer than reading.

        Raises:
            DiskFull: nothing was changed, for lack of space or of the right to write.
            DatabaseBusy: nothing was changed, since another process held a lock for too long.
            SQLAlchemyError: anything else; after `work` has returned, it may have been committed all the same.
        """
        asked_s = self._clock.monotonic_s()
        return await (self._writers if write else self._readers).run(
            lambda: self.run_now(work, write=write, alone=alone, asked_s=asked_s)
        )

    def run_now(
        self, work: Callable[[Connection], T], *, write: bool = False, alone: bool = False, asked_s: float | None = None
    ) -> T:
        """As `run`, in the caller's thread; for start-up, migrations and the command line.

        Args:
            asked_s: since when the call waits (monotonic), if not since now.
        """
        asked_s = self._clock.monotonic_s() if asked_s is None else asked_s
        try:
            with self.engine.connect() as connection, self._patience(connection, asked_s):
                connection.execution_options(**{WRITE_OPTION: write, ALONE_OPTION: alone})
                beside = self._beside(connection)
                if write:
                    with connection.begin(), beside:
                        return work(connection)
                with beside, connection.begin():
                    return work(connection)
        except DBAPIError as error:
            certain = self._certain(error)
            if certain is None:
                raise
            raise certain from error

    def _beside(self, connection: Connection) -> AbstractContextManager[Any]:
        """Without a write-ahead log, SQLite's readers and its writer shut each other out, and poll for their locks.

        Those of this process take turns by a lock of their own then. A writer takes it once it has SQLite's: while
        another process writes, only writers wait.
        """
        return nullcontext() if connection.info.get(_JOURNAL, "wal") in ("wal", "memory") else self._one_at_a_time

    @contextmanager
    def _patience(self, connection: Connection, asked_s: float) -> Generator[None]:
        """A call that has waited for a thread waits the shorter for a lock: callers in a row do not add up."""
        waited_ms = int((self._clock.monotonic_s() - asked_s) * 1000) if self.is_sqlite else 0
        if waited_ms < _WAITED_MS:
            yield
            return
        driver: Any = connection.connection.dbapi_connection
        driver.execute(f"PRAGMA busy_timeout={max(1, self._busy_timeout_ms - waited_ms)}")
        try:
            yield
        finally:
            driver.execute(f"PRAGMA busy_timeout={self._busy_timeout_ms}")

    def _note_settings(self, driver: Any, record: Any) -> None:
        driver.execute(f"PRAGMA busy_timeout={self._busy_timeout_ms}")
        record.info[_JOURNAL] = driver.execute("PRAGMA journal_mode").fetchone()[0]

    def _certain(self, error: DBAPIError) -> IcetowerError | None:
        """The error of a transaction that certainly changed nothing; None where that cannot be known.

        SQLite rolls back what it has no room for, and leaves a transaction open that cannot be committed for a lock.
        After other errors of the disk a commit may turn up again when the database recovers.
        """
        name = getattr(error.orig, "sqlite_errorname", None) or ""
        kind = str(name) or ("disk_full" if getattr(error.orig, "sqlstate", None) == _POSTGRES_DISK_FULL else "")
        if kind == "disk_full" or kind in _FULL or kind.startswith("SQLITE_READONLY"):
            return DiskFull(
                f"there is no room to write to {self._name} ({kind}); nothing was changed. Free or extend its disk, or "
                "make it writable, then send this again"
            )
        if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return DatabaseBusy(
                f"another process has locked {self._name} for more than {self._busy_timeout_ms / 1000:g} s ({kind}); "
                "nothing was changed: try again"
            )
        return None

    def close(self) -> None:
        for threads in {id(threads): threads for threads in (self._writers, self._readers)}.values():
            threads.close(wait=True)
        self.engine.dispose()


class Together(Generic[Question, Answer]):
    """Questions that are asked together: whoever asks while others' answers are on their way is in the next round.

    No answer is older than its question, so nothing is cached; but a thousand requests that each read one row cost a
    few transactions instead of a thousand.

    Args:
        answer: answers some questions, each of them once, all from one state of the database.
    """

    def __init__(self, answer: Callable[[Sequence[Question]], Awaitable[Mapping[Question, Answer]]]) -> None:
        self._answer = answer
        self._waiting: dict[Question, asyncio.Future[Answer]] = {}
        self._asking: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return self._asking is None

    async def ask(self, question: Question) -> Answer:
        """The answer. Raises what answering its round raised."""
        waiting = self._waiting.get(question)
        if waiting is None:
            waiting = self._waiting[question] = asyncio.get_running_loop().create_future()
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        # Somebody who gives up does not take the answer from the others.
        return await asyncio.shield(waiting)

    async def _ask(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, {}
                try:
                    found = await self._answer(list(asked))
                except Exception as error:  # noqa: BLE001 - it is theirs to handle
                    for waiting in asked.values():
                        waiting.set_exception(error)
                else:
                    for question, waiting in asked.items():
                        waiting.set_result(found[question])
                finally:
                    for waiting in asked.values():
                        waiting.cancel()  # only where this task itself was: nobody waits for ever
        finally:
            self._asking = None

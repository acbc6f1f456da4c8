"""One SQL database behind an async door: SQLite by default, PostgreSQL by URL.

SQLAlchemy Core runs in a few threads of its own, one transaction a call, so that the event loop never waits for a disk.
SQLite gets one thread: it has one writer anyway, and a queue in front of it beats its lock waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from icetower.errors import ConfigurationError
from icetower.threads import Threads

T = TypeVar("T")
Question = TypeVar("Question")
Answer = TypeVar("Answer")

BUSY_TIMEOUT_MS = 10_000
SERVER_THREADS = 8
WRITE_OPTION = "icetower_write"


def _sqlite_settings(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling begins too late to hold a lock over read-then-write; ours is explicit.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    # A transaction that means to write takes the lock first: one that reads, then writes, can be refused halfway
    # (SQLITE_BUSY without any wait) once another process has written in between.
    immediate = connection.get_execution_options().get(WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def sqlite_url(file: Path) -> str:
    """The URL of a SQLite database, whatever characters its path has."""
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def open_engine(url: str) -> Engine:
    """An engine for a SQLAlchemy URL. Raises `ConfigurationError` for a URL that cannot be understood."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(
            "the database URL cannot be understood; write it as sqlite:////absolute/path.db or "
            "postgresql+psycopg://user:password@host/name",
            rule="configuration.database",
        ) from error
    if parsed.get_backend_name() != "sqlite":
        try:
            return create_engine(parsed, pool_size=SERVER_THREADS, max_overflow=0, pool_pre_ping=True)
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
    engine = create_engine(parsed, **arguments)
    event.listen(engine, "connect", _sqlite_settings)
    event.listen(engine, "begin", _sqlite_begin)
    return engine


class Database:
    """A database and the threads that talk to it."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._threads = Threads(1 if self.is_sqlite else SERVER_THREADS, "sql")

    async def run(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """Run `work` in one transaction: committed when it returns, rolled back when it raises.

        `write` takes SQLite's write lock before anything is read; say so whenever `work` writes.
        """
        return await self._threads.run(lambda: self.run_now(work, write=write))

    def run_now(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """As `run`, in the caller's thread; for start-up, migrations and the command line."""
        with self.engine.connect() as connection:
            connection.execution_options(**{WRITE_OPTION: write})
            with connection.begin():
                return work(connection)

    def close(self) -> None:
        self._threads.close(wait=True)
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

"""Tables made and changed by Alembic migrations that travel inside the package, run when a store is opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from icetower.database import Database

_ADVISORY_LOCK = 0x1CE70  # any number, the same in every tower
_ONE_AT_A_TIME = threading.Lock()  # Alembic's `op` is one for the process


def take_write_lock(connection: Connection) -> None:
    """Make this transaction the writer before it reads, so that what it read still holds when it writes.

    Must be the transaction's first statement. SQLite's transactions that write have its lock from their beginning
    (`Database.run`); PostgreSQL serialises the callers.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def migrate(database: Database, scripts: Path, *, version_table: str) -> None:
    """Bring the tables of one room to the newest version, in one transaction; several processes may start at once.

    `scripts` is the room's `migrations` directory; `version_table` keeps the room's version, so that rooms move alone.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    directory = ScriptDirectory(str(scripts))

    def upgrade(revision: Any, _context: Any) -> Any:
        return directory._upgrade_revs("head", revision)  # pyright: ignore[reportPrivateUsage]  # as alembic.command

    def work(connection: Connection) -> None:
        take_write_lock(connection)
        with EnvironmentContext(config, directory, fn=upgrade, destination_rev="head") as environment:
            environment.configure(connection=connection, version_table=version_table, transactional_ddl=False)
            environment.run_migrations()

    with _ONE_AT_A_TIME:
        database.run_now(work, write=True)

"""Tables made and changed by Alembic migrations that travel inside the package, run when a store is opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from icetower.database import Database, shown_url
from icetower.errors import ConfigurationError

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

    Raises `ConfigurationError` where the database cannot be opened, or its tables are of a version that is not known:
    a newer Icetower's.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    directory = ScriptDirectory(str(scripts))

    def upgrade(revision: Any, _context: Any) -> Any:
        return directory._upgrade_revs("head", revision)  # pyright: ignore[reportPrivateUsage]  # as alembic.command

    def work(connection: Connection) -> None:
        take_write_lock(connection)
        _check_known(connection, directory, version_table)
        with EnvironmentContext(config, directory, fn=upgrade, destination_rev="head") as environment:
            environment.configure(connection=connection, version_table=version_table, transactional_ddl=False)
            environment.run_migrations()

    try:
        with _ONE_AT_A_TIME:
            database.run_now(work, write=True)
    except SQLAlchemyError as error:
        shown = shown_url(database.engine.url)
        cause = str(error.orig if isinstance(error, DBAPIError) else type(error).__name__)
        raise ConfigurationError(
            f"the database {shown} cannot be opened: {cause}. Where it is damaged, restore it from a backup; "
            "docs/operations.md says what is lost without it",
            rule="configuration.database",
        ) from error


def _check_known(connection: Connection, scripts: ScriptDirectory, version_table: str) -> None:
    if not inspect(connection).has_table(version_table):
        return
    version = Table(version_table, MetaData(), Column("version_num", String))
    for found in connection.scalars(select(version.c.version_num)):
        try:
            scripts.get_revision(found)
        except CommandError as error:
            raise ConfigurationError(
                f"the control database is at version {found} ({version_table}), and this Icetower knows versions up to "
                f"{scripts.get_current_head()}: a newer Icetower has used it. Install that version or a later one, or "
                "restore the backup that was made before the upgrade",
                rule="configuration.newer",
            ) from error

"""DuckLake on PostgreSQL: a DuckDB of its own for each agent, whose small inserts go into PostgreSQL (data inlining).

DuckDB's extensions come with packages from PyPI, of the very version of DuckDB, and are loaded from their files:
nothing is downloaded. PostgreSQL is started for the run, on loopback.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from sqlalchemy import URL

from bench.commits.pyiceberg_writers import Attempts, Job
from bench.commits.servers import Trouble, cpu_s
from bench.commits.shapes import NOTE
from bench.rows.reading import Found
from verify.kit import postgres_cluster

TABLE = "lake.t"
EXTENSIONS = ("ducklake", "postgres_scanner")
INLINED_MAX = 10_000
"""Rows of one insert that go into PostgreSQL: more than any request here has. DuckLake's default is 10."""

CONNECTIONS = 1_200
"""That PostgreSQL takes: an agent's DuckDB opens two or more."""

RETRIES = 100
"""Of a commit that meets another one; DuckLake's default of 10 makes commits fail from some tens of agents on."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that answers, and its first process."""

    url: URL
    process_id: int

    def cpu_s(self) -> float:
        """Processor time of all its processes until now, in seconds."""
        return cpu_s(self.process_id) + sum(map(cpu_s, _children(self.process_id)))


@contextmanager
def postgres() -> Generator[Postgres]:
    """PostgreSQL on loopback for the time of the block. Raises `Trouble` where there is none on this machine."""
    try:
        with postgres_cluster.running({"max_connections": str(CONNECTIONS)}) as url:
            plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
            with psycopg.connect(plain) as connection:
                found = connection.execute("select pg_backend_pid()").fetchone()
                assert found is not None
                yield Postgres(url, _parent(found[0]))
    except postgres_cluster.NoPostgres as error:
        raise Trouble(f"DuckLake needs PostgreSQL: {error}") from error


def _parent(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def _children(process_id: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and _parent(int(name)) == process_id:
                found.append(int(name))
        except OSError:
            continue  # it has ended
    return found


# -- a DuckDB ---------------------------------------------------------------------------------------------------------


def properties(url: URL, data: Path) -> dict[str, str]:
    """The properties of an agent's job: the lake's catalog is in the database, and its files lie in the folder."""
    parts = {"host": url.host, "port": url.port, "user": url.username, "password": url.password, "dbname": url.database}
    return {"catalog": " ".join(f"{name}={value}" for name, value in parts.items()), "data": str(data)}


class Lake:
    """A DuckDB, in memory, with the lake attached."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1, "autoinstall_known_extensions": False})
        for name in EXTENSIONS:
            place = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
            self.connection.execute(f"LOAD '{place / name}.duckdb_extension'")
        self.connection.execute(f"SET ducklake_max_retry_count = {RETRIES}")
        self.connection.execute("SET enable_progress_bar = false")
        self.connection.execute(
            f"ATTACH 'ducklake:postgres:{given['catalog']}' AS lake "
            f"(DATA_PATH '{given['data']}', DATA_INLINING_ROW_LIMIT {INLINED_MAX})"
        )

    def refresh(self) -> None:
        """Nothing: DuckDB begins each transaction on the newest snapshot."""


@dataclass(frozen=True, slots=True)
class _Uncounted:
    """DuckLake says nothing of its retries."""

    sent: int = 0


def open_lake(job: Job) -> tuple[Any, Attempts]:
    """An agent's lake, in a process of writers. The table is read once, so that the first insert costs as any other."""
    lake = Lake(job.properties)
    lake.connection.execute(f"SELECT count(*) FROM {TABLE}").fetchall()
    return lake, _Uncounted()


def insert(lake: Lake, writer: int, row_id: int, summary: Mapping[str, str], *, rows: int) -> None:
    """One insert of some rows, which is one commit."""
    del summary
    values = ", ".join(f"({row_id * rows + at}, {writer}, '{NOTE}')" for at in range(rows))
    lake.connection.execute(f"INSERT INTO {TABLE} VALUES {values}")


def create(given: Mapping[str, str]) -> None:
    """The lake, and its table."""
    lake = Lake(given)
    lake.connection.execute(f"CREATE TABLE {TABLE} (id BIGINT, writer BIGINT, note VARCHAR)")
    lake.connection.close()


def read(given: Mapping[str, str]) -> Found:
    """The table after a run, as another DuckDB reads it."""
    lake = Lake(given)
    try:
        ids = lake.connection.execute(f"SELECT id FROM {TABLE}").fetchnumpy()["id"].tolist()
        counted = lake.connection.execute("SELECT count(*) FROM ducklake_list_files('lake', 't')").fetchone()
        assert counted is not None
        return Found(ids, counted[0])
    finally:
        lake.connection.close()

"""The two sides of the comparison, and the workload that both run.

Plain optimistic concurrency: PyIceberg's `SqlCatalog` and Java's `JdbcCatalog` share one catalog on SQLite, and the
retries of the clients are all that orders commits. Icetower: the same engines, through a tower. Agents, batches, table
properties, retries and storage latency are the same on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog

from icetower.demo import journal, plan, tables
from icetower.demo.plan import Engine
from icetower.demo.processes import AgentProcesses, Outcome, make_jobs, outcome_of
from icetower.demo.reconcile import Contents, count_rows, read_table
from icetower.demo.serving import Serving

WRITTEN = (tables.PRICES, tables.STOCK, tables.INTERACTIONS_WAL)
"""The tables that the agents write to."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What the agents of a side have to do.

    Attributes:
        source: the rows to write.
        source_path: the same rows in a file that all agents map into memory.
        seed: of the idempotency keys and of the storage latency.
        latency: name of the latency profile of every file that an agent or the tower reads or writes.
    """

    source: pa.Table
    source_path: Path
    days: int
    seed: int
    latency: str


@dataclass(frozen=True, slots=True)
class Side:
    """One way to a catalog.

    Attributes:
        catalogs: properties of the catalog, by agent, for the agent's engine.
        reader: reads all tables, without storage latency, for counting.
    """

    catalogs: Mapping[str, Mapping[str, str]]
    reader: Catalog


@dataclass(frozen=True, slots=True)
class Run:
    """One side's run of the workload. `contents` sums up the tables that the agents wrote to."""

    outcome: Outcome
    by_engine: Mapping[Engine, Outcome]
    journals: Mapping[str, Path]
    contents: Contents


def plain(folder: Path) -> Side:
    """A new SQL catalog on SQLite with the demo's tables, all empty."""
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True)
    database, location = folder / "catalog.db", f"file://{warehouse}"
    by_engine = {
        Engine.PYICEBERG: {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": location},
        Engine.SPARK: {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{database}",
            "jdbc.schema-version": "V1",
            "warehouse": location,
        },
    }
    reader = load_catalog("tower", **by_engine[Engine.PYICEBERG])
    tables.create_tables(reader)
    return Side({agent.name: by_engine[agent.engine] for agent in plan.AGENTS}, reader)


def through(serving: Serving, secrets: Mapping[str, str]) -> Side:
    """A tower whose tables exist and whose contracts are in force."""
    catalogs = {agent.name: serving.catalog(secrets[agent.name]) for agent in plan.AGENTS}
    return Side(catalogs, load_catalog("tower", **serving.catalog(serving.token)))


def run_workload(folder: Path, workload: Workload, side: Side, progress: Callable[[Mapping[str, int]], None]) -> Run:
    """Let all agents write through one side, then count its tables. `progress` gets the commits by agent."""
    folder.mkdir(parents=True)
    jobs = make_jobs(
        folder,
        workload.source_path,
        days=workload.days,
        seed=workload.seed,
        catalogs=side.catalogs,
        latency=workload.latency,
    )
    processes = AgentProcesses(folder)
    outcome = processes.run(jobs, progress)
    by_engine = {
        engine: outcome_of([job for job in jobs if plan.agent_named(job.agent).engine is engine], processes.go_ms)
        for engine in Engine
    }
    journals = {job.agent: Path(job.journal) for job in jobs}
    return Run(outcome, by_engine, journals, _contents(workload.source, side.reader, journals))


def _contents(source: pa.Table, catalog: Catalog, journals: Mapping[str, Path]) -> Contents:
    counted = Contents(0, 0, 0)
    for name in WRITTEN:
        acknowledged = journal.acknowledged_rows([journals[agent.name] for agent in plan.agents_of(name)])
        found = read_table(catalog, name)["row_id"].to_numpy()
        counted += count_rows(found, source["row_id"].to_numpy(), acknowledged)
    return counted

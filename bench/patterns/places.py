"""Where the sides write: one Spark for all of them, a plain SQL catalog for each run, and one tower.

All files, of agents, jobs and tower, are on this machine's disk, with the latency of S3 before each call.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.patterns.records import Stored
from bench.patterns.rows import COLUMNS, DISJOINT, agent_name, region_of
from icetower.agent import Tower
from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.demo import java_classes, slow_io
from icetower.demo.serving import Serving, tower_process
from icetower.demo.spark_agents import PACKAGES
from icetower.pipelines.session import catalog_settings, spark_session

CATALOG = "lake"
JOB = "bench-job"
SCHEDULER = "scheduler"
SLOT_MS = 3000
"""An agent's turn: long enough for a MERGE, which takes one to two seconds with the latency of S3."""
SEED = 20261125
READS = 3
_SETTINGS = {
    "spark.jars.packages": ",".join(PACKAGES),
    "spark.driver.memory": "4g",
}
_MERGE_ON_READ = ", ".join(f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge"))


@dataclass(slots=True)
class Lake:
    """What one run needs of a catalog.

    Attributes:
        name: the catalog in Spark's SQL; `namespace`: of the tables.
        catalogs: properties of the catalog by principal, for Spark.
        folders: where its files lie.
    """

    name: str
    namespace: str
    catalogs: Mapping[str, Mapping[str, str]]
    folders: Sequence[Path]

    @property
    def table(self) -> str:
        return f"{self.name}.{self.namespace}.prices"

    @property
    def log(self) -> str:
        return f"{self.name}.{self.namespace}.prices_log"

    @property
    def deltas(self) -> str:
        return f"{self.name}.{self.namespace}.prices_deltas"

    @property
    def system(self) -> str:
        return f"{self.name}.{self.namespace}_system"


@dataclass(slots=True)
class Place:
    """Spark and a tower, for all runs. `secrets`: of the principals, by name."""

    folder: Path
    latency: str
    spark: SparkSession
    serving: Serving
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def session(self, lake: Lake, principal: str = "") -> SparkSession:
        """A session of its own on the lake's catalog; "" is who may do all, and waits for no storage."""
        session = self.spark.newSession()
        for name, value in catalog_settings(lake.name, lake.catalogs[principal]).items():
            session.conf.set(name, value)
        session.sql(f"USE {lake.name}")  # loads the catalog while these settings are those of the active session
        return session

    def plain(self, agents: int) -> Lake:
        """A new SQL catalog on SQLite."""
        number = next(self._numbers)
        folder = self.folder / f"plain{number}"
        warehouse = folder / "warehouse"
        warehouse.mkdir(parents=True)
        catalog = {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": f"file://{warehouse}",
            "clients": "1",
        }
        slow = {**catalog, **self._slow(folder)}
        names = [agent_name(agent) for agent in range(agents)]
        return Lake(f"plain{number}", "shop", {"": catalog, **dict.fromkeys(names, slow)}, [warehouse])

    def behind_tower(self, agents: int) -> Lake:
        """New namespaces of the tower, and a principal for each agent and the job."""
        number = next(self._numbers)
        namespace = f"shop{number}"
        names = [*(agent_name(agent) for agent in range(agents)), JOB]
        slow = self._slow(self.folder / "tower")
        catalogs = {name: {**self._rest(self.secrets.get(name, "")), **slow} for name in names}
        root = self.folder / "tower" / "tower"
        return Lake(f"tower{number}", namespace, {"": self._rest(self.serving.token), **catalogs}, [root / "warehouse"])

    def _rest(self, secret: str) -> dict[str, str]:
        return {"type": "rest", "uri": self.serving.uri, "token": secret}

    def _slow(self, folder: Path) -> dict[str, str]:
        return java_classes.properties(self.latency, folder / "attempts")

    def tower(self, principal: str = "") -> Tower:
        return Tower(self.serving.uri, self.secrets[principal] if principal else self.serving.token)

    def register(self, contracts: Mapping[str, str]) -> dict[str, Contract]:
        """Put contracts in force, with a principal of the same name each; in place of earlier ones."""
        with self.tower() as admin:
            for name, text in contracts.items():
                admin.apply_contract(text)
                if name not in self.secrets:
                    self.secrets[name] = admin.create_principal(name, name)
        return {name: load(text, source=name) for name, text in contracts.items()}


@contextmanager
def open_place(folder: Path, latency: str) -> Generator[Place]:
    """Start Spark and a tower; both end with the block."""
    with tower_process(folder / "tower", slow_io.properties(latency, SEED)) as serving:
        spark = spark_session("bench-patterns", catalog={"type": "rest", "uri": serving.uri}, settings=_SETTINGS)
        try:
            spark.sparkContext.setLogLevel("OFF")  # refused statements are what is measured
            java_classes.add_to(spark, folder / "classes")
            yield Place(folder, latency, spark, serving)
        finally:
            spark.stop()


def create_table(spark: SparkSession, name: str, more: Mapping[str, str], partitioned_by: str) -> None:
    """A table of prices in format version 3 that is merged on read."""
    columns = ", ".join([*(f"{name} {kind}" for name, _, kind in COLUMNS), *(f"{n} {k}" for n, k in more.items())])
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE {name} ({columns}) USING iceberg PARTITIONED BY ({partitioned_by}) "
        f"TBLPROPERTIES ('format-version' = '3', {_MERGE_ON_READ})"
    )


def contract(agent: int, lake: Lake, shape: str, pattern: str, through: str, turn: tuple[int, int] = (0, 1)) -> str:
    """An agent's contract.

    Args:
        pattern: a clause of the table's rule, or "".
        through: the table that it appends to, or "".
        turn: of the pattern `scheduler`: which one of how many is the agent's.
    """
    name, table = agent_name(agent), lake.table.partition(".")[2]
    region = [f"region: [{region_of(shape, agent)}]"] if shape == DISJOINT else []
    if pattern == SCHEDULER:
        at, of = turn
        every, start, end = (f"{each * SLOT_MS}ms" for each in (of, at, at + 1))
        region.append(f"now: {{every: {every}, from: {start}, to: {end}}}")
    owned = f"[{{{', '.join(region)}}}]" if region else "all"
    clauses = [f"table: {table}", "operations: [append, overwrite]", f"partitions: {owned}"]
    if pattern:
        clauses.append(f"pattern: {pattern}")
    if shape == DISJOINT and not through:
        clauses.append("read_scope: owned")
    rules = [f"  - {{{', '.join(clauses)}}}"]
    if through:
        log = f"table: {through.partition('.')[2]}, operations: [append], partitions: [{{_agent: [{name}]}}]"
        rules.append(f"  - {{{log}, blind_appends: true}}")
    return f"version: 1\nagent: {name}\ntables:\n" + "\n".join(rules) + "\n"


def job_contract(lake: Lake) -> str:
    """The contract of the mediator or the collector."""
    table = lake.table.partition(".")[2]
    return (
        f"version: 1\nagent: {JOB}\nrole: pipeline\ntables:\n"
        f"  - {{table: {table}, operations: [append, overwrite], partitions: all}}\n"
        f"  - {{table: {lake.namespace}_system.*, operations: [create, append, overwrite], partitions: all}}\n"
        f"reads: [{lake.namespace}.*, {lake.namespace}_system.*]\n"
    )


def stored(place: Place, lake: Lake, principal: str) -> Stored:
    """What the run has left. Reading waits for storage as the agents' reading does."""
    spark = place.session(lake)
    counts = {
        row[0]: row[1] for row in spark.sql(f"SELECT content, count(*) FROM {lake.table}.files GROUP BY 1").collect()
    }
    reader = place.session(lake, principal)
    times: list[float] = []
    for _ in range(1 + READS):
        began_s = time.monotonic()
        reader.table(lake.table).write.format("noop").mode("overwrite").save()
        times.append((time.monotonic() - began_s) * 1000)
    its = (lake.namespace, f"{lake.namespace}_system")
    files = sum(
        1
        for folder in lake.folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".crc" and any(part in its for part in path.parts)
    )
    return Stored(counts.get(0, 0), sum(counts.values()) - counts.get(0, 0), files, statistics.median(times[1:]))

"""Maintenance of a catalog: what is due is done and recorded once, whoever is killed, and nobody's rows are lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from icetower.contracts.document import load
from icetower.pipelines.dedup import Target, validate
from icetower.pipelines.maintenance import Job, Report, maintain
from icetower.pipelines.maintenance_record import COMMITS_COUNTED, COMMITS_READ, Record
from icetower.pipelines.tables import iceberg_table, load_metadata
from icetower.protocol.names import Identifier
from tests.pages.page_blocks import blocks_of
from tests.pipelines.clocks import Later
from tests.pipelines.wal_world import Crash, World, crash_at

pytestmark = pytest.mark.spark

HOUR_S = 3600
EXPIRES = "'history.expire.max-snapshot-age-ms' = '1000'"
KEPT = "'maintenance.quiet-ms' = '1'"


class Tables:
    """Tables in a namespace of their own, and a job on them alone."""

    def __init__(self, spark: SparkSession, namespace: str) -> None:
        self.spark = spark
        self.namespace = namespace
        self.job = Job(system=f"{namespace}_system", tables=())

    def create(self, name: str, partitions: str, *properties: str, version: int = 3) -> str:
        table = f"{self.namespace}.{name}"
        kept = () if "quiet" in "".join(properties) else (KEPT,)
        listed = ", ".join((f"'format-version' = '{version}'", *kept, *properties))
        self.spark.sql(
            f"CREATE TABLE {table} (id BIGINT, at TIMESTAMP, region STRING) USING iceberg {partitions} "
            f"TBLPROPERTIES ({listed})"
        )
        self.job = replace(self.job, tables=(*(self.job.tables or ()), Identifier.parse(table.partition(".")[2])))
        return table

    def insert(self, table: str, *rows: tuple[int, str, str], times: int = 1) -> None:
        values = ", ".join(f"({i}, timestamp'{at}', {region})" for i, at, region in rows)
        for _ in range(times):
            self.spark.sql(f"INSERT INTO {table} VALUES {values}")

    def run(self, hours: float = 0.0, after: Callable[[str], None] | None = None, **changes: Any) -> Report:
        job = replace(self.job, **changes)
        options: dict[str, Any] = {"ambient": Later(int(hours * HOUR_S))}
        if after is not None:
            options["after"] = after
        report = maintain(self.spark, job, **options)
        assert not report.failures, report.failures
        return report

    def ids(self, table: str) -> list[int]:
        return sorted(row.id for row in self.spark.table(table).select("id").collect())

    def files(self, table: str) -> int:
        return self.spark.table(f"{table}.data_files").count()

    def runs(self) -> list[Any]:
        return self.spark.table(f"{self.job.system}.maintenance_runs").orderBy("at").collect()


@pytest.fixture
def tables(spark: SparkSession, fresh: Callable[[], str]) -> Tables:
    return Tables(spark, fresh())


def done(report: Report) -> list[tuple[str, str]]:
    return [(each.table_name.rpartition(".")[2], each.task) for each in report.entries]


def test_small_files_become_one_in_the_partitions_that_are_due_and_all_of_it_is_recorded(tables: Tables) -> None:
    """Whatever the partitions are by: the filter names exactly those that are due."""
    sales = tables.create("sales", "PARTITIONED BY (days(at), bucket(4, id), region)")
    plain = tables.create("plain", "")
    hours = tables.create("hours", "PARTITIONED BY (hours(at), truncate(2, region))")
    small = tables.create("left", "", "'maintenance.enabled' = 'false'")
    tables.insert(sales, (1, "2026-01-02 03:00:00", "'it''s'"), (2, "2026-01-02 03:00:00", "NULL"), times=5)
    tables.insert(sales, (3, "2026-01-03 03:00:00", "'eu'"), times=2)
    for table in (plain, small):
        tables.insert(table, (1, "2026-01-02 03:00:00", "'eu'"), times=5)
    tables.insert(hours, (1, "2026-01-02 03:10:00", "'europe'"), (2, "2026-01-02 04:10:00", "'asia'"), times=5)
    before = {table: tables.ids(table) for table in (sales, plain, hours, small)}
    report = tables.run(1.0)
    tasks = [each for each in done(report) if each[1] == "compact"]
    assert sorted({table for table, _ in tasks}) == ["hours", "plain", "sales"]
    assert {table: tables.ids(table) for table in before} == before
    assert [tables.files(table) for table in (sales, plain, hours, small)] == [4, 1, 2, 5]
    runs = {(row.table_name.rpartition(".")[2], row.task): row for row in tables.runs()}
    row = runs["plain", "compact"]
    assert (row.files_before, row.files_after, row.conflicts) == (5, 1, None)
    assert row.bytes_before > row.bytes_after > 0
    assert row.snapshot_id == load_metadata(tables.spark, plain)["current-snapshot-id"]
    again = tables.run(2.0)
    assert not again.entries, again.entries
    assert len(tables.runs()) == len(report.entries)


def test_with_nothing_new_no_table_is_read(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first statement in a Spark that has just started takes seconds."""
    table = tables.create("t", "PARTITIONED BY (region)")
    tables.insert(table, (1, "2026-01-01 00:00:00", "'north'"), times=6)
    assert ("t", "compact") in done(tables.run(1.0))

    def reads(*_: object) -> None:
        raise AssertionError("it reads a table")

    for name in ("known", "unfinished", "scans", "count_refused"):
        monkeypatch.setattr(Record, name, reads)
    assert done(tables.run(2.0)) == []


def test_what_was_counted_is_noted_where_nothing_has_changed(tables: Tables) -> None:
    """Else every run would count it again."""
    table = tables.create("t", "PARTITIONED BY (region)")
    tables.insert(table, (1, "2026-01-01 00:00:00", "'north'"), times=6)
    tables.run(1.0)
    commits = f"{tables.job.system}.iceberg_commits"
    tables.spark.sql(f"CREATE TABLE {commits} ({COMMITS_COUNTED}) USING iceberg")
    tables.spark.sql(f"INSERT INTO {commits} VALUES (current_timestamp(), 'a.b', 'conflict', 'snapshot 1 came first')")
    record = Record(tables.spark, tables.job.system)
    assert record.count_refused(commits, int(time.time() * 1000), {COMMITS_READ: "17"}) == []
    assert load_metadata(tables.spark, record.runs)["snapshots"][-1]["summary"][COMMITS_READ] == "17"


def test_a_table_that_is_deduplicated_is_no_log(tables: Tables) -> None:
    table = tables.create("t", "", "'maintenance.keep-ms' = '60000'")
    tables.spark.sql(f"ALTER TABLE {table} ADD COLUMN _idempotency_key STRING")
    for number in range(6):
        tables.spark.sql(f"INSERT INTO {table} VALUES ({number}, timestamp'2026-01-02 03:00:00', 'eu', 'k{number}')")
    validate(tables.spark, Target(table, tables.job.system))
    assert ("t", "compact") in done(tables.run(30.0))
    assert not [each for each in done(tables.run(60.0)) if each == ("t", "prune")]
    assert tables.ids(table) == [*range(6)]


def test_a_partition_that_was_just_written_is_left_until_it_is_quiet(tables: Tables) -> None:
    table = tables.create("t", "PARTITIONED BY (region)", "'maintenance.quiet-ms' = '600000'")
    tables.insert(table, (1, "2026-01-02 03:00:00", "'eu'"), times=5)
    assert not [each for each in done(tables.run()) if each[1] == "compact"]
    assert ("t", "compact") in done(tables.run(1.0))


def test_deletes_manifests_and_snapshots_go_when_they_are_due(tables: Tables) -> None:
    modes = ", ".join(f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge"))
    vectors = tables.create("vectors", "PARTITIONED BY (region)", modes, "'maintenance.files-min' = '2'")
    old = tables.create(
        "old", "", modes, "'maintenance.files-min' = '2'", "'write.delete.granularity' = 'partition'", version=2
    )
    manifests = tables.create(
        "manifests", "", "'maintenance.files-min' = '100'", "'commit.manifest.min-count-to-merge' = '4'",
        "'commit.manifest-merge.enabled' = 'false'", "'history.expire.max-snapshot-age-ms' = '1800000'",
    )  # fmt: skip
    for table in (vectors, old):
        rows = ", ".join(f"({i}, timestamp'2026-01-02 03:00:00', 'r{i % 2}')" for i in range(20))
        tables.spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows} AS v(id, at, region)")
    tables.spark.sql(f"INSERT INTO {vectors} VALUES (20, timestamp'2026-01-02 03:00:00', 'r0')")
    tables.spark.sql(f"DELETE FROM {vectors} WHERE id IN (2, 20, 3)")
    for number in range(2):
        tables.spark.sql(f"DELETE FROM {old} WHERE id = {number}")
    tables.insert(manifests, (1, "2026-01-02 03:00:00", "'eu'"), times=5)
    tables.spark.sql(
        f"ALTER TABLE {manifests} CREATE TAG first AS OF VERSION "
        f"{load_metadata(tables.spark, manifests)['snapshots'][0]['snapshot-id']}"
    )
    report = tables.run(1.0)
    assert [each for each in done(report) if each[1] != "orphans"] == [
        ("manifests", "manifests"), ("manifests", "expire"), ("old", "deletes"), ("vectors", "compact"),
    ]  # fmt: skip
    assert tables.ids(vectors) == [i for i in range(20) if i not in (2, 3)]
    assert tables.ids(old) == [*range(2, 20)]
    assert tables.spark.table(f"{vectors}.delete_files").count() <= 1
    assert tables.spark.table(f"{old}.delete_files").count() == 1
    runs = {(row.table_name.rpartition(".")[2], row.task): row for row in tables.runs()}
    row = runs["manifests", "manifests"]
    assert (row.manifests_before, row.manifests_after) == (5, 1)
    assert runs["manifests", "expire"].snapshots_expired == 4
    assert len(load_metadata(tables.spark, manifests)["snapshots"]) == 2
    assert tables.ids(f"{manifests} VERSION AS OF 'first'".split(" ")[0]) == [1] * 5
    assert not tables.run(1.1).entries


def test_only_what_its_own_contract_grants_is_done(tables: Tables) -> None:
    table = tables.create("t", "")
    tables.insert(table, (1, "2026-01-02 03:00:00", "'eu'"), times=5)
    rule = f"{{table: {tables.namespace.partition('.')[2]}.t, operations: [replace], partitions: [{{region: [eu]}}]}}"
    own = load(f"version: 1\nagent: m\nrole: maintenance\ntables: [{rule}]\n", source="test")
    assert done(tables.run(1.0, own=own)) == [("t", "orphans")]
    assert tables.files(table) == 5


@pytest.mark.parametrize("step", ["loaded", "compact", "manifests", "expiring", "expire", "recorded"])
def test_killed_at_a_stage_and_run_again_it_is_all_done_and_recorded_once(tables: Tables, step: str) -> None:
    table = tables.create(
        "t", "", "'commit.manifest.min-count-to-merge' = '4'", "'commit.manifest-merge.enabled' = 'false'",
        "'history.expire.max-snapshot-age-ms' = '1800000'",
    )  # fmt: skip
    for number in range(6):
        tables.insert(table, (number, "2026-01-02 03:00:00", "'eu'"))
    with pytest.raises(Crash):
        tables.run(1.0, after=crash_at(step))
    tables.run(1.001)
    runs = [row for row in tables.runs() if row.table_name.endswith(".t")]
    assert sorted(row.task for row in runs) == ["compact", "expire", "manifests", "orphans"]
    assert all(row.expiring is None for row in runs)
    assert sum(row.snapshots_expired or 0 for row in runs) == 7
    assert tables.ids(table) == [*range(6)]
    assert not tables.run(1.002).entries


# ------------------------------------------------------------------------------------------------- logs, system tables


def test_rows_go_by_age_and_none_that_somebody_needs(spark: SparkSession, fresh: Callable[[], str]) -> None:
    world = World(spark, fresh())
    target, log, system = (name.partition(".")[2] for name in (world.target, world.wal, world.system))
    job = Job(system=world.system, tables=[Identifier.parse(name) for name in (target, log)])
    names = ("agent_dedup_log", "wal_rejections", "wal_mediations", "maintenance_runs")
    everything = replace(job, tables=[*(job.tables or ()), *(Identifier.parse(f"{system}.{name}") for name in names)])

    def run(days: float, wanted: Job = everything) -> list[tuple[str, str, int | None]]:
        report = maintain(spark, wanted, ambient=Later(int(days * 24 * HOUR_S)))
        assert not report.failures, report.failures
        return [(each.table_name.rpartition(".")[2], each.task, each.rows_pruned) for each in report.entries]

    def sizes() -> list[int]:
        return [len(world.log(name)) for name in names[:3]]

    world.append((1, 1, "k1", "web"), (2, 2, "k2", "till"))
    world.append((3, 3, "k3", "web"))  # is rejected
    world.run()
    world.append((4, 1, "k4", "web"))
    assert not [each for each in run(40, job) if each[1] == "prune"]  # nobody asked for it
    spark.sql(f"ALTER TABLE {world.wal} SET TBLPROPERTIES ('maintenance.keep-ms' = '3600000', {EXPIRES})")
    found = run(40.1)
    assert ("wal", "prune", 3) in found
    assert [row.id for row in spark.table(world.wal).collect()] == [4]
    # The newest file of each stays, and so does a batch that the target's history has.
    assert sizes() == [2, 1, 1]
    assert (world.run().read, world.ids()) == (1, [1, 2, 4])
    assert sizes() == [3, 1, 2]
    found = run(40.15)
    assert [each for each in found if each[1] == "prune"] == [("wal", "prune", 1)]
    assert ("wal", "expire", None) in found  # of what the target has read; the mediator reads on below
    assert sizes() == [3, 1, 2]  # keys stay, until somebody says how long
    spark.sql(f"ALTER TABLE {world.system}.agent_dedup_log SET TBLPROPERTIES ('maintenance.keep-ms' = '86400000')")
    found = run(40.2)
    assert [each for each in found if each[1] == "prune"] == [("agent_dedup_log", "prune", 2)]
    assert sizes() == [1, 1, 2]
    # What the target has let go, but for the last batch, nobody needs.
    iceberg_table(spark, world.target).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    assert [each for each in run(41) if each[1] == "prune"] == [("wal_mediations", "prune", 1)]
    world.append((5, 2, "k5", "web"), (4, 1, "k4", "web"))
    assert (world.run().applied, world.ids()) == (1, [1, 2, 4, 5])


# ------------------------------------------------------------------------------------------------------------- orphans

CLEANS = """version: 1
agent: web
tables: [{table: '**', operations: [append], partitions: all}]
orphans: {detect_every: 1h, older_than: 1h, action: delete}
"""


def test_orphans_are_recorded_with_what_became_of_them(tables: Tables) -> None:
    table = tables.create("t", "PARTITIONED BY (region)")
    tables.insert(table, (1, "2026-01-02 03:00:00", "'eu'"))
    data = Path(urlparse(load_metadata(tables.spark, table)["location"]).path) / "data"
    for path in (data / "web" / "x.parquet", data / "till" / "y.parquet", data / "till" / "z.parquet"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
    contracts = {"web": load(CLEANS, source="test")}

    def fates() -> dict[str, tuple[str | None, str | None, str]]:
        rows = tables.spark.table(f"{tables.job.system}.iceberg_orphan_files").collect()
        return {Path(row.path).name: (row.principal, row.contract, row.fate) for row in rows}

    with pytest.raises(Crash):
        tables.run(100.0, after=crash_at("found"), contracts=contracts)
    till = ("till", None, "reported")
    assert fates() == {"x.parquet": ("web", "web", "deleting"), "y.parquet": till, "z.parquet": till}
    with pytest.raises(Crash):
        tables.run(100.1, after=crash_at("deleted"), contracts=contracts)
    assert not (data / "web" / "x.parquet").exists()
    (data / "till" / "z.parquet").unlink()
    report = tables.run(100.2, contracts=contracts)
    (row,) = (each for each in report.entries if each.task == "orphans")
    assert (row.orphans_found, row.orphans_deleted) == (1, 0)
    assert fates() == {
        "x.parquet": ("web", "web", "deleted"), "y.parquet": till, "z.parquet": ("till", None, "gone"),
    }  # fmt: skip
    assert not tables.run(100.5, contracts=contracts).entries  # the next scan is due after an hour
    assert done(tables.run(101.3, contracts=contracts)) == [("t", "orphans")]
    assert tables.ids(table) == [1]
    (block,) = (each for each in blocks_of("docs/maintenance.md") if each.language == "sql")
    found = tables.spark.sql(block.text.replace("tower.system", tables.job.system)).collect()
    assert [(row.agent, row.files, row.bytes) for row in found] == [("till", 1, 5)]

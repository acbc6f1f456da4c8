"""Maintenance while tables, and its own record, change: before a run, and between its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines.maintenance import Job, maintain
from icetower.pipelines.tables import load_metadata
from icetower.protocol.names import Identifier
from tests.pipelines.clocks import Later
from tests.pipelines.evolution import BEFORE, Change, alter, rule_of
from tests.pipelines.test_maintenance import EXPIRES, HOUR_S, Tables
from tests.pipelines.wal_world import World, once

pytestmark = pytest.mark.spark

STEPS = [BEFORE, "loaded", "compact", "manifests", "expiring", "expire", "found", "deleted", "recorded"]
ALL = ["id", "at", "region", "n", "place"]

CHANGES = {
    "a column more": Change(("{t} ADD COLUMN more STRING",)),
    "a column less": Change(("{t} DROP COLUMN n",), names={"n": ""}),
    "a column of another name": Change(("{t} RENAME COLUMN region TO place_of",), names={"region": "place_of"}),
    "a wider type": Change(("{t} ALTER COLUMN n TYPE BIGINT",)),
    "columns in another order": Change(("{t} ALTER COLUMN place FIRST",)),
    "a nested field more": Change(("{t} ADD COLUMN place.floor INT",)),
    "a partition field more": Change(("{t} ADD PARTITION FIELD bucket(4, id)",)),
    "hours in place of days": Change(("{t} REPLACE PARTITION FIELD at_day WITH hours(at)",)),
    "a partition field less": Change(("{t} DROP PARTITION FIELD region",)),
    "no partition field": Change(("{t} DROP PARTITION FIELD region", "{t} DROP PARTITION FIELD at_day")),
    "neither a partition field nor its column": Change(
        ("{t} DROP PARTITION FIELD region", "{t} DROP COLUMN region"), names={"region": ""}
    ),
    "a sort order": Change(("{t} WRITE ORDERED BY id",)),
    "format version 3": Change(("{t} SET TBLPROPERTIES ('format-version' = '3')",)),
    "columns of the record more": Change(
        ("{runs} ADD COLUMN more STRING FIRST", "{orphans} ADD COLUMN more STRING FIRST")
    ),
    "a column of the runs of another name": Change(
        ("{runs} RENAME COLUMN expiring TO going",), ("{runs} RENAME COLUMN going TO expiring",), "system.columns"
    ),
    "the entries of the runs under another name": Change(
        ("{runs} RENAME COLUMN entry TO name",), ("{runs} RENAME COLUMN name TO entry",), "system.columns"
    ),
    "a column of the orphans of another name": Change(
        ("{orphans} RENAME COLUMN fate TO end",), ("{orphans} RENAME COLUMN end TO fate",), "system.columns"
    ),
    "partitions of the record by another field": Change(
        ("{runs} REPLACE PARTITION FIELD at_day WITH bucket(2, entry)",)
    ),
    "format version 3 of the record": Change(("{runs} SET TBLPROPERTIES ('format-version' = '3')",)),
}
FULL = ("neither a partition field nor its column", "loaded", 2)
MATRIX = [
    ("hours in place of days", "loaded", 3),
    ("a column of the runs of another name", "expiring", 3),
    ("columns of the record more", "found", 2),
    *(
        (name, STEPS[at % len(STEPS)], 2 + number % 2)
        for number, name in enumerate(CHANGES)
        for at in (number, number + 5)
    ),
]


class Evolving(Tables):
    def __init__(self, spark: SparkSession, namespace: str, version: int) -> None:
        super().__init__(spark, namespace)
        modes = ", ".join(f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge"))
        more = (
            modes, "'maintenance.files-min' = '2'", "'commit.manifest.min-count-to-merge' = '4'",
            "'commit.manifest-merge.enabled' = 'false'", "'history.expire.max-snapshot-age-ms' = '1800000'",
        )  # fmt: skip
        self.table = self.create("t", "PARTITIONED BY (region, days(at))", *more, version=version)
        spark.sql(f"ALTER TABLE {self.table} ADD COLUMNS (n INT, place STRUCT<shop: INT>)")
        record = {"runs": f"{self.job.system}.maintenance_runs", "orphans": f"{self.job.system}.iceberg_orphan_files"}
        self.tables = {"t": self.table, **record}
        self.wanted: dict[int, dict[str, Any]] = {}

    def grow(self, change: Change, *ids: int) -> None:
        """A commit for each row, into the columns that there are, whatever they are called."""
        there = self.spark.table(self.table).schema.fields
        for i in ids:
            at, region, n, shop = f"2026-01-0{i % 2 + 1} 03:00:00", "eu" if i % 3 else "us", i * 10, i
            known = {"id": str(i), "at": f"timestamp'{at}'", "region": f"'{region}'", "n": str(n)}
            known["place_of"] = known["region"]
            known["place"] = f"named_struct('shop', {shop})"
            if any(each.name == "place" and "floor" in each.dataType.simpleString() for each in there):
                known["place"] = f"named_struct('shop', {shop}, 'floor', 1)"
            values = ", ".join(known.get(each.name, "NULL") for each in there)
            self.spark.sql(f"INSERT INTO {self.table} VALUES ({values})")
            row = {"id": i, "at": at, "region": region, "n": n, "place": shop}
            self.wanted[i] = row

    def forget(self, i: int) -> None:
        self.spark.sql(f"DELETE FROM {self.table} WHERE id = {i}")
        del self.wanted[i]

    def attempt(self, hours: float, after: Callable[[str], None] = lambda _: None) -> set[str | None]:
        """The rules by which the run, or a task of it, was refused."""
        rules: set[str | None] = set()

        def work() -> None:
            report = maintain(self.spark, self.job, ambient=Later(int(hours * HOUR_S)), after=after)
            rules.update(each.error.rule for each in report.failures)

        return (rules | {rule_of(work)}) - {None}

    def check(self, change: Change) -> None:
        named = {name: change.names.get(name, name) for name in ALL}
        of = {"at": "date_format({}, 'yyyy-MM-dd HH:mm:ss')", "place": "{}.shop", "n": "CAST({} AS INT)"}
        shown = [of.get(name, "{}").format(now) for name, now in named.items() if now]
        rows = self.spark.table(self.table).selectExpr(*shown).collect()
        wanted = [tuple(row[name] for name, now in named.items() if now) for _, row in sorted(self.wanted.items())]
        assert sorted(tuple(row) for row in rows) == wanted


@pytest.mark.parametrize(
    ("name", "step", "version"),
    [FULL, *(pytest.param(*each, marks=pytest.mark.matrix) for each in dict.fromkeys(MATRIX) if each != FULL)],
)
def test_what_changes_under_a_run_loses_no_row_and_is_recorded_once(
    spark: SparkSession, fresh: Callable[[], str], name: str, step: str, version: int
) -> None:
    place, change = Evolving(spark, fresh(), version), CHANGES[name]
    for table in ("", "x"):  # so that the record is there
        place.create(f"other{table}", "")
    assert place.attempt(0.0) == set()
    place.grow(Change(()), *range(1, 9))
    place.forget(3)
    rules: set[str | None] = set()
    if step == BEFORE:
        alter(spark, change.under_way, place.tables)
        rules |= place.attempt(25.0)
        assert rules == {change.refused} - {None}
    else:
        reached: list[str] = []
        hook = once(step, lambda: (alter(spark, change.under_way, place.tables), reached.append(step)))
        rules |= place.attempt(25.0, hook)  # orphans are looked for after a day
        assert reached == [step]
    place.grow(change, 9, 10)
    rules |= place.attempt(26.0)
    assert rules <= {change.refused}
    alter(spark, change.after, place.tables)
    place.grow(change, 11, 12)
    assert place.attempt(51.0) == set()
    assert place.attempt(51.1) == set()
    place.check(change)
    runs = place.runs()
    assert len({row.entry for row in runs}) == len(runs)
    metadata = load_metadata(spark, place.table)
    assert {s["snapshot-id"] for s in metadata["snapshots"] if "maintenance.task" in s["summary"]} <= {
        row.snapshot_id for row in runs
    }
    assert all(row.expiring is None for row in runs)


@pytest.mark.parametrize("kind", ["BIGINT", pytest.param("STRING", marks=pytest.mark.matrix)])
def test_rows_go_by_no_column_but_one_of_times(spark: SparkSession, fresh: Callable[[], str], kind: str) -> None:
    """Numbers, read as times, would be of 1970."""
    namespace = fresh()
    table = f"{namespace}.agent_write_metrics"
    spark.sql(f"CREATE TABLE {table} (attempts BIGINT, window_start {kind}) USING iceberg")
    for number in (1, 2):
        spark.sql(f"INSERT INTO {table} SELECT {number}, CAST({number} AS {kind})")
    job = Job(system=namespace, tables=[Identifier.parse(table.partition(".")[2])])
    (failure,) = maintain(spark, job, ambient=Later(HOUR_S)).failures
    assert (failure.error.rule, spark.table(table).count()) == ("system.columns", 2)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('maintenance.keep-ms' = '0')")  # as it was told
    assert maintain(spark, job, ambient=Later(HOUR_S)).failures == ()


LOGS = {
    "{mediations} RENAME COLUMN wal_uuid TO w": "{mediations} RENAME COLUMN w TO wal_uuid",
    "{mediations} RENAME COLUMN committed_at TO c": "{mediations} RENAME COLUMN c TO committed_at",
    "{keys} REPLACE PARTITION FIELD committed_at_day WITH bucket(2, idempotency_key)": "",
    "{wal} RENAME COLUMN amount TO price": "{wal} RENAME COLUMN price TO amount",
    "{wal} ADD PARTITION FIELD bucket(2, id)": "",
}


@pytest.mark.parametrize(
    "statement", [name if not at else pytest.param(name, marks=pytest.mark.matrix) for at, name in enumerate(LOGS)]
)
@pytest.mark.parametrize("step", ["loaded", pytest.param(BEFORE, marks=pytest.mark.matrix)])
def test_logs_that_change_lose_no_row_that_somebody_needs(
    spark: SparkSession, fresh: Callable[[], str], statement: str, step: str
) -> None:
    world = World(spark, fresh())
    names = {
        "wal": world.wal,
        "mediations": f"{world.system}.wal_mediations",
        "keys": f"{world.system}.agent_dedup_log",
    }
    job = Job(system=world.system, tables=[Identifier.parse(name.partition(".")[2]) for name in names.values()])
    world.append((1, 1, "k1", "web"), (2, 2, "k2", "till"))
    world.run()
    world.append((4, 1, "k4", "web"))
    for table in (world.wal, names["keys"]):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('maintenance.keep-ms' = '3600000', {EXPIRES})")

    def change() -> None:
        alter(spark, (statement,), names)

    if step == BEFORE:
        change()
    hook = once(step, change)
    rules = {each.error.rule for each in maintain(spark, job, ambient=Later(40 * 24 * HOUR_S), after=hook).failures}
    assert rules <= {"system.columns"}
    if LOGS[statement]:
        alter(spark, (LOGS[statement],), names)
    assert maintain(spark, job, ambient=Later(41 * 24 * HOUR_S)).failures == ()
    assert [row.id for row in spark.table(world.wal).collect()] == [4]
    world.append((1, 1, "k4", "web"), (5, 2, "k5", "till"))
    while world.run().status != "idle":
        pass
    assert world.ids() == [1, 2, 4, 5]

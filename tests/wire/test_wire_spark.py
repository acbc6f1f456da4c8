"""Spark through the tower, with PyIceberg beside it: what one engine was told, the other finds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icetower.pipelines.session import spark_session
from tests.wire import pyiceberg_writers as writers
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

CATALOG = "wire"
BLIND = {"icetower.blind-appends": "true"}
COLUMNS = "(id BIGINT, owner STRING, value BIGINT)"


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "wire-tests",
        catalog_uri=tower.uri,
        catalog_name=CATALOG,
        token=tower.secret,
        settings={
            "spark.master": "local[4]",
            "spark.driver.memory": "2g",
            **LIGHT,
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        },
    )
    # Not when it starts: the JVM keeps those settings for the sessions of other modules.
    session.conf.set("spark.sql.defaultCatalog", CATALOG)
    yield session
    session.stop()


class Spark:
    """A table of a test's own, in SQL: `{t}` stands for its name."""

    def __init__(self, session: SparkSession, namespace: str) -> None:
        self.session = session
        self.short = f"{namespace}.t"
        self.table = f"{CATALOG}.{self.short}"

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(text.replace("{t}", self.table)).collect()]

    def create(self, partitioned: str = "", **properties: str) -> None:
        """`properties`: as the table has them, with format version 2 where none is asked for."""
        listed = ", ".join(f"'{key}'='{value}'" for key, value in ({"format-version": "2"} | properties).items())
        self.sql(f"CREATE TABLE {{t}} {COLUMNS} USING iceberg {partitioned} TBLPROPERTIES ({listed})")

    def ids(self, source: str = "{t}") -> list[int]:
        return sorted(row[0] for row in self.sql(f"SELECT id FROM {source}"))

    def head(self) -> int:
        return self.sql("SELECT snapshot_id FROM {t}.refs WHERE name = 'main'")[0][0]

    def race(self, *statements: str) -> list[Exception | None]:
        """All at once, each in its own thread; what became of each."""
        start = Barrier(len(statements))

        def run(statement: str) -> Exception | None:
            start.wait(60)
            try:
                self.sql(statement)
            except Exception as error:  # noqa: BLE001 - what came of it is judged by the test
                return error
            return None

        with ThreadPoolExecutor(len(statements)) as threads:
            return list(threads.map(run, statements))

    @contextmanager
    def setting(self, key: str, value: str) -> Iterator[None]:
        self.session.conf.set(key, value)
        try:
            yield
        finally:
            self.session.conf.unset(key)


@pytest.fixture
def t(spark: SparkSession, namespace: str) -> Spark:
    return Spark(spark, namespace)


def inserts(count: int, first: int = 0) -> list[str]:
    return [f"INSERT INTO {{t}} VALUES ({first + n}, 'spark', {n})" for n in range(count)]


def refused_as_stale(errors: list[Exception | None]) -> int:
    """How many were refused; for no other reason than that somebody else was faster."""
    refused = [str(error) for error in errors if error is not None]
    for message in refused:
        assert any(word in message for word in ("CommitFailedException", "ValidationException", "onflict")), message
    return len(refused)


# -- many writers of both engines -------------------------------------------------------------------------------------


def test_spark_and_pyiceberg_write_together(
    tower: TowerProcess, catalog: Catalog, t: Spark, namespace: str, crew: ProcessPoolExecutor
) -> None:
    """Every acknowledged row is there and no other, read back by the other engine; blind appends without a retry."""
    t.create(**BLIND)
    owned = f"{namespace}.owned"
    t.sql(f"CREATE TABLE {CATALOG}.{owned} {COLUMNS} USING iceberg")
    t.sql(f"INSERT INTO {CATALOG}.{owned} VALUES (7, 'nobody', 0)")
    appending = [crew.submit(writers.append, tower.uri, tower.secret, t.short, n, 3) for n in range(1, 9)]
    changing = [
        crew.submit(kind, tower.uri, tower.secret, owned, n, 2, together=False)
        for n, kind in ((11, writers.overwrite), (12, writers.upsert))
    ]
    spark_ids = list(range(200_000, 200_006))
    for first in (200_000, 200_006):
        assert t.race(*inserts(6, first)) == [None] * 6
    spark_ids += range(200_006, 200_012)
    appended = [future.result(120) for future in appending]
    changed = [future.result(120) for future in changing]

    assert [work.statuses for work in appended] == [[200] * 3] * 8
    expected = sorted([*spark_ids, *(row for work in appended for row in work.acknowledged)])
    assert t.ids() == expected
    assert t.sql("SELECT count(*) FROM {t}") == [(len(expected),)]  # answered from the manifests, without reading a row
    assert sorted(catalog.load_table(t.short).scan().to_arrow()["id"].to_pylist()) == expected
    assert set(tower.outcomes(t.short)) == {"direct", "rebased"}
    pairs = {7: 0} | {key: value for work in changed for key, value in work.acknowledged.items()}
    assert sorted(t.sql(f"SELECT id, value FROM {CATALOG}.{owned}")) == sorted(pairs.items())


@pytest.mark.parametrize(
    "properties",
    [{"format-version": "2"}, {"format-version": "3", "write.merge.mode": "merge-on-read"}],
    ids=["v2", "v3"],
)
def test_trap_r1_concurrent_merges_of_the_same_new_keys_equal_some_serial_order(
    t: Spark, properties: dict[str, str]
) -> None:
    """Each MERGE only inserts when it is first, and is recorded as an append; its summary is not to be believed.

    Adding one to what is there, the merges commute: after k of them, in any order, every key stands once, at k.
    """
    t.create(**properties)
    merge = (
        "MERGE INTO {t} USING (SELECT id FROM range(50)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET value = t.value + 1 "
        "WHEN NOT MATCHED THEN INSERT (id, owner, value) VALUES (s.id, 'merge', 1)"
    ).replace("{t}", "{t} t")
    errors = t.race(*[merge] * 4)
    done = 4 - refused_as_stale(errors)
    assert done >= 1
    assert sorted(t.sql("SELECT id, value FROM {t}")) == [(key, done) for key in range(50)]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_trap_r3_two_overwrites_of_one_empty_partition_leave_one(t: Spark, mode: str) -> None:
    """A predicate is no list of files: neither removes any, yet the second must replace the first."""
    t.create("PARTITIONED BY (owner)", **BLIND)
    overwrite = "INSERT OVERWRITE {t} PARTITION (owner = 'north') SELECT id, id FROM range(10)"
    with t.setting("spark.sql.sources.partitionOverwriteMode", mode):
        errors = t.race(overwrite, overwrite)
    assert refused_as_stale(errors) <= 1
    assert t.ids() == list(range(10))


def test_trap_r4_merged_manifests_bring_nothing_twice(t: Spark) -> None:
    """With two manifests merged into one at every commit, each insert's manifest names the rows of others, too."""
    t.create(**{"commit.manifest.min-count-to-merge": "2"})
    for first in (0, 6):
        assert t.race(*inserts(6, first)) == [None] * 6
    assert t.ids() == list(range(12))
    assert t.sql("SELECT count(*) FROM {t}") == [(12,)]


def test_trap_s2_row_ids_stay_unique_across_an_upgrade_and_rebases(t: Spark, tower: TowerProcess) -> None:
    t.create()
    assert t.race(*inserts(4)) == [None] * 4
    t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")
    for first in (4, 8):
        assert t.race(*inserts(4, first)) == [None] * 4
    found = t.sql("SELECT id, _row_id FROM {t}")
    assert sorted(row[0] for row in found) == list(range(12))
    assert None not in {row[1] for row in found}
    assert len({row[1] for row in found}) == 12
    with tower.client() as http:
        metadata = http.get(f"/v1/namespaces/{t.short.split('.')[0]}/tables/t").json()["metadata"]
    assert metadata["format-version"] == 3
    assert metadata["next-row-id"] > max(row[1] for row in found)


def test_trap_s4_a_stream_sees_every_row_once(t: Spark, tmp_path: Path) -> None:
    """Readers of changes look for ADDED entries in manifests of the snapshot's own."""
    t.create(**BLIND)
    t.sql("INSERT INTO {t} VALUES (-1, 'first', 0)")
    first = t.head()
    assert t.race(*inserts(6)) == [None] * 6
    seen: list[int] = []
    for _ in range(2):
        stream = (
            t.session.readStream.format("iceberg")
            .load(t.table)
            .writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert stream.awaitTermination(60)
        if len(seen) == 7:
            assert t.race(*inserts(3, 6)) == [None] * 3
    assert sorted(seen) == list(range(-1, 9))
    since = t.session.read.format("iceberg").option("start-snapshot-id", str(first)).load(t.table)
    assert sorted(row.id for row in since.collect()) == list(range(9))


# -- every statement --------------------------------------------------------------------------------------------------


def test_tables_are_created_and_replaced_from_a_query(t: Spark, catalog: Catalog) -> None:
    t.sql("CREATE TABLE {t} USING iceberg AS SELECT id, 'a' AS owner FROM range(3)")
    first = t.head()
    t.sql("CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT id, 'b' AS owner, true AS checked FROM range(5)")
    assert t.ids() == [0, 1, 2, 3, 4]
    assert t.ids(f"{{t}} VERSION AS OF {first}") == [0, 1, 2]
    t.sql("REPLACE TABLE {t} USING iceberg AS SELECT id FROM range(2)")
    assert catalog.load_table(t.short).scan().to_arrow().to_pylist() == [{"id": 0}, {"id": 1}]


@pytest.mark.parametrize(("mode", "version"), [("copy-on-write", "2"), ("merge-on-read", "2"), ("merge-on-read", "3")])
def test_delete_update_and_merge(t: Spark, catalog: Catalog, mode: str, version: str) -> None:
    modes = {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    t.create(**{"format-version": version}, **modes)
    t.sql("INSERT INTO {t} SELECT id, 'a', 0 FROM range(10)")
    t.sql("DELETE FROM {t} WHERE id % 5 = 0")
    t.sql("UPDATE {t} SET value = 7 WHERE id IN (1, 2)")
    t.sql(
        "MERGE INTO {t} t USING (SELECT id FROM range(8, 12)) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, owner, value) VALUES (s.id, 'm', 1)"
    )
    expected = [(1, 7), (2, 7), (3, 0), (4, 0), (6, 0), (7, 0), (10, 1), (11, 1)]
    assert sorted(t.sql("SELECT id, value FROM {t}")) == expected
    assert t.sql("SELECT count(*) FROM {t}") == [(8,)]
    if version == "2":
        found = catalog.load_table(t.short).scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["value"]) for row in found) == expected


def test_branches_and_published_changes(t: Spark, catalog: Catalog) -> None:
    """Trap R7: what is staged stays where it is, until somebody publishes it."""
    t.create(**{"write.wap.enabled": "true"})
    t.sql("INSERT INTO {t} VALUES (1, 'main', 0)")
    t.sql("ALTER TABLE {t} CREATE BRANCH audit")
    t.sql("INSERT INTO {t}.branch_audit VALUES (2, 'audit', 0)")
    assert (t.ids(), t.ids("{t}.branch_audit")) == ([1], [1, 2])
    t.sql(f"CALL {CATALOG}.system.fast_forward('{t.short}', 'main', 'audit')")
    assert t.ids() == [1, 2]
    for name, row in (("w1", 3), ("w2", 4)):
        with t.setting("spark.wap.id", name):
            t.sql(f"INSERT INTO {{t}} VALUES ({row}, 'staged', 0)")
    assert t.ids() == [1, 2]
    staged = t.sql("SELECT snapshot_id FROM {t}.snapshots WHERE summary['wap.id'] = 'w1'")[0][0]
    t.sql("INSERT INTO {t} VALUES (5, 'between', 0)")
    t.sql(f"CALL {CATALOG}.system.cherrypick_snapshot('{t.short}', {staged})")
    t.sql(f"CALL {CATALOG}.system.publish_changes('{t.short}', 'w2')")
    assert t.ids() == [1, 2, 3, 4, 5]
    catalog.load_table(t.short).append(pa.table({"id": [6], "owner": ["py"], "value": [0]}), branch="audit")
    assert t.ids("{t}.branch_audit") == [1, 2, 6]


def test_maintenance(t: Spark, catalog: Catalog) -> None:
    t.create()
    for number in range(4):
        t.sql(f"INSERT INTO {{t}} VALUES ({number}, 'a', 0)")
    history = [row[0] for row in t.sql("SELECT snapshot_id FROM {t}.history ORDER BY made_current_at")]
    t.sql(f"CALL {CATALOG}.system.rollback_to_snapshot('{t.short}', {history[1]})")
    assert t.ids() == [0, 1]
    t.sql("INSERT INTO {t} VALUES (9, 'after', 0)")
    rewritten = t.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{t.short}', options => map('rewrite-all', 'true'))"
    )
    assert rewritten[0][:2] == (3, 1)
    t.sql(f"CALL {CATALOG}.system.rewrite_manifests('{t.short}')")
    t.sql(
        f"CALL {CATALOG}.system.expire_snapshots("
        f"table => '{t.short}', older_than => TIMESTAMP '2999-01-01', retain_last => 1)"
    )
    assert t.sql("SELECT count(*) FROM {t}.snapshots") == [(1,)]
    assert t.ids() == [0, 1, 9]
    assert sorted(catalog.load_table(t.short).scan().to_arrow()["id"].to_pylist()) == [0, 1, 9]


def test_a_schema_and_spec_that_evolve_under_inserts(t: Spark, catalog: Catalog) -> None:
    t.create()
    t.sql("INSERT INTO {t} VALUES (1, 'a', 0)")
    t.sql("ALTER TABLE {t} ADD COLUMN note STRING")
    t.sql("ALTER TABLE {t} ADD PARTITION FIELD owner")
    t.sql("INSERT INTO {t} VALUES (2, 'b', 0, 'new')")
    t.sql("ALTER TABLE {t} RENAME COLUMN value TO amount")
    t.sql("ALTER TABLE {t} DROP PARTITION FIELD owner")
    t.sql("INSERT INTO {t} VALUES (3, 'c', 0, 'newer')")
    expected = [(1, None), (2, "new"), (3, "newer")]
    assert sorted(t.sql("SELECT id, note FROM {t} WHERE amount = 0")) == expected
    found = catalog.load_table(t.short).scan("amount == 0").to_arrow().to_pylist()
    assert sorted((row["id"], row["note"]) for row in found) == expected


def test_an_agents_token_binds_spark_too(tower: TowerProcess, t: Spark) -> None:
    """The contract is checked against what Spark's manifests say; the message reaches the job's log."""
    t.create("PARTITIONED BY (owner)")
    secret = tower.principal(
        "spark-north",
        f"tables:\n  - table: {t.short}\n    operations: [overwrite]\n    partitions: [{{owner: north}}]\n",
    )
    for key, value in tower.admin.spark_properties("bound").items():
        t.session.conf.set(key, secret if key.endswith(".token") else value)
    t.session.sql(f"INSERT INTO bound.{t.short} VALUES (1, 'north', 0)").collect()
    with pytest.raises(Exception, match="owner=south"):
        t.session.sql(f"INSERT INTO bound.{t.short} VALUES (2, 'north', 0), (3, 'south', 0)").collect()
    assert t.ids() == [1]


# -- what Iceberg's client says of its commits ------------------------------------------------------------------------


def test_the_client_reports_how_often_it_sent_a_commit(tower: TowerProcess, t: Spark) -> None:
    """By the snapshot and the principal a report joins the log of attempts, whose tries of one write the server sees
    as requests of their own."""
    t.create()
    t.sql("INSERT INTO {t} VALUES (1, 'spark', 1)")
    head = t.head()

    def reported() -> list[dict[str, Any]]:
        with tower.client() as http:
            rows = http.get("/icetower/v1/reports", params={"limit": 1000}).json()["reports"]
        return [row for row in rows if row["snapshot_id"] == head]

    pause, report = Event(), None
    for _ in range(300):  # Java reports behind the commit
        if found := reported():
            [report] = found
            break
        pause.wait(0.2)
    assert report is not None, "no report came"
    assert (report["table"], report["principal"], report["operation"]) == (t.short, "admin", "append")
    assert report["attempts"] == 1
    assert report["total_ms"] > 0
    [attempt] = [each for each in tower.admin.commits(table=t.short) if head in each["snapshots"]]
    assert attempt["principal"] == report["principal"]

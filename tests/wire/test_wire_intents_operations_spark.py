"""What comes into rows that another holds, and what does not: every statement and procedure of Spark.

An administrator holds the region `eu` of a table that requires intents. Spark's statement lands, or it is refused with
`intent.held`, and the table is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines.session import spark_session
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

CATALOG, SPACE = "held", "held_spark"
MODES = ("cow", "mor")


class Held:
    """A table with rows 1 and 2 in `eu`, 10 and 11 in `as`, some history, a branch, and something staged.

    Attributes:
        eu: a snapshot before the last one.
        staged: a staged snapshot that adds a row to `eu`.
    """

    def __init__(self, tower: TowerProcess, spark: SparkSession, mode: str, name: str) -> None:
        self.tower, self.spark, self.short = tower, spark, f"{SPACE}.{name}"
        self.name = f"{CATALOG}.{self.short}"
        words = {"cow": "copy-on-write", "mor": "merge-on-read"}[mode]
        modes = ", ".join(f"'write.{each}.mode' = '{words}'" for each in ("delete", "update", "merge"))
        self.sql(
            "CREATE TABLE {t} (id BIGINT, region STRING, value BIGINT) USING iceberg PARTITIONED BY (region) "
            f"TBLPROPERTIES ({modes}, 'format-version' = '2', 'icetower.intents' = 'required', "
            "'commit.retry.num-retries' = '0', 'write.wap.enabled' = 'true')"
        )
        self.sql("INSERT INTO {t} VALUES (1, 'eu', 0), (2, 'eu', 0)")
        self.eu = self.head()
        self.sql("INSERT INTO {t} VALUES (10, 'as', 0), (11, 'as', 0)")
        self.sql("ALTER TABLE {t} CREATE BRANCH dev")
        self.sql("INSERT INTO {t}.branch_dev VALUES (3, 'eu', 0)")
        spark.conf.set("spark.wap.id", mode)
        self.sql("INSERT INTO {t} VALUES (4, 'eu', 0)")
        spark.conf.unset("spark.wap.id")
        found = self.sql("SELECT snapshot_id FROM {t}.snapshots WHERE summary['wap.id'] IS NOT NULL")
        self.staged: int = found[0][0]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        words = {
            "all": "map('rewrite-all', 'true')",
            "t": self.name,
            "short": self.short,
            "system": f"{CATALOG}.system",
        }
        words |= {name: str(value) for name in ("eu", "staged") if (value := self.__dict__.get(name))}
        for name, value in words.items():
            statement = statement.replace(f"{{{name}}}", value)
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def head(self) -> int:
        return self.sql("SELECT snapshot_id FROM {t}.refs WHERE name = 'main'")[0][0]

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.sql("SELECT id, region, value FROM {t}"))

    def rule(self) -> str | None:
        """Of the last attempt to write."""
        attempts = self.tower.admin.commits(limit=20, table=self.short)
        return next(each["rule"] for each in attempts if each["operation"] != "read")


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    tower.catalog().create_namespace(SPACE)
    every = "operations: [overwrite, delete, replace, alter, refs, create, drop], partitions: all"
    secret = tower.principal(f"{SPACE}_bob", f"tables: [{{table: '{SPACE}.*', {every}}}]\n")
    session = spark_session(
        "held-tests",
        catalog_uri=tower.uri,
        catalog_name=CATALOG,
        token=secret,
        settings={
            "spark.master": "local[2]",
            **LIGHT,
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def tables(tower: TowerProcess, spark: SparkSession) -> dict[str, Held]:
    return {mode: Held(tower, spark, mode, mode) for mode in MODES}


REFUSED = [
    "INSERT OVERWRITE {t} VALUES (9, 'as', 9)",
    "INSERT OVERWRITE {t} PARTITION (region = 'eu') SELECT 9, 9",
    "DELETE FROM {t} WHERE region = 'eu'",  # whole files, by metadata alone
    "DELETE FROM {t}",
    "TRUNCATE TABLE {t}",
    "DELETE FROM {t} WHERE id = 1",
    "UPDATE {t} SET value = 1 WHERE id = 1",
    "UPDATE {t} SET region = 'eu' WHERE id = 10",
    "MERGE INTO {t} t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET value = 5",
    "MERGE INTO {t} t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    (
        "MERGE INTO {t} t USING (SELECT 77L AS id) s ON t.id = s.id AND t.region = 'eu' "
        "WHEN MATCHED THEN UPDATE SET value = 5 "
        "WHEN NOT MATCHED THEN INSERT (id, region, value) VALUES (s.id, 'eu', 0)"
    ),
    "CALL {system}.rewrite_data_files(table => '{short}', where => \"region = 'eu'\", options => {all})",
    "CALL {system}.rollback_to_snapshot('{short}', {eu})",
    "CALL {system}.set_current_snapshot('{short}', {eu})",
    "CALL {system}.cherrypick_snapshot('{short}', {staged})",
    "CALL {system}.fast_forward('{short}', 'main', 'dev')",
    "CREATE OR REPLACE TABLE {t} USING iceberg PARTITIONED BY (region) AS SELECT 1L AS id, 'as' AS region, 0L AS value",
]  # fmt: skip
LANDS = [
    "INSERT INTO {t} VALUES (5, 'eu', 0)",  # known to be blind
    "INSERT INTO {t} VALUES (12, 'as', 0)",
    "INSERT OVERWRITE {t} PARTITION (region = 'as') SELECT 10, 9",
    "INSERT INTO {t} VALUES (12, 'as', 0), (13, 'as', 0)",
    "UPDATE {t} SET value = 1 WHERE id = 12 AND region = 'as'",
    "DELETE FROM {t} WHERE id = 13 AND region = 'as'",
    "CALL {system}.rewrite_data_files(table => '{short}', where => \"region = 'as'\", options => {all})",
    "CALL {system}.rewrite_manifests('{short}')",
    "DELETE FROM {t} WHERE region = 'as'",
    "ALTER TABLE {t} CREATE TAG t1",
    "ALTER TABLE {t} ADD COLUMN note STRING",
    "INSERT INTO {t}.branch_dev VALUES (6, 'eu', 0, '')",
    "CALL {system}.expire_snapshots(table => '{short}', older_than => TIMESTAMP '2999-01-01', retain_last => 1)",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statement", REFUSED)
def test_what_comes_into_rows_that_another_holds_is_refused(
    tower: TowerProcess, tables: dict[str, Held], statement: str, mode: str
) -> None:
    it = tables[mode]
    head, rows = it.head(), it.rows()
    intent = tower.admin.declare_intent([{"table": it.short, "partitions": [{"region": "eu"}]}], ttl_s=600)
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011 - Spark wraps it in what the statement or procedure raises
            it.sql(statement)
        assert it.rule() == "intent.held"
        assert (it.head(), it.rows()) == (head, rows)
    finally:
        tower.admin.release_intent(intent["intent"])


@pytest.mark.parametrize("mode", MODES)
def test_all_else_goes_on(tower: TowerProcess, spark: SparkSession, mode: str) -> None:
    it = Held(tower, spark, mode, f"{mode}_on")
    intent = tower.admin.declare_intent([{"table": it.short, "partitions": [{"region": "eu"}]}], ttl_s=600)
    for statement in LANDS:
        it.sql(statement)
        assert it.rule() is None, statement
    tower.admin.release_intent(intent["intent"])
    assert it.sql("SELECT id FROM {t} ORDER BY id") == [(1,), (2,), (5,)]

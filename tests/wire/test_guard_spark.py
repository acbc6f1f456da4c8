"""The doubling UPDATE of apache/iceberg #18004, with Spark and Iceberg's own code, against the guard.

A copy-on-write UPDATE with a subquery becomes a union of two branches over one scan, and each tells the scan at run
time which files it needs. `SparkCopyOnWriteScan.filter` is not made for two at once: a branch that comes while the
other filters may read all files, while the commit removes the filtered ones alone. Whether a run meets that moment is
up to the scheduler. So the race is run several times, and each run is taken as it comes: a commit that doubles is
refused, any other lands. One statement makes the same commit without a race: all rows come again, and one file goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

from icetower.pipelines.session import spark_session
from tests.wire.test_clauses_spark import KEEPER, Keeper, SparkAgent
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

FILES = 300
RUNS = 3
FEW = 40
"""For the statement that needs no race."""
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "v", StringType(), required=False))
CONTRACT = """\
owner: Dana Ito <dana.ito@example.com>
tables:
  - {table: T, operations: [overwrite], partitions: all, guard: {times: 3, above: 10}}
  - {table: NS.m, operations: [read]}
"""
COPY_ON_WRITE = {f"write.{what}.mode": "copy-on-write" for what in ("update", "delete", "merge")}


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "guard",
        catalog_uri=tower.uri,
        catalog_name=KEEPER,
        token=tower.secret,
        settings={
            "spark.master": "local[4]",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
            **LIGHT,
            # By these both branches filter at once: each is a stage of its own.
            "spark.sql.adaptive.enabled": "true",
            "spark.sql.autoBroadcastJoinThreshold": "-1",
        },
    )
    yield session
    session.stop()


Make = Callable[[int], tuple[Keeper, SparkAgent]]


@pytest.fixture
def place(spark: SparkSession, tower: TowerProcess, namespace: str) -> Make:
    """A table of one row a file, and one that names the row to be updated."""
    return lambda files: _made(spark, tower, namespace, files)


def _made(spark: SparkSession, tower: TowerProcess, namespace: str, files: int) -> tuple[Keeper, SparkAgent]:
    made = tower.catalog().create_table(
        f"{namespace}.t", schema=SCHEMA, properties={"format-version": "2"} | COPY_ON_WRITE
    )
    folder = Path(made.location().removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [f"{folder}/{number:05}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"id": pa.array([number], pa.int64()), "v": pa.array(["old"])}), path)
    made.add_files([f"file://{path}" for path in paths])
    keeper = Keeper(spark, namespace)
    keeper.sql("CREATE TABLE {ns}.m (id BIGINT) USING iceberg")
    keeper.sql("INSERT INTO {ns}.m VALUES (7)")
    return keeper, SparkAgent(spark, tower, namespace, CONTRACT)


def balance(keeper: Keeper) -> tuple[int, int]:
    """How many rows there are, and how many ids."""
    (found,) = keeper.sql("SELECT count(*), count(DISTINCT id) FROM {t}")
    return int(found[0]), int(found[1])


def test_no_run_of_the_race_doubles_the_table(place: Make, record_property: Callable[[str, object], None]) -> None:
    keeper, agent = place(FILES)
    for number in range(RUNS):
        update = f"UPDATE {{t}} t SET v = 'new {number}' WHERE EXISTS (SELECT 1 FROM {{ns}}.m m WHERE m.id = t.id)"
        with suppress(Exception):  # of a run that doubles; the log of attempts tells why
            agent.sql(update)
        assert balance(keeper) == (FILES, FILES)
    attempts = agent.attempts()
    assert {rule for _, rule in attempts} <= {None, "guard.rows"}
    record_property("doubling", f"{[rule for _, rule in attempts].count('guard.rows')} of {RUNS}")


def test_the_commit_that_the_race_leads_to_is_refused(place: Make) -> None:
    """The files of the whole table come again, and one goes: by DELETE of one row, and INSERT of all, as one commit."""
    keeper, agent = place(FEW)
    merge = (
        "MERGE INTO {t} t USING (SELECT id, id AS match, v FROM {t} WHERE id = 7 UNION ALL "
        "SELECT id, -1 AS match, v FROM {t} WHERE id <> 7) s ON t.id = s.match "
        "WHEN MATCHED THEN UPDATE SET v = 'new' WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    )
    agent.refused("guard.rows", lambda: agent.sql(merge), "adds 40 rows and removes 1")
    assert balance(keeper) == (FEW, FEW)
    (request,) = [each for each in agent.tower.admin.requests(state="open") if each["principal"] == agent.name]
    agent.tower.admin.close_request(str(request["id"]), "granted", "this one is meant")
    agent.sql(merge)
    assert balance(keeper) == (2 * FEW - 1, FEW)

"""Appends by the fast path as Spark finds them, in a table of format 3 that Spark made and goes on writing to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tower_process import TowerProcess

from icetower.agent import DataFile
from icetower.pipelines.session import spark_session

pytestmark = pytest.mark.spark

CATALOG = "appends"


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "wire-appends",
        catalog_uri=tower.uri,
        catalog_name=CATALOG,
        token=tower.secret,
        settings={
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
            "spark.sql.defaultCatalog": CATALOG,
        },
    )
    yield session
    session.stop()


def field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


COLUMNS = pa.schema(
    [field("id", pa.int64(), 1), field("at", pa.timestamp("us", "UTC"), 2), field("x", pa.float64(), 3)]
)


def write(root: str, name: str, ids: list[int], day: int) -> DataFile:
    place = Path(root.removeprefix("file:").replace("//", "/")) / "data" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    at = [dt.datetime(2017, 1, 1 + day, n % 24, tzinfo=dt.UTC) for n in range(len(ids))]
    pq.write_table(
        pa.table([pa.array(ids), pa.array(at, COLUMNS.field("at").type), [0.5] * len(ids)], schema=COLUMNS), place
    )
    return DataFile.of_parquet(place, uri=f"{root}/data/{name}", partition={"at_day": f"2017-01-{1 + day:02d}"})


def test_what_spark_finds(tower: TowerProcess, spark: SparkSession, namespace: str) -> None:
    name = f"{namespace}.t"

    def sql(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text.replace("{t}", f"{CATALOG}.{name}")).collect()]

    sql(
        "CREATE TABLE {t} (id BIGINT, at TIMESTAMP, x DOUBLE) USING iceberg PARTITIONED BY (days(at)) "
        "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    sql("INSERT INTO {t} VALUES (1, TIMESTAMP '2017-01-01 10:00:00', 0.5)")
    location = next(row[1] for row in sql("DESCRIBE EXTENDED {t}") if row[0] == "Location")
    odd = write(location, "b b%20+ü.parquet", [20], 1)  # names are taken as they are
    first = tower.admin.append(name, [write(location, "a.parquet", [10, 11], 0), odd])
    second = tower.admin.append(name, [write(location, "c.parquet", [30, 31, 32], 2)])
    spark.sql(f"REFRESH TABLE {CATALOG}.{name}")

    assert sql("SELECT id FROM {t} ORDER BY id") == [(n,) for n in (1, 10, 11, 20, 30, 31, 32)]
    assert sql("SELECT count(*) FROM {t}") == [(7,)]
    plan = "\n".join(str(row[0]) for row in sql("EXPLAIN SELECT count(*) FROM {t}"))
    assert "LocalTableScan" in plan  # answered from the totals alone (trap S3)
    assert sql("SELECT id FROM {t} WHERE at >= TIMESTAMP '2017-01-03 00:00:00' ORDER BY id") == [(30,), (31,), (32,)]
    assert sql("SELECT min(id), max(id) FROM {t} WHERE id BETWEEN 20 AND 25") == [(20, 20)]

    # Incremental reading finds each snapshot's rows in manifests of its own (trap S4).
    read = spark.read.option("start-snapshot-id", first.snapshot_id).option("end-snapshot-id", second.snapshot_id)
    assert sorted(row.id for row in read.format("iceberg").load(f"{CATALOG}.{name}").collect()) == [30, 31, 32]

    # Row ids are there, each once, and numbers are those of the snapshots (traps S1, S2).
    lineage = sql("SELECT id, _row_id, _last_updated_sequence_number FROM {t} ORDER BY _row_id")
    assert sorted(row_id for _, row_id, _ in lineage) == list(range(7))
    assert {number for n, _, number in lineage if n >= 30} == {second.sequence_number}

    # Spark goes on where the appends are: deletes by vectors, compaction, one more append.
    sql("DELETE FROM {t} WHERE id = 11")
    sql("UPDATE {t} SET x = 9.5 WHERE id = 31")
    spark.sql(f"CALL {CATALOG}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    tower.admin.append(name, [write(location, "d.parquet", [40], 3)])
    spark.sql(f"REFRESH TABLE {CATALOG}.{name}")
    assert sql("SELECT id FROM {t} ORDER BY id") == [(n,) for n in (1, 10, 20, 30, 31, 32, 40)]
    assert sql("SELECT count(*) FROM {t}") == [(7,)]

    # Iceberg's own orphan removal does not take the group files (through the API: the procedure refuses a short while).
    listed = {row[0] for row in sql("SELECT summary['icetower.group-file'] FROM {t}.snapshots") if row[0]}
    assert len(listed) == 3
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    handle = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"{CATALOG}.{name}")
    removal = jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession).deleteOrphanFiles(handle)
    removal.olderThan(jvm.java.lang.System.currentTimeMillis() + 60_000).execute()
    assert all(Path(path.removeprefix("file://").removeprefix("file:")).exists() for path in listed)

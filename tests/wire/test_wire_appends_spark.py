"""Appends by the fast path as Spark finds them, in a table of format 3 that Spark made and goes on writing to."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icetower.agent import DataFile, new_key
from icetower.pipelines.session import spark_session
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

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
            **LIGHT,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        },
    )
    # Not when it starts: the JVM keeps those settings for the sessions of other modules.
    session.conf.set("spark.sql.defaultCatalog", CATALOG)
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


FOREIGN = Path(__file__).parents[1] / "parquet" / "fixtures" / "parquet"
FOREIGN_COLUMNS = {
    "plus_first": "DOUBLE",
    "minus_first": "DOUBLE",
    "minus_only": "FLOAT",
    "plus_only": "FLOAT",
    "with_nan": "DOUBLE",
    "text": "STRING",
    "wide_text": "STRING",
    "binary": "BINARY",
    "decimal_9": "DECIMAL(9, 2)",
    "decimal_18": "DECIMAL(18, 2)",
    "decimal_38": "DECIMAL(38, 2)",
    "local_time": "TIMESTAMP_NTZ",
    "instant": "TIMESTAMP",
    "day": "DATE",
    "truth": "BOOLEAN",
    "number": "INT",
    "long_number": "BIGINT",
    "nested": "STRUCT<x: DOUBLE>",
    "list_of": "ARRAY<DOUBLE>",
}


def test_s7_spark_finds_rows_of_every_writer_by_their_values(
    tower: TowerProcess, spark: SparkSession, namespace: str
) -> None:
    """Files of DuckDB, Polars, arrow-rs and parquet-java, whose footers tell zeros apart or do not."""
    name = f"{namespace}.t"
    columns = ", ".join(f"{column} {kind}" for column, kind in FOREIGN_COLUMNS.items())
    inside = {"nested": ([20], [["x"]]), "list_of": ([21], [["element", "item"]])}
    mapping = json.dumps(
        [
            {"field-id": at, "names": [column]}
            | {"fields": [{"field-id": i, "names": n} for i, n in zip(*inside.get(column, ([], [])), strict=True)]}
            for at, column in enumerate(FOREIGN_COLUMNS, 1)
        ]
    )
    spark.sql(
        f"CREATE TABLE {CATALOG}.{name} ({columns}) USING iceberg "
        f"TBLPROPERTIES ('schema.name-mapping.default'='{mapping}')"
    )
    described = spark.sql(f"DESCRIBE EXTENDED {CATALOG}.{name}").collect()
    location = next(row[1] for row in described if row[0] == "Location")
    folder = Path(location.removeprefix("file:").replace("//", "/")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    writers = sorted(FOREIGN.glob("*.parquet"))
    assert len(writers) == 4
    nan = {1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 20: 0}
    for file in writers:
        shutil.copy(file, folder / file.name)
        size_bytes = file.stat().st_size
        tower.admin.append(
            name, [DataFile(f"{location}/data/{file.name}", 3, size_bytes, nan_value_counts=nan)], key=new_key()
        )
    spark.sql(f"REFRESH TABLE {CATALOG}.{name}")

    # Not `minus_only = 0.0`: Iceberg's reader skips a row group by its dictionary, in which it tells zeros apart.
    zeros = [f"{column} = {zero}" for column in ("plus_first", "minus_first", "nested.x") for zero in ("0.0D", "-0.0D")]
    zeros += ["minus_only = -0.0D", "plus_only = 0.0D", "plus_first IN (0.0D, 7.5D)"]
    single = [
        "text = repeat('z', 100)",
        "wide_text = repeat('ä', 50)",
        "binary = unhex(repeat('ff', 100))",
        *(f"decimal_{digits} = -1.25" for digits in (9, 18, 38)),
        "local_time = TIMESTAMP_NTZ '1960-01-01 00:00:00.000001'",
        "instant = TIMESTAMP '1960-01-01 00:00:00.000001'",
        "day = DATE '1960-01-01'",
        "number = -1",
        "long_number < -9223372036854775807",
        "NOT truth",
        "with_nan = 1.0D",
    ]
    wanted = dict.fromkeys(zeros, 8) | dict.fromkeys(single, 4)
    counts = [f'SELECT "{where}", count(*) FROM {CATALOG}.{name} WHERE {where}' for where in wanted]
    assert dict(tuple(row) for row in spark.sql(" UNION ALL ".join(counts)).collect()) == wanted


def test_rows_at_the_door_are_rows_to_spark(tower: TowerProcess, spark: SparkSession) -> None:
    """Every type that Spark has, parted and ordered as the table says; it filters, updates, and compacts them."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS door")
    spark.sql(
        "CREATE TABLE door.t (id BIGINT NOT NULL, at TIMESTAMP, plain TIMESTAMP_NTZ, day DATE, name STRING, "
        "price DECIMAL(9, 2), x DOUBLE, f FLOAT, n INT, ok BOOLEAN, raw BINARY, "
        "who STRUCT<team: STRING, size: INT>, tags ARRAY<STRING>, marks MAP<STRING, BIGINT>) "
        "PARTITIONED BY (days(at), bucket(4, id)) "
        "TBLPROPERTIES ('format-version' = '3', 'write.parquet.bloom-filter-enabled.column.name' = 'true')"
    )
    spark.sql("ALTER TABLE door.t WRITE ORDERED BY name DESC, id")
    client = httpx2.Client(
        base_url=tower.uri, headers={"Authorization": f"Bearer {tower.secret}"}, trust_env=False, timeout=60
    )

    def send(*rows: dict[str, Any]) -> None:
        client.post("/v1/namespaces/door/tables/t/rows", json={"rows": rows, "key": new_key()}).raise_for_status()

    full = {
        "at": "2017-01-02T03:04:05.000006Z",
        "plain": "2017-01-02T03:04:05",
        "day": "2017-01-02",
        "name": "ä🙂",
        "price": "-9.99",
        "x": 1e300,
        "f": 0.5,
        "n": -1,
        "ok": True,
        "raw": "base64:AAE=",
        "who": {"team": "a", "size": 2},
        "tags": ["a", None],
        "marks": {"k": "9007199254740993"},
    }
    send({"id": 1, **full}, {"id": 2}, {"id": 3, "at": "2017-01-03T00:00:00Z", "name": "b"})
    send(*({"id": n, "at": "2017-01-02T00:00:00Z", "name": f"n{n:03d}"} for n in range(10, 200)))
    [row] = spark.sql("SELECT * FROM door.t WHERE name = 'ä🙂'").collect()
    assert (row.id, str(row.price), row.x, row.f, row.n, row.ok) == (1, "-9.99", 1e300, 0.5, -1, True)
    assert (bytes(row.raw), row.who.team, row.who.size) == (b"\x00\x01", "a", 2)
    assert (row.tags, row.marks) == (["a", None], {"k": 9007199254740993})
    assert (row.day, row.plain) == (dt.date(2017, 1, 2), dt.datetime(2017, 1, 2, 3, 4, 5))  # noqa: DTZ001
    assert (
        str(spark.sql("SELECT CAST(at AS STRING) FROM door.t WHERE id = 1").first()[0]) == "2017-01-02 03:04:05.000006"
    )
    assert spark.sql("SELECT count(*), count(DISTINCT _row_id) FROM door.t").first() == (193, 193)
    assert spark.sql("SELECT count(*) FROM door.t WHERE at < TIMESTAMP '2017-01-03' AND id >= 100").first()[0] == 100
    files = spark.sql("SELECT sort_order_id, partition.id_bucket FROM door.t.files").collect()
    assert {file[0] for file in files} == {1}
    spark.sql("UPDATE door.t SET name = 'new' WHERE id IN (1, 10)")
    spark.sql("CALL appends.system.rewrite_data_files(table => 'door.t', options => map('rewrite-all', 'true'))")
    send({"id": 200, "name": "last"})
    assert spark.sql("SELECT count(*), sum(id), sum(IF(name = 'new', 1, 0)) FROM door.t").first() == (
        194,
        1 + 2 + 3 + sum(range(10, 200)) + 200,
        2,
    )
    client.close()

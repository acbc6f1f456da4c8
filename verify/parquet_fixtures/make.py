"""Writes one table with DuckDB, Polars, arrow-rs and parquet-java: files whose footers the tests read.

The values are those about which writers of Parquet differ: both zeros in either order, NaN, long texts and long binary
values, negative decimals in every physical type, and times before 1970. `make parquet-fixtures` runs this in an
environment of its own and replaces the files in tests/parquet/fixtures/parquet.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import arro3.core  # pyright: ignore[reportMissingImports]
import arro3.io  # pyright: ignore[reportMissingImports]
import duckdb  # pyright: ignore[reportMissingImports]
import polars  # pyright: ignore[reportMissingImports]
import pyarrow as pa
from pyspark.sql import SparkSession

OLD, NEW = dt.datetime(1960, 1, 1, 0, 0, 0, 1), dt.datetime(2020, 1, 1)  # noqa: DTZ001 - one column has no time zone


def table() -> pa.Table:
    decimals = [Decimal("-1.25"), Decimal("2.50"), None]
    times = [OLD, NEW, None]
    columns: dict[str, Any] = {
        "plus_first": pa.array([0.0, -0.0, None], pa.float64()),
        "minus_first": pa.array([-0.0, 0.0, None], pa.float64()),
        "minus_only": pa.array([-0.0, -0.0, None], pa.float32()),
        "plus_only": pa.array([0.0, 0.0, None], pa.float32()),
        "with_nan": pa.array([float("nan"), 1.0, None], pa.float64()),
        "text": pa.array(["a" * 100, "z" * 100, None]),
        "wide_text": pa.array(["\u00e4" * 50, "\U0010ffff" * 30, None]),
        "binary": pa.array([b"\x7f" * 100, b"\xff" * 100, None], pa.binary()),
        "decimal_9": pa.array(decimals, pa.decimal128(9, 2)),
        "decimal_18": pa.array(decimals, pa.decimal128(18, 2)),
        "decimal_38": pa.array(decimals, pa.decimal128(38, 2)),
        "local_time": pa.array(times, pa.timestamp("us")),
        "instant": pa.array(times, pa.timestamp("us", "UTC")),
        "day": pa.array([OLD.date(), NEW.date(), None]),
        "truth": pa.array([True, False, None]),
        "number": pa.array([-1, 2**31 - 1, None], pa.int32()),
        "long_number": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "nested": pa.array([{"x": 0.0}, {"x": -0.0}, None], pa.struct([("x", pa.float64())])),
        "list_of": pa.array([[0.0, -0.0], [None], None], pa.list_(pa.float64())),
    }
    return pa.table(columns)


def by_duckdb(rows: pa.Table, place: Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET timezone = 'UTC'")
    connection.register("given", rows)
    connection.execute(f"COPY (SELECT * FROM given) TO '{place}' (FORMAT parquet)")


def by_spark(rows: pa.Table, place: Path, scratch: Path) -> None:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.createDataFrame(rows)
    frame = frame.withColumn("local_time", frame["local_time"].cast("timestamp_ntz"))
    frame.coalesce(1).write.parquet(str(scratch / "out"))
    spark.stop()
    (written,) = (scratch / "out").glob("*.parquet")
    shutil.copy(written, place)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = table()
    by_duckdb(rows, folder / "duckdb.parquet")
    polars.from_arrow(rows).write_parquet(folder / "polars.parquet")
    arro3.io.write_parquet(arro3.core.Table.from_arrow(rows), str(folder / "arrow-rs.parquet"))
    with tempfile.TemporaryDirectory() as scratch:
        by_spark(rows, folder / "parquet-java.parquet", Path(scratch))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

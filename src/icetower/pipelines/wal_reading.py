"""The rows of a batch, each with its place in the order of the log. DataFrame out.

A row's place is the snapshot that appended it. The sequence number of its file does not show it: a compaction puts rows
of many snapshots into one file, in any order, and gives the file one number (trap R12). So the place of a row is known
in two cases only:

- the snapshot that added its file is still in the log's metadata, and is an append;
- the log has format version 3, and the row carries `_last_updated_sequence_number`, which compactions keep.

Otherwise `_icetower_sequence` is null, and a job that needs the order must refuse (`wal_rows.classify`).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.errors import CommitConflict
from icetower.pipelines.as_of import rows_as_of, spark_schema
from icetower.pipelines.tables import quoted
from icetower.pipelines.wal_plan import Batch, Metadata, last_rank, line_ranks, oldest_base

FILE, POSITION, SPEC = "_icetower_file", "_icetower_position", "_icetower_spec"
SEQUENCE, ROW = "_icetower_sequence", "_icetower_row"
LOGGED = "_icetower_logged"
"""When the row landed in the log, in milliseconds since 1970; null if its snapshot is not known."""
ORDER = (SEQUENCE, ROW, FILE, POSITION)
"""The order of the log. Rows of one commit are ordered by their row ids, or else by their files and positions."""

LAST_UPDATED = 2147483539
"""The id of the column `_last_updated_sequence_number` (specification: "Reserved Field IDs")."""

_RANK, _BY_ROW = "_icetower_rank", "_icetower_by_row"


def read_batch(spark: SparkSession, name: str, wal: Metadata, batch: Batch) -> DataFrame:
    """The rows of a batch with their places in the log. Compactions of the log add no rows."""
    parts: list[DataFrame] = []
    start = batch.start
    if batch.base is not None:
        parts.append(_as_of(spark, name, wal, batch.base, batch.through))
        start = batch.base
    if start != batch.through:
        parts.append(_appended(spark, name, wal, start, batch))
    return reduce(DataFrame.unionByName, parts)


def with_known_order(spark: SparkSession, name: str, wal: Metadata, batch: Batch) -> tuple[Batch, bool]:
    """The batch of a whole log, based on a state whose rows have a known order, if any; and whether there is one.

    The newest state is the cheapest to read. If a compaction has mixed its rows, the log is read from the oldest state
    that its metadata still has, and then through the snapshots that were appended since.
    """
    for base in dict.fromkeys((batch.through, oldest_base(wal, batch.through))):
        files = _file_order(spark, name, wal, base, batch.through)
        if files.where(f"{_RANK} IS NULL AND NOT {_BY_ROW}").isEmpty():
            return batch.based_on(base), True
    return batch.based_on(oldest_base(wal, batch.through)), False


def read_before(wal: Metadata, batch: Batch, last: int | None) -> Column | None:
    """Which rows of a whole log were in batches before this one; None if none were.

    Args:
        last: the snapshot of the log through which it was read then; None if it was not.
    """
    if last is None or not batch.whole:
        return None
    place = last_rank(wal, batch.through, last)
    # Without a place: a compaction has put it into one file with others, from a snapshot that has expired.
    return f.coalesce(f.col(SEQUENCE) <= f.lit(place), f.lit(True))


def _as_of(spark: SparkSession, name: str, wal: Metadata, snapshot_id: int, through: int) -> DataFrame:
    """All rows that the log had at a snapshot, as the first rows of a batch up to `through`."""
    rows = rows_as_of(spark, name, wal, snapshot_id, *_places(wal), _last_updated(wal))
    rows = rows.join(_file_order(spark, name, wal, snapshot_id, through), FILE, "left")
    # Rows of format version 1 all have the number 0.
    by_row = f.when(f.col(_BY_ROW) & (f.col("_icetower_last_updated") > 0), f.col("_icetower_last_updated"))
    return rows.withColumn(SEQUENCE, f.coalesce(f.col(_RANK), by_row)).drop(_RANK, _BY_ROW, "_icetower_last_updated")


def _appended(spark: SparkSession, name: str, wal: Metadata, start: int | None, batch: Batch) -> DataFrame:
    """The rows that were appended after a snapshot."""
    rows = _reader(spark).option("start-snapshot-id", str(start)).option("end-snapshot-id", batch.through).load(name)
    columns = spark_schema(spark, wal).names
    if rows.columns != columns:
        raise CommitConflict(f"{name} has other columns than when the batch was planned")
    rows = rows.select(*(f.col(quoted(column)) for column in columns), *_places(wal))
    # Files that a compaction has replaced since are no longer live; the history of all files has them.
    entries = _reader(spark)
    if batch.compacted:
        entries = entries.load(f"{name}.all_entries")
    else:
        entries = entries.option("versionAsOf", batch.through).load(f"{name}.entries")
    files = (
        entries.where("status < 2")
        .join(f.broadcast(_ranks(spark, wal, batch.through)), "snapshot_id")
        .groupBy(f.col("data_file.file_path").alias(FILE))
        .agg(f.min(_RANK).alias(SEQUENCE), f.min(LOGGED).alias(LOGGED))
    )
    return rows.join(files, FILE, "left")


def _file_order(spark: SparkSession, name: str, wal: Metadata, snapshot_id: int, through: int) -> DataFrame:
    """For each data file at a snapshot: its rank, or else whether its rows have ranks of their own.

    A file's rows have their own if each carries its sequence number, as compactions write them, or if the file was
    never rewritten: then its rows have the number of the file. A file was rewritten if its data is older than itself.
    """
    entries = _reader(spark).option("versionAsOf", snapshot_id).load(f"{name}.entries").where("status < 2")
    entries = entries.where("coalesce(data_file.content, 0) = 0")
    files = entries.join(f.broadcast(_ranks(spark, wal, through)), "snapshot_id", "left")
    by_row = f.lit(False)
    if wal["format-version"] >= 3:
        written = f.col("data_file.value_counts").getItem(LAST_UPDATED)
        inherited = f.coalesce(f.col("data_file.null_value_counts").getItem(LAST_UPDATED), f.lit(0))
        original = f.col("sequence_number") == f.col("file_sequence_number")
        all_written = written.isNotNull() & (written == f.col("data_file.record_count"))
        untouched = written.isNull() & f.col("_icetower_known").isNull() & original
        by_row = (all_written & ((inherited == 0) | original)) | untouched
    return files.groupBy(f.col("data_file.file_path").alias(FILE)).agg(
        f.min(_RANK).alias(_RANK),
        f.min(LOGGED).alias(LOGGED),
        f.coalesce(f.min(by_row), f.lit(False)).alias(_BY_ROW),
    )


def _ranks(spark: SparkSession, wal: Metadata, through: int) -> DataFrame:
    at = {snapshot["snapshot-id"]: snapshot["timestamp-ms"] for snapshot in wal["snapshots"]}
    rows: list[Any] = [
        (snapshot_id, rank, True, None if rank is None else at[snapshot_id])
        for snapshot_id, rank in line_ranks(wal, through).items()
    ]
    return spark.createDataFrame(rows, f"snapshot_id BIGINT, {_RANK} BIGINT, _icetower_known BOOLEAN, {LOGGED} BIGINT")


def _places(wal: Metadata) -> list[Column]:
    row_id = f.col("_row_id") if wal["format-version"] >= 3 else f.lit(None).cast("bigint")
    places = {"_file": FILE, "_pos": POSITION, "_spec_id": SPEC}
    return [*(f.col(name).alias(alias) for name, alias in places.items()), row_id.alias(ROW)]


def _last_updated(wal: Metadata) -> Column:
    known = wal["format-version"] >= 3
    number = f.col("_last_updated_sequence_number") if known else f.lit(None).cast("bigint")
    return number.alias("_icetower_last_updated")


def _reader(spark: SparkSession) -> Any:
    return spark.read.format("iceberg")

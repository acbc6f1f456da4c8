"""What agents' writes cost, by principal, table and five minutes.

A window is computed anew when an attempt is added to it. What comes later from elsewhere (rows that mediators applied,
orphans that maintenance found) is compared with what the windows have: only more of it changes them, since what is
pruned there has been counted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.system_tables import LANDED, METRICS, THROUGH, SystemTables, mark_of
from icetower.pipelines.tables import merge
from icetower.protocol.marks import EXPORT

OTHERS = EXPORT + "others"
"""The snapshots of the tables of others up to which they are counted, and the newest time of a mediated row."""

WINDOW_S = 300
DAY_MS = 24 * 3600 * 1000
NAME = ("principal", "table_name", "window_start")

_RETRIED = "outcome IN ('conflict', 'unknown', 'replayed')"
_COMMIT = "outcome <> 'done' AND operation <> 'read'"
_FIRST = "retries = 0 AND outcome <> 'replayed'"
_OTHERS = {
    "mediated_rows": ("mediated_p50_ms", "mediated_p99_ms"),
    "orphaned_files": ("orphaned_bytes",),
}
"""Columns of others, each a count, and what goes with it."""


def export_metrics(tables: SystemTables, orphans: str, principals: Collection[str] | None = None) -> int:
    """Bring the windows up to what was exported. How many were written.

    Args:
        orphans: the table of orphans.
        principals: only orphans of these count; None: all.
    """
    metadata = tables.load(tables.metrics)
    start, through = int(mark_of(metadata, THROUGH) or 0), tables.progress(tables.commits, "attempt_id")
    seen = ",".join(str(_head(tables, table)) for table in (tables.keys, orphans))
    before, _, newest_ms = (mark_of(metadata, OTHERS) or "").rpartition(",")
    if start == through and before == seen:
        return 0
    mediated, newest_ms = _mediated(tables, int(newest_ms or 0) - DAY_MS)
    others = _joined(mediated, _orphaned(tables, orphans, principals))
    marks = {THROUGH: str(through), OTHERS: f"{seen},{newest_ms}"}
    touched = _touched(tables, start, through).unionByName(_more(tables, others)).distinct().localCheckpoint()
    if touched.isEmpty():
        tables.note(tables.metrics, marks)
        return 0
    found = _computed(tables, touched, others, through)
    merge(tables.spark, tables.metrics, found, NAME, update=True, properties=marks)
    return found.count()


def _head(tables: SystemTables, table: str) -> int | None:
    metadata = tables.find(table)
    return None if metadata is None else current_snapshot_id(metadata)


def _begin(column: str) -> Any:
    return f.expr(f"timestamp_seconds(unix_seconds({column}) - unix_seconds({column}) % {WINDOW_S})")


def _attempts(tables: SystemTables, through: int) -> DataFrame:
    rows = tables.rows(tables.commits).where(f"attempt_id <= {through} AND {_COMMIT}")
    return rows.withColumn("window_start", _begin("at"))


def _touched(tables: SystemTables, start: int, through: int) -> DataFrame:
    """The windows of attempts that are not counted yet."""
    return _attempts(tables, through).where(f"attempt_id > {start}").select(*NAME).distinct()


def _joined(mediated: DataFrame, orphaned: DataFrame | None) -> DataFrame:
    """What is counted in tables of others, by window."""
    if orphaned is not None:
        return mediated.join(orphaned, [*NAME], "full").localCheckpoint()
    nothing = [f.lit(None).cast("bigint").alias(name) for name in ("orphaned_files", "orphaned_bytes")]
    return mediated.select("*", *nothing).localCheckpoint()


def _mediated(tables: SystemTables, since_ms: int) -> tuple[DataFrame, int]:
    """Rows that mediators applied since a time, by their agents; and the newest time of one."""
    rows = tables.rows(tables.keys).where("attempt_id IS NULL AND decided_at IS NOT NULL")
    newest_ms = rows.agg(f.unix_millis(f.max("committed_at"))).collect()[0][0] or 0
    begin = f"timestamp_millis({since_ms - since_ms % (WINDOW_S * 1000)})"
    rows = rows.where(f"committed_at >= {begin}")
    rows = rows.withColumn("__lag", f.expr("CAST(unix_millis(committed_at) - unix_millis(decided_at) AS DOUBLE)"))
    grouped = rows.groupBy(f.col("agent_id").alias(NAME[0]), NAME[1], _begin("committed_at").alias(NAME[2]))
    lags = f.expr("percentile(__lag, array(0.5D, 0.99D))").alias("__p")
    counted = grouped.agg(f.count("*").alias("mediated_rows"), lags)
    shown = [f.col("__p")[i].alias(name) for i, name in enumerate(_OTHERS["mediated_rows"])]
    return counted.select(*NAME, "mediated_rows", *shown), newest_ms


def _orphaned(tables: SystemTables, orphans: str, principals: Collection[str] | None) -> DataFrame | None:
    """Files that nothing refers to, by who left them and when they were written; None where there is no such table."""
    if tables.find(orphans) is None:
        return None
    rows = tables.rows(orphans).where("principal IS NOT NULL AND modified_at IS NOT NULL")
    if principals is not None:
        rows = rows.where(f.col("principal").isin(*principals) if principals else f.lit(False))
    grouped = rows.groupBy(*NAME[:2], _begin("modified_at").alias(NAME[2]))
    return grouped.agg(f.count("*").alias("orphaned_files"), f.sum("size_bytes").alias("orphaned_bytes"))


def _more(tables: SystemTables, others: DataFrame) -> DataFrame:
    """The windows that have less of what is others' than there is now."""
    counts = [*_OTHERS]
    before = tables.rows(tables.metrics).select(*NAME, *(f.col(name).alias(f"__{name}") for name in counts))
    grown = " OR ".join(f"coalesce({name}, 0) > coalesce(__{name}, 0)" for name in counts)
    return others.join(before, [*NAME], "left").where(grown).select(*NAME)


def _computed(tables: SystemTables, touched: DataFrame, others: DataFrame, through: int) -> DataFrame:
    """The windows anew."""
    first, last = touched.agg(f.min("window_start"), f.max("window_start")).collect()[0]
    between = f.col("at").between(first, last + dt.timedelta(seconds=WINDOW_S))
    rows = _attempts(tables, through).where(between).join(f.broadcast(touched), [*NAME], "left_semi")
    kept = [name for count, more in _OTHERS.items() for name in (count, *more)]
    before = tables.rows(tables.metrics).where(f.col("window_start").between(first, last))
    before = before.select(*NAME, *(f.col(name).alias(f"__{name}") for name in kept))
    joined = touched.join(_counted(rows), [*NAME], "left").join(others, [*NAME], "left").join(before, [*NAME], "left")
    columns = [one.partition(" ")[0] for one in METRICS.split(", ")]
    shown = {name: f.col(name) for name in columns}
    for count, more in _OTHERS.items():
        grown = f.expr(f"coalesce({count}, 0) > coalesce(__{count}, 0)")
        shown[count] = f.coalesce(f.greatest(count, f"__{count}"), f.lit(0))
        shown |= {name: f.when(grown, f.col(name)).otherwise(f.col(f"__{name}")) for name in more}
    for name in ("attempts", "landed", "refused", "retries", "first_tries", "first_try_landed", "snapshots"):
        shown[name] = f.coalesce(name, f.lit(0))
    return joined.select(*(column.alias(name) for name, column in shown.items())).localCheckpoint()


def _counted(rows: DataFrame) -> DataFrame:
    attempts, landed = f.count_if(f.lit(True)), f.count_if(f.expr(LANDED))
    retries, first = f.count_if(f.expr(_RETRIED)), f.count_if(f.expr(_FIRST))
    first_landed = f.count_if(f.expr(f"{_FIRST} AND {LANDED}"))
    where = f"FILTER (WHERE {LANDED})"
    end_to_end = "CAST(unix_millis(at) - unix_millis(decided_at) AS DOUBLE)"
    snapshots = f"CAST(size(array_distinct(flatten(collect_list(snapshots) {where}))) AS BIGINT)"
    counted = rows.groupBy(*NAME).agg(
        attempts.alias("attempts"),
        landed.alias("landed"),
        f.count_if(f.expr("outcome = 'refused'")).alias("refused"),
        retries.alias("retries"),
        (landed / attempts).alias("commit_success_rate"),
        f.try_divide(retries.cast("double"), landed.cast("double")).alias("retry_rate"),
        f.expr(snapshots).alias("snapshots"),
        first.alias("first_tries"),
        first_landed.alias("first_try_landed"),
        f.try_divide(first_landed.cast("double"), first.cast("double")).alias("first_try_success_rate"),
        f.expr(f"sum(1D / group_size) {where}").alias("metadata_versions"),
        f.expr(f"sum(manifests) {where}").alias("manifests"),
        f.expr(f"sum(metadata_bytes) {where}").alias("metadata_bytes"),
        f.expr(f"percentile(latency_ms, array(0.5D, 0.99D, 1D)) {where}").alias("__p"),
        f.expr(f"percentile({end_to_end}, array(0.5D, 0.99D)) {where}").alias("__e"),
    )
    latencies = [f.col("__p")[i].alias(f"latency_{name}_ms") for i, name in enumerate(("p50", "p99", "max"))]
    ends = [f.col("__e")[i].alias(f"end_to_end_{name}_ms") for i, name in enumerate(("p50", "p99"))]
    return counted.select(*(each for each in counted.columns if not each.startswith("__")), *latencies, *ends)

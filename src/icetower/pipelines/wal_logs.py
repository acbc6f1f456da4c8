"""What the mediator writes down: batches, rejections, and the keys it has seen. Every write can be repeated.

`wal_rejections` is written before a batch is committed, so that what was refused, and why, survives any crash; its rows
count together with their batch in `wal_mediations`, which is written last of all and closes the batch. Whatever a
crash left out in between is made up for by the next run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from icetower.errors import CommitConflict
from icetower.pipelines.tables import literal, merge, quoted, told
from icetower.pipelines.wal_plan import Batch, Done
from icetower.pipelines.wal_reading import FILE, ORDER, POSITION
from icetower.pipelines.wal_rows import AGENT_COLUMN, KEY_COLUMN, OUTCOME, REASON, REJECTED, RULE

TRIES = 5
_MEDIATION = (
    "batch STRING, target STRING, wal STRING, from_snapshot BIGINT, through_snapshot BIGINT, rows_read BIGINT, "
    "rows_applied BIGINT, rows_superseded BIGINT, rows_duplicate BIGINT, rows_rejected BIGINT, "
    "committed_snapshot BIGINT, committed_at TIMESTAMP"
)
_REJECTION = (
    "batch STRING, target STRING, agent STRING, idempotency_key STRING, rule STRING, reason STRING, row STRING, "
    "wal_file STRING, wal_position BIGINT, rejected_at TIMESTAMP"
)
# The guide, step 4.
_DEDUP = "agent_id STRING, idempotency_key STRING, table_name STRING, committed_at TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Logs:
    """The three tables, in the namespace `system` (with its catalog in front)."""

    spark: SparkSession
    system: str

    @property
    def mediations(self) -> str:
        return f"{self.system}.wal_mediations"

    @property
    def rejections(self) -> str:
        return f"{self.system}.wal_rejections"

    @property
    def keys(self) -> str:
        return f"{self.system}.agent_dedup_log"

    def create(self) -> None:
        """Create what is missing."""
        wanted = {
            self.mediations: f"({_MEDIATION}) USING iceberg",
            self.rejections: f"({_REJECTION}) USING iceberg PARTITIONED BY (batch)",
            self.keys: f"({_DEDUP}) USING iceberg PARTITIONED BY (days(committed_at))",
        }
        missing = [table for table in wanted if not self.spark.catalog.tableExists(quoted(table))]
        if missing:
            self._run(f"creating {self.system}", f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.system)}")
        for table in missing:
            self._run(f"creating {table}", f"CREATE TABLE IF NOT EXISTS {quoted(table)} {wanted[table]}")

    def _run(self, what: str, statement: str) -> None:
        told(what, lambda: self.spark.sql(statement))

    # -- rejections: before the commit

    def write_rejections(
        self, batch: Batch, target: str, judged: DataFrame, columns: Sequence[str], now_ms: int
    ) -> None:
        """Put the batch's rejections in place of what an earlier attempt at the same batch wrote."""
        row = f.to_json(f.struct(*(f.col(quoted(name)) for name in columns)), {"ignoreNullFields": "false"})
        rows = judged.where(f.col(OUTCOME) == REJECTED).select(
            f.lit(batch.id).alias("batch"),
            f.lit(target).alias("target"),
            f.col(AGENT_COLUMN).alias("agent"),
            f.col(KEY_COLUMN).alias("idempotency_key"),
            f.col(RULE).alias("rule"),
            f.col(REASON).alias("reason"),
            row.alias("row"),
            f.col(FILE).alias("wal_file"),
            f.col(POSITION).alias("wal_position"),
            f.timestamp_millis(f.lit(now_ms)).alias("rejected_at"),
        )
        self._replace(batch, rows)

    def forget_rejections(self, batch: Batch) -> None:
        """Take back the rejections of a batch that will never be committed."""
        self._replace(batch, self.spark.table(self.rejections).limit(0))

    def _replace(self, batch: Batch, rows: DataFrame) -> None:
        told(
            f"writing {self.rejections}",
            lambda: rows.writeTo(quoted(self.rejections)).overwrite(f.col("batch") == batch.id),
        )

    def has_rejections(self, batch: Batch) -> bool:
        return not self.spark.table(self.rejections).where(f.col("batch") == batch.id).isEmpty()

    # -- keys and batches: after the commit

    def known_keys(self, target: str, since_ms: int | None) -> DataFrame:
        """Keys logged for the target, as a column `_idempotency_key`; with `since_ms`, only those committed since."""
        rows = self.spark.table(self.keys).where(f.col("table_name") == target)
        if since_ms is not None:
            rows = rows.where(f.col("committed_at") >= f.timestamp_millis(f.lit(since_ms)))
        return rows.select(f.col("idempotency_key").alias(KEY_COLUMN))

    def write_keys(self, done: Done, target: str, rows: DataFrame) -> None:
        """Log the keys of a batch. `rows`: of the log, those that were rejected or not."""
        rejected = self.spark.table(self.rejections).where(f.col("batch") == done.batch)
        rejected = rejected.select(f.col("wal_file").alias(FILE), f.col("wal_position").alias(POSITION))
        sound = rows.join(rejected, [FILE, POSITION], "left_anti")
        first = Window.partitionBy(KEY_COLUMN).orderBy(*(f.col(name) for name in ORDER))
        keys = (
            sound.withColumn("__nth", f.row_number().over(first))
            .where("__nth = 1")
            .select(
                f.col(AGENT_COLUMN).alias("agent_id"),
                f.col(KEY_COLUMN).alias("idempotency_key"),
                f.lit(target).alias("table_name"),
                f.timestamp_millis(f.lit(done.committed_at_ms)).alias("committed_at"),
            )
        )
        self._insert(self.keys, keys.localCheckpoint(), ("idempotency_key", "table_name"))

    def write_mediation(self, done: Done, target: str, wal: str) -> None:
        """Close a batch."""
        counts = done.counts
        at = dt.datetime.fromtimestamp(done.committed_at_ms / 1000, dt.UTC)
        numbers = (counts.read, counts.applied, counts.superseded, counts.duplicates, counts.rejected)
        row = (done.batch, target, wal, done.start, done.through, *numbers, done.snapshot, at)
        self._insert(self.mediations, self.spark.createDataFrame([row], _MEDIATION), ("batch",))

    def open_batches(self, done: Iterable[Done]) -> list[Done]:
        """Those that no mediation closes yet, oldest first."""
        batches = list(done)
        if not batches:
            return []
        ids = ", ".join(literal(one.batch) for one in batches)
        closed = {
            row[0] for row in self.spark.table(self.mediations).where(f"batch IN ({ids})").select("batch").collect()
        }
        return [one for one in reversed(batches) if one.batch not in closed]

    def _insert(self, table: str, rows: DataFrame, on: Sequence[str]) -> None:
        patiently(lambda: merge(self.spark, table, rows, on))


def patiently(work: Callable[[], None]) -> None:
    """Do what can be done again, until nobody is in the way; at most `TRIES` times."""
    for attempt in range(1, TRIES + 1):
        try:
            return work()
        except CommitConflict:
            if attempt == TRIES:
                raise
    return None

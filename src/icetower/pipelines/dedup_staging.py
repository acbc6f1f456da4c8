"""Forwards rows from a staging table, each key once; what was sent again is deleted from staging, merge-on-read.

The staging table is a log, and a run is a mediation (`wal_mediator`): keys are looked up in the log of keys and in the
target, what is new is committed together with the progress, and a run that dies is completed by the next one. The only
step more comes before a batch is closed: its duplicates go from staging. Rows that were forwarded stay there until they
are pruned (`wal_pruning`), and rejected rows until somebody has looked at them.

    … ─▶ COMMITTED ─▶ keys logged ─▶ duplicates deleted from staging ─▶ batch closed
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from icetower.ambient import Ambient
from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.dedup_files import Files
from icetower.pipelines.tables import metadata_of, patiently
from icetower.pipelines.wal_applied import AppliedKeys
from icetower.pipelines.wal_logs import SNAPSHOT
from icetower.pipelines.wal_mediator import Job, Mediation, Run, mediate, nothing
from icetower.pipelines.wal_plan import AppliedBatch, Metadata
from icetower.pipelines.wal_reading import FILE, ORDER, POSITION
from icetower.pipelines.wal_rows import DUPLICATE, KEY_COLUMN, OUTCOME


def forward(
    spark: SparkSession, job: Job, *, ambient: Ambient | None = None, after: Callable[[str], None] = nothing
) -> Mediation:
    """Forward the next batch of `job.wal`, the staging table. Arguments, steps and exceptions are those of `mediate`;
    the step ``discarded`` is one more, after ``keys``."""
    return mediate(spark, job, ambient=ambient, after=after, run=Forwarding)


class Forwarding(Run):
    """The attempts of one run."""

    def _logged(self, done: AppliedBatch, rows: DataFrame, wal: Metadata, applied: AppliedKeys) -> None:
        if done.counts.duplicates:
            places = self._duplicates(done, rows, applied).select(FILE, POSITION).collect()
            found: dict[str, set[int]] = {}
            for file, position in places:
                found.setdefault(file, set()).add(position)
            patiently(lambda: self._discard(done, found))
        self.after("discarded")

    def _duplicates(self, done: AppliedBatch, rows: DataFrame, applied: AppliedKeys) -> DataFrame:
        if OUTCOME in rows.columns:
            return rows.where(f.col(OUTCOME) == DUPLICATE)
        # The run that committed the batch has died. What it applied is in the log of keys, each key once.
        rejected = self.logs.rejected(done).select(f.col("wal_file").alias(FILE), f.col("wal_position").alias(POSITION))
        keys = self.logs.logged_keys(applied.uuid, {}, None).where(f.col(SNAPSHOT) == done.snapshot)
        keys = keys.select(KEY_COLUMN).distinct().withColumn("_icetower_new", f.lit(True))
        sound = rows.join(rejected, [FILE, POSITION], "left_anti").join(keys, KEY_COLUMN, "left")
        nth = f.row_number().over(Window.partitionBy(KEY_COLUMN).orderBy(*(f.col(name) for name in ORDER)))
        return sound.withColumn("_icetower_nth", nth).where("_icetower_nth > 1 OR _icetower_new IS NULL")

    def _discard(self, done: AppliedBatch, duplicates: dict[str, set[int]]) -> None:
        """Delete rows of the staging table that are still where they were read."""
        files = Files(self.spark, self.job.wal, self.ambient)
        head = current_snapshot_id(metadata_of(self.spark, files.table))
        live = [] if head is None else files.live(head, among=duplicates)
        rows = {file.path: duplicates[file.path] for file in live}
        if head is not None and rows:
            files.remove(head, rows, live, (), {}, lambda: self.after("discarding"))

"""The mediator's logs: batches, rejections, and the keys it has seen. Every write can be repeated.

`wal_rejections` is written before a batch is committed, so rejected rows and their reasons survive any crash; those of
the plan that the commit records count. `wal_mediations` is written last and closes the batch. The next run writes what
a crash left out in between, and removes what others left that had planned the same batch.

A key is logged with the target's uuid and the snapshot that applied it: a renamed table is the same table, a re-created
one is another, and a batch that was rolled back is not applied (`wal_line`). Rows that earlier versions logged have
neither; the log of mediations shows to which batch they belong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from icetower.pipelines.making import OwnTable, make
from icetower.pipelines.own_tables import telling
from icetower.pipelines.tables import literal, load_metadata, merge, patiently, quoted, translating_errors
from icetower.pipelines.wal_line import LoggedBatch, legacy_batch_id
from icetower.pipelines.wal_plan import AppliedBatch, Batch
from icetower.pipelines.wal_reading import FILE, ORDER, POSITION
from icetower.pipelines.wal_rows import AGENT_COLUMN, KEY_COLUMN, OUTCOME, REASON, REJECTED, RULE, decided_ms

T = TypeVar("T")

_MEDIATION = (
    "batch STRING, target STRING, wal STRING, from_snapshot BIGINT, through_snapshot BIGINT, rows_read BIGINT, "
    "rows_applied BIGINT, rows_superseded BIGINT, rows_duplicate BIGINT, rows_rejected BIGINT, "
    "committed_snapshot BIGINT, committed_at TIMESTAMP, table_uuid STRING, wal_uuid STRING, previous_snapshot BIGINT, "
    "lag_max_ms BIGINT, lag_median_ms BIGINT, plan STRING"
)
_REJECTION = (
    "batch STRING, target STRING, agent STRING, idempotency_key STRING, rule STRING, reason STRING, row STRING, "
    "wal_file STRING, wal_position BIGINT, rejected_at TIMESTAMP, plan STRING"
)
# The guide, step 4. Exports write it, too (`system_keys`): their rows have an `attempt_id`, those of mediators none.
DEDUP_COLUMNS = (
    "agent_id STRING, idempotency_key STRING, table_name STRING, committed_at TIMESTAMP, "
    "table_uuid STRING, snapshot_id BIGINT, decided_at TIMESTAMP, attempt_id BIGINT, contract STRING, source STRING"
)
_READ = ("idempotency_key", "table_name", "committed_at", "table_uuid", "snapshot_id", "attempt_id", "source")
_REJECTED = ("batch", "plan", "wal_file", "wal_position")
_MEDIATED = (
    *("batch", "target", "from_snapshot", "through_snapshot", "committed_snapshot", "committed_at"),
    *("table_uuid", "wal_uuid", "previous_snapshot"),
)
# Columns that earlier versions did not write.
_LATER = {
    *("table_uuid", "wal_uuid", "previous_snapshot", "snapshot_id"),
    *("lag_max_ms", "lag_median_ms", "decided_at", "attempt_id", "contract", "source", "plan"),
}

ROWS = "rows"
"""The `source` of keys of rows that agents wrote directly; of mediated rows it is null."""

SNAPSHOT = "__snapshot"
"""Of a logged key: the snapshot that applied it."""

LISTED_MAX = 1000
"""Up to this many snapshots are listed in a condition; more are joined."""


@dataclass(frozen=True, slots=True)
class Mediations:
    """The log of mediations of one target.

    Attributes:
        closed: ids of the closed batches.
        batches: the batches that were committed to this very table.
        legacy: batches that earlier versions logged: the target's name then, and the time in milliseconds → the
            snapshot.
    """

    closed: frozenset[str]
    batches: Sequence[LoggedBatch]
    legacy: Mapping[tuple[str, int], int]


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

    @property
    def _tables(self) -> dict[str, OwnTable]:
        tables = (
            OwnTable(self.mediations, _MEDIATION, later=_LATER),
            OwnTable(self.rejections, _REJECTION, "batch", later=_LATER),
            OwnTable(self.keys, DEDUP_COLUMNS, "days(committed_at)", later=_LATER),
        )
        return {table.name: table for table in tables}

    def create(self, *, keys_alone: bool = False) -> None:
        """Create what is missing, and add the columns that tables of earlier versions lack.

        Args:
            keys_alone: leave the tables of mediators out.

        Raises:
            BadRequest: somebody has changed the columns of a table (`system.columns`), or one of an earlier version
                could not be upgraded (`system.upgrade`).
        """
        wanted = [self._tables[self.keys]] if keys_alone else [*self._tables.values()]
        make(self.spark, wanted)

    def _rows(self, table: str, *columns: str) -> DataFrame:
        """Some columns of a table. Raises `BadRequest` if somebody has renamed or dropped one since `create`."""

        def rows() -> DataFrame:
            return translating_errors(f"reading {table}", lambda: self.spark.table(quoted(table)).select(*columns))

        return telling(rows, table, self._tables[table].columns, lambda: load_metadata(self.spark, quoted(table)))

    def _run(self, what: str, statement: str) -> None:
        translating_errors(what, lambda: self.spark.sql(statement))

    # -- rejections: before the commit

    def write_rejections(
        self, batch: Batch, plan: str, target: str, judged: DataFrame, columns: Sequence[str], now_ms: int
    ) -> None:
        """Write the rejections of one attempt at a batch, `plan`. They count if its commit records that plan."""
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
            f.lit(plan).alias("plan"),
        )
        translating_errors(f"writing {self.rejections}", rows.writeTo(quoted(self.rejections)).append)

    def rejected(self, done: AppliedBatch) -> DataFrame:
        """The rejections of an applied batch. Attempts that were never committed may have left others of the batch."""
        rows = self._rows(self.rejections, *_REJECTED).where(f.col("batch") == done.batch)
        return rows if done.plan is None else rows.where(f.col("plan") == done.plan)

    def rejected_keys(self, target: str) -> DataFrame:
        """The keys of rows of a table that were ever rejected: `_idempotency_key`. Some may have been applied since."""
        rows = self._rows(self.rejections, "target", "idempotency_key").where(f.col("target") == target)
        return rows.select(f.col("idempotency_key").alias(KEY_COLUMN))

    def keep_rejections(self, done: AppliedBatch) -> None:
        """Remove what other attempts at an applied batch have left."""
        if done.plan is not None:
            self._forget(f"batch = {literal(done.batch)} AND (plan IS NULL OR plan <> {literal(done.plan)})")

    def forget_rejections(self, batch: str, plan: str) -> None:
        """Remove the rejections of an attempt that was not committed."""
        self._forget(f"batch = {literal(batch)} AND plan = {literal(plan)}")

    def _forget(self, where: str) -> None:
        statement = f"DELETE FROM {quoted(self.rejections)} WHERE {where}"  # noqa: S608 - literals are quoted

        def forget() -> None:
            strays = self._rows(self.rejections, "batch", "plan").where(where)
            if not translating_errors(f"reading {self.rejections}", strays.isEmpty):
                self._run(f"writing {self.rejections}", statement)

        patiently(forget)

    # -- keys and batches: after the commit

    def mediations_of(self, table_uuid: str, wal_uuid: str) -> Mediations:
        """The batches of a table, under any name it had.

        Args:
            wal_uuid: of the log whose batches of earlier versions are included: their ids prove to which table they
                were applied.
        """
        columns = (
            "batch, target, from_snapshot, through_snapshot, committed_snapshot, unix_millis(committed_at), wal_uuid, "
            "previous_snapshot"
        )
        rows = self._rows(self.mediations, *_MEDIATED)
        rows = rows.where(f"table_uuid = {literal(table_uuid)} OR table_uuid IS NULL")
        closed, batches, legacy = set[str](), list[LoggedBatch](), dict[tuple[str, int], int]()
        found = translating_errors(f"reading {self.mediations}", rows.selectExpr(*columns.split(", ")).collect)
        for batch, name, start, through, snapshot, at_ms, log, previous in found:
            if log is None:
                if batch != legacy_batch_id(table_uuid, wal_uuid, start, through):
                    continue
                legacy[name, at_ms] = snapshot
            closed.add(batch)
            batches.append(LoggedBatch(snapshot, log or wal_uuid, start, through, at_ms, previous))
        return Mediations(frozenset(closed), batches, legacy)

    def logged_keys(self, table_uuid: str, legacy: Mapping[tuple[str, int], int], since_ms: int | None) -> DataFrame:
        """Keys logged for a table: `_idempotency_key` and `__snapshot`, which is null for keys that an administrator
        has declared applied. With `since_ms`, only those committed since then."""
        rows = self._keys_since(since_ms).where("attempt_id IS NULL AND source IS NULL")
        key = f.col("idempotency_key").alias(KEY_COLUMN)
        ours = rows.where(f.col("table_uuid") == table_uuid).select(key, f.col("snapshot_id").alias(SNAPSHOT))
        if not legacy:
            return ours
        old = rows.where("table_uuid IS NULL").withColumn("__at", f.unix_millis("committed_at"))
        return ours.unionByName(old.join(self._places(legacy), ["table_name", "__at"]).select(key, f.col(SNAPSHOT)))

    def every_key(self, table_uuid: str, since_ms: int | None, *, of_rows: bool = False) -> DataFrame:
        """Keys that landed in a table, by whatever way: `_idempotency_key` and `__snapshot`.

        Args:
            of_rows: without keys that commits have, which exports log: no row need have them.
        """
        rows = self._keys_since(since_ms).where(f.col("table_uuid") == table_uuid)
        if of_rows:
            rows = rows.where("attempt_id IS NULL")
        return rows.select(f.col("idempotency_key").alias(KEY_COLUMN), f.col("snapshot_id").alias(SNAPSHOT))

    def _keys_since(self, since_ms: int | None) -> DataFrame:
        rows = self._rows(self.keys, *_READ)
        if since_ms is None:
            return rows
        return rows.where(f.col("committed_at") >= f.timestamp_millis(f.lit(since_ms)))

    def write_rows(self, rows: DataFrame) -> None:
        """Log keys: rows of the log, without those that it has."""
        self._insert(self.keys, rows, ("idempotency_key", "table_uuid", "snapshot_id"))

    def unplaced_keys(
        self, target: str, legacy: Mapping[tuple[str, int], int], between_ms: tuple[int, int]
    ) -> DataFrame:
        """Keys that an earlier version logged for a table of this name between two times, without a known batch."""
        first, last = (f.timestamp_millis(f.lit(at_ms)) for at_ms in between_ms)
        rows = self._rows(self.keys, *_READ).where("table_uuid IS NULL").where(f.col("table_name") == target)
        rows = rows.where(f.col("committed_at").between(first, last))
        rows = rows.withColumn("__at", f.unix_millis("committed_at"))
        if legacy:
            rows = rows.join(self._places(legacy), ["table_name", "__at"], "left_anti")
        return rows.select(f.col("idempotency_key").alias(KEY_COLUMN))

    def _places(self, legacy: Mapping[tuple[str, int], int]) -> DataFrame:
        places = [(*place, snapshot) for place, snapshot in legacy.items()]
        return f.broadcast(self.spark.createDataFrame(places, f"table_name STRING, __at BIGINT, {SNAPSHOT} BIGINT"))

    def of_snapshots(self, keys: DataFrame, snapshots: Collection[int], *, others: bool = False) -> DataFrame:
        """The logged keys of some snapshots; with `others`, those of all other snapshots."""
        rows = keys.where(f.col(SNAPSHOT).isNotNull())
        if len(snapshots) <= LISTED_MAX:
            among = f.col(SNAPSHOT).isin(*snapshots)
            return rows.where(~among if others else among)
        ids = self.spark.createDataFrame([(snapshot,) for snapshot in snapshots], f"{SNAPSHOT} BIGINT")
        return rows.join(f.broadcast(ids), SNAPSHOT, "left_anti" if others else "left_semi")

    def write_keys(self, done: AppliedBatch, target: str, table_uuid: str, rows: DataFrame, logged: DataFrame) -> None:
        """Log the keys of a batch.

        Args:
            target: the table's name.
            rows: of the log, rejected ones included. Without outcomes, the log of rejections tells which they are.
            logged: keys that need not be logged again: they came with earlier batches of the same line.
        """
        if OUTCOME in rows.columns:
            sound = rows.where(f.col(OUTCOME) != REJECTED)
        else:
            rejected = self.rejected(done).select(f.col("wal_file").alias(FILE), f.col("wal_position").alias(POSITION))
            sound = rows.join(rejected, [FILE, POSITION], "left_anti")
        sound = sound.join(logged, KEY_COLUMN, "left_anti")
        first = Window.partitionBy(KEY_COLUMN).orderBy(*(f.col(name) for name in ORDER))
        keys = (
            sound.withColumn("_icetower_nth", f.row_number().over(first))
            .where("_icetower_nth = 1")
            .select(
                f.col(AGENT_COLUMN).alias("agent_id"),
                f.col(KEY_COLUMN).alias("idempotency_key"),
                f.lit(target).alias("table_name"),
                f.timestamp_millis(f.lit(done.committed_at_ms)).alias("committed_at"),
                f.lit(table_uuid).alias("table_uuid"),
                f.lit(done.snapshot).alias("snapshot_id"),
                f.timestamp_millis(decided_ms(rows.columns)).alias("decided_at"),
            )
        )
        on = ("idempotency_key", "table_uuid", "snapshot_id")
        self._insert(self.keys, keys.localCheckpoint(), on, at_ms=done.committed_at_ms)

    def write_mediation(self, done: AppliedBatch, names: tuple[str, str], uuids: tuple[str, str]) -> None:
        """Close a batch. `names`, `uuids`: of the target and the log."""
        counts = done.counts
        at = dt.datetime.fromtimestamp(done.committed_at_ms / 1000, dt.UTC)
        numbers = (counts.read, counts.applied, counts.superseded, counts.duplicates, counts.rejected)
        lags = (None, None) if done.decided is None else done.decided.lags_ms(done.committed_at_ms)
        row = (
            done.batch,
            *names,
            done.start,
            done.through,
            *numbers,
            done.snapshot,
            at,
            *uuids,
            done.previous,
            *lags,
            done.plan,
        )
        rows = self.spark.createDataFrame([row], _MEDIATION)
        self._insert(self.mediations, rows, ("batch",), at_ms=done.committed_at_ms)

    def _insert(self, table: str, rows: DataFrame, on: Sequence[str], *, at_ms: int | None = None) -> None:
        """Add rows that are not there. `at_ms`: the `committed_at` of them all; no other is read."""
        where = "" if at_ms is None else f"t.committed_at = timestamp_millis({at_ms})"
        patiently(lambda: merge(self.spark, table, rows, on, where_target=where))

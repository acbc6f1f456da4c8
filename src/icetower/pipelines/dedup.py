"""Validates a table that agents write directly: of rows that landed twice under one key, the first stay.

A run reads the rows that landed since the progress in the table's own history, and compares their keys with each other
and with the log of keys. Where a key has landed with two commits, the rows that have it now decide (`dedup_rules`), and
those of the later commits are deleted merge-on-read. The commit records how far the table was validated. The table is
its own log: progress, its place in the summary, and its retention are a mediator's (`wal_plan`).

    read ─▶ keys logged ─▶ COMMITTED

A crash before the commit leaves keys in the log that are in the table, which the next run finds the same. A commit is
refused if any file that it was decided on has changed meanwhile; the run then reads again. Appends do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import BadRequest, CommitConflict, CommitStateUnknown, UpstreamFailed
from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.dedup_files import Files
from icetower.pipelines.dedup_rules import THROUGH_SEQUENCE, Part, Verdict, decide, line_of, next_part
from icetower.pipelines.dedup_tracing import LANDED_IN, LANDED_ROWS, SHARED, Tracing
from icetower.pipelines.own_tables import fields_of, renamed
from icetower.pipelines.tables import iceberg_table, identifier, metadata_of, private_session, translating_errors
from icetower.pipelines.wal_logs import ROWS, SNAPSHOT, Logs
from icetower.pipelines.wal_plan import Counts, Metadata, history
from icetower.pipelines.wal_rows import KEY_COLUMN
from icetower.protocol.marks import MEDIATOR

WINDOW_S = 86_400
SNAPSHOTS_MAX = 10_000
ROWS_MAX = 1_000_000
TRIES = 5
UNKEYED, UNTOLD = MEDIATOR + "unkeyed", MEDIATOR + "untold"


@dataclass(frozen=True, slots=True)
class Target:
    """A table to validate.

    Attributes:
        table: ``catalog.namespace.table``.
        system: namespace of the log of keys, with its catalog; None: ``system`` in the table's catalog.
        window_s: a key that landed longer ago is not looked for.
        snapshots_max, rows_max: the most that one run takes, as long as no single commit has more rows.
    """

    table: str
    system: str | None = None
    window_s: int = WINDOW_S
    snapshots_max: int = SNAPSHOTS_MAX
    rows_max: int = ROWS_MAX

    @property
    def logs_in(self) -> str:
        return self.system or f"{self.table.partition('.')[0]}.system"

    @property
    def wal(self) -> str:
        """The table is its own log."""
        return self.table

    @property
    def target(self) -> str:
        return self.table


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of a run. `status`: ``validated`` or ``idle`` (nothing landed since).

    Attributes:
        read: rows that landed; rows that were rewritten meanwhile are among them.
        keys: new keys in the log.
        removed: copies that were deleted.
        unkeyed: rows without a key, which are left alone.
        untold: rows that may be copies; their origin is not known any more, so they stay.
    """

    status: str
    table: str
    from_snapshot: int | None = None
    through_snapshot: int | None = None
    read: int = 0
    keys: int = 0
    removed: int = 0
    unkeyed: int = 0
    untold: int = 0
    committed_snapshot: int | None = None
    attempts: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def nothing(_step: str) -> None:
    return


def validate(
    spark: SparkSession,
    target: Target,
    *,
    ambient: Ambient | None = None,
    after: Callable[[str], None] = nothing,
) -> Validation:
    """Validate what landed in a table since the last run; one part of it, if there is much.

    Args:
        after: called after ``read``, ``keys``, ``written`` (the files of deletes) and ``committed``; for tests.

    Raises:
        BadRequest: the table has no column of keys, or a format without row-level deletes; or it or the log of keys
            was changed so that the job cannot go on.
        CommitConflict: others changed the same files each time; run again.
        CommitStateUnknown, UpstreamFailed: Spark or the catalog failed; run again.
    """
    run = _Run(private_session(spark), target, ambient or SystemAmbient(), after)
    run.logs.create(keys_alone=True)
    for attempt in range(1, TRIES + 1):
        try:
            return translating_errors(f"validating {target.table}", partial(run.once, attempt))
        except CommitConflict:
            if attempt == TRIES:
                raise
        except UpstreamFailed:
            run.logs.create(keys_alone=True)  # says so if somebody has changed the log meanwhile
            raise
    raise AssertionError("unreachable")


class _Run:
    def __init__(self, spark: SparkSession, target: Target, ambient: Ambient, after: Callable[[str], None]) -> None:
        self.spark, self.target, self.ambient, self.after = spark, target, ambient, after
        self.logs = Logs(spark, target.logs_in)

    def once(self, attempt: int) -> Validation:
        """One attempt on the table's current state. Raises `CommitConflict` if others changed the same files."""
        target = self.target
        files = Files(self.spark, target.table, self.ambient)
        table = metadata_of(self.spark, files.table)
        require_keys(table, target.table)
        now_ms = self.ambient.now_ms()
        since_ms = now_ms - target.window_s * 1000
        part = next_part(
            table,
            now_ms=now_ms,
            window_ms=target.window_s * 1000,
            snapshots_max=target.snapshots_max,
            rows_max=target.rows_max,
        )
        if part is None:
            return Validation("idle", target.table)
        try:
            return self._validated(files, table, part, since_ms, attempt)
        finally:
            files.release()

    def _validated(self, files: Files, table: Metadata, part: Part, since_ms: int, attempt: int) -> Validation:
        target = self.target
        tracing = Tracing(files, table, since_ms)
        new = tracing.landed(part).localCheckpoint()
        without = f.when(f.col(KEY_COLUMN).isNull(), f.col(LANDED_ROWS))
        counts = new.agg(f.sum(LANDED_ROWS), f.sum(without)).collect()[0]
        keyed = new.where(f.col(KEY_COLUMN).isNotNull())
        verdicts = self._verdicts(keyed, table, tracing, since_ms)
        self.after("read")
        logged = self._log_keys(keyed, table, since_ms)
        self.after("keys")
        removed = [copy for verdict in verdicts for copy in verdict.remove]
        untold = sum(verdict.untold for verdict in verdicts)
        read, unkeyed = int(counts[0] or 0), int(counts[1] or 0)
        properties = {
            **part.batch.properties(Counts(read, read - len(removed), 0, len(removed), 0)),
            THROUGH_SEQUENCE: str(tracing.sequence_of(part.batch.through)),
            UNKEYED: str(unkeyed),
            UNTOLD: str(untold),
        }
        committed = self._commit(files, tracing, part, verdicts, properties)
        self.after("committed")
        return Validation(
            "validated",
            target.table,
            from_snapshot=part.batch.start,
            through_snapshot=part.batch.through,
            read=read,
            keys=logged,
            removed=len(removed),
            unkeyed=unkeyed,
            untold=untold,
            committed_snapshot=committed,
            attempts=attempt,
        )

    def _commit(
        self,
        files: Files,
        tracing: Tracing,
        part: Part,
        verdicts: Sequence[Verdict],
        properties: Mapping[str, str],
    ) -> int | None:
        positions: dict[str, list[int]] = {}
        relied_on: set[str] = set()
        for verdict in verdicts:
            for copy in verdict.remove:
                positions.setdefault(copy.file, []).append(copy.position)
            if verdict.remove:
                relied_on |= {copy.file for copy in verdict.keep}
        try:
            if positions:
                files.remove(
                    tracing.head, positions, tracing.files_at_head, relied_on, properties, lambda: self.after("written")
                )
            else:
                files.record(properties)
        except CommitStateUnknown as error:
            done = self._committed(part)
            if done is None:
                raise error
            return done
        done = self._committed(part)
        if done is None:
            raise CommitConflict(f"{part.batch.id} was committed to {self.target.table} and rolled back since")
        return done

    def _committed(self, part: Part) -> int | None:
        table = metadata_of(self.spark, iceberg_table(self.spark, self.target.table))
        found = (done for done in history(table, part.batch.wal_uuid) if done.batch == part.batch.id)
        return next((done.snapshot for done in found), None)

    # -- which keys landed twice

    def _verdicts(self, new: DataFrame, table: Metadata, tracing: Tracing, since_ms: int) -> list[Verdict]:
        in_one_file = f.max(f.when(f.col(SHARED), f.col(LANDED_ROWS)).otherwise(1))
        several = new.groupBy(KEY_COLUMN).agg(f.count(f.lit(1)).alias("n"), in_one_file.alias("m"))
        several = several.where("n > 1 OR m > 1").select(KEY_COLUMN)
        before = self._logged(table, since_ms).withColumnRenamed(SNAPSHOT, "__before")
        again = new.join(before, KEY_COLUMN).where(f"__before <> {LANDED_IN}").select(KEY_COLUMN)
        keys = sorted({row[0] for row in several.unionByName(again).distinct().collect()})
        return [] if not keys else [decide(copies) for copies in tracing.copies(keys).values()]

    def _logged(self, table: Metadata, since_ms: int) -> DataFrame:
        """The keys in the log that landed within the window, without those of commits that were rolled back."""
        line = {each.snapshot for each in line_of(table, current_snapshot_id(table))}
        gone = [s["snapshot-id"] for s in table["snapshots"] if s["snapshot-id"] not in line]
        rows = self.logs.every_key(table["table-uuid"], since_ms)
        return (
            rows.where(f.col(SNAPSHOT).isNotNull() & ~f.col(SNAPSHOT).isin(gone))
            if gone
            else rows.where(f.col(SNAPSHOT).isNotNull())
        )

    def _log_keys(self, new: DataFrame, table: Metadata, since_ms: int) -> int:
        """Log the keys that are new, each with the commit that it landed with first."""
        first = new.groupBy(KEY_COLUMN).agg(
            f.min_by(f.struct(LANDED_IN, "__at", "__agent", "__logs_itself"), f.struct("__origin", "__member")).alias(
                "__l"
            )
        )
        fresh = first.join(self._logged(table, since_ms).select(KEY_COLUMN), KEY_COLUMN, "left_anti")
        fresh = fresh.where("NOT __l.__logs_itself")
        rows = fresh.select(
            f.col("__l.__agent").alias("agent_id"),
            f.col(KEY_COLUMN).alias("idempotency_key"),
            f.lit(str(identifier(self.target.table))).alias("table_name"),
            f.timestamp_millis(f.col("__l.__at")).alias("committed_at"),
            f.lit(table["table-uuid"]).alias("table_uuid"),
            f.col(f"__l.{LANDED_IN}").alias("snapshot_id"),
            f.lit(None).cast("timestamp").alias("decided_at"),
            f.lit(ROWS).alias("source"),
        ).localCheckpoint()
        count = rows.count()
        if count:
            self.logs.write_rows(rows)
        return count


def require_keys(table: Metadata, name: str) -> None:
    """Raises `BadRequest` if rows of the table have no keys, or cannot be deleted one by one."""
    if table["format-version"] < 2:
        raise BadRequest(
            f"{name} has format version 1, which has no row-level deletes: set its property 'format-version' to 2",
            rule="dedup.table",
        )
    fields = fields_of(table)
    if KEY_COLUMN in fields and fields[KEY_COLUMN]["type"] == "string":
        return
    now = renamed(table, KEY_COLUMN)
    remedy = f"ADD COLUMN {KEY_COLUMN} STRING" if now is None else f"RENAME COLUMN {now} TO {KEY_COLUMN}"
    if KEY_COLUMN in fields:
        remedy = f"RENAME COLUMN {KEY_COLUMN} TO another name, and ADD COLUMN {KEY_COLUMN} STRING"
    raise BadRequest(
        f"{name} has no column {KEY_COLUMN} of type STRING; ALTER TABLE {identifier(name)} {remedy}",
        rule="dedup.table",
    )

"""The write-ahead log mediator: many agents append to a log, one job merges it into the table.

A run reads the log's new rows since the progress in the target's own history, checks every row against the contract of
the agent that wrote it, drops rows that were applied before, by their keys, and commits the rest as ONE snapshot that
records how far the log has been read. A crash at any point loses nothing and duplicates nothing:

    planned ─▶ rejections written ─▶ COMMITTED ─▶ keys logged ─▶ batch closed
    └──── start over: nothing was done ────┘   └─ next run completes it ────┘

Two mediators may run at once: the commit is refused if data was added to the target since it was read, or if another
snapshot recorded progress of this log. The slower one plans again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient, SystemAmbient
from icetower.contracts.model import Contract, Operation
from icetower.contracts.terms import Layout
from icetower.errors import BadRequest, CommitConflict, IcetowerError, UpstreamFailed
from icetower.iceberg.metadata import current_schema, current_snapshot_id
from icetower.iceberg.partitions import spec_of
from icetower.pipelines.as_of import rows_as_of, same_columns, spark_schema
from icetower.pipelines.tables import (
    commit_nothing,
    identifier,
    literal,
    load_metadata,
    merge,
    private_session,
    quoted,
    require_serializable,
    translating_errors,
)
from icetower.pipelines.wal_applied import AppliedKeys
from icetower.pipelines.wal_line import FIRST
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_plan import (
    PLAN,
    PLAN_CHARACTERS,
    SEQUENCE,
    WAL,
    AppliedBatch,
    Batch,
    Counts,
    Decided,
    Metadata,
    history,
    latest,
    next_batch,
    published,
    readable,
)
from icetower.pipelines.wal_pruning import removals_since
from icetower.pipelines.wal_reading import read_batch, read_before, with_known_order
from icetower.pipelines.wal_rows import (
    APPLIED,
    KEY_COLUMN,
    OUTCOME,
    OWN,
    UNORDERED,
    Rules,
    classify,
    decided_ms,
    judge,
    proven_specs,
    require_matching_columns,
)

SNAPSHOTS_MAX = 10_000
ROWS_MAX = 1_000_000
TRIES = 5
SETTLED_LOOK_BACK = 100
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Window:
    """How far back keys are searched: in rows of the target whose `column` (a timestamp) is at least the batch's
    earliest minus `length_s`, and in keys logged in the last `length_s`. A row that is sent again has its old time."""

    column: str
    length_s: int


@dataclass(frozen=True, slots=True)
class Job:
    """One mediation.

    Attributes:
        wal: the log, ``catalog.namespace.table``.
        target: the table that it is merged into, likewise, in the same catalog.
        contracts: those in force, by agent; None, for reading only: every row is taken as granted.
        system: namespace of the three logs of `wal_logs`; None: ``system`` in the target's catalog.
        merge_keys: columns that identify a row, for upserts: the last row wins. They must include every source column
            of the target's partitions, so that no row moves out of a partition that its writer doesn't own. Empty: rows
            are only inserted.
        window: None searches keys everywhere.
        snapshots_max: the most snapshots of the log that one run takes.
        rows_max: the most rows that one run takes, as long as no single snapshot of the log has more.
        reread: take the whole log if it can't be read from the end of the progress.
        own: the contract under which the mediator runs, if it is known.
        order_by: for upserts: the column of the log that orders the versions of a row if the log no longer does.
    """

    wal: str
    target: str
    contracts: Mapping[str, Contract] | None
    system: str | None = None
    merge_keys: tuple[str, ...] = ()
    window: Window | None = None
    snapshots_max: int = SNAPSHOTS_MAX
    rows_max: int = ROWS_MAX
    reread: bool = False
    order_by: str | None = None
    own: Contract | None = None

    @property
    def catalog(self) -> str:
        return self.target.partition(".")[0]

    @property
    def logs_in(self) -> str:
        """The namespace of the mediator's logs, with its catalog in front."""
        return self.system or f"{self.catalog}.system"

    @property
    def table_name(self) -> str:
        return str(identifier(self.target))


@dataclass(frozen=True, slots=True)
class Mediation:
    """The result of a run. `status`: ``applied`` (a batch was committed, even one without a valid row) or ``idle``.

    `settled` are batches of earlier runs whose logs this one completed. `attempts` counts attempted commits, including
    lost ones. `lag_max_ms` and `lag_median_ms`: from a row's decision to its being visible in the target, of the
    applied rows; None without any.
    """

    status: str
    target: str
    wal: str
    batch: str | None = None
    from_snapshot: int | None = None
    through_snapshot: int | None = None
    read: int = 0
    applied: int = 0
    superseded: int = 0
    duplicates: int = 0
    rejected: int = 0
    committed_snapshot: int | None = None
    committed_at_ms: int | None = None
    attempts: int = 0
    settled: tuple[str, ...] = ()
    lag_max_ms: int | None = None
    lag_median_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def nothing(_step: str) -> None:
    return


def mediate(
    spark: SparkSession,
    job: Job,
    *,
    ambient: Ambient | None = None,
    after: Callable[[str], None] = nothing,
    run: Callable[..., Run] | None = None,
) -> Mediation:
    """Apply the next batch of the log.

    Args:
        spark: its settings and views are not changed.
        job: the mediation.
        ambient: the clock.
        after: called after each step: ``planned``, ``rejections``, ``committed``, ``keys``, ``closed``.
        run: makes the attempts, of the arguments of `Run`; None: `Run` itself.

    Raises:
        BadRequest: the tables don't match, or the log can't be read further; the message gives the way out.
        CommitConflict: others were faster `TRIES` times.
        CommitStateUnknown: run again, which finds out.
        UpstreamFailed: Spark or the catalog failed; run again.
    """
    attempts = (run or Run)(private_session(spark), job, ambient or SystemAmbient(), after)
    attempts.logs.create()
    settled: tuple[str, ...] = ()
    for attempt in range(1, TRIES + 1):
        try:
            mediation = attempts.once()
        except CommitConflict:
            settled += tuple(attempts.settled)
            if attempt == TRIES:
                raise
        else:
            lost = attempt - 1
            return replace(mediation, attempts=mediation.attempts + lost, settled=settled + mediation.settled)
    raise AssertionError("unreachable")


class Tables(NamedTuple):
    """Both tables' metadata, by which one attempt goes from its beginning to its commit."""

    target: Metadata
    wal: Metadata


class Known(NamedTuple):
    """What was applied before.

    Attributes:
        keys: frames of one column, the keys.
        rows: which of the batch's rows were in batches before (`wal_reading.read_before`).
    """

    keys: list[DataFrame]
    rows: Column | None


class Run:
    """The attempts of one mediation."""

    change_columns: frozenset[str] = frozenset()
    """Columns that the log has beside the target's and its own."""

    def __init__(self, spark: SparkSession, job: Job, ambient: Ambient, after: Callable[[str], None]) -> None:
        self.spark, self.job, self.ambient, self.after = spark, job, ambient, after
        self.logs = Logs(spark, job.logs_in)
        self.settled: list[str] = []

    def once(self) -> Mediation:
        """One attempt on both tables' current state.

        Raises `CommitConflict` if another commit was faster, or if a table got other columns or partitions meanwhile.
        """
        self.settled = []
        return self._on_current(self._once)

    def _on_current(self, work: Callable[[Tables], T]) -> T:
        """Do it with both tables as they are now. What fails because they have changed is a `CommitConflict`."""
        tables = self._load()
        try:
            return translating_errors(f"reading {self.job.wal}", lambda: work(tables))
        except UpstreamFailed:
            self._require_unchanged(tables)
            raise

    def _load(self) -> Tables:
        return Tables(load_metadata(self.spark, self.job.target), load_metadata(self.spark, self.job.wal))

    def _require_unchanged(self, tables: Tables) -> None:
        """Raises `CommitConflict` if a table has other columns or partitions now: rows were read by the former ones."""
        names = (self.job.target, self.job.wal)
        for name, then, now in zip(names, tables, self._load(), strict=True):
            same = all(then[each] == now[each] for each in ("table-uuid", "default-spec-id"))
            if not (same and same_columns(then, now)):
                raise CommitConflict(f"{name} has other columns or partitions than when the batch was planned")

    def _once(self, tables: Tables) -> Mediation:
        job, (target, wal) = self.job, tables
        rules = self._rules(tables)
        mediations = self.logs.mediations_of(target["table-uuid"], wal["table-uuid"])
        applied = AppliedKeys(self.logs, target, job.table_name, mediations)
        self._settle(target, wal, applied)
        batch = self._next(target, wal)
        if batch is None:
            return Mediation("idle", job.target, job.wal, settled=tuple(self.settled))
        order_by = None
        if batch.whole and job.merge_keys:
            batch, ordered = with_known_order(self.spark, job.wal, wal, batch)
            order_by = None if ordered else job.order_by
        judged = self._judged(read_batch(self.spark, job.wal, wal, batch), rules)
        keys, batch = self._known(batch, target, judged, applied)
        last = applied.batches.get(batch.previous)
        known = Known(keys, read_before(wal, batch, None if last is None else last.through))
        # Detached from the tables: the counted rows are the merged ones, even if the tables change meanwhile.
        rows = self._outcomes(batch, judged, known, tables, rules, order_by).localCheckpoint()
        found, decided = _counted(rows)
        if UNORDERED in found:
            raise _order_is_lost(job, found[UNORDERED], order_by)
        counts = Counts(sum(found.values()), **found)
        self.after("planned")
        plan = self.ambient.uuid4()[:PLAN_CHARACTERS]
        if counts.rejected:
            self.logs.write_rejections(batch, plan, job.table_name, rows, _columns(rows), self.ambient.now_ms())
        self.after("rejections")
        sound = rows.where(f.col(OUTCOME) == APPLIED).select(*(f.col(quoted(name)) for name in self._columns(target)))
        properties = batch.properties(counts, decided, plan)
        done = self._commit(batch, properties, tables, sound if counts.applied else None)
        self.after("committed")
        self._close(done, rows, wal, applied)
        return Mediation(
            "applied",
            job.target,
            job.wal,
            batch=done.batch,
            from_snapshot=done.start,
            through_snapshot=done.through,
            **asdict(done.counts),
            committed_snapshot=done.snapshot,
            committed_at_ms=done.committed_at_ms,
            attempts=1,
            settled=tuple(self.settled),
            **_lags(done),
        )

    # -- before the commit

    def _next(self, target: Metadata, wal: Metadata) -> Batch | None:
        job, progress = self.job, latest(target, wal["table-uuid"])
        return next_batch(
            target,
            wal,
            snapshots_max=job.snapshots_max,
            rows_max=job.rows_max,
            reread=job.reread,
            now_ms=self.ambient.now_ms(),
            removals={} if progress is None else removals_since(self.spark, job.wal, wal, progress.through),
        )

    def _rules(self, tables: Tables) -> Rules:
        """The rules for rows. Raises `BadRequest` if the two tables don't match, or races would not be detected."""
        job, (target, wal) = self.job, tables
        require_serializable(target, job.target, job.own)
        schema, logged = spark_schema(self.spark, target), spark_schema(self.spark, wal)
        require_matching_columns(job.wal, logged, job.target, schema, more=self.change_columns)
        spec = spec_of(target, target["default-spec-id"])
        if job.merge_keys:
            unknown = sorted(set(job.merge_keys) - set(schema.names))
            outside = sorted({field.source_name for field in spec.fields} - set(job.merge_keys))
            if unknown or outside:
                wrong = f"{', '.join(unknown)} does not exist" if unknown else f"{', '.join(outside)} must be included"
                raise BadRequest(
                    f"merge keys {', '.join(job.merge_keys)} of {job.target}: {wrong}; an upsert names existing "
                    "columns and every source of the partitions, else a row could leave a partition that its writer "
                    "doesn't own",
                    rule="wal.merge-keys",
                )
        if job.order_by is not None and job.order_by not in logged.names:
            raise BadRequest(
                f"{job.wal} has no column {job.order_by}; --order-by (`Job.order_by`) must name one of the log's",
                rule="wal.order",
            )
        required = {field["name"] for field in current_schema(target)["fields"] if field["required"]}
        return Rules(
            table=identifier(job.target),
            catalog=job.catalog,
            spec=spec,
            required=tuple(sorted((required | set(job.merge_keys)) - {KEY_COLUMN})),
            proven_specs=proven_specs(wal, job.wal),
            contracts=job.contracts,
            operation=Operation.OVERWRITE if job.merge_keys else Operation.APPEND,
            layout=Layout(target),
            now_ms=self.ambient.now_ms(),
        )

    def _judged(self, rows: DataFrame, rules: Rules) -> DataFrame:
        return judge(rows, rules)

    def _outcomes(
        self,
        batch: Batch,
        judged: DataFrame,
        known: Known,
        tables: Tables,
        rules: Rules,
        order_by: str | None,
    ) -> DataFrame:
        """The judged rows with their outcomes."""
        return classify(judged, known.keys, self.job.merge_keys, order_by, read_before=known.rows)

    def _known(
        self, batch: Batch, target: Metadata, judged: DataFrame, applied: AppliedKeys
    ) -> tuple[list[DataFrame], Batch]:
        """The keys that were applied before, and the batch with its predecessor."""
        window = self._window(batch)
        since_ms = None if window is None else self.ambient.now_ms() - window.length_s * 1000
        head = current_snapshot_id(target)
        rows = None
        if head is not None:
            rows = rows_as_of(self.spark, self.job.target, target, head)
        logged, found = applied.keys(rows, since_ms)
        if batch.previous == FIRST:
            batch = replace(batch, previous=found.tips.get(batch.wal_uuid, FIRST))
        known = [logged]
        if rows is not None:
            condition = self._bound(judged, window, "")
            known.append(rows.where(condition) if condition else rows)
        return known, batch

    def _window(self, batch: Batch) -> Window | None:
        # A whole log has rows of any age, and the target may have them all.
        return None if batch.whole else self.job.window

    def _bound(self, rows: DataFrame, window: Window | None, prefix: str) -> str:
        """The window's condition on the target, from the earliest time among `rows`; empty without a window."""
        if window is None:
            return ""
        column = quoted(window.column)
        earliest = rows.select(f.unix_micros(f.min(f.col(column)).cast("timestamp"))).collect()[0][0]
        if earliest is None:
            return ""
        bound = f"timestamp_micros({earliest - window.length_s * 1_000_000})"
        # A row without a time could be of any time: such rows are always searched.
        return f"({prefix}{column} >= {bound} OR {prefix}{column} IS NULL)"

    # -- the commit

    def _columns(self, target: Metadata) -> list[str]:
        """The columns of the rows that are written."""
        return spark_schema(self.spark, target).names

    def _write(self, batch: Batch, target: Metadata, rows: DataFrame, properties: Mapping[str, str]) -> bool:
        """Commit the rows with the properties; False, without a commit, if they change nothing."""
        merge(
            self.spark,
            self.job.target,
            rows,
            self.job.merge_keys or (KEY_COLUMN,),
            update=bool(self.job.merge_keys),
            where_target="" if self.job.merge_keys else self._bound(rows, self._window(batch), "t."),
            guard=self._guard(batch, target),
            properties=properties,
        )
        return True

    def _commit(
        self, batch: Batch, properties: Mapping[str, str], tables: Tables, rows: DataFrame | None
    ) -> AppliedBatch:
        """Commit the applied rows, or the progress alone if there are none."""
        target = tables.target
        try:
            self._require_unchanged(tables)
            if rows is None or not self._write(batch, target, rows, properties):
                commit_nothing(self.spark, self.job.target, target, properties)
        except CommitConflict:
            self.logs.forget_rejections(batch.id, properties[PLAN])
            raise
        except IcetowerError:
            done = self._committed(batch, properties[PLAN])
            if done is None:
                raise
            return done
        done = self._committed(batch, properties[PLAN])
        if done is None:
            self.logs.forget_rejections(batch.id, properties[PLAN])
            raise CommitConflict(
                f"batch {batch.id} was committed to {self.job.target} and rolled back since, or by another one before"
            )
        return done

    def _guard(self, batch: Batch, target: Metadata) -> str:
        """True while the target's history has everything that it had when planning, and no other batch of this log.

        After a rollback, rows that the progress records as applied would be missing; after a return to a batch that was
        rolled back, older rows would replace newer ones.
        """
        snapshots, log = (f"{quoted(self.job.target)}.{part}" for part in ("snapshots", "history"))
        line = f"SELECT snapshot_id FROM {log} WHERE is_current_ancestor"  # noqa: S608 - names are quoted
        highest = (
            f"SELECT coalesce(max(cast(summary[{literal(SEQUENCE)}] AS BIGINT)), 0) FROM {snapshots} "  # noqa: S608
            f"WHERE summary[{literal(WAL)}] = {literal(batch.wal_uuid)}"
        )
        done, head = latest(target, batch.wal_uuid), current_snapshot_id(target)
        conditions = [
            f"({highest}) < {batch.sequence}",
            f"({highest} AND snapshot_id IN ({line})) <= {0 if done is None else done.sequence}",
        ]
        if head in {entry["snapshot-id"] for entry in target.get("snapshot-log") or ()}:
            conditions.append(f"(SELECT count(*) FROM ({line}) WHERE snapshot_id = {head}) > 0")  # noqa: S608
        return " AND ".join(conditions)

    def _committed(self, batch: Batch, plan: str) -> AppliedBatch | None:
        """The batch, if this very attempt has committed it; a rival may have committed another plan of the same one.

        Of two commits without rows both may land, as neither adds what the other has not seen: the first one counts.
        """
        done = history(load_metadata(self.spark, self.job.target), batch.wal_uuid)
        first = next((one for one in reversed([*done]) if one.batch == batch.id), None)
        return None if first is None or first.plan != plan else first

    # -- after the commit

    def _settle(self, target: Metadata, wal: Metadata, applied: AppliedKeys) -> None:
        """Complete the logs of batches whose mediator ended before doing so."""
        recent = [*published(target, wal["table-uuid"]), *islice(history(target, wal["table-uuid"]), SETTLED_LOOK_BACK)]
        first = {one.batch: one for one in recent}  # of two commits without rows, as `_committed` says
        for done in reversed([one for one in first.values() if one.batch not in applied.mediations.closed]):
            batch = Batch(
                target["table-uuid"], wal["table-uuid"], done.sequence, done.start, done.through, base=done.base
            )
            removals = {} if batch.start is None else removals_since(self.spark, self.job.wal, wal, batch.start)
            rows = read_batch(self.spark, self.job.wal, wal, batch) if readable(wal, batch, removals) else None
            if rows is None:
                _log.warning("batch %s: its part of the log has expired, its keys are in the target only", done.batch)
            self._close(done, rows, wal, applied)
            self.settled.append(done.batch)

    def _close(self, done: AppliedBatch, rows: DataFrame | None, wal: Metadata, applied: AppliedKeys) -> None:
        self.logs.keep_rejections(done)
        if rows is not None and done.counts.applied:
            self.logs.write_keys(done, self.job.table_name, applied.uuid, rows, applied.before(done))
        self.after("keys")
        if rows is not None:
            self._logged(done, rows, wal, applied)
        names = (self.job.table_name, str(identifier(self.job.wal)))
        self.logs.write_mediation(done, names, (applied.uuid, wal["table-uuid"]))
        self.after("closed")

    def _logged(self, done: AppliedBatch, rows: DataFrame, wal: Metadata, applied: AppliedKeys) -> None:
        """Something to do with the rows of a batch, repeatable, before it is closed; for jobs with more steps."""


def _counted(rows: DataFrame) -> tuple[dict[str, int], Decided | None]:
    """The number of rows by outcome, and when the applied ones were decided."""
    at = decided_ms(rows.columns)
    found = rows.groupBy(OUTCOME).agg(f.count(f.lit(1)), f.min(at), f.percentile_approx(at, 0.5)).collect()
    decided = next((Decided(*row[2:]) for row in found if row[0] == APPLIED and row[2] is not None), None)
    return {row[0]: row[1] for row in found}, decided


def _lags(done: AppliedBatch) -> dict[str, int]:
    if done.decided is None:
        return {}
    return dict(zip(("lag_max_ms", "lag_median_ms"), done.decided.lags_ms(done.committed_at_ms), strict=True))


def _order_is_lost(job: Job, rows: int, order_by: str | None) -> BadRequest:
    if order_by is not None:
        return BadRequest(
            f"{rows} rows of {job.wal} are versions of the same rows of {job.target}, and {order_by} does not order "
            "them: it is null, or the same in two of them. Name a column that orders them all",
            rule="wal.order",
        )
    return BadRequest(
        f"{rows} rows of {job.wal} are versions of the same rows of {job.target}, and which of them is the last is not "
        "known: the snapshots that appended them have expired, and a compaction may have mixed them since. Run "
        "once with --order-by COLUMN (`Job.order_by`), a column of the log that orders them. A log in format version 3 "
        "keeps the order of its rows through compactions",
        rule="wal.order",
    )


def _columns(rows: DataFrame) -> list[str]:
    """The log's own columns."""
    return [name for name in rows.columns if not name.startswith(OWN)]

"""Writes the tower's log into Iceberg tables: attempts to commit, versions of contracts, and what agents' writes cost.

An attempt has a number in the log, and its row the same. How far the log was read stands in the summary of the snapshot
that has the rows, so both are committed or neither is; and rows are merged by their number, so that of two exporters at
once the later one adds nothing twice. Metrics are computed anew for each window that got a row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from icetower.errors import BadRequest, CommitConflict, CommitStateUnknown
from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines.tables import load_metadata, merge, private_session, quoted, translating_errors
from icetower.protocol.marks import EXPORT

THROUGH = EXPORT + "through"
"""The number of the last attempt that is in the table."""

PAGE = 1_000
ROWS_MAX = 20_000
"""Of one commit."""

TRIES = 8
WINDOW_S = 300

_COMMITS = (
    "attempt_id BIGINT, at TIMESTAMP, contract STRING, principal STRING, table_name STRING, operation STRING, "
    "outcome STRING, rule STRING, partitions ARRAY<STRING>, snapshots ARRAY<BIGINT>, idempotency_key_hash STRING, "
    "request_id STRING, queue_wait_ms DOUBLE, latency_ms DOUBLE, message STRING"
)
_METRICS = (
    "principal STRING, table_name STRING, window_start TIMESTAMP, attempts BIGINT, landed BIGINT, refused BIGINT, "
    "retries BIGINT, commit_success_rate DOUBLE, retry_rate DOUBLE, snapshots BIGINT, latency_p50_ms DOUBLE, "
    "latency_p99_ms DOUBLE, latency_max_ms DOUBLE"
)
_CONTRACTS = (
    "contract STRING, version INT, text STRING, applied_by STRING, message STRING, in_force_from TIMESTAMP, "
    "in_force_until TIMESTAMP"
)
_PROPERTIES = "'format-version' = '2', 'history.expire.max-snapshot-age-ms' = '86400000'"
_LANDED = "outcome IN ('direct', 'rebased', 'appended')"
_RETRIED = "outcome IN ('conflict', 'unknown', 'replayed')"
_COMMIT = "outcome <> 'done' AND operation <> 'read'"

T = TypeVar("T")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The tower's control API, as an administrator sees it.

    Attributes:
        attempts_after: the page of the log after a number: `attempts` (each with its `id`), `oldest`, `newest`.
        contracts: the newest version of each contract.
        contract_history: every version of a contract.
        bindings: principal → contract.
    """

    attempts_after: Callable[[int, int], Row]
    contracts: Callable[[], Sequence[Row]]
    contract_history: Callable[[str], Sequence[Row]]
    bindings: Callable[[], Mapping[str, str]]

    @staticmethod
    def of(tower: Any) -> Source:
        """What an administrator's `icetower.agent.Tower` gives."""
        return Source(
            tower.commits_after,
            tower.contracts,
            tower.contract_history,
            lambda: {str(each["name"]): str(each["contract"]) for each in tower.principals()},
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """What one run wrote.

    Attributes:
        attempts: rows of `iceberg_commits`.
        windows: rows of `agent_write_metrics`.
        contracts: rows of `contract_history`.
        lost_at_most: attempts that the log had let go before they were read.
    """

    attempts: int
    windows: int
    contracts: int
    lost_at_most: int


@dataclass(frozen=True, slots=True)
class SystemTables:
    """The tables in the namespace `system` (with its catalog in front)."""

    spark: SparkSession
    system: str

    @property
    def commits(self) -> str:
        return f"{self.system}.iceberg_commits"

    @property
    def metrics(self) -> str:
        return f"{self.system}.agent_write_metrics"

    @property
    def contracts(self) -> str:
        return f"{self.system}.contract_history"

    def create(self) -> None:
        """Create what is missing."""
        wanted = {
            self.commits: (_COMMITS, " PARTITIONED BY (days(at))"),
            self.metrics: (_METRICS, " PARTITIONED BY (days(window_start))"),
            self.contracts: (_CONTRACTS, ""),
        }
        missing = [table for table in wanted if not self.spark.catalog.tableExists(quoted(table))]
        if missing:
            self._run(f"creating {self.system}", f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.system)}")
        for table in missing:
            columns, partitions = wanted[table]
            statement = f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({columns}) USING iceberg{partitions}"
            self._run(f"creating {table}", f"{statement} TBLPROPERTIES ({_PROPERTIES})")

    def _run(self, what: str, statement: str) -> None:
        translating_errors(what, lambda: self.spark.sql(statement))

    def progress(self, table: str) -> int:
        """The last attempt that is in the table, by its head's history; by its rows where that has expired."""
        metadata = load_metadata(self.spark, table)
        head = current_snapshot_id(metadata)
        for snapshot in () if head is None else ancestors(metadata, head):
            if THROUGH in snapshot["summary"]:
                return int(snapshot["summary"][THROUGH])
        if table != self.commits:
            return 0
        newest = self.spark.table(table).agg(f.max("attempt_id")).collect()
        return int(newest[0][0] or 0)


def export(
    spark: SparkSession, system: str, source: Source, *, after: Callable[[str], None] = lambda _: None
) -> Exported:
    """Bring the system tables up to what the log has now. It may be killed at any point and run again.

    Args:
        system: the namespace, with its catalog in front.
        after: is told of each step that is done; for tests.

    Raises:
        BadRequest: the log is not the one that was read before (`export.log`).
    """
    tables = SystemTables(private_session(spark), system)
    tables.create()
    after("created")
    contracts = _repeatedly(lambda: _export_contracts(tables, source))
    after("contracts")
    attempts, lost = _export_commits(tables, source, after)
    windows = _repeatedly(lambda: _export_metrics(tables))
    after("metrics")
    return Exported(attempts, windows, contracts, lost)


def _export_commits(tables: SystemTables, source: Source, after: Callable[[str], None]) -> tuple[int, int]:
    """How many rows were written, and how many attempts at most the log had let go. What comes meanwhile is left."""
    written, lost, last, bindings = 0, 0, None, None
    own = tables.system.partition(".")[2] + "."

    def some() -> int | None:
        nonlocal lost, last, bindings
        start = tables.progress(tables.commits)
        rows, oldest, newest = _read(source, start, last)
        last = newest if last is None else last
        # Each export is an attempt itself: the last of these alone would make every run write, for ever.
        if not rows or (len(rows) < ROWS_MAX and all(row["table"].startswith(own) for row in rows)):
            return None
        bindings = bindings or source.bindings()
        found = [_commit_row(row, bindings) for row in rows]
        merge(
            tables.spark,
            tables.commits,
            tables.spark.createDataFrame(found, _COMMITS),
            ("attempt_id",),
            where_target=f"t.attempt_id > {start}",
            properties={THROUGH: str(rows[-1]["id"])},
        )
        lost += max(0, oldest - start - 1) if start else 0
        return len(found)

    while (count := _repeatedly(some)) is not None:
        written += count
        after("commits")
    return written, lost


def _read(source: Source, start: int, last: int | None) -> tuple[list[Row], int, int]:
    """Rows after a number, no later than `last`; the oldest and the newest number of the log."""
    rows: list[Row] = []
    bound = last
    while True:
        page = source.attempts_after(rows[-1]["id"] if rows else start, PAGE)
        oldest, newest = page["oldest"] or 0, page["newest"] or 0
        if newest < start:
            raise BadRequest(
                f"the tower's log ends at attempt {newest}, but attempt {start} was exported: it is another log, or "
                "was restored from a backup. Export into another namespace (--system), or drop these tables",
                rule="export.log",
            )
        bound = newest if bound is None else bound
        fresh = [row for row in page["attempts"] if row["id"] <= bound]
        rows += fresh
        if len(fresh) < PAGE or len(rows) >= ROWS_MAX:
            return rows, oldest, bound


def _commit_row(row: Row, bindings: Mapping[str, str]) -> tuple[Any, ...]:
    return (
        row["id"],
        _time(row["at_ms"]),
        bindings.get(row["principal"]),
        row["principal"],
        row["table"],
        row["operation"],
        row["outcome"],
        row["rule"],
        list(row["partitions"]),
        list(row["snapshots"]),
        row["key_hash"],
        row["request_id"],
        float(row["queue_wait_ms"]),
        float(row["latency_ms"]),
        row["message"],
    )


def _time(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)


def _export_metrics(tables: SystemTables) -> int:
    """Compute anew each window that has an attempt that its table has not counted."""
    start, through = tables.progress(tables.metrics), tables.progress(tables.commits)
    if start == through:
        return 0
    begin = f"timestamp_seconds(unix_seconds(at) - unix_seconds(at) % {WINDOW_S})"
    rows = (
        tables.spark.table(tables.commits).where(f"attempt_id <= {through}").withColumn("window_start", f.expr(begin))
    )
    name = ["principal", "table_name", "window_start"]
    touched = rows.where((f.col("attempt_id") > start) & f.expr(_COMMIT)).select(*name).distinct().localCheckpoint()
    first, last = touched.agg(f.min("window_start"), f.max("window_start")).collect()[0]
    if first is None:
        return 0
    between = f.col("at").between(first, last + dt.timedelta(seconds=WINDOW_S))
    found = _metrics(rows.where(between & f.expr(_COMMIT)).join(touched, name, "left_semi").groupBy(*name))
    found = found.localCheckpoint()
    merge(tables.spark, tables.metrics, found, name, update=True, properties={THROUGH: str(through)})
    return found.count()


def _metrics(grouped: Any) -> DataFrame:
    attempts, landed = f.count_if(f.lit(True)), f.count_if(f.expr(_LANDED))
    retries = f.count_if(f.expr(_RETRIED))
    percentiles = f.expr(f"percentile(latency_ms, array(0.5D, 0.99D, 1D)) FILTER (WHERE {_LANDED})")
    counted = grouped.agg(
        attempts.alias("attempts"),
        landed.alias("landed"),
        f.count_if(f.expr("outcome = 'refused'")).alias("refused"),
        retries.alias("retries"),
        (landed / attempts).alias("commit_success_rate"),
        f.try_divide(retries.cast("double"), landed.cast("double")).alias("retry_rate"),
        f.expr(
            f"CAST(size(array_distinct(flatten(collect_list(snapshots) FILTER (WHERE {_LANDED})))) AS BIGINT)"
        ).alias("snapshots"),
        percentiles.alias("__p"),
    )
    shown = [
        f.col("__p")[i].alias(name) for i, name in enumerate(("latency_p50_ms", "latency_p99_ms", "latency_max_ms"))
    ]
    return counted.select(*(each for each in counted.columns if each != "__p"), *shown)


def _export_contracts(tables: SystemTables, source: Source) -> int:
    """Write the versions that are not in the table, and the end of those that others have followed."""
    known = {
        (row.contract, row.version): (row.from_ms, row.until_ms)
        for row in tables.spark.table(tables.contracts)
        .selectExpr("contract", "version", "unix_millis(in_force_from) from_ms", "unix_millis(in_force_until) until_ms")
        .collect()
    }
    found: list[tuple[Any, ...]] = []
    for newest in source.contracts():
        if known.get((newest["name"], newest["version"])) == (newest["applied_ms"], None):
            continue
        versions = source.contract_history(newest["name"])
        ends = [version["applied_ms"] for version in versions[1:]] + [None]
        for version, until_ms in zip(versions, ends, strict=True):
            if known.get((newest["name"], version["version"])) != (version["applied_ms"], until_ms):
                until = None if until_ms is None else _time(until_ms)
                what = (version["text"], version["applied_by"], version["message"])
                found.append((newest["name"], version["version"], *what, _time(version["applied_ms"]), until))
    if found:
        rows = tables.spark.createDataFrame(found, _CONTRACTS)
        properties = {EXPORT + "contracts": str(len(found))}
        merge(tables.spark, tables.contracts, rows, ("contract", "version"), update=True, properties=properties)
    return len(found)


def _repeatedly(work: Callable[[], T]) -> T:
    """Do work that reads its progress first until it is committed; at most `TRIES` times."""
    for attempt in range(1, TRIES + 1):
        try:
            return work()
        except (CommitConflict, CommitStateUnknown):
            if attempt == TRIES:
                raise
    raise AssertionError("unreachable")

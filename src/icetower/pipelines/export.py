"""Writes the tower's log into Iceberg tables: attempts to commit, keys, what writes cost, and versions of contracts.

An attempt has a number in the log, and its row the same. How far the log was read stands in the summary of the snapshot
that has the rows, so both are committed or neither is; and rows are merged by their number, so that of two exporters at
once the later one adds nothing twice. All other tables follow from that one in the same manner, each by itself.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from icetower.errors import BadRequest, UpstreamFailed
from icetower.ledger.hashes import text_hash
from icetower.pipelines.system_keys import export_keys
from icetower.pipelines.system_metrics import export_metrics
from icetower.pipelines.system_tables import COMMITS, CONTRACTS, REFUSED, THROUGH, SystemTables, mark_of
from icetower.pipelines.system_teams import Team, copy_for, is_of_exports, tables_for
from icetower.pipelines.tables import merge, patiently, private_session, translating_errors
from icetower.protocol.marks import EXPORT

PAGE = 1_000
ROWS_MAX = 20_000
"""Of one commit."""

TRIES = 8
LISTED = EXPORT + "contracts"
"""Stands for the newest version of each contract, as the tower listed them."""

DAY = dt.timedelta(days=1)

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
        keys: rows of `agent_dedup_log`.
        windows: rows of `agent_write_metrics`.
        contracts: rows of `contract_history`.
        lost_at_most: attempts that the log had let go before they were read.
    """

    attempts: int
    keys: int
    windows: int
    contracts: int
    lost_at_most: int


def export(
    spark: SparkSession,
    system: str,
    source: Source,
    *,
    teams: Sequence[Team] = (),
    after: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Bring the system tables up to what the log has now. It may be killed at any point and run again.

    Args:
        system: the namespace, with its catalog in front.
        teams: each gets tables of its own, with the rows of its contracts.
        after: is told of each step that is done; for tests.

    Raises:
        BadRequest: the log is not the one that was read before (`export.log`), a table of an earlier version could not
            be upgraded (`system.upgrade`), or somebody has changed the columns of one (`system.columns`).
    """
    tables = SystemTables(private_session(spark), system)
    tables.create()
    after("created")
    try:
        return _export(tables, source, teams, after)
    except UpstreamFailed:
        for each in (tables, *(tables_for(team, tables) for team in teams)):
            each.create()  # says so if somebody has changed a table meanwhile
        raise


def _export(tables: SystemTables, source: Source, teams: Sequence[Team], after: Callable[[str], None]) -> Exported:
    contracts = _repeatedly(lambda: _export_contracts(tables, source))
    after("contracts")
    attempts, lost = _export_commits(tables, source, after)
    keys, more = 0, True
    while more:
        count, more = _repeatedly(lambda: export_keys(tables))
        keys += count
        after("keys")
    windows = _repeatedly(lambda: export_metrics(tables, tables.orphans))
    after("metrics")
    for team in teams:
        for step in copy_for(team, tables):
            _repeatedly(step)
            after("team")
    return Exported(attempts, keys, windows, contracts, lost)


def _export_commits(tables: SystemTables, source: Source, after: Callable[[str], None]) -> tuple[int, int]:
    """How many rows were written, and how many attempts at most the log had let go. What comes meanwhile is left."""
    written, lost, last, bindings = 0, 0, None, None

    def some() -> int | None:
        nonlocal lost, last, bindings
        start = tables.progress(tables.commits, "attempt_id")
        rows, oldest, newest = _read(source, start, last)
        last = newest if last is None else last
        # Each export is an attempt itself: the last of these alone would make every run write, for ever.
        if not rows or (len(rows) < ROWS_MAX and all(is_of_exports(tables, row["table"]) for row in rows)):
            return None
        bindings = bindings or source.bindings()
        tries = _tries(tables, start, rows)
        found = [_commit_row(row, bindings, tries) for row in rows]
        merge(
            tables.spark,
            tables.commits,
            tables.spark.createDataFrame(found, COMMITS),
            ("attempt_id",),
            where_target=f"t.attempt_id > {start}",
            properties={
                THROUGH: str(rows[-1]["id"]),
                REFUSED: str(sum(row["outcome"] in ("conflict", "refused") for row in rows)),
            },
        )
        lost += max(0, oldest - start - 1) if start else 0
        return len(found)

    while (count := _repeatedly(some)) is not None:
        written += count
        after("commits")
    return written, lost


Tries = Counter[tuple[str, str, str, dt.date]]
"""How often a principal has tried a write to a table on a day."""


def _tries(tables: SystemTables, start: int, rows: Sequence[Row]) -> Tries:
    """How often the writes of these rows were tried before, on their days and the days before those."""
    writes = {(row["principal"], row["table"], write_id) for row in rows if (write_id := _write_id(row)) is not None}
    if not writes or not start:
        return Counter()
    first = dt.datetime.combine(min(_time(row["at_ms"]) for row in rows).date(), dt.time(), dt.UTC) - DAY
    wanted = tables.spark.createDataFrame([*writes], "principal STRING, table_name STRING, write_id STRING")
    before = tables.rows(tables.commits).where(f"attempt_id <= {start}").where(f.col("at") >= first)
    before = before.withColumn("write_id", f.coalesce("write_id", "idempotency_key_hash"))
    before = before.join(f.broadcast(wanted), wanted.columns, "left_semi")
    counted = before.groupBy(*wanted.columns, f.to_date("at").alias("day")).count()
    found = translating_errors(f"reading {tables.commits}", counted.collect)
    return Counter({(row.principal, row.table_name, row.write_id, row.day): row["count"] for row in found})


def _retries(row: Row, tries: Tries) -> int | None:
    """How often the same was tried before, on this day and the one before it. The row is counted as the next try."""
    write_id = _write_id(row)
    if write_id is None:
        return None
    write, day = (row["principal"], row["table"], write_id), _time(row["at_ms"]).date()
    before = tries[(*write, day)] + tries[(*write, day - DAY)]
    tries[(*write, day)] += 1
    return before


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


def _commit_row(row: Row, bindings: Mapping[str, str], tries: Tries) -> tuple[Any, ...]:
    decided_ms = row.get("decided_ms")
    return (
        row["id"],
        _time(row["at_ms"]),
        row.get("contract") or bindings.get(row["principal"]),
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
        _write_id(row),
        _retries(row, tries),
        row.get("base"),
        row.get("head"),
        None if decided_ms is None else _time(decided_ms),
        row.get("group_size"),
        row.get("metadata_bytes"),
        row.get("manifests"),
        *(row.get(name) for name in ("judge_ms", "plan_ms", "write_ms", "swap_ms")),
    )


def _write_id(row: Row) -> str | None:
    """Equal for all tries of one write, where it can be told."""
    return row["key_hash"] or row.get("work")


def _time(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)


def _export_contracts(tables: SystemTables, source: Source) -> int:
    """Write the versions that are not in the table, and the end of those that others have followed."""
    newest_of = source.contracts()
    stands_for = text_hash(repr(sorted((each["name"], each["version"], each["applied_ms"]) for each in newest_of)))
    if mark_of(tables.load(tables.contracts), LISTED) == stands_for:  # no query where nothing has changed
        return 0
    known = {
        (row.contract, row.version): (row.from_ms, row.until_ms)
        for row in tables.rows(tables.contracts)
        .selectExpr("contract", "version", "unix_millis(in_force_from) from_ms", "unix_millis(in_force_until) until_ms")
        .collect()
    }
    found: list[tuple[Any, ...]] = []
    for newest in newest_of:
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
        rows = tables.spark.createDataFrame(found, CONTRACTS)
        on, properties = ("contract", "version"), {LISTED: stands_for}
        merge(tables.spark, tables.contracts, rows, on, update=True, properties=properties)
    else:
        tables.note(tables.contracts, {LISTED: stands_for})
    return len(found)


def _repeatedly(work: Callable[[], T]) -> T:
    """Do work that reads its progress first until it is committed."""
    return patiently(lambda: translating_errors("exporting", work), tries=TRIES, and_unknown=True)

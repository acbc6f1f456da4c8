"""The system tables of maintenance: what was done (`maintenance_runs`), and orphans (`iceberg_orphan_files`).

A row about a commit is made from its snapshot in the table's own history, which says what it changed. So a run that is
killed after a commit loses no row, and none is written twice: rows are merged by `entry`. An expiry leaves no snapshot,
so its row is written before it, with the snapshots that are to go, and completed afterwards, by this run or the next.
Likewise an orphan that is to be deleted is `deleting` before it is deleted.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from icetower.errors import CommitConflict
from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines.cleanup import Disposition, Orphan
from icetower.pipelines.maintenance_plan import DAY_MS, TASK, Task
from icetower.pipelines.making import AGED, OwnTable, make, require
from icetower.pipelines.own_tables import names_of
from icetower.pipelines.system_tables import REFUSED
from icetower.pipelines.tables import (
    commit_nothing,
    identifier,
    load_metadata,
    merge,
    patiently,
    quoted,
    translating_errors,
)
from icetower.protocol.marks import PRINCIPAL

Metadata = Mapping[str, Any]

NEXT_SCAN = "maintenance.next-scan-ms"
"""In a summary of the runs: no table is scanned for orphans before this time."""
COMMITS_READ = "maintenance.commits-read"
"""Likewise: the snapshot of `iceberg_commits` up to which refused writers are counted."""
COMMITS_COUNTED = "at TIMESTAMP, table_name STRING, outcome STRING, message STRING"
"""The columns of `iceberg_commits` by which they are."""
RECORDED = "maintenance.recorded-ms"
"""Likewise: the time of the newest snapshot that is recorded."""
RECORDED_ALL = "maintenance.recorded-all"
"""Likewise: `digest` of the snapshots of late, all of which were recorded by then."""
RECENT_MS = 6 * 3_600_000
"""A run takes less: what was done so long before the newest snapshot that is recorded is recorded, too."""
COSTS_MS = DAY_MS
"""For how long after a rewrite the writers are counted that it stood in the way of."""

_RUNS = (
    "entry STRING, at TIMESTAMP, table_name STRING, table_uuid STRING, task STRING, principal STRING, "
    "snapshot_id BIGINT, files_before BIGINT, files_after BIGINT, bytes_before BIGINT, bytes_after BIGINT, "
    "delete_files_before BIGINT, delete_files_after BIGINT, manifests_before BIGINT, manifests_after BIGINT, "
    "rows_pruned BIGINT, snapshots_expired BIGINT, orphans_found BIGINT, orphans_deleted BIGINT, conflicts BIGINT, "
    "writers_refused BIGINT, expiring ARRAY<BIGINT>"
)
_ORPHANS = (
    "table_name STRING, table_uuid STRING, path STRING, size_bytes BIGINT, modified_at TIMESTAMP, principal STRING, "
    "agent STRING, contract STRING, found_at TIMESTAMP, fate STRING, why STRING, changed_at TIMESTAMP"
)
DELETING, GONE = "deleting", "gone"
_TASKS = frozenset(task.value for task in Task)
OPEN = (Disposition.REPORTED.value, Disposition.KEPT.value, DELETING)
"""The fates of orphans that are still there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of `maintenance_runs`, by its columns; `table_name` has no catalog. What does not apply is None.

    Attributes:
        entry: identifies it.
        at_ms: of the snapshot, or when the task began.
        files_before: data files of the table; likewise the other numbers before and after.
        conflicts: data files that were left, since somebody changed them meanwhile.
        writers_refused: attempts of others that were refused, since they change files that this snapshot rewrote.
        expiring: snapshots that are to go, until that is done.
    """

    entry: str
    at_ms: int
    table_name: str
    table_uuid: str
    task: str
    principal: str | None = None
    snapshot_id: int | None = None
    files_before: int | None = None
    files_after: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    delete_files_before: int | None = None
    delete_files_after: int | None = None
    manifests_before: int | None = None
    manifests_after: int | None = None
    rows_pruned: int | None = None
    snapshots_expired: int | None = None
    orphans_found: int | None = None
    orphans_deleted: int | None = None
    conflicts: int | None = None
    writers_refused: int | None = None
    expiring: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Without what does not apply."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "expiring"}

    def row(self) -> tuple[Any, ...]:
        """As `maintenance_runs` has it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        expiring = None if self.expiring is None else list(self.expiring)
        return tuple({**values, "at_ms": _time(self.at_ms), "expiring": expiring}.values())


def of_snapshots(metadata: Metadata, table: str) -> list[Entry]:
    """The rows of the snapshots in a table's metadata that maintenance made."""
    return [
        _of_snapshot(each, metadata["table-uuid"], table)
        for each in metadata.get("snapshots") or ()
        if each["summary"].get(TASK) in _TASKS
    ]


def _of_snapshot(snapshot: Mapping[str, Any], uuid: str, table: str) -> Entry:
    summary: Mapping[str, str] = snapshot["summary"]

    def number(name: str) -> int:
        return int(summary.get(name) or 0)

    task = Task(summary[TASK])
    files, size, deletes = (number(f"total-{name}") for name in ("data-files", "files-size", "delete-files"))
    kept = number("manifests-kept")
    is_manifests = task is Task.MANIFESTS
    return Entry(
        entry=f"{uuid}/{snapshot['snapshot-id']}",
        at_ms=snapshot["timestamp-ms"],
        table_name=table,
        table_uuid=uuid,
        task=task.value,
        principal=summary.get(PRINCIPAL),
        snapshot_id=snapshot["snapshot-id"],
        files_before=files - number("added-data-files") + number("deleted-data-files"),
        files_after=files,
        bytes_before=size - number("added-files-size") + number("removed-files-size"),
        bytes_after=size,
        delete_files_before=deletes - number("added-delete-files") + number("removed-delete-files"),
        delete_files_after=deletes,
        manifests_before=kept + number("manifests-replaced") if is_manifests else None,
        manifests_after=kept + number("manifests-created") if is_manifests else None,
        rows_pruned=number("deleted-records") - number("added-records") if task is Task.PRUNE else None,
    )


def _time(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)


def digest(entries: Iterable[Entry]) -> str:
    """Stands for these entries."""
    return hashlib.sha256("\n".join(sorted(each.entry for each in entries)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Record:
    """The two tables, in the namespace `system` (with its catalog in front). `spark`: a private session."""

    spark: SparkSession
    system: str

    @property
    def runs(self) -> str:
        return f"{self.system}.maintenance_runs"

    @property
    def orphans(self) -> str:
        return f"{self.system}.iceberg_orphan_files"

    @property
    def _tables(self) -> tuple[OwnTable, OwnTable]:
        return OwnTable(self.runs, _RUNS, "days(at)", AGED, later=()), OwnTable(
            self.orphans, _ORPHANS, "", AGED, later=()
        )

    def create(self) -> None:
        """Create what is missing. Raises `BadRequest` as `require` does."""
        make(self.spark, self._tables)

    def require(self) -> None:
        """Raises `BadRequest` if somebody has changed the columns of a table (`system.columns`)."""
        require(self.spark, self._tables)

    # -- runs

    def known(self, since_ms: int) -> set[str]:
        """The entries since a time."""
        rows = self.spark.table(quoted(self.runs)).where(f.col("at") >= f.timestamp_millis(f.lit(since_ms)))
        found = translating_errors(f"reading {self.runs}", rows.select("entry").collect)
        return {row.entry for row in found}

    def unfinished(self) -> list[Entry]:
        """Expiries that a run began; it may be under way, or was killed."""
        rows = self.spark.table(quoted(self.runs)).where("expiring IS NOT NULL")
        columns = ("entry", "unix_millis(at) at_ms", "table_name", "table_uuid", "task", "principal", "expiring")
        found = translating_errors(f"reading {self.runs}", rows.selectExpr(*columns).collect)
        return [replace(Entry(**row.asDict()), expiring=tuple(row.expiring)) for row in found]

    def scans(self) -> dict[str, int]:
        """When orphans of each table, by its uuid, were last looked for, in milliseconds."""
        rows = self.spark.table(quoted(self.runs)).where(f"task = '{Task.ORPHANS}'").groupBy("table_uuid")
        last = rows.agg(f.unix_millis(f.max("at")).alias("at_ms"))
        return {row.table_uuid: row.at_ms for row in translating_errors(f"reading {self.runs}", last.collect)}

    def write(self, entries: Sequence[Entry], properties: Mapping[str, str]) -> None:
        """Write rows, each once."""
        if not entries:
            return
        rows = self.spark.createDataFrame([each.row() for each in entries], _RUNS)
        names = [name for name in rows.columns if name not in ("entry", "writers_refused")]
        sets = ", ".join(f"t.{name} = s.{name}" for name in names)
        listed, values = ", ".join(rows.columns), ", ".join(f"s.{name}" for name in rows.columns)
        clauses = (
            f"WHEN MATCHED AND t.expiring IS NOT NULL THEN UPDATE SET {sets} "  # noqa: S608 - names of columns
            f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({values})"
        )
        oldest = min(each.at_ms for each in entries)
        since = f"t.at >= timestamp_millis({oldest})"
        patiently(
            lambda: merge(
                self.spark, self.runs, rows, ("entry",), clauses=clauses, where_target=since, properties=properties
            )
        )

    def may_count(self, commits: Metadata, since_ms: int, read: str | None) -> bool:
        """Whether attempts have come to `iceberg_commits` since then for `count_refused`, as far as its snapshots tell.

        Args:
            read: the snapshot of `iceberg_commits` up to which they are counted.
        """
        for each in ancestors(commits, current_snapshot_id(commits) or 0):
            if str(each["snapshot-id"]) == read or each["timestamp-ms"] < since_ms:
                return False
            summary = each["summary"]
            if summary.get("operation") != "replace" and TASK not in summary and summary.get(REFUSED) != "0":
                return True
        return False

    def count_refused(self, commits: str, now_ms: int, properties: Mapping[str, str]) -> list[Entry]:
        """Count, for each rewrite of late, the attempts that were refused because of it; what has changed.

        Args:
            commits: the table of attempts, whose messages name the snapshot that stood in the way.
            properties: of the commit that says so; it is made without rows where nothing has changed.
        """
        base = load_metadata(self.spark, quoted(self.runs))
        since = f.timestamp_millis(f.lit(now_ms - COSTS_MS))
        done = self.spark.table(quoted(self.runs)).where((f.col("at") >= since) & f.col("snapshot_id").isNotNull())
        refused = self.spark.table(quoted(commits)).where(
            (f.col("at") >= since) & f.col("outcome").isin("conflict", "refused") & f.col("message").isNotNull()
        )
        refused = refused.select(f.col("table_name").alias("__table"), f.col("message").alias("__message"))
        about = f.expr("__table = table_name AND instr(__message, concat('snapshot ', snapshot_id)) > 0")
        done = done.select(*names_of(_RUNS))
        counted = done.join(refused, about, "left").groupBy(*done.columns).agg(f.count("__message").alias("__count"))
        changed = counted.where("__count <> coalesce(writers_refused, 0)")
        changed = changed.withColumn("writers_refused", f.col("__count")).drop("__count")
        changed = translating_errors(f"reading {commits}", changed.localCheckpoint)
        rows = [{**row.asDict()} for row in changed.withColumn("at_ms", f.unix_millis("at")).drop("at").collect()]
        if rows:
            clauses = "WHEN MATCHED THEN UPDATE SET t.writers_refused = s.writers_refused"
            patiently(
                lambda: merge(
                    self.spark, self.runs, changed, ("entry",), clauses=clauses, properties=properties,
                    where_target=f"t.at >= timestamp_millis({now_ms - COSTS_MS})",
                )
            )  # fmt: skip
        else:
            with suppress(CommitConflict):  # somebody has recorded a rewrite meanwhile: the next run counts again
                commit_nothing(self.spark, quoted(self.runs), base, properties)
        return [Entry(**row) for row in rows]

    # -- orphans

    def write_found(self, found: Sequence[Orphan], context: Found) -> None:
        """Write orphans as they are found, before any is deleted."""
        self._write([(each, DELETING if each.fate is Disposition.TO_DELETE else each.fate) for each in found], context)

    def write_ends(self, ended: Sequence[Orphan], context: Found) -> None:
        """Write what became of them; and of those that were there before and are not found any more."""
        self._write([(each, each.fate.value) for each in ended], context)
        seen = self.spark.createDataFrame([(each.path, _time(each.modified_ms)) for each in ended], _SEEN)
        uuids = [each for each, _ in context.tables.values()]
        before = self.spark.table(quoted(self.orphans)).select(*names_of(_ORPHANS))
        before = before.where(f.col("table_uuid").isin(uuids) & f.col("fate").isin(*OPEN))
        ages = [(uuid, _time(before_ms)) for uuid, before_ms in context.tables.values()]
        cuts = self.spark.createDataFrame(ages, "table_uuid STRING, __before TIMESTAMP")
        left = before.join(f.broadcast(cuts), "table_uuid").where("modified_at < __before")
        left = left.join(seen, ["path", "modified_at"], "left_anti")
        fate = f.when(f.col("fate") == DELETING, Disposition.DELETED.value).otherwise(GONE)
        left = left.withColumn("fate", fate).withColumn("changed_at", f.lit(_time(context.at_ms)))
        left = translating_errors(f"reading {self.orphans}", left.drop("__before").localCheckpoint)
        if not left.isEmpty():
            self._merge(left)

    def _write(self, orphans: Iterable[tuple[Orphan, str]], context: Found) -> None:
        now = _time(context.at_ms)
        rows = [
            (
                str(identifier(each.table)),
                context.tables[each.table][0],
                each.path,
                each.size_bytes,
                _time(each.modified_ms),
                each.principal,
                each.agent,
                context.contracts.get(each.principal or ""),
                now,
                fate,
                each.why,
                now,
            )
            for each, fate in orphans
        ]
        if rows:
            self._merge(self.spark.createDataFrame(rows, _ORPHANS))

    def _merge(self, rows: Any) -> None:
        listed, values = ", ".join(rows.columns), ", ".join(f"s.{name}" for name in rows.columns)
        clauses = (
            "WHEN MATCHED AND NOT (t.fate <=> s.fate AND t.why <=> s.why) THEN UPDATE SET "  # noqa: S608 - columns
            "t.fate = s.fate, t.why = s.why, t.changed_at = s.changed_at "
            f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({values})"
        )
        patiently(lambda: merge(self.spark, self.orphans, rows, ("path", "modified_at"), clauses=clauses))


_SEEN = "path STRING, modified_at TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a scan.

    Attributes:
        at_ms: when it began.
        tables: by the name with its catalog: the uuid, and the time before which files were looked for.
        contracts: of each principal.
    """

    at_ms: int
    tables: Mapping[str, tuple[str, int]]
    contracts: Mapping[str, str]

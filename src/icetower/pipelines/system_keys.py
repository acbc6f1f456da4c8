"""Keys of commits, for the deduplication log: those that agents committed themselves, directly and by the fast path.

The log of attempts has hashes of keys. A key as its agent knows it stands in the table: in the summary of the snapshot,
or in the group file that the summary names (trap K1). What mediators commit they log themselves, row by row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from typing import Any

from pyspark.sql import Row

from icetower.errors import NoSuchTable, ValidationFailed
from icetower.ledger.attempts import NUMBERED, numbered_name
from icetower.ledger.hashes import text_hash
from icetower.pipelines.system_tables import LANDED, THROUGH, SystemTables
from icetower.pipelines.system_teams import is_of_exports
from icetower.pipelines.tables import iceberg_table, merge, metadata_of, quoted, read_if_there, translating_errors
from icetower.protocol.marks import GROUP_FILE, MEDIATOR
from icetower.table.groups import key_records, read_group
from icetower.table.keys import KeyRecord, record_of

ROWS_MAX = 20_000
"""Of one commit."""

HASHED = "sha256:"
"""Before the hash of a key that the table does not have any more."""

_ROWS = (
    "agent_id STRING, idempotency_key STRING, table_name STRING, committed_at TIMESTAMP, table_uuid STRING, "
    "snapshot_id BIGINT, decided_at TIMESTAMP, attempt_id BIGINT, contract STRING"
)


def export_keys(tables: SystemTables) -> tuple[int, bool]:
    """Log the keys of commits that were exported since the last time, at most `ROWS_MAX`.

    Returns:
        How many rows were written, and whether there are more.
    """
    start, through = tables.progress(tables.keys, "attempt_id"), tables.progress(tables.commits, "attempt_id")
    if start >= through:
        return 0, False
    known = f"(idempotency_key_hash IS NOT NULL OR write_id LIKE '{NUMBERED}%')"
    commits = tables.rows(tables.commits).where(f"attempt_id > {start} AND attempt_id <= {through}")
    commits = commits.where(f"{LANDED} AND {known} AND size(snapshots) > 0").orderBy("attempt_id").limit(ROWS_MAX)
    found = translating_errors(f"reading {tables.commits}", commits.collect)
    more = len(found) == ROWS_MAX
    through = found[-1].attempt_id if more else through
    rows = _logged(tables, found)
    if rows:
        merge(
            tables.spark,
            tables.keys,
            tables.spark.createDataFrame(rows, _ROWS),
            ("attempt_id",),
            where_target=f"t.attempt_id > {start}",
            properties={THROUGH: str(through)},
        )
    else:  # they would be looked through again and again
        tables.note(tables.keys, {THROUGH: str(through)})
    return len(rows), more


def _logged(tables: SystemTables, commits: Iterable[Row]) -> list[tuple[Any, ...]]:
    """The rows of the deduplication log for some attempts that have landed."""
    by_table: dict[str, _Keys] = {}
    rows: list[tuple[Any, ...]] = []
    gone: list[Row] = []
    for commit in commits:
        if is_of_exports(tables, commit.table_name):  # Java's client gives each commit a key
            continue
        keys = by_table.get(commit.table_name)
        if keys is None:
            keys = by_table[commit.table_name] = _Keys(tables, commit.table_name)
        mark = commit.idempotency_key_hash or commit.write_id.removeprefix(NUMBERED)
        found = keys.find(commit.principal, mark, commit.snapshots)
        if found is None:
            gone.append(commit)
        elif not keys.is_mediated(found.snapshots):
            rows.append(_row(commit, _name(found, mark), keys.committed_at(found.snapshots), keys.uuid))
    mediated = _batches(tables) if gone else ()
    for commit in gone:
        mark = commit.idempotency_key_hash or commit.write_id.removeprefix(NUMBERED)
        if mark not in mediated:
            rows.append(_row(commit, HASHED + mark, commit.at, None))
    return rows


def _row(commit: Row, key: str, at: dt.datetime, uuid: str | None) -> tuple[Any, ...]:
    named = (commit.principal, key, commit.table_name, at, uuid, commit.snapshots[-1], commit.decided_at)
    return (*named, commit.attempt_id, commit.contract)


def _name(record: KeyRecord, mark: str) -> str:
    """How the deduplication log names a commit: its key, or its application and number."""
    return next(name for name in _names(record) if text_hash(name) == mark)


def _names(record: KeyRecord) -> list[str]:
    key = [] if record.key is None else [record.key]
    return key if record.application is None else [*key, numbered_name(record.application)]


def _batches(tables: SystemTables) -> Collection[str]:
    """Hashes of the keys under which mediators committed."""
    if tables.find(tables.mediations) is None:
        return ()
    rows = tables.rows(tables.mediations).select("batch").distinct()
    return {text_hash(row.batch) for row in translating_errors(f"reading {tables.mediations}", rows.collect)}


class _Keys:
    """The keys of one table, as its snapshots and their group files have them."""

    def __init__(self, tables: SystemTables, name: str) -> None:
        self.uuid: str | None = None
        self._snapshots: dict[int, Any] = {}
        self._grouped: dict[int, tuple[KeyRecord, ...]] = {}
        try:
            self._table = iceberg_table(tables.spark, quoted(f"{tables.system.partition('.')[0]}.{name}"))
        except NoSuchTable:
            return
        metadata = metadata_of(tables.spark, self._table)
        self.uuid = metadata["table-uuid"]
        self._snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots") or ()}

    def find(self, principal: str, mark: str, snapshots: Iterable[int]) -> KeyRecord | None:
        """The record of a commit; None where the table does not have it any more.

        Args:
            mark: the hash of its key, or of its application and number.
        """
        for snapshot_id in snapshots:
            for record in self._records(snapshot_id):
                if record.principal == principal and any(text_hash(name) == mark for name in _names(record)):
                    return record
        return None

    def is_mediated(self, snapshots: Iterable[int]) -> bool:
        """Whether a mediator made these snapshots."""
        return any(name.startswith(MEDIATOR) for i in snapshots for name in self._snapshots[i]["summary"])

    def committed_at(self, snapshots: tuple[int, ...]) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._snapshots[snapshots[-1]]["timestamp-ms"] / 1000, dt.UTC)

    def _records(self, snapshot_id: int) -> tuple[KeyRecord, ...]:
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None:
            return ()
        summary = snapshot.get("summary") or {}
        if GROUP_FILE not in summary:
            own = record_of(snapshot)
            return () if own is None else (own,)
        if snapshot_id not in self._grouped:
            self._grouped[snapshot_id] = self._group(str(summary[GROUP_FILE]), snapshot_id)
        return self._grouped[snapshot_id]

    def _group(self, path: str, snapshot_id: int) -> tuple[KeyRecord, ...]:
        """What a group file holds: nothing where it is missing, damaged or another table's."""
        data = read_if_there(self._table, path)
        if data is None:
            return ()
        try:
            group = read_group(data)
        except ValidationFailed:
            return ()
        return key_records(group) if (group.table_uuid, group.snapshot_id) == (self.uuid, snapshot_id) else ()

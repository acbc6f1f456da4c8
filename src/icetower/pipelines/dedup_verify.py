"""The reverse check: keys in the log that have landed, by what it says, and have no rows or files in the table.

A retry with such a key would be dropped as a copy of rows that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient, SystemAmbient
from icetower.iceberg.metadata import current_snapshot_id
from icetower.pipelines.dedup import Target, require_keys
from icetower.pipelines.dedup_files import Files
from icetower.pipelines.dedup_rules import floor_of, line_of
from icetower.pipelines.tables import identifier, metadata_of, private_session, translating_errors
from icetower.pipelines.wal_line import cherry_picked
from icetower.pipelines.wal_logs import SNAPSHOT, Logs
from icetower.pipelines.wal_rows import KEY_COLUMN

ROLLED_BACK, FILE_MISSING, NO_ROWS = "rolled-back", "file-missing", "no-rows"
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Orphan:
    """Entries of the log, of one commit.

    Attributes:
        reason: ``rolled-back``: the table's line does not have the commit; ``file-missing``: the storage lacks a data
            file that it wrote, which the table names; ``no-rows``: the commit has expired, and no row has the keys: it
            was rolled back before, or the rows were deleted since.
        keys: how many; 0 for a missing file whose commit has no entry.
        files: those that are missing.
    """

    reason: str
    snapshot: int
    keys: int
    agent: str | None = None
    files: tuple[str, ...] = ()

    @property
    def certain(self) -> bool:
        return self.reason != NO_ROWS


@dataclass(frozen=True, slots=True)
class Verified:
    table: str
    keys: int
    orphans: tuple[Orphan, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(spark: SparkSession, target: Target, *, ambient: Ambient | None = None) -> Verified:
    """Check the entries of the window against the table, and its files of the window against the storage.

    Raises `BadRequest` as `dedup.validate` does.
    """
    logs = Logs(private_session(spark), target.logs_in)
    logs.create(keys_alone=True)
    return translating_errors(f"checking {target.table}", lambda: _verified(logs, target, ambient or SystemAmbient()))


def _verified(logs: Logs, target: Target, ambient: Ambient) -> Verified:
    spark = logs.spark
    files = Files(spark, target.table, ambient)
    table = metadata_of(spark, files.table)
    require_keys(table, target.table)
    since_ms = ambient.now_ms() - target.window_s * 1000
    head = current_snapshot_id(table)
    line = line_of(table, head)
    applied = {each.snapshot for each in line} | set(cherry_picked(table))
    known = {snapshot["snapshot-id"] for snapshot in table["snapshots"]}
    logged = logs.every_key(table["table-uuid"], since_ms).where(f.col(SNAPSHOT).isNotNull())
    counts: dict[int, int] = {row[0]: row[1] for row in logged.groupBy(SNAPSHOT).count().collect()}
    orphans = [Orphan(ROLLED_BACK, each, keys) for each, keys in counts.items() if each in known - applied]
    missing = {} if head is None else _missing(files, head, floor_of(line, since_ms))
    expired = [each for each in counts if each not in known | applied]
    if expired and not missing:  # else the rows cannot be read
        there = None if head is None else files.rows_at(head, [KEY_COLUMN])
        of_rows = logs.every_key(table["table-uuid"], since_ms, of_rows=True)
        of_expired = logs.of_snapshots(of_rows, expired)
        lacking = of_expired if there is None else of_expired.join(there, KEY_COLUMN, "left_anti")
        orphans += [Orphan(NO_ROWS, row[0], row[1]) for row in lacking.groupBy(SNAPSHOT).count().collect()]
    by_sequence = {each.sequence: each for each in line}
    for sequence, paths in missing.items():
        wrote = by_sequence.get(sequence)
        snapshot = -1 if wrote is None else wrote.snapshot
        agent = None if wrote is None else wrote.agent
        orphans.append(Orphan(FILE_MISSING, snapshot, counts.get(snapshot, 0), agent, tuple(sorted(paths))))
    return Verified(str(identifier(target.table)), sum(counts.values()), tuple(orphans))


def _missing(files: Files, head: int, above: int) -> dict[int, list[str]]:
    """Data files of the head that the storage lacks, by the sequence number of the commit that wrote them."""
    live = files.live(head, above=above)
    found: dict[int, list[str]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        there: Sequence[bool] = list(pool.map(lambda file: files.exists(file.path), live))
    for file, exists in zip(live, there, strict=True):
        if not exists:
            found.setdefault(file.sequence, []).append(file.path)
    return found

"""Takes rows out of a log that were merged long enough ago, so that the log does not grow for ever.

Whole files go, by name: those whose data sequence number is not above that of a snapshot which every target has merged.
A compaction gives its file a number that is not below those of the rows in it, so a file with rows that are yet to be
merged stays. The mediator proves the same of every removal that it meets (`wal_plan.between`), whoever made it.

A row that is sent again later is known by its key in the log of keys. A target that is rolled back to before what was
pruned cannot get these rows back from the log, and the mediator then refuses to go on: so keep rows for as long as a
target may be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import BadRequest
from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines.tables import (
    data_file_of,
    elements,
    iceberg_table,
    load_metadata,
    patiently,
    translating_errors,
)
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_plan import Metadata, history, removing

KEEP_S = 86_400
FILES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was taken out of a log. `snapshot`: the one that removed it; None if there was nothing."""

    wal: str
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    snapshot: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"status": "pruned", **asdict(self)}


def removals_since(spark: SparkSession, name: str, wal: Metadata, start: int) -> dict[int, int]:
    """The snapshots after `start` that only removed rows → the highest sequence number of the data files concerned.

    Whole files, or rows by deletes that name their data file, as an erasure's do. A position delete file of format
    version 2 may be about several: a snapshot with such a one is left out.
    """
    found: dict[int, int] = {}
    snapshots = removing(wal, start)
    if not snapshots or wal["format-version"] < 2:
        return found
    table = iceberg_table(spark, name)

    def read(snapshot_id: int) -> None:
        snapshot, files = table.snapshot(snapshot_id), table.io()
        numbers = [file.dataSequenceNumber() for file in elements(snapshot.removedDataFiles(files))]
        named = [data_file_of(spark, file) for file in elements(snapshot.addedDeleteFiles(files))]
        if named:
            numbers += _numbers_of(table, snapshot_id, set(named))
        if all(number is not None for number in numbers):
            found[snapshot_id] = max(numbers, default=0)

    for snapshot_id in snapshots:
        translating_errors(f"reading snapshot {snapshot_id} of {name}", lambda: read(snapshot_id))  # noqa: B023
    return found


def _numbers_of(table: Any, snapshot_id: int, paths: set[str | None]) -> list[int | None]:
    """The data sequence numbers of files that a snapshot has; None for one that it has not."""
    there: dict[str, int | None] = {}
    tasks = table.newScan().useSnapshot(snapshot_id).planFiles()
    try:
        for task in elements(tasks):
            if (path := str(task.file().location())) in paths:
                there[path] = task.file().dataSequenceNumber()
    finally:
        tasks.close()
    return [None if path is None else there.get(path) for path in paths]


def prune(
    spark: SparkSession,
    wal: str,
    targets: Sequence[str],
    logs: Logs,
    *,
    keep_s: float = KEEP_S,
    properties: Mapping[str, str] | None = None,
    ambient: Ambient | None = None,
) -> Pruned:
    """Remove from a log what all of its targets merged, as far as it landed more than `keep_s` seconds ago.

    At most `FILES_MAX` files at once, the oldest first.

    Args:
        properties: of the snapshot that removes them.

    Raises:
        BadRequest: the log has format version 1, whose files have no sequence numbers.
        CommitConflict, CommitStateUnknown, UpstreamFailed: nothing is lost; try again later.
    """
    metadata = load_metadata(spark, wal)
    if metadata["format-version"] < 2:
        raise BadRequest(
            f"{wal} has format version 1, whose files do not tell when their rows were appended: set its property "
            "'format-version' to 2, then files that are written from then on can be pruned",
            rule="wal.prune",
        )
    cut = _cut(spark, metadata, targets, logs, (ambient or SystemAmbient()).now_ms() - keep_s * 1000)
    if cut is None:
        return Pruned(wal)
    removed: list[Pruned] = []

    def remove() -> None:
        table = iceberg_table(spark, wal)
        files = sorted(_files_through(table, cut), key=lambda file: file.sequence)[:FILES_MAX]
        if not files:
            return
        delete = table.newDelete()
        for file in files:
            # By the file object: PySpark takes a path to the method that deletes from storage.
            delete = delete.deleteFile(file.java)
        for key, value in (properties or {}).items():
            delete = delete.set(key, value)
        before = table.currentSnapshot().snapshotId()
        delete.commit()
        ours = removing(load_metadata(spark, wal), before)  # others may have appended meanwhile
        rows, size_bytes = sum(file.rows for file in files), sum(file.size_bytes for file in files)
        removed.append(Pruned(wal, len(files), rows, size_bytes, ours[0] if ours else None))

    patiently(lambda: translating_errors(f"pruning {wal}", remove))
    return removed[-1] if removed else Pruned(wal)


@dataclass(frozen=True, slots=True)
class _File:
    """A data file of the log; `java` is Iceberg's own object."""

    java: Any
    sequence: int
    rows: int
    size_bytes: int


def _files_through(table: Any, cut: int) -> Iterator[_File]:
    """The live data files of a table whose data sequence number is at most `cut`."""
    tasks = table.newScan().planFiles()
    try:
        for task in elements(tasks):
            file = task.file()
            number = file.dataSequenceNumber()
            if number is not None and 0 < number <= cut:  # 0: from before the log had such numbers
                yield _File(file, number, file.recordCount(), file.fileSizeInBytes())
    finally:
        tasks.close()


def _cut(spark: SparkSession, wal: Metadata, targets: Sequence[str], logs: Logs, before_ms: float) -> int | None:
    """The highest sequence number that may go; None if nothing may."""
    head = current_snapshot_id(wal)
    line = [] if head is None else [*ancestors(wal, head)]  # newest first
    for name in targets:
        target = load_metadata(spark, name)
        applied = [*history(target, wal["table-uuid"])]
        if not applied:
            return None
        closed = logs.mediations_of(target["table-uuid"], wal["table-uuid"]).closed
        merged = next((done for done in applied if done.batch in closed), None)
        places = [at for at, snapshot in enumerate(line) if merged and snapshot["snapshot-id"] == merged.through]
        if not places:
            return None
        line = line[places[0] :]
    old = (snapshot for snapshot in line if snapshot["timestamp-ms"] <= before_ms)
    return next((snapshot.get("sequence-number", 0) for snapshot in old), None)

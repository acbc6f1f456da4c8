"""Which maintenance of a table is due, by its files and its properties.

Pure. Six tasks: `prune` (rows that are old enough, of logs and system tables), `compact` (small data files of a
partition, and files with deletion vectors), `deletes` (position delete files, which format version 3 does not write),
`manifests`, `expire`, and `orphans`. Partitions that somebody has just written to are left alone: their writer is
likely to come back. Snapshots expire only if a property of the table asks for it (trap H1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icetower.contracts.model import FILE_OPERATIONS, Contract, Operation
from icetower.counting import counted
from icetower.iceberg.lineage import ancestors
from icetower.iceberg.metadata import current_snapshot_id
from icetower.protocol.marks import PROGRESS
from icetower.protocol.names import Identifier
from icetower.table.sinks import sinks_of

Metadata = Mapping[str, Any]

ENABLED = "maintenance.enabled"
"""`false`: the table is left alone."""
FILES_MIN = "maintenance.files-min"
"""How many small data files, or files of deletes, make a partition due; Iceberg's own default."""
QUIET_MS = "maintenance.quiet-ms"
"""A partition that was written to more recently is left alone; 0: none is."""
KEEP_MS = "maintenance.keep-ms"
"""Of a log, a delta table or a system table: rows that are older go, if nobody needs them any more."""
TASK = "maintenance.task"
"""In the summary of a snapshot: the task that made it."""
MANIFESTS_MIN = "commit.manifest.min-count-to-merge"
AGE_MAX_MS = "history.expire.max-snapshot-age-ms"
SNAPSHOTS_MIN = "history.expire.min-snapshots-to-keep"

_DEFAULTS = {
    FILES_MIN: 5,
    QUIET_MS: 600_000,
    MANIFESTS_MIN: 100,
    SNAPSHOTS_MIN: 1,
    "write.target-file-size-bytes": 512 << 20,
    "commit.manifest.target-size-bytes": 8 << 20,
}
_LEAST = {QUIET_MS: 0}
"""Below this a setting is no setting; elsewhere 1."""
_SMALL = 0.75
"""Iceberg rewrites data files that are smaller than this part of the target size."""
PARTITIONS_MAX = 100
"""Of one compaction; the others are due in the next run."""
YOUNG_MS = 10 * 60_000
"""No snapshot younger than this expires: a commit under way may stand on it."""


class Task(StrEnum):
    """A task, in the order in which they run."""

    PRUNE = "prune"
    COMPACT = "compact"
    DELETES = "deletes"
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "orphans"


NEEDS: Mapping[Task, Operation] = {
    Task.PRUNE: Operation.DELETE,
    Task.COMPACT: Operation.REPLACE,
    Task.DELETES: Operation.REPLACE,
    Task.MANIFESTS: Operation.REPLACE,
    Task.EXPIRE: Operation.REFS,
}
"""The operation that a contract must grant on every partition of a table. To look for orphans it must read it."""

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Aging:
    """A system table whose rows go by age.

    Attributes:
        column: their time.
        keep_ms: for how long they are kept, if `KEEP_MS` says nothing else; None: for ever.
        whole_files: files go whose rows are all old enough; else rows go, whatever file they are in.
    """

    column: str
    keep_ms: int | None
    whole_files: bool = True


AGING: Mapping[str, Aging] = {
    # A mediator without a window looks for keys in all of it: one that is gone would land again.
    "agent_dedup_log": Aging("committed_at", None),
    "wal_rejections": Aging("rejected_at", 30 * DAY_MS),
    "wal_mediations": Aging("committed_at", 30 * DAY_MS, whole_files=False),
    "iceberg_commits": Aging("at", 30 * DAY_MS),
    "agent_write_metrics": Aging("window_start", 90 * DAY_MS),
    "maintenance_runs": Aging("at", 90 * DAY_MS),
    "iceberg_orphan_files": Aging("changed_at", 90 * DAY_MS, whole_files=False),
}
"""By the name in the namespace of the system tables. The rows of the others are kept for ever."""

ORPHANS_EVERY_MS = DAY_MS
"""How often orphans are looked for, if no contract of a writer says it."""


@dataclass(frozen=True, slots=True)
class FileTimes:
    """The least and the greatest time in a column of a data file, in milliseconds."""

    path: str
    least_ms: int
    greatest_ms: int


@dataclass(frozen=True, slots=True)
class Partition:
    """The live files of one partition of the table's current spec.

    Attributes:
        values: of the partition's fields; none in an unpartitioned table.
        small: data files that are smaller than `small_below`.
        vectors: deletion vectors.
        deletes: position delete files that are not vectors.
        busy: whether it was written to a short while ago, by anything but maintenance.
    """

    values: tuple[Any, ...]
    small: int = 0
    vectors: int = 0
    deletes: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """A task that is due.

    Attributes:
        partitions: to which it is limited; None: the whole table.
        before_ms: for `expire`: older snapshots go.
    """

    task: Task
    partitions: tuple[tuple[Any, ...], ...] | None = None
    before_ms: int | None = None


def due(
    metadata: Metadata,
    partitions: Sequence[Partition],
    manifests: Sequence[int],
    *,
    now_ms: int,
    tasks: Collection[Task] = frozenset(Task),
    unread_since_ms: int | None = None,
) -> tuple[Due, ...]:
    """The tasks that are due, in their order.

    Args:
        partitions: of the current snapshot.
        manifests: the lengths of its manifests of data files.
        tasks: those that are wanted, and allowed.
        unread_since_ms: snapshots from then on stay: others read on from there.
    """
    if (metadata.get("properties") or {}).get(ENABLED, "true").lower() == "false":
        return ()
    files_min = setting(metadata, FILES_MIN)
    quiet = [each for each in partitions if not each.busy]
    worst = sorted(quiet, key=lambda each: -(each.small + each.vectors))
    compact = [each.values for each in worst if each.small >= max(files_min, 2) or each.vectors >= files_min]
    deletes = [each.values for each in quiet if each.deletes >= files_min]
    found = [Due(Task.COMPACT, tuple(compact[:PARTITIONS_MAX]))] if compact else []
    found += [Due(Task.DELETES, tuple(deletes[:PARTITIONS_MAX]))] if deletes else []
    if _manifests_due(metadata, manifests):
        found.append(Due(Task.MANIFESTS))
    before_ms = expire_before_ms(metadata, now_ms, unread_since_ms)
    if before_ms is not None:
        found.append(Due(Task.EXPIRE, before_ms=before_ms))
    return tuple(each for each in found if each.task in tasks)


def why_not(
    metadata: Metadata, partitions: Sequence[Partition], manifests: Sequence[int], may: Collection[Task]
) -> str:
    """Why nothing is due on a table, for people: the first reason that its owner can do something about."""
    if (metadata.get("properties") or {}).get(ENABLED, "true").lower() == "false":
        return f"{ENABLED} is false"
    if not may:
        return "the run's own contract grants no task on it"
    if current_snapshot_id(metadata) is None:
        return "it is empty"
    files_min = setting(metadata, FILES_MIN)
    full = [each for each in partitions if max(each.small, each.vectors, each.deletes) >= files_min]
    busy = sum(each.busy for each in full)
    if busy:
        minutes = setting(metadata, QUIET_MS) / 60_000
        return f"{counted(busy, 'partition')} would be, and were written in the last {minutes:g} min ({QUIET_MS})"
    most = max((max(each.small, each.vectors, each.deletes) for each in partitions), default=0)
    return (
        f"no partition has {files_min} small or deleting files ({FILES_MIN}; the most is {most}), "
        f"{counted(len(manifests), 'manifest')} of {setting(metadata, MANIFESTS_MIN)} ({MANIFESTS_MIN}), "
        f"{'no snapshot is old enough' if AGE_MAX_MS in (metadata.get('properties') or {}) else f'no {AGE_MAX_MS}'}"
    )


def allowed(own: Contract | None, table: Identifier) -> frozenset[Task]:
    """The tasks that a contract allows on a table; None: an administrator's run."""
    if own is None:
        return frozenset(Task)
    found = {task for task, needed in NEEDS.items() if own.grants_everywhere(frozenset({needed}), table)}
    return frozenset(found | {Task.ORPHANS} if own.grants(Operation.READ, table) else found - {Task.ORPHANS})


def keep_ms(metadata: Metadata, otherwise_ms: int | None) -> int | None:
    """For how long a table keeps its rows, by its property; None: for ever.

    Args:
        otherwise_ms: without the property. One that is no number above 0 means for ever.
    """
    if KEEP_MS not in (metadata.get("properties") or {}):
        return otherwise_ms
    return setting(metadata, KEEP_MS) or None


def old_files(files: Sequence[FileTimes], before_ms: int) -> list[str]:
    """The files whose rows are all older, without the newest of all: it tells an exporter where to go on."""
    newest_ms = max((each.greatest_ms for each in files), default=0)
    return [each.path for each in files if each.greatest_ms < min(before_ms, newest_ms)]


def scan_every_ms(contracts: Iterable[Contract], table: Identifier) -> int:
    """How often orphans of a table are looked for: as often as one of its writers' contracts asks for."""
    asked = [
        contract.orphans.detect_every_s * 1000
        for contract in contracts
        if contract.orphans is not None and any(contract.grants(each, table) for each in FILE_OPERATIONS)
    ]
    return int(min(asked, default=ORPHANS_EVERY_MS))


def small_below(metadata: Metadata) -> int:
    """Data files with fewer bytes are small."""
    return int(setting(metadata, "write.target-file-size-bytes") * _SMALL)


def recent_snapshots(metadata: Metadata, now_ms: int) -> list[int]:
    """The snapshots whose partitions are busy. Rewrites do not count: maintenance is one of them."""
    since_ms = now_ms - setting(metadata, QUIET_MS)
    snapshots = metadata.get("snapshots") or ()
    return [
        each["snapshot-id"]
        for each in snapshots
        if each["timestamp-ms"] > since_ms and each["summary"].get("operation") != "replace"
    ]


def expire_before_ms(metadata: Metadata, now_ms: int, unread_since_ms: int | None = None) -> int | None:
    """The time before which snapshots go; None if none does.

    The newest snapshot that tells the progress of a sink, a mediator or an exporter stays, and all after it; and so do
    those since `unread_since_ms`.
    """
    properties: Mapping[str, str] = metadata.get("properties") or {}
    head = current_snapshot_id(metadata)
    if head is None or AGE_MAX_MS not in properties or properties.get("gc.enabled", "true").lower() == "false":
        return None
    age_ms = setting(metadata, AGE_MAX_MS)
    if age_ms <= 0:
        return None
    before_ms = now_ms - max(age_ms, YOUNG_MS)
    if unread_since_ms is not None:
        before_ms = min(before_ms, unread_since_ms)
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    line = list(ancestors(by_id.get, head))
    told: set[Any] = set()
    for snapshot in line:
        summary: Mapping[str, str] = by_id[snapshot.id]["summary"]
        fresh = {*sinks_of(summary), *(name for name in summary if name.startswith(PROGRESS))} - told
        if fresh:
            told |= fresh
            before_ms = min(before_ms, by_id[snapshot.id]["timestamp-ms"])
    return before_ms if expiring(metadata, before_ms) else None


def expiring(metadata: Metadata, before_ms: int) -> list[int]:
    """The snapshots that go if those before a time expire."""
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    line = list(ancestors(by_id.get, current_snapshot_id(metadata)))
    kept = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    kept |= {snapshot.id for snapshot in line[: setting(metadata, SNAPSHOTS_MIN)]}
    return [i for i, each in by_id.items() if each["timestamp-ms"] < before_ms and i not in kept]


def setting(metadata: Metadata, name: str) -> int:
    """A property that is a number above 0 (or 0, where that says something); its default if it is not. One without a
    default is 0."""
    try:
        value = int((metadata.get("properties") or {}).get(name, ""))
    except ValueError:
        value = -1
    return value if value >= _LEAST.get(name, 1) else _DEFAULTS.get(name, 0)


def _manifests_due(metadata: Metadata, lengths: Sequence[int]) -> bool:
    """Whether there are many small ones, and fewer are enough."""
    target = setting(metadata, "commit.manifest.target-size-bytes")
    small = [length for length in lengths if length < target // 2]
    needed = -(-sum(lengths) // target)
    return len(small) >= setting(metadata, MANIFESTS_MIN) and len(lengths) > 2 * needed

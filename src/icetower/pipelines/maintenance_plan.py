"""Which maintenance of a table is due, by its files and its properties.

Pure. Four tasks: `compact` (small data files of a partition, and files with deletion vectors), `deletes` (position
delete files, which format version 3 does not write), `manifests`, and `expire`. Partitions that somebody has just
written to are left alone: their writer is likely to come back. Snapshots expire only if a property of the table asks
for it (trap H1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icetower.iceberg.lineage import ancestors
from icetower.iceberg.metadata import current_snapshot_id
from icetower.protocol.marks import PROGRESS
from icetower.table.sinks import sinks_of

Metadata = Mapping[str, Any]

ENABLED = "maintenance.enabled"
"""`false`: the table is left alone."""
FILES_MIN = "maintenance.files-min"
"""How many small data files, or files of deletes, make a partition due; Iceberg's own default."""
QUIET_MS = "maintenance.quiet-ms"
"""A partition that was written to more recently is left alone."""
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
_SMALL = 0.75
"""Iceberg rewrites data files that are smaller than this part of the target size."""
PARTITIONS_MAX = 100
"""Of one compaction; the others are due in the next run."""
YOUNG_MS = 10 * 60_000
"""No snapshot younger than this expires: a commit under way may stand on it."""


class Task(StrEnum):
    """A task, in the order in which they run."""

    COMPACT = "compact"
    DELETES = "deletes"
    MANIFESTS = "manifests"
    EXPIRE = "expire"


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
    metadata: Metadata, partitions: Sequence[Partition], manifests: Sequence[int], *, now_ms: int
) -> tuple[Due, ...]:
    """The tasks that are due, in their order.

    Args:
        partitions: of the current snapshot.
        manifests: the lengths of its manifests of data files.
    """
    if (metadata.get("properties") or {}).get(ENABLED, "true").lower() == "false":
        return ()
    files_min = setting(metadata, FILES_MIN)
    quiet = [each for each in partitions if not each.busy]
    worst = sorted(quiet, key=lambda each: -(each.small + each.vectors))
    compact = [each.values for each in worst if max(each.small, each.vectors) >= files_min]
    deletes = [each.values for each in quiet if each.deletes >= files_min]
    found = [Due(Task.COMPACT, tuple(compact[:PARTITIONS_MAX]))] if compact else []
    found += [Due(Task.DELETES, tuple(deletes[:PARTITIONS_MAX]))] if deletes else []
    if _manifests_due(metadata, manifests):
        found.append(Due(Task.MANIFESTS))
    before_ms = expire_before_ms(metadata, now_ms)
    if before_ms is not None:
        found.append(Due(Task.EXPIRE, before_ms=before_ms))
    return tuple(found)


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


def expire_before_ms(metadata: Metadata, now_ms: int) -> int | None:
    """The time before which snapshots go; None if none does.

    The newest snapshot that tells the progress of a sink, a mediator or an exporter stays, and all after it.
    """
    properties: Mapping[str, str] = metadata.get("properties") or {}
    head = current_snapshot_id(metadata)
    if head is None or AGE_MAX_MS not in properties or properties.get("gc.enabled", "true").lower() == "false":
        return None
    age_ms = setting(metadata, AGE_MAX_MS)
    if age_ms <= 0:
        return None
    before_ms = now_ms - max(age_ms, YOUNG_MS)
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    line = list(ancestors(by_id.get, head))
    told: set[Any] = set()
    for snapshot in line:
        summary: Mapping[str, str] = by_id[snapshot.id]["summary"]
        fresh = {*sinks_of(summary), *(name for name in summary if name.startswith(PROGRESS))} - told
        if fresh:
            told |= fresh
            before_ms = min(before_ms, by_id[snapshot.id]["timestamp-ms"])
    kept = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    kept |= {snapshot.id for snapshot in line[: setting(metadata, SNAPSHOTS_MIN)]}
    going = (each for each in metadata["snapshots"] if each["timestamp-ms"] < before_ms)
    return before_ms if any(each["snapshot-id"] not in kept for each in going) else None


def setting(metadata: Metadata, name: str) -> int:
    """A property that is a number above 0; its default if it is not. One without a default is 0."""
    try:
        value = int((metadata.get("properties") or {}).get(name, ""))
    except ValueError:
        value = 0
    return value if value > 0 else _DEFAULTS.get(name, 0)


def _manifests_due(metadata: Metadata, lengths: Sequence[int]) -> bool:
    """Whether there are many small ones, and fewer are enough."""
    target = setting(metadata, "commit.manifest.target-size-bytes")
    small = [length for length in lengths if length < target // 2]
    needed = -(-sum(lengths) // target)
    return len(small) >= setting(metadata, MANIFESTS_MIN) and len(lengths) > 2 * needed

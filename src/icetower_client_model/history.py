"""The history of a branch since a writer read it: the snapshots, and the manifests that the checks look at.

Source: Apache Iceberg 1.12, `MergingSnapshotProducer.validationHistory`, `SnapshotUtil.ancestorsBetween`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from icetower.iceberg.entries import Files
from icetower.iceberg.lineage import ancestors
from icetower.iceberg.records import ManifestFile
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState

JSON = Mapping[str, Any]


def branch_head(head: HeadState, branch: str) -> JSON | None:
    """The snapshot that a commit to `branch` is based on: the branch's, or the current one for a new branch."""
    found = head.ref(branch)
    if found is None:
        found = head.metadata.get("current-snapshot-id")
    return None if found in (None, -1) else head.snapshots[found]


def is_ancestor(head: HeadState, snapshot_id: int, of: int) -> bool:
    """Whether `snapshot_id` is `of` or one of its ancestors, as far as the table still knows them."""
    return any(snapshot["snapshot-id"] == snapshot_id for snapshot in ancestors(head.snapshots.get, of))


def since(head: HeadState, parent: JSON, start: int | None) -> tuple[Snapshot, ...]:
    """The snapshots after `start` up to `parent`, newest first; all that are known if the walk never meets it."""
    return tuple(ancestors(head.snapshots.get, parent["snapshot-id"], until=start))


@dataclass(frozen=True, slots=True)
class History:
    """H(operations, content): the additions of snapshots of some operations since the start.

    Attributes:
        rows: the manifests of one content that these snapshots added themselves, newest snapshot first.
        snapshot_ids: the ids of these snapshots.
    """

    rows: tuple[ManifestFile, ...]
    snapshot_ids: frozenset[int]


class UnknownHistory(Exception):
    """The walk back from the head did not end at the starting snapshot.

    Attributes:
        last_id: the last snapshot of the walk.
    """

    def __init__(self, last_id: int) -> None:
        super().__init__(last_id)
        self.last_id = last_id


def history(
    head: HeadState, files: Files, parent: JSON, start: int | None, operations: Collection[str], content: int
) -> History:
    """What snapshots recorded as one of `operations` added between `start` and `parent`.

    An expired start is accepted if it is the parent of the oldest remaining snapshot. A start of None walks to the
    root, and fails once the root has expired.

    Raises:
        UnknownHistory: the walk did not end at the start.
        NeedsFile: a manifest list must be read first.
    """
    rows: list[ManifestFile] = []
    ids: set[int] = set()
    last: Snapshot | None = None
    for snapshot in since(head, parent, start):
        last = snapshot
        if snapshot.operation in operations:
            snapshot_id = snapshot.id
            ids.add(snapshot_id)
            rows += (row for row in files.rows(snapshot, content=content) if row.added_snapshot_id == snapshot_id)
    if last is not None and last.parent_id != start:
        raise UnknownHistory(last.id)
    return History(tuple(rows), frozenset(ids))

"""The ancestry of snapshots: the one walk from a snapshot to its ancestors, and whether a history has a snapshot.

A walk costs as many steps as it yields snapshots, and ends though forged metadata goes round in circles.

Whether a history has a snapshot is answered yes, no, or None: cut. A tag or a branch keeps a snapshot while those after
it expire. A walk from the head of the branch that it was written for then ends before it would come to the snapshot: it
was not seen, and is not known to be missing.

Source: Apache Iceberg specification, "Sequence Numbers": a snapshot's number is higher than its parent's. Those of
format version 1 have none, which is 0 here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icetower.protocol.snapshots import Snapshot

Find = Callable[[int], "Mapping[str, Any] | None"]
"""A snapshot (JSON) by its id, where it is known."""


def ancestors(
    find: Find, head_id: int | None, *, until: int | None = None, seen: set[int] | None = None
) -> Iterator[Snapshot]:
    """A snapshot and its ancestors as far as they are known, newest first, up to and without `until`.

    Args:
        seen: ids that were walked before: the walk ends at them, and adds its own.
    """
    seen = set() if seen is None else seen
    wanted = head_id
    while wanted is not None and wanted != until and wanted not in seen:
        found = find(wanted)
        if found is None:
            return
        seen.add(wanted)
        snapshot = Snapshot(found)
        yield snapshot
        wanted = snapshot.parent_id


def cut_at(head_id: int | None, oldest: Snapshot | None, walked: Container[int]) -> int | None:
    """Where a walk ended before the first snapshot: the sequence number of the last one it saw; None: it saw the first.

    Args:
        oldest: the last one that was walked; None where not even the head is known.
        walked: ids of those before it. A walk that comes back to one of them has seen all.
    """
    if oldest is None:
        return None if head_id is None or head_id in walked else 0
    if oldest.parent_id is None:
        return None if oldest.may_be_first else oldest.sequence_number
    return None if oldest.parent_id in walked else oldest.sequence_number


@dataclass(frozen=True, slots=True)
class Lineage:
    """A snapshot and its ancestors, as far as they are known.

    Attributes:
        ids: of the snapshots, from the head on.
        cut_at: where an ancestor is missing, or its name is, the sequence number of the last one before it; None where
            none is.
    """

    ids: Mapping[int, None]
    cut_at: int | None

    @classmethod
    def of(cls, find: Find, head_id: int | None, *, to: int | None = None) -> Lineage:
        """The lineage of a head, or of none.

        Args:
            to: who asks for this snapshot alone needs no more of the lineage than decides about it.
        """
        ids: dict[int, None] = {}
        sought = None if to is None else find(to)
        lowest = 0 if sought is None else Snapshot(sought).sequence_number
        oldest: Snapshot | None = None
        for oldest in ancestors(find, head_id):
            ids[oldest.id] = None
            if oldest.id == to or 0 < oldest.sequence_number < lowest:
                return cls(ids, None)
        return cls(ids, cut_at(head_id, oldest, ids))

    def has(self, snapshot: Snapshot) -> bool | None:
        """Whether it has a snapshot; None where it is cut, and the snapshot may be beyond."""
        if snapshot.id in self.ids:
            return True
        if self.cut_at is None:
            return False
        # What is beyond the cut has a lower number than what is before it.
        return False if self.cut_at and snapshot.sequence_number > self.cut_at else None


def reaches(find: Find, head_id: int | None, snapshot_id: int) -> bool | None:
    """Whether a snapshot that is known is in the lineage of a head: as `Lineage.has`."""
    found = find(snapshot_id) or {"snapshot-id": snapshot_id}
    return Lineage.of(find, head_id, to=snapshot_id).has(Snapshot(found))

"""Is a snapshot in the history of a branch? Yes, no, or nobody can tell any more. Pure.

A tag or a branch keeps a snapshot while those after it expire. Whoever then walks from the head of the branch that it
was written for comes to the end of what the table knows before coming to it: it was not seen, and is not known to be
missing.

Source: Apache Iceberg specification, "Sequence Numbers": a snapshot's number is higher than its parent's. Those of
format version 1 have none, which is 0 here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

JSON = Mapping[str, Any]
Find = Callable[[int], "JSON | None"]
"""A snapshot by its id, where it is known."""


@dataclass(frozen=True, slots=True)
class Line:
    """A snapshot and its ancestors, as far as they are known.

    Attributes:
        ids: of the snapshots, from the head on.
        cut_at: where an ancestor is missing, the sequence number of the last one before it; None where none is.
    """

    ids: Mapping[int, None]
    cut_at: int | None

    @classmethod
    def of(cls, find: Find, head_id: int | None, *, to: int | None = None) -> Line:
        """The line of a head, or of none.

        Args:
            to: who asks for this snapshot alone needs no more of the line than tells about it.
        """
        ids: dict[int, None] = {}
        wanted, number = head_id, 0
        lowest = 0 if to is None else number_of(find(to))
        while wanted is not None and wanted not in ids:  # forged metadata may go round in circles
            entry = find(wanted)
            if entry is None:
                return cls(ids, number)
            ids[wanted] = None
            number = number_of(entry)
            if wanted == to or 0 < number < lowest:
                break
            wanted = entry.get("parent-snapshot-id")
        return cls(ids, None)

    def has(self, snapshot: JSON) -> bool | None:
        """Whether a snapshot is on the line; None where the line is cut off, and it may be beyond."""
        if snapshot["snapshot-id"] in self.ids:
            return True
        if self.cut_at is None:
            return False
        # What is on a line beyond its cut has a lower number than what is before it.
        return False if self.cut_at and number_of(snapshot) > self.cut_at else None


def reaches(find: Find, head_id: int | None, snapshot_id: int) -> bool | None:
    """Whether a snapshot that is known is on the line of a head: as `Line.has`."""
    return Line.of(find, head_id, to=snapshot_id).has(find(snapshot_id) or {"snapshot-id": snapshot_id})


def number_of(snapshot: JSON | None) -> int:
    """Its sequence number; 0 where it has none."""
    return 0 if snapshot is None else int(snapshot.get("sequence-number") or 0)

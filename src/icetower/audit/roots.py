"""Where the known history of a branch begins: with the table itself, or after snapshots that have expired. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from icetower.audit.list_reading import ListStep
from icetower.protocol.snapshots import Snapshot

JSON = Mapping[str, Any]

UNNAMED = -2
"""Stands for the id of a parent that has expired and that nobody names any more."""

_ID = re.compile(r"\d{1,19}")


def rooted(snapshot: JSON, step: ListStep, known: Container[int]) -> JSON:
    """The first snapshot of a line with the parent that its list was written for, where that has expired.

    PyIceberg's expiry takes the names of what expired out of its children, too.

    Args:
        step: its manifest list, read as the first.
        known: the ids of the table's snapshots.
    """
    if Snapshot(snapshot).parent_id is not None:
        return snapshot
    said = step.header.get("parent-snapshot-id")
    if said is None and any(row.added_snapshot_id != snapshot["snapshot-id"] for row in step.entered):
        return {**snapshot, "parent-snapshot-id": UNNAMED}  # nobody says which, but there was one
    if said is None or not _ID.fullmatch(said) or int(said) in known:
        return snapshot
    return {**snapshot, "parent-snapshot-id": int(said)}

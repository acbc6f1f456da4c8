"""Is a snapshot that says it was picked (`source-snapshot-id`) really what it says?

Whoever publishes a branch leaves out what was picked from it. A snapshot that names another's as its source, and brings
other files, would have those rows left out silently. Iceberg's own picks add and remove the very data files of their
source (`CherryPickOperation`); so must all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.admission.targets import ReadsManifests
from icetower.errors import ValidationFailed
from icetower.files.changes import MANIFESTS_PER_COMMIT_MAX
from icetower.iceberg.change import Change
from icetower.iceberg.manifests import ADDED, DATA, DELETED
from icetower.protocol.marks import SOURCE_SNAPSHOT

JSON = Mapping[str, Any]

Paths = tuple[frozenset[str], frozenset[str]]
"""The files that a snapshot adds, and the data files that it removes. Deletes may go with their data."""


async def check_picks(manifests: ReadsManifests, metadata: JSON, changes: Sequence[Change]) -> None:
    """Each picked snapshot does to the table what its source does.

    Args:
        metadata: of the table.

    Raises:
        ValidationFailed: ``summary.picked``, it does something else, or its source is not there.
    """
    own = {str(change.snapshot.id): change for change in changes}
    for change in changes:
        source = change.snapshot.summary.get(SOURCE_SNAPSHOT)
        if source is None:
            continue
        if source in own and source != str(change.snapshot.id):
            expected = _paths(own[source])
        else:
            found = next((each for each in metadata["snapshots"] if str(each["snapshot-id"]) == source), None)
            if found is None:
                raise _refused(change, source, "and the table has no such snapshot")
            expected = await _paths_of(manifests, found)
        if _paths(change) != expected:
            raise _refused(change, source, "and adds or removes other files than that one")


def _paths(change: Change) -> Paths:
    return (
        frozenset(touched.file.path for touched in change.added),
        frozenset(touched.file.path for touched in change.removed if touched.file.content == DATA),
    )


async def _paths_of(manifests: ReadsManifests, snapshot: JSON) -> Paths:
    """What a snapshot of the table has added and removed, by its own manifests. Its parent may have expired."""
    snapshot_id = snapshot["snapshot-id"]
    rows = [row for row in await manifests.list_at(snapshot["manifest-list"]) if row.added_snapshot_id == snapshot_id]
    if len(rows) > MANIFESTS_PER_COMMIT_MAX:
        raise ValidationFailed(
            f"snapshot {snapshot_id}, which is picked, has {len(rows)} manifests of its own; at most "
            f"{MANIFESTS_PER_COMMIT_MAX} are read for one commit",
            rule="limit.manifests",
        )
    added: set[str] = set()
    removed: set[str] = set()
    for row in rows:
        for entry in (await manifests.manifest_at(row.path)).entries:
            if entry.snapshot_id not in (None, snapshot_id):
                continue
            if entry.status == ADDED:
                added.add(entry.file.path)
            elif entry.status == DELETED and entry.file.content == DATA:
                removed.add(entry.file.path)
    return frozenset(added), frozenset(removed)


def _refused(change: Change, source: str, why: str) -> ValidationFailed:
    return ValidationFailed(
        f"snapshot {change.snapshot.id} says that it was picked from snapshot {source} ({SOURCE_SNAPSHOT}), {why}; "
        f"leave {SOURCE_SNAPSHOT} out, or pick the snapshot as it is",
        rule="summary.picked",
        snapshot=change.snapshot.id,
    )

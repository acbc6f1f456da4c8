"""Which partitions do deletion vectors and file-scoped position deletes really reach into? (trap R5)

Readers apply them by the data file's path and never look at the partition that the delete file is labelled with. So the
data file itself is looked up, and its partition counts as touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from icetower.admission.operations import target_of
from icetower.catalog.changes import MANIFESTS_PER_COMMIT_MAX
from icetower.table import metadata as table_metadata
from icetower.table.change import Change
from icetower.table.manifests import DATA, DELETED, Manifest, ManifestFile

Place = tuple[int, tuple[Any, ...]]
"""Where a data file lies: partition spec id and partition."""


class ReadsManifests(Protocol):
    """What is needed of `catalog.changes.Manifests`."""

    async def list_at(self, path: str) -> tuple[ManifestFile, ...]: ...
    async def manifest_at(self, path: str) -> Manifest: ...


def known_places(changes: Sequence[Change]) -> dict[str, Place]:
    """The data files that the commit itself adds or removes."""
    return {
        touched.file.path: (touched.spec_id, touched.file.partition)
        for change in changes
        for touched in (*change.added, *change.removed)
        if touched.file.content == DATA
    }


def unknown_targets(changes: Sequence[Change]) -> frozenset[str]:
    """Data files that added delete files reach into and that the commit doesn't name otherwise."""
    targets = {target_of(touched.file) for change in changes for touched in change.added}
    return frozenset(target for target in targets - known_places(changes).keys() if target is not None)


async def locate(
    manifests: ReadsManifests, metadata: Mapping[str, Any] | None, changes: Sequence[Change]
) -> dict[str, Place]:
    """Look up the unknown targets in the parents' manifests. What isn't found there is left out of the answer."""
    missing = set(unknown_targets(changes))
    found: dict[str, Place] = {}
    read: set[str] = set()
    for change in changes:
        parent_id = change.snapshot.get("parent-snapshot-id")
        parent = table_metadata.snapshot(metadata, parent_id) if metadata is not None and parent_id else None
        rows = () if parent is None or not missing else await manifests.list_at(parent["manifest-list"])
        for row in rows:
            if not missing or len(read) >= MANIFESTS_PER_COMMIT_MAX:
                break
            if row.content != DATA or row.path in read:
                continue
            read.add(row.path)
            manifest = await manifests.manifest_at(row.path)
            for entry in manifest.entries:
                if entry.status != DELETED and entry.file.path in missing:
                    found[entry.file.path] = (manifest.spec_id, entry.file.partition)
                    missing.discard(entry.file.path)
    return found

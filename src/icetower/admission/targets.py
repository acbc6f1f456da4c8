"""Which partitions do deletion vectors and file-scoped position deletes really reach into? (trap R5)

Readers apply them by the data file's path and never look at the partition that the delete file is labelled with. So the
data file itself is looked up, and its partition counts as touched: rows go there where the delete file comes, and come
back where it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from icetower.admission import operations
from icetower.catalog.changes import MANIFESTS_PER_COMMIT_MAX
from icetower.table import metadata as table_metadata
from icetower.table.change import Change, Place
from icetower.table.manifests import DATA, DELETED, Manifest, ManifestFile

Places = Mapping[str, tuple[Place, ...]]
"""Data files by path. One path may be named in several partitions, and a deletion vector reaches all of them.

A path without a place was looked for everywhere, and is not in the table; one that is missing was not looked for.
"""


class ReadsManifests(Protocol):
    """What is needed of `catalog.changes.Manifests`."""

    async def list_at(self, path: str) -> tuple[ManifestFile, ...]: ...
    async def manifest_at(self, path: str) -> Manifest: ...


def known_places(changes: Sequence[Change]) -> dict[str, tuple[Place, ...]]:
    """The data files that the commit itself adds or removes."""
    found: dict[str, tuple[Place, ...]] = {}
    for change in changes:
        for touched in (*change.added, *change.removed):
            if touched.file.content == DATA:
                path = touched.file.path
                found[path] = (*found.get(path, ()), (touched.spec_id, touched.file.partition))
    return found


def targets_of(changes: Sequence[Change]) -> frozenset[str]:
    """Data files that delete files reach into which are added or removed."""
    return frozenset(
        target
        for change in changes
        for touched in (*change.added, *change.removed)
        for target in operations.targets_of(touched.file)
    )


async def locate(
    manifests: ReadsManifests,
    metadata: Mapping[str, Any] | None,
    changes: Sequence[Change],
    targets: frozenset[str] | None = None,
) -> dict[str, tuple[Place, ...]]:
    """Every place of the targets in the parents' manifests; targets that the commit names itself are looked up too.

    `targets` None: those that the manifests tell.

    A file that somebody names once more in a partition of their own stays the file of whom it belonged to: so all
    manifests are read. Where they are too many, nothing is said of any target.
    """
    if targets is None:
        targets = targets_of(changes)
    if not targets:
        return {}
    found: dict[str, dict[Place, None]] = {target: {} for target in targets}
    read: set[str] = set()
    for change in changes:
        parent_id = change.snapshot.get("parent-snapshot-id")
        parent = table_metadata.snapshot(metadata, parent_id) if metadata is not None and parent_id else None
        rows = () if parent is None else await manifests.list_at(parent["manifest-list"])
        for row in rows:
            if row.content != DATA or row.path in read:
                continue
            if len(read) >= MANIFESTS_PER_COMMIT_MAX:
                return {}
            read.add(row.path)
            manifest = await manifests.manifest_at(row.path)
            for entry in manifest.entries:
                if entry.status != DELETED and entry.file.path in targets:
                    found[entry.file.path][(manifest.spec_id, entry.file.partition)] = None
    return {path: tuple(places) for path, places in found.items()}

"""Which partitions do deletion vectors and file-scoped position deletes really reach into? (trap R5)

Readers apply them by the data file's path and never look at the partition that the delete file is labelled with. So the
data file itself is looked up, and its partition counts as touched: rows go there where the delete file comes, and come
back where it goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from icetower.admission import operations
from icetower.errors import ValidationFailed
from icetower.files.changes import MANIFESTS_PER_COMMIT_MAX
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import Change, Place
from icetower.iceberg.manifests import DATA, DELETED, Entry, Manifest, ManifestFile
from icetower.iceberg.records import is_vector

Places = Mapping[str, tuple[Place, ...]]
"""Data files by path. One path may be named in several partitions, and a deletion vector reaches all of them.

A path without a place was looked for everywhere, and is not in the table; one that is missing was not looked for.
"""


class ReadsManifests(Protocol):
    """What is needed of `files.changes.Manifests`."""

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
    try:
        async for row, entry in _live_data(manifests, metadata, changes):
            if entry.file.path in targets:
                found[entry.file.path][(row.spec_id, entry.file.partition)] = None
    except _TooManyError:
        return {}
    return {path: tuple(places) for path, places in found.items()}


async def check_ages(manifests: ReadsManifests, metadata: Mapping[str, Any] | None, changes: Sequence[Change]) -> None:
    """No deletion vector may be older than its data file: readers refuse a table with one, with all of its rows.

    Only vectors count that say themselves how old they are, as compaction's do; others are as old as their commit.

    Raises:
        ValidationFailed: one is older (``contract.manifest``), or it cannot be determined.
    """
    oldest: dict[str, int] = {}
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for change in changes:
        own = int(change.snapshot.get("sequence-number") or 0)
        for touched in change.added:
            number = own if touched.sequence_number is None else touched.sequence_number
            if touched.file.content == DATA:
                numbers[touched.file.path].add(number)
            elif is_vector(touched.file) and number < own:
                target = touched.file.referenced_data_file or ""
                oldest[target] = min(number, oldest.get(target, number))
    if not oldest:
        return
    try:
        async for row, entry in _live_data(manifests, metadata, changes):
            if entry.file.path in oldest:
                inherited = row.sequence_number if entry.sequence_number is None else entry.sequence_number
                numbers[entry.file.path].add(inherited)
    except _TooManyError:
        raise _too_old(
            "whether a deletion vector is older than its data file cannot be determined in so many manifests"
        ) from None
    for target, number in oldest.items():
        if number < max(numbers[target], default=0):
            raise _too_old(
                f"the deletion vector for {target} has sequence number {number}, and that file is younger, of "
                f"{max(numbers[target])}: readers refuse the table"
            )


def _too_old(problem: str) -> ValidationFailed:
    return ValidationFailed(f"{problem}; write it without a sequence number", rule="contract.manifest")


class _TooManyError(Exception):
    """More manifests than one commit may make the tower read."""


async def _live_data(
    manifests: ReadsManifests, metadata: Mapping[str, Any] | None, changes: Sequence[Change]
) -> AsyncIterator[tuple[ManifestFile, Entry]]:
    """The entries of live data files in the parents' manifests, each manifest once. Raises `_TooManyError`."""
    read: set[str] = set()
    for change in changes:
        parent_id = change.snapshot.parent_id
        parent = table_metadata.snapshot(metadata, parent_id) if metadata is not None and parent_id else None
        for row in () if parent is None else await manifests.list_at(parent["manifest-list"]):
            if row.content != DATA or row.path in read:
                continue
            if len(read) >= MANIFESTS_PER_COMMIT_MAX:
                raise _TooManyError
            read.add(row.path)
            for entry in (await manifests.manifest_at(row.path)).entries:
                if entry.status != DELETED:
                    yield row, entry

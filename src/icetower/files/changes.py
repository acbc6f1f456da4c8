"""From a commit's updates to its `Change`s: the only reader of manifests on the way of a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from icetower.errors import CommitConflict, NotFound, ValidationFailed
from icetower.files.parsing import ON_LOOP_BYTES, Parsing
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.avro_files import LongFile, RowCache
from icetower.iceberg.change import Change, Place, change_of, diff_lists, manifests_to_read, vectors_added
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import DATA, DELETED, Manifest, ManifestFile, read_manifest, read_manifest_list
from icetower.iceberg.partitions import PartitionSpec, spec_of
from icetower.iceberg.pruning import can_contain
from icetower.iceberg.records import is_vector, memory_of_manifest, memory_of_row
from icetower.paths import is_under
from icetower.protocol.updates import Updates
from icetower.recent import Budget, Recent
from icetower.storage.port import MANIFEST, MANIFEST_LIST, Bound, Storage

MANIFESTS_PER_COMMIT_MAX = 2_000
"""A commit that touches more manifests than this is refused: reading them would starve the others."""

SNAPSHOTS_PER_COMMIT_MAX = 100
"""Likewise for snapshots, each of which is planned on what the ones before it leave. Clients send one to three."""


LISTS_SHARE, OWN_SHARE, MANIFESTS_SHARE, TARGETS_SHARE, ROWS_SHARE = 0.5, 0.25, 0.5, 0.125, 0.125
"""The parts of the budget that each kind may take for itself: none pushes out all of the others."""

_TARGET_BYTES = 110
"""The path of a data file in a set, without its characters."""

PRUNED_BY_MAX = 8
"""Partitions of new deletion vectors by which manifests are passed over; where there are more, all are looked into."""

READ_AT_ONCE = 64

LENGTH_SLACK_BYTES = 64 * 1024
"""A manifest that is a little longer than its list says is read, and refused with what it is (`contract.manifest`)."""

NEW_ROWS_AT_ONCE, NEW_ROWS_TIMES = 200, 20
NEW_ROWS_MAX_BYTES = 512 * 1024
"""So many rows of a manifest list that were not met before are made on the event loop at once, which takes up to 8 ms,
and so many times. Lists with more, and longer ones, are read elsewhere."""


class Manifests:
    """Parsed manifest lists and manifests, cached: both are immutable once a snapshot names them."""

    def __init__(
        self,
        storage: Storage,
        *,
        budget: Budget | None = None,
    ) -> None:
        self._storage = storage
        self.budget = budget = budget or Budget()
        self.parsing = Parsing(budget)
        self._lists: Recent[Listing] = budget.cache("manifest lists", share=LISTS_SHARE)
        self._own: Recent[tuple[ManifestFile, ...]] = budget.cache("manifest lists", share=OWN_SHARE)
        self._manifests: Recent[Manifest] = budget.cache("manifests", share=MANIFESTS_SHARE)
        self._targets: Recent[frozenset[str]] = budget.cache("vector targets", share=TARGETS_SHARE)
        self._rows = RowCache[ManifestFile](budget, "rows of manifest lists", ROWS_SHARE, memory_of_row)

    @property
    def listings(self) -> Mapping[str, Listing]:
        """The manifest lists that are at hand, in runs, by path."""
        return self._lists

    @property
    def own(self) -> Mapping[str, tuple[ManifestFile, ...]]:
        """By the path of a manifest list, the manifests that its snapshot added itself, where they are at hand."""
        return self._own

    async def list_at(self, path: str) -> tuple[ManifestFile, ...]:
        """The rows of the manifest list at `path`. Raises `NotFound` when it is not there."""
        found = self._lists.get(path)
        if found is None:
            data = await self._storage.read(path, MANIFEST_LIST)
            found = Listing.of(await self._rows_of(data))
            self.remember(path, found)
        return found.rows

    async def _rows_of(self, data: bytes) -> tuple[ManifestFile, ...]:
        """Rows that were met before cost next to nothing. Others are made a few at a time, many of them elsewhere."""
        for _ in range(NEW_ROWS_TIMES if len(data) <= NEW_ROWS_MAX_BYTES else 0):
            try:
                return read_manifest_list(data, self._rows, most_new=NEW_ROWS_AT_ONCE)
            except LongFile:
                await Pause()
        return await self.parsing.away(lambda: read_manifest_list(data))

    def remember(self, path: str, listing: Listing) -> None:
        """Keep a list that was just written, so that nobody reads it back."""
        self._lists.put(path, listing, listing.memory_bytes)

    def known_vector_targets(self, path: str) -> frozenset[str] | None:
        """As `vector_targets`, or None where the manifest would have to be read."""
        found = self._targets.get(path)
        if found is None and path in self._manifests:
            files = (entry.file for entry in self._manifests[path].entries if entry.status != DELETED)
            targets = (file.referenced_data_file for file in files if is_vector(file))
            found = frozenset(target for target in targets if target is not None)
            self._targets.put(path, found, _TARGET_BYTES + sum(_TARGET_BYTES + len(target) for target in found))
        return found

    async def vector_targets(self, path: str) -> frozenset[str]:
        """The data files for which the delete manifest at `path` has a live deletion vector. Raises `NotFound`."""
        await self.manifest_at(path)
        found = self.known_vector_targets(path)
        assert found is not None, "the manifest that was put last is kept"
        return found

    def known(self, path: str) -> Manifest | None:
        """A manifest that is at hand."""
        return self._manifests.get(path)

    def forget(self, paths: Iterable[str]) -> None:
        """Let go of lists and manifests that were deleted."""
        for path in paths:
            for cache in (self._lists, self._own, self._manifests, self._targets):
                cache.forget(path)

    def remember_own(self, path: str, rows: tuple[ManifestFile, ...]) -> None:
        """Keep what a snapshot added itself, which is what others are held against."""
        self._own.put(path, rows, memory_of_rows(rows))

    async def manifest_at(self, path: str, bound: Bound = MANIFEST) -> Manifest:
        found = self._manifests.get(path)
        if found is None:
            data = await self._storage.read(path, bound)
            try:
                found = read_manifest(data, most_bytes=ON_LOOP_BYTES)
                weight = memory_of_manifest(found)
            except LongFile:
                found, weight = await self.parsing.away(lambda: _weighed(read_manifest(data)))
            self._manifests.put(path, found, weight)
        return found

    async def manifests_at(self, rows: Sequence[ManifestFile]) -> dict[str, Manifest]:
        """The manifests of these rows, as long as the rows say. Raises `ValidationFailed` for longer ones."""
        found: dict[str, Manifest] = {}
        for start in range(0, len(rows), READ_AT_ONCE):
            some = rows[start : start + READ_AT_ONCE]
            if len(some) == 1:  # as nearly always: no task is needed to wait for one
                read = [await self._counted(some[0])]
            else:
                read = await asyncio.gather(*map(self._counted, some))
            found |= {row.path: manifest for row, manifest in zip(some, read, strict=True)}
        return found

    async def _counted(self, row: ManifestFile) -> Manifest:
        found = await self.manifest_at(row.path, MANIFEST.at_most(max(row.length_bytes, 0) + LENGTH_SLACK_BYTES))
        self.parsing.read(self._manifests.weight_of(row.path), len(found.entries))
        return found


def _weighed(manifest: Manifest) -> tuple[Manifest, int]:
    return manifest, memory_of_manifest(manifest)


class Pause:
    """Whatever else waits for the event loop goes first."""

    def __await__(self) -> Generator[None]:
        yield


def memory_of_rows(rows: Sequence[ManifestFile]) -> int:
    """What rows of a manifest list take in memory, in bytes."""
    return sum(map(memory_of_row, rows))


async def read_changes(
    manifests: Manifests,
    metadata: Mapping[str, Any] | None,
    updates: Updates,
    *,
    snapshots: Mapping[int, Mapping[str, Any]] | None = None,
    confined: bool = True,
    place: str | None = None,
) -> tuple[Change, ...]:
    """What a commit adds and removes: one `Change` for each snapshot that it adds, in order.

    Args:
        metadata: the table as it stands, or None for a table that the commit creates.
        updates: the commit's updates as sent.
        snapshots: the table's snapshots by id, where they are indexed; its history is searched otherwise.
        confined: whether manifest lists and manifests must lie under the table's own locations. A server that reads
            any path that it is sent would read for its callers what they may not read themselves.
        place: where a table must lie that the commit creates; None: where the commit says.

    Raises:
        CommitConflict: a snapshot's parent is not (or no longer) in the table.
        ValidationFailed: a manifest list or manifest is missing, unreadable or lies elsewhere.
    """
    added = updates.snapshots
    if not added:
        return ()
    if len(added) > SNAPSHOTS_PER_COMMIT_MAX:
        raise ValidationFailed(
            f"the commit adds {len(added)} snapshots; at most {SNAPSHOTS_PER_COMMIT_MAX} go into one. Split it",
            rule="limit.snapshots",
        )
    roots = None if not confined else (place,) if metadata is None and place is not None else _roots(metadata, updates)
    siblings = frozenset(snapshot.id for snapshot in added)
    own_lists: dict[int, tuple[ManifestFile, ...]] = {}
    changes: list[Change] = []
    for snapshot in added:
        rows = await _own_list(manifests, snapshot, roots)
        base = await _parent_list(manifests, metadata, snapshots, snapshot, own_lists)
        own_lists[snapshot.id] = rows
        diff = diff_lists(base, rows)
        wanted = list(manifests_to_read(diff))
        if len(wanted) > MANIFESTS_PER_COMMIT_MAX:
            raise ValidationFailed(
                f"the commit touches {len(wanted)} manifests; at most {MANIFESTS_PER_COMMIT_MAX} are read for one "
                "commit. Split it, or rewrite manifests in steps",
                rule="limit.manifests",
            )
        added_paths = {row.path for row in diff.added}
        for row in wanted if roots is not None else ():
            if row.path in added_paths and not _is_confined(row.path, roots or ()):
                # Not by its own path: by a link, the list that the client names may be another table's.
                at = f"{rows.index(row) + 1} of the manifest list {snapshot.get('manifest-list')}"
                raise _outside(f"manifest {at}", roots or ())
        try:
            read = await manifests.manifests_at(wanted)
            vectors = vectors_added(diff, read)
            carried = await _carried_vectors(manifests, metadata, diff.carried, vectors) if vectors else {}
        except NotFound as error:
            raise ValidationFailed(
                f"snapshot {snapshot['snapshot-id']} names a manifest that cannot be read: {error.message}",
                rule="manifest.exists",
            ) from error
        judge = partial(change_of, snapshot, diff, read, siblings=siblings, carried_vectors=carried)
        changes.append(await manifests.parsing.judge(judge))
    return tuple(changes)


async def _carried_vectors(
    manifests: Manifests,
    metadata: Mapping[str, Any] | None,
    carried: Sequence[ManifestFile],
    vectors: Mapping[str, set[Place]],
) -> dict[str, str]:
    """Which of the data files that get a deletion vector have one in a carried manifest already, with its path.

    Manifests that were seen before are looked up. Of the others those are read that may hold, by their bounds, the
    partition where a new vector is said to belong: both belong where their data file does (`admission.targets`).
    """
    wanted, places = frozenset(vectors), set[Place]().union(*vectors.values())
    specs = _Specs(metadata)
    found: dict[str, str] = {}
    unknown: list[str] = []
    for row in carried:
        if row.content == DATA or (row.added_files, row.existing_files) == (0, 0):
            continue
        targets = manifests.known_vector_targets(row.path)
        if targets is not None:
            found |= dict.fromkeys(targets & wanted, row.path)
        elif specs.may_hold(row, places):
            unknown.append(row.path)
    for start in range(0, len(unknown), READ_AT_ONCE):
        some = unknown[start : start + READ_AT_ONCE]
        for path, targets in zip(some, await asyncio.gather(*map(manifests.vector_targets, some)), strict=True):
            found |= dict.fromkeys(targets & wanted, path)
    return found


class _Specs:
    """The partition specs of a table, each resolved once where it is asked for."""

    def __init__(self, metadata: Mapping[str, Any] | None) -> None:
        self._metadata = metadata
        self._specs: dict[int, PartitionSpec] = {}

    def may_hold(self, row: ManifestFile, places: Collection[Place]) -> bool:
        """Whether a manifest may, by its bounds, hold files of one of these partitions. In doubt it may."""
        if self._metadata is None or len(places) > PRUNED_BY_MAX:
            return True
        try:
            if row.spec_id not in self._specs:
                self._specs[row.spec_id] = spec_of(self._metadata, row.spec_id)
            return can_contain(row, self._specs[row.spec_id], places)
        except (ValidationFailed, TypeError, ValueError, AttributeError):  # a client's values may be of any type yet
            return True


async def _own_list(
    manifests: Manifests, snapshot: Mapping[str, Any], roots: Sequence[str] | None
) -> tuple[ManifestFile, ...]:
    path = snapshot.get("manifest-list")
    if not isinstance(path, str):
        raise ValidationFailed(
            f"snapshot {snapshot['snapshot-id']} has no manifest-list; snapshots that list manifests inside the "
            "metadata (format version 1, before 2019) cannot be committed here",
            rule="snapshot.manifest-list",
        )
    if roots is not None and not _is_confined(path, roots):
        raise _outside(f"manifest list {path}", roots)
    try:
        return await manifests.list_at(path)
    except NotFound as error:
        raise ValidationFailed(
            f"snapshot {snapshot['snapshot-id']} names a manifest list that cannot be read: {error.message}",
            rule="manifest-list.exists",
        ) from error


async def _parent_list(
    manifests: Manifests,
    metadata: Mapping[str, Any] | None,
    snapshots: Mapping[int, Mapping[str, Any]] | None,
    snapshot: Mapping[str, Any],
    own_lists: Mapping[int, tuple[ManifestFile, ...]],
) -> tuple[ManifestFile, ...]:
    parent_id = snapshot.get("parent-snapshot-id")
    if parent_id is None or parent_id == -1:
        return ()
    if parent_id in own_lists:
        return own_lists[parent_id]
    if snapshots is not None:
        parent = snapshots.get(parent_id)
    else:
        parent = table_metadata.snapshot(metadata, parent_id) if metadata is not None else None
    if parent is None:
        raise CommitConflict(
            f"the parent of snapshot {snapshot['snapshot-id']}, snapshot {parent_id}, is not in the table "
            "(expired, or never there); refresh and write again",
            rule="commit.parent",
            snapshot=parent_id,
        )
    return await manifests.list_at(parent["manifest-list"])


def _roots(metadata: Mapping[str, Any] | None, updates: Updates) -> tuple[str, ...]:
    """Where a table keeps its metadata: its location, and `write.metadata.path` where it is set."""
    roots: list[str] = []
    if metadata is not None:
        roots.append(metadata["location"])
        path = metadata.get("properties", {}).get("write.metadata.path")
        if path:
            roots.append(path)
    else:
        roots += [update["location"] for update in updates.of("set-location")]
        for update in updates.of("set-properties"):
            path = (update.get("updates") or update.get("updated") or {}).get("write.metadata.path")
            roots += [path] if path else []
    return tuple(roots)


def _is_confined(path: str, roots: Sequence[str]) -> bool:
    return any(is_under(path, root) for root in roots)


def _outside(what: str, roots: Sequence[str]) -> ValidationFailed:
    return ValidationFailed(
        f"the {what} does not lie under the table's location {roots[0] if roots else '(none)'}; write metadata under "
        "the table's location or its write.metadata.path",
        rule="manifest.location",
    )

"""Does an append by the fast path name a file that is in the table already? Its rows would be read twice.

The plan asks `check`, which knows the live paths of the branch (`table.live_paths`) and parses nothing: what a group
adds is noted when it is planned. Manifests that nobody has read yet, of a table's head after a start or of another
client's commit, are read once. `LiveFiles.warm` does that before an append is queued, so that no other commit waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from icetower.admission.admitted import AdmittedAppend
from icetower.errors import CommitConflict, KeyMisused, NotFound, ValidationFailed
from icetower.files.changes import Manifests
from icetower.iceberg.change import Change
from icetower.iceberg.entries import Files, NeedsFile
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import DELETED, ManifestFile, read_manifest
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.pruning import can_contain
from icetower.recent import Recent
from icetower.table.head import HeadState
from icetower.table.live_paths import LivePaths, Place, live_in, plain

LIVE_SHARE = 0.25
"""The part of the caches' budget that the live paths of all branches may take, the most recently used first."""

READ_AT_ONCE = 16

LivePathsOf = Callable[[str], LivePaths]
"""The live paths of a branch of a table, by its name."""


class NeedsPaths(Exception):
    """Manifests must be read first.

    Attributes:
        ref: the branch.
        rows: the manifests.
    """

    def __init__(self, ref: str, rows: Iterable[ManifestFile]) -> None:
        self.ref = ref
        self.rows = tuple(rows)
        super().__init__([row.path for row in self.rows])


def check(
    appends: Sequence[AdmittedAppend],
    listing: Listing,
    live: LivePaths,
    files: Files,
    specs: Mapping[int, PartitionSpec],
) -> dict[int, KeyMisused]:
    """Why appends to one branch may not go in, by their position: they name a file that is live there.

    Args:
        listing: of the branch's head.
        files: manifests that are known.

    Raises:
        NeedsPaths: manifests must be read first.
        NeedsFile: a manifest that may hold one of the files must be read again.
    """
    places = places_of(appends)
    unread = live.unread(listing, places, pruned_by(specs))
    if unread:
        raise NeedsPaths(appends[0].ref, unread)
    found: dict[int, KeyMisused] = {}
    for position, append in enumerate(appends):
        for touched in append.files:
            path = touched.file.path
            manifest = next((m for m in live.holding(listing, path) if _is_live(path, m, files)), None)
            if manifest is not None:
                found[position] = _refusal(append, path)
                break
    return found


def places_of(appends: Iterable[AdmittedAppend]) -> set[Place]:
    """The partitions that appends go to."""
    return {(touched.spec_id, touched.file.partition) for append in appends for touched in append.files}


def pruned_by(specs: Mapping[int, PartitionSpec]) -> Callable[[ManifestFile, Collection[Place]], bool]:
    """Whether a manifest may, by its bounds, hold a file that is said to belong to one of these partitions.

    A file may have been added under another spec than the one that is named for it now.
    """

    def may_hold(row: ManifestFile, places: Collection[Place]) -> bool:
        spec = specs.get(row.spec_id)
        if spec is None or any(spec_id != row.spec_id for spec_id, _ in places):
            return True
        try:
            return can_contain(row, spec, places)
        except (ValidationFailed, TypeError, ValueError, AttributeError):
            return True

    return may_hold


def _is_live(path: str, manifest: str, files: Files) -> bool:
    known = files.manifests.get(manifest)
    if known is None:
        raise NeedsFile(manifest, is_list=False)
    return any(entry.status != DELETED and plain(entry.file.path) == plain(path) for entry in known.entries)


def _refusal(append: AdmittedAppend, path: str) -> KeyMisused:
    # Not 409, upon which a client may believe its files lost and delete them: they are in the table (trap A3).
    return KeyMisused(
        f"the file {path} is in {append.identifier} already, on branch {append.ref}; appended again, its rows would be "
        "read twice. Do not delete it. If it was appended under another key or number, it is done; else write the rows "
        "into a new file",
        rule="append.live",
        files=(path,),
        next_step="none",
    )


def named_by(change: Change) -> dict[str, list[str]]:
    """The live paths of the manifests that a plain append adds, where its change tells all of them; else nothing.

    An entry that is there already says nothing of itself in a change: its manifest has to be read.
    """
    added = change.entries_added
    plain_append = change.is_pure_append and not (change.diff.removed or change.diff.altered or change.problems)
    if not plain_append or sum(map(len, added.values())) != len(change.added):
        return {}
    if any(row.existing_files != 0 or row.added_files != len(added.get(row.path, ())) for row in change.diff.added):
        return {}
    return {path: [entry.file.path for entry in entries] for path, entries in added.items()}


class LiveFiles:
    """The live paths of the branches with recent appends, and the reading of what is not known of them."""

    def __init__(self, manifests: Manifests) -> None:
        self._manifests = manifests
        self._branches: Recent[LivePaths] = manifests.budget.cache("live files", share=LIVE_SHARE)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, uuid: object, ref: str) -> LivePaths:
        """The live paths of a branch of the table with this UUID."""
        name = f"{uuid} {ref}"
        found = self._branches.get(name)
        if found is None:
            found = LivePaths()
        self._branches.put(name, found, found.size_bytes)
        return found

    def knows(self, uuid: object, ref: str) -> bool:
        """Whether the live paths of a branch are at hand."""
        return f"{uuid} {ref}" in self._branches

    async def read(
        self, live: LivePaths, rows: Sequence[ManifestFile], unwritten: Mapping[str, bytes] | None = None
    ) -> None:
        """Take note of what manifests name. One that cannot be read names nothing that anybody could read twice.

        Args:
            unwritten: bytes of files that a group on its way will have written, by path.
        """

        async def take(row: ManifestFile) -> None:
            data = (unwritten or {}).get(row.path)
            try:
                found = await self._manifests.manifest_at(row.path) if data is None else read_manifest(data)
                live.add(row.path, live_in(found))
            except (NotFound, ValidationFailed):
                live.add(row.path, ())

        for start in range(0, len(rows), READ_AT_ONCE):
            await asyncio.gather(*map(take, rows[start : start + READ_AT_ONCE]))

    async def warm(self, newest: Callable[[], HeadState], append: AdmittedAppend, *, within_s: float) -> None:
        """Read what the plan would ask for, while only this append and others to the same branch wait.

        Args:
            newest: the version that was seen last. The plan asks for nothing that only an older one had, and whoever
                reads for an older one forgets what a newer one has.

        Raises:
            CommitConflict: it takes longer than `within_s`. What was read by then stays known.
        """
        head = newest()
        if not await self._unread(head, append):
            return
        name = f"{head.metadata.get('table-uuid')} {append.ref}"
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        try:
            async with asyncio.timeout(within_s), lock:
                while rows := (await self._unread(newest(), append))[:READ_AT_ONCE]:
                    await self.read(self.of(head.metadata.get("table-uuid"), append.ref), rows)
        except TimeoutError:
            raise CommitConflict(
                f"the tower still reads which files are in {append.identifier}, as it does once for each table; send "
                "the append again under the same key",
                rule="append.reading",
                next_step="retry",
            ) from None

    async def _unread(self, head: HeadState, append: AdmittedAppend) -> list[ManifestFile]:
        """What must be read of a version of the table, before the append's files can be looked for in it."""
        snapshot_id = head.ref(append.ref)
        snapshot = None if snapshot_id is None else head.snapshots.get(snapshot_id)
        path = None if snapshot is None else snapshot.get("manifest-list")
        if path is None:
            return []
        listing = await self._listing(path)
        live = self.of(head.metadata.get("table-uuid"), append.ref)
        return live.unread(listing, places_of([append]), pruned_by(head.specs))

    async def _listing(self, path: str) -> Listing:
        rows = await self._manifests.list_at(path)
        return self._manifests.listings.get(path) or Listing.of(rows)

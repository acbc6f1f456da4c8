"""`LiveFiles`: the live paths of branches, and the reading of what is not known of them.

The plan asks `commit.twice`, which knows the live paths of the branch (`table.live_paths`) and parses nothing: what a
group adds is noted when it is planned. Manifests that nobody has read yet, of a table's head after a start or of
another client's commit, are read once: for appends by the fast path, and for publications, all of them, by
`LiveFiles.warm` before these are queued, so that no other commit waits; for other commits those that came lately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.commit.twice import places_of, pruned_by
from icetower.errors import CommitConflict, IcetowerError, NotFound, ValidationFailed
from icetower.files.changes import Manifests
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import ManifestFile, read_manifest
from icetower.recent import Recent
from icetower.storage.port import GROUP_FILE, Storage
from icetower.table.groups import Group, read_group
from icetower.table.head import HeadState
from icetower.table.live_paths import LivePaths, live_in, plain

LIVE_SHARE = 0.25
"""The part of the caches' budget that the live paths of all branches may take, the most recently used first."""

READ_AT_ONCE = 16

log = logging.getLogger("icetower")


class LiveFiles:
    """The live paths of the branches that were written to lately, and the reading of what is not known of them."""

    def __init__(self, storage: Storage, manifests: Manifests) -> None:
        self._storage = storage
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

    async def read_lately(
        self, live: LivePaths, rows: Sequence[ManifestFile], unwritten: Mapping[str, bytes], *, within_s: float
    ) -> None:
        """Likewise for commits, which never fail for that: what cannot be read, or not in time, is not looked for."""
        failed: list[IcetowerError] = []

        async def take(row: ManifestFile) -> None:
            try:
                await self.read(live, [row], unwritten)
            except IcetowerError as error:
                failed.append(error)

        why = "it took too long"
        try:
            async with asyncio.timeout(within_s):
                for start in range(0, len(rows), READ_AT_ONCE):
                    await asyncio.gather(*map(take, rows[start : start + READ_AT_ONCE]))
            why = failed[0].message if failed else ""
        except TimeoutError:
            pass
        if why:
            log.warning("not all of %d manifests could be searched for files that are added again: %s", len(rows), why)
        live.pass_over(rows)

    async def groups(
        self, paths: Iterable[str], unwritten: Mapping[str, bytes] | None = None
    ) -> dict[str, Group | None]:
        """Group files by path; None for one that is missing or damaged. `unwritten`: as of `read`."""

        async def group(path: str) -> Group | None:
            data = (unwritten or {}).get(path)
            try:
                return read_group(await self._storage.read(path, GROUP_FILE) if data is None else data)
            except (NotFound, ValidationFailed):
                return None

        named = list(paths)
        return dict(zip(named, await asyncio.gather(*map(group, named)), strict=True))

    async def named(self, head: HeadState, ref: str, paths: Sequence[str]) -> list[str]:
        """Those of some files that are live on a branch, as far as its live paths are known: nothing is read for it
        but the manifests that may hold one. Before a commit is refused, upon which its client may delete them."""
        live = self._branches.get(f"{head.metadata.get('table-uuid')} {ref}")
        met = [] if live is None else live.met(paths)
        listing = await self._listing(head, ref) if met else None
        if live is None or listing is None:
            return []
        found: list[str] = []
        for path in met:
            manifests = [await self._manifests.manifest_at(each) for each in live.holding(listing, path)]
            if any(plain(path) == plain(each) for manifest in manifests for each in live_in(manifest)):
                found.append(path)
        return found

    async def warm(
        self, newest: Callable[[], HeadState], member: AdmittedAppend | Admitted, *, within_s: float
    ) -> None:
        """Read what the plan would ask for, while only this member and others to the same branch wait.

        Args:
            member: an append by the fast path, or a publication.
            newest: the version that was seen last. The plan asks for nothing that only an older one had, and whoever
                reads for an older one forgets what a newer one has.

        Raises:
            CommitConflict: it takes longer than `within_s`. What was read by then stays known.
        """
        head = newest()
        if not await self._unread(head, member):
            return
        uuid = head.metadata.get("table-uuid")
        name = f"{uuid} {member.ref}"
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        try:
            async with asyncio.timeout(within_s), lock:
                while rows := (await self._unread(newest(), member))[:READ_AT_ONCE]:
                    await self.read(self.of(uuid, member.ref), rows)
        except TimeoutError:
            raise CommitConflict(
                f"the tower still reads which files are in {member.identifier}, as it does once for each table; send "
                "the same again, under its key",
                rule="append.reading",
                next_step="retry",
            ) from None

    async def _unread(self, head: HeadState, member: AdmittedAppend | Admitted) -> list[ManifestFile]:
        """What must be read of a version of the table, before the member's files can be looked for in it."""
        listing = await self._listing(head, member.ref)
        if listing is None:
            return []
        live = self.of(head.metadata.get("table-uuid"), member.ref)
        return live.unread(listing, places_of([member]), pruned_by(head.specs))

    async def _listing(self, head: HeadState, ref: str) -> Listing | None:
        """The manifest list of a branch's head; None where it has none."""
        snapshot_id = head.ref(ref)
        snapshot = None if snapshot_id is None else head.snapshots.get(snapshot_id)
        path = None if snapshot is None else snapshot.get("manifest-list")
        if path is None:
            return None
        rows = await self._manifests.list_at(path)
        return self._manifests.listings.get(path) or Listing.of(rows)

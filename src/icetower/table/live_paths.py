"""`LivePaths`: which manifests of a table may name a data file, known without opening them again. Pure.

A manifest never changes once a snapshot names it. So its live paths are read once, and 32 bits of each path's hash are
kept, at most twelve bytes a file. A path that meets no hash is in no manifest. Another is looked for in the manifests
that hold its hash. Of a million files, one path in 4,000 meets a hash by chance, and costs a look at one manifest.

The listing is followed from group to group by its runs (`iceberg.listing`), which lists of one table share.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping

from pyroaring import BitMap

from icetower.iceberg.listing import Listing, Run
from icetower.iceberg.records import DATA, DELETED, Manifest, ManifestFile

FILES_MAX = 1_000_000
"""So many live files of a branch are known at most, those of the newest manifests; older ones are not looked at."""

ALL_MAX = 20_000
"""Where so many files are left at most, all manifests are read: no partition that a request names wrongly hides one."""

LATELY_MANIFESTS_MAX, LATELY_FILES_MAX = 500, 20_000
"""So many manifests of those that came lately, the newest of them, are read for a commit, and so many files."""

_FILE_BYTES, _MANIFEST_BYTES = 12, 400
_ROOM = 600
"""So many manifests that have gone are remembered: a plan on the list before a merge must not read them again,
while others look at the list after it."""
_PLACES_MAX = 10_000

Place = tuple[int, tuple[object, ...]]
"""A spec id and a partition."""


def plain(path: str) -> str:
    """A path without the beginnings by which one local file has several names."""
    if not path.startswith("file:"):
        return path
    return path[7:] if path.startswith("file://") else path[5:]


def live_in(manifest: Manifest) -> list[str]:
    """The paths of a manifest's live files."""
    return [entry.file.path for entry in manifest.entries if entry.status != DELETED]


class LivePaths:
    """Of one branch.

    Args:
        files_max: see `FILES_MAX`.
    """

    def __init__(self, files_max: int = FILES_MAX) -> None:
        self._files_max = files_max
        self._by_manifest: dict[str, array[int]] = {}
        self._all = BitMap()
        self._files = 0
        self._runs: tuple[Run, ...] = ()
        self._unread: dict[str, ManifestFile] = {}
        self._new: list[ManifestFile] = []
        """Unread ones of which it was not asked yet whether they came lately, the newest first."""
        self._late: dict[str, ManifestFile] = {}
        """Those of them that did."""
        self._covered: set[Place] = set()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return self._files * _FILE_BYTES + len(self._by_manifest) * _MANIFEST_BYTES + 1_000

    def add(self, manifest: str, paths: Iterable[str]) -> None:
        """A manifest's live paths."""
        if manifest in self._by_manifest:
            return
        hashes = array("I", sorted([_hash(path) for path in paths]))
        self._by_manifest[manifest] = hashes
        if len(hashes) == 1:
            self._all.add(hashes[0])
        else:
            self._all.update(hashes)
        self._files += len(hashes)
        self._unread.pop(manifest, None)
        self._late.pop(manifest, None)

    def unread(
        self, listing: Listing, places: Collection[Place], may_hold: Callable[[ManifestFile, Collection[Place]], bool]
    ) -> list[ManifestFile]:
        """The manifests that must be read before `holding` can answer for files of these partitions, newest first.

        Args:
            may_hold: whether a manifest may, by its bounds, hold files of such partitions. It is asked in a large table
                only; in another, all manifests are read.
        """
        self._follow(listing)
        new = [place for place in places if place not in self._covered]
        if not new or not self._unread or self._files >= self._files_max:
            return []
        found = [row for row in self._unread.values() if row.path in listing]
        if sum(map(_count, found)) > ALL_MAX:
            found = [row for row in found if may_hold(row, new)]
        if not found:
            if len(self._covered) >= _PLACES_MAX:
                self._covered.clear()
            self._covered.update(new)
        within: list[ManifestFile] = []
        left = self._files_max - self._files
        for row in found:
            within.append(row)
            left -= _count(row)
            if left <= 0:
                break
        return within

    def unread_lately(self, listing: Listing, came_lately: Callable[[ManifestFile], bool]) -> list[ManifestFile]:
        """The manifests that must be read before `holding` can answer for files that came lately, newest first.

        Args:
            came_lately: whether a manifest did; each is asked about once.
        """
        self._follow(listing)
        if self._new:
            left = LATELY_FILES_MAX
            for row in self._new[:LATELY_MANIFESTS_MAX]:
                left -= _count(row)
                if left < 0:
                    break
                if row.path in self._unread and came_lately(row):
                    self._late[row.path] = row
            self._new = []
        return [row for row in self._late.values() if row.path in listing] if self._late else []

    def pass_over(self, rows: Iterable[ManifestFile]) -> None:
        """These cannot be read in time: `unread_lately` names them no more."""
        for row in rows:
            self._late.pop(row.path, None)

    def met(self, paths: Iterable[str]) -> list[str]:
        """Those of some paths that `holding` must be asked about; nearly always none."""
        known = self._all
        return [path for path in paths if _hash(path) in known]

    def holding(self, listing: Listing, path: str) -> list[str]:
        """The manifests of a listing that may name a file as live; nearly always none."""
        wanted = _hash(path)
        if wanted not in self._all:
            return []
        return [row.path for row in listing if self._has(self._by_manifest.get(row.path), wanted)]

    def sharing(self, listing: Listing, manifest: str) -> list[str]:
        """The other manifests of a listing that may name a live file that this one names, too; nearly always none."""
        own = BitMap(self._by_manifest.get(manifest, ()))
        known = ((row.path, self._by_manifest.get(row.path)) for row in listing if own and row.path != manifest)
        return [path for path, hashes in known if hashes and own.intersect(BitMap(hashes))]

    @staticmethod
    def _has(hashes: array[int] | None, wanted: int) -> bool:
        if not hashes:
            return False
        at = bisect_left(hashes, wanted)
        return at < len(hashes) and hashes[at] == wanted

    def _follow(self, listing: Listing) -> None:
        """Take note of the manifests that a listing has and the one before it had not."""
        if listing.runs == self._runs and all(a is b for a, b in zip(listing.runs, self._runs, strict=True)):
            return
        before = {id(run) for run in self._runs}
        fresh = {
            row.path: row
            for run in listing.runs
            if id(run) not in before
            for row in run.rows
            if row.content == DATA and (row.added_files, row.existing_files) != (0, 0)
        }
        new = {path: row for path, row in fresh.items() if path not in self._by_manifest and path not in self._unread}
        if new:
            self._covered.clear()
            self._unread = {**new, **self._unread}
            self._new = [*new.values(), *self._new][:LATELY_MANIFESTS_MAX]
        gone = len(self._by_manifest) + len(self._unread) - len(listing)
        if gone > len(listing) + _ROOM:
            self._drop_gone({row.path: row for row in listing})
        self._runs = listing.runs

    def _drop_gone(self, rows: Mapping[str, ManifestFile]) -> None:
        self._by_manifest = {path: hashes for path, hashes in self._by_manifest.items() if path in rows}
        self._unread = {path: row for path, row in self._unread.items() if path in rows}
        self._late = {path: row for path, row in self._late.items() if path in rows}
        self._all = BitMap()
        for hashes in self._by_manifest.values():
            self._all.update(hashes)
        self._files = sum(map(len, self._by_manifest.values()))


def _count(row: ManifestFile) -> int:
    return (row.added_files or 0) + (row.existing_files or 0)


def _hash(path: str) -> int:
    # Python's own, with a secret of this process: nobody can choose paths that collide.
    return hash(plain(path)) & 0xFFFFFFFF

"""`LiveFiles`: what is live on a branch, as far as the audit has had to open it. Pure.

A file is live in exactly one manifest, and it leaves the table only with that manifest. So an audit that begins in the
middle of a history opens none of the manifests that were there before: each is opened when it leaves the list, or when
somebody asks for what may be in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icetower.audit.items import Item
from icetower.audit.manifest_reading import Body, Cursor, Read
from icetower.iceberg.deletes import Place
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.pruning import can_contain
from icetower.iceberg.records import ADDED, DATA, DELETED, EXISTING, ManifestFile


@dataclass(frozen=True, slots=True)
class Delta:
    """What a snapshot did to the files of its parent.

    Attributes:
        added: live now, and not before.
        removed: live before, and not now.
        carried: live before and now, in another manifest now: (was, is).
        tombstones: the entries by which the snapshot says that it removed something.
        blind: manifests came or went that could not be read: what seems to be missing may have been there.
    """

    added: tuple[Item, ...]
    removed: tuple[Item, ...]
    carried: tuple[tuple[Item, Item], ...]
    tombstones: tuple[Item, ...]
    blind: bool

    def data_added(self) -> list[Item]:
        return [item for item in self.added if item.is_data]

    def data_removed(self) -> list[Item]:
        return [item for item in self.removed if item.is_data]

    def deletes_added(self) -> list[Item]:
        return [item for item in self.added if not item.is_data]

    def deletes_removed(self) -> list[Item]:
        return [item for item in self.removed if not item.is_data]


Kept = dict[str, Item]
_ORDER = {DELETED: 0, EXISTING: 1, ADDED: 2}


@dataclass
class LiveFiles:
    """The live files of a branch.

    Attributes:
        unread: manifests that were there when the audit began, and were not opened.
        dark: manifests that could not be read.
        files: live entries by key; more than one where a file is named twice.
        data: live data files by partition; loose, equality: delete files likewise.
        named: position delete files by the data file that they are about; vectors: deletion vectors likewise.
    """

    specs: Mapping[int, PartitionSpec]
    unread: dict[str, ManifestFile] = field(default_factory=dict[str, ManifestFile])
    unreadable: set[str] = field(default_factory=set[str])
    files: dict[str, list[Item]] = field(default_factory=dict[str, list[Item]])
    data: dict[Place, Kept] = field(default_factory=dict[Place, Kept])
    loose: dict[Place, Kept] = field(default_factory=dict[Place, Kept])
    equality: dict[Place, Kept] = field(default_factory=dict[Place, Kept])
    named: dict[str, Kept] = field(default_factory=dict[str, Kept])
    vectors: dict[str, Kept] = field(default_factory=dict[str, Kept])
    held: dict[str, Body] = field(default_factory=dict[str, Body])

    # -- changing it ------------------------------------------------------------------------------------------------

    def open(self, path: str, body: Body | None) -> None:
        """A manifest that was there before is known now. None: it cannot be read."""
        self.unread.pop(path, None)
        if body is None:
            self.unreadable.add(path)
            return
        self.held[path] = body
        for item in body.items:
            if item.status != DELETED:
                self._put(item)

    def close(self, path: str) -> None:
        """A manifest is no longer looked at, nor is what is in it."""
        self.unread.pop(path, None)
        self.unreadable.discard(path)
        body = self.held.pop(path, None)
        for item in body.items if body else ():
            if item.status != DELETED:
                self._drop(item)

    def begin(self, rows: Iterable[ManifestFile]) -> None:
        """Take the list as it stands; what is open of it stays open."""
        wanted = {row.path: row for row in rows}
        for path in [path for path in (*self.held, *self.unread, *self.unreadable) if path not in wanted]:
            self.close(path)
        new = {path: row for path, row in wanted.items() if path not in self.held and path not in self.unreadable}
        self.unread.update(new)

    def take(self, delta: Delta, left: Iterable[str], entered: Mapping[str, Read | None]) -> None:
        """Follow a snapshot. What its manifests carry over unchanged is not touched."""
        for path in left:
            self.unread.pop(path, None)
            self.unreadable.discard(path)
            self.held.pop(path, None)
        for item in delta.removed:
            self._drop(item)
        for was, _ in delta.carried:
            self._drop(was)
        for item in (*(item for _, item in delta.carried), *delta.added):
            self._put(item)
        for path, read in entered.items():
            if read is None:
                self.unreadable.add(path)
            else:
                self.held[path] = read.body

    def _put(self, item: Item) -> None:
        self.files.setdefault(item.key, []).append(item)
        group, name = self._group(item)
        group.setdefault(name, {})[item.key] = item

    def _drop(self, item: Item) -> None:
        twins = self.files[item.key]
        twins.remove(item)
        group, name = self._group(item)
        if twins:
            group[name][item.key] = twins[0]
            return
        del self.files[item.key]
        del group[name][item.key]
        if not group[name]:
            del group[name]

    def _group(self, item: Item) -> tuple[dict[Any, Kept], Any]:
        if item.content == DATA:
            return self.data, item.place
        if item.is_equality:
            return self.equality, item.place
        if item.target is None:
            return self.loose, item.place
        return (self.vectors if item.is_vector else self.named), item.target

    # -- asking it --------------------------------------------------------------------------------------------------

    def live(self, key: str) -> Item | None:
        """A live file that was opened."""
        found = self.files.get(key)
        return found[0] if found else None

    def deletes_of(self, path: str) -> list[Item]:
        """Deletion vectors of a data file, or where it has none, the position delete files that name it."""
        return list((self.vectors.get(path) or self.named.get(path) or {}).values())

    def unread_deletes(self) -> list[ManifestFile]:
        """Delete manifests that were not opened."""
        return [row for row in self.unread.values() if row.content != DATA]

    def unread_data(self, beside: Iterable[Item]) -> list[ManifestFile]:
        """Data manifests that were not opened and may hold files of the partitions of some items."""
        wanted = [(item.spec_id, item.partition) for item in beside]
        return [
            row
            for row in self.unread.values()
            if row.content == DATA and row.spec_id in self.specs and can_contain(row, self.specs[row.spec_id], wanted)
        ]

    def all_unread_data(self) -> list[ManifestFile]:
        return [row for row in self.unread.values() if row.content == DATA]

    def delta(
        self, snapshot_id: int, entered: Mapping[str, Read | None], left: Iterable[str], cursors: Iterable[Cursor]
    ) -> Delta:
        """What it means that manifests have entered the list and left it. None: one could not be read.

        All that have left must be open, or dark.

        Args:
            cursors: over those that have left, with which the new ones were read.
        """
        before: dict[str, list[Item]] = {}
        blind = any(read is None for read in entered.values()) or any(path in self.unreadable for path in left)
        for cursor in cursors:
            for item in cursor.left_over():
                before.setdefault(item.key, []).append(item)
        added: list[Item] = []
        carried: list[tuple[Item, Item]] = []
        tombstones: list[Item] = []
        dropped: set[str] = set()
        # What was removed, what is carried on, what is new: in this order, so that each takes what is meant by it.
        fresh = [item for read in entered.values() if read is not None for item in read.fresh]
        for item in sorted(fresh, key=lambda item: _ORDER[item.status]):
            if item.status == DELETED:
                if item.snapshot_id == snapshot_id:
                    tombstones.append(item)
                    dropped.add(item.key)
                continue
            known = before.get(item.key)
            # One that says it is new is new, where its commit also says that it removed the old one.
            if known and not (item.status == ADDED and item.key in dropped):
                carried.append((known.pop(0), item))
            else:
                added.append(item)
        removed = [item for items in before.values() for item in items]
        return Delta(tuple(added), tuple(removed), tuple(carried), tuple(tombstones), blind)

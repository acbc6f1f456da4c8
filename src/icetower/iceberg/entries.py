"""The entries of manifests with what they inherit, the files that hold them, and the fields of a snapshot.

Source: Apache Iceberg 1.12, `InheritableMetadataFactory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.records import ADDED, DATA, DELETED, Entry, Manifest, ManifestFile

JSON = Mapping[str, Any]
UNASSIGNED = -1
"""The sequence number of a manifest that no snapshot in the table names yet."""


class NeedsFile(Exception):
    """A manifest list or manifest must be read before the question can be answered.

    Attributes:
        path: of the file.
        is_list: whether it is a manifest list.
    """

    def __init__(self, path: str, *, is_list: bool) -> None:
        super().__init__(path)
        self.path = path
        self.is_list = is_list


class NeedsFiles(Exception):
    """Several files must be read first, which is better known at once.

    Attributes:
        needs: each of them.
    """

    def __init__(self, needs: Iterable[NeedsFile]) -> None:
        self.needs = tuple(needs)
        super().__init__([need.path for need in self.needs])


@dataclass(frozen=True, slots=True)
class Live:
    """An entry of a manifest with everything that it inherits filled in, deleted ones included.

    `sequence_number` and `file_sequence_number` are `UNASSIGNED` in a manifest that is not committed yet.
    """

    status: int
    snapshot_id: int
    sequence_number: int | None
    file_sequence_number: int | None
    entry: Entry
    row: ManifestFile

    @property
    def path(self) -> str:
        return self.entry.file.path


@dataclass(frozen=True, slots=True)
class Files:
    """Manifest lists and manifests by path: all that a check may look at. What is missing is asked for.

    Attributes:
        own: by the path of a manifest list, those of its manifests that its snapshot added itself; where this is known,
            the list need not be read to tell what the snapshot did.
    """

    lists: Mapping[str, tuple[ManifestFile, ...]]
    manifests: Mapping[str, Manifest]
    own: Mapping[str, tuple[ManifestFile, ...]] = field(default_factory=dict[str, "tuple[ManifestFile, ...]"])
    _entries: dict[tuple[str, int, int | None], tuple[Live, ...]] = field(
        default_factory=dict[tuple[str, int, int | None], tuple[Live, ...]], compare=False, repr=False
    )

    def rows(self, snapshot: JSON, *, content: int | None = None) -> tuple[ManifestFile, ...]:
        """The manifest list of a snapshot; of one content (0 data, 1 deletes) where asked.

        Raises:
            NeedsFile: the list was not given.
            ValidationFailed: the snapshot has none (tables of format version 1 from before 2019).
        """
        path = snapshot.get("manifest-list")
        if path is None:
            raise ValidationFailed(
                f"snapshot {snapshot['snapshot-id']} lists its manifests inside the metadata, as before 2019; "
                "commit anything to the table, and look at snapshots from then on",
                rule="snapshot.manifest-list",
            )
        if path not in self.lists:
            raise NeedsFile(path, is_list=True)
        rows = self.lists[path]
        return rows if content is None else tuple(row for row in rows if row.content == content)

    def own_rows(self, snapshot: JSON) -> tuple[ManifestFile, ...]:
        """The manifests that a snapshot added itself. Raises as `rows` does."""
        known = self.own.get(str(snapshot.get("manifest-list")))
        if known is not None:
            return known
        snapshot_id = snapshot["snapshot-id"]
        return tuple(row for row in self.rows(snapshot) if row.added_snapshot_id == snapshot_id)

    def entries(self, row: ManifestFile) -> tuple[Live, ...]:
        """All entries of a manifest, in its order. Raises `NeedsFile` if it was not given."""
        key = (row.path, row.sequence_number, row.first_row_id)  # lists can tell a manifest's row ids differently
        if key not in self._entries:
            if row.path not in self.manifests:
                raise NeedsFile(row.path, is_list=False)
            self._entries[key] = tuple(inherit(row, self.manifests[row.path]))
        return self._entries[key]

    def missing(self, rows: Iterable[ManifestFile]) -> tuple[NeedsFile, ...]:
        """Manifests among `rows` that were not given."""
        return tuple(NeedsFile(row.path, is_list=False) for row in rows if row.path not in self.manifests)

    def live(self, row: ManifestFile) -> Iterator[Live]:
        """The entries of a manifest that are not deleted."""
        return (entry for entry in self.entries(row) if entry.status != DELETED)


def inherit(row: ManifestFile, manifest: Manifest) -> Iterator[Live]:
    """The entries of a manifest, with what they inherit (specification: "Sequence Number Inheritance", "Row Lineage").

    Entries of a committed manifest that has no row ids have none either, whatever is written in them; one that is not
    committed yet keeps them.
    """
    number = row.sequence_number
    next_row_id = row.first_row_id if row.content == DATA else None
    for entry in manifest.entries:
        inherits = entry.status == ADDED or number == 0
        file = entry.file
        if next_row_id is None:
            row_id = file.first_row_id if number == UNASSIGNED else None
        elif file.first_row_id is None and entry.status != DELETED:
            row_id, next_row_id = next_row_id, next_row_id + file.record_count
        else:
            row_id = file.first_row_id
        if row_id != file.first_row_id:
            entry = replace(entry, file=replace(file, first_row_id=row_id))
        yield Live(
            status=entry.status,
            snapshot_id=row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
            sequence_number=number if entry.sequence_number is None and inherits else entry.sequence_number,
            file_sequence_number=number
            if entry.file_sequence_number is None and inherits
            else entry.file_sequence_number,
            entry=entry,
            row=row,
        )


# ── Snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────────

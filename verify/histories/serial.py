"""Long histories made as bytes: random commits, one after the other, each of which has seen all before it.

    world = World(seed=7, format_version=2)
    for _ in range(500):
        world.commit_any()
    table = world.table()

The world knows the rows of every file, so that deletes, updates and compactions are what a correct engine writes:
copy-on-write, position deletes of a file and of a partition, equality deletes, deletion vectors that take the place of
older ones, compaction with and without its old sequence number, replaced partitions, manifests that are merged or laid
out anew, a partition spec that changes. Data files are names only: nothing but their manifests is ever read.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icetower.iceberg.manifest_writing import assign_first_row_ids, manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.metadata import new_table
from icetower.iceberg.records import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    Entry,
    ManifestFile,
)
from icetower.protocol.marks import FILTER, ISOLATION, PRINCIPAL, READ_SNAPSHOT
from icetower.table.head import HeadState
from verify.histories.memory import MemoryFiles, Table

JSON = dict[str, Any]
SCHEMA: JSON = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "category", "required": False, "type": "string"},
    ],
}
CATEGORIES = ("red", "green", "blue", None)
LOCATION = "mem://serial"
START_MS = 1_700_000_000_000
MERGED_AT = 12
"""So many small manifests of one kind are merged into one."""


@dataclass(eq=False)
class File:
    """A file, and what is in it.

    Attributes:
        rows: of a data file: ids of its rows. Of equality deletes: the ids that it deletes.
        positions: of position deletes: by data file, the positions.
    """

    entry: Entry
    spec_id: int
    rows: tuple[int, ...] = ()
    positions: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])

    @property
    def path(self) -> str:
        return self.entry.file.path

    @property
    def content(self) -> int:
        return self.entry.file.content

    @property
    def place(self) -> tuple[int, tuple[Any, ...]]:
        return self.spec_id, self.entry.file.partition

    @property
    def number(self) -> int:
        """Its data sequence number."""
        return self.entry.sequence_number or 0


@dataclass(eq=False)
class Manifest:
    """A manifest of the head. `files`: live ones."""

    row: ManifestFile
    files: list[File]


class World:
    """A table, and whoever writes to it.

    Args:
        seed: of all that is random.
        declared: how many of the commits say what they have read.

    Attributes:
        author: who commits next, as a tower would write it.
        log: who added and removed what, commit by commit.
    """

    def __init__(self, seed: int, format_version: int = 2, *, partitioned: bool = True, declared: float = 0.5) -> None:
        self.chance = random.Random(seed)
        self.version = format_version
        self.declared = declared
        identity = {"name": "category", "transform": "identity", "source-id": 2, "field-id": 1000}
        spec = {"fields": [identity] if partitioned else []}
        self.metadata: JSON = dict(
            new_table(
                uuid=f"00000000-0000-0000-0000-{seed:012d}",
                location=LOCATION,
                schema=SCHEMA,
                spec=spec,
                sort_order=None,
                properties={"format-version": str(format_version)},
                now_ms=START_MS,
            )
        )
        self.metadata["snapshots"], self.metadata["snapshot-log"] = [], []
        self.spec_id = 0
        self.storage: dict[str, bytes] = {}
        self.manifests: list[Manifest] = []
        self.files: dict[str, File] = {}
        self.by_path: dict[str, File] = {}
        self.author: str | None = None
        self.log: list[tuple[str | None, list[File], list[File]]] = []
        self._row = self._name = self._number = 0
        self._next_row_id = 0

    # -- what is there ----------------------------------------------------------------------------------------------

    def of(self, content: int) -> list[File]:
        """The live files of one content."""
        return [file for file in self.files.values() if file.content == content]

    def dead(self, data: File, files: Iterable[File] | None = None) -> frozenset[int]:
        """The positions of a data file that are deleted, in whatever way, by the live files or by others."""
        gone: set[int] = set()
        for file in self.files.values() if files is None else files:
            if file.content == POSITION_DELETES and data.path in file.positions and file.number >= data.number:
                gone |= file.positions[data.path]
            elif file.content == EQUALITY_DELETES and file.number > data.number and self._reaches(file, data):
                wanted = set(file.rows)
                gone |= {at for at, row in enumerate(data.rows) if row in wanted}
        return frozenset(gone)

    def content(self, files: Iterable[File] | None = None) -> list[int]:
        """The ids of all live rows, in order, of the live files or of others."""
        known = list(self.files.values() if files is None else files)
        found: list[int] = []
        for data in known:
            if data.content == DATA:
                gone = self.dead(data, known)
                found += (row for at, row in enumerate(data.rows) if at not in gone)
        return sorted(found)

    def _reaches(self, deletes: File, data: File) -> bool:
        return not self._fields(deletes.spec_id) or deletes.place == data.place

    def _fields(self, spec_id: int) -> list[JSON]:
        return next(spec["fields"] for spec in self.metadata["partition-specs"] if spec["spec-id"] == spec_id)

    # -- making files -----------------------------------------------------------------------------------------------

    def partition(self) -> tuple[Any, ...]:
        """One of the current spec."""
        return tuple(self._value(part) for part in self._fields(self.spec_id))

    def _value(self, part: JSON) -> Any:
        return self.chance.choice(CATEGORIES) if part["transform"] == "identity" else self.chance.randrange(4)

    def data(
        self,
        rows: Sequence[int] | None = None,
        place: tuple[int, tuple[Any, ...]] | None = None,
        number: int | None = None,
    ) -> File:
        """A new data file; with new rows where none are given."""
        if rows is None:
            rows = range(self._row, self._row + self.chance.randrange(1, 20))
            self._row += len(rows)
        spec_id, partition = place or (self.spec_id, self.partition())
        return self._file(DATA, "PARQUET", spec_id, partition, len(rows), number, rows=tuple(rows))

    def deletes(self, positions: Mapping[str, frozenset[int]], *, named: bool = True) -> File:
        """Position deletes: of one data file, which they name, or of several of one partition."""
        data = self.by_path[next(iter(positions))]
        count = sum(map(len, positions.values()))
        target = data.path if named and len(positions) == 1 else None
        vector = self.version >= 3
        return self._file(
            POSITION_DELETES,
            "PUFFIN" if vector else "PARQUET",
            *data.place,
            count,
            None,
            target=target,
            positions=positions,
        )

    def equality(self, rows: Sequence[int], place: tuple[int, tuple[Any, ...]]) -> File:
        """Equality deletes by id."""
        return self._file(EQUALITY_DELETES, "PARQUET", *place, len(rows), None, rows=tuple(rows))

    def _file(
        self,
        content: int,
        file_format: str,
        spec_id: int,
        partition: tuple[Any, ...],
        count: int,
        number: int | None,
        *,
        rows: tuple[int, ...] = (),
        positions: Mapping[str, frozenset[int]] | None = None,
        target: str | None = None,
    ) -> File:
        self._name += 1
        vector = file_format == "PUFFIN"
        path = f"{LOCATION}/data/{('data', 'positions', 'equality')[content]}-{self._name}.{file_format.lower()}"
        bounds = [] if not rows else [{"key": 1, "value": struct.pack("<q", edge)} for edge in (min(rows), max(rows))]
        record: JSON = {
            "content": content,
            "file_path": path,
            "file_format": file_format,
            "record_count": count,
            "file_size_in_bytes": 1_000,
            "value_counts": [{"key": 1, "value": count}] if rows else None,
            "null_value_counts": [{"key": 1, "value": 0}] if rows else None,
            "lower_bounds": bounds[:1] or None,
            "upper_bounds": bounds[1:] or None,
            "equality_ids": [1] if content == EQUALITY_DELETES else None,
            "referenced_data_file": target,
            "content_offset": 4 if vector else None,
            "content_size_in_bytes": 40 if vector else None,
        }
        file = DataFile(content, path, file_format, partition, count, 1_000, None, target, record)
        made = File(Entry(ADDED, None, number, None, file), spec_id, rows, positions or {})
        self.by_path[path] = made
        return made

    # -- committing -------------------------------------------------------------------------------------------------

    def commit(
        self,
        operation: str,
        added: Iterable[File] = (),
        removed: Iterable[File] = (),
        *,
        summary: Mapping[str, str] | None = None,
        merge: bool = True,
        relist: bool = False,
    ) -> int:
        """One snapshot on top of the last. Returns its id.

        Args:
            merge: small manifests may be merged with what it writes.
            relist: it lays all data manifests out anew.
        """
        added, gone = list(added), {file.path: file for file in removed}
        self.log.append((self.author, added, list(gone.values())))
        self._number += 1
        snapshots: list[JSON] = self.metadata["snapshots"]
        snapshot_id, number = 1_000 + len(snapshots) * 7, self._number if self.version > 1 else 0
        kept: list[Manifest] = []
        written: list[Manifest] = []
        for manifest in self.manifests:
            if any(file.path in gone for file in manifest.files):
                entries = [(file, DELETED if file.path in gone else EXISTING) for file in manifest.files]
                written += self._written(entries, manifest.row.spec_id, manifest.row.content, snapshot_id, number)
            else:
                kept.append(manifest)
        groups: dict[tuple[int, int], list[tuple[File, int]]] = {}
        for file in added:
            groups.setdefault((file.spec_id, min(file.content, 1)), []).append((file, ADDED))
        if relist:
            again = [m for m in kept if m.row.content == DATA]
            kept = [m for m in kept if m.row.content != DATA]
            for manifest in again:
                group = groups.setdefault((manifest.row.spec_id, DATA), [])
                group += ((file, EXISTING) for file in manifest.files)
        for (spec_id, content), entries in groups.items():
            same = [m for m in kept if (m.row.spec_id, m.row.content) == (spec_id, content)]
            if merge and len(same) >= MERGED_AT:
                entries += ((file, EXISTING) for manifest in same for file in manifest.files)
                kept = [manifest for manifest in kept if manifest not in same]
            written += self._written(entries, spec_id, content, snapshot_id, number)
        self.manifests = [*written[::-1], *kept]
        for path in gone:
            del self.files[path]
        self.files.update((file.path, file) for file in added)
        self._publish(snapshot_id, number, operation, summary or {})
        return snapshot_id

    def _written(
        self, entries: Sequence[tuple[File, int]], spec_id: int, content: int, snapshot_id: int, number: int
    ) -> list[Manifest]:
        shape: JSON = {
            "spec_fields": self._fields(spec_id),
            "spec_id": spec_id,
            "schema": SCHEMA,
            "content": content,
        }
        rows = [
            Entry(status, e.snapshot_id, e.sequence_number, e.file_sequence_number, e.file)
            for e, status in ((file.entry, status) for file, status in entries)
        ]
        data = write_manifest(rows, format_version=self.version, snapshot_id=snapshot_id, **shape)
        path = f"{LOCATION}/metadata/m{len(self.storage)}.avro"
        self.storage[path] = data
        row = manifest_row(path, data, rows, snapshot_id=snapshot_id, sequence_number=number, **shape)
        for file, status in entries:
            if status == ADDED:
                e = file.entry
                file.entry = Entry(
                    ADDED, snapshot_id, number if e.sequence_number is None else e.sequence_number, number, e.file
                )
        return [Manifest(row, [file for file, status in entries if status != DELETED])]

    def _publish(self, snapshot_id: int, number: int, operation: str, summary: Mapping[str, str]) -> None:
        snapshots: list[JSON] = self.metadata["snapshots"]
        parent = snapshots[-1]["snapshot-id"] if snapshots else None
        # A manifest that is left without files goes with the next commit, as with Iceberg's writers.
        rows = [m.row for m in self.manifests if m.files or m.row.added_snapshot_id == snapshot_id]
        self.manifests = [m for m in self.manifests if m.files]
        snapshot: JSON = {"snapshot-id": snapshot_id, "timestamp-ms": START_MS + len(snapshots) * 1_000}
        first_row_id = None
        if self.version >= 3:
            first_row_id = self._next_row_id
            given, self._next_row_id = assign_first_row_ids(rows, first_row_id)
            self._carry_row_ids(given)
            rows = list(given)
            snapshot |= {"first-row-id": first_row_id, "added-rows": self._next_row_id - first_row_id}
        path = f"{LOCATION}/metadata/snap-{snapshot_id}-1-00000000-0000-0000-0000-{snapshot_id:012d}.avro"
        self.storage[path] = write_manifest_list(
            rows,
            format_version=self.version,
            snapshot_id=snapshot_id,
            parent_id=parent,
            sequence_number=number,
            first_row_id=first_row_id,
        )
        words = {"operation": operation, **summary} | ({} if self.author is None else {PRINCIPAL: self.author})
        snapshot |= {"manifest-list": path, "summary": words, "schema-id": 0}
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent
        if self.version > 1:
            snapshot["sequence-number"] = number
        snapshots.append(snapshot)

    def _carry_row_ids(self, given: Sequence[ManifestFile]) -> None:
        """Row ids that a manifest was just given are those of its files from now on, wherever they are carried to."""
        by_path = {row.path: row for row in given}
        for manifest in self.manifests:
            row = by_path[manifest.row.path]
            if manifest.row.first_row_id is None and row.content == DATA:
                self._number_rows(manifest, row)
            manifest.row = row

    def _number_rows(self, manifest: Manifest, row: ManifestFile) -> None:
        assert row.first_row_id is not None
        next_row_id = row.first_row_id
        for file in manifest.files:
            if file.entry.file.first_row_id is None:
                e, f = file.entry, file.entry.file
                fields: JSON = {name: getattr(f, name) for name in f.__dataclass_fields__}
                fields["first_row_id"] = next_row_id
                fields["record"] = {**f.record, "first_row_id": next_row_id}
                new = DataFile(**fields)
                file.entry = Entry(e.status, e.snapshot_id, e.sequence_number, e.file_sequence_number, new)
                next_row_id += f.record_count

    def table(self) -> Table:
        """The table as it stands."""
        snapshots: list[JSON] = self.metadata["snapshots"]
        head = snapshots[-1]["snapshot-id"] if snapshots else None
        metadata = {
            **self.metadata,
            "snapshots": list(snapshots),
            "last-sequence-number": self._number,
            "current-snapshot-id": -1 if head is None else head,
            "refs": {} if head is None else {"main": {"snapshot-id": head, "type": "branch"}},
            "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots],
        }
        if self.version >= 3:
            metadata["next-row-id"] = self._next_row_id
        return Table(HeadState(f"{LOCATION}/metadata/v1.metadata.json", metadata), MemoryFiles(dict(self.storage)))

    # -- random commits ---------------------------------------------------------------------------------------------

    def commit_any(self) -> None:
        """One commit of any kind, where the table has what it takes."""
        kinds: list[tuple[int, Callable[[], bool]]] = [
            (8, self.append),
            (4, self.copy_on_write),
            (3, self.compact),
            (2, self.drop_files),
            (2, self.replace_partition),
            (1, self.replace_nothing),
            (1, self.lay_out),
            (1, self.change_spec),
        ]
        if self.version >= 2:
            kinds += [(6, self.delete_rows), (3, self.update_rows), (2, self.upsert), (1, self.drop_old_deletes)]
        if self.version == 2:
            kinds += [(2, self.delete_loosely), (1, self.compact_deletes)]
        while True:
            kind = self.chance.choices([k for _, k in kinds], [weight for weight, _ in kinds])[0]
            if kind():
                return

    def words(self, rows: Sequence[int] = ()) -> dict[str, str]:
        """What a careful writer says of its reads: the head, and a filter."""
        if self.chance.random() >= self.declared:
            return {}
        snapshots: list[JSON] = self.metadata["snapshots"]
        where = f'{{"type": "lt-eq", "term": "id", "value": {max(rows)}}}' if rows else "true"
        level = self.chance.choice(("snapshot", "serializable"))
        head = str(snapshots[-1]["snapshot-id"]) if snapshots else "none"
        return {READ_SNAPSHOT: head, FILTER: where, ISOLATION: level}

    def append(self) -> bool:
        files = [self.data() for _ in range(self.chance.randrange(1, 4))]
        self.commit("append", files, merge=self.chance.random() < 0.7)
        return True

    def _some_data(self, most: int = 3, *, one_place: bool = False) -> list[File]:
        data = self.of(DATA)
        if one_place and data:
            place = self.chance.choice(data).place
            data = [file for file in data if file.place == place]
        return self.chance.sample(data, min(len(data), self.chance.randrange(1, most + 1)))

    def _dangling(self, gone: Sequence[File]) -> list[File]:
        """Position deletes that are about none but these. Engines leave those of version 2 behind, now and then."""
        paths = {file.path for file in gone}
        found = [f for f in self.of(POSITION_DELETES) if f.positions.keys() <= paths]
        return found if self.version >= 3 or self.chance.random() < 0.7 else []

    def _alive(self, file: File) -> list[int]:
        gone = self.dead(file)
        return [row for at, row in enumerate(file.rows) if at not in gone]

    def copy_on_write(self) -> bool:
        gone = self._some_data(2, one_place=True)
        rows = [row for file in gone for row in self._alive(file)]
        if not rows:
            return False
        rows = rows[self.chance.randrange(len(rows)) :] if self.chance.random() < 0.3 else rows
        new = self.data(rows, gone[0].place)
        self.commit("overwrite", [new], [*gone, *self._dangling(gone)], summary=self.words(rows))
        return True

    def compact(self) -> bool:
        gone = self._some_data(5, one_place=True)
        rows = [row for file in gone for row in self._alive(file)]
        if not gone or (not rows and self.chance.random() < 0.9):
            return False
        keeps = self.version >= 2 and self.chance.random() < 0.5
        new = [self.data(rows, gone[0].place, self._number if keeps else None)] if rows else []
        self.commit("replace", new, [*gone, *self._dangling(gone)])
        return True

    def drop_files(self) -> bool:
        gone = self._some_data(3)
        if not gone:
            return False
        self.commit("delete", (), [*gone, *self._dangling(gone)], summary=self.words())
        return True

    def replace_partition(self) -> bool:
        new = self.data()
        gone = [file for file in self.of(DATA) if file.place == new.place]
        summary = {"replace-partitions": "true", **self.words()}
        self.commit("overwrite", [new], [*gone, *self._dangling(gone)], summary=summary)
        return True

    def replace_nothing(self) -> bool:
        """An overwrite by a filter under which there is nothing."""
        new = self.data()
        if any(file.place == new.place for file in self.of(DATA)):
            return False
        self.commit("overwrite", [new], summary=self.words())
        return True

    def lay_out(self) -> bool:
        if len(self.manifests) < 2:
            return False
        self.commit("replace", merge=False, relist=True)
        return True

    def change_spec(self) -> bool:
        """A second spec comes, once; nothing is committed by that alone."""
        if self.spec_id or self.chance.random() > 0.05:
            return False
        bucket = {"name": "id_bucket", "transform": "bucket[4]", "source-id": 1, "field-id": 1001}
        specs = [*self.metadata["partition-specs"], {"spec-id": 1, "fields": [bucket]}]
        self.metadata |= {"partition-specs": specs, "default-spec-id": 1, "last-partition-id": 1001}
        self.spec_id = 1
        return False

    def _deletes(self, file: File) -> tuple[list[File], list[File]]:
        """(new, old): delete files for some more rows of a data file, and those whose place they take."""
        gone = self.dead(file)
        left = [at for at in range(len(file.rows)) if at not in gone]
        if not left:
            return [], []
        more = frozenset(self.chance.sample(left, self.chance.randrange(1, len(left) + 1)))
        own = [f for f in self.of(POSITION_DELETES) if f.entry.file.referenced_data_file == file.path]
        if own and (self.version >= 3 or self.chance.random() < 0.5):
            for old in own:
                more |= old.positions[file.path]
            return [self.deletes({file.path: more})], own
        return [self.deletes({file.path: more})], []

    def delete_rows(self) -> bool:
        new: list[File] = []
        old: list[File] = []
        for file in self._some_data(2):
            come, go = self._deletes(file)
            new, old = new + come, old + go
        if not new:
            return False
        self.commit("delete", new, old, summary=self.words())
        return True

    def update_rows(self) -> bool:
        files = self._some_data(1)
        new, old = self._deletes(files[0]) if files else ([], [])
        if not new:
            return False
        self.commit("overwrite", [*new, self.data(place=files[0].place)], old, summary=self.words())
        return True

    def upsert(self) -> bool:
        files = self._some_data(1)
        rows = self._alive(files[0]) if files else []
        if not rows:
            return False
        rows = self.chance.sample(rows, self.chance.randrange(1, len(rows) + 1))
        place = files[0].place
        self.commit("overwrite", [self.equality(rows, place), self.data(rows, place)], summary=self.words())
        return True

    def delete_loosely(self) -> bool:
        files = self._some_data(3, one_place=True)
        positions: dict[str, frozenset[int]] = {}
        for file in files:
            gone = self.dead(file)
            left = [at for at in range(len(file.rows)) if at not in gone]
            if left:
                positions[file.path] = frozenset(left[: self.chance.randrange(1, len(left) + 1)])
        if not positions:
            return False
        self.commit("delete", [self.deletes(positions, named=False)], summary=self.words())
        return True

    def compact_deletes(self) -> bool:
        """The position deletes of one data file put into one file; what is about nothing is left out."""
        for data in self._some_data(3):
            own = [f for f in self.of(POSITION_DELETES) if f.entry.file.referenced_data_file == data.path]
            if len(own) > 1:
                both = frozenset(at for f in own for at in f.positions[data.path])
                new = self.deletes({data.path: both})
                e = new.entry
                new.entry = Entry(e.status, e.snapshot_id, max(f.number for f in own), None, e.file)
                self.commit("replace", [new], own)
                return True
        return False

    def drop_old_deletes(self) -> bool:
        """What is older than all data applies to nothing."""
        oldest = min((file.number for file in self.of(DATA)), default=self._number + 1)
        old = [file for file in (*self.of(POSITION_DELETES), *self.of(EQUALITY_DELETES)) if file.number < oldest]
        if not old:
            return False
        self.commit("append", [self.data()], old)
        return True

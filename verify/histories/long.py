"""A long history as a busy table has it, made as bytes: appends, deletion vectors, copy-on-write, manifests that are
merged by a hundred and written anew as a whole by whoever removes a file of them, as Iceberg's writers do.

An entry is encoded once for each status that it has, and manifests are put together from encoded entries: ten thousand
commits take half a minute.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from icetower.iceberg import avro_files
from icetower.iceberg.avro_encoding import put_long
from icetower.iceberg.listing import Listing, assign_row_ids, write_listing
from icetower.iceberg.manifest_writing import manifest_row, write_manifest
from icetower.iceberg.metadata import new_table
from icetower.iceberg.records import ADDED, DATA, DELETED, EXISTING, DataFile, Entry, ManifestFile

JSON = dict[str, Any]
Write = Callable[[str, bytes], None]

COLUMNS = 8
SCHEMA: JSON = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "shop", "required": False, "type": "string"},
        *({"id": at, "name": f"c{at}", "required": False, "type": "long"} for at in range(3, COLUMNS + 1)),
    ],
}
SPEC: JSON = {
    "fields": [{"name": "shop", "transform": "identity", "source-id": 2, "field-id": 1000}],
}
SHOPS = tuple(f"shop-{at:02d}" for at in range(16))
ROWS = 100
MERGED_AT = 100
"""Iceberg's `commit.manifest.min-count-to-merge`."""
START_MS = 1_700_000_000_000


@dataclass(eq=False)
class File:
    """A live file. `encoded`: its entry by status, as bytes."""

    entry: Entry
    encoded: dict[int, bytes]
    deleted: int = 0
    vector: File | None = None
    target: File | None = None


@dataclass(eq=False)
class Held:
    """A manifest of the head."""

    row: ManifestFile
    files: list[File]


class LongHistory:
    """Makes the history, and writes its files as it goes.

    Args:
        write: takes each file's path and bytes.
        location: of the table.
    """

    def __init__(self, write: Write, location: str, *, seed: int = 1) -> None:
        self._write = write
        self._location = location
        self._chance = random.Random(seed)
        self._manifests: list[Held] = []
        self._data: list[File] = []
        self._where: dict[File, Held] = {}
        self._name = 0
        self._next_row_id = 0
        self._templates: dict[int, tuple[bytes, bytes]] = {}
        self._of_partition: dict[str, ManifestFile] = {}
        self.snapshots: list[JSON] = []
        self._metadata = new_table(
            uuid="00000000-0000-0000-0000-000000000001",
            location=location,
            schema=SCHEMA,
            spec=SPEC,
            sort_order=None,
            properties={"format-version": "3"},
            now_ms=START_MS,
        )

    @property
    def files(self) -> int:
        """Live data files."""
        return len(self._data)

    def run(self, commits: int) -> None:
        """So many commits more."""
        for _ in range(commits):
            draw = self._chance.random()
            if draw < 0.85 or len(self._data) < 10:
                self._commit("append", [self._new_data()], [])
            elif draw < 0.95:
                self._delete_rows()
            else:
                old = self._chance.choice(self._data)
                gone = [old] if old.vector is None else [old, old.vector]
                new = self._new_data(old.entry.file.partition[0], ROWS - old.deleted)
                self._commit("overwrite", [new], gone)

    def metadata(self, commits: int | None = None) -> JSON:
        """The table's metadata after so many commits."""
        snapshots = self.snapshots[:commits]
        head = snapshots[-1]
        log = [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots]
        return {
            **self._metadata,
            "snapshots": snapshots,
            "last-sequence-number": head["sequence-number"],
            "current-snapshot-id": head["snapshot-id"],
            "refs": {"main": {"type": "branch", "snapshot-id": head["snapshot-id"]}},
            "snapshot-log": log,
            "next-row-id": head["first-row-id"] + head["added-rows"],
        }

    # -- files ------------------------------------------------------------------------------------------------------

    def _delete_rows(self) -> None:
        file = self._chance.choice(self._data)
        if file.deleted >= ROWS // 2:
            return self._commit("append", [self._new_data()], [])
        file.deleted += self._chance.randrange(1, 5)
        vector = self._new_file(1, file.entry.file.partition[0], file.deleted, about=file)
        gone, file.vector = ([] if file.vector is None else [file.vector]), vector
        return self._commit("delete", [vector], gone)

    def _new_data(self, shop: str | None = None, rows: int = ROWS) -> File:
        return self._new_file(0, shop or self._chance.choice(SHOPS), rows)

    def _new_file(self, content: int, shop: str, rows: int, about: File | None = None) -> File:
        self._name += 1
        target = None if about is None else about.entry.file.path
        kind = "PARQUET" if about is None else "PUFFIN"
        path = f"{self._location}/data/shop={shop}/00000-{self._name}-5a3c9d1e-0001.{kind.lower()}"
        record: JSON = {
            "content": content,
            "file_path": path,
            "file_format": kind,
            "record_count": rows,
            "file_size_in_bytes": 40_000,
            "referenced_data_file": target,
            "content_offset": None if about is None else 4,
            "content_size_in_bytes": None if about is None else 60,
        }
        if about is None:
            low, high = (struct.pack("<q", self._name * 1_000 + edge) for edge in (0, rows))
            numbers = [at for at in range(1, COLUMNS + 1) if at != 2]
            record |= {
                "column_sizes": [{"key": at, "value": 4_000} for at in range(1, COLUMNS + 1)],
                "value_counts": [{"key": at, "value": rows} for at in range(1, COLUMNS + 1)],
                "null_value_counts": [{"key": at, "value": 0} for at in range(1, COLUMNS + 1)],
                "lower_bounds": [{"key": at, "value": low} for at in numbers],
                "upper_bounds": [{"key": at, "value": high} for at in numbers],
                "split_offsets": [4],
            }
        file = DataFile(content, path, kind, (shop,), rows, 40_000, None, target, record)
        return File(Entry(ADDED, None, None, None, file), {}, target=about)

    def _bytes(self, file: File, status: int, snapshot_id: int) -> bytes:
        """A file's entry, encoded. An EXISTING one is the same in every manifest."""
        known = file.encoded.get(status)
        if known is None or status != EXISTING:
            e = file.entry
            entry = Entry(status, e.snapshot_id, e.sequence_number, e.file_sequence_number, e.file)
            content = min(e.file.content, 1)
            data = write_manifest([entry], snapshot_id=snapshot_id, **self._shape(content))
            known = file.encoded[status] = avro_files.unpack(data, what="an entry").body
            if content not in self._templates:
                _, body = avro_files._split(data)  # pyright: ignore[reportPrivateUsage] - the file as it is
                self._templates[content] = (data[: -len(body)], data[-16:])
        return known

    def _shape(self, content: int) -> JSON:
        fields = self._metadata["partition-specs"][0]["fields"]
        return {"spec_fields": fields, "spec_id": 0, "schema": SCHEMA, "format_version": 3, "content": content}

    # -- manifests --------------------------------------------------------------------------------------------------

    def _commit(self, operation: str, added: Sequence[File], removed: Sequence[File]) -> None:
        number = len(self.snapshots) + 1
        snapshot_id = 1_000_000 + number
        gone = set(removed)
        touched = list(dict.fromkeys(self._where[file] for file in removed))
        written = [self._written([(f, DELETED if f in gone else EXISTING) for f in m.files], number) for m in touched]
        kept = [manifest for manifest in self._manifests if manifest not in touched]
        for content in (DATA, 1):
            entries = [(file, ADDED) for file in added if min(file.entry.file.content, 1) == content]
            if not entries:
                continue
            same = [manifest for manifest in kept if manifest.row.content == content]
            if len(same) >= MERGED_AT - 1:
                entries += ((file, EXISTING) for manifest in same for file in manifest.files)
                kept = [manifest for manifest in kept if manifest.row.content != content]
            written.append(self._written(entries, number))
        for file in removed:
            del self._where[file]
            if file.entry.file.content == 0:
                self._data.remove(file)
        self._data += (file for file in added if file.entry.file.content == 0)
        self._manifests = [*reversed(written), *kept]
        rows = [manifest.row for manifest in self._manifests]
        self._manifests = [manifest for manifest in self._manifests if manifest.files]
        self._publish(rows, operation, number, snapshot_id)

    def _written(self, entries: list[tuple[File, int]], number: int) -> Held:
        snapshot_id = 1_000_000 + number
        content = min(entries[0][0].entry.file.content, 1)
        parts = [self._bytes(file, status, snapshot_id) for file, status in entries]
        header, marker = self._templates[content]
        out = bytearray(header)
        for start in range(0, len(parts), 200):
            some = parts[start : start + 200]
            packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
            packed = packer.compress(b"".join(some)) + packer.flush()
            put_long(out, len(some))
            put_long(out, len(packed))
            out += packed + marker
        self._name += 1
        path = f"{self._location}/metadata/{self._name:08d}-5a3c9d1e-m0.avro"
        self._write(path, bytes(out))
        held = Held(self._row(path, len(out), entries, snapshot_id, number), [])
        for file, status in entries:
            if status == ADDED:
                e = file.entry
                file.entry = Entry(ADDED, snapshot_id, number, number, e.file)
            if status != DELETED:
                held.files.append(file)
                self._where[file] = held
        return held

    def _row(
        self, path: str, length: int, entries: Sequence[tuple[File, int]], snapshot_id: int, number: int
    ) -> ManifestFile:
        first = entries[0][0].entry
        shape = {
            key: value for key, value in self._shape(min(first.file.content, 1)).items() if key != "format_version"
        }
        edges = sorted({file.entry.file.partition[0] for file, _ in entries})
        some = [replace(first, file=replace(first.file, partition=(edge,))) for edge in (edges[0], edges[-1])]
        row = manifest_row(path, b"", some, snapshot_id=snapshot_id, sequence_number=number, **shape)
        counts = {status: [f.entry.file.record_count for f, s in entries if s == status] for status in (0, 1, 2)}
        old = [file.entry.sequence_number or number for file, status in entries if status == EXISTING]
        return replace(
            row,
            length_bytes=length,
            min_sequence_number=min(old, default=number),
            added_files=len(counts[ADDED]),
            existing_files=len(counts[EXISTING]),
            deleted_files=len(counts[DELETED]),
            added_rows=sum(counts[ADDED]),
            existing_rows=sum(counts[EXISTING]),
            deleted_rows=sum(counts[DELETED]),
        )

    def _publish(self, rows: Sequence[ManifestFile], operation: str, number: int, snapshot_id: int) -> None:
        first_row_id = self._next_row_id
        # Whoever merges gives ids to none but new rows: the others have theirs.
        listing, self._next_row_id = assign_row_ids(Listing.of(rows), first_row_id)
        for held in self._manifests:
            row = listing.get(held.row.path)
            assert row is not None
            if held.row.first_row_id is None and row.first_row_id is not None:
                self._give_row_ids(held, row.first_row_id)
            held.row = row
        path = f"{self._location}/metadata/snap-{snapshot_id}-1-5a3c9d1e-0001.avro"
        parent = self.snapshots[-1]["snapshot-id"] if self.snapshots else None
        data = write_listing(
            listing,
            format_version=3,
            snapshot_id=snapshot_id,
            parent_id=parent,
            sequence_number=number,
            first_row_id=first_row_id,
        )
        self._write(path, data)
        self.snapshots.append(
            {
                "snapshot-id": snapshot_id,
                **({} if parent is None else {"parent-snapshot-id": parent}),
                "sequence-number": number,
                "timestamp-ms": START_MS + number * 1_000,
                "manifest-list": path,
                "summary": {"operation": operation, "engine-name": "spark", "spark.app.id": f"app-{number % 7}"},
                "schema-id": 0,
                "first-row-id": first_row_id,
                "added-rows": self._next_row_id - first_row_id,
            }
        )

    def _give_row_ids(self, held: Held, next_row_id: int) -> None:
        for file in held.files:
            f = file.entry.file
            if f.first_row_id is None:
                new = replace(f, first_row_id=next_row_id, record={**f.record, "first_row_id": next_row_id})
                file.entry = replace(file.entry, file=new)
                next_row_id += f.record_count


def into_folder(folder: Path) -> tuple[Write, str]:
    """A writer of files under a folder, and the location of a table there."""
    for part in ("metadata", "data"):
        (folder / part).mkdir(parents=True, exist_ok=True)

    def write(path: str, data: bytes) -> None:
        Path(path.removeprefix("file://")).write_bytes(data)

    return write, f"file://{folder.resolve()}"

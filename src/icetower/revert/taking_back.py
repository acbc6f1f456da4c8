"""The one commit that takes a plan back: its manifests, its manifest list and its snapshot, as bytes. Pure.

It is checked as any client's commit is: what it says must be what it does (`iceberg.change`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from icetower.audit.items import Item, key_of
from icetower.errors import IcetowerError
from icetower.iceberg import puffin
from icetower.iceberg.change import change_of, diff_lists, summary_totals
from icetower.iceberg.entries import inherit
from icetower.iceberg.manifest_writing import assign_first_row_ids, manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import read_manifest
from icetower.iceberg.metadata import data_location, metadata_folder
from icetower.iceberg.records import ADDED, DELETED, EXISTING, POSITION_DELETES, DataFile, Entry, Manifest, ManifestFile
from icetower.iceberg.schemas import schema_of
from icetower.iceberg.vectors import Vector, as_blob
from icetower.protocol.marks import READ_SNAPSHOT, REVERTS
from icetower.revert.reverting import Plan
from icetower.table.groups import Span
from icetower.table.head import HeadState

JSON = dict[str, Any]
SNAPSHOTS_NAMED = 1_000
"""In the summary, the newest."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A commit that is ready to be sent.

    Attributes:
        files: to be written first, by path.
        requirements, updates: as the REST specification has them.
    """

    files: Mapping[str, bytes]
    snapshot: JSON
    requirements: tuple[JSON, ...]
    updates: tuple[JSON, ...]


@dataclass(frozen=True)
class Drafting:
    """What the commit is made of.

    Attributes:
        rows: the head's manifest list.
        manifests: those of the head that hold what goes, by path.
        restored: the entries of what comes back, by key, as they were.
        words: for the snapshot's summary.
        new_name: gives a name that was never used.
    """

    head: HeadState
    branch: str
    rows: Sequence[ManifestFile]
    manifests: Mapping[str, Manifest]
    restored: Mapping[str, DataFile]
    snapshot_id: int
    now_ms: int
    words: Mapping[str, str]
    new_name: Callable[[], str]

    def draft(self, plan: Plan) -> Draft:
        """The commit of a plan that nothing stands against."""
        metadata, version = self.head.metadata, self.head.format_version
        parent = self.head.snapshots[self.head.ref(self.branch) or 0]
        number = metadata["last-sequence-number"] + 1 if version > 1 else 0
        files: dict[str, bytes] = {}
        own = self._filtered(plan, number, files) + self._brought_back(plan, number, files)
        own += self._rows_deleted(plan, number, files)
        gone = {path for path, manifest in self.manifests.items() if manifest}
        rows: tuple[ManifestFile, ...] = (*own, *(row for row in self.rows if row.path not in gone))
        snapshot: JSON = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": parent["snapshot-id"],
            "timestamp-ms": max(self.now_ms, metadata["last-updated-ms"]),
            "schema-id": metadata["current-schema-id"],
        }
        if version > 1:
            snapshot["sequence-number"] = number
        first_row_id = None
        if version >= 3:
            first_row_id = metadata["next-row-id"]
            rows, following = assign_first_row_ids(rows, first_row_id)
            snapshot |= {"first-row-id": first_row_id, "added-rows": following - first_row_id}
        path = self._beside(f"snap-{self.snapshot_id}-1-{self.new_name()}.avro")
        files[path] = write_manifest_list(
            rows,
            format_version=version,
            snapshot_id=self.snapshot_id,
            parent_id=parent["snapshot-id"],
            sequence_number=number,
            first_row_id=first_row_id,
        )
        words = {
            "operation": _operation(plan),
            READ_SNAPSHOT: str(parent["snapshot-id"]),
            REVERTS: ",".join(map(str, plan.snapshots[-SNAPSHOTS_NAMED:])),
            **self.words,
        }
        snapshot |= {"manifest-list": path, "summary": words}
        self._prove(snapshot, rows, files, parent)
        # With the branch's retention, which would be taken from it otherwise.
        kept = {**((metadata.get("refs") or {}).get(self.branch) or {}), "type": "branch"}
        reference = {"action": "set-snapshot-ref", "ref-name": self.branch, **kept}
        return Draft(
            files,
            snapshot,
            (
                {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": self.branch, "snapshot-id": parent["snapshot-id"]},
            ),
            (
                {"action": "add-snapshot", "snapshot": snapshot},
                {**reference, "snapshot-id": self.snapshot_id},
            ),
        )

    def _filtered(self, plan: Plan, number: int, files: dict[str, bytes]) -> list[ManifestFile]:
        """The head's manifests that hold what goes, without it."""
        wanted = {item.key for item in plan.remove}
        written: list[ManifestFile] = []
        for row in self.rows:
            manifest = self.manifests.get(row.path)
            if manifest is None:
                continue
            entries = [
                replace(
                    live.entry,
                    status=DELETED if key_of(live.entry.file) in wanted else EXISTING,
                    snapshot_id=live.snapshot_id,
                    sequence_number=live.sequence_number,
                    file_sequence_number=live.file_sequence_number,
                )
                for live in inherit(row, manifest)
                if live.status != DELETED
            ]
            written.append(self._written(row.spec_id, row.content, entries, number, files))
        return written

    def _brought_back(self, plan: Plan, number: int, files: dict[str, bytes]) -> list[ManifestFile]:
        groups: dict[tuple[int, int], list[Item]] = {}
        for item in plan.restore:
            groups.setdefault((item.spec_id, min(item.content, 1)), []).append(item)
        written: list[ManifestFile] = []
        for (spec_id, content), items in groups.items():
            entries = [Entry(ADDED, None, None, None, _new(self.restored[item.key])) for item in items]
            written.append(self._written(spec_id, content, entries, number, files))
        return written

    def _rows_deleted(self, plan: Plan, number: int, files: dict[str, bytes]) -> list[ManifestFile]:
        """Manifests of deletes of rows: deletion vectors, or in format version 2 position delete files."""
        if not plan.delete:
            return []
        vectors = self.head.format_version >= 3
        metadata = self.head.metadata
        place = f"{data_location(metadata['location'], metadata['properties'])}/{self.new_name()}-deletes"
        found = (_vectors if vectors else _position_deletes)(plan.delete, place)
        by_spec: dict[int, list[Entry]] = {}
        for (item, _), (file, data) in zip(plan.delete, found, strict=True):
            files[file.path] = data
            by_spec.setdefault(item.spec_id, []).append(Entry(ADDED, None, None, None, file))
        return [
            self._written(spec_id, POSITION_DELETES, entries, number, files) for spec_id, entries in by_spec.items()
        ]

    def _written(
        self, spec_id: int, content: int, entries: Sequence[Entry], number: int, files: dict[str, bytes]
    ) -> ManifestFile:
        metadata = self.head.metadata
        spec = next(each for each in metadata["partition-specs"] if each["spec-id"] == spec_id)
        shape: JSON = {
            "spec_fields": tuple(spec["fields"]),
            "spec_id": spec_id,
            "schema": schema_of(metadata, spec),
            "content": content,
        }
        version = self.head.format_version
        data = write_manifest(entries, format_version=version, snapshot_id=self.snapshot_id, **shape)
        path = self._beside(f"{self.new_name()}-m0.avro")
        files[path] = data
        return manifest_row(path, data, entries, snapshot_id=self.snapshot_id, sequence_number=number, **shape)

    def _beside(self, name: str) -> str:
        return metadata_folder(self.head.metadata) + "/" + name

    def _prove(
        self, snapshot: JSON, rows: Sequence[ManifestFile], files: Mapping[str, bytes], parent: Mapping[str, Any]
    ) -> None:
        """That it does what it says; and its totals. Raises `IcetowerError`."""
        diff = diff_lists(self.rows, rows)
        manifests = {**self.manifests, **{row.path: read_manifest(files[row.path]) for row in diff.added}}
        change = change_of(snapshot, diff, manifests)
        if change.problems:
            raise IcetowerError(f"the commit was not made as it should be: {change.problems[0]}", rule="revert.draft")
        snapshot["summary"] |= summary_totals(parent.get("summary") or {}, change)


def _operation(plan: Plan) -> str:
    if not plan.restore:
        return "delete"
    return "overwrite" if plan.remove or any(not item.is_data for item in plan.restore) else "append"


Deleted = Sequence[tuple[Item, tuple[Span, ...]]]


def _vectors(deleted: Deleted, place: str) -> list[tuple[DataFile, bytes]]:
    """A deletion vector for each data file, all in one Puffin file."""
    path = f"{place}.puffin"
    pairs = [(item, Vector.of(_positions(spans))) for item, spans in deleted]
    data, blobs = puffin.write([as_blob(vector, item.path) for item, vector in pairs], created_by="Icetower")
    return [
        (_deletes(item, path, "PUFFIN", len(vector), len(data), blob.offset, blob.length_bytes), data)
        for (item, vector), blob in zip(pairs, blobs, strict=True)
    ]


def _position_deletes(deleted: Deleted, place: str) -> list[tuple[DataFile, bytes]]:
    """A position delete file for each data file. Source: specification, "Position Delete Files"."""
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    found: list[tuple[DataFile, bytes]] = []
    for at, (item, spans) in enumerate(deleted):
        positions = list(_positions(spans))
        fields = [("file_path", pa.string(), b"2147483546"), ("pos", pa.int64(), b"2147483545")]
        schema = pa.schema(
            [pa.field(each, kind, nullable=False, metadata={b"PARQUET:field_id": id_}) for each, kind, id_ in fields]
        )
        sink = pa.BufferOutputStream()
        columns = [pa.array([item.path] * len(positions)), pa.array(positions, pa.int64())]
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), sink, compression="zstd", store_schema=False)
        data = sink.getvalue().to_pybytes()
        found.append((_deletes(item, f"{place}-{at}.parquet", "PARQUET", len(positions), len(data)), data))
    return found


def _positions(spans: Sequence[Span]) -> Iterator[int]:
    return (at for start, count in spans for at in range(start, start + count))


def _deletes(
    item: Item,
    path: str,
    file_format: str,
    rows: int,
    size_bytes: int,
    offset: int | None = None,
    length_bytes: int | None = None,
) -> DataFile:
    """Deletes of rows of one data file, as a manifest has them."""
    record: JSON = {
        "content": POSITION_DELETES,
        "file_path": path,
        "file_format": file_format,
        "record_count": rows,
        "file_size_in_bytes": size_bytes,
        "referenced_data_file": item.path,
    }
    if offset is not None:
        record |= {"content_offset": offset, "content_size_in_bytes": length_bytes}
    else:  # by which readers of version 2 find out which file it is about
        bounds = [{"key": 2147483546, "value": item.path.encode()}]
        record |= {"lower_bounds": bounds, "upper_bounds": bounds}
    return DataFile(
        content=POSITION_DELETES,
        path=path,
        file_format=file_format,
        partition=item.partition,
        record_count=rows,
        size_bytes=size_bytes,
        first_row_id=None,
        referenced_data_file=item.path,
        record=record,
    )


def _new(file: DataFile) -> DataFile:
    """A file as one that is new to the table: it gets row ids of its own."""
    return replace(file, first_row_id=None, record={**file.record, "first_row_id": None})

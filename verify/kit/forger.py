"""A client that speaks the protocol by hand and writes manifests as it likes, honest or not."""

from __future__ import annotations

import io
import itertools
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from icetower.iceberg import metadata as table_metadata
from icetower.iceberg import puffin
from icetower.iceberg.manifest_writing import assign_first_row_ids, manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import (
    ADDED,
    DATA,
    DELETED,
    DataFile,
    Entry,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)
from icetower.iceberg.vectors import Vector, as_blob

JSON = dict[str, Any]
SCHEMA: JSON = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "region", "type": "int", "required": False},
        {"id": 2, "name": "product", "type": "int", "required": False},
    ],
}
SPEC: JSON = {
    "spec-id": 0,
    "fields": [
        {"name": "region", "transform": "identity", "source-id": 1, "field-id": 1000},
        {"name": "product", "transform": "identity", "source-id": 2, "field-id": 1001},
    ],
}
OWNER = """tables:
  - table: NS.t
    operations: [read, append, overwrite, delete]
    write_location: table
    partitions: [{region: 1, product: 2}]
"""
"""Owns one partition, (1, 2), of the table `t`."""

_ids = itertools.count(time.time_ns() // 1000)


def plain(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def data_file(
    path: str, partition: tuple[Any, ...], *, content: int = DATA, rows: int = 1, size_bytes: int = 100, **more: Any
) -> DataFile:
    kind = "PUFFIN" if more.get("referenced_data_file") and more.get("content_offset") is not None else "PARQUET"
    record: dict[str, Any] = {
        "content": content,
        "file_path": path,
        "file_format": kind,
        "record_count": rows,
        "file_size_in_bytes": size_bytes,
        **more,
    }
    path, kind = record["file_path"], record["file_format"]
    return DataFile(content, path, kind, partition, rows, size_bytes, None, more.get("referenced_data_file"), record)


@dataclass
class Forger:
    http: httpx2.Client
    namespace: str
    table: str = "t"

    @property
    def url(self) -> str:
        return f"/v1/namespaces/{self.namespace}/tables/{self.table}"

    def create(self, version: int = 2, spec: JSON | None = SPEC, **properties: str) -> JSON:
        body = {
            "name": self.table,
            "schema": SCHEMA,
            "partition-spec": spec,
            "properties": {"format-version": str(version), **properties},
        }
        answer = self.http.post(f"/v1/namespaces/{self.namespace}/tables", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["metadata"]

    def load(self) -> JSON:
        answer = self.http.get(self.url)
        assert answer.status_code == 200, answer.text
        return answer.json()["metadata"]

    def commit(self, requirements: list[JSON], updates: list[JSON], **headers: str) -> httpx2.Response:
        return self.http.post(self.url, json={"requirements": requirements, "updates": updates}, headers=headers)

    def send(self, request: tuple[list[JSON], list[JSON]], **headers: str) -> httpx2.Response:
        return self.commit(*request, **headers)

    def snapshot(
        self,
        groups: Sequence[tuple[int, Sequence[Entry]]],
        *,
        base: JSON | None = None,
        drop: Sequence[str] = (),
        operation: str = "append",
        summary: Mapping[str, str] | None = None,
        ref: str = "main",
        manifests: Sequence[ManifestFile] = (),
        rewrite: Any = None,
        snapshot_id: int | None = None,
    ) -> tuple[list[JSON], list[JSON]]:
        """Requirements and updates of one snapshot on the branch's head.

        Args:
            groups: (content, entries) of each new manifest.
            drop: manifests of the base that are left out.
            manifests: rows to be listed as they are.
            rewrite: a function over each new manifest's bytes.
        """
        base = base or self.load()
        version = base["format-version"]
        head_id = base["refs"].get(ref, {}).get("snapshot-id")
        number = base.get("last-sequence-number", 0) + 1
        snapshot_id = snapshot_id or next(_ids)
        folder = f"{base['location']}/metadata"
        rows: list[ManifestFile] = []
        for content, entries in groups:
            path = f"{folder}/{uuid.uuid4()}-m0.avro"
            shape: JSON = {
                "spec_fields": base["partition-specs"][0]["fields"],
                "spec_id": base["partition-specs"][0]["spec-id"],
                "schema": base["schemas"][0],
                "content": content,
                "snapshot_id": snapshot_id,
            }
            data = write_manifest(entries, format_version=version, **shape)
            row = manifest_row(path, data, entries, sequence_number=number if version > 1 else 0, **shape)
            plain(path).write_bytes(data if rewrite is None else rewrite(data))
            rows.append(row)
        kept = [row for row in self.rows(base, head_id) if row.path not in drop]
        listed: tuple[ManifestFile, ...] = (*rows, *manifests, *kept)
        extra: JSON = {}
        first = base.get("next-row-id") if version >= 3 else None
        if first is not None:
            listed, after = assign_first_row_ids(listed, first)
            extra = {"first-row-id": first, "added-rows": after - first}
        path = f"{folder}/snap-{snapshot_id}-{uuid.uuid4()}.avro"
        plain(path).write_bytes(
            write_manifest_list(
                listed,
                format_version=version,
                snapshot_id=snapshot_id,
                parent_id=head_id,
                sequence_number=number,
                first_row_id=first,
            )
        )
        snapshot: JSON = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": base["last-updated-ms"],
            "manifest-list": path,
            "summary": {"operation": operation, **(summary or {})},
            "schema-id": 0,
            **extra,
        }
        if version > 1:
            snapshot["sequence-number"] = number
        if head_id is not None:
            snapshot["parent-snapshot-id"] = head_id
        requirements: list[JSON] = [
            {"type": "assert-table-uuid", "uuid": base["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": head_id},
        ]
        return requirements, [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": snapshot_id},
        ]

    def append(self, *paths: str, partition: tuple[Any, ...] = (1, 2), **options: Any) -> tuple[list[JSON], list[JSON]]:
        base = options.pop("base", None) or self.load()
        entries = [added(self.path(base, path), partition) for path in paths]
        return self.snapshot([(DATA, entries)], base=base, **options)

    def publish(self, admin: Forger, request: tuple[list[JSON], list[JSON]]) -> None:
        """Stage a snapshot, and move its branch to it past the tower, whatever it adds once more."""
        requirements, (adding, moving) = request
        self.commit(requirements[:1], [adding]).raise_for_status()
        loaded = admin.http.get(self.url).raise_for_status().json()
        metadata, location = loaded["metadata"], str(loaded["metadata-location"])
        folder, _, name = location.rpartition("/")
        moved = f"{folder}/{int(name.partition('-')[0]) + 1:05}-{uuid.uuid4()}.metadata.json"
        plain(moved).write_bytes(orjson.dumps(table_metadata.apply(metadata, [moving], now_ms=int(time.time() * 1000))))
        database = plain(location.partition("/warehouse/")[0]) / "catalog.db"
        with closing(sqlite3.connect(database, timeout=30)) as catalog, catalog:
            update = "UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?"
            assert catalog.execute(update, (moved, location)).rowcount == 1

    def vector(
        self,
        base: JSON,
        name: str,
        target: str,
        positions: Iterable[int],
        partition: tuple[Any, ...] = (),
        beside: Sequence[str] = (),
        **lies: Any,
    ) -> Entry:
        """An entry of a deletion vector in a Puffin file of its own; `lies` change what is said of it.

        `beside`: data files for which there are vectors in the same file, of which no entry tells.
        """
        deleted = Vector.of(positions)
        vectors = [as_blob(deleted, each) for each in (target, *beside)]
        data, (blob, *_) = puffin.write(vectors, created_by="forger")
        path = self.path(base, name)
        plain(path).parent.mkdir(parents=True, exist_ok=True)
        plain(path).write_bytes(data)
        where = {"content_offset": blob.offset, "content_size_in_bytes": blob.length_bytes}
        properties = {"content": 1, "referenced_data_file": target, "rows": len(deleted), "size_bytes": len(data)}
        return added(path, partition, **{**properties, **where, **lies})

    def position_deletes(
        self, base: JSON, name: str, rows: Iterable[tuple[str, int]], partition: tuple[Any, ...] = (), **lies: Any
    ) -> Entry:
        """An entry of a position delete file of a whole partition."""
        some = list(rows)
        paths, positions = zip(*some, strict=True)
        fields = [
            pa.field(called, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})
            for called, kind, field_id in (("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545))
        ]
        out = io.BytesIO()
        pq.write_table(pa.table([pa.array(paths), pa.array(positions)], schema=pa.schema(fields)), out)
        path = self.path(base, name)
        plain(path).parent.mkdir(parents=True, exist_ok=True)
        plain(path).write_bytes(out.getvalue())
        return added(path, partition, **{"content": 1, "rows": len(some), "size_bytes": len(out.getvalue()), **lies})

    @staticmethod
    def path(base: JSON, name: str) -> str:
        return f"{base['location']}/data/{name}"

    @staticmethod
    def rows(metadata: JSON, snapshot_id: int | None) -> tuple[ManifestFile, ...]:
        found = next((s for s in metadata["snapshots"] if s["snapshot-id"] == snapshot_id), None)
        return () if found is None else read_manifest_list(plain(found["manifest-list"]).read_bytes())

    def live(self, ref: str = "main") -> list[str]:
        """Names of live files, deletes included, sorted; a file that is named twice is there twice."""
        metadata = self.load()
        head = metadata["refs"].get(ref, {}).get("snapshot-id")
        manifests = [read_manifest(plain(row.path).read_bytes()) for row in self.rows(metadata, head)]
        return sorted(e.file.path.rsplit("/", 1)[-1] for m in manifests for e in m.entries if e.status != DELETED)


def added(path: str, partition: tuple[Any, ...], **more: Any) -> Entry:
    return Entry(ADDED, None, None, None, data_file(path, partition, **more))

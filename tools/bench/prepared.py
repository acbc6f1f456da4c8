"""Commits that were prepared beforehand, so that the server is measured and not its clients.

Each is one blind append of one data file with one row, written on the same base snapshot: a real Parquet file, a
manifest, a manifest list, and the JSON body of the request, as an engine would have sent it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from icetower.agent import DataFile
from icetower.table.manifest_writing import manifest_row, write_manifest, write_manifest_list
from icetower.table.manifests import ManifestFile, read_manifest_list
from icetower.table.records import ADDED, Entry
from icetower.table.records import DataFile as TableFile

SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.int64()), ("note", pa.string())])
NOTE = "one row of one writer"
_PLACEHOLDER = 0x1122334455667788


@dataclass(frozen=True, slots=True)
class Prepared:
    """One commit, ready to be sent: the id of its only row, and the request's body."""

    row_id: int
    body: bytes


def rows(*ids: int, writer: int = 0) -> pa.Table:
    """Rows of the benchmark's table."""
    return pa.table({"id": ids, "writer": [writer] * len(ids), "note": [NOTE] * len(ids)}, schema=SCHEMA)


def _parquet_template() -> bytes:
    out = BytesIO()
    table = pa.table({"id": [_PLACEHOLDER], "writer": [0], "note": [NOTE]}, schema=_with_ids())
    pq.write_table(table, out, compression="none", use_dictionary=False)
    return out.getvalue()


def _with_ids() -> pa.Schema:
    """The schema with Iceberg's field ids, without which its readers would find nothing in the files."""
    return pa.schema(
        [field.with_metadata({b"PARQUET:field_id": str(at).encode()}) for at, field in enumerate(SCHEMA, 1)]
    )


_TEMPLATE = _parquet_template()


def parquet_of(row_id: int) -> bytes:
    """A Parquet file with one row of that id: the placeholder's bytes, in the page and in its statistics, replaced."""
    return _TEMPLATE.replace(struct.pack("<q", _PLACEHOLDER), struct.pack("<q", row_id))


def data_file(path: str, row_id: int, size_bytes: int) -> TableFile:
    """The data file as a writer describes it, with the metrics of its one row."""
    low = {1: struct.pack("<q", row_id), 2: struct.pack("<q", 0), 3: NOTE[:16].encode()}
    high = low | {3: NOTE[:15].encode() + b"s"}
    ones = [{"key": at, "value": 1} for at in (1, 2, 3)]
    record = {
        "file_path": path,
        "file_format": "PARQUET",
        "record_count": 1,
        "file_size_in_bytes": size_bytes,
        "column_sizes": [{"key": at, "value": 60} for at in (1, 2, 3)],
        "value_counts": ones,
        "null_value_counts": [{"key": at, "value": 0} for at in (1, 2, 3)],
        "lower_bounds": [{"key": at, "value": value} for at, value in low.items()],
        "upper_bounds": [{"key": at, "value": value} for at, value in high.items()],
        "split_offsets": [4],
        "sort_order_id": 0,
    }
    return TableFile(0, path, "PARQUET", (), 1, size_bytes, None, None, record)


def write_data_files(metadata: Mapping[str, Any], ids: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """Write a data file for each id under the table's location; gives id, path and size in bytes."""
    folder = _place(metadata["location"]) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for row_id in ids:
        place = folder / f"prepared-{row_id}.parquet"
        data = parquet_of(row_id)
        place.write_bytes(data)
        yield row_id, f"{metadata['location']}/data/{place.name}", len(data)


def prepare(metadata: Mapping[str, Any], ids: Sequence[int]) -> list[Prepared]:
    """Prepare one commit for each id on the table's current snapshot, which must be there."""
    base = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    base_rows = read_manifest_list(_place(base["manifest-list"]).read_bytes())
    made = write_data_files(metadata, ids)
    return [_prepare_one(metadata, base, base_rows, *one) for one in made]


def _prepare_one(
    metadata: Mapping[str, Any],
    base: Mapping[str, Any],
    base_rows: Sequence[ManifestFile],
    row_id: int,
    path: str,
    size_bytes: int,
) -> Prepared:
    snapshot_id = 4_000_000_000_000_000_000 + row_id
    sequence_number = metadata["last-sequence-number"] + 1
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    spec = metadata["partition-specs"][0]
    entries = [Entry(ADDED, snapshot_id, None, None, data_file(path, row_id, size_bytes))]
    common = {"spec_fields": spec["fields"], "spec_id": spec["spec-id"], "schema": schema, "content": 0}
    manifest = write_manifest(entries, format_version=metadata["format-version"], snapshot_id=snapshot_id, **common)
    manifest_path = f"{metadata['location']}/metadata/prepared-{row_id}-m0.avro"
    _place(manifest_path).write_bytes(manifest)
    row = manifest_row(
        manifest_path, manifest, entries, snapshot_id=snapshot_id, sequence_number=sequence_number, **common
    )
    list_path = f"{metadata['location']}/metadata/snap-{snapshot_id}-prepared.avro"
    _place(list_path).write_bytes(
        write_manifest_list(
            [row, *base_rows],
            format_version=metadata["format-version"],
            snapshot_id=snapshot_id,
            parent_id=base["snapshot-id"],
            sequence_number=sequence_number,
            first_row_id=None,
        )
    )
    summary = {
        "operation": "append",
        "added-data-files": "1",
        "added-records": "1",
        "added-files-size": str(size_bytes),
    }
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": base["snapshot-id"],
        "sequence-number": sequence_number,
        "timestamp-ms": base["timestamp-ms"] + 1,
        "manifest-list": list_path,
        "summary": summary,
        "schema-id": metadata["current-schema-id"],
    }
    requirements = [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": base["snapshot-id"]},
    ]
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id},
    ]
    return Prepared(row_id, orjson.dumps({"requirements": requirements, "updates": updates}))


def descriptors(metadata: Mapping[str, Any], ids: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Data files for the fast path: the id of the only row, and the file as the SDK describes it."""
    for row_id, path, size_bytes in write_data_files(metadata, ids):
        yield row_id, DataFile(path, 1, size_bytes).to_json()


def _place(path: str) -> Path:
    return Path(path.removeprefix("file://"))

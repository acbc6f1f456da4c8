"""Commits that were prepared beforehand, so that the server is measured and not its clients.

Each is one blind append of one data file with one row, written on the same base snapshot: a real Parquet file, a
manifest, a manifest list, and the JSON body of the request, as an engine would have sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.commits.shapes import FLAT, Shape, Values
from icetower.agent import DataFile
from icetower.iceberg.manifest_writing import manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import ManifestFile, read_manifest_list
from icetower.iceberg.records import ADDED, Entry
from icetower.iceberg.records import DataFile as TableFile


@dataclass(frozen=True, slots=True)
class Prepared:
    """One commit, ready to be sent: the id of its only row, and the request's body."""

    row_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What is prepared for a row.

    Attributes:
        values: row id → the numbers of its row.
        folder: row id → where under the table's `data` its file goes.
        summary: row id → properties of its snapshot besides those that every append has.
    """

    shape: Shape = FLAT
    values: Callable[[int], Values] = lambda row_id: {"id": row_id}
    folder: Callable[[int], str] = lambda _: ""
    summary: Callable[[int], Mapping[str, str]] = lambda _: {}


PLAIN = Plan()


def write_data_files(metadata: Mapping[str, Any], ids: Sequence[int], plan: Plan = PLAIN) -> Iterator[TableFile]:
    """Write a data file for each id under the table's location."""
    for row_id in ids:
        folder = f"{metadata['location']}/data/{plan.folder(row_id)}".rstrip("/")
        path = f"{folder}/prepared-{row_id}.parquet"
        data = plan.shape.parquet(plan.values(row_id))
        _place(folder).mkdir(parents=True, exist_ok=True)
        _place(path).write_bytes(data)
        yield plan.shape.file(path, plan.values(row_id), len(data))


def prepare(metadata: Mapping[str, Any], ids: Sequence[int], plan: Plan = PLAIN) -> list[Prepared]:
    """Prepare one commit for each id on the table's current snapshot, which must be there."""
    base = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    base_rows = read_manifest_list(_place(base["manifest-list"]).read_bytes())
    made = zip(ids, write_data_files(metadata, ids, plan), strict=True)
    return [prepare_one(metadata, base, base_rows, row_id, file, plan.summary(row_id)) for row_id, file in made]


def prepare_one(
    metadata: Mapping[str, Any],
    base: Mapping[str, Any],
    base_rows: Sequence[ManifestFile],
    row_id: int,
    file: TableFile,
    more: Mapping[str, str],
) -> Prepared:
    """One commit of one data file on a base snapshot with the manifest list `base_rows`."""
    snapshot_id = 4_000_000_000_000_000_000 + row_id
    sequence_number = metadata["last-sequence-number"] + 1
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    spec = metadata["partition-specs"][0]
    entries = [Entry(ADDED, snapshot_id, None, None, file)]
    common: dict[str, Any] = {"spec_fields": spec["fields"], "spec_id": spec["spec-id"], "schema": schema, "content": 0}
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
        "added-files-size": str(file.size_bytes),
        **more,
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
    for row_id, file in zip(ids, write_data_files(metadata, ids), strict=True):
        yield row_id, DataFile(file.path, 1, file.size_bytes).to_json()


def _place(path: str) -> Path:
    return Path(path.removeprefix("file://"))

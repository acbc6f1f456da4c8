"""A table with a long history, made without committing it: so that a peer can be measured at 20,000 commits at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from bench.commits.verify import NAMESPACE, TABLE, head_of
from icetower.iceberg.manifest_writing import write_manifest_list
from icetower.iceberg.manifests import read_manifest_list

SNAPSHOT_IDS_FROM = 3_000_000_000_000_000_000
METADATA_LOG_MAX = 100


def lengthen(database: Path, commits: int) -> None:
    """Give the table as many more snapshots as if each had appended one manifest, and point the catalog at the result.

    Their manifests are listed, but only the first is there: whoever appends reads the list and none of them.
    """
    if not commits:
        return
    metadata = head_of(database)
    first = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    (row,) = read_manifest_list(_place(first["manifest-list"]).read_bytes())
    folder = f"{metadata['location']}/metadata"
    rows = [row]
    snapshots, log = list(metadata["snapshots"]), list(metadata["snapshot-log"])
    number = metadata["last-sequence-number"]
    for at in range(commits):
        number += 1
        snapshot_id = SNAPSHOT_IDS_FROM + at
        path = f"{folder}/{snapshot_id}-m0.avro"
        numbers = {"sequence_number": number, "min_sequence_number": number, "added_snapshot_id": snapshot_id}
        rows.append(replace(row, path=path, **numbers))
        snapshots.append(
            {
                "snapshot-id": snapshot_id,
                "parent-snapshot-id": snapshots[-1]["snapshot-id"],
                "sequence-number": number,
                "timestamp-ms": first["timestamp-ms"] + at + 1,
                "manifest-list": f"{folder}/snap-{snapshot_id}-0-{uuid4()}.avro",
                "summary": dict(first["summary"]),
                "schema-id": metadata["current-schema-id"],
            }
        )
        log.append({"snapshot-id": snapshot_id, "timestamp-ms": snapshots[-1]["timestamp-ms"]})
    last = snapshots[-1]
    _place(last["manifest-list"]).write_bytes(
        write_manifest_list(
            reversed(rows),
            format_version=2,
            snapshot_id=last["snapshot-id"],
            parent_id=last["parent-snapshot-id"],
            sequence_number=number,
            first_row_id=None,
        )
    )
    _point(database, _long(metadata, snapshots, log, number))


def _long(metadata: Mapping[str, Any], snapshots: list[Any], log: list[Any], number: int) -> Mapping[str, Any]:
    last = snapshots[-1]
    return dict(metadata) | {
        "last-sequence-number": number,
        "last-updated-ms": last["timestamp-ms"],
        "current-snapshot-id": last["snapshot-id"],
        "refs": {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": log,
        "metadata-log": list(metadata.get("metadata-log", ()))[-METADATA_LOG_MAX:],
    }


def _point(database: Path, metadata: Mapping[str, Any]) -> None:
    location = f"{metadata['location']}/metadata/{metadata['last-sequence-number']:05d}-{uuid4()}.metadata.json"
    _place(location).write_bytes(orjson.dumps(metadata))
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute(
            "update iceberg_tables set metadata_location = ? where table_namespace = ? and table_name = ?",
            (location, NAMESPACE, TABLE),
        )


def _place(path: str) -> Path:
    return Path(path.removeprefix("file://"))

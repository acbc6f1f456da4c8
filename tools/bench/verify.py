"""The table after a run, read from its files and by nobody's server: which rows are in it?"""

from __future__ import annotations

import gzip
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from icetower.protocol.marks import GROUP_FILE
from icetower.table.groups import read_group
from icetower.table.manifests import read_manifest, read_manifest_list

NAMESPACE, TABLE = "bench", "t"


def head_of(database: Path) -> dict[str, Any]:
    """The metadata of the benchmark's table, by the pointer in the catalog's database."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        query = "select metadata_location from iceberg_tables where table_namespace = ? and table_name = ?"
        (location,) = connection.execute(query, (NAMESPACE, TABLE)).fetchone()
    finally:
        connection.close()
    data = _read(location)
    return orjson.loads(gzip.decompress(data) if location.endswith(".gz.metadata.json") else data)


def row_ids(metadata: Mapping[str, Any]) -> Iterator[int]:
    """The ids in the table's current snapshot: each of its files has one row, whose id is the file's lower bound.

    Raises `ValueError` where a file says otherwise.
    """
    current = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    for row in read_manifest_list(_read(current["manifest-list"])):
        for entry in read_manifest(_read(row.path)).entries:
            if entry.status == 2:
                continue
            low = {pair["key"]: pair["value"] for pair in entry.file.record.get("lower_bounds") or ()}
            if entry.file.record_count != 1 or 1 not in low:
                raise ValueError(f"{entry.file.path} is not one row with a known id")
            yield struct.unpack("<q", low[1])[0]


def attributions(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Principal and key of every append that the table's group files tell of."""
    for snapshot in metadata["snapshots"]:
        path = (snapshot.get("summary") or {}).get(GROUP_FILE)
        for append in read_group(_read(path)).appends if path else ():
            yield append.principal, append.key


def metadata_files(metadata: Mapping[str, Any]) -> int:
    """How many metadata files lie under the table."""
    folder = Path(metadata["location"].removeprefix("file:").replace("///", "/")) / "metadata"
    return sum(1 for _ in folder.glob("*.metadata.json"))


def _read(path: str) -> bytes:
    return Path("/" + path.removeprefix("file:").lstrip("/")).read_bytes()

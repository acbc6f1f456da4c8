"""The table after a run, read from its files and by nobody's server: which rows are in it?"""

from __future__ import annotations

import gzip
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from icetower.iceberg.manifests import read_manifest, read_manifest_list
from icetower.protocol.marks import GROUP_FILE
from icetower.table.groups import read_group

NAMESPACE, TABLE = "bench", "t"


def head_of(database: Path, namespace: str = NAMESPACE, table: str = TABLE) -> dict[str, Any]:
    """The metadata of a table, by the pointer in the catalog's database."""
    location = location_of(database, namespace, table)
    data = _read(location)
    return orjson.loads(gzip.decompress(data) if location.endswith(".gz.metadata.json") else data)


def location_of(database: Path, namespace: str = NAMESPACE, table: str = TABLE) -> str:
    """Where a table's metadata file lies, by the pointer in the catalog's database."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        query = "select metadata_location from iceberg_tables where table_namespace = ? and table_name = ?"
        (location,) = connection.execute(query, (namespace, table)).fetchone()
    finally:
        connection.close()
    return location


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


@dataclass(frozen=True, slots=True)
class Litter:
    """What lies under a table, by what its metadata says of it.

    Attributes:
        data: data files that no snapshot names.
        metadata: manifests, their lists and metadata files that nothing names.
    """

    data: tuple[str, ...]
    metadata: tuple[str, ...]


def litter(database: Path) -> Litter:
    """Look through the benchmark's table: all of its snapshots are there, since nothing expires."""
    metadata = head_of(database)
    named = {
        plain(location_of(database)),
        *(plain(entry["metadata-file"]) for entry in metadata.get("metadata-log", ())),
    }
    for snapshot in metadata["snapshots"]:
        named.add(plain(snapshot["manifest-list"]))
        group_file = (snapshot.get("summary") or {}).get(GROUP_FILE)
        named |= {plain(group_file)} if group_file else set()
        rows = [row for row in read_manifest_list(_read(snapshot["manifest-list"])) if plain(row.path) not in named]
        for row in rows:
            named.add(plain(row.path))
            named |= {plain(entry.file.path) for entry in read_manifest(_read(row.path)).entries}
    root = Path(plain(metadata["location"]))
    lying = [str(path) for path in root.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    lost = sorted(path for path in lying if path not in named)
    data = tuple(path for path in lost if path.endswith(".parquet"))
    return Litter(data, tuple(path for path in lost if not path.endswith(".parquet")))


def plain(path: str) -> str:
    """The path of a local file, however its scheme is written."""
    return "/" + path.removeprefix("file:").lstrip("/")


def metadata_files(metadata: Mapping[str, Any]) -> int:
    """How many metadata files lie under the table."""
    folder = Path(metadata["location"].removeprefix("file:").replace("///", "/")) / "metadata"
    return sum(1 for _ in folder.glob("*.metadata.json"))


def _read(path: str) -> bytes:
    return Path(plain(path)).read_bytes()

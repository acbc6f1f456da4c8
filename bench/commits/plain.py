"""Plain optimistic concurrency, and a pessimistic table lock, without any client's overhead.

Writers are tasks of one process that do what a writer has to do and no more: load the head (pointer, metadata file,
manifest list), write a manifest list and a metadata file, swap the pointer in SQLite. Each file is really read and
written, after the latency of the profile. The manifest is taken as written, as in prepared commits.

Optimistic writers that lose the swap load the head again and retry as Iceberg's client does: four retries, after
100 ms x 2^n (at most a minute, 10 % jitter). Writers under the lock hold it from the load to the swap, as that
introduction describes it; the lock itself is for free.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from bench.commits.operations import Operation
from bench.commits.protocol_writers import Load
from bench.commits.verify import NAMESPACE, TABLE
from icetower.demo.latency import Latency
from icetower.iceberg.manifest_writing import write_manifest_list
from icetower.iceberg.manifests import ManifestFile, read_manifest_list

RETRIES = 4
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 60.0
METADATA_LOG_MAX = 100
"""Iceberg's default, `write.metadata.previous-versions-max`."""


@dataclass(frozen=True, slots=True)
class _Head:
    location: str
    metadata: dict[str, Any]
    rows: tuple[ManifestFile, ...]


class Plain:
    """A table on SQLite and local files, and the writers that commit to it."""

    def __init__(self, database: Path, latency: Latency, manifest: ManifestFile, *, locked: bool) -> None:
        self._connection = sqlite3.connect(database, isolation_level=None, timeout=30)
        self._latency = latency
        self._manifest = manifest
        self._lock = asyncio.Lock() if locked else None
        self._random = random.Random(latency.profile.name)

    def run(self, writers: int, seconds: float) -> Load:
        """Write for so many seconds, then let everybody finish."""
        try:
            return asyncio.run(self._run(writers, seconds))
        finally:
            self._connection.close()

    async def _run(self, writers: int, seconds: float) -> Load:
        done: list[Operation] = []
        used, from_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()

        async def writer(number: int) -> None:
            row_id = (number + 1) * 1_000_000
            while time.monotonic() < from_s + seconds:
                row_id += 1
                start_s = time.monotonic()
                retries, landed = await self._append(row_id, from_s + seconds)
                if retries is None:
                    return
                done.append(Operation(row_id, start_s, time.monotonic(), "ok" if landed else "conflict", retries))

        await asyncio.gather(*(writer(number) for number in range(writers)))
        after = resource.getrusage(resource.RUSAGE_SELF)
        return Load(done, from_s, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime)

    async def _append(self, row_id: int, until_s: float) -> tuple[int | None, bool]:
        """The retries, and whether it landed; None where the time was over before the lock was free."""
        for attempt in range(RETRIES + 1):
            if attempt:
                wait_s = min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S)
                await asyncio.sleep(wait_s * (1 + 0.1 * self._random.random()))
            async with self._turn():
                if self._lock is not None and time.monotonic() >= until_s:
                    return None, False
                head = await self._load()
                location = await self._write(head, row_id)
                if self._swap(head.location, location):
                    return attempt, True
        return RETRIES, False

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        if self._lock is None:
            yield
            return
        async with self._lock:
            yield

    async def _load(self) -> _Head:
        query = "select metadata_location from iceberg_tables where table_namespace = ? and table_name = ?"
        (location,) = self._connection.execute(query, (NAMESPACE, TABLE)).fetchone()
        metadata = orjson.loads(await self._get(location))
        snapshot_id = metadata["current-snapshot-id"]
        current = next(s for s in reversed(metadata["snapshots"]) if s["snapshot-id"] == snapshot_id)
        return _Head(location, metadata, read_manifest_list(await self._get(current["manifest-list"])))

    async def _write(self, head: _Head, row_id: int) -> str:
        metadata, snapshot_id = head.metadata, 4_000_000_000_000_000_000 + row_id
        sequence_number = metadata["last-sequence-number"] + 1
        folder = f"{metadata['location']}/metadata"
        list_path = f"{folder}/snap-{snapshot_id}-{uuid4()}.avro"
        own = replace(
            self._manifest,
            path=f"{folder}/{row_id}-m0.avro",
            added_snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            min_sequence_number=sequence_number,
        )
        data = write_manifest_list(
            [own, *head.rows],
            format_version=2,
            snapshot_id=snapshot_id,
            parent_id=metadata["current-snapshot-id"],
            sequence_number=sequence_number,
            first_row_id=None,
        )
        await self._put(list_path, data)
        snapshot = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": metadata["current-snapshot-id"],
            "sequence-number": sequence_number,
            "timestamp-ms": max(int(time.time() * 1000), metadata["last-updated-ms"]),
            "manifest-list": list_path,
            "summary": {"operation": "append", "added-data-files": "1", "added-records": "1"},
            "schema-id": metadata["current-schema-id"],
        }
        log = [
            *metadata.get("metadata-log", ()),
            {"metadata-file": head.location, "timestamp-ms": snapshot["timestamp-ms"]},
        ]
        new = metadata | {
            "last-sequence-number": sequence_number,
            "last-updated-ms": snapshot["timestamp-ms"],
            "current-snapshot-id": snapshot_id,
            "snapshots": [*metadata["snapshots"], snapshot],
            "snapshot-log": [
                *metadata.get("snapshot-log", ()),
                {"snapshot-id": snapshot_id, "timestamp-ms": snapshot["timestamp-ms"]},
            ],
            "refs": metadata["refs"] | {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
            "metadata-log": log[-METADATA_LOG_MAX:],
        }
        location = f"{folder}/{metadata['last-sequence-number'] + 1:05d}-{uuid4()}.metadata.json"
        await self._put(location, orjson.dumps(new))
        return location

    def _swap(self, expected: str, new: str) -> bool:
        statement = (
            "update iceberg_tables set metadata_location = ?, previous_metadata_location = ? "
            "where table_namespace = ? and table_name = ? and metadata_location = ?"
        )
        return self._connection.execute(statement, (new, expected, NAMESPACE, TABLE, expected)).rowcount == 1

    async def _get(self, path: str) -> bytes:
        await asyncio.sleep(self._latency.get_s())
        return _place(path).read_bytes()

    async def _put(self, path: str, data: bytes) -> None:
        await asyncio.sleep(self._latency.put_s(len(data)))
        _place(path).write_bytes(data)


def _place(path: str) -> Path:
    return Path(path.removeprefix("file://"))

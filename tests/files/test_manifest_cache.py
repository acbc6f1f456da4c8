"""What is kept of manifests and manifest lists is bounded by the memory that it takes, however wide the tables are."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace

import pytest

from icetower.files import changes
from icetower.files.changes import Manifests
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifest_writing import manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import ADDED, DATA, DataFile, Entry, FieldSummary, ManifestFile
from icetower.recent import Budget, Recent
from icetower.storage.port import ANY_FILE, Bound

SHAPE = {
    "spec_fields": (),
    "spec_id": 0,
    "schema": {"type": "struct", "fields": []},
    "content": DATA,
    "snapshot_id": 7,
}
MIB = 1024 * 1024
STATISTICS = ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")


class Memory:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.read_paths: list[str] = []

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        self.read_paths.append(path)
        return self.files[path]


def entries(count: int, columns: int, bound_bytes: int = 8) -> list[Entry]:
    made: list[Entry] = []
    for n in range(count):
        path = f"s3://bucket/warehouse/db/t/data/{n:040d}.parquet"
        record = {"content": DATA, "file_path": path, "file_format": "PARQUET"}
        record |= {"record_count": 10, "file_size_in_bytes": 100}
        for name in STATISTICS if columns else ():
            values = [n.to_bytes(bound_bytes, "big") if name.endswith("bounds") else 1000 + n] * columns
            record[name] = [{"key": 1 + at, "value": value} for at, value in enumerate(values)]
        made.append(Entry(ADDED, None, None, None, DataFile(DATA, path, "PARQUET", (), 10, 100, None, None, record)))
    return made


@pytest.mark.parametrize(("count", "columns", "bound_bytes"), [(500, 0, 8), (100, 10, 8), (25, 80, 8), (25, 4, 20_000)])
def test_manifests_are_kept_by_what_they_take_in_memory(count: int, columns: int, bound_bytes: int) -> None:
    storage = Memory()
    data = write_manifest(entries(count, columns, bound_bytes), format_version=2, **SHAPE)
    paths = [f"m{n}.avro" for n in range(24)]
    storage.files = dict.fromkeys(paths, data)
    manifests = Manifests(storage, budget=Budget(8 * MIB))  # type: ignore[arg-type]

    async def story() -> int:
        await manifests.manifest_at(paths[0])  # what is parsed once for all stays
        tracemalloc.start()
        for path in paths:
            await manifests.manifest_at(path)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return taken

    taken = asyncio.run(story())
    assert 2 * MIB < taken < 4.5 * MIB
    read = len(storage.read_paths)
    asyncio.run(manifests.manifest_at(paths[-1]))
    assert len(storage.read_paths) == read, "the newest is kept"
    asyncio.run(manifests.manifest_at(paths[0]))
    assert len(storage.read_paths) == read + 1, "the oldest had to go"


def rows(count: int, fields: int, prefix: str = "") -> tuple[ManifestFile, ...]:
    only = entries(1, 0)
    row = manifest_row("m", write_manifest(only, format_version=2, **SHAPE), only, sequence_number=1, **SHAPE)
    summaries = tuple(FieldSummary(False, False, bytes([at, 0]), bytes([at, 1])) for at in range(fields))
    return tuple(
        replace(row, path=f"s3://bucket/warehouse/db/t/metadata/{prefix}{n:040d}-m0.avro", partitions=summaries)
        for n in range(count)
    )


def taken_by_lists(manifests: Manifests, storage: Memory) -> int:
    """What it keeps when it has read all lists, in bytes."""

    async def story() -> int:
        tracemalloc.start()
        for path in storage.files:
            await manifests.list_at(path)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return taken

    return asyncio.run(story())


@pytest.mark.parametrize("fields", [0, 6])
def test_rows_that_were_met_are_kept_by_what_they_take_in_memory(fields: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ROWS_SHARE", 1.0)
    storage = Memory()
    ids = {"format_version": 2, "snapshot_id": 1, "parent_id": None, "sequence_number": 1, "first_row_id": None}
    storage.files = {f"l{n}.avro": write_manifest_list(rows(400, fields, f"{n}-"), **ids) for n in range(24)}
    budget = Budget(2 * MIB)
    manifests = Manifests(storage, budget=budget)  # type: ignore[arg-type]
    monkeypatch.setattr(manifests, "_lists", Recent(1))
    assert MIB // 2 < taken_by_lists(manifests, storage) < 2.5 * MIB
    assert list(filter(None, budget.by_cache().values())) == [budget.used_bytes]


@pytest.mark.parametrize("fields", [0, 6])
def test_manifest_lists_are_kept_by_what_they_take_in_memory(fields: int) -> None:
    storage = Memory()
    ids = {"format_version": 2, "snapshot_id": 1, "parent_id": None, "sequence_number": 1, "first_row_id": None}
    listed = rows(400, fields)
    storage.files = {f"l{n}.avro": write_manifest_list(rows(400, fields, f"{n}-"), **ids) for n in range(24)}
    budget = Budget(4 * MIB)
    manifests = Manifests(storage, budget=budget)  # type: ignore[arg-type]
    assert MIB // 2 < taken_by_lists(manifests, storage) < 3 * MIB
    assert budget.by_cache()["manifest lists"] < 2.5 * MIB, "no more than the part of this kind"
    before = len(manifests.listings)
    assert 1 < before < 24
    manifests.remember("new", Listing.of(()))
    assert len(manifests.listings) == before + 1, "one without rows takes hardly anything"
    for n in range(24):
        manifests.remember_own(f"own{n}", listed)
    assert 1 <= len(manifests.own) <= before
    assert budget.used_bytes <= budget.max_bytes

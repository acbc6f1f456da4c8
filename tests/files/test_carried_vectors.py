"""A second deletion vector beside one in a manifest that a commit carries over is found, and little is read for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icetower.files.changes import PRUNED_BY_MAX, Manifests, _carried_vectors, read_changes
from icetower.iceberg.manifest_writing import manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import ADDED, POSITION_DELETES, DataFile, Entry, ManifestFile
from icetower.protocol.updates import Updates
from icetower.storage.port import ANY_FILE, Bound

SCHEMA: dict[str, Any] = {
    "schema-id": 0,
    "type": "struct",
    "fields": [{"id": 1, "name": "region", "type": "int", "required": False}],
}
FIELDS = ({"name": "region", "transform": "identity", "source-id": 1, "field-id": 1000},)
SPEC = {"spec-id": 0, "fields": list(FIELDS)}


def vector(name: str, target: str, region: int) -> Entry:
    record = {"content": 1, "file_path": name, "file_format": "PUFFIN", "record_count": 1, "file_size_in_bytes": 100}
    record |= {"referenced_data_file": target, "content_offset": 4, "content_size_in_bytes": 40}
    file = DataFile(POSITION_DELETES, name, "PUFFIN", (region,), 1, 100, None, target, record)
    return Entry(ADDED, None, None, None, file)


class World:
    """A table with one delete manifest for each of some vectors, and a commit of others on it."""

    def __init__(self, *there: tuple[str, int]) -> None:
        self.files: dict[str, bytes] = {}
        self.reads: list[str] = []
        self.manifests = Manifests(self)  # type: ignore[arg-type]
        rows = [self.manifest(f"old{n}", 1, [vector(f"old{n}.puffin", *at)]) for n, at in enumerate(there)]
        self.rows = tuple(rows)
        self.metadata: dict[str, Any] = {
            "location": "t",
            "schemas": [SCHEMA],
            "current-schema-id": 0,
            "partition-specs": [SPEC],
            "snapshots": [self.snapshot(1, None, self.rows)],
        }

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        self.reads.append(path)
        return self.files[path]

    def manifest(self, name: str, number: int, entries: list[Entry], content: int = 1) -> ManifestFile:
        shape: dict[str, Any] = {"spec_fields": FIELDS, "spec_id": 0, "schema": SCHEMA, "content": content}
        shape |= {"snapshot_id": number}
        data = self.files[f"t/{name}"] = write_manifest(entries, format_version=3, **shape)
        return manifest_row(f"t/{name}", data, entries, sequence_number=number, **shape)

    def snapshot(self, number: int, parent: int | None, rows: tuple[ManifestFile, ...]) -> dict[str, Any]:
        path = f"t/list{number}"
        ids = {"snapshot_id": number, "parent_id": parent, "sequence_number": number, "first_row_id": 0}
        self.files[path] = write_manifest_list(rows, format_version=3, **ids)
        snapshot = {"snapshot-id": number, "sequence-number": number, "manifest-list": path}
        return snapshot if parent is None else {**snapshot, "parent-snapshot-id": parent}

    def commit(self, number: int, *added: tuple[str, int], content: int = 1) -> list[str]:
        """Its problems. The manifests that are there and were read are in `reads` then."""
        entries = [vector(f"new{n}.puffin", *at) for n, at in enumerate(added)]
        row = self.manifest(f"new{number}", number, entries, content)
        update = {"action": "add-snapshot", "snapshot": self.snapshot(number, 1, (row, *self.rows))}
        self.reads.clear()
        (change,) = asyncio.run(read_changes(self.manifests, self.metadata, Updates([update])))
        self.reads = [path for path in self.reads if path.startswith("t/old")]
        return [problem for problem in change.problems if "deletion vector" in problem]


@pytest.mark.parametrize("there", [[("a", 1)], [("a", 1), ("b", 2), ("c", 1)], [("c", 1), ("a", 1)]])
def test_a_second_vector_is_found_among_those_of_its_own_partition(there: list[tuple[str, int]]) -> None:
    world = World(*there)
    place = f"t/old{there.index(('a', 1))}"
    (problem,) = world.commit(2, ("a", 1))
    assert problem.startswith(f"file a has a deletion vector in manifest {place} already")
    assert world.reads == [f"t/old{n}" for n, (_, region) in enumerate(there) if region == 1]
    assert world.commit(3, ("a", 1), ("z", 1)) == [problem]
    assert world.reads == [], "what was read is known"


def test_nothing_is_read_where_no_vector_comes() -> None:
    world = World(("a", 1), ("b", 1))
    assert world.commit(2) == []
    assert world.reads == []


def test_where_vectors_come_for_many_partitions_all_are_looked_into_once() -> None:
    world = World(*((f"{region}", region) for region in range(20)))
    assert world.commit(2, *((f"new{region}", region) for region in range(PRUNED_BY_MAX + 1))) == []
    assert len(world.reads) == 20
    assert world.commit(3, ("19", 1))
    assert world.reads == []


@pytest.mark.parametrize(("region", "reads"), [("a text", 1), (b"\x01", 1), (2**40, 0), (1.5, 0)])
def test_r5_a_partition_value_that_is_none_of_the_specs_reads_rather_than_fails(region: Any, reads: int) -> None:
    world = World(("a", 1), ("b", 2))
    found = asyncio.run(_carried_vectors(world.manifests, world.metadata, world.rows, {"b": {(0, (region,))}}))
    assert found == ({"b": "t/old1"} if reads else {})

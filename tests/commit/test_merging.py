"""Trap S4: small manifests are merged, and nobody can tell but by the number of manifests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.commit import merging
from icetower.commit.merging import ENTRIES_MAX, MANIFESTS_MAX, Merge, merge_small
from icetower.iceberg import avro_files
from icetower.iceberg.entries import Files, NeedsFiles
from icetower.iceberg.listing import Listing, assign_row_ids, write_listing
from icetower.iceberg.manifest_writing import manifest_row, write_manifest
from icetower.iceberg.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    DataFile,
    Entry,
    Manifest,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)

JSON = dict[str, Any]
SCHEMA: JSON = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "day", "required": False, "type": "date"},
    ],
}
SPECS: list[JSON] = [
    {"spec-id": 0, "fields": []},
    {"spec-id": 1, "fields": [{"name": "day", "transform": "identity", "source-id": 2, "field-id": 1000}]},
]


def metadata(version: int = 3, **properties: str) -> JSON:
    names = {"count": "commit.manifest.min-count-to-merge", "size": "commit.manifest.target-size-bytes"}
    names |= {"enabled": "commit.manifest-merge.enabled"}
    return {
        "format-version": version,
        "schemas": [SCHEMA],
        "current-schema-id": 0,
        "partition-specs": SPECS,
        "properties": {names[key]: value for key, value in properties.items()},
    }


class World:
    """Manifests as bytes, and the list that names them, newest first."""

    def __init__(self, version: int = 3) -> None:
        self.version = version
        self.manifests: dict[str, Manifest] = {}
        self.listing = Listing.of([])
        self.next_row_id = 0
        self.number = 0
        self.files = itertools.count()
        self.names = itertools.count()

    def entry(
        self, status: int = ADDED, *, spec_id: int = 1, day: int | None = 1, content: int = 0, **own: Any
    ) -> Entry:
        record: JSON = {
            "content": content,
            "file_path": f"s3://b/t/f{next(self.files)}.parquet",
            "file_format": "PARQUET",
            "record_count": 10,
            "file_size_in_bytes": 100,
            "lower_bounds": [{"key": 1, "value": b"\x01"}],
            "sort_order_id": 0,
        }
        row_id = own.pop("first_row_id", None)
        file = DataFile(
            content, record["file_path"], "PARQUET", (day,) if spec_id else (), 10, 100, row_id, None, record
        )
        return Entry(status, own.get("snapshot_id"), own.get("sequence_number"), own.get("file_sequence_number"), file)

    def commit(self, *entries: Entry, spec_id: int = 1, content: int = 0) -> ManifestFile:
        """One more snapshot, with a manifest of these entries; its id and sequence number are `self.number`."""
        self.number += 1
        path = f"s3://b/t/m{next(self.names)}.avro"
        shape: JSON = {
            "spec_fields": tuple(SPECS[spec_id]["fields"]),
            "spec_id": spec_id,
            "schema": SCHEMA,
            "content": content,
            "snapshot_id": self.number,
        }
        data = write_manifest(entries, format_version=self.version, **shape)
        self.manifests[path] = read_manifest(data)
        self.listing = self.listing.prepend([manifest_row(path, data, entries, sequence_number=self.number, **shape)])
        self.assign()
        row = self.listing.get(path)
        assert row is not None
        return row

    def assign(self) -> None:
        if self.version >= 3:
            self.listing, self.next_row_id = assign_row_ids(self.listing, self.next_row_id)

    def merge(self, table: JSON | None = None, *, through: int | None = None) -> Merge | None:
        return merge_small(
            self.listing,
            Files({}, self.manifests),
            table if table is not None else metadata(self.version, count="10"),
            snapshot_id=1000 + self.number,
            sequence_number=self.number + 1,
            new_path=lambda: f"s3://b/t/merged{next(self.names)}.avro",
            through=self.number if through is None else through,
        )

    def take(self, merge: Merge) -> ManifestFile | None:
        """The table after the merge, with manifests read from the bytes that were written."""
        self.number += 1
        for path, data in merge.files.items():
            read = read_manifest(data)
            said = merge.manifests[path]
            assert list(map(_told, read.entries)) == list(map(_told, said.entries)), "what it says it wrote is written"
            assert replace(read, entries=()) == replace(said, entries=())
            self.manifests[path] = read
        self.listing = merge.listing
        self.assign()
        return next((row for row in self.listing if row.path in merge.files), None)


def live(world: World) -> dict[str, tuple[Any, ...]]:
    """All live entries of a list, with all that they inherit, by path of their file."""
    files = Files({}, world.manifests)
    found: dict[str, tuple[Any, ...]] = {}
    for row in world.listing:
        for each in files.live(row):
            assert each.path not in found, "no file twice"
            file = each.entry.file
            numbers = (each.snapshot_id, each.sequence_number, each.file_sequence_number, file.first_row_id)
            found[each.path] = (row.spec_id, *numbers, file.partition, file.record_count, _told(each.entry)[-1])
    return found


def _told(entry: Entry) -> tuple[Any, ...]:
    """An entry by what it says; a record's own copy of the row id, and its empty fields, say nothing."""
    file = entry.file
    record = {key: value for key, value in file.record.items() if value is not None and key != "first_row_id"}
    return replace(entry, file=replace(file, record={})), record


def test_s4_a_merged_manifest_holds_existing_entries_with_all_that_they_inherited_written_out() -> None:
    world = World()
    for day in range(10):
        world.commit(world.entry(day=day), world.entry(day=day))
    before = live(world)
    merge = world.merge()
    assert merge is not None
    assert len(merge.replaced) == 10
    row = world.take(merge)
    assert row is not None
    assert live(world) == before
    assert len(world.listing) == 1
    entries = world.manifests[row.path].entries
    assert {entry.status for entry in entries} == {EXISTING}
    assert sorted({(e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in entries}) == [
        (number, number, number) for number in range(1, 11)
    ]
    assert sorted(entry.file.first_row_id or 0 for entry in entries) == [10 * at for at in range(20)]
    assert (row.added_snapshot_id, row.sequence_number, row.min_sequence_number) == (1010, 11, 1)
    assert (row.added_files, row.existing_files, row.deleted_files) == (0, 20, 0)
    assert (row.added_rows, row.existing_rows, row.deleted_rows) == (0, 200, 0)
    assert row.partitions is not None
    assert (row.partitions[0].lower, row.partitions[0].upper) == (b"\0\0\0\0", b"\x09\0\0\0")
    assert row.first_row_id == 200, (
        "as Java: EXISTING entries have ids of their own, the manifest gets one all the same"
    )


def test_s4_deleted_entries_are_dropped_and_dead_manifests_with_them() -> None:
    world = World()
    for number in range(9):
        world.commit(world.entry())
        world.commit(world.entry(DELETED, snapshot_id=1, sequence_number=1, file_sequence_number=1))
        gone = world.entry(DELETED, snapshot_id=1, sequence_number=1, file_sequence_number=1)
        world.commit(world.entry(), gone, world.entry(EXISTING, snapshot_id=1, sequence_number=number))
    before = live(world)
    merge = world.merge()
    assert merge is not None
    row = world.take(merge)
    assert live(world) == before
    assert row is not None
    assert (len(world.listing), row.deleted_files) == (1, 0)


def test_manifests_that_hold_nothing_alive_go_without_being_read() -> None:
    world = World()
    for _ in range(10):
        world.commit(world.entry(DELETED, snapshot_id=1, sequence_number=1, file_sequence_number=1))
    world.manifests.clear()
    merge = world.merge()
    assert merge is not None
    assert (len(merge.listing), merge.files) == (0, {})


@pytest.mark.parametrize(
    ("table", "merged"),
    [
        (metadata(), False),
        (metadata(count="12"), True),
        (metadata(count="13"), False),
        (metadata(count="2"), True),
        (metadata(count="12", enabled="false"), False),
        (metadata(count="12", size="1"), False),
        (metadata(count="many", size="-1"), False),
        (metadata(version=1, count="12"), False),
    ],
)
def test_the_tables_own_properties_are_kept_to(table: JSON, merged: bool) -> None:
    world = World()
    for _ in range(12):
        world.commit(world.entry())
    assert (world.merge(table) is not None) == merged


def test_a_target_size_bounds_what_is_merged() -> None:
    world = World()
    length = max(world.commit(world.entry()).length_bytes for _ in range(12))
    merge = world.merge(metadata(count="10", size=str(length * 5)))
    assert merge is not None
    assert len(merge.replaced) == 5


def test_no_more_is_merged_than_readers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for _ in range(12):
        world.commit(world.entry())
    monkeypatch.setattr(avro_files, "MEMORY_MAX_BYTES", 5 * 3_300)
    monkeypatch.setattr(merging, "MANIFEST_MEMORY_MAX_BYTES", 5 * 3_300)
    merge = world.merge()
    assert merge is not None
    assert len(merge.replaced) == 5
    row = world.take(merge)
    assert row is not None
    assert row.existing_files == 5


def test_s4_nothing_is_merged_that_a_base_in_flight_does_not_have() -> None:
    world = World()
    for _ in range(25):
        world.commit(world.entry())
    merge = world.merge(through=11)
    assert merge is not None
    assert merge.replaced == {f"s3://b/t/m{at}.avro" for at in range(11)}
    assert world.merge(through=9) is None


def test_s4_manifests_of_deletes_are_left_alone() -> None:
    """A merged one would look new to checks that go by manifest: a false C3a."""
    world = World()
    for _ in range(30):
        world.commit(world.entry(content=1), content=1)
    assert world.merge() is None


def test_specs_are_merged_apart_and_encrypted_or_uncounted_manifests_not_at_all() -> None:
    world = World()
    for at in range(20):
        world.commit(world.entry(spec_id=at % 2), spec_id=at % 2)
    rows = list(world.listing)
    rows[0], rows[2] = replace(rows[0], key_metadata=b"k"), replace(rows[2], added_files=None)
    world.listing = Listing.of(rows)
    merge = world.merge()
    assert merge is not None
    assert {row.spec_id for row in rows if row.path in merge.replaced} == {0}
    assert world.merge(metadata(count="11")) is None


def test_what_another_writer_left_unclear_is_left_alone_and_fails_nobody() -> None:
    world = World()
    for _ in range(14):
        world.commit(world.entry())
    paths = [row.path for row in world.listing]
    # A manifest with another idea of its spec, and one whose entries have lost their numbers.
    odd = world.manifests[paths[0]]
    world.manifests[paths[0]] = replace(odd, spec_fields=({**SPECS[1]["fields"][0], "field-id": 1007},))
    lost = world.manifests[paths[1]]
    world.manifests[paths[1]] = replace(
        lost, entries=tuple(replace(entry, status=EXISTING, sequence_number=None) for entry in lost.entries)
    )
    merge = world.merge()
    assert merge is not None
    assert set(paths) - merge.replaced == {paths[0], paths[1]}
    # A manifest that is listed twice counts twice.
    world.listing = Listing.of([*world.listing, world.listing.rows[-1]])
    assert world.merge() is None
    # A spec that the table does not know.
    assert World.merge(world, {**metadata(count="10"), "partition-specs": SPECS[:1]}) is None


def test_manifests_that_are_not_there_are_asked_for_at_once() -> None:
    world = World()
    for _ in range(12):
        world.commit(world.entry())
    missing = [row.path for row in world.listing][3:7]
    for path in missing:
        del world.manifests[path]
    with pytest.raises(NeedsFiles) as caught:
        world.merge()
    assert sorted(need.path for need in caught.value.needs) == sorted(missing)
    assert not any(need.is_list for need in caught.value.needs)


def test_a_table_that_was_upgraded_gets_its_row_ids_with_the_merge() -> None:
    """Manifests of version 2 have no row ids; after the merge each file has its own range."""
    world = World(version=2)
    for _ in range(10):
        world.commit(world.entry())
    world.version = 3
    merge = world.merge(metadata(count="10"))
    assert merge is not None
    row = world.take(merge)
    assert row is not None
    assert (row.first_row_id, world.next_row_id) == (0, 100)
    files = Files({}, world.manifests)
    assert sorted(each.entry.file.first_row_id or 0 for each in files.live(row)) == [10 * at for at in range(10)]


@pytest.mark.parametrize("version", [2, 3])
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_s4_live_entries_and_what_each_snapshot_added_are_the_same_before_and_after(
    version: int, data: st.DataObject
) -> None:
    """Any history of appends, removals and merges; older lists are read again at the end."""
    world = World(version)
    lists: list[tuple[int, bytes]] = []
    added: dict[int, set[str]] = {}
    for _ in range(data.draw(st.integers(10, 25))):
        spec_id = data.draw(st.sampled_from([0, 1, 1]))
        new = [world.entry(spec_id=spec_id, day=data.draw(st.none() | st.integers(-9, 9)))]
        new *= data.draw(st.sampled_from([1, 1, 1, 0]))
        victims = sorted(live(world).items())
        removed = data.draw(st.lists(st.sampled_from(victims), max_size=2, unique_by=lambda v: v[0])) if victims else []
        taken: set[str] = set()
        rewritten: list[Entry] = []
        for path, _ in removed:  # as a copy-on-write commit does: the manifest is replaced by one that tells of it
            row = next(row for row in world.listing if path in {e.path for e in _live_in(world, row)})
            if row.path in taken or row.spec_id != spec_id:
                continue
            taken.add(row.path)
            for each in _live_in(world, row):
                status = DELETED if each.path == path else EXISTING
                rewritten.append(
                    replace(
                        each.entry,
                        status=status,
                        snapshot_id=each.snapshot_id,
                        sequence_number=each.sequence_number,
                        file_sequence_number=each.file_sequence_number,
                    )
                )
        world.listing = world.listing.without(taken)
        if new or rewritten:
            world.commit(*new, *rewritten, spec_id=spec_id)
            added[world.number] = {entry.file.path for entry in new}
            lists.append((world.number, _list_bytes(world)))
        before = live(world)
        merge = world.merge(through=world.number - data.draw(st.integers(0, 5)))
        if merge is not None:
            world.take(merge)
            assert live(world) == before
            added[world.number] = set()
            lists.append((1000 + world.number - 1, _list_bytes(world)))
    for snapshot_id, raw in lists:
        own = [row for row in read_manifest_list(raw) if row.added_snapshot_id == snapshot_id]
        files = Files({}, world.manifests)
        found = {each.path for row in own for each in files.entries(row) if each.status == ADDED}
        assert found == added.get(snapshot_id, set()), "incremental readers see what the snapshot added, and no more"


def _live_in(world: World, row: ManifestFile) -> Sequence[Any]:
    return list(Files({}, world.manifests).live(row))


def _list_bytes(world: World) -> bytes:
    return write_listing(
        world.listing,
        format_version=world.version,
        snapshot_id=1,
        parent_id=None,
        sequence_number=world.number,
        first_row_id=0,
    )


@pytest.mark.parametrize("fan", [10, 100])
def test_however_long_a_table_lives_an_entry_is_rewritten_a_few_times_and_lists_stay_short(fan: int) -> None:
    """The bound of the docstring, over 4,800 commits in groups of 64; their manifests are not made as bytes."""
    world = World(version=2)
    first = world.commit(world.entry(), spec_id=1)
    rewritten = longest = 0
    for _ in range(75):
        for _ in range(64):
            world.number += 1
            number, path = world.number, f"s3://b/t/m{next(world.names)}.avro"
            world.manifests[path] = replace(world.manifests[first.path], entries=(world.entry(),))
            row = replace(
                first, path=path, sequence_number=number, min_sequence_number=number, added_snapshot_id=number
            )
            world.listing = world.listing.prepend([row])
        merge = world.merge(metadata(version=2, count=str(fan)))
        if merge is not None:
            entries = sum(len(manifest.entries) for manifest in merge.manifests.values())
            assert entries <= ENTRIES_MAX
            assert len(merge.replaced) <= MANIFESTS_MAX
            rewritten += entries
            world.number += 1
            world.listing = merge.listing
            world.manifests |= merge.manifests
        longest = max(longest, len(world.listing))
    assert rewritten <= 3 * 75 * 64
    assert longest <= 3 * fan + 2 * 64 + 75 * 64 // (ENTRIES_MAX // 2)
    assert len(live(world)) == 75 * 64 + 1

"""What happened since: the walk over snapshots, what they brought, and what entries inherit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icetower.iceberg.entries import (
    UNASSIGNED,
    Files,
    NeedsFile,
    inherit,
)
from icetower.iceberg.records import ADDED, DELETED, EXISTING, DataFile, Entry, Manifest, ManifestFile
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower_client_model.history import UnknownHistory, branch_head, history, is_ancestor, since

JSON = dict[str, Any]
ROW = ManifestFile(
    path="m", length_bytes=1, spec_id=0, content=0, sequence_number=1, min_sequence_number=1, added_snapshot_id=1,
    added_files=1, existing_files=0, deleted_files=0, added_rows=1, existing_rows=0, deleted_rows=0,
    partitions=(), key_metadata=None, first_row_id=None,
)  # fmt: skip
FILE = DataFile(0, "a", "PARQUET", (), 10, 1, None, None, {})


def snapshot(number: int, parent: int | None, operation: str = "append") -> JSON:
    found = {"snapshot-id": number, "sequence-number": number, "manifest-list": f"list-{number}"}
    return {**found, "summary": {"operation": operation}, **({} if parent is None else {"parent-snapshot-id": parent})}


def table(*snapshots: JSON, current: int = -1, **refs: int) -> HeadState:
    named = {name: {"snapshot-id": number, "type": "branch"} for name, number in refs.items()}
    return HeadState("", {"snapshots": list(snapshots), "refs": named, "current-snapshot-id": current})


#            1 append ← 2 overwrite ← 3 replace ← 4 delete (main)
#                     ↖ 5 append (audit)
ALL = (
    snapshot(1, None),
    snapshot(2, 1, "overwrite"),
    snapshot(3, 2, "replace"),
    snapshot(4, 3, "delete"),
    snapshot(5, 1),
)
TABLE = table(*ALL, current=4, main=4, audit=5)
EXPIRED = table(*ALL[1:4], current=4, main=4)
"""The same without its first snapshot."""


def test_a_snapshot_says_what_it_is() -> None:
    assert [Snapshot(each).parent_id for each in ALL] == [None, 1, 2, 3, 1]
    assert Snapshot({"parent-snapshot-id": -1}).parent_id is None, "old metadata"
    assert Snapshot(ALL[1]).operation == "overwrite"
    assert Snapshot({"snapshot-id": 1}).operation is None
    assert Snapshot({"snapshot-id": 1}).sequence_number == 0, "format 1"
    assert dict(Snapshot(Snapshot({"snapshot-id": 1, "unknown": [2]}))) == {"snapshot-id": 1, "unknown": [2]}, "kept"


@pytest.mark.parametrize(("branch", "head"), [("main", 4), ("audit", 5), ("new", 4)])
def test_a_new_branch_begins_at_the_current_snapshot(branch: str, head: int) -> None:
    found = branch_head(TABLE, branch)
    assert found is not None
    assert found["snapshot-id"] == head


def test_an_empty_table_has_no_head() -> None:
    assert branch_head(table(), "main") is None


@pytest.mark.parametrize(
    ("snapshot_id", "of", "expected"), [(4, 4, True), (1, 4, True), (5, 4, False), (1, 5, True), (2, 5, False)]
)
def test_ancestry(snapshot_id: int, of: int, expected: bool) -> None:
    assert is_ancestor(TABLE, snapshot_id, of=of) is expected


def test_ancestry_ends_where_the_table_does_not_know() -> None:
    assert not is_ancestor(EXPIRED, 1, of=4)


WALKS = [
    # start   all there     1 has expired
    (None,    [4, 3, 2, 1], [4, 3, 2]),
    (1,       [4, 3, 2],    [4, 3, 2]),
    (3,       [4],          [4]),
    (4,       [],           []),
    (5,       [4, 3, 2, 1], [4, 3, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("start", "whole", "expired"), WALKS)
def test_the_walk_goes_from_the_newest_to_the_start(start: int | None, whole: list[int], expired: list[int]) -> None:
    assert [each["snapshot-id"] for each in since(TABLE, ALL[3], start)] == whole
    assert [each["snapshot-id"] for each in since(EXPIRED, ALL[3], start)] == expired


def files() -> Files:
    """Each list names a data and a delete manifest of its own snapshot, and all of those before."""
    lists: dict[str, tuple[ManifestFile, ...]] = {}
    rows: tuple[ManifestFile, ...] = ()
    for each in ALL[:4]:
        number = each["snapshot-id"]
        data, deletes = (
            replace(ROW, path=f"{kind}-{number}", content=content, added_snapshot_id=number, sequence_number=number)
            for content, kind in enumerate(("data", "deletes"))
        )
        rows = (data, deletes, *rows)
        lists[each["manifest-list"]] = rows
    return Files(lists, {})


BROUGHT = [
    # start  operations               content  manifests               snapshots   last known if 1 has expired
    (None,   {"append", "overwrite"}, 0,       ["data-2", "data-1"],   {2, 1},     2),
    (1,      {"append", "overwrite"}, 0,       ["data-2"],             {2},        None),
    (1,      {"overwrite", "delete"}, 1,       ["deletes-4", "deletes-2"], {4, 2}, None),
    (2,      {"append", "overwrite"}, 0,       [],                     set(),      None),
    (3,      {"delete", "replace"},   0,       ["data-4"],             {4},        None),
    (4,      {"delete"},              0,       [],                     set(),      None),
]  # fmt: skip


@pytest.mark.parametrize(("start", "operations", "content", "manifests", "snapshots", "unknown"), BROUGHT)
def test_a_snapshot_answers_for_its_own_manifests(
    start: int | None,
    operations: set[str],
    content: int,
    manifests: list[str],
    snapshots: set[int],
    unknown: int | None,
) -> None:
    found = history(TABLE, files(), ALL[3], start, operations, content)
    assert [row.path for row in found.rows] == manifests
    assert found.snapshot_ids == snapshots
    if unknown is None:
        assert history(EXPIRED, files(), ALL[3], start, operations, content) == found
    else:
        with pytest.raises(UnknownHistory) as caught:
            history(EXPIRED, files(), ALL[3], start, operations, content)
        assert caught.value.last_id == unknown


@pytest.mark.parametrize("start", [5, 99])
def test_a_start_that_is_not_on_the_way_is_told(start: int) -> None:
    with pytest.raises(UnknownHistory) as caught:
        history(TABLE, files(), ALL[3], start, {"append"}, 0)
    assert caught.value.last_id == 1


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_missing_is_asked_for() -> None:
    empty = Files({}, {})
    with pytest.raises(NeedsFile) as caught:
        empty.rows(ALL[0])
    assert (caught.value.path, caught.value.is_list) == ("list-1", True)
    with pytest.raises(NeedsFile) as caught:
        empty.entries(ROW)
    assert (caught.value.path, caught.value.is_list) == ("m", False)


def test_lists_of_other_operations_are_not_wanted() -> None:
    with pytest.raises(NeedsFile) as caught:
        history(TABLE, Files({}, {}), ALL[3], 1, {"overwrite"}, 0)
    assert caught.value.path == "list-2"
    assert history(TABLE, Files({}, {}), ALL[3], 2, {"overwrite"}, 0).rows == ()


def test_deleted_entries_are_told_but_not_live() -> None:
    entries = tuple(Entry(status, 1, 1, 1, replace(FILE, path=name)) for status, name in enumerate("abc"))
    known = Files({}, {"m": Manifest(entries, 0, (), {}, 0, 2)})
    assert [live.path for live in known.entries(ROW)] == ["a", "b", "c"]
    assert [live.path for live in known.live(ROW)] == ["a", "b"]


# ── What entries inherit ─────────────────────────────────────────────────────────────────────────────────────────────

NUMBERS = [
    # status    own    row's           inherited
    (ADDED,     None,  7,              7),
    (ADDED,     3,     7,              3),
    (EXISTING,  3,     7,              3),
    (EXISTING,  None,  7,              None),  # lost: only added files inherit …
    (EXISTING,  None,  0,              0),     # … and files of format 1, which has no numbers
    (DELETED,   None,  0,              0),
    (ADDED,     None,  UNASSIGNED,     UNASSIGNED),
]  # fmt: skip


@pytest.mark.parametrize(("status", "own", "of_row", "expected"), NUMBERS)
def test_sequence_numbers_are_inherited(status: int, own: int | None, of_row: int, expected: int | None) -> None:
    manifest = Manifest((Entry(status, None, own, own, FILE),), 0, (), {}, 0, 2)
    (live,) = inherit(replace(ROW, sequence_number=of_row, added_snapshot_id=5), manifest)
    assert (live.sequence_number, live.file_sequence_number, live.snapshot_id) == (expected, expected, 5)


ROW_IDS = [
    # row's first  row's number  content  ids of the files: own → inherited; each has 10 rows
    (100,          7,            0,       [None, None, 5, None], [100, 110, 5, 120]),
    (None,         7,            0,       [None, 5],             [None, None]),
    (None,         UNASSIGNED,   0,       [None, 5],             [None, 5]),
    (100,          7,            1,       [None],                [None]),
]  # fmt: skip


@pytest.mark.parametrize(("first", "number", "content", "own", "expected"), ROW_IDS)
def test_row_ids_are_inherited(
    first: int | None, number: int, content: int, own: list[int | None], expected: list[int | None]
) -> None:
    entries = tuple(Entry(ADDED, 1, 1, 1, replace(FILE, first_row_id=each)) for each in own)
    row = replace(ROW, sequence_number=number, content=content, first_row_id=first)
    found = [live.entry.file.first_row_id for live in inherit(row, Manifest(entries, 0, (), {}, content, 3))]
    assert found == expected


def test_deleted_entries_take_no_row_ids() -> None:
    entries = tuple(Entry(status, 1, 1, 1, FILE) for status in (DELETED, EXISTING))
    row = replace(ROW, first_row_id=100)
    found = [live.entry.file.first_row_id for live in inherit(row, Manifest(entries, 0, (), {}, 0, 3))]
    assert found == [None, 100]


def test_a_snapshot_that_is_its_own_parent_ends_the_walk() -> None:
    """Forged metadata must not hold a server forever."""
    looped = {"snapshot-id": 1, "parent-snapshot-id": 1, "manifest-list": "m", "summary": {"operation": "append"}}
    head = HeadState("", {"format-version": 2, "snapshots": [looped], "refs": {}})
    assert not is_ancestor(head, 2, of=1)
    assert [snapshot["snapshot-id"] for snapshot in since(head, looped, None)] == [1]

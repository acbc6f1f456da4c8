"""What a snapshot really does, and manifests that lie about it (R5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo

from icetower.iceberg.change import (
    COUNTED,
    Change,
    change_of,
    diff_lists,
    manifests_to_read,
    own_added_entries,
    summary_totals,
)
from icetower.iceberg.manifests import ADDED, DELETED, EXISTING, DataFile, Entry, Manifest, ManifestFile
from tests.iceberg.manifest_fixtures import JAVA, SavedTable, java_table


@pytest.mark.parametrize("name", JAVA)
def test_s3_deltas_and_totals_equal_javas_and_its_manifests_have_no_problems(name: str) -> None:
    for parent, change in java_table(name).changes():
        summary = change.snapshot["summary"]
        assert change.problems == ()
        counted = {key: value for key, value in summary.items() if key in COUNTED}
        assert summary_totals(parent and parent["summary"], change) == counted


@pytest.mark.parametrize("name", ["java_v2_cow", "java_v3_cow"])
def test_r4_a_merge_append_counts_only_what_it_truly_adds(name: str) -> None:
    changes = [change for _, change in java_table(name).changes()]
    merged = changes[2]  # the third INSERT folded the older manifests into its own
    assert len(merged.diff.removed) == 1
    assert merged.diff.added[0].existing_files == 3
    assert (len(merged.added), merged.removed, merged.is_pure_append) == (1, (), True)
    ((group, entries),) = own_added_entries(merged).items()
    assert group == (0, 0)
    assert [entry.status for entry in entries] == [ADDED]
    assert not merged.entries_removed
    ((gone,),) = changes[3].entries_removed.values()
    assert (gone.sequence_number, gone.file_sequence_number) == (1, 1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("merges", ["true", "false"])
def test_pyicebergs_own_commits_have_no_problems(version: int, merges: str, tmp_path: Path) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField, StringType

    catalog = SqlCatalog("c", uri="sqlite://", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    table = catalog.create_table(
        "db.t",
        schema,
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part")),
        properties={
            "format-version": str(version),
            "commit.manifest-merge.enabled": merges,
            "commit.manifest.min-count-to-merge": "2",
        },
    )

    def rows(*pairs: tuple[int, str]) -> pa.Table:
        return pa.table({"id": pa.array([i for i, _ in pairs], pa.int64()), "part": [part for _, part in pairs]})

    table.append(rows((1, "a"), (2, "b")))
    table.append(rows((3, "a")))
    table.append(rows((4, "c")))
    table.delete(EqualTo("part", "b"))
    table.delete(EqualTo("id", 1))  # rewrites a file
    table.append(rows((5, "c"), (6, "c")))
    table.delete(EqualTo("id", 5))
    table.overwrite(rows((7, "a")), EqualTo("part", "a"))
    table.dynamic_partition_overwrite(rows((8, "c")))
    table.append(rows((9, "d")))
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*.avro")}
    saved = SavedTable(files, table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True))
    expected, seen = 0, 0
    for _, change in saved.changes():
        assert change.problems == (), change.snapshot["summary"]
        expected += sum(t.file.record_count for t in change.added) - sum(t.file.record_count for t in change.removed)
        seen += 1
    assert seen >= 10
    assert expected == table.scan().to_arrow().num_rows


# ── Lies ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SNAPSHOT = {"snapshot-id": 20, "sequence-number": 5, "summary": {"operation": "append"}}
COMPACTION = {**SNAPSHOT, "summary": {"operation": "replace"}}
FORGED_BOUNDS = {"lower_bounds": [{"key": 1, "value": b"z"}]}


def data_file(path: str, **other: Any) -> DataFile:
    record = {"file_path": path, "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 100}
    return replace(DataFile(0, path, "PARQUET", ("x",), 10, 100, None, None, record), **other)


def entry(status: int, path: str, **other: Any) -> Entry:
    """ADDED by snapshot 20, or a file that snapshot 10 added under sequence number 2."""
    file = data_file(path, **other.pop("file", {}))
    own = Entry(status, 20, None, None, file) if status == ADDED else Entry(status, 20, 2, 2, file)
    return replace(own, **{**({"snapshot_id": 10} if status == EXISTING else {}), **other})


def manifest(*entries: Entry) -> Manifest:
    return Manifest(entries, 0, ({"name": "p", "field-id": 1000},), {}, 0, 2)


def row(path: str, held: Manifest, **other: Any) -> ManifestFile:
    def files(status: int) -> int:
        return sum(e.status == status for e in held.entries)

    honest = ManifestFile(
        path, 1, 0, 0, 5, 2, 20, files(ADDED), files(EXISTING), files(DELETED),
        10 * files(ADDED), 10 * files(EXISTING), 10 * files(DELETED), (), None, None,
    )  # fmt: skip
    return replace(honest, **other)


BASE = manifest(entry(ADDED, "old-1", snapshot_id=10), entry(ADDED, "old-2", snapshot_id=10))
BASE_ROW = row("base", BASE, sequence_number=2, added_snapshot_id=10)


def committed(
    *entries: Entry, snapshot: dict[str, Any] = SNAPSHOT, siblings: frozenset[int] = frozenset(), **listed: Any
) -> Change:
    """The commit of one manifest of these entries in place of one that held old-1 and old-2."""
    own = manifest(*entries)
    diff = diff_lists([BASE_ROW], [row("own", own, **listed)])
    return change_of(snapshot, diff, {"base": BASE, "own": own}, siblings=siblings)


KEPT = (entry(EXISTING, "old-1"), entry(EXISTING, "old-2"))
NEW = entry(ADDED, "new")


def test_an_honest_commit_has_no_problems() -> None:
    change = committed(*KEPT, NEW)
    assert (change.problems, [t.file.path for t in change.added], change.removed) == ((), ["new"], ())
    change = committed(KEPT[0], entry(DELETED, "old-2"), NEW)
    assert (change.problems, [(t.file.path, t.sequence_number) for t in change.removed]) == ((), [("old-2", 2)])
    assert not change.is_pure_append


def listed_shorter_than_it_is() -> Change:
    own = replace(manifest(*KEPT, NEW), length_bytes=7_000)
    diff = diff_lists([BASE_ROW], [row("own", own)])
    return change_of(SNAPSHOT, diff, {"base": BASE, "own": own})


LIES: dict[str, tuple[Callable[[], Change], str]] = {
    "listed shorter than it is": (listed_shorter_than_it_is, "manifest own is 7000 bytes long, but listed with"),
    "live before, marked as added": (
        lambda: committed(KEPT[0], entry(ADDED, "old-2"), NEW), "file old-2 is marked ADDED, but was live before"),
    "left out": (lambda: committed(KEPT[0], NEW), "file old-2 was live in base and is left out without a DELETED"),
    "smuggled in": (
        lambda: committed(*KEPT, entry(EXISTING, "else")), "file else is marked EXISTING, but was not live"),
    "deleted elsewhere": (
        lambda: committed(*KEPT, entry(DELETED, "else")), "file else is marked DELETED, but was not live"),
    "deleted under another number": (
        lambda: committed(KEPT[0], entry(DELETED, "old-2", sequence_number=4)), "marked DELETED with sequence number"),
    "deleted and kept": (
        lambda: committed(*KEPT, entry(DELETED, "old-2")), "file old-2 is marked DELETED and live at once"),
    "named twice": (lambda: committed(*KEPT, NEW, NEW), "file new is named twice as live"),
    "forged number of a kept file": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", sequence_number=9)),
        "file old-2 is marked EXISTING with sequence number 9, but had 2"),
    "forged file sequence number": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file_sequence_number=9)),
        "is marked EXISTING with file sequence number 9, but had 2"),
    "forged snapshot": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", snapshot_id=3)), "with snapshot 3, but had 10"),
    "forged partition": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"partition": ("y",)})), "with partition ('y',)"),
    "forged count": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"record_count": 11}), existing_rows=21),
        "with record count 11, but had 10"),
    "forged bounds": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"record": FORGED_BOUNDS})),
        "is marked EXISTING with other lower_bounds than it had"),
    "forged format": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"file_format": "ORC"})),
        "is marked EXISTING with format orc, but had parquet"),
    "forged offsets": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"record": {"split_offsets": [90]}})),
        "is marked EXISTING with split_offsets [90], but had None"),
    "forged order": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"record": {"sort_order_id": 1}})),
        "is marked EXISTING with sort_order_id 1, but had None"),
    "forged length of a vector": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"record": {"content_size_in_bytes": 1}})),
        "is marked EXISTING with content size 1, but had None"),
    "a row id from before row ids": (
        lambda: committed(KEPT[0], entry(EXISTING, "old-2", file={"first_row_id": 0})),
        "is marked EXISTING with first row id 0, but had None"),
    "number of its own": (
        lambda: committed(*KEPT, entry(ADDED, "new", sequence_number=1), min_sequence_number=1),
        "file new is marked ADDED with sequence number 1 of its own"),
    "compaction from the future": (
        lambda: committed(*KEPT, entry(ADDED, "new", sequence_number=6), snapshot=COMPACTION),
        "file new is marked ADDED with sequence number 6 of its own"),
    "file sequence number of its own": (
        lambda: committed(*KEPT, entry(ADDED, "new", file_sequence_number=1)), "with file sequence number 1 instead"),
    "row id of its own": (
        lambda: committed(*KEPT, entry(ADDED, "new", file={"first_row_id": 0})), "with first row id 0 instead"),
    "another's ADDED": (lambda: committed(*KEPT, entry(ADDED, "new", snapshot_id=9)), "by another snapshot, 9"),
    "count in the list": (lambda: committed(*KEPT, NEW, added_files=2), "is listed with 2 added files, but has 1"),
    "rows in the list": (lambda: committed(*KEPT, NEW, existing_rows=1), "listed with 1 existing rows, but has 20"),
    "minimum too high": (lambda: committed(*KEPT, NEW, min_sequence_number=5), "minimum sequence number 5, but has"),
    "another's manifest": (lambda: committed(*KEPT, NEW, added_snapshot_id=9), "listed as added by snapshot 9"),
    "manifest number": (lambda: committed(*KEPT, NEW, sequence_number=4), "listed with sequence number 4, not"),
    "another spec": (lambda: committed(*KEPT, NEW, spec_id=1), "written with partition spec 0, but is listed under 1"),
    "another content": (lambda: committed(*KEPT, NEW, content=1), "holds content 0, but is listed as 1"),
    "row ids where there are none": (lambda: committed(*KEPT, NEW, first_row_id=0), "outside of the snapshot's own"),
    "deletes among data": (
        lambda: committed(*KEPT, entry(ADDED, "new", file={"content": 1})), "of content 0 holds new of content 1"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_r5_a_manifest_that_lies_is_found_out(lie: str) -> None:
    commit, expected = LIES[lie]
    assert any(expected in problem for problem in commit().problems), commit().problems


THEIRS = {"partition": ("y",)}
KEEPS_P = manifest(entry(EXISTING, "p"))
TWICE = manifest(entry(ADDED, "p", snapshot_id=10), entry(ADDED, "p", snapshot_id=10, file=THEIRS))


def replacing_twice(*entries: Entry) -> Change:
    """The commit of one manifest in place of one that names a file in two partitions."""
    own = manifest(*entries)
    diff = diff_lists([row("base", TWICE, sequence_number=2, added_snapshot_id=10)], [row("own", own)])
    return change_of(SNAPSHOT, diff, {"base": TWICE, "own": own})


def test_r5_a_file_that_is_named_in_two_partitions_is_removed_from_each_by_itself() -> None:
    mine, theirs = entry(DELETED, "p"), entry(DELETED, "p", file=THEIRS)
    both = replacing_twice(mine, theirs)
    assert (both.problems, [t.file.partition for t in both.removed]) == ((), [("x",), ("y",)])
    assert summary_totals({"total-data-files": "2"}, both)["total-data-files"] == "0"
    one = replacing_twice(mine, entry(EXISTING, "p", file=THEIRS))
    assert (one.problems, [t.file.partition for t in one.removed], one.added) == ((), [("x",)], ())
    neither = replacing_twice(entry(EXISTING, "p", file=THEIRS), entry(EXISTING, "p"))
    assert (neither.problems, neither.removed, neither.added) == ((), (), ())


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry(DELETED, "p")], "p was live in base and is left out without a DELETED entry"),
        ([entry(DELETED, "p"), entry(DELETED, "p")], "p was live in base and is left out without a DELETED entry"),
        ([entry(EXISTING, "p"), entry(EXISTING, "p")], "p is marked EXISTING with partition ('x',), but had ('y',)"),
        ([entry(EXISTING, "p")], "p was live in base and is left out without a DELETED entry"),
        ([entry(DELETED, "p"), entry(EXISTING, "p"), entry(DELETED, "p", file=THEIRS)], "DELETED and live at once"),
        ([entry(DELETED, "p", file={"partition": ("z",)})], "is marked DELETED in partition ('z',) of spec 0, but was"),
        ([entry(ADDED, "p", file={"partition": ("z",)}), entry(DELETED, "p")], "marked ADDED, but was live before"),
    ],
)
def test_r5_one_naming_of_a_file_does_not_speak_for_the_other(entries: list[Entry], expected: str) -> None:
    problems = replacing_twice(*entries).problems
    assert any(expected in problem for problem in problems), problems


def test_r5_of_two_namings_in_one_partition_the_one_that_is_meant_goes() -> None:
    base = manifest(entry(ADDED, "p", snapshot_id=9, sequence_number=1), entry(ADDED, "p", snapshot_id=10))
    own = manifest(entry(EXISTING, "p", snapshot_id=9, sequence_number=1, file_sequence_number=2), entry(DELETED, "p"))
    listed = row("base", base, sequence_number=2, added_snapshot_id=10)
    diff = diff_lists([listed], [row("own", own, min_sequence_number=1)])
    change = change_of(SNAPSHOT, diff, {"base": base, "own": own})
    assert (change.problems, [t.sequence_number for t in change.removed]) == ((), [2])


@pytest.mark.parametrize("by", [10, None])
def test_r5_a_tombstone_of_an_earlier_snapshot_may_be_kept_and_none_may_be_made_up(by: int | None) -> None:
    """Expiry and purges delete what it names."""
    base = manifest(entry(ADDED, "p", snapshot_id=10), entry(DELETED, "gone", snapshot_id=by))
    listed = row("base", base, sequence_number=2, added_snapshot_id=10)

    def problems(path: str, snapshot_id: int, *replaced: ManifestFile) -> tuple[str, ...]:
        own = manifest(entry(EXISTING, "p"), entry(DELETED, path, snapshot_id=snapshot_id))
        if not replaced:
            own = manifest(entry(ADDED, "q"), entry(DELETED, path, snapshot_id=snapshot_id))
        return change_of(SNAPSHOT, diff_lists([*replaced], [row("own", own)]), {"base": base, "own": own}).problems

    assert problems("gone", 10, listed) == ()
    for path, snapshot_id, *replaced in (("other", 10, listed), ("gone", 11, listed), ("gone", 10), ("other", 777)):
        (problem,) = problems(path, snapshot_id, *replaced)
        assert problem == (
            f"file {path} is marked DELETED by snapshot {snapshot_id}, and no manifest that this commit replaces "
            "says so"
        )


def test_what_readers_only_plan_by_may_be_left_out() -> None:
    base = manifest(entry(ADDED, "p", snapshot_id=10, file={"record": {"split_offsets": [4], "sort_order_id": 1}}))
    diff = diff_lists([row("base", base, sequence_number=2, added_snapshot_id=10)], [row("own", KEEPS_P)])
    assert change_of(SNAPSHOT, diff, {"base": base, "own": KEEPS_P}).problems == ()


def test_compaction_may_keep_the_sequence_number_of_what_it_replaces() -> None:
    gone = (entry(DELETED, "old-1"), entry(DELETED, "old-2"))
    assert committed(*gone, entry(ADDED, "new", sequence_number=2), snapshot=COMPACTION).problems == ()


@pytest.mark.parametrize("second", [ADDED, EXISTING])
def test_r5_a_second_live_vector_of_a_data_file_is_found_out(second: int) -> None:
    def vector(status: int, offset: int) -> Entry:
        record = {"content_offset": offset, "content_size_in_bytes": 40}
        about = {"content": 1, "file_format": "PUFFIN", "referenced_data_file": "a", "record": record}
        return entry(status, "v.puffin", file=about)

    base = replace(manifest(replace(vector(ADDED, 44), snapshot_id=10)), content=1)
    own = replace(manifest(vector(ADDED, 4), vector(second, 44)), content=1)
    before = [row("base", base, content=1, sequence_number=2, added_snapshot_id=10)] if second == EXISTING else []
    change = change_of(SNAPSHOT, diff_lists(before, [row("own", own, content=1)]), {"base": base, "own": own})
    assert change.problems == ("file a has 2 deletion vectors; merge them into one",)
    kept = replace(manifest(vector(EXISTING, 44), NEW), content=1)  # and what is only carried on is no second
    change = change_of(SNAPSHOT, diff_lists([], [row("own", kept, content=1)]), {"own": kept})
    assert not any("deletion vectors" in problem for problem in change.problems)


def test_r5_a_deletion_vector_is_told_from_its_neighbours_in_one_file() -> None:
    def vector(target: str, offset: int) -> DataFile:
        record = {"content_offset": offset, "content_size_in_bytes": 40}
        return data_file("v.puffin", content=1, file_format="PUFFIN", referenced_data_file=target, record=record)

    own = replace(manifest(*(Entry(ADDED, 20, None, None, vector(t, o)) for t, o in (("a", 4), ("b", 44)))), content=1)
    diff = diff_lists([], [row("own", own, content=1)])
    change = change_of(SNAPSHOT, diff, {"own": own})
    assert change.problems == ()
    assert [touched.file.referenced_data_file for touched in change.added] == ["a", "b"]
    deltas = summary_totals({}, change)
    assert (deltas["added-dvs"], deltas["added-files-size"], deltas["added-position-deletes"]) == ("2", "80", "20")


@pytest.mark.parametrize(
    "other",
    [{"length_bytes": 2}, {"added_rows": 5}, {"min_sequence_number": 0}, {"partitions": None}, {"sequence_number": 1}],
)
def test_r5_a_carried_manifest_listed_otherwise_is_found_out(other: dict[str, Any]) -> None:
    diff = diff_lists([BASE_ROW], [replace(BASE_ROW, **other)])
    assert [found.path for found in diff.altered] == ["base"]
    change = change_of(SNAPSHOT, diff, {"base": BASE})
    assert "base is carried over, but listed twice or otherwise" in change.problems[0]


def test_r5_a_manifest_listed_twice_is_found_out() -> None:
    assert diff_lists([BASE_ROW], [BASE_ROW, BASE_ROW]).altered == (BASE_ROW,)
    own = row("own", manifest(NEW))
    assert diff_lists([], [own, own]).altered == (own,)


def test_row_ids_given_to_a_carried_manifest_after_an_upgrade_are_no_alteration() -> None:
    diff = diff_lists([BASE_ROW], [replace(BASE_ROW, first_row_id=0)])
    assert (diff.altered, len(diff.carried)) == ((), 1)
    again = diff_lists([replace(BASE_ROW, first_row_id=0)], [replace(BASE_ROW, first_row_id=7)])
    assert len(again.altered) == 1


def test_r5_row_ids_outside_of_the_snapshots_range_or_overlapping_are_found_out() -> None:
    held = manifest(NEW)
    other = manifest(entry(ADDED, "new-2"))
    snapshot = {**SNAPSHOT, "first-row-id": 100, "added-rows": 20}

    def problems(first: int, second: int) -> tuple[str, ...]:
        rows = [row("own", held, first_row_id=first), row("own-2", other, first_row_id=second)]
        return change_of(snapshot, diff_lists([], rows), {"own": held, "own-2": other}).problems

    assert problems(100, 110) == ()
    assert any("outside" in problem for problem in problems(0, 110))
    assert any("outside" in problem for problem in problems(100, 111))
    assert any("overlapping" in problem for problem in problems(100, 105))


def test_s1_an_entry_of_another_new_snapshot_of_the_commit_is_noticed() -> None:
    assert committed(*KEPT, NEW, siblings=frozenset({10, 20})).names_sibling
    assert committed(KEPT[0], entry(DELETED, "old-2"), siblings=frozenset({10, 20})).names_sibling
    assert not committed(*KEPT, NEW, siblings=frozenset({20})).names_sibling


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (None, "10"),
        ({"total-records": "12"}, "22"),
        ({}, None),
        ({"total-records": "many"}, None),
        ({"total-records": "-1"}, None),
    ],
)
def test_s3_a_total_that_the_parent_lacks_is_left_out(parent: dict[str, str] | None, expected: str | None) -> None:
    assert summary_totals(parent, committed(*KEPT, NEW)).get("total-records") == expected


def test_only_new_and_replaced_manifests_are_read() -> None:
    own = row("own", manifest(NEW))
    assert manifests_to_read(diff_lists([BASE_ROW], [own, BASE_ROW])) == (own,)
    assert manifests_to_read(diff_lists([BASE_ROW], [own])) == (own, BASE_ROW)

"""Appends folded into one snapshot: what is written is read back as strangers read it, and each trap has its test."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity
from icetower.commit import appends as appends_module
from icetower.commit.appends import AUTHORS_MAX, Folded, fold, once_each, why_not
from icetower.iceberg import avro_files, record_sizes
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import Touched
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import ADDED, DataFile, Manifest, ManifestFile, read_manifest, read_manifest_list
from icetower.iceberg.schemas import read_as
from icetower.protocol.names import Identifier
from icetower.table.groups import read_group
from icetower.table.keys import KeyRecord

TABLE = Identifier(("db",), "t")
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "day", "type": "date", "required": False},
    ],
}
SPEC = {"fields": [{"name": "day", "transform": "identity", "source-id": 2, "field-id": 0}]}


def table(version: int = 2, **properties: str) -> dict[str, Any]:
    return table_metadata.new_table(
        uuid="u-1",
        location="file:///w/t",
        schema=SCHEMA,
        spec=SPEC,
        sort_order=None,
        properties={"format-version": str(version), **properties},
        now_ms=1_000,
    )


def file(name: str, day: int | None = 1, rows: int = 2, spec_id: int = 0) -> Touched:
    path = f"file:///w/t/data/{name}"
    record = {"file_path": path, "file_format": "PARQUET", "record_count": rows, "file_size_in_bytes": 100}
    partition = (day,) if spec_id == 0 else ()
    return Touched(DataFile(0, path, "PARQUET", partition, rows, 100, None, None, record), spec_id, None)


def append(principal: str, *files: Touched, **given: Any) -> AdmittedAppend:
    known = (given.pop("ref", "main"), given.pop("key", None), given.pop("application", None))
    identity = Identity.of_append(principal, *known)
    return AdmittedAppend(identity, TABLE, files, "c", 1, "f", **({"table_uuid": "u-1"} | given))


def names() -> Callable[[], str]:
    counter = itertools.count(1)
    return lambda: f"name{next(counter)}"


def folded(
    metadata: dict[str, Any],
    appends: Sequence[AdmittedAppend],
    listing: Listing | None = None,
    snapshot_id: int = 77,
    now_ms: int = 5_000,
    new_name: Callable[[], str] | None = None,
) -> tuple[Folded, dict[str, Any]]:
    """What is folded, and the table after it."""
    head = table_metadata.ref_head(metadata, appends[0].ref)
    done = fold(
        appends,
        metadata=metadata,
        parent=None if head is None else table_metadata.snapshot(metadata, head),
        listing=Listing.of(()) if listing is None else listing,
        snapshot_id=snapshot_id,
        sequence_number=metadata.get("last-sequence-number", 0) + 1,
        now_ms=now_ms,
        new_name=new_name or names(),
    )
    return done, dict(table_metadata.apply(metadata, done.updates, now_ms=now_ms))


def rows_of(done: Folded) -> tuple[ManifestFile, ...]:
    return read_manifest_list(done.files[done.snapshot["manifest-list"]])


def manifests_of(done: Folded) -> list[Manifest]:
    return [read_manifest(data) for path, data in done.files.items() if path.endswith("-m0.avro") or "-m1" in path]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_h2_many_appends_are_one_snapshot_and_one_manifest(version: int) -> None:
    group = [append(f"agent-{n}", file(f"{n}.parquet", day=n), key=f"k{n}") for n in range(5)]
    done, after = folded(table(version), group)
    assert [s["snapshot-id"] for s in after["snapshots"]] == [77]
    assert after["current-snapshot-id"] == 77
    (row,) = rows_of(done)
    assert (row.added_files, row.added_rows, row.existing_files, row.deleted_files) == (5, 10, 0, 0)
    (manifest,) = manifests_of(done)
    assert [entry.file.path for entry in manifest.entries] == [f"file:///w/t/data/{n}.parquet" for n in range(5)]
    assert {path.rsplit("/", 1)[0] for path in done.files} == {"file:///w/t/metadata"}
    assert len(done.files) == 3  # manifest, list, group file


def test_s4_its_manifests_hold_added_entries_of_this_snapshot_only() -> None:
    done, _ = folded(table(), [append("ann", file("a"), file("b"))])
    (row,), (manifest,) = rows_of(done), manifests_of(done)
    assert row.added_snapshot_id == 77
    assert {(entry.status, entry.snapshot_id) for entry in manifest.entries} == {(ADDED, 77)}


def test_s1_numbers_are_the_snapshots_own_and_inherited_by_the_entries() -> None:
    metadata = table() | {"last-sequence-number": 41}
    done, after = folded(metadata, [append("ann", file("a"))])
    (row,), (manifest,) = rows_of(done), manifests_of(done)
    assert (row.sequence_number, row.min_sequence_number, done.snapshot["sequence-number"]) == (42, 42, 42)
    assert [entry.sequence_number for entry in manifest.entries] == [None]
    assert after["last-sequence-number"] == 42


def test_s2_row_ids_go_on_where_the_table_stands_and_cover_what_had_none() -> None:
    """After an upgrade from version 2 every older data manifest lacks them."""
    old_done, old = folded(table(2), [append("ann", file("old", rows=7))], snapshot_id=11)
    upgraded = dict(
        table_metadata.apply(old, [{"action": "upgrade-format-version", "format-version": 3}], now_ms=2_000)
    )
    listing = Listing.of(rows_of(old_done))
    done, after = folded(upgraded, [append("ann", file("a", rows=3)), append("bob", file("b", rows=4))], listing)
    assert [(row.first_row_id, row.added_rows) for row in rows_of(done)] == [(0, 7), (7, 7)]
    assert (done.snapshot["first-row-id"], done.snapshot["added-rows"]) == (0, 14)
    assert after["next-row-id"] == 14
    again, after = folded(after, [append("ann", file("c", rows=5))], Listing.of(rows_of(done)), snapshot_id=78)
    assert [row.first_row_id for row in rows_of(again)] == [14, 0, 7]
    assert (again.snapshot["first-row-id"], again.snapshot["added-rows"], after["next-row-id"]) == (14, 5, 19)


def test_s3_totals_are_the_parents_and_what_is_added() -> None:
    first, metadata = folded(table(), [append("ann", file("a", rows=3)), append("bob", file("b", day=2, rows=4))])
    summary = first.snapshot["summary"]
    counted = ("operation", "added-data-files", "added-records", "added-files-size", "changed-partition-count")
    assert [summary[name] for name in counted] == ["append", "2", "7", "200", "2"]
    second, _ = folded(metadata, [append("ann", file("c", rows=5))], Listing.of(rows_of(first)), snapshot_id=78)
    totals = ("total-records", "total-data-files", "total-files-size", "total-delete-files")
    assert [second.snapshot["summary"][name] for name in totals] == ["12", "3", "300", "0"]


def test_s3_what_the_parent_does_not_count_is_not_counted() -> None:
    first, metadata = folded(table(), [append("ann", file("a"))])
    del metadata["snapshots"][0]["summary"]["total-records"]
    second, _ = folded(metadata, [append("ann", file("c"))], Listing.of(rows_of(first)), snapshot_id=78)
    assert "total-records" not in second.snapshot["summary"]
    assert second.snapshot["summary"]["total-data-files"] == "2"


def test_k1_the_group_file_says_whose_each_file_is_under_which_key() -> None:
    group = [
        append("ann", file("a1"), file("a2"), key="k1"),
        append("bob", file("b"), application=("ingest", 7)),
        append("cid", file("c")),
    ]
    done, _ = folded(table(), group)
    path = done.snapshot["summary"]["icetower.group-file"]
    assert done.snapshot["summary"]["icetower.group-size"] == "3"
    assert done.snapshot["summary"]["icetower.author"] == "ann,bob,cid"
    told = read_group(done.files[path])
    assert (told.table_uuid, told.ref, told.snapshot_id) == ("u-1", "main", 77)
    data = "file:///w/t/data/"
    assert [(a.principal, a.key, a.application, a.files) for a in told.appends] == [
        ("ann", "k1", None, (data + "a1", data + "a2")),
        ("bob", None, ("ingest", 7), (data + "b",)),
        ("cid", None, None, (data + "c",)),
    ]
    assert done.keys == (
        KeyRecord("ann", "main", "k1", None, (77,)),
        KeyRecord("bob", "main", None, ("ingest", 7), (77,)),
    )


def test_of_very_many_principals_the_summary_names_none() -> None:
    """A few names would say that the others have no part in it."""
    done, _ = folded(table(), [append(f"p{at}", file(f"f{at}")) for at in range(AUTHORS_MAX + 1)])
    assert "icetower.author" not in done.snapshot["summary"]


def test_what_was_there_is_carried_in_its_order_and_not_touched() -> None:
    first, metadata = folded(table(), [append("ann", file("a"))])
    listing = Listing.of(rows_of(first))
    second, _ = folded(metadata, [append("bob", file("b"))], listing, snapshot_id=78, new_name=names())
    assert rows_of(second)[1:] == listing.rows
    assert second.snapshot["parent-snapshot-id"] == 77
    assert second.lists[second.snapshot["manifest-list"]].rows == rows_of(second)


def test_each_spec_has_a_manifest_of_its_own() -> None:
    metadata = table()
    unpartitioned = [{"action": "add-spec", "spec": {"spec-id": 1, "fields": []}}]
    metadata = dict(table_metadata.apply(metadata, unpartitioned, now_ms=1_500))
    group = [append("ann", file("a"), file("b", spec_id=1)), append("bob", file("c"))]
    done, _ = folded(metadata, group)
    assert [(row.spec_id, row.added_files) for row in rows_of(done)] == [(0, 2), (1, 1)]
    (row, _) = rows_of(done)
    assert row.partitions is not None
    assert [(part.lower, part.upper, part.contains_null) for part in row.partitions] == [
        (b"\x01\0\0\0", b"\x01\0\0\0", False)
    ]


def test_a_huge_group_has_manifests_of_a_size_that_readers_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends_module, "ENTRIES_PER_MANIFEST_MAX", 2)
    done, _ = folded(table(3), [append("ann", *(file(str(n)) for n in range(5)))])
    assert [(row.added_files, row.first_row_id) for row in rows_of(done)] == [(2, 0), (2, 4), (1, 8)]


def test_a_group_of_wide_files_has_manifests_that_readers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gives the records of one manifest so much memory: each item counts."""
    monkeypatch.setattr(avro_files, "MEMORY_MAX_BYTES", 50_000)
    monkeypatch.setattr(record_sizes, "MANIFEST_MEMORY_MAX_BYTES", 47_000)
    counts = [{"key": at, "value": 1} for at in range(40)]
    wide = [file(str(n)) for n in range(10)]
    wide = [
        replace(each, file=replace(each.file, record={**each.file.record, "value_counts": counts})) for each in wide
    ]
    done, _ = folded(table(3), [append("ann", each) for each in wide])
    assert [row.added_files for row in rows_of(done)] == [3, 3, 3, 1]
    assert [len(read_manifest(done.files[row.path]).entries) for row in rows_of(done)] == [3, 3, 3, 1]
    monkeypatch.setattr(record_sizes, "MANIFEST_MAX_BYTES", 2 * record_sizes.record_bytes(wide[0].file))
    done, _ = folded(table(3), [append("ann", each) for each in wide])
    assert [row.added_files for row in rows_of(done)] == [2, 2, 2, 2, 2]


def test_time_never_goes_back_and_the_schema_is_the_current_one() -> None:
    first, metadata = folded(table(), [append("ann", file("a"))], now_ms=9_000)
    second, _ = folded(metadata, [append("ann", file("b"))], Listing.of(rows_of(first)), snapshot_id=78, now_ms=8_000)
    assert second.snapshot["timestamp-ms"] == 9_000
    assert second.snapshot["schema-id"] == metadata["current-schema-id"]


def test_a_branch_keeps_what_is_set_for_its_retention() -> None:
    first, metadata = folded(table(), [append("ann", file("a"))])
    branch = {"action": "set-snapshot-ref", "ref-name": "audit", "type": "branch", "snapshot-id": 77}
    metadata = dict(table_metadata.apply(metadata, [branch | {"max-ref-age-ms": 99}], now_ms=6_000))
    done, after = folded(metadata, [append("ann", file("b"), ref="audit")], Listing.of(rows_of(first)), snapshot_id=78)
    assert after["refs"]["audit"] == {"snapshot-id": 78, "type": "branch", "max-ref-age-ms": 99}
    assert after["current-snapshot-id"] == 77
    assert read_group(done.files[done.snapshot["summary"]["icetower.group-file"]]).ref == "audit"
    assert done.snapshot["summary"]["icetower.ref"] == "audit"  # so that nobody has to read the file for it


def test_a_dropped_source_column_is_found_in_an_older_schema() -> None:
    metadata = table()
    kept = {**SCHEMA, "schema-id": 1, "fields": SCHEMA["fields"][:1]}
    metadata["schemas"] = [*metadata["schemas"], kept]
    metadata["current-schema-id"] = 1
    done, _ = folded(metadata, [append("ann", file("a", day=3))])
    (manifest,) = manifests_of(done)
    assert manifest.entries[0].file.partition == (3,)
    header = fastavro.reader(io.BytesIO(next(d for p, d in done.files.items() if p.endswith("-m0.avro")))).metadata
    assert header["schema-id"] == "0"
    assert done.snapshot["schema-id"] == 1


# -- what cannot go in any more ---------------------------------------------------------------------------------------


def test_r8_what_an_append_names_must_be_there_still() -> None:
    metadata = table()
    assert why_not(append("ann", file("a")), metadata) is None
    assert why_not(append("ann", file("a"), read_as=read_as(metadata)), metadata) is None
    refused = [
        why_not(append("ann", file("a"), table_uuid="u-2"), metadata),
        why_not(append("ann", file("a"), ref="gone"), metadata),
        why_not(append("ann", file("a", spec_id=9)), metadata),
        why_not(append("ann", file("a"), read_as=read_as(widened(metadata))), metadata),
        why_not(append("ann", file("a"), read_as=read_as(metadata)), table(**{"schema.name-mapping.default": "[]"})),
    ]
    assert [error and (error.status, error.rule) for error in refused] == [
        (409, "requirement.assert-table-uuid"),
        (409, "append.branch"),
        (409, "commit.spec"),
        (409, "append.schema"),
        (409, "append.schema"),
    ]


def widened(metadata: dict[str, Any]) -> dict[str, Any]:
    """The table with another type of a column that has the same id, as REPLACE TABLE may leave it."""
    schema = {**SCHEMA, "schema-id": 1, "fields": [{**SCHEMA["fields"][0], "type": "string"}, *SCHEMA["fields"][1:]]}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    return dict(table_metadata.apply(metadata, updates, now_ms=6_000))


def test_a_tag_is_no_branch() -> None:
    _, metadata = folded(table(), [append("ann", file("a"))])
    tag = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 77}
    metadata = dict(table_metadata.apply(metadata, [tag], now_ms=6_000))
    error = why_not(append("ann", file("b"), ref="v1"), metadata)
    assert error is not None
    assert error.rule == "append.branch"


def test_one_file_by_two_requests_of_a_group_goes_in_once() -> None:
    first, second = append("ann", file("a"), key="k1"), append("ann", file("b"), file("a"), key="k2")
    going, later, [(refused, error)] = once_each([first, second])
    assert (going, later, refused) == ([first], [], second)
    assert (error.status, error.rule, error.files) == (422, "append.live", ("file:///w/t/data/a",))
    other = replace(second, files=(file("c"),))
    assert once_each([first, other]) == ([first, other], [], [])


def test_the_same_files_by_two_requests_of_a_group_are_one_append_of_one_principal() -> None:
    first, again = append("ann", file("a"), file("b"), key="k1"), append("ann", file("b"), file("a"), key="k2")
    going, [(later, error)], refused = once_each([first, again])
    assert (going, later, refused) == ([first], again, [])
    assert error is not None
    assert error.rule == "append.live"
    others = append("bob", file("b"), file("a"), key="k2")
    assert [each for each, _ in once_each([first, others])[2]] == [others]
    rerun = append("ann", file("c"), key="k2")
    assert [each for each, _ in once_each([first, again, rerun])[1]] == [again, rerun], "its key was called done"

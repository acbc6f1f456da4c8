"""Table metadata: every update, requirement and rule that Iceberg's own metadata builder has."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from icetower.errors import BadRequest, CommitConflict, ValidationFailed
from icetower.iceberg import metadata as tm

JSON = dict[str, Any]
UUID = "0b9c1f8e-6d7f-4f0c-9d1c-3f6f6c6a1a11"
NOW = 1_700_000_000_000
SCHEMA: JSON = {
    "type": "struct",
    "schema-id": 7,
    "fields": [
        {"id": 11, "name": "id", "required": True, "type": "long"},
        {"id": 12, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 13, "name": "data", "required": False, "type": "string"},
    ],
}
SPEC: JSON = {"spec-id": 3, "fields": [{"name": "ts_day", "transform": "day", "source-id": 12, "field-id": 1005}]}
ORDER: JSON = {
    "order-id": 9,
    "fields": [{"transform": "identity", "source-id": 11, "direction": "ASC", "null-order": "NULLS-FIRST"}],
}


def table(version: int = 2, *, spec: JSON | None = SPEC, **properties: str) -> tm.Metadata:
    return tm.new_table(
        uuid=UUID,
        location="s3://b/t/",
        schema=SCHEMA,
        spec=spec,
        sort_order=None,
        properties={"format-version": str(version), **properties},
        now_ms=NOW,
    )


def snap(snapshot_id: int, number: int, parent: int | None = None, **more: Any) -> JSON:
    parents = {} if parent is None else {"parent-snapshot-id": parent}
    return {
        "snapshot-id": snapshot_id,
        "sequence-number": number,
        "timestamp-ms": NOW + snapshot_id,
        "summary": {"operation": "append"},
        "manifest-list": f"s3://b/t/metadata/snap-{snapshot_id}.avro",
        "schema-id": 0,
        **parents,
        **more,
    }


def add(snapshot: JSON) -> JSON:
    return {"action": "add-snapshot", "snapshot": snapshot}


def point(ref: str, snapshot_id: int, type_: str = "branch", **more: int) -> JSON:
    return {"action": "set-snapshot-ref", "ref-name": ref, "snapshot-id": snapshot_id, "type": type_, **more}


def run(metadata: tm.Metadata | None, *updates: JSON, now_ms: int = NOW + 1000) -> tm.Metadata:
    return tm.apply(metadata, updates, now_ms=now_ms)


def history(count: int, version: int = 2) -> tm.Metadata:
    metadata = table(version)
    for i in range(1, count + 1):
        rows = {"first-row-id": (i - 1) * 10, "added-rows": 10} if version > 2 else {}
        number = 0 if version == 1 else i
        metadata = run(metadata, add(snap(i, number, i - 1 or None, **rows)), point("main", i))
    return metadata


def log_of(metadata: tm.Metadata) -> list[int]:
    return [entry["snapshot-id"] for entry in metadata["snapshot-log"]]


# -- new tables --------------------------------------------------------------------------------------------------------


def test_new_table_assigns_fresh_ids() -> None:
    made = table()
    assert [(f["id"], f["name"]) for f in made["schemas"][0]["fields"]] == [(1, "id"), (2, "ts"), (3, "data")]
    assert made["partition-specs"] == [
        {"spec-id": 0, "fields": [{"name": "ts_day", "transform": "day", "source-id": 2, "field-id": 1000}]}
    ]
    assert (made["last-column-id"], made["last-partition-id"], made["location"]) == (3, 1000, "s3://b/t")
    assert made["sort-orders"] == [{"order-id": 0, "fields": []}]


def test_nested_ids_come_after_those_of_the_struct_around_them() -> None:
    point_type = {
        "type": "struct",
        "fields": [{"id": 8, "name": "x", "required": True, "type": "double"}],
    }
    schema = {
        "type": "struct",
        "identifier-field-ids": [3],
        "fields": [
            {
                "id": 1,
                "name": "m",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 4,
                    "key": "string",
                    "value-id": 5,
                    "value": {"type": "list", "element-id": 6, "element": point_type, "element-required": True},
                    "value-required": True,
                },
            },
            {"id": 3, "name": "k", "required": True, "type": "decimal(9,2)"},
        ],
    }
    made = tm.new_table(
        uuid=UUID, location="s3://b/t", schema=schema, spec=None, sort_order=None, properties={}, now_ms=NOW
    )
    fresh = made["schemas"][0]
    m = fresh["fields"][0]["type"]
    assert (fresh["fields"][0]["id"], fresh["fields"][1]["id"]) == (1, 2)
    assert (m["key-id"], m["value-id"], m["value"]["element-id"], m["value"]["element"]["fields"][0]["id"]) == (
        3,
        4,
        5,
        6,
    )
    assert fresh["identifier-field-ids"] == [2]
    assert fresh["fields"][1]["type"] == "decimal(9, 2)"
    assert made["last-column-id"] == 6


@pytest.mark.parametrize("field_id", [{}, {"field-id": 0}, {"field-id": 1234}])
def test_a7_partition_field_id_zero_or_missing_means_assign_one(field_id: JSON) -> None:
    """Trap A7: clients in Go and Rust send a `field-id` of 0, or none."""
    day = {"name": "ts_day", "transform": "day", "source-id": 12, **field_id}
    made = table(spec={"fields": [day]})
    assert made["partition-specs"][0]["fields"][0]["field-id"] == 1000
    bucket = {"name": "b", "transform": "bucket[4]", "source-id": 1, **field_id}
    after = run(made, {"action": "add-spec", "spec": {"fields": [bucket]}})
    assert after["partition-specs"][1]["fields"][0]["field-id"] == (1234 if field_id.get("field-id") else 1001)
    again = run(
        after,
        {"action": "add-spec", "spec": {"fields": [{**bucket, "field-id": 0, "name": "c"}]}},
    )
    assert (
        again["partition-specs"][2]["fields"][0]["field-id"] == after["partition-specs"][1]["fields"][0]["field-id"]
    ), "an equal field keeps its id"


def test_sort_order_of_a_new_table_gets_id_1() -> None:
    made = tm.new_table(
        uuid=UUID, location="s3://b/t", schema=SCHEMA, spec=None, sort_order=ORDER, properties={}, now_ms=NOW
    )
    field = {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}
    assert made["sort-orders"] == [{"order-id": 1, "fields": [field]}]
    assert made["default-sort-order-id"] == 1
    assert made["last-partition-id"] == 999


def test_reserved_properties_are_not_kept() -> None:
    made = table(3, uuid="x", owner="me", **{"snapshot-count": "3", "current-snapshot-id": "1"})
    assert made["properties"] == {"owner": "me", "write.parquet.compression-codec": "zstd"}


@pytest.mark.parametrize(
    ("version", "there", "absent", "empty"),
    [
        (1, {"schema", "partition-spec"}, {"last-sequence-number", "next-row-id"}, -1),
        (2, {"last-sequence-number"}, {"schema", "partition-spec", "next-row-id"}, -1),
        (3, {"last-sequence-number", "next-row-id"}, {"schema", "partition-spec"}, None),
    ],
)
def test_fields_of_a_format_version(version: int, there: set[str], absent: set[str], empty: int | None) -> None:
    made = table(version)
    assert there <= made.keys()
    assert not absent & made.keys()
    assert made["current-snapshot-id"] == empty


def _field(**changes: Any) -> JSON:
    return {"type": "struct", "fields": [{"id": 1, "name": "a", "required": True, "type": "int", **changes}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": {"type": "list"}}, "type must be 'struct'"),
        ({"schema": _field(type="integer")}, "type: not a primitive type: 'integer'"),
        ({"schema": _field(type="variant")}, "variant is not supported until v3"),
        ({"schema": _field(**{"initial-default": 3})}, "Invalid initial default for a"),
        ({"schema": _field(required="yes")}, "field required must be true or false"),
        ({"schema": {"type": "struct", "fields": [*_field()["fields"], *_field()["fields"]]}}, "multiple fields"),
        ({"schema": {**_field(type="double"), "identifier-field-ids": [1]}}, "must not be float or double"),
        ({"schema": {**_field(), "identifier-field-ids": [4]}}, "field does not exist"),
        ({"spec": {"fields": [{"name": "x", "transform": "day", "source-id": 11}]}}, "Invalid source type long"),
        ({"spec": {"fields": [{"name": "x", "transform": "day", "source-id": 99}]}}, "Cannot find source column"),
        ({"spec": {"fields": [{"name": "id", "transform": "day", "source-id": 12}]}}, "different field in schema: id"),
        ({"spec": {"fields": [{"name": "x", "source-id": 12}]}}, "missing field transform"),
        ({"spec": {"fields": [*SPEC["fields"], *SPEC["fields"]]}}, "partition name more than once"),
        ({"sort_order": {"fields": [{**ORDER["fields"][0], "direction": "up"}]}}, "Invalid sort direction: up"),
        ({"properties": {"format-version": "4"}}, "Unsupported format version: v4"),
        ({"properties": {"format-version": "x"}}, "must have integer value"),
        ({"properties": {"commit.retry.num-retries": "-1"}}, "non negative"),
        ({"properties": {"write.metadata.metrics.column.zz": "full"}}, "could not find column zz"),
        ({"location": ""}, "location is empty"),
    ],
)
def test_a_bad_new_table_is_refused_by_name(change: JSON, message: str) -> None:
    arguments: JSON = {"schema": SCHEMA, "spec": None, "sort_order": None, "properties": {}, "location": "s3://b/t"}
    with pytest.raises(BadRequest) as refused:
        tm.new_table(uuid=UUID, now_ms=NOW, **{**arguments, **change})
    assert message in refused.value.message


# -- requirements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ({"type": "assert-create"}, "table already exists"),
        ({"type": "assert-table-uuid", "uuid": UUID.upper()}, None),
        ({"type": "assert-table-uuid", "uuid": "x"}, f"UUID does not match: expected {UUID} != x"),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2}, None),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
            "branch main has changed: expected id 1 != 2",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
            "branch main was created concurrently",
        ),
        ({"type": "assert-ref-snapshot-id", "ref": "v1"}, "tag v1 was created concurrently"),
        (
            {"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": 1},
            "branch or tag dev is missing, expected 1",
        ),
        ({"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": None}, None),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
            "last assigned field id changed: expected id 4 != 3",
        ),
        (
            {"type": "assert-current-schema-id", "current-schema-id": 1},
            "current schema changed: expected id 1 != 0",
        ),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9},
            "last assigned partition id changed: expected id 9 != 1000",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 1},
            "default partition spec changed: expected id 1 != 0",
        ),
        (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
            "default sort order changed: expected id 1 != 0",
        ),
        ({"type": "assert-default-sort-order-id", "default-sort-order-id": 0}, None),
    ],
)
def test_requirements_fail_in_icebergs_words(requirement: JSON, message: str | None) -> None:
    metadata = run(history(2), point("v1", 1, "tag"))
    failed = tm.failed_requirements(metadata, [requirement])
    assert [entry.message for entry in failed] == ([] if message is None else [f"Requirement failed: {message}"])


def test_requirements_of_a_table_that_does_not_exist() -> None:
    asked = [
        {"type": "assert-create"},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 0},
        {"type": "assert-table-uuid", "uuid": UUID},
    ]
    assert [(f.requirement, f.message) for f in tm.failed_requirements(None, asked)] == [
        (asked[2], "Requirement failed: table does not exist")
    ]


def test_an_unknown_requirement_is_named() -> None:
    with pytest.raises(BadRequest, match="assert-moon"):
        tm.failed_requirements(table(), [{"type": "assert-moon"}])


# -- schemas, specs, orders --------------------------------------------------------------------------------------------

WIDER: JSON = {
    "type": "struct",
    "schema-id": 1,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "data", "required": False, "type": "string"},
        {"id": 4, "name": "more", "required": False, "type": "int"},
    ],
}
SET_LAST_SCHEMA: JSON = {"action": "set-current-schema", "schema-id": -1}


def test_a_new_schema_becomes_current_and_an_equal_one_is_reused() -> None:
    made = run(table(), {"action": "add-schema", "schema": WIDER}, SET_LAST_SCHEMA)
    assert (made["current-schema-id"], made["last-column-id"], len(made["schemas"])) == (1, 4, 2)
    again = {**WIDER, "schema-id": 33, "fields": [{**f, "doc": None} for f in WIDER["fields"]]}
    same = run(made, {"action": "add-schema", "schema": again, "last-column-id": 4})
    assert same is made
    back = run(made, {"action": "set-current-schema", "schema-id": 0})
    assert (back["current-schema-id"], back["last-column-id"]) == (0, 4)


def test_equal_specs_and_orders_are_reused_and_new_ones_numbered() -> None:
    spec = {"spec-id": 8, "fields": [{"name": "b", "transform": "bucket[16]", "source-id": 1, "field-id": 1001}]}
    order = {
        "order-id": 4,
        "fields": [{"transform": "identity", "source-id": 3, "direction": "desc", "null-order": "nulls-last"}],
    }
    made = run(
        table(),
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert (made["default-spec-id"], made["last-partition-id"], made["default-sort-order-id"]) == (1, 1001, 1)
    moved = {"spec-id": 5, "fields": [{**spec["fields"][0], "field-id": 1444}]}
    assert run(made, {"action": "add-spec", "spec": moved}, {"action": "add-sort-order", "sort-order": order}) is made
    gone = run(made, {"action": "remove-partition-specs", "spec-ids": [0]})
    assert [spec["spec-id"] for spec in gone["partition-specs"]] == [1]
    unsorted = run(made, {"action": "set-default-sort-order", "sort-order-id": 0})
    assert unsorted["default-sort-order-id"] == 0


DROP_TS: JSON = {"type": "struct", "fields": [WIDER["fields"][0]]}
CLASH: JSON = {"type": "struct", "fields": [{"id": 9, "name": "ts_day", "required": False, "type": "int"}]}


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([SET_LAST_SCHEMA], "Cannot set last added schema: no schema has been added"),
        ([{"action": "set-default-spec", "spec-id": -1}], "Cannot set last added spec"),
        ([{"action": "set-default-sort-order", "sort-order-id": -1}], "Cannot set last added sort order"),
        ([{"action": "set-current-schema", "schema-id": 5}], "Cannot set current schema to unknown schema: 5"),
        ([{"action": "set-default-spec", "spec-id": 5}], "unknown spec: 5"),
        ([{"action": "set-default-sort-order", "sort-order-id": 5}], "unknown sort order: 5"),
        ([{"action": "add-schema", "schema": DROP_TS}, SET_LAST_SCHEMA], "Cannot find source column for partition"),
        ([{"action": "add-schema", "schema": CLASH}], None),
        ([{"action": "remove-schemas", "schema-ids": [0]}], "Cannot remove the current schema"),
        ([{"action": "remove-partition-specs", "spec-ids": [0]}], "Cannot remove the default partition spec"),
        ([{"action": "upgrade-format-version", "format-version": 1}], "Cannot downgrade v2 table to v1"),
        ([{"action": "upgrade-format-version", "format-version": 4}], "unsupported format version: v4"),
        ([{"action": "assign-uuid", "uuid": "other"}], "Cannot assign uuid other"),
        ([{"action": "set-location", "location": ""}], "Cannot set location"),
        ([{"action": "set-properties", "updates": {"a": 1}}], "updates['a']"),
        ([{"action": "set-properties"}], "missing field updates"),
        ([{"action": "remove-properties", "removals": "a"}], "removals"),
        ([{"action": "enable-row-lineage"}], "row lineage"),
        ([{"action": "add-view-version", "view-version": {}}], "add-view-version"),
        ([{"action": "fly"}], "fly"),
        ([{}], "None"),
        ([point("main", 44)], "Cannot set main to unknown snapshot: 44"),
        ([add(snap(1, 1)), point("main", 1, "tag")], "it must be a branch"),
        ([add(snap(1, 1)), point("t", 1, "tag", **{"max-snapshot-age-ms": 3})], "tags do not support"),
        ([add(snap(1, 1)), point("b", 1, **{"max-ref-age-ms": 0})], "greater than 0"),
        ([add(snap(1, 1)), add(snap(1, 2))], "Snapshot already exists for id: 1"),
        ([add({"snapshot-id": 1, "timestamp-ms": NOW})], "manifest-list"),
        ([add({**snap(1, 1), "snapshot-id": "1"})], "snapshot-id must be an integer"),
        ([{"action": "set-statistics", "statistics": {"snapshot-id": 1}}], "statistics-path"),
    ],
)  # fmt: skip
def test_updates_that_can_not_be_applied(updates: list[JSON], message: str | None) -> None:
    if message is None:
        assert run(table(), *updates)["last-column-id"] == 9
        with pytest.raises(BadRequest, match="ts_day"):
            run(table(), *updates, SET_LAST_SCHEMA)
        return
    with pytest.raises(BadRequest) as refused:
        run(table(), *updates)
    assert message in refused.value.message


# -- snapshots and refs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_line_of_snapshots(version: int) -> None:
    metadata = history(3, version)
    assert tm.ref_head(metadata, "main") == tm.current_snapshot_id(metadata) == 3
    assert metadata.get("last-sequence-number") == (None if version == 1 else 3)
    assert metadata.get("next-row-id") == (30 if version == 3 else None)
    assert log_of(metadata) == [1, 2, 3]
    assert [entry["snapshot-id"] for entry in tm.ancestors(metadata, 3)] == [3, 2, 1]
    assert tm.snapshot(metadata, 2) == metadata["snapshots"][1]
    assert tm.snapshot(metadata, 22) is None
    assert tm.ref_head(metadata, "dev") is None


def test_ancestors_when_snapshots_are_listed_out_of_order() -> None:
    metadata = history(4)
    shuffled = {**metadata, "snapshots": metadata["snapshots"][::-1]}
    assert [entry["snapshot-id"] for entry in tm.ancestors(shuffled, 4)] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("version", "snapshot", "error", "message"),
    [
        (2, snap(9, 3, 3), CommitConflict, "sequence number 3 older than last sequence number 3"),
        (2, snap(9, 3), None, ""),
        (2, snap(9, 9, 3), None, ""),
        (1, snap(9, 4, 3), ValidationFailed, "Sequence number must be 0 in v1"),
        (3, snap(9, 4, 3), ValidationFailed, "first-row-id is null"),
        (3, snap(9, 4, 3, **{"first-row-id": 30}), ValidationFailed, "added-rows"),
        (3, snap(9, 4, 3, **{"first-row-id": 29, "added-rows": 1}), CommitConflict, "29 < 30"),
        (3, snap(9, 4, 3, **{"first-row-id": 35, "added-rows": 1}), None, ""),
    ],
)
def test_stale_snapshots_are_conflicts(
    version: int, snapshot: JSON, error: type[Exception] | None, message: str
) -> None:
    base = history(3, version)
    if error is not None:
        with pytest.raises(error) as refused:
            run(base, add(snapshot))
        assert message in str(refused.value)
        return
    after = run(base, add(snapshot))
    assert after["last-sequence-number"] == max(3, snapshot["sequence-number"])
    assert after.get("next-row-id", 36) == 36
    assert tm.ref_head(after, "main") == 3, "adding a snapshot moves no ref"


def test_snapshots_that_were_main_only_within_the_commit_are_not_logged() -> None:
    three = [add(snap(1, 1)), add(snap(2, 2, 1)), add(snap(3, 3, 2))]
    made = run(table(), *(update for i, one in enumerate(three) for update in (one, point("main", i + 1))))
    assert log_of(made) == [3]
    assert len(made["snapshots"]) == 3


def test_going_back_to_an_old_snapshot_is_logged_with_the_time_of_the_change() -> None:
    back = run(history(3), point("main", 1), now_ms=NOW + 5000)
    assert back["snapshot-log"][-1] == {"timestamp-ms": NOW + 5000, "snapshot-id": 1}
    assert tm.current_snapshot_id(back) == 1
    assert run(back, point("main", 1)) is back


def test_removing_snapshots_trims_log_refs_and_statistics() -> None:
    statistics = {
        "snapshot-id": 2,
        "statistics-path": "s3://b/x.puffin",
        "file-size-in-bytes": 3,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    base = run(
        history(4),
        point("old", 2, "tag"),
        point("dev", 3),
        {"action": "set-statistics", "statistics": statistics},
        {"action": "set-partition-statistics", "partition-statistics": statistics},
    )
    after = run(base, {"action": "remove-snapshots", "snapshot-ids": [2, 77]})
    assert [entry["snapshot-id"] for entry in after["snapshots"]] == [1, 3, 4]
    assert log_of(after) == [3, 4], "what stood before the hole goes too"
    assert set(after["refs"]) == {"main", "dev"}
    assert after["statistics"] == after["partition-statistics"] == []
    emptied = run(after, {"action": "remove-snapshots", "snapshot-ids": [4]})
    assert tm.current_snapshot_id(emptied) is None
    assert set(emptied["refs"]) == {"dev"}
    assert run(after, {"action": "remove-snapshots", "snapshot-ids": [77]}) is after


def test_refs_keep_retention_and_go_away() -> None:
    base = run(history(1), point("v1", 1, "tag", **{"max-ref-age-ms": 5}))
    assert base["refs"]["v1"] == {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 5}
    gone = run(base, {"action": "remove-snapshot-ref", "ref-name": "v1"})
    assert set(gone["refs"]) == {"main"}
    assert run(gone, {"action": "remove-snapshot-ref", "ref-name": "v1"}) is gone


def test_small_updates() -> None:
    base = history(1, 3)
    key = {"key-id": "k1", "encrypted-key-metadata": "eA=="}
    after = run(
        base,
        {"action": "set-properties", "updates": {"a": "1", "b": "2"}},
        {"action": "remove-properties", "removals": ["a", "zz"]},
        {"action": "set-properties", "updated": {"c": "3"}},
        {"action": "remove-properties", "removed": ["b"]},
        {"action": "set-location", "location": "s3://b/other/"},
        {"action": "add-encryption-key", "encryption-key": key},
        {"action": "enable-row-lineage"},
        {"action": "assign-uuid", "uuid": UUID},
    )
    assert after["properties"] == {"write.parquet.compression-codec": "zstd", "c": "3"}
    assert after["location"] == "s3://b/other"
    assert after["encryption-keys"] == [key]
    assert run(after, {"action": "remove-encryption-key", "key-id": "k1"})["encryption-keys"] == []
    assert base["properties"] == {"write.parquet.compression-codec": "zstd"}


def test_an_upgrade_brings_the_new_fields() -> None:
    v2 = run(history(2, 1), {"action": "upgrade-format-version", "format-version": 2})
    assert (v2["last-sequence-number"], "schema" in v2, "partition-spec" in v2) == (0, False, False)
    v3 = run(v2, {"action": "upgrade-format-version", "format-version": 3})
    assert v3["next-row-id"] == 0
    assert run(v3, {"action": "upgrade-format-version", "format-version": 3}) is v3


def test_a_snapshot_from_long_before_the_head_is_refused() -> None:
    late = snap(2, 2, 1, **{"timestamp-ms": NOW - 60_001})
    with pytest.raises(ValidationFailed, match="more than a minute before"):
        run(history(1), add(late), point("main", 2))
    assert len(run(history(1), add(late))["snapshots"]) == 2, "only what is logged must be in order"


def test_time_never_runs_back() -> None:
    metadata = run(history(1), {"action": "set-properties", "updates": {"a": "1"}}, now_ms=5)
    assert metadata["last-updated-ms"] == NOW + 1000
    ahead = run(table(), add(snap(1, 1, **{"timestamp-ms": NOW + 999_999})), point("main", 1))
    assert ahead["last-updated-ms"] == NOW + 999_999, "Iceberg refuses a log that is ahead of its table"


# -- from nothing, replace ---------------------------------------------------------------------------------------------


def creation(version: int) -> list[JSON]:
    staged = table(version)
    return [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": version},
        {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": 3},
        SET_LAST_SCHEMA,
        {"action": "add-spec", "spec": staged["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
        {"action": "set-properties", "updates": staged["properties"]},
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_table_made_from_nothing_equals_one_made_at_once(version: int) -> None:
    assert run(None, *creation(version), now_ms=NOW) == table(version)


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("assign-uuid", "send assign-uuid"),
        ("add-schema", "schema"),
        ("add-spec", "spec"),
        ("add-sort-order", "sort order"),
        ("set-location", "send set-location"),
    ],
)
def test_a_table_from_nothing_needs_its_parts(left_out: str, message: str) -> None:
    updates = [u for u in creation(2) if left_out not in u["action"]]
    with pytest.raises(BadRequest, match=message):
        run(None, *updates)
    if left_out == "assign-uuid":
        assert tm.apply(None, updates, now_ms=NOW, uuid="u")["table-uuid"] == "u"


def test_replacing_a_table() -> None:
    rows = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]}
    replaced = run(
        history(3),
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "add-schema", "schema": rows},
        SET_LAST_SCHEMA,
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        add(snap(9, 4)),
        point("main", 9),
    )
    assert (replaced["current-schema-id"], replaced["default-spec-id"], replaced["last-column-id"]) == (1, 1, 3)
    assert [entry["snapshot-id"] for entry in tm.ancestors(replaced, 9)] == [9]
    assert log_of(replaced) == [1, 2, 3, 9]
    emptied = run(history(3), {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert emptied["current-snapshot-id"] == -1
    assert tm.ref_head(emptied, "main") is None


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "version"),
    [
        (f"s3://b/t/metadata/00012-{UUID}.metadata.json", 12),
        (f"s3://b/t/metadata/00012-{UUID}.gz.metadata.json", 12),
        ("s3://b/t/metadata/v7.metadata.json", 7),
        ("s3://b/t/metadata/v7.gz.metadata.json", 7),
        ("s3://b/t/metadata/other.metadata.json", 0),
        ("00003-x", 3),
        ("", 0),
    ],
)
def test_version_of(location: str, version: int) -> None:
    assert tm.version_of(location) == version


def test_metadata_path() -> None:
    assert tm.metadata_path(table(), 3, "u") == "s3://b/t/metadata/00003-u.metadata.json"
    elsewhere = table(**{"write.metadata.path": "s3://m/x/", "write.metadata.compression-codec": "GZIP"})
    assert tm.metadata_path(elsewhere, 123456, "u") == "s3://m/x/123456-u.gz.metadata.json"
    packed = tm.serialise(elsewhere)
    assert packed[:2] == b"\x1f\x8b"
    assert tm.parse(packed) == tm.parse(packed, gzip=True) == elsewhere
    assert tm.serialise(elsewhere) == packed
    with pytest.raises(BadRequest, match="Invalid codec name: zstd"):
        table(**{"write.metadata.compression-codec": "zstd"})


def test_the_metadata_log_and_what_falls_out_of_it() -> None:
    metadata, expired = tm.with_log(table(), previous=None, previous_location=None)
    assert (metadata["metadata-log"], expired) == ([], ())
    for i in range(3):
        grown = run(metadata, {"action": "set-properties", "updates": {"i": str(i)}}, now_ms=NOW + i)
        metadata, expired = tm.with_log(grown, previous=metadata, previous_location=f"m{i}")
        assert expired == ()
    assert metadata["metadata-log"][0] == {"timestamp-ms": NOW, "metadata-file": "m0"}
    fewer = run(metadata, {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "2"}})
    logged, expired = tm.with_log(fewer, previous=metadata, previous_location="m3")
    assert [entry["metadata-file"] for entry in logged["metadata-log"]] == ["m2", "m3"]
    assert expired == ("m0", "m1")


def test_early_v1_files_are_completed() -> None:
    early = {
        "format-version": 1,
        "location": "s3://b/t",
        "last-updated-ms": NOW,
        "last-column-id": 3,
        "schema": {"type": "struct", "fields": SCHEMA["fields"]},
        "partition-spec": [{"name": "ts_day", "transform": "day", "source-id": 12}],
        "current-snapshot-id": 5,
        "snapshots": [{"snapshot-id": 5, "timestamp-ms": NOW, "manifests": ["m.avro"]}],
        "custom": {"kept": True},
    }
    metadata = tm.parse(orjson.dumps(early))
    assert metadata["partition-specs"][0]["fields"][0]["field-id"] == 1000
    assert metadata["refs"] == {"main": {"snapshot-id": 5, "type": "branch"}}
    assert (metadata["last-partition-id"], metadata["sort-orders"]) == (1000, [{"order-id": 0, "fields": []}])
    assert metadata["custom"] == {"kept": True}
    assert run(metadata, {"action": "set-properties", "updates": {"a": "b"}})["schema"]["fields"] == SCHEMA["fields"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format-version": 4}, "unsupported version 4"),
        ({"format-version": None}, "format-version"),
        ({"table-uuid": None}, "table-uuid"),
        ({"current-schema-id": 8}, "current-schema-id=8"),
        ({"default-spec-id": 8}, "default-spec-id=8"),
        ({"sort-orders": {}}, "sort-orders"),
        ({"refs": {"x": {"snapshot-id": 99, "type": "tag"}}}, "reference x"),
        ({"current-snapshot-id": 1}, "does not match main"),
        ({"properties": {"a": 1}}, "properties"),
        ({"last-column-id": True}, "last-column-id"),
    ],
)
def test_broken_metadata_is_refused_by_field(change: JSON, message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        tm.parse(orjson.dumps({**history(2), **change}))
    assert message in refused.value.message


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\x1f\x8bxx"])
def test_no_metadata_at_all(data: bytes) -> None:
    with pytest.raises(BadRequest, match="Cannot parse table metadata"):
        tm.parse(data)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_pyiceberg_reads_what_we_write(version: int) -> None:
    metadata = run(
        history(3, version),
        {"action": "add-schema", "schema": WIDER},
        SET_LAST_SCHEMA,
        point("v1", 1, "tag"),
        point("main", 2),
    )
    logged, _ = tm.with_log(
        metadata, previous=table(version), previous_location="s3://b/t/metadata/00000-a.metadata.json"
    )
    data = tm.serialise(logged)
    read = TableMetadataUtil.parse_raw(data.decode())
    assert read.current_snapshot_id == 2
    assert read.schema().find_field("more").field_id == 4
    assert read.spec().fields[0].field_id == 1000
    assert set(read.refs) == {"main", "v1"}
    assert tm.parse(data) == logged


def test_ten_thousand_snapshots_are_shared_not_copied() -> None:
    small = history(1)
    many = {**small, "snapshots": [snap(i, i, i - 1 or None) for i in range(1, 10_001)], "last-sequence-number": 10_000}
    base = {**many, "refs": {"main": {"snapshot-id": 10_000, "type": "branch"}}, "current-snapshot-id": 10_000}
    after = run(base, add(snap(10_001, 10_001, 10_000)), point("main", 10_001))
    assert len(after["snapshots"]) == 10_001
    assert all(one is other for one, other in zip(base["snapshots"], after["snapshots"], strict=False))
    assert after["schemas"] is base["schemas"]
    assert len(base["snapshots"]) == 10_000


# -- invariants --------------------------------------------------------------------------------------------------------


@st.composite
def update_sequences(draw: st.DrawFn) -> list[list[tuple[str, int]]]:
    step = st.tuples(
        st.sampled_from(
            ["append", "stage", "branch", "tag", "rollback", "expire", "drop-ref", "widen", "schema", "spec", "upgrade"]
        ),
        st.integers(0, 5),
    )
    return draw(st.lists(st.lists(step, min_size=1, max_size=4), max_size=12))


def _updates(metadata: tm.Metadata, steps: list[tuple[str, int]]) -> list[JSON]:
    """Updates for the steps, most of them sound on `metadata`; whatever isn't must be refused cleanly."""
    ids = [entry["snapshot-id"] for entry in metadata["snapshots"]] or [404]
    next_id, head = max(ids) + 1000, tm.ref_head(metadata, "main")
    number, row_id = metadata.get("last-sequence-number", 0), metadata.get("next-row-id", 0)
    version = metadata["format-version"]
    updates: list[JSON] = []
    for kind, n in steps:
        if kind in ("append", "stage"):
            next_id, number = next_id + 1, number + 1
            more = {"first-row-id": row_id, "added-rows": n} if version > 2 else {}
            row_id += n
            updates.append(add(snap(next_id, number if version > 1 else 0, head, **more, **{"timestamp-ms": NOW})))
            if kind == "append":
                updates.append(point("main", next_id))
                head = next_id
        elif kind in ("branch", "tag", "rollback"):
            target = ids[n % len(ids)]
            updates.append(
                point("main" if kind == "rollback" else f"{kind}{n}", target, "tag" if kind == "tag" else "branch")
            )
        elif kind == "expire":
            updates.append({"action": "remove-snapshots", "snapshot-ids": ids[: n % 3]})
        elif kind == "drop-ref":
            updates.append({"action": "remove-snapshot-ref", "ref-name": ["main", "branch1", "tag1"][n % 3]})
        elif kind == "widen":
            extra = [{"id": 4 + i, "name": f"c{i}", "required": False, "type": "int"} for i in range(n)]
            updates += [{"action": "add-schema", "schema": {**WIDER, "fields": [*WIDER["fields"][:3], *extra]}}]
        elif kind == "schema":
            updates.append({"action": "set-current-schema", "schema-id": n - 1})
        elif kind == "spec":
            spec = {"fields": [{"name": "b", "transform": f"bucket[{n + 1}]", "source-id": 1}]}
            updates += [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
        else:
            updates.append({"action": "upgrade-format-version", "format-version": n})
    return updates


def check_invariants(metadata: tm.Metadata) -> None:
    known = {entry["snapshot-id"] for entry in metadata["snapshots"]}
    assert len(known) == len(metadata["snapshots"])
    assert {ref["snapshot-id"] for ref in metadata["refs"].values()} <= known
    assert tm.ref_head(metadata, "main") == tm.current_snapshot_id(metadata)
    if (current := tm.current_snapshot_id(metadata)) is not None:
        assert log_of(metadata)[-1] == current
    assert metadata["current-schema-id"] in {schema["schema-id"] for schema in metadata["schemas"]}
    assert metadata["default-spec-id"] in {spec["spec-id"] for spec in metadata["partition-specs"]}
    assert metadata["last-column-id"] >= max(f["id"] for s in metadata["schemas"] for f in s["fields"])
    assert metadata["last-partition-id"] >= max(f["field-id"] for s in metadata["partition-specs"] for f in s["fields"])
    if metadata["format-version"] > 1:
        assert all(s.get("sequence-number", 0) <= metadata["last-sequence-number"] for s in metadata["snapshots"])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([1, 2, 3]), update_sequences())
def test_any_updates_leave_sound_metadata_and_the_base_untouched(
    version: int, groups: list[list[tuple[str, int]]]
) -> None:
    metadata = table(version)
    for steps in groups:
        before = orjson.dumps(metadata)
        try:
            after = run(metadata, *_updates(metadata, steps))
        except (BadRequest, CommitConflict):
            after = metadata
        assert orjson.dumps(metadata) == before
        check_invariants(after)
        assert tm.parse(tm.serialise(after)) == after
        metadata = after
    TableMetadataUtil.parse_raw(tm.serialise(metadata).decode())

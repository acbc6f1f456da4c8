"""What a contract lets its agent alter: a table of (update, contract) → verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icetower.registry.principals import administrator
from tests.admission.test_admit import LOCATION, METADATA, ask, contract, refused

SCHEMA = METADATA["schemas"][0]
FIELDS = SCHEMA["fields"]


def schema(*fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": list(fields)}},
        {"action": "set-current-schema", "schema-id": -1},
    ]


def spec(*fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"action": "add-spec", "spec": {"spec-id": 5, "fields": list(fields)}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def sets(name: str, value: str = "1") -> list[dict[str, Any]]:
    return [{"action": "set-properties", "updates": {name: value}}]


BY_ID = {"name": "bucket", "transform": "bucket[4]", "source-id": 1, "field-id": 1001}
SORT = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}],
}
STATISTICS = {
    "snapshot-id": 7,
    "statistics-path": f"{LOCATION}/metadata/s.puffin",
    "file-size-in-bytes": 1,
    "file-footer-size-in-bytes": 1,
    "blob-metadata": [],
}
ALLOWED, SHARED, HISTORY, LOCATED = "", "contract.shared", "contract.history", "contract.location"

ALTERATIONS: list[tuple[str, list[dict[str, Any]], str, str]] = [
    # update, what the owner of a part is told, what the owner of all is told
    ("an unpartitioned spec", [{"action": "set-default-spec", "spec-id": 1}], SHARED, ALLOWED),
    ("a spec without fields", spec(), SHARED, ALLOWED),
    ("a spec that is not the default one", spec(BY_ID)[:1], SHARED, ALLOWED),
    ("the default spec", spec(BY_ID), SHARED, ALLOWED),
    ("a spec goes", [{"action": "remove-partition-specs", "spec-ids": [1]}], SHARED, ALLOWED),
    ("a column goes", schema(FIELDS[1]), SHARED, ALLOWED),
    ("a column comes", schema(*FIELDS, {"id": 3, "name": "x", "type": "int", "required": False}), SHARED, ALLOWED),
    ("a column is renamed", schema(FIELDS[0], {**FIELDS[1], "name": "x"}), SHARED, ALLOWED),
    ("a schema that is not current", schema(FIELDS[0])[:1], SHARED, ALLOWED),
    ("a schema goes", [{"action": "remove-schemas", "schema-ids": [3]}], SHARED, ALLOWED),
    ("the sort order", [{"action": "add-sort-order", "sort-order": SORT},
                        {"action": "set-default-sort-order", "sort-order-id": -1}], SHARED, ALLOWED),
    ("the format", [{"action": "upgrade-format-version", "format-version": 3}], SHARED, ALLOWED),
    ("an encryption key", [{"action": "add-encryption-key", "encryption-key": {}}], SHARED, ALLOWED),
    ("an isolation level", sets("write.merge.isolation-level", "snapshot"), SHARED, ALLOWED),
    ("blind appends", sets("icetower.blind-appends", "true"), SHARED, ALLOWED),
    ("strict", sets("icetower.strict", "true"), SHARED, ALLOWED),
    ("how files are written", sets("write.parquet.compression-codec", "zstd"), SHARED, ALLOWED),
    ("which columns are who", sets("schema.name-mapping.default", "[]"), SHARED, ALLOWED),
    ("merging", sets("commit.manifest-merge.enabled", "false"), SHARED, ALLOWED),
    ("old metadata files", sets("write.metadata.previous-versions-max"), SHARED, ALLOWED),
    ("encryption", sets("encryption.key-id", "k"), LOCATED, LOCATED),
    ("a property of Iceberg's goes", [{"action": "remove-properties", "removals": ["read.split.target-size"]}],
     SHARED, ALLOWED),
    ("under an early name", [{"action": "set-properties", "updated": {"icetower.strict": "true"}}], SHARED, ALLOWED),
    ("one among others", [{"action": "set-properties", "updates": {"owner": "x", "icetower.strict": "true"}}],
     SHARED, ALLOWED),
    ("retention", sets("icetower.retention.snapshots-max"), HISTORY, ALLOWED),
    ("expiry", sets("history.expire.min-snapshots-to-keep"), HISTORY, ALLOWED),
    ("garbage", sets("gc.enabled", "false"), HISTORY, ALLOWED),
    ("where files lie", sets("write.data.path", "file:///x"), LOCATED, LOCATED),
    ("where the table lies", [{"action": "set-location", "location": "file:///x"}], LOCATED, LOCATED),
    # What concerns nobody else, or changes nothing: Java sends what is there when it replaces a table.
    ("a comment", sets("comment", "of mine"), ALLOWED, ALLOWED),
    ("a comment goes", [{"action": "remove-properties", "removals": ["comment"]}], ALLOWED, ALLOWED),
    ("a property of its own", sets("pricing.owner", "me"), ALLOWED, ALLOWED),
    ("statistics", [{"action": "set-statistics", "snapshot-id": 7, "statistics": STATISTICS}], ALLOWED, ALLOWED),
    ("the same place", [{"action": "set-location", "location": LOCATION}], ALLOWED, ALLOWED),
    ("the same schema", schema(*FIELDS), ALLOWED, ALLOWED),
    ("the same spec", spec(*METADATA["partition-specs"][0]["fields"]), ALLOWED, ALLOWED),
    ("the same sort order", [{"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
                             {"action": "set-default-sort-order", "sort-order-id": -1}], ALLOWED, ALLOWED),
    ("the same format", [{"action": "upgrade-format-version", "format-version": 2}], ALLOWED, ALLOWED),
    ("the same property", sets("read.split.target-size", "5"), ALLOWED, ALLOWED),
    ("a property goes that is not there", [{"action": "remove-properties", "removals": ["icetower.strict"]}],
     ALLOWED, ALLOWED),
]  # fmt: skip
TABLE = {**METADATA, "properties": {**METADATA["properties"], "comment": "x", "read.split.target-size": "5"}}


def told(updates: list[dict[str, Any]], by: Any) -> str:
    """The rule that refuses the updates; empty where nothing does."""
    try:
        ask(updates=updates, by=by, metadata=TABLE)
    except Exception:  # noqa: BLE001 - `refused` says what it was
        return str(refused(updates=updates, by=by, metadata=TABLE).rule)
    return ALLOWED


@pytest.mark.parametrize(("what", "updates", "part", "whole"), ALTERATIONS, ids=[row[0] for row in ALTERATIONS])
def test_who_alters_what(what: str, updates: list[dict[str, Any]], part: str, whole: str) -> None:
    assert told(updates, contract("append, overwrite, alter")) == part, what
    assert told(updates, contract("alter", "[]")) == part, what
    assert told(updates, contract("append, alter", "all")) == whole, what
    # Rules add up: who alters all of a table need not own what is in it.
    added = "- {table: pricing.prices, operations: [alter], partitions: all}\n"
    assert told(updates, contract("append", extra=added)) == whole, what
    # Owning all of it for something else is not enough.
    owned = "- {table: pricing.prices, operations: [overwrite], partitions: all}\n"
    assert told(updates, contract("alter", extra=owned)) == part, what
    assert told(updates, contract("overwrite", "all")) == "contract.operation", what
    assert told(updates, administrator("chief")) == ALLOWED, what


def test_a_refusal_names_what_it_is_about() -> None:
    message = refused(updates=[*spec(), *sets("icetower.strict", "true")], by=contract("alter")).message
    assert "it changes icetower.strict, its partition specs, and all who read or write the table go by that" in message
    assert "'partitions: all'" in message

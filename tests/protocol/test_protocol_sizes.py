"""How much one request may add to metadata: more than any client sends, and no more than that."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from icetower.errors import ValidationFailed
from icetower.protocol.catalog import CreateNamespace, CreateTable, UpdateProperties, parse_request
from icetower.protocol.commits import parse_commit, parse_transaction
from icetower.protocol.sizes import LIMITS_BYTES, check_room

MIB = 1024 * 1024
SNAPSHOT = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "s3://b/l.avro"}
KEY = {"key-id": "k", "encrypted-key-metadata": ""}


def snapshot(summary: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": {**SNAPSHOT, "summary": {"operation": "append", **summary}, **more}}


def columns(count: int, doc: str) -> dict[str, Any]:
    fields = [
        {"id": n, "name": f"a_column_of_a_wide_table_{n}", "type": "string", "required": False, "doc": doc}
        for n in range(1, count + 1)
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def commit(*updates: dict[str, Any]) -> bytes:
    return orjson.dumps({"requirements": [], "updates": updates})


REFERENCE = {"action": "set-snapshot-ref", "type": "branch", "snapshot-id": 1}
FILE = {"snapshot-id": 1, "statistics-path": "s3://b/s", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1}
TOO_MUCH = {
    "summaries": snapshot({"a": "x" * 128 * 1024}),
    "properties": {"action": "set-properties", "updates": {"a": "x" * 2 * MIB}},
    "schemas": {"action": "add-schema", "schema": columns(1, "x" * 8 * MIB)},
    "refs": {**REFERENCE, "ref-name": "x" * MIB},
    "statistics": {"action": "set-statistics", "statistics": {**FILE, "blob-metadata": ["x" * 4 * MIB]}},
    "metadata": {"action": "add-encryption-key", "encryption-key": {**KEY, "encrypted-key-metadata": "x" * MIB}},
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_too_much_of_a_kind_is_refused_in_a_commit_and_in_a_transaction(kind: str) -> None:
    assert TOO_MUCH.keys() == LIMITS_BYTES.keys()
    change = {"identifier": {"namespace": ["n"], "name": "t"}, "updates": [TOO_MUCH[kind]]}
    for refused in (
        lambda: parse_commit(commit(TOO_MUCH[kind])),
        lambda: parse_transaction(orjson.dumps({"table-changes": [change]})),
    ):
        with pytest.raises(ValidationFailed, match=f"{LIMITS_BYTES[kind]} are taken") as found:
            refused()
        assert found.value.rule == f"limit.{kind}"


def test_the_updates_of_a_commit_are_counted_together() -> None:
    half = snapshot({"a": "x" * 65 * 1024})
    parse_commit(commit(half))
    with pytest.raises(ValidationFailed, match="summaries"):
        parse_commit(commit(half, half))
    hidden = snapshot({}, **{"a-field-that-nobody-knows": "x" * MIB})
    with pytest.raises(ValidationFailed, match="metadata"):
        parse_commit(commit(hidden))


def test_what_clients_send_is_taken() -> None:
    offsets = orjson.dumps({str(partition): 10**9 + partition for partition in range(5_000)}).decode()
    wide = columns(10_000, "What this column means, in a sentence or two, as careful people write it.")
    mapping = orjson.dumps([{"field-id": f["id"], "names": [f["name"]]} for f in wide["fields"]]).decode()
    properties = {"schema.name-mapping.default": mapping}
    parse_commit(commit(snapshot({"kafka.connect.offsets.control.group": offsets})))
    parse_commit(commit({"action": "add-schema", "schema": wide}, {"action": "set-properties", "updates": properties}))
    created = {"name": "t", "schema": wide, "properties": properties}
    parse_request(CreateTable, orjson.dumps(created))
    parse_commit(commit({"action": "remove-properties", "removals": ["x" * 3 * MIB]}))


@pytest.mark.parametrize(
    ("model", "body", "rule"),
    [
        (CreateTable, {"name": "t", "schema": columns(1, ""), "properties": {"a": "x" * 2 * MIB}}, "limit.properties"),
        (CreateTable, {"name": "t", "schema": columns(1, "x" * 8 * MIB)}, "limit.schemas"),
        (CreateNamespace, {"namespace": ["n"], "properties": {"a": "x" * 256 * 1024}}, "limit.properties"),
        (UpdateProperties, {"updates": {"a": "x" * 256 * 1024}}, "limit.properties"),
    ],
)
def test_creations_and_namespaces_have_the_same_bounds(model: Any, body: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        parse_request(model, orjson.dumps(body))
    assert refused.value.rule == rule


def test_a_large_table_takes_small_commits_and_those_that_make_it_smaller() -> None:
    small, large = snapshot({"a": "x" * 1_000}), snapshot({"a": "x" * 100_000})
    removing: dict[str, Any] = {"action": "remove-snapshots", "snapshot-ids": list(range(50_000))}
    assert check_room(32 * MIB, [large], 64 * MIB) > 100_000
    assert check_room(32 * MIB + 1, [small], 64 * MIB) < 2_000
    assert check_room(100 * MIB, [removing], 64 * MIB) == 0
    for size_bytes, update in ((32 * MIB + 1, large), (56 * MIB, small), (100 * MIB, small)):
        with pytest.raises(ValidationFailed, match="Expire snapshots") as refused:
            check_room(size_bytes, [update], 64 * MIB)
        assert refused.value.rule == "limit.metadata"

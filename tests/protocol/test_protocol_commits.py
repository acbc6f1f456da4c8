"""Commit requests: what is accepted, what is refused, and that refusals name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import BadRequest
from icetower.protocol.commits import REQUIREMENTS, UPDATES, VIEW_UPDATES, parse_commit, parse_transaction
from icetower.protocol.names import Identifier

JSON = dict[str, Any]
SNAPSHOT: JSON = {
    "snapshot-id": 1,
    "sequence-number": 1,
    "timestamp-ms": 5,
    "manifest-list": "s3://b/l.avro",
    "summary": {"operation": "append"},
}

SOUND_UPDATES: list[JSON] = [
    {"action": "assign-uuid", "uuid": "u"},
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": {"type": "struct", "fields": []}, "last-column-id": 3},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "add-snapshot", "snapshot": {**SNAPSHOT, "parent-snapshot-id": None}},
    {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": 1, "type": "branch", "max-ref-age-ms": None},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "set-location", "location": "s3://b/t"},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "set-properties", "updated": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "set-statistics", "snapshot-id": 1, "statistics": {"snapshot-id": 1}},
    {"action": "remove-statistics", "snapshot-id": 1},
    {"action": "set-partition-statistics", "partition-statistics": {"snapshot-id": 1}},
    {"action": "remove-partition-statistics", "snapshot-id": 1},
    {"action": "remove-partition-specs", "spec-ids": [1]},
    {"action": "remove-schemas", "schema-ids": [1]},
    {"action": "enable-row-lineage"},
    {"action": "add-encryption-key", "encryption-key": {"key-id": "k", "encrypted-key-metadata": "eA=="}},
    {"action": "remove-encryption-key", "key-id": "k"},
]
SOUND_REQUIREMENTS: list[JSON] = [
    {"type": "assert-table-uuid", "uuid": "u"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
    {"type": "assert-current-schema-id", "current-schema-id": 1},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1},
    {"type": "assert-default-spec-id", "default-spec-id": 1},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]


def body(requirements: list[JSON] | None = None, updates: list[JSON] | None = None, **more: Any) -> bytes:
    return json.dumps({"requirements": requirements or [], "updates": updates or [], **more}).encode()


def test_every_update_and_requirement_is_read_and_passed_on_as_sent() -> None:
    newer = {"action": "set-location", "location": "s3://b/t", "from-the-future": {"kept": True}}
    commit = parse_commit(body(SOUND_REQUIREMENTS, [*SOUND_UPDATES, newer]))
    assert commit.identifier is None
    assert list(commit.requirements) == SOUND_REQUIREMENTS
    assert list(commit.updates) == [*SOUND_UPDATES, newer]


def test_the_tables_above_leave_nothing_out() -> None:
    assert {update["action"] for update in SOUND_UPDATES} == set(UPDATES)
    assert {requirement["type"] for requirement in SOUND_REQUIREMENTS} | {"assert-create"} == set(REQUIREMENTS)


def test_what_java_lets_clients_leave_out() -> None:
    commit = parse_commit(b'{"requirements": null}')
    assert (commit.requirements, commit.updates) == ((), ())


def test_large_ids_stay_exact() -> None:
    snapshot = {**SNAPSHOT, "snapshot-id": 2**63 - 1}
    commit = parse_commit(body([], [{"action": "add-snapshot", "snapshot": snapshot}]))
    assert commit.updates[0]["snapshot"]["snapshot-id"] == 9223372036854775807


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"requirements": {}}', "requirements"),
        (b'{"requirements": [], "updates": {}}', "updates"),
        (b'{"requirements": [3], "updates": []}', "requirements.0"),
        (body([{"type": "assert-moon"}]), "Unknown requirement 'assert-moon'"),
        (body([{"type": "assert-view-uuid", "uuid": "u"}]), "it is for views"),
        (body([{}]), "requirements[0]: type"),
        (body([{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "1"}]), "snapshot-id"),
        (body([{"type": "assert-table-uuid"}]), "uuid"),
        (body([{"type": "assert-create"}, SOUND_REQUIREMENTS[0]]), "Invalid create requirements"),
        (body([], [{"action": "fly"}]), "Unknown update 'fly'"),
        (body([], [{"action": 5}]), "updates[0]: action"),
        (body([], [{"action": "add-view-version", "view-version": {}}]), "it is for views"),
        (body([], [{"action": "set-current-view-version", "view-version-id": 1}]), "it is for views"),
        (body([], [{"action": "add-snapshot", "snapshot": {"snapshot-id": 1}}]), "snapshot.timestamp-ms"),
        (body([], [{"action": "add-snapshot", "snapshot": {**SNAPSHOT, "summary": {"a": 1}}}]), "snapshot.summary.a"),
        (body([], [{"action": "add-snapshot", "snapshot": {**SNAPSHOT, "added-rows": -1}}]), "snapshot.added-rows"),
        (body([], [{"action": "set-snapshot-ref", "ref-name": "a", "snapshot-id": 1, "type": "x"}]), "type"),
        (body([], [{"action": "remove-snapshots", "snapshot-ids": ["1"]}]), "snapshot-ids.0"),
        (body([], [{"action": "set-properties", "updates": {"a": None}}]), "updates.a"),
        (body([], [], identifier={"namespace": [], "name": "t"}), "namespace"),
        (body([], [], identifier={"namespace": ["a", ""], "name": "t"}), "namespace"),
        (body([], [], identifier={"namespace": ["a"]}), "identifier: name"),
    ],
)
def test_a_bad_commit_is_refused_by_name(data: bytes, named: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_commit(data)
    assert named in refused.value.message


def test_a_transaction_names_each_table_once() -> None:
    one = {"identifier": {"namespace": ["a", "b"], "name": "t"}, "requirements": [], "updates": SOUND_UPDATES[:1]}
    other = {**one, "identifier": {"namespace": ["a", "b"], "name": "u"}}
    commits = parse_transaction(json.dumps({"table-changes": [one, other]}).encode())
    assert [commit.identifier for commit in commits] == [Identifier(("a", "b"), "t"), Identifier(("a", "b"), "u")]
    nameless = {"requirements": [], "updates": []}
    for changes, named in (
        ([one, one], "a.b.t is changed twice"),
        ([one, nameless], "table-changes[1]: identifier"),
        ([], "table-changes"),
    ):
        with pytest.raises(BadRequest) as refused:
            parse_transaction(json.dumps({"table-changes": changes}).encode())
        assert named in refused.value.message


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(SOUND_UPDATES), st.data())
def test_a_field_of_any_other_shape_is_a_bad_request_or_passes_unchanged(update: JSON, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(update)))
    twisted = {**update, field: data.draw(_values)}
    fault = ""
    try:
        commit = parse_commit(body([], [twisted]))
        assert commit.updates == (twisted,)
    except BadRequest as refused:
        fault = refused.message
    assert not fault or "updates[0]" in fault


def test_view_updates_are_not_table_updates() -> None:
    assert not VIEW_UPDATES & set(UPDATES)


def test_the_protocol_needs_no_server_library() -> None:
    """The SDK imports it."""
    import icetower.protocol as package

    for module in Path(package.__path__[0]).glob("*.py"):
        assert "orjson" not in module.read_text(encoding="utf-8"), module.name

"""Names, catalog requests and error bodies."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import BadRequest, CommitConflict, ContractViolation, KeyMisused
from icetower.gateway.http import namespace_of
from icetower.protocol.catalog import (
    CreateNamespace,
    CreateTable,
    RegisterTable,
    RenameTable,
    UpdateProperties,
    error_body,
    parse_request,
)
from icetower.protocol.names import Identifier, namespace_to_path
from icetower.protocol.wire import Wire

STRUCT = {"type": "struct", "fields": []}


def test_identifiers() -> None:
    name = Identifier.parse("a.b.t")
    assert (name.namespace, name.name, str(name)) == (("a", "b"), "t", "a.b.t")
    assert Identifier(("a",), "z") < name
    for text in ("t", "", ".t", "a.", "a..t"):
        with pytest.raises(BadRequest):
            Identifier.parse(text)


@pytest.mark.parametrize(
    ("segment", "levels"),
    [("a", ("a",)), ("a%1Fb", ("a", "b")), ("a%1fb%20c", ("a", "b c")), ("a.b", ("a.b",)), ("%C3%A9", ("é",))],
)
def test_a7_namespaces_in_urls(segment: str, levels: tuple[str, ...]) -> None:
    """Trap A7: clients separate levels with `%1F`."""
    assert namespace_of(unquote(segment)) == levels


@pytest.mark.parametrize("segment", ["", "%1F", "a%1F", "a%1F%1Fb"])
def test_namespaces_that_can_not_be(segment: str) -> None:
    with pytest.raises(BadRequest):
        namespace_of(unquote(segment))


@given(st.lists(st.text(min_size=1).filter(lambda t: "\x1f" not in t and "\x00" not in t), min_size=1))
def test_namespaces_survive_the_url(levels: list[str]) -> None:
    assert namespace_of(unquote(namespace_to_path(tuple(levels)))) == tuple(levels)


@pytest.mark.parametrize(
    ("model", "body", "named"),
    [
        (CreateNamespace, {}, "namespace"),
        (CreateNamespace, {"namespace": "a"}, "namespace"),
        (CreateNamespace, {"namespace": ["a"], "properties": {"a": 1}}, "properties.a"),
        (CreateTable, {"name": "t"}, "schema"),
        (CreateTable, {"name": "", "schema": STRUCT}, "name"),
        (CreateTable, {"name": "t", "schema": {}}, "schema"),
        (CreateTable, {"name": "t", "schema": STRUCT, "stage-create": "yes"}, "stage-create"),
        (RegisterTable, {"name": "t"}, "metadata-location"),
        (RenameTable, {"source": {"namespace": ["a"], "name": "t"}}, "destination"),
        (UpdateProperties, {"removals": "a"}, "removals"),
    ],
)
def test_a_bad_request_is_refused_by_field(model: type[Wire], body: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_request(model, json.dumps(body).encode())
    assert named in refused.value.message
    assert model.__name__ in refused.value.message


def test_sound_requests() -> None:
    create = parse_request(
        CreateTable,
        json.dumps({"name": "t", "schema": STRUCT, "location": None, "write-order": None, "properties": None}).encode(),
    )
    assert (create.schema_, create.location, create.properties, create.stage_create) == (STRUCT, None, {}, False)
    assert parse_request(CreateNamespace, b'{"namespace": ["a", "b"]}').levels() == ("a", "b")
    names = {"source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["b"], "name": "u"}}
    rename = parse_request(RenameTable, json.dumps(names).encode())
    assert rename.identifiers() == (Identifier(("a",), "t"), Identifier(("b",), "u"))


def test_a_property_set_and_removed_at_once_is_422() -> None:
    with pytest.raises(KeyMisused) as refused:
        parse_request(UpdateProperties, b'{"removals": ["a", "b"], "updates": {"a": "1"}}')
    assert (refused.value.status, refused.value.kind) == (422, "UnprocessableEntityException")
    assert "['a']" in refused.value.message


def test_error_bodies_tell_people_and_machines() -> None:
    violation = ContractViolation("no", rule="contract.partitions", partitions=["date=2017-01-02"])
    assert error_body(violation) == {
        "error": {
            "message": "no",
            "type": "ForbiddenException",
            "code": 403,
            "rule": "contract.partitions",
            "partitions": ["date=2017-01-02"],
            "snapshot": None,
            "files": [],
            "next_step": "ask_owner",
            "owner": None,
            "wait_until_ms": None,
            "escalated_to": None,
            "request_id": None,
        }
    }
    conflict = error_body(CommitConflict("stale", snapshot=7))["error"]
    assert (conflict["type"], conflict["code"], conflict["snapshot"], conflict["next_step"]) == (
        "CommitFailedException",
        409,
        7,
        "refresh",
    )

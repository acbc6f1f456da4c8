"""Trap A8: full names repeat the names around a column, so that a small schema may hold gigabytes of them."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import pytest

from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg import metadata as tm
from icetower.iceberg import schemas
from icetower.protocol import columns as bounds
from icetower.protocol.catalog import CreateNamespace, CreateTable, UpdateProperties, parse_request
from icetower.protocol.columns import characters_around, check_schemas
from icetower.protocol.commits import parse_commit
from icetower.protocol.sizes import PROPERTY_NAME_CHARACTERS_MAX
from icetower.table.client_properties import effect_of

JSON = dict[str, Any]


def field(number: int, name: str, type_: Any = "int") -> JSON:
    return {"id": number, "name": name, "required": False, "type": type_}


def struct(*fields: JSON) -> JSON:
    return {"type": "struct", "fields": list(fields)}


def nested(levels: int, name: str, inside: list[JSON]) -> JSON:
    schema = struct(*inside)
    for level in range(levels):
        schema = struct(field(100_000 + level, name, schema))
    return {**schema, "schema-id": 0}


def lists(levels: int) -> JSON:
    type_: Any = "int"
    for level in range(levels):
        type_ = {"type": "list", "element-id": level + 2, "element": type_, "element-required": False}
    return {**struct(field(1, "a", type_)), "schema-id": 0}


LEAF = [field(1, "a")]
LEAVES = [field(at + 1, f"c{at}") for at in range(3_000)]
TOO_LARGE = {
    "a long name": (nested(1, "d" * 1_001, LEAF), "a name of 1001 characters"),
    "a long name around many": (nested(1, "d" * 40_000, LEAVES), "a name of 40000 characters"),
    "a long full name": (nested(11, "d" * 999, LEAF), "a full name of 10999 characters"),
    "a deep column": (lists(100), "a depth of 101"),
    "full names together": (nested(9, "d" * 1_000, LEAVES), "8388608 characters"),
    "many columns": (nested(0, "", [field(at, "c") for at in range(20_001)]), "20000 columns"),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_schema_that_is_too_large_is_refused_in_creations_and_commits(kind: str) -> None:
    schema, message = TOO_LARGE[kind]
    created = {"name": "t", "schema": schema}
    commit = {"requirements": [], "updates": [{"action": "add-schema", "schema": schema}]}
    for parse in (
        lambda: parse_request(CreateTable, orjson.dumps(created)),
        lambda: parse_commit(orjson.dumps(commit)),
    ):
        with pytest.raises(ValidationFailed, match=message) as refused:
            parse()
        assert refused.value.rule == "limit.schemas"
        assert len(str(refused.value)) < 300


def test_what_is_within_the_limits_is_taken() -> None:
    for schema in (nested(0, "", LEAVES), nested(9, "d" * 1_000, LEAF), nested(9, "d" * 100, LEAVES), lists(99)):
        check_schemas([schema], "commit")
        schemas.canonical(schema)


def test_any_shape_is_walked_and_left_to_those_who_know_the_form() -> None:
    shapes: list[Any] = [None, 1, [], {"fields": 1}, {"fields": [None, {"name": 1}, {"type": ["x"]}]}, {"element": {}}]
    check_schemas(shapes, "commit")
    assert [characters_around(shape) for shape in shapes][:4] == [0, 0, 0, 0]


def test_the_walk_measures_the_names_that_columns_have() -> None:
    points = {"type": "list", "element-id": 4, "element": struct(field(5, "x")), "element-required": True}
    pairs = {"type": "map", "key-id": 6, "key": "int", "value-id": 7, "value": struct(field(8, "y"))}
    pairs["value-required"] = False
    schema = struct(field(1, "a", struct(field(2, "bc"), field(3, "points", points))), field(9, "m", pairs))
    for each in (schema, nested(3, "abc", schema["fields"])):
        full = [column.name for column in schemas.columns(each)]
        own = [name.rsplit(".", 1)[-1] for name in full]
        assert sorted(size for _, _, size, _ in bounds._walk(each)) == sorted(map(len, full))
        assert characters_around(each) == sum(map(len, full)) - sum(map(len, own))


def test_a_metadata_file_with_such_names_is_not_read() -> None:
    table = tm.new_table(
        uuid="0b9c1f8e-6d7f-4f0c-9d1c-3f6f6c6a1a11",
        location="s3://b/t",
        schema=nested(2, "d" * 1_000, LEAVES[:1_000]),
        spec=None,
        sort_order=None,
        properties={},
        now_ms=1,
    )
    assert tm.parse(tm.serialise(table)) == table
    long_names = orjson.dumps(table).replace(b'"' + b"d" * 1_000 + b'"', b'"' + b"d" * 5_000 + b'"')
    with pytest.raises(BadRequest, match="shorten the names") as refused:
        tm.parse(long_names)
    assert refused.value.rule == "limit.file"


@pytest.mark.parametrize("characters", [PROPERTY_NAME_CHARACTERS_MAX, PROPERTY_NAME_CHARACTERS_MAX + 1])
def test_the_name_of_a_property_is_bounded_where_it_is_set(characters: int) -> None:
    given = {"p" * characters: "v"}
    update = {"action": "set-properties", "updates": given}
    for parse in (
        lambda: parse_commit(orjson.dumps({"requirements": [], "updates": [update]})),
        lambda: parse_request(CreateTable, orjson.dumps({"name": "t", "schema": struct(), "properties": given})),
        lambda: parse_request(CreateNamespace, orjson.dumps({"namespace": ["n"], "properties": given})),
        lambda: parse_request(UpdateProperties, orjson.dumps({"updates": given})),
    ):
        if characters <= PROPERTY_NAME_CHARACTERS_MAX:
            parse()
        else:
            with pytest.raises(ValidationFailed, match="11001 characters") as refused:
                parse()
            assert refused.value.rule == "limit.properties"


def test_a_property_is_judged_without_keeping_its_name() -> None:
    """A removal may name anything, and thousands of names of 30 MB were kept for good (trap A8)."""
    for name in ("x" * 1_000, "y" * 1_000 + ".impl"):
        before = sys.getrefcount(name)
        effect_of(name)
        assert sys.getrefcount(name) == before

"""Fences in a table's properties: whose they are, how long they stay, and how many there may be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import TooManyRequests
from icetower.protocol.marks import FENCE
from icetower.table import fences
from icetower.table.fences import fence, fenced, fenced_number
from icetower.table.keys import Names

KEY = Names("ann", "main", "k", None)
NUMBER = Names("ann", "main", None, ("app", 7))


def applied(properties: Mapping[str, str], updates: tuple[dict[str, Any], ...]) -> dict[str, str]:
    found = dict(properties)
    for update in updates:
        found |= update.get("updates", {})
        for name in update.get("removals", ()):
            del found[name]
    return found


def set_(names: Names, properties: Mapping[str, str] | None = None, *, now_ms: int = 0, until_ms: int = 10) -> Any:
    properties = properties or {}
    return applied(properties, fence(names, properties, now_ms=now_ms, until_ms=until_ms))


texts = st.text(min_size=1, max_size=4)
names = st.builds(
    Names,
    texts,
    texts,
    st.none() | texts,
    st.none() | st.tuples(texts, st.integers(min_value=0, max_value=2**63 - 1)),
).filter(lambda each: each.key is not None or each.application is not None)


def parts(each: Names) -> Iterator[tuple[object, ...]]:
    if each.key is not None:
        yield "key", each.principal, each.ref, each.key
    if each.application is not None:
        yield "number", each.principal, each.ref, *each.application


@given(names, names)
def test_a_write_is_fenced_by_each_of_its_names_and_by_no_others(one: Names, other: Names) -> None:
    properties = set_(one)
    assert all(name.startswith(FENCE) for name in properties)
    assert fenced(one, properties)
    shared = set(parts(one)) & set(parts(other))
    assert (fenced(other, properties) is not None) == bool(shared)
    assert (fenced_number(other, properties) is not None) == any(kind == "number" for kind, *_ in shared)


def test_it_says_whose_it_is_and_until_when() -> None:
    assert [json.loads(value) for value in set_(KEY).values()] == [
        {"principal": "ann", "ref": "main", "key": "k", "until-ms": 10}
    ]
    assert [json.loads(value) for value in set_(NUMBER).values()] == [
        {"principal": "ann", "ref": "main", "application": "app", "sequence": 7, "until-ms": 10}
    ]
    assert fenced(KEY, set_(KEY)) == "idempotency key k"
    assert fenced(NUMBER, set_(NUMBER)) == "number 7 of application app"


def test_it_holds_until_another_one_finds_that_it_has_lapsed() -> None:
    properties = set_(KEY, {"a": "b"}, until_ms=10)
    assert fenced(KEY, set_(NUMBER, properties, now_ms=9, until_ms=19))
    later = set_(NUMBER, properties, now_ms=10, until_ms=20)
    assert fenced(KEY, later) is None
    assert fenced(NUMBER, later)
    assert later["a"] == "b"


def test_set_once_more_it_stays_longer() -> None:
    properties = set_(KEY, set_(KEY, until_ms=10), now_ms=10, until_ms=20)
    assert [json.loads(value)["until-ms"] for value in properties.values()] == [20]


@pytest.mark.parametrize("value", ["", "x", "{}", "[]", '{"until-ms": "soon"}', '{"until-ms": null}'])
def test_one_that_cannot_be_read_holds_and_stays(value: str) -> None:
    [name] = set_(KEY)
    properties = set_(NUMBER, {name: value}, now_ms=2**62)
    assert properties[name] == value
    assert fenced(KEY, properties)


def test_a_principal_and_a_table_have_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "OF_PRINCIPAL_MAX", 2)
    monkeypatch.setattr(fences, "OF_TABLE_MAX", 3)
    properties: dict[str, str] = {}
    for at, who in enumerate(["ann", "ann", "bob"]):
        properties = set_(Names(who, "main", f"k{at}", None), properties, until_ms=10 + at)
    for who, first_ms in (("ann", 11), ("cid", 11)):
        with pytest.raises(TooManyRequests) as refused:
            set_(Names(who, "main", "k9", None), properties)
        assert (refused.value.rule, refused.value.wait_until_ms) == ("limit.fences", first_ms)
    assert len(set_(Names("ann", "main", "k1", None), properties)) == 3, "one that is there may be set once more"
    assert len(set_(Names("cid", "main", "k9", None), properties, now_ms=10)) == 3

"""From regions, filters and partitions to boxes: what may meet, and what cannot be understood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.contracts.boxes import Box, Spans, before, intersection, overlap, spans_of
from icetower.contracts.document import load
from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg.partitions import spec_of
from icetower.intents.regions import (
    EVERYTHING,
    Boxes,
    box_of_partition,
    boxes_of_filter,
    boxes_of_regions,
    boxes_of_rules,
    boxes_of_text,
    boxes_text,
    inside,
    meet,
    read_regions,
)
from tests.intents.world import box

DAY_MS = 24 * 3600 * 1000
NOW = 17_168 * DAY_MS  # 2017-01-02
HOUR = 3_600_000_000

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "ts", "type": "timestamp", "required": False},
        {"id": 2, "name": "sku", "type": "string", "required": False},
        {"id": 3, "name": "id", "type": "long", "required": False},
        {"id": 4, "name": "price", "type": "decimal(9, 2)", "required": False},
        {"id": 5, "name": "ratio", "type": "double", "required": False},
    ],
}


def table(*fields: tuple[str, str, int]) -> dict[str, Any]:
    spec = [
        {"name": name, "transform": transform, "source-id": source, "field-id": 1000 + at}
        for at, (name, transform, source) in enumerate(fields)
    ]
    return {
        "table-uuid": "t",
        "default-spec-id": 0,
        "current-schema-id": 0,
        "schemas": [SCHEMA],
        "partition-specs": [{"spec-id": 0, "fields": spec}],
    }


BY_DAY = table(("day", "day", 1), ("part", "bucket[16]", 3))
BY_HOUR = table(("hour", "hour", 1))
BY_SKU = table(("sku", "identity", 2), ("price", "identity", 4))
PLAIN = table()


def regions(*said: dict[str, Any], of: dict[str, Any] = BY_DAY) -> Boxes:
    return boxes_of_regions(read_regions(said), of, NOW)


def partition(*values: Any, of: dict[str, Any] = BY_DAY) -> Boxes:
    return (box_of_partition(spec_of(of, 0), values),)


PARTITIONS = [
    # a region, of which table, a partition of it, whether they may meet
    ({"day": "2017-01-02"}, BY_DAY, (17_168, 0), True),
    ({"day": "2017-01-02"}, BY_DAY, (17_169, 0), False),
    ({"day(ts)": "2017-01-02"}, BY_HOUR, (17_168 * 24 + 5,), True),
    ({"day(ts)": "2017-01-02"}, BY_HOUR, (17_169 * 24,), False),
    ({"hour(ts)": "2017-01-02T05"}, BY_DAY, (17_168, 3), True),
    ({"month(ts)": "2017-02"}, BY_DAY, (17_168, 3), False),
    ({"day": {"from": "2017-01-01", "to": "2017-01-03"}, "part": [1, 2]}, BY_DAY, (17_168, 2), True),
    ({"day": {"from": "2017-01-01", "to": "2017-01-03"}, "part": [1, 2]}, BY_DAY, (17_168, 3), False),
    ({"day": {"from": "2017-01-03"}}, BY_DAY, (17_168, 3), False),
    ({"day": {"from": "now", "to": "now+2d"}}, BY_DAY, (17_169, 3), True),
    ({"day": {"from": "now", "to": "now+2d"}}, BY_DAY, (17_170, 3), False),
    ({"bucket(16, id)": 3}, BY_DAY, (17_168, 3), True),
    ({"bucket(8, id)": 3}, BY_DAY, (17_168, 4), True),  # two numbers of buckets tell nothing of each other
    ({"day": None}, BY_DAY, (None, 3), True),
    ({"day": None}, BY_DAY, (17_168, 3), False),
    ({"day": "2017-01-02"}, BY_DAY, (None, 3), False),
    ({"sku": "apple"}, BY_SKU, ("apple", Decimal("1.50")), True),
    ({"sku": "apple"}, BY_SKU, ("pear", Decimal("1.50")), False),
    ({"sku": "apple", "price": "1.50"}, BY_SKU, ("apple", Decimal("1.51")), False),
    ({"truncate(2, sku)": "ap"}, BY_SKU, ("apple", Decimal("1.50")), True),
    ({"truncate(2, sku)": "ap"}, BY_SKU, ("pear", Decimal("1.50")), False),
    ({"day": "2017-01-02"}, BY_DAY, ("a lie", 3), True),  # no value of its field: it may be anything
    ({"day": "2017-01-02"}, BY_DAY, (17_169,), True),
]


@pytest.mark.parametrize(("region", "of", "values", "together"), PARTITIONS)
def test_partitions_are_held_against_regions(
    region: dict[str, Any], of: dict[str, Any], values: tuple[Any, ...], together: bool
) -> None:
    assert meet(regions(region, of=of), partition(*values, of=of)) is together


@pytest.mark.parametrize(
    "region",
    [
        {"colour": "red"},
        {"day": "yesterday"},
        {"part": "three"},
        {"ratio": "nan"},
    ],
)
def test_what_cannot_be_understood_is_all_of_the_table(region: dict[str, Any]) -> None:
    assert regions(region) == EVERYTHING


def test_an_unpartitioned_table_is_one_partition() -> None:
    assert partition(of=PLAIN) == EVERYTHING
    assert meet(regions({"day(ts)": "2017-01-02"}, of=PLAIN), EVERYTHING)


def test_regions_that_add_up_are_fewer_boxes() -> None:
    two = regions({"day": "2017-01-02"}, {"day": "2017-01-03"})
    assert len(two) == 1
    assert inside(two, regions({"day": {"from": "2017-01-01", "to": "2017-02-01"}}))
    assert not inside(regions({"day": {"from": "2017-01-01", "to": "2017-02-01"}}), two)


@pytest.mark.parametrize(
    "said",
    [{}, {"day(": 1}, {"day": {"at": 1}}, {"day": {}}, {"day": []}, {"day": [[1]]}, {"day": [1] * 1_001}],
)
def test_what_is_no_region_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        read_regions([said])
    assert refused.value.rule == "request.partitions"


def eq(column: str, value: Any) -> dict[str, Any]:
    return {"type": "eq", "term": column, "value": value}


def compared(op: str, column: str, value: Any) -> dict[str, Any]:
    return {"type": op, "term": column, "value": value}


def both(left: Any, right: Any) -> dict[str, Any]:
    return {"type": "and", "left": left, "right": right}


def either(left: Any, right: Any) -> dict[str, Any]:
    return {"type": "or", "left": left, "right": right}


FILTERS = [
    # a filter, another one, whether a row may pass both
    (eq("sku", "a"), eq("sku", "b"), False),
    (eq("sku", "a"), eq("id", 3), True),
    (compared("lt", "id", 10), compared("gt-eq", "id", 10), False),
    (compared("lt-eq", "id", 10), compared("gt-eq", "id", 10), True),
    (compared("gt", "id", 9), compared("lt", "id", 10), False),
    (compared("starts-with", "sku", "ap"), eq("sku", "apple"), True),
    (compared("starts-with", "sku", "ap"), eq("sku", "ape\U0010ffff"), True),
    (compared("starts-with", "sku", "ap"), eq("sku", "pear"), False),
    (either(eq("id", 1), eq("id", 2)), eq("id", 3), False),
    (either(eq("id", 1), eq("sku", "a")), eq("id", 3), True),
    (both(eq("id", 1), eq("sku", "a")), both(eq("id", 1), eq("sku", "b")), False),
    ({"type": "in", "term": "id", "values": [1, 2, 3]}, eq("id", 4), False),
    ({"type": "not", "child": compared("lt", "id", 10)}, eq("id", 4), False),
    ({"type": "not", "child": eq("id", 4)}, eq("id", 4), True),  # more than it selects, and never less
    ({"type": "is-null", "term": "id"}, eq("id", 4), False),
    ({"type": "not-null", "term": "id"}, {"type": "is-null", "term": "id"}, False),
    (True, eq("id", 4), True),
    (False, eq("id", 4), False),
    (compared("lt", "ts", "2017-01-02T00:00:00"), compared("gt", "ts", "2017-01-03T00:00:00"), False),
    (eq("ratio", 0.5), eq("ratio", 0.7), True),
    (eq("price", "1.50"), eq("price", "1.60"), True),
]


@pytest.mark.parametrize(("one", "other", "together"), FILTERS)
def test_filters_are_held_against_each_other(one: Any, other: Any, together: bool) -> None:
    assert meet(boxes_of_filter(one, SCHEMA), boxes_of_filter(other, SCHEMA)) is together


def test_a_filter_on_a_column_is_held_against_partitions_of_it() -> None:
    day = both(compared("gt-eq", "ts", "2017-01-02T00:00:00"), compared("lt", "ts", "2017-01-03T00:00:00"))
    held = boxes_of_filter(day, SCHEMA)
    assert meet(held, partition(17_168, 0))
    assert not meet(held, partition(17_169, 0))
    assert inside(held, regions({"day": "2017-01-02"}))


def test_many_alternatives_are_all_of_the_table() -> None:
    many: Any = eq("id", 0)
    for number in range(1, 150):
        many = either(many, both(eq("id", number), eq("sku", str(number))))
    assert meet(boxes_of_filter(many, SCHEMA), boxes_of_filter(eq("id", 149), SCHEMA))


@pytest.mark.parametrize("said", [eq("colour", 1), eq("id", "x"), {"type": "like"}])
def test_what_is_no_filter_of_the_table_is_refused(said: Any) -> None:
    with pytest.raises((ValidationFailed, ValueError)):
        boxes_of_filter(said, SCHEMA)


def test_boxes_come_back_from_text_as_they_were() -> None:
    found = (
        *regions({"day": "2017-01-02", "part": [1, None]}),
        *regions({"sku": ["a", None, "\ud800"], "price": {"from": "1.50"}}, of=BY_SKU),
        {(9, "identity", "binary"): partition("x", Decimal(1), of=BY_SKU)[0][(2, "identity", "string")]},
    )
    assert boxes_of_text(boxes_text(found)) == found
    assert boxes_of_text(boxes_text(EVERYTHING)) == EVERYTHING


def _owned(entry: str) -> Boxes:
    contract = load(f"version: 1\nagent: a\ntables:\n- table: ns.t\n  operations: [overwrite]\n{entry}", source="test")
    return boxes_of_rules(contract.tables, BY_DAY, NOW)


def test_what_a_contract_owns() -> None:
    assert _owned("  partitions: all\n") == EVERYTHING
    assert _owned("") == ()
    some = _owned("  partitions: [{part: [0, 1]}]\n  except: [{day: 2017-01-02}]\n")
    assert inside(regions({"part": 0, "day": "2017-01-03"}), some)
    assert not inside(regions({"part": 0}), some)
    assert not inside(regions({"part": 2, "day": "2017-01-03"}), some)
    assert _owned("  partitions: [{day(ts): {every: 2d, from: 0d, to: 1d}}]\n") == EVERYTHING


BOXES = st.builds(
    box,
    st.one_of(st.none(), st.sets(st.integers(0, 5), min_size=1, max_size=3)),
    st.one_of(st.none(), st.sets(st.integers(0, 3), min_size=1, max_size=2)),
)


@given(BOXES, BOXES, st.booleans(), st.booleans())
def test_two_boxes_overlap_where_they_have_something_in_common(one: Box, other: Box, left: bool, right: bool) -> None:
    nullable = [
        {axis: replace(spans, null=null) for axis, spans in each.items()}
        for each, null in ((one, left), (other, right))
    ]
    for mine, its in ((one, other), (nullable[0], nullable[1]), (nullable[0], other)):
        assert overlap(mine, its) == (intersection(mine, its) is not None)


def test_a_filter_with_more_values_than_are_held_one_by_one_holds_all_between() -> None:
    few = boxes_of_filter({"type": "in", "term": "id", "values": list(range(0, 2_000, 2))}, SCHEMA)
    many = boxes_of_filter({"type": "in", "term": "id", "values": list(range(0, 30_000, 2))}, SCHEMA)
    assert [len(spans.pieces) for box in few for spans in box.values()] == [1_000]
    assert [[(start[1], end[1]) for start, end in spans.pieces] for box in many for spans in box.values()] == [
        [(0, 29_999)]
    ]


def test_an_and_of_many_alternatives_holds_one_side_of_it() -> None:
    def one_of(term: str, values: Sequence[Any]) -> Any:
        found: Any = {"type": "eq", "term": term, "value": values[0]}
        for value in values[1:]:
            found = {"type": "or", "left": found, "right": {"type": "eq", "term": term, "value": value}}
        return found

    ids, skus = one_of("id", range(0, 300, 2)), one_of("sku", [f"s{at}" for at in range(50)])
    (box,) = boxes_of_filter({"type": "and", "left": ids, "right": skus}, SCHEMA)
    assert [axis[0] for axis in box] == [2]


SETS = st.builds(
    lambda values, null: (values, spans_of([(before(each), before(each + 1)) for each in values], null=null)),
    st.frozensets(st.integers(0, 12)),
    st.booleans(),
)


@given(SETS, SETS)
def test_sets_of_values_are_those_of_their_values(
    one: tuple[frozenset[int], Spans], other: tuple[frozenset[int], Spans]
) -> None:
    def of(values: frozenset[int], null: bool) -> Spans:
        return spans_of([(before(each), before(each + 1)) for each in values], null=null)

    (mine, a), (theirs, b) = one, other
    assert a & b == of(mine & theirs, a.null and b.null)
    assert a | b == of(mine | theirs, a.null or b.null)
    assert a - b == of(mine - theirs, a.null and not b.null)
    assert a.meets(b) == bool(a & b)
    assert a.holds(b) == (theirs <= mine and (a.null or not b.null))

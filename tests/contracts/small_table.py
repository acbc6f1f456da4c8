"""A small table with the rules that contracts may have on it, and every row that tells them apart."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

from hypothesis import strategies as st

from icetower.contracts.model import Operation, Rule
from icetower.contracts.owning import Ownership
from icetower.contracts.regions import Pattern, Range, Region, Values
from icetower.contracts.terms import Layout
from icetower.contracts.values import Membership
from icetower.iceberg.partitions import PartitionField, PartitionSpec

NOW_MS = int(dt.datetime(2020, 3, 1, 10, 30, tzinfo=dt.UTC).timestamp() * 1000)
TABLE = Pattern(("a",), "t")
COLUMNS = [("ts", "timestamp"), ("id", "long"), ("word", "string")]
METADATA: dict[str, Any] = {
    "schemas": [
        {"schema-id": 0, "fields": [{"id": i, "name": name, "type": kind} for i, (name, kind) in enumerate(COLUMNS, 1)]}
    ],
    "current-schema-id": 0,
    "default-spec-id": 0,
    "partition-specs": [
        {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "ts_day", "transform": "day"}]}
    ],
}
LAYOUT = Layout(METADATA)
ROWS_SPEC = PartitionSpec(
    1,
    tuple(
        PartitionField(1000 + i, f"p{i}", "identity", name, kind, kind, i) for i, (name, kind) in enumerate(COLUMNS, 1)
    ),
)
"""The finest spec there is: a partition is a row."""
FIRST = dt.datetime(2020, 2, 28, 22)  # noqa: DTZ001 - a timestamp without zone
WORDS = [None, "", "a", "ab", "aba", "abz", "b", "ba", "c"]


def micros(hour: int) -> int:
    return int((FIRST + dt.timedelta(hours=hour) - dt.datetime(1970, 1, 1)).total_seconds()) * 1_000_000  # noqa: DTZ001


ROWS: list[tuple[Any, ...]] = [
    *itertools.product([micros(hour) + 1 for hour in range(0, 80, 3)], [1, 2, 3, 5, 8, 34, 89, 233, None], ["ab"]),
    *itertools.product([micros(9)], range(40), WORDS),
    *itertools.product([micros(hour) for hour in (-5_000, *range(80), 1_000, 5_000)], [7], ["ab"]),
    (None, 7, "ab"),
    (None, None, None),
]


def rows_of(*rules: Rule) -> set[int]:
    """The rows that some rules own, by number."""
    ownership = Ownership(rules, LAYOUT, NOW_MS)
    return {number for number, row in enumerate(ROWS) if ownership.of(ROWS_SPEC, row) is Membership.INSIDE}


def dense(*rules: Rule, with_layout: bool) -> bool:
    """Whether the rows hold a witness of everything that such rules can have in common, or not."""
    named = {name for rule in rules for r in (*(rule.partitions or ()), *rule.excluded) for name, _ in r.fields}
    times = {"month(ts)", "day(ts)", "hour(ts)"} | ({"ts_day"} if with_layout else set[str]())
    return named <= times or named <= {"bucket(4, id)", "bucket(6, id)"}


def _extents(values: st.SearchStrategy[str]) -> st.SearchStrategy[Range | Values]:
    ranges = st.lists(st.none() | values, min_size=2, max_size=2, unique=True).filter(any)
    ordered = ranges.map(lambda pair: Range(*sorted(pair)) if all(pair) else Range(*pair))
    return ordered | st.lists(st.none() | values, min_size=1, max_size=3).map(lambda some: Values(tuple(some)))


def _some(values: st.SearchStrategy[str]) -> st.SearchStrategy[Range | Values]:
    return st.lists(values, min_size=1, max_size=4).map(lambda some: Values(tuple(some)))


_days = st.sampled_from(("2020-02-28", "2020-02-29", "2020-03-01", "2020-03-02"))
_hours = st.sampled_from(("2020-02-29T00", "2020-02-29T11", "2020-03-01T00", "2020-03-01T09", "2020-03-02T02"))
_words = st.sampled_from(("", "a", "ab", "abb", "b", "c"))
_TERMS: dict[str, st.SearchStrategy[Range | Values]] = {
    "month(ts)": _extents(st.sampled_from(("2020-02", "2020-03", "2020-04"))),
    "day(ts)": _extents(_days),
    "ts_day": _extents(_days),
    "hour(ts)": _extents(_hours),
    "bucket(4, id)": _some(st.sampled_from("0123")),
    "bucket(6, id)": _some(st.sampled_from("012345")),
    "truncate(2, word)": _some(_words),
    "identity(word)": _extents(_words),
}
REGIONS = st.lists(st.sampled_from(sorted(_TERMS)), min_size=1, max_size=2, unique=True).flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(name), _TERMS[name]) for name in sorted(names))).map(Region)
)
RULES = st.builds(
    lambda partitions, excluded: Rule(TABLE, frozenset({Operation.OVERWRITE}), partitions, excluded=excluded),
    st.none() | st.lists(REGIONS, min_size=1, max_size=2).map(tuple),
    st.lists(REGIONS, max_size=2).map(tuple),
)

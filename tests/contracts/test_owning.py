"""What one transform of a column tells about another: does a partition lie in what a contract owns?"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from icetower.contracts.document import load
from icetower.contracts.owning import Ownership
from icetower.contracts.terms import Layout
from icetower.contracts.values import Membership
from icetower.errors import BadRequest
from icetower.iceberg.partitions import PartitionSpec, spec_of

NOW_MS = int(dt.datetime(2026, 3, 1, 9, 30, tzinfo=dt.UTC).timestamp() * 1000)
COLUMNS = {
    "ts": "timestamptz",
    "id": "long",
    "word": "string",
    "day": "date",
    "price": "decimal(9, 2)",
    "n.deep": "int",
}


def metadata(*specs: list[tuple[str, str, str]]) -> dict[str, Any]:
    """A table with partition specs of (column, transform, field name)."""
    ids = {name: position for position, name in enumerate(COLUMNS, start=1)}
    fields = [{"id": ids[name], "name": name, "type": kind} for name, kind in COLUMNS.items() if "." not in name]
    deep = {"type": "struct", "fields": [{"id": ids["n.deep"], "name": "deep", "type": "int"}]}
    return {
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "fields": [*fields, {"id": 99, "name": "n", "type": deep}]}],
        "partition-specs": [
            {
                "spec-id": number,
                "fields": [
                    {
                        "name": name,
                        "transform": transform,
                        "source-id": ids[column],
                        "field-id": 1000 + 10 * number + at,
                    }
                    for at, (column, transform, name) in enumerate(spec)
                ],
            }
            for number, spec in enumerate(specs)
        ],
    }


def membership(rule: str, spec: list[tuple[str, str, str]], partition: tuple[Any, ...]) -> Membership:
    """By a rule's partitions (and what it excludes), for a partition of the first spec."""
    owner = load(f"version: 1\nagent: a\ntables: [{{table: a.b, operations: [append], {rule}}}]\n", source="test")
    table = metadata(spec, [("ts", "day", "ts_day"), ("id", "bucket[16]", "id_bucket")])
    return Ownership(owner.tables, Layout(table), NOW_MS).of(spec_of(table, 0), partition)


def days(text: str) -> int:
    return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days


def months(text: str) -> int:
    return (int(text[:4]) - 1970) * 12 + int(text[5:]) - 1


def hours(text: str) -> int:
    return days(text[:10]) * 24 + int(text[11:])


IN, OUT, PART = Membership.INSIDE, Membership.OUTSIDE, Membership.PARTLY
RANGE = "{day(ts): {from: 2017-01-05, to: 2017-03-01}}"
MORNING = "{identity(ts): {from: '2017-01-01T00:00:00', to: '2017-01-01T12:00:00'}}"
TOLD = [
    # region, column and transform of the partition, its value, where it lies
    (RANGE, "ts", "day", days("2017-01-05"), IN),
    (RANGE, "ts", "day", days("2017-03-01"), OUT),
    (RANGE, "ts", "hour", hours("2017-02-28T23"), IN),
    (RANGE, "ts", "hour", hours("2017-03-01T00"), OUT),
    (RANGE, "ts", "hour", None, OUT),
    (RANGE, "ts", "month", months("2017-02"), IN),
    (RANGE, "ts", "month", months("2017-01"), PART),
    (RANGE, "ts", "month", months("2016-12"), OUT),
    (RANGE, "ts", "year", 47, PART),
    (RANGE, "ts", "year", 46, OUT),
    (RANGE, "ts", "identity", days("2017-01-05") * 86_400_000_000, IN),
    (RANGE, "ts", "identity", days("2017-01-05") * 86_400_000_000 - 1, OUT),
    (RANGE, "ts", "bucket[4]", 3, PART),
    (RANGE, "ts", "zorder", 3, PART),
    (RANGE, "ts", "hour", "noon", PART),
    (RANGE, "id", "bucket[4]", 3, PART),  # nothing is said of ts
    ("{day(ts): [2017-02-01, null]}", "ts", "month", months("2017-02"), PART),
    ("{day(ts): [2017-02-01, null]}", "ts", "hour", None, IN),
    ("{day(ts): 2017-02-01}", "ts", "hour", hours("2017-02-01T05"), IN),
    ("{month(day): 2017-02}", "day", "day", days("2017-02-28"), IN),
    ("{day(day): [2017-02-01, 2017-02-02]}", "day", "identity", days("2017-02-02"), IN),
    (MORNING, "ts", "hour", hours("2017-01-01T11"), IN),
    (MORNING, "ts", "day", days("2017-01-01"), PART),
    # Before 1970 Iceberg takes some rows of the next hour for this one's.
    ("{identity(ts): {to: '1969-12-31T23:00:00'}}", "ts", "hour", -2, PART),
    ("{identity(ts): {to: '1969-12-31T23:00:02'}}", "ts", "hour", -2, IN),
    ("{day(ts): {to: 1970-01-01}}", "ts", "hour", -1, IN),
    ("{day(ts): {from: 1970-01-01}}", "ts", "hour", 1_732_919_506, IN),
    ("{day(ts): {from: 1970-01-01}}", "ts", "hour", 1_732_919_507, PART),  # and 290,308 years before Christ
    ("{day(ts): {from: 1970-01-01}}", "ts", "hour", -1_732_919_508, PART),
    ("{'bucket(16, id)': [1, 5, 9, 13]}", "id", "bucket[16]", 5, IN),
    ("{'bucket(16, id)': [1, 5, 9, 13]}", "id", "bucket[4]", 1, IN),
    ("{'bucket(16, id)': [1, 5, 9]}", "id", "bucket[4]", 1, PART),
    ("{'bucket(16, id)': [1, 5, 9]}", "id", "bucket[4]", 2, OUT),
    ("{'bucket(16, id)': [1, 5]}", "id", "bucket[32]", 21, IN),
    ("{'bucket(16, id)': [1, 5]}", "id", "bucket[32]", 22, OUT),
    ("{'bucket(6, id)': [1, 5]}", "id", "bucket[4]", 1, PART),  # odd ones: 1, 3, 5
    ("{'bucket(6, id)': [1, 3, 5]}", "id", "bucket[4]", 1, IN),
    ("{'bucket(16, id)': 3}", "id", "identity", 34, IN),  # specification, Appendix B: its hash is 2017239379
    ("{'bucket(100, id)': 79}", "id", "identity", 34, IN),
    ("{'bucket(16, id)': 3}", "id", "truncate[10]", 30, PART),
    ("{'bucket(4, id)': [0, 1, 2, 3]}", "id", "truncate[10]", 30, IN),
    ("{'bucket(4, id)': {from: 0, to: 3}}", "id", "truncate[10]", 30, PART),
    ("{'bucket(4, id)': [0, 1, 2, 3]}", "id", "truncate[10]", None, OUT),
    ("{'bucket(4, id)': [0, 1, 2, 3]}", "id", "zorder", 30, PART),  # whether there is null nobody knows
    ("{'bucket(4, word)': {from: 0}}", "word", "truncate[3]", "app", IN),
    ("{'bucket(4, id)': null}", "id", "truncate[10]", 30, OUT),
    ("{identity(id): {from: 20, to: 40}}", "id", "truncate[10]", 30, IN),
    ("{identity(id): {from: 20, to: 39}}", "id", "truncate[10]", 30, PART),
    ("{identity(id): {from: 20, to: 40}}", "id", "truncate[10]", 40, OUT),
    ("{identity(id): [30, 31, 32]}", "id", "truncate[3]", 30, IN),
    ("{identity(id): [30, 31]}", "id", "truncate[3]", 30, PART),
    ("{'truncate(10, id)': [20, 30]}", "id", "truncate[20]", 20, IN),
    ("{'truncate(10, id)': 20}", "id", "truncate[20]", 20, PART),
    ("{'truncate(20, id)': 20}", "id", "truncate[10]", 30, IN),
    ("{identity(id): {from: 0}}", "id", "truncate[10]", 2**63 - 5, PART),  # Java's least numbers come round to there
    ("{'truncate(1, word)': a}", "word", "identity", "apple", IN),
    ("{'truncate(1, word)': a}", "word", "truncate[3]", "app", IN),
    ("{'truncate(3, word)': app}", "word", "truncate[1]", "a", PART),
    ("{'truncate(3, word)': app}", "word", "truncate[1]", "b", OUT),
    ("{'truncate(3, word)': [a]}", "word", "truncate[5]", "a", IN),
    ("{identity(word): {from: app, to: b}}", "word", "truncate[3]", "app", IN),
    ("{identity(word): {from: app, to: apple}}", "word", "truncate[3]", "app", PART),
    ("{identity(word): {from: app, to: apple}}", "word", "truncate[3]", "apq", OUT),
    ("{identity(word): {from: apple, to: b}}", "word", "truncate[3]", "aaa", OUT),
    ("{n_deep: 3}", "n.deep", "identity", 3, PART),  # no field of that name
    ("{identity(n.deep): 3}", "n.deep", "identity", 3, IN),
    ("{ts_day: 2017-02-01}", "ts", "hour", hours("2017-02-01T05"), IN),  # a field of another spec
    ("{identity(gone): 3}", "id", "identity", 3, PART),
    # Relative to the clock, 09:30: the hour that holds the moment belongs to it.
    ("{hour(ts): {from: now, to: now+2h}}", "ts", "hour", hours("2026-03-01T09"), IN),
    ("{hour(ts): {from: now, to: now+2h}}", "ts", "hour", hours("2026-03-01T10"), IN),
    ("{hour(ts): {from: now, to: now+2h}}", "ts", "hour", hours("2026-03-01T11"), OUT),
    ("{hour(ts): {from: now, to: now+2h}}", "ts", "hour", hours("2026-03-01T08"), OUT),
    ("{hour(ts): {from: now, to: now+2h}}", "ts", "day", days("2026-03-01"), PART),
    ("{hour(ts): now}", "ts", "hour", hours("2026-03-01T09"), IN),
    ("{identity(ts): {from: now-30m}}", "ts", "hour", hours("2026-03-01T09"), IN),
    ("{day(ts): {from: now-1d, to: now+1d}}", "ts", "day", days("2026-02-28"), IN),
    ("{'bucket(16, id)': now}", "id", "bucket[16]", 3, PART),
]  # fmt: skip


@pytest.mark.parametrize(("region", "column", "transform", "raw", "expected"), TOLD)
def test_a_region_by_column_whatever_the_partitioning(
    region: str, column: str, transform: str, raw: Any, expected: Membership
) -> None:
    assert membership(f"partitions: [{region}]", [(column, transform, "p")], (raw,)) is expected


def test_several_fields_of_one_column_are_heard_together() -> None:
    spec = [("ts", "month", "m"), ("ts", "bucket[4]", "b"), ("ts", "day", "d")]
    jan = months("2017-01")
    assert membership(f"partitions: [{RANGE}]", spec, (jan, 1, days("2017-01-09"))) is IN
    assert membership(f"partitions: [{RANGE}]", spec, (jan, 1, days("2017-01-04"))) is OUT
    contradiction = (months("2016-01"), 1, days("2017-01-09"))
    assert membership(f"partitions: [{RANGE}]", spec, contradiction) is PART


HALVES = "[{day(ts): {from: 2017-01-01, to: 2017-01-16}}, {day(ts): {from: 2017-01-16, to: 2017-02-01}}]"
TOGETHER = [
    # regions, column and transform of the partition, its value, where it lies
    (HALVES, "ts", "month", months("2017-01"), IN),
    (HALVES, "ts", "month", months("2017-02"), OUT),
    (HALVES.replace("to: 2017-01-16", "to: 2017-01-15"), "ts", "month", months("2017-01"), PART),
    (HALVES.replace("}}, {", "}, 'bucket(2, id)': 1}, {"), "ts", "month", months("2017-01"), PART),
    (f"[{{day(ts): {{from: 2016, to: 2017-01-01}}}}, {HALVES[1:]}", "ts", "month", months("2017-01"), IN),
    ("[{'bucket(16, id)': [1, 5]}, {'bucket(16, id)': [9, 13]}]", "id", "bucket[4]", 1, IN),
    ("[{'bucket(16, id)': [1, 5]}, {'bucket(16, id)': [9]}]", "id", "bucket[4]", 1, PART),
    ("[{'bucket(16, id)': [1, 5]}, {'bucket(16, id)': [9]}]", "id", "bucket[4]", 2, OUT),
]


@pytest.mark.parametrize(("regions", "column", "transform", "raw", "expected"), TOGETHER)
def test_regions_that_follow_each_other_own_a_coarser_partition_together(
    regions: str, column: str, transform: str, raw: Any, expected: Membership
) -> None:
    assert membership(f"partitions: {regions}", [(column, transform, "p")], (raw,)) is expected


EXCLUDED = [
    ("partitions: all, except: [{day(ts): 2017-02-01}]", "day", days("2017-02-01"), OUT),
    ("partitions: all, except: [{day(ts): 2017-02-01}]", "day", days("2017-02-02"), IN),
    ("partitions: all, except: [{day(ts): 2017-02-01}]", "month", months("2017-02"), PART),
    ("partitions: all, except: [{day(ts): 2017-02-01}]", "hour", hours("2017-02-01T23"), OUT),
    ("partitions: [{month(ts): 2017-02}], except: [{day(ts): 2017-02-01}]", "day", days("2017-02-02"), IN),
    ("partitions: [{month(ts): 2017-02}], except: [{day(ts): 2017-02-01}]", "day", days("2017-03-02"), OUT),
    ("partitions: [{month(ts): 2017-02}], except: [{'bucket(4, id)': 1}]", "day", days("2017-02-02"), PART),
]


@pytest.mark.parametrize(("rule", "transform", "raw", "expected"), EXCLUDED)
def test_what_is_excluded_is_not_owned(rule: str, transform: str, raw: Any, expected: Membership) -> None:
    assert membership(rule, [("ts", transform, "p")], (raw,)) is expected


def test_a_rule_takes_away_from_itself_alone() -> None:
    """What another rule grants stays granted."""
    text = """\
version: 1
agent: a
tables:
- {table: a.b, operations: [append], partitions: all, except: [{day(ts): 2017-02-01}]}
- {table: a.b, operations: [append], partitions: [{day(ts): 2017-02-01}]}
"""
    table = metadata([("ts", "day", "d")])
    ownership = Ownership(load(text, source="test").tables, Layout(table), NOW_MS)
    assert ownership.of(spec_of(table, 0), (days("2017-02-01"),)) is IN
    assert ownership.of(PartitionSpec(9, ()), ()) is PART


MISSPELT = ["day(ts", "day()", "weekly(ts)", "bucket(id)", "bucket(0, id)", "day(3, ts)", "day(a, b)", "sum(day(ts))"]


@pytest.mark.parametrize("term", MISSPELT)
def test_a_term_that_is_none_is_refused_with_its_line(term: str) -> None:
    text = f"version: 1\nagent: a\ntables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - '{term}': 1\n"
    with pytest.raises(BadRequest, match="line 7"):
        load(text, source="test")

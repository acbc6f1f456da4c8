"""Partition transforms and projections: golden tables, soundness on random values, agreement with PyIceberg."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from icetower.errors import ValidationFailed
from icetower.iceberg import transforms
from icetower.iceberg.expressions import Bound, Column, Predicate, bind_predicate, settle, text
from icetower.iceberg.literals import convert
from icetower.iceberg.transforms import apply, project, project_strict
from tests.iceberg.filter_world import COLUMNS, INTERNAL, SCHEMA, UNTIMED, matches, predicates, spec

PYICEBERG_SCHEMA = Schema.model_validate(SCHEMA)

# The specification's hashes, Appendix B: bucket = (hash & 0x7fffffff) % 1000.
HASHES: list[tuple[str, Any, int]] = [
    ("int",             34,                                                          2_017_239_379),
    ("long",            34,                                                          2_017_239_379),
    ("decimal(9, 2)",   Decimal("14.20"),                                             -500_754_589),
    ("date",            "2017-11-16",                                                 -653_330_422),
    ("time",            "22:31:08",                                                   -662_762_989),
    ("timestamp",       "2017-11-16T22:31:08",                                      -2_047_944_441),
    ("timestamptz",     "2017-11-16T14:31:08-08:00",                                -2_047_944_441),
    ("timestamp_ns",    "2017-11-16T22:31:08.000001001",                            -1_207_196_810),
    ("string",          "iceberg",                                                   1_210_000_089),
    ("uuid",            UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"),                1_488_055_340),
    ("fixed[4]",        b"\x00\x01\x02\x03",                                         -188_683_207),
    ("binary",          b"\x00\x01\x02\x03",                                         -188_683_207),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "hashed"), HASHES, ids=[kind for kind, _, _ in HASHES])
def test_buckets_are_those_of_the_specification(kind: str, value: Any, hashed: int) -> None:
    internal: Any = convert(value, kind)
    assert apply("bucket[1000]", kind, internal) == (hashed & 0x7FFFFFFF) % 1000


HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
APPLIED: list[tuple[str, str, Any, Any]] = [
    # transform       type             value                      partition value
    ("identity",      "string",        "a",                       "a"),
    ("IDENTITY",      "long",          5,                         5),
    ("truncate[10]",  "int",           9,                         0),
    ("truncate[10]",  "int",           -1,                        -10),
    ("truncate[10]",  "int",           -(2**31),                  2**31 - 2),  # over the end, as in Java
    ("truncate[2147483647]", "int",    5,                         -(2**31) + 1),  # likewise
    ("truncate[10]",  "long",          -(2**63),                  2**63 - 2),
    ("truncate[50]",  "decimal(9, 2)", Decimal("10.65"),          Decimal("10.50")),
    ("truncate[50]",  "decimal(9, 2)", Decimal("-0.05"),          Decimal("-0.50")),
    ("truncate[3]",   "string",        "iceberg",                 "ice"),
    ("truncate[2]",   "string",        "\U0001f600a\U0001f600",   "\U0001f600a"),
    ("truncate[3]",   "binary",        b"\x01\x02\x03\x04",       b"\x01\x02\x03"),
    ("year",          "date",          365,                       1),
    ("year",          "date",          -1,                        -1),
    ("year",          "date",          -366,                      -2),
    ("month",         "date",          31,                        1),
    ("month",         "date",          -31,                       -1),
    ("month",         "date",          -32,                       -2),
    ("month",         "date",          2_932_897,                 96_360),  # the year 10000
    ("day",           "date",          -7,                        -7),
    ("Day",           "timestamp",     DAY_US - 1,                0),
    ("day",           "timestamp",     -1,                        -1),
    ("hour",          "timestamptz",   0,                         0),
    ("hour",          "timestamptz",   -HOUR_US,                  -1),
    ("hour",          "timestamptz",   -HOUR_US - 1,              -2),
    ("hour",          "timestamp",     -HOUR_US + 999_999,        -2),  # Iceberg's slip: it is in hour -1
    ("hour",          "timestamp",     -HOUR_US + 1_000_000,      -1),
    ("day",           "timestamp",     -DAY_US + 999_999,         -2),  # likewise
    ("year",          "timestamp",     1_511_963_568_000_000,     47),
    ("month",         "timestamp_ns",  1_511_963_568_000_000_001, 574),
    ("hour",          "timestamptz_ns", -1,                       -1),
    ("void",          "int",           5,                         None),
    ("zorder",        "int",           None,                      None),
    ("bucket[1]",     "int",           5,                         0),
    ("bucket[4]",     "int",           None,                      None),
]  # fmt: skip


@pytest.mark.parametrize(("transform", "kind", "value", "expected"), APPLIED)
def test_partition_values(transform: str, kind: str, value: Any, expected: Any) -> None:
    assert repr(apply(transform, kind, value)) == repr(expected)


@pytest.mark.parametrize(
    ("transform", "kind"),
    [
        ("zorder", "int"), ("zorder[4]", "int"), ("bucket[4]", "double"), ("bucket[0]", "int"), ("truncate[0]", "int"),
        ("truncate[0]", "string"), ("truncate[0]", "decimal(9, 2)"), ("truncate[4]", "date"), ("hour", "date"),
        ("year", "long"),
    ],
)  # fmt: skip
def test_a_transform_that_does_not_take_the_type_is_refused(transform: str, kind: str) -> None:
    with pytest.raises(ValidationFailed, match="can't be applied to a column of type"):
        apply(transform, kind, 1)


# What Iceberg 1.12 itself makes of each predicate: "-" where it says nothing.
PROJECTIONS = """
# partition field | predicate on the column                        | inclusive              | strict
i                 | lt 7                                           | p < 7                  | p < 7
i                 | lt-eq 7                                        | p <= 7                 | p <= 7
i                 | gt 7                                           | p > 7                  | p > 7
i                 | gt-eq 7                                        | p >= 7                 | p >= 7
i                 | eq 7                                           | p == 7                 | p == 7
i                 | not-eq 7                                       | p != 7                 | p != 7
i                 | in 7 9                                         | p in (7, 9)            | p in (7, 9)
i                 | not-in 7 9                                     | p not in (7, 9)        | p not in (7, 9)
i                 | is-null                                        | is_null(p)             | is_null(p)
i                 | not-null                                       | not_null(p)            | not_null(p)

d                 | is-nan                                         | is_nan(p)              | is_nan(p)
d                 | not-nan                                        | not_nan(p)             | not_nan(p)

s                 | starts-with "ab"                               | p startsWith ""ab""    | p startsWith ""ab""
s                 | not-starts-with "ab"                           | p notStartsWith ""ab"" | p notStartsWith ""ab""

bucket[16](i)     | lt 34                                          | -                      | -
bucket[16](i)     | lt-eq 34                                       | -                      | -
bucket[16](i)     | gt 34                                          | -                      | -
bucket[16](i)     | gt-eq 34                                       | -                      | -
bucket[16](i)     | eq 34                                          | p == 3                 | -
bucket[16](i)     | not-eq 34                                      | -                      | p != 3
bucket[16](i)     | in 34 35                                       | p in (3, 5)            | -
bucket[16](i)     | not-in 34 35                                   | -                      | p not in (3, 5)
bucket[16](i)     | is-null                                        | is_null(p)             | is_null(p)
bucket[16](i)     | not-null                                       | not_null(p)            | not_null(p)

bucket[16](s)     | eq "iceberg"                                   | p == 9                 | -
bucket[16](s)     | starts-with "ab"                               | -                      | -
bucket[16](s)     | not-starts-with "ab"                           | -                      | -

truncate[10](i)   | lt 20                                          | p <= 10                | p < 20
truncate[10](i)   | lt-eq 20                                       | p <= 20                | p < 20
truncate[10](i)   | gt 20                                          | p >= 20                | p > 20
truncate[10](i)   | gt-eq 20                                       | p >= 20                | p > 10
truncate[10](i)   | eq 20                                          | p == 20                | -
truncate[10](i)   | not-eq 20                                      | -                      | p != 20
truncate[10](i)   | in 20 -5                                       | p in (20, -10)         | -
truncate[10](i)   | not-in 20 -5                                   | -                      | p not in (20, -10)
truncate[10](i)   | is-null                                        | is_null(p)             | is_null(p)
truncate[10](i)   | not-null                                       | not_null(p)            | not_null(p)
truncate[10](i)   | lt -2147483648                                 | p <= 2147483640        | p < 2147483646
truncate[10](i)   | gt 2147483647                                  | p >= 2147483646        | p > 2147483640

truncate[10](id)  | lt 20                                          | p <= 10                | p < 20
truncate[10](id)  | gt -1                                          | p >= 0                 | p > -10

truncate[50](dec) | lt "1.50"                                      | p <= 1.00              | p < 1.50
truncate[50](dec) | lt-eq "1.50"                                   | p <= 1.50              | p < 1.50
truncate[50](dec) | gt "1.50"                                      | p >= 1.50              | p > 1.50
truncate[50](dec) | gt-eq "1.50"                                   | p >= 1.50              | p > 1.00
truncate[50](dec) | eq "1.50"                                      | p == 1.50              | -
truncate[50](dec) | not-eq "1.50"                                  | -                      | p != 1.50
truncate[50](dec) | in "1.50" "1.99"                               | p in (1.50, 1.50)      | -
truncate[50](dec) | not-in "1.50" "1.99"                           | -                      | p not in (1.50, 1.50)
truncate[50](dec) | is-null                                        | is_null(p)             | is_null(p)
truncate[50](dec) | not-null                                       | not_null(p)            | not_null(p)
truncate[50](dec) | lt "1.5"                                       | p <= 0.0               | p < 0.0
truncate[50](dec) | gt 3                                           | p >= 3.00              | p > 3.00

truncate[2](s)    | lt "abc"                                       | p <= "ab"              | p < "ab"
truncate[2](s)    | lt-eq "abc"                                    | p <= "ab"              | p < "ab"
truncate[2](s)    | gt "abc"                                       | p >= "ab"              | p > "ab"
truncate[2](s)    | gt-eq "abc"                                    | p >= "ab"              | p > "ab"
truncate[2](s)    | eq "abc"                                       | p == "ab"              | -
truncate[2](s)    | not-eq "abc"                                   | -                      | p != "ab"
truncate[2](s)    | in "abc" "b"                                   | p in ("ab", "b")       | -
truncate[2](s)    | not-in "abc" "b"                               | -                      | p not in ("ab", "b")
truncate[2](s)    | is-null                                        | is_null(p)             | is_null(p)
truncate[2](s)    | not-null                                       | not_null(p)            | not_null(p)
truncate[2](s)    | starts-with "a"                                | p startsWith ""a""     | p startsWith ""a""
truncate[2](s)    | starts-with "ab"                               | p == "ab"              | p == "ab"
truncate[2](s)    | starts-with "abc"                              | p startsWith ""ab""    | -
truncate[2](s)    | not-starts-with "a"                            | p notStartsWith ""a""  | p notStartsWith ""a""
truncate[2](s)    | not-starts-with "ab"                           | p != "ab"              | p != "ab"
truncate[2](s)    | not-starts-with "abc"                          | -                      | p notStartsWith ""ab""
truncate[2](s)    | starts-with "😀"                                | p == "😀"               | p == "😀"
truncate[2](s)    | not-starts-with "😀"                            | p != "😀"               | p != "😀"

truncate[2](x)    | lt "616263"                                    | p <= X'6162'           | p < X'6162'
truncate[2](x)    | lt-eq "616263"                                 | p <= X'6162'           | p < X'6162'
truncate[2](x)    | gt "616263"                                    | p >= X'6162'           | p > X'6162'
truncate[2](x)    | gt-eq "616263"                                 | p >= X'6162'           | p > X'6162'
truncate[2](x)    | eq "616263"                                    | p == X'6162'           | -
truncate[2](x)    | not-eq "616263"                                | -                      | p != X'6162'
truncate[2](x)    | in "616263" "62"                               | p in (X'6162', X'62')  | -
truncate[2](x)    | not-in "616263" "62"                           | -                      | p not in (X'6162', X'62')
truncate[2](x)    | is-null                                        | is_null(p)             | is_null(p)
truncate[2](x)    | not-null                                       | not_null(p)            | not_null(p)

day(day)          | lt "1969-12-31"                                | p <= -2                | p < -1
day(day)          | lt-eq "1969-12-31"                             | p <= -1                | p < 0
day(day)          | gt "1969-12-31"                                | p >= 0                 | p > -1
day(day)          | gt-eq "1969-12-31"                             | p >= -1                | p > -2
day(day)          | eq "1969-12-31"                                | p == -1                | -
day(day)          | not-eq "1969-12-31"                            | -                      | p != -1
day(day)          | in "1969-12-31" "1970-01-02"                   | p in (-1, 1)           | -
day(day)          | not-in "1969-12-31" "1970-01-02"               | -                      | p not in (-1, 1)
day(day)          | is-null                                        | is_null(p)             | is_null(p)
day(day)          | not-null                                       | not_null(p)            | not_null(p)

month(day)        | lt "1970-02-01"                                | p <= 0                 | p < 1
month(day)        | lt-eq "1970-02-01"                             | p <= 1                 | p < 1
month(day)        | gt "1970-02-01"                                | p >= 1                 | p > 1
month(day)        | gt-eq "1970-02-01"                             | p >= 1                 | p > 1
month(day)        | eq "1970-02-01"                                | p == 1                 | -
month(day)        | not-eq "1970-02-01"                            | -                      | p != 1
month(day)        | in "1970-02-01" "1970-03-01"                   | p in (2, 1)            | -
month(day)        | not-in "1970-02-01" "1970-03-01"               | -                      | p not in (2, 1)
month(day)        | is-null                                        | is_null(p)             | is_null(p)
month(day)        | not-null                                       | not_null(p)            | not_null(p)
month(day)        | lt "1969-12-31"                                | p <= 0                 | p < -1
month(day)        | lt-eq "1969-12-31"                             | p <= 0                 | p < 0
month(day)        | gt "1969-12-31"                                | p >= 0                 | p > 0
month(day)        | gt-eq "1969-12-31"                             | p >= -1                | p > 0
month(day)        | eq "1969-12-31"                                | p in (-1, 0)           | -
month(day)        | not-eq "1969-12-31"                            | -                      | p not in (-1, 0)
month(day)        | in "1969-12-31" "1970-01-01"                   | p in (-1, 0)           | -
month(day)        | not-in "1969-12-31" "1970-01-01"               | -                      | p not in (-1, 0)
month(day)        | is-null                                        | is_null(p)             | is_null(p)
month(day)        | not-null                                       | not_null(p)            | not_null(p)

year(day)         | lt "1970-01-01"                                | p <= 0                 | p < 0
year(day)         | gt-eq "1970-01-01"                             | p >= 0                 | p > 0
year(day)         | gt "1970-12-31"                                | p >= 1                 | p > 1

year(ts)          | lt "2017-12-01T10:12:55.038194"                | p <= 47                | p < 47
year(ts)          | lt-eq "2017-12-01T10:12:55.038194"             | p <= 47                | p < 47
year(ts)          | gt "2017-12-01T10:12:55.038194"                | p >= 47                | p > 47
year(ts)          | gt-eq "2017-12-01T10:12:55.038194"             | p >= 47                | p > 47
year(ts)          | eq "2017-12-01T10:12:55.038194"                | p == 47                | -
year(ts)          | not-eq "2017-12-01T10:12:55.038194"            | -                      | p != 47

month(ts)         | lt "2017-12-01T10:12:55.038194"                | p <= 575               | p < 575
month(ts)         | lt-eq "2017-12-01T10:12:55.038194"             | p <= 575               | p < 575
month(ts)         | gt "2017-12-01T10:12:55.038194"                | p >= 575               | p > 575
month(ts)         | gt-eq "2017-12-01T10:12:55.038194"             | p >= 575               | p > 575
month(ts)         | eq "2017-12-01T10:12:55.038194"                | p == 575               | -
month(ts)         | not-eq "2017-12-01T10:12:55.038194"            | -                      | p != 575

day(ts)           | lt "2017-12-01T10:12:55.038194"                | p <= 17501             | p < 17501
day(ts)           | lt-eq "2017-12-01T10:12:55.038194"             | p <= 17501             | p < 17501
day(ts)           | gt "2017-12-01T10:12:55.038194"                | p >= 17501             | p > 17501
day(ts)           | gt-eq "2017-12-01T10:12:55.038194"             | p >= 17501             | p > 17501
day(ts)           | eq "2017-12-01T10:12:55.038194"                | p == 17501             | -
day(ts)           | not-eq "2017-12-01T10:12:55.038194"            | -                      | p != 17501

hour(ts)          | lt "2017-12-01T10:12:55.038194"                | p <= 420034            | p < 420034
hour(ts)          | lt-eq "2017-12-01T10:12:55.038194"             | p <= 420034            | p < 420034
hour(ts)          | gt "2017-12-01T10:12:55.038194"                | p >= 420034            | p > 420034
hour(ts)          | gt-eq "2017-12-01T10:12:55.038194"             | p >= 420034            | p > 420034
hour(ts)          | eq "2017-12-01T10:12:55.038194"                | p == 420034            | -
hour(ts)          | not-eq "2017-12-01T10:12:55.038194"            | -                      | p != 420034

year(ts)          | lt "1969-12-31T10:00:00"                       | p <= 0                 | p < -1
year(ts)          | gt-eq "1969-12-31T10:00:00"                    | p >= -1                | p > 0
year(ts)          | eq "1969-12-31T10:00:00"                       | p in (-1, 0)           | -
year(ts)          | not-eq "1969-12-31T10:00:00"                   | -                      | p not in (-1, 0)

month(ts)         | lt "1969-12-31T10:00:00"                       | p <= 0                 | p < -1
month(ts)         | gt-eq "1969-12-31T10:00:00"                    | p >= -1                | p > 0
month(ts)         | eq "1969-12-31T10:00:00"                       | p in (-1, 0)           | -
month(ts)         | not-eq "1969-12-31T10:00:00"                   | -                      | p not in (-1, 0)

day(ts)           | lt "1969-12-31T10:00:00"                       | p <= 0                 | p < -1
day(ts)           | gt-eq "1969-12-31T10:00:00"                    | p >= -1                | p > 0
day(ts)           | eq "1969-12-31T10:00:00"                       | p in (-1, 0)           | -
day(ts)           | not-eq "1969-12-31T10:00:00"                   | -                      | p not in (-1, 0)

hour(ts)          | lt "1969-12-31T10:00:00"                       | p <= -14               | p < -14
hour(ts)          | gt-eq "1969-12-31T10:00:00"                    | p >= -14               | p > -14
hour(ts)          | eq "1969-12-31T10:00:00"                       | p in (-14, -13)        | -
hour(ts)          | not-eq "1969-12-31T10:00:00"                   | -                      | p not in (-14, -13)

day(ts)           | in "1969-12-31T10:00" "1970-01-01T00:00"       | p in (0, -1)           | -
day(ts)           | not-in "1969-12-31T10:00" "1970-01-01T00:00"   | -                      | p not in (0, -1)
day(ts)           | is-null                                        | is_null(p)             | is_null(p)

hour(tz)          | gt "1970-01-01T00:59:59.999999Z"               | p >= 1                 | p > 1

hour(ns)          | lt-eq "1970-01-01T02:00:00.000000001"          | p <= 2                 | p < 2

void(i)           | eq 5                                           | -                      | -
void(i)           | is-null                                        | -                      | -

zorder(i)         | eq 5                                           | -                      | -
zorder(i)         | is-null                                        | -                      | -
"""


def projections() -> list[tuple[str, str, str, str]]:
    lines = [line for line in PROJECTIONS.splitlines() if line and not line.startswith("#")]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [(part, predicate, inclusive, strict) for part, predicate, inclusive, strict in cells]


def said(projected: Predicate | None) -> str:
    return "-" if projected is None else text(projected).replace('ref(name="p")', "p")


def unordered(words: str) -> Any:
    """Lists are sets: their order, and what stands twice in them, means nothing."""
    head, listed, rest = words.partition(" in (")
    return (head, set(rest.rstrip(")").split(", "))) if listed else words


def bound(column: str, op: str, *values: Any) -> Bound:
    found = bind_predicate(Predicate(op, column, values), COLUMNS)
    assert isinstance(found, Bound)
    return found


@pytest.mark.parametrize(("part", "predicate", "inclusive", "strict"), projections())
def test_projections(part: str, predicate: str, inclusive: str, strict: str) -> None:
    field = spec(part).fields[0]
    op, _, written = predicate.partition(" ")
    values = json.loads(f"[{written.replace(' ', ', ')}]")
    leaf = bound(field.source_name, op, *values)
    found = project(field.transform, field.source_type, "p", leaf)
    found_strict = project_strict(field.transform, field.source_type, "p", leaf)
    assert unordered(said(found)) == unordered(inclusive)
    assert unordered(said(found_strict)) == unordered(strict)


# --- properties

PARTS = [
    f"{transform}({name})"
    for name, transforms in {
        "id": ("identity", "bucket[3]", "truncate[5]"),
        "i": ("identity", "bucket[3]", "truncate[3]"),
        "s": ("identity", "bucket[2]", "truncate[1]", "truncate[2]", "truncate[3]"),
        "day": ("identity", "bucket[2]", "year", "month", "day"),
        "ts": ("identity", "bucket[2]", "year", "month", "day", "hour"),
        "dec": ("identity", "bucket[2]", "truncate[50]"),
        "x": ("identity", "bucket[2]", "truncate[1]", "truncate[2]"),
        "d": ("identity",),
    }.items()
    for transform in transforms
]


@st.composite
def projected(draw: st.DrawFn) -> tuple[Bound, Any, Any, str]:
    """A predicate, a value of its column, that value's partition, and the partition field."""
    part = draw(st.sampled_from(PARTS))
    field = spec(part).fields[0]
    predicate = draw(predicates([field.source_name]))
    leaf = bind_predicate(predicate, COLUMNS)
    assume(isinstance(leaf, Bound))
    value = draw(INTERNAL[field.source_type])
    return leaf, value, apply(field.transform, field.source_type, value), part


def holds(predicate: Predicate | None, value: Any, part: str) -> bool | None:
    """Whether a projection holds for a partition value; None if there is none."""
    field = spec(part).fields[0]
    if predicate is None:
        return None
    leaf = settle(predicate.op, Column(1000, "p", field.result_type, required=False), predicate.literals)
    return matches(leaf, {"p": value})


@UNTIMED
@given(projected())
def test_a_projection_is_sound(drawn: tuple[Bound, Any, Any, str]) -> None:
    leaf, value, partition, part = drawn
    field = spec(part).fields[0]
    row = {field.source_name: value}
    inclusive = holds(project(field.transform, field.source_type, "p", leaf), partition, part)
    strict = holds(project_strict(field.transform, field.source_type, "p", leaf), partition, part)
    if matches(leaf, row):
        assert inclusive is not False
    else:
        assert strict is not True


@UNTIMED
@given(st.sampled_from(PARTS), st.data())
def test_partition_values_are_those_of_pyiceberg(part: str, data: st.DataObject) -> None:
    field = spec(part).fields[0]
    value = data.draw(INTERNAL[field.source_type])
    theirs = parse_transform(field.transform).transform(PYICEBERG_SCHEMA.find_type(field.source_name))
    assert apply(field.transform, field.source_type, value) == theirs(value)


def test_a_type_of_any_length_is_not_kept() -> None:
    """Of some types the parameters may be as long as a schema may be: a thousand of them were kept for good."""
    kept = transforms._function.cache_info  # pyright: ignore[reportPrivateUsage]
    before = kept().currsize
    long = f"geometry({'x' * transforms.KEPT_CHARACTERS_MAX})"
    assert apply("identity", long, b"1") == b"1"
    assert kept().currsize == before

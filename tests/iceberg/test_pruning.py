"""What statistics, partitions and manifest lists prove: golden tables, and soundness on random rows.

`test_filters_against_iceberg.py` asks Iceberg itself; the tables here say in few lines what it answers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import ValidationFailed
from icetower.iceberg.expressions import And, Expression, Not, Or, Predicate, columns_of, text
from icetower.iceberg.metrics import IN_LIMIT
from icetower.iceberg.partitions import PartitionSpec, resolve_fields
from icetower.iceberg.pruning import NULL_POINTER, OVERFLOW, Pruner, can_contain, metrics_of
from icetower.iceberg.records import DataFile, FieldSummary
from tests.iceberg.filter_world import (
    COLUMNS,
    SPECS,
    STATISTICS,
    UNTIMED,
    Row,
    data_file,
    file_of,
    filters,
    manifest_row,
    matches,
    partition_of,
    pruner,
    rows,
    single_value,
    spec,
    summaries,
    summary,
)

NAN = math.nan


def of(
    column: str,
    lower: Any = None,
    upper: Any = None,
    *,
    values: int | None = 10,
    nulls: int | None = 0,
    nans: int | None = None,
) -> tuple[str, DataFile]:
    """A file of ten rows that has statistics of one column; None leaves the column out of that map."""
    found = COLUMNS[column]
    bounds = [None if each is None else single_value(each, found.type) for each in (lower, upper)]
    entries = zip(STATISTICS, (values, nulls, nans, *bounds), strict=True)
    return column, data_file(**{name: {} if value is None else {found.id: value} for name, value in entries})


def where(column: str, words: str) -> Predicate:
    """A predicate from ``in 5, 6``."""
    op, _, values = words.partition(" ")
    return Predicate(op, column, tuple(json.loads(f"[{values}]")))


# --- statistics: might a row match, must all?

NO, SOME, ALL = (False, False), (True, False), (True, True)
VACUOUS = (False, True)  # of no rows, none might match and all must

FIVE = single_value(5, "int")
PROVEN: list[tuple[str, tuple[str, DataFile], dict[tuple[bool, bool], list[str]]]] = [
    ("from 5 to 9", of("i", 5, 9), {
        NO: ["lt 5", "lt-eq 4", "gt 9", "gt-eq 10", "eq 4", "eq 10", "in 3, 4", "in 4, 10", "is-null"],
        SOME: ["lt 6", "lt 9", "lt-eq 5", "gt 8", "gt 5", "gt-eq 9", "eq 5", "eq 7", "eq 9", "not-eq 5", "not-eq 7",
               "in 4, 9", "in 6, 7", "not-in 4, 7"],
        ALL: ["lt 10", "lt-eq 9", "gt 4", "gt-eq 5", "not-eq 4", "not-eq 10", "not-in 4, 10", "not-null"],
    }),
    ("5 everywhere", of("i", 5, 5), {
        NO: ["not-eq 5", "not-in 5, 6", "not-in 4, 5", "eq 6"],
        ALL: ["eq 5", "in 5, 6", "in 4, 5", "not-eq 6"],
    }),
    ("from 5 to 9, three nulls", of("i", 5, 9, nulls=3), {
        NO: ["lt 5", "eq 4"],
        SOME: ["lt 10", "lt-eq 9", "gt 4", "gt-eq 5", "not-eq 5", "is-null", "not-null"],
        ALL: ["not-eq 4", "not-in 3, 4"],
    }),
    ("5 or null", of("i", 5, 5, nulls=3), {SOME: ["eq 5", "in 5, 6", "not-eq 5", "not-in 5, 6"]}),
    ("nulls only", of("i", nulls=10), {
        NO: ["lt 5", "lt-eq 5", "gt 5", "gt-eq 5", "eq 5", "in 5, 6", "not-null"],
        ALL: ["not-eq 5", "not-in 5, 6", "is-null"],
    }),
    ("nulls only, and bounds", of("i", 5, 5, nulls=10), {NO: ["eq 5"], ALL: ["not-eq 5", "not-in 5, 6"]}),
    ("no count of nulls: none where all must match, some where any might", of("i", 5, 5, nulls=None), {
        SOME: ["is-null", "not-null", "not-eq 5", "not-in 5, 6"],
        ALL: ["lt 6", "gt 4", "eq 5", "in 5, 6"],
    }),
    ("no counts of nulls at all: some", ("i", data_file(lower_bounds={3: FIVE}, upper_bounds={3: FIVE})), {
        NO: ["eq 6"],
        SOME: ["lt 6", "gt 4", "eq 5", "in 5, 6", "is-null", "not-null"],
        ALL: ["not-eq 6"],
    }),
    ("no statistics at all", ("d", data_file()), {
        SOME: ["lt 1.0", "gt-eq 1.0", "eq 1.0", "not-eq 1.0", "in 1.0, 2.0", "is-null", "not-null", "is-nan"],
    }),
    ("no rows", ("i", data_file(records=0)), {VACUOUS: ["eq 5", "is-null", "not-null"]}),
    ("rows that were never counted", ("i", data_file(records=-1)), {ALL: ["eq 5", "is-null", "not-null"]}),
    ("values not counted", of("i", values=None, nulls=10), {SOME: ["lt 5", "eq 5", "not-eq 5", "is-null", "not-null"]}),
    ("no bounds", of("i"), {SOME: ["lt 5", "gt-eq 5", "eq 5", "not-eq 5", "in 5, 6", "not-in 5, 6"]}),
    ("at least 5", of("i", 5), {
        NO: ["lt 5", "lt-eq 4", "eq 4", "in 3, 4"],
        SOME: ["gt 100", "eq 5", "in 5, 6", "not-eq 5", "not-in 4, 5"],
        ALL: ["gt 4", "gt-eq 5", "not-eq 4", "not-in 3, 4"],
    }),
    ("at most 9", of("i", None, 9), {
        NO: ["gt 9", "gt-eq 10", "eq 10"],
        SOME: ["lt -100", "eq 9", "in 10, 11", "not-eq 9", "not-in 9, 10"],
        ALL: ["lt 10", "lt-eq 9", "not-eq 10", "not-in 10, 11"],
    }),
    ("doubles from 1 to 2", of("d", 1.0, 2.0, nans=0), {
        NO: ["is-nan", "lt 1.0", "gt 2.0"],
        ALL: ["not-nan", "lt 2.5", "gt 0.5"],
    }),
    ("doubles from 1 to 2, some NaN", of("d", 1.0, 2.0, nans=2), {
        NO: ["lt 1.0", "gt 2.0"],
        SOME: ["is-nan", "not-nan", "lt 2.5", "gt 0.5"],
    }),
    ("1.0 or NaN", of("d", 1.0, 1.0, nans=2), {SOME: ["not-eq 1.0", "not-in 1.0, 2.0", "eq 1.0"]}),
    ("1.0, NaN not counted", of("d", 1.0, 1.0), {
        SOME: ["is-nan", "not-nan", "not-eq 1.0"],
        ALL: ["lt 2.0", "gt 0.5", "eq 1.0", "in 1.0, 2.0"],  # as if there were none
    }),
    ("NaN only", of("d", nans=10), {
        NO: ["lt 1.0", "gt 1.0", "eq 1.0", "in 1.0, 2.0", "not-nan"],
        ALL: ["is-nan", "not-eq 1.0", "not-in 1.0, 2.0", "not-null"],
    }),
    ("nulls only, in doubles", of("d", nulls=10), {NO: ["is-nan", "lt 1.0"], ALL: ["not-nan", "is-null"]}),
    ("NaN as bounds, which old writers of ORC left", of("d", NAN, NAN), {
        SOME: ["lt 1.0", "lt-eq 1.0", "gt 1.0", "gt-eq 1.0", "eq 1.0", "in 1.0, 2.0", "not-eq 1.0", "not-in 1.0, 2.0"],
    }),
    ("negative zero", of("d", -0.0, -0.0, nans=0), {NO: ["eq 0.0", "not-eq -0.0"], ALL: ["lt 0.0", "eq -0.0"]}),
    ("texts from ab to ad", of("s", "ab", "ad"), {
        NO: ['starts-with "b"', 'starts-with "aa"', 'starts-with "ae"', 'not-starts-with "a"', 'not-starts-with ""'],
        SOME: ['starts-with "ab"', 'starts-with "ac"', 'starts-with "abc"', 'not-starts-with "ab"',
               'not-starts-with "ac"'],
        ALL: ['starts-with "a"', 'starts-with ""', 'not-starts-with "b"', 'not-starts-with "aa"'],
    }),
    ("short bounds", of("s", "a", "abc"), {
        NO: ['starts-with "b"', 'starts-with "abcd"'],
        SOME: ['starts-with "ab"', 'not-starts-with "ab"'],
        ALL: ['not-starts-with "b"', 'starts-with "a"'],
    }),
    ("texts and nulls", of("s", "ab", "ad", nulls=3), {
        NO: ['starts-with "b"'],
        SOME: ['starts-with "a"', 'not-starts-with "a"'],
        ALL: ['not-starts-with "b"'],
    }),
    ("nulls only, in texts", of("s", nulls=10), {NO: ['starts-with "a"'], ALL: ['not-starts-with "a"']}),
    ("texts of which some were counted as NaN", of("s", "ab", "ad", nans=3), {ALL: ['starts-with "a"']}),
    ("texts without bounds", of("s"), {SOME: ['starts-with "a"', 'not-starts-with "a"']}),
    ("texts of at least ab", of("s", "ab"), {
        NO: ['starts-with "aa"'],
        SOME: ['starts-with "a"', 'not-starts-with "ab"'],
        ALL: ['not-starts-with "aa"'],
    }),
    ("in a struct, whose nulls nobody counted", of("st.n", 5, 5), {
        NO: ["lt 5", "eq 4", "not-eq 5"],
        SOME: ["lt 6", "eq 5", "not-eq 4", "in 5, 6", "not-in 3, 4", "not-null"],
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "file", "words", "expected"),
    [
        pytest.param(column, file, words, expected, id=f"{name}: {words}")
        for name, (column, file), answers in PROVEN
        for expected, predicates in answers.items()
        for words in predicates
    ],
)
def test_statistics(column: str, file: DataFile, words: str, expected: tuple[bool, bool]) -> None:
    asked = pruner(where(column, words))
    assert (asked.rows_might_match(file), asked.rows_must_match(file)) == expected
    # Nothing is partitioned here, so nothing is left out of the filter.
    assert (asked.residual_might_match(file), asked.residual_must_match(file)) == expected


def test_statistics_under_and_or_not() -> None:
    _, file = of("i", 5, 9)
    some, none, every = where("i", "eq 7"), where("i", "eq 1"), where("i", "lt 10")
    table: list[tuple[Expression, tuple[bool, bool]]] = [
        (And(every, every), ALL),
        (And(every, some), SOME),
        (And(some, none), NO),
        (Or(none, none), NO),
        (Or(none, some), SOME),
        (Or(some, every), ALL),
        (Not(none), ALL),
        (Not(every), NO),
        (Not(And(every, some)), SOME),
    ]
    for expr, expected in table:
        asked = pruner(expr)
        assert (asked.rows_might_match(file), asked.rows_must_match(file)) == expected, text(expr)


def test_long_lists_are_not_compared() -> None:
    _, file = of("i", -9, -5)
    row = manifest_row([summary([-9, -5], "int")])
    for length, might in ((IN_LIMIT, False), (IN_LIMIT + 1, True)):
        asked = pruner(Predicate("in", "i", tuple(range(length))), "i")
        assert asked.rows_might_match(file) is might
        assert asked.manifest_might_match(row) is might


def test_bounds_of_a_type_that_was_widened_since() -> None:
    file = data_file(lower_bounds={1: b"\x05\0\0\0"}, upper_bounds={1: b"\x09\0\0\0"})
    assert (metrics_of(file).lower(1, "long"), metrics_of(file).upper(1, "long")) == (5, 9)
    assert metrics_of(file).lower(2, "string") is None
    assert metrics_of(file).has_bounds


@pytest.mark.parametrize(("data", "kind"), [(b"\x05", "int"), (b"\xff", "string"), (b"", "double")])
def test_bounds_that_are_no_value_are_refused(data: bytes, kind: str) -> None:
    file = data_file(lower_bounds={1: data})
    assert not metrics_of(file).has_bounds
    with pytest.raises(ValidationFailed, match=f"a bound of column 1 is {data.hex()}, which is no {kind}"):
        metrics_of(file).lower(1, kind)


# --- manifest lists: might a partition in the manifest match?


def bounds(lower: Any, upper: Any, kind: str, *, null: bool = False, nan: bool | None = None) -> FieldSummary:
    ends = [None if each is None else single_value(each, kind) for each in (lower, upper)]
    return FieldSummary(null, nan, ends[0], ends[1])


LISTED: list[tuple[str, str, FieldSummary, list[str], list[str]]] = [
    # name, partition field, summary, what cannot match, what might
    ("5 to 9", "i", bounds(5, 9, "int"),
        ["lt 5", "lt-eq 4", "gt 9", "gt-eq 10", "eq 4", "eq 10", "in 3, 4", "in 4, 10", "is-null"],
        ["lt 6", "lt-eq 5", "gt 8", "gt-eq 9", "eq 7", "not-eq 5", "in 4, 9", "not-in 5, 9", "not-null"]),
    ("5 only", "i", bounds(5, 5, "int"),
        ["not-eq 5", "not-in 5, 6", "not-in 4, 5"],
        ["eq 5", "not-eq 6", "not-in 6, 7"]),
    ("5 and null", "i", bounds(5, 5, "int", null=True), ["lt 5"], ["not-eq 5", "not-in 5, 6", "is-null", "not-null"]),
    ("null only", "i", bounds(None, None, "int", null=True),
        ["lt 5", "lt-eq 5", "gt 5", "gt-eq 5", "eq 5", "in 5, 6", "not-null"],
        ["not-eq 5", "not-in 5, 6", "is-null"]),
    ("no NaN", "d", bounds(1.0, 1.0, "double", nan=False), ["is-nan", "not-eq 1.0", "not-in 1.0, 2.0"], ["not-nan"]),
    ("NaN unknown", "d", bounds(1.0, 1.0, "double"), [], ["is-nan", "not-nan", "not-eq 1.0", "not-in 1.0, 2.0"]),
    ("some NaN", "d", bounds(1.0, 1.0, "double", nan=True), [], ["is-nan", "not-nan", "not-eq 1.0"]),
    ("NaN only", "d", bounds(None, None, "double", nan=True), ["not-nan", "eq 1.0"], ["is-nan", "not-null"]),
    ("NaN and null", "d", bounds(None, None, "double", null=True, nan=True), [], ["is-nan", "not-nan", "not-null"]),
    ("null, no NaN", "d", bounds(None, None, "double", null=True, nan=False), ["is-nan", "not-null"], ["not-nan"]),
    ("null, NaN unknown", "d", bounds(None, None, "double", null=True), [], ["is-nan", "not-null", "not-nan"]),
    ("ab to ad", "s", bounds("ab", "ad", "string"),
        ['starts-with "b"', 'starts-with "aa"', 'starts-with "ae"', 'not-starts-with "a"'],
        ['starts-with "a"', 'starts-with "abc"', 'starts-with "ad"', 'not-starts-with "ab"', 'not-starts-with "b"']),
    ("a to abc", "s", bounds("a", "abc", "string"), ['starts-with "abcd"'], ['not-starts-with "ab"']),
    ("ab and null", "s", bounds("ab", "ad", "string", null=True), ['starts-with "b"'], ['not-starts-with "a"']),
    ("null texts", "s", bounds(None, None, "string", null=True), ['starts-with "a"'], ['not-starts-with "a"']),
    ("bucket 1", "bucket[16](i)", bounds(3, 3, "int"), ["eq 35", "in 35, 36"], ["eq 34", "in 34, 35", "lt 0"]),
    ("2020-02", "month(day)", bounds(601, 601, "int"),
        ['eq "2020-01-31"', 'lt "2020-02-01"', 'gt "2020-02-29"'],
        ['eq "2020-02-01"', 'lt-eq "2020-02-01"', 'gt "2020-02-28"', 'not-eq "2020-02-01"']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "listed", "words", "might"),
    [
        pytest.param(part, listed, words, might, id=f"{name}: {words}")
        for name, part, listed, cannot, can in LISTED
        for might, predicates in ((False, cannot), (True, can))
        for words in predicates
    ],
)
def test_manifest_lists(part: str, listed: FieldSummary, words: str, might: bool) -> None:
    column = spec(part).fields[0].source_name
    assert pruner(where(column, words), part).manifest_might_match(manifest_row([listed])) is might


def test_a_manifest_without_bounds_might_hold_anything() -> None:
    asked = pruner(where("i", "eq 5"), "i")
    assert asked.manifest_might_match(manifest_row(None))
    with pytest.raises(ValidationFailed, match="Cannot find field 'nope'"):
        pruner(where("nope", "eq 5"), "i").manifest_might_match(manifest_row(None))
    with pytest.raises(ValidationFailed, match=r"bound 05 of .* is no int"):
        asked.manifest_might_match(manifest_row([FieldSummary(False, None, b"\x05", b"\x05")]))


def test_fields_of_one_column_are_all_asked() -> None:
    asked = pruner(where("i", "eq 34"), "bucket[16](i)", "truncate[10](i)", "s")
    assert asked.partition_might_match((3, 30, None))
    assert not asked.partition_might_match((4, 30, None))
    assert not asked.partition_might_match((3, 20, None))
    assert pruner(where("s", 'eq "a"'), "i").partition_might_match((5,))
    assert not pruner(where("s", 'eq "a"'), "i").partition_must_match((5,))


# --- one partition: might a row match, must all, and what is left to test?

ID = 'ref(name="i")'
PARTITIONS: list[tuple[str, str, Any, bool, bool, str]] = [
    # field             predicate               value    might  must   residual
    ("i",               "eq 5",                 5,       True,  True,  "true"),
    ("i",               "eq 5",                 6,       False, False, "false"),
    ("i",               "not-eq 5",             None,    True,  True,  "true"),
    ("i",               "lt 5",                 None,    True,  True,  "true"),  # null is below everything here
    ("i",               "lt-eq 5",              None,    True,  True,  "true"),
    ("i",               "gt 5",                 None,    False, False, "false"),
    ("i",               "eq 5",                 None,    False, False, "false"),
    ("i",               "in 5, 6",              5,       True,  True,  "true"),
    ("i",               "in 5, 6",              None,    False, False, "false"),
    ("i",               "not-in 5, 6",          None,    True,  True,  "true"),
    ("i",               "is-null",              None,    True,  True,  "true"),
    ("i",               "not-null",             None,    False, False, "false"),
    ("d",               "is-nan",               NAN,     True,  True,  "true"),
    ("d",               "not-nan",              NAN,     False, False, "false"),
    ("d",               "gt 5.0",               NAN,     True,  True,  "true"),  # and NaN above
    ("d",               "eq 0.0",               -0.0,    False, False, "false"),
    ("s",               'starts-with "a"',      "ab",    True,  True,  "true"),
    ("s",               'not-starts-with "a"',  "ab",    False, False, "false"),
    ("truncate[10](i)", "lt 20",                10,      True,  True,  "true"),
    ("truncate[10](i)", "lt 25",                20,      True,  False, f"{ID} < 25"),
    ("truncate[10](i)", "lt 25",                30,      False, False, "false"),
    ("bucket[16](i)",   "eq 34",                3,       True,  False, f"{ID} == 34"),
    ("bucket[16](i)",   "eq 34",                4,       False, False, "false"),
    ("bucket[16](i)",   "not-in 34, 35",        4,       True,  True,  "true"),
    ("bucket[16](i)",   "lt 34",                4,       True,  False, f"{ID} < 34"),
    ("void(i)",         "is-null",              None,    True,  False, f"is_null({ID})"),
    ("zorder(i)",       "eq 5",                 7,       True,  False, f"{ID} == 5"),
    ("truncate[2](s)",  'eq "\U0001f600"',      "\U0001f600", True, False, 'ref(name="s") == "\U0001f600"'),
]  # fmt: skip


@pytest.mark.parametrize(("part", "words", "value", "might", "must", "residual"), PARTITIONS)
def test_partitions(part: str, words: str, value: Any, might: bool, must: bool, residual: str) -> None:
    asked = pruner(where(spec(part).fields[0].source_name, words), part)
    assert asked.partition_might_match((value,)) is might
    assert asked.partition_must_match((value,)) is must
    assert text(asked.residual((value,))) == residual


def test_residuals_of_whole_filters() -> None:
    day, category = where("day", 'gt-eq "2020-02-10"'), where("s", 'eq "a"')
    asked = pruner(And(day, Not(category)), "month(day)", "s")
    february, march = 601, 602
    assert text(asked.residual((march, "b"))) == "true"
    assert text(asked.residual((february, "b"))) == text(day)
    assert text(asked.residual((march, "a"))) == "false"
    assert text(pruner(And(day, Not(category)), "month(day)").residual((march,))) == f"not({text(category)})"
    assert text(pruner(where("id", "is-null"), "i").residual((1,))) == "false"
    assert text(pruner(where("nope", "is-null")).residual(())) == 'is_null(ref(name="nope"))'


def test_the_residual_and_the_statistics_together() -> None:
    asked = pruner(And(where("s", 'eq "a"'), where("i", "lt 10")), "s")
    column, file = of("i", 5, 9)
    of_a, of_b = (DataFile(**{**_fields(file), "partition": (name,)}) for name in "ab")
    assert column == "i"
    assert (asked.rows_might_match(of_a), asked.rows_must_match(of_a)) == SOME
    assert (asked.residual_might_match(of_a), asked.residual_must_match(of_a)) == ALL
    assert (asked.residual_might_match(of_b), asked.residual_must_match(of_b)) == NO


def _fields(file: DataFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in DataFile.__dataclass_fields__}


def test_minus_zero_and_zero_are_two_partitions() -> None:
    asked = pruner(where("d", "lt 0.0"), "d")
    assert [text(asked.residual((value,))) for value in (0.0, -0.0, 0.0)] == ["false", "true", "false"]


@pytest.mark.parametrize("words", ['starts-with "a"', 'not-starts-with "a"'])
def test_where_iceberg_falls_over_a_null(words: str) -> None:
    asked = pruner(where("s", words), "s")
    assert asked.partition_might_match((None,)) is words.startswith("not")
    with pytest.raises(ValidationFailed) as failed:
        asked.residual((None,))
    assert failed.value.rule == NULL_POINTER
    assert failed.value.message == (
        'Cannot invoke "String.startsWith(String)" because the return value of '
        '"org.apache.iceberg.expressions.BoundReference.eval(org.apache.iceberg.StructLike)" is null'
    )


def test_where_iceberg_takes_nanoseconds_for_microseconds() -> None:
    def at(*times: str) -> Predicate:
        return Predicate("in", "ns", times)

    second = 10**9
    asked = pruner(at("1970-01-01T00:00:01", "1970-01-01T00:00:02"), "ns")
    assert not asked.partition_might_match((second,))
    assert asked.partition_might_match((second * 1000,))
    assert pruner(at("1970-01-01T00:00:01"), "ns").partition_might_match((second,))  # one value is no list
    with pytest.raises(ValidationFailed, match="long overflow") as failed:
        pruner(at("2020-01-01T00:00", "2020-01-02T00:00"), "ns").partition_might_match((second,))
    assert failed.value.rule == OVERFLOW


# --- can a manifest hold files of these partitions?

CONTAINED: list[tuple[str, FieldSummary, Any, bool]] = [
    # type      summary                                        value      may be there
    ("int",     bounds(5, 9, "int"),                           5,         True),
    ("int",     bounds(5, 9, "int"),                           9,         True),
    ("int",     bounds(5, 9, "int"),                           4,         False),
    ("int",     bounds(5, 9, "int"),                           10,        False),
    ("int",     bounds(5, 9, "int"),                           None,      False),
    ("int",     bounds(5, 9, "int", null=True),                None,      True),
    ("int",     bounds(None, None, "int", null=True),          5,         False),
    ("double",  bounds(1.0, 2.0, "double", nan=False),         NAN,       False),
    ("double",  bounds(1.0, 2.0, "double", nan=True),          NAN,       True),
    ("double",  bounds(1.0, 2.0, "double"),                    NAN,       True),
    ("double",  bounds(0.0, 2.0, "double", nan=False),         -0.0,      False),
    ("string",  bounds("a", "c", "string"),                    "bb",      True),
    ("string",  bounds("a", "c", "string"),                    "ca",      False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "listed", "value", "expected"), CONTAINED)
def test_can_contain(kind: str, listed: FieldSummary, value: Any, expected: bool) -> None:
    found = spec({"int": "i", "double": "d", "string": "s"}[kind])
    assert can_contain(manifest_row([listed]), found, [(0, (value,))]) is expected


def test_can_contain_any_partition_of_the_same_spec() -> None:
    found, row = spec("i", "s"), manifest_row([bounds(5, 9, "int"), bounds("a", "c", "string")])
    assert can_contain(row, found, [(0, (4, "b")), (0, (5, "b"))])
    assert not can_contain(row, found, [(0, (4, "b")), (0, (5, "d"))])
    assert not can_contain(row, found, [(1, (5, "b"))])
    assert not can_contain(row, found, [(0, (5,))])
    assert not can_contain(row, found, [])
    assert can_contain(manifest_row(None), found, [])


# --- soundness against rows


@st.composite
def tables(draw: st.DrawFn, *, nulls: bool) -> tuple[list[str], dict[tuple[Any, ...], list[Row]]]:
    """A spec, and some rows by partition."""
    parts = draw(SPECS)
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in draw(st.lists(rows(nulls=nulls), min_size=1, max_size=6)):
        found.setdefault(partition_of(row, spec(*parts).fields), []).append(row)
    return parts, found


# The counts of NaN stay: without them, Iceberg takes bounds for all that there is.
LEFT_OUT = st.frozensets(st.sampled_from([name for name in STATISTICS if name != "nan_value_counts"]))


@UNTIMED
@given(tables(nulls=True), filters(), LEFT_OUT)
def test_what_holds_a_matching_row_is_never_skipped(
    table: tuple[list[str], dict[tuple[Any, ...], list[Row]]], expr: Expression, left_out: frozenset[str]
) -> None:
    parts, found = table
    asked = pruner(expr, *parts)
    row = manifest_row(summaries(list(found), parts))
    for partition, members in found.items():
        assert can_contain(row, spec(*parts), [(0, partition)])
        if not any(matches(expr, each) for each in members):
            continue
        file = file_of(partition, members, left_out)
        assert asked.partition_might_match(partition)
        assert asked.manifest_might_match(row)
        assert asked.rows_might_match(file)
        if None not in partition:  # there Iceberg may fail
            assert asked.residual_might_match(file)


@UNTIMED
@given(tables(nulls=True), filters(), LEFT_OUT)
def test_statistics_promise_a_match_only_of_every_row(
    table: tuple[list[str], dict[tuple[Any, ...], list[Row]]], expr: Expression, left_out: frozenset[str]
) -> None:
    parts, found = table
    for partition, members in found.items():
        if pruner(expr, *parts).rows_must_match(file_of(partition, members, left_out)):
            assert all(matches(expr, each) for each in members)


@UNTIMED
@given(tables(nulls=False), filters(), LEFT_OUT)
def test_partitions_promise_a_match_only_of_every_row(
    table: tuple[list[str], dict[tuple[Any, ...], list[Row]]], expr: Expression, left_out: frozenset[str]
) -> None:
    """Without nulls: a partition of nulls counts as below everything, and Iceberg deletes it for ``i < 5``."""
    parts, found = table
    asked = pruner(expr, *parts)
    for partition, members in found.items():
        promised = asked.partition_must_match(partition)
        promised |= asked.residual_must_match(file_of(partition, members, left_out))
        if promised:
            assert all(matches(expr, each) for each in members)


@UNTIMED
@given(tables(nulls=False), filters())
def test_a_residual_says_of_its_partition_what_the_filter_says(
    table: tuple[list[str], dict[tuple[Any, ...], list[Row]]], expr: Expression
) -> None:
    parts, found = table
    asked = pruner(expr, *parts)
    for partition, members in found.items():
        residual = asked.residual(partition)
        assert [matches(residual, each) for each in members] == [matches(expr, each) for each in members]


def test_a_column_that_took_a_dropped_ones_name_is_another() -> None:
    """A spec goes on partitioning by the column that it was made for; a filter on its namesake says nothing of it."""
    old = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}]}
    new = {"type": "struct", "schema-id": 1, "fields": [{"id": 2, "name": "a", "required": False, "type": "int"}]}
    by_old = {"name": "a", "transform": "identity", "source-id": 1, "field-id": 1000}
    of_old = PartitionSpec(0, resolve_fields([by_old], [new, old]))
    five = Predicate("eq", "a", (5,))
    assert not Pruner(five, of_old, columns_of(old)).partition_might_match((4,))
    assert Pruner(five, of_old, columns_of(new)).partition_might_match((4,))

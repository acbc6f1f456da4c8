"""Do two contracts own something in common? Against every row of a small table, and in the words that people read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.contracts.document import load
from icetower.contracts.model import Contract, Operation, Rule
from icetower.contracts.overlaps import common_tables, overlaps
from icetower.contracts.regions import parse_pattern
from tests.contracts.small_table import LAYOUT, NOW_MS, RULES, dense, rows_of


def contract(name: str, *regions: str, operation: str = "overwrite", but: str = "") -> Contract:
    given = "".join(f"  - {region}\n" for region in regions)
    excepted = f"  except: [{but}]\n" if but else ""
    text = f"version: 1\nagent: {name}\ntables:\n- table: a.t\n  operations: [{operation}]\n"
    return load(text + (f"  partitions:\n{given}{excepted}" if regions else "  partitions: all\n"), source="test")


def met(one: Sequence[str], other: Sequence[str], but: str = "") -> list[tuple[str, bool, str | None]]:
    """What two contracts have in common: in words, whether it is certain, and from when on."""
    found = overlaps(contract("one", *one), contract("other", *other, but=but), now_ms=NOW_MS)
    return [(each.partitions, each.unsure is None, minute(each.from_ms)) for each in found]


def minute(moment_ms: int | None) -> str | None:
    return None if moment_ms is None else f"{dt.datetime.fromtimestamp(moment_ms / 1000, dt.UTC):%Y-%m-%dT%H:%M}"


# of the one, of the other, what they have in common: `!` surely, `?` perhaps
CASES = [
    ("{day(ts): {from: 2017-01-01, to: 2017-02-01}}", "{day(ts): {from: 2017-02-01, to: 2017-03-01}}", ""),
    (
        "{day(ts): {from: 2017-01-01, to: 2017-02-01}}",
        "{day(ts): {from: 2017-01-31}}",
        "! day(ts) is 2017-01-31",
    ),
    ("{day(ts): 2017-01-05}", "{day(ts): [2017-01-04, 2017-01-05, null]}", "! day(ts) is 2017-01-05"),
    ("{month(ts): 2017-01}", "{hour(ts): 2017-01-31T23}", "! hour(ts) is 2017-01-31T23"),
    ("{month(ts): 2017-01}", "{hour(ts): 2017-02-01T00}", ""),
    ("{year(ts): 2017}", "{day(ts): {from: 2016-12-31, to: 2017-01-02}}", "! day(ts) is 2017-01-01"),
    ("{identity(ts): {from: '2017-01-01T10:30:00'}}", "{hour(ts): 2017-01-01T10}",
     "! identity(ts) is from 2017-01-01T10:30:00 to 2017-01-01T11"),
    ('{"bucket(16, id)": [0, 1, 2, 3]}', '{"bucket(16, id)": [4, 5]}', ""),
    ('{"bucket(16, id)": [0, 1, 2, 3]}', '{"bucket(16, id)": {from: 2}}', "! bucket(16, id) is 2 or 3"),
    ('{"bucket(4, id)": 1}', '{"bucket(6, id)": 3}', "! bucket(12, id) is 9"),
    ('{"bucket(4, id)": 1}', '{"bucket(6, id)": 2}', ""),
    ('{"bucket(65537, id)": 1}', '{"bucket(4, id)": 2}',
     "? bucket(65537, id) is 1 and bucket(4, id) is 2"),  # too many to bring together
    ('{"truncate(10, id)": 20}', "{identity(id): [19, 25]}", "? identity(id) is 25"),
    ('{"truncate(10, id)": {from: 15}}', '{"truncate(4, id)": {to: 20}}', "? id is from 15 to 20"),  # as texts
    ('{"truncate(2, sku)": ab}', "{identity(sku): {from: abc, to: b}}", "! identity(sku) is from abc to ac"),
    ('{"truncate(1, sku)": "\ud7ff"}', "{identity(sku): {from: a}}",
     "! identity(sku) is from \ud7ff to \ue000"),  # what follows is no character
    ('{"bucket(8, id)": 3}', "{day(ts): 2017-01-01}", "! bucket(8, id) is 3 and day(ts) is 2017-01-01"),
    # One column, of which neither term tells the other.
    ('{"bucket(8, id)": 3}', "{identity(id): 5}", "? bucket(8, id) is 3 and identity(id) is 5"),
    # Without the table a field is known by its name alone.
    ("{region: [eu, us]}", "{region: us, day(ts): 2017-01-01}", "! region is us and day(ts) is 2017-01-01"),
    ("{region: eu}", "{region: us}", ""),
    ("{region: null}", "{region: [null, x]}", "! region is null"),
    ("{region: null}", "{region: {from: a}}", ""),
    ("{ts_day: 2017-01-01}", "{day(ts): 2017-05-05}", "? ts_day is 2017-01-01 and day(ts) is 2017-05-05"),
    ("{n: {from: 15, to: 20}}", "{n: {from: 18, to: 30}}", "! n is from 18 to below 20"),
    ("{n: {from: 5, to: 20}}", "{n: {from: 10, to: 30}}", "? n is from 10 to below 20"),  # as texts, 5 is behind 30
    ("{day(ts): soon}", "{day(ts): 2017-01-01}", "? "),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), CASES, ids=[f"{one} {other}" for one, other, _ in CASES])
def test_what_two_regions_have_in_common(one: str, other: str, expected: str) -> None:
    wanted = [(expected[2:], expected[0] == "!", None)] if expected else []
    assert met([one], [other]) == wanted
    assert [certain for _, certain, _ in met([other], [one])] == [certain for _, certain, _ in wanted]


def test_unions_exclusions_and_everything() -> None:
    january = "{day(ts): {from: 2017-01-01, to: 2017-02-01}}"
    assert met([], []) == [("", True, None)]
    assert met([january], []) == [("day(ts) is from 2017-01-01 to 2017-02-01", True, None)]
    assert met([], [january], but="{day(ts): {from: 2017-01-03}}") == [
        ("day(ts) is from 2017-01-01 to 2017-01-03", True, None)
    ]
    assert met([january], [january], but="{month(ts): 2017-01}") == []
    two = met([january, "{region: eu}"], ["{day(ts): 2017-01-05, region: eu}"])
    assert two == [("day(ts) is 2017-01-05 and region is eu", True, None)]


MOVING = [
    # of the one, of the other, what they have in common, from when on
    ("{hour(ts): {from: now, to: now+2h}}", "{hour(ts): {from: now+2h, to: now+4h}}", "", None),
    ("{hour(ts): {from: now, to: now+2h}}", "{hour(ts): {from: now+1h}}", "hour(ts) is from now+1h to now+2h", None),
    ("{hour(ts): {from: now, to: now+2h}}", "{hour(ts): {to: 2020-03-01T09}}", "", None),  # over
    ("{hour(ts): {from: now, to: now+2h}}", "{hour(ts): 2020-03-01T11}", "hour(ts) is 2020-03-01T11", None),
    ("{hour(ts): {from: now, to: now+2h}}", "{hour(ts): 2030-01-01T05}", "hour(ts) is 2030-01-01T05",
     "2030-01-01T04:00"),
    ("{hour(ts): now}", "{day(ts): 2020-03-02}", "hour(ts) is 2020-03-02T00", "2020-03-02T00:00"),
    ("{day(ts): now}", "{hour(ts): {from: now+14h, to: now+15h}}", "hour(ts) is 2020-03-02T14", "2020-03-02T00:00"),
    ("{day(ts): {from: now-1d, to: now}}", "{month(ts): 2020-03}", "day(ts) is 2020-03-01", "2020-03-02T00:00"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "words", "start"), MOVING, ids=[f"{one} {two}" for one, two, *_ in MOVING])
def test_what_moves_with_the_clock_is_looked_at_from_now_on(
    one: str, other: str, words: str, start: str | None
) -> None:
    wanted = [(words, True, start)] if words else []
    assert met([one], [other]) == met([other], [one]) == wanted


PATTERNS = """\
a.b    a.b    a.b
a.b    a.c    -
a.*    a.b    a.b
a.*    a.x.b  -
a.**   a.x.b  a.x.b
a.**   a.*    a.*
a.**   a.b.** a.b.**
a.b.** a.**   a.b.**
a.*    b.*    -
**     a.b    a.b
**     **     **
a.**   b.**   -
"""


@pytest.mark.parametrize("line", PATTERNS.splitlines())
def test_the_tables_that_two_patterns_have_in_common(line: str) -> None:
    one, other, common = line.split()
    patterns = [parse_pattern(one), parse_pattern(other)]
    found = {str(common_tables(a, b)) for a in patterns for b in patterns if a is not b and a and b}
    assert found <= {common if common != "-" else "None"}


def test_only_what_may_be_written_to_owned_partitions_counts() -> None:
    reader = load(
        "version: 1\nagent: r\ntables:\n- {table: a.t, operations: [read, alter], partitions: all}\n", source=""
    )
    lawless = load("version: 1\nagent: n\ntables:\n- {table: a.t, operations: [overwrite]}\n", source="")
    for other in (reader, lawless):
        assert list(overlaps(contract("one"), other, now_ms=NOW_MS)) == []
    found = next(overlaps(contract("one", operation="append"), contract("two", operation="delete"), now_ms=NOW_MS))
    assert found.operations == (frozenset({Operation.APPEND}), frozenset({Operation.DELETE}))


KNOWN = [
    # of the one, of the other, what they have in common where the table is at hand
    ("{ts_day: 2020-03-01}", "{hour(ts): 2020-03-01T05}", "hour(ts) is 2020-03-01T05"),
    ("{ts_day: 2020-03-01}", "{day(ts): 2020-03-02}", ""),
    ('{"truncate(10, id)": 20}', "{identity(id): [19, 25]}", "identity(id) is 25"),
    ('{"truncate(10, id)": {from: 15}}', '{"truncate(4, id)": {to: 20}}', ""),
    ('{"truncate(10, id)": 25}', "{identity(id): 25}", ""),  # no truncated value is 25
    ("{identity(id): {from: 5, to: 20}}", "{identity(id): {from: 10, to: 30}}", "identity(id) is from 10 to below 20"),
    ("{identity(word): {from: b}}", '{"truncate(1, word)": a}', ""),
]


@pytest.mark.parametrize(("one", "other", "words"), KNOWN, ids=[f"{one} {other}" for one, other, _ in KNOWN])
def test_with_the_table_at_hand_its_fields_and_types_are_known(one: str, other: str, words: str) -> None:
    found = overlaps(contract("one", one), contract("other", other), now_ms=NOW_MS, layout=LAYOUT)
    assert [(each.partitions, each.unsure) for each in found] == ([(words, None)] if words else [])


# -- against every row of a small table --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(RULES, RULES, st.booleans())
def test_where_a_row_is_owned_by_both_an_overlap_is_found_and_what_is_certain_has_a_row(
    one: Rule, other: Rule, with_layout: bool
) -> None:
    contracts = [Contract(f"c{i}", tables=(rule,)) for i, rule in enumerate((one, other))]
    layout = LAYOUT if with_layout else None
    found = list(overlaps(contracts[0], contracts[1], now_ms=NOW_MS, layout=layout))
    both = rows_of(one) & rows_of(other)
    if both:
        assert found
    if found and found[0].unsure is None and dense(one, other, with_layout=with_layout):
        assert both

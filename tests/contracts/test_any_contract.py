"""Whatever a contract says, it is reviewed and compared without an error, and boxes are sets."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.contracts import review
from icetower.contracts.axes import Axes, rules_regions
from icetower.contracts.boxes import Box, Spans, after, before, difference, intersection, merged, span
from icetower.contracts.differences import changes
from icetower.contracts.document import dump, load
from icetower.contracts.findings import RULES as FINDINGS
from icetower.contracts.findings import Severity, Written
from icetower.contracts.model import Contract, Rule
from icetower.contracts.references import Found, between, of_table
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier
from tests.contracts.small_table import METADATA, NOW_MS, RULES
from tests.contracts.test_contract_model import CONTRACTS

TABLE = Identifier(("a",), "t")


def written(contract: Contract) -> Written:
    return Written.read(dump(contract), contract.name)


@settings(deadline=None)
@given(CONTRACTS, CONTRACTS)
def test_any_two_contracts_are_reviewed_and_compared(one: Contract, other: Contract) -> None:
    both = [written(one), written(other)]
    found = [finding for it in both for finding in review.one(it, now_ms=NOW_MS)]
    found += review.together(both, now_ms=NOW_MS)
    assert {finding.rule for finding in found} <= FINDINGS.keys()
    assert all(finding.place.line >= 1 and finding.message for finding in found)
    assert changes(one, one) == changes(other, other) == ()
    assert all(change.words for change in (*changes(one, other), *changes(None, one), *changes(other, None)))


@settings(deadline=None)
@given(RULES, RULES)
def test_what_is_found_of_a_real_table_does_not_depend_on_who_comes_first(one: Rule, other: Rule) -> None:
    contracts = [written(Contract(f"agent{number}", tables=(rule,))) for number, rule in enumerate((one, other))]
    there = [(spec_of(METADATA, 0), (day,)) for day in (18_320, 18_321, None)]
    table = Found(TABLE, METADATA, there)
    assert {finding.rule for finding in of_table(table, contracts, [], now_ms=NOW_MS)} <= FINDINGS.keys()

    def overlaps(order: list[Written]) -> list[tuple[str, Severity]]:
        found = between(table, order, [], now_ms=NOW_MS)
        return sorted((f.rule, f.severity) for f in found if f.rule.startswith("overlap"))

    assert overlaps(contracts) == overlaps(contracts[::-1])


@given(CONTRACTS)
def test_what_was_written_otherwise_and_says_the_same_changes_nothing(contract: Contract) -> None:
    assert changes(contract, load(dump(contract), source="again")) == ()


# -- boxes -------------------------------------------------------------------------------------------------------------

NUMBERS = range(5)
SPANS = st.builds(
    lambda cuts, null: Spans(_union(cuts), null),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=3),
    st.booleans(),
)
BOXES = st.dictionaries(st.sampled_from("xy"), SPANS.filter(bool), max_size=2)


def _union(cuts: list[tuple[int, int]]) -> Any:
    union = Spans(())
    for start, end in cuts:
        union = union | span(before(start), before(end))
    return union.pieces


def values(spans: Spans) -> set[int | None]:
    held = {n for n in NUMBERS for start, end in spans.pieces if start < after(n) and before(n) < end}
    return held | ({None} if spans.null else set())


def points(*boxes: Box) -> set[tuple[int | None, int | None]]:
    every = {*NUMBERS, None}
    return {
        (x, y)
        for box in boxes
        for x in (values(box["x"]) if "x" in box else every)
        for y in (values(box["y"]) if "y" in box else every)
    }


@given(SPANS, SPANS)
def test_spans_are_sets(one: Spans, other: Spans) -> None:
    assert values(one & other) == values(one) & values(other)
    assert values(one | other) == values(one) | values(other)
    assert values(one - other) == values(one) - values(other)
    assert bool(one) == bool(values(one))


@given(st.lists(BOXES, max_size=4), st.lists(BOXES, max_size=4))
def test_boxes_are_sets(some: list[Box], others: list[Box]) -> None:
    assert points(*difference(some, others)) == points(*some) - points(*others)
    assert points(*merged(some)) == points(*some)
    assert len(merged(some)) <= len(some)
    for one in some:
        for other in others:
            both = intersection(one, other)
            assert points(*([] if both is None else [both])) == points(one) & points(other)


@given(RULES)
def test_every_region_has_words(rule: Rule) -> None:
    axes = Axes(rules_regions([rule]), now_ms=NOW_MS)
    for box in axes.boxes(rule):
        assert bool(axes.words(box)) is bool(box)

"""Who may take a slot, and from when on: as tables of cases, and what a review finds of calendars that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.contracts.calendars import Calendars, openings, rows
from icetower.contracts.check import Clear, Touch, check, needs_slot
from icetower.contracts.deliveries import next_slot, with_every_slot
from icetower.contracts.differences import changes
from icetower.contracts.document import dump, load
from icetower.contracts.findings import Written
from icetower.contracts.model import Contract, Operation
from icetower.contracts.overlaps import overlaps
from icetower.contracts.review import alone, of_overlap
from icetower.contracts.slots import Turn
from icetower.errors import BadRequest
from icetower.iceberg.partitions import spec_of
from tests.contracts.test_slots import LAYOUT, METADATA, MINUTE, NINE, TABLE, contract, minute

SECOND = 1_000
HOUR = 60 * MINUTE
HANDED = ", pattern: scheduler, claim_within: 15s"


def team(size: int, *, more: str = HANDED) -> list[Contract]:
    """Agents that take turns of a minute each, in the order of their names."""
    return [contract(f"a{n}", f"{{identity(slot): {minute(n, size)}}}", more=more) for n in range(size)]


def may(own: Contract, others: list[Contract], at_s: float, **lately: int) -> list[tuple[float, float]]:
    """The slots that a contract may take next: their minutes after nine, and the seconds after nine from which on."""

    def had(before_ms: int, length_ms: int) -> Mapping[str, int]:
        assert length_ms == MINUTE
        return lately

    found = openings(own, others, TABLE, NINE + round(at_s * SECOND), had)
    return [((each.slot.starts_ms - NINE) / MINUTE, (each.from_ms - NINE) / SECOND) for each in found]


# agent of three, seconds after nine, slots that it may take: minute@second
MAY_TAKE = """\
0  0     0@0 1@90 3@180
0  59    0@0 1@90 3@180
0  60    1@90 2@135 3@180 6@360
1  0     0@15 1@60 4@240
1  14.9  0@15 1@60 4@240
2  0     0@30 1@75 2@120 5@300
2  130   2@120 3@210 5@300
"""


@pytest.mark.parametrize("line", MAY_TAKE.splitlines())
def test_a_missed_slot_goes_to_the_next_in_the_calendar(line: str) -> None:
    who, at_s, *expected = line.split()
    agents = team(3)
    own = agents.pop(int(who))
    found = may(own, agents, float(at_s))
    assert [f"{slot:g}@{second:g}" for slot, second in found] == expected


def test_contracts_with_one_turn_share_it_by_the_time_that_they_have_had() -> None:
    agents = [contract(f"a{n}", "{now: {every: 1m}}", more=HANDED) for n in range(3)]
    for had, expected in (({}, [0, 15, 30]), ({"a0": 9, "a1": 5}, [30, 15, 0]), ({"a0": 1, "a2": 1}, [15, 0, 30])):
        found = [may(own, [each for each in agents if each is not own], 0, **had)[0] for own in agents]
        assert found == [(0, second) for second in expected]


def test_a_slot_that_is_not_handed_out_is_its_own_contracts_alone() -> None:
    mine, other = team(2, more=", pattern: scheduler")
    assert may(mine, [other], 70) == [(2, 120), (4, 240)]
    taker = team(2)[1]
    assert may(taker, [mine], 10) == [(1, 60), (3, 180)]  # the slot that goes on is that of one who hands none out
    elsewhere = contract("c", f"{{identity(slot): {minute(0, 2)}, region: us}}", more=", pattern: scheduler")
    here = contract("d", f"{{identity(slot): {minute(1, 2)}, region: eu}}", more=HANDED)
    assert may(here, [elsewhere], 0) == [(0, 0), (1, 60), (3, 180)]  # other rows


def test_slots_of_other_lengths_and_of_other_rows_are_other_calendars() -> None:
    mine = contract("a", f"{{identity(slot): {minute(0, 2)}, region: eu}}", more=HANDED)
    for other in (
        contract("b", "{identity(slot): {every: 4m, from: 2m, to: 4m}, region: eu}", more=HANDED),
        contract("b", f"{{identity(slot): {minute(1, 2)}}}", more=HANDED),
        contract("b", f"{{slot: {minute(1, 2)}, region: eu}}", more=HANDED),
    ):
        assert 3 not in dict(may(mine, [other], 180))
    same = contract("b", f"{{identity(slot): {minute(1, 2)}, region: eu}}", more=HANDED)
    assert may(mine, [same], 60)[0] == (1, 75)


def test_shadow_contracts_keep_nobody_waiting() -> None:
    mine, other = team(2)
    shadowed = load(dump(other).replace("agent: a1\n", "agent: a1\nmode: shadow\n"), source="test")
    assert may(mine, [shadowed], 60)[0] == (1, 60)


@given(st.integers(2, 6), st.integers(1, 59), st.integers(0, 900))
def test_of_every_slot_each_may_take_it_at_a_moment_of_its_own(size: int, within: int, at_s: int) -> None:
    """Two are never first together, and the one whose turn it is always is."""
    agents = team(size, more=f", pattern: scheduler, claim_within: {within}s")
    at: dict[float, list[tuple[float, str]]] = {}
    for own in agents:
        for slot, second in may(own, [each for each in agents if each is not own], at_s):
            at.setdefault(slot, []).append((second - 60 * slot, own.name))
    for slot, when in at.items():
        seconds = [second for second, _ in when]
        assert len(set(seconds)) == len(seconds)
        assert all(0 <= second < 60 and second % within == 0 for second in seconds)
        first = next((name for second, name in when if second == 0), None)
        assert first in (None, f"a{int(slot) % size}")


def test_who_comes_too_late_for_each_slot_has_one_all_the_same() -> None:
    """Those before it in line take longer than the slot."""
    agents = [contract(f"a{n}", "{now: {every: 1m}}", more=HANDED) for n in range(6)]
    found = [openings(own, [each for each in agents if each is not own], TABLE, NINE) for own in agents]
    assert [len(each) for each in found] == [2, 2, 2, 2, 1, 1]
    assert [(each.before, each.from_ms - each.slot.starts_ms) for (each,) in found[4:]] == [(4, 60_000), (5, 75_000)]
    assert openings(contract("b", "{region: eu}"), agents, TABLE, NINE) == []


@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), min_size=1, max_size=20))
def test_what_is_kept_of_a_calendar_says_the_same_as_a_new_one(size: int, asked: list[tuple[int, int]]) -> None:
    more = "{{identity(slot): {{every: 4m, from: {0}m, to: {1}m}}}}"
    agents = [
        *team(size),
        *(contract(f"b{n}", f"{{identity(slot): {minute(0, size)}}}", more=HANDED) for n in range(2)),
        contract("c", more.format(1, 2), more=", pattern: scheduler"),
    ]
    kept = Calendars(agents, TABLE)
    for who, at_s in asked:
        own, now_ms = agents[who % len(agents)], NINE + at_s * SECOND

        def lately(before_ms: int, _: int, at_s: int = at_s) -> Mapping[str, int]:
            return {"b0": at_s * 7 % 5, "a0": before_ms // MINUTE % 3}

        anew = openings(own, [each for each in agents if each is not own], TABLE, now_ms, lately)
        assert kept.openings(own, now_ms, lately) == anew


@pytest.mark.parametrize("turn", ["{every: 1m}", "{every: 300m, from: %dm, to: %dm}"])
def test_a_try_looks_at_few_turns_however_many_share_the_calendar(turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [turn % (n, n + 1) if "%" in turn else turn for n in range(300)]
    agents = [contract(f"a{n}", f"{{now: {each}}}", more=HANDED) for n, each in enumerate(turns)]
    calendars = Calendars(agents, TABLE)
    for own in agents:  # each waits
        calendars.openings(own, NINE, lambda *_: {"a7": 5})
    looked = 0
    slot = Turn.slot

    def counted(self: Turn, now_ms: int) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return slot(self, now_ms)

    monkeypatch.setattr(Turn, "slot", counted)
    for own in agents:
        assert calendars.openings(own, NINE + 1, lambda *_: {"a7": 5})
    assert looked <= 300 * 8


# -- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "within", "said"),
    [
        ("{region: eu}", "15s", "a region of this entry has none"),
        ("{now: {every: 3m, from: 0s, to: 2m}}", "15s", "multiples of the length"),
        ("{now: {every: 2m, from: 30s, to: 90s}}", "15s", "multiples of the length"),
        ("{now: {every: 2m, from: 1m, to: 2m}}", "1m", "must be shorter than the slot"),
        ("{now: {every: 2m, from: 1m, to: 2m}}", "0s", "write a duration"),
    ],
)
def test_what_cannot_be_handed_out_is_refused(region: str, within: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        contract("a", region, more=f", claim_within: {within}")


def test_it_is_written_as_it_was_read_and_a_review_says_it() -> None:
    old, new = team(2, more="")[0], team(2, more=", claim_within: 15s")[0]
    assert load(dump(new), source="again") == new
    assert [each.words for each in changes(old, new)] == [
        "takes slots of shop.bids as they are handed out, those that others miss after 15s"
    ]
    assert "needs not take them" in next(each.words for each in changes(new, old))


def test_whoever_holds_a_slot_owns_it_and_only_its_holder_may_commit() -> None:
    mine, plain = team(2)[0], team(2, more="")[0]
    spec, append = spec_of(METADATA, 0), frozenset({Operation.APPEND})

    def verdict(own: Contract, at_s: int, slot: int) -> tuple[bool, bool]:
        touches = [Touch(spec, ((NINE + slot * MINUTE) * 1000, "eu"), True, 0)]
        asked: dict[str, Any] = {"layout": LAYOUT, "now_ms": NINE + at_s * SECOND}
        clear = isinstance(check(own, TABLE, touches, append, **asked), Clear)
        return clear, needs_slot(own, TABLE, touches, append, **asked)

    assert verdict(mine, 30, 0) == (True, True)
    assert verdict(mine, 90, 1) == (True, True)  # a slot of the other, if it was missed
    assert verdict(mine, 90, 0) == (False, True)
    assert verdict(plain, 30, 0) == (True, False)
    assert verdict(plain, 90, 1) == (False, False)
    mixed = contract("m", f"{{identity(slot): {minute(0, 2)}}}", more=HANDED + "}\n- {table: shop.bids, operations: "
                     "[append], partitions: [{region: us}]")  # fmt: skip
    us = [Touch(spec, ((NINE + 7 * MINUTE) * 1000, "us"), True, 0)]
    assert not needs_slot(mixed, TABLE, us, append, layout=LAYOUT, now_ms=NINE)
    assert needs_slot(
        mixed, TABLE, [*us, Touch(spec, (NINE * 1000, "eu"), True, 0)], append, layout=LAYOUT, now_ms=NINE
    )
    assert not needs_slot(mine, TABLE, us, frozenset({Operation.ALTER}), layout=LAYOUT, now_ms=NINE)


def test_rows_without_a_slot_get_the_one_that_goes_on() -> None:
    (rule,) = team(2)[0].tables
    for at_ms, of_its_own, of_any in ((0, 0, 0), (70 * SECOND, 2, 1)):
        found = next_slot([rule], NINE + at_ms), next_slot([with_every_slot(rule)], NINE + at_ms)
        assert [None if each is None else (each.starts_ms - NINE) // MINUTE for each in found] == [of_its_own, of_any]


def test_calendars_that_cannot_work_are_found() -> None:
    def found(*contracts: Contract) -> list[str]:
        return [each.rule for each in alone([Written(c, "", "", {}) for c in contracts], now_ms=NINE)]

    assert found(*team(3)) == []
    assert found(team(1)[0]) == ["slots.alone"]
    assert found(team(2)[0], contract("b", f"{{identity(slot): {minute(1, 2)}, region: eu}}", more=HANDED))[:2] == [
        "slots.alone",
        "slots.alone",
    ]
    shared = [contract(f"a{n}", "{now: {every: 1m}}", more=HANDED) for n in range(5)]
    assert [each for each in found(*shared[:4]) if each.startswith("slots")] == []
    assert [each for each in found(*shared) if each.startswith("slots")] == ["slots.late"] * 5


def test_sharing_a_turn_that_is_handed_out_is_no_conflict() -> None:
    def rule(more: str) -> str:
        one, other = (contract(name, "{now: {every: 1m}}", more=more) for name in "ab")
        text = [
            Written(load(dump(each).replace("append", "overwrite"), source="t"), "", "", {}) for each in (one, other)
        ]
        (met,) = overlaps(text[0].contract, text[1].contract, now_ms=NINE)
        return of_overlap(text[0], text[1], met).rule

    assert rule(HANDED) == "overlap.shared"
    assert rule("") == "overlap.owned"


def test_whose_turn_it_is_and_who_comes_next() -> None:
    found = rows([*team(3), contract("alone", f"{{now: {minute(4, 9)}}}")], NINE + 70 * SECOND)
    assert [(row.contract, (row.slot.starts_ms - NINE) // MINUTE, row.line) for row in found] == [
        ("a1", 1, ("a1", "a2", "a0")),
        ("a2", 2, ("a2", "a0", "a1")),
        ("a0", 3, ("a0", "a1", "a2")),
        ("alone", 4, ("alone",)),
    ]


@given(
    st.lists(st.lists(st.integers(0, 23), min_size=1, max_size=3, unique=True), min_size=1, max_size=7),
    st.integers(0, 30_000),
)
def test_the_line_of_a_slot_is_by_whose_turn_is_next(hours: list[list[int]], at_s: int) -> None:
    """Any of the hours of a day are an agent's, and several may have the same."""
    now_ms, name = NINE + at_s * SECOND, "{{identity(slot): {{every: 24h, from: {0}h, to: {1}h}}}}"
    agents = [contract(f"a{n}", *(name.format(at, at + 1) for at in own), more=HANDED) for n, own in enumerate(hours)]
    turns = {f"a{n}": [Turn(24 * HOUR, at * HOUR, (at + 1) * HOUR) for at in own] for n, own in enumerate(hours)}

    def following(agent: str, from_ms: int) -> tuple[int, str]:
        return min(turn.slot(from_ms)[0] for turn in turns[agent]), agent

    found = rows(agents, now_ms)
    assert sorted(row.contract for row in found) == sorted(turns)
    for row in found:
        begins_ms = row.slot.starts_ms
        assert begins_ms == following(row.contract, now_ms)[0]
        assert row.line == tuple(sorted(turns, key=lambda agent: following(agent, begins_ms)))


def test_all_lines_of_a_calendar_look_at_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, looked = team(100), [0]
    slot = Turn.slot

    def counted(turn: Turn, now_ms: int) -> tuple[int, int]:
        looked[0] += 1
        return slot(turn, now_ms)

    monkeypatch.setattr(Turn, "slot", counted)
    assert [len(row.line) for row in rows(agents, NINE)] == [100] * 100
    assert looked[0] < 10 * len(agents), "and not each at those of all others"

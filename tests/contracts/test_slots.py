"""Slots that come round: when they are on, who meets whom, what is refused outside of them, and the way of rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.admission.refusals import refusal
from icetower.contracts.check import Clear, Touch, Undecided, Violation, check, is_over
from icetower.contracts.deliveries import delivery_of, next_slot
from icetower.contracts.differences import changes
from icetower.contracts.document import dump, load
from icetower.contracts.findings import Written
from icetower.contracts.gaps import gaps
from icetower.contracts.model import Contract, Operation, Orchestration
from icetower.contracts.overlaps import overlaps
from icetower.contracts.references import Found, references
from icetower.contracts.review import alone
from icetower.contracts.slots import Turn
from icetower.contracts.terms import Layout
from icetower.errors import BadRequest
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal

NINE = 1_767_258_000_000
"""2026-01-01 09:00 UTC."""
MINUTE = 60_000
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "patterns" / "contracts"
TABLE = Identifier(("shop",), "bids")
METADATA: dict[str, Any] = {
    "current-schema-id": 0,
    "schemas": [
        {
            "schema-id": 0,
            "fields": [
                {"id": 1, "name": "slot", "type": "timestamptz"},
                {"id": 2, "name": "region", "type": "string"},
                {"id": 3, "name": "at", "type": "timestamp"},
            ],
        }
    ],
    "default-spec-id": 0,
    "partition-specs": [
        {
            "spec-id": 0,
            "fields": [
                {"source-id": 1, "field-id": 1000, "name": "slot", "transform": "identity"},
                {"source-id": 2, "field-id": 1001, "name": "region", "transform": "identity"},
            ],
        },
        {"spec-id": 1, "fields": [{"source-id": 3, "field-id": 1002, "name": "at_hour", "transform": "hour"}]},
        {"spec-id": 2, "fields": []},
    ],
}
LAYOUT = Layout(METADATA)


def contract(name: str, *regions: str, more: str = "") -> Contract:
    listed = ", ".join(regions)
    return load(
        f"version: 1\nagent: {name}\nowner: x\nescalation: {{after_failures: 99, within: 1d, to: a@b.c}}\n"
        "idempotency: {required: true, how: [summary]}\n"
        f"tables:\n- {{table: shop.bids, operations: [append], partitions: [{listed}]{more}}}\n",
        source="test",
    )


def minute(number: int, of: int, grace: str = "") -> str:
    return f"{{every: {of}m, from: {number}m, to: {number + 1}m{grace}}}"


# at seconds after nine, what is owned: minutes after nine, and the slot that comes
HELD = """\
every  from  to   grace  at    owned  slot
2m     0s    1m   -      0     0-1    0-1
2m     0s    1m   -      59.9  0-1    0-1
2m     0s    1m   -      60    -      2-3
2m     0s    1m   5s     64.9  0-1    2-3
2m     0s    1m   5s     65    -      2-3
2m     1m    2m   -      30    -      1-2
2m     1m    2m   -      -1    -1-0   -1-0
1m     0s    1m   10s    5     -1-1   0-1
1m     0s    1m   10s    10    0-1    0-1
24h    9h    10h  -      7200  -      1440-1500
"""


@pytest.mark.parametrize("line", HELD.splitlines()[1:])
def test_when_a_slot_is_held_and_which_comes_next(line: str) -> None:
    every, start, end, grace, at, owned, slot = line.split()
    more = "" if grace == "-" else f", grace: {grace}"
    given = contract("a", f"{{now: {{every: {every}, from: {start}, to: {end}{more}}}}}")
    assert load(dump(given), source="again") == given
    rules = given.tables
    turn: Any = (rules[0].partitions or ())[0].fields[0][1]
    held = turn.held(NINE + round(float(at) * 1000))
    assert (None if owned == "-" else owned) == (None if held is None else _minutes(held))
    assert _minutes(turn.slot(NINE + round(float(at) * 1000))) == slot


def _minutes(span: tuple[int, int]) -> str:
    return "-".join(str((ms - NINE) // MINUTE) for ms in span)


def test_of_a_slot_enough_must_be_left() -> None:
    rules = contract("a", f"{{now: {minute(0, 2)}}}").tables
    for left_ms, starts in ((30_000, 0), (30_001, 2), (60_000, 2), (60_001, 0)):  # longer than a slot: no use to wait
        slot = next_slot(rules, NINE + 30_000, least_ms=left_ms)
        assert slot is not None
        assert (slot.starts_ms - NINE) // MINUTE == starts
    assert next_slot(contract("a", "{region: eu}").tables, NINE) is None


def test_a_moving_range_is_a_slot_for_a_scheduler_alone() -> None:
    rules = contract("a", "{day(at): {from: now-2d, to: now+1d}}").tables
    assert next_slot(rules, NINE) is None
    (rule,) = rules
    assert next_slot([replace(rule, orchestration=Orchestration.SCHEDULER)], NINE) is not None


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ("{every: 2m, from: 1m, to: 1m}", "must come before 'to'"),
        ("{every: 2m, to: 3m}", "within 2m"),
        ("{every: 2m, to: 1m, grace: 61s}", "1m at most"),
        ("{every: 0m}", "write a duration"),
        ("{every: 1m, at: 3s}", "unknown field 'at'"),
    ],
)
def test_what_is_no_slot_is_refused(turn: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        contract("a", f"{{now: {turn}}}")


def test_what_stands_beside_slots_is_refused() -> None:
    with pytest.raises(BadRequest, match="leave it out of 'partitions'"):
        contract("a", "{region: eu}", more=f", except: [{{slot: {minute(0, 2)}}}]")
    with pytest.raises(BadRequest, match="add 'pattern'"):
        contract("a", "{region: eu}", more=", through: shop.log")
    with pytest.raises(BadRequest, match="each region needs a slot"):
        contract("a", "{region: eu}", more=", pattern: scheduler")
    assert contract("a", f"{{now: {minute(0, 2)}}}", more=", pattern: scheduler")


# ── Who meets whom ───────────────────────────────────────────────────────────────────────────────────────────────────

MET = [
    (minute(0, 2), minute(1, 2), ""),
    (minute(0, 2), minute(0, 4), "from 0s to 1m of every 4m"),
    (minute(0, 2), minute(1, 4), ""),
    (minute(0, 3), minute(1, 2), "from 3m to 4m of every 6m"),
    ("{every: 1h, from: 10m, to: 20m}", "{every: 1d, from: 9h, to: 10h}", "from 550m to 560m of every 1d"),
]


@pytest.mark.parametrize(("one", "other", "common"), MET)
@pytest.mark.parametrize("term", ["now", "identity(slot)", "slot"])
def test_turns_are_compared_exactly(one: str, other: str, common: str, term: str) -> None:
    first, second = contract("one", f"{{{term}: {one}}}"), contract("other", f"{{{term}: {other}}}")
    found = [(each.partitions, each.unsure) for each in overlaps(first, second, now_ms=NINE)]
    assert found == ([(f"{term} is {common}", None)] if common else [])


def test_time_of_grace_is_anothers_where_no_column_tells_slots_apart() -> None:
    for term, met in (("now", 1), ("identity(slot)", 0)):
        first = contract("one", f"{{{term}: {minute(0, 2, ', grace: 5s')}}}")
        second = contract("other", f"{{{term}: {minute(1, 2)}}}")
        assert len(list(overlaps(first, second, now_ms=NINE))) == met


def test_slots_meet_what_stands_still_when_their_time_comes() -> None:
    turn = contract("one", f"{{identity(slot): {minute(0, 60)}}}")
    for bounds, met in (
        ("{from: '2026-03-01T10:00:00', to: '2026-03-01T10:00:30'}", True),
        ("{from: '2026-03-01T10:01:00', to: '2026-03-01T10:59:00'}", False),
        ("{from: '2025-03-01T10:00:00', to: '2025-03-01T10:00:30'}", False),  # over
    ):
        assert bool(list(overlaps(turn, contract("o", f"{{identity(slot): {bounds}}}"), now_ms=NINE))) is met


turns = st.tuples(st.integers(1, 12), st.integers(0, 11), st.integers(1, 12)).map(
    lambda t: Turn(t[0] * MINUTE, t[1] % t[0] * MINUTE, min(t[0], t[1] % t[0] + t[2]) * MINUTE)
)


@given(turns, turns)
def test_two_agents_meet_exactly_when_there_is_a_minute_of_both(one: Turn, other: Turn) -> None:
    def owner(name: str, turn: Turn) -> Contract:
        return contract(name, f"{{identity(slot): {{every: {turn.every_ms}ms, from: {turn.start_ms}ms, "
                              f"to: {turn.end_ms}ms}}}}")  # fmt: skip

    both = any(
        one.held(at) is not None and one.held(at) and other.held(at) is not None
        for at in range(NINE, NINE + math.lcm(one.every_ms, other.every_ms), MINUTE)
    )
    assert bool(list(overlaps(owner("one", one), owner("other", other), now_ms=NINE))) is both


def test_a_rotation_passes_the_check_and_a_slot_of_nobodys_is_found() -> None:
    team = [
        Written(contract(f"agent-{n}", f"{{identity(slot): {minute(n, 4)}}}", more=", pattern: scheduler"), "", "", {})
        for n in range(4)
    ]
    assert [finding.rule for finding in alone(team, now_ms=NINE)] == []
    rules = [rule for each in team[1:] for rule in each.contract.tables]
    assert gaps(rules, now_ms=NINE) == ["identity(slot) is from 0s to 1m of every 4m"]


def test_a_review_says_what_a_new_turn_gives() -> None:
    old, new = (contract("a", f"{{now: {turn}}}") for turn in (minute(0, 4), "{every: 4m, to: 2m}"))
    words = [change.words for change in changes(old, new)]
    assert words == ["gains append on shop.bids where now is from 1m to 2m of every 4m"]
    words = [change.words for change in changes(contract("a", "{region: eu}"), new)]
    assert words[0] == "gains append on shop.bids where now is from 0s to 2m of every 4m"


@pytest.mark.parametrize(
    ("region", "spec_id", "rule"),
    [
        ("{identity(slot): {every: 2m, to: 1m}}", 0, None),
        ("{now: {every: 2m, to: 1m}}", 0, None),
        ("{now: {every: 2m, to: 1m}}", 2, None),
        ("{hour(at): {every: 4h, to: 1h}}", 1, None),
        ("{hour(at): {every: 2m, to: 1m}}", 1, "reference.value"),
        ("{region: {every: 2m, to: 1m}}", 0, "reference.value"),
        ("{identity(slot): {every: 2m, to: 1m}}", 2, "reference.spec"),
    ],
)
def test_slots_are_of_times_that_the_table_is_partitioned_by(region: str, spec_id: int, rule: str | None) -> None:
    written = Written(contract("a", region), "", "", {})
    found = list(references(written, Found(TABLE, METADATA | {"default-spec-id": spec_id}), now_ms=NINE))
    assert [finding.rule for finding in found] == ([] if rule is None else [rule])


def test_the_contracts_of_the_example_are_in_each_others_way_nowhere() -> None:
    found = [Written.read(path.read_text(), path.name) for path in sorted(EXAMPLE.glob("*.yaml"))]
    assert len(found) == 5
    assert {finding.rule for finding in alone(found, now_ms=NINE)} == {"overlap.role", "retries.key"}


# ── The gate ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SLOTTED = f"{{identity(slot): {minute(0, 2, ', grace: 5s')}, region: eu}}"

# seconds after nine; the slot of the rows, in minutes after nine, and their region; the verdict; its next slot
JUDGED = """\
at     slot  region  verdict              next
0      0     eu      clear                -
59     0     eu      clear                -
64     0     eu      clear                -
66     0     eu      contract.slot        2
30     2     eu      contract.slot        0
30     1     eu      contract.slot        0
90     2     eu      contract.slot        2
120    2     eu      clear                -
120    0     eu      contract.slot        2
30     0     us      contract.partitions  -
66     0     us      contract.partitions  -
"""


@pytest.mark.parametrize("line", JUDGED.splitlines()[1:])
def test_what_is_out_of_its_slot_is_refused_and_told_when_to_come(line: str) -> None:
    at, slot, region, expected, following = line.split()
    touch = Touch(spec_of(METADATA, 0), ((NINE + int(slot) * MINUTE) * 1000, region), True, 0)
    verdict = judged(contract("a", SLOTTED), touch, now_ms=NINE + int(at) * 1000)
    if expected == "clear":
        assert isinstance(verdict, Clear)
        return
    assert isinstance(verdict, Violation)
    assert verdict.rule == expected
    assert (following == "-") is (verdict.slot is None)
    if verdict.slot is not None:
        assert (verdict.slot.starts_ms - NINE) // MINUTE == int(following)
        assert f"2026-01-01 09:0{int(at) // 60}:{int(at) % 60:02} UTC by the tower's clock" in verdict.message
        assert f"from 2026-01-01 09:0{following}:00 to 2026-01-01 09:0{int(following) + 1}:00" in verdict.message


@pytest.mark.parametrize(
    ("term", "spec_id", "partition", "at_s", "over"),
    [
        ("identity(slot)", 0, (NINE * 1000, "eu"), 66, True),
        ("identity(slot)", 0, ((NINE + 2 * MINUTE) * 1000, "eu"), 66, False),
        ("identity(slot)", 0, (None, "eu"), 66, False),
        ("now", 0, (NINE * 1000, "eu"), 66, False),
        ("hour(at)", 1, (NINE // 3_600_000 - 1,), 1, True),
        ("hour(at)", 1, (NINE // 3_600_000,), 1, False),
        ("hour(at)", 0, (NINE * 1000, "eu"), 66, False),
    ],
)
def test_rows_of_a_slot_that_is_over_come_into_none_to_come(
    term: str, spec_id: int, partition: tuple[Any, ...], at_s: int, over: bool
) -> None:
    turn = "{every: 3h, from: 1h, to: 2h}" if term == "hour(at)" else minute(0, 2)
    touch = Touch(spec_of(METADATA, spec_id), partition, True, 0)
    assert is_over(contract("a", f"{{{term}: {turn}}}"), TABLE, touch, LAYOUT, NINE + at_s * 1000) is over


@pytest.mark.parametrize(
    ("slots", "over"), [([0], True), ([2], False), ([2, 0], True)], ids=["over", "early", "one of them over"]
)
def test_a_commit_into_a_slot_that_is_over_is_not_to_wait(slots: list[int], over: bool) -> None:
    owner = contract("a", SLOTTED)
    touches = [Touch(spec_of(METADATA, 0), ((NINE + slot * MINUTE) * 1000, "eu"), True, 0) for slot in slots]
    verdict = judged(owner, *touches, now_ms=NINE + 66_000)
    assert isinstance(verdict, Violation)
    assert (verdict.rule, verdict.over) == ("contract.slot", over)
    error = refusal(verdict, Principal("p", owner, 1), TABLE)
    assert error.next_step == ("fix_request" if over else "wait_until")


def judged(owner: Contract, *touches: Touch, now_ms: int) -> Any:
    return check(owner, TABLE, list(touches), frozenset({Operation.APPEND}), layout=LAYOUT, now_ms=now_ms)


def test_a_turn_by_the_clock_alone_is_of_any_table() -> None:
    owner = contract("a", f"{{now: {minute(0, 2)}}}")
    for spec_id, partition in ((0, (None, "eu")), (1, (7,)), (2, ())):
        touch = Touch(spec_of(METADATA, spec_id), partition, False, 0)
        assert isinstance(judged(owner, touch, now_ms=NINE), Clear)
        verdict = judged(owner, touch, now_ms=NINE + MINUTE)
        assert isinstance(verdict, Violation)
        assert verdict.rule == "contract.slot"


def test_a_slot_that_a_partition_cannot_tell_is_undecided() -> None:
    touch = Touch(spec_of(METADATA, 1), (NINE // 3_600_000,), True, 0)
    assert isinstance(judged(contract("a", f"{{hour(at): {minute(0, 2)}}}"), touch, now_ms=NINE), Undecided)
    assert isinstance(judged(contract("a", "{hour(at): {every: 3h, to: 1h}}"), touch, now_ms=NINE), Clear)


def test_ranges_relative_to_now_are_slots_under_a_scheduler_alone() -> None:
    touch = Touch(spec_of(METADATA, 1), (NINE // 3_600_000 - 1,), True, 0)
    for more, rule in (("", "contract.partitions"), (", pattern: scheduler", "contract.slot")):
        verdict = judged(contract("a", "{hour(at): {from: now, to: now+1h}}", more=more), touch, now_ms=NINE + MINUTE)
        assert isinstance(verdict, Violation)
        assert verdict.rule == rule
        if verdict.slot is not None:
            assert (verdict.slot.starts_ms - NINE, verdict.slot.ends_ms - NINE) == (0, 60 * MINUTE)


# ── The way of rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def ways(*entries: str) -> Contract:
    return load("version: 1\nagent: a\ntables:\n" + "".join(f"- {{{entry}}}\n" for entry in entries), source="test")


LOG = "table: shop.bids_log, operations: [append], partitions: [{_agent: [a]}]"
OTHER = "table: shop.deltas, operations: [append], partitions: [{_agent: [a]}]"
TARGET = "table: shop.bids, partitions: all, operations: "


@pytest.mark.parametrize(
    ("entries", "operation", "expected"),
    [
        ((TARGET + "[append]",), "append", ("direct", None)),
        ((TARGET + "[append]",), "overwrite", None),
        ((TARGET + "[overwrite], pattern: mediator", LOG), "append", ("mediator", "shop.bids_log")),
        ((TARGET + "[overwrite], pattern: mediator", LOG, OTHER), "overwrite", ("mediator", None)),
        ((TARGET + "[overwrite], pattern: mediator, through: shop.deltas", LOG, OTHER), "delete",
         ("mediator", "shop.deltas")),
        # By operation: what is named for it goes before what another grants.
        ((TARGET + "[append]", TARGET + "[overwrite], pattern: collector", OTHER), "append", ("direct", None)),
        ((TARGET + "[append]", TARGET + "[overwrite], pattern: collector", OTHER), "overwrite",
         ("collector", "shop.deltas")),
        ((TARGET + "[append]", TARGET + "[append], pattern: collector", OTHER), "append",
         ("collector", "shop.deltas")),
        (("table: shop.bids, operations: [append]",), "append", None),
    ],
)  # fmt: skip
def test_the_contract_names_the_way_by_table_and_by_operation(
    entries: tuple[str, ...], operation: str, expected: tuple[str, str | None] | None
) -> None:
    found = delivery_of(ways(*entries), TABLE, Operation(operation))
    way = None if found is None else (found.pattern.value, None if found.through is None else str(found.through))
    assert way == expected

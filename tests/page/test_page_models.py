"""What the page says, without a server: refusals by rule, lanes, heat, phases, contracts in plain words, slots."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icetower import rules
from icetower.contracts.document import load
from icetower.gateway.page import own_address
from icetower.gateway.page_explain import named_snapshots
from icetower.gateway.page_owners import Owners, place_of
from icetower.iceberg.partitions import PartitionSpec, resolve_fields
from icetower.intents.model import Claim, End, Intent, State
from icetower.ledger.activity import Group
from icetower.ledger.attempts import Attempt, Outcome
from icetower.page.choosing import QUESTIONS
from icetower.page.commits import commit_of
from icetower.page.contract_words import words_of
from icetower.page.heat import STEPS, heat_of
from icetower.page.lanes import LANES_MAX, OTHERS, WIDTH, lanes_of
from icetower.page.leases import LeaseSeen, leases_of, left_text, rows_text
from icetower.page.refusals import WHO_MAX, Tally, by_rule, health
from icetower.page.times import age_text, bytes_text, moment_text, took_text
from icetower.page.turns import turns_of
from icetower.protocol.names import Identifier

TABLE = rules.table()


def group(
    principal: str, outcome: Outcome, rule: str | None, times: int = 1, last: int = 1, table: str = "a.t"
) -> Group:
    return Group(principal, table, outcome, rule, times, 1_000 * last, 1_000 * last + 500, last)


def attempt(principal: str = "p", outcome: Outcome = Outcome.DIRECT, at_ms: int = 1_000, **more: object) -> Attempt:
    return replace(Attempt(principal, "a.t", "append", outcome, at_ms=at_ms), **more)  # pyright: ignore[reportArgumentType]


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_needs_somebody_comes_first_and_the_latest_of_it() -> None:
    found = by_rule(
        [
            group("a", Outcome.CONFLICT, "rebase.not-blind", last=9),
            group("a", Outcome.REFUSED, "contract.table", last=3),
            group("b", Outcome.REFUSED, "contract.partitions", times=4, last=5),
            group("c", Outcome.REFUSED, "contract.partitions", times=2, last=7),
            group("a", Outcome.UNKNOWN, "commit.unknown", last=1),
            group("a", Outcome.DIRECT, None, last=10),
        ],
        TABLE.rules,
        TABLE.next_steps,
    )
    assert [each.rule for each in found] == [
        "commit.unknown",
        "contract.partitions",
        "contract.table",
        "rebase.not-blind",
    ]
    partitions = found[1]
    assert (partitions.times, partitions.last, partitions.first_ms, partitions.last_ms) == (6, 7, 5_000, 7_500)
    assert [(who.principal, who.times) for who in partitions.who] == [("c", 2), ("b", 4)]


def test_a_few_are_named_and_the_rest_counted() -> None:
    found = by_rule([group(f"p{n}", Outcome.REFUSED, "contract.table", last=n) for n in range(20)], {}, {})
    assert (len(found), len(found[0].who), found[0].more, found[0].who[0].principal) == (
        1,
        WHO_MAX,
        20 - WHO_MAX,
        "p19",
    )
    assert (found[0].meaning, found[0].advice) == ("", ())


@pytest.mark.parametrize(
    ("rule", "outcome", "steps"),
    [
        ("contract.partitions", Outcome.REFUSED, ["request_partition"]),
        ("contract.table", Outcome.REFUSED, ["ask_owner"]),
        ("rebase.not-blind", Outcome.CONFLICT, ["refresh"]),
        ("contract.quota", Outcome.REFUSED, ["wait_until"]),
        ("commit.unknown", Outcome.UNKNOWN, ["refresh"]),
    ],
)
def test_the_next_step_is_the_one_of_the_table_of_rules(rule: str, outcome: Outcome, steps: list[str]) -> None:
    (found,) = by_rule([group("a", outcome, rule)], TABLE.rules, TABLE.next_steps)
    assert set(steps) <= {advice.step for advice in found.advice}
    assert all(advice.means == TABLE.next_steps[advice.step] for advice in found.advice)


def test_every_rule_has_advice_however_it_ended() -> None:
    for rule in TABLE.rules:
        for outcome in (Outcome.REFUSED, Outcome.CONFLICT, Outcome.UNKNOWN):
            (found,) = by_rule([group("a", outcome, rule)], TABLE.rules, TABLE.next_steps)
            assert found.advice, rule
            assert all(advice.means for advice in found.advice), rule


def test_health_adds_up_by_agent_and_by_table() -> None:
    groups = [
        group("a", Outcome.DIRECT, None, times=5, last=1),
        group("a", Outcome.REBASED, None, times=2, last=4, table="a.u"),
        group("a", Outcome.REFUSED, "contract.table", times=3, last=2),
        group("b", Outcome.CONFLICT, "conflict", last=3),
    ]
    agents, tables = health(groups, of_tables=False), health(groups, of_tables=True)
    assert (agents["a"].tally, agents["a"].last_ms, agents["a"].others) == (Tally(7, 3), 4_500, ("a.t", "a.u"))
    assert (tables["a.t"].tally, tables["a.t"].others) == (Tally(5, 3, 1), ("a", "b"))
    assert tables["a.t"].tally.failed == 4


# ── Drawings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_agent_has_a_lane_and_time_runs_to_the_right() -> None:
    shown = lanes_of([(2, attempt("b", at_ms=61_000)), (1, attempt("a", at_ms=1_000))], 61_000)
    assert [lane.name for lane in shown.lanes] == ["a", "b"]
    late, early = shown.marks
    assert early.x < late.x < WIDTH
    assert early.y < late.y
    assert (early.number, early.words) == (1, "00:00:01 a: append, direct")


def test_many_agents_share_the_last_lane_and_a_group_is_linked() -> None:
    many = [(n, attempt(f"p{n:02}", at_ms=n)) for n in range(LANES_MAX * 2)]
    shown = lanes_of(many, 100)
    assert len(shown.lanes) == LANES_MAX
    assert shown.lanes[-1].name == OTHERS
    assert {mark.y for mark in shown.marks} == {lane.y for lane in shown.lanes}
    together = [(1, attempt("a", group_size=2, head=7)), (2, attempt("b", group_size=2, head=7)), (3, attempt("c"))]
    assert len(lanes_of(together, 1_000).links) == 1
    assert lanes_of([], 5_000).marks == ()


def test_partitions_show_their_owner_and_where_agents_meet() -> None:
    attempts = [
        *(attempt("a", partitions=("d=1",)) for _ in range(9)),
        attempt("b", Outcome.CONFLICT, partitions=("d=1",)),
        attempt("b", partitions=("d=2",)),
    ]
    shown = heat_of(attempts).owned({"d=1": ("a",), "d=2": ()}.get)
    first, second = shown.rows
    assert (first.partition, first.owners, first.times, first.conflicts, first.contended) == (
        "d=1",
        ("a",),
        10,
        1,
        True,
    )
    assert [cell.heat for cell in first.cells] == [STEPS, 1]
    assert (second.owners, second.contended, second.cells[0].heat) == ((), False, 0)
    assert heat_of([attempt(partitions=("x",))]).rows[0].owners is None


def test_phases_fill_the_time_that_a_commit_took() -> None:
    found = commit_of(
        1,
        attempt(latency_ms=100.0, judge_ms=20.0, queue_wait_ms=10.0, write_ms=40.0, swap_ms=10.0, decided_ms=400),
        TABLE,
    )
    assert [(phase.name, phase.took_ms) for phase in found.phases] == [
        ("judge", 20.0), ("queue", 10.0), ("write", 40.0), ("swap", 10.0),
    ]  # fmt: skip
    assert found.rest_ms == pytest.approx(20.0)
    assert found.end_to_end_ms == 600
    assert sum(phase.width for phase in found.phases) <= 720.0
    refused = commit_of(1, attempt(outcome=Outcome.REFUSED, rule="contract.partitions"), TABLE)
    assert [advice.step for advice in refused.advice] == ["request_partition"]
    assert "not owned" in refused.means


# ── Contracts ────────────────────────────────────────────────────────────────────────────────────────────────────────

CONTRACT = """\
version: 1
agent: a
tables:
  - table: shop.prices
    operations: [append, overwrite]
    partitions: [{day: {from: 2026-01-01, to: 2026-02-01}}, {region: [1, 2]}]
    except: [{region: [9]}]
    read_scope: owned
    require_key: true
    quotas: {commits_per_minute: 60, bytes_per_commit: 1GiB}
  - {table: shop.log, operations: [append]}
  - table: shop.turns
    operations: [append]
    pattern: scheduler
    partitions: [{slot: {every: 10m, from: 2m, to: 4m}}]
reads: [ref.*]
mode: shadow
escalation: {after_failures: 3, within: 10m, to: d@example.com}
"""


def test_a_contract_is_said_in_plain_words() -> None:
    words = words_of(load(CONTRACT, source="test"))
    prices, log, _, reads = words.grants
    assert (prices.operations, prices.tables) == ("overwrite", "shop.prices")
    assert prices.where == ("day is from 2026-01-01 to 2026-02-01", "region is 1 or 2")
    assert prices.but == ("region is 9",)
    assert "each commit needs an idempotency key" in prices.conditions
    assert "at most 60 commits a minute" in prices.conditions
    assert "at most 1GiB a commit" in prices.conditions
    assert log.where == ("nowhere: it owns no partition",)
    assert (reads.operations, reads.tables, reads.where) == ("read", "ref.*", ())
    assert [label for label, _ in words.clauses] == ["Mode", "Escalation"]


def test_slots_are_drawn_around_now() -> None:
    contract = load(CONTRACT, source="test")
    shown = turns_of([contract], 600_000 + 180_000)  # three minutes after the period began: its turn
    (row,) = shown.rows
    assert (row.contract, row.tables, row.term) == ("a", "shop.turns", "slot")
    assert [bar.now for bar in row.bars].count(True) == 1
    now = next(bar for bar in row.bars if bar.now)
    assert now.x < shown.now_x < now.x + now.width
    assert turns_of([], 0).rows == ()


# ── Leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def lease(
    id_: str, state: State = State.HELD, since_s: int = 0, renewed_s: int = 0, table: str = "shop.turns", **more: Any
) -> Intent:
    said = more.pop("said", '[{"region": ["eu", "as"], "day": {"from": "2017-01-01"}}]')
    claims = (Claim(table, table, ({},), frozenset({"overwrite"}), said),)
    granted = None if state is State.QUEUED else since_s * 1000
    return Intent(
        id_, since_s, f"agent-{id_}", "c", claims, 60_000, state, since_s * 1000, renewed_s * 1000, 7, granted, **more
    )


def test_leases_stand_on_a_timeline_by_table() -> None:
    now_ms = 10_000_000
    held = lease("a", since_s=9_900, renewed_s=9_990)
    waits = lease("b", State.QUEUED, since_s=9_950, renewed_s=9_995)
    over = lease("c", State.ENDED, since_s=9_890, ended=End.BROKEN, ended_ms=9_940_000, ended_by="dana")
    calm = lease("d", since_s=9_000, renewed_s=9_990, table="shop.calm", said="all")
    text = """
    version: 1
    agent: night
    tables:
      - table: shop.turns
        operations: [append]
        pattern: scheduler
        partitions: [{slot: {every: 10m, from: 0s, to: 4m}}]
    """
    seen = [LeaseSeen(calm), LeaseSeen(over), LeaseSeen(waits, (held,)), LeaseSeen(held, (), 3)]
    shown = leases_of(seen, [load(text, source="test")], now_ms)
    assert (shown.held, shown.queued, shown.lost, shown.more_tables) == (2, 1, 1, 0)
    table, other = shown.tables  # where somebody waits comes first
    assert (table.table, other.table) == ("shop.turns", "shop.calm")
    assert [row.intent.id for row in table.rows] == ["a", "b", "c"]
    assert table.rows[0].rows == "region eu or as, day from 2017-01-01"
    assert other.rows[0].rows == "all rows that are its"
    assert (table.rows[0].left, table.rows[1].left, table.rows[2].left) == ("50 s", "55 s", "")
    assert table.rows[2].how == "broken by dana"
    slots, first, second, third = table.lines
    assert (slots.id_, slots.name) == ("", "slot: night")
    assert [bar.kind for bar in first.bars] == ["held", "ahead"]
    assert first.bars[0].x + first.bars[0].width == pytest.approx(table.now_x, abs=0.2) == first.bars[1].x
    assert [bar.kind for bar in (*second.bars, *third.bars)] == ["queued", "lost"]
    assert second.bars[0].x > first.bars[0].x > third.bars[0].x
    assert all(bar.x >= 190 and bar.x + bar.width <= WIDTH for line in table.lines for bar in line.bars)
    assert leases_of([], [], now_ms).tables == ()


def test_very_many_leases_are_shown_in_part() -> None:
    many = [LeaseSeen(lease(f"i{n}", since_s=n, renewed_s=9_999, table=f"t.t{n % 30}")) for n in range(3_000)]
    shown = leases_of(many, [], 10_000_000)
    assert (len(shown.tables), shown.more_tables) == (20, 10)
    assert [(len(table.rows), table.left_out) for table in shown.tables] == [(60, 40)] * 20


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("all", "all rows that are its"),
        ('[{"day": "2017-01-02"}, {"day": null}]', "day 2017-01-02 or day null"),
        (
            '{"filter": {"type": "eq", "term": "region", "value": 1}}',
            'where {"type": "eq", "term": "region", "value": 1}',
        ),
        ("[1]", "1"),
        ("no json", 'where "no json"'),
    ],
)
def test_rows_of_a_lease_in_words(said: str, words: str) -> None:
    assert rows_text(lease("a", said=said).claims[0]) == words


def test_how_long_a_lease_goes_on() -> None:
    assert [left_text(ms) for ms in (-5, 42_900, 119_000, 130_000, 3_900_000, 7_500_000)] == [
        "0 s", "42 s", "119 s", "2 min", "65 min", "2 h 5 min",
    ]  # fmt: skip


def test_the_questions_are_those_of_the_document() -> None:
    page = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = [line for line in page.partition("| question |")[2].split("\n\n")[0].splitlines()[2:] if line]
    found = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in rows]
    plain = [tuple(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell) for cell in row) for row in found]
    assert plain == [(each.question, each.choose, each.gain, each.cost) for each in QUESTIONS]


# ── Small things ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_times_and_sizes() -> None:
    assert [age_text(0, ms) for ms in (-5, 999, 59_999, 60_000, 7_200_000, 200_000_000)] == [
        "now", "now", "59 s", "1 min", "2 h", "2 d",
    ]  # fmt: skip
    assert [took_text(ms) for ms in (None, 0.42, 38.2, 1_240.0)] == ["–", "0.4 ms", "38 ms", "1.24 s"]
    assert [bytes_text(size) for size in (None, 812, 14_541, 5 * 2**40)] == ["–", "812 B", "14.2 KiB", "5.0 TiB"]
    assert moment_text(10**18) == f"{10**18} ms"


def test_a_partition_is_found_by_its_name_or_not_at_all() -> None:
    schema = {"type": "struct", "fields": [
        {"id": 1, "name": "d", "type": "date"},
        {"id": 2, "name": "r", "type": "string"},
        {"id": 3, "name": "n", "type": "int"},
    ]}  # fmt: skip
    fields = [
        {"name": "d", "transform": "identity", "source-id": 1},
        {"name": "r", "transform": "identity", "source-id": 2},
        {"name": "b", "transform": "bucket[4]", "source-id": 3},
    ]
    spec = PartitionSpec(0, resolve_fields(fields, [schema]))
    assert place_of("d=2017-01-02/r=north/b=3", [spec], 0) == (spec, (17_168, "north", 3))
    assert place_of("d=2017-01-02/r=null/b=3", [spec], 0) == (spec, (17_168, None, 3))
    for other in (
        "d=2017-01-02/r=x/b=1/b=3",
        "d=2017-01-02",
        "r=x",
        "",
        "d=never/r=x/b=3",
        "d=2017-01-02/r=x/b=99999999999",
    ):
        assert place_of(other, [spec], 0) is None, other


OWNER = """\
version: 1
agent: {name}
role: {role}
tables:
  - {{table: shop.t, operations: [{operations}], partitions: [{{region: {regions}}}]}}
"""


def owners(*, everybody: bool = True) -> Owners:
    """Of a table by region: `a` owns 1, the pipeline `b` 1 and 2, and a maintenance job works on both."""
    metadata = {
        "format-version": 2,
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": 1, "name": "region", "type": "int", "required": False}],
            }
        ],
        "current-schema-id": 0,
        "partition-specs": [
            {
                "spec-id": 0,
                "fields": [{"name": "region", "transform": "identity", "source-id": 1, "field-id": 1000}],
            }
        ],
        "default-spec-id": 0,
    }
    texts = {
        "b": OWNER.format(name="b", role="pipeline", operations="append", regions="[1, 2]"),
        "a": OWNER.format(name="a", role="agent", operations="append", regions="1"),
        "jobs": OWNER.format(name="jobs", role="maintenance", operations="replace", regions="[1, 2, 3]"),
    }
    return Owners(Identifier.parse("shop.t"), metadata, texts, 0, everybody=everybody)


def test_a_partition_is_its_writers_or_else_an_agents_before_a_pipelines() -> None:
    wanted = {"region=1": [], "region=2": ["a"], "region=3": ["jobs"], "other": []}
    assert owners().of(wanted, lambda: True) == {"region=1": ("a",), "region=2": ("b",), "region=3": ()}
    assert owners().of({"region=1": ["b", "gone"]}, lambda: True) == {"region=1": ("b",)}
    assert owners().of({"region=1": ["b", "a", "jobs"]}, lambda: True) == {"region=1": ("a", "b")}
    assert owners(everybody=False).of(wanted, lambda: True) == {"region=1": ("a",), "region=2": ("b",)}


def test_what_is_not_judged_in_time_is_unknown_until_the_next_look() -> None:
    known = owners()
    assert known.of({"region=1": ["a"], "region=2": ["a"]}, lambda: False) == {"region=1": ("a",)}
    assert known.of({"region=2": ["a"]}, lambda: True) == {"region=2": ("b",)}
    assert known.of({"region=2": []}, lambda: False) == {"region=2": ("b",)}


@pytest.mark.parametrize(
    ("asked", "led"),
    [
        ("/ui/agents?q=a", "/ui/agents?q=a"),
        ("/", "/"),
        ("", "/"),
        ("//evil.example/ui/", "/"),
        ("https://evil.example/ui/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/ui/x\r\nSet-Cookie: a=b", "/"),
        ("/v1/config", "/"),
        ("/ui/\u202e", "/"),
    ],
)
def test_signing_in_leads_to_this_page_alone(asked: str, led: str) -> None:
    assert own_address(asked) == led


def test_snapshots_are_found_in_messages() -> None:
    assert named_snapshots("conflicts with snapshot 1795645648653786, and with 1795645648653786 (12)") == [
        1795645648653786
    ]
    assert named_snapshots(None) == []

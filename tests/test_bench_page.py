"""What `make bench-page` counts and fills, and a short run of it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

from bench.commits.operations import Operation
from bench.page import report
from bench.page.readers import AGENT, Asked, everything, own
from bench.page.run import Case, run
from bench.page.warehouse import CONFLICTS, REFUSALS, Size, agent_name, attempts, contract_of, job_contract, table_name
from bench.page.writers import ALL_TABLES, LOADS, ONE_TABLE
from icetower import rules
from icetower.contracts.document import load
from icetower.ledger.attempts import NOT_LANDED
from tests.page.test_page_browser import PAGES

SMALL = Size(agents=20, tables=5, attempts=2_000)


def asked(page: str, took_ms: float, status: int = 200) -> Asked:
    return Asked(AGENT, page, took_ms, status, f"/ui/{page}")


def test_a_page_is_judged_by_its_p95() -> None:
    quick = [asked("quick", 10.0)] * 95 + [asked("quick", 900.0)] * 5
    slow = [asked("slow", 10.0)] * 94 + [asked("slow", 300.0)] * 6
    records = report.page_records("one table", [*quick, *slow])
    assert [(each["page"], each["p95_ms"], each["most_ms"]) for each in records] == [
        ("quick", 10.0, 900.0),
        ("slow", 300.0, 300.0),
    ]
    assert report.too_slow(records) == ["slow (an agent, one table): p95 300 ms"]


def test_a_page_that_is_not_shown_is_too_slow() -> None:
    (record,) = report.page_records("one table", [asked("gone", 1.0), asked("gone", 1.0, 404)])
    assert report.too_slow([record]) == ["gone: 404 /ui/gone"]
    (shown, _) = report.tables([record], [])
    assert shown.rows == (("gone", AGENT, "2", "1", "1", "1", "–", "–", "–", "TOO SLOW"),)


def test_a_load_that_was_too_light_is_named() -> None:
    operations = [Operation(n, n / 200, n / 200 + 0.1, "ok") for n in range(2_000)]
    reached = report.load_record(ONE_TABLE, 1, operations, 1.0, 9.0)
    assert report.not_reached([reached]) == []
    light = report.load_record(ONE_TABLE, 1, operations[::2], 1.0, 9.0)
    failed = report.load_record(ONE_TABLE, 2, [*operations, Operation(9, 2.0, 3.0, "409")], 1.0, 9.0)
    assert report.not_reached([light, failed]) == [
        "one table, round 1: 100 of 200 commits/s",
        "one table, round 2: 200 of 200 commits/s, failures {'409': 1}",
    ]


def test_the_log_has_ends_of_all_kinds_under_rules_that_there_are() -> None:
    made = list(attempts(SMALL, 1_800_000_000_000))
    assert len(made) == SMALL.attempts
    assert all(a.at_ms <= b.at_ms for a, b in pairwise(made))
    assert {each.principal for each in made} == {agent_name(number) for number in range(SMALL.agents)}
    assert {each.table for each in made} == {str(table_name(number)) for number in range(SMALL.tables)}
    failed = Counter(each.outcome for each in made if each.rule is not None)
    assert set(failed) == set(NOT_LANDED)
    known = rules.table().rules
    assert [rule for rule, _ in (*REFUSALS, *CONFLICTS) if rule not in known] == []


def test_every_contract_is_one() -> None:
    for number in range(SMALL.agents):
        assert load(contract_of(number, SMALL), source="here").name == agent_name(number)
    assert load(job_contract(1), source="here").role.value == "maintenance"


def test_all_tables_are_written_to_and_by_many() -> None:
    size = Size()
    assert {ALL_TABLES.table(agent, size) for agent in ALL_TABLES.agents(size)} == set(range(size.tables))
    assert len(set(ONE_TABLE.agents(size))) == 128
    assert {ONE_TABLE.table(agent, size) for agent in ONE_TABLE.agents(size)} == {0}


class NoLog:
    """A log that has one attempt."""

    def number(self) -> int:
        return 1

    def request(self) -> str:
        return "0123"

    def own(self, principal: str, most: int) -> list[int]:
        return [1]


def test_every_page_is_asked_for() -> None:
    draw = random.Random(1)
    kinds = [path.split("/")[1:3] + ["…"] * (path.count("/") > 2) for path in PAGES]
    for asking in (everything(SMALL, NoLog(), draw), own(3, SMALL, NoLog(), draw)):
        found = [address().partition("?")[0] for address in asking.values()]
        kinds_found = [path.split("/")[1:3] + ["…"] * (path.count("/") > 2) for path in found]
        lacking = {"/".join(kind) for kind in kinds if kind not in kinds_found}
        assert lacking <= {"ui/operations", "ui/contracts"}  # of an agent: it sees neither


def test_a_short_run_shows_every_page_while_agents_commit(tmp_path: Path) -> None:
    found = run(Case(SMALL, seconds=1.5, rounds=1, warm_s=0.5), tmp_path / "run", print)
    assert [each["not_shown"] for each in found["pages"] if each["not_shown"]] == []
    assert all(each["asked"] and each["p95_ms"] > 0 for each in found["pages"])
    assert {each["load"] for each in found["pages"]} == {load.name for load in LOADS}
    assert [each["failures"] for each in found["loads"]] == [{}, {}]
    assert all(each["acknowledged"] > 0 for each in found["loads"])

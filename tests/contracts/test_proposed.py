"""Contracts that the product itself proposes pass its own check, all that belong together, and mean what they say."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from icetower.cli.app import app
from icetower.cli.contract_template import TemplateFields, template
from icetower.contracts import review
from icetower.contracts.findings import Finding, Severity, Written
from icetower.contracts.model import Operation, Role
from icetower.contracts.overlaps import overlaps
from icetower.contracts.patterns import Orchestration
from icetower.contracts.regions import Region, Values
from icetower.demo.plan import AGENTS, contract_text
from icetower_simulator.choosing import choose
from icetower_simulator.planner import Plan, Workload, candidates, workload_from
from icetower_simulator.proposed import contracts

ROOT = Path(__file__).parent.parent.parent
FOR_PEOPLE = {"retries.key", "escalation.none"}
"""Warnings about what only a person can fill in: whether clients send keys, and who is called."""

WORKLOADS = [
    *(workload_from(path.read_text(), path.name) for path in sorted((ROOT / "examples" / "workloads").glob("*.toml"))),
    *(
        Workload(title=f"{given}", agents=given[0], appends=given[1], partitions=given[2], own_partitions=given[3])
        for given in itertools.product((1, 2, 10), (0.0, 0.5, 1.0), (1, 4, 64), (False, True))
    ),
]
ADVISED = [(workload, each.name) for workload in WORKLOADS for each in candidates(workload)]


def advised(workload: Workload, pattern: str) -> list[Written]:
    texts = contracts(Plan(workload, ()), pattern, "shop.prices", "pricer", first=3)
    return [Written.read(text, f"{pattern}-{number}.yaml") for number, text in enumerate(texts)]


def serious(found: list[Written]) -> list[Finding]:
    findings = review.alone(found, now_ms=1_700_000_000_000)
    return [each for each in findings if each.severity is not Severity.NOTE and each.rule not in FOR_PEOPLE]


@pytest.mark.parametrize(("workload", "pattern"), ADVISED, ids=lambda each: getattr(each, "title", each))
def test_what_the_planner_advises_passes_the_check(workload: Workload, pattern: str) -> None:
    found = advised(workload, pattern)
    assert serious(found) == []
    assert len({each.contract.name for each in found}) == len(found)
    agents = [each for each in found if each.contract.role is Role.AGENT]
    assert agents[0].contract.name == "pricer"
    assert all(Operation.APPEND in rule.operations for each in agents for rule in each.contract.tables)
    assert (pattern in ("wal", "collector")) is (found != agents)


@pytest.mark.parametrize("file", ["turns", "rewriters", "audited", "checked_and_contended"])
def test_slots_intents_and_branches_have_contracts_that_say_so(file: str) -> None:
    contended = file == "checked_and_contended"
    path = ROOT / "examples" / "workloads" / f"{'audited' if contended else file}.toml"
    workload = workload_from(path.read_text() + ("conflicts = 0.5\n" if contended else ""), path.name)
    choice = choose(workload)
    found = advised(workload, choice.proposed)
    assert serious(found) == []
    (rule, *more) = found[0].contract.tables
    assert (rule.orchestration is Orchestration.SCHEDULER) is (choice.ways == ("a slot",))
    assert rule.intents_required is ("an intent" in choice.ways)
    assert [each.operations for each in more] == ([{Operation.REFS}] if "a branch" in choice.ways else [])
    assert (found[0].contract.branches is not None) is ("a branch" in choice.ways)
    assert len(found) == (3 if choice.ways == ("a slot",) else 1), "who may meet on the same rows shares one"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.title)
def test_where_agents_have_partitions_of_their_own_each_owns_a_part_and_together_all(workload: Workload) -> None:
    every = contracts(Plan(workload, ()), "isolated", agent="a", first=workload.agents)
    rules = [Written.read(text, "x").contract.tables[0] for text in every]
    if workload.own_partitions and workload.agents > 1:
        assert len(rules) == workload.agents
    for one, other in itertools.combinations([Written.read(text, "x").contract for text in every], 2):
        shared = list(overlaps(one, other, now_ms=0))
        assert not shared or workload.appends == 1
    unowned = [each.message for each in review.alone([Written.read(text, "x") for text in every], now_ms=0)]
    assert not [words for words in unowned if words.startswith("nobody owns") and "null" not in words]


@pytest.mark.parametrize(
    ("kind", "pattern", "end"),
    [("wal", Orchestration.MEDIATOR, "_wal"), ("collector", Orchestration.COLLECTOR, "_deltas")],
)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.title)
def test_nobody_may_write_to_the_log_in_another_agent_s_name(
    workload: Workload, kind: str, pattern: Orchestration, end: str
) -> None:
    *agents, job = [each.contract for each in advised(workload, kind)]
    for contract in agents:
        table, log = contract.tables
        assert (str(table.pattern), table.orchestration) == ("shop.prices", pattern)
        assert str(log.pattern) == f"shop.prices{end}"
        assert log.partitions == (Region((("_agent", Values((contract.name,))),)),)
        assert log.operations == {Operation.APPEND}
    assert not any(rule.pattern.last == f"prices{end}" for rule in job.tables), "it reads the log"


@pytest.mark.parametrize("pattern", ["slots", "intents", "branches"])
def test_the_command_that_people_run_says_so_too(tmp_path: Path, pattern: str) -> None:
    for number, text in enumerate(contracts(Plan(WORKLOADS[0], ()), pattern, "shop.prices", "pricer", first=2)):
        (tmp_path / f"{number}.yaml").write_text(text)
    done = CliRunner().invoke(app, ["contracts", "check", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)["findings"]
    assert {each["rule"] for each in found if each["severity"] == "warning"} <= FOR_PEOPLE


def test_the_contracts_of_the_demo_pass_together() -> None:
    names = [*(agent.name for agent in AGENTS), "interactions-mediator", "auditor"]
    assert serious([Written.read(contract_text(name, days=3), name) for name in names]) == []


def test_a_contract_to_begin_with_asks_for_its_partitions_and_nothing_else() -> None:
    fields = TemplateFields(
        "pricer", ("shop.prices",), ("append", "overwrite"), "team@example.com", "Dana <dana@example.com>"
    )
    text = template(fields)
    assert [each.rule for each in serious([Written.read(text, "x")])] == ["partitions.none"]
    for owned in ("partitions: all", "partitions:\n      - day(ts): {from: 2026-01-01, to: 2027-01-01}"):
        filled = text.replace("    # partitions: all\n", f"    {owned}\n")
        assert serious([Written.read(filled, "x")]) == []

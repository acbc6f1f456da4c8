"""The planner: what it advises, on what grounds, and the contracts that it proposes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icetower.errors import ConfigurationError, UsageError
from icetower_simulator.planner import (
    Advice,
    Plan,
    Workload,
    candidates,
    plan,
    workload_from,
    workload_of,
    workload_of_log,
)
from icetower_simulator.plots import plan_plot

HERD = Workload(title="a herd", agents=200, writes_per_hour=60, work_s=5.0, freshness_s=60.0)
CALM = Workload(
    title="a few", agents=4, writes_per_hour=2, appends=0.0, partitions=16, own_partitions=True, work_s=60.0
)


@pytest.fixture(scope="module")
def herd() -> Plan:
    return plan(HERD)


@pytest.fixture(scope="module")
def calm() -> Plan:
    return plan(CALM)


def advice(done: Plan, name: str) -> Advice:
    return next(each for each in done.advice if each.candidate.name == name)


def test_a_herd_is_told_not_to_rely_on_retries(herd: Plan) -> None:
    best = herd.advice[0]
    assert best.candidate.name in ("group", "appends")
    assert best.today.holds(HERD)
    assert best.grown.holds(HERD)
    plain = advice(herd, "optimistic")
    assert not plain.grown.holds(HERD)
    assert plain.grown.wasted_pct > 50
    assert plain.breaks_at is not None
    assert best.breaks_at is None or best.breaks_at > plain.breaks_at


def test_a_few_writers_may_go_on_as_they_are(calm: Plan) -> None:
    plain = advice(calm, "optimistic")
    assert plain.today.holds(CALM)
    assert plain.grown.holds(CALM)
    assert plain.today.wasted_pct < 1
    assert "appends" not in [each.candidate.name for each in calm.advice]  # they replace rows


@pytest.mark.parametrize("name", ["herd", "calm"])
def test_ranks_and_breaking_points_follow_from_the_curves(name: str, request: pytest.FixtureRequest) -> None:
    done: Plan = request.getfixturevalue(name)
    holding = [
        each.today.holds(done.workload) + (each.today.holds(done.workload) and each.grown.holds(done.workload))
        for each in done.advice
    ]
    assert holding == sorted(holding, reverse=True)
    for each in done.advice:
        loads = [assessed.times for assessed in each.curve]
        assert loads == sorted(loads)
        assert {1.0, 10.0} <= set(loads)
        verdicts = {assessed.times: assessed.holds(done.workload) for assessed in each.curve}
        assert each.breaks_at is None or not verdicts[each.breaks_at]
        assert all(verdicts[times] for times in loads if each.breaks_at is None or times < each.breaks_at)
        assert each.holds_to == max((t for t in loads if each.breaks_at is None or t < each.breaks_at), default=None)
        for assessed in each.curve:
            assert math.isnan(assessed.wasted_pct) or 0 <= assessed.wasted_pct <= 100
            assert assessed.usd_per_1000 >= 0


def test_the_same_workload_gives_the_same_plan(calm: Plan) -> None:
    assert json.dumps(plan(CALM).as_json()) == json.dumps(calm.as_json())
    assert plan_plot(calm) == plan_plot(calm)


def test_where_agents_change_the_same_rows_a_job_has_to_merge_them() -> None:
    asked = Workload(agents=32, writes_per_hour=1800, appends=0.0, conflicts=1.0, work_s=1.0, freshness_s=30.0)
    done = plan(asked)
    assert {each.candidate.name for each in done.advice if each.today.holds(asked)} == {"wal", "collector"}
    assert advice(done, "group").today.success_pct < 20
    free = plan(workload_of({**done.as_json()["workload"], "conflicts": 0.0}, "the same"))
    assert free.advice[0].candidate.name == "group"


def test_a_shared_engine_bounds_the_patterns_by_statements() -> None:
    asked = Workload(
        agents=32, writes_per_hour=1800, appends=0.0, work_s=1.0, freshness_s=30.0, engine_writes_per_s=3.0
    )
    done = plan(asked)
    assert {each.candidate.name for each in done.advice if each.today.holds(asked)} == {"wal", "collector"}
    assert advice(done, "group").today.engine_pct == pytest.approx(100 * 16 / 3)
    ample = plan(workload_of({**done.as_json()["workload"], "engine_writes_per_s": 17.0}, "the same"))
    assert ample.advice[0].candidate.name == "group"
    assert advice(ample, "group").breaks_at == 2.0


def test_a_slot_is_long_enough_for_the_work_where_rows_conflict() -> None:
    slots = [
        next(each for each in candidates(Workload(appends=0.0, conflicts=share)) if each.name == "slots")
        for share in (0.0, 1.0)
    ]
    assert slots[0].overrides["interval_s"] < 30 < 60 < slots[1].overrides["interval_s"]


def test_isolation_is_proposed_where_there_are_partitions() -> None:
    assert "isolated" not in [each.name for each in candidates(HERD)]
    assert "isolated" in [each.name for each in candidates(CALM)]


def test_a_slot_is_long_enough_for_a_slow_commit() -> None:
    """Two round trips to the catalog, and four to a storage, in less than half a slot."""
    workload = Workload(agents=100, storage="gcp", catalog_latency_ms=2000.0, freshness_s=60.0)
    slots = next(each for each in candidates(workload) if each.name == "slots")
    assert slots.overrides["interval_s"] > 2 * (2 * 2.0 + 4 * 0.2)


def test_a_log_tells_who_writes_and_how_often() -> None:
    attempts = [
        {
            "principal": f"agent-{i % 3}",
            "operation": "append" if i % 4 else "overwrite",
            "at_ms": 1_000_000 + i * 60_000,
        }
        for i in range(121)
    ]
    found = workload_of_log(attempts, work_s=12.0, title="shop.prices")
    assert found.agents == 3
    assert found.writes_per_hour == pytest.approx(120 / 2 / 3)  # as many gaps as there are in two hours
    assert found.appends == pytest.approx(90 / 121, abs=0.001)
    assert found.work_s == 12.0
    with pytest.raises(UsageError, match="too short"):
        workload_of_log(attempts[:1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("agents = [", "is not TOML"),
        ("agent = 3", "a workload has no setting agent"),
        ("agents = 0", "agents and partitions"),
        ("appends = 1.5", "appends: from 0 to 1"),
        ("storage = 'tape'", "storage: one of"),
        ("agents = 'many'", "must be"),
        ("work_s = inf", "work_s must be between -1e+15 and 1e+15"),
        ("freshness_s = nan", "freshness_s must be between -1e+15 and 1e+15"),
        ("freshness_s = 1e-9", "freshness_s: 0.01 or more"),
        ("agents = 2_000_000_000", "agents and partitions: from 1 to 1,000,000"),
        ("agents = true", "must be"),
        ("own_partitions = 3", "must be"),
        ("writes_per_hour = 1e-30", "one write a year at least"),
        ("work_s = 1e12", "writes at work at once at most"),
        ("freshness_s = 1e12", "writes between two runs of a job at most"),
        ("agents = 100000\nwrites_per_hour = 3600", "writes a second at most"),
    ],
)
def test_a_workload_that_is_none_says_why(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        workload_from(text, "here.toml")
    assert caught.value.message.startswith("here.toml")
    assert expected in caught.value.message


def icetower(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("icetower")), "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)


def test_the_command_tells_ranks_numbers_and_a_contract(tmp_path: Path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text('title = "ten agents"\nagents = 10\nwrites_per_hour = 20\nwork_s = 5\n')
    done = icetower(str(path), "--json", "--table", "shop.prices", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["patterns"][0]["holds_now"]
    assert "table: shop.prices" in report["contract"]
    assert report["choice"]["contracts"] != report["contracts"], "an append by the tower, and not by the client"
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert files.keys() == {"plan.svg", "plan.json", "contract.yaml", "choice.yaml"}
    assert [files["choice.yaml"]] == report["choice"]["contracts"]


def test_without_a_workload_and_a_terminal_it_says_what_it_needs() -> None:
    done = icetower()
    assert done.returncode == 2
    assert "name a file with the workload" in done.stderr

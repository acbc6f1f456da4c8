"""Patterns that coordinate writers: what holds for every run of each, and what each is bound by."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icetower.errors import ConfigurationError
from icetower_simulator.latencies import PROVIDERS, constant
from icetower_simulator.pool import outcomes_of, run_one
from icetower_simulator.setup import PATTERNS, Setup
from icetower_simulator.tallies import BEGUN, WHOLE

STEADY = {**PROVIDERS, "steady": constant("steady", 50.0)}
BASE = Setup(
    model="client", inter_arrival_ms=100.0, duration_s=600.0, runtime_s=10.0, runtime_floor_s=1.0, partitions=400
)
COORDINATED = [pattern for pattern in PATTERNS if pattern != "optimistic"]
LATER = ("wal", "collector")

setups = st.builds(
    Setup,
    model=st.just("client"),
    pattern=st.sampled_from(sorted(PATTERNS)),
    inter_arrival_ms=st.sampled_from([5.0, 50.0, 1000.0]),
    writers=st.sampled_from([0, 0, 1, 40]),
    fast_append_ratio=st.sampled_from([0.0, 0.7, 1.0]),
    storage=st.sampled_from(sorted(PROVIDERS)),
    tables=st.sampled_from([1, 3]),
    partitions=st.sampled_from([1, 7]),
    conflict_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    agents=st.sampled_from([1, 5]),
    interval_s=st.sampled_from([1.0, 30.0]),
    deadline_s=st.sampled_from([0.5, 30.0]),
    group_max=st.sampled_from([1, 256]),
    pipeline_max=st.sampled_from([1, 2]),
    prepared=st.booleans(),
    duration_s=st.just(120.0),
    runtime_s=st.just(2.0),
    runtime_floor_s=st.just(0.1),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setups, st.integers(0, 2**40))
def test_nothing_appears_and_nothing_is_lost(setup: Setup, seed: int) -> None:
    run = run_one(setup, seed)
    assert run.arrived == run.fresh[WHOLE].committed + run.failed + run.in_flight
    assert run.committed >= run.fresh[WHOLE].committed  # nothing is visible that was not acknowledged
    assert run.fresh[WHOLE].committed == 0 or run.swaps > 0
    if setup.pattern in ("optimistic", "lock"):  # no commit without a swap of its own
        assert run.committed <= run.swaps <= run.committed + setup.tables
    if setup.writers:
        assert run.arrived - run.committed - run.failed == setup.writers
    assert str(run) == str(run_one(setup, seed))


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    jobs = [(replace(BASE, pattern=pattern), 1) for pattern in COORDINATED]
    assert str(outcomes_of(jobs, 1)) == str(outcomes_of(jobs, 2))


@pytest.mark.parametrize("pattern", COORDINATED)
def test_at_a_light_load_everybody_commits(pattern: str) -> None:
    run = run_one(replace(BASE, pattern=pattern, inter_arrival_ms=2000.0), 1)
    assert run.figures[BEGUN].success_pct > 99
    assert run.commits_per_s == pytest.approx(0.5, rel=0.25)


def test_a_lock_is_bound_by_what_its_holder_does() -> None:
    """Six round trips and the one that takes the lock: 350 ms at 50 ms each."""
    run = run_one(replace(BASE, pattern="lock", storage="steady", catalog="steady"), 1, STEADY)
    assert run.swaps <= 600 / 0.350 + 1
    assert run.swaps > 0.95 * 600 / 0.350
    assert run.figures[BEGUN].success_pct < 40  # the others wait beyond their deadline
    assert run.figures[BEGUN].p99_s < BASE.deadline_s + 0.4


def test_groups_take_what_a_swap_at_a_time_could_not() -> None:
    """Each table lands a group after another; only the tower's processor bounds how many commits are in them."""
    fast = replace(BASE, pattern="group", inter_arrival_ms=8.0)
    run = run_one(fast, 1)
    assert run.figures[BEGUN].success_pct > 99.9
    assert run.commits_per_s == pytest.approx(125, rel=0.05)
    assert run.swaps < run.committed / 4
    slow = run_one(replace(fast, server_cpu_ms=20.0), 1)  # 50 a second are what there is time for
    assert slow.committed <= 600 / 0.020 + 1
    alone = run_one(replace(fast, group_max=1, pipeline_max=1), 1)
    assert alone.figures[BEGUN].success_pct < 60


def test_a_group_refuses_what_is_stale_where_writes_conflict() -> None:
    """Ten writes a second that work for ten seconds: nearly all are stale; appends are not."""
    hot = replace(BASE, pattern="group", conflict_probability=1.0, partitions=1, fast_append_ratio=0.0)
    assert run_one(hot, 1).figures[WHOLE].success_pct < 10
    spread = run_one(replace(hot, partitions=10_000), 1).figures[WHOLE].success_pct
    assert 97 < spread < 100
    assert run_one(replace(hot, fast_append_ratio=1.0), 1).figures[WHOLE].success_pct == 100
    half = run_one(replace(hot, conflict_probability=0.5, inter_arrival_ms=1e5, duration_s=1e6), 1)
    assert half.figures[WHOLE].success_pct > 90


@pytest.mark.parametrize("pattern", ["lock", "slots"])
def test_who_works_in_turn_has_read_the_newest(pattern: str) -> None:
    """Where writes conflict a turn takes the work, too: two seconds of it, and none of them is lost."""
    turn = {"interval_s": 10.0, "agents": 3, "inter_arrival_ms": 30_000.0, "duration_s": 6000.0, "partitions": 1}
    setup = replace(BASE, pattern=pattern, runtime_s=2.0, fast_append_ratio=0.0, **turn)
    runs = [run_one(replace(setup, conflict_probability=share), 1) for share in (0.0, 1.0)]
    assert [run.figures[WHOLE].success_pct for run in runs] == [100, 100]
    waits = [run.figures[WHOLE].mean_s for run in runs]
    assert waits[1] > waits[0] + (1.5 if pattern == "lock" else 0.0)


def test_a_group_takes_the_towers_processor_once() -> None:
    """At 100 ms a group there are ten groups a second at most, which hold more and more."""
    busy = replace(BASE, pattern="group", inter_arrival_ms=10.0, server_cpu_ms=0.0, group_cpu_ms=100.0)
    run, free = run_one(busy, 1), run_one(replace(busy, group_cpu_ms=0.0), 1)
    assert run.swaps <= 600 * 10 + 1 < free.swaps
    assert run.figures[BEGUN].success_pct > 99.9
    assert run.figures[BEGUN].p50_s > free.figures[BEGUN].p50_s


def test_a_group_keeps_the_processor_for_each_of_its_members() -> None:
    """The same work, done for a group at once instead of commit by commit as they come, is waited for by all of it."""
    base = replace(BASE, pattern="group", writers=32, runtime_s=1e-5, runtime_floor_s=0.0, cold=True, prepared=True)
    asked, grouped = (run_one(replace(base, server_cpu_ms=4 - part, member_cpu_ms=part), 1) for part in (0.0, 3.0))
    assert grouped.committed < 0.9 * asked.committed
    slow = run_one(replace(base, server_cpu_ms=0.0, member_cpu_ms=20.0), 1)  # 50 a second are what there is time for
    assert 0.7 * 50 < slow.committed / 600 <= 50


def test_appends_make_few_files() -> None:
    """As many snapshots a second at most as the interval says, and the fewer the more appends a group holds."""
    often = replace(BASE, pattern="appends", inter_arrival_ms=8.0)
    spread, steady, seldom = (
        run_one(setup, 1)
        for setup in (often, replace(often, append_spread_s=0.0), replace(often, append_interval_s=0.2))
    )
    for run in (spread, steady, seldom):
        assert run.figures[BEGUN].success_pct > 99.9
    assert spread.swaps < steady.swaps <= 600 / often.append_interval_s + 1
    assert seldom.swaps <= 600 / 0.2 + 1


@pytest.mark.parametrize("pattern", LATER)
def test_what_a_job_merges_is_visible_later(pattern: str) -> None:
    run = run_one(replace(BASE, pattern=pattern, interval_s=20.0, job_s=3.0), 1)
    acknowledged, visible = run.figures[BEGUN], run.fresh[BEGUN]
    assert acknowledged.p99_s < 1
    assert 3 + 10 - 3 < visible.p50_s < 3 + 10 + 3
    assert visible.p99_s < 3 + 20 + 5


def test_with_slots_the_clock_decides() -> None:
    """Ten agents with slots of six seconds: half of nine tenths of a minute on average, and never more."""
    run = run_one(replace(BASE, pattern="slots", agents=10, interval_s=6.0), 1)
    assert run.figures[BEGUN].success_pct == 100
    assert run.figures[BEGUN].p99_s < 60
    assert run.figures[BEGUN].mean_s == pytest.approx(27, rel=0.1)
    assert run.swaps < 1000  # of what waits at its begin a slot makes one commit, then one after the other


def test_an_agent_in_its_slot_makes_one_commit_at_a_time() -> None:
    """Steps of 50 ms make a commit of 300 ms: who has all slots cannot make more of them, whatever arrives."""
    setup = replace(BASE, pattern="slots", agents=1, storage="steady", catalog="steady", inter_arrival_ms=10.0)
    run = run_one(setup, 1, STEADY)
    assert run.swaps == pytest.approx(600 / 0.3, rel=0.05)
    assert run.catalog_commits == run.swaps
    assert run.reads == run.writes == 2 * run.swaps
    # Who comes while one is on its way waits for it, and then for its own.
    assert run.figures[BEGUN].p50_s == pytest.approx(0.45, rel=0.02)
    assert run.figures[BEGUN].p99_s == pytest.approx(0.6, rel=0.02)


def test_intents_cost_where_partitions_are_few() -> None:
    """A partition is held for as long as the work lasts: ten seconds on average, and the commit."""
    rewriting = replace(BASE, pattern="intents", fast_append_ratio=0.0)
    few, many = (run_one(replace(rewriting, partitions=n), 1) for n in (5, 4000))
    assert many.figures[BEGUN].success_pct > 99
    assert few.figures[BEGUN].success_pct < 20
    assert few.committed < 5 * 600 / 4


def test_appends_need_no_intent() -> None:
    """They pass while overwrites hold their partitions, and cost what they cost in groups."""
    appending = replace(BASE, fast_append_ratio=1.0, partitions=5)
    intents, group = (run_one(replace(appending, pattern=pattern), 1) for pattern in ("intents", "group"))
    assert intents.figures[BEGUN].success_pct == group.figures[BEGUN].success_pct == 100
    assert intents.figures[BEGUN].p99_s == pytest.approx(group.figures[BEGUN].p99_s, rel=0.05)
    assert intents.catalog_commits == group.catalog_commits


def test_writers_that_begin_again_wait_for_their_answers() -> None:
    base = replace(BASE, runtime_s=0.001, runtime_sigma=0.0, runtime_floor_s=0.0, duration_s=120.0)
    for pattern in ("group", "lock", "appends"):
        few, many = (run_one(replace(base, pattern=pattern, writers=count), 1).figures[BEGUN] for count in (4, 64))
        assert many.p50_s > few.p50_s
        assert many.success_pct == 100
    group = run_one(replace(base, pattern="group", writers=64), 1)
    # Little's law: as many as there are writers are under way, each for as long as it takes.
    assert group.commits_per_s * group.figures[BEGUN].mean_s == pytest.approx(64, rel=0.03)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"pattern": "hope"}, "pattern"),
        ({"writers": -1}, "writers"),
        ({"agents": 0}, "agents"),
        ({"pipeline_max": 3}, "pipeline_max"),
        ({"interval_s": 0.0}, "interval_s"),
    ],
)
def test_a_setup_that_is_none_says_why(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        Setup(**wrong)  # type: ignore[arg-type]


def test_a_run_without_an_end_of_anything_has_no_figures() -> None:
    run = run_one(replace(BASE, pattern="group", runtime_s=5000.0, runtime_floor_s=1000.0), 1)
    assert run.committed == 0
    assert math.isnan(run.figures[BEGUN].p50_s)
    assert run.commits_per_s == 0

"""Optimistic concurrency as simulated: what holds for every run, the bounds of the protocol, the published tables."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icetower.errors import ConfigurationError
from icetower_simulator.experiments import compare, load, mean_row, names, run_row
from icetower_simulator.latencies import PROVIDERS, Latency, Provider, constant
from icetower_simulator.optimistic import simulate
from icetower_simulator.pool import outcomes_of, run_one
from icetower_simulator.setup import MODELS, Setup, setup_from
from icetower_simulator.tallies import BEGUN, WHOLE, Outcome, percentile_ms

STEADY = {**PROVIDERS, "steady": constant("steady", 50.0)}

setups = st.builds(
    Setup,
    model=st.sampled_from(sorted(MODELS)),
    inter_arrival_ms=st.sampled_from([20.0, 100.0, 1000.0]),
    fast_append_ratio=st.sampled_from([0.0, 0.5, 0.7]),
    merge_append_ratio=st.sampled_from([0.0, 0.3]),
    storage=st.sampled_from(sorted(PROVIDERS)),
    catalog=st.sampled_from(sorted(PROVIDERS)),
    tables=st.sampled_from([1, 3]),
    table_skew=st.sampled_from([0.0, 1.2]),
    partitions=st.sampled_from([2, 7]),
    partition_skew=st.sampled_from([0.0, 1.0]),
    partitions_per_commit=st.sampled_from([1, 2]),
    conflict_probability=st.sampled_from([0.0, 0.2, 1.0]),
    metadata_inlined=st.booleans(),
    swap_scope=st.sampled_from([None, "catalog", "table"]),
    retries=st.sampled_from([None, 0, 3]),
    duration_s=st.just(120.0),
    runtime_s=st.just(10.0),
    runtime_floor_s=st.just(1.0),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setups, st.integers(0, 2**40))
def test_nothing_appears_and_nothing_is_lost(setup: Setup, seed: int) -> None:
    run = simulate(setup, seed)
    assert run.arrived == run.committed + run.failed + run.in_flight
    assert run.committed == run.swaps  # no commit without a swap of its own, and no swap without a commit
    assert run.catalog_commits >= run.committed
    assert run.reads + run.writes >= run.committed
    for window in (BEGUN, WHOLE):
        kinds = run.by_kind[window]
        assert sum(kind.committed for kind in kinds) == run.figures[window].committed
        assert sum(kind.failed for kind in kinds) == run.figures[window].failed
    limit = setup.effective_model.retries
    assert run.figures[WHOLE].committed == 0 or not run.figures[WHOLE].mean_retries > limit


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setups, st.integers(0, 2**40))
def test_one_seed_gives_one_result(setup: Setup, seed: int) -> None:
    assert str(simulate(setup, seed)) == str(simulate(setup, seed))
    assert str(simulate(setup, seed)) != str(simulate(setup, seed + 1))


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    jobs = [(Setup(inter_arrival_ms=gap, duration_s=300.0), seed) for gap in (100.0, 1000.0) for seed in (1, 2)]
    assert str(outcomes_of(jobs, 1)) == str(outcomes_of(jobs, 3))


@pytest.mark.parametrize("model", ["corrected", "client"])
@pytest.mark.parametrize("gap_ms", [10.0, 30.0, 100.0, 300.0])
@pytest.mark.parametrize(
    ("changed", "trips"), [({}, 5), ({"lists_appended": True}, 4), ({"metadata_inlined": True}, 3)], ids=str
)
def test_one_table_cannot_beat_its_round_trips(model: str, gap_ms: float, changed: dict[str, bool], trips: int) -> None:
    """At a constant latency L: 1/(5L), 1/(4L) with appendable manifest lists, 1/(3L) with inlined metadata."""
    setup = Setup(
        model=model, inter_arrival_ms=gap_ms, storage="steady", catalog="steady", runtime_sigma=0.5, duration_s=900.0,
        **changed,
    )  # fmt: skip
    run = simulate(setup, 1, STEADY)
    assert run.swaps <= 900 / (trips * 0.050) + 1
    if model == "client" and gap_ms == 10.0:  # and it comes near
        assert run.swaps > 0.8 * 900 / (trips * 0.050)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_more_load_means_less_success_and_more_work(model: str) -> None:
    runs = [simulate(Setup(model=model, inter_arrival_ms=gap), 1) for gap in (2000, 500, 200, 100, 50)]
    successes = [run.figures[BEGUN].success_pct for run in runs]
    assert successes == sorted(successes, reverse=True)
    assert successes[0] > 99.5
    assert successes[-1] < 60
    for rising in ("p50_s", "mean_retries"):
        values = [getattr(run.figures[BEGUN], rising) for run in runs]
        assert values == sorted(values)
    assert [run.commits_per_s for run in runs] == sorted(run.commits_per_s for run in runs)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_slower_catalog_and_more_history_cost(model: str) -> None:
    base = Setup(model=model, inter_arrival_ms=150.0)
    fast, slow, mixed = (
        simulate(setup, 3)
        for setup in (base, replace(base, catalog_latency_ms=120.0), replace(base, fast_append_ratio=0.9))
    )
    assert slow.figures[BEGUN].success_pct < fast.figures[BEGUN].success_pct
    appends, overwrites = mixed.by_kind[WHOLE][0], mixed.by_kind[WHOLE][2]
    assert overwrites.success_pct < appends.success_pct
    assert overwrites.mean_s > appends.mean_s


def test_tables_and_partitions_keep_writers_apart() -> None:
    base = Setup(model="client", inter_arrival_ms=50.0, fast_append_ratio=0.8)
    one = simulate(base, 1).figures[BEGUN]
    many = simulate(replace(base, tables=50), 1).figures[BEGUN]
    skewed = simulate(replace(base, tables=50, table_skew=2.0), 1).figures[BEGUN]
    assert one.success_pct < skewed.success_pct < many.success_pct
    assert many.success_pct > 99
    together = simulate(replace(base, tables=50, swap_scope="catalog"), 1).figures[BEGUN]
    assert together.success_pct < many.success_pct
    # Overwrites in partitions of their own have no history to read.
    apart = replace(base, inter_arrival_ms=400.0, partitions=1000)
    alone, shared = (simulate(each, 1).by_kind[WHOLE][2] for each in (apart, replace(apart, partitions=1)))
    assert alone.mean_s < shared.mean_s


def test_conflicts_abort_overwrites_alone() -> None:
    setup = Setup(model="client", inter_arrival_ms=1000.0, fast_append_ratio=0.5, conflict_probability=1.0)
    appends, _, overwrites = simulate(setup, 1).by_kind[WHOLE]
    assert appends.success_pct > 99
    assert overwrites.success_pct < 5


def test_a_log_for_a_catalog_loses_only_to_its_own_table() -> None:
    base = Setup(model="corrected", inter_arrival_ms=200.0, storage="azure", catalog="azure", tables=100)
    swapped, appended = (simulate(replace(base, catalog_append=log), 1).figures[BEGUN] for log in (False, True))
    assert swapped.success_pct < 90 < appended.success_pct


def test_a_client_waits_longer_each_time_and_gives_up_in_the_end() -> None:
    base = Setup(model="client", inter_arrival_ms=100.0)
    eager, patient = (simulate(replace(base, backoff_ms=pause), 1).figures[BEGUN] for pause in (0.0, 400.0))
    assert patient.p99_s > eager.p99_s
    assert simulate(replace(base, retries=0), 1).figures[BEGUN].mean_retries == 0
    limited = simulate(replace(base, retries=20, commit_timeout_s=1.0), 1)
    assert limited.figures[BEGUN].success_pct < simulate(replace(base, retries=20), 1).figures[BEGUN].success_pct


def test_writers_that_share_a_processor_wait_for_it() -> None:
    """At 20 ms an attempt no more than 50 attempts a second are made, however many writers there are."""
    base = Setup(model="client", writers=64, cold=True, runtime_s=0.001, runtime_sigma=0.0, runtime_floor_s=0.0)
    short = replace(base, duration_s=120.0)
    free, shared = (simulate(replace(short, client_cpu_ms=cpu), 1) for cpu in (0.0, 20.0))
    assert shared.catalog_commits <= 120 * 50 + 1 < free.catalog_commits
    assert shared.swaps < free.swaps


def test_whoever_is_cold_reads_the_metadata_first() -> None:
    """One writer, 50 ms a trip: look, metadata, list, list, metadata, swap; the look at the start is none of it."""
    base = Setup(
        model="client", writers=1, storage="steady", catalog="steady", runtime_s=1e-6, runtime_sigma=0.0,
        runtime_floor_s=0.0, duration_s=60.0,
    )  # fmt: skip
    warm, cold = (simulate(replace(base, cold=cold), 1, STEADY).figures[BEGUN] for cold in (False, True))
    assert cold.p50_s == pytest.approx(0.300, rel=0.01)
    assert warm.p50_s == pytest.approx(0.250, rel=0.01)


def test_the_end_of_a_run_changes_nothing_before_it() -> None:
    """So what ends between two times is the difference of two runs."""
    base = Setup(model="client", writers=16, cold=True, client_cpu_ms=3.0, runtime_s=0.01, runtime_floor_s=0.0)
    for pattern in ("optimistic", "group"):
        short, long = (run_one(replace(base, pattern=pattern, duration_s=time), 7) for time in (10.0, 20.0))
        again = run_one(replace(base, pattern=pattern, duration_s=10.0), 7)
        assert str(short) == str(again)
        assert 0 < short.committed < long.committed
        assert short.failed <= long.failed


@pytest.mark.parametrize("pattern", ["optimistic", "group"])
def test_memory_does_not_grow_with_the_simulated_time(pattern: str) -> None:
    """In a process of its own: a hundred times the time needs no more than a run has taken already."""
    program = f"""
import re
from pathlib import Path
from icetower_simulator.pool import run_one
from icetower_simulator.setup import Setup

def run(hours):
    setup = Setup(model="client", pattern={pattern!r}, runtime_s=10.0, runtime_floor_s=0.0, duration_s=3600.0 * hours)
    # Not ru_maxrss, which a process takes over from the one that started it.
    return run_one(setup, 1).arrived, re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]

run(1)
print(*run(1), *run(100))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    arrived, used_kib, arrived_later, used_later_kib = map(int, done.stdout.split())
    assert arrived_later > 80 * arrived
    assert used_later_kib - used_kib < 1024


@pytest.mark.parametrize(
    ("given_setup", "expected"),
    [
        ({"model": "endless"}, "model"),
        ({"inter_arrival_ms": 0}, "inter_arrival_ms"),
        ({"fast_append_ratio": 0.8, "merge_append_ratio": 0.3}, "merge_append_ratio"),
        ({"conflict_probability": 2}, "conflict_probability"),
        ({"partitions_per_commit": 2}, "partitions_per_commit"),
        ({"tables": 0}, "tables"),
        ({"window_s": [100, 50]}, "window_s"),
        ({"speed": 3}, "a setup has no setting speed"),
        ({"inter_arrival_ms": "fast"}, "must be"),
        ({"reads_at_once": 0}, "reads_at_once"),
        ({"arrivals": "never"}, "arrivals"),
        ({"duration_s": math.nan}, "duration_s must be between -1e+15 and 1e+15"),
        ({"duration_s": math.inf}, "duration_s must be between -1e+15 and 1e+15"),
        ({"inter_arrival_ms": True}, "must be"),
        ({"inter_arrival_ms": 1e-12}, "100,000,000 transactions in a run at most"),
        ({"duration_s": 1e15, "writers": 8}, "100,000,000 transactions in a run at most"),
        ({"inter_arrival_ms": 0.1, "runtime_s": 1e9}, "10,000,000 transactions at work at once"),
        ({"tables": 1.5}, "a whole number, not 1.5"),
        ({"metadata_inlined": "yes"}, "true or false, not 'yes'"),
        ({"retries": 10**30}, "retries must be between -1e+15 and 1e+15"),
        ({"storage": ["s3"]}, "text, not ['s3']"),
        ({"window_s": 5}, "a list of two numbers"),
        ({"window_s": [1, 2, 3]}, "a list of two numbers"),
        ({"arrival_sigma": 1e9}, "10 at most"),
        ({"list_bytes": -1}, "list_bytes"),
        ({"client_cpu_ms": -1.0}, "client_cpu_ms"),
    ],
)
def test_a_setup_that_is_none_says_why(given_setup: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        setup_from(given_setup, "here.toml")
    assert caught.value.message.startswith("here.toml: ")
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        (Setup(storage="tape"), "tape"),
        (Setup(storage="s3", lists_appended=True), "lists_appended"),
        (Setup(catalog="gcp", catalog_append=True), "catalog_append"),
    ],
)
def test_a_provider_that_cannot_do_it_is_named(setup: Setup, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        simulate(setup, 1)


def test_a_latency_is_above_nothing() -> None:
    for wrong in ((0.0, 0.1), (1.0, -0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, math.inf), (1.0, math.nan)):
        with pytest.raises(ConfigurationError):
            Latency(*wrong)


def test_measured_providers_are_providers_like_any_other() -> None:
    read = Latency(3.0, 0.2)
    mine = Provider("mine", read, 5.0, 1.0, 0.2, Latency(2.0, 0.1), None, 0.5, read)
    run = simulate(Setup(model="client", storage="mine", catalog="mine", inter_arrival_ms=100.0), 1, {"mine": mine})
    assert run.figures[BEGUN].p50_s < 0.05


def test_percentiles_are_those_of_the_latencies() -> None:
    import numpy as np

    from icetower_simulator.tallies import count_end, new_tally

    tally, bins = new_tally()
    holder = np.zeros(1, tally.dtype)
    holder[0] = tally
    values = np.random.default_rng(1).lognormal(6, 1, 3001)
    for value in values.tolist():
        count_end(holder[0], bins, 0, True, True, False, 1, value, 5.0)
    for part in (0.0, 0.01, 0.5, 0.95, 0.99, 1.0):
        assert percentile_ms(bins[BEGUN, 0], part) == pytest.approx(float(np.quantile(values, part)), rel=0.001)
    assert math.isnan(percentile_ms(bins[WHOLE, 0], 0.5))


@pytest.mark.parametrize("model", ["published", "corrected"])
def test_the_published_tables(model: str) -> None:
    """Every printed figure of experiment 1a, by its rounding or within 3 %, with the seeds of the experiment."""
    experiment = load("1a")
    printed = {row[0] for table in experiment.printed if table.model == model for row in table.rows}
    points = [(swept, setup) for swept, setup in experiment.points(model) if swept["inter_arrival_ms"] in printed]
    seeds = range(experiment.first_seed, experiment.first_seed + experiment.seeds)
    outcomes = outcomes_of([(setup, seed) for _, setup in points for seed in seeds], 1)
    rows = _rows(points, outcomes, experiment.seeds)
    found = list(compare(experiment, model, rows))
    assert len(found) == (60 if model == "published" else 30)
    assert [each for each in found if not each.agrees] == []


def _rows(points: list[tuple[dict[str, Any], Setup]], outcomes: list[Outcome], seeds: int) -> list[dict[str, Any]]:
    each = [run_row(outcome, "begun") for outcome in outcomes]
    return [swept | mean_row(each[i * seeds : (i + 1) * seeds]) for i, (swept, _) in enumerate(points)]


@pytest.mark.parametrize("name", names())
def test_every_experiment_of_the_package_can_be_run(name: str) -> None:
    experiment = load(name)
    assert experiment.title
    for _, setup in experiment.points():
        simulate(replace(setup, duration_s=2.0, window_s=None), 1)

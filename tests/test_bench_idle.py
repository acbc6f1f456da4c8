"""`make bench-idle` in short: what it runs has nothing to do, and is measured."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.idle.run import RUNS, WANTED_S, Idle, measured, show
from icetower.demo.retail import jobs


@pytest.mark.parametrize(
    ("runs_s", "idle", "good"),
    [
        ((WANTED_S, 0.1), True, True),
        ((0.1, WANTED_S + 0.01), True, False),
        ((0.1, 0.1), False, False),
    ],
)
def test_each_run_must_be_short_and_find_nothing(runs_s: tuple[float, ...], idle: bool, good: bool) -> None:
    found = Idle("mediator", 5.0, runs_s, idle)
    assert found.good is good
    with (console := Console(width=120)).capture() as shown:
        show([found], console)
    assert ("NO" in shown.get()) is not good


@pytest.mark.spark
@pytest.mark.sharp
def test_a_job_with_nothing_new_is_idle_each_time() -> None:
    (found,) = measured(1, [jobs.MAINTENANCE], lambda _: None)
    assert (found.job, found.idle, len(found.runs_s)) == (jobs.MAINTENANCE, True, RUNS)

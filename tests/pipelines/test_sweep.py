"""Sweeps of the simulator on Spark: the figures are those of a local run, and what was done is not done again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines import sweep as sweeps
from icetower.pipelines.sweep import sweep, sweep_id
from icetower_simulator import runner
from icetower_simulator.experiments import parse
from tests.pipelines.evolution import alter, rule_of

pytestmark = pytest.mark.spark
TEXT = """
model = "client"
seeds = 2
[setup]
duration_s = 60
runtime_s = 2
runtime_floor_s = 0
[sweep]
fast_append_ratio = [1.0, 0.5]
inter_arrival_ms = [50, 200]
"""


def test_a_sweep_has_the_figures_of_a_local_run_and_goes_on_where_it_was_stopped(
    spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    experiment, table = parse(TEXT, "small", "small"), f"{fresh()}.results"
    reports: list[tuple[int, int]] = []
    puts = sweeps._put
    left = [1]

    def killed(*arguments: object) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        puts(*arguments)  # type: ignore[arg-type]

    size = max(spark.sparkContext.defaultParallelism, 1)
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_put", killed)
        with pytest.raises(KeyboardInterrupt):
            sweep(spark, experiment, table, portion=1, on_progress=lambda total, done: reports.append((total, done)))
    assert reports == [(8, 0), (8, size)]
    assert spark.table(table).count() == size

    name = sweep(spark, experiment, table, on_progress=lambda total, done: reports.append((total, done)))
    assert reports[2:] == [(8, size), (8, 8)]
    rows = spark.table(table).collect()
    assert len(rows) == 8
    assert {row["sweep"] for row in rows} == {name} == {sweep_id(experiment, "client")}
    local = {
        (run["fast_append_ratio"], run["inter_arrival_ms"], run["seed"]): run
        for run in runner.run(experiment, workers=1).each_run
    }
    for row in rows:
        swept = json.loads(row["configuration"])
        expected = local[swept["fast_append_ratio"], swept["inter_arrival_ms"], row["seed"]]
        for figure in ("commits_per_s", "success_pct", "p50_s", "p99_s", "mean_retries"):
            assert row[figure] == expected[figure], figure
        assert row["figures"]["arrived"] == expected["arrived"]

    sweep(spark, experiment, table)
    assert spark.table(table).count() == 8
    more = sweep(spark, experiment, table, seeds=3)
    assert more == name
    assert spark.table(table).count() == 12
    assert sweep(spark, experiment, table, model="corrected", seeds=1) != name
    assert spark.table(table).count() == 16


def test_sweeps_side_by_side_neither_lose_nor_double_a_run(
    spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    experiment, table = parse(TEXT, "small", "small"), f"{fresh()}.results"

    # The other one begins, and ends, after this one has looked.
    def other(_: int, done: int) -> None:
        if done == 0:
            sweep(spark, experiment, table, seeds=1)

    sweep(spark, experiment, table, on_progress=other)
    assert sorted(row["seed"] for row in spark.table(table).collect()) == [1] * 4 + [2] * 4

    # It puts its rows into the table while this one's are under way.
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_left", lambda _spark, _table, _name, jobs: jobs)  # type: ignore[misc]
        sweep(spark, experiment, table)
    spark.catalog.refreshTable(table)
    assert spark.table(table).count() == 8

    # It makes the table while this one is about to.
    there = iter([False])
    real = type(spark.catalog).tableExists
    with monkeypatch.context() as patch:
        patch.setattr(type(spark.catalog), "tableExists", lambda *given: next(there, None) is None and real(*given))
        sweep(spark, experiment, table)
    spark.catalog.refreshTable(table)
    assert spark.table(table).count() == 8
    with pytest.raises(StopIteration):
        next(there)


CHANGES = {
    "RENAME COLUMN seed TO s": "RENAME COLUMN s TO seed",
    "RENAME COLUMN p99_s TO slow_s": "RENAME COLUMN slow_s TO p99_s",
    "ADD COLUMN more STRING": None,
    "ADD PARTITION FIELD seed": None,
}


@pytest.mark.parametrize(
    "statement", [name if not at else pytest.param(name, marks=pytest.mark.sharp) for at, name in enumerate(CHANGES)]
)
def test_a_table_that_changes_under_a_sweep_has_each_run_once(
    spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    experiment, table, undone = parse(TEXT, "small", "small"), f"{fresh()}.results", CHANGES[statement]
    sweep(spark, experiment, table, seeds=1)

    def change(_: int, done: int) -> None:
        if done == 4:
            alter(spark, (f"{{t}} {statement}",), {"t": table})

    wanted = None if undone is None else "system.columns"
    assert rule_of(lambda: sweep(spark, experiment, table, on_progress=change)) == wanted
    if undone is not None:
        assert rule_of(lambda: sweep(spark, experiment, table)) == wanted
        alter(spark, (f"{{t}} {undone}",), {"t": table})
    sweep(spark, experiment, table)
    assert sorted(row["seed"] for row in spark.table(table).collect()) == [1] * 4 + [2] * 4

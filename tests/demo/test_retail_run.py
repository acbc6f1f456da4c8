"""docs/pipeline.md: its agents and jobs on hours of real data, two of each at once, exact to the cent."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from icetower.agent import Tower
from icetower.demo import data
from icetower.demo.retail import agents, jobs
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.reconcile import reconcile
from icetower.demo.retail.run import create_tables, register
from icetower.demo.retail.world import Plan, World
from icetower.demo.serving import tower_process
from icetower.pipelines.system_tables import METRICS
from icetower.spark import tower_session
from tests.pages.page_blocks import blocks_of

HOURS = 2


@pytest.mark.spark
def test_the_page_asks_for_columns_that_there_are() -> None:
    (query,) = (block.text for block in blocks_of("docs/pipeline.md") if block.kind == "in")
    there = {column.split()[0] for column in METRICS.split(", ")}
    assert set(query.split("SELECT ")[1].split("\n")[0].split(", ")) <= there


@pytest.mark.sharp
@pytest.mark.spark
def test_two_of_each_at_once_are_safe(tmp_path: Path) -> None:
    """As after a scheduler took slow processes for dead ones: all agents and all jobs run twice."""
    hours = by_hour(data.load_source(1))[:HOURS]
    source = Hours(tmp_path / "hours")
    for number, rows in enumerate(hours, 1):
        source.publish(number, rows)
    source.finish(HOURS)
    with tower_process(tmp_path / "tower", {}) as serving, Tower(serving.uri, serving.token) as tower:
        spark = tower_session("twice", tower, settings={"spark.sql.shuffle.partitions": "2"})
        try:
            create_tables(spark)
            secrets = {**register(tower), jobs.EXPORT: serving.token}
            plan = Plan(days=1, hours=None, hours_per_s=None, kills=0, seed=1)
            worlds = [World(tmp_path / name, serving, secrets, plan, source) for name in ("one", "two")]
            for world in worlds:
                world.folder.mkdir()
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda world: world.run(HOURS, lambda done: None), worlds))
            verdicts = reconcile(spark, str(source.folder))
        finally:
            spark.stop()
        outcomes = Counter((each["principal"], each["outcome"]) for each in tower.commits(limit=1000))
    assert [(verdict.table, verdict.exact) for verdict in verdicts] == [(verdict.table, True) for verdict in verdicts]
    assert [world.failures for world in worlds] == [0, 0]
    assert {outcomes[name, "direct"] + outcomes[name, "rebased"] for name in agents.NAMES} == {HOURS}
    assert sum(count for (_, outcome), count in outcomes.items() if outcome == "replayed"), "they never met"

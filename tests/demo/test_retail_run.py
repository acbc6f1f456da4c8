"""docs/pipeline.md, run: the agents and the jobs on a day of real data, killed at every stage, exact to the cent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icetower.agent import Tower
from icetower.demo import data
from icetower.demo.retail import agents, inventory, jobs
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.notes import STAGES
from icetower.demo.retail.reconcile import reconcile
from icetower.demo.retail.run import create_tables, register
from icetower.demo.retail.world import Plan, World
from icetower.demo.serving import tower_process
from icetower.spark import tower_session
from tests.pages.page_blocks import blocks_of

HOURS = 3
PROMOTIONS = (1159, "1087.46", 0, 0)


EVERY_STAGE = {(name, stage) for name in agents.NAMES for stage in STAGES} | {
    (name, stage) for name, stages in jobs.STAGES.items() for stage in stages
}


@pytest.mark.sharp
@pytest.mark.spark
def test_a_day_is_exact_wherever_agents_and_jobs_are_killed(tmp_path: Path) -> None:
    """The page's command, with a kill at every stage of every agent and job."""
    run, query = (block.text for block in blocks_of("docs/pipeline.md") if block.kind == "in")
    words = [
        *run.split()[1:],
        "--kills",
        str(2 * max(len(agents.NAMES) * len(STAGES), sum(map(len, jobs.STAGES.values())))),
    ]
    command = [sys.executable, "-c", "from icetower.cli import main; main()", *words, "--json"]
    done = subprocess.run([*command, "--keep", str(tmp_path / "kept")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["exact"]
    assert [(table["rows"], table["money"], table["missing"], table["unexpected"]) for table in report["tables"]] == [
        (3062, "8759.90", 0, 0),
        (3098, "8759.90", 0, 0),
        (3098, "8759.90", 0, 0),
        PROMOTIONS,
    ]
    assert {(death["name"], death["stage"]) for death in report["killed"]} == EVERY_STAGE
    assert report["checkpoint_lost"]
    assert report["failures"] == 0
    assert [agent["landed"] for agent in report["agents"]] == [report["hours"]] * len(agents.NAMES)
    assert report["reads"]["views"] > report["reads"]["wrong"] == 0
    # What the page queries is there.
    (catalog_file,) = (tmp_path / "kept").rglob("catalog.db")
    warehouse = SqlCatalog("icetower", uri=f"sqlite:///{catalog_file}", warehouse=str(tmp_path))
    metrics = warehouse.load_table("system.agent_write_metrics").scan().to_arrow()
    assert set(query.split("SELECT ")[1].split("\n")[0].split(", ")) <= set(metrics.column_names)
    assert {*agents.NAMES, jobs.MEDIATOR, jobs.COLLECTOR} <= set(metrics["principal"].to_pylist())
    assert inventory.TABLE in metrics["table_name"].to_pylist()


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
            plan = Plan(days=1, hours_per_s=None, kills=0, seed=1)
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

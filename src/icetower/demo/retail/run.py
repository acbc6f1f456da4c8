"""The whole: a tower, its tables and contracts, the agents, the jobs beside them, and the reconciliation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.demo import data
from icetower.demo.retail import agents, jobs
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.notes import notes_in, read_lines
from icetower.demo.retail.reconcile import reconcile
from icetower.demo.retail.report import AgentFigures, Batches, Findings, Reads
from icetower.demo.retail.shipped import statements, text_of
from icetower.demo.retail.world import Plan, World
from icetower.demo.serving import tower_process
from icetower.pipelines.export import Source, export
from icetower.spark import tower_session

Progress = Callable[[Mapping[str, int], int], None]
"""Is called with the hours that are done, by agent and as `published`, and with how many there are."""


def run_pipeline(folder: Path, plan: Plan, progress: Progress, step: Callable[[str], None]) -> Findings:
    """Run everything below `folder` (empty). Raises `IcetowerError` where a step cannot be done at all.

    Args:
        step: is called with the name of each step.
    """
    clock = SystemAmbient()
    began_s = clock.monotonic_s()
    step("reading the source")
    hours = by_hour(data.load_source(plan.days))[: plan.hours]
    source = Hours(folder / "hours")
    with ExitStack() as stack:
        step("starting the tower and Spark")
        serving = stack.enter_context(tower_process(folder, {}))
        tower = stack.enter_context(Tower(serving.uri, serving.token))
        spark = tower_session("retail", tower, settings={"spark.sql.shuffle.partitions": "4"})
        stack.callback(spark.stop)
        create_tables(spark)
        secrets = register(tower)
        step("the agents write; the mediator merges, the collector folds, maintenance compacts, the export logs")
        world = World(folder, serving, {**secrets, jobs.EXPORT: serving.token}, plan, source)
        with _publishing(source, hours, plan.hours_per_s) as published:
            world.run(len(hours), lambda done: progress({"published": published(), **done}, len(hours)))
        step("reconciling every row")
        verdicts = reconcile(spark, str(source.folder))
        step("exporting the system tables")
        figures = _figures(spark, tower, folder)
    return Findings(
        days=plan.days,
        hours=len(hours),
        seconds=round(clock.monotonic_s() - began_s, 1),
        verdicts=verdicts,
        agents=figures,
        batches=tuple(_batches(folder, name) for name in (jobs.MEDIATOR, jobs.COLLECTOR)),
        maintained=_maintained(folder),
        reads=_reads(folder),
        killed=tuple(world.killed),
        checkpoint_lost=world.checkpoint_lost,
        failures=world.failures,
    )


PACE = "'maintenance.quiet-ms' = '2000'"
"""A day is replayed in a minute, so that maintenance leaves a partition alone for seconds and not for ten minutes."""


def create_tables(spark: Any) -> None:
    """Create what is missing of the tables."""
    for statement in statements():
        spark.sql(statement)
    for table in jobs.MAINTAINED:
        spark.sql(f"ALTER TABLE tower.{table} SET TBLPROPERTIES ({PACE})")


def register(tower: Tower) -> dict[str, str]:
    """Put the contracts in force, and create a principal for each; returns their secrets by name."""
    names = (*agents.NAMES, *jobs.PRINCIPALS)
    tower.apply_contracts([text_of(f"contracts/{name}.yaml") for name in names])
    return {name: tower.create_principal(name, name) for name in names}


@contextmanager
def _publishing(source: Hours, hours: Sequence[pa.Table], hours_per_s: float | None) -> Generator[Callable[[], int]]:
    """Publish the hours at their speed, in a thread. Yields how many there are by now."""
    stop, published = threading.Event(), list[int]()

    def publish() -> None:
        for number, rows in enumerate(hours, 1):
            if stop.wait(0.0 if hours_per_s is None else 1.0 / hours_per_s):
                return
            source.publish(number, rows)
            published.append(number)
        source.finish(len(hours))

    source.folder.mkdir(parents=True)
    thread = threading.Thread(target=publish, name="publisher")
    thread.start()
    try:
        yield lambda: len(published)
    finally:
        stop.set()
        thread.join()


def _figures(spark: Any, tower: Tower, folder: Path) -> tuple[AgentFigures, ...]:
    """What each agent did, by its notes and by the system tables, which are exported for it."""
    export(spark, "tower.system", Source.of(tower))
    counted = {
        row["principal"]: row
        for row in spark.sql(
            "SELECT principal, sum(attempts) attempts, sum(landed) landed, sum(retries) retries, sum(refused) refused "
            "FROM tower.system.agent_write_metrics GROUP BY principal"
        ).collect()
    }
    found: list[AgentFigures] = []
    for name in agents.NAMES:
        notes = read_lines(notes_in(folder, name))
        seconds = sorted(note["seconds"] for note in notes)
        row = counted[name]
        p50_s, p99_s = (_nearest(seconds, percent) for percent in (50, 99))
        found.append(AgentFigures(name, p50_s, p99_s, row["attempts"], row["landed"], row["retries"], row["refused"]))
    return tuple(found)


def _batches(folder: Path, name: str) -> Batches:
    events = read_lines(notes_in(folder, name))
    batches = [event for event in events if event["status"] == "applied"]
    medians = sorted(each["lag_median_ms"] / 1000 for each in batches if each["lag_median_ms"] is not None)
    longest = max((each["lag_max_ms"] / 1000 for each in batches if each["lag_max_ms"] is not None), default=None)
    superseded = sum(batch["superseded"] for batch in batches)
    return Batches(name, len(batches), superseded, _nearest(medians, 50) if medians else None, longest)


def _maintained(folder: Path) -> dict[str, int]:
    """How often each task of the maintenance was done; `failed`: how often one failed, and was done later."""
    events = read_lines(notes_in(folder, jobs.MAINTENANCE))
    return dict(Counter("failed" if event.get("status") == "failed" else event["task"] for event in events))


def _reads(folder: Path) -> Reads:
    found = read_lines(notes_in(folder, jobs.READER))
    return Reads(len(found), sum(each["ahead"] > 0 for each in found), sum(each["wrong"] > 0 for each in found))


def _nearest(values: Sequence[float], percent: int) -> float:
    """The percentile by nearest rank, of sorted values."""
    return values[max(0, -(-len(values) * percent // 100) - 1)] if values else 0.0

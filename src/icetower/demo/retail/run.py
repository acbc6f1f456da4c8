"""The whole: a tower, its tables and contracts, the three agents, the mediator beside them, and the reconciliation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.demo import data
from icetower.demo.retail import agents, inventory, recommendation
from icetower.demo.retail.agents import AgentsJob, checkpoint_of
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.notes import STAGES, Death, deaths_in, notes_in, read_lines
from icetower.demo.retail.reconcile import reconcile
from icetower.demo.retail.report import AgentFigures, Findings, Mediation
from icetower.demo.retail.shipped import contract_of, statements, text_of
from icetower.demo.serving import Serving, tower_process
from icetower.errors import IcetowerError
from icetower.pipelines.export import Source, export
from icetower.pipelines.wal_mediator import Job, mediate
from icetower.spark import tower_session

MEDIATOR = "interactions-mediator"
FAILURES_MAX = 12
"""Of processes that end without being killed: they are started again, and not for ever."""
STALLED_S = 900.0
"""How long nobody has to finish an hour before the run is given up."""
_LOOK_S = 0.2
_STOP_S = 20.0

Progress = Callable[[Mapping[str, int], int], None]
"""Is called with the hours that are done, by agent and as `published`, and with how many there are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do.

    Attributes:
        hours_per_s: how many hours of the source are published in a second; None: all at once.
        kills: how often a process is killed: the agents', at a stage of an hour's work, and every fourth time the
            mediator's.
    """

    days: int
    hours_per_s: float | None
    kills: int
    seed: int


def run_pipeline(folder: Path, plan: Plan, progress: Progress, step: Callable[[str], None]) -> Findings:
    """Run everything below `folder` (empty). Raises `IcetowerError` where a step cannot be done at all.

    Args:
        step: is called with the name of each step.
    """
    clock = SystemAmbient()
    began_s = clock.monotonic_s()
    step("reading the source")
    hours = by_hour(data.load_source(plan.days))
    source = Hours(folder / "hours")
    with ExitStack() as stack:
        step("starting the tower and Spark")
        serving = stack.enter_context(tower_process(folder, {}))
        tower = stack.enter_context(Tower(serving.uri, serving.token))
        spark = tower_session("retail", tower, settings={"spark.sql.shuffle.partitions": "4"})
        stack.callback(spark.stop)
        create_tables(spark)
        secrets = register(tower)
        step("the agents write, the mediator merges")
        world = World(folder, serving, secrets, plan, source)
        with _publishing(source, hours, plan.hours_per_s) as published:
            world.run(len(hours), lambda done: progress({"published": published(), **done}, len(hours)))
        step("draining the log")
        while mediate(spark, mediation()).status != "idle":
            pass
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
        mediator=_mediation(world.events()),
        killed=tuple(world.killed),
        checkpoint_lost=world.checkpoint_lost,
        failures=world.failures,
    )


def create_tables(spark: Any) -> None:
    """Create what is missing of the tables."""
    for statement in statements():
        spark.sql(statement)


def register(tower: Tower) -> dict[str, str]:
    """Put the contracts in force, and create a principal for each; returns their secrets by name."""
    names = (*agents.NAMES, MEDIATOR)
    tower.apply_contracts([text_of(f"contracts/{name}.yaml") for name in names])
    return {name: tower.create_principal(name, name) for name in names}


def mediation() -> Job:
    """The job of the mediator, for a session whose catalog is `tower`."""
    contract = contract_of(recommendation.NAME)
    return Job(f"tower.{recommendation.LOG}", f"tower.{recommendation.TABLE}", {contract.name: contract})


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


def deaths_of(plan: Plan, hours: int) -> list[Death]:
    """Where the agents' process is killed, in this order: every agent and every stage in turn, in ever later hours."""
    random = Random(plan.seed)  # noqa: S311 - no secret
    count = plan.kills - plan.kills // 4
    turns = [(agents.NAMES[at % 3], STAGES[(at + at // 3) % 3]) for at in range(count)]
    width = max(1, (hours - 1) // max(1, count))
    return [
        Death(agent, min(hours, 1 + at * width + random.randrange(width)), stage)
        for at, (agent, stage) in enumerate(turns)
    ]


@dataclass
class World:
    """The processes of a run: the agents' and the mediator's, killed as planned and started again."""

    folder: Path
    serving: Serving
    secrets: Mapping[str, str]
    plan: Plan
    source: Hours
    killed: list[str] = field(default_factory=list[str])
    checkpoint_lost: bool = False
    failures: int = 0

    def run(self, hours: int, progress: Callable[[Mapping[str, int]], None]) -> None:
        """Run until the agents are done, and stop the mediator."""
        deaths = deaths_of(self.plan, hours)
        mediator_at = [(1 + number) * hours // (1 + self.plan.kills // 4) for number in range(self.plan.kills // 4)]
        pause, clock = threading.Event(), SystemAmbient()
        moved_s, seen = clock.monotonic_s(), dict[str, int]()
        mediating, working = self._mediator(), self._agents(deaths)
        try:
            while True:
                notes = {name: read_lines(notes_in(self.folder, name)) for name in agents.NAMES}
                done = {name: max((note["hour"] for note in its), default=0) for name, its in notes.items()}
                progress(done)
                if done != seen:
                    moved_s, seen = clock.monotonic_s(), done
                elif clock.monotonic_s() > moved_s + STALLED_S:
                    raise IcetowerError(
                        f"no agent finished an hour for {STALLED_S:.0f} s; {self.folder} has their logs"
                    )
                if mediator_at and min(done.values()) >= mediator_at[0] - 1 and self.events():
                    mediator_at.pop(0)
                    _end(mediating, hard=True)
                    self.killed.append("mediator")
                    mediating = self._mediator()
                elif mediating.poll() is not None:
                    self._failed("mediator")
                    mediating = self._mediator()
                if (status := working.poll()) is not None:
                    if status == 0:
                        progress(dict.fromkeys(agents.NAMES, hours))
                        break
                    deaths = self._ended(deaths)
                    working = self._agents(deaths)
                pause.wait(_LOOK_S)
        finally:
            for process in (working, mediating):
                _end(process)

    def _ended(self, deaths: Sequence[Death]) -> list[Death]:
        """The deaths that are left after the agents' process ended."""
        died = [Death(**each) for each in read_lines(deaths_in(self.folder))]
        new = [death for death in died if death in deaths]
        self.killed += (f"{death.agent} (hour {death.hour}, {death.stage})" for death in new)
        if not new:
            self._failed("agents")
        if not self.checkpoint_lost and any(death.agent == inventory.NAME for death in new):
            shutil.rmtree(checkpoint_of(self.folder), ignore_errors=True)
            self.checkpoint_lost = True
        return [death for death in deaths if death not in died]

    def _failed(self, name: str) -> None:
        """Count a process that ended by itself. Raises `IcetowerError` if there are too many."""
        self.failures += 1
        if self.failures > FAILURES_MAX:
            log = self.folder / f"{name}.log"
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise IcetowerError(
                f"the processes of the run ended {self.failures} times by themselves; {log} ends:\n{tail}"
            )

    def _agents(self, deaths: Sequence[Death]) -> subprocess.Popen[bytes]:
        secrets = {name: self.secrets[name] for name in agents.NAMES}
        job = AgentsJob(self.serving.uri, secrets, str(self.folder), str(self.source.folder), tuple(deaths))
        process = self._started([sys.executable, "-m", "icetower.demo.retail.agents"], "agents.log", {})
        assert process.stdin is not None
        process.stdin.write(job.to_json().encode())
        process.stdin.close()
        return process

    def _mediator(self) -> subprocess.Popen[bytes]:
        contracts = self.folder / "contracts"
        contracts.mkdir(exist_ok=True)
        (contracts / f"{recommendation.NAME}.yaml").write_text(text_of(f"contracts/{recommendation.NAME}.yaml"))
        tables = ["--wal", recommendation.LOG, "--target", recommendation.TABLE, "--contracts", str(contracts)]
        command = [sys.executable, "-c", "from icetower.cli import main; main()", "mediate", "--follow", "--json"]
        return self._started(
            [*command, *tables, "--uri", self.serving.uri, "--every-s", "2", "--master", "local[1]"],
            "mediator.log",
            {"ICETOWER_TOKEN": self.secrets[MEDIATOR]},
        )

    def _started(self, command: list[str], log: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as errors, self._events.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own programs
                command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env={**os.environ, **environment}
            )

    @property
    def _events(self) -> Path:
        return self.folder / "mediator.jsonl"

    def events(self) -> list[dict[str, Any]]:
        """What the mediator reported."""
        return read_lines(self._events)


def _end(process: subprocess.Popen[bytes], *, hard: bool = False) -> None:
    """End a process, and its JVM with it."""
    process.kill() if hard else process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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


def _mediation(events: Sequence[Mapping[str, Any]]) -> Mediation:
    batches = [event for event in events if event["status"] == "applied" and event["lag_max_ms"] is not None]
    medians = sorted(batch["lag_median_ms"] / 1000 for batch in batches)
    longest = max((batch["lag_max_ms"] / 1000 for batch in batches), default=None)
    return Mediation(len(batches), _nearest(medians, 50) if medians else None, longest)


def _nearest(values: Sequence[float], percent: int) -> float:
    """The percentile by nearest rank, of sorted values."""
    return values[max(0, -(-len(values) * percent // 100) - 1)] if values else 0.0

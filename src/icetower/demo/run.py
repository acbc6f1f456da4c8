"""The main job, step by step: the plain side, the tower, its agents, mediator, orphans, reconciliation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from icetower.agent import Tower, keyed, new_key
from icetower.ambient import SystemAmbient
from icetower.audit.auditor import Options, audit
from icetower.demo import aftermath, data, journal, plan, sides, slow_io, tables
from icetower.demo.aftermath import Aftermath
from icetower.demo.plan import Behaviour
from icetower.demo.processes import Outcome
from icetower.demo.reconcile import Verdict, read_table, reconcile
from icetower.demo.report import Findings, Promise, count_commits, queue_waits
from icetower.demo.serving import Serving, register_agents, tower_process
from icetower.demo.sides import Run, Workload, run_workload
from icetower.iceberg.metadata import parse
from icetower.pipelines.reports import report_orphans
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import ON_OWN_ACCOUNT
from icetower.table.head import HeadState

ATTEMPTS_MAX = 1000
_STOPPED = "contract.escalated"


@dataclass(frozen=True, slots=True)
class ProgressDisplay:
    """Shows progress on a console, and keeps how long each step took."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def step(self, name: str, total: int | None = None) -> Generator[Callable[[int], None]]:
        """A bar for one step. Yields a function that is called with how much of it is done."""
        clock = SystemAmbient()
        start_s = clock.monotonic_s()
        columns = (SpinnerColumn(), TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as progress:
            task = progress.add_task(name, total=total)
            yield lambda done: progress.update(task, completed=done)
            progress.update(task, total=total or 1, completed=total or 1)
        self.seconds[name] = clock.monotonic_s() - start_s

    @contextmanager
    def agents(self, name: str, days: int) -> Generator[Callable[[Mapping[str, int]], None]]:
        """A bar for each agent. Yields a function that is called with the acknowledged commits by agent."""
        clock = SystemAmbient()
        start_s = clock.monotonic_s()
        columns = (TextColumn("  {task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.console.print(name)
        with Progress(*columns, console=self.console) as progress:
            bars = {
                agent.name: progress.add_task(f"{agent.name} ({agent.engine})", total=agent.batches(days))
                for agent in plan.AGENTS
            }

            def update(done: Mapping[str, int]) -> None:
                for agent, count in done.items():
                    progress.update(bars[agent], completed=count)

            yield update
        self.seconds[name] = clock.monotonic_s() - start_s


def run_demo(
    folder: Path,
    *,
    days: int,
    seed: int,
    latency: str,
    console: Console,
    told: Callable[[Findings, Serving], None],
) -> Findings:
    """Run both sides below `folder` (empty) and compare. Raises `IcetowerError` where a step cannot be done at all.

    Args:
        told: hears of what was found, while the tower is still up.
    """
    display = ProgressDisplay(console)
    with display.step("read the source"):
        workload = _workload(folder, days, seed, latency)
    with display.agents(f"{len(plan.AGENTS)} agents write without Icetower", days) as progress:
        plain = run_workload(folder / "plain" / "agents", workload, sides.plain(folder / "plain"), progress)
    with (
        tower_process(folder, slow_io.properties(latency, seed)) as serving,
        Tower(serving.uri, serving.token) as tower,
    ):
        with display.step("start the tower, register the agents"):
            tables.create_tables(load_catalog("tower", **serving.catalog(serving.token)))
            secrets = register_agents(tower, days)
        with display.agents(f"{len(plan.AGENTS)} agents write with Icetower", days) as progress:
            run = run_workload(folder / "agents", workload, sides.through(serving, secrets), progress)
        attempts = tower.commits(limit=ATTEMPTS_MAX)
        with display.step("mediate, look for orphans, recount"):
            after = aftermath.run(folder, serving, secrets, days)
        with display.step("an agent goes on outside its contract"):
            stopped = _insists(load_catalog("tower", **serving.catalog(secrets[_STRAYING.name])), workload)
        report_orphans(tower, after.left)
        with display.step("reconcile"):
            verdicts = _reconciled(load_catalog("tower", **serving.catalog(secrets[plan.AUDITOR])), workload, run)
            audited = asyncio.run(_audited(load_catalog("tower", **serving.catalog(serving.token))))
        findings = Findings(
            days=days,
            latency=latency,
            verdicts=verdicts,
            recounted=after.recounted,
            orphans=after.orphans,
            orphaned_metadata=after.orphaned_metadata,
            tower=run,
            plain=plain,
            counts=count_commits(run.outcome, attempts),
            plain_counts=count_commits(plain.outcome),
            queue_waits_ms=queue_waits(attempts),
            promises=(*_promises(run.outcome, run.journals, after, verdicts), stopped, audited),
            seconds=display.seconds,
        )
        told(findings, serving)
    return findings


_STRAYING = next(agent for agent in plan.AGENTS if agent.behaviour is Behaviour.STRAYS)
_INSISTS_MAX = 20


def _insists(catalog: Catalog, workload: Workload) -> Promise:
    """Write the neighbour's rows over and over, until the contract's escalation stops the agent; then its own."""
    others = plan.table_rows(_STRAYING, plan.stray_rows(_STRAYING, workload.source, workload.days))
    own = plan.table_rows(_STRAYING, plan.rows_of(_STRAYING, workload.source, workload.days).slice(0, 1))
    refusals: list[str] = []
    for rows in (*[others] * _INSISTS_MAX, own):
        if rows is others and refusals and _STOPPED in refusals[-1]:
            continue
        try:
            catalog.load_table(_STRAYING.table).append(rows, snapshot_properties=keyed(new_key()))
        except ForbiddenError as error:
            refusals.append(str(error))
    stopped = [_STOPPED in each for each in refusals]
    evidence = f"{_STRAYING.name}: {stopped.count(False)} refusals more, then stopped, in its own partitions, too"
    return Promise("Who goes on outside its contract is stopped", stopped[-2:] == [True, True], evidence)


def _workload(folder: Path, days: int, seed: int, latency: str) -> Workload:
    source, source_path = data.load_source(days), folder / "source.arrow"
    with pa.OSFile(str(source_path), "wb") as sink, pa.ipc.new_file(sink, source.schema) as writer:
        writer.write_table(source)
    return Workload(source, source_path, days, seed, latency)


def _reconciled(catalog: Catalog, workload: Workload, run: Run) -> tuple[Verdict, ...]:
    return tuple(
        reconcile(
            name,
            read_table(catalog, name),
            workload.source,
            journal.acknowledged_rows([run.journals[agent.name] for agent in plan.agents_of(written)]),
            sign=-1 if name == tables.STOCK else 1,
        )
        for name, written in _WRITTEN.items()
    )


# Each table that is reconciled, and the table that its agents write to: interactions come through the mediator.
_WRITTEN: Mapping[str, str] = {
    tables.PRICES: tables.PRICES,
    tables.STOCK: tables.STOCK,
    tables.INTERACTIONS: tables.INTERACTIONS_WAL,
}


def _promises(
    outcome: Outcome, journals: Mapping[str, Path], after: Aftermath, verdicts: Sequence[Verdict]
) -> tuple[Promise, ...]:
    """The properties that the misbehaving agents demonstrate, by their own journals."""
    return (
        _refused(journals),
        _sent_twice(journals),
        _killed(outcome, journals, after),
        _stale(journals),
        Promise(
            "Spark counts what PyIceberg read",
            all(after.recounted.get(verdict.table) == verdict.found for verdict in verdicts),
            f"{sum(totals.rows for totals in after.recounted.values()):,} rows by two engines",
        ),
    )


async def _audited(catalog: Catalog) -> Promise:
    """Audit the histories of all tables, the mediator's too: every commit went through the tower."""
    storage, snapshots, wrong = FileIOStorage(), 0, list[str]()
    for name in [name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace)]:
        location = catalog.load_table(name).metadata_location
        head = HeadState(location, parse(await storage.read(location, ON_OWN_ACCOUNT)))
        report = await audit(head, storage, Options(content=True, tower=True))
        snapshots += report.checked.snapshots
        wrong += (f"{'.'.join(name)}: {' '.join(each.witness)}" for each in report.violations)
    await storage.close()
    evidence = wrong[0] if wrong else f"{snapshots} commits, and nothing is wrong with any"
    return Promise("The tables' histories hold against an audit", snapshots > 0 and not wrong, evidence)


def _of(behaviour: Behaviour, journals: Mapping[str, Path], event: str) -> tuple[str, list[Mapping[str, Any]]]:
    """The name of the agent with that behaviour, and the entries of one event in its journal."""
    agent = next(agent for agent in plan.AGENTS if agent.behaviour is behaviour)
    return agent.name, [entry for entry in journal.entries(journals[agent.name]) if entry["event"] == event]


def _refused(journals: Mapping[str, Path]) -> Promise:
    name, refusals = _of(Behaviour.STRAYS, journals, journal.REFUSED)
    named = [entry for entry in refusals if "product_id_bucket=" in entry["message"]]
    evidence = f"{name}: {named[0]['message']}" if named else f"{name}: no refusal names a partition"
    return Promise("Nobody writes outside their contract", len(refusals) == len(named) == 1, evidence)


def _sent_twice(journals: Mapping[str, Path]) -> Promise:
    name, repeats = _of(Behaviour.REPEATS, journals, journal.REPEATED)
    landed = [entry for entry in repeats if entry["landed"] != "absent"]
    evidence = f"{name}: {len(repeats)} commits sent again, {len(landed)} of them landed again"
    return Promise("A commit sent twice is in the table once", bool(repeats) and not landed, evidence)


def _killed(outcome: Outcome, journals: Mapping[str, Path], after: Aftermath) -> Promise:
    name, sent = _of(Behaviour.DIES, journals, journal.SENT)
    left = {file for entry in sent for file in entry["files"]}
    missing = {_path(file) for file in left} - {_path(file) for file in after.orphans}
    evidence = f"{name}: {len(left)} data files left behind, {len(missing)} of them not reported"
    return Promise(
        "A killed writer's files are reported as orphans",
        name in outcome.killed and bool(left) and not missing,
        evidence,
    )


def _path(location: str) -> str:
    """A local location without its scheme: engines write `file:/x`, `file:///x` and `/x`."""
    return "/" + location.removeprefix("file:").lstrip("/")


def _stale(journals: Mapping[str, Path]) -> Promise:
    name, commits = _of(Behaviour.STALE, journals, journal.ACKNOWLEDGED)
    rebased = [entry for entry in commits if entry["landed"] == "rebased" and not entry["retries"]]
    evidence = f"{name}: {len(rebased)} of {len(commits)} commits rebased, {sum(e['retries'] for e in commits)} retries"
    return Promise("A commit on a stale base is rebased without a retry", bool(rebased), evidence)

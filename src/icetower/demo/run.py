"""The main job, step by step: baseline, tower, agents, mediator, orphans, reconciliation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.audit.auditor import Options, audit
from icetower.demo import aftermath, data, journal, plan, tables
from icetower.demo.aftermath import Aftermath
from icetower.demo.baseline import run_baseline
from icetower.demo.crew import Crew, Outcome, make_jobs, outcome_of
from icetower.demo.plan import Conduct, Engine
from icetower.demo.reconcile import Verdict, read_table, reconcile
from icetower.demo.report import Findings, Promise, count_commits, queue_waits
from icetower.demo.serving import Serving, hire, tower_process
from icetower.iceberg.metadata import parse
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import ON_OWN_ACCOUNT
from icetower.table.head import HeadState

ATTEMPTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Show:
    """Where progress is shown, and how long each step took."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def step(self, name: str, total: int | None = None) -> Generator[Callable[[int], None]]:
        """A bar for one step; what it gives is called with how much is done."""
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
        """A bar for each agent; what it gives is called with the commits acknowledged, by agent."""
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


def run_demo(folder: Path, *, days: int, seed: int, console: Console) -> Findings:
    """Run everything below `folder` (empty) and compare. Raises `IcetowerError` where a step cannot be done at all."""
    show = Show(console)
    with show.step("read the source"):
        source, source_path = data.load_source(days), folder / "source.arrow"
        with pa.OSFile(str(source_path), "wb") as sink, pa.ipc.new_file(sink, source.schema) as writer:
            writer.write_table(source)
    # The bars of the baseline would show commits by PyIceberg only: there, every agent is one.
    with show.step("the same load without Icetower", sum(a.batches(days) for a in plan.AGENTS)) as done:
        baseline = run_baseline(
            folder / "baseline", source_path, days=days, seed=seed, progress=lambda counts: done(sum(counts.values()))
        )
    with tower_process(folder) as serving, Tower(serving.uri, serving.token) as tower:
        with show.step("raise the tower, hire the agents"):
            tables.create_tables(load_catalog("tower", **serving.catalog(serving.token)))
            secrets = hire(tower, days)
        outcome, by_engine, journals = _run_agents(folder / "agents", source_path, serving, secrets, days, seed, show)
        with show.step("mediate, look for orphans, recount"):
            after = aftermath.run(folder, serving, secrets, days)
        attempts = tower.commits(limit=ATTEMPTS_MAX)
        with show.step("reconcile"):
            catalog = load_catalog("tower", **serving.catalog(secrets[plan.AUDITOR]))
            audited = asyncio.run(_audited(load_catalog("tower", **serving.catalog(serving.token))))
            verdicts = tuple(
                reconcile(
                    name,
                    read_table(catalog, name),
                    source,
                    journal.acknowledged_rows([journals[agent.name] for agent in plan.agents_of(written)]),
                    sign=-1 if name == tables.STOCK else 1,
                )
                for name, written in _WRITTEN.items()
            )
    return Findings(
        days=days,
        verdicts=verdicts,
        recounted=after.recounted,
        orphans=after.orphans,
        orphaned_metadata=after.orphaned_metadata,
        outcome=outcome,
        by_engine=by_engine,
        counts=count_commits(outcome, attempts),
        queue_waits_ms=queue_waits(attempts),
        baseline=baseline,
        baseline_counts=count_commits(baseline),
        promises=(*_promises(outcome, journals, after, verdicts), audited),
        seconds=show.seconds,
    )


# Each table that is reconciled, and the table that its agents write to: interactions come through the mediator.
_WRITTEN: Mapping[str, str] = {
    tables.PRICES: tables.PRICES,
    tables.STOCK: tables.STOCK,
    tables.INTERACTIONS: tables.INTERACTIONS_WAL,
}


def _run_agents(
    folder: Path, source: Path, serving: Serving, secrets: Mapping[str, str], days: int, seed: int, show: Show
) -> tuple[Outcome, Mapping[Engine, Outcome], Mapping[str, Path]]:
    folder.mkdir()
    catalogs = {agent.name: serving.catalog(secrets[agent.name]) for agent in plan.AGENTS}
    jobs = make_jobs(folder, source, days=days, seed=seed, catalogs=catalogs)
    with show.agents(f"{len(jobs)} agents write", days) as progress:
        crew = Crew(folder, spark=True)
        outcome = crew.run(jobs, progress)
    by_engine = {
        engine: outcome_of([job for job in jobs if plan.agent_named(job.agent).engine is engine], crew.go_ms)
        for engine in Engine
    }
    return outcome, by_engine, {job.agent: Path(job.journal) for job in jobs}


def _promises(
    outcome: Outcome, journals: Mapping[str, Path], after: Aftermath, verdicts: Sequence[Verdict]
) -> tuple[Promise, ...]:
    """What each misbehaving agent was to show, by its own ledger."""
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
    """What the histories of all tables show, the mediator's logs too: each commit went through the tower."""
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


def _of(conduct: Conduct, journals: Mapping[str, Path], event: str) -> tuple[str, list[Mapping[str, Any]]]:
    """The agent of that conduct, and the entries of one event in its ledger."""
    agent = next(agent for agent in plan.AGENTS if agent.conduct is conduct)
    return agent.name, [entry for entry in journal.entries(journals[agent.name]) if entry["event"] == event]


def _refused(journals: Mapping[str, Path]) -> Promise:
    name, refusals = _of(Conduct.STRAYS, journals, journal.REFUSED)
    named = [entry for entry in refusals if "product_id_bucket=" in entry["message"]]
    evidence = f"{name}: {named[0]['message']}" if named else f"{name}: no refusal names a partition"
    return Promise("Nobody writes outside their contract", len(refusals) == len(named) == 1, evidence)


def _sent_twice(journals: Mapping[str, Path]) -> Promise:
    name, repeats = _of(Conduct.REPEATS, journals, journal.REPEATED)
    landed = [entry for entry in repeats if entry["landed"] != "absent"]
    evidence = f"{name}: {len(repeats)} commits sent again, {len(landed)} of them landed again"
    return Promise("A commit sent twice is in the table once", bool(repeats) and not landed, evidence)


def _killed(outcome: Outcome, journals: Mapping[str, Path], after: Aftermath) -> Promise:
    name, sent = _of(Conduct.DIES, journals, journal.SENT)
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
    name, commits = _of(Conduct.STALE, journals, journal.ACKNOWLEDGED)
    rebased = [entry for entry in commits if entry["landed"] == "rebased" and not entry["retries"]]
    evidence = f"{name}: {len(rebased)} of {len(commits)} commits rebased, {sum(e['retries'] for e in commits)} retries"
    return Promise("A commit on a stale base is rebased without a retry", bool(rebased), evidence)

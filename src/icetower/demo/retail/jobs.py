"""The process of the jobs: `python -m icetower.demo.retail.jobs`, its input as JSON on standard input.

The mediator, the collector, the maintenance and the export run beside the agents. They share one Spark, and each has a
session and a secret of its own. `icetower mediate --follow`, `icetower collect --follow`, `icetower maintain --follow`
and `icetower export` are the same jobs, one to a process. Meanwhile a reader looks at the merged view of the
promotions, and compares it with the changes.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from icetower.agent import Tower
from icetower.demo.retail import agents, inventory, pricing, promotions, recommendation, tills
from icetower.demo.retail.notes import Death, Ends, hour_of, notes_in
from icetower.demo.retail.shipped import contract_of
from icetower.errors import IcetowerError
from icetower.pipelines.collector import collect, merged_view
from icetower.pipelines.export import Source, export
from icetower.pipelines.maintenance import Job as Maintenance
from icetower.pipelines.maintenance import Maintainer
from icetower.pipelines.reports import LagReports
from icetower.pipelines.tables import private_session
from icetower.pipelines.wal_follow import Follower
from icetower.pipelines.wal_mediator import Job, mediate
from icetower.protocol.names import Identifier

MEDIATOR = "interactions-mediator"
COLLECTOR = "promotions-collector"
MAINTENANCE = "maintenance"
EXPORT = "export"
READER = "auditor"
PRINCIPALS = (MEDIATOR, COLLECTOR, MAINTENANCE, READER)
"""Those with contracts. The export is an administrator's."""

KINDS: Mapping[str, Literal["wal", "collector"]] = {MEDIATOR: "wal", COLLECTOR: "collector"}
"""What the lag is of that a job reports."""

_MERGING = ("planned", "rejections", "writing", "committed", "keys", "closed")
STAGES: Mapping[str, tuple[str, ...]] = {
    MEDIATOR: _MERGING,
    COLLECTOR: _MERGING,
    MAINTENANCE: ("loaded", "writing", "compact", "recorded"),
    EXPORT: ("created", "contracts", "commits", "metrics"),
}
"""Of each job that is killed: the steps that `mediate`, `collect` and `export` report, and the commit in its middle."""

SYSTEM = "tower.system"
MAINTAINED = (pricing.TABLE, promotions.TABLE, inventory.TABLE, recommendation.TABLE)
EVERY_S = 2.0
EXPORT_EVERY_S = 15.0
READ_EVERY_S = 5.0
MAINTAIN_EVERY_S = 15.0
FAILURES_MAX = 10
"""Of a job that does what is left when the agents are done."""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Jobs:
    """What the process is to do.

    Attributes:
        secrets: by principal; that of `EXPORT` is an administrator's.
        folder: for what the jobs report.
        snapshots_max: the most snapshots of a log or a delta table in one batch.
        deaths: where jobs are killed.
    """

    uri: str
    secrets: Mapping[str, str]
    folder: str
    snapshots_max: int
    deaths: tuple[Death, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> Jobs:
        read: dict[str, Any] = json.loads(text)
        read["deaths"] = tuple(Death(**death) for death in read["deaths"])
        return Jobs(**read)


def end_of(folder: Path) -> Path:
    """The file that says that the agents are done. Then the jobs do what is left, and end."""
    return folder / "agents.end"


def mediation(snapshots_max: int) -> Job:
    """The job of the mediator, for a session whose catalog is `tower`."""
    contract = contract_of(recommendation.NAME)
    log, table = f"tower.{recommendation.LOG}", f"tower.{recommendation.TABLE}"
    return Job(log, table, {contract.name: contract}, snapshots_max=snapshots_max)


def collection(snapshots_max: int) -> Job:
    """The job of the collector, likewise."""
    contracts = {name: contract_of(name) for name in (promotions.NAME, tills.NAME)}
    deltas, table = f"tower.{promotions.DELTAS}", f"tower.{promotions.TABLE}"
    return Job(deltas, table, contracts, merge_keys=promotions.KEYS, snapshots_max=snapshots_max)


@dataclass(frozen=True, slots=True)
class _Work:
    """The jobs, each of which runs until the agents are done and nothing is left."""

    jobs: Jobs

    @property
    def folder(self) -> Path:
        return Path(self.jobs.folder)

    def follow(self, session: Any, name: str, job: Job, work: Callable[..., Any]) -> None:
        """Take batches of a log or a delta table."""
        step = partial(work, after=self._after(name))
        report = partial(self._report, name)
        lags = LagReports(partial(Tower, self.jobs.uri, self.jobs.secrets[name]), KINDS[name])
        follower = Follower(
            session, lambda: [job], lambda event: report(event.to_json()), every_s=EVERY_S, on_lag=lags, work=step
        )
        follower.follow(self._ended_within)
        failures = 0
        while True:
            try:
                done = step(follower.spark, job)
            except IcetowerError as error:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                report({"status": "failed", "rule": error.rule, "message": error.message})
                continue
            if done.status == "idle":
                return
            report(done.to_json())

    def export(self, session: Any) -> None:
        session = private_session(session)
        with Tower(self.jobs.uri, self.jobs.secrets[EXPORT]) as tower:
            ended = False
            while not ended:
                ended = self._ended_within(EXPORT_EVERY_S)
                self._report(EXPORT, asdict(export(session, SYSTEM, Source.of(tower), after=self._after(EXPORT))))

    def maintain(self, session: Any) -> None:
        own = contract_of(MAINTENANCE)
        tables = [Identifier.parse(name) for name in MAINTAINED]
        job = Maintenance(system=SYSTEM, tables=tables, own=own)
        maintainer = Maintainer(session, job, after=self._after(MAINTENANCE))
        maintainer.follow(lambda: job, self._report_maintenance, self._ended_within, MAINTAIN_EVERY_S)
        self._report_maintenance(maintainer.run())

    def _report_maintenance(self, report: Any) -> None:
        for each in (*report.entries, *report.failures):
            self._report(MAINTENANCE, each.to_json())
        with Tower(self.jobs.uri, self.jobs.secrets[MAINTENANCE]) as tower:
            report.report_orphans(tower)

    def read(self, session: Any) -> None:
        ended = False
        while not ended:
            ended = self._ended_within(READ_EVERY_S)
            found = read_merged(session)
            if found is not None:
                self._report(READER, found)

    def _ended_within(self, seconds: float) -> bool:
        """Whether the agents are done, after so long at most."""
        pause, left_s = threading.Event(), seconds
        while not end_of(self.folder).exists():
            if left_s <= 0:
                return False
            pause.wait(_LOOK_S)
            left_s -= _LOOK_S
        return True

    def _after(self, name: str) -> Callable[[str], None]:
        ends = Ends(self.folder, name, self.jobs.deaths)

        def after(step: str) -> None:
            for stage in (step, "writing") if step in ("rejections", "loaded") else (step,):
                ends.reached(stage, partial(hour_of, self.folder, agents.NAMES))

        return after

    def _report(self, name: str, event: Mapping[str, Any]) -> None:
        with notes_in(self.folder, name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


def read_merged(spark: Any) -> dict[str, int] | None:
    """Read the merged view of the promotions, and compare it with the last change of each product.

    Products that changed while the view was made are left out: it is not known which of their changes it has.

    Returns how many rows it has, how many of them the table has not yet, and how many are wrong; None without changes.
    """
    deltas, table = f"tower.{promotions.DELTAS}", f"tower.{promotions.TABLE}"
    before = _head(spark, deltas)
    if before is None:
        return None
    view = merged_view(spark, table, deltas, promotions.KEYS, system=SYSTEM).cache()
    rows = view.count()
    last = ", ".join(f"max_by({name}, _event_time) AS {name}" for name in (*view.columns[1:], "_operation"))
    still = spark.sql(
        f"SELECT old.* FROM (SELECT product_id, {last}, count(*) AS changes FROM {deltas} VERSION AS OF {before} "  # noqa: S608
        f"GROUP BY product_id) old JOIN (SELECT product_id, count(*) AS changes FROM {deltas} "
        f"VERSION AS OF {_head(spark, deltas)} GROUP BY product_id) new "
        "ON old.product_id = new.product_id AND old.changes = new.changes"
    ).cache()
    expected = still.where("_operation = 'upsert'").select(*view.columns)
    found = view.join(still.select("product_id"), "product_id", "left_semi").select(*view.columns)
    folded = spark.table(table).select(*view.columns)
    report = {
        "rows": rows,
        "ahead": view.exceptAll(folded).count(),
        "wrong": found.exceptAll(expected).count() + expected.exceptAll(found).count(),
    }
    view.unpersist()
    still.unpersist()
    return report


def _head(spark: Any, table: str) -> int | None:
    found = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").collect()  # noqa: S608
    return found[0][0] if found else None


def run_jobs(jobs: Jobs) -> None:
    """Run the jobs side by side until the agents are done and nothing is left. Raises the first error of one."""
    work = _Work(jobs)
    works: dict[str, Callable[[Any], None]] = {
        MEDIATOR: lambda session: work.follow(session, MEDIATOR, mediation(jobs.snapshots_max), mediate),
        COLLECTOR: lambda session: work.follow(session, COLLECTOR, collection(jobs.snapshots_max), collect),
        MAINTENANCE: work.maintain,
        EXPORT: work.export,
        READER: work.read,
    }
    agents.side_by_side("retail-jobs", jobs.uri, jobs.secrets, lambda name, session, tower: works[name](session))


def main() -> None:
    run_jobs(Jobs.of_json(sys.stdin.read()))


if __name__ == "__main__":
    main()

"""`icetower maintain`: a PySpark job, run from cron or as long as it runs."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from icetower.cli.branches import remove_stale
from icetower.cli.mediate import contracts_for, contracts_in_force, own_contract
from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, tell_tower
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say, warn
from icetower.cli.times import duration_s
from icetower.contracts.model import Contract
from icetower.counting import counted
from icetower.errors import NotAuthenticated, NotFound
from icetower.protocol.names import Identifier
from icetower.texts import escaped

if TYPE_CHECKING:
    from icetower.pipelines.maintenance import Job, Report
    from icetower.pipelines.maintenance_record import Entry

COLUMNS = ("table", "task", "files", "bytes", "delete files", "manifests", "snapshots", "rows", "orphans", "cost")


@spark_errors("interrupted; what is committed stays, and the next run goes on from there")
def maintain(
    tables: Annotated[list[str] | None, typer.Argument(help="Only these tables, namespace.table.")] = None,
    uri: Uri = DEFAULT_URI,
    contracts: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the agents' contracts, for orphans; an administrator's run uses those in force without it."
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="Namespace of the system tables.")] = "system",
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Run on, or end when all that is due is done.")
    ] = False,
    every: Annotated[str, typer.Option(help="With --follow: how often it looks for what is due, such as 90s.")] = "5m",
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Compact, expire, prune, and look for orphans, where it is due.

    Properties of the tables and contracts decide what is due. It keeps off partitions that were just written, and does
    what its own contract grants. What it did is printed, and recorded in maintenance_runs and iceberg_orphan_files. It
    may be killed at any point and run again, and two runs at once are safe. Exit status 1: something failed.

    \b
    Example:
      icetower maintain
      icetower maintain --follow --every 5m --contracts contracts/
    """
    every_s = duration_s(every, "--every")
    wanted = None if tables is None else [Identifier.parse(table) for table in tables]
    need_spark()
    from icetower.pipelines.maintenance import Maintainer

    jobs = partial(_job, uri, contracts, system, wanted, as_json=as_json)
    first = jobs()  # what is wrong with the contracts shows before Spark starts
    spark = job_session("icetower-maintain", uri, master, conf)
    try:
        maintainer = Maintainer(spark, first)
        if follow:
            maintainer.follow(jobs, partial(_told, uri, as_json=as_json, quiet=True), threading.Event().wait, every_s)
            return
        with waiting("maintaining"):
            report = maintainer.run()
    finally:
        spark.stop()
    _told(uri, report, as_json=as_json)
    if report.failures:
        raise typer.Exit(1)


def _job(uri: str, folder: Path | None, system: str, tables: list[Identifier] | None, *, as_json: bool = False) -> Job:
    """The job under the contracts of this moment. Stale branches are removed first: their snapshots can expire then."""
    from icetower.pipelines.maintenance import Job
    from icetower.pipelines.session import CATALOG

    own, contracts = own_contract(uri), _contracts(uri, folder)
    names = None if tables is None else list(map(str, tables))
    for table, branch in remove_stale(uri, names, contracts) if own is None and contracts else ():
        done = {"status": "done", "table": table, "task": "branches", "branch": branch}
        say(json.dumps(done) if as_json else escaped(f"{table}: the stale branch {branch} is removed"))
    return Job(CATALOG, f"{CATALOG}.{system}", tables, own, contracts)


def _contracts(uri: str, folder: Path | None) -> dict[str, Contract]:
    """The contracts by principal: of a folder each binds the principal of its name."""
    if folder is not None:
        return contracts_for(uri, folder)
    try:
        with connect(uri) as tower:
            if not tower.me()["administrator"]:
                return {}
            bound = {record["name"]: record["contract"] for record in tower.principals()}
    except (NotFound, NotAuthenticated):  # another catalog, or a credential in ICETOWER_CREDENTIAL
        return {}
    in_force = contracts_in_force(uri)
    return {name: in_force[contract] for name, contract in bound.items() if contract in in_force}


def _told(uri: str, report: Report, *, as_json: bool, quiet: bool = False) -> None:
    """Show what a run did, and tell the tower which orphans are left."""
    _show(report, as_json=as_json, quiet=quiet)
    tell_tower(uri, "which orphans are left", report.report_orphans)


def _show(report: Report, *, as_json: bool, quiet: bool = False) -> None:
    """What a run did. `quiet`: nothing, if it did nothing."""
    for failure in report.failures:
        if as_json:
            say(json.dumps(failure.to_json()))
        else:
            warn(f"{failure.table}: {failure.task} failed: {failure.error}")
    if as_json:
        for entry in report.entries:
            say(json.dumps({"status": "done", **entry.to_json()}))
        for left in () if quiet else report.left_alone:
            say(json.dumps(left.to_json()))
        return
    if not report.entries:
        if not quiet:
            say(f"nothing is due in {counted(report.tables, 'table')}")
            _show_left_alone(report)
        return
    shown = Table(*COLUMNS)
    for entry in report.entries:
        shown.add_row(*map(escaped, cells(entry)))
    show(shown)
    if not quiet:
        _show_left_alone(report)


def _show_left_alone(report: Report) -> None:
    """Why nothing was due on tables, in a line for each."""
    for left in report.left_alone:
        say(escaped(f"{left.table} was left alone: {left.reason}"))


def cells(entry: Entry) -> tuple[str, ...]:
    """A row of the printed table; of numbers that changed, before and after."""
    orphans = "" if entry.orphans_found is None else f"{entry.orphans_found} found, {entry.orphans_deleted} deleted"
    costs = (
        f"{entry.conflicts} files left: others changed them" if entry.conflicts else "",
        f"{entry.writers_refused} attempts of others refused" if entry.writers_refused else "",
    )
    return (
        entry.table_name,
        entry.task,
        _change(entry.files_before, entry.files_after),
        _change(entry.bytes_before, entry.bytes_after),
        _change(entry.delete_files_before, entry.delete_files_after),
        _change(entry.manifests_before, entry.manifests_after),
        "" if entry.snapshots_expired is None else f"{entry.snapshots_expired:,} expired",
        "" if entry.rows_pruned is None else f"{entry.rows_pruned:,} pruned",
        orphans,
        "; ".join(filter(None, costs)),
    )


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None or (before == after == 0):
        return ""
    return f"{before:,} → {after:,}" if before != after else f"{after:,}"

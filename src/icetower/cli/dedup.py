"""`icetower dedup`: rows that landed twice under one key go, once or as long as it runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from icetower.cli.audit import FOUND
from icetower.cli.mediate import COLUMNS, cells, contracts_for, own_contract
from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say, warn
from icetower.cli.times import duration_s, pause_of
from icetower.counting import counted, number_of
from icetower.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icetower.pipelines.dedup import Target


@spark_errors("interrupted; what was committed stays, and the next run continues from there")
def dedup(
    target: Annotated[str, typer.Option(help="The table, namespace.table.")],
    staging: Annotated[
        str | None,
        typer.Option(help="Forward new rows from this table instead, and delete from it what was sent again."),
    ] = None,
    uri: Uri = DEFAULT_URI,
    contracts: Annotated[
        Path | None,
        typer.Option(
            help="With --staging: folder of the agents' contracts; without it, an administrator's run uses those in "
            "force."
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="Namespace of the log of keys.")] = "system",
    window: Annotated[
        str, typer.Option(help="Keys that landed longer ago are not looked for; such as 24h, 90m.")
    ] = "24h",
    verify: Annotated[
        bool, typer.Option("--verify", help="Report keys of the log whose rows or files are gone, and change nothing.")
    ] = False,
    snapshots_max: Annotated[int, typer.Option(min=1, help="The most commits that one run takes.")] = 10_000,
    rows_max: Annotated[
        int, typer.Option(min=1, help="The most rows that one run takes, as long as no single commit has more.")
    ] = 1_000_000,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Run on and take what lands, or end when there is nothing new.")
    ] = False,
    every_s: Annotated[
        float,
        typer.Option(
            "--every",
            "--every-s",
            parser=pause_of,
            metavar="TIME",
            help="With --follow: time between two looks at the table, such as 5s or 1m.",
        ),
    ] = 5.0,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Remove the rows that landed twice under one `_idempotency_key`, all but the copy that landed first.

    It looks at what landed since its last run, at the log of keys, and deletes rows merge-on-read. It may be killed at
    any point and run again, and two runs at once are safe. Exit status: 0; with --verify 3 where something is gone.

    \b
    Example:
      icetower dedup --target shop.sales
      icetower dedup --target shop.sales --staging shop.sales_staging --contracts contracts/
      icetower dedup --target shop.sales --verify --json
    """
    window_s = int(duration_s(window, "--window"))
    if verify and (staging is not None or follow):
        raise UsageError("--verify checks a table once: leave out --staging and --follow")
    if contracts is not None and staging is None:
        raise UsageError("--contracts is for rows that are forwarded: name their table, --staging")
    need_spark()
    bounds = {"snapshots_max": snapshots_max, "rows_max": rows_max}
    jobs = partial(_jobs, target, staging, system, window_s, bounds, uri, contracts)
    (first,) = jobs()  # what is wrong with the contracts shows before Spark starts
    spark = job_session("icetower-dedup", uri, master, conf)
    try:
        if verify:
            _verify(spark, first, as_json=as_json)
        elif follow:
            _follow(spark, jobs, every_s, staged=staging is not None, as_json=as_json)
        elif staging is None:
            _validate(spark, first, as_json=as_json)
        else:
            _forward(spark, first, as_json=as_json)
    finally:
        spark.stop()


def _jobs(
    target: str,
    staging: str | None,
    system: str,
    window_s: int,
    bounds: Mapping[str, int],
    uri: str,
    contracts: Path | None,
) -> list[Any]:
    """What there is to do, under the contracts of this moment."""
    from icetower.pipelines.dedup import Target
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.wal_mediator import Job

    name, logs = f"{CATALOG}.{target}", f"{CATALOG}.{system}"
    if staging is None:
        return [Target(name, logs, window_s, bounds["snapshots_max"], bounds["rows_max"])]
    job = Job(f"{CATALOG}.{staging}", name, contracts_for(uri, contracts), logs, own=own_contract(uri))
    return [replace(job, snapshots_max=bounds["snapshots_max"], rows_max=bounds["rows_max"])]


def _follow(spark: SparkSession, jobs: Callable[[], list[Any]], every_s: float, *, staged: bool, as_json: bool) -> None:
    from icetower.pipelines.dedup import validate
    from icetower.pipelines.dedup_staging import forward
    from icetower.pipelines.wal_follow import Follower

    work = forward if staged else validate
    Follower(spark, jobs, partial(_shown, as_json=as_json), every_s=every_s, work=work).follow(threading.Event().wait)


def _validate(spark: SparkSession, target: Target, *, as_json: bool) -> None:
    from icetower.pipelines.dedup import validate

    name = target.table.partition(".")[2]
    found = False
    with waiting(f"validating {name}"):
        while (done := validate(spark, target)).status != "idle":
            found = True
            _shown(done, as_json=as_json)
    if not found and not as_json:
        say(f"nothing landed in {name} since the last run")


def _forward(spark: SparkSession, job: Any, *, as_json: bool) -> None:
    from icetower.pipelines.dedup_staging import forward

    staging, target = (each.partition(".")[2] for each in (job.wal, job.target))
    rows = Table(*COLUMNS, title=f"{staging} → {target}")
    with waiting(f"forwarding {staging}"):
        while (done := forward(spark, job)).status != "idle":
            if as_json:
                say(json.dumps(done.to_json()))
            rows.add_row(*cells(done))
    if as_json:
        return
    if rows.row_count:
        show(rows)
    else:
        say(f"{staging} has nothing new for {target}")


def _shown(event: Any, *, as_json: bool) -> None:
    """One line for each run that did something on standard output, and for each failure on standard error."""
    if as_json:
        say(json.dumps(event.to_json()))
        return
    match type(event).__name__:
        case "Failure":
            warn(f"{event.job.target.partition('.')[2]}: {event.error}; again in {event.again_in_s:.0f} s")
        case "Validation":
            more = [f"{number_of(event.keys, 'new key')}"]
            if event.unkeyed:
                more.append(f"{event.unkeyed:,} without a key")
            if event.untold:
                more.append(f"{event.untold:,} that may be copies, and stay")
            removed = counted(event.removed, "copy", "copies")
            say(
                f"{event.table.partition('.')[2]}: {number_of(event.read, 'row')}, {removed} removed; {', '.join(more)}"
            )
        case _:
            say(f"{event.target.partition('.')[2]}: {event.applied:,} forwarded, {event.duplicates:,} sent again")


def _verify(spark: SparkSession, target: Target, *, as_json: bool) -> None:
    from icetower.pipelines.dedup_verify import verify

    with waiting(f"verifying {target.table.partition('.')[2]}"):
        found = verify(spark, target)
    if as_json:
        say(json.dumps(found.to_json()))
    elif found.orphans:
        rows = Table("snapshot", "reason", "keys", "missing files", title=found.table)
        for each in found.orphans:
            rows.add_row(str(each.snapshot), each.reason, f"{each.keys:,}", "\n".join(each.files))
        show(rows)
    else:
        say(f"{found.table}: {number_of(found.keys, 'key')} of the log, and all that they stand for is there")
    if any(orphan.certain for orphan in found.orphans):
        raise typer.Exit(FOUND)

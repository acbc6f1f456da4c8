"""`icetower pipeline`: PySpark agents on real data, with the jobs beside them, and every row reconciled."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from icetower.cli.demo import LOG_COLUMNS
from icetower.cli.registry import Json
from icetower.cli.spark import need_spark, spark_errors
from icetower.cli.terminal import say
from icetower.errors import UsageError

pipeline = typer.Typer(help="Agents with PySpark on real data: run them, and see their tables.")


@pipeline.command("tables")
def tables(as_json: Json = False) -> None:
    """Print the SQL that creates the tables of the pipeline.

    \b
    Example:
      icetower pipeline tables
    """
    from icetower.demo.retail.shipped import text_of

    sql = text_of("tables.sql").rstrip()
    say(json.dumps({"sql": sql}) if as_json else sql)


@pipeline.command("run")
@spark_errors("interrupted; nothing of the run is kept, but for what --keep names")
def run(
    days: Annotated[int, typer.Option(min=1, max=365, help="Days of 2017 to replay.")] = 14,
    hours: Annotated[int | None, typer.Option(min=1, help="Only the first hours of these days.")] = None,
    hours_per_s: Annotated[
        float | None,
        typer.Option(min=0.01, help="Hours of the source that arrive in a second; by default all at once."),
    ] = None,
    kills: Annotated[
        int, typer.Option(min=0, max=100, help="How often the agents' process, or the jobs', is killed (-9).")
    ] = 4,
    seed: Annotated[int, typer.Option(help="Decides in which hours they are killed.")] = 2017,
    keep: Annotated[Path | None, typer.Option(help="Keep everything in this directory, which must be empty.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last; the rest on stderr.")] = False,
) -> None:
    """Run the pipeline on real data, and reconcile every row.

    Through a tower of its own, agents write grocery transactions, hour by hour: prices by MERGE, stock movements by a
    stream, interactions through the write-ahead log, promotions through a delta table. Meanwhile the mediator merges
    the log, the collector folds the changes, and the log of attempts is exported. They are killed on the way, and
    started again. At the end each table is compared with the source.

    Exit status 1 if a row is lost, doubled or altered.

    \b
    Example:
      icetower pipeline run --days 1 --kills 2
    """
    need_spark()
    from icetower.demo.retail.report import show, to_json
    from icetower.demo.retail.run import run_pipeline
    from icetower.demo.retail.world import Plan

    console = Console(stderr=as_json)
    if not console.is_terminal:  # a log has no width of its own
        console = Console(stderr=as_json, width=LOG_COLUMNS)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icetower-pipeline-")))
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--keep {folder} is not empty; name a new directory")
        columns = (TextColumn("  {task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bars = stack.enter_context(Progress(*columns, console=console))
        tasks = dict[str, TaskID]()

        def progress(done: Mapping[str, int], hours: int) -> None:
            for name, count in done.items():
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=hours)
                bars.update(tasks[name], completed=count)

        findings = run_pipeline(
            folder.resolve(), Plan(days, hours, hours_per_s, kills, seed), progress, bars.console.print
        )
    if as_json:
        say(to_json(findings))
    else:
        show(findings, console)
    if not findings.good:
        raise typer.Exit(1)

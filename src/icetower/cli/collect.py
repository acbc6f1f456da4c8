"""`icetower collect`: a PySpark job, run from a terminal or from cron."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from icetower.cli.mediate import (
    COLUMNS,
    Every,
    Follow,
    as_json_line,
    cells,
    contracts_for,
    in_words,
    lags_to,
    own_contract,
)
from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say
from icetower.errors import UsageError


@spark_errors("interrupted; committed batches stay, and the next run continues from there")
def collect(
    deltas: Annotated[str, typer.Option(help="The delta table, namespace.table.")],
    target: Annotated[str, typer.Option(help="The table that changes are folded into, namespace.table.")],
    keys: Annotated[str, typer.Option(help="Columns that identify a row, by commas.")],
    uri: Uri = DEFAULT_URI,
    contracts: Annotated[
        Path | None,
        typer.Option(help="Folder of the agents' contracts; without it, an administrator's run uses those in force."),
    ] = None,
    system: Annotated[str, typer.Option(help="Namespace of the collector's logs.")] = "system",
    compact: Annotated[
        bool, typer.Option("--compact", help="Then rewrite the table's files that have deletion vectors.")
    ] = False,
    reread: Annotated[
        bool, typer.Option("--reread", help="Take all deltas if they cannot be read from the end of the progress.")
    ] = False,
    snapshots_max: Annotated[
        int, typer.Option(min=1, help="The most snapshots of the delta table that one batch takes.")
    ] = 10_000,
    follow: Follow = False,
    every_s: Every = 5.0,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Fold a delta table into its table, batch by batch.

    The change of a row with the latest _event_time wins. Every change is checked against the contract of the agent
    that wrote it; duplicates are dropped by key. It may be killed at any point and run again, and two runs at once are
    safe.

    \b
    Example:
      icetower collect --deltas shop.stock_deltas --target shop.stock --keys store,item --contracts contracts/
      icetower collect --deltas shop.stock_deltas --target shop.stock --keys store,item --follow
    """
    if follow and compact:
        raise UsageError("--compact is what a run ends with, and --follow does not end: leave out one of them")
    need_spark()
    from icetower.pipelines import collector
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.wal_follow import Follower
    from icetower.pipelines.wal_mediator import Job

    def current() -> list[Job]:
        """The job under the contracts of this moment."""
        return [
            Job(
                wal=f"{CATALOG}.{deltas}",
                target=f"{CATALOG}.{target}",
                contracts=contracts_for(uri, contracts),
                system=f"{CATALOG}.{system}",
                merge_keys=tuple(key for key in keys.split(",") if key),
                snapshots_max=snapshots_max,
                reread=reread,
                own=own_contract(uri),
            )
        ]

    (job,) = current()
    lags = lags_to(uri, "collector")
    spark = job_session("icetower-collect", uri, master, conf)
    try:
        if follow:
            shown = as_json_line if as_json else in_words
            follower = Follower(spark, current, shown, every_s=every_s, on_lag=lags, work=collector.collect)
            follower.follow(threading.Event().wait)
        else:
            _once(lags.after(partial(collector.collect, spark, job), job), as_json=as_json)
        if compact:
            _compact(spark, target, as_json=as_json)
    finally:
        spark.stop()


def _once(fold: Callable[[], Any], *, as_json: bool) -> None:
    """Fold batch by batch until nothing is new."""
    rows = Table(*COLUMNS)
    with waiting("collecting"):
        while (done := fold()).status == "applied":
            if as_json:
                say(json.dumps(done.to_json()))
            rows.add_row(*cells(done))
    deltas, target = (name.partition(".")[2] for name in (done.wal, done.target))
    rows.title = f"{deltas} → {target}"
    if rows.row_count and not as_json:
        show(rows)
    elif not as_json:
        say(f"{deltas} has nothing new for {target}")


def _compact(spark: Any, target: str, *, as_json: bool) -> None:
    from icetower.pipelines import collector
    from icetower.pipelines.session import CATALOG

    with waiting("compacting"):
        rewritten = collector.compact(spark, f"{CATALOG}.{target}")
    if as_json:
        say(json.dumps({"status": "compacted", "target": target, **rewritten}))
        return
    before, after = rewritten["rewritten_data_files"], rewritten["added_data_files"]
    say(f"{target}: {before} data files rewritten as {after}")

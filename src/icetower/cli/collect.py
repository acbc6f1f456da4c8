"""`icetower collect`: a PySpark job, run from a terminal or from cron."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from icetower.cli.mediate import COLUMNS, cells, contracts_for, own_contract
from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say


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
    tombstones_s: Annotated[
        int, typer.Option(min=0, help="For so many seconds, a delete wins over an older upsert that comes later.")
    ] = 7 * 86400,
    compact: Annotated[
        bool, typer.Option("--compact", help="Then rewrite the table's files that have deletion vectors.")
    ] = False,
    reread: Annotated[
        bool, typer.Option("--reread", help="Take all deltas if they cannot be read from the end of the progress.")
    ] = False,
    snapshots_max: Annotated[
        int, typer.Option(min=1, help="The most snapshots of the delta table that one batch takes.")
    ] = 10_000,
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
    """
    need_spark()
    from icetower.pipelines import collector
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.wal_mediator import Job

    job = Job(
        wal=f"{CATALOG}.{deltas}",
        target=f"{CATALOG}.{target}",
        contracts=contracts_for(uri, contracts),
        system=f"{CATALOG}.{system}",
        merge_keys=tuple(key for key in keys.split(",") if key),
        snapshots_max=snapshots_max,
        reread=reread,
        own=own_contract(uri),
    )
    spark = job_session("icetower-collect", uri, master, conf)
    rows = Table(*COLUMNS, title=f"{deltas} → {target}")
    rewritten = None
    try:
        with waiting("collecting"):
            changes = collector.Changes(job, tombstones_s)
            while (done := collector.collect(spark, changes)).status == "applied":
                if as_json:
                    say(json.dumps(done.to_json()))
                rows.add_row(*cells(done))
            if compact:
                rewritten = collector.compact(spark, job.target)
    finally:
        spark.stop()
    if as_json:
        if rewritten is not None:
            say(json.dumps({"status": "compacted", "target": target, **rewritten}))
        return
    if rows.row_count:
        show(rows)
    else:
        say(f"{deltas} has nothing new for {target}")
    if rewritten is not None:
        before, after = rewritten["rewritten_data_files"], rewritten["added_data_files"]
        say(f"{target}: {before} data files rewritten as {after}")

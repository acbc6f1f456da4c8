"""`icetower mediate` and `icetower orphans`: the PySpark jobs, run from a terminal or from cron."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.terminal import say
from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mediate(
    wal: Annotated[str, typer.Option(help="The write-ahead log, namespace.table.")],
    target: Annotated[str, typer.Option(help="The table that it goes to, namespace.table.")],
    uri: Uri = DEFAULT_URI,
    contracts: Annotated[
        Path | None, typer.Option(help="Folder of the agents' contracts; without it, those in force at the tower.")
    ] = None,
    system: Annotated[str, typer.Option(help="Namespace of the mediator's logs.")] = "system",
    merge_keys: Annotated[str, typer.Option(help="Columns, by commas: upsert by them instead of inserting.")] = "",
    as_json: Json = False,
) -> None:
    """Apply a write-ahead log to its table, batch by batch, until all of it is read.

    Every row is judged by the contract of the agent that wrote it; duplicates are dropped by key. It may be killed at
    any point and run again, and two at once are safe.
    """
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.wal_mediator import Job, load_contracts
    from icetower.pipelines.wal_mediator import mediate as apply_batch

    in_force = load_contracts(contracts) if contracts is not None else _contracts_in_force(uri)
    spark = _session("icetower-mediate", uri)
    job = Job(
        wal=f"{CATALOG}.{wal}",
        target=f"{CATALOG}.{target}",
        contracts=in_force,
        system=f"{CATALOG}.{system}",
        merge_keys=tuple(key for key in merge_keys.split(",") if key),
    )
    rows = Table("batch", "read", "applied", "duplicates", "rejected", "snapshot", title=f"{wal} → {target}")
    try:
        with _waiting("mediating"):
            while (done := apply_batch(spark, job)).status == "applied":
                if as_json:
                    say(json.dumps(done.to_json()))
                counts = (done.read, done.applied, done.duplicates, done.rejected, done.committed_snapshot)
                rows.add_row(done.batch, *(str(count) for count in counts))
    finally:
        spark.stop()
    if not as_json:
        Console().print(rows if rows.row_count else f"{wal} has nothing new for {target}")


def _contracts_in_force(uri: str) -> dict[str, Contract]:
    with connect(uri) as tower:
        versions = tower.contracts()
    return {v["name"]: load(v["text"], source=f"contract {v['name']}") for v in versions if v["text"] is not None}


def _session(name: str, uri: str) -> SparkSession:
    try:
        from icetower.pipelines.session import spark_session
    except ImportError as error:
        raise ConfigurationError("this command needs Spark: install icetower[spark]") from error
    with connect(uri) as tower:
        token = tower.pyiceberg_properties().get("token")
    return spark_session(name, catalog_uri=uri, token=token)


def _waiting(what: str) -> Progress:
    progress = Progress(
        SpinnerColumn(), TextColumn(what), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )
    progress.add_task(what, total=None)
    return progress


def orphans(
    tables: Annotated[list[str], typer.Argument(help="Tables, namespace.table.")],
    uri: Uri = DEFAULT_URI,
    older_than_s: Annotated[
        float, typer.Option(help="Leave younger files out: a writer may still be at work.")
    ] = 86400,
    as_json: Json = False,
) -> None:
    """Report the files of tables that no snapshot and no metadata names, and who wrote them. Nothing is deleted."""
    from icetower.pipelines.orphans import find_orphans
    from icetower.pipelines.session import CATALOG

    spark = _session("icetower-orphans", uri)
    shown = Table("table", "file", "bytes", "modified", "agent")
    count = size_bytes = 0
    try:
        for name in tables:
            with _waiting(f"looking through {name}"):
                found = find_orphans(spark, f"{CATALOG}.{name}", older_than_s=older_than_s).collect()
            for row in found:
                count, size_bytes = count + 1, size_bytes + row.size_bytes
                if as_json:
                    say(json.dumps({"table": name, **row.asDict()}, default=str))
                shown.add_row(name, row.path, f"{row.size_bytes:,}", str(row.modified_at), row.agent or "")
    finally:
        spark.stop()
    if not as_json:
        if count:
            Console().print(shown)
        say(f"{count} orphaned files, {size_bytes:,} bytes, in {len(tables)} tables")

"""`icetower mediate`: write-ahead logs, merged into their tables once or as long as it runs."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say, warn
from icetower.cli.times import duration_s, pause_of, seconds_of
from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.counting import counted, number_of
from icetower.errors import (
    BadRequest,
    ConfigurationError,
    Forbidden,
    IcetowerError,
    NotAuthenticated,
    NotFound,
    UsageError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icetower.pipelines.reports import LagReports
    from icetower.pipelines.wal_follow import Failure
    from icetower.pipelines.wal_mediator import Job, Mediation
    from icetower.pipelines.wal_pruning import Pruned

COLUMNS = ("batch", "read", "applied", "superseded", "duplicates", "rejected", "snapshot", "lag")
"""The columns of the table that `mediate` prints."""

Follow = Annotated[bool, typer.Option("--follow/--once", help="Run on and apply what comes, or end when all is read.")]
Every = Annotated[
    float,
    typer.Option(
        "--every",
        "--every-s",
        parser=pause_of,
        metavar="TIME",
        help="With --follow: for how long rows are collected into a batch, such as 5s or 1m.",
    ),
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One log and its target, as the options or a table of a jobs file say."""

    wal: str
    target: str
    merge_keys: tuple[str, ...] = ()
    window_column: str | None = None
    window_s: int = 86400
    order_by: str | None = None


@spark_errors("interrupted; committed batches stay, and the next run continues from there")
def mediate(
    wal: Annotated[str | None, typer.Option(help="The write-ahead log, namespace.table.")] = None,
    target: Annotated[str | None, typer.Option(help="The table that it is merged into, namespace.table.")] = None,
    jobs: Annotated[
        Path | None, typer.Option(help="In place of both: a TOML file with one [[mediate]] for each log.")
    ] = None,
    uri: Uri = DEFAULT_URI,
    contracts: Annotated[
        Path | None,
        typer.Option(help="Folder of the agents' contracts; without it, an administrator's run uses those in force."),
    ] = None,
    system: Annotated[str, typer.Option(help="Namespace of the mediator's logs.")] = "system",
    merge_keys: Annotated[str, typer.Option(help="Columns, by commas: upsert by them instead of inserting.")] = "",
    window_column: Annotated[
        str | None,
        typer.Option(help="Timestamp column that limits where duplicates are searched."),
    ] = None,
    window_s: Annotated[
        float,
        typer.Option(
            "--window",
            "--window-s",
            parser=seconds_of,
            metavar="TIME",
            help="With --window-column: how far back, such as 1d.",
        ),
    ] = 86400,
    reread: Annotated[
        bool, typer.Option("--reread", help="Take the whole log if it cannot be read from the end of the progress.")
    ] = False,
    order_by: Annotated[
        str | None,
        typer.Option(help="With --merge-keys: column that orders versions of a row if the log has lost their order."),
    ] = None,
    snapshots_max: Annotated[int, typer.Option(min=1, help="The most snapshots of the log in one batch.")] = 10_000,
    rows_max: Annotated[
        int, typer.Option(min=1, help="The most rows in one batch, as long as no single commit has more.")
    ] = 1_000_000,
    follow: Follow = False,
    every_s: Every = 5.0,
    prune_older: Annotated[
        str | None,
        typer.Option(help="Remove merged rows from the log that landed longer ago, such as 24h; by default none."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Apply write-ahead logs to their tables, batch by batch.

    Every row is checked against the contract of the agent that wrote it; duplicates are dropped by key. It may be
    killed at any point and run again, and two runs at once are safe.

    \b
    Example:
      icetower mediate --wal shop.sales_log --target shop.sales --merge-keys id --contracts contracts/
      icetower mediate --jobs mediate.toml --follow --prune-older 24h
    """
    wanted = _wanted(jobs, wal, target, merge_keys, window_column, int(window_s), order_by)
    keep_s = None if prune_older is None else duration_s(prune_older, "--prune-older")
    need_spark()
    from icetower.pipelines.wal_follow import Follower

    bounds = {"snapshots_max": snapshots_max, "rows_max": rows_max}
    current = partial(_jobs, wanted, uri, contracts, system, bounds, reread=reread)
    first = current()  # what is wrong with the contracts shows before Spark starts
    lags = lags_to(uri, "wal")
    spark = job_session("icetower-mediate", uri, master, conf)
    try:
        if follow:
            shown = as_json_line if as_json else in_words
            follower = Follower(spark, current, shown, every_s=every_s, keep_s=keep_s, on_lag=lags)
            follower.follow(threading.Event().wait)
        else:
            _once(spark, first, keep_s, lags, as_json=as_json)
    finally:
        spark.stop()


def _jobs(
    wanted: list[Wanted],
    uri: str,
    contracts: Path | None,
    system: str,
    bounds: Mapping[str, int],
    *,
    reread: bool,
) -> list[Job]:
    """The jobs under the contracts of this moment."""
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.wal_mediator import Job, Window

    in_force = contracts_for(uri, contracts)
    own = own_contract(uri)
    return [
        Job(
            wal=f"{CATALOG}.{each.wal}",
            target=f"{CATALOG}.{each.target}",
            contracts=in_force,
            system=f"{CATALOG}.{system}",
            merge_keys=each.merge_keys,
            window=Window(each.window_column, each.window_s) if each.window_column else None,
            reread=reread,
            order_by=each.order_by,
            own=own,
            **bounds,
        )
        for each in wanted
    ]


def _wanted(
    jobs: Path | None,
    wal: str | None,
    target: str | None,
    merge_keys: str,
    window_column: str | None,
    window_s: int,
    order_by: str | None,
) -> list[Wanted]:
    """The logs to mediate. Raises `UsageError` for options that contradict each other."""
    if jobs is not None:
        if wal or target or merge_keys or window_column or order_by:
            raise UsageError(
                "--jobs names logs, targets, merge keys, windows and orders: leave out --wal, --target, --merge-keys, "
                "--window-column and --order-by"
            )
        return read_jobs(jobs)
    if wal is None or target is None:
        raise UsageError("name the log and its table, --wal and --target, or a file with several, --jobs")
    keys = tuple(key for key in merge_keys.split(",") if key)
    return [Wanted(wal, target, keys, window_column, window_s, order_by)]


def read_jobs(path: Path) -> list[Wanted]:
    """The tables ``[[mediate]]`` of a file, with the keys of `Wanted`. Raises `ConfigurationError`."""
    try:
        read: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"--jobs {path} cannot be read: {error}") from error
    tables = read.get("mediate")
    if not isinstance(tables, list) or not tables or read.keys() != {"mediate"}:
        raise ConfigurationError(f"--jobs {path} must have tables [[mediate]], at least one, and nothing else")
    return [_job(table, f"--jobs {path}, [[mediate]] number {number}") for number, table in enumerate(tables, 1)]


def _job(table: Any, where: str) -> Wanted:
    known = [field.name for field in fields(Wanted)]
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} is no table")
    for name, value in table.items():
        if name not in known:
            raise ConfigurationError(f"{where} has {name!r}; known are {', '.join(known)}")
        fits = {
            "merge_keys": isinstance(value, list) and all(isinstance(each, str) for each in value),
            "window_s": isinstance(value, int) and not isinstance(value, bool) and value > 0,
        }.get(name, isinstance(value, str))
        if not fits:
            raise ConfigurationError(f"{where}: {name} = {value!r} must be {_KINDS.get(name, 'a text')}")
    if missing := {"wal", "target"} - table.keys():
        raise ConfigurationError(f"{where} lacks {' and '.join(sorted(missing))}")
    chosen: dict[str, Any] = {**table, "merge_keys": tuple(table.get("merge_keys", ()))}
    return Wanted(**chosen)


_KINDS = {"merge_keys": "a list of columns", "window_s": "a whole number of seconds above 0"}


def _once(spark: SparkSession, jobs: list[Job], keep_s: float | None, lags: LagReports, *, as_json: bool) -> None:
    from icetower.pipelines.wal_logs import Logs
    from icetower.pipelines.wal_mediator import mediate as apply_batch
    from icetower.pipelines.wal_pruning import prune

    for job in jobs:
        wal, target = (name.partition(".")[2] for name in (job.wal, job.target))
        rows = Table(*COLUMNS, title=f"{wal} → {target}")
        with waiting(f"mediating {wal}"):
            batch = lags.after(partial(apply_batch, spark, job), job)
            while (done := batch()).status == "applied":
                if as_json:
                    say(json.dumps(done.to_json()))
                rows.add_row(*cells(done))
        if as_json:
            continue
        if rows.row_count:
            show(rows)
        else:
            say(f"{wal} has nothing new for {target}")
    if keep_s is None:
        return
    for wal in dict.fromkeys(job.wal for job in jobs):
        targets = [job.target for job in jobs if job.wal == wal]
        with waiting(f"pruning {wal.partition('.')[2]}"):
            pruned = prune(spark, wal, targets, Logs(spark, jobs[0].logs_in), keep_s=keep_s)
        say(json.dumps(pruned.to_json()) if as_json else _pruned(pruned))


def cells(done: Mediation) -> list[str]:
    """A batch's row in the printed table: every row that was read is counted in one of the columns after `read`."""
    counts = (done.read, done.applied, done.superseded, done.duplicates, done.rejected, done.committed_snapshot)
    lag = "" if done.lag_max_ms is None else f"{done.lag_max_ms / 1000:.1f} s"
    return [*(str(each) for each in (done.batch, *counts)), lag]


def as_json_line(event: Mediation | Pruned | Failure) -> None:
    say(json.dumps(event.to_json()))


def in_words(event: Any) -> None:
    """One line for each batch and pruning on standard output, and for each failure on standard error."""
    wal, target = (str(getattr(event, name, "")).partition(".")[2] for name in ("wal", "target"))
    match type(event).__name__:
        case "Failure":
            wal, target = event.job.wal.partition(".")[2], event.job.target.partition(".")[2]
            warn(f"{wal} → {target}: {event.error}; again in {event.again_in_s:.0f} s")
        case "Pruned":
            say(_pruned(event))
        case _:
            parts = [f"{number:,} {name}" for name in COLUMNS[2:6] if (number := getattr(event, name))]
            lag = ""
            if event.lag_max_ms is not None:
                lag = f"; lag {event.lag_median_ms / 1000:.1f} s, at most {event.lag_max_ms / 1000:.1f} s"
            say(f"{wal} → {target}: {number_of(event.read, 'row')}, {', '.join(parts)}{lag}")


def lags_to(uri: str, kind: Literal["wal", "collector"]) -> LagReports:
    """What tells a tower how far a job's tables are behind; says so once where it may not."""
    from icetower.pipelines.reports import LagReports

    def refused(error: IcetowerError) -> None:
        warn(f"the tower is not told how far tables are behind: {error.message}")

    return LagReports(partial(connect, uri), kind, refused)


def _pruned(done: Pruned) -> str:
    wal = done.wal.partition(".")[2]
    if done.snapshot is None:
        return f"{wal} has nothing to prune"
    return f"{wal}: {number_of(done.rows, 'merged row')} pruned in {counted(done.files, 'file')}"


def contracts_for(uri: str, folder: Path | None) -> dict[str, Contract]:
    """The agents' contracts: those of a folder, or else those in force, which an administrator is shown."""
    return _contracts_of_the_tower(uri) if folder is None else _contracts_in(folder)


def _contracts_in(folder: Path) -> dict[str, Contract]:
    """The contracts in a folder's ``*.yaml`` files, by agent. Raises `BadRequest` for an invalid one."""
    if not folder.is_dir():
        raise UsageError(f"--contracts {folder} is not a folder; name the one with the agents' YAML files")
    contracts: dict[str, Contract] = {}
    for path in sorted(folder.glob("*.y*ml")):
        contract = load(path.read_text(encoding="utf-8"), source=path.name)
        if contract.name in contracts:
            raise BadRequest(f"{path.name}: there is a second contract of {contract.name}; keep one", rule="contract")
        contracts[contract.name] = contract
    return contracts


def _contracts_of_the_tower(uri: str) -> dict[str, Contract]:
    """The contracts in force. Raises `Forbidden` unless the caller is an administrator."""
    try:
        return contracts_in_force(uri)
    except Forbidden as error:
        raise Forbidden(
            f"{error.message}, and the tower shows all contracts to administrators only: give --contracts FOLDER with "
            "the agents' contracts, or run this as an administrator",
            rule="permission.administrator",
        ) from error


def contracts_in_force(uri: str) -> dict[str, Contract]:
    with connect(uri) as tower:
        versions = tower.contracts()
    return {v["name"]: load(v["text"], source=f"contract {v['name']}") for v in versions if v["text"] is not None}


def own_contract(uri: str) -> Contract | None:
    """The contract of the job's principal; None for an administrator, and if the catalog is not a tower."""
    with connect(uri) as tower:
        try:
            me = tower.me()
        except (NotFound, NotAuthenticated):
            # Another catalog; or one whose credential is in ICETOWER_CREDENTIAL, for which the session gets a token.
            return None
    return None if me["text"] is None else load(me["text"], source=f"contract {me['contract']}")

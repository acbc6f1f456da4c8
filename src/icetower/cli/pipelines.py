"""`icetower mediate` and `icetower orphans`: PySpark jobs, run from a terminal or from cron."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say
from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.counting import counted, number_of
from icetower.errors import BadRequest, Forbidden, NotAuthenticated, NotFound, UsageError
from icetower.texts import escaped

if TYPE_CHECKING:
    from icetower.pipelines.cleanup import Clauses
    from icetower.pipelines.wal_mediator import Mediation

COLUMNS = ("batch", "read", "applied", "superseded", "duplicates", "rejected", "snapshot")
"""The columns of the table that `mediate` prints."""


@spark_errors("interrupted; committed batches stay, and the next run continues from there")
def mediate(
    wal: Annotated[str, typer.Option(help="The write-ahead log, namespace.table.")],
    target: Annotated[str, typer.Option(help="The table that it is merged into, namespace.table.")],
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
    window_s: Annotated[int, typer.Option(help="With --window-column: how far back, in seconds.")] = 86400,
    reread: Annotated[
        bool, typer.Option("--reread", help="Take the whole log if it cannot be read from the end of the progress.")
    ] = False,
    order_by: Annotated[
        str | None,
        typer.Option(help="With --merge-keys: column that orders versions of a row if the log has lost their order."),
    ] = None,
    snapshots_max: Annotated[
        int, typer.Option(min=1, help="The most snapshots of the log that one batch takes.")
    ] = 10_000,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Apply a write-ahead log to its table, batch by batch.

    Every row is checked against the contract of the agent that wrote it; duplicates are dropped by key. It may be
    killed at any point and run again, and two runs at once are safe.

    \b
    Example:
      icetower mediate --wal shop.sales_log --target shop.sales --merge-keys id --contracts contracts/
    """
    need_spark()
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.wal_mediator import Job, Window
    from icetower.pipelines.wal_mediator import mediate as apply_batch

    in_force = _contracts_in(contracts) if contracts is not None else _contracts_of_the_tower(uri)
    spark = job_session("icetower-mediate", uri, master, conf)
    job = Job(
        wal=f"{CATALOG}.{wal}",
        target=f"{CATALOG}.{target}",
        contracts=in_force,
        system=f"{CATALOG}.{system}",
        merge_keys=tuple(key for key in merge_keys.split(",") if key),
        window=Window(window_column, window_s) if window_column else None,
        snapshots_max=snapshots_max,
        reread=reread,
        order_by=order_by,
        own=_own_contract(uri),
    )
    rows = Table(*COLUMNS, title=f"{wal} → {target}")
    try:
        with waiting("mediating"):
            while (done := apply_batch(spark, job)).status == "applied":
                if as_json:
                    say(json.dumps(done.to_json()))
                rows.add_row(*cells(done))
    finally:
        spark.stop()
    if not as_json:
        if rows.row_count:
            show(rows)
        else:
            say(f"{wal} has nothing new for {target}")


def cells(done: Mediation) -> list[str]:
    """A batch's row in the printed table: every row that was read is counted in one of the columns after `read`."""
    counts = (done.read, done.applied, done.superseded, done.duplicates, done.rejected, done.committed_snapshot)
    return [str(each) for each in (done.batch, *counts)]


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
        return _contracts_in_force(uri)
    except Forbidden as error:
        raise Forbidden(
            f"{error.message}, and the tower shows all contracts to administrators only: give --contracts FOLDER with "
            "the agents' contracts, or run this as an administrator",
            rule="permission.administrator",
        ) from error


def _contracts_in_force(uri: str) -> dict[str, Contract]:
    with connect(uri) as tower:
        versions = tower.contracts()
    return {v["name"]: load(v["text"], source=f"contract {v['name']}") for v in versions if v["text"] is not None}


def _own_contract(uri: str) -> Contract | None:
    """The contract of the job's principal; None for an administrator, and if the catalog is not a tower."""
    with connect(uri) as tower:
        try:
            me = tower.me()
        except (NotFound, NotAuthenticated):
            # Another catalog; or one whose credential is in ICETOWER_CREDENTIAL, for which the session gets a token.
            return None
    return None if me["text"] is None else load(me["text"], source=f"contract {me['contract']}")


@spark_errors("interrupted; run it again to see which files are left")
def orphans(
    tables: Annotated[list[str], typer.Argument(help="Tables, namespace.table.")],
    uri: Uri = DEFAULT_URI,
    older_than_s: Annotated[
        float,
        typer.Option(help="Leave out younger files, unless a contract sets the age: a writer may still be at work."),
    ] = 86400,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; show what would be deleted.")] = False,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Find the files of tables that no metadata refers to.

    It shows their writers, as far as they are known.

    For an administrator it deletes a file if its writer's contract has `action: delete`, and reports it otherwise; for
    other callers it only reports. Exit status 1: a file that should be deleted was kept.

    \b
    Example:
      icetower orphans shop.sales --dry-run
    """
    need_spark()
    from icetower.pipelines.cleanup import Disposition, clean
    from icetower.pipelines.session import CATALOG

    clauses = _clauses(uri)
    spark = job_session("icetower-orphans", uri, master, conf)
    shown = Table("table", "file", "bytes", "modified", "agent", "outcome")
    counts: Counter[Disposition] = Counter()
    size_bytes = 0
    try:
        names = [f"{CATALOG}.{name}" for name in tables]
        with waiting("looking for orphans"):
            found = clean(spark, names, clauses, older_than_s=older_than_s, dry_run=dry_run)
            for each in found:
                counts[each.fate] += 1
                size_bytes += each.size_bytes
                table, fate = each.table.removeprefix(f"{CATALOG}."), each.why or each.fate
                if as_json:
                    say(json.dumps({"table": table, **each.to_json()}))
                modified = f"{each.modified_at:%Y-%m-%d %H:%M:%S}"
                shown.add_row(
                    escaped(table),
                    escaped(each.path),
                    f"{each.size_bytes:,}",
                    modified,
                    escaped(each.agent or ""),
                    escaped(fate),
                )
    finally:
        spark.stop()
    if not as_json:
        if counts:
            show(shown)
        ends = "".join(f"; {count} {fate}" for fate, count in sorted(counts.items()))
        say(
            f"{number_of(counts.total(), 'orphaned file')}, {number_of(size_bytes, 'byte')}, "
            f"in {counted(len(tables), 'table')}{ends}"
        )
    if counts[Disposition.KEPT]:
        raise typer.Exit(1)


def _clauses(uri: str) -> Clauses:
    """The clauses about orphans of the contracts in force; none if the caller is not an administrator."""
    from icetower.pipelines.cleanup import NO_CLAUSES, Clauses

    with connect(uri) as tower:
        if not tower.me()["administrator"]:
            return NO_CLAUSES
        bound = {record["name"]: record["contract"] for record in tower.principals()}
    contracts = _contracts_in_force(uri)
    return Clauses({name: contracts[contract] for name, contract in bound.items() if contract in contracts})

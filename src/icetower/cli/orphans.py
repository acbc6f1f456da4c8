"""`icetower orphans`: a PySpark job, run from a terminal or from cron."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from icetower.cli.mediate import contracts_in_force
from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say
from icetower.cli.times import seconds_of
from icetower.counting import counted, number_of
from icetower.texts import escaped

if TYPE_CHECKING:
    from icetower.pipelines.cleanup import Clauses


@spark_errors("interrupted; run it again to see which files are left")
def orphans(
    tables: Annotated[list[str], typer.Argument(help="Tables, namespace.table.")],
    uri: Uri = DEFAULT_URI,
    older_than_s: Annotated[
        float,
        typer.Option(
            "--older-than",
            "--older-than-s",
            parser=seconds_of,
            metavar="TIME",
            help="Leave out younger files, unless a contract sets the age: a writer may still be at work. Such as 1d.",
        ),
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
    left: dict[str, list[tuple[str, int]]] = {table: [] for table in tables}
    size_bytes = 0
    try:
        names = [f"{CATALOG}.{name}" for name in tables]
        with waiting("looking for orphans"):
            found = clean(spark, names, clauses, older_than_s=older_than_s, dry_run=dry_run)
            for each in found:
                counts[each.fate] += 1
                size_bytes += each.size_bytes
                table, fate = each.table.removeprefix(f"{CATALOG}."), each.why or each.fate
                if each.fate is not Disposition.DELETED:
                    left[table].append((each.principal or "", each.size_bytes))
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
    _report(uri, left)
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


def _report(uri: str, left: Mapping[str, list[tuple[str, int]]]) -> None:
    """Tell the tower what is left, if the caller is an administrator."""
    from icetower.pipelines.reports import report_orphans

    with connect(uri) as tower:
        if tower.me()["administrator"]:
            report_orphans(tower, left)


def _clauses(uri: str) -> Clauses:
    """The clauses about orphans of the contracts in force; none if the caller is not an administrator."""
    from icetower.pipelines.cleanup import NO_CLAUSES, Clauses

    with connect(uri) as tower:
        if not tower.me()["administrator"]:
            return NO_CLAUSES
        bound = {record["name"]: record["contract"] for record in tower.principals()}
    contracts = contracts_in_force(uri)
    return Clauses({name: contracts[contract] for name, contract in bound.items() if contract in contracts})

"""`icetower audits`: the histories of many tables, audited on Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from icetower.agent import Tower
from icetower.audit.auditor import Options
from icetower.audit.checkpoint import Checkpoint
from icetower.cli.audit import FOUND
from icetower.cli.registry import DEFAULT_URI, Uri, tell_tower
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.tables import StorageOptions, pairs
from icetower.errors import UsageError

REPORTED_MAX = 1_000
"""Tables, and findings, that the tower is told of."""
WITNESS_CHARACTERS_MAX = 1_000


@spark_errors("interrupted; tables whose findings were printed are not audited again from their beginning")
def audits(
    tables: Annotated[list[str], typer.Argument(help="Tables, namespace.table.")],
    uri: Uri = DEFAULT_URI,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="A folder: continue where each table's last audit ended, and record this one's end."),
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Open delete files, and data files with row ids, for proof.")
    ] = False,
    storage: StorageOptions = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Annotated[bool, typer.Option("--json", help="As without it: each line is JSON.")] = False,
) -> None:
    """Audit the histories of many tables on Spark, side by side.

    Prints one JSON object for each table: `table`, `head`, `snapshots`, `violations`, `undeterminable`, `error`. A
    table that cannot be read has an `error`, and the others continue. Exit status: 0 no violation; 3 a definite one;
    1 a table could not be audited; 2 wrong usage.

    \b
    Example:
      icetower audits shop.sales shop.prices --checkpoints /var/audits
    """
    del as_json
    need_spark()
    from icetower.pipelines.audits import AuditSettings, audit_tables, heads
    from icetower.pipelines.session import CATALOG

    if checkpoints is not None and not checkpoints.is_dir():
        raise UsageError(f"--checkpoints {checkpoints} is not a folder: create it first")
    settings = AuditSettings(Options(content=content), pairs(storage or (), "--storage"))
    # A file as `icetower audit --checkpoint` keeps it.
    files = {} if checkpoints is None else {f"{CATALOG}.{table}": checkpoints / f"{table}.json" for table in tables}
    kept = {name: file.read_text() for name, file in files.items() if file.exists()}
    spark = job_session("icetower-audits", uri, master, conf)
    audited: dict[str, bool] = {}
    findings: dict[tuple[str, str, str], dict[str, Any]] = {}
    wrong = failed = False
    try:
        named = {f"{CATALOG}.{table}": kept.get(f"{CATALOG}.{table}") for table in tables}
        with waiting("auditing"):
            for row in audit_tables(heads(spark, named), settings).toLocalIterator():
                found = row.asDict(recursive=True)
                wrong |= any(violation["verdict"] == "definite" for violation in found["violations"])
                failed |= found["error"] is not None
                checkpoint, file = found.pop("checkpoint"), files.get(found["table"])
                found["table"] = found["table"].removeprefix(f"{CATALOG}.")
                if found["error"] is None:
                    audited[found["table"]] = f"{CATALOG}.{found['table']}" not in kept
                for each in found["violations"]:
                    name = (found["table"], each["rule"], each["verdict"])
                    first = dict(zip(("table", "rule", "verdict"), name, strict=True))
                    first |= {"times": 0, "witness": " ".join(each["witness"])[:WITNESS_CHARACTERS_MAX]}
                    findings.setdefault(name, first)["times"] += 1
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()  # before the checkpoint: findings are reported twice rather than never
                if checkpoint is not None and file is not None:
                    Checkpoint.of_text(checkpoint, name=str(file)).keep(file)
    finally:
        spark.stop()
    _report(uri, audited, list(findings.values()))
    if wrong or failed:
        raise typer.Exit(FOUND if wrong else 1)


def _report(uri: str, audited: Mapping[str, bool], findings: list[dict[str, Any]]) -> None:
    """Tell the tower, for its page, if the caller is an administrator there."""

    def tell(tower: Tower) -> None:
        if tower.me()["administrator"]:
            tower.report_audit(dict(islice(audited.items(), REPORTED_MAX)), findings[:REPORTED_MAX])

    if audited:
        tell_tower(uri, "what was found", tell)

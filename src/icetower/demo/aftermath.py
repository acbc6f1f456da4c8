"""The steps after the agents have ended: mediate the log, look for orphans, and let Spark count everything.

One process with one Spark session: `python -m icetower.demo.aftermath`, its task as JSON on standard input, its result
as the last line of standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from icetower.demo import plan, tables
from icetower.demo.data import Totals
from icetower.demo.serving import Serving
from icetower.errors import IcetowerError

_AUDITED = "audited"
RECONCILED = (tables.PRICES, tables.STOCK, tables.INTERACTIONS)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The results.

    Attributes:
        orphans: locations of data files that no table refers to.
        orphaned_metadata: how many manifests and manifest lists nothing refers to. Clients whose commits were rebased
            leave them.
        recounted: totals by table, quantities as sold.
        left: by table, of each orphan the principal whose own folder it is in, else empty text, and its bytes.
        merged_rows: how many rows the mediator applied.
    """

    orphans: tuple[str, ...]
    orphaned_metadata: int
    left: Mapping[str, Sequence[tuple[str, int]]]
    recounted: Mapping[str, Totals]
    merged_rows: int


def run(folder: Path, serving: Serving, secrets: Mapping[str, str], days: int) -> Aftermath:
    """Run the steps in a process of their own that logs to `aftermath.log` in `folder`. Raises `IcetowerError`."""
    task = {"mediator": serving.catalog(secrets[plan.MEDIATOR]), "auditor": serving.catalog(secrets[plan.AUDITOR])}
    log = folder / "aftermath.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "icetower.demo.aftermath"],
            input=json.dumps({**task, "days": days}).encode(),
            stdout=subprocess.PIPE,
            stderr=stream,
            check=False,
        )
    if done.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise IcetowerError(f"the steps after the agents ended with status {done.returncode}; {log} ends:\n{tail}")
    result = json.loads(done.stdout.splitlines()[-1])
    recounted = {name: Totals(**totals) for name, totals in result["recounted"].items()}
    return Aftermath(
        tuple(result["orphans"]), result["orphaned_metadata"], result["left"], recounted, result["merged_rows"]
    )


def _recount(spark: Any, catalog: str) -> dict[str, Totals]:
    found: dict[str, Totals] = {}
    for name in RECONCILED:
        row = spark.sql(
            f"SELECT count(*), coalesce(sum(quantity), 0), coalesce(sum(sales_value), 0) * 100 FROM {catalog}.{name}"  # noqa: S608 - names of ours
        ).collect()[0]
        found[name] = Totals(row[0], -row[1] if name == tables.STOCK else row[1], int(row[2]))
    return found


def _orphans(spark: Any, catalog: str) -> dict[str, list[Any]]:
    """The orphans of each table, as rows."""
    from icetower.pipelines.orphans import find_orphans

    # Every agent has ended, so no commit is in flight: files of any age count.
    return {
        shape.name: find_orphans(spark, f"{catalog}.{shape.name}", older_than_s=0).collect() for shape in tables.SHAPES
    }


def main() -> None:
    # Imported here: the parent process needs this module, but no Spark.
    from icetower.pipelines.session import CATALOG, catalog_settings, spark_session
    from icetower.pipelines.wal_mediator import Job, mediate

    task = json.loads(sys.stdin.read())
    contracts = {
        agent.name: plan.contract_of(agent.name, task["days"]) for agent in plan.agents_of(tables.INTERACTIONS_WAL)
    }
    job = Job(f"{CATALOG}.{tables.INTERACTIONS_WAL}", f"{CATALOG}.{tables.INTERACTIONS}", contracts)
    # One session, two principals: the mediator need not see prices, and the auditor must not write.
    auditor = catalog_settings(_AUDITED, task["auditor"])
    spark = spark_session("icetower-demo", catalog=task["mediator"], settings=auditor)
    try:
        merged = 0
        while (mediation := mediate(spark, job)).status != "idle":
            merged += mediation.applied
        orphans = _orphans(spark, _AUDITED)
        recounted = {name: asdict(totals) for name, totals in _recount(spark, _AUDITED).items()}
    finally:
        spark.stop()
    paths = sorted(row["path"] for rows in orphans.values() for row in rows)
    data_files = [path for path in paths if path.endswith(".parquet")]
    result = {
        "orphans": data_files,
        "orphaned_metadata": len(paths) - len(data_files),
        "left": {name: [(row["agent"] or "", row["size_bytes"]) for row in rows] for name, rows in orphans.items()},
        "recounted": recounted,
        "merged_rows": merged,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

"""`icetower simulate sweep`: an experiment on Spark, restartable, with an Iceberg table of results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from icetower.cli.printing import show
from icetower.cli.registry import Json
from icetower.cli.simulate import Model, Seeds, needed, progress
from icetower.cli.spark import Conf, Master, job_session, need_spark, settings_of, spark_errors
from icetower.cli.terminal import say

SHOWN_MAX = 200
"""The most configurations that are shown at the end."""


@spark_errors("interrupted; the results so far are kept, and the same command goes on from there")
def sweep(
    experiment: Annotated[str, typer.Argument(help="1a, 1b, … of `list`, or a TOML file.")],
    table: Annotated[str, typer.Option(help="The table of results, namespace.table.")] = "simulator.sweeps",
    uri: Annotated[str, typer.Option(help="A tower for that table; without it, --warehouse is used.")] = "",
    warehouse: Annotated[Path, typer.Option(help="A folder for that table, without a catalog.")] = Path(
        ".icetower/sweeps"
    ),
    model: Model = None,
    seeds: Seeds = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Run an experiment on Spark, restartable at any point.

    Runs that are already in the table of results are not repeated.

    The executors need Icetower with its extra `simulator`, in the Python that PYSPARK_PYTHON names.

    \b
    Example:
      icetower simulate sweep 1a --warehouse sweeps
    """
    needed("pool")
    need_spark()
    from icetower.pipelines.session import CATALOG, spark_session
    from icetower.pipelines.sweep import sweep as run
    from icetower.pipelines.tables import quoted

    found = needed("experiments").load(experiment)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers run the python3 on their path
    if uri:
        spark = job_session("icetower-sweep", uri, master, conf)
    else:
        catalog = {"type": "hadoop", "warehouse": str(warehouse.absolute())}
        spark = spark_session("icetower-sweep", catalog=catalog, master=master, settings=settings_of(conf))
    try:
        with progress(quiet=as_json) as on_progress:
            name = run(spark, found, f"{CATALOG}.{table}", model=model, seeds=seeds, on_progress=on_progress)
        shown = Table("configuration", "runs", "commits a s", "success %", "p50 s", "p99 s", title=f"{table}: {name}")
        results = quoted(f"{CATALOG}.{table}")
        means = spark.sql(
            "select configuration, count(*) runs, avg(commits_per_s) c, avg(success_pct) s, avg(p50_s) p50, "  # noqa: S608
            f"avg(p99_s) p99 from {results} where sweep = '{name}' group by 1 order by 1 limit {SHOWN_MAX}"
        )
        rows = means.collect()
        if as_json:
            say(json.dumps({"sweep": name, "table": table, "configurations": [row.asDict() for row in rows]}))
            return
        for row in rows:
            shown.add_row(
                row["configuration"].strip("{}").replace('"', ""),
                str(row["runs"]),
                *("-" if row[column] is None else f"{row[column]:.3f}" for column in ("c", "s", "p50", "p99")),
            )
        show(shown)
        say(f"sweep {name} is complete in {table}")
    finally:
        spark.stop()

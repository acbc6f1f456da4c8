"""Runs an experiment of the simulator on Spark: runs spread over the executors, figures written to an Iceberg table.

Runs are done in portions, each of which is one commit. A job that is killed and started again finds the finished runs
in the table and does the rest: a run is identified by its sweep, its configuration and its seed. Several jobs may do
one sweep at once: a run that is in the table by then is not written again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import DoubleType, LongType, MapType, StringType, StructField, StructType

from icetower.errors import BadRequest, CommitConflict, CommitStateUnknown
from icetower.pipelines.tables import merge, private_session, quoted, translating_errors
from icetower_simulator.compiled import PROGRAM
from icetower_simulator.experiments import Experiment, run_row
from icetower_simulator.latencies import Provider
from icetower_simulator.pool import compile_now, run_one
from icetower_simulator.setup import Setup

FIGURES = ("commits_per_s", "success_pct", "p50_s", "p95_s", "p99_s", "mean_retries")
SCHEMA = StructType(
    [
        StructField("sweep", StringType(), nullable=False),
        StructField("experiment", StringType(), nullable=False),
        StructField("model", StringType(), nullable=False),
        StructField("configuration", StringType(), nullable=False),
        StructField("seed", LongType(), nullable=False),
        *(StructField(name, DoubleType()) for name in FIGURES),
        StructField("figures", MapType(StringType(), DoubleType())),
    ]
)
KEY = ("sweep", "configuration", "seed")
PORTION = 8
"""Runs for each processor in one commit."""
ATTEMPTS = 20
"""Attempts to write a portion into the table, where other jobs may write too."""

Job = tuple[str, int, Setup]
"""A configuration, a seed, and the setup."""


def sweep(
    spark: SparkSession,
    experiment: Experiment,
    table: str,
    *,
    model: str | None = None,
    seeds: int | None = None,
    portion: int = PORTION,
    on_progress: Callable[[int, int], None] | None = None,
) -> str:
    """Do all runs of an experiment that the table does not have yet. Returns the sweep's id.

    Args:
        table: of the results, catalog.namespace.table; created if it does not exist.
        portion: runs for each processor in one commit.
        on_progress: called with the number of runs, and the number of those in the table.

    Raises:
        ConfigurationError: a setup is invalid.
        BadRequest: the table has other columns than a sweep's (`system.columns`).
        CommitConflict, CommitStateUnknown: a portion could not be written to the table in `ATTEMPTS` attempts.
    """
    chosen = model or experiment.model
    jobs = _jobs(experiment, chosen, experiment.runs_each(seeds))
    name = sweep_id(experiment, chosen)
    translating_errors(f"creating {table}", lambda: _make(spark, table))
    left = _left(spark, table, name, jobs)
    if on_progress is not None:
        on_progress(len(jobs), len(jobs) - len(left))
    if left:
        compile_now({setup.pattern for _, _, setup in left})  # once, before all executors would do it
    size = portion * max(spark.sparkContext.defaultParallelism, 1)
    for start in range(0, len(left), size):
        _put(spark, experiment, chosen, name, table, left[start : start + size])
        if on_progress is not None:
            on_progress(len(jobs), len(jobs) - len(left) + min(start + size, len(left)))
    return name


def sweep_id(experiment: Experiment, model: str) -> str:
    """A digest of everything that the runs depend on: the experiment, the model, and the simulator itself."""
    parts = [experiment.name, experiment.window, model, PROGRAM]
    parts += [[configuration, asdict(setup)] for configuration, _, setup in _jobs(experiment, model, 1)]
    parts += [{name: asdict(provider) for name, provider in experiment.providers.items()}]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _jobs(experiment: Experiment, model: str, seeds: int) -> list[Job]:
    return [
        (json.dumps(swept, sort_keys=True), experiment.first_seed + number, setup)
        for swept, setup in experiment.points(model)
        for number in range(seeds)
    ]


def _make(spark: SparkSession, table: str) -> None:
    if spark.catalog.tableExists(quoted(table)):
        return
    spark.sql(f"create namespace if not exists {quoted(table.rpartition('.')[0])}")
    try:
        spark.createDataFrame([], SCHEMA).writeTo(quoted(table)).using("iceberg").create()
    except (PySparkException, Py4JError):
        if not spark.catalog.tableExists(quoted(table)):  # else another sweep has just created it
            raise


def _left(spark: SparkSession, table: str, name: str, jobs: Sequence[Job]) -> list[Job]:
    """The runs of a sweep that are not in the table yet."""

    def read() -> list[Row]:
        spark.catalog.refreshTable(quoted(table))
        rows = spark.table(quoted(table))
        kinds = {field.name: field.dataType for field in rows.schema}
        others = [field.name for field in SCHEMA if kinds.get(field.name) != field.dataType]
        if others:
            raise BadRequest(
                f"{table} has not the columns of a sweep: {', '.join(others)}. Give them back their names and types, "
                "or name another table",
                rule="system.columns",
            )
        return rows.where(f"sweep = '{name}'").select("configuration", "seed").collect()

    done = {(row["configuration"], row["seed"]) for row in translating_errors(f"reading {table}", read)}
    return [job for job in jobs if (job[0], job[1]) not in done]


def _put(spark: SparkSession, experiment: Experiment, model: str, name: str, table: str, jobs: Sequence[Job]) -> None:
    """Do the runs that the table does not have by now, and write them to it."""
    window, title, providers = experiment.window, experiment.name, dict(experiment.providers)

    def run(portion: Iterable[Job]) -> Iterator[tuple[Any, ...]]:
        for configuration, seed, setup in portion:
            yield (name, title, model, configuration, seed, *_figures(setup, seed, window, providers))

    left = _left(spark, table, name, jobs)
    if not left:
        return
    found = spark.sparkContext.parallelize(left, len(left)).mapPartitions(run).collect()
    private = private_session(spark)
    rows = private.createDataFrame(found, SCHEMA).coalesce(1)
    for more in reversed(range(ATTEMPTS)):
        try:
            merge(private, table, rows, KEY, where_target=f"t.sweep = '{name}'")
        except (CommitConflict, CommitStateUnknown):  # the merge does not write committed rows again
            if not more:
                raise
        else:
            return


def _figures(setup: Setup, seed: int, window: str, providers: Mapping[str, Provider]) -> tuple[Any, ...]:
    """The columns, and all figures as a map; an unknown figure is null, and is not in the map."""
    row = run_row(run_one(setup, seed, providers), window)
    known = {key: float(value) for key, value in row.items() if not math.isnan(value)}
    return (*(known.get(figure) for figure in FIGURES), known)

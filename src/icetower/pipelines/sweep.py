"""An experiment of the simulator on Spark: runs spread over the executors, their figures in an Iceberg table.

Runs are done in portions, each of which is one append. Whoever is killed and started again finds what is in the table,
and does the rest: a run is known by its sweep, its configuration and its seed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, MapType, StringType, StructField, StructType

from icetower.simulator.compiled import PROGRAM
from icetower.simulator.experiments import Experiment, run_row
from icetower.simulator.latencies import Provider
from icetower.simulator.pool import compile_now, one
from icetower.simulator.setup import Setup

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
PORTION = 8
"""Runs for each processor in one append."""

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
    told: Callable[[int, int], None] | None = None,
) -> str:
    """Do all runs of an experiment that the table does not have yet. Returns the sweep's id.

    Args:
        table: of the results, catalog.namespace.table; made if it isn't there.
        portion: runs for each processor in one append.
        told: is told how many runs there are, and how many of them are in the table.

    Raises:
        ConfigurationError: a setup is none.
    """
    chosen = model or experiment.model
    jobs = _jobs(experiment, chosen, seeds or experiment.seeds)
    name = sweep_id(experiment, chosen)
    _make(spark, table)
    found = spark.table(table).where(f"sweep = '{name}'").select("configuration", "seed").collect()
    done = {(row["configuration"], row["seed"]) for row in found}
    left = [job for job in jobs if (job[0], job[1]) not in done]
    if told is not None:
        told(len(jobs), len(jobs) - len(left))
    if left:
        compile_now({setup.pattern for _, _, setup in left})  # once, before all executors would do it
    size = portion * max(spark.sparkContext.defaultParallelism, 1)
    for start in range(0, len(left), size):
        _append(spark, experiment, chosen, name, table, left[start : start + size])
        if told is not None:
            told(len(jobs), len(jobs) - len(left) + min(start + size, len(left)))
    return name


def sweep_id(experiment: Experiment, model: str) -> str:
    """Stands for all that the runs depend on: the experiment, the model, and the simulator itself."""
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
    if spark.catalog.tableExists(table):
        return
    spark.sql(f"create namespace if not exists {table.rpartition('.')[0]}")
    spark.createDataFrame([], SCHEMA).writeTo(table).using("iceberg").createOrReplace()


def _append(
    spark: SparkSession, experiment: Experiment, model: str, name: str, table: str, jobs: Sequence[Job]
) -> None:
    window, title, providers = experiment.window, experiment.name, dict(experiment.providers)

    def run(portion: Iterable[Job]) -> Iterator[tuple[Any, ...]]:
        for configuration, seed, setup in portion:
            yield (name, title, model, configuration, seed, *_figures(setup, seed, window, providers))

    rows = spark.sparkContext.parallelize(list(jobs), len(jobs)).mapPartitions(run)
    spark.createDataFrame(rows, SCHEMA).coalesce(1).writeTo(table).append()


def _figures(setup: Setup, seed: int, window: str, providers: Mapping[str, Provider]) -> tuple[Any, ...]:
    """The columns, and all there is as a map; what is not known is null, or not in the map."""
    row = run_row(one(setup, seed, providers), window)
    known = {key: float(value) for key, value in row.items() if not math.isnan(value)}
    return (*(known.get(figure) for figure in FIGURES), known)

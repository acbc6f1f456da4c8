"""A Spark session for all tests of this room, over a catalog for each module in a temporary folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines.session import spark_session
from verify.kit.light_spark import LIGHT


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one module: maintenance and orphans read every table of a catalog, and would read those of all modules."""
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def spark(warehouse: Path) -> SparkSession:
    """A session of the Spark that there is, or of a new one: modules of other rooms stop theirs."""
    return spark_session(
        "icetower-tests",
        catalog={"type": "hadoop", "warehouse": str(warehouse)},
        settings={
            **LIGHT,
            "spark.sql.warehouse.dir": str(warehouse / "spark"),
        },
    )


@pytest.fixture(scope="session")
def fresh() -> Callable[[], str]:
    """Names of namespaces that nobody has used."""
    numbers: Any = itertools.count(1)
    return lambda: f"tower.n{next(numbers)}"

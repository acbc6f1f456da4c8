"""Sessions beside one that runs already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines.session import spark_session

pytestmark = pytest.mark.spark


def test_a_running_session_with_another_catalog_of_that_name_is_left_as_it_is(
    spark: SparkSession, fresh: Callable[[], str], tmp_path: Path
) -> None:
    """It has loaded its catalog: rows of the new session would land there, and nobody would see it."""
    first = f"{fresh()}.t"
    spark.sql(f"CREATE TABLE {first} (id INT) USING iceberg")
    other = spark_session("other", catalog={"type": "hadoop", "warehouse": str(tmp_path)})
    other.sql("CREATE TABLE tower.elsewhere.t (id INT) USING iceberg")
    assert (tmp_path / "elsewhere" / "t" / "metadata").is_dir()
    assert not other.catalog.tableExists(first)
    assert spark.catalog.tableExists(first)
    assert spark.conf.get("spark.sql.catalog.tower.warehouse") != str(tmp_path)

"""A small Spark session with one catalog, the tower. (To be replaced by the pipelines' own.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def tower_session(name: str, catalog: Mapping[str, str]) -> Any:
    """A local session whose catalog `tower` is the one that `catalog` describes to PyIceberg."""
    base = "spark.sql.catalog.tower"
    builder: Any = SparkSession.builder
    builder = (
        builder.appName(name)
        .master("local[1]")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(base, "org.apache.iceberg.spark.SparkCatalog")
    )
    for key, value in catalog.items():
        builder = builder.config(f"{base}.{key}", value)
    return builder.getOrCreate()

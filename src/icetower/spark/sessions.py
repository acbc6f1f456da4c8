"""A Spark session whose catalogs are towers."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from icetower.agent import Tower
from icetower.pipelines.session import CATALOG, catalog_settings, spark_session


def tower_session(
    app_name: str,
    tower: Tower,
    *,
    catalog: str = CATALOG,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session whose catalog `catalog` is the tower, with the tower's token; `pipelines.session.spark_session` else.

    A running session, and the Spark of `spark-submit`, are used as they are; otherwise Spark is started here, with
    Iceberg's runtime and on all cores.

    Args:
        app_name: recorded in every snapshot (``app-name``).
        catalog: the first part of table names in SQL.
        master: Spark's master; by default the one that is configured.
        settings: further settings of Spark.

    Raises:
        ConfigurationError: Spark cannot run so; the message says why.
    """
    return spark_session(
        app_name, catalog_name=catalog, catalog=tower.pyiceberg_properties(), master=master, settings=settings
    )


def add_tower(spark: SparkSession, catalog: str, tower: Tower) -> None:
    """Add a catalog to a running session: another tower, or the same one as another principal."""
    for name, value in catalog_settings(catalog, tower.pyiceberg_properties()).items():
        spark.conf.set(name, value)

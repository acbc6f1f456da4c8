"""Fetch Iceberg's runtime for Spark, and SQLite's driver for the demo, into Spark's own jar cache.

Spark resolves them by itself (`spark.jars.packages`, through its Ivy). This makes it do so once, so that no later start
waits, and does nothing where the jars are there already.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from icetower.demo.spark_agents import PACKAGES
from icetower.pipelines.session import ICEBERG_RUNTIME


def find(package: str = ICEBERG_RUNTIME) -> Path | None:
    """The jar in Spark's cache; None if it is not there. Java takes the home from the password database, not HOME."""
    group, artifact, version = package.split(":")
    homes = {Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)}
    found = (jar for home in homes for jar in home.glob(f".ivy2*/jars/{group}_{artifact}-{version}.jar"))
    return next(found, None)


def main() -> int:
    if all(find(package) for package in PACKAGES):
        return 0
    packages = ",".join(PACKAGES)
    print(f"fetching {packages}", flush=True)
    from pyspark.sql import SparkSession

    # Spark fails here, naming the package, if it cannot be had.
    builder = SparkSession.builder.master("local[1]").appName("jars")
    builder.config("spark.jars.packages", packages).config("spark.ui.enabled", "false").getOrCreate().stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fetch Iceberg's runtime for Spark into Spark's own jar cache, so that no later start waits for it.

Spark resolves it by itself (`spark.jars.packages`, through its Ivy); this only makes it do so once, and does nothing
where the jar is there already.
"""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def cached() -> bool:
    group, artifact, version = PACKAGE.split(":")
    return any(Path.home().glob(f".ivy2*/jars/{group}_{artifact}-{version}.jar"))


def main() -> int:
    if cached():
        return 0
    print(f"fetching {PACKAGE}", flush=True)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("jars")
    builder.config("spark.jars.packages", PACKAGE).config("spark.ui.enabled", "false").getOrCreate().stop()
    if cached():
        return 0
    print("Spark started, but the jar is not where it keeps its jars: is spark.jars.ivy set?", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

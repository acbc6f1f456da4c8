"""Fetch Iceberg's runtime for Spark into Spark's own jar cache, so that no later start waits for it.

Spark resolves it by itself (`spark.jars.packages`, through its Ivy); this only makes it do so once, and does nothing
where the jar is there already.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from icetower.pipelines.session import ICEBERG_RUNTIME


def find() -> Path | None:
    """The jar in Spark's cache; None if it is not there. Java takes the home from the password database, not HOME."""
    group, artifact, version = ICEBERG_RUNTIME.split(":")
    homes = {Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)}
    found = (jar for home in homes for jar in home.glob(f".ivy2*/jars/{group}_{artifact}-{version}.jar"))
    return next(found, None)


def main() -> int:
    if find():
        return 0
    print(f"fetching {ICEBERG_RUNTIME}", flush=True)
    from pyspark.sql import SparkSession

    # Spark fails here, naming the package, if it cannot be had.
    builder = SparkSession.builder.master("local[1]").appName("jars")
    builder.config("spark.jars.packages", ICEBERG_RUNTIME).config("spark.ui.enabled", "false").getOrCreate().stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

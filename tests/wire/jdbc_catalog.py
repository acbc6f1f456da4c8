"""Java's own `JdbcCatalog` on a tower's SQLite file, in a Spark of its own (it needs another driver on its class path).

python jdbc_catalog.py CATALOG_DB WAREHOUSE: runs the statements on standard input, one a line, with `java`
for the catalog; prints the rows of each as one line of JSON, before it reads the next.
"""

from __future__ import annotations

import json
import sys

from icetower.demo.spark_agents import PACKAGES
from icetower.pipelines.session import spark_session


def main() -> None:
    database, warehouse = sys.argv[1:]
    spark = spark_session(
        "java-jdbc-catalog",
        catalog_name="java",
        catalog={
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{database}",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
        },
        settings={"spark.jars.packages": ",".join(PACKAGES), "spark.master": "local[1]"},
    )
    try:
        for line in sys.stdin:
            rows = [list(row) for row in spark.sql(line.strip()).collect()]
            print(json.dumps(rows, default=str), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

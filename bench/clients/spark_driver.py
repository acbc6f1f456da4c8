"""Several writers in one Spark session, a thread each; run by `run.py`.

    spark_driver.py OPERATION URI TOKEN TABLE WRITERS ROUNDS

The writers of a round begin together. It prints `landed` or `failed: WHY` for each of them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from icetower.pipelines.session import spark_session

STATEMENTS = {
    "append": "INSERT INTO lake.{table} VALUES ({base} + 100 + {number}, 'r{region}', {number})",
    "overwrite": "INSERT OVERWRITE lake.{table} PARTITION (region = 'r{region}') VALUES ({base}, {number})",
    "delete": "DELETE FROM lake.{table} WHERE region = 'r{region}' AND id = {base} + 10 + {number}",
    "update": "UPDATE lake.{table} SET price = {number} + 1 WHERE region = 'r{region}' AND id = {base} + {number}",
    "upsert": "MERGE INTO lake.{table} t USING (SELECT {base} AS id, 'r{region}' AS region, {number} + 1 AS price"
    " UNION ALL SELECT {base} + 50 + {number}, 'r{region}', 0) s ON t.region = 'r{region}' AND t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET price = s.price WHEN NOT MATCHED THEN INSERT *",
}


def main() -> None:
    operation, uri, token, table = sys.argv[1:5]
    writers, rounds = int(sys.argv[5]), int(sys.argv[6])
    spark = spark_session(
        "clients",
        catalog_uri=uri,
        catalog_name="lake",
        token=token or None,
        settings={"spark.master": f"local[{writers}]"},
    )

    def write(region: int, number: int) -> str:
        statement = STATEMENTS[operation].format(table=table, region=region, base=region * 1000, number=number)
        try:
            spark.sql(statement)
        except Exception as error:  # noqa: BLE001 - whatever the client raises is how it failed
            return "failed: " + " ".join(str(error).split())[:300]
        return "landed"

    with ThreadPoolExecutor(writers) as pool:
        for number in range(rounds):
            for said in pool.map(lambda region, number=number: write(region, number), range(writers)):
                sys.stdout.write(said + "\n")
                sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()

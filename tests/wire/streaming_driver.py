"""A Structured Streaming job as a user has it, in a process of its own: nothing in it knows of a tower.

`python -m tests.wire.streaming_driver URI TOKEN TABLE SOURCE CHECKPOINT`: reads one file of the source a batch, appends
it to the table, and ends when all are done. It begins by printing the process id of its JVM. What its query fails with
goes to standard error; exit status 3.
"""

from __future__ import annotations

import sys

from pyspark.errors.exceptions.base import PySparkException

from icetower.pipelines.session import spark_session
from verify.kit.light_spark import LIGHT

CATALOG = "wire"


def main() -> int:
    uri, token, table, source, checkpoint = sys.argv[1:]
    session = spark_session(
        "stream",
        catalog_uri=uri,
        catalog_name=CATALOG,
        token=token,
        settings={"spark.master": "local[1]", "spark.driver.memory": "1g", **LIGHT},
    )
    print(session.sparkContext._gateway.proc.pid, flush=True)  # type: ignore[union-attr]
    rows = session.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(source)
    stream = rows.writeStream.format("iceberg").outputMode("append").option("checkpointLocation", checkpoint)
    try:
        stream.trigger(availableNow=True).start(f"{CATALOG}.{table}").awaitTermination()
    except PySparkException as error:
        print(error, file=sys.stderr)
        return 3
    finally:
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

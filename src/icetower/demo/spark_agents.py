"""One agent process that writes with PySpark: `python -m icetower.demo.spark_agents`, its job as JSON on stdin.

Like the agents with PyIceberg it knows the properties of its catalog only. It leaves retries to Iceberg's Java client.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from icetower.ambient import SystemAmbient
from icetower.demo import java_classes, journal, plan
from icetower.demo.agents import RESENDS_MAX, Job, await_go, read_job, read_source
from icetower.demo.journal import Journal
from icetower.demo.plan import Agent
from icetower.pipelines.session import CATALOG, ICEBERG_RUNTIME, spark_session
from icetower.protocol.marks import KEY

SQLITE_DRIVER = "org.xerial:sqlite-jdbc:3.53.0.0"
PACKAGES = (ICEBERG_RUNTIME, SQLITE_DRIVER)
# Ten processes share the machine: one core's worth of Spark each, and a small heap.
SETTINGS = {
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.jars.packages": ",".join(PACKAGES),
}


class SparkAgent:
    """Writes the batches of one agent through a Spark session of its own."""

    def __init__(self, job: Job, agent: Agent, spark: Any, own_journal: Journal, source: pa.Table) -> None:
        self._job, self._agent, self._spark, self._journal = job, agent, spark, own_journal
        self._rows = plan.rows_of(agent, source, job.days)
        self._batches = agent.batches(job.days)
        self._table = f"{CATALOG}.{agent.table}"
        self._clock = SystemAmbient()

    def run(self) -> None:
        """Write the batches that were not acknowledged before."""
        acknowledged = journal.acknowledged_batches(Path(self._job.journal))
        self._warm_up()
        await_go(self._job, self._journal)
        for number in range(self._batches):
            if number not in acknowledged:
                self._write(number)
        self._journal.write(journal.DONE)

    def _warm_up(self) -> None:
        """Make Java load its classes before the common start: reach the catalog, and write a batch to nowhere."""
        self._spark.table(self._table).limit(0).collect()
        frame = self._spark.createDataFrame(plan.table_rows(self._agent, plan.batch(self._rows, 0, self._batches)))
        frame.write.format("noop").mode("overwrite").save()

    def _write(self, number: int) -> None:
        rows = plan.batch(self._rows, number, self._batches)
        runs = journal.runs_of(rows["row_id"].to_numpy())
        start_s = self._clock.monotonic_s()
        for _ in range(1 + RESENDS_MAX):
            counted = len(java_classes.attempts_counted(attempts_file(self._job)))
            try:
                self._append(number, rows)
            except Exception as error:  # noqa: BLE001 - whatever the error is, the batch was not acknowledged
                described = {"error": type(error).__name__, "message": str(error)[:4000]}
                self._journal.write(journal.FAILED, batch=number, rows=runs, at_ms=self._clock.now_ms(), **described)
                continue
            latency_ms = round((self._clock.monotonic_s() - start_s) * 1000, 1)
            # Spark does not say whether the server rebased the commit: the report takes that from the server.
            self._journal.write(
                journal.ACKNOWLEDGED,
                batch=number,
                rows=runs,
                at_ms=self._clock.now_ms(),
                latency_ms=latency_ms,
                landed="unknown",
                retries=sum(java_classes.attempts_counted(attempts_file(self._job))[counted:]) - 1,
            )
            return

    def _append(self, number: int, rows: pa.Table) -> None:
        frame = self._spark.createDataFrame(plan.table_rows(self._agent, rows))
        key = plan.batch_key(self._agent, number, self._job.seed)
        frame.writeTo(self._table).option(f"snapshot-property.{KEY}", key).append()


def attempts_file(job: Job) -> Path:
    """Where Iceberg's client writes how often it attempted each commit."""
    return Path(job.journal).with_suffix(".attempts")


def main() -> None:
    job = read_job()
    own_journal = Journal(Path(job.journal))
    catalog = {**job.catalog, **java_classes.properties(job.latency, attempts_file(job))}
    spark = spark_session(job.agent, catalog=catalog, settings=SETTINGS)
    try:
        java_classes.add_to(spark, Path(job.journal).with_suffix(".classes"))
        SparkAgent(job, plan.agent_named(job.agent), spark, own_journal, read_source(job.source)).run()
    finally:
        spark.stop()
    own_journal.close()


if __name__ == "__main__":
    main()

"""One agent process that writes with PySpark: `python -m icetower.demo.spark_agents`, its job as JSON on stdin.

It knows what its PyIceberg colleagues know, URI and credential, and leaves retrying to Iceberg's own Java client.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from icetower.ambient import SystemAmbient
from icetower.demo import journal, plan
from icetower.demo.agents import RESENDS_MAX, Job, await_go, read_job, read_source
from icetower.demo.journal import Journal
from icetower.demo.plan import Agent
from icetower.pipelines.session import CATALOG, spark_session
from icetower.protocol.marks import KEY

# Ten processes share the machine: one core's worth of Spark each, and a small heap.
SETTINGS = {"spark.master": "local[1]", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}


class SparkAgent:
    """Writes the batches of one agent through a Spark session of its own."""

    def __init__(self, job: Job, agent: Agent, spark: Any, ledger: Journal, source: pa.Table) -> None:
        self._job, self._agent, self._spark, self._ledger = job, agent, spark, ledger
        self._rows = plan.rows_of(agent, source, job.days)
        self._batches = agent.batches(job.days)
        self._table = f"{CATALOG}.{agent.table}"
        self._clock = SystemAmbient()

    def run(self) -> None:
        """Write what has not been acknowledged before."""
        acknowledged = journal.acknowledged_batches(Path(self._job.journal))
        self._warm_up()
        await_go(self._job, self._ledger)
        for number in range(self._batches):
            if number not in acknowledged:
                self._write(number)
        self._ledger.write(journal.DONE)

    def _warm_up(self) -> None:
        """Have Java load its classes before the common start: reach the catalog, and write a batch to nowhere."""
        self._spark.table(self._table).limit(0).collect()
        frame = self._spark.createDataFrame(plan.table_rows(self._agent, plan.batch(self._rows, 0, self._batches)))
        frame.write.format("noop").mode("overwrite").save()

    def _write(self, number: int) -> None:
        rows = plan.batch(self._rows, number, self._batches)
        runs = journal.runs_of(rows["row_id"].to_numpy())
        for _ in range(1 + RESENDS_MAX):
            start_s = self._clock.monotonic_s()
            try:
                self._append(number, rows)
            except Exception as error:  # noqa: BLE001 - whatever the client made of it, the batch was not acknowledged
                said = {"error": type(error).__name__, "message": str(error)[:500]}
                self._ledger.write(journal.FAILED, batch=number, rows=runs, at_ms=self._clock.now_ms(), **said)
                continue
            latency_ms = round((self._clock.monotonic_s() - start_s) * 1000, 1)
            # Spark says neither how it landed nor how often it tried; the table of commits takes both from the server.
            self._ledger.write(
                journal.ACKNOWLEDGED,
                batch=number,
                rows=runs,
                at_ms=self._clock.now_ms(),
                latency_ms=latency_ms,
                landed="unsaid",
                retries=0,
            )
            return

    def _append(self, number: int, rows: pa.Table) -> None:
        frame = self._spark.createDataFrame(plan.table_rows(self._agent, rows))
        key = plan.batch_key(self._agent, number, self._job.seed)
        frame.writeTo(self._table).option(f"snapshot-property.{KEY}", key).append()


def main() -> None:
    job = read_job()
    ledger = Journal(Path(job.journal))
    spark = spark_session(job.agent, catalog=job.catalog, settings=SETTINGS)
    try:
        SparkAgent(job, plan.agent_named(job.agent), spark, ledger, read_source(job.source)).run()
    finally:
        spark.stop()
    ledger.close()


if __name__ == "__main__":
    main()

"""Slots that the tower hands out, for a session: a job writes in its slot, or not at all.

with in_slot(spark, "tower.shop.bids", wait_s=600) as lease:
    frame.writeTo("tower.shop.bids").options(**options(keyed(key) | lease.properties)).append()
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from icetower.agent import Agent, Lease, Tower
from icetower.spark.sending import tower_of


@contextmanager
def in_slot(
    spark: SparkSession, table: str, *, wait_s: float = 0.0, least_s: float = 0.0, tower: Tower | None = None
) -> Generator[Lease]:
    """Hold the next slot of a table while the block runs.

    Give `Lease.properties` to every write of the block: by `options`, or by `declaring` for a statement. A write that
    comes after the slot is refused (``intent.fenced``). `Lease.slot` has what to write into the column of the slot.

    Args:
        table: as Spark names it: ``catalog.namespace.table``.
        wait_s, least_s: as of `Agent.next_slot`.
        tower: by default that of the session's catalog.

    Raises:
        Conflict: no slot could be taken for so long (``slot.waiting``).
    """
    catalog, _, name = table.partition(".")
    asked = tower or tower_of(spark, catalog)
    try:
        token = asked.pyiceberg_properties().get("token")
        with Agent(asked.uri, token) as agent, agent.next_slot(name, wait_s=wait_s, least_s=least_s) as lease:
            yield lease
    finally:
        if tower is None:
            asked.close()

"""The inventory agent: it records stock movements as they come, by Structured Streaming.

Spark remembers in the stream's checkpoint which files it has read, and repeats a batch whose end it did not note. The
table knows better: each file is a number of the application, which the snapshot that adds its rows carries. So a batch
that comes again is passed over, and so is everything that is read anew when the checkpoint is lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icetower.agent import Tower
from icetower.demo.retail.hours import SCHEMA, Hours
from icetower.demo.retail.notes import Notes
from icetower.errors import IcetowerError
from icetower.spark import carry_out, last_number, numbered, options

NAME = "inventory_agent"
TABLE = "inventory.stock_movements"
_LOOK_S = 0.5

MOVEMENTS = (
    "row_id",
    "sold_at AS moved_at",
    "store_id",
    "product_id",
    "-quantity AS quantity",
    "sales_value",
    f"concat('{NAME}-', row_id) AS _idempotency_key",
)


def run(spark: Any, tower: Tower, hours: Hours, notes: Notes, checkpoint: Path) -> None:
    """Append the movements, file by file, until the source ends."""
    done = last_number(spark, f"tower.{TABLE}", NAME) or 0

    def write(batch: Any, _epoch: int) -> None:
        nonlocal done
        for number in sorted(row[0] for row in batch.select("hour").distinct().collect()):
            if number <= done:
                continue
            if number > done + 1:
                raise IcetowerError(
                    f"the checkpoint {checkpoint} is ahead of {TABLE}, which ends with file {done}: file {number} came "
                    "next. The table was set back; delete the checkpoint, and the stream begins anew"
                )
            with notes.hour(number) as hour:
                _append(batch.where(batch["hour"] == number).selectExpr(*MOVEMENTS), tower, number, hour.reached)
            done = number

    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(hours.folder))
    query = files.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
    try:
        while (last := hours.last()) is None or done < last:
            if query.awaitTermination(_LOOK_S):  # raises the error of a batch
                raise IcetowerError(f"the stream into {TABLE} has ended by itself after file {done}")
    finally:
        query.stop()


def _append(rows: Any, tower: Tower, number: int, reached: Any) -> None:
    reached("read")

    def append(tower: Tower, key: str) -> None:
        reached("writing")
        rows.writeTo(f"tower.{TABLE}").options(**options(numbered(NAME, number))).append()

    carry_out(append, tower, TABLE, operations=["append"], reason=f"the movements of file {number}")
    reached("committed")

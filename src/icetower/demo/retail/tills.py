"""The till agent: it reports promotions from the other half of the baskets, with PyIceberg and without Spark.

It appends to the same delta table as the promotion agent, changes of the same rows. A write has the same number, in the
same place, whichever engine makes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from icetower.agent import Tower, carry_out
from icetower.demo.data import TIME, pc
from icetower.demo.retail.hours import Hours
from icetower.demo.retail.notes import Notes
from icetower.demo.retail.promotions import DELTAS
from icetower.protocol.marks import APPLICATION, SEQUENCE

NAME = "till_agent"


def run(_spark: Any, tower: Tower, hours: Hours, notes: Notes) -> None:
    """Append the changes to the delta table, hour by hour, until the source ends."""
    catalog = load_catalog("tower", **tower.pyiceberg_properties())
    for number, path in hours.after(last_number(catalog.load_table(DELTAS))):
        with notes.hour(number) as hour:
            rows = changes(path)
            hour.reached("read")

            def append(tower: Tower, key: str, rows: pa.Table = rows, number: int = number, hour: Any = hour) -> None:
                hour.reached("writing")
                marks = {APPLICATION: NAME, SEQUENCE: str(number)}
                catalog.load_table(DELTAS).append(rows, snapshot_properties=marks)

            carry_out(append, tower, DELTAS, operations=["append"], reason=f"the promotions of hour {number}")
            hour.reached("committed")


def last_number(table: Table) -> int:
    """The highest number of this agent in the table's snapshots; 0 without one."""
    summaries = [snapshot.summary for snapshot in table.snapshots() if snapshot.summary is not None]
    return max((int(each[SEQUENCE] or 0) for each in summaries if each[APPLICATION] == NAME), default=0)


def changes(path: Path) -> pa.Table:
    """The changes that an hour brought, for the delta table."""
    rows = pq.read_table(path)
    rows = rows.filter(pc.equal(pc.bit_wise_and(rows["basket_id"], 1), 1))
    times = pc.add(rows["sold_at"].cast(pa.int64()), rows["row_id"]).cast(TIME)
    keys = pc.binary_join_element_wise("promotion", rows["row_id"].cast(pa.string()), "-")
    kinds = pc.if_else(pc.greater(rows["retail_disc"].cast(pa.float64()), 0.0), "upsert", "delete")
    return pa.table(
        {
            "product_id": rows["product_id"],
            "store_id": rows["store_id"],
            "discount": rows["retail_disc"],
            "_event_time": times,
            "_idempotency_key": keys,
            "_operation": kinds,
            "_agent": pa.array([NAME] * rows.num_rows, pa.string()),
        }
    )

"""The promotion agent: it reports which products are sold at a discount, as changes that a collector folds.

At the till a product has a discount or has none: an upsert of its promotion, or a delete. Several agents see the same
products (`tills` reports the other half of the baskets), each at its own pace, so changes of a row come late and out of
order. The collector (`icetower collect --follow`) lets the latest event win, and readers have the merged view at once.
"""

from __future__ import annotations

from typing import Any

from icetower.agent import Tower
from icetower.demo.retail.hours import Hours
from icetower.demo.retail.notes import Notes
from icetower.spark import carry_out, last_number, numbered, options

NAME = "promotion_agent"
TABLE = "pricing.promotions"
DELTAS = "pricing.promotions_deltas"
KEYS = ("product_id",)

CHANGES = (
    "product_id",
    "store_id",
    "retail_disc AS discount",
    "timestampadd(MICROSECOND, row_id, sold_at) AS _event_time",  # receipts of one second have an order, too
    "concat('promotion-', row_id) AS _idempotency_key",
    "if(retail_disc > 0, 'upsert', 'delete') AS _operation",
)


def run(spark: Any, tower: Tower, hours: Hours, notes: Notes) -> None:
    """Append the changes to the delta table, hour by hour, until the source ends."""
    done = last_number(spark, f"tower.{DELTAS}", NAME) or 0
    for number, path in hours.after(done):
        with notes.hour(number) as hour:
            rows = spark.read.parquet(str(path)).where("basket_id % 2 = 0")
            _append(rows.selectExpr(*CHANGES, f"'{NAME}' AS _agent"), tower, number, hour.reached)


def _append(rows: Any, tower: Tower, number: int, reached: Any) -> None:
    reached("read")

    def append(tower: Tower, key: str) -> None:
        reached("writing")
        rows.writeTo(f"tower.{DELTAS}").options(**options(numbered(NAME, number))).append()

    carry_out(append, tower, DELTAS, operations=["append"], reason=f"the promotions of hour {number}")
    reached("committed")

"""The pricing agent: it updates the prices of the day, hourly, by MERGE.

A row counts what its product brought in that day, so a MERGE that ran twice, or not at all, would show to the cent.
Each hour is a number of the application, which the snapshot that the MERGE commits carries. So the agent asks the table
how far it has come, and keeps no state of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icetower.agent import Tower
from icetower.demo.retail.hours import Hours
from icetower.demo.retail.notes import Notes
from icetower.spark import carry_out, declaring, last_number, numbered

NAME = "pricing_agent"
TABLE = "pricing.product_prices"

MERGE = """
MERGE INTO tower.pricing.product_prices t
USING (
    SELECT
        max(sold_at) AS observed_at, store_id, product_id,
        max_by(CAST(round(sales_value / nullif(quantity, 0), 2) AS DECIMAL(9, 2)), row_id)
            FILTER (WHERE quantity > 0) AS unit_price,
        count(*) AS observations, sum(quantity) AS quantity, CAST(sum(sales_value) AS DECIMAL(12, 2)) AS sales_value
    FROM this_hour GROUP BY store_id, product_id
) s
ON t.store_id = s.store_id AND t.product_id = s.product_id
    AND t.observed_at >= TIMESTAMP '{day} 00:00:00' AND t.observed_at < TIMESTAMP '{day} 00:00:00' + INTERVAL 1 DAY
WHEN MATCHED THEN UPDATE SET
    observed_at = s.observed_at,
    unit_price = coalesce(s.unit_price, t.unit_price),
    observations = t.observations + s.observations,
    quantity = t.quantity + s.quantity,
    sales_value = t.sales_value + s.sales_value,
    _idempotency_key = '{key}'
WHEN NOT MATCHED THEN INSERT
    (observed_at, store_id, product_id, unit_price, observations, quantity, sales_value, _idempotency_key)
    VALUES (s.observed_at, s.store_id, s.product_id, s.unit_price, s.observations, s.quantity, s.sales_value, '{key}')
"""


def run(spark: Any, tower: Tower, hours: Hours, notes: Notes) -> None:
    """Update the prices, hour by hour, until the source ends."""
    done = last_number(spark, f"tower.{TABLE}", NAME) or 0
    for number, path in hours.after(done):
        with notes.hour(number) as hour:
            _update(spark, tower, number, path, hour.reached)


def _update(spark: Any, tower: Tower, number: int, path: Path, reached: Any) -> None:
    rows = spark.read.parquet(str(path))
    rows.createOrReplaceTempView("this_hour")
    day = rows.selectExpr("date(min(sold_at))").first()[0]
    reached("read")

    def merge(tower: Tower, key: str) -> None:
        reached("writing")
        with declaring(spark, numbered(NAME, number)):
            spark.sql(MERGE.format(day=day, key=f"{NAME}-{number}"))

    carry_out(merge, tower, TABLE, operations=["overwrite"], reason=f"the prices of hour {number}")
    reached("committed")

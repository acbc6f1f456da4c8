"""Compares each table with the source, row by row and cent by cent, in Spark.

What the tables must hold is computed from the source at once, by queries that share nothing with the agents' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from icetower.demo.retail import inventory, pricing, promotions, recommendation


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one table compares.

    Attributes:
        rows, expected_rows: of the table, and as the source demands.
        money, expected_money: the sum of `sales_value`, or of `discount`, as a decimal number.
        missing: rows that the source demands and the table has not, or has otherwise.
        unexpected: rows that the table has, and the source does not demand: doubled, altered or strange ones.
    """

    table: str
    rows: int
    expected_rows: int
    money: str
    expected_money: str
    missing: int
    unexpected: int

    @property
    def exact(self) -> bool:
        return (
            not self.missing
            and not self.unexpected
            and (self.rows, self.money) == (self.expected_rows, self.expected_money)
        )


_EXPECTED = {
    pricing.TABLE: """
        SELECT max(sold_at) AS observed_at, store_id, product_id,
            max_by(CAST(round(sales_value / nullif(quantity, 0), 2) AS DECIMAL(9, 2)), row_id)
                FILTER (WHERE quantity > 0) AS unit_price,
            count(*) AS observations, sum(quantity) AS quantity,
            CAST(sum(sales_value) AS DECIMAL(12, 2)) AS sales_value,
            concat('pricing_agent-', max(hour)) AS _idempotency_key
        FROM source GROUP BY date(sold_at), store_id, product_id
    """,
    inventory.TABLE: """
        SELECT row_id, sold_at AS moved_at, store_id, product_id, -quantity AS quantity, sales_value,
            concat('inventory_agent-', row_id) AS _idempotency_key
        FROM source
    """,
    recommendation.TABLE: """
        SELECT row_id, sold_at AS interacted_at, household_id, product_id, basket_id, quantity, sales_value,
            concat('recommendation_agent-', row_id) AS _idempotency_key
        FROM source
    """,
    promotions.TABLE: """
        SELECT product_id, last.store_id, last.retail_disc AS discount,
            timestampadd(MICROSECOND, last.row_id, last.sold_at) AS _event_time,
            concat('promotion-', last.row_id) AS _idempotency_key
        FROM (
            SELECT product_id, max_by(struct(store_id, retail_disc, row_id, sold_at), row_id) AS last
            FROM source GROUP BY product_id
        )
        WHERE last.retail_disc > 0
    """,
}
_MONEY = {promotions.TABLE: "discount"}
"""The column that is summed up, if it is not `sales_value`."""


def reconcile(spark: Any, hours: str) -> tuple[Verdict, ...]:
    """The verdict on each table.

    Args:
        spark: a session whose catalog `tower` has the tables.
        hours: the folder of the source.
    """
    spark.read.parquet(hours).createOrReplaceTempView("source")
    return tuple(_verdict(spark, table, query) for table, query in _EXPECTED.items())


def _verdict(spark: Any, table: str, query: str) -> Verdict:
    expected = spark.sql(query).cache()
    found = spark.table(f"tower.{table}").select(*expected.columns).cache()
    sums = ("count(*)", f"sum({_MONEY.get(table, 'sales_value')})")
    rows, money = found.selectExpr(*sums).first()
    expected_rows, expected_money = expected.selectExpr(*sums).first()
    verdict = Verdict(
        table=table,
        rows=rows,
        expected_rows=expected_rows,
        money=str(money),
        expected_money=str(expected_money),
        missing=expected.exceptAll(found).count(),
        unexpected=found.exceptAll(expected).count(),
    )
    expected.unpersist()
    found.unpersist()
    return verdict

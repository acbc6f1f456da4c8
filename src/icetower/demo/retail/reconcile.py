"""Compares each table with the source, row by row and cent by cent, in Spark.

What the tables must hold is computed from the source at once, by queries that share nothing with the agents' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from icetower.demo.retail import inventory, pricing, recommendation


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one table compares.

    Attributes:
        rows, expected_rows: of the table, and as the source demands.
        sales, expected_sales: the sum of `sales_value`, as a decimal number.
        missing: rows that the source demands and the table has not, or has otherwise.
        unexpected: rows that the table has, and the source does not demand: doubled, altered or strange ones.
    """

    table: str
    rows: int
    expected_rows: int
    sales: str
    expected_sales: str
    missing: int
    unexpected: int

    @property
    def exact(self) -> bool:
        return (
            not self.missing
            and not self.unexpected
            and (self.rows, self.sales) == (self.expected_rows, self.expected_sales)
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
}


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
    rows, sales = found.selectExpr("count(*)", "sum(sales_value)").first()
    expected_rows, expected_sales = expected.selectExpr("count(*)", "sum(sales_value)").first()
    verdict = Verdict(
        table=table,
        rows=rows,
        expected_rows=expected_rows,
        sales=str(sales),
        expected_sales=str(expected_sales),
        missing=expected.exceptAll(found).count(),
        unexpected=found.exceptAll(expected).count(),
    )
    expected.unpersist()
    found.unpersist()
    return verdict

"""The recommendation agent: it writes interactions all the time, into the write-ahead log.

The mediator (`icetower mediate --follow`) merges the log into the table. It knows each row by its `_idempotency_key`,
and judges it by the contract of the agent that `_agent` names.
"""

from __future__ import annotations

from typing import Any

from icetower.agent import Tower
from icetower.demo.retail.hours import Hours
from icetower.demo.retail.notes import Notes
from icetower.spark import carry_out, last_number, numbered, options

NAME = "recommendation_agent"
LOG = "recommendations.user_interactions_wal"
TABLE = "recommendations.user_interactions"

INTERACTIONS = (
    "row_id",
    "sold_at AS interacted_at",
    "household_id",
    "product_id",
    "basket_id",
    "quantity",
    "sales_value",
    f"concat('{NAME}-', row_id) AS _idempotency_key",
)


def run(spark: Any, tower: Tower, hours: Hours, notes: Notes) -> None:
    """Append the interactions to the log, hour by hour, until the source ends."""
    done = last_number(spark, f"tower.{LOG}", NAME) or 0
    for number, path in hours.after(done):
        with notes.hour(number) as hour:
            rows = spark.read.parquet(str(path)).selectExpr(*INTERACTIONS, f"'{NAME}' AS _agent")
            _append(rows, tower, number, hour.reached)


def _append(rows: Any, tower: Tower, number: int, reached: Any) -> None:
    reached("read")

    def append(tower: Tower, key: str) -> None:
        reached("writing")
        rows.writeTo(f"tower.{LOG}").options(**options(numbered(NAME, number))).append()

    carry_out(append, tower, LOG, operations=["append"], reason=f"the interactions of hour {number}")
    reached("committed")

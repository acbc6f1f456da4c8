"""For agents that write with PySpark: a session on a tower, keys for every write, and what to do about a refusal.

from icetower.agent import Tower, keyed
from icetower.spark import carry_out, declaring, options, tower_session

tower = Tower("http://127.0.0.1:8181", token=secret)
spark = tower_session("pricing", tower)


def write(tower: Tower, key: str) -> None:
    with declaring(spark, keyed(key)):
        spark.sql("MERGE INTO tower.pricing.product_prices …")


carry_out(write, tower, "pricing.product_prices", operations=["overwrite"], reason="the prices of this hour")

frame.writeTo("tower.sales.orders").options(**options(keyed(key, blind=True))).append()
"""

from icetower.spark.declarations import declaring, last_number, numbered, options
from icetower.spark.recovery import carry_out, refusal_of
from icetower.spark.sending import next_slot, send
from icetower.spark.sessions import add_tower, tower_session
from icetower.spark.slots import in_slot

__all__ = [
    "add_tower",
    "carry_out",
    "declaring",
    "in_slot",
    "last_number",
    "next_slot",
    "numbered",
    "options",
    "refusal_of",
    "send",
    "tower_session",
]

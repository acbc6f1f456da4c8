"""An agent, whichever its contract: it sends the rows of a JSON file to a table, once.

python agent.py TABLE append|upsert|delete KEY ROWS.json

ICETOWER_URI and ICETOWER_TOKEN say where the tower is, and who the agent is. The key goes with the rows: run again with
it after a crash, they are there once. Which way they take stands in the agent's contract, and nothing here knows of it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from icetower.agent import Sent, Tower
from icetower.spark import send, tower_session


def deliver(spark: SparkSession, table: str, operation: Any, key: str, path: str, **more: Any) -> Sent:
    """Send the rows of a file."""
    schema = spark.table(table).schema
    rows = spark.read.schema(schema).json(path)
    given = [name for name in spark.read.json(path).columns if name in schema.names]
    return send(rows.select(*given), table, operation=operation, key=key, **more)


if __name__ == "__main__":
    table, operation, key, path = sys.argv[1:]
    with Tower(os.environ["ICETOWER_URI"], os.environ["ICETOWER_TOKEN"]) as tower:
        sent = deliver(tower_session("agent", tower), f"tower.{table}", operation, key, path)
    sys.stdout.write(f"{sent.pattern}: {'again' if sent.again else 'sent'} to {sent.table}\n")

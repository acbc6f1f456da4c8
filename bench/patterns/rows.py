"""What the agents write: prices seen at the tills, from the retail data, dealt to agents in time order. Pure.

hot        every agent writes the prices of the same products, those that sold most often, in one region
disjoint   every agent has stores and a region of its own, which is a partition of the table
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from icetower.demo import data

pc: Any = pyarrow.compute

HOT, DISJOINT = "hot", "disjoint"
SHAPES = (HOT, DISJOINT)
HOT_PRODUCTS = 100
ROWS_MAX = 20
"""Of one write; each has every product at most once."""
DAYS = 60
KEYS = ("region", "product_id")
COLUMNS = (
    ("region", pa.int32(), "INT"),
    ("product_id", pa.int64(), "BIGINT"),
    ("store_id", pa.int64(), "BIGINT"),
    ("unit_price", data.MONEY, "DECIMAL(9,2)"),
    ("quantity", pa.int64(), "BIGINT"),
    ("sales_value", data.MONEY, "DECIMAL(9,2)"),
    ("row_id", pa.int64(), "BIGINT"),
    ("_event_time", data.TIME, "TIMESTAMP"),
    ("_idempotency_key", pa.string(), "STRING"),
)
"""Of the table: the name, and its type in Arrow and in Spark's SQL."""
NAMES = tuple(name for name, _, _ in COLUMNS)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Write:
    """What an agent decides at once: some rows, no two of one product."""

    agent: int
    number: int
    rows: tuple[Row, ...]

    @property
    def key(self) -> str:
        return f"{self.agent}-{self.number}"


def agent_name(number: int) -> str:
    return f"agent{number}"


def region_of(shape: str, agent: int) -> int:
    return 0 if shape == HOT else agent


def load() -> pa.Table:
    """The prices of the first weeks, in time order."""
    prices = data.product_prices(data.load_source(DAYS))
    return prices.select(
        ["row_id", "observed_at", "store_id", "product_id", "unit_price", "quantity", "sales_value"]
    ).combine_chunks()


def deal(prices: pa.Table, shape: str, agents: int, writes: int) -> list[list[Write]]:
    """The writes of each agent. Raises `ValueError` if there are not enough rows."""
    wanted = writes * ROWS_MAX
    if shape == HOT:
        ranked = prices.group_by("product_id").aggregate([("row_id", "count")])
        order = [("row_id_count", "descending"), ("product_id", "ascending")]
        hottest = ranked.sort_by(order)["product_id"][:HOT_PRODUCTS]
        chosen = prices.filter(pc.is_in(prices["product_id"], hottest))
        shares = np.arange(chosen.num_rows) % agents
    else:
        chosen, shares = prices, _stores_dealt(prices["store_id"].to_numpy(), agents)
    dealt: list[list[Write]] = []
    for agent in range(agents):
        places = np.flatnonzero(shares == agent)[:wanted]
        if len(places) < wanted:
            raise ValueError(f"agent {agent} of {agents} would have {len(places)} rows ({shape}); it needs {wanted}")
        its = chosen.take(pa.array(places)).to_pylist()
        parts = (its[at * ROWS_MAX : (at + 1) * ROWS_MAX] for at in range(writes))
        dealt.append([_write(agent, number, region_of(shape, agent), part) for number, part in enumerate(parts)])
    return dealt


def _stores_dealt(stores: np.ndarray[Any, Any], agents: int) -> np.ndarray[Any, Any]:
    """By row, the agent that has its store: the largest store that is left goes to whoever has the fewest rows.

    A few stores have most of the rows, and of 226 some have one: dealt in turn, 128 agents would not all have work.
    """
    _, store_of, counts = np.unique(stores, return_inverse=True, return_counts=True)
    least = [(0, agent) for agent in range(agents)]
    owner = np.zeros(len(counts), dtype=np.int64)
    for store in np.argsort(-counts, kind="stable"):
        has, agent = heapq.heappop(least)
        owner[store] = agent
        heapq.heappush(least, (has + int(counts[store]), agent))
    return owner[store_of]


def _write(agent: int, number: int, region: int, prices: list[dict[str, Any]]) -> Write:
    """The last price of each product."""
    latest = {price["product_id"]: price for price in prices}
    rows = (
        {**price, "region": region, "_event_time": price["observed_at"], "_idempotency_key": f"row-{price['row_id']}"}
        for price in latest.values()
    )
    return Write(agent, number, tuple({name: row[name] for name in NAMES} for row in rows))


def arrow(rows: tuple[Row, ...], more: Mapping[str, tuple[pa.DataType, Any]]) -> pa.Table:
    """The rows as a file of a table with these columns and `more` (type and value), with Iceberg's column ids."""
    fields = [(name, kind) for name, kind, _ in COLUMNS] + [(name, kind) for name, (kind, _) in more.items()]
    schema = pa.schema(
        pa.field(name, kind, metadata={"PARQUET:field_id": str(at)}) for at, (name, kind) in enumerate(fields, 1)
    )
    constants = {name: value for name, (_, value) in more.items()}
    return pa.Table.from_pylist([{**row, **constants} for row in rows], schema=schema)

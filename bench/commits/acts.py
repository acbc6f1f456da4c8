"""What a PyIceberg writer does for one commit. Named by jobs, and called in the writer's own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from bench.commits.shapes import FLAT, TIMED, values_of

pc: Any = pyarrow.compute

CATEGORIES = ("electronics", "home goods")
PRODUCTS = 40
"""In each category."""
PRICES = Schema(
    NestedField(1, "product", LongType(), required=False),
    NestedField(2, "category", StringType(), required=False),
    NestedField(3, "price", LongType(), required=False),
)


class Act(Protocol):
    """One commit of a writer to a table that it has loaded. Raises what its client raises."""

    def __call__(self, table: Any, writer: int, row_id: int, summary: Mapping[str, str]) -> None: ...


def append(table: Any, writer: int, row_id: int, summary: Mapping[str, str]) -> None:
    """One row of the writer."""
    table.append(FLAT.rows([{"id": row_id, "writer": writer}]), snapshot_properties=dict(summary))


def append_in_own_hour(table: Any, writer: int, row_id: int, summary: Mapping[str, str]) -> None:
    """One row of the writer, in the hour that is its own, whatever the table is partitioned by."""
    table.append(TIMED.rows([values_of(row_id, writer)]), snapshot_properties=dict(summary))


def catalogue() -> pa.Table:
    """The products of both categories, each at a price of nothing."""
    return pa.table(
        {
            "product": list(range(2 * PRODUCTS)),
            "category": [category for category in CATEGORIES for _ in range(PRODUCTS)],
            "price": [0] * (2 * PRODUCTS),
        },
        schema=pa.schema([("product", pa.int64()), ("category", pa.string()), ("price", pa.int64())]),
    )


def reprice(table: Any, writer: int, row_id: int, summary: Mapping[str, str]) -> None:
    """Read the prices of the writer's category, and put each of them one up, in place of the old ones."""
    equal: Any = EqualTo  # it takes no arguments by its types
    mine = equal("category", CATEGORIES[writer])
    rows = table.scan(row_filter=mine).to_arrow()
    raised = rows.set_column(rows.schema.get_field_index("price"), "price", pc.add(rows["price"], 1))
    table.overwrite(raised, overwrite_filter=mine, snapshot_properties=dict(summary))

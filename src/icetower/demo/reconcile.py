"""Compares the rows of a table with the source, and with the batches that the agents' journals call acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog

from icetower.demo.data import Totals, cents_of, totals

COLUMNS = ("row_id", "quantity", "sales_value")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one table compares. All counts are of rows.

    Attributes:
        lost: rows that are in the source, or were acknowledged, and are not in the table.
        duplicated: copies of rows beyond the first.
        unexpected: rows that are in the table but not in the source, or were never acknowledged.
        altered: rows whose quantity or sales value is not the source's.
        examples: some of the row ids concerned, at most ten.
    """

    table: str
    expected: Totals
    found: Totals
    lost: int
    duplicated: int
    unexpected: int
    altered: int
    examples: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected or self.altered) and self.expected == self.found


def reconcile(table: str, found: pa.Table, source: pa.Table, acknowledged: Any, *, sign: int = 1) -> Verdict:
    """Compare `found` (columns `COLUMNS`) with the source.

    Args:
        acknowledged: row ids (int64) of all batches that the agents' journals call acknowledged.
        sign: -1 where the table holds quantities that leave.
    """
    ids = found["row_id"].to_numpy()
    unique, first, counts = np.unique(ids, return_index=True, return_counts=True)
    source_ids = source["row_id"].to_numpy()
    wanted = np.union1d(source_ids, acknowledged)
    allowed = np.intersect1d(source_ids, acknowledged)
    lost = np.setdiff1d(wanted, unique)
    unexpected = np.setdiff1d(unique, allowed)
    doubled = unique[counts > 1]
    quantity = found["quantity"].to_numpy() * sign
    cents = cents_of(found["sales_value"])
    altered = _altered(unique, quantity[first], cents[first], source)
    problems = np.unique(np.concatenate((lost, unexpected, doubled, altered)))
    return Verdict(
        table=table,
        expected=totals(source),
        found=Totals(len(ids), int(quantity.sum()), int(cents.sum())),
        lost=len(lost),
        duplicated=int((counts - 1).sum()),
        unexpected=len(unexpected),
        altered=len(altered),
        examples=tuple(int(row_id) for row_id in problems[:10]),
    )


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of the tables that the agents wrote, counted.

    Attributes:
        lost: rows that were acknowledged and are in no table.
        unwritten: rows that are in no table and were never acknowledged: their commits failed.
        doubled: copies of rows beyond the first.
    """

    lost: int
    unwritten: int
    doubled: int

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.lost + other.lost, self.unwritten + other.unwritten, self.doubled + other.doubled)


def count_rows(found: Any, source: Any, acknowledged: Any) -> Contents:
    """Compare the row ids (int64) of a table with those of the source and with the acknowledged ones."""
    present = np.unique(found)
    missing = np.setdiff1d(source, present)
    lost = np.setdiff1d(acknowledged, present)
    return Contents(len(lost), len(np.setdiff1d(missing, lost)), len(found) - len(present))


def _altered(ids: Any, quantity: Any, cents: Any, source: pa.Table) -> Any:
    """Those of `ids` (sorted) whose values differ from the source's."""
    source_ids = source["row_id"].to_numpy()
    _, here, there = np.intersect1d(ids, source_ids, assume_unique=True, return_indices=True)
    differs = (quantity[here] != source["quantity"].to_numpy()[there]) | (
        cents[here] != cents_of(source["sales_value"])[there]
    )
    return ids[here][differs]


def read_table(catalog: Catalog, name: str) -> pa.Table:
    """The columns that are compared, of every row of a table's newest snapshot, read by PyIceberg."""
    return catalog.load_table(name).scan(selected_fields=COLUMNS).to_arrow().select(list(COLUMNS))

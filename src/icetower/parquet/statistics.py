"""The statistics of one column in a Parquet footer, over all its row groups: counts, and bounds that hold every value.

A bound that is copied as it stands can hide rows (trap S7). The format's notes on statistics are followed so:

* `min_value` and `max_value` mean something only with a known `ColumnOrder`. Without one they are ignored.
* The older `min` and `max` are signed comparisons. They are taken for numbers and times, and for nothing else.
* Of floating-point numbers, NaN is no bound. A minimum of +0.0 may stand for -0.0, and a maximum of -0.0 for +0.0:
  `column_metrics` writes every zero as -0.0 below and +0.0 above, in the order that Iceberg prescribes.
* Texts and binary values may be cut, so bounds are not values of the column unless they are marked as exact.
* A missing count of nulls is unknown, and not 0.
* The orders of INT96, INTERVAL, VARIANT and the geometries are undefined; nothing is read of them.
* A least value above the greatest one was computed in another order, and is ignored with it.

Sources: Apache Parquet's format, `parquet.thrift`: `Statistics`, `ColumnOrder`; Iceberg's specification, "Manifests",
notes on `lower_bounds` and `upper_bounds`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.parquet.columns import Leaf
from icetower.parquet.thrift import Struct, inner, read_struct, whole
from icetower.parquet.values import NUMBERS

_TYPE_ORDER, _TOTAL_ORDER = {1: {}}, {2: {}}
_FLOATING = ("float", "double")
_INEXACT_FROM_BYTES = 64
"""Polars 2 cuts longer values to this length and does not mark them."""


@dataclass(frozen=True, slots=True)
class Values:
    """The statistics of one column in a whole file.

    Attributes:
        count: values, nulls included.
        nulls, nans: None where a row group does not count them.
        lower, upper: internal values, or None where a row group has none that can be used.
        exact: whether the bounds are values of the column and not merely around them.
    """

    count: int
    size_bytes: int
    nulls: int | None
    nans: int | None
    lower: Any
    upper: Any
    exact: bool


def orders(footer: bytes, at: int, leaves: Sequence[Leaf]) -> Sequence[bool]:
    """For each column, whether the order of its `min_value` and `max_value` is known (`ColumnOrder`).

    Args:
        at: where in the footer what comes after the schema begins.
    """
    if footer.endswith(b"\x1c\x00\x00" * len(leaves) + b"\x00"):  # type order everywhere: it comes last, and reads so
        return [True] * len(leaves)
    found = read_struct(footer, at, after=2)[0].get(7)
    if not isinstance(found, list) or len(found) != len(leaves):
        return [False] * len(leaves)
    return [
        order == _TYPE_ORDER or (order == _TOTAL_ORDER and leaf.stored in _FLOATING)
        for order, leaf in zip(found, leaves, strict=True)
    ]


def values_of(leaf: Leaf, read: Callable[[bytes], Any] | None, chunks: Iterable[Struct], *, ordered: bool) -> Values:
    """One column over all row groups; a group without a statistic leaves it unknown.

    Args:
        read: from a footer's bytes to a value; None where no bounds are wanted.
        chunks: the column's `ColumnMetaData`, one for each row group.
        ordered: whether the column's order is known.

    Raises:
        ValueError: the statistics cannot be those of this column.
    """
    count = size_bytes = 0
    nulls: int | None = 0
    nans: int | None = 0
    lower: Any = None
    upper: Any = None
    exact = True
    for chunk in chunks:
        values = whole(chunk, 5)
        count += values
        size_bytes += whole(chunk, 7)
        said = inner(chunk, 12) if 12 in chunk else {}
        here, nans_here = _count(said, 3, values, leaf.name, "nulls"), _count(said, 9, values, leaf.name, "NaN")
        nulls = None if nulls is None or here is None else nulls + here
        nans = None if nans is None or nans_here is None else nans + nans_here
        if read is None or here == values:  # nothing but nulls has no bounds, and takes none away
            continue
        low, high, exactly = _bounds(read, said, leaf.stored, ordered=ordered)
        if low is None or high is None:
            read, lower, upper = None, None, None
            continue
        exact = exact and exactly
        lower = low if lower is None or low < lower else lower
        upper = high if upper is None or high > upper else upper
    return Values(count, size_bytes, nulls, nans, lower, upper, exact)


def _count(said: Struct, field_id: int, values: int, name: str, noun: str) -> int | None:
    if field_id not in said:
        return None
    found = whole(said, field_id)
    if not 0 <= found <= values:
        raise ValueError(f"the column {name} has {found} {noun} among {values} values")
    return found


def _bounds(read: Callable[[bytes], Any], said: Struct, stored: str, *, ordered: bool) -> tuple[Any, Any, bool]:
    """Least and greatest value of a row group, and whether they are values and not merely around them."""
    low, high = (said.get(6), said.get(5)) if ordered else (None, None)
    if (low is None or high is None) and stored in NUMBERS:
        low, high = said.get(2), said.get(1)
    if not isinstance(low, bytes) or not isinstance(high, bytes):
        return None, None, False
    short = max(len(low), len(high)) < _INEXACT_FROM_BYTES
    try:
        least, greatest = read(low), read(high)
    except (ValueError, struct.error):
        return None, None, False
    if least is None or greatest is None or least > greatest:
        return None, None, False
    return least, greatest, said.get(8, short) is True and said.get(7, short) is True

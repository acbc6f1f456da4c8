"""Bounds from footers hold every row (trap S7): files of four writers, and footers as Parquet's notes allow them."""

from __future__ import annotations

import datetime as dt
import io
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from icetower.errors import ValidationFailed
from icetower.files.footers import Layout, verified
from icetower.iceberg.bounds import from_single_value
from icetower.iceberg.column_metrics import lower_bound, upper_bound
from icetower.iceberg.schemas import columns_by_id
from icetower.parquet.columns import Leaf, read_schema
from icetower.parquet.statistics import Values, orders, values_of
from icetower.parquet.values import reader
from tests.files.parquet_world import claim, column, table

FIXTURES = Path(__file__).parent / "fixtures" / "parquet"
KINDS = {
    **dict.fromkeys(("plus_first", "minus_first", "with_nan"), "double"),
    **dict.fromkeys(("minus_only", "plus_only"), "float"),
    **dict.fromkeys(("text", "wide_text"), "string"),
    "binary": "binary",
    "decimal_9": "decimal(9, 2)",
    "decimal_18": "decimal(18, 2)",
    "decimal_38": "decimal(38, 2)",
    "local_time": "timestamp",
    "instant": "timestamptz",
    "day": "date",
    "truth": "boolean",
    "number": "int",
    "long_number": "long",
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def four_writers() -> dict[str, Any]:
    """The table of verify/parquet_fixtures; its files have names and no field ids."""
    kinds: dict[str, Any] = dict(KINDS)
    columns = [column(at, name, kind) for at, (name, kind) in enumerate(kinds.items(), 1)]
    inside = {"type": "struct", "fields": [column(31, "x", "double")]}
    a_list = {"type": "list", "element-id": 41, "element": "double", "element-required": False}
    columns += [column(30, "nested", inside), column(40, "list_of", a_list)]
    created = table(columns)  # which numbers the columns itself
    ids = {known.name: known.id for known in columns_by_id(created["schemas"][0]).values()}
    parts = {
        "nested": [{"field-id": ids["nested.x"], "names": ["x"]}],
        "list_of": [{"field-id": ids["list_of.element"], "names": ["element", "item"]}],
    }
    mapping = [
        {"field-id": ids[each["name"]], "names": [each["name"]], "fields": parts.get(each["name"], [])}
        for each in columns
    ]
    properties = {"schema.name-mapping.default": orjson.dumps(mapping).decode()}
    return {**created, "properties": {**created["properties"], **properties}}


def plain(value: Any) -> Any:
    """A value of pyarrow's as bounds have it."""
    if isinstance(value, dt.datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - EPOCH
        return since // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH.date()).days
    return value


def in_order(value: Any) -> Any:
    """The order of Iceberg's readers: -0.0 before +0.0."""
    return (value, math.copysign(1, value)) if isinstance(value, float) else value


@pytest.mark.parametrize("writer", ["duckdb", "polars", "arrow-rs", "parquet-java"])
def test_s7_bounds_hold_every_row_of_every_writer(writer: str) -> None:
    metadata = four_writers()
    data = (FIXTURES / f"{writer}.parquet").read_bytes()
    known = columns_by_id(metadata["schemas"][0])
    rows = pq.read_table(io.BytesIO(data))
    found = {name: rows[name].to_pylist() for name in KINDS}
    found["nested.x"] = [None if row is None else row["x"] for row in rows["nested"].to_pylist()]
    floating = {each.id for each in known.values() if each.type in ("float", "double") and each.name in found}
    nan = {
        column_id: sum(isinstance(v, float) and math.isnan(v) for v in found[known[column_id].name])
        for column_id in floating
    }
    record = verified(Layout(metadata), claim(metadata, data, nan_value_counts=nan), data).file.record
    lowers = {pair["key"]: pair["value"] for pair in record["lower_bounds"]}
    uppers = {pair["key"]: pair["value"] for pair in record["upper_bounds"]}
    checked = set[str]()
    for column_id, each in known.items():
        if each.name not in found:
            assert column_id not in lowers  # a struct, a list, and what is in a list
            continue
        values = [plain(v) for v in found[each.name] if v is not None and v == v]
        kind = str(each.type)
        if column_id in lowers:
            checked.add(each.name)
            assert in_order(from_single_value(lowers[column_id], kind)) <= min(map(in_order, values)), each.name
        if column_id in uppers:
            assert in_order(from_single_value(uppers[column_id], kind)) >= max(map(in_order, values)), each.name
    # DuckDB leaves out the bounds of a column with NaN; nothing else may be lacking.
    assert set(found) - checked <= {"with_nan"}
    # What begins with sixteen of the greatest values has no next one.
    assert {known[i].name for i in lowers.keys() - uppers.keys()} == {"binary", "wide_text"}


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_s7_a_zero_stands_for_both(kind: str, zero: float) -> None:
    lower, upper = lower_bound(zero, kind, None), upper_bound(zero, kind, None)
    assert upper is not None
    assert math.copysign(1, from_single_value(lower, kind)) == -1
    assert math.copysign(1, from_single_value(upper, kind)) == 1


# -- footers as the format allows them --------------------------------------------------------------------------------

TYPE_ORDER, TOTAL_ORDER = b"\x1c\x00\x00", b"\x2c\x00\x00"


def leaf(stored: str, physical: int, kind: str) -> Leaf:
    return Leaf(0, 1, kind, stored, physical, [b"c"], repeated=False, must_be_filled=False, name="c")


def of(stored: str, physical: int, kind: str, *groups: dict[int, Any], ordered: bool = True) -> Values:
    """The statistics of a column of ten values in each row group."""
    each = leaf(stored, physical, kind)
    read = reader(stored, physical, kind)
    assert read is not None
    return values_of(each, read, [{5: 10, 7: 100, 12: group} for group in groups], ordered=ordered)


def int32(number: int) -> bytes:
    return struct.pack("<i", number)


def double(number: float) -> bytes:
    return struct.pack("<d", number)


def test_s7_without_an_order_the_newer_bounds_mean_nothing() -> None:
    newer = {3: 0, 6: int32(1), 5: int32(9)}
    assert (of("int32", 1, "int", newer).lower, of("int32", 1, "int", newer).upper) == (1, 9)
    assert of("int32", 1, "int", newer, ordered=False).lower is None
    assert of("string", 6, "string", {3: 0, 6: b"a", 5: b"b"}, ordered=False).lower is None


def test_s7_the_older_bounds_are_those_of_numbers_alone() -> None:
    older = {3: 0, 2: int32(-1), 1: int32(9)}
    for ordered in (True, False):
        assert (of("int32", 1, "int", older, ordered=ordered).lower, of("date", 1, "date", older).upper) == (-1, 9)
        assert of("string", 6, "string", {3: 0, 2: b"a", 1: b"b"}, ordered=ordered).lower is None
        fixed = {3: 0, 2: b"\x00\x01", 1: b"\x00\x02"}
        assert of("decimal(4, 2)", 7, "decimal(4, 2)", fixed, ordered=ordered).lower is None


def test_s7_bounds_of_another_order_are_ignored() -> None:
    """An unsigned comparison puts -1 above 1; then the least value is above the greatest."""
    said = {3: 0, 6: b"\x00\x01", 5: b"\xff\xff"}
    assert of("decimal(4, 2)", 7, "decimal(4, 2)", said).lower is None
    good = {3: 0, 6: b"\x00\x01", 5: b"\x00\x02"}
    assert of("decimal(4, 2)", 7, "decimal(4, 2)", good, said).lower is None  # one group takes them all away


@pytest.mark.parametrize(
    ("stored", "physical", "kind", "low", "high"),
    [
        ("double", 5, "double", double(math.nan), double(1)),
        ("double", 5, "double", double(1), double(math.nan)),
        ("fixed[4]", 7, "fixed[4]", b"ab", b"ac"),
        ("uuid", 7, "uuid", b"ab", b"ac"),
        ("decimal(4, 2)", 7, "decimal(4, 2)", b"\x00\x01", b"\x7f\xff"),
        ("decimal(4, 2)", 1, "decimal(4, 2)", b"\x01", b"\x02"),
        ("decimal(4, 2)", 6, "decimal(4, 2)", b"", b"\x02"),
        ("string", 6, "string", b"a", b"\xc3"),
        ("timestamp-ms", 2, "timestamp", struct.pack("<q", 0), struct.pack("<q", 2**62)),
        ("int32", 1, "int", b"\x01", b"\x02"),
    ],
    ids=lambda value: str(value),
)
def test_s7_bytes_that_are_no_values_are_no_bounds(
    stored: str, physical: int, kind: str, low: bytes, high: bytes
) -> None:
    found = of(stored, physical, kind, {3: 0, 6: low, 5: high})
    assert (found.lower, found.upper, found.nulls) == (None, None, 0)


def test_s7_a_decimal_is_read_in_the_order_of_its_physical_type() -> None:
    expected = (Decimal("-1.25"), Decimal("2.50"))
    for physical, low, high in (
        (1, int32(-125), int32(250)),
        (2, struct.pack("<q", -125), struct.pack("<q", 250)),
        (6, b"\x83", b"\x00\xfa"),
        (7, b"\xff\xff\x83", b"\x00\x00\xfa"),
    ):
        found = of("decimal(4, 2)", physical, "decimal(4, 2)", {3: 0, 6: low, 5: high})
        assert (found.lower, found.upper) == expected


def test_s7_a_missing_count_of_nulls_is_not_zero() -> None:
    assert of("int32", 1, "int", {3: 0}, {6: int32(1), 5: int32(2)}).nulls is None
    with pytest.raises(ValueError, match="11 nulls"):
        of("int32", 1, "int", {3: 11})


def orders_of(raw: bytes, *stored: str) -> list[bool]:
    """`raw`: the list of column orders, or nothing. Before it in the footer is another field."""
    footer = b"\x15\x02" + b"\x28\x01x" + (b"\x39" + bytes([len(stored) << 4 | 12]) + raw if raw else b"") + b"\x00"
    return list(orders(footer, 2, [leaf(name, 5, name) for name in stored]))


def test_s7_the_order_is_each_columns_own() -> None:
    assert orders_of(b"", "string", "double") == [False, False]
    assert orders_of(TYPE_ORDER * 2, "string", "double") == [True, True]
    assert orders_of(TYPE_ORDER + TOTAL_ORDER, "string", "double") == [True, True]
    assert orders_of(TOTAL_ORDER + TYPE_ORDER, "string", "double") == [False, True]
    assert orders_of(b"\x3c\x00\x00" + TYPE_ORDER, "string", "double") == [False, True]


@pytest.mark.parametrize(
    ("element", "stored"),
    [
        ({1: 3}, "int96"),
        ({1: 7, 2: 2, 10: {15: {}}}, "unknown"),  # FLOAT16
        ({1: 7, 2: 12, 6: 21}, "unknown"),  # INTERVAL
        ({1: 1, 6: 13}, "unsigned"),
        ({1: 2, 10: {10: {1: 64, 2: False}}}, "unsigned"),
        ({1: 2, 10: {6: {}}}, "unknown"),  # a date in 64 bits
        ({1: 1, 10: {1: {}}}, "unknown"),  # a text in 32 bits
        ({1: 6, 10: {8: {1: True, 2: {2: {}}}}}, "unknown"),
        ({1: 5, 6: 5, 7: 2, 8: 9}, "unknown"),
        ({1: 2, 10: {8: {1: True, 2: {2: {}}}}}, "timestamptz-us"),
        ({1: 6, 10: {5: {1: 2, 2: 9}}}, "decimal(9, 2)"),
    ],
)
def test_s7_types_without_an_order_that_iceberg_shares_are_not_read(element: dict[int, Any], stored: str) -> None:
    (node,) = read_schema([{5: 1}, {3: 1, 4: b"c", **element}])
    assert node.stored == stored


# -- counts of NaN ----------------------------------------------------------------------------------------------------


def duckdb_claimed(nan: Callable[[dict[str, int]], dict[int, int]]) -> dict[str, Any]:
    metadata = four_writers()
    ids = {each.name: each.id for each in columns_by_id(metadata["schemas"][0]).values()}
    data = (FIXTURES / "duckdb.parquet").read_bytes()
    given = claim(metadata, data, nan_value_counts=nan(ids))
    return {**verified(Layout(metadata), given, data).file.record, "ids": ids}


def test_a_footer_that_counts_nan_needs_nobody_else_to() -> None:
    record = duckdb_claimed(lambda _: {})
    counts = {pair["key"]: pair["value"] for pair in record["nan_value_counts"]}
    assert counts[record["ids"]["with_nan"]] == 1
    assert counts[record["ids"]["plus_first"]] == 0
    assert record["ids"]["plus_first"] in {pair["key"] for pair in record["lower_bounds"]}


def test_a_count_of_nan_that_the_footer_contradicts_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="its footer says 1") as refused:
        duckdb_claimed(lambda ids: {ids["with_nan"]: 0})
    assert refused.value.rule == "append.nan-counts"

"""Values of JSON are written as they are, or refused with the place and what is expected: nothing is changed unsaid."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icetower.errors import BadRequest
from icetower.mcp.writing import CELLS_MAX, COLUMNS_MAX, arrow_of, require_bounded

STRUCT = StructType(
    NestedField(19, "x", LongType(), required=True),
    NestedField(20, "y", DecimalType(9, 2)),
    NestedField(21, "z", TimestampType()),
)
SCHEMA = Schema(
    NestedField(1, "long", LongType()),
    NestedField(2, "int", IntegerType()),
    NestedField(3, "decimal", DecimalType(9, 2)),
    NestedField(4, "big", DecimalType(38, 2)),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "float", FloatType()),
    NestedField(7, "ts", TimestampType()),
    NestedField(8, "tz", TimestamptzType()),
    NestedField(9, "day", DateType()),
    NestedField(10, "text", StringType()),
    NestedField(11, "bool", BooleanType()),
    NestedField(12, "bin", BinaryType()),
    NestedField(13, "fixed", FixedType(4)),
    NestedField(14, "uuid", UUIDType()),
    NestedField(15, "time", TimeType()),
    NestedField(16, "list", ListType(17, LongType(), element_required=False)),
    NestedField(18, "struct", STRUCT),
    NestedField(22, "map", MapType(23, StringType(), 24, LongType(), value_required=False)),
    NestedField(25, "by_int", MapType(26, IntegerType(), 27, StringType(), value_required=True)),
    NestedField(28, "deep", ListType(29, STRUCT, element_required=True)),
    NestedField(32, "must", LongType(), required=True),
)
ARROW = SCHEMA.as_arrow()
ID = "12345678-1234-5678-1234-567812345678"

KEPT: tuple[tuple[str, Any, Any], ...] = (
    ("long", 2**63 - 1, 2**63 - 1),
    ("long", str(2**53 + 1), 2**53 + 1),
    ("long", "-9223372036854775808", -(2**63)),
    ("int", -(2**31), -(2**31)),
    ("decimal", "9.99", Decimal("9.99")),
    ("decimal", "1.000", Decimal("1.00")),
    ("decimal", "-9999999.99", Decimal("-9999999.99")),
    ("decimal", 12, Decimal("12.00")),
    ("decimal", "0.000", Decimal("0.00")),
    ("big", "123456789012345678901234567890123456.78", Decimal("123456789012345678901234567890123456.78")),
    ("double", 0.1, 0.1),
    ("double", 2**53, float(2**53)),
    ("float", 0.5, 0.5),
    ("ts", "2017-01-02T03:04:05", dt.datetime(2017, 1, 2, 3, 4, 5)),  # noqa: DTZ001
    ("ts", "2017-01-02 03:04:05.123456", dt.datetime(2017, 1, 2, 3, 4, 5, 123456)),  # noqa: DTZ001
    ("ts", "1969-12-31T23:59:59.5", dt.datetime(1969, 12, 31, 23, 59, 59, 500000)),  # noqa: DTZ001
    ("tz", "2017-01-02T03:04:05Z", dt.datetime(2017, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    ("tz", "2017-01-02T03:04:05+02:00", dt.datetime(2017, 1, 2, 1, 4, 5, tzinfo=dt.UTC)),
    ("tz", "2017-01-02T03:04:05-0830", dt.datetime(2017, 1, 2, 11, 34, 5, tzinfo=dt.UTC)),
    ("day", "2016-02-29", dt.date(2016, 2, 29)),
    ("text", "", ""),
    ("text", "007", "007"),
    ("bool", False, False),
    ("bin", "base64:aGk=", b"hi"),
    ("bin", "base64:", b""),
    ("fixed", "base64:YWJjZA==", b"abcd"),
    ("uuid", ID, uuid.UUID(ID)),
    ("time", "03:04:05.000006", dt.time(3, 4, 5, 6)),
    ("time", "23:59", dt.time(23, 59)),
    ("list", [1, None, "3"], [1, None, 3]),
    ("struct", {"x": 1, "y": "1.50", "z": "2017-01-02T03:04:05"},
     {"x": 1, "y": Decimal("1.50"), "z": dt.datetime(2017, 1, 2, 3, 4, 5)}),  # noqa: DTZ001
    ("struct", {"x": 1}, {"x": 1, "y": None, "z": None}),
    ("map", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    ("map", [["a", 1]], [("a", 1)]),
    ("by_int", [[7, "x"], ["8", "y"]], [(7, "x"), (8, "y")]),
    ("deep", [{"x": 1, "y": "2"}], [{"x": 1, "y": Decimal("2.00"), "z": None}]),
    ("long", None, None),
)  # fmt: skip

REFUSED: tuple[tuple[str, Any], ...] = (
    *(("long", each) for each in (1.5, 1.0, -1.5, True, 2**63, -(2**63) - 1, "1.0", " 7", "0x10", "1e3", "", "٣", [1])),
    *(("int", each) for each in (2**31, 1.9, True, "2147483648", float("nan"))),
    *(("decimal", each) for each in (1.1, 1.0, "1.005", "1e2", "NaN", "99999999.99", True, 12345678, "+1", "", " 1")),
    *(("big", each) for each in (12345678901234567.89, 1e20, 10**60, 10**5000)),
    *(("double", each) for each in (True, "0.1", "NaN", float("inf"), float("nan"), 2**53 + 1, 10**400)),
    *(("float", each) for each in (1e40, -1e40, 16777217, True, "1")),
    *(("ts", each) for each in (1483326245, 1.5, True, "2017-01-02", "2017-01-02T24:00:00", "2017-02-30T00:00:00",
                                "2017-01-02T03:04:05Z", "2017-01-02T03:04:05+02:00", "2017-01-02T03:04:05.1234567",
                                "20170102T030405", "0000-01-01T00:00:00", "x" * 5_000)),
    *(("tz", each) for each in (1483326245, "2017-01-02T03:04:05", "2017-01-02T03:04:05+99:00",
                                "0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00", "2017-01-02T03:04:05ZZ")),
    *(("day", each) for each in (17000, 1483326245, 1.5, True, "2017-02-30", "20170102", "2017-01-02T00:00:00")),
    *(("text", each) for each in (1, 1.0, True, ["a"], {"a": 1}, "\ud800")),
    *(("bool", each) for each in ("true", 1, 0, 1.0, "")),
    *(("bin", each) for each in ("aGk=", "abcd", "hi", "base64:hi", "base64:a", "base64:\xe9", [1, 2], 1)),
    *(("fixed", each) for each in ("abcd", "base64:YWJj")),
    *(("uuid", each) for each in ("", ID.replace("-", ""), f"{{{ID}}}", 1, "urn:uuid:" + ID)),
    *(("time", each) for each in (5, "25:00:00", "03:04:05.1234567", "03:04:05Z", "3:4")),
    *(("list", each) for each in ([1.5], [True], "[1]", {"a": 1}, [[1]])),
    *(("struct", each) for each in ({"x": 1, "nope": 2}, {"y": "1"}, {"x": None}, {"x": 1.7}, {"x": 1, "y": 1.1},
                                    {"x": 1, "z": 1483326245}, [1], "x")),
    *(("map", each) for each in ({"a": 1.5}, [["a"]], [["a", 1], ["a", 2]], [[None, 1]], "x", ["ab"])),
    *(("by_int", each) for each in ({"a": "x"}, [[1.5, "x"]], [[1, None]], [[1, "x"], ["1", "y"]])),
    *(("deep", each) for each in ([None], [{"x": 1.5}])),
    ("must", None),
)  # fmt: skip


@pytest.mark.parametrize(("name", "value", "kept"), KEPT, ids=str)
def test_what_fits_is_kept_as_it_is(name: str, value: Any, kept: Any) -> None:
    [found] = arrow_of([{name: value}], ARROW).column(name).to_pylist()
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("name", "value"), REFUSED, ids=lambda each: repr(each)[:40] if not isinstance(each, int) else ""
)
def test_what_does_not_fit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=rf"^rows: row 2, column {name}[^:]*: .{{1,400}}; it takes ") as refused:
        arrow_of([{name: 5 if name == "must" else None}, {name: value}], ARROW)
    assert refused.value.rule == "mcp.arguments"
    assert "\ud800" not in refused.value.message


def test_a_refusal_names_the_place_in_what_nests() -> None:
    with pytest.raises(BadRequest, match=r"row 1, column deep\[1\]\.y: 1\.1 does not fit; it takes no float"):
        arrow_of([{"deep": [{"x": 1}, {"x": 1, "y": 1.1}]}], ARROW)
    with pytest.raises(
        BadRequest, match=r"row 1, column struct: 'nope' does not fit; it takes the fields x, y, z alone"
    ):
        arrow_of([{"struct": {"x": 1, "nope": 2}}], ARROW)


def test_every_kind_of_column_is_written_in_the_tables_own_type() -> None:
    names = {name for name, _, _ in KEPT}
    assert names | {"must"} == set(ARROW.names)
    for name, value, _ in KEPT:
        table = arrow_of([{name: value}], ARROW)
        assert table.column(name).combine_chunks().cast(ARROW.field(name).type).type == ARROW.field(name).type


def test_too_many_columns_are_refused_before_anything_is_looked_up() -> None:
    wide = [{f"x{at}": 1 for at in range(COLUMNS_MAX + 1)}]
    with pytest.raises(BadRequest, match=f"{COLUMNS_MAX} in a row"):
        require_bounded(wide)
    with pytest.raises(BadRequest, match="values"):
        require_bounded([{f"x{at}": 1 for at in range(1_000)}] * (CELLS_MAX // 1_000 + 1))
    # Each row is short, but all rows together would be a table of many more cells.
    with pytest.raises(BadRequest, match="columns; send at most"):
        arrow_of([{f"x{row}-{at}": 1 for at in range(90)} for row in range(1_000)],
                 pa.schema([(f"x{row}-{at}", pa.int64()) for row in range(1_000) for at in range(90)]))  # fmt: skip


def test_names_are_looked_up_and_not_searched_for() -> None:
    """An unknown name costs the same in a table of ten thousand columns: `names` makes its list once."""

    class Counted:
        def __init__(self) -> None:
            self.asked = 0

        @property
        def names(self) -> list[str]:
            self.asked += 1
            return [f"c{at}" for at in range(10_000)]

    schema: Any = Counted()
    with pytest.raises(BadRequest, match="no column"):
        arrow_of([{f"x{row}-{at}": 1 for at in range(500)} for row in range(110)], schema)
    assert schema.asked == 1

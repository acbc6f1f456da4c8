"""Rows as agents have them, as the rows door takes them: held to the server's own reading of what is sent."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.agent import arrow_rows
from icetower.agent.rows import ArrowRows, JSONRows, rows_of, together
from icetower.agent.spelling import spelled_row
from icetower.errors import UsageError
from icetower.protocol.row_limits import BODY_MAX_BYTES, CELLS_MAX, ROWS_MAX
from icetower.protocol.rows import parse_rows
from icetower.protocol.wire import OBJECTS_MAX, VALUES_MAX
from icetower.rows.decoding import decoded
from icetower.rows.schemas import row_schema
from tests.rows.making import column, metadata

SOME_UUID = UUID("12345678-1234-5678-1234-567812345678")
TYPES: dict[str, Any] = {
    "b": "boolean",
    "i": "int",
    "l": "long",
    "d": "double",
    "m": "decimal(18, 4)",
    "day": "date",
    "t": "time",
    "ts": "timestamp",
    "tz": "timestamptz",
    "s": "string",
    "u": "uuid",
    "bin": "binary",
    "st": {"type": "struct", "fields": [column(100, "a", "int"), column(101, "b", "string")]},
    "li": {"type": "list", "element-id": 102, "element": "long", "element-required": False},
    "ma": {
        "type": "map",
        "key-id": 103,
        "key": "long",
        "value-id": 104,
        "value": "string",
        "value-required": False,
    },
}
SCHEMA = row_schema(metadata([column(at, name, type_) for at, (name, type_) in enumerate(TYPES.items(), 1)]))


def read(rows: Any) -> list[dict[str, Any]]:
    """What the server makes of rows."""
    kind, body = rows_of(rows).body()
    return decoded(parse_rows(body, kind, None), SCHEMA).arrow().to_pylist(maps_as_pydicts="strict")


def given_only(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


# -- values -----------------------------------------------------------------------------------------------------------

LONGS = st.integers(-(2**63), 2**63 - 1)
NAIVE = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001
ZONES = st.timezones() | st.just(dt.timezone(dt.timedelta(hours=-3, minutes=-30)))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "b": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "l": LONGS,
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "m": st.decimals(-(10**13), 10**13, places=4),
    "day": st.dates(),
    "t": st.times(),
    "ts": NAIVE,
    "tz": st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=ZONES),  # noqa: DTZ001
    "s": st.text(st.characters(exclude_categories=["Cs"])),
    "u": st.uuids(),
    "bin": st.binary(max_size=20),
    "st": st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text("ab", max_size=3)}),
    "li": st.lists(st.none() | LONGS, max_size=4),
    "ma": st.dictionaries(LONGS, st.none() | st.text("ab", max_size=3), max_size=3),
}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=4))
def test_values_of_python_arrive_as_they_are(rows: list[dict[str, Any]]) -> None:
    found = [given_only(row) for row in read(rows)]
    # In its own zone a moment may be in an hour that is there twice, which Python calls equal to none.
    assert found == [row | ({"tz": row["tz"].astimezone(dt.UTC)} if "tz" in row else {}) for row in rows]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    a: int
    b: str


@dataclasses.dataclass
class Reading:
    l: int  # noqa: E741
    st: Point
    s: str | None = None


class Model(pydantic.BaseModel):
    l: int  # noqa: E741
    day: dt.date


@pytest.mark.parametrize(
    ("row", "read_as"),
    [
        (Reading(1, Point(2, "x")), {"l": 1, "st": {"a": 2, "b": "x"}}),
        (Model(l=1, day=dt.date(2026, 1, 2)), {"l": 1, "day": dt.date(2026, 1, 2)}),
        ({"s": Colour.RED, "l": Level.HIGH}, {"s": "red", "l": 3}),
        ({"l": np.int64(7), "d": np.float64(0.5), "b": np.bool_(True)}, {"l": 7, "d": 0.5, "b": True}),
        ({"s": np.str_("x"), "bin": np.bytes_(b"x"), "li": np.array([1, 2])}, {"s": "x", "bin": b"x", "li": [1, 2]}),
        ({"ts": np.datetime64("2026-01-02T03:04:05.000006")}, {"ts": dt.datetime(2026, 1, 2, 3, 4, 5, 6)}),  # noqa: DTZ001
        ({"tz": pd.Timestamp("2026-01-02", tz="UTC")}, {"tz": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}),
        ({"ts": pd.NaT, "l": pd.NA, "s": None}, {}),
        ({"bin": bytearray(b"x"), "m": Decimal("1E+2")}, {"bin": b"x", "m": Decimal("100.0000")}),
        ({"bin": memoryview(b"x"), "li": (1, None)}, {"bin": b"x", "li": [1, None]}),
        ({"ma": {}}, {"ma": {}}),
    ],
)
def test_rows_in_other_forms(row: Any, read_as: dict[str, Any]) -> None:
    assert given_only(read(row)[0]) == given_only(read([row])[0]) == read_as


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"d": math.nan}, "row 1, column d: JSON has no nan; send null, or the rows as an Arrow table"),
        ({"li": [1.0, math.inf]}, r"row 1, column li\[1\]: JSON has no inf"),
        ({"m": Decimal("NaN")}, "column m: NaN is no number"),
        ({"s": object()}, "column s: a value of type object is not written from rows"),
        ({"s": dt.timedelta(1)}, "a value of type timedelta"),
        ({"s": {"a": {1, 2}}}, r"column s\.a: a value of type set"),
        ({"s": "\ud800"}, "row 1 has a text with half a surrogate pair"),
        ({1: "x"}, "a column's name must be a text, and 1 is none"),
        ({"ts": np.datetime64(1, "ns")}, "a moment of NumPy's in nanoseconds"),
        ({"tz": dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5)))}, "beyond the years 1 to 9999"),
        ({"l": 10**5000}, "the number has too many digits"),
    ],
)
def test_what_has_no_form_there_is_said_to_whoever_sends_it(row: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        rows_of(row).body()


def test_values_that_contain_themselves() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="deeper than 32 levels"):
        rows_of({"li": loop})


@pytest.mark.parametrize("given", [7, "text", b"bytes", None, Reading, [1], [[]], ["x"], object()])
def test_what_is_no_row(given: Any) -> None:
    with pytest.raises(UsageError, match="is no row"):
        rows_of(given)


def test_an_integer_beyond_64_bits_is_the_servers_to_judge() -> None:
    assert spelled_row({"m": 2**63, "l": 2**63 - 1, "n": -(2**63) - 1}, 1) == {
        "m": str(2**63),
        "l": 2**63 - 1,
        "n": str(-(2**63) - 1),
    }


def test_rows_are_read_once_from_whatever_yields_them() -> None:
    assert rows_of({"l": each} for each in range(3)).count == 3
    assert rows_of(iter([Reading(1, Point(2, "x"))])).columns == ("l", "st", "s")


# -- Arrow ------------------------------------------------------------------------------------------------------------


class Stream:
    """As Polars, DuckDB and others hand their rows over."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


PLAIN = pa.table({"l": [1, None, 3], "s": ["a", "b", None]})


FORMS: dict[str, Any] = {
    "table": PLAIN,
    "batch": PLAIN.to_batches()[0],
    "reader": PLAIN.to_reader(),
    "Arrow stream": Stream(PLAIN),
    "table in chunks": pa.concat_tables([PLAIN.slice(0, 1), PLAIN.slice(1, 2)]),
    "narrow and large types": PLAIN.cast(pa.schema([("l", pa.int16()), ("s", pa.large_string())])),
    "dictionary": PLAIN.set_column(1, "s", PLAIN["s"].dictionary_encode()),
    "view": PLAIN.set_column(1, "s", pa.array(["a", "b", None], pa.string_view())),
    "runs": PLAIN.set_column(0, "l", pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array([1, None, 3]))),
    "column of nulls": PLAIN.append_column("li", pa.nulls(3)),
    "pandas": pd.DataFrame({"l": pd.array([1, None, 3], "Int64"), "s": ["a", "b", None]}),
    "pandas category": pd.DataFrame({"l": pd.array([1, None, 3], "Int64"), "s": pd.Categorical(["a", "b", None])}),
    "pandas with an index that lacks a row": pd.DataFrame(
        {"l": pd.array([0, 1, None, 3], "Int64"), "s": ["z", "a", "b", None]}
    ).iloc[1:],
    "pandas with a named index": pd.DataFrame(
        {"s": ["a", "b", None]}, index=pd.Index(pd.array([1, None, 3], "Int64"), name="l")
    ),
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS.keys())
def test_tables_and_frames_arrive_as_they_are(rows: Any) -> None:
    assert [given_only(row) for row in read(rows)] == [{"l": 1, "s": "a"}, {"s": "b"}, {"l": 3}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.dictionary(pa.int8(), pa.int64())), [[1, 2], None, []]),
        (pa.list_(pa.int64(), 2), [[1, 2], None, [3, 4]]),
        (pa.list_view(pa.int64()), [[1, 2], None, []]),
        (pa.large_list_view(pa.int64()), [[1, 2], None, []]),
        (pa.large_list(pa.int32()), [[1, None], None, []]),
    ],
    ids=str,
)
def test_nested_values_are_made_plain(kind: pa.DataType, values: list[Any]) -> None:
    assert [row["li"] for row in read(pa.table({"li": pa.array(values, kind)}))] == values


def test_structs_maps_decimals_and_uuids_are_made_plain() -> None:
    points = [{"a": 1, "b": "x"}, None]
    kind = pa.struct([("a", pa.int32()), ("b", pa.dictionary(pa.int8(), pa.string()))])
    table = pa.table(
        {
            "st": pa.array(points, kind),
            "ma": pa.array([[(1, "x")], None], pa.map_(pa.int64(), pa.dictionary(pa.int8(), pa.string()))),
            "m": pa.array([Decimal("1.5"), None], pa.decimal64(5, 1)),
            "u": pa.array([SOME_UUID.bytes, None], pa.uuid()),
        }
    )
    first, second = read(table)
    assert given_only(first) == {"st": points[0], "ma": {1: "x"}, "m": Decimal("1.5"), "u": SOME_UUID}
    assert given_only(second) == {}


def test_a_column_that_is_there_twice() -> None:
    with pytest.raises(UsageError, match="the rows have the column l twice"):
        rows_of(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["l", "l"]))


def test_values_under_nulls_do_not_travel() -> None:
    """A null may stand over a megabyte that nobody sees."""
    hidden = pa.Array.from_buffers(
        pa.large_string(),
        1,
        [pa.py_buffer(b"\x00"), pa.py_buffer(np.array([0, 5_000_000], np.int64)), pa.py_buffer(b"x" * 5_000_000)],
    )
    rows = rows_of(pa.table({"s": hidden}))
    assert len(rows.requests()) == 1
    assert len(rows.body()[1]) < 1_000


# -- parts ------------------------------------------------------------------------------------------------------------

PARTED = st.lists(st.integers(0, 400_000), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(PARTED, st.booleans(), st.integers(1, 30), st.integers(1, 50))
def test_each_part_is_within_the_bounds_and_depends_on_the_rows_alone(
    lengths: list[int], as_arrow: bool, rows_max: int, chunk: int
) -> None:
    rows = [{"l": at, "s": "é" * (length // 2)} for at, length in enumerate(lengths)]
    forms: list[Any] = [rows, rows]
    if as_arrow:
        table = pa.Table.from_pylist(rows)
        pieces = [table.slice(at, chunk) for at in range(0, len(rows), chunk)]
        forms = [table, pa.concat_tables(pieces).set_column(1, "s", pa.concat_tables(pieces)["s"])]
    parts, others = (rows_of(form).requests(rows_max) for form in forms)
    assert [each.count for each in parts] == [each.count for each in others]
    found: list[Any] = []
    for part in parts:
        assert 0 < part.count <= min(rows_max, ROWS_MAX)
        kind, body = part.body()
        assert len(body) <= BODY_MAX_BYTES
        found += read_back(parse_rows(body, kind, None))
    assert found == list(range(len(rows)))


def read_back(request: Any) -> list[int]:
    if request.rows is not None:
        return [row["l"] for row in request.rows]
    return pa.ipc.open_stream(request.stream).read_all()["l"].to_pylist()


def test_wide_deep_and_many_rows_are_parted() -> None:
    wide = [{f"c{at}": 1 for at in range(500)}] * 1_000
    for form in (wide, pa.Table.from_pylist(wide)):
        parts = rows_of(form).requests()
        assert max(part.count for part in parts) * 500 * 4 <= CELLS_MAX
    deep = [{"li": [[]] * 50}] * 5_000
    for part in rows_of(deep).requests():
        assert part.body()[1].count(b"[") < OBJECTS_MAX
    commas = [{"s": "," * 1_000}] * 2_000
    for part in rows_of(commas).requests():
        assert part.body()[1].count(b",") <= VALUES_MAX
    many = pa.table({"l": range(25_000)})
    assert [part.count for part in rows_of(many).requests()] == [10_000, 10_000, 5_000]
    assert [part.count for part in rows_of([{"l": at} for at in range(25_000)]).requests()] == [10_000, 10_000, 5_000]


@pytest.mark.parametrize("form", [lambda row: row, lambda row: pa.Table.from_pylist([row])], ids=["JSON", "Arrow"])
def test_a_row_that_is_too_large(form: Any) -> None:
    with pytest.raises(UsageError, match="is too large for a request"):
        rows_of(form({"s": "x" * BODY_MAX_BYTES})).requests()


def test_fingerprints_stand_for_rows() -> None:
    forms: list[Any] = [
        [{"l": 1}],
        [{"l": 2}],
        [{"l": 1}, {"l": 1}],
        [{"l": "1"}],
        [{"l": 1, "s": None}],
        pa.table({"l": [1]}),
        pa.table({"l": pa.array([1], pa.int32())}),
        pa.table({"l": pa.array([None], pa.int64())}),
    ]
    assert len({rows_of(form).fingerprint() for form in forms}) == len(forms)
    assert rows_of([{"l": 1, "s": "x"}]).fingerprint() == rows_of([{"s": "x", "l": 1}]).fingerprint()
    table = pa.table({"l": [1, 2], "s": ["a", None]})
    sliced = pa.table({"l": [0, 1, 2], "s": ["z", "a", None]}).slice(1)
    parted = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert len({rows_of(each).fingerprint() for each in (table, sliced, parted)}) == 1


def test_rows_that_go_together() -> None:
    assert together([rows_of({"l": 1}), rows_of({"s": "x"})]).columns == ("l", "s")
    joined = together([rows_of(pa.table({"l": [1]})), rows_of(pa.table({"l": [2], "s": ["x"]}))])
    assert isinstance(joined, ArrowRows)
    assert joined.table.to_pylist() == [{"l": 1, "s": None}, {"l": 2, "s": "x"}]
    with pytest.raises(UsageError, match="the columns of rows that go together differ"):
        together([rows_of(pa.table({"l": [1]})), rows_of(pa.table({"l": ["x"]}))])


def test_rows_of_python_as_a_table() -> None:
    rows = rows_of([Reading(1, Point(2, "x")), {"s": Colour.RED, "li": (1, 2), "u": SOME_UUID, "m": Decimal("1.50")}])
    assert isinstance(rows, JSONRows)
    assert [given_only(row) for row in rows.as_arrow().to_pylist()] == [
        {"l": 1, "st": {"a": 2, "b": "x"}},
        {"s": "red", "li": [1, 2], "u": SOME_UUID, "m": Decimal("1.50")},
    ]
    with pytest.raises(UsageError, match="the values of column l have no common type"):
        rows_of([{"l": 1}, {"l": "x"}]).as_arrow()


def test_weights_are_of_values_and_not_of_buffers() -> None:
    table = pa.table({"l": range(100), "s": ["é" * 10] * 100, "li": [[1, None]] * 100, "n": pa.nulls(100)})
    part = table.slice(40, 10)
    alone = pa.Table.from_pylist(part.to_pylist(), schema=table.schema)
    assert arrow_rows.weight(part) == arrow_rows.weight(alone) < arrow_rows.weight(table) / 5

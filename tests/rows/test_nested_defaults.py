"""Fields within structs have defaults of their own, wherever the structs are; a null that is given stays null."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from icetower.errors import ValidationFailed
from icetower.protocol.rows import RowsRequest
from icetower.rows.decoding import decoded
from icetower.rows.schemas import row_schema
from tests.rows.making import arrow_request, column, metadata, request

STRUCT = {
    "type": "struct",
    "fields": [
        column(20, "a", "int", **{"write-default": 3}),
        column(21, "b", "string"),
        column(22, "r", "int", **{"write-default": 4}) | {"required": True},
    ],
}
LIST = {"type": "list", "element-id": 30, "element": STRUCT, "element-required": False}
MAP = {"type": "map", "key-id": 40, "key": "string", "value-id": 41, "value": STRUCT, "value-required": False}
OUTER = {"type": "struct", "fields": [column(50, "in", STRUCT), column(51, "n", "long")]}
FILLED = {"a": 3, "b": "x", "r": 4}
GIVEN = {"a": None, "b": "y", "r": 1}


def rows_of(sent: RowsRequest, type_: Any) -> list[Any]:
    table = metadata([column(1, "k", "long"), column(2, "v", type_)], version=3)
    return [row["v"] for row in decoded(sent, row_schema(table)).arrow().to_pylist()]


@pytest.mark.parametrize(
    ("type_", "sent", "wanted"),
    [
        (STRUCT, {"b": "x"}, FILLED),
        (STRUCT, GIVEN, GIVEN),
        (STRUCT, None, None),
        (LIST, [{"b": "x"}, None, GIVEN], [FILLED, None, GIVEN]),
        (MAP, {"m": {"b": "x"}, "n": None}, [("m", FILLED), ("n", None)]),
        (MAP, [["m", {"b": "x"}]], [("m", FILLED)]),
        (OUTER, {"in": {"b": "x"}, "n": 1}, {"in": FILLED, "n": 1}),
        (OUTER, {"n": 1}, {"in": None, "n": 1}),
    ],
)
def test_rows_of_json(type_: Any, sent: Any, wanted: Any) -> None:
    assert rows_of(request({"k": 1, "v": sent}, {"k": 2}), type_) == [wanted, None]


WITHOUT = pa.struct([("b", pa.string())])


@pytest.mark.parametrize(
    ("type_", "sent", "wanted"),
    [
        (STRUCT, pa.array([{"b": "x"}, None], WITHOUT), [FILLED, None]),
        (STRUCT, pa.array([None, {"b": "x"}, None], WITHOUT)[1:], [FILLED, None]),
        (
            STRUCT,
            pa.array([GIVEN, None], pa.struct([("a", pa.int64()), ("b", pa.string()), ("r", pa.int8())])),
            [GIVEN, None],
        ),
        (LIST, pa.array([[{"b": "x"}, None], None], pa.list_(WITHOUT)), [[FILLED, None], None]),
        (LIST, pa.array([[], [{"b": "x"}]], pa.large_list(WITHOUT))[1:], [[FILLED]]),
        (MAP, pa.array([[("m", {"b": "x"})], None], pa.map_(pa.string(), WITHOUT)), [[("m", FILLED)], None]),
        (
            OUTER,
            pa.array([{"in": {"b": "x"}, "n": 1}, None], pa.struct([("in", WITHOUT), ("n", pa.int64())])),
            [{"in": FILLED, "n": 1}, None],
        ),
    ],
)
def test_rows_of_arrow(type_: Any, sent: Any, wanted: list[Any]) -> None:
    keys = pa.array(range(len(sent)), pa.int64())
    assert rows_of(arrow_request(pa.table({"k": keys, "v": sent})), type_) == wanted


@pytest.mark.parametrize(
    "sent",
    [
        pa.array([{"a": 1}], pa.struct([("a", pa.int32())])),  # without a field that has no default
        pa.array([{"r": 1, "b": "x"}], pa.struct([("r", pa.int32()), ("b", pa.string())])),  # in another order
        pa.array([{"b": "x", "c": 1}], pa.struct([("b", pa.string()), ("c", pa.int32())])),  # with another field
    ],
)
def test_other_structs_are_refused_as_before(sent: Any) -> None:
    with pytest.raises(ValidationFailed, match="and takes a, b, r in this order"):
        rows_of(arrow_request(pa.table({"v": sent})), STRUCT)


def test_a_null_for_a_required_field_is_refused_whatever_its_default() -> None:
    sent = pa.array([{"b": "x", "r": None}], pa.struct([("b", pa.string()), ("r", pa.int32())]))
    for each in (request({"v": {"b": "x", "r": None}}), arrow_request(pa.table({"v": sent}))):
        with pytest.raises(ValidationFailed) as refused:
            rows_of(each, STRUCT)
        assert refused.value.rule == "rows.values"


def test_defaults_of_all_types() -> None:
    said: dict[str, tuple[str, Any, Any]] = {
        "bin": ("binary", "00ff", b"\x00\xff"),
        "fix": ("fixed[2]", "00ff", b"\x00\xff"),
        "u": ("uuid", "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        "d": ("double", 1, 1.0),
        "m": ("decimal(5, 2)", "1.50", Decimal("1.50")),
        "day": ("date", "2026-02-28", dt.date(2026, 2, 28)),
        "tz": ("timestamptz", "2026-01-01T00:00:00+00:00", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        "ok": ("boolean", False, False),
    }
    fields = [column(60, "b", "string")]
    fields += [column(61 + at, n, t, **{"write-default": d}) for at, (n, (t, d, _)) in enumerate(said.items())]
    type_ = {"type": "struct", "fields": fields}
    wanted = {"b": "x"} | {name: value for name, (_, _, value) in said.items()}
    sent = pa.table({"v": pa.array([{"b": "x"}], WITHOUT)})
    assert rows_of(request({"v": {"b": "x"}}), type_) == rows_of(arrow_request(sent), type_) == [wanted]


def test_they_do_not_make_much_of_little() -> None:
    long = {
        "type": "struct",
        "fields": [column(20, "s", "string", **{"write-default": "x" * 10_000}), column(21, "b", "string")],
    }
    many: dict[str, Any] = {"type": "list", "element-id": 30, "element": long, "element-required": False}
    rows = pa.table({"v": pa.array([[{"b": None}] * 10_000], pa.list_(WITHOUT))})
    for sent in (request({"v": [{}] * 10_000}), arrow_request(rows)):
        with pytest.raises(ValidationFailed, match="above all v") as refused:
            rows_of(sent, many)
        assert refused.value.rule == "limit.rows"

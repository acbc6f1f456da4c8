"""Rows as an agent sends them become columns of the table: exactly, or not at all."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from icetower.errors import BadRequest, IcetowerError, ValidationFailed
from icetower.protocol.rows import RowsRequest
from icetower.rows.decoding import decoded
from icetower.rows.schemas import row_schema
from tests.rows.making import arrow_request, column, metadata, request

SOME_UUID = "12345678-1234-5678-1234-567812345678"
TYPES = {
    "b": "boolean",
    "i": "int",
    "l": "long",
    "f": "float",
    "d": "double",
    "m": "decimal(9, 2)",
    "day": "date",
    "t": "time",
    "ts": "timestamp",
    "tz": "timestamptz",
    "ns": "timestamp_ns",
    "s": "string",
    "u": "uuid",
    "x": "fixed[2]",
    "bin": "binary",
    "st": {"type": "struct", "fields": [column(100, "a", "int", required=True), column(101, "b", "string")]},
    "li": {"type": "list", "element-id": 102, "element": "long", "element-required": True},
    "ma": {
        "type": "map",
        "key-id": 103,
        "key": "string",
        "value-id": 104,
        "value": "decimal(5, 1)",
        "value-required": False,
    },
}
ALL = metadata([column(at, name, type_) for at, (name, type_) in enumerate(TYPES.items(), 1)], version=3)
VALUES: dict[str, tuple[Any, Any]] = {
    "b": (True, True),
    "i": (-(2**31), -(2**31)),
    "l": (str(2**63 - 1), 2**63 - 1),
    "f": (1.5, 1.5),
    "d": (0.1, 0.1),
    "m": ("1234567.89", Decimal("1234567.89")),
    "day": ("2026-02-28", dt.date(2026, 2, 28)),
    "t": ("03:04:05.000006", dt.time(3, 4, 5, 6)),
    "ts": ("2026-01-01T00:00:00.000001", dt.datetime(2026, 1, 1, microsecond=1)),  # noqa: DTZ001
    "tz": ("2026-01-01T02:00:00+02:00", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    "ns": ("2026-01-01T00:00:00.000000", dt.datetime(2026, 1, 1)),  # noqa: DTZ001
    "s": ("ü\u202e", "ü\u202e"),
    "u": (SOME_UUID, UUID(SOME_UUID)),
    "x": ("base64:AAE=", b"\x00\x01"),
    "bin": ("base64:", b""),
    "st": ({"a": 1}, {"a": 1, "b": None}),
    "li": ([1, 2], [1, 2]),
    "ma": ({"k": "1.5"}, [("k", Decimal("1.5"))]),
}


def rows_of(sent: RowsRequest, table: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decoded(sent, row_schema(table), **options).arrow().to_pylist()
    return found


def refused(sent: RowsRequest, table: dict[str, Any], **options: Any) -> IcetowerError:
    with pytest.raises(IcetowerError) as error:
        decoded(sent, row_schema(table), **options)
    assert error.value.status == 400
    return error.value


def test_each_type_comes_as_it_is_and_what_is_left_out_is_null() -> None:
    row = {name: sent for name, (sent, _) in VALUES.items()}
    assert rows_of(request(row, {}), ALL) == [
        {name: found for name, (_, found) in VALUES.items()},
        dict.fromkeys(TYPES),
    ]


def test_arrow_and_json_say_the_same() -> None:
    sent = decoded(request({name: value for name, (value, _) in VALUES.items()}), row_schema(ALL)).arrow()
    again = decoded(arrow_request(sent.replace_schema_metadata(None)), row_schema(ALL)).arrow()
    assert again.equals(sent)
    assert again.schema.equals(sent.schema, check_metadata=True)


def test_whoever_sends_a_float_as_a_decimal_hears_what_to_send() -> None:
    message = refused(request({"m": 9.99}), ALL).message
    assert "send Decimal('9.99') in Python, or a text such as '9.99'" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("i", 2**31),
        ("i", 1.0),
        ("i", True),
        ("l", "1e3"),
        ("f", 16777217),
        ("f", 1e39),
        ("d", "1"),
        ("m", 1.1),
        ("m", "12345678.00"),
        ("m", "1.001"),
        ("day", "2026-02-29"),
        ("day", 1),
        ("t", "24:00:00"),
        ("ts", "2026-01-01T00:00:00Z"),
        ("tz", "2026-01-01T00:00:00"),
        ("tz", 1767225600),
        ("ts", "2026-01-01T00:00:00.0000001"),
        ("s", 1),
        ("u", "x"),
        ("x", "base64:AA=="),
        ("bin", "abc"),
        ("st", {"a": None}),
        ("st", {"a": 1, "c": 2}),
        ("li", [None]),
        ("li", 1),
        ("ma", {"k": 1.5}),
        ("ma", [["k", "1"], ["k", "2"]]),
    ],
)
def test_what_a_column_cannot_hold_as_it_is_is_refused_with_its_row(name: str, value: Any) -> None:
    error = refused(request({}, {name: value}), ALL)
    assert error.rule == "rows.values"
    assert f"row 2, column {name}" in error.message


def test_of_many_bad_rows_some_are_named_and_hostile_texts_do_not_act() -> None:
    error = refused(request(*({"i": "\x1b[31m\u202e" * 100} for _ in range(500))), ALL)
    assert error.message.count("column i") == 20
    assert "and others" in error.message
    assert "\x1b" not in error.message
    assert "\u202e" not in error.message


def test_a_required_column_needs_a_value_and_a_default_is_one() -> None:
    table = metadata(
        [
            column(1, "id", "long", required=True),
            column(2, "region", "string", required=True, **{"write-default": "eu"}),
            column(3, "code", "binary", **{"write-default": "00ff"}),
            column(4, "at", "timestamptz", **{"write-default": "2026-01-01T00:00:00+00:00"}),
        ],
        version=3,
    )
    assert rows_of(request({"id": 1}, {"id": 2, "region": "us", "code": None}), table) == [
        {"id": 1, "region": "eu", "code": b"\x00\xff", "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
        {"id": 2, "region": "us", "code": None, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
    ]
    assert rows_of(arrow_request(pa.table({"id": [1]})), table)[0]["region"] == "eu"
    for sent in (request({}), request({"id": None}), arrow_request(pa.table({"id": pa.array([None], pa.int64())}))):
        assert "required" in refused(sent, table).message
    assert refused(request({"id": 1, "region": None}), table).rule == "rows.values"


def test_columns_that_the_table_does_not_have_are_refused_unless_they_are_ignored() -> None:
    table = metadata([column(1, "id", "long"), column(2, "where", "geometry")], version=3)
    for sent in (request({"id": 1, "nope": 2}), arrow_request(pa.table({"id": [1], "nope": [2]}))):
        assert refused(sent, table).rule == "rows.columns"
        assert rows_of(sent, table, ignores_unknown=True) == [{"id": 1}]
    assert "geometry" in refused(request({"where": "POINT(0 0)"}), table, ignores_unknown=True).message


def test_a_table_that_requires_what_rows_cannot_bring_takes_none() -> None:
    with pytest.raises(ValidationFailed) as error:
        row_schema(metadata([column(1, "v", "variant", required=True)], version=3))
    assert error.value.rule == "rows.schema"


def test_many_columns_of_few_rows_are_bounded() -> None:
    wide = metadata([column(at, f"c{at}", "int") for at in range(1, 1001)])
    assert refused(request(*({"c1": 1} for _ in range(501))), wide).rule == "limit.rows"


# ── Arrow ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "array", "found"),
    [
        ("l", pa.array([7], pa.uint8()), 7),
        ("i", pa.array([7], pa.int64()), 7),
        ("d", pa.array([0.5], pa.float32()), 0.5),
        ("m", pa.array([Decimal("1.5")], pa.decimal128(30, 1)), Decimal("1.50")),
        ("day", pa.array([dt.date(2026, 1, 1)], pa.date64()), dt.date(2026, 1, 1)),
        ("t", pa.array([5], pa.time32("s")), dt.time(0, 0, 5)),
        ("tz", pa.array([0], pa.timestamp("s", "Asia/Tokyo")), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ("s", pa.array(["a"], pa.large_string()), "a"),
        ("bin", pa.array([b"a"], pa.large_binary()), b"a"),
        ("u", pa.array([UUID(SOME_UUID).bytes], pa.binary(16)), UUID(SOME_UUID)),
        ("s", pa.nulls(1), None),
        ("li", pa.array([[1]], pa.large_list(pa.int32())), [1]),
    ],
)
def test_other_types_are_taken_where_each_value_stays_what_it_is(name: str, array: pa.Array, found: Any) -> None:
    assert rows_of(arrow_request(pa.table({name: array})), ALL)[0][name] == found


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("i", pa.array([2**31])),
        ("i", pa.array([1.0])),
        ("i", pa.array(["1"])),
        ("f", pa.array([0.1])),
        ("m", pa.array([Decimal("1.005")])),
        ("m", pa.array([Decimal(10**7)])),
        ("d", pa.array([1])),
        ("ts", pa.array([0], pa.timestamp("us", "UTC"))),
        ("tz", pa.array([0], pa.timestamp("us"))),
        ("ts", pa.array([1], pa.timestamp("ns"))),
        ("ts", pa.array([2**60], pa.timestamp("s"))),
        ("day", pa.array([1], pa.timestamp("us"))),
        ("s", pa.array([b"a"])),
        ("x", pa.array([b"abc"], pa.binary(3))),
        ("li", pa.array([[None]], pa.list_(pa.int64()))),
        ("st", pa.array([{"a": None, "b": None}], pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        ("st", pa.array([{"b": "x", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int32())]))),
    ],
)
def test_what_would_change_a_value_is_refused(name: str, array: pa.Array) -> None:
    assert refused(arrow_request(pa.table({name: array})), ALL).rule == "rows.values"


def test_nan_and_infinity_come_by_arrow_alone() -> None:
    [row] = rows_of(arrow_request(pa.table({"d": [float("-inf")]})), ALL)
    assert row["d"] == float("-inf")
    with pytest.raises(BadRequest):
        request({"d": float("nan")})


def test_a_column_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["l", "l"])
    assert refused(arrow_request(table), ALL).rule == "rows.columns"


UPSERTED = metadata(
    [
        column(1, "id", "int", required=True),
        column(2, "price", "int"),
        column(3, "_operation", "string"),
        column(4, "_idempotency_key", "string"),
    ]
)


def test_rows_that_replace_others_name_every_column() -> None:
    """A column that is left out would become null, or its default: nobody has said that."""
    said: dict[str, Any] = {"whole": True, "filled": {"_operation": "upsert"}, "key": "k"}
    assert [row["price"] for row in rows_of(request({"id": 1, "price": None}), UPSERTED, **said)] == [None]
    error = refused(request({"id": 1, "price": 1}, {"id": 2}), UPSERTED, **said)
    assert error.rule == "rows.values"
    assert "row 2, column price: it is left out, and an upsert replaces whole rows" in error.message
    deletes = request({"id": 1, "_operation": "delete"}, {"id": 2, "price": 2})
    assert len(rows_of(deletes, UPSERTED, **said)) == 2
    bare = pa.table({"id": pa.array([1], pa.int32())})
    error = refused(arrow_request(bare), UPSERTED, **said)
    assert error.rule == "rows.columns"
    assert "the column price is left out" in error.message
    marked = bare.append_column("_operation", pa.array(["delete"]))
    assert len(rows_of(arrow_request(marked), UPSERTED, **said)) == 1
    assert refused(arrow_request(marked.set_column(1, "_operation", pa.array(["upsert"]))), UPSERTED, **said).rule
    assert len(rows_of(request({"id": 1}), UPSERTED, key="k")) == 1


def test_defaults_do_not_make_much_of_little() -> None:
    """Ten thousand rows of nothing, in a table whose owner has given a column a long default, would be gigabytes."""
    long = column(2, "s", "string") | {"write-default": "x" * 10_000}
    table = metadata([column(1, "id", "int"), long], version=3)
    empty = pa.table({"id": pa.array([None] * 10_000, pa.int32())})
    for sent in (request(*({} for _ in range(10_000))), arrow_request(empty)):
        error = refused(sent, table)
        assert error.rule == "limit.rows"
        assert (
            "the defaults of columns that the rows leave out, above all s, would take 100000000 bytes" in error.message
        )
    assert len(rows_of(request({}, {"s": "y"}), table)) == 2


def test_values_within_others_are_counted() -> None:
    bits = pa.array([[True] * 2_000_000], pa.list_(pa.bool_()))
    list_type = {"type": "list", "element-id": 9, "element": "boolean", "element-required": False}
    table = metadata([column(1, "bits", list_type)])
    assert refused(arrow_request(pa.table({"bits": bits})), table).rule == "limit.rows"


def test_row_keys_of_arrow_are_the_same_whatever_the_order_of_columns_and_batches() -> None:
    table = metadata([column(1, "a", "int"), column(2, "b", "string"), column(3, "_idempotency_key", "string")])
    rows = pa.table({"a": pa.array([1, 2, 2, None], pa.int32()), "b": ["x", "y", "y", None]})
    other = pa.concat_tables([rows.slice(0, 1), rows.slice(1)]).select(["b", "a"])
    found = [
        [row["_idempotency_key"] for row in rows_of(arrow_request(each), table, key="k")] for each in (rows, other)
    ]
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
    bare = arrow_request(pa.table({"z": [1, 2]}))
    assert len({row["_idempotency_key"] for row in rows_of(bare, table, key="k", ignores_unknown=True)}) == 2


def test_rows_without_a_key_of_their_own_get_one_beside_rows_that_have_one() -> None:
    table = metadata([column(1, "a", "int"), column(2, "_idempotency_key", "string")])
    named = {"a": 1, "_idempotency_key": "own"}
    bare = ({"a": 2}, {"a": 2, "_idempotency_key": None})
    arrow = pa.table({"a": pa.array([1, 2, 2], pa.int32()), "_idempotency_key": ["own", None, None]})
    for sent in (request(named, *bare), arrow_request(arrow)):
        keys = [row["_idempotency_key"] for row in rows_of(sent, table, key="k")]
        assert keys[0] == "own"
        assert None not in keys
        assert len(set(keys)) == 3
    nothing = arrow_request(pa.table({"a": pa.array([1], pa.int32()), "_idempotency_key": pa.nulls(1)}))
    assert rows_of(nothing, table, key="k")[0]["_idempotency_key"]


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_moments_beyond_the_years_1_to_9999_are_refused_of_arrow_too(days: int) -> None:
    """An hour of such a moment has no 32 bits, and readers do not find the row, or fail."""
    list_type = {"type": "list", "element-id": 9, "element": "timestamptz", "element-required": False}
    table = metadata([column(1, "d", "date"), column(2, "t", "timestamp"), column(3, "l", list_type)])
    day = pa.array([None, days], pa.int32()).cast(pa.date32())
    moment = pa.array([None, days * 86_400 * 10**6], pa.int64())
    inner = pa.ListArray.from_arrays([0, 1, 2], moment.cast(pa.timestamp("us", "UTC")))
    for name, array in (("d", day), ("t", moment.cast(pa.timestamp("us"))), ("l", inner)):
        error = refused(arrow_request(pa.table({name: array})), table)
        assert error.rule == "rows.values"
        assert "outside of the years 1 to 9999" in error.message
    assert len(rows_of(arrow_request(pa.table({"d": pa.array([dt.date.min, dt.date.max, None])})), table)) == 3

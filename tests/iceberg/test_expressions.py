"""Filters: simplification, words, JSON, binding. The right sides of the tables are Iceberg 1.12's own."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from icetower.errors import ValidationFailed
from icetower.iceberg.expressions import (
    FALSE,
    NESTING_MAX,
    TRUE,
    And,
    Bound,
    Column,
    Expression,
    Not,
    Or,
    Predicate,
    bind,
    both,
    columns_of,
    either,
    evaluate,
    from_json,
    negate,
    rewrite_not,
    text,
    to_json,
    typed,
)
from icetower.iceberg.literals import Range, compare, convert, identity_key
from tests.iceberg.filter_world import COLUMNS, SCHEMA, UNTIMED, field, filters, matches, rows

A = Predicate("eq", "id", (5,))
B = Predicate("is-null", "s")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (both(A, B), And(A, B)),
        (both(A, TRUE), A),
        (both(TRUE, A), A),
        (both(A, FALSE), FALSE),
        (both(FALSE, A), FALSE),
        (either(A, B), Or(A, B)),
        (either(A, FALSE), A),
        (either(FALSE, A), A),
        (either(A, TRUE), TRUE),
        (either(TRUE, A), TRUE),
        (negate(TRUE), FALSE),
        (negate(FALSE), TRUE),
        (negate(A), Not(A)),
        (negate(Not(A)), A),
    ],
)
def test_constants_are_simplified_away(made: Expression, expected: Expression) -> None:
    assert made == expected


OPPOSITES = [
    ("is-null", "not-null"), ("is-nan", "not-nan"), ("lt", "gt-eq"), ("lt-eq", "gt"), ("eq", "not-eq"),
    ("in", "not-in"), ("starts-with", "not-starts-with"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "opposite"), OPPOSITES + [(right, left) for left, right in OPPOSITES])
def test_not_turns_a_predicate_into_its_opposite(op: str, opposite: str) -> None:
    column = Column(1, "c", "string", required=False)
    assert rewrite_not(Not(Predicate(op, "c", ("v",)))) == Predicate(opposite, "c", ("v",))
    assert rewrite_not(Not(Bound(op, column, ("v",)))) == Bound(opposite, column, ("v",))


def test_not_moves_down_to_the_predicates() -> None:
    not_a, not_b = Predicate("not-eq", "id", (5,)), Predicate("not-null", "s")
    assert rewrite_not(Not(And(A, B))) == Or(not_a, not_b)
    assert rewrite_not(Not(Or(A, Not(B)))) == And(not_a, B)
    assert rewrite_not(Not(Not(Or(A, B)))) == Or(A, B)
    assert rewrite_not(And(Not(TRUE), A)) == FALSE


@UNTIMED
@given(filters(), rows())
def test_without_not_a_filter_means_the_same(expr: Expression, row: dict[str, Any]) -> None:
    assert matches(rewrite_not(expr), row) == matches(expr, row)


@UNTIMED
@given(filters(), rows())
def test_binding_keeps_the_meaning(expr: Expression, row: dict[str, Any]) -> None:
    assert matches(bind(expr, COLUMNS), row) == matches(expr, row)


# --- words

WORDS: list[tuple[Expression, str]] = [
    (TRUE, "true"),
    (FALSE, "false"),
    (Predicate("eq", "id", (5,)), 'ref(name="id") == 5'),
    (Predicate("not-eq", "id", (-5,)), 'ref(name="id") != -5'),
    (Predicate("lt", "d", (5.0,)), 'ref(name="d") < 5.0'),
    (Predicate("lt-eq", "d", (1e10,)), 'ref(name="d") <= 1.0E10'),
    (Predicate("gt", "day", ("2020-01-31",)), 'ref(name="day") > "2020-01-31"'),
    (Predicate("gt-eq", "s", ('a"b',)), 'ref(name="s") >= "a"b"'),
    (Predicate("eq", "b", (True,)), 'ref(name="b") == true'),
    (Predicate("eq", "x", (b"\x0a\xff",)), "ref(name=\"x\") == X'0AFF'"),
    (Predicate("eq", "dec", (Decimal("1.50"),)), 'ref(name="dec") == 1.50'),
    (Predicate("eq", "u", (UUID(int=1),)), 'ref(name="u") == 00000000-0000-0000-0000-000000000001'),
    (Predicate("is-null", "s"), 'is_null(ref(name="s"))'),
    (Predicate("not-null", "s"), 'not_null(ref(name="s"))'),
    (Predicate("is-nan", "d"), 'is_nan(ref(name="d"))'),
    (Predicate("not-nan", "d"), 'not_nan(ref(name="d"))'),
    (Predicate("in", "s", ("a", "b")), 'ref(name="s") in ("a", "b")'),
    (Predicate("not-in", "id", (1, 2, 1)), 'ref(name="id") not in (1, 2, 1)'),
    (Predicate("in", "id", ()), 'ref(name="id") in ()'),
    (Predicate("starts-with", "s", ("ab",)), 'ref(name="s") startsWith ""ab""'),
    (Predicate("not-starts-with", "s", ("ab",)), 'ref(name="s") notStartsWith ""ab""'),
    (And(A, Or(B, A)), '(ref(name="id") == 5 and (is_null(ref(name="s")) or ref(name="id") == 5))'),
    (Not(A), 'not(ref(name="id") == 5)'),
]


@pytest.mark.parametrize(("expr", "expected"), WORDS, ids=[words for _, words in WORDS])
def test_words(expr: Expression, expected: str) -> None:
    assert text(expr) == expected


# --- JSON

EQ = {"type": "eq", "term": "id", "value": 5}


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (True, TRUE),
        ({"type": "literal", "value": False}, FALSE),
        (EQ, A),
        ({"type": "EQ", "term": {"type": "reference", "term": "id"}, "value": {"type": "literal", "value": 5}}, A),
        ({"type": "lt_eq", "term": "s", "value": "x"}, Predicate("lt-eq", "s", ("x",))),
        ({"type": "eq", "term": "d", "value": 5.0}, Predicate("eq", "d", (5.0,))),
        ({"type": "eq", "term": "b", "value": True}, Predicate("eq", "b", (True,))),
        ({"type": "is-null", "term": "s"}, B),
        ({"type": "in", "term": "id", "values": [1, 2]}, Predicate("in", "id", (1, 2))),
        ({"type": "not-in", "term": "id", "values": []}, Predicate("not-in", "id", ())),
        ({"type": "and", "left": EQ, "right": True}, A),
        ({"type": "or", "left": EQ, "right": {"type": "is-null", "term": "s"}}, Or(A, B)),
        ({"type": "not", "child": {"type": "not", "child": EQ}}, A),
        ({"type": "not", "child": EQ}, Not(A)),
    ],
)
def test_json_is_read(obj: Any, expected: Expression) -> None:
    assert from_json(obj) == expected


BAD_JSON: list[tuple[Any, str]] = [
    (None, "is None"),
    ([], "is []"),
    ({}, "has the type None"),
    ({"type": 5}, "has the type 5"),
    ({"type": "like", "term": "s", "value": "a%"}, "unknown type 'like'"),
    ({"type": "true", "term": "s"}, "unknown type 'true'"),
    ({"type": "literal", "value": 1}, "is the literal 1"),
    ({"type": "and", "left": True}, "at right is None"),
    ({"type": "or", "left": {"type": "not", "child": 7}, "right": True}, "at left.child is 7"),
    ({"type": "eq", "term": "id"}, "is eq and has no 'value'"),
    ({"type": "eq", "term": "id", "value": 1, "values": [1]}, "is eq and has 'values'"),
    ({"type": "eq", "term": "id", "value": None}, "has the value None"),
    ({"type": "eq", "term": "id", "value": [1]}, "has the value [1]"),
    ({"type": "eq", "term": "id", "value": 2**63}, "has the value 9223372036854775808"),
    ({"type": "eq", "term": "id", "value": -(2**63) - 1}, "has the value -9223372036854775809"),
    ({"type": "eq", "term": "d", "value": math.nan}, "has the value nan"),
    ({"type": "in", "term": "id", "value": 1}, "is in and has 'value'"),
    ({"type": "in", "term": "id"}, "is in and has no 'values'"),
    ({"type": "in", "term": "id", "values": 1}, "has the values 1"),
    ({"type": "in", "term": "id", "values": [{"type": "reference"}]}, "has the value {'type': 'reference'}"),
    ({"type": "is-null", "term": "s", "value": 1}, "is is-null and has 'value'; it takes no value"),
    ({"type": "eq", "value": 1}, "has the term None"),
    ({"type": "eq", "term": {"type": "transform", "transform": "day", "term": "ts"}, "value": 1}, "no transform of it"),
]


@pytest.mark.parametrize(("obj", "said"), BAD_JSON, ids=[said for _, said in BAD_JSON])
def test_bad_json_is_refused_and_the_place_named(obj: Any, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        from_json(obj)
    assert said in refused.value.message
    assert refused.value.rule == "filter.json"


def test_a_filter_may_nest_so_deep_and_no_deeper() -> None:
    def nested(levels: int) -> Any:
        obj: Any = EQ
        for _ in range(levels):
            obj = {"type": "or", "left": obj, "right": EQ}
        return obj

    assert to_json(from_json(nested(NESTING_MAX))) == nested(NESTING_MAX)
    with pytest.raises(ValidationFailed, match="nests deeper than"):
        from_json(nested(NESTING_MAX + 1))


def simplified(expr: Expression) -> Expression:
    match expr:
        case And(left, right):
            return both(simplified(left), simplified(right))
        case Or(left, right):
            return either(simplified(left), simplified(right))
        case Not(child):
            return negate(simplified(child))
        case _:
            return expr


@UNTIMED
@given(filters())
def test_json_goes_there_and_back(expr: Expression) -> None:
    assert from_json(to_json(expr)) == simplified(expr)


def test_json_of_values_that_json_has_not() -> None:
    assert to_json(Predicate("eq", "x", (b"\x0a",))) == {"type": "eq", "term": "x", "value": "0A"}
    assert to_json(Predicate("in", "dec", (Decimal("1.5"),))) == {"type": "in", "term": "dec", "values": ["1.5"]}
    assert to_json(Bound("not-null", COLUMNS["s"])) == {"type": "not-null", "term": "s"}


# --- columns and binding


def test_columns_of_a_schema() -> None:
    inner = {"type": "struct", "fields": [field(3, "b", "int", required=True)]}
    of_list = {"type": "list", "element-id": 5, "element": "int", "element-required": True}
    of_map = {"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": inner, "value-required": False}
    schema = {
        "fields": [field(1, "a", "long", required=True) | {"doc": "why"}, field(2, "o", inner),
                   field(9, "r", {"type": "struct", "fields": [field(10, "b", "int", required=True)]}, required=True),
                   field(4, "l", of_list), field(6, "m", of_map)],
    }  # fmt: skip
    found = columns_of(schema)
    assert {name: (each.id, each.required, each.nested) for name, each in found.items()} == {
        "a": (1, True, False),
        "o": (2, False, False),
        "o.b": (3, False, True),  # required in its struct, which may be null
        "r": (9, True, False),
        "r.b": (10, True, True),
        "l": (4, False, False),
        "m": (6, False, False),
    }
    with pytest.raises(ValidationFailed) as refused:
        bind(Predicate("is-null", "l.element"), found)
    assert refused.value.message == (
        "Cannot find field 'l.element' in struct: struct<1: a: required long (why), "
        "2: o: optional struct<3: b: required int>, 9: r: required struct<10: b: required int>, "
        "4: l: optional list<int>, 6: m: optional map<string, struct<3: b: required int>>>"
    )


BINDINGS: list[tuple[Predicate, Any]] = [
    # predicate                                                   op and literals, or a constant
    (Predicate("eq", "id", (5,)),                                 ("eq", (5,))),
    (Predicate("eq", "day", ("1970-01-10",)),                     ("eq", (9,))),
    (Predicate("lt", "ts", ("1970-01-01T00:00:01.5",)),           ("lt", (1_500_000,))),
    (Predicate("eq", "x", ("0aFF",)),                             ("eq", (b"\x0a\xff",))),
    (Predicate("is-null", "id"),                                  FALSE),
    (Predicate("not-null", "id"),                                 TRUE),
    (Predicate("is-null", "s"),                                   ("is-null", ())),
    (Predicate("is-null", "st.n"),                                ("is-null", ())),
    (Predicate("is-nan", "f"),                                    ("is-nan", ())),
    (Predicate("in", "id", (5,)),                                 ("eq", (5,))),
    (Predicate("in", "id", (5, 5)),                               ("eq", (5,))),
    (Predicate("not-in", "id", (5,)),                             ("not-eq", (5,))),
    (Predicate("in", "id", (5, 6, 5)),                            ("in", (5, 6))),
    (Predicate("in", "id", ()),                                   FALSE),
    (Predicate("not-in", "id", ()),                               TRUE),
    (Predicate("in", "i", (2**40, 7)),                            ("eq", (7,))),
    (Predicate("in", "i", (2**40, -(2**40))),                     FALSE),
    (Predicate("not-in", "i", (2**40,)),                          TRUE),
    (Predicate("in", "d", (0.0, -0.0)),                           ("in", (0.0, -0.0))),
    (Predicate("in", "dec", ("1.5", "1.50")),                     ("in", (Decimal("1.5"), Decimal("1.50")))),
    *((Predicate(op, "i", (2**31,)), TRUE) for op in ("lt", "lt-eq", "not-eq")),
    *((Predicate(op, "i", (2**31,)), FALSE) for op in ("gt", "gt-eq", "eq")),
    *((Predicate(op, "i", (-(2**31) - 1,)), TRUE) for op in ("gt", "gt-eq", "not-eq")),
    *((Predicate(op, "i", (-(2**31) - 1,)), FALSE) for op in ("lt", "lt-eq", "eq")),
    (Predicate("lt", "f", (1e300,)),                              TRUE),
    (Predicate("gt", "f", (-1e300,)),                             TRUE),
]  # fmt: skip


@pytest.mark.parametrize(("predicate", "expected"), BINDINGS, ids=[text(predicate) for predicate, _ in BINDINGS])
def test_binding(predicate: Predicate, expected: Any) -> None:
    bound = bind(predicate, COLUMNS)
    if isinstance(bound, Bound):
        assert bound.column == COLUMNS[predicate.column]
        # repr tells 0.0 from -0.0, and 1.5 from 1.50
        assert (bound.op, repr(bound.literals)) == (expected[0], repr(expected[1]))
    else:
        assert bound == expected


def test_an_unknown_type_holds_nulls_only() -> None:
    columns = columns_of({"fields": [field(1, "v", "unknown")]})
    assert bind(Predicate("is-null", "v"), columns) == TRUE
    assert bind(Predicate("not-null", "v"), columns) == FALSE


STRUCT = "struct<1: id: required long>"
UNBINDABLE: list[tuple[Predicate, str]] = [
    (Predicate("eq", "nope", (5,)), f"Cannot find field 'nope' in struct: {STRUCT}"),
    (Predicate("eq", "id", (True,)), "Invalid value for conversion to type long: true (java.lang.Boolean)"),
    (Predicate("eq", "id", ("x",)), "Invalid value for conversion to type long: x (java.lang.String)"),
    (Predicate("eq", "id", (1.5,)), "Invalid value for conversion to type long: 1.5 (java.lang.Double)"),
    (Predicate("in", "id", (1, "x")),
     'Invalid value for conversion to type long: "x" (org.apache.iceberg.expressions.Literals$StringLiteral)'),
    (Predicate("starts-with", "id", ("x",)),
     "Term for STARTS_WITH or NOT_STARTS_WITH must produce a string: ref(id=1, accessor-type=long): long"),
    (Predicate("is-nan", "id"), "IsNaN cannot be used with a non-floating-point column"),
    (Predicate("not-nan", "id"), "NotNaN cannot be used with a non-floating-point column"),
]  # fmt: skip


@pytest.mark.parametrize(("predicate", "said"), UNBINDABLE, ids=[text(predicate) for predicate, _ in UNBINDABLE])
def test_what_does_not_fit_a_column_is_refused_in_icebergs_words(predicate: Predicate, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        bind(predicate, columns_of({"fields": SCHEMA["fields"][:1]}))
    assert refused.value.message == said


def test_unbound_filters_have_no_truth() -> None:
    with pytest.raises(TypeError, match="not a bound predicate"):
        evaluate(A, lambda _: True)


def test_typed_filters_print_internal_values() -> None:
    expr = Not(And(Predicate("eq", "day", ("1970-01-10",)), Predicate("in", "i", (2**40, 5))))
    assert text(typed(expr, COLUMNS)) == 'not((ref(name="day") == 9 and ref(name="i") in (1099511627776, 5)))'
    assert typed(Predicate("eq", "nope", ("a",)), COLUMNS) == Predicate("eq", "nope", ("a",))


# --- literals

TZ, LEAST, MOST = "timestamptz", Range.BELOW, Range.ABOVE
CONVERSIONS: list[tuple[Any, str, Any]] = [
    # literal                      type              internal value
    (True,                         "boolean",        True),
    (True,                         "int",            None),
    (5,                            "boolean",        None),
    (5,                            "string",         None),
    (2**31 - 1,                    "int",            2**31 - 1),
    (2**31,                        "date",           MOST),
    (-(2**31) - 1,                 "int",            LEAST),
    (5,                            "time",           5),
    (5,                            "timestamp_ns",   5000),
    (5,                            "double",         5.0),
    (16_777_217,                   "float",          16_777_216.0),
    (9_007_199_791_611_905,        "float",          9_007_200_328_482_816.0),  # by way of a double it would be less
    (5,                            "decimal(9, 2)",  Decimal("5.00")),
    (5,                            "uuid",           None),
    (2.5,                          "long",           None),
    (0.1,                          "float",          0.10000000149011612),
    (3.4028234663852886e38,        "float",          3.4028234663852886e38),
    (-3.4028234663852886e38,       "float",          -3.4028234663852886e38),
    (1e39,                         "float",          MOST),
    (-1e39,                        "float",          LEAST),
    (2.345,                        "decimal(9, 2)",  Decimal("2.35")),
    (-2.345,                       "decimal(9, 2)",  Decimal("-2.35")),
    (-0.0,                         "decimal(9, 2)",  Decimal("0.00")),
    ("x",                          "string",         "x"),
    ("x",                          "boolean",        None),
    ("1970-01-02",                 "date",           1),
    ("1969-12-31",                 "date",           -1),
    ("-0001-01-01",                "date",           -719_893),
    ("+10000-01-01",               "date",           2_932_897),
    ("10:15",                      "time",           36_900_000_000),
    ("00:00:00.0000019",           "time",           1),
    ("1970-01-01T00:00:01",        "timestamp",      1_000_000),
    ("1969-12-31T23:59:59.9999995", "timestamp",     0),
    ("1969-12-31T23:59:59.9999985", "timestamp",     -1),
    ("1970-01-01t01:00:00+01:00",  TZ,               0),
    ("1970-01-01T00:00:00-00:00:30", TZ,             30_000_000),
    ("1970-01-01T00:00:00Z",       TZ,               0),
    ("1969-12-31T06:00:00-18:00",  TZ,               0),
    ("1970-01-01T00:00:00.000000001", "timestamp_ns", 1),
    ("1970-01-01T00:00:00.000000001Z", "timestamptz_ns", 1),
    ("00000000-0000-0000-0000-000000000001", "uuid", bytes(15) + b"\x01"),
    ("1-0-0-0-f",                  "uuid",           b"\x00\x00\x00\x01" + bytes(11) + b"\x0f"),
    (UUID(int=1),                  "uuid",           bytes(15) + b"\x01"),
    (UUID(int=1),                  "string",         None),
    ("0AfF",                       "binary",         b"\x0a\xff"),
    ("0A",                         "fixed[1]",       b"\x0a"),
    ("0A",                         "fixed[2]",       None),
    ("0",                          "binary",         None),
    (b"\x0a",                      "binary",         b"\x0a"),
    (b"\x0a",                      "fixed[2]",       None),
    ("1.5",                        "decimal(9, 2)",  Decimal("1.5")),  # keeps its own scale
    ("-0.0",                       "decimal(9, 2)",  Decimal("0.0")),
    (Decimal("1.5"),               "decimal(9, 2)",  Decimal("1.5")),
    (Decimal("1.5"),               "double",         None),
]  # fmt: skip


@pytest.mark.parametrize(("literal", "kind", "expected"), CONVERSIONS)
def test_conversion(literal: Any, kind: str, expected: Any) -> None:
    assert repr(convert(literal, kind)) == repr(expected)


@pytest.mark.parametrize(
    ("literal", "kind"),
    [
        *((literal, "date") for literal in ("2020-02-30", "2020-1-1", "10000-01-01", "+2020-01-01", "-0000-01-01")),
        *((literal, "time") for literal in ("24:00", "10:60", "1:00", "10:00:00.1234567890")),
        *((literal, "timestamp") for literal in ("2020-01-31", "2020-01-31 10:00:00", "2020-01-31T10:00:00Z")),
        *((literal, TZ) for literal in ("2020-01-31T10:00:00", "2020-01-31T10:00+01", "2020-01-31T10:00+18:01")),
        *((literal, "uuid") for literal in ("1-2-3-4", "x-0-0-0-0", "00000000000000000000000000000001")),
        *((literal, "decimal(9, 2)") for literal in ("", "NaN", "1_0", " 1", math.inf)),
        ("2300-01-01T00:00:00", "timestamp_ns"),
        (2**60, "timestamp_ns"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_such_value_is_refused(literal: Any, kind: str) -> None:
    with pytest.raises(ValidationFailed, match=f"is no {kind.split('(')[0]}.*; write it like"):
        convert(literal, kind)


ORDERS: list[tuple[str, list[Any]]] = [
    ("double", [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]),
    ("string", ["", "a", "ab", "b", "\uffff", "\U0001f600"]),
    ("uuid", [b"\x80" + bytes(15), b"\xff" * 16, bytes(16), bytes(8) + b"\x01" + bytes(7), b"\x7f" * 16]),
    ("binary", [b"", b"\x00", b"\x00\x01", b"\x7f", b"\x80"]),
    ("boolean", [False, True]),
]


@pytest.mark.parametrize(("kind", "ordered"), ORDERS, ids=[kind for kind, _ in ORDERS])
def test_values_are_ordered_as_java_orders_them(kind: str, ordered: list[Any]) -> None:
    for at, left in enumerate(ordered):
        assert compare(None, left, kind) == -1
        for other, right in enumerate(ordered):
            expected = (at > other) - (at < other)
            assert compare(left, right, kind) == expected, (left, right)


def test_decimals_of_two_scales_are_equal_in_order_and_two_in_a_set() -> None:
    one, same = Decimal("1.0"), Decimal("1.00")
    assert compare(one, same, "decimal(9, 2)") == 0
    assert identity_key(one, "decimal(9, 2)") != identity_key(same, "decimal(9, 2)")


@pytest.mark.parametrize("text", ["1" * 131_072 + "x", "1" * 131_072, "1." * 65_536, "+" + "0" * 131_072])
def test_a_decimal_of_any_length_is_refused_at_once(text: str) -> None:
    """Each digit of a long number that turns out to be none was a place to begin anew: minutes, on the event loop."""
    with pytest.raises(ValidationFailed):
        convert(text, "decimal(9, 2)")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", "1"), ("-1.50", "-1.50"), (".5", "0.5"), ("1.", "1"), ("+0001.e2", "1E+2"), ("9" * 38, "9" * 38)],
)
def test_decimals_are_read_as_they_are_written(text: str, value: str) -> None:
    assert str(convert(text, "decimal(38, 2)")) == value


@pytest.mark.parametrize("text", ["", ".", "e1", "1e", "1e1234567890", "1..2", "1.2.3", "0x1", "1_0", "NaN", "-"])
def test_what_is_no_decimal_is_said_so(text: str) -> None:
    with pytest.raises(ValidationFailed):
        convert(text, "decimal(9, 2)")

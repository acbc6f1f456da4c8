"""`summarize_rows`: exact whatever the size, bounded, and nothing that a caller names is more than a column's name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType, UUIDType

from icetower.errors import BadRequest
from icetower.mcp import summing
from icetower.mcp.summing import Wanted
from tests.mcp.clients import connected, live
from tests.mcp.conftest import Shop

INJECTED = "\"; DROP TABLE x; --' OR 1=1 /* count(*) */"
ROWS = (
    {"id": 1, "region": "eu", "at": None, "price": "9.99", "note": "b"},
    {"id": 2, "region": "eu", "at": None, "price": "0.01", "note": None},
    {"id": 3, "region": "asia", "at": None, "price": None, "note": "a"},
    {"id": 2**62, "region": "eu", "at": None, "price": "1.00", "note": "\x1b[2J"},
    {"id": 2**62 + 1, "region": "asia", "at": None, "price": None, "note": None},
    {"id": 2**62 + 2, "region": "asia", "at": None, "price": None, "note": None},
)


def wanted(by: list[str], order: summing.Order = "groups", **measured: list[str]) -> Wanted:
    return Wanted(by, {kind: measured.get(kind, []) for kind in ("sum", "min", "max")}, None, order, 50)


def grouped(schema: Schema, batches: list[pa.RecordBatch], asked: Wanted) -> list[dict[str, Any]]:
    plan = summing.plan_of("s.t", schema, asked)
    found = summing.grouped_rows(iter(batches), plan)
    return list(summing.shown_groups(summing.ordered(found, plan, asked), plan))


def test_groups_are_put_together_over_batches_and_names_are_names_alone() -> None:
    """Columns that are called as what is made inside are told apart; types of one column differ from file to file."""
    names = ("count", "g0", "m0_sum", INJECTED)
    schema = Schema(*(NestedField(at + 1, name, LongType(), required=False) for at, name in enumerate(names)))
    columns = {"count": [1, 1, 2], "g0": [7, 7, 7], "m0_sum": [2**63 - 1, 2**63 - 1, None], INJECTED: [5, -5, None]}
    batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema([(name, pa.int64()) for name in names]))
    asked = wanted(["count"], sum=["m0_sum", INJECTED], min=[INJECTED], max=["g0"])
    assert grouped(schema, [batch, batch.slice(0, 0), batch], asked) == [
        {
            "by": {"count": 1},
            "count": 4,
            "sum": {"m0_sum": 4 * (2**63 - 1), INJECTED: 0},
            "min": {INJECTED: -5},
            "max": {"g0": 7},
        },
        {
            "by": {"count": 2},
            "count": 2,
            "sum": {"m0_sum": None, INJECTED: None},
            "min": {INJECTED: None},
            "max": {"g0": 7},
        },
    ]
    assert [row["count"] for row in grouped(schema, [batch], wanted([]))] == [3]
    texts = Schema(NestedField(1, "t", StringType(), required=False), NestedField(2, "x", DoubleType(), required=False))
    parts = [
        pa.RecordBatch.from_pydict({"t": pa.array(["a", "b", None], type_), "x": pa.array([0.5, 1.5, 9.0])})
        for type_ in (pa.string(), pa.large_string())
    ]
    found = grouped(texts, parts, wanted(["t"], "sum", sum=["x"], max=["t"]))
    assert [(row["by"]["t"], row["sum"]["x"], row["max"]["t"]) for row in found] == [
        (None, 18.0, None),
        ("b", 3.0, "b"),
        ("a", 1.0, "a"),
    ]


def test_too_many_groups_are_refused_before_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "GROUPS_MAX", 3)
    schema = Schema(NestedField(1, "n", LongType(), required=False))

    def batches() -> Any:
        for at in range(100):
            assert at < 3, "it read on"
            yield pa.RecordBatch.from_pydict({"n": [2 * at, 2 * at + 1]})

    with pytest.raises(BadRequest, match="more than 3 groups"):
        summing.grouped_rows(batches(), summing.plan_of("s.t", schema, wanted(["n"])))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (wanted([INJECTED]), "has no column"),
        (wanted(["pair.left"]), "has no column"),
        (wanted(["pair"]), "not a plain one"),
        (wanted(["uuid"]), "not a plain one"),
        (wanted([], sum=["text"]), "no number"),
        (wanted([], max=["*"]), "has no column"),
        (wanted([], "max", min=["text"]), "names no column"),
    ],
)
def test_what_is_no_column_for_it_is_refused(asked: Wanted, says: str) -> None:
    pair = StructType(NestedField(4, "left", LongType(), required=False))
    schema = Schema(
        NestedField(1, "text", StringType(), required=False),
        NestedField(2, "uuid", UUIDType(), required=False),
        NestedField(3, "pair", pair, required=False),
    )
    with pytest.raises(BadRequest, match=says) as raised:
        summing.plan_of("s.t", schema, asked)
    assert raised.value.rule == "mcp.arguments"


def test_a_model_gets_counts_and_sums_and_nothing_that_it_names_is_executed(shop: Shop) -> None:
    token = shop.agent("eu")

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            empty = await agent.call("summarize_rows", table=shop.table)
            assert (empty["ok"], empty["groups"], empty["untrusted"]) == (True, 0, None)
            for row in ROWS:
                shop.put({**row, "price": None if row["price"] is None else Decimal(str(row["price"]))})
            found = await agent.call(
                "summarize_rows", table=shop.table, by=["region"], sum=["id", "price"], min=["note"], order="count"
            )
            assert (found["groups"], found["returned"], found["untrusted"]["source"]) == (2, 2, f"table {shop.table}")
            assert found["untrusted"]["rows"] == [
                {
                    "by": {"region": "asia"},
                    "count": 3,
                    "sum": {"id": str(2**63 + 6), "price": None},
                    "min": {"note": "a"},
                },
                {
                    "by": {"region": "eu"},
                    "count": 3,
                    "sum": {"id": str(2**62 + 3), "price": "11.00"},
                    "min": {"note": "\\x1b[2J"},
                },
            ]
            few = await agent.call("summarize_rows", table=shop.table, by=["id"], where="region = 'eu'", limit=2)
            assert (few["groups"], few["returned"]) == (3, 2)
            assert [row["by"]["id"] for row in few["untrusted"]["rows"]] == [1, 2]
            none = await agent.call("summarize_rows", table=shop.table, where="id < 0")
            assert (none["ok"], none["groups"]) == (True, 0)
            for wrong in ({"by": [INJECTED]}, {"sum": [f"id) FROM x; {INJECTED}"]}, {"order": "id; DROP TABLE x"}):
                refused = await agent.call("summarize_rows", table=shop.table, **wrong)
                assert (refused["ok"], refused["refusal"]["rule"]) == (False, "mcp.arguments")
            hidden = await agent.call("summarize_rows", table="other.secrets")
            assert hidden["ok"] is False

    live(story)

"""Whatever the arguments of a tool are: an answer that a model can read, never a crash, never a traceback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icetower.errors import BadRequest, CommitStateUnknown, Unavailable
from icetower.mcp.reading import Cursor, parsed_filter
from icetower.mcp.results import CELL_CHARACTERS_MAX, Untrusted, cleaned, fenced
from icetower.mcp.tools import ABOUT
from icetower.mcp.workers import BY_CALLER_MAX, WAITING_BY_CALLER_MAX, Workers
from icetower.mcp.writing import ROWS_MAX, arrow_of, key_of
from tests.mcp.conftest import BY_REGION, SCHEMA, Shop
from verify.kit.tower_process import TowerProcess

NAMES = ("table", "rows", "keys", "where", "cursor", "columns", "limit", "partitions", "operation", "key", "request_id",
         "rule", "reason", "operations", "snapshot", "batch", "namespace", "hours", "files")  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["fuzz.prices", "fuzz.nope", "a.b", ".", "fuzz.prices' OR 1=1", "id = 1", "id IN (1,2)", "((((", "region=eu",
         "eu", "append", "region", "1", "9" * 19, "\x00", "\ud800", "../../etc", "\u202e", "NaN", "1e999", "W10="]
    ),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False),
              TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["id", "region", "at", "price", "note", "x"]), VALUES, max_size=5), max_size=4
)
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={name: ROWS if name == "rows" else st.one_of(TEXTS, VALUES) for name in NAMES}
)
TRACES = ("Traceback", 'File "', ".py", "object at 0x", "pydantic.dev", "site-packages")


class World:
    """A tower with a table, and one connection to it."""

    def __init__(self, tower: TowerProcess) -> None:
        catalog = tower.catalog()
        catalog.create_namespace("fuzz")
        catalog.create_table("fuzz.prices", SCHEMA, partition_spec=BY_REGION)
        self.shop = Shop(tower, catalog, "fuzz")
        self.http = httpx2.Client(
            base_url=tower.uri,
            headers={
                "Authorization": f"Bearer {self.shop.agent('eu')}",
                "Accept": "application/json, text/event-stream",
                "Content-Type": "application/json",
            },
            timeout=100,
        )

    def call(self, tool: str, arguments: Any) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        answer = self.http.post("/mcp", content=body)
        assert answer.status_code < 500, answer.text
        assert not any(trace in answer.text for trace in TRACES), answer.text
        return answer.json()


@pytest.fixture(scope="module")
def world(tower: TowerProcess) -> Iterator[World]:
    made = World(tower)
    yield made
    made.http.close()


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tool=st.sampled_from([*ABOUT]), arguments=ARGUMENTS)
def test_any_arguments_get_an_answer(world: World, tool: str, arguments: dict[str, Any]) -> None:
    if arguments.get("table", "fuzz.prices") is not None:
        arguments = {"table": "fuzz.prices", **arguments}
    answer = world.call(tool, arguments)
    if "error" in answer:
        assert answer["error"]["code"] in (-32602, -32600, -32700)
        return
    structured = answer["result"]["structuredContent"]
    assert isinstance(structured["ok"], bool)
    if not structured["ok"] and not structured.get("blocked_by"):
        refusal = structured["refusal"]
        assert {"rule", "partitions", "snapshot", "files", "next_step", "owner", "wait_until_ms", "escalated_to"} <= (
            refusal.keys()
        )
        assert refusal["rule"] != "internal", structured
    assert len(json.dumps(structured)) < 200_000


@settings(max_examples=300)
@given(text=st.one_of(TEXTS, st.text(alphabet="()'=<>ANDORnot id1.\"`,", max_size=60)))
def test_filters_are_read_or_refused(text: str) -> None:
    with suppress(BadRequest):
        assert parsed_filter(text) is not None


@pytest.mark.parametrize("text", ["(" * 21, "not " * 30 + "id = 1", "x" * 3_000, "id = 1; drop table t", "sleep(9)"])
def test_filters_that_cost_or_mean_something_else_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parsed_filter(text)


@settings(max_examples=300)
@given(rows=ROWS)
def test_rows_become_columns_or_are_refused(rows: list[dict[str, Any]]) -> None:
    with suppress(BadRequest):
        assert arrow_of(rows, SCHEMA.as_arrow()).num_rows == len(rows) <= ROWS_MAX


@given(text=st.text(max_size=80))
def test_cursors_of_nobody_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        Cursor.read(text, "0" * 16)


@given(snapshot=st.integers(1, 2**63 - 1), offset=st.integers(0, 10**6))
def test_cursors_come_back_as_they_were(snapshot: int, offset: int) -> None:
    made = Cursor(snapshot, offset, "q")
    assert Cursor.read(made.text(), "q") == made
    with pytest.raises(BadRequest):
        Cursor.read(made.text(), "another query")


@settings(max_examples=300)
@given(value=VALUES)
def test_nothing_that_is_shown_acts_or_is_long(value: Any) -> None:
    shown = json.dumps(cleaned(value), ensure_ascii=False)
    assert not any(character in shown for character in "\x00\x1b\u202e\u2066")
    assert all(len(text) <= CELL_CHARACTERS_MAX for text in _texts(cleaned(value)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


@given(rows=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=40), max_size=3), max_size=4))
def test_data_cannot_end_its_fence(rows: list[dict[str, Any]]) -> None:
    text = fenced(Untrusted(source="t", rows=[cleaned(row) for row in rows]))
    first, *inside, last = text.split("\n")[1:]
    mark = first.split(" ")[1]
    assert last == f"<<<END OF DATA {mark}>>>"
    assert not any(line.startswith("<<<") for line in inside)


def test_a_key_is_of_the_content_alone() -> None:
    rows = [{"id": 1, "region": "eu"}]
    key = key_of("bob", "a.b", "append", [], rows, "")
    assert key == key_of("bob", "a.b", "append", [], [{"region": "eu", "id": 1}], "")
    others = {
        key_of("ann", "a.b", "append", [], rows, ""),
        key_of("bob", "a.c", "append", [], rows, ""),
        key_of("bob", "a.b", "upsert", [], rows, ""),
        key_of("bob", "a.b", "append", ["id"], rows, ""),
        key_of("bob", "a.b", "append", [], [*rows, *rows], ""),
        key_of("bob", "a.b", "append", [], rows, "again"),
    }
    assert len(others) == 6
    assert key not in others
    assert key[14] == "7"
    assert key[19] in "89ab"


def test_work_that_is_late_or_too_much_is_said_so() -> None:
    async def story() -> None:
        hold, workers = threading.Event(), Workers(places=2, timeout_s=0.2)
        with pytest.raises(Unavailable, match="longer"):
            await workers.run("bob", hold.wait)
        with pytest.raises(CommitStateUnknown):
            await workers.run("bob", hold.wait, writes=True)
        # Both threads are held. Eight more wait, the next one is refused at once.
        late = await asyncio.gather(
            *(workers.run("bob", hold.wait) for _ in range(BY_CALLER_MAX + WAITING_BY_CALLER_MAX - 2)),
            return_exceptions=True,
        )
        assert all(isinstance(each, Unavailable) and "longer" in each.message for each in late)
        with pytest.raises(Unavailable, match="too many"):
            await workers.run("bob", hold.wait)
        hold.set()
        workers.close()

    asyncio.run(story())

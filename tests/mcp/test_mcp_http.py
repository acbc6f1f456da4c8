"""`/mcp` in the tower: who is let in, what is bounded, and that no tower keeps anything between two calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.mcp.clients import connected, live
from tests.mcp.conftest import Shop
from verify.kit.tower_process import TowerProcess

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def post(tower: TowerProcess, token: str | None, body: Any = LIST, **headers: str) -> httpx2.Response:
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(f"{tower.uri}/mcp", content=content, headers={**HEADERS, **bearer, **headers}, timeout=60)


def test_nobody_lists_anything_without_a_credential(shop: Shop) -> None:
    token = shop.agent("eu")
    assert post(shop.tower, token).status_code == 200
    for wrong in (None, "x", "x" * 40, token[:-1]):
        answer = post(shop.tower, wrong)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "whoami" not in answer.text
    for method in ("GET", "DELETE", "PUT"):
        with shop.tower.client(token) as http:
            assert http.request(method, "/mcp").status_code == 405


def test_a_revoked_contract_ends_the_next_call(shop: Shop) -> None:
    token = shop.agent("eu")
    assert post(shop.tower, token).status_code == 200
    shop.tower.admin.revoke_contract(f"{shop.space}_eu")
    assert post(shop.tower, token).status_code in (401, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_pages_of_other_sites_are_refused(shop: Shop, headers: dict[str, str]) -> None:
    answer = post(shop.tower, shop.agent("eu"), **headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["rule"] == "request.origin"


def test_a_name_that_resolves_here_is_no_credential(tmp_path: Path) -> None:
    tower = TowerProcess(tmp_path / "data", "--open")
    try:
        here = tower.uri.removeprefix("http://")
        assert post(tower, None, Host=here).status_code == 200
        rebound = post(tower, None, Host="evil.example:8181", Origin="http://evil.example:8181")
        assert rebound.status_code == 401
        assert post(tower, None, **{"Content-Type": "text/plain"}).status_code == 400
    finally:
        assert tower.stop() == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * (1024 * 1024 + 1), 413),
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "k": 1}', 400),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "nonsense"}', None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 3}}', None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', None),
    ],
    ids=["long", "empty", "torn", "no object", "deep", "members", "method", "name", "no name"],
)
def test_hostile_bodies_are_answered(shop: Shop, body: bytes, status: int | None) -> None:
    answer = post(shop.tower, shop.agent("eu"), body)
    assert answer.status_code < 500
    assert status is None or answer.status_code == status
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text


def test_any_tower_answers_the_next_call(tmp_path: Path) -> None:
    """Two towers on one catalog and one control database: the client's calls go to one and to the other in turn."""
    data = tmp_path / "data"
    one, two = TowerProcess(data), TowerProcess(data)
    try:
        one.catalog().create_namespace("s")
        from tests.mcp.conftest import BY_REGION, SCHEMA

        one.catalog().create_table("s.prices", SCHEMA, partition_spec=BY_REGION)
        token = Shop(one, one.catalog(), "s").agent("eu")

        async def story() -> None:
            async with connected("sdk-http", one, token) as first, connected("sdk-http", two, token) as second:
                written = await first.call("append_rows", table="s.prices", rows=[{"id": 1, "region": "eu"}])
                again = await second.call("append_rows", table="s.prices", rows=[{"id": 1, "region": "eu"}])
                assert (written["outcome"], again["outcome"]) == ("written", "already_written")
                assert written["key"] == again["key"]
                await first.call("append_rows", table="s.prices", rows=[{"id": n, "region": "eu"} for n in (2, 3, 4)])
                page = await first.call("query_rows", table="s.prices", limit=2)
                rest = await second.call("query_rows", table="s.prices", limit=2, cursor=page["next_cursor"])
                ids = [row["id"] for found in (page, rest) for row in found["untrusted"]["rows"]]
                assert sorted(ids) == [1, 2, 3, 4]
                assert rest["next_cursor"] is None

        live(story)
    finally:
        assert (one.stop(), two.stop()) == (0, 0)


def test_pages_are_of_one_snapshot_and_bounded(shop: Shop) -> None:
    token = shop.agent("eu")
    shop.put(*({"id": at, "region": "eu", "note": "x" * 3_000} for at in range(60)))

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            seen, cursor = list[int](), None
            for _ in range(60):
                found = await agent.call("query_rows", table=shop.table, limit=200, cursor=cursor)
                rows = found["untrusted"]["rows"]
                assert len(json.dumps(rows)) < 20_000
                assert all(len(row["note"]) <= 1_000 for row in rows)
                seen += [row["id"] for row in rows]
                shop.put({"id": 1_000 + len(seen), "region": "eu"})
                cursor = found["next_cursor"]
                if cursor is None:
                    break
            assert sorted(seen) == [*range(60)]
            other = await agent.call("query_rows", table=shop.table, where="id = 1", cursor=found["next_cursor"] or "x")
            assert other["refusal"]["rule"] == "mcp.arguments"

    live(story)


def test_a_flood_of_calls_is_bounded_and_delays_no_commit(shop: Shop, tower: TowerProcess) -> None:
    """One principal calls as often as it can; another one's commits go on meanwhile."""
    flooding, quiet = shop.agent("eu"), shop.agent("asia")
    shop.put(*({"id": at, "region": "eu"} for at in range(10)))
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    call |= {"params": {"name": "query_rows", "arguments": {"table": shop.table}}}

    async def story() -> None:
        async with httpx2.AsyncClient(timeout=110, limits=httpx2.Limits(max_connections=60)) as http:
            bearer = {**HEADERS, "Authorization": f"Bearer {flooding}"}
            flood = [asyncio.create_task(http.post(f"{tower.uri}/mcp", json=call, headers=bearer)) for _ in range(50)]
            async with connected("sdk-http", tower, quiet) as agent:
                for at in range(3):
                    done = await agent.call("append_rows", table=shop.table, rows=[{"id": at, "region": "asia"}])
                    assert done["outcome"] == "written"
            answers = [(await each).json() for each in flood]
        found = [each["result"]["structuredContent"] for each in answers]
        assert all(each["ok"] or each["refusal"]["rule"] == "mcp.busy" for each in found)
        assert any(each["ok"] for each in found)

    live(story)

"""An agent's whole day over MCP, with each of the real clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.mcp.clients import WAYS, Forgetful, connected, live
from tests.mcp.conftest import Shop

ROW = {"id": 1, "region": "eu", "at": "2017-01-02T03:04:05", "price": "9.99"}


@pytest.mark.parametrize("way", WAYS)
def test_an_agents_day(shop: Shop, way: str) -> None:
    token = shop.agent("eu")
    shop.agent("asia")

    async def story() -> None:
        async with Forgetful(shop.tower) as proxy:
            # Over stdio the server is the agent's, and the answers are lost between it and the tower; in the tower's
            # own server nothing lies between: there the agent loses the tool's answer.
            uri = proxy.uri if way == "sdk-stdio" else None
            async with connected(way, shop.tower, token, uri=uri) as agent:
                await _day(shop, agent, proxy if uri else None, way)

    live(story)


async def _day(shop: Shop, agent: Any, proxy: Forgetful | None, way: str) -> None:
    table = shop.table
    # It learns its contract.
    me = await agent.call("whoami")
    assert me["principal"] == f"{shop.space}_eu"
    assert me["grants"] == [f"{table}: read, append, overwrite, delete and replace, on rows where region is eu"]
    assert set(me["tools"]) == {tool.name for tool in await agent.tools()}
    assert json.loads(await agent.read("contract://me"))["grants"] == me["grants"]
    assert (await agent.call("list_tables"))["tables"] == [table]
    described = await agent.call("describe_table", table=table)
    assert [column["name"] for column in described["columns"] if column["key"]] == ["id"]
    assert described["partition_fields"] == ["region = identity(region)"]

    # It appends, once, however often it says so.
    first = await agent.call("append_rows", table=table, rows=[ROW])
    assert (first["outcome"], first["pattern"], first["written_to"]) == ("written", "direct", table)
    again = await agent.call("append_rows", table=table, rows=[ROW])
    assert (again["outcome"], again["key"]) == ("already_written", first["key"])
    assert shop.rows() == [(1, "eu")]
    [partition] = (await agent.call("describe_table", table=table))["partitions"]
    assert (partition["name"], partition["mine_for"]) == ("region=eu", ["append", "overwrite", "delete"])
    found = await agent.call("query_rows", table=table, where="region = 'eu' AND price >= 9")
    assert found["untrusted"]["rows"] == [
        {"id": 1, "region": "eu", "at": "2017-01-02T03:04:05", "price": "9.99", "note": None}
    ]

    # It is refused, in a dry run and in earnest, with all that it needs.
    asked = await agent.call("check_write", table=table, operation="append", partitions=["region=asia"])
    assert (asked["allowed"], asked["outcome"]) == (False, "refused")
    foreign = await agent.call("append_rows", table=table, rows=[{"id": 2, "region": "asia"}])
    assert (foreign["ok"], foreign["outcome"]) == (False, "refused")
    for refusal in (asked["refusal"], foreign["refusal"]):
        assert refusal["rule"] == "contract.partitions"
        assert refusal["next_step"] == "request_partition"
        assert refusal["partitions"] == ["region=asia"]
        assert refusal["owner"] == f"{shop.space}_asia (asia team <asia@example.com>)"
    why = await agent.call("explain_refusal", request_id=foreign["refusal"]["request_id"])
    assert why["rule"] == "contract.partitions"
    assert [each["outcome"] for each in why["attempts"]] == ["refused"]
    commit = json.loads(await agent.read(f"commit://{foreign['refusal']['request_id']}"))
    assert commit["attempts"][0]["rule"] == "contract.partitions"

    # It asks for the partition; a person grants it, and the contract says so.
    wanted = {"table": table, "partitions": ["region=asia"], "operations": ["append"], "reason": "the asian shop"}
    request = await agent.call("request_partition", **wanted)
    assert request["state"] == "open"
    assert (await agent.call("request_partition", **wanted))["id"] == request["id"]
    shop.widen("eu", "asia")
    shop.tower.admin.close_request(request["id"], "granted", "for a week")
    assert (await agent.call("check_write", table=table, partitions=["region=asia"]))["allowed"]
    granted = await agent.call("append_rows", table=table, rows=[{"id": 2, "region": "asia"}])
    assert granted["outcome"] == "written"

    # It recovers after a lost answer: what it does is what the prompt says.
    said = await agent.prompt("recover_after_timeout", table=table, key="K")
    assert "commit_status" in said
    lost = {"id": 3, "region": "eu"}
    if proxy is not None:
        proxy.loses = True
        unknown = await agent.call("append_rows", table=table, rows=[lost])
        assert proxy.lost
        proxy.loses = False
        assert (unknown["ok"], unknown["outcome"]) == (False, "unknown")
        key = unknown["key"]
    else:
        key = (await agent.call("append_rows", table=table, rows=[lost]))["key"]
    status = await agent.call("commit_status", table=table, key=key)
    assert (status["landed"], status["may_send_again"]) == (True, False)
    assert (await agent.call("append_rows", table=table, rows=[lost]))["outcome"] == "already_written"
    assert shop.rows() == [(1, "eu"), (2, "asia"), (3, "eu")]
    never = await agent.call("commit_status", table=table, key="01a1fe03-73b8-78ac-b3d5-6bcc4d844630")
    assert (never["landed"], never["may_send_again"]) == (False, True)

    # It gives up a write that has not landed; one that has stays.
    kept = await agent.call("fence_write", table=table, key=key)
    assert (kept["ok"], kept["landed"], kept["fenced"]) == (True, True, False)
    gone = await agent.call("fence_write", table=table, key="01a1fe03-73b8-78ac-b3d5-6bcc4d844631")
    assert (gone["ok"], gone["landed"], gone["fenced"]) == (True, False, True), gone
    status = await agent.call("commit_status", table=table, key="01a1fe03-73b8-78ac-b3d5-6bcc4d844631")
    assert (status["landed"], status["fenced"], status["refusal"]["rule"]) == (False, True, "key.fenced")

    # It puts and removes rows by key.
    upserted = await agent.call("upsert_rows", table=table, rows=[{**ROW, "price": "8.00", "note": None}])
    assert upserted["outcome"] == "written", upserted
    removed = await agent.call("delete_rows", table=table, rows=[lost])
    assert removed["outcome"] == "written", removed
    assert shop.rows() == [(1, "eu"), (2, "asia")]

    # It takes back a commit of its own, if its person agrees and its client can ask.
    wrong = await agent.call("append_rows", table=table, rows=[{"id": 9, "region": "eu"}])
    snapshot = (await agent.call("commit_status", table=table, key=wrong["key"]))["snapshot"]
    if way == "sdk-http-legacy":
        refused = await agent.call("revert_my_commit", table=table, snapshot=snapshot)
        assert refused["refusal"]["rule"] == "mcp.confirmation"
        assert (9, "eu") in shop.rows()
        return
    agent.agrees = False
    refused = await agent.call("revert_my_commit", table=table, snapshot=snapshot)
    assert refused["refusal"]["rule"] == "mcp.confirmation"
    assert (9, "eu") in shop.rows()
    agent.agrees = True
    done = await agent.call("revert_my_commit", table=table, snapshot=snapshot)
    assert done["snapshot"], done
    assert done["taken_back"] == [snapshot]
    assert len(agent.questions) == 2
    assert f"Take back snapshot {snapshot} of {table}?" in agent.questions[1]
    assert shop.rows() == [(1, "eu"), (2, "asia")]
    figures = (await agent.call("my_metrics"))["tables"]
    assert [each["table"] for each in figures] == [table]

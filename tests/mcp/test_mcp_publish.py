"""`publish_branch`: an agent publishes what it has on a branch, once, and hears what stands against it."""

from __future__ import annotations

from typing import Any

from icetower import Agent
from tests.mcp.clients import connected, live
from tests.mcp.conftest import CONTRACT, Shop

BRANCHING = (
    f"{CONTRACT}  - {{{{table: {{space}}.prices, operations: [refs], partitions: [{{{{region: [{{region}}]}}}}]}}}}\n"
)


def row(id_: int) -> dict[str, Any]:
    return {"id": id_, "region": "eu"}


def test_an_agent_publishes_its_branch(shop: Shop) -> None:
    token = shop.agent("eu", BRANCHING)
    with Agent(shop.tower.uri, token) as mine:
        mine.append(shop.table, row(1))
        branch = mine.branch(shop.table, "dev")
        branch.append(row(2))
        mine.append(shop.table, row(9))

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            missing = await agent.call("publish_branch", table=shop.table, branch="none")
            assert (missing["ok"], missing["refusal"]["rule"]) == (False, "mcp.arguments")
            done = await agent.call("publish_branch", table=shop.table, branch="dev")
            assert (done["ok"], done["outcome"], len(done["snapshots"])) == (True, "rebased", 1), done
            again = await agent.call("publish_branch", table=shop.table, branch="dev")
            assert (again["outcome"], again["snapshots"]) == ("replayed", done["snapshots"])

    live(story)
    assert shop.rows() == [(1, "eu"), (2, "eu"), (9, "eu")]


def test_it_hears_what_stands_against_each_snapshot(shop: Shop) -> None:
    token = shop.agent("eu", BRANCHING)
    with Agent(shop.tower.uri, token) as mine:
        mine.append(shop.table, row(1))
        mine.branch(shop.table, "dev")
    table = shop.tower.catalog(token).load_table(shop.table)
    table.delete("id == 1", branch="dev")
    own = table.refresh().metadata.refs["dev"].snapshot_id
    table.refresh().delete("id == 1")

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            refused = await agent.call("publish_branch", table=shop.table, branch="dev", isolation="snapshot")
            assert (refused["ok"], refused["outcome"]) == (False, "refused")
            assert [each["source"] for each in refused["conflicts"]] == [str(own)]
            assert refused["conflicts"][0]["rule"].startswith("conflict.")

    live(story)

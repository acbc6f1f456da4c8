"""What a model is shown, kept: the list of tools with their schemas, the instructions, and answers as text.

When you change a tool on purpose, write the files anew with ICETOWER_WRITE_SHOWN=1 and look at their differences.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from mcp_types import Tool

from icetower.mcp.results import TEXT_CHARACTERS_MAX
from icetower.mcp.server import INSTRUCTIONS
from icetower.mcp.tools import ABOUT
from tests.mcp.clients import connected, live
from tests.mcp.conftest import Shop

KEPT = Path(__file__).parent / "shown"
ROW = {"id": 1, "region": "eu", "at": "2017-01-02T03:04:05", "price": "9.99"}
CALLS = (
    ("whoami", {}),
    ("list_tables", {}),
    ("append_rows", {"rows": [ROW]}),
    ("append_rows", {"rows": [ROW]}),
    ("describe_table", {}),
    ("query_rows", {"where": "region = 'eu'"}),
    ("summarize_rows", {"by": ["region"], "sum": ["price"], "max": ["at"]}),
    ("summarize_rows", {"by": ["count(*)"]}),
    ("check_write", {"partitions": ["region=asia"]}),
    ("append_rows", {"rows": [{"id": 2, "region": "asia"}]}),
    ("append_rows", {"rows": [{"no": 1}]}),
    ("append_rows", {"rows": []}),
    ("query_rows", {"where": "drop table x"}),
    ("request_partition", {"partitions": ["region=asia"], "operations": ["append"], "reason": "the asian shop"}),
    ("commit_status", {"key": "01a1fe03-73b8-78ac-b3d5-6bcc4d844630"}),
    ("fence_write", {"key": "01a1fe03-73b8-78ac-b3d5-6bcc4d844630"}),
    ("explain_refusal", {"rule": "contract.partitions"}),
)


def kept(name: str, found: str) -> None:
    path = KEPT / name
    if os.environ.get("ICETOWER_WRITE_SHOWN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text(), f"{path.name} differs: what a model is shown has changed"


def shown(tool: Tool) -> dict[str, object]:
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


def without_chance(text: str, shop: Shop) -> str:
    """The text without what differs from run to run."""
    text = text.replace(shop.space, "shop")
    text = re.sub(r"\b01a[0-9a-f]{5}-[0-9a-f-]{27}\b", "UUID", text)
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}\b", "KEY", text)
    text = re.sub(r'(request_id": "|, request )[0-9a-f]{16}', r"\1REQUEST", text)
    text = re.sub(r"(DATA )[0-9a-f]{16}", r"\1HASH", text)
    text = re.sub(r"\b[0-9]{15,19}\b", "NUMBER", text)
    return re.sub(r'"at_ms": [0-9]+', '"at_ms": 0', text)


def test_the_list_of_tools(shop: Shop) -> None:
    token = shop.agent("eu")

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            tools = await agent.tools()
        kept("tools.json", json.dumps([shown(tool) for tool in tools], indent=1, ensure_ascii=False) + "\n")
        kept("instructions.txt", INSTRUCTIONS + "\n")
        assert [tool.name for tool in tools] == [*ABOUT]
        for tool in tools:
            hints = tool.annotations
            assert hints is not None
            assert tool.title
            assert tool.description
            assert tool.output_schema is not None
            each = (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
            assert None not in each, f"{tool.name} leaves a hint to be guessed"
            assert not (hints.read_only_hint and hints.destructive_hint)
            assert {"ok", "refusal", "untrusted"} <= tool.output_schema["properties"].keys()
        # It stands in the model's window for as long as it works.
        assert len(json.dumps([[t.name, t.description, t.input_schema] for t in tools])) < 16_000

    live(story)


@pytest.mark.parametrize("way", ["sdk-http", "sdk-stdio"])
def test_the_answers(shop: Shop, way: str) -> None:
    token = shop.agent("eu")
    shop.agent("asia")

    async def story() -> None:
        found: list[str] = []
        async with connected(way, shop.tower, token) as agent:
            for tool, arguments in CALLS:
                more = {} if tool in ("whoami", "list_tables", "explain_refusal") else {"table": shop.table}
                text = await agent.text(tool, **more, **arguments)
                assert len(text) < TEXT_CHARACTERS_MAX * 2
                asked = json.dumps({**more, **arguments})
                found.append(f"── {tool} {without_chance(asked, shop)}\n{without_chance(text, shop)}\n")
            prompts = {
                name: await agent.prompt(name, table="shop.prices")
                for name in ("append_safely", "recover_after_timeout")
            }
        found += [f"── prompt {name}\n{without_chance(text, shop)}\n" for name, text in prompts.items()]
        kept("answers.txt", "\n".join(found))

    live(story)

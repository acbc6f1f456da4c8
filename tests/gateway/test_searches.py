"""Trap A8: one search of the log of attempts at a time: commits ask the same database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from icetower.ambient import SystemAmbient
from icetower.files.parsing import WAITING_MAX
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.ledger.attempts import Page
from icetower.ledger.ledger import Ledger


def test_searches_of_the_log_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0

    async def story() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def search(*_: Any, **__: Any) -> Page:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            begun.set()
            await go_on.wait()
            under_way -= 1
            return Page((), None)

        monkeypatch.setattr(Ledger, "search", search)
        tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient(), open_to_all=True)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:

            async def ask() -> int:
                return (await http.get("/icetower/v1/commits")).status_code

            herd = [asyncio.create_task(ask())]
            await begun.wait()
            herd += [asyncio.create_task(ask()) for _ in range(WAITING_MAX + 3)]
            refused, _ = await asyncio.wait(herd, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            assert {each.result() for each in refused} == {503}
            go_on.set()
            answers = await asyncio.gather(*herd)
            assert answers.count(200) == 1 + WAITING_MAX
        await tower.close()

    asyncio.run(story())
    assert most == 1

"""Trap A8: contracts are read away from the event loop, one after the other, since a long one takes seconds."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from icetower.ambient import SystemAmbient
from icetower.gateway import control
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower


def test_contracts_are_read_in_the_thread_for_long_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, load = list[threading.Thread](), control.load

    def noted(text: str, *, source: str) -> Any:
        threads.append(threading.current_thread())
        return load(text, source=source)

    monkeypatch.setattr(control, "load", noted)
    texts = [f"version: 1\nagent: a{n}\ntables:\n  - {{table: ns.t, operations: [read]}}\n" for n in range(3)]

    async def story() -> None:
        tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient(), open_to_all=True)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        headers = {"Content-Type": "application/json"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            base = "/icetower/v1/contracts"
            (await http.post(base, content=texts[0])).raise_for_status()
            both = {"contracts": [{"text": text} for text in texts[1:]]}
            (await http.post(f"{base}/apply", json=both)).raise_for_status()
            (await http.post(f"{base}/a0/restore", json={"version": 1})).raise_for_status()
            wrong = await http.post(base, content="version: 1\nagent: a\ntabels: []\n")
            assert (wrong.status_code, "tabels" in wrong.text) == (400, True)
        await tower.close()

    asyncio.run(story())
    assert len(threads) == 5
    assert threading.main_thread() not in threads


def test_me_gives_a_contract_as_it_was_written(tmp_path: Path) -> None:
    """To write a long one anew took fifteen seconds on the event loop, at any agent's request."""
    text = "# ours\nversion: 1\nagent: a\ntables:\n  - {table: ns.t, operations: [read]}\n"

    async def story() -> Any:
        tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient(), open_to_all=True)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        headers = {"Content-Type": "application/json"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            (await http.post("/icetower/v1/contracts", content=text)).raise_for_status()
            made = await http.post("/icetower/v1/principals", json={"name": "a-1", "contract": "a"})
            bearer = {"Authorization": f"Bearer {made.json()['secret']}"}
            found = (await http.get("/icetower/v1/me", headers=bearer)).json()
        await tower.close()
        return found

    found = asyncio.run(story())
    assert (found["principal"], found["contract"], found["text"]) == ("a-1", "a", text)

"""Fences are counted by what became of them, and the last ones are shown."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx2

from icetower.ambient import SystemAmbient
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.service.fence_counts import LAST, OUTCOMES, Asked, FenceCounts

KEY, OTHER = "01a1fe03-73b8-78ac-b3d5-6bcc4d844630", "01a1fe03-73b8-78ac-b3d5-6bcc4d844631"
TABLES = "/v1/namespaces/db/tables"
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def test_the_last_ones_are_kept_and_all_are_counted() -> None:
    counts = FenceCounts()
    assert counts.counts == dict.fromkeys(OUTCOMES, 0)
    for number in range(LAST + 5):
        counts.note(Asked(number, "ann", "db.t", "k", OUTCOMES[number % 2]))
    assert counts.counts == {"fenced": 13, "landed": 12, "unknown": 0, "refused": 0}
    assert [each.at_ms for each in counts.last] == [*range(LAST + 4, 4, -1)]


def test_fences_are_in_the_metrics_and_on_the_page_of_operations(tmp_path: Path) -> None:
    async def story() -> tuple[list[object], str, str]:
        tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient(), open_to_all=True)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            (await http.post("/v1/namespaces", json={"namespace": ["db"]})).raise_for_status()
            (await http.post(TABLES, json={"name": "t", "schema": SCHEMA})).raise_for_status()
            rows = {"key": KEY, "rows": [{"id": 1}]}
            (await http.post(f"{TABLES}/t/rows", json=rows)).raise_for_status()
            landed = await http.post(f"{TABLES}/t/fence", json={"key": KEY})
            fenced = [await http.post(f"{TABLES}/t/fence", json={"key": OTHER}) for _ in range(2)]
            refused = await http.post(f"{TABLES}/none/fence", json={"key": KEY})
            numbered = {"application": {"id": "ingest", "sequence": 7}}
            fenced.append(await http.post(f"{TABLES}/t/fence", json=numbered))
            answers = [landed.json()["landed"], *(each.json()["fenced"] for each in fenced), refused.status_code]
            metrics = (await http.get("/metrics")).text
            page = (await http.get("/ui/operations", headers={"Accept": "text/html"})).text
        await tower.close()
        return answers, metrics, page

    answers, metrics, page = asyncio.run(story())
    assert answers == [True, True, True, True, 404]
    found = dict(re.findall(r'^icetower_fences_total\{outcome="(\w+)"\} ([0-9.]+)$', metrics, re.MULTILINE))
    assert found == {"fenced": "3.0", "landed": "1.0", "unknown": "0.0", "refused": "1.0"}
    assert "Writes that never land" in page
    assert "fenced 3, had landed 1, unknown 0, refused 1" in page
    for shown in (KEY, OTHER, "ingest 7", "it never lands", "it had landed", "nothing: the request failed"):
        assert shown in page

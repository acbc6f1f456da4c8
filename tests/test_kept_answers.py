"""What is kept of answers under keys is bounded; an answer that is not kept is given anew (traps K1, A8)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from icetower.ambient import SystemAmbient
from icetower.gateway import kept_answers
from icetower.gateway.app import build
from icetower.gateway.kept_answers import ENDPOINT_CHARACTERS_MAX, REFERENCE, KeptAnswers
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower

TABLES = "/v1/namespaces/db/tables"


class Clock(SystemAmbient):
    s = 0.0

    def monotonic_s(self) -> float:
        return self.s


def told(folder: Path, story: Callable[[httpx2.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        tower = open_tower(load_settings(None, data=str(folder)), SystemAmbient(), open_to_all=True)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        headers = {"Content-Type": "application/json"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            (await http.post("/v1/namespaces", json={"namespace": ["db"]})).raise_for_status()
            await story(http)
        await tower.close()

    asyncio.run(run())


def keyed(number: int) -> dict[str, str]:
    return {"Idempotency-Key": f"0197e0d4-4f6b-7c7e-8a53-{number:012x}"}


def creation(name: str, characters: int = 0, **also: Any) -> dict[str, Any]:
    doc = os.urandom(characters).hex()[:characters]
    field = {"id": 1, "name": "id", "type": "long", "required": False, "doc": doc}
    return {"name": name, "schema": {"type": "struct", "fields": [field]}, **also}


def kept_bodies(folder: Path) -> list[int]:
    """Of answers; not of what was begun, and is kept for minutes."""
    with sqlite3.connect(folder / "control.db") as connection:
        found = connection.execute("SELECT length(body) FROM ledger_answers WHERE status <> 102")
        return sorted(size for (size,) in found)


def test_long_answers_and_staged_creations_are_kept_by_reference(tmp_path: Path) -> None:
    async def story(http: httpx2.AsyncClient) -> None:
        staged = creation("staged", 100_000, **{"stage-create": True})
        first = await http.post(TABLES, json=staged, headers=keyed(1))
        again = await http.post(TABLES, json=staged, headers=keyed(1))
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.json()["metadata"]["schemas"] == first.json()["metadata"]["schemas"]
        long = creation("long", 100_000)
        first = await http.post(TABLES, json=long, headers=keyed(2))
        again = await http.post(TABLES, json=long, headers=keyed(2))
        assert (again.status_code, again.json()) == (200, first.json())
        wanted = {"namespace": ["wide"], "properties": {f"p{n}": "x" * 100 for n in range(500)}}
        first = await http.post("/v1/namespaces", json=wanted, headers=keyed(3))
        again = await http.post("/v1/namespaces", json=wanted, headers=keyed(3))
        assert (again.status_code, again.json()) == (200, wanted)
        changed = {"updates": {f"{n:0100}": "c" for n in range(500)}, "removals": ["p1"]}
        path = "/v1/namespaces/wide/properties"
        first = await http.post(path, json=changed, headers=keyed(4))
        again = await http.post(path, json=changed, headers=keyed(4))
        assert again.json().keys() == first.json().keys()
        assert {*again.json()["updated"]} == {*first.json()["updated"]}
        # The key itself is kept: it stands for no other request.
        for number, other in ((1, creation("other")), (2, creation("other"))):
            refused = await http.post(TABLES, json=other, headers=keyed(number))
            assert (refused.status_code, refused.json()["error"]["rule"]) == (422, "key.endpoint")
        await http.delete(f"{TABLES}/long")
        gone = await http.post(TABLES, json=long, headers=keyed(2))
        assert gone.status_code == 404  # and not created a second time

    told(tmp_path, story)
    assert kept_bodies(tmp_path) == [len(REFERENCE)] * 4


def test_a_principal_that_has_kept_much_keeps_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "PRINCIPAL_MAX_BYTES", 5_000)

    async def story(http: httpx2.AsyncClient) -> None:
        for number in range(20):
            body = creation(f"t{number}")
            first = await http.post(TABLES, json=body, headers=keyed(number))
            again = await http.post(TABLES, json=body, headers=keyed(number))
            assert (again.status_code, again.json()) == (200, first.json())
        for _ in range(2):
            refused = await http.post(TABLES, json=creation("t0"), headers=keyed(100))
            assert refused.status_code == 409

    told(tmp_path, story)
    assert sum(kept_bodies(tmp_path)) < 5_000 + 21


def test_what_is_kept_is_bounded_by_principal_and_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "PRINCIPAL_MAX_BYTES", 100)
    monkeypatch.setattr(kept_answers, "ALL_MAX_BYTES", 250)
    clock = Clock()
    kept = KeptAnswers(clock, lifetime_s=100)
    assert [kept.kept("ann", b"x" * 40) for _ in range(3)] == [b"x" * 40, b"x" * 40, REFERENCE]
    assert [kept.kept(name, b"x" * 90) == REFERENCE for name in ("bob", "cid", "dan")] == [False, True, True]
    assert kept.kept("dan", b"") == b""
    clock.s = 100.0
    assert kept.kept("ann", b"x" * 90) == b"x" * 90


def test_what_has_changed_nothing_is_kept_a_number_of_times_and_then_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "UNCHANGED_MAX", 5)

    async def story(http: httpx2.AsyncClient) -> None:
        for number in range(20):
            gone = await http.delete("/v1/namespaces/none", headers=keyed(number))
            assert gone.status_code == 404
        for number in range(20, 40):
            staged = await http.post(TABLES, json=creation("s", **{"stage-create": True}), headers=keyed(number))
            assert staged.status_code == 200
        (await http.post("/v1/namespaces", json={"namespace": ["none"]}, headers=keyed(50))).raise_for_status()
        again = [(await http.delete("/v1/namespaces/none", headers=keyed(number))).status_code for number in (4, 19)]
        assert again == [404, 204]
        replayed = await http.post("/v1/namespaces", json={"namespace": ["none"]}, headers=keyed(50))
        assert replayed.status_code == 200  # a success is

    told(tmp_path, story)
    assert len(kept_bodies(tmp_path)) == 5 + 2


def test_very_many_changes_are_kept_long_enough_to_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "CHANGES_MAX", 3)

    async def story(http: httpx2.AsyncClient) -> None:
        for number in range(5):
            wanted = {"namespace": [f"n{number}"]}
            for _ in range(2):
                (await http.post("/v1/namespaces", json=wanted, headers=keyed(number))).raise_for_status()

    told(tmp_path, story)
    with sqlite3.connect(tmp_path / "control.db") as connection:
        ends = sorted(ms // 1000 for (ms,) in connection.execute("SELECT expires_ms FROM ledger_answers"))
    lifetime_s = load_settings(None, data=str(tmp_path)).server.key_lifetime_s
    assert [ends[-1] - end > (lifetime_s - kept_answers.BRIEF_S) // 2 for end in ends] == [True] * 2 + [False] * 3


def test_a_long_path_is_kept_by_its_hash() -> None:
    one, other = (kept_answers.endpoint_of("POST", "/v1/" + "x" * 10_000 + end) for end in "ab")
    assert one != other
    assert len(one) <= ENDPOINT_CHARACTERS_MAX
    assert kept_answers.endpoint_of("POST", "/v1/namespaces") == "POST /v1/namespaces"

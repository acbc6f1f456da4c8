"""Requests that wait for rows, and are not answered with them once their principal, contract or token has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from icetower.ambient import SystemAmbient
from icetower.contracts.model import Operation
from icetower.errors import Forbidden
from icetower.gateway import intent_events
from icetower.gateway.app import build
from icetower.gateway.control import ADMIN_SECRET_FILE
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import Tower, open_tower
from icetower.protocol.names import Identifier
from icetower.service.intents import Wish

WITHIN_S = 60
AMBIENT = SystemAmbient()
INTENTS, NEXT = "/icetower/v1/intents", "/icetower/v1/slots/next"
CONTRACT = """\
version: 1
agent: %s
tables:
- table: ns.t
  operations: [append, overwrite]
  partitions: [{now: {every: 10m, from: 0s, to: 10m}}]
"""
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}

Story = Callable[["Gateway"], Awaitable[None]]
End = Callable[["Gateway"], Awaitable[Any]]


class Gateway:
    """A tower with a table, an administrator, and ann and bob under contracts of their own."""

    def __init__(self, tower: Tower, http: httpx2.AsyncClient) -> None:
        self.tower, self.http = tower, http
        self.bearers: dict[str, str] = {}

    async def begin(self, data: Path) -> None:
        await self.tower.start()
        self.bearers["admin"] = (data / ADMIN_SECRET_FILE).read_text().strip()
        await self("admin", "POST", "/v1/namespaces", 200, {"namespace": ["ns"]})
        await self("admin", "POST", "/v1/namespaces/ns/tables", 200, {"name": "t", "schema": SCHEMA})
        for who in ("ann", "bob"):
            await self("admin", "POST", "/icetower/v1/contracts", 200, content=CONTRACT % who)
            made = await self("admin", "POST", "/icetower/v1/principals", 201, {"name": who, "contract": who})
            self.bearers[who] = made["secret"]

    async def __call__(
        self, who: str, method: str, path: str, status: int | None = None, json: Any = None, **more: Any
    ) -> Any:
        headers = {"Authorization": f"Bearer {self.bearers[who]}", "Content-Type": "application/json"}
        answer = await self.http.request(method, path, json=json, headers=headers, **more)
        if status is not None:
            assert answer.status_code == status, answer.text
            return answer.json() if answer.content else None
        return answer

    async def declare(self, who: str, status: int | None = None, **more: Any) -> Any:
        return await self(who, "POST", INTENTS, status, {"tables": [{"table": "ns.t"}], "ttl_s": 3600, **more})

    async def in_line(self, count: int) -> list[Any]:
        """The intents that are held or wait, once there are so many."""
        while True:
            found: list[Any] = (await self("admin", "GET", INTENTS, 200))["intents"]
            if len(found) == count:
                return found
            await AMBIENT.sleep(0.005)

    async def waiting(self, count: int) -> None:
        """Until so many requests wait."""
        while sum(self.tower.intents._waiting.values()) < count:
            await AMBIENT.sleep(0.005)


def at_gateway(path: Path, story: Story) -> None:
    async def scenario() -> None:
        tower = open_tower(load_settings(None, data=str(path)), AMBIENT)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            gateway = Gateway(tower, http)
            try:
                await gateway.begin(path)
                await asyncio.wait_for(story(gateway), WITHIN_S)
            finally:
                await tower.close()

    asyncio.run(scenario())


async def principal(gateway: Gateway) -> Any:
    await gateway("admin", "DELETE", "/icetower/v1/principals/ann", 204)


async def contract(gateway: Gateway) -> Any:
    await gateway("admin", "DELETE", "/icetower/v1/contracts/ann", 200)


async def secret(gateway: Gateway) -> Any:
    await gateway("admin", "POST", "/icetower/v1/principals/ann/rotate", 200)


ENDS = pytest.mark.parametrize(("end", "status"), [(principal, 401), (contract, 403), (secret, 401)])
REVOKED = pytest.mark.parametrize(("end", "status"), [(principal, 401), (contract, 403)])


@ENDS
def test_who_waits_for_rows_does_not_get_them(tmp_path: Path, end: End, status: int) -> None:
    async def story(gateway: Gateway) -> None:
        held = await gateway.declare("bob", 201)
        waits = asyncio.create_task(gateway.declare("ann", wait_s=30))
        await gateway.in_line(2)
        await gateway.waiting(1)
        await end(gateway)
        await gateway("bob", "DELETE", f"{INTENTS}/{held['intent']}", 200)
        assert (await waits).status_code == status
        assert await gateway.in_line(0) == []

    at_gateway(tmp_path, story)


@ENDS
def test_who_waits_for_a_slot_does_not_get_it(tmp_path: Path, end: End, status: int) -> None:
    async def story(gateway: Gateway) -> None:
        held = await gateway.declare("admin", 201)
        waits = asyncio.create_task(gateway("ann", "POST", NEXT, json={"table": "ns.t", "wait_s": 30}))
        await gateway.waiting(1)
        await end(gateway)
        await gateway("admin", "DELETE", f"{INTENTS}/{held['intent']}", 200)
        assert (await waits).status_code in (status, 403)
        assert await gateway.in_line(0) == []

    at_gateway(tmp_path, story)


def test_who_has_waited_for_a_slot_in_vain_hears_that_its_secret_has_ended(tmp_path: Path) -> None:
    async def story(gateway: Gateway) -> None:
        await gateway.declare("admin", 201)
        waits = asyncio.create_task(gateway("ann", "POST", NEXT, json={"table": "ns.t", "wait_s": 30}))
        await gateway.waiting(1)
        await secret(gateway)
        gateway.tower.intents.let_go()  # as at the end of the wait
        assert (await waits).status_code == 401

    at_gateway(tmp_path, story)


@ENDS
def test_a_long_poll_says_nothing_more(tmp_path: Path, end: End, status: int) -> None:
    async def story(gateway: Gateway) -> None:
        held = await gateway.declare("bob", 201)
        mine = await gateway.declare("ann", 202, queue=True)
        waits = asyncio.create_task(gateway("ann", "GET", f"{INTENTS}/{mine['intent']}?wait_s=30&state=queued"))
        await gateway.waiting(1)
        await end(gateway)
        await gateway("bob", "DELETE", f"{INTENTS}/{held['intent']}", 200)
        assert (await waits).status_code == status

    at_gateway(tmp_path, story)


@ENDS
def test_a_stream_says_nothing_more(tmp_path: Path, end: End, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    del status
    monkeypatch.setattr(intent_events, "TICK_S", 30.0)

    async def story(gateway: Gateway) -> None:
        held = await gateway.declare("bob", 201)
        mine = await gateway.declare("ann", 202, queue=True)
        stream = asyncio.create_task(gateway("ann", "GET", f"{INTENTS}/{mine['intent']}/events", None))
        await gateway.waiting(1)
        await end(gateway)
        await gateway("bob", "DELETE", f"{INTENTS}/{held['intent']}", 200)
        assert (await stream).text.count("event: state") == 1  # as it stood at first

    at_gateway(tmp_path, story)


@REVOKED
def test_what_a_revoked_principal_held_is_free_at_once(tmp_path: Path, end: End, status: int) -> None:
    async def story(gateway: Gateway) -> None:
        held = await gateway.declare("ann", 201)
        in_line = await gateway.declare("ann", 202, queue=True)
        waits = asyncio.create_task(gateway.declare("bob", 201, wait_s=30))
        await gateway.in_line(3)
        await gateway.waiting(1)
        await end(gateway)
        assert (await waits)["state"] == "held"
        for id_ in (held["intent"], in_line["intent"]):
            found = await gateway("admin", "GET", f"{INTENTS}/{id_}", 200)
            assert (found["ended"], found["ended_by"]) == ("broken", "a revocation")
        renewed = await gateway("ann", "POST", f"{INTENTS}/{held['intent']}/renew", json={})
        assert renewed.status_code == status

    at_gateway(tmp_path, story)


def test_a_declaration_that_was_let_in_before_the_revocation_holds_nothing_after_it(tmp_path: Path) -> None:
    async def story(gateway: Gateway) -> None:
        tower = gateway.tower
        ann = await tower.records.registry.authenticate(gateway.bearers["ann"])
        await contract(gateway)
        wish = Wish(Identifier(("ns",), "t"), frozenset({Operation.OVERWRITE}))
        with pytest.raises(Forbidden) as refused:
            await tower.intents.declare(ann, [wish], tower.front.shadow, ttl_ms=3_600_000)
        assert refused.value.rule == "contract.revoked"

    at_gateway(tmp_path, story)


def test_an_intent_that_is_broken_in_line_is_not_answered_as_granted(tmp_path: Path) -> None:
    """Its contract is there again when its request is answered, or a person has broken it."""

    async def story(gateway: Gateway) -> None:
        await gateway.declare("bob", 201)
        waits = asyncio.create_task(gateway.declare("ann", wait_s=30))
        [_, mine] = await gateway.in_line(2)
        await gateway.waiting(1)
        await gateway("admin", "DELETE", f"{INTENTS}/{mine['intent']}", 200)
        answer = await waits
        assert (answer.status_code, answer.json()["error"]["rule"]) == (403, "intent.fenced")

    at_gateway(tmp_path, story)

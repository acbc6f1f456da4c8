"""Requests without a known credential wait for their turn, before anything is looked up for them (trap A8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx2

from icetower.ambient import SystemAmbient
from icetower.gateway.app import build
from icetower.gateway.connection_state import ConnectionState, attach
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.gateway.unknown_callers import UnknownCallers


class Crowd:
    """Requests that have come; `went`: those that had their turn, in that order."""

    def __init__(self, unknown_callers: UnknownCallers) -> None:
        self.unknown_callers = unknown_callers
        self.unknown_callers._look = asyncio.get_running_loop().call_later(3600, lambda: None)  # the tests say when
        self.unknown_callers._refill(asyncio.get_running_loop().time())
        self.unknown_callers._per_s = 0.0
        self.went: list[str] = []
        self.left: list[str] = []
        self.connection_states: dict[str, ConnectionState] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def send(self, name: str, count: int = 1, *, path: str = "/v1/config", bearer: str | None = None) -> None:
        """Requests from the address that the name begins with."""
        for number in range(count):
            self._tasks.append(asyncio.create_task(self._request(f"{name}.{number}", path, bearer)))
        await self.rest()

    async def _request(self, name: str, path: str, bearer: str | None) -> None:
        headers = [] if bearer is None else [(b"authorization", f"Bearer {bearer}".encode())]
        scope: dict[str, Any] = {"path": path, "headers": headers, "client": (name.split()[0], 1)}
        self.connection_states[name] = ConnectionState()
        attach(scope, self.connection_states[name])
        (
            self.went if self.unknown_callers.knows(scope) or await self.unknown_callers.turn(scope) else self.left
        ).append(name)

    async def turns(self, count: int) -> list[str]:
        """Who goes on when so many may."""
        self.went.clear()
        self.unknown_callers._at_once = self.unknown_callers._left = count
        self.unknown_callers._go_on(asyncio.get_running_loop())
        await self.rest()
        return self.went

    async def rest(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def test_a8_floods_wait_for_their_turns_and_delay_no_other_address_and_no_health_check() -> None:
    async def story() -> None:
        crowd = Crowd(UnknownCallers(at_once=5))
        await crowd.send("1.1.1.1 flood", 100)
        assert len(crowd.went) == 5
        await crowd.send("2.2.2.2 other")
        await crowd.send("1.1.1.1 health", path="/healthz")
        await crowd.send("1.1.1.1 token", path="/v1/oauth/tokens")
        await crowd.send("1.1.1.1 first", bearer="new")
        assert len(crowd.went) == 5
        assert await crowd.turns(6) == [
            "1.1.1.1 flood.5",
            "2.2.2.2 other.0",
            "1.1.1.1 health.0",
            "1.1.1.1 token.0",
            "1.1.1.1 first.0",
            "1.1.1.1 flood.6",
        ]
        assert len(await crowd.turns(1000)) == 93

    run(story())


def test_a8_a_bearer_that_was_right_waits_for_nothing_until_it_is_wrong() -> None:
    async def story() -> None:
        crowd = Crowd(UnknownCallers(at_once=1))
        crowd.unknown_callers.right("good")
        await crowd.send("1.1.1.1 flood", 100, bearer="bad")
        assert len(crowd.went) == 1
        await crowd.send("1.1.1.1 known", 10, bearer="good")
        assert len(crowd.went) == 11
        crowd.unknown_callers.wrong("good")
        await crowd.send("1.1.1.1 revoked", bearer="good")
        assert len(crowd.went) == 11

    run(story())


def test_a8_whoever_hangs_up_takes_no_turn() -> None:
    async def story() -> None:
        crowd = Crowd(UnknownCallers(at_once=0))
        await crowd.send("1.1.1.1 flood", 50)
        await crowd.send("1.1.1.1 last")
        assert all(connection_state.held for connection_state in crowd.connection_states.values())
        for name, connection_state in crowd.connection_states.items():
            if "flood" in name:
                connection_state.lose()
        assert await crowd.turns(1) == ["1.1.1.1 last.0"]
        assert len(crowd.left) == 50
        assert not crowd.unknown_callers._held

    run(story())


def test_a8_what_no_route_takes_waits_for_its_turn_whoever_sends_it_and_so_do_health_checks(tmp_path: Path) -> None:
    async def story() -> None:
        tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient(), open_to_all=False)
        await tower.start()
        secret = (tmp_path / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {secret}"}
        transport = httpx2.ASGITransport(app=build(tower))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            assert (await http.get("/v1/config")).status_code == 200
            unknown_callers = tower.front.intake.unknown_callers
            unknown_callers._at_once, unknown_callers._left, unknown_callers._per_s = 0, 0.0, 0.0
            assert (await http.get("/v1/config")).status_code == 200, "it is known"
            sent = [
                asyncio.create_task(http.request(method, path))
                for method, path in (("GET", "/v1/no/such/route"), ("PATCH", "/v1/config"), ("GET", "/healthz"))
            ]
            sent.append(asyncio.create_task(http.get("/v1/config", headers={"Sec-Fetch-Site": "cross-site"})))
            while sum(map(len, unknown_callers._held.values())) < len(sent):  # noqa: ASYNC110 - nothing says so
                await asyncio.sleep(0)
            assert not any(task.done() for task in sent)
            unknown_callers._at_once, unknown_callers._left = len(sent), float(len(sent))
            assert [answer.status_code for answer in await asyncio.gather(*sent)] == [404, 405, 200, 403]
        await tower.close()

    run(story())


def test_in_an_open_tower_requests_without_a_credential_are_an_administrators() -> None:
    async def story() -> None:
        crowd = Crowd(UnknownCallers(open_to_all=True, at_once=0))
        await crowd.send("127.0.0.1 anybody", 10)
        assert len(crowd.went) == 10
        await crowd.send("127.0.0.1 wrong", bearer="bad")
        assert len(crowd.went) == 10

    run(story())

"""Memory for bodies is one budget, fair by principal; nobody is refused for want of it (traps A4, A8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from icetower.errors import BadRequest, BodyTooLarge, RequestTooSlow
from icetower.gateway.bodies import FREE_BYTES, Bodies
from icetower.gateway.connection_state import ConnectionState
from icetower.gateway.http import read_body

MIB = 1024 * 1024


class Crowd:
    """Requests whose bodies come when they are told to; `reading`: those that have room."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self.reading: list[str] = []
        self.come: dict[str, asyncio.Event] = {}
        self.answer: dict[str, asyncio.Event] = {}
        self.states: dict[str, ConnectionState] = {}

    async def send(self, *names: str, size: int = MIB, chunked: bool = False) -> list[asyncio.Task[int]]:
        """A body for each name, such as `ann.1`, of the principal before the dot."""
        tasks = [asyncio.create_task(self._request(name, size, chunked)) for name in names]
        await self.rest()
        return tasks

    async def _request(self, name: str, size: int, chunked: bool) -> int:
        self.come[name], self.answer[name] = asyncio.Event(), asyncio.Event()
        first = True

        async def receive() -> Any:
            nonlocal first
            if chunked and first:
                first = False
                return {"type": "http.request", "body": b"x" * min(size, FREE_BYTES + 1), "more_body": True}
            self.reading.append(name)
            await self.come[name].wait()
            left = size - min(size, FREE_BYTES + 1) if chunked else size
            return {"type": "http.request", "body": b"x" * left, "more_body": False}

        header = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % size)
        try:
            async with self.bodies.room(name.split(".")[0], self.states.setdefault(name, ConnectionState())) as room:
                body = await read_body(Request({"type": "http", "headers": [header]}, receive), 2 * MIB, room=room)
                await self.answer[name].wait()
                return len(body)
        finally:
            if name in self.reading:
                self.reading.remove(name)

    async def end(self, *names: str) -> None:
        for name in names:
            self.come[name].set()
            self.answer[name].set()
        await self.rest()

    async def rest(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    def later(self, seconds: float) -> None:
        self.bodies.look(asyncio.get_running_loop().time() + seconds)


@pytest.fixture
def bodies() -> Bodies:
    return Bodies(10 * MIB, deadline_s=30)


def run(story: Coroutine[Any, Any, object]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}.{number}" for number in range(count)]


def test_a8_one_principal_takes_half_of_the_memory_and_others_find_room(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        greedy = await crowd.send(*numbered("greedy", 100))
        assert crowd.reading == numbered("greedy", 5)
        assert bodies.held_bytes == 5 * MIB
        await crowd.send("ann.0", "ann.1", "ann.2", "bob.0")
        assert crowd.reading[5:] == ["ann.0", "ann.1", "bob.0"]
        assert bodies.held_bytes == 8 * MIB
        await crowd.end("ann.0", "ann.1", "bob.0", "ann.2")
        for name in numbered("greedy", 100):
            await crowd.end(name)
            assert bodies.held_bytes <= 5 * MIB
        assert {await each for each in greedy} == {MIB}
        assert (bodies.held_bytes, bodies._principals, bodies._with_waiting) == (0, {}, {})

    run(story())


def test_a8_a_body_keeps_its_room_until_its_request_is_answered(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        await crowd.send(*numbered("ann", 6))
        crowd.come["ann.0"].set()
        await crowd.rest()
        assert "ann.5" not in crowd.reading
        crowd.answer["ann.0"].set()
        await crowd.rest()
        assert "ann.5" in crowd.reading

    run(story())


def test_a4_who_has_nothing_under_way_goes_before_those_that_have(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        for principal in range(8):
            await crowd.send(f"p{principal}.0", size=2 * MIB if principal < 2 else MIB)
        assert bodies.held_bytes == 10 * MIB
        await crowd.send("p7.1", "p7.2", "new.0", size=2 * MIB)
        await crowd.end("p6.0")
        assert bodies.held_bytes == 9 * MIB  # what is free is kept for it
        await crowd.end("p5.0")
        assert crowd.reading[-1] == "new.0"

    run(story())


def test_a8_a_body_that_trickles_ends_where_others_starve_and_else_does_not(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        slow = await crowd.send(*numbered("slow", 5))
        others = await crowd.send(*numbered("a", 2), *numbered("b", 1), "c.0", "d.0")
        assert bodies.held_bytes == 10 * MIB
        await crowd.send("slow.more")
        crowd.later(31)
        await crowd.rest()
        assert bodies.held_bytes == 10 * MIB  # who waits has bodies under way
        await crowd.send("new.0")
        crowd.later(29)
        await crowd.rest()
        assert "new.0" not in crowd.reading
        crowd.later(31)
        await crowd.rest()
        with pytest.raises(RequestTooSlow, match="30 s while others waited"):
            await slow[0]
        assert crowd.reading[-1] == "new.0"
        assert not any(each.done() for each in (*slow[1:], *others))

    run(story())


def test_short_bodies_take_no_room_and_chunked_ones_what_they_turn_out_to_be(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        short = await crowd.send(*numbered("short", 500), size=FREE_BYTES)
        assert (len(crowd.reading), bodies.held_bytes) == (500, 0)
        await crowd.end(*numbered("short", 500))
        assert {await each for each in short} == {FREE_BYTES}
        (chunked,) = await crowd.send("ann.0", size=MIB, chunked=True)
        assert bodies.held_bytes == 2 * MIB
        crowd.come["ann.0"].set()
        await crowd.rest()
        assert bodies.held_bytes == MIB
        await crowd.end("ann.0")
        assert await chunked == MIB
        (too_long,) = await crowd.send("ann.1", size=3 * MIB, chunked=True)
        await crowd.end("ann.1")
        with pytest.raises(BodyTooLarge):
            await too_long
        assert (bodies.held_bytes, bodies._principals) == (0, {})

    run(story())


def test_who_hangs_up_while_it_waits_leaves_no_trace(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        tasks = await crowd.send(*numbered("ann", 7))
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (bodies.held_bytes, bodies._principals, bodies._with_waiting) == (0, {}, {})

    run(story())


def test_a8_a_body_whose_connection_goes_while_it_waits_for_room_leaves_no_trace(bodies: Bodies) -> None:
    async def story() -> None:
        crowd = Crowd(bodies)
        tasks = await crowd.send(*numbered("ann", 9))
        assert crowd.reading == numbered("ann", 5)
        for name in ("ann.5", "ann.7"):
            crowd.states[name].lose()
        await crowd.end("ann.0")
        for number in (5, 7):
            with pytest.raises(ClientDisconnect):
                await tasks[number]
        assert crowd.reading == ["ann.1", "ann.2", "ann.3", "ann.4", "ann.6"]
        await crowd.end("ann.1", "ann.2", "ann.3", "ann.4", "ann.6", "ann.8")
        assert (bodies.held_bytes, bodies._principals, bodies._with_waiting) == (0, {}, {})

    run(story())


@pytest.mark.parametrize("encoding", ["gzip", "br", " Deflate", "identity, gzip"])
def test_a_packed_body_is_refused_before_any_of_it_is_read(encoding: str) -> None:
    async def receive() -> Any:
        raise AssertionError("it was read")

    scope = {"type": "http", "headers": [(b"content-encoding", encoding.encode())]}
    with pytest.raises(BadRequest, match="Content-Encoding") as refused:
        run(read_body(Request(scope, receive), MIB))
    assert refused.value.rule == "body.encoding"

"""Requests under way are fair by principal: who has many of them waits for itself (traps A4, A8)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from icetower.gateway.connection_state import ConnectionState
from icetower.gateway.places import Places


class Crowd:
    """Requests that are under way until they are told to end; `under_way`: their names, in the order of their turns."""

    def __init__(self, places: Places) -> None:
        self.places = places
        places._look_later = lambda: None  # type: ignore[method-assign]  # the tests say how late the loop is
        self.under_way: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.states: dict[str, ConnectionState] = {}

    async def send(self, *names: str) -> list[asyncio.Task[None]]:
        """One request for each name, such as `ann.1`, of the principal before the dot."""
        tasks = [asyncio.create_task(self._request(name)) for name in names]
        await self.rest()
        return tasks

    async def _request(self, name: str) -> None:
        self.ends[name] = asyncio.Event()
        async with self.places.place(name.split(".")[0], self.states.setdefault(name, ConnectionState())):
            self.under_way.append(name)
            await self.ends[name].wait()
        self.under_way.remove(name)

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await self.rest()

    async def rest(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}.{number}" for number in range(count)]


def test_who_is_alone_is_held_by_nothing_and_who_is_not_has_an_equal_part() -> None:
    async def story() -> None:
        crowd = Crowd(Places(deadline_s=3600, slots_max=12))
        await crowd.send(*numbered("greedy", 100))
        assert len(crowd.under_way) == 100
        await crowd.send(*numbered("ann", 3))
        assert len(crowd.under_way) == 103  # the others are not held up by those that it has under way
        await crowd.end(*numbered("greedy", 100))
        await crowd.send(*(f"greedy.more{n}" for n in range(100)))
        assert sum(name.startswith("greedy") for name in crowd.under_way) == 6
        await crowd.end("greedy.more0")
        assert [name for name in crowd.under_way if name.startswith("greedy")] == [
            f"greedy.more{n}" for n in range(1, 7)
        ]
        for _ in range(20):
            crowd.places.felt(0.5)  # the event loop is busy
        for n in range(1, 6):
            await crowd.end(f"greedy.more{n}")
        assert sum(name.startswith("greedy") for name in crowd.under_way) == 1
        for _ in range(20):
            crowd.places.felt(0.0)
        await crowd.rest()
        assert sum(name.startswith("greedy") for name in crowd.under_way) == 6
        await crowd.end(*numbered("ann", 3))
        assert len(crowd.under_way) == 94  # alone again

    run(story())


def test_a4_who_was_held_until_the_deadline_goes_on_and_who_hangs_up_leaves_no_trace() -> None:
    async def story() -> None:
        places = Places(deadline_s=0.01, slots_max=2)
        crowd = Crowd(places)
        await crowd.send("ann.1", "bob.1")
        held = await crowd.send("ann.2", "ann.3")
        assert crowd.under_way == ["ann.1", "bob.1"]
        held[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await held[1]
        while crowd.under_way != ["ann.1", "bob.1", "ann.2"]:  # noqa: ASYNC110 - nobody ends: its deadline lets it in
            await asyncio.sleep(0.001)
        await crowd.end("ann.1", "ann.2", "bob.1")
        assert crowd.under_way == []
        assert not places._principals

    run(story())


def test_a_contract_says_how_many_requests_of_a_principal_go_on_at_once_also_of_one_that_is_alone() -> None:
    async def story() -> None:
        places = Places(deadline_s=3600)
        under_way: list[int] = []
        end = asyncio.Event()

        async def request(number: int, most: int) -> None:
            async with places.place("ann", ConnectionState(), most):
                under_way.append(number)
                await end.wait()

        tasks = [asyncio.create_task(request(number, 3)) for number in range(10)]
        await asyncio.sleep(0.01)
        assert under_way == [0, 1, 2]
        tasks.append(asyncio.create_task(request(10, 20)))  # the contract was changed: more may go on
        tasks.append(asyncio.create_task(request(11, 20)))
        end.set()
        await asyncio.gather(*tasks)
        assert under_way == [*range(12)], "all went on, in their order"
        assert not places._principals

    run(story())


def test_a8_requests_that_wait_for_nothing_go_on_one_in_a_turn_of_the_loop_while_the_loop_is_late() -> None:
    async def story() -> None:
        places = Places(deadline_s=3600)
        places._look_later = lambda: None  # type: ignore[method-assign]
        begun: list[str] = []
        end = asyncio.Event()

        async def polite() -> None:
            async with places.place("ann", ConnectionState()):
                await end.wait()

        async def cheap() -> None:
            async with places.place("greedy", ConnectionState()):
                begun.append("cheap")

        tasks = [asyncio.create_task(polite()), asyncio.create_task(polite())]
        await asyncio.sleep(0)
        for _ in range(30):
            places.felt(0.5)
        tasks += [asyncio.create_task(cheap()) for _ in range(100)]
        counts = [0]
        while counts[-1] < 100:
            await asyncio.sleep(0)
            counts.append(len(begun))
        assert max(later - earlier for earlier, later in itertools.pairwise(counts)) == 1
        end.set()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)
        assert not places._principals

    run(story())


def test_a8_a_request_whose_connection_goes_while_it_is_held_leaves_no_trace() -> None:
    async def story() -> None:
        places = Places(deadline_s=3600, slots_max=2)
        crowd = Crowd(places)
        await crowd.send("ann.1", "bob.1")
        held = await crowd.send(*(f"ann.{number}" for number in range(2, 6)))
        for name in ("ann.2", "ann.4"):
            crowd.states[name].lose()
        await crowd.end("ann.1")  # in the same turn of the loop
        for task in (held[0], held[2]):
            with pytest.raises(ClientDisconnect):
                await task
        assert crowd.under_way == ["bob.1", "ann.3"]
        await crowd.end("ann.3", "bob.1")
        assert crowd.under_way == ["ann.5"]
        await crowd.end("ann.5")
        assert not places._principals

    run(story())

"""The registry is away when it is asked once more: everybody in the group hears so, and nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icetower.errors import Unavailable
from tests.commit.engine_world import World, outcomes, run

BLIND = {"icetower.blind": "true"}


def test_k4_a_group_whose_contracts_cannot_be_asked_for_is_told_at_once_and_lands_when_they_can() -> None:
    async def story() -> None:
        world = World()
        await world.create(3)
        asked: list[int] = []
        still_admits = world.gate.still_admits

        async def away(members: Sequence[Any]) -> Any:
            asked.append(len(members))
            raise Unavailable("the registry cannot be asked", rule="registry.available")

        world.gate.still_admits = away  # type: ignore[method-assign]
        writers = [await world.writer(name).refresh() for name in ("ann", "bob", "cid")]
        requests = [await writer.append(writer.name, summary=BLIND) for writer in writers]
        theirs = set(world.storage.files)
        assert await outcomes(*requests) == ["503 registry.available"] * 3
        assert asked == [3]  # and not once more for each half of the group
        assert await world.live() == []
        await world.engine.drain()
        assert set(world.storage.files) == theirs
        world.restart()
        world.gate.still_admits = still_admits  # type: ignore[method-assign]
        assert await outcomes(*requests) == ["direct", "rebased", "rebased"]
        assert await world.live() == ["ann", "bob", "cid"]

    run(story())

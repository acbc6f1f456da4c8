"""A swap whose outcome nobody heard, while the table moves on: that it did not land is certain only by a log that goes
back to before it. Taken for lost, its files would be deleted under the table, or its rows written again (trap A3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity
from icetower.iceberg.change import Touched
from icetower.upstream.port import Swap, SwapUnknown
from tests.commit.engine_world import TABLE, Request, World, outcomes, told
from verify.kit.upstream import FaultyUpstream

BLIND = {"icetower.blind": "true"}


async def two_towers(log_max: int) -> tuple[World, World]:
    """One table, and two towers before it; its log goes back to so many versions."""
    world = World()
    await world.create(2, **{"write.metadata.previous-versions-max": str(log_max)})
    other = World(clock=world.clock, storage=world.storage)
    other.database, other.upstream = world.database, FaultyUpstream(world.upstream.inner)
    other.restart()
    return world, other


@pytest.mark.parametrize("by_the_fast_path", [True, False])
@pytest.mark.parametrize(("log_max", "further"), [(1, 0), (4, 4), (100, 0)])
@pytest.mark.parametrize("lands", [True, False])
def test_what_landed_unheard_is_never_taken_for_lost(
    by_the_fast_path: bool, log_max: int, further: int, lands: bool
) -> None:
    """Another tower commits meanwhile, and a client removes the older snapshots."""

    async def story() -> None:
        world, other = await two_towers(log_max)
        ann = await world.writer("ann").refresh()
        assert await outcomes(await ann.append("seed")) == ["direct"]

        async def meanwhile(swaps: Sequence[Swap]) -> None:
            if lands:
                await world.upstream.inner.swap(swaps)
            for name in ("first", *map(str, range(further))):
                bob = await other.writer("bob").refresh()
                assert await outcomes(await bob.append(name, summary=BLIND)) == ["direct"]
            head = (await other.writer("bob").refresh()).base
            old = [i for i in head.snapshots if i != head.metadata["refs"]["main"]["snapshot-id"]]
            uuid = {"type": "assert-table-uuid", "uuid": head.metadata["table-uuid"]}
            remove = {"action": "remove-snapshots", "snapshot-ids": old}
            assert await outcomes(Request(bob, TABLE, [uuid], [remove], (), None)) == ["direct"]
            raise SwapUnknown

        ann = await world.writer("ann").refresh()
        if by_the_fast_path:
            uuid = ann.base.metadata["table-uuid"]
            file = Touched(ann.data_file("x"), 0, None)
            member = AdmittedAppend(Identity.of_append("ann", "main", "key-1", None), TABLE, (file,), "c", 1, "x", uuid)
            sending = world.engine.submit(member)
        else:
            sending = world.engine.submit(await (await ann.append("x", summary=BLIND)).admitted())
        world.upstream.script = [meanwhile]
        (answer,) = await asyncio.gather(sending, return_exceptions=True)
        await world.engine.drain()
        live = await world.live()  # every manifest that the head names can be read
        if log_max == 100:
            assert told(answer) in ("appended", "rebased", "direct")
            assert live.count("x") == 1
        else:
            assert told(answer) == "504 commit.unknown"
            assert live.count("x") == (1 if lands else 0)

    asyncio.run(story())


@pytest.mark.parametrize("log_max", [1, 100])
def test_a_member_that_landed_elsewhere_does_not_say_that_its_group_did(log_max: int) -> None:
    """Of one without a snapshot, a schema change say, nothing else would tell: it was answered, and was not there."""

    async def story() -> None:
        world, other = await two_towers(log_max)
        ann = await world.writer("ann").refresh()
        append = await ann.append("x", summary=BLIND)
        uuid = {"type": "assert-table-uuid", "uuid": ann.base.metadata["table-uuid"]}
        change = {"action": "set-properties", "updates": {"owner": "bob"}}
        plain = Request(world.writer("bob"), TABLE, [uuid], [change], (), None)

        async def meanwhile(_: Sequence[Swap]) -> None:
            """It never lands; the append is sent to the other tower, and others write, too."""
            again = Request(other.writer("ann"), TABLE, append.requirements, append.updates, append.rows, None)
            assert await outcomes(again) == ["direct"]
            for name in ("y", "z"):
                carl = await other.writer("carl").refresh()
                assert await outcomes(await carl.append(name, summary=BLIND)) == ["direct"]
            raise SwapUnknown

        world.upstream.script = [meanwhile]
        members = [await append.admitted(), await plain.admitted()]
        sending = [world.engine.submit(member) for member in members]
        answers = [told(answer) for answer in await asyncio.gather(*sending, return_exceptions=True)]
        await world.engine.drain()
        owner = (await world.head()).metadata["properties"].get("owner")
        assert sorted(await world.live()) == ["x", "y", "z"]
        assert answers == (["replayed", "direct"] if log_max == 100 else ["504 commit.unknown"] * 2)
        assert owner == ("bob" if log_max == 100 else None)

    asyncio.run(story())

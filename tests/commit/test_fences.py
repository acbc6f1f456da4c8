"""A fence and the write that it is for meet at the table: one of the two is first, at whichever tower (trap K4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from icetower.admission.admitted import Admitted, AdmittedAppend, AdmittedFence
from icetower.admission.identity import Identity
from icetower.commit.engine import Committed, Limits
from icetower.errors import CommitStateUnknown, IcetowerError, KeyMisused
from icetower.protocol.marks import FENCE
from icetower.upstream.port import Swap, SwapLost
from tests.commit.engine_world import TABLE, World, run
from tests.commit.test_live_files import fast

PROMPT = Limits(deadline_s=5, settle_s=1, append_interval_s=0)
APPLICATION = ("app", 7)


async def fence(
    world: World, key: str | None = None, application: tuple[str, int] | None = None, *, by: str = "ann"
) -> AdmittedFence:
    head = await world.head()
    identity = Identity.of_append("ann", "main", key, application)
    return AdmittedFence(identity, TABLE, by, "c", 1, head.metadata["table-uuid"], world.clock.now_ms() + 60_000)


async def ends(*done: asyncio.Future[Committed] | asyncio.Task[Committed]) -> list[str]:
    found: list[str] = []
    for each in await asyncio.gather(*done, return_exceptions=True):
        assert isinstance(each, Committed | IcetowerError), each
        found.append(each.outcome if isinstance(each, Committed) else f"{each.status} {each.rule}")
    return found


async def fences(world: World) -> int:
    return sum(name.startswith(FENCE) for name in (await world.head()).metadata["properties"])


def second_tower(world: World) -> World:
    other = World(clock=world.clock, storage=world.storage, limits=PROMPT)
    other.upstream.inner = world.upstream.inner
    other.restart()
    return other


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("kind", ["commit", "append"])
def test_k4_nothing_lands_under_a_key_that_is_fenced(kind: str, version: int) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create(version)
        done = await world.engine.submit(await fence(world, "k"))
        assert (done.outcome, done.snapshots) == ("fenced", ())
        assert await fences(world) == 1
        for tower in (world, second_tower(world)):
            member: AdmittedAppend | Admitted = await fast(tower, "a", key="k")
            if kind == "commit":
                member = await (await (await tower.writer().refresh()).append("a", key="k")).admitted()
            with pytest.raises(KeyMisused) as refused:
                await tower.engine.submit(member)
            assert (refused.value.rule, refused.value.next_step) == ("key.fenced", "none")
        assert (await (await (await world.writer().refresh()).append("a", key="k2")).send()).outcome == "direct"
        assert await world.live() == ["a"]

    run(story())


def test_what_has_landed_stays_and_is_not_fenced() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        landed = await world.engine.submit(await fast(world, "a", key="k", application=APPLICATION))
        for member in (await fence(world, "k"), await fence(world, None, APPLICATION)):
            done = await world.engine.submit(member)
            assert (done.outcome, done.snapshots) == ("replayed", landed.snapshots)
        assert await fences(world) == 0
        assert (await world.engine.submit(await fast(world, "a", key="k"))).outcome == "replayed"

    run(story())


def test_a_number_is_fenced_alone() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await world.engine.submit(await fence(world, None, APPLICATION))
        for number, outcome in ((6, "appended"), (8, "appended"), (7, "key.fenced")):
            member = await fast(world, f"a{number}", application=("app", number))
            try:
                found = (await world.engine.submit(member)).outcome
            except KeyMisused as error:
                found = error.rule
            assert (number, found) == (number, outcome)
        assert await world.live() == ["a6", "a8"]

    run(story())


def test_what_was_rolled_back_is_fenced_for_the_time_after_it_has_gone() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        first = await world.engine.submit(await fast(world, "a"))
        await world.engine.submit(await fast(world, "b", key="k"))
        head = await world.head()
        writer = world.writer()
        writer.base = head
        request = await writer.append("x")
        request.updates[:] = [
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first.snapshots[0]}
        ]
        request.requirements[1:] = []
        await request.send()
        assert (await world.engine.submit(await fence(world, "k"))).outcome == "fenced"
        assert await ends(asyncio.ensure_future(world.engine.submit(await fast(world, "b", key="k")))) == [
            "422 key.rolled-back"
        ]
        gone = [i for i in head.snapshots if i not in first.snapshots]
        request.updates[:] = [{"action": "remove-snapshots", "snapshot-ids": gone}]
        await request.send()
        assert await ends(asyncio.ensure_future(world.engine.submit(await fast(world, "b", key="k")))) == [
            "422 key.fenced"
        ]

    run(story())


@pytest.mark.parametrize("first", ["fence", "append"])
def test_at_one_tower_whichever_comes_first_is_first(first: str) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        members = [await fence(world, "k"), await fast(world, "a", key="k")]
        tasks: list[asyncio.Task[Committed]] = []
        for member in members if first == "fence" else members[::-1]:
            tasks.append(asyncio.create_task(world.engine.submit(member)))
            if first == "append":
                await asyncio.wait(tasks)
        # A group plans what is no append first.
        wanted = ["fenced", "422 key.fenced"] if first == "fence" else ["appended", "replayed"]
        assert await ends(*tasks) == wanted
        assert await world.live() == ([] if first == "fence" else ["a"])

    run(story())


class Held:
    """A swap that waits before it reaches the catalog, as on a tower that is slow, or whose network is."""

    def __init__(self, world: World) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self._world = world

    async def __call__(self, swaps: Sequence[Swap]) -> None:
        self.began.set()
        await self.go_on.wait()
        await self._world.upstream.inner.swap(swaps)


@pytest.mark.parametrize("kind", ["commit", "append"])
def test_k4_a_write_that_is_about_to_swap_at_another_tower_never_lands_after_the_fence(kind: str) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        held = Held(world)
        world.upstream.script = [held]
        if kind == "append":
            zombie = asyncio.create_task(world.engine.submit(await fast(world, "a", key="k")))
        else:
            request = await (await world.writer().refresh()).append("a", key="k", summary={"icetower.blind": "true"})
            zombie = asyncio.create_task(world.engine.submit(await request.admitted()))
        await held.began.wait()
        other = second_tower(world)
        assert (await other.engine.submit(await fence(other, "k"))).outcome == "fenced"
        held.go_on.set()
        assert await ends(zombie) == ["422 key.fenced"]
        assert await world.live() == []

    run(story())


def test_a_fence_that_loses_to_the_write_says_that_it_has_landed() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        other = second_tower(world)

        async def lands(swaps: Sequence[Swap]) -> None:
            landed.extend((await other.engine.submit(await fast(other, "a", key="k"))).snapshots)
            raise SwapLost(swaps[0].identifier, swaps[0].expected)

        landed: list[int] = []
        world.upstream.script = [lands]
        done = await world.engine.submit(await fence(world, "k"))
        assert (done.outcome, list(done.snapshots)) == ("replayed", landed)
        assert await fences(world) == 0

    run(story())


def test_a_fence_whose_outcome_is_unknown_is_set_again() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, settle_s=0, append_interval_s=0))
        await world.create()

        async def unknown(swaps: Sequence[Swap]) -> None:
            await world.upstream.inner.swap(swaps)
            raise CommitStateUnknown("no answer")

        world.upstream.script = [unknown] * 40
        member = await fence(world, "k")
        assert await ends(asyncio.ensure_future(world.engine.submit(member))) in (["fenced"], ["504 commit.unknown"])
        world.upstream.script = []
        assert (await world.engine.submit(await fence(world, "k"))).outcome == "fenced"
        assert await fences(world) == 1

    run(story())


def test_a_fence_is_for_the_table_that_was_looked_at() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        member = await fence(world, "k")
        await world.tables.drop(TABLE, purge=False)
        await world.create()
        assert await ends(asyncio.ensure_future(world.engine.submit(member))) == ["409 requirement.assert-table-uuid"]
        assert await fences(world) == 0

    run(story())


def test_who_asks_is_asked_for_at_the_gate_and_not_the_writer() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        world.gate.revoked["ann"] = KeyMisused("revoked")
        assert (await world.engine.submit(await fence(world, "k", by="eve"))).outcome == "fenced"
        assert await ends(asyncio.ensure_future(world.engine.submit(await fence(world, "k2")))) == ["422 key"]

    run(story())

"""A tower dies with a swap on its way, and its client sends the commit to another: no 409 for what is in the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from icetower.commit.engine import Committed, Limits
from icetower.errors import CommitConflict, Forbidden, IcetowerError, UpstreamFailed
from icetower.protocol.names import Identifier
from icetower.upstream.port import Swap, SwapUnknown
from tests.commit.engine_world import TABLE, Request, World, run, told
from tests.commit.test_engine_pipeline import OTHER, Gated, blind, ends, fails, fast, send, settled, until
from tests.commit.test_engine_twins import transaction

HASTY = Limits(deadline_s=0.2, settle_s=1, append_interval_s=0)


class Dead:
    """A tower that has died while it swapped ann's commit, or append, or transaction."""

    def __init__(self, world: World, swaps: Sequence[Swap], commit: Callable[[], Awaitable[Any]]) -> None:
        self.world = world
        self._swaps = swaps
        self._commit = commit

    async def lands(self) -> None:
        """What it had on its way."""
        await self.world.upstream.inner.swap(self._swaps)

    async def resent(self) -> str:
        """What the client hears of the tower that it turns to."""
        try:
            done = await self._commit()
        except IcetowerError as error:
            return told(error)
        together: list[Committed] = done if isinstance(done, list) else [done]
        return "+".join(sorted({told(each) for each in together}))


async def dead(limits: Limits = HASTY, kind: str = "commit", *, is_blind: bool = True) -> Dead:
    """What a tower has left; the next one, with these limits, is up."""
    world = World(limits=Limits(settle_s=1, append_interval_s=0))
    await world.create()
    await world.create(table=OTHER)
    late: list[Sequence[Swap]] = []

    async def on_its_way(swaps: Sequence[Swap]) -> None:
        late.append(swaps)
        world.clock.time_ms += 2_000  # the time for settling has passed
        raise SwapUnknown

    world.upstream.script = [on_its_way]
    appends = [await fast(world, "ann", "key")]
    words = {"icetower.blind": "true"} if is_blind else {}
    request = await (await world.writer("ann").refresh()).append("ann", summary=words)
    commits = [await each.admitted() for each in (request, *await transaction(world, "ann"))]

    async def commit() -> Any:
        if kind == "append":
            return await world.engine.submit(appends[0])
        if kind == "transaction":
            return await world.engine.submit_together(commits[1:])
        return await world.engine.submit(commits[0])

    before = Dead(world, [], commit)
    assert await before.resent() == "504 commit.unknown"
    world.limits = limits
    world.restart()
    return Dead(world, late[0], commit)


async def held_up(world: World, then: Callable[[Sequence[Swap]], Awaitable[None]] | None = None) -> tuple[Gated, Any]:
    """A commit of bob's whose swap is held up; whoever comes now waits behind it."""
    gate = Gated(world, then)
    world.upstream.script = [gate]
    while True:
        (first,) = await send(world, *await blind(world, "bob"))
        began = asyncio.create_task(gate.began.wait())
        await asyncio.wait([began, first], return_when=asyncio.FIRST_COMPLETED)
        if began.done():
            return gate, first
        began.cancel()  # on a busy machine its deadline may have passed before its swap began


@pytest.mark.parametrize("kind", ["commit", "append", "transaction"])
def test_a3_a_commit_that_another_tower_lands_while_it_waits_is_done_at_its_deadline(kind: str) -> None:
    async def story() -> None:
        here = await dead(kind=kind)
        gate, first = await held_up(here.world)
        await here.lands()  # after the resend was let in, as far as the engine can see
        assert await here.resent() == "replayed"
        gate.go_on.set()
        assert await ends([first]) == ["409 queue.deadline"]  # its own swap lost, and it was late
        assert await here.world.live() == ["ann"]

    run(story())


@pytest.mark.parametrize("kind", ["commit", "append", "transaction"])
def test_a3_a_commit_that_another_tower_has_landed_is_done_for_a_tower_that_takes_none(kind: str) -> None:
    async def story() -> None:
        here = await dead(kind=kind)
        await here.lands()
        await here.world.engine.drain()
        assert await here.resent() == "replayed"

    run(story())


def test_a3_a_commit_that_another_tower_has_landed_is_done_before_a_full_queue() -> None:
    async def story() -> None:
        here = await dead(replace(HASTY, held_max=0))
        assert await here.resent() == "409 queue.full"
        await here.lands()
        assert await here.resent() == "replayed"

    run(story())


def test_a3_a_commit_that_loses_its_last_swap_to_itself_is_done() -> None:
    async def story() -> None:
        here = await dead(replace(HASTY, rounds_max=1))

        async def beaten(swaps: Sequence[Swap]) -> None:
            await here.lands()
            await here.world.upstream.inner.swap(swaps)

        here.world.upstream.script = [beaten]
        assert await here.resent() == "replayed"

    run(story())


@pytest.mark.parametrize("error", [Forbidden("revoked"), CommitConflict("the contract changed")])
@pytest.mark.parametrize("kind", ["commit", "transaction"])
def test_a3_a_commit_that_is_refused_late_is_done_where_another_tower_has_landed_it(
    kind: str, error: IcetowerError
) -> None:
    async def story() -> None:
        here = await dead(kind=kind)

        async def still_admits(members: Sequence[Any]) -> Mapping[int, IcetowerError]:
            if not (await here.world.head()).snapshots:
                await here.lands()
            return dict.fromkeys(range(len(members)), error)

        here.world.gate.still_admits = still_admits  # type: ignore[method-assign]
        assert await here.resent() == "replayed"

    run(story())


def test_a3_a_refusal_in_a_group_whose_outcome_is_unknown_is_told_after_a_look() -> None:
    """It was refused on a version that may not stand any more: the swap of the others would have shown it."""

    async def story() -> None:
        here = await dead(is_blind=False)

        async def odd(swaps: Sequence[Swap]) -> None:
            del swaps
            await here.lands()
            raise RuntimeError("the driver has a fault of its own")

        gate, first = await held_up(here.world, fails)
        here.world.upstream.script = [odd]
        others = await send(here.world, *await blind(here.world, "cid"))
        resent = asyncio.create_task(here.resent())
        await settled(here.world)
        gate.go_on.set()
        assert await ends([first, *others]) == ["502 upstream", "504 commit.unknown"]
        assert await resent == "replayed"

    run(story())


@pytest.mark.parametrize("kind", ["commit", "append", "transaction"])
@pytest.mark.parametrize("away", ["failing", "silent"])
def test_a3_where_the_head_cannot_be_read_nobody_hears_409(away: str, kind: str) -> None:
    async def story() -> None:
        here = await dead(replace(HASTY, look_s=0.05), kind=kind)
        gate, first = await held_up(here.world)

        async def location(_: object) -> str:
            if away == "silent":
                await asyncio.Event().wait()
            raise UpstreamFailed("the catalog is away")

        here.world.upstream.settled_location = location  # type: ignore[attr-defined]
        assert await here.resent() == "504 commit.unknown"
        del here.world.upstream.settled_location  # type: ignore[attr-defined]
        gate.go_on.set()
        assert await ends([first]) == ["direct"]

    run(story())


def test_a3_a_commit_that_landed_and_was_rolled_back_meanwhile_hears_no_409() -> None:
    """Its manifests are the table's, though its branch has left them."""

    async def story() -> None:
        here = await dead()
        await here.lands()
        back = [{"action": "remove-snapshot-ref", "ref-name": "main"}]
        await Request(await here.world.writer("cid").refresh(), TABLE, [], back, ()).send()
        await here.world.engine.drain()
        assert await here.resent() == "422 snapshot.rolled-back"

    run(story())


@pytest.mark.parametrize("kind", ["commit", "append", "transaction"])
@pytest.mark.parametrize("pipeline_max", [1, 2], ids=["in the queue", "in a group"])
def test_a3_a_commit_that_is_sent_again_while_the_tower_looks_is_not_withdrawn(kind: str, pipeline_max: int) -> None:
    async def story() -> None:
        here = await dead(replace(HASTY, pipeline_max=pipeline_max), kind=kind)
        world = here.world
        gate, first = await held_up(world)
        looking, go_on = asyncio.Event(), asyncio.Event()
        location = world.upstream.inner.settled_location

        async def slow(identifier: Any) -> str:
            looking.set()
            await go_on.wait()
            return await location(identifier)

        world.upstream.settled_location = slow  # type: ignore[attr-defined]
        once = asyncio.create_task(here.resent())
        async with asyncio.timeout(30):
            await looking.wait()
        again = asyncio.create_task(here.resent())
        await settled()
        go_on.set()
        await settled(world)
        assert not once.done()
        gate.go_on.set()
        assert await ends([first]) == ["direct"]
        assert sorted([await once, await again])[1] == "replayed"
        assert await world.live() == ["ann", "bob"]

    run(story())


def test_a_transaction_that_is_looked_for_wants_no_turn() -> None:
    """Where only appends wait, a table's worker lets go of the turn for a transaction that wants it, over and over."""

    async def story() -> None:
        world = World(limits=replace(HASTY, append_interval_s=60))
        before = Identifier(("db",), "before")  # its turn is taken first
        await world.create()
        await world.create(table=before)
        assert told(await world.engine.submit(await fast(world, "bob"))) == "appended"
        append = await fast(world, "cid")
        gate = Gated(world)
        world.upstream.script = [gate]
        (first,) = await send(world, await (await world.writer("dan").refresh(before)).append("dan", table=before))
        await gate.began.wait()
        requests = [
            await (await world.writer("ann").refresh(table)).append("ann", table=table) for table in (before, TABLE)
        ]
        admitted = [await request.admitted() for request in requests]
        looking, go_on = asyncio.Event(), asyncio.Event()
        location = world.upstream.inner.settled_location

        async def slow(identifier: Any) -> str:
            looking.set()
            await go_on.wait()
            return await location(identifier)

        now_s, asked = world.clock.monotonic_s, 0

        def counted() -> float:
            nonlocal asked
            asked += 1
            return now_s() + (60 if asked > 10_000 else 0)  # which ends it

        world.upstream.settled_location = slow  # type: ignore[attr-defined]
        world.clock.monotonic_s = counted  # type: ignore[method-assign]
        together = asyncio.create_task(world.engine.submit_together(admitted))
        async with asyncio.timeout(30):
            await looking.wait()
        appended = asyncio.create_task(world.engine.submit(append))
        await settled()
        go_on.set()
        with pytest.raises(CommitConflict, match="withdrawn"):
            await together
        gate.go_on.set()
        assert await ends([first]) == ["direct"]
        await asyncio.wait([appended])
        assert asked < 10_000, "the table's worker did nothing but ask what time it is"

    run(story())


def test_a4_a_commit_that_is_nowhere_hears_409_as_ever() -> None:
    async def story() -> None:
        here = await dead()
        gate, first = await held_up(here.world)
        assert await here.resent() == "409 queue.deadline"
        gate.go_on.set()
        await until(first.done)
        await here.world.engine.drain()
        assert await here.resent() == "409 queue.draining"
        assert await here.world.live() == ["bob"]

    run(story())


def test_a3_half_a_transaction_in_the_tables_is_no_replay() -> None:
    """Whoever has used its key for one table alone hears so, and no 409 either."""

    async def story() -> None:
        world = World(limits=HASTY)
        await world.create()
        await world.create(table=OTHER)
        admitted = [await request.admitted() for request in await transaction(world, "ann")]
        await world.engine.submit(admitted[0])
        await world.engine.drain()
        with pytest.raises(IcetowerError) as raised:
            await world.engine.submit_together(admitted)
        assert told(raised.value) == "422 key.transaction"

    run(story())


def test_what_another_tower_could_not_tell_is_no_news_to_this_one() -> None:
    """A 5xx says itself that nobody knows, or that it may be sent again: there is nothing to look for."""

    async def story() -> None:
        here = await dead()
        here.world.upstream.script = [fails]
        reads = 0
        location = here.world.upstream.inner.settled_location

        async def counted(identifier: Any) -> str:
            nonlocal reads
            reads += 1
            return await location(identifier)

        here.world.upstream.location = counted  # type: ignore[attr-defined]
        assert await here.resent() == "502 upstream"
        assert reads == 1

    run(story())

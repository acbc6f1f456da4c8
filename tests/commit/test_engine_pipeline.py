"""Two groups of a table on their way at once: what is seen from outside, and what happens when the first goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from icetower.commit import draft, steps
from icetower.commit import plan as commit_plan
from icetower.commit.engine import Committed, Limits
from icetower.commit.needs import Needs
from icetower.commit.pieces import Pieces
from icetower.commit.plan import Plan, plan
from icetower.commit.steps import Version
from icetower.errors import Forbidden, UpstreamFailed
from icetower.iceberg import avro_files, listing
from icetower.iceberg.schemas import read_as
from icetower.protocol.names import Identifier
from icetower.registry.principals import administrator
from icetower.table.head import HeadState
from icetower.upstream.port import Swap
from tests.commit.engine_world import TABLE, Request, World, judged, run, told
from tests.commit.test_engine import BLIND, assert_no_litter, outside_writer

OTHER = Identifier(("db",), "u")
SNAPSHOT = {f"write.{command}.isolation-level": "snapshot" for command in ("merge", "update", "delete")}
NAMES = '[{"field-id": 1, "names": ["id"]}]'
SMALL = Limits(group_max=2, deadline_s=5, settle_s=1)


async def until(holds: Callable[[], bool]) -> None:
    """Let everybody else go on until something holds; it must come to hold without any of the clock's time passing."""
    async with asyncio.timeout(30):  # the catalog's SQL has a thread of its own
        while not holds():  # noqa: ASYNC110 - anything may make it hold
            await asyncio.sleep(0)


async def settled(world: World | None = None) -> None:
    """Let everybody go on for as long as there may be anything to do; a world's SQL has one thread of its own."""
    for _ in range(10):
        for _ in range(30):
            await asyncio.sleep(0)
        if world is not None:
            await world.upstream.inner.location(TABLE)


class Gated:
    """A swap that begins, and goes on when it is told to."""

    def __init__(self, world: World, then: Callable[[Sequence[Swap]], Awaitable[None]] | None = None) -> None:
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self._then = then or world.upstream.inner.swap

    async def __call__(self, swaps: Sequence[Swap]) -> None:
        self.began.set()
        await self.go_on.wait()
        await self._then(swaps)


async def fails(swaps: Sequence[Swap]) -> None:
    del swaps
    raise UpstreamFailed("the catalog is away")


async def blind(world: World, *names: str) -> list[Request]:
    """Blind appends by writers of these names, all prepared on the head as it stands."""
    return [await (await world.writer(name).refresh()).append(name, summary=BLIND) for name in names]


async def send(world: World, *requests: Request) -> list[asyncio.Task[Committed]]:
    """Send in this order, and let them get into the queue."""
    admitted = [await request.admitted() for request in requests]
    tasks = [asyncio.create_task(world.engine.submit(each)) for each in admitted]
    await asyncio.sleep(0)
    return tasks


async def ends(tasks: Sequence[asyncio.Task[Committed]]) -> list[str]:
    return [told(result) for result in await asyncio.gather(*tasks, return_exceptions=True)]


def versions(world: World) -> list[str]:
    """The metadata files in the storage, oldest first."""
    return sorted(path for path in world.storage.files if path.endswith(".metadata.json"))


async def pair(
    world: World, then: Callable[[Sequence[Swap]], Awaitable[None]] | None = None
) -> tuple[Gated, list[asyncio.Task[Committed]], list[asyncio.Task[Committed]]]:
    """A group of ann and bob whose swap is held up, and one of cid and dan whose files are written behind it."""
    await world.create()
    gate = Gated(world, then)
    world.upstream.script = [gate]
    requests = await blind(world, "ann", "bob", "cid", "dan")
    first = await send(world, *requests[:2])
    await gate.began.wait()
    second = await send(world, *requests[2:])
    await until(lambda: len(versions(world)) == 3)
    return gate, first, second


def test_the_next_groups_files_are_written_while_this_one_swaps_and_swaps_stay_in_order() -> None:
    async def story() -> None:
        world = World(limits=SMALL)
        gate, first, second = await pair(world)
        third = await send(world, *await blind(world, "eve"))
        await settled(world)
        # Created, and two versions on their way: the third group waits, and nobody has been answered.
        assert len(versions(world)) == 3
        assert world.upstream.swaps == 1
        assert world.engine.queued(TABLE) == 1
        assert not any(task.done() for task in (*first, *second))
        gate.go_on.set()
        assert await ends([*first, *second, *third]) == ["direct", *["rebased"] * 4]
        assert await world.live() == ["ann", "bob", "cid", "dan", "eve"]
        assert world.upstream.swaps == 3
        await world.engine.drain()
        await assert_no_litter(world)

    run(story())


def test_a_pipeline_of_one_waits_for_each_swap() -> None:
    async def story() -> None:
        world = World(limits=Limits(pipeline_max=1, deadline_s=5))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        requests = await blind(world, "ann", "bob")
        first = await send(world, requests[0])
        await gate.began.wait()
        second = await send(world, requests[1])
        await settled(world)
        assert len(versions(world)) == 2
        gate.go_on.set()
        assert await ends([*first, *second]) == ["direct", "rebased"]

    run(story())


def test_a_swap_lost_with_two_groups_on_their_way_costs_one_reload_and_leaves_nothing() -> None:
    async def story() -> None:
        world = World(limits=SMALL)
        lost: list[Any] = []

        async def lose(swaps: Sequence[Swap]) -> None:
            lost.append(swaps)
            await outside_writer(world)(swaps)

        gate, first, second = await pair(world, lose)
        loads: list[Identifier] = []
        load = world.heads.load

        async def counted(identifier: Identifier, *, verify: bool = False) -> HeadState:
            loads.append(identifier)
            return await load(identifier, verify=verify)

        world.heads.load = counted  # type: ignore[method-assign]
        gate.go_on.set()
        assert await ends([*first, *second]) == ["rebased"] * 4
        assert (len(lost), loads) == (1, [TABLE])
        assert await world.live() == ["ann", "bob", "cid", "dan", "outside"]
        await world.engine.drain()
        await assert_no_litter(world)
        head = await world.head()
        assert [s["sequence-number"] for s in head.metadata["snapshots"]] == [1, 2, 3, 4, 5]

    run(story())


def test_s5_a_late_refusal_in_the_first_of_two_groups_sends_both_back_without_a_reload() -> None:
    async def story() -> None:
        world = World(limits=SMALL)
        await world.create(3)
        asked, go_on = asyncio.Event(), asyncio.Event()
        still_admits = world.gate.still_admits

        async def late(members: Sequence[Any]) -> Any:
            asked.set()
            await go_on.wait()
            return await still_admits(members)

        world.gate.still_admits = late  # type: ignore[method-assign]
        requests = await blind(world, "ann", "bob", "cid", "dan")
        first = await send(world, *requests[:2])
        await asked.wait()
        second = await send(world, *requests[2:])
        await until(lambda: len(versions(world)) == 3)
        world.gate.revoked["ann"] = Forbidden("ann was revoked", rule="contract.revoked")
        reads: list[str] = []
        inner = world.upstream.inner

        def counted(ask: Callable[[Identifier], Awaitable[str]]) -> Callable[[Identifier], Awaitable[str]]:
            def count(identifier: Identifier) -> Awaitable[str]:
                reads.append(str(identifier))
                return ask(identifier)

            return count

        inner.location = counted(inner.location)  # type: ignore[method-assign]
        inner.settled_location = counted(inner.settled_location)  # type: ignore[method-assign]
        go_on.set()
        assert await ends([*first, *second]) == ["403 contract.revoked", "direct", "rebased", "rebased"]
        assert reads == [str(TABLE)]  # only to look whether who was refused is in the table after all
        assert await world.live() == ["bob", "cid", "dan"]
        head = await world.head()
        assert [s["first-row-id"] for s in head.metadata["snapshots"]] == [0, 1, 2]
        await world.engine.drain()
        await assert_no_litter(world)

    run(story())


def test_a3_while_the_first_outcome_is_unknown_the_second_group_is_not_swapped() -> None:
    async def story() -> None:
        world = World(limits=SMALL)
        swapped: list[str] = []

        async def unknown(swaps: Sequence[Swap]) -> None:
            swapped.append(swaps[0].new)
            await world.upstream.landed_but_unknown(swaps)

        async def noted(swaps: Sequence[Swap]) -> None:
            swapped.append(swaps[0].new)
            await world.upstream.inner.swap(swaps)

        gate, first, second = await pair(world, unknown)
        world.upstream.script = [noted, noted]
        gate.go_on.set()
        assert await ends([*first, *second]) == ["direct", *["rebased"] * 3]
        assert swapped == [versions(world)[1], versions(world)[1], versions(world)[2]]
        assert await world.live() == ["ann", "bob", "cid", "dan"]

    run(story())


def test_a3_where_nobody_can_tell_of_the_first_group_the_second_is_planned_again() -> None:
    async def story() -> None:
        world = World(limits=SMALL)
        never: list[Swap] = []

        async def lost(swaps: Sequence[Swap]) -> None:
            never.extend(swaps)
            await world.upstream.lost_on_the_way(swaps)

        gate, first, second = await pair(world, lost)
        # The gated swap is repeated until its time is over (the clock goes on by itself), and was the last to fail.
        steps_max = 60
        world.upstream.script = [lost] * steps_max
        original = world.clock.sleep

        async def stops_at_the_end(seconds: float) -> None:
            await original(seconds)
            if world.clock.time_ms - 1_700_000_000_000 >= 1_000:
                world.upstream.script = []

        world.clock.sleep = stops_at_the_end  # type: ignore[method-assign]
        gate.go_on.set()
        results = await ends([*first, *second])
        # The last repetition, after its time, may land or not; either is told as it is.
        assert len({swap.new for swap in never}) == 1
        assert results in (
            ["504 commit.unknown"] * 2 + ["direct", "rebased"],
            ["direct", "rebased", "rebased", "rebased"],
        )
        assert set(await world.live()) >= {"cid", "dan"}

    run(story())


def test_a_refusal_on_a_version_that_has_not_landed_is_told_only_after_it_has() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        first = await send(world, await ann.append("a", summary=BLIND))
        await gate.began.wait()
        second = await send(world, await bob.append("b"))  # nobody says that it is blind
        await settled(world)
        assert not second[0].done()
        gate.go_on.set()
        assert await ends([*first, *second]) == ["direct", "409 rebase.not-blind"]

    run(story())


def test_a_refusal_on_a_version_that_never_lands_is_taken_back() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5))
        await world.create()
        gate = Gated(world, fails)
        world.upstream.script = [gate]
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        first = await send(world, await ann.append("a", summary=BLIND))
        await gate.began.wait()
        second = await send(world, await bob.append("b"))
        await settled(world)
        gate.go_on.set()
        assert await ends([*first, *second]) == ["502 upstream", "direct"]
        assert await world.live() == ["b"]
        await world.engine.drain()
        await assert_no_litter(world)

    run(story())


def test_a_refusal_holds_only_for_the_head_that_stands() -> None:
    """Between two groups nobody reads the catalog's pointer; a commit on an outside writer's version is not stale."""

    async def story() -> None:
        world = World(limits=Limits(deadline_s=5))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        first = await send(world, *await blind(world, "ann"))
        await gate.began.wait()
        bob = world.writer("bob")

        async def outside(swaps: Sequence[Swap]) -> None:
            """Our swap lands; then somebody else's, on which bob writes, before our worker looks again."""
            await world.upstream.inner.swap(swaps)
            await outside_writer(world)([])
            await bob.refresh()
            second.extend(await send(world, await bob.append("b")))

        second: list[asyncio.Task[Committed]] = []
        gate._then = outside
        gate.go_on.set()
        assert await ends(first) == ["direct"]
        assert await ends(second) == ["direct"]
        assert await world.live() == ["ann", "b", "outside"]

    run(story())


def test_a3_a_resend_joins_the_commit_that_is_on_its_way() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        request = (await blind(world, "ann"))[0]
        first = await send(world, request)
        await gate.began.wait()
        again = await send(world, request)
        await settled(world)
        assert not again[0].done()
        gate.go_on.set()
        assert await ends([*first, *again]) == ["direct", "replayed"]
        assert len((await world.head()).metadata["snapshots"]) == 1

    run(story())


def test_a3_a_resend_past_its_deadline_hears_no_409_while_the_other_may_land() -> None:
    """Told 409, its client would delete the manifests that the other commit is about to bring into the table."""

    async def story() -> None:
        world = World(limits=Limits(deadline_s=0.05))
        await world.create()
        gate = Gated(world)
        world.upstream.script = [gate]
        requests = await blind(world, "ann", "bob")
        first = await send(world, requests[0])
        await gate.began.wait()
        again = await send(world, requests[0])
        other = await send(world, requests[1])
        assert await ends(other) == ["409 queue.deadline"]  # past the deadline of both
        assert not again[0].done()
        gate.go_on.set()
        assert await ends([*first, *again]) == ["direct", "replayed"]
        await world.engine.drain()
        assert await world.live() == ["ann"]
        await assert_no_litter(world)

    run(story())


def test_a4_a_commit_is_withdrawn_from_a_group_whose_swap_has_not_begun() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=0.05))
        gate, first, second = await pair(world)
        assert await ends(second) == ["409 queue.deadline"] * 2
        gate.go_on.set()
        assert await ends(first) == ["direct", "rebased"]
        await world.engine.drain()
        assert await world.live() == ["ann", "bob"]
        await assert_no_litter(world)

    run(story())


def test_a_client_that_hangs_up_breaks_no_group() -> None:
    async def story() -> None:
        world = World(limits=SMALL)
        gate, first, second = await pair(world)
        third = await send(world, *await blind(world, "eve", "fay"))
        for task in (first[0], second[0], third[0]):
            task.cancel()
        await settled(world)
        gate.go_on.set()
        assert await ends([first[1], second[1], third[1]]) == ["rebased"] * 3
        # What was on its way has landed; what waited in the queue was withdrawn.
        assert await world.live() == ["ann", "bob", "cid", "dan", "fay"]

    run(story())


def test_what_a_group_has_not_written_yet_is_known_to_the_next() -> None:
    """A tower's own manifest list, read by the plan of the group behind it, is in no storage yet."""

    async def story() -> None:
        world = World(limits=Limits(group_max=1, pipeline_max=3, deadline_s=5))
        await world.create(**SNAPSHOT)
        await (await world.writer().append("old", summary=BLIND)).send()
        ann, bob, cid = [await world.writer(name).refresh() for name in ("ann", "bob", "cid")]
        requests = [
            await ann.append("a", summary=BLIND),
            await bob.append("b", summary=BLIND),
            await cid.snapshot(
                add=("c",), remove=("old",), operation="overwrite", summary={"spark.merge-into.merge-mode": "copy"}
            ),
        ]
        written = asyncio.Event()
        write = world.storage.write

        async def slow(path: str, data: bytes) -> None:
            await written.wait()
            await write(path, data)

        world.storage.write = slow  # type: ignore[method-assign]
        # No cache helps.
        world.manifests.remember = lambda path, listing: None  # type: ignore[method-assign]
        world.manifests.remember_own = lambda path, rows: None  # type: ignore[method-assign]
        tasks = await send(world, *requests)
        await until(lambda: world.engine.queued(TABLE) == 0)
        written.set()
        assert await ends(tasks) == ["direct", "rebased", "rebased"]
        assert await world.live() == ["a", "b", "c"]

    run(story())


def test_manifests_that_must_be_read_to_be_merged_are_asked_for_before_a_group_is_planned_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World()
        await world.create(**{"commit.manifest.min-count-to-merge": "10"})
        for number in range(10):
            await (await (await world.writer().refresh()).append(f"old{number}", summary=BLIND)).send()
        requests = await blind(world, "ann", "bob", "cid", "dan")
        world.restart()
        finished: list[str] = []

        def counted(member: Any, *arguments: Any, **named: Any) -> Any:
            finished.append(member.principal)
            return draft.finish(member, *arguments, **named)

        monkeypatch.setattr(commit_plan, "finish", counted)
        assert await ends(await send(world, *requests)) == ["direct", "rebased", "rebased", "rebased"]
        # The first one goes in as it was written. The second one's list is the tower's own, and small manifests merge.
        assert finished == ["ann", "bob", "ann", "bob", "cid", "dan"]
        head = await world.head()
        rows = await world.rows(head.snapshots[head.metadata["refs"]["main"]["snapshot-id"]])
        assert sorted(row.existing_files or 0 for row in rows) == [0, 0, 0, 0, 10]

    run(story())


# -- a group that fails ----------------------------------------------------------------------------------------------


def test_a_member_that_needs_too_much_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, read_rounds_max=4))
        await world.create()
        await (await world.writer().append("old", summary=BLIND)).send()
        path = (await world.head()).metadata["snapshots"][0]["manifest-list"]

        def greedy(head: Any, group: Sequence[Any], sources: Any, **given: Any) -> Pieces[Plan]:
            if any(member.principal == "bob" for member in group):
                return Plan(head.metadata, needs=Needs(lists=frozenset([path])))
            return (yield from plan(head, group, sources, **given))

        monkeypatch.setattr(steps, "plan", greedy)
        tasks = await send(world, *await blind(world, "ann", "bob", "cid", "dan", "eve"))
        assert await ends(tasks) == ["direct", "409 plan.needs", "rebased", "rebased", "rebased"]
        assert await world.live() == ["ann", "cid", "dan", "eve", "old"]

    run(story())


def test_a_swap_that_is_always_lost_ends_with_409() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, rounds_max=3))
        await world.create()
        world.upstream.script = [outside_writer(world, f"outside{at}") for at in range(3)]
        assert await ends(await send(world, *await blind(world, "ann"))) == ["409 swap.lost"]
        assert await world.live() == ["outside0", "outside1", "outside2"]
        assert world.upstream.swaps == 3

    run(story())


# -- transactions and the pipeline -----------------------------------------------------------------------------------


def test_a_transaction_gets_its_turn_at_a_busy_table_and_the_table_its_own_again() -> None:
    async def story() -> None:
        world = World(limits=Limits(group_max=1, deadline_s=5))
        await world.create()
        await world.create(table=OTHER)
        order: list[int] = []

        async def noted(swaps: Sequence[Swap]) -> None:
            order.append(len(swaps))
            await world.upstream.inner.swap(swaps)

        gate = Gated(world, noted)
        world.upstream.script = [gate, *[noted] * 20]
        busy = await send(world, *await blind(world, *(f"w{i}" for i in range(8))))
        await gate.began.wait()
        both = []
        for name in ("x", "y"):
            writer = world.writer(name)
            ours = [await (await writer.refresh(t)).append(name, summary=BLIND, table=t) for t in (TABLE, OTHER)]
            both.append(asyncio.create_task(world.engine.submit_together([await r.admitted() for r in ours])))
        await settled(world)
        gate.go_on.set()
        await asyncio.gather(*both)
        assert set(await ends(busy)) == {"direct", "rebased"}
        # Two groups were on their way. Then a transaction, a group, and so on, until one side has nothing left.
        assert order == [1, 1, 2, 2, 1, 1, 1, 1, 1, 1] or order[:5] == [1, 1, 2, 1, 2]
        assert len(await world.live()) == 10
        assert await world.live(OTHER) == ["x", "y"]

    run(story())


def test_a_commit_gets_its_turn_between_transactions() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5))
        await world.create()
        await world.create(table=OTHER)
        ended: list[str] = []

        async def transaction(name: str) -> None:
            writer = world.writer(name)
            ours = [await (await writer.refresh(t)).append(name, summary=BLIND, table=t) for t in (TABLE, OTHER)]
            await world.engine.submit_together([await request.admitted() for request in ours])
            ended.append(name)

        async def single() -> None:
            await (await blind(world, "one"))[0].send()
            ended.append("one")

        await asyncio.gather(
            *(transaction(f"t{i}") for i in range(4)), single(), *(transaction(f"u{i}") for i in range(8))
        )
        assert len(ended) == 13
        assert ended.index("one") < 12
        assert len(await world.live()) == 13

    run(story())


# -- fast-path appends and the interval -------------------------------------------------------------------------------


def test_h2_groups_of_nothing_but_appends_keep_an_interval_and_commits_take_them_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, append_interval_s=0.2))
        await world.create(**{"schema.name-mapping.default": NAMES})
        began: list[int] = []
        sizes: list[int] = []

        def noted(head: Any, group: Sequence[Any], sources: Any, **given: Any) -> Pieces[Plan]:
            planned = yield from plan(head, group, sources, **given)
            if not planned.needs:
                began.append(world.clock.time_ms - 1_700_000_000_000)
                sizes.append(len(group))
            return planned

        monkeypatch.setattr(steps, "plan", noted)
        first = asyncio.create_task(world.engine.submit(await fast(world, "a")))
        await first
        members = [await fast(world, name) for name in ("b", "c")]
        waiting = [asyncio.create_task(world.engine.submit(member)) for member in members]
        assert {(await task).outcome for task in waiting} == {"appended"}
        # The first began at once, the next two together, when the interval was over.
        assert (began, sizes) == ([0, 200], [1, 2])

        naps = asyncio.Event()

        async def never(seconds: float) -> None:
            del seconds
            await naps.wait()

        world.clock.sleep = never  # type: ignore[method-assign]
        lingering = asyncio.create_task(world.engine.submit(await fast(world, "d")))
        await settled(world)
        assert not lingering.done()
        # A commit doesn't wait, and takes the append along.
        assert await ends(await send(world, *await blind(world, "ann"))) == ["direct"]
        assert (await lingering).outcome == "appended"
        assert sizes == [1, 2, 2]
        # A tower that shuts down doesn't wait either.
        last = asyncio.create_task(world.engine.submit(await fast(world, "e")))
        await settled(world)
        assert not last.done()
        await world.engine.drain()
        assert (await last).outcome == "appended"
        assert await world.live() == ["a", "ann", "b", "c", "d", "e"]

    run(story())


@pytest.mark.parametrize("schema_first", [True, False])
def test_appends_of_a_group_go_in_before_what_only_changes_the_schema(schema_first: bool) -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, append_interval_s=0))
        await world.create(**{"schema.name-mapping.default": NAMES})
        head = await world.head()
        [schema] = head.metadata["schemas"]
        wider = {**schema, "schema-id": 1, "fields": [*schema["fields"], {"id": 9, "name": "n", "type": "string"}]}
        wider["fields"][-1]["required"] = False
        updates = [
            {"action": "add-schema", "schema": wider, "last-column-id": 9},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        widening = judged(administrator("bob"), TABLE, head.metadata, (), [], updates)
        append = replace(await fast(world, "a"), read_as=read_as(head.metadata))
        sent = [world.engine.submit(widening), world.engine.submit(append)]
        done = await asyncio.gather(*(sent if schema_first else reversed(sent)))
        assert sorted(each.outcome for each in done) == ["appended", "direct"]
        assert len({each.head.location for each in done}) == 1  # one group
        assert (await world.head()).metadata["current-schema-id"] == 1
        assert await world.live() == ["a"]

    run(story())


async def fast(world: World, name: str, key: str | None = None, application: tuple[str, int] | None = None) -> Any:
    from icetower.admission.admitted import AdmittedAppend
    from icetower.admission.identity import Identity
    from icetower.iceberg.change import Touched

    writer = await world.writer(name).refresh()
    assert writer.base is not None
    uuid = writer.base.metadata["table-uuid"]
    file = Touched(writer.data_file(name), 0, None)
    return AdmittedAppend(Identity.of_append(name, "main", key, application), TABLE, (file,), "c", 1, name, uuid)


def test_an_append_that_no_manifest_can_hold_is_refused_alone() -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, append_interval_s=0))
        await world.create(**{"schema.name-mapping.default": NAMES})
        members = [await fast(world, name) for name in ("a", "b", "c", "d", "e")]
        [touched] = members[2].files
        bounds = [{"key": 1, "value": b"x" * avro_files.RECORD_MAX_BYTES}]
        long = replace(touched.file, record={**touched.file.record, "lower_bounds": bounds})
        members[2] = replace(members[2], files=(replace(touched, file=long),))
        sent = [asyncio.create_task(world.engine.submit(member)) for member in members]
        assert await ends(sent) == ["appended", "appended", "400 manifest.writable", "appended", "appended"]
        assert await world.live() == ["a", "b", "d", "e"]

    run(story())


@pytest.mark.parametrize("rebased", [False, True])
def test_a_list_that_was_read_is_packed_in_pieces_between_which_others_go_on(
    monkeypatch: pytest.MonkeyPatch, rebased: bool
) -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, append_interval_s=0))
        await world.create(**{"schema.name-mapping.default": NAMES})
        requests = await blind(world, "ann")
        for number in range(12):
            await (await (await world.writer().refresh()).append(f"old{number}", summary=BLIND)).send()
        world.restart()
        work: list[int] = []

        def noted(*arguments: Any, **given: Any) -> Pieces[Plan]:
            pieces = plan(*arguments, **given)
            while True:
                try:
                    work.append(next(pieces))
                except StopIteration as end:
                    return end.value
                yield 0

        monkeypatch.setattr(steps, "plan", noted)
        monkeypatch.setattr(listing.Listing, "packing", lambda self, version: iter([1_000_000]))
        if rebased:
            assert await ends(await send(world, *requests)) == ["rebased"]
        else:
            assert (await world.engine.submit(await fast(world, "a"))).outcome == "appended"
        assert 1_000_000 in work
        assert len(await world.live()) == 13

    run(story())


# -- what is known of the table --------------------------------------------------------------------------------------


def head(
    number: int, *, declared: bool = True, snapshots: Sequence[int] = (), log: Sequence[int] = (), **properties: str
) -> HeadState:
    """A version with snapshots and logged versions of these times."""
    metadata: dict[str, Any] = {
        "last-sequence-number": number,
        "properties": {**(SNAPSHOT if declared else {}), **properties},
        "snapshots": [{"snapshot-id": i, "timestamp-ms": at} for i, at in enumerate(snapshots)],
        "metadata-log": [{"timestamp-ms": at, "metadata-file": "x"} for at in log],
    }
    return HeadState("l", metadata)


FOUND = [
    ("it does not ask", head(5, declared=False, snapshots=[10], log=[9]), None),
    ("one command is left out", head(5, snapshots=[10], **{"write.merge.isolation-level": "serializable"}), None),
    ("created so, and empty", head(0), 0),
    ("its newest snapshot came with it", head(5, snapshots=[8, 10], log=[8, 9]), 5),
    (
        "its newest snapshot came before: it may have been read under other properties",
        head(5, snapshots=[8], log=[8]),
        6,
    ),
    ("it was empty before", head(0, log=[3]), 1),
]


@pytest.mark.parametrize(("what", "found", "since"), FOUND, ids=[what for what, _, _ in FOUND])
def test_r2_since_when_a_table_that_was_found_has_asked_for_snapshot_isolation(
    what: str, found: HeadState, since: int | None
) -> None:
    assert Version.found(found).isolation_since == since, what


def test_r2_a_version_that_was_found_goes_on_where_the_one_before_it_is_known() -> None:
    found = head(5, snapshots=[8], log=[7, 8])
    assert Version.found(found, ("x", 2)).isolation_since == 2
    assert Version.found(found, ("x", None)).isolation_since == 6, "the one before it did not ask"
    assert Version.found(found, ("y", 2)).isolation_since == 6, "there was another one between the two"
    assert Version.found(head(5, declared=False, log=[7]), ("x", 2)).isolation_since is None


def test_r2_since_when_a_table_has_asked_for_snapshot_isolation_as_it_goes_on() -> None:
    version = Version.found(head(5, snapshots=[10], log=[9]))
    version = version.followed_by(head(6))
    assert version.isolation_since == 5
    version = version.followed_by(head(7, declared=False))
    assert version.isolation_since is None
    # Snapshot 8 came in the version that asks for it; 7 was read in one that doesn't.
    assert version.followed_by(head(8)).isolation_since == 8
    assert version.followed_by(head(7)).isolation_since == 8


def test_r2_an_outside_writers_next_version_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World()
        await world.create(**SNAPSHOT)
        since: list[int | None] = []

        def noted(head: Any, group: Sequence[Any], sources: Any, **given: Any) -> Pieces[Plan]:
            since.append(given["isolation_since"])
            return plan(head, group, sources, **given)

        for name in ("ann", "bob"):
            await (await blind(world, name))[0].send()
        await world.engine.drain()
        world.engine._draining = False
        monkeypatch.setattr(steps, "plan", noted)
        world.clock.time_ms += 1
        world.upstream.script = [outside_writer(world)]
        await (await blind(world, "cid"))[0].send()
        assert [each for each, _ in groupby(since)] == [0, 3, 0], "ours, the other tower's, and ours again"

    run(story())


def test_h1_what_commits_on_their_way_were_written_on_must_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(limits=Limits(group_max=1, deadline_s=5))
        await world.create()
        bases: list[int] = []
        requests: list[Request] = []
        for name in ("ann", "bob", "cid"):
            requests += await blind(world, name)
            bases.append((await (await blind(world, f"{name}-before"))[0].send()).snapshots[0])
        requests += await blind(world, "dan")
        kept: list[frozenset[int]] = []

        def noted(head: Any, group: Sequence[Any], sources: Any, **given: Any) -> Pieces[Plan]:
            kept.append(given["keep"])
            return plan(head, group, sources, **given)

        monkeypatch.setattr(steps, "plan", noted)
        assert set(await ends(await send(world, *requests))) == {"rebased"}
        assert kept[0] == set(bases)  # ann was written on the empty table
        assert bases[2] in kept[-1]

    run(story())


def test_k1_keys_are_kept_before_their_snapshots_go() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        for name in ("a", "b", "c"):
            await (await (await world.writer(name).refresh()).append(name, key=name, summary=BLIND)).send()
        ids = [s["snapshot-id"] for s in (await world.head()).metadata["snapshots"]]
        expiry = await (await world.writer("ann").refresh()).append()
        expiry.updates, expiry.requirements = [{"action": "remove-snapshots", "snapshot-ids": ids[:2]}], []
        world.gate.cannot_keep = UpstreamFailed("the ledger is away", rule="ledger")
        assert await ends(await send(world, expiry, *await blind(world, "bob"))) == ["502 ledger", "502 ledger"]
        assert [s["snapshot-id"] for s in (await world.head()).metadata["snapshots"]] == ids
        world.gate.cannot_keep = None
        assert await ends(await send(world, expiry)) == ["direct"]
        assert world.gate.kept == [frozenset(ids[:2])]
        await world.engine.drain()
        await assert_no_litter(world)

    run(story())


def test_h1_where_keys_cannot_be_kept_nothing_expires_and_nobody_fails() -> None:
    async def story() -> None:
        world = World()
        await world.create(**{"icetower.retention.snapshots-max": "1"})
        await (await blind(world, "ann"))[0].send()
        world.clock.time_ms += 3_600_000
        world.gate.cannot_keep = UpstreamFailed("the ledger is away", rule="ledger")
        await (await blind(world, "bob"))[0].send()
        world.clock.time_ms += 3_600_000
        await (await blind(world, "cid"))[0].send()
        assert len((await world.head()).metadata["snapshots"]) == 3
        world.gate.cannot_keep = None
        world.clock.time_ms += 3_600_000
        await (await blind(world, "dan"))[0].send()
        left = (await world.head()).metadata["snapshots"]
        assert len(left) < 4
        assert world.gate.kept
        assert await world.live() == ["ann", "bob", "cid", "dan"]

    run(story())

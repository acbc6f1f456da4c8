"""Publications in the plan: set forward, rebased one by one or as one, refused per snapshot, and done once."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from icetower.commit import draft
from icetower.errors import CommitConflict, IcetowerError, PublishConflict
from icetower.files.parsing import ON_LOOP_ENTRIES
from icetower.iceberg.change import Touched
from icetower.iceberg.entries import Live
from icetower.iceberg.manifest_writing import write_manifest
from icetower.iceberg.records import DATA
from icetower.protocol.marks import AUTHOR, BASE, KEY, PRINCIPAL, PUBLISHED_BRANCH, PUBLISHED_OF, REF, SOURCE_SNAPSHOT
from icetower.protocol.snapshots import Snapshot
from icetower.publish.comparison import branches_of
from icetower.publish.preparing import Reads
from icetower.service.publishing import require_own_stage
from icetower.table.head import HeadState
from icetower_client_model.operations import Kind, Operation
from tests.commit.engine_world import TABLE, World, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, create, data, equalities, positions, vector
from tests.publish.publish_world import BranchClient, branch_off, live_files, names, publication, publish, refs

BLIND = {"icetower.blind": "true"}


async def world_with(version: int = 2, **properties: str) -> tuple[World, BranchClient, BranchClient]:
    """A table with two files and a branch; a client of main, and one of the branch."""
    world = World()
    await create(world, version, **{**SNAPSHOT, **properties})
    main = BranchClient(world, "bob")
    await main.refresh()
    assert await outcomes(await main.append(data("a1"), data("b1", "b"), **BLIND)) == ["direct"]
    await branch_off(world)
    agent = BranchClient(world, "ann", branch="agent")
    await main.refresh()
    await agent.refresh()
    return world, main, agent


async def add(client: BranchClient, *files: Any, **summary: str) -> int:
    """Append on the newest head; the snapshot."""
    await client.refresh()
    request = await client.append(*files, **{**BLIND, **summary})
    assert await outcomes(request) == ["direct"]
    return request.snapshot_id


async def change(client: BranchClient, **what: Any) -> int:
    """A MERGE on the newest head; the snapshot."""
    await client.refresh()
    request = await client.merge(**what)
    assert await outcomes(request) == ["direct"]
    return request.snapshot_id


def on_main(head: HeadState) -> list[Snapshot]:
    """The line of main, oldest first."""
    found: list[Snapshot] = []
    at = head.ref("main")
    while at is not None:
        found.append(Snapshot(head.snapshots[at]))
        at = found[-1].parent_id
    return found[::-1]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("squash", [False, True])
def test_where_nothing_came_the_snapshots_keep_their_ids(version: int, squash: bool) -> None:
    async def story() -> None:
        world, _, agent = await world_with(version)
        first, second = await add(agent, data("c1")), await add(agent, data("c2"))
        before = await world.head()
        done = await publish(world, squash=squash)
        assert (done.outcome, done.snapshots) == ("direct", (first, second))
        head = await world.head()
        assert head.ref("main") == head.ref("agent") == second
        assert head.snapshots == before.snapshots
        assert await names(world) == ["a1", "b1", "c1", "c2"]

    run(story())


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("squash", [False, True])
def test_what_came_meanwhile_stays_and_the_snapshots_come_after_it(version: int, squash: bool) -> None:
    async def story() -> None:
        world, main, agent = await world_with(version)
        first, second = await add(agent, data("c1")), await add(agent, data("c2"), note="x")
        other = await add(main, data("m1"))
        done = await publish(world, squash=squash, key="k", name="carl")
        assert done.outcome == "rebased"
        head = await world.head()
        line = on_main(head)
        assert [snapshot.id for snapshot in line[-len(done.snapshots) - 1 :]] == [other, *done.snapshots]
        assert not {first, second} & {snapshot.id for snapshot in line}
        assert await names(world) == ["a1", "b1", "c1", "c2", "m1"]
        assert await names(world, "agent") == ["a1", "b1", "c1", "c2"]
        copies = line[-len(done.snapshots) :]
        sources = [second] if squash else [first, second]
        for copy, source in zip(copies, sources, strict=True):
            summary = copy.summary
            assert summary[SOURCE_SNAPSHOT] == str(source)
            of = f"{first},{second}" if squash else str(source)
            assert (summary[PUBLISHED_BRANCH], summary[PUBLISHED_OF]) == ("agent", of)
            assert (summary[PRINCIPAL], summary[AUTHOR], summary[KEY], summary[REF]) == ("carl", "ann", "k", "main")
            assert summary[BASE] == str(line[0].id)
            others = [each["manifest-list"] for i, each in head.snapshots.items() if i != copy.id]
            assert copy["manifest-list"] not in others
            if version > 1:
                assert copy.sequence_number > line[-len(done.snapshots) - 1].sequence_number
        assert copies[-1].summary["total-records"] == "50"
        assert ("note" in copies[-1].summary) == (not squash)

    run(story())


def test_r13_row_ids_and_sequence_numbers_are_those_of_new_snapshots() -> None:
    async def story() -> None:
        world, main, agent = await world_with(3)
        await add(agent, data("c1"))
        await add(main, data("m1"))
        await add(agent, data("c2"))
        before = await world.head()
        done = await publish(world)
        head = await world.head()
        assert [head.snapshots[i]["first-row-id"] for i in done.snapshots] == [
            before.metadata["next-row-id"],
            before.metadata["next-row-id"] + 10,
        ]
        assert head.metadata["next-row-id"] == before.metadata["next-row-id"] + 20
        spans = sorted(
            (live.entry.file.first_row_id or 0, live.entry.file.record_count) for live in await live_files(world)
        )
        assert all(start + count <= after for (start, count), (after, _) in itertools.pairwise(spans))
        numbers = {live.path.rpartition("/")[2]: live.sequence_number for live in await live_files(world)}
        assert numbers["c1"] == head.snapshots[done.snapshots[0]]["sequence-number"]
        assert numbers["c2"] == head.snapshots[done.snapshots[1]]["sequence-number"]
        assert sorted(numbers, key=lambda name: numbers[name] or 0)[-3:] == ["m1", "c1", "c2"]

    run(story())


@pytest.mark.parametrize("squash", [False, True])
def test_files_that_the_branch_has_made_and_replaced(squash: bool) -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        await change(agent, add=[data("c2")], remove=["c1"])
        await change(agent, add=[data("c3")], remove=["c2", "a1"])
        await add(main, data("m1"))
        done = await publish(world, squash=squash)
        assert len(done.snapshots) == (1 if squash else 3)
        assert await names(world) == ["b1", "c3", "m1"]
        head = await world.head()
        assert [head.snapshots[i]["summary"]["operation"] for i in done.snapshots][-1] == "overwrite"
        assert head.snapshots[done.snapshots[-1]]["summary"]["total-records"] == "30"

    run(story())


def test_deletes_of_the_branch_apply_to_what_they_applied_to() -> None:
    async def story() -> None:
        world, main, agent = await world_with(3)
        await add(agent, data("c1"))
        await change(agent, deletes=[vector("v1", data("c1")), vector("v2", data("a1"), offset=50)])
        await add(main, data("m1"))
        await publish(world)
        found = {live.path.rpartition("/")[2]: live for live in await live_files(world)}
        assert sorted(found) == ["a1", "b1", "c1", "m1", "v1", "v2"]
        assert (found["v1"].sequence_number or 0) > (found["c1"].sequence_number or 0)

    run(story())


def test_r13_each_snapshot_is_held_against_what_came() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        fine = await add(agent, data("c1"))
        first = await change(agent, add=[data("c2")], remove=["a1"])
        second = await change(agent, add=[data("c3")], remove=["b1"])
        theirs = await change(main, add=[data("m1")], remove=["a1"])
        theirs_too = await change(main, add=[data("m2", "b")], remove=["b1"])
        with pytest.raises(PublishConflict) as refused:
            await publish(world)
        assert [(each.source, each.rule, each.snapshot) for each in refused.value.conflicts] == [
            (first, "conflict.C6", theirs),
            (second, "conflict.C6", theirs_too),
        ]
        assert [path.rpartition("/")[2] for each in refused.value.conflicts for path in each.files] == ["a1", "b1"]
        assert (refused.value.rule, refused.value.next_step) == ("conflict.C6", "refresh")
        assert fine not in {each.source for each in refused.value.conflicts}
        assert (await world.head()).ref("main") == theirs_too

    run(story())


def test_what_a_branch_may_have_read_must_be_said() -> None:
    async def story() -> None:
        world = World()
        await create(world, 2)  # no isolation level: serializable
        main = BranchClient(world, "bob")
        await add(main, data("a1"), data("b1", "b"))
        await branch_off(world)
        agent = BranchClient(world, "ann", branch="agent")
        await change(agent, add=[data("c1")], remove=["a1"])
        await add(main, data("m1", "b"))
        with pytest.raises(CommitConflict) as refused:
            await publish(world)
        assert refused.value.rule == "rebase.reads"
        everything = Reads(filter="true", isolation="serializable")
        with pytest.raises(PublishConflict) as conflict:
            await publish(world, reads=everything)
        assert conflict.value.rule == "conflict.C1"
        await publish(world, reads=Reads(isolation="snapshot"))
        assert await names(world) == ["b1", "c1", "m1"]

    run(story())


def test_an_append_that_nobody_calls_blind() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2, **dict.fromkeys(SNAPSHOT, "serializable"))
        await agent.refresh()
        assert await outcomes(await agent.append(data("c1"))) == ["direct"]
        await add(main, data("m1"))
        with pytest.raises(CommitConflict) as refused:
            await publish(world)
        assert refused.value.rule == "rebase.not-blind"
        await publish(world, reads=Reads(blind=True))
        assert await names(world) == ["a1", "b1", "c1", "m1"]

    run(story())


def test_filters_of_several_snapshots_count_together() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)

        def declared(category: str) -> dict[str, Any]:
            text = f'{{"type": "eq", "term": "category", "value": "{category}"}}'
            return {"icetower.filter": text, "icetower.isolation-level": "serializable"}

        await agent.refresh()
        assert await outcomes(await agent.merge(add=[data("c1")], remove=["a1"], **declared("a"))) == ["direct"]
        await agent.refresh()
        assert await outcomes(await agent.merge(add=[data("c2", "b")], remove=["b1"], **declared("b"))) == ["direct"]
        await add(main, data("m1", "c"))
        member, _ = await publication(world)
        assert member.read_scope is not None
        await publish(world)
        assert await names(world) == ["c1", "c2", "m1"]

    run(story())


def test_it_goes_on_after_it_was_published() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        await add(main, data("m1"))
        await publish(world, key="first")
        await change(agent, add=[data("c2")], remove=["c1"])
        await add(main, data("m2"))
        done = await publish(world, key="second")
        assert len(done.snapshots) == 1
        assert await names(world) == ["a1", "b1", "c2", "m1", "m2"]
        assert not branches_of(await world.head(), TABLE, "agent", "main").lacking

    run(story())


@pytest.mark.parametrize("squash", [False, True])
def test_r13_what_came_before_an_earlier_publication_still_counts(squash: bool) -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        theirs = await change(main, add=[data("m1")], remove=["a1"])
        await publish(world, squash=squash)
        own = await change(agent, add=[data("c2")], remove=["a1"])
        with pytest.raises(PublishConflict) as refused:
            await publish(world, squash=squash)
        assert [(each.source, each.snapshot) for each in refused.value.conflicts] == [(own, theirs)]

    run(story())


def test_what_a_client_has_picked_is_left_out() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        first = await add(agent, data("c1"))
        await add(agent, data("c2"))
        await main.refresh()
        request = await main.append(data("c1"), **{**BLIND, SOURCE_SNAPSHOT: str(first)})
        assert await outcomes(request) == ["direct"]
        done = await publish(world)
        assert len(done.snapshots) == 1
        assert await names(world) == ["a1", "b1", "c1", "c2"]

    run(story())


@pytest.mark.parametrize("forward", [False, True])
def test_the_same_key_again_is_a_replay_also_after_a_crash(forward: bool) -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        if not forward:
            await add(main, data("m1"))
        member, _ = await publication(world, key="k")
        done = await world.engine.submit(member)
        again = await world.engine.submit(member)
        assert (again.outcome, again.snapshots[-1]) == ("replayed", done.snapshots[-1])
        world.restart()
        again = await world.engine.submit(member)
        assert (again.outcome, again.snapshots[-1]) == ("replayed", done.snapshots[-1])
        found = (await world.head()).keys.find("ann", "main", "k")
        assert found is not None
        assert found[-1] == done.snapshots[-1]

    run(story())


def test_a_branch_that_is_written_to_meanwhile_is_not_published_as_it_was() -> None:
    async def story() -> None:
        world, _, agent = await world_with(2)
        await add(agent, data("c1"))
        member, _ = await publication(world)
        await add(agent, data("c2"))
        with pytest.raises(CommitConflict) as refused:
            await world.engine.submit(member)
        assert refused.value.rule == "requirement.assert-ref-snapshot-id"

    run(story())


def test_what_came_since_it_was_judged_is_seen_in_the_plan() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await change(agent, add=[data("c1")], remove=["a1"])
        member, _ = await publication(world)
        await add(main, data("m1"))
        assert (await world.engine.submit(member)).outcome == "rebased"
        assert await names(world) == ["b1", "c1", "m1"]
        await refs(world, {"other": (await world.head()).ref("main")})
        other = BranchClient(world, "ann", branch="other")
        await add(other, data("o1"))
        member, _ = await publication(world, "other", forward_only=True)
        await add(main, data("m2"))
        with pytest.raises(CommitConflict) as refused:
            await world.engine.submit(member)
        assert (refused.value.rule, refused.value.next_step) == ("publish.moved", "retry")

    run(story())


def test_staged_copies_go_on_a_branch_of_their_own_and_are_set_forward_to() -> None:
    async def story() -> None:
        world, main, agent = await world_with(3)
        await add(agent, data("c1"))
        other = await add(main, data("m1"))
        staged = await publish(world, stage="agent.publish")
        head = await world.head()
        assert head.ref("main") == other
        assert head.ref("agent.publish") == staged.snapshots[-1]
        assert await names(world, "agent.publish") == ["a1", "b1", "c1", "m1"]
        done = await publish(world, "agent.publish", key="k", forward_only=True)
        assert (done.outcome, done.snapshots) == ("direct", staged.snapshots)
        assert not branches_of(await world.head(), TABLE, "agent", "main").lacking

    run(story())


def test_a_stage_is_the_towers_own() -> None:
    async def story() -> None:
        world, main, agent = await world_with()
        old = (await world.head()).ref("main")
        await add(agent, data("c1"))
        other = await add(main, data("m1"))

        async def require(**found: int | str | None) -> None:
            head = await world.head()
            if found:
                named = {**head.metadata["refs"], "agent.publish": {"type": "branch", **found}}
                head = HeadState(head.location, {**head.metadata, "refs": named})
            require_own_stage(head, "agent.publish", "agent", branches_of(head, TABLE, "agent", "main"))

        async def refused(**found: int | str | None) -> None:
            with pytest.raises(CommitConflict) as stage:
                await require(**found)
            assert stage.value.rule == "publish.stage"

        await require()  # there is none
        for at in (old, other):  # a branch without commits of its own
            await refused(**{"snapshot-id": at})
        await refused(**{"snapshot-id": (await world.head()).ref("agent")})
        staged = (await publish(world, stage="agent.publish")).snapshots[-1]
        await require()
        await refused(**{"snapshot-id": staged, "type": "tag"})
        await publish(world, "agent.publish", key="k", forward_only=True)
        await add(main, data("m2"))
        await add(agent, data("c2"))
        await require()  # it stands where it was published, behind main
        await add(BranchClient(world, "bob", branch="agent.publish"), data("x1"))
        await refused()

    run(story())


def test_what_came_under_the_ids_that_were_judged_is_not_published() -> None:
    async def story() -> None:
        world, _, agent = await world_with()
        await add(agent, data("c1"))
        member, _ = await publication(world)
        (change,) = member.changes
        for name, value in (("manifest-list", "file:///w/other.avro"), ("sequence-number", 1), ("timestamp-ms", 7)):
            judged = replace(change, snapshot=Snapshot({**change.snapshot, name: value}))  # since removed
            with pytest.raises(CommitConflict) as refused:
                await world.engine.submit(replace(member, changes=(judged,)))
            assert (refused.value.rule, refused.value.next_step) == ("publish.moved", "retry")
        assert await names(world) == ["a1", "b1"]
        assert (await world.engine.submit(member)).outcome == "direct"

    run(story())


def test_equality_deletes_and_what_came_before_them_are_no_one_snapshot() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        await agent.refresh()
        request = await agent.prepare(Operation(Kind.ROW_DELTA, (), (equalities("e1", "a"),)))
        assert await outcomes(request) == ["direct"]
        await add(main, data("m1", "b"))
        with pytest.raises(IcetowerError) as refused:
            await publish(world, squash=True)
        assert refused.value.rule == "publish.squash"
        done = await publish(world)
        found = {live.path.rpartition("/")[2]: live.sequence_number or 0 for live in await live_files(world)}
        assert len(done.snapshots) == 2
        assert found["m1"] < found["c1"] < found["e1"]

    run(story())


def test_r13_a_compaction_on_the_branch_keeps_its_place_among_deletes() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        await add(agent, data("c2"))
        await agent.refresh()
        compaction = await agent.compact(data("k1", rows=20), "c1", "c2")
        assert await outcomes(compaction) == ["direct"]
        await agent.refresh()
        deleting = await agent.prepare(Operation(Kind.ROW_DELTA, (), (equalities("e1", "a"),)))
        assert await outcomes(deleting) == ["direct"]
        await add(main, data("m1", "b"))
        await publish(world)
        head = await world.head()
        copies = on_main(head)[-4:]
        found = {live.path.rpartition("/")[2]: live.sequence_number or 0 for live in await live_files(world)}
        assert sorted(found) == ["a1", "b1", "e1", "k1", "m1"]
        assert found["k1"] == copies[1].sequence_number  # as of c2, which it has in it
        assert found["m1"] < found["k1"] < found["e1"]

    run(story())


def test_a_rewrite_of_manifests_on_the_branch_brings_nothing() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        writer = world.writer()

        async def write(*names: str, ref: str = "agent", **how: Any) -> None:
            await writer.refresh()
            request = await writer.snapshot(add=names, ref=ref, summary=BLIND if names else None, **how)
            assert await outcomes(request) == ["direct"]

        await write("a1", ref="main")
        await branch_off(world)
        await write("c1")
        await write(merge=True, operation="replace")
        await write("m1", ref="main")
        done = await publish(world)
        assert len(done.snapshots) == 1
        assert await names(world) == ["a1", "c1", "m1"]
        assert not branches_of(await world.head(), TABLE, "agent", "main").lacking
        await write(merge=True, operation="replace")
        done = await publish(world)
        assert (done.outcome, done.snapshots) == ("rebased", ())

    run(story())


def test_position_deletes_of_a_partition_and_what_came_to_it() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        target = next(live for live in await live_files(world) if live.path.endswith("a1"))
        await change(agent, deletes=[positions("p1", "a", target=_touched(target))])
        await change(main, deletes=[positions("p2", "a", target=_touched(target))])
        with pytest.raises(PublishConflict) as refused:
            await publish(world)
        assert refused.value.conflicts[0].rule == "conflict.C3a"

    run(story())


def test_groups_of_others_are_committed_beside_it() -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        await add(agent, data("c1"))
        await main.refresh()
        append = await (await main.append(data("m1"), **BLIND)).admitted()
        member, _ = await publication(world)
        first, second = await asyncio.gather(world.engine.submit(append), world.engine.submit(member))
        assert (first.outcome, second.outcome) == ("direct", "rebased")
        assert first.head.location == second.head.location, "one swap"
        assert await names(world) == ["a1", "b1", "c1", "m1"]

    run(story())


def test_a_long_publication_lets_others_go_on_between_its_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world, main, agent = await world_with(2)
        for number in range(8):
            await add(agent, *(data(f"c{number}-{partition}", f"p{partition}") for partition in range(60)))
        await add(main, data("m1"))
        member, _ = await publication(world)
        turns, written = 0, list[int]()

        async def turning() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def counted(entries: Any, **shape: Any) -> bytes:
            written.extend([turns] * len(entries))
            return write_manifest(entries, **shape)

        monkeypatch.setattr(draft, "write_manifest", counted)
        others = asyncio.create_task(turning())
        done = await world.engine.submit(member)
        others.cancel()
        assert (done.outcome, len(done.snapshots), len(written)) == ("rebased", 8, 480)
        in_one_turn = max(Counter(written).values())
        assert in_one_turn <= ON_LOOP_ENTRIES + 60, "hundreds of entries at most are written in one turn of the loop"
        assert await names(world) == await names(world, "agent") + ["m1"]

    run(story())


def _touched(live: Live) -> Touched:
    assert live.entry.file.content == DATA
    return Touched(live.entry.file, live.row.spec_id, live.sequence_number)

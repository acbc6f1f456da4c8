"""What is published twice under another shape is there once: in one snapshot with others, picked, or on two ways."""

from __future__ import annotations

import pytest

from icetower.errors import CommitConflict, KeyMisused
from icetower.protocol.marks import SOURCE_SNAPSHOT
from icetower.publish.comparison import branches_of
from icetower.publish.preparing import Reads
from tests.commit.engine_world import TABLE, Request, World, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, create, data
from tests.publish.publish_world import BranchClient, branch_off, names, publication, publish, refs

BLIND = {"icetower.blind": "true"}


async def world_with(*branches: str) -> World:
    """A table with one file, and branches that begin there."""
    world = World()
    await create(world, 2, **SNAPSHOT)
    await add(world, "main", "m1")
    for branch in branches:
        await branch_off(world, branch)
    return world


async def add(world: World, branch: str, *files: str, **summary: str) -> int:
    """Append files to a branch; the snapshot."""
    client = BranchClient(world, "ann", branch=branch)
    await client.refresh()
    request = await client.append(*map(data, files), **BLIND, **summary)
    assert await outcomes(request) == ["direct"]
    return request.snapshot_id


async def rewrite(world: World, branch: str, file: str, by: str) -> None:
    """Replace a file by one with fewer rows: a delete by copy-on-write."""
    client = BranchClient(world, "ann", branch=branch)
    await client.refresh()
    assert await outcomes(await client.merge(add=[data(by, rows=5)], remove=[file])) == ["direct"]


async def squashed_beside_its_part() -> tuple[World, int, int]:
    """Branch q begins at p, and is on rel as one snapshot; p is on main, and its file was rewritten there.

    Returns: the world, and the snapshots of p and q.
    """
    world = await world_with("rel", "p")
    ours = await add(world, "p", "p1")
    await branch_off(world, "q", "p")
    theirs = await add(world, "q", "q1")
    await add(world, "rel", "r1")
    assert len((await publish(world, "q", "rel", squash=True)).snapshots) == 1
    await add(world, "main", "m2")
    assert (await publish(world, "p")).outcome == "rebased"
    await rewrite(world, "main", "p1", "p1-less")
    return world, ours, theirs


@pytest.mark.parametrize("squash", [False, True])
def test_r13_one_snapshot_for_several_of_which_some_are_there_is_refused(squash: bool) -> None:
    async def story() -> None:
        world, ours, theirs = await squashed_beside_its_part()
        with pytest.raises(CommitConflict) as refused:
            await publish(world, "rel", squash=squash, reads=Reads(blind=True, isolation="snapshot"))
        assert (refused.value.rule, refused.value.next_step) == ("publish.part", "fix_request")
        assert f"has {ours} of these, and lacks {theirs}" in refused.value.message
        assert f"from a branch at snapshot {theirs}" in refused.value.message
        assert await names(world) == ["m1", "m2", "p1-less"]

    run(story())


@pytest.mark.parametrize("squash", [False, True])
def test_r13_its_way_out_brings_the_rest(squash: bool) -> None:
    async def story() -> None:
        world, _, theirs = await squashed_beside_its_part()
        await refs(world, {"way-out": theirs})
        assert len((await publish(world, "way-out")).snapshots) == 1
        assert (await publish(world, "rel", squash=squash)).outcome == "rebased"
        assert await names(world) == ["m1", "m2", "p1-less", "q1", "r1"]
        assert not branches_of(await world.head(), TABLE, "rel", "main").lacking

    run(story())


def test_the_refusal_says_so_where_the_missing_ones_have_expired() -> None:
    async def story() -> None:
        world, _, theirs = await squashed_beside_its_part()
        await refs(world, {"q": None})
        expired = [{"action": "remove-snapshots", "snapshot-ids": [theirs]}]
        await world.engine.submit(await Request(world.writer("root"), TABLE, [], expired, ()).admitted())
        assert theirs not in (await world.head()).snapshots
        with pytest.raises(CommitConflict, match="write their rows anew") as refused:
            await publish(world, "rel")
        assert refused.value.rule == "publish.part"

    run(story())


def test_r13_a_file_that_is_live_is_not_published_where_the_last_snapshot_is_there_already() -> None:
    async def story() -> None:
        world = await world_with("p")
        await add(world, "p", "p1")
        await add(world, "main", "p1")  # by a client that names no source
        last = await add(world, "p", "p2")
        await add(world, "main", "p2", **{SOURCE_SNAPSHOT: str(last)})
        with pytest.raises(KeyMisused) as refused:
            await publish(world, "p", name="bob")
        assert refused.value.rule == "file.exists"
        assert await names(world) == ["m1", "p1", "p2"]

    run(story())


def test_k5_a_file_that_came_long_ago_is_not_published_again_either() -> None:
    async def story() -> None:
        world = await world_with("p")
        await add(world, "p", "p1")
        await add(world, "main", "p1")
        world.clock.time_ms += 2 * world.engine.limits.lately_ms
        await add(world, "p", "p2")
        await add(world, "main", "m2")
        world.restart()
        with pytest.raises(KeyMisused) as refused:
            await publish(world, "p", name="bob")
        assert refused.value.rule == "file.exists"
        assert await names(world) == ["m1", "m2", "p1"]

    run(story())


def test_r13_what_the_last_of_main_has_is_published_back_once() -> None:
    """Main has a branch's snapshots in one with others, and those after it one by one."""

    async def story() -> None:
        world = await world_with("p")
        await add(world, "p", "p1")
        await branch_off(world, "q", "p")
        await add(world, "q", "q1")
        await add(world, "main", "m2")
        await publish(world, "q", squash=True)
        await add(world, "p", "p2")
        await publish(world, "p")
        with pytest.raises(CommitConflict) as refused:
            await publish(world, "main", "p")
        assert refused.value.rule == "publish.part"
        assert await names(world, "p") == ["m1", "p1", "p2"]
        await publish(world, "q", "p")
        await publish(world, "main", "p")
        assert await names(world, "p") == await names(world) == ["m1", "m2", "p1", "p2", "q1"]

    run(story())


@pytest.mark.parametrize("squash", [False, True])
def test_r13_a_client_has_picked_what_the_tower_had_published(squash: bool) -> None:
    async def story() -> None:
        world = await world_with("p", "rel")
        await add(world, "p", "p1")
        await add(world, "p", "p2")
        await add(world, "rel", "r1")
        copies = (await publish(world, "p", "rel", squash=True)).snapshots
        await add(world, "main", "p1", "p2", **{SOURCE_SNAPSHOT: str(copies[0])})
        await rewrite(world, "main", "p1", "p1-less")
        for branch in ("p", "rel"):
            comparison = branches_of(await world.head(), TABLE, branch, "main")
            assert copies[0] not in [snapshot.id for snapshot in comparison.lacking]
        assert comparison.picked.keys() == {copies[0]}
        await publish(world, "rel", squash=squash)
        assert await names(world) == ["m1", "p1-less", "p2", "r1"]
        assert not branches_of(await world.head(), TABLE, "p", "main").lacking

    run(story())


def test_r13_two_branches_with_the_same_are_published_at_one_time() -> None:
    async def story() -> None:
        world = await world_with("p")
        await add(world, "p", "p1")
        await branch_off(world, "q", "p")
        await add(world, "q", "q1")
        await add(world, "main", "m2")
        both = [await publication(world, "q", squash=True), await publication(world, "p", name="bob")]
        await world.engine.submit(both[0][0])
        await rewrite(world, "main", "p1", "p1-less")
        with pytest.raises(CommitConflict) as refused:
            await world.engine.submit(both[1][0])
        assert (refused.value.rule, refused.value.next_step) == ("publish.moved", "retry")
        assert await names(world) == ["m1", "m2", "p1-less", "q1"]
        assert not branches_of(await world.head(), TABLE, "p", "main").lacking

    run(story())

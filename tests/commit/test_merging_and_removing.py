"""Small manifests are merged in the commit that takes files out of some: nobody else's row ids may change (S2)."""

from __future__ import annotations

import asyncio

import pytest

from icetower.commit.head import Heads
from icetower.files.changes import Manifests
from icetower.iceberg.entries import inherit
from icetower.iceberg.manifests import DATA, DELETED
from tests.commit.engine_world import TABLE, World, outcomes
from tests.commit.iceberg_client import SNAPSHOT, Client, create, data

BLIND = {"icetower.blind": "true"}


async def row_ids(world: World) -> dict[str, int | None]:
    """By data file, the id of its first row, as a stranger reads it."""
    head, manifests = await Heads(world.upstream, world.storage).load(TABLE), Manifests(world.storage)
    snapshot = head.snapshots[head.metadata["refs"]["main"]["snapshot-id"]]
    entries = [
        live
        for row in await manifests.list_at(snapshot["manifest-list"])
        for live in inherit(row, await manifests.manifest_at(row.path))
        if live.status != DELETED and live.entry.file.content == DATA
    ]
    return {live.path.rpartition("/")[2]: live.entry.file.first_row_id for live in entries}


@pytest.mark.parametrize("kind", ["merge", "compact"])
@pytest.mark.parametrize(("count", "properties"), [(11, {"commit.manifest.min-count-to-merge": "10"}), (120, {})])
def test_s2_row_ids_stay_where_a_stale_commit_removes_files_and_manifests_are_merged(
    kind: str, count: int, properties: dict[str, str]
) -> None:
    async def story() -> None:
        world = World()
        await create(world, 3, **SNAPSHOT, **properties)
        ann, bob = Client(world, "ann"), Client(world, "bob")
        for number in range(count):
            await ann.refresh()
            file = data(f"f{number:03}", "a" if number else "b")
            assert await outcomes(await ann.append(file, **BLIND)) == ["direct"]
        await ann.refresh()
        await bob.refresh()
        before = await row_ids(world)
        new = data("new", "b", rows=10)
        stale = await (ann.merge(add=[new], remove=["f000"]) if kind == "merge" else ann.compact(new, "f000"))
        assert await outcomes(await bob.append(data("other", "c"), **BLIND)) == ["direct"]
        assert await outcomes(stale) == ["rebased"]
        after = await row_ids(world)
        del before["f000"]
        assert {name: after[name] for name in before} == before
        assert after.keys() == {*before, "new", "other"}
        assert len(set(after.values())) == len(after)
        rows = await world.rows((await world.head()).snapshots[(await world.head()).metadata["current-snapshot-id"]])
        assert len(rows) < count, "nothing was merged, and so nothing was tested"

    asyncio.run(story())

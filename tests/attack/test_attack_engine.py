"""Faults at the worst moment, in memory: what may be in the table is neither cleaned up nor written twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from icetower.errors import CommitStateUnknown, KeyMisused, UpstreamFailed
from icetower.iceberg.manifest_writing import manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import ADDED, Entry
from icetower.upstream.port import Swap
from tests.commit.engine_world import TABLE, World, run, told


@pytest.mark.parametrize("recovers", [True, False])
def test_a3_a_swap_in_doubt_is_not_cleaned_up_while_storage_cannot_be_read(recovers: bool) -> None:
    """It landed, its answer was lost, another writer built on it, and the head cannot be read for a moment."""

    async def story() -> None:
        world = World()
        await world.create()
        request = await (await world.writer().refresh()).append("a.parquet")
        stranger = World(world.clock, world.storage)
        stranger.database, stranger.upstream = world.database, type(world.upstream)(world.upstream.inner)
        stranger.restart()

        async def landed_then_built_upon(swaps: Sequence[Swap]) -> None:
            world.upstream.script.append(world.upstream.plain)
            try:
                await world.upstream.landed_but_unknown(swaps)
            finally:
                await (await (await stranger.writer("eve").refresh()).append("b.parquet")).send()

        world.upstream.script = [landed_then_built_upon]
        read, failures = world.storage.read, 0

        async def failing(path: str, *_: object) -> bytes:
            nonlocal failures
            if world.upstream.swaps > 1 and path.endswith(".json") and (failures < 1 or not recovers):
                failures += 1
                raise UpstreamFailed("the storage is away")
            return await read(path)

        world.storage.read = failing  # type: ignore[method-assign]
        if recovers:
            assert (await request.send()).outcome == "direct"
        else:
            with pytest.raises(CommitStateUnknown):
                await request.send()
        world.storage.read = read  # type: ignore[method-assign]
        assert failures
        assert await world.live() == ["a.parquet", "b.parquet"]

    run(story())


def test_a_swap_that_fails_in_an_unforeseen_way_is_not_cleaned_up() -> None:
    async def story() -> None:
        world = World()
        await world.create()
        request = await (await world.writer().refresh()).append("a.parquet")

        async def landed_and_broke(swaps: Sequence[Swap]) -> None:
            await world.upstream.inner.swap(swaps)
            raise MemoryError

        world.upstream.script = [landed_and_broke]
        with pytest.raises(CommitStateUnknown):
            await request.send()
        assert await world.live() == ["a.parquet"]

    run(story())


def test_s1_one_manifest_is_never_listed_under_two_snapshots() -> None:
    """A writer that tries again under a new snapshot id, with the manifest that has landed, on its old base: its files
    are there. Somebody else may not name it either."""

    async def story() -> None:
        world = World()
        await world.create()
        writer, other = await world.writer().refresh(), await world.writer("bob").refresh()
        assert writer.base is not None
        metadata, blind = writer.base.metadata, {"icetower.blind": "true"}
        entry = Entry(ADDED, None, None, None, writer.data_file("a.parquet"))
        shape = {"spec_fields": (), "spec_id": 0, "schema": metadata["schemas"][0], "content": 0}
        path = f"{metadata['location']}/metadata/shared-m0.avro"
        world.storage.files[path] = _inheriting(write_manifest([entry], format_version=2, snapshot_id=7, **shape))
        told_so: list[str] = []
        for snapshot_id in (71, 72, 73):
            request = await (other if snapshot_id == 73 else writer).snapshot(summary=blind)
            row = manifest_row(
                path, world.storage.files[path], [entry], snapshot_id=snapshot_id, sequence_number=1, **shape
            )
            request.snapshot["snapshot-id"] = request.updates[1]["snapshot-id"] = snapshot_id
            world.storage.files[request.snapshot["manifest-list"]] = write_manifest_list(
                [row], format_version=2, snapshot_id=snapshot_id, parent_id=None, sequence_number=1, first_row_id=None
            )
            try:
                told_so.append(told(await request.send()))
            except KeyMisused as error:
                told_so.append(error.rule)
        assert told_so == ["direct", "replayed", "manifest.reused"]
        assert await world.live() == ["a.parquet"]
        assert len((await world.head()).snapshots) == 1

    run(story())


def _inheriting(data: bytes) -> bytes:
    """The same manifest with entries that inherit their snapshot id, as Java writes them."""
    from icetower.iceberg import avro_files

    file = avro_files.read(data, rename=lambda _, name: name, what="the manifest")
    header = {key: value for key, value in file.header.items() if not key.startswith("avro.")}
    return avro_files.write(file.schema, [{**record, "snapshot_id": None} for record in file.records], header)


def test_a_commit_does_not_land_in_another_table_of_the_same_name() -> None:
    """Dropped and created again between its admission and its turn, by a client that asserts no table uuid."""

    async def story() -> None:
        world = World()
        await world.create()
        request = await (await world.writer().refresh()).append("a.parquet", summary={"icetower.blind": "true"})
        request.requirements = [r for r in request.requirements if r["type"] != "assert-table-uuid"]
        admitted = await request.admitted()
        await world.tables.drop(TABLE, purge=False)
        await world.create()
        try:
            result: object = await world.engine.submit(replace(admitted))
        except Exception as error:  # noqa: BLE001 - told apart below
            result = error
        assert told(result) == "409 requirement.assert-table-uuid"
        assert await world.live() == []

    run(story())

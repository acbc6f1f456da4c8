"""A purge deletes every file of its table, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from icetower.iceberg.manifest_writing import write_manifest
from icetower.iceberg.manifests import DELETED, Entry, read_manifest
from icetower.service import lifecycle
from tests.commit.engine_world import TABLE, World, run


def test_a_purge_deletes_all_files_and_lets_others_go_on_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a file lies under its table is asked on the event loop."""
    monkeypatch.setattr(lifecycle, "PURGED_AT_ONCE", 3)
    world, sizes = World(), list[int]()
    delete_many = world.storage.delete_many

    async def counted(paths: Iterable[str], *, below: str | None = None) -> None:
        wanted = list(paths)
        sizes.append(len(wanted))
        await delete_many(wanted, below=below)

    async def story() -> list[str]:
        await world.create()
        writer = await world.writer("ann").refresh()
        await (await writer.append(*(f"f{number}" for number in range(10)))).send()
        for file in await world.live():
            world.storage.files.setdefault(file if "/" in file else f"file:///w/{file}", b"x")
        monkeypatch.setattr(world.storage, "delete_many", counted)
        await world.tables.drop(TABLE, purge=True)
        return [path for path in world.storage.files if "/t-" in path]

    assert run(story()) == []
    assert max(sizes) <= 3
    assert sum(sizes) >= 10


def test_a_purge_takes_no_file_elsewhere_that_the_table_only_says_it_once_had() -> None:
    """It may be another's. Metadata that was registered may say so of any file."""

    async def story() -> set[str]:
        world = World()
        await world.create()
        writer = await world.writer("ann").refresh()
        await (await writer.append("f")).send()
        head = await world.head()
        (row,) = await world.rows(head.metadata["snapshots"][-1])
        file = writer.data_file("gone")
        own, other = file.path, "file:///w/other/data/a"
        elsewhere = replace(file, path=other, record={**file.record, "file_path": other})
        manifest = read_manifest(world.storage.files[row.path])
        tombstones = [Entry(DELETED, 7, 1, 1, each) for each in (file, elsewhere)]
        world.storage.files |= {own: b"x", other: b"x"}
        world.storage.files[row.path] = write_manifest(
            [*manifest.entries, *tombstones],
            spec_fields=manifest.spec_fields,
            spec_id=0,
            schema=head.metadata["schemas"][0],
            format_version=2,
            content=0,
            snapshot_id=row.added_snapshot_id,
        )
        world.manifests.forget([row.path])
        await world.tables.drop(TABLE, purge=True)
        return {own, other} & {*world.storage.files}

    assert run(story()) == {"file:///w/other/data/a"}

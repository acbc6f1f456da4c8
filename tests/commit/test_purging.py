"""A purge deletes every file of its table, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

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

"""A manifest that is read against those whose place it takes says the same as one that is read alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from icetower.audit.items import Item
from icetower.audit.list_reading import ListReader
from icetower.audit.manifest_reading import Cursor, ManifestReader
from icetower.errors import ValidationFailed
from icetower.iceberg.records import DELETED
from verify.histories.long import LongHistory
from verify.histories.serial import World


def told(item: Item) -> tuple[Any, ...]:
    """All that an item says, but for where it was met."""
    return tuple(getattr(item, name) for name in item.__dataclass_fields__ if name != "manifest")


def walk(files: dict[str, bytes], snapshots: list[dict[str, Any]], *, bytes_max: int = 1 << 28) -> tuple[int, int]:
    """Follow a history; how many entries were decoded, and how many there are."""
    lists, reader, alone = ListReader(), ManifestReader(bytes_max), ManifestReader()
    held: dict[str, Any] = {}
    decoded = there = 0
    for snapshot in snapshots:
        step = lists.step(files[snapshot["manifest-list"]])
        left = [held.pop(row.path) for row in step.left]
        cursors = [Cursor(body) for body in left]
        carried: list[Item] = []
        for row in step.entered:
            read = reader.read(files[row.path], row, cursors)
            expected = alone.read(files[row.path], row).body
            assert [told(item) for item in read.body.items] == [told(item) for item in expected.items]
            assert read.body.totals == expected.totals
            assert read.body.length_bytes == len(files[row.path])
            fresh = {id(item) for item in read.fresh}
            carried += (item for item in read.body.items if id(item) not in fresh)
            decoded, there = decoded + len(read.fresh), there + len(read.body.items)
            held[row.path] = read.body
        # What is carried over unchanged, and what is left over, are all that was live: each once.
        before = [item for body in left for item in body.items if item.status != DELETED]
        after = [*carried, *(item for cursor in cursors for item in cursor.left_over())]
        assert sorted(map(id, after)) == sorted(map(id, before))
        for body in left:
            reader.forget(body)
    return decoded, there


@pytest.mark.parametrize("seed", range(24))
def test_random_histories(seed: int) -> None:
    world = World(seed, 1 + seed % 3, partitioned=seed % 4 > 0)
    for _ in range(80):
        world.commit_any()
    walk(world.storage, world.metadata["snapshots"])


def long_history(commits: int, seed: int = 1) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    files: dict[str, bytes] = {}
    history = LongHistory(files.__setitem__, "mem://long", seed=seed)
    history.run(commits)
    return files, history.snapshots


def test_little_is_decoded_of_large_manifests() -> None:
    """Every tenth commit writes a merged manifest anew; its entries are decoded when they are met, and when they have
    changed."""
    decoded, there = walk(*long_history(400))
    assert there > 3 * decoded
    assert decoded < 2 * 400


@pytest.mark.parametrize("bytes_max", [0, 3_000, 30_000])
def test_without_room_more_is_decoded_and_the_same_is_told(bytes_max: int) -> None:
    files, snapshots = long_history(150, seed=2)
    less, _ = walk(files, snapshots)
    more, _ = walk(files, snapshots, bytes_max=bytes_max)
    assert more > less


def test_damaged_manifests_are_refused_or_told_apart() -> None:
    """Whatever bytes are changed: it is read as it would be read alone, or refused."""
    files, snapshots = long_history(130, seed=3)
    lists, reader = ListReader(), ManifestReader()
    held: dict[str, Any] = {}
    chance = random.Random(1)
    refused = 0
    for snapshot in snapshots:
        step = lists.step(files[snapshot["manifest-list"]])
        left = [held.pop(row.path) for row in step.left]
        for row in step.entered:
            data = bytearray(files[row.path])
            if left:
                at = chance.randrange(len(data))
                data[at] ^= 1 << chance.randrange(8)
                try:
                    broken = ManifestReader().read(bytes(data), row, [Cursor(body) for body in left]).body
                    alone = ManifestReader().read(bytes(data), row).body
                    assert [told(item) for item in broken.items] == [told(item) for item in alone.items]
                except ValidationFailed:
                    refused += 1
            held[row.path] = reader.read(files[row.path], row, [Cursor(body) for body in left]).body
    assert refused > 3

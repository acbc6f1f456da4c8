"""Tables that a tower has written: what it and the SDK say of each commit, and an audit of what it let through."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from icetower.agent import having_read, keyed, new_key
from icetower.audit.auditor import audit
from icetower.audit.commits import BEFORE, Reads, reads_of
from icetower.audit.findings import Report
from icetower.iceberg import puffin
from icetower.iceberg.change import Touched
from icetower.iceberg.expressions import TRUE, Predicate
from icetower.iceberg.validation import Level
from icetower.iceberg.vectors import Vector, as_blob
from icetower.protocol.marks import BASE
from tests.audit.audit_world import said
from tests.commit.engine_world import TABLE, World, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, Client, create, data, vector

BLIND = {"icetower.blind": "true"}


async def audited(world: World) -> Report:
    return await audit(await world.head(TABLE), world.storage)


def test_a_rebased_commit_says_on_what_it_was_prepared() -> None:
    async def story() -> None:
        world = World()
        await create(world, 3, **SNAPSHOT)
        ann, bob = Client(world, "ann"), Client(world, "bob")
        await ann.refresh()
        assert await outcomes(await ann.append(data("a1", "a"), data("b1", "b"), **BLIND)) == ["direct"]
        await ann.refresh(), await bob.refresh()
        one = await ann.merge(add=[data("a2", "a")], remove=["a1"])
        other = await bob.merge(add=[data("b2", "b")], remove=["b1"])
        assert await outcomes(one, other) == ["direct", "rebased"]
        snapshots = (await world.head()).metadata["snapshots"]
        bases = [snapshot["summary"].get(BASE) for snapshot in snapshots]
        assert bases == [None, None, str(snapshots[0]["snapshot-id"])]
        report = await audited(world)
        assert said(report) == []
        assert report.checked.reads == {"declared": 1, "blind": 1, "compaction": 0, "unknown": 1}

    run(story())


def test_the_first_of_a_table_is_rebased_from_nothing() -> None:
    async def story() -> None:
        world = World()
        await create(world, 2)
        ann, bob = Client(world, "ann"), Client(world, "bob")
        await ann.refresh(), await bob.refresh()
        one, other = await ann.append(data("a1", "a"), **BLIND), await bob.append(data("b1", "b"), **BLIND)
        assert await outcomes(one, other) == ["direct", "rebased"]
        snapshots = (await world.head()).metadata["snapshots"]
        assert [snapshot["summary"].get(BASE) for snapshot in snapshots] == [None, "none"]

    run(story())


@pytest.mark.parametrize("seed", range(8))
def test_what_a_tower_lets_through_is_never_blamed(seed: int) -> None:
    """Stale clients that replace files and delete rows, rebased under snapshot isolation."""

    async def story() -> None:
        chance = random.Random(seed)
        world = World()
        await create(world, 3, **SNAPSHOT)
        clients = [await Client(world, name).refresh() for name in ("ann", "bob", "cy", "dee")]
        files = [data(f"{category}{at}", category) for category in "abcd" for at in range(3)]
        assert await outcomes(await clients[0].append(*files, **BLIND)) == ["direct"]
        told: list[str] = []
        for turn in range(12):
            await asyncio.gather(*(client.refresh() for client in clients if chance.random() < 0.6))
            requests = []
            for number, client in enumerate(clients):
                known = [t for t, _ in (await client.live()).values() if t.file.content == 0]
                if not known:
                    continue
                target = chance.choice(known)
                name = target.file.path.rpartition("/")[2]
                word = f"{turn}-{number}"
                if chance.random() < 0.4:
                    requests.append(await client.append(data(f"n{word}", target.file.partition[0]), **BLIND))
                else:
                    requests.append(await client.merge(add=[data(f"m{word}", target.file.partition[0])], remove=[name]))
            told += await outcomes(*requests)
        assert "rebased" in told
        report = await audited(world)
        assert said(report) == []
        assert report.checked.snapshots == sum(not each.startswith("409") for each in told) + 1

    run(story())


def stored(world: World, name: str, target: Touched, rows: set[int]) -> Touched:
    """A deletion vector whose bytes are in the storage."""
    made = vector(name, target, len(rows))
    content, (blob,) = puffin.write([as_blob(Vector.of(rows), target.file.path)], created_by="a test")
    world.storage.files[made.file.path] = content
    where = {"content_offset": blob.offset, "content_size_in_bytes": blob.length_bytes}
    record = {**made.file.record, **where, "file_size_in_bytes": len(content)}
    return replace(made, file=replace(made.file, record=record, size_bytes=len(content)))


def test_deletion_vectors_that_the_tower_put_together_are_fine() -> None:
    """Both writers had read the same version and wrote one data file's vector; the tower's has the rows of both."""

    async def story() -> None:
        world = World()
        await create(world, 3)
        target = data("a1", "a")
        ann, bob = Client(world, "ann"), Client(world, "bob")
        await ann.refresh()
        assert await outcomes(await ann.append(target, **BLIND)) == ["direct"]
        await ann.refresh(), await bob.refresh()
        start = str((await world.head()).metadata["current-snapshot-id"])
        words = {"icetower.isolation-level": "snapshot", "icetower.read-snapshot": start}
        one = await ann.merge(deletes=[stored(world, "v1", target, {1, 2})], **words)
        other = await bob.merge(deletes=[stored(world, "v2", target, {3})], **words)
        assert await outcomes(one, other) == ["direct", "rebased"]
        report = await audited(world)
        assert said(report) == []
        assert report.checked.reads["declared"] == 2

    run(story())


def test_what_the_sdk_says_is_understood() -> None:
    snapshots = [{"snapshot-id": 5, "parent-snapshot-id": 4}, {"snapshot-id": 6, "parent-snapshot-id": 5}]
    line = {snapshot["snapshot-id"]: at for at, snapshot in enumerate(snapshots)}

    def reads(**words: str) -> Reads:
        summary = {"operation": "overwrite", **words}
        return reads_of({**snapshots[1], "summary": summary}, {}, line, snapshots[0])

    filtered = {"type": "eq", "term": "region", "value": 1}
    words = keyed(new_key()) | having_read(5, filtered)
    expected = Reads(start=0, filter=Predicate("eq", "region", (1,)), level=Level.SERIALIZABLE)
    assert reads(**words) == expected
    assert reads(**having_read(None, True, isolation="snapshot")) == Reads(BEFORE, None, TRUE, Level.SNAPSHOT)
    assert reads(**having_read(4, True)).start == BEFORE  # it has expired, and was the parent of the oldest
    unknown = reads(**having_read(3, True))
    assert unknown.start is None
    assert "snapshot 3" in unknown.lost
    garbled = reads(**{"icetower.filter": "nonsense", "icetower.read-snapshot": "x"})
    assert (garbled.filter, garbled.start) == (None, None)
    assert "icetower.filter" in garbled.lost

"""A commit that was written for format version 1, and reaches a table that was upgraded: what it says again of entries
that stay has no sequence numbers, and nobody could rewrite them any more. Iceberg itself refuses it."""

from __future__ import annotations

import asyncio

import pytest

from tests.commit.engine_world import TABLE, Request, World, outcomes

BLIND = {"icetower.blind": "true"}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("merge", [False, True])
def test_r8_entries_without_sequence_numbers_do_not_come_into_a_table_that_counts_them(
    version: int, stale: bool, merge: bool
) -> None:
    async def story() -> None:
        world = World()
        await world.create(1)
        for name in ("a", "b", "c"):
            ann = await world.writer("ann").refresh()
            assert await outcomes(await ann.append(name)) == ["direct"]
        ann = await world.writer("ann").refresh()
        sent = await ann.append("d", merge=merge, summary=BLIND)
        assert ann.base is not None
        uuid = {"type": "assert-table-uuid", "uuid": ann.base.metadata["table-uuid"]}
        upgrade = [{"action": "upgrade-format-version", "format-version": each} for each in range(2, version + 1)]
        assert await outcomes(Request(ann, TABLE, [uuid], upgrade, (), None)) == ["direct"]
        if stale:
            bob = await world.writer("bob").refresh()
            assert await outcomes(await bob.append("e")) == ["direct"]
        expected = "409 commit.format" if merge else "rebased" if stale else "direct"
        assert await outcomes(sent) == [expected]
        # Written again on the table as it is, it goes in, and what is in can be rewritten.
        ann = await world.writer("ann").refresh()
        if merge:
            assert await outcomes(await ann.append("d", merge=True, summary=BLIND)) == ["direct"]
        ann = await world.writer("ann").refresh()
        rewrite = await ann.snapshot(add=["z"], remove=["a"], operation="overwrite")
        assert await outcomes(rewrite) == ["direct"]
        assert await world.live() == sorted(["b", "c", "d", "z", *(["e"] if stale else [])])

    asyncio.run(story())

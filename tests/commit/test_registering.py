"""The ledger hears of a registration before the catalog does: whatever dies in between, no key is wrongly done."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from icetower.database import Database
from icetower.errors import IcetowerError
from icetower.ledger.histories import Fate, TableName
from icetower.ledger.ledger import Batch, Commit, CommitKey, Expired, Ledger
from icetower.protocol.names import Identifier
from icetower.service.lifecycle import Lifecycle
from icetower.upstream.port import Swap, SwapUnknown
from tests.commit.engine_world import TABLE, World, run, told

OTHER = Identifier(("db",), "other")


class Registered(World):
    """A table with an older version, a key that came after it and has expired, and its ledger."""

    async def begin(self, database: Database) -> None:
        self.ledger = Ledger(database, self.clock)
        self.tables = Lifecycle(
            self.upstream,
            self.storage,
            self.heads,
            self.manifests,
            self.clock,
            warehouse="file:///w",
            ledger=self.ledger,
        )
        self.old = (await self.create()).location
        head = await (await (await self.writer().refresh()).append("a")).send()
        self.uuid = str(head.head.metadata["table-uuid"])
        owner = CommitKey(self.uuid, "main", "ann", "key")
        self.commit = Commit(owner, (1,), sequence_number=1)
        gone = Expired(TableName(self.uuid, TABLE), (1,))
        await self.ledger.write(Batch(commits=[self.commit], expired=[gone]))

    async def fate(self, table: Identifier = TABLE) -> Fate:
        return await self.ledger.fate(TableName(self.uuid, table), self.commit)


Story = Callable[[Registered], Coroutine[Any, Any, None]]


@pytest.fixture
def during() -> Iterator[Callable[[Story], None]]:
    database = Database("sqlite://")

    def play(story: Story) -> None:
        async def whole() -> None:
            world = Registered()
            await world.begin(database)
            assert await world.fate() is Fate.EXPIRED
            await story(world)

        run(whole())

    yield play
    database.close()


def test_k2_before_the_pointer_is_set_back_nothing_is_called_done_any_more(
    during: Callable[[Story], None],
) -> None:
    async def story(world: Registered) -> None:
        seen: list[Fate] = []

        async def swap(swaps: Sequence[Swap]) -> None:
            seen.append(await world.fate())
            await world.upstream.inner.swap(swaps)

        world.upstream.script = [swap]
        await world.tables.register(TABLE, world.old, overwrite=True)
        assert seen == [Fate.REGISTERED_ANEW]
        assert await world.fate() is Fate.LEFT_BEHIND

    during(story)


@pytest.mark.parametrize("ends", ["lost", "unknown", "dies"])
def test_k2_where_nobody_knows_whether_the_pointer_was_set_back_nobody_can_tell_of_keys(
    during: Callable[[Story], None], ends: str
) -> None:
    async def story(world: Registered) -> None:
        async def swap(swaps: Sequence[Swap]) -> None:
            if ends == "lost":
                (one,) = swaps
                await world.upstream.inner.swap([Swap(one.identifier, one.expected, world.old)])
                await world.upstream.inner.swap(swaps)
            raise SwapUnknown if ends == "unknown" else SystemError

        world.upstream.script = [swap]
        with pytest.raises((IcetowerError, SystemError)):
            await world.tables.register(TABLE, world.old, overwrite=True)
        assert await world.fate() is Fate.REGISTERED_ANEW

    during(story)


def test_a_ledger_that_fails_after_the_pointer_was_set_fails_no_registration(
    during: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: Registered) -> None:
        async def fails(*_: object) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(world.ledger, "confirm_history", fails)
        await world.tables.register(TABLE, world.old, overwrite=True)
        assert (await world.head()).location == world.old
        assert await world.fate() is Fate.REGISTERED_ANEW
        assert f"{TABLE} was registered" in caplog.text

    during(story)


def test_a_name_that_is_taken_costs_no_keys(during: Callable[[Story], None]) -> None:
    async def story(world: Registered) -> None:
        with pytest.raises(IcetowerError) as raised:
            await world.tables.register(TABLE, world.old, overwrite=False)
        assert told(raised.value) == "409 already-exists"
        assert await world.fate() is Fate.EXPIRED

    during(story)


def test_k2_a_table_keeps_its_keys_as_it_is_renamed_and_takes_none_of_its_twins(
    during: Callable[[Story], None],
) -> None:
    async def story(world: Registered) -> None:
        await world.tables.rename(TABLE, OTHER)
        assert await world.fate(OTHER) is Fate.EXPIRED  # there is one table of this uuid, whatever its name
        await world.tables.register(TABLE, world.old, overwrite=False)
        gone = Expired(TableName(world.uuid, OTHER), (1,))
        await world.ledger.write(Batch(expired=[gone]))
        assert (await world.fate(OTHER), await world.fate(TABLE)) == (Fate.EXPIRED, Fate.LEFT_BEHIND)
        for source, target in ((OTHER, Identifier(("db",), "away")), (TABLE, OTHER)):
            await world.tables.rename(source, target)
        assert await world.fate(OTHER) is Fate.REGISTERED_ANEW
        # Without metadata a table has no commits; it can be renamed all the same.
        world.storage.files.pop(world.old)
        world.restart()
        tables = Lifecycle(
            world.upstream,
            world.storage,
            world.heads,
            world.manifests,
            world.clock,
            warehouse="file:///w",
            ledger=world.ledger,
        )
        await tables.rename(OTHER, TABLE)
        assert await world.upstream.location(TABLE) == world.old

    during(story)

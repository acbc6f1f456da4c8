"""While a purge runs, and after it, no table comes to stand on the files that it deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from icetower.admission.admitted import Admitted
from icetower.errors import CommitConflict, IcetowerError, ValidationFailed
from icetower.files.changes import read_changes
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import administrator
from icetower.service.purges import Purges
from tests.commit.engine_world import SCHEMA, TABLE, World, creation, judged, run
from verify.kit.storage import MemoryStorage

OTHER = Identifier(TABLE.namespace, "other")


class HeldStorage(MemoryStorage):
    """Deletes many files only once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.deleting, self.may_delete = asyncio.Event(), asyncio.Event()

    async def delete_many(self, paths: Iterable[str], *, below: str | None = None) -> tuple[str, ...]:
        self.deleting.set()
        await self.may_delete.wait()
        return await super().delete_many(paths, below=below)


class Purged(World):
    """A table with a file that a commit has created, and the same commit again."""

    async def begin(self) -> HeldStorage:
        self.storage = storage = HeldStorage()
        self.restart()
        self.staged = (await self.create(table=OTHER)).metadata
        self.place = f"file:///w/db/{TABLE.name}-12345678-0000-4000-8000-000000000000"
        writer = await self.writer().refresh(OTHER)
        sent = await writer.append("a.parquet", table=OTHER)
        uuid = self.place[-36:]
        self.updates = [*creation(self.staged, uuid=uuid, location=self.place), *sent.updates]
        await self.create_by_commit(await self.admitted())
        await self.tables.drop(OTHER, purge=False)  # a purge leaves what lies where another table does
        return storage

    async def admitted(self) -> Admitted:
        """As the gate admits it, which reads its files."""
        changes = await read_changes(self.manifests, None, Updates(self.updates), confined=False)
        return judged(administrator("ann"), TABLE, None, changes, [{"type": "assert-create"}], self.updates)

    async def create_by_commit(self, admitted: Admitted) -> None:
        with self.tables.purges.watched() as watch:
            await self.tables.create_by_commit(admitted, watch, reads=True)

    async def create_at(self, location: str) -> None:
        metadata = await self.tables.new_metadata(
            TABLE, schema=SCHEMA, spec=None, sort_order=None, location=location, properties={}
        )
        await self.tables.create(TABLE, metadata)


def test_a_table_is_not_created_where_a_purge_runs() -> None:
    async def story() -> None:
        world = Purged()
        storage = await world.begin()
        head = await world.head()
        purge = asyncio.create_task(world.tables.drop(TABLE, purge=True))
        await storage.deleting.wait()
        again = await world.admitted()
        tries = [
            world.create_by_commit(again),
            world.tables.register(OTHER, head.location, overwrite=True),
            world.tables.register(TABLE, head.location, overwrite=False),
            world.create_at(world.place),
            world.create_at(f"{world.place}/below"),
            world.create_at("file:///w/db"),
        ]
        for each in tries:
            with pytest.raises(CommitConflict) as refused:
                await each
            assert (refused.value.rule, refused.value.next_step) == ("purge.running", "retry")
        storage.may_delete.set()
        await purge
        with pytest.raises(ValidationFailed, match="cannot be read"):  # also from no cache
            await world.admitted()
        with pytest.raises(IcetowerError):
            await world.tables.register(TABLE, head.location, overwrite=False)
        await world.create_at(f"{world.place}/below")

    run(story())


def test_a_creation_that_was_judged_before_a_purge_is_refused_after_it() -> None:
    async def story() -> None:
        world = Purged()
        storage = await world.begin()
        storage.may_delete.set()
        with world.tables.purges.watched() as watch:
            again = await world.admitted()
            await world.tables.drop(TABLE, purge=True)
            with pytest.raises(CommitConflict, match="are being deleted"):
                await world.tables.create_by_commit(again, watch, reads=True)

    run(story())


def test_a_purge_that_is_over_leaves_nothing_in_memory() -> None:
    purges = Purges()
    with purges.watched() as watch:
        with pytest.raises(RuntimeError), purges.running(["s3a://b/t", "s3://b/data"]):
            raise RuntimeError
        for path in ("s3://b/t", "s3://b/t/below", "s3://b", "s3://b/data/x"):
            with pytest.raises(CommitConflict):
                watch.require_apart(TABLE, [path])
        watch.require_apart(TABLE, ["s3://b/t2"])
    with purges.watched() as watch:
        watch.require_apart(TABLE, ["s3://b/t"])

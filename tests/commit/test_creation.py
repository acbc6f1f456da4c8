"""Tables that a commit creates: what a transaction of Iceberg's Java client sends at its end."""

from __future__ import annotations

from icetower.commit.plan import plan_creation
from icetower.files.changes import read_changes
from icetower.iceberg.manifests import read_manifest_list
from icetower.protocol.updates import Updates
from icetower.registry.principals import administrator
from tests.commit.engine_world import TABLE, World, creation, judged, run


def test_a_creation_may_bring_several_snapshots_each_on_the_one_before() -> None:
    """Iceberg's kit: `testCompleteCreateTransactionMultipleSchemas`."""

    world = World()

    async def story() -> None:
        staged = (await world.create()).metadata
        ann = world.writer("ann")
        first = await ann.append("a.parquet")
        second = await ann.append("b.parquet", parent=first.snapshot, parent_rows=first.rows, sequence_number=2)
        fresh = "12345678-0000-4000-8000-000000000000"
        updates = [*creation(staged, uuid=fresh), *first.updates, *second.updates]
        changes = await read_changes(world.manifests, None, Updates(updates))
        member = judged(administrator("ann"), TABLE, None, changes, [{"type": "assert-create"}], updates)
        metadata, files = plan_creation(member, now_ms=world.clock.now_ms(), new_name=world.clock.uuid4)

        oldest, newest = metadata["snapshots"]
        assert metadata["refs"]["main"]["snapshot-id"] == newest["snapshot-id"]
        assert newest["parent-snapshot-id"] == oldest["snapshot-id"]
        assert (newest["sequence-number"], newest["summary"]["total-records"]) == (2, "2")
        path = newest["manifest-list"]
        assert len(read_manifest_list(files.get(path) or world.storage.files[path])) == 2

    run(story())

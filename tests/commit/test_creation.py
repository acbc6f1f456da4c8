"""Tables that a commit creates: what a transaction of Iceberg's Java client sends at its end."""

from __future__ import annotations

import pytest

from icetower.commit.plan import plan_creation
from icetower.commit.replays import Replays
from icetower.errors import KeyMisused
from icetower.files.changes import read_changes
from icetower.iceberg.manifests import read_manifest_list
from icetower.protocol.updates import Updates
from icetower.registry.principals import administrator
from tests.commit.engine_world import TABLE, World, creation, judged, run
from tests.commit.test_has_it_landed import UUID, Write, ledger_of


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


@pytest.mark.parametrize(
    ("sent", "ledger", "known"),
    [
        ("k", "k=1", "idempotency key k"),
        ("k", "k2=1", None),
        ("k", "old:k=1", None),
        ("k:bob", "k=1", None),
        ("a7", "a7=1", "number 7 of application a"),
        ("a7", "a8=1", "number 8 of application a"),
        ("a7", "a6=1", None),
        ("", "k=1 a7=1", None),
    ],
)
def test_k2_whether_a_creation_has_landed_whose_table_is_not_there_any_more(
    sent: str, ledger: str, known: str | None
) -> None:
    identity = Write.of(["1", *sent.split()]).identity
    asked = Replays(None, ledger_of(ledger)).refuse_dropped(TABLE, UUID, identity)  # type: ignore[arg-type]
    if known is None:
        run(asked)
        return
    with pytest.raises(KeyMisused) as refused:
        run(asked)
    assert (refused.value.rule, refused.value.next_step, refused.value.snapshot) == ("key.gone", "ask_owner", 1)
    assert refused.value.message == (
        f"the commit under {known} landed as snapshot 1 in a table db.t that is not there any more: it was dropped, or "
        "has another name. To create it again, stage the creation anew and use a new key"
    )

"""A key counts as applied while the target's history has its batch: rollbacks, new tables, expired history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.errors import BadRequest
from icetower.pipelines.tables import iceberg_table, load_metadata
from icetower.pipelines.wal_line import legacy_batch_id
from icetower.pipelines.wal_plan import PREVIOUS, Batch, Counts, Decided
from tests.pipelines.wal_world import COLUMNS, World, once

pytestmark = pytest.mark.spark
KEYS: dict[str, Any] = {"merge_keys": ("id", "at")}


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str]) -> World:
    return World(spark, fresh())


def go_to(world: World, snapshot: int | None) -> None:
    """A rollback, or its undoing."""
    table = world.target.partition(".")[2]
    world.spark.sql(f"CALL tower.system.set_current_snapshot('{table}', {snapshot})")


def expire(world: World, kept: int) -> None:
    """All snapshots of the target but the last."""
    changes = iceberg_table(world.spark, world.target).expireSnapshots()
    for snapshot in load_metadata(world.spark, world.target)["snapshots"][:-kept]:
        changes = changes.expireSnapshotId(snapshot["snapshot-id"])
    changes.cleanExpiredFiles(False).commit()


def test_rows_of_batches_that_were_rolled_back_are_applied_again(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    first = world.run()
    world.append((2, 1, "k2", "web"), (3, 1, "k3", "web"))
    second = world.run()
    world.append((4, 1, "k4", "web"))
    third = world.run()
    go_to(world, first.committed_snapshot)
    again = world.run()
    assert (again.applied, again.duplicates, world.ids()) == (3, 0, [1, 2, 3, 4])
    assert again.batch not in (second.batch, third.batch)
    assert len(world.log("wal_mediations")) == 4
    # Going forward again to what was rolled back brings its rows back: none is doubled, and none of another batch lost.
    go_to(world, second.committed_snapshot)
    world.append((5, 1, "k5", "web"), (2, 1, "k2", "web"))
    done = world.run()
    assert (done.applied, done.duplicates, world.ids()) == (2, 1, [1, 2, 3, 4, 5])
    assert world.run().status == "idle"


def test_a_rollback_while_a_mediator_runs_loses_no_row(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    first = world.run()
    world.append((2, 1, "k2", "web"))
    world.run()
    world.append((3, 1, "k3", "web"))
    done = world.run(once("rejections", lambda: go_to(world, first.committed_snapshot)))
    assert (done.attempts, done.applied, world.ids()) == (2, 2, [1, 2, 3])


def test_a_batch_that_comes_back_while_a_mediator_runs_is_not_written_over(world: World) -> None:
    world.versions(1)
    first = world.run(**KEYS)
    world.versions(2, 3)
    newest = world.run(**KEYS)
    go_to(world, first.committed_snapshot)
    back = once("rejections", lambda: go_to(world, newest.committed_snapshot))
    assert world.run(back, **KEYS, snapshots_max=1).status == "idle"
    assert world.amounts() == [3]


def test_a_table_is_known_by_its_uuid(world: World) -> None:
    world.versions(1, 2)
    world.run(**KEYS)
    # As the log of a table stands that was renamed since.
    world.spark.sql(f"UPDATE {world.system}.agent_dedup_log SET table_name = 'an.older_name'")
    world.versions(1)
    assert world.run(**KEYS).duplicates == 1
    assert world.amounts() == [2]
    world.spark.sql(f"DROP TABLE {world.target}")
    world.spark.sql(f"CREATE TABLE {world.target} ({COLUMNS}) USING iceberg PARTITIONED BY (days(at))")
    world.spark.sql(f"ALTER TABLE {world.target} REPLACE PARTITION FIELD days(at) WITH days(at) AS d_day")
    done = world.run(**KEYS)
    assert (done.applied, done.superseded, done.duplicates) == (1, 1, 1)
    assert world.amounts() == [2]


def test_batches_whose_snapshots_have_expired_are_still_applied_or_refused(world: World) -> None:
    world.versions(1, 2)
    world.run(**KEYS)
    outside = f"INSERT INTO {world.target} VALUES (9, timestamp'2017-01-01 05:00:00', 9.10, 'k9')"
    for _ in range(2):
        world.spark.sql(outside)
    expire(world, 1)
    world.versions(1)
    done = world.run(**KEYS)  # the row with k2 shows that k1 was applied with it
    assert (done.applied, done.duplicates, world.amounts()) == (0, 3, [2, 9, 9])

    world.versions(3)
    world.run(**KEYS)
    world.spark.sql(f"DELETE FROM {world.target} WHERE id = 1")
    world.spark.sql(outside)
    expire(world, 1)
    with pytest.raises(
        BadRequest, match=r"2 batches, and it is not known .* rolled back: UPDATE .*: DELETE"
    ) as refused:
        world.run(**KEYS)
    assert refused.value.rule == "wal.applied"
    world.spark.sql(refused.value.message.partition("rolled back: ")[2].partition(". If it")[0])
    done = world.run(**KEYS)
    assert (done.applied, done.duplicates, world.amounts()) == (0, 4, [9, 9, 9])


def made_without(world: World, name: str, *columns: str) -> None:
    """A log as an earlier version made it. (Of a dropped column the metadata would know.)"""
    table, rows = f"{world.system}.{name}", world.spark.table(f"{world.system}.{name}").drop(*columns)
    earlier = world.spark.createDataFrame(rows.collect(), rows.schema)
    world.spark.sql(f"DROP TABLE {table}")
    earlier.writeTo(table).using("iceberg").create()


@pytest.mark.parametrize("expired", [pytest.param(False, marks=pytest.mark.sharp), True])
def test_the_logs_of_an_earlier_version_are_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    with monkeypatch.context() as earlier:
        marks = Batch.properties

        def properties(batch: Batch, counts: Counts, decided: Decided | None, plan: str | None) -> dict[str, str]:
            assert decided is not None
            return {name: value for name, value in marks(batch, counts, None, plan).items() if name != PREVIOUS}

        earlier.setattr(Batch, "id", property(lambda b: legacy_batch_id(b.target_uuid, b.wal_uuid, b.start, b.through)))
        earlier.setattr(Batch, "properties", properties)
        world.versions(1, 2)
        first = world.run(**KEYS)
        world.versions(3, 4)
        world.run(**KEYS)
    made_without(world, "wal_mediations", "table_uuid", "wal_uuid", "previous_snapshot", "plan")
    made_without(world, "agent_dedup_log", "table_uuid", "snapshot_id")
    world.versions(1, 3)
    if expired:
        world.spark.sql(f"INSERT INTO {world.target} VALUES (9, timestamp'2017-01-01 05:00:00', 9.10, 'k9')")
        expire(world, 1)
        # The log of the first batch's mediation is gone, and with it the proof for its keys.
        world.spark.sql(f"DELETE FROM {world.system}.wal_mediations WHERE batch = '{first.batch}'")
        with pytest.raises(BadRequest, match=r"an earlier version.*SET table_uuid") as refused:
            world.run(**KEYS)
        world.spark.sql(refused.value.message.partition("rolled back: ")[2].partition(". If it")[0])
    else:
        go_to(world, first.committed_snapshot)
    done = world.run(**KEYS)
    if expired:
        assert (done.applied, world.amounts()) == (0, [4, 9])
    else:
        # 3 and 4 were rolled back, 1 was not; 3 comes twice.
        assert (done.applied, done.superseded, done.duplicates, world.amounts()) == (1, 1, 2, [4])
    assert world.run(**KEYS).status == "idle"

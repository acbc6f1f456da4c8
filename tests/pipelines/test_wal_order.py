"""Trap R12: the order of a log is the order of its commits, whatever its files have become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.errors import BadRequest
from icetower.pipelines.wal_plan import line_ranks, oldest_base
from tests.pipelines.wal_world import Crash, World, crash_at, once

pytestmark = pytest.mark.spark
KEYS: dict[str, Any] = {"merge_keys": ("id", "at")}
Log = Callable[[int], World]


@pytest.fixture
def log(spark: SparkSession, fresh: Callable[[], str]) -> Log:
    return lambda version: World(spark, fresh(), log_version=version)


@pytest.mark.parametrize("version", [2, 3])
def test_r12_the_last_row_wins_though_a_compaction_has_put_it_first(log: Log, version: int) -> None:
    """Format 2 knows it by the snapshots before the compaction, format 3 without them."""
    world = log(version)
    world.versions(1, 2)
    world.compact()
    if version == 3:
        world.expire()
    first = world.run(**KEYS)
    assert (first.read, first.applied, first.superseded) == (2, 1, 1)
    assert world.amounts() == [2]


def test_r12_an_order_that_is_lost_is_refused_with_a_way_out(log: Log) -> None:
    world = log(2)
    world.versions(1, 2)
    world.compact()
    world.expire()
    with pytest.raises(BadRequest, match="format version 3") as refused:
        world.run(**KEYS)
    assert refused.value.rule == "wal.order"
    assert "--order-by" in refused.value.message
    with pytest.raises(BadRequest, match="no column nothing"):
        world.run(**KEYS, order_by="nothing")
    with pytest.raises(BadRequest, match="_agent does not order them"):
        world.run(**KEYS, order_by="_agent")
    assert world.amounts() == []
    done = world.run(**KEYS, order_by="_written_at")
    assert (done.applied, done.superseded) == (1, 1)
    assert world.amounts() == [2]


def test_r12_a_compaction_of_format_2_stays_without_an_order_after_an_upgrade(log: Log) -> None:
    world = log(2)
    world.versions(1, 2)
    world.compact()
    world.spark.sql(f"ALTER TABLE {world.wal} SET TBLPROPERTIES ('format-version' = '3')")
    world.versions(3)
    world.expire()
    with pytest.raises(BadRequest, match="which of them is the last is not known"):
        world.run(**KEYS)
    # Rows that are inserted need no order; neither do rows of which the batch has one version.
    assert world.run(merge_keys=()).applied == 3


def test_r12_a_compaction_beside_a_run_changes_nothing(log: Log) -> None:
    world = log(1)  # without sequence numbers
    world.versions(1, 2)
    world.compact()
    done = world.run(once("planned", world.compact), **KEYS)
    assert (done.applied, done.superseded, world.amounts()) == (1, 1, [2])
    world.versions(3, 4)
    assert world.run(once("planned", world.compact), **KEYS).superseded == 1
    assert world.amounts() == [4]
    assert world.run(**KEYS).read == 0


def test_what_a_crash_left_open_is_read_from_the_same_files(log: Log) -> None:
    """The log of rejections names files and positions: the keys of rejected rows stay free only if these are found."""
    world = log(2)
    world.append((1, 1, "k1", "web"), (2, 1, "k2", "till"))
    world.append((1, 1, "k3", "web"))
    world.compact()
    with pytest.raises(Crash):
        world.run(crash_at("committed"), **KEYS)
    assert len(world.run(**KEYS).settled) == 1
    assert sorted(row.idempotency_key for row in world.log("agent_dedup_log")) == ["k1", "k3"]
    assert [row.idempotency_key for row in world.log("wal_rejections")] == ["k2"]


def test_the_oldest_base_is_where_appends_begin() -> None:
    wal: dict[str, Any] = {"snapshots": []}
    for number, operation in enumerate(("append", "delete", "append", "replace", "append"), 1):
        snapshot = {"snapshot-id": number, "summary": {"operation": operation}, "sequence-number": number}
        wal["snapshots"].append(snapshot | ({"parent-snapshot-id": number - 1} if number > 1 else {}))
    assert oldest_base(wal, 5) == 2
    assert line_ranks(wal, 4) == {4: None, 3: 3, 2: None, 1: 1}
    del wal["snapshots"][:3]
    assert oldest_base(wal, 5) == 4
    numbered = {**wal, "snapshots": [{**snapshot, "sequence-number": 0} for snapshot in wal["snapshots"]]}
    assert line_ranks(numbered, 5) == {5: -1, 4: None}

"""The deduplication log and the metrics of an export, from real tables: their summaries, group files and logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.ledger.attempts import numbered_name
from icetower.ledger.hashes import text_hash
from icetower.pipelines.system_tables import COMMITS, METRICS
from icetower.pipelines.system_teams import Team
from icetower.pipelines.tables import iceberg_table
from icetower.pipelines.wal_logs import DEDUP_COLUMNS, Logs
from icetower.protocol.marks import APPLICATION, GROUP_FILE, KEY, PRINCIPAL, REF, SEQUENCE
from icetower.table.groups import Group, GroupedAppend, write_group
from tests.pipelines.test_export import DAY, FIVE_MIN, START, World

NEW = ("write_id", "retries", "base_snapshot", "head_snapshot", "decided_at", "group_size", "metadata_bytes",
       "manifests", "judge_ms", "plan_ms", "write_ms", "swap_ms")  # fmt: skip


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str]) -> World:
    world = World(spark, fresh())
    spark.sql(f"CREATE TABLE {world.system.removesuffix('.system')}.t (id BIGINT) USING iceberg")
    return world


def committed(world: World, summary: Mapping[str, str]) -> int:
    """A snapshot of the table with these properties."""
    append = iceberg_table(world.spark, target(world)).newAppend()
    for name, value in summary.items():
        append.set(name, value)
    append.commit()
    return iceberg_table(world.spark, target(world)).currentSnapshot().snapshotId()


def target(world: World) -> str:
    return f"{world.system.removesuffix('.system')}.t"


def test_keys_are_those_of_the_tables(world: World, tmp_path: Path) -> None:
    table = target(world).partition(".")[2]
    uuid = str(iceberg_table(world.spark, target(world)).uuid())
    by = {PRINCIPAL: "a", REF: "main"}
    direct = committed(world, {KEY: "k-direct", **by})
    numbered = committed(world, {APPLICATION: "app", SEQUENCE: "7", **by})
    mediated = committed(world, {KEY: "batch-1", "icetower.wal.table-uuid": "u", **by})
    path = tmp_path / "_icetower-group.json"
    group = committed(world, {GROUP_FILE: str(path), **by})
    appends = [GroupedAppend(who, key, None, "f", ()) for who, key in (("a", "g1"), ("b", "g2"), ("b", "g1"))]
    path.write_bytes(write_group(Group(uuid, "main", group, tuple(appends))))

    def add(key: str | None, snapshot: int, outcome: str = "direct", who: str = "a", **more: Any) -> None:
        hashed = None if key is None else text_hash(key)
        world.log.add(outcome, table=table, principal=who, key_hash=hashed, snapshots=[snapshot], **more)

    add("k-direct", direct, decided_ms=START - 7)
    add("k-direct", direct, "replayed")
    add(None, numbered, work="number:" + text_hash(numbered_name(("app", 7))))
    add("batch-1", mediated)
    add("g1", group, "appended")
    add("g2", group, "appended", "b")
    add("g1", group, "appended", "b")
    add("expired", 77)
    add("batch-2", 78)  # of a mediator, whose snapshot is gone
    add(None, direct, work="files:f")
    logs = Logs(world.spark, world.system)
    logs.create()
    batch = "'batch-2', 't', 'w', 1, 1, 0, 0, 0, 0, 0, 78, NULL, 'u', 'u', NULL, NULL, NULL"
    world.spark.sql(f"INSERT INTO {world.system}.wal_mediations VALUES ({batch}, NULL)")
    own = f"'web', 'k', '{table}', timestamp_millis({START + 9}), '{uuid}', {mediated}, timestamp_millis({START}), NULL"
    world.spark.sql(f"INSERT INTO {world.system}.agent_dedup_log VALUES ({own}, NULL, NULL)")

    assert world.run().keys == 6
    names = ("agent_id", "idempotency_key", "snapshot_id", "table_name", "table_uuid", "unix_millis(decided_at)")
    assert world.table("agent_dedup_log", *names) == [
        ("a", "app:7", numbered, table, uuid, None),
        ("a", "g1", group, table, uuid, None),
        ("a", "k-direct", direct, table, uuid, START - 7),
        ("a", "sha256:" + text_hash("expired"), 77, table, None, None),
        ("b", "g1", group, table, uuid, None),
        ("b", "g2", group, table, uuid, None),
        ("web", "k", mediated, table, uuid, START),
    ]
    assert world.run().keys == 0
    # Mediators go by their own rows alone: a key of a commit is no key of a row.
    assert [row[0] for row in logs.logged_keys(uuid, {}, None).collect()] == ["k"]


def test_rows_of_mediators_and_orphans_are_counted_once_they_are_there(world: World) -> None:
    table = target(world).partition(".")[2]
    world.log.add("direct", table=table, decided_ms=START - 40, metadata_bytes=10, manifests=0.5)
    world.run()
    orphans = f"{world.system}.iceberg_orphan_files"
    columns = "table_name STRING, path STRING, size_bytes BIGINT, modified_at TIMESTAMP, principal STRING"
    world.spark.sql(f"CREATE TABLE {orphans} ({columns}) USING iceberg")
    world.spark.sql(f"INSERT INTO {orphans} VALUES ('{table}', 'p1', 5, timestamp_millis({START}), 'a')")
    mediated(world, table, 3, *((f"k{i}", i * 100) for i in range(101)))
    ours = Team("web", frozenset({"webs"}), frozenset({"web"}))
    done = world.run(lambda _: None, ours)
    assert (done.attempts, done.windows) == (0, 2)
    names = ("principal", "unix_millis(window_start)", "landed", "mediated_rows", "mediated_p50_ms", "mediated_p99_ms",
             "orphaned_files", "orphaned_bytes", "end_to_end_p50_ms", "metadata_bytes", "manifests")  # fmt: skip
    first = ("a", START, 1, 0, None, None, 1, 5, 40.0, 10, 0.5)
    assert world.table("agent_write_metrics", *names) == [
        first, ("web", START, 0, 101, 5000.0, 9900.0, 0, None, None, None, None)
    ]  # fmt: skip
    assert world.run(lambda _: None, ours).windows == 0
    # What is pruned there stays counted; what comes later is added.
    world.spark.sql(f"DELETE FROM {world.system}.agent_dedup_log WHERE agent_id = 'web'")
    world.spark.sql(f"DELETE FROM {orphans}")
    mediated(world, table, 2 * DAY, ("late", 0))
    world.log.add("refused", table=table, principal="web", minute=1)
    world.run(lambda _: None, ours)
    system, late = world.system, START + 2 * DAY * 60_000
    for world.system, kept in ((system, [first]), (f"{system}_web", [])):
        found = world.table("agent_write_metrics", *names)
        assert found == [
            *kept, ("web", START, 0, 101, 5000.0, 9900.0, 0, None, None, None, None),
            ("web", late // FIVE_MIN * FIVE_MIN, 0, 1, 0.0, 0.0, 0, None, None, None, None),
        ]  # fmt: skip
    assert len(world.table("agent_dedup_log", "idempotency_key")) == 102


def mediated(world: World, table: str, minute: int, *keys: tuple[str, int]) -> None:
    """Rows that a mediator has applied: (key, how late)."""
    at = dt.datetime.fromtimestamp(START / 1000 + minute * 60, dt.UTC)
    rows = [("web", key, table, at, "u", 1, at - dt.timedelta(milliseconds=lag), None, None, None) for key, lag in keys]
    world.spark.createDataFrame(rows, DEDUP_COLUMNS).writeTo(f"{world.system}.agent_dedup_log").append()


def test_tables_of_an_earlier_version_are_upgraded(world: World) -> None:
    old = ", ".join(one for one in COMMITS.split(", ") if one.partition(" ")[0] not in NEW)
    counted = METRICS.partition(", first_tries")[0]
    world.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {world.system}")
    for name, columns in (("iceberg_commits", old), ("agent_write_metrics", counted)):
        world.spark.sql(f"CREATE TABLE {world.system}.{name} ({columns}) USING iceberg")
    world.log.add("conflict", key_hash="k")
    was = "1, timestamp_millis({}), 'agents', 'a', 's.t', 'append', 'conflict', NULL, array('d=1'), array(1), 'k'"
    world.spark.sql(f"INSERT INTO {world.system}.iceberg_commits VALUES ({was.format(START)}, NULL, 1, 1, NULL)")
    world.log.add("direct", minute=1, key_hash="k", base=5, head=6, swap_ms=2.5)
    assert world.run().attempts == 1
    found = world.table("iceberg_commits", "attempt_id", "retries", "base_snapshot", "head_snapshot", "swap_ms")
    assert found == [(1, None, None, None, None), (2, 1, 5, 6, 2.5)]
    assert world.table("agent_write_metrics", "attempts", "landed", "first_tries") == [(2, 1, 0)]

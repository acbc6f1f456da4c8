"""The export while the tables change that it writes: before a run, and between its steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines.export import Exported
from tests.pipelines.evolution import BEFORE, Change, alter, rule_of
from tests.pipelines.test_export import TEAM, World, filled
from tests.pipelines.wal_world import once

pytestmark = pytest.mark.spark

STEPS = [BEFORE, "created", "contracts", "commits", "keys", "metrics", "team"]

CHANGES = {
    "a column of the commits more": Change(("{commits} ADD COLUMN more STRING",)),
    "a column of a team's commits more": Change(("{ours} ADD COLUMN more STRING FIRST",)),
    "a wider type": Change(
        ("{commits} ALTER COLUMN retries TYPE BIGINT", "{commits} ALTER COLUMN group_size TYPE BIGINT")
    ),
    "columns in another order": Change(("{commits} ALTER COLUMN outcome FIRST", "{metrics} ALTER COLUMN landed FIRST")),
    "a column of the commits of another name": Change(
        ("{commits} RENAME COLUMN retries TO tries",), ("{commits} RENAME COLUMN tries TO retries",), "system.columns"
    ),
    "the numbers of the commits under another name": Change(
        ("{commits} RENAME COLUMN attempt_id TO number",),
        ("{commits} RENAME COLUMN number TO attempt_id",),
        "system.columns",
    ),
    "a column of the windows of another name": Change(
        ("{metrics} RENAME COLUMN landed TO good",), ("{metrics} RENAME COLUMN good TO landed",), "system.columns"
    ),
    "a column of the keys of another name": Change(
        ("{keys} RENAME COLUMN attempt_id TO number",), ("{keys} RENAME COLUMN number TO attempt_id",), "system.columns"
    ),
    "a column of the contracts of another name": Change(
        ("{contracts} RENAME COLUMN version TO edition",),
        ("{contracts} RENAME COLUMN edition TO version",),
        "system.columns",
    ),
    "a column of a team's commits of another name": Change(
        ("{ours} RENAME COLUMN contract TO agent",), ("{ours} RENAME COLUMN agent TO contract",), "system.columns"
    ),
    "partitions of the commits by another field": Change(("{commits} REPLACE PARTITION FIELD at_day WITH hours(at)",)),
    "a partition field more": Change(
        ("{commits} ADD PARTITION FIELD principal", "{metrics} ADD PARTITION FIELD principal")
    ),
    "no partition field": Change(("{metrics} DROP PARTITION FIELD window_start_day",)),
    "partitions of the keys by another field": Change(
        ("{keys} REPLACE PARTITION FIELD committed_at_day WITH bucket(4, idempotency_key)",)
    ),
    "a sort order": Change(("{commits} WRITE ORDERED BY principal, at",)),
    "format version 3": Change(
        ("{commits} SET TBLPROPERTIES ('format-version' = '3')", "{metrics} SET TBLPROPERTIES ('format-version' = '3')")
    ),
}
FULL = ("a column of the commits of another name", "commits")
MATRIX = [
    ("a column of a team's commits more", "created"),
    ("partitions of the commits by another field", "commits"),
    *((name, STEPS[at % len(STEPS)]) for number, name in enumerate(CHANGES) for at in (number, number + 3)),
]

NAMES = [
    "commits",
    *(pytest.param(name, marks=pytest.mark.matrix) for name in ("metrics", "keys", "contracts", "ours")),
]


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> World:
    return filled(spark, fresh(), monkeypatch)


def tables_of(world: World) -> dict[str, str]:
    names = {"commits": "iceberg_commits", "metrics": "agent_write_metrics", "keys": "agent_dedup_log"}
    names["contracts"] = "contract_history"
    return {short: f"{world.system}.{name}" for short, name in names.items()} | {
        "ours": f"{world.system}_ours.iceberg_commits"
    }


def more(world: World) -> None:
    world.log.add("direct", minute=1, key_hash=f"n{len(world.log.rows)}")  # into a window that was counted
    for minute in (2, 7, 12):
        world.log.add("appended", minute=minute, key_hash=f"k{len(world.log.rows)}")
    world.log.add("rebased", minute=13 + len(world.log.rows), key_hash="m")  # a retry
    world.log.contract("agents", f"version: 1 # {len(world.log.rows)}")


@pytest.mark.parametrize(
    ("name", "step"),
    [FULL, *(pytest.param(*each, marks=pytest.mark.matrix) for each in dict.fromkeys(MATRIX) if each != FULL)],
)
def test_what_changes_under_an_export_loses_and_doubles_nothing(world: World, name: str, step: str) -> None:
    change, tables = CHANGES[name], tables_of(world)
    world.run(lambda _: None, TEAM)
    more(world)
    rules: list[str | None] = []
    if step == BEFORE:
        alter(world.spark, change.under_way, tables)
        rules.append(rule_of(lambda: world.run(lambda _: None, TEAM)))
        assert rules == [change.refused]
    else:
        hook = once(step, lambda: alter(world.spark, change.under_way, tables))
        rules.append(rule_of(lambda: world.run(hook, TEAM)))
    more(world)
    rules.append(rule_of(lambda: world.run(lambda _: None, TEAM)))
    assert set(rules) <= {None, change.refused}
    alter(world.spark, change.after, tables)
    world.run(lambda _: None, TEAM)
    world.check()
    keys = world.table("agent_dedup_log", "idempotency_key", "attempt_id")
    ids = [r["id"] for r in world.log.rows if r["outcome"] in ("direct", "rebased", "appended") and r["key_hash"]]
    assert sorted(number for _, number in keys) == ids
    world.system += "_ours"
    assert world.table("iceberg_commits", "attempt_id") == [(row["id"],) for row in world.log.rows]
    world.check_metrics("agent_write_metrics", world.log.rows)
    assert len(world.table("contract_history", "contract", "version")) == 3
    assert len(world.table("agent_dedup_log", "idempotency_key")) == len(ids)
    world.system = world.system.removesuffix("_ours")
    assert world.run(lambda _: None, TEAM) == Exported(0, 0, 0, 0, 0)


@pytest.mark.parametrize("table", NAMES)
def test_a_column_that_was_dropped_is_not_added_again_without_a_word(world: World, table: str) -> None:
    """Its values are gone, and what follows from them would be wrong."""
    world.run(lambda _: None, TEAM)
    column = {"metrics": "retries INT", "contracts": "message STRING"}.get(table, "contract STRING")
    column = column.replace("INT", "BIGINT") if table == "metrics" else column
    alter(world.spark, (f"{{{table}}} DROP COLUMN {column.partition(' ')[0]}",), tables_of(world))
    assert rule_of(lambda: world.run(lambda _: None, TEAM)) == "system.columns"
    alter(world.spark, (f"{{{table}}} ADD COLUMN {column}",), tables_of(world))  # as it was told
    more(world)
    assert world.run(lambda _: None, TEAM).attempts == 5


@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_was_dropped_is_written_again(world: World, name: str) -> None:
    world.run(lambda _: None, TEAM)
    more(world)
    table = tables_of(world)[name]
    assert rule_of(lambda: world.run(once("contracts", lambda: world.spark.sql(f"DROP TABLE {table}")), TEAM)) in (
        None,
        "table.exists",
    )
    world.run(lambda _: None, TEAM)
    world.run(lambda _: None, TEAM)
    world.check()
    world.system += "_ours"
    assert world.table("iceberg_commits", "attempt_id") == [(row["id"],) for row in world.log.rows]
    world.check_metrics("agent_write_metrics", world.log.rows)

"""Tables that change under a running job: schemas and partitions of log and target, at each step of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from icetower.errors import IcetowerError
from tests.pipelines.wal_world import World, once

pytestmark = pytest.mark.spark

STEPS = ["planned", "rejections", "committed", "keys"]


@dataclass(frozen=True)
class Change:
    """Of tables, as SQL.

    Attributes:
        under_way: run in the middle of a batch.
        after: run when the batch has ended, so that log and target fit again.
        column: how the amount is named in the end.
        refused: the rule that refuses until they fit again; None: nothing is refused.
    """

    under_way: tuple[str, ...]
    after: tuple[str, ...] = ()
    column: str = "amount"
    refused: str | None = None


CHANGES = {
    "a column more in both": Change(("{target} ADD COLUMN more STRING", "{wal} ADD COLUMN more STRING")),
    "a column more in the target first": Change(
        ("{target} ADD COLUMN more STRING",), ("{wal} ADD COLUMN more STRING",), refused="wal.columns"
    ),
    "a column more in the log first": Change(
        ("{wal} ADD COLUMN more STRING",), ("{target} ADD COLUMN more STRING",), refused="wal.columns"
    ),
    "a column of another name": Change(
        ("{target} RENAME COLUMN amount TO price",), ("{wal} RENAME COLUMN amount TO price",), "price", "wal.columns"
    ),
    "a wider type": Change(
        ("{target} ALTER COLUMN amount TYPE DECIMAL(11,2)", "{wal} ALTER COLUMN amount TYPE DECIMAL(11,2)")
    ),
    "a partition field more": Change(("{target} ADD PARTITION FIELD bucket(4, id)",)),
    "hours in place of days": Change(("{target} REPLACE PARTITION FIELD d_day WITH hours(at)",)),
    "a partition field of the log more": Change(("{wal} ADD PARTITION FIELD days(at)",)),
    "format version 3": Change(
        ("{target} SET TBLPROPERTIES ('format-version' = '3')", "{wal} SET TBLPROPERTIES ('format-version' = '3')")
    ),
}


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str]) -> World:
    return World(spark, fresh())


def alter(world: World, statements: tuple[str, ...]) -> None:
    for statement in statements:
        world.spark.sql("ALTER TABLE " + statement.format(target=world.target, wal=world.wal))


FULL = ("a column of another name", "rejections")
MATRIX = [
    ("a column more in both", "planned"),
    ("a column more in the target first", "rejections"),
    ("a column more in the log first", "committed"),
    *((name, STEPS[at % len(STEPS)]) for number, name in enumerate(CHANGES) for at in (number, number + 1)),
]


@pytest.mark.parametrize(
    ("name", "step"),
    [FULL, *(pytest.param(*each, marks=pytest.mark.matrix) for each in dict.fromkeys(MATRIX) if each != FULL)],
)
def test_what_changes_in_the_middle_of_a_batch_loses_and_doubles_nothing(world: World, name: str, step: str) -> None:
    change = CHANGES[name]
    world.append((1, 1, "k1", "web"), (2, 2, "k2", "till"), (3, 3, "k3", "web"))  # the last one is rejected
    rules: list[str] = []

    def run() -> None:
        try:
            world.run(hook)
        except IcetowerError as error:
            rules.append(error.rule)

    hook = once(step, lambda: alter(world, change.under_way))
    run()
    world.spark.sql(
        f"INSERT INTO {world.wal} (id, at, _idempotency_key, _agent) VALUES "
        "(4, timestamp'2017-01-02 05:00:00', 'k4', 'web'), (1, timestamp'2017-01-01 05:00:00', 'k1', 'web')"
    )
    run()
    assert set(rules) <= {change.refused}
    alter(world, change.after)
    for _ in range(3):
        world.run()
    found = [(row.id, row[change.column], row._idempotency_key) for row in world.spark.table(world.target).collect()]
    paid = [(row[0], None if row[1] is None else str(row[1]), row[2]) for row in sorted(found)]
    assert paid == [(1, "1.10", "k1"), (2, "2.10", "k2"), (4, None, "k4")]
    applied = {row.batch for row in world.log("wal_mediations")}
    assert [row.idempotency_key for row in world.log("wal_rejections") if row.batch in applied] == ["k3"]
    assert sorted(row.idempotency_key for row in world.log("agent_dedup_log")) == ["k1", "k2", "k4"]

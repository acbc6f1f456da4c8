"""Deduplication by row while the table and the log of keys change: before a run, and between its steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines.dedup_staging import forward
from icetower.pipelines.dedup_verify import verify
from tests.pipelines.evolution import BEFORE, Change, alter, rule_of
from tests.pipelines.test_dedup import Place, Staged
from tests.pipelines.wal_world import once

pytestmark = pytest.mark.spark

STEPS = [BEFORE, "read", "keys", "written", "committed"]

CHANGES = {
    "a column more": Change(("{t} ADD COLUMN more STRING",)),
    "a column less": Change(("{t} DROP COLUMN amount",), names={"amount": ""}),
    "a column of another name": Change(("{t} RENAME COLUMN amount TO price",), names={"amount": "price"}),
    "a wider type": Change(("{t} ALTER COLUMN amount TYPE BIGINT",)),
    "columns in another order": Change(("{t} ALTER COLUMN _idempotency_key FIRST",)),
    "a nested field more": Change(("{t} ADD COLUMN place.floor INT",)),
    "keys of another name": Change(
        ("{t} RENAME COLUMN _idempotency_key TO k",), ("{t} RENAME COLUMN k TO _idempotency_key",), "dedup.table"
    ),
    "a partition field more": Change(("{t} ADD PARTITION FIELD bucket(4, id)",)),
    "partitions by key": Change(("{t} ADD PARTITION FIELD _idempotency_key",)),
    "another partition field": Change(("{t} REPLACE PARTITION FIELD day WITH truncate(2, id)",)),
    "no partition field": Change(("{t} DROP PARTITION FIELD day",)),
    "a sort order": Change(("{t} WRITE ORDERED BY id",)),
    "format version 3": Change(("{t} SET TBLPROPERTIES ('format-version' = '3')",)),
    "a column of the log more": Change(("{log} ADD COLUMN more STRING",)),
    "another partition field of the log": Change(
        ("{log} REPLACE PARTITION FIELD committed_at_day WITH bucket(4, idempotency_key)",)
    ),
    "a column of the log of another name": Change(
        ("{log} RENAME COLUMN snapshot_id TO snapshot",),
        ("{log} RENAME COLUMN snapshot TO snapshot_id",),
        "system.columns",
    ),
    "a column of the log less": Change(
        ("{log} DROP COLUMN source",), ("{log} ADD COLUMN source STRING",), "system.columns"
    ),
    "the keys of the log of another name": Change(
        ("{log} RENAME COLUMN idempotency_key TO k",), ("{log} RENAME COLUMN k TO idempotency_key",), "system.columns"
    ),
}
FULL = ("no partition field", "written", 3)
MATRIX = [
    ("keys of another name", BEFORE, 2),
    ("format version 3", "written", 2),
    ("a column of the log of another name", "read", 3),
    *(
        (name, STEPS[at % len(STEPS)], 2 + at % 2)
        for number, name in enumerate(CHANGES)
        for at in (0, number, number + 3)
    ),
]


class Evolving(Place):
    def __init__(self, spark: SparkSession, namespace: str, version: int) -> None:
        super().__init__(spark, namespace, version)
        self.sql("ALTER TABLE {t} ADD COLUMN place STRUCT<shop: INT>")
        self.run()
        self.tables = {"t": self.table, "log": f"{self.system}.agent_dedup_log"}

    def insert(self, *rows: tuple[int, str | None, int]) -> None:
        """Into the columns that there are, whatever they are called."""
        there = self.spark.table(self.table).columns
        values: list[str] = []
        for i, key, amount in rows:
            keyed = "NULL" if key is None else repr(key)
            known = {
                "id": i,
                "day": 2 - i % 2,
                "amount": amount,
                "price": amount,
                "_idempotency_key": keyed,
                "k": keyed,
            }
            values.append(f"({', '.join(str(known.get(name, 'NULL')) for name in there)})")
        self.spark.sql(f"INSERT INTO {self.table} VALUES {', '.join(values)}")

    def found(self, change: Change) -> list[tuple[int, str | None, int | None]]:
        rows = [row.asDict() for row in self.spark.table(self.table).collect()]
        amount = change.names.get("amount", "amount")
        return sorted(((r["id"], r["_idempotency_key"], r.get(amount)) for r in rows), key=str)


def test_rows_of_partitions_whose_column_is_gone_are_deleted_once_they_are_written_anew(
    spark: SparkSession, fresh: Callable[[], str]
) -> None:
    """Iceberg takes such deletes, and then nobody can read the table any more."""
    place = Evolving(spark, fresh(), 3)
    place.insert((1, "a", 1), (2, "b", 1))
    place.run()
    place.insert((1, "a", 2))
    dropped = Change(("{t} DROP PARTITION FIELD day", "{t} DROP COLUMN day"))
    hook = once("written", lambda: alter(spark, dropped.under_way, place.tables))
    assert rule_of(lambda: place.run(hook)) == "dedup.partitions"
    place.insert((2, "b", 2), (3, "c", 1))
    assert rule_of(place.run) == "dedup.partitions"
    assert len(place.found(dropped)) == 5
    place.compact()
    assert place.run().removed == 2
    assert place.found(dropped) == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]


def test_keys_that_were_renamed_back_without_a_commit_are_found_at_the_head(
    spark: SparkSession, fresh: Callable[[], str]
) -> None:
    """The head has the schema of its own time, and a column that was added later has another one's name there."""
    place = Evolving(spark, fresh(), 2)
    place.insert((1, "a", 1), (2, "b", 1))
    place.run()
    place.sql("ALTER TABLE {t} RENAME COLUMN _idempotency_key TO k")
    place.insert((1, "a", 2), (3, "c", 1))
    assert rule_of(lambda: verify(spark, place.target)) == "dedup.table"
    place.sql("ALTER TABLE {t} RENAME COLUMN k TO _idempotency_key")
    assert place.run().removed == 1
    assert verify(spark, place.target).orphans == ()
    place.sql("ALTER TABLE {t} RENAME COLUMN _idempotency_key TO k")
    place.sql("ALTER TABLE {t} ADD COLUMN _idempotency_key STRING")
    place.insert((4, "d", 1))
    place.run()
    place.sql("UPDATE {t} SET _idempotency_key = 'b' WHERE id = 3")
    place.insert((5, "a", 5), (6, "d", 1))
    place.run()
    place.run()
    assert sorted(row.id for row in spark.table(place.table).collect()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "step", "version"),
    [FULL, *(pytest.param(*each, marks=pytest.mark.matrix) for each in dict.fromkeys(MATRIX) if each != FULL)],
)
def test_what_changes_under_a_run_hides_no_copy_and_removes_no_first_one(
    spark: SparkSession, fresh: Callable[[], str], name: str, step: str, version: int
) -> None:
    place, change = Evolving(spark, fresh(), version), CHANGES[name]
    rules: list[str | None] = []
    place.insert((1, "a", 1), (2, "b", 1), (4, None, 1))
    place.run()
    place.insert((1, "a", 2), (5, "c", 1))
    if step == BEFORE:
        alter(spark, change.under_way, place.tables)
        rules.append(rule_of(place.run))
        assert rules == [change.refused]
    else:
        rules.append(rule_of(lambda: place.run(once(step, lambda: alter(spark, change.under_way, place.tables)))))
    place.sql("UPDATE {t} SET id = id + 10 WHERE id = 2")
    place.insert((5, "c", 3), (7, "d", 1), (2, "b", 9))
    rules.append(rule_of(place.run))
    assert set(rules) <= {None, change.refused}
    alter(spark, change.after, place.tables)
    place.sql("UPDATE {t} SET id = id + 10 WHERE id = 7")
    place.insert((7, "d", 2), (9, "e", 1))
    for _ in range(3):
        place.run()
    amount = None if change.names.get("amount") == "" else 1
    assert place.found(change) == sorted(
        [(1, "a", amount), (12, "b", amount), (4, None, amount), (5, "c", amount), (17, "d", amount), (9, "e", amount)],
        key=str,
    )
    assert place.log() == ["a", "b", "c", "d", "e"]
    assert place.run().status == "idle"


@pytest.mark.parametrize(
    "step",
    ["keys", *(pytest.param(step, marks=pytest.mark.matrix) for step in (BEFORE, "read", "written", "committed"))],
)
def test_of_a_table_that_was_made_anew_no_first_copy_goes(
    spark: SparkSession, fresh: Callable[[], str], step: str
) -> None:
    """It has the name of the old one, and the log has the same keys for that."""
    place = Place(spark, fresh())

    def anew() -> None:
        spark.sql(f"DROP TABLE {place.table}")
        columns = "id BIGINT, day INT, amount INT, _idempotency_key STRING"
        spark.sql(f"CREATE TABLE {place.table} ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
        place.land((1, "a", 7), (2, "b", 7))
        place.land((1, "a", 8))

    place.land((1, "a", 1), (2, "b", 1))
    place.run()
    place.land((1, "a", 2), (5, "c", 1))
    if step == BEFORE:
        anew()
    else:
        assert rule_of(lambda: place.run(once(step, anew))) in (None, "upstream", "commit.stale")
    for _ in range(2):
        place.run()
    assert place.rows() == [(1, "a", 7), (2, "b", 7)]


STAGING = {
    "keys of another name in the staging table": Change(
        ("{staging} RENAME COLUMN _idempotency_key TO k",),
        ("{staging} RENAME COLUMN k TO _idempotency_key",),
        "wal.columns",
    ),
    "a column more": Change(("{target} ADD COLUMN more STRING", "{staging} ADD COLUMN more STRING")),
    "a partition field more": Change(("{staging} ADD PARTITION FIELD bucket(2, id)",)),
    "another order of columns": Change(("{staging} ALTER COLUMN _agent FIRST", "{target} ALTER COLUMN amount FIRST")),
    "another partition field of the log of keys": Change(("{log} DROP PARTITION FIELD committed_at_day",)),
    "a column of the log of keys of another name": Change(
        ("{log} RENAME COLUMN table_uuid TO u",), ("{log} RENAME COLUMN u TO table_uuid",), "system.columns"
    ),
}
STAGING_STEPS = [BEFORE, "planned", "committed", "discarding", "discarded", "keys"]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("keys of another name in the staging table", "committed"),
        *(
            pytest.param(name, STAGING_STEPS[at % len(STAGING_STEPS)], marks=pytest.mark.matrix)
            for number, name in enumerate(STAGING)
            for at in (number, number + 3)
        ),
    ],
)
def test_staging_forwards_each_key_once_whatever_changes(
    spark: SparkSession, fresh: Callable[[], str], name: str, step: str
) -> None:
    place, change = Staged(spark, fresh()), STAGING[name]
    tables = {"target": place.target, "staging": place.staging, "log": f"{place.job.system}.agent_dedup_log"}
    place.send((1, "a"), (2, "b"))
    forward(spark, place.job)
    place.send((1, "a"), (3, "c"))
    rules: list[str | None] = []
    if step == BEFORE:
        alter(spark, change.under_way, tables)
        rules.append(rule_of(lambda: forward(spark, place.job)))
        assert rules == [change.refused]
    else:
        hook = once(step, lambda: alter(spark, change.under_way, tables))
        rules.append(rule_of(lambda: forward(spark, place.job, after=hook)))
    rules.append(rule_of(lambda: forward(spark, place.job)))
    assert set(rules) <= {None, change.refused}
    alter(spark, change.after, tables)
    spark.sql(
        f"INSERT INTO {place.staging} (id, amount, _idempotency_key, _agent) "
        "VALUES (3, 1, 'c', 'web'), (4, 1, 'd', 'web')"
    )
    while forward(spark, place.job).status != "idle":
        pass
    assert place.keys(place.target) == ["a", "b", "c", "d"]
    assert place.keys(place.staging) == ["a", "b", "c", "d"]


@pytest.mark.matrix
@pytest.mark.parametrize("statement", ["DROP COLUMN _idempotency_key", "RENAME COLUMN _idempotency_key TO old"])
def test_rows_whose_keys_were_dropped_stay(spark: SparkSession, fresh: Callable[[], str], statement: str) -> None:
    place = Evolving(spark, fresh(), 3)
    place.insert((1, "a", 1))
    place.run()
    place.insert((1, "a", 2), (3, "c", 1))
    alter(spark, (f"{{t}} {statement}",), place.tables)
    assert rule_of(place.run) == "dedup.table"
    alter(spark, ("{t} ADD COLUMN _idempotency_key STRING",), place.tables)
    place.insert((5, "a", 3))
    place.insert((7, "d", 1))
    place.insert((7, "d", 2))
    place.run()
    place.run()
    assert sorted(row.id for row in spark.table(place.table).collect()) == [1, 1, 3, 5, 7]

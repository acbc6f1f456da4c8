"""Deduplication of rows that agents wrote directly, against real tables of both formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from icetower.errors import BadRequest
from icetower.pipelines.dedup import Target, Validation, validate
from icetower.pipelines.dedup_staging import forward
from icetower.pipelines.dedup_verify import verify
from icetower.pipelines.tables import iceberg_table, load_metadata
from icetower.pipelines.wal_mediator import Job
from tests.pipelines.wal_world import Crash, crash_at, once

pytestmark = pytest.mark.spark

MERGE_ON_READ = ", ".join(f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge"))


class Place:
    """A table that agents write to, in a namespace of its own."""

    def __init__(self, spark: SparkSession, namespace: str, version: int = 3, properties: str = MERGE_ON_READ) -> None:
        self.spark, self.table, self.system = spark, f"{namespace}.t", f"{namespace}.system"
        spark.sql(
            f"CREATE TABLE {self.table} (id BIGINT, day INT, amount INT, _idempotency_key STRING) USING iceberg "
            f"PARTITIONED BY (day) TBLPROPERTIES ('format-version' = '{version}', {properties})"
        )
        self.target = Target(self.table, self.system)

    def land(self, *rows: tuple[int, str | None, int]) -> None:
        """One commit of (id, key, amount); the day is 1 for odd ids, else 2."""
        values = (f"({i}, {2 - i % 2}, {amount}, {'NULL' if key is None else repr(key)})" for i, key, amount in rows)
        self.spark.sql(f"INSERT INTO {self.table} VALUES {', '.join(values)}")

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(t=self.table))

    def compact(self) -> None:
        name = self.table.partition(".")[2]
        self.spark.sql(
            f"CALL tower.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
        )

    def expire(self) -> None:
        expire = iceberg_table(self.spark, self.table).expireSnapshots()
        for snapshot in load_metadata(self.spark, self.table)["snapshots"][:-1]:
            expire = expire.expireSnapshotId(snapshot["snapshot-id"])
        expire.commit()

    def run(self, after: Callable[[str], None] | None = None, **changes: Any) -> Validation:
        target = replace(self.target, **changes)
        return validate(self.spark, target) if after is None else validate(self.spark, target, after=after)

    def rows(self) -> list[tuple[int, str | None, int]]:
        found = self.spark.table(self.table).collect()
        return sorted(((r.id, r._idempotency_key, r.amount) for r in found), key=str)

    def log(self) -> list[str]:
        return sorted(r.idempotency_key for r in self.spark.table(f"{self.system}.agent_dedup_log").collect())


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def place(spark: SparkSession, fresh: Callable[[], str], request: pytest.FixtureRequest) -> Place:
    return Place(spark, fresh(), request.param)


def test_all_but_the_copy_that_landed_first_go(place: Place) -> None:
    place.land((1, "a", 1), (2, "a", 1), (3, "b", 1), (4, None, 1), (4, None, 1))
    first = place.run()
    assert (first.status, first.read, first.keys, first.removed, first.unkeyed) == ("validated", 5, 2, 0, 2)
    assert place.run().status == "idle"
    place.land((1, "a", 1), (2, "a", 1))  # sent again, after the first was validated
    place.land((5, "c", 1), (7, "c", 1))
    place.land((5, "c", 2), (7, "c", 2))  # sent again, before
    place.land((3, "b", 9), (9, "d", 1), (4, None, 1))
    second = place.run()
    assert (second.read, second.keys, second.removed, second.untold) == (9, 2, 5, 0)
    kept = [(1, "a", 1), (2, "a", 1), (3, "b", 1), (5, "c", 1), (7, "c", 1), (9, "d", 1), *[(4, None, 1)] * 3]
    assert place.rows() == sorted(kept, key=str)
    assert place.log() == ["a", "b", "c", "d"]
    files = place.spark.sql(f"SELECT content, file_format FROM {place.table}.delete_files").collect()
    version = load_metadata(place.spark, place.table)["format-version"]
    assert {(file.content, file.file_format) for file in files} == {(1, "PUFFIN" if version == 3 else "PARQUET")}
    assert place.run().status == "idle"


def test_rows_that_were_changed_are_no_copies(place: Place) -> None:
    place.land((1, "a", 1), (2, "a", 1), (3, "b", 1))
    place.run()
    place.sql("UPDATE {t} SET amount = 7 WHERE id = 1")
    place.sql("UPDATE {t} SET amount = 8 WHERE id = 2")
    place.sql(
        "MERGE INTO {t} t USING (SELECT 3 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET amount = 9 "
        "WHEN NOT MATCHED THEN INSERT (id, day, amount, _idempotency_key) VALUES (3, 1, 9, 'b')"
    )
    place.compact()
    assert place.run().removed == 0
    assert place.rows() == [(1, "a", 7), (2, "a", 8), (3, "b", 9)]
    place.land((1, "a", 1), (2, "a", 1))
    assert place.run().removed == 2
    assert place.rows() == [(1, "a", 7), (2, "a", 8), (3, "b", 9)]


def test_rows_that_were_given_one_key_by_an_update_are_no_copies_of_each_other(place: Place) -> None:
    """They landed with different commits, under other keys. What is appended under their key afterwards is a copy."""
    place.land((1, "a", 1))
    place.land((3, "b", 1))
    place.run()
    place.sql("UPDATE {t} SET _idempotency_key = 'k', amount = 2 WHERE id IN (1, 3)")
    place.run()
    place.land((5, "k", 1))
    place.land((7, "k", 1))
    place.run()
    assert [row for row in place.rows() if row[0] in (1, 3)] == [(1, "k", 2), (3, "k", 2)]
    assert len(place.rows()) < 4


def test_a_row_that_an_update_gave_the_key_of_another_is_no_copy_of_it(place: Place) -> None:
    place.land((1, "a", 1))
    place.run()
    place.land((3, "b", 5))
    place.sql("UPDATE {t} SET _idempotency_key = 'a' WHERE id = 3")
    place.run()
    assert place.rows() == [(1, "a", 1), (3, "a", 5)]


@pytest.mark.parametrize(
    "step",
    ["written", *(pytest.param(step, marks=pytest.mark.sharp) for step in ("read", "keys", "committed"))],
)
def test_a_crash_at_any_step_loses_and_removes_nothing_twice(place: Place, step: str) -> None:
    place.land((1, "a", 1), (2, "b", 1))
    place.run()
    place.land((1, "a", 2), (3, "c", 1))
    with pytest.raises(Crash):
        place.run(crash_at(step))
    place.land((3, "c", 2), (2, "b", 3))
    place.run()
    assert place.rows() == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
    assert place.log() == ["a", "b", "c"]
    assert place.run().status == "idle"


def test_two_runs_at_once_remove_each_copy_once(place: Place) -> None:
    place.land((1, "a", 1), (2, "b", 1))
    place.land((1, "a", 2))
    others: list[Validation] = []
    mine = place.run(once("written", lambda: others.append(place.run())))
    assert (others[0].removed, mine.status) == (1, "idle")
    assert place.rows() == [(1, "a", 1), (2, "b", 1)]


MEANWHILE = {
    # what others do between the read and the commit → the rows after the run, and after the next
    "append": ("INSERT INTO {t} VALUES (9, 1, 5, 'z')", [(1, "a", 1), (9, "z", 5)]),
    "another copy": ("INSERT INTO {t} VALUES (1, 1, 3, 'a')", [(1, "a", 1)]),
    "update of both": ("UPDATE {t} SET amount = amount + 10 WHERE id = 1", [(1, "a", 11)]),
    "delete of the first": ("DELETE FROM {t} WHERE amount = 1", [(1, "a", 2)]),
    "delete of the copy": ("DELETE FROM {t} WHERE amount = 2", [(1, "a", 1)]),
    "delete of both": ("DELETE FROM {t} WHERE id = 1", []),
    "merge into the first": (
        "MERGE INTO {t} t USING (SELECT 1) s ON t.amount = 1 WHEN MATCHED THEN UPDATE SET amount = 7",
        [(1, "a", 7)],
    ),
    "compaction": ("compact", [(1, "a", 1)]),
}


@pytest.mark.parametrize("what", [*MEANWHILE])
def test_what_others_commit_between_the_read_and_the_commit_is_not_lost(place: Place, what: str) -> None:
    """`update of both` in version 2 rewrites both rows with one commit, so which landed first is lost (R12)."""
    statement, expected = MEANWHILE[what]
    place.land((1, "a", 1))
    place.run()
    place.land((1, "a", 2))
    work = place.compact if statement == "compact" else lambda: place.sql(statement)
    place.run(once("written", work))
    last = place.run()
    rewritten = (
        what in ("update of both", "compaction") and load_metadata(place.spark, place.table)["format-version"] == 2
    )
    if rewritten and len(place.rows()) == 2:
        assert last.untold == 2 or last.status == "idle"
    else:
        assert place.rows() == expected
    assert place.run().status == "idle"


def test_rows_outlive_compaction_rollback_expiry_and_renaming(place: Place) -> None:
    place.land((1, "a", 1), (2, "b", 1))
    place.run()
    head = load_metadata(place.spark, place.table)["current-snapshot-id"]
    place.land((1, "a", 2), (3, "c", 1))
    assert place.run().removed == 1
    name = place.table.partition(".")[2]
    place.spark.sql(f"CALL tower.system.rollback_to_snapshot('{name}', {head})")
    place.land((3, "c", 5), (2, "b", 2))  # c was rolled back: it lands for the first time
    assert place.run().removed == 1
    place.compact()
    place.land((2, "b", 4))
    place.compact()
    place.expire()
    place.run()
    assert place.rows()[0] == (1, "a", 1)
    place.land((1, "a", 9))
    assert place.run().removed == 1
    assert (3, "c", 5) in place.rows()


def test_tables_that_cannot_be_validated_are_refused(spark: SparkSession, fresh: Callable[[], str]) -> None:
    place = Place(spark, fresh(), 2)
    place.sql("ALTER TABLE {t} DROP COLUMN _idempotency_key")
    with pytest.raises(BadRequest, match="ADD COLUMN _idempotency_key STRING"):
        place.run()


def test_keys_whose_rows_are_gone_are_found(spark: SparkSession, fresh: Callable[[], str]) -> None:
    place = Place(spark, fresh())
    place.land((1, "a", 1), (2, "b", 1))
    head = load_metadata(spark, place.table)["current-snapshot-id"]
    place.run()
    place.land((3, "c", 1), (4, "d", 1))
    place.run()
    assert (clean := verify(spark, place.target)).keys == 4
    assert clean.orphans == ()
    ours = load_metadata(spark, place.table)["snapshots"][-2]["snapshot-id"]
    place.spark.sql(f"CALL tower.system.rollback_to_snapshot('{place.table.partition('.')[2]}', {head})")
    (rolled_back,) = verify(spark, place.target).orphans
    assert (rolled_back.reason, rolled_back.snapshot, rolled_back.keys) == ("rolled-back", ours, 2)
    place.sql("INSERT INTO {t} VALUES (5, 1, 1, 'e')")
    place.expire()  # of the commits that landed nobody knows any more but by their rows
    found = {each.reason: (each.keys, each.certain) for each in verify(spark, place.target).orphans}
    assert found == {"no-rows": (2, False)}
    paths = [row.file_path for row in spark.sql(f"SELECT file_path FROM {place.table}.data_files").collect()]
    Path(urlparse(paths[0]).path).unlink()
    missing = [each for each in verify(spark, place.target).orphans if each.reason == "file-missing"]
    assert [each.files for each in missing] == [(paths[0],)]


class Staged:
    """A staging table with a partition for each agent, and its target."""

    def __init__(self, spark: SparkSession, namespace: str) -> None:
        self.spark, self.target, self.staging = spark, f"{namespace}.t", f"{namespace}.t_staging"
        columns = "id BIGINT, amount INT, _idempotency_key STRING"
        modes = f"TBLPROPERTIES ('format-version' = '3', {MERGE_ON_READ})"
        spark.sql(f"CREATE TABLE {self.target} ({columns}) USING iceberg {modes}")
        spark.sql(
            f"CREATE TABLE {self.staging} ({columns}, _agent STRING) USING iceberg PARTITIONED BY (_agent) {modes}"
        )
        self.job = Job(self.staging, self.target, None, f"{namespace}.system")

    def send(self, *rows: tuple[int, str]) -> None:
        values = ", ".join(f"({i}, 1, '{key}', 'web')" for i, key in rows)
        self.spark.sql(f"INSERT INTO {self.staging} VALUES {values}")

    def keys(self, table: str) -> list[str]:
        return sorted(row._idempotency_key for row in self.spark.table(table).collect())


@pytest.mark.parametrize(
    "step",
    ["keys", *(pytest.param(step, marks=pytest.mark.sharp) for step in ("committed", "discarding", "discarded"))],
)
def test_staging_forwards_what_is_new_and_discards_the_rest(
    spark: SparkSession, fresh: Callable[[], str], step: str
) -> None:
    place = Staged(spark, fresh())
    place.send((1, "a"), (2, "b"), (1, "a"))
    first = forward(spark, place.job)
    assert (first.applied, first.duplicates) == (2, 1)
    assert (place.keys(place.target), place.keys(place.staging)) == (["a", "b"], ["a", "b"])
    place.send((1, "a"), (3, "c"), (2, "b"))
    with pytest.raises(Crash):
        forward(spark, place.job, after=crash_at(step))
    place.send((3, "c"), (4, "d"))
    while forward(spark, place.job).status != "idle":
        pass
    assert place.keys(place.target) == ["a", "b", "c", "d"]
    assert place.keys(place.staging) == ["a", "b", "c", "d"]
    assert {row.file_format for row in spark.table(f"{place.staging}.delete_files").collect()} == {"PUFFIN"}


def test_rows_that_were_deleted_before_the_upgrade_to_version_3_stay_deleted(
    spark: SparkSession, fresh: Callable[[], str]
) -> None:
    """A position delete file of version 2 may be about several data files: a vector of one does not replace it."""
    place = Place(spark, fresh(), 2, f"{MERGE_ON_READ}, 'write.delete.granularity' = 'partition'")
    place.land((1, "a", 1), (3, "b", 1))
    place.land((1, "a", 1), (5, "c", 1), (7, "d", 1))
    place.land((9, "e", 1), (11, "f", 1))
    place.sql("DELETE FROM {t} WHERE id IN (7, 11)")
    assert spark.table(f"{place.table}.delete_files").count() == 1
    place.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")
    assert place.run().removed == 1
    assert place.rows() == sorted([(1, "a", 1), (3, "b", 1), (5, "c", 1), (9, "e", 1)], key=str)

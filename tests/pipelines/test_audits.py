"""Many tables side by side: histories that Spark itself has written, sound and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from icetower.audit.auditor import Options
from icetower.cli import audits
from icetower.cli.app import app
from icetower.pipelines.audits import TABLES, AuditSettings, audit_tables, heads

pytestmark = pytest.mark.spark


def written(spark: SparkSession, table: str, version: int, mode: str) -> None:
    """Every kind of statement, one after the other."""
    modes = ", ".join(f"'write.{command}.mode' = '{mode}'" for command in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, shop STRING) USING iceberg PARTITIONED BY (shop) "
        f"TBLPROPERTIES ('format-version' = '{version}', {modes}, 'commit.manifest.min-count-to-merge' = '3')"
    )
    for shop in ("a", "b", "a"):
        spark.sql(f"INSERT INTO {table} SELECT id, '{shop}' FROM range(20)")
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    spark.sql(f"UPDATE {table} SET shop = 'c' WHERE id = 5")
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id FROM range(18, 22)) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, shop) VALUES (s.id, 'b')"
    )
    spark.sql(f"DELETE FROM {table} WHERE id = 7")
    spark.sql(f"CALL tower.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL tower.system.rewrite_manifests(table => '{table}')")
    spark.sql(f"INSERT OVERWRITE {table} SELECT id, 'b' FROM range(4)")
    spark.sql(f"DELETE FROM {table} WHERE shop = 'a'")


def test_what_spark_writes_one_after_the_other_is_never_blamed(spark: SparkSession, fresh: Callable[[], str]) -> None:
    tables = [f"{fresh()}.t" for _ in range(3)]
    for table, (version, mode) in zip(
        tables, ((2, "merge-on-read"), (3, "merge-on-read"), (2, "copy-on-write")), strict=True
    ):
        written(spark, table, version, mode)
    rows = {
        row["table"]: row
        for row in audit_tables(heads(spark, tables), AuditSettings(Options(content=True)), side_by_side=2).collect()
    }
    assert set(rows) == set(tables)
    for name in tables:
        assert rows[name]["error"] is None
        assert rows[name]["violations"] == []
        assert rows[name]["snapshots"] >= 10
        assert not any("not known" in note for note in rows[name]["undeterminable"])


@pytest.fixture
def damaged_ones(spark: SparkSession) -> Iterator[list[str]]:
    """Tables that a test damages: they are dropped after it, since others look through all tables of the catalog."""
    tables: list[str] = []
    yield tables
    for table in tables:
        spark.sql(f"DROP TABLE {table}")


def damage(spark: SparkSession, table: str, damaged_ones: list[str]) -> str:
    """The table's oldest manifest is gone."""
    damaged_ones.append(table)
    lost = spark.sql(f"SELECT path FROM {table}.manifests ORDER BY added_snapshot_id").first()
    assert lost is not None
    Path(urlparse(lost["path"]).path).unlink()
    return lost["path"]


def of_three_appends(spark: SparkSession, table: str) -> str:
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg")
    for _ in range(3):
        spark.sql(f"INSERT INTO {table} VALUES (1)")
    return table


def test_one_table_that_is_damaged_and_some_that_are_gone_do_not_stop_the_others(
    spark: SparkSession, fresh: Callable[[], str], damaged_ones: list[str]
) -> None:
    sound, damaged = (of_three_appends(spark, f"{fresh()}.t") for _ in range(2))
    lost = damage(spark, damaged, damaged_ones)
    gone = spark.createDataFrame([("gone", "file:///nowhere/v1.metadata.json", None)], TABLES)
    tables = heads(spark, [sound, damaged, "tower.nowhere.t"]).union(gone)
    rows = {row["table"]: row for row in audit_tables(tables).collect()}
    assert (rows[sound]["violations"], rows[sound]["snapshots"], rows[sound]["error"]) == ([], 3, None)
    (violation,) = rows[damaged]["violations"]
    assert (violation["rule"], violation["verdict"]) == ("missing-manifest", "definite")
    assert violation["files"] == [lost]
    assert "does not exist" in rows["gone"]["error"]
    assert "no such table" in rows["tower.nowhere.t"]["error"]


def test_the_job_goes_on_from_its_checkpoints(
    spark: SparkSession,
    fresh: Callable[[], str],
    damaged_ones: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audits, "job_session", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    names = [of_three_appends(spark, f"{fresh()}.t").removeprefix("tower.") for _ in range(2)]

    def run(*words: str) -> tuple[int, dict[str, dict[str, object]]]:
        line = ["audits", "--uri", "http://127.0.0.1:9", "--checkpoints", str(tmp_path), *names, *words]
        done = CliRunner().invoke(app, line)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return done.exit_code, {each["table"]: each for each in found}

    status, found = run()
    assert (status, {each["snapshots"] for each in found.values()}) == (0, {3})
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json" for name in names}
    spark.sql(f"INSERT INTO tower.{names[0]} VALUES (2)")
    status, found = run()
    assert (status, [found[name]["snapshots"] for name in names]) == (0, [1, 0])
    status, found = run("nowhere.t")
    assert (status, found["nowhere.t"]["error"]) == (1, "there is no such table")
    damage(spark, f"tower.{names[1]}", damaged_ones)
    (tmp_path / f"{names[1]}.json").unlink()
    status, found = run()
    assert (status, len(found[names[1]]["violations"])) == (3, 1)  # type: ignore[arg-type]

"""Orphans: what nothing refers to is reported, with its writer; what anything refers to is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from bench.orphans import run as bench
from icetower.errors import NoSuchTable
from icetower.pipelines import orphans
from icetower.pipelines.orphans import find_orphans, with_place
from icetower.pipelines.tables import SNAPSHOT_PROPERTY, iceberg_table, jvm, load_metadata
from icetower.protocol.marks import GROUP_FILE
from tests.pipelines.clocks import Later

pytestmark = pytest.mark.spark


def test_l2_orphans_younger_than_a_day_are_found_and_everything_referenced_is_kept(
    spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{fresh()}.t"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, _agent STRING) USING iceberg PARTITIONED BY (_agent) "
        "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, 'web' FROM range(10)")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH aside")
    spark.sql(f"INSERT INTO {table}.branch_aside SELECT id, 'aside' FROM range(10, 20)")
    location = Path(urlparse(load_metadata(spark, table)["location"]).path)
    group = location / "metadata" / "_icetower-group-1-a.json"  # of the fast path: named in the summary (trap K1)
    group.write_bytes(b"12345")
    spark.conf.set(SNAPSHOT_PROPERTY + GROUP_FILE, group.as_uri())
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    spark.conf.unset(SNAPSHOT_PROPERTY + GROUP_FILE)
    spark.sql(f"CALL tower.system.compute_table_stats(table => '{table}')")
    spark.sql(f"CALL tower.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    hour_s = 3600
    assert find_orphans(spark, table, older_than_s=hour_s, ambient=Later(2 * hour_s)).collect() == []

    left = {
        location / "data" / "_agent=web" / "killed.parquet": "web",
        location / "data" / "agent=night%20shift" / "id_bucket=1" / "killed.parquet": "night shift",
        location / "data" / "nobody.parquet": None,
        location / "data" / "web-1" / "d_day=1" / "killed.parquet": "web-1",  # in its own place
        location / "data" / "0110" / "1010" / "killed.parquet": None,  # where files are spread
        location / "elsewhere" / "web-1" / "killed.parquet": None,
        location / "metadata" / "lost-m0.avro": None,
        location / "metadata" / "_icetower-group-2-b.json": None,
    }
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    for name, target in (("around", location), ("theirs", Path("/etc/hostname")), ("nowhere", Path("/nowhere"))):
        (location / "data" / name).symlink_to(target)
    neighbour = location.parent / f"{location.name}2" / "data" / "theirs.parquet"
    neighbour.parent.mkdir(parents=True)
    neighbour.write_bytes(b"1")

    found = find_orphans(spark, table, older_than_s=hour_s, ambient=Later(2 * hour_s)).collect()
    assert {Path(urlparse(row.path).path): row.agent for row in found} == left
    assert [row.agent for row in found if row.principal] == ["web-1"]  # by its place, not by a name in it
    assert {row.size_bytes for row in found} == {5}
    assert all(row.modified_at is not None for row in found)
    assert find_orphans(spark, table, older_than_s=hour_s).collect() == []  # a write under way
    for name in ("around", "theirs", "nowhere"):
        (location / "data" / name).unlink()
    monkeypatch.setattr(orphans, "_local", lambda _: None)  # as in a storage
    again = find_orphans(spark, table, older_than_s=hour_s, ambient=Later(2 * hour_s))
    assert sorted(map(tuple, again.collect())) == sorted(map(tuple, found))
    assert all(path.exists() for path in left)  # reported, not deleted


def test_a_table_that_is_not_there_is_named(spark: SparkSession, fresh: Callable[[], str]) -> None:
    with pytest.raises(NoSuchTable, match="no such table"):
        find_orphans(spark, f"{fresh()}.missing")


def test_a_file_that_is_committed_while_the_scan_runs_is_none(
    spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{fresh()}.t"
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg")
    spark.sql(f"INSERT INTO {table} VALUES (1)")
    handle = iceberg_table(spark, table)
    path = Path(urlparse(str(handle.location())).path) / "data" / "slow.parquet"
    path.write_bytes(b"12345")
    listed = orphans._list_files

    def commits(*arguments: Any) -> Any:
        found = listed(*arguments)
        builder = jvm(spark).org.apache.iceberg.DataFiles.builder(handle.spec()).withPath(path.as_uri())
        handle.newAppend().appendFile(builder.withFileSizeInBytes(5).withRecordCount(1).build()).commit()
        return found

    def names() -> list[str]:
        found = find_orphans(spark, table, older_than_s=3600, ambient=Later(7200)).collect()
        return [Path(row.path).name for row in found]

    assert names() == ["slow.parquet"]
    monkeypatch.setattr(orphans, "_list_files", commits)
    assert names() == []


def test_the_benchmark_finds_every_orphan_and_nothing_else(spark: SparkSession) -> None:
    """`make bench-orphans`, in short."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS tower.shop")
    figures = bench.measure(spark, bench.make_table(spark, 3_000), rounds=1)
    assert (figures.files, figures.orphans) == (3_000, 3)
    assert (figures.missed, figures.misattributed, figures.wrong) == (0, 0, 0)
    assert len(figures.ratio) == 1


def test_a_path_has_one_spelling(spark: SparkSession) -> None:
    spelled = {
        "file:/w/t/a.parquet": "/w/t/a.parquet",
        "file:///w/t/a.parquet": "/w/t/a.parquet",
        "/w/t//a.parquet": "/w/t/a.parquet",
        "/w/t/.a.parquet.crc": "/w/t/a.parquet",
        "file:///w//t/.a.b.crc": "/w/t/a.b",
        "s3a://b/t/a.parquet": "s3://b/t/a.parquet",
        "s3n://b/t///a.parquet": "s3://b/t/a.parquet",
        "s3://b//t/a.parquet": "s3://b/t/a.parquet",
        "gs://b/t/a.parquet": "gs://b/t/a.parquet",
        "gs://b/t/s3a:/a.parquet": "gs://b/t/s3a:/a.parquet",
        "/w/a//b/x://y": "/w/a/b/x://y",
        "x:///w": "x://w",
    }
    rows = with_place(spark.createDataFrame([(path,) for path in spelled], "path STRING")).collect()
    assert {row.path: row.place for row in rows} == spelled


def test_a_spelling_is_computed_once_for_each_path(spark: SparkSession) -> None:
    """Named within itself, the expression has hundreds of replacements, for each of a million paths."""
    rows = with_place(spark.createDataFrame([("/a",)], "path STRING"))
    joined = rows.join(rows.select("place"), "place", "left_anti")
    plan = joined._jdf.queryExecution().optimizedPlan().toString()  # pyright: ignore[reportPrivateUsage]
    assert 0 < plan.count("regexp_replace") <= 8, plan[:3000]

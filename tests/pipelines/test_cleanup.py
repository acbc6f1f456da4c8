"""Orphans end as the contract of whoever wrote them says; what anything refers to stays, whatever it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from icetower.contracts.document import load
from icetower.errors import UpstreamFailed
from icetower.pipelines import cleanup
from icetower.pipelines.cleanup import Clauses, Disposition, Orphan, clean
from icetower.pipelines.tables import iceberg_table, load_metadata
from tests.pipelines.clocks import Later

pytestmark = pytest.mark.spark

HOUR_S = 3600
LATER = Later(3 * HOUR_S)


def clauses(**principals: str) -> Clauses:
    """Contracts that grant everything, with what their principals' say of orphans and else."""
    text = "version: 1\nagent: {}\ntables: [{{table: '**', operations: [overwrite], partitions: all{}}}]\n{}\n"
    made: dict[str, Any] = {}
    for name, clause in principals.items():
        place = ", write_location: table" if name == "free" else ""
        made[f"{name}-1"] = load(text.format(name, place, clause), source=name)
    return Clauses(made)


DELETE = "orphans: {older_than: 2h, action: delete}"
WEB = clauses(web=DELETE)


@pytest.fixture
def table(spark: SparkSession, fresh: Callable[[], str]) -> Iterator[str]:
    """A table whose files so far lie in the place of web-1; dropped again, since the whole catalog is read."""
    name = f"{fresh()}.t"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT) USING iceberg "
        "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
    )
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.data.path' = '{data(spark, name)}/web-1')")
    yield name
    spark.sql(f"DROP TABLE {name}")


def data(spark: SparkSession, table: str) -> Path:
    return local(load_metadata(spark, table)["location"]) / "data"


def local(path: str) -> Path:
    return Path(urlparse(path).path)


def unset(spark: SparkSession, table: str) -> None:
    """From now on the place of web-1 is no more than a principal's own: the table's is above it."""
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('write.data.path')")


def left(path: Path) -> Path:
    """A file that a writer has left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")
    return path


def commit(spark: SparkSession, table: str, path: str) -> None:
    """An append that names a file, however its path is spelled."""
    handle = iceberg_table(spark, table)
    jvm: Any = spark._jvm
    made = jvm.org.apache.iceberg.DataFiles.builder(handle.spec()).withPath(path).withFormat("parquet")
    handle.newAppend().appendFile(made.withFileSizeInBytes(5).withRecordCount(1).build()).commit()


def ended(spark: SparkSession, table: str, said: Clauses = WEB, **how: Any) -> dict[Path, Orphan]:
    return {local(each.path): each for each in clean(spark, [table], said, ambient=LATER, **how)}


def test_an_orphan_ends_as_the_contract_of_whose_place_it_lies_in_says(spark: SparkSession, table: str) -> None:
    unset(spark, table)
    said = clauses(
        web=DELETE,
        night=DELETE.replace("2h", "4h"),
        careful=DELETE.replace("delete", "report"),
        silent="",
        shadowed=f"mode: shadow\n{DELETE}",
        free=DELETE,
    )
    place = data(spark, table)
    doomed = {
        left(place / "web-1" / name) for name in ("a.parquet", "id_bucket=1/b.parquet", "_agent=night-1/c.parquet")
    }
    reported = {
        left(place / path)
        for path in (
            "careful-1/a.parquet",
            "silent-1/a.parquet",
            "shadowed-1/a.parquet",
            "free-1/a.parquet",
            "stranger-1/a.parquet",
            "_agent=web-1/a.parquet",
            "a.parquet",
            "../metadata/web-1/lost-m0.avro",
        )
    }
    young = left(place / "night-1" / "a.parquet")
    reported = {path.resolve() for path in reported}

    would = ended(spark, table, said, older_than_s=HOUR_S, dry_run=True)
    assert {path for path, each in would.items() if each.fate is Disposition.TO_DELETE} == doomed
    assert {path for path, each in would.items() if each.fate is Disposition.REPORTED} == reported
    assert all(path.exists() for path in (*doomed, *reported, young))

    # Where no clause says it, the age that is asked for counts.
    done = ended(spark, table, said, older_than_s=4 * HOUR_S)
    assert {path: each.fate for path, each in done.items()} == {
        **dict.fromkeys(doomed, Disposition.DELETED),
        place / "careful-1" / "a.parquet": Disposition.REPORTED,
    }
    assert {path for path in (*doomed, *reported, young) if not path.exists()} == doomed
    assert {each.principal for each in done.values()} == {"web-1", "careful-1"}
    assert ended(spark, table, said, older_than_s=4 * HOUR_S).keys() == {place / "careful-1" / "a.parquet"}


def test_what_a_snapshot_a_branch_a_tag_or_statistics_refer_to_stays(spark: SparkSession, table: str) -> None:
    place = data(spark, table) / "web-1"
    spark.sql(f"INSERT INTO {table} SELECT id FROM range(10)")
    spark.sql(f"ALTER TABLE {table} CREATE TAG begun")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH aside")
    spark.sql(f"INSERT INTO {table}.branch_aside SELECT id FROM range(10, 20)")
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    deletes = {local(row.file_path) for row in spark.sql(f"SELECT file_path FROM {table}.delete_files").collect()}
    spark.sql(f"INSERT OVERWRITE {table} SELECT id FROM range(5)")
    aside, begun = (
        {
            local(row.file_path)
            for row in spark.sql(f"SELECT file_path FROM {table}.files VERSION AS OF '{ref}'").collect()
        }
        for ref in ("aside", "begun")
    )
    puffin = left(place / "statistics.puffin")
    head = load_metadata(spark, table)["current-snapshot-id"]
    jvm: Any = spark._jvm
    made = jvm.org.apache.iceberg.GenericStatisticsFile(head, f"file:{puffin}", 5, 5, jvm.java.util.ArrayList())
    iceberg_table(spark, table).updateStatistics().setStatistics(made).commit()
    unset(spark, table)
    files = {path for path in place.iterdir() if path.suffix in (".parquet", ".puffin")}
    assert files > {puffin, *deletes, *aside, *begun}
    assert ended(spark, table) == {}

    # Only that they are referred to had kept them: what is let go ends at last, and nothing else.
    spark.sql(f"ALTER TABLE {table} DROP BRANCH aside")
    spark.sql(f"ALTER TABLE {table} DROP TAG begun")
    handle = iceberg_table(spark, table)
    handle.updateStatistics().removeStatistics(head).commit()
    handle.expireSnapshots().expireOlderThan(LATER.now_ms()).cleanExpiredFiles(False).commit()
    live = {local(row.file_path) for row in spark.sql(f"SELECT file_path FROM {table}.files").collect()}
    done = ended(spark, table)
    gone = {path for path, each in done.items() if each.fate is Disposition.DELETED}
    assert gone == files - live
    assert {path for path in files if path.exists()} == live
    assert {each.fate for path, each in done.items() if path not in gone} <= {Disposition.REPORTED}
    assert spark.table(table).count() == 5


def test_what_another_table_or_another_spelling_names_is_kept(spark: SparkSession, table: str) -> None:
    unset(spark, table)
    place = data(spark, table) / "web-1"
    for name in ("dotted", "spaced out", "Cased", "versioned", "marked", "ended"):
        left(place / f"{name}.parquet")
    for spelling in (
        "./dotted.parquet",
        "spaced%20out.parquet",
        "cased.parquet",
        "versioned.parquet?versionId=a/b",
        "marked.parquet#1",
        "ended.parquet/.",
    ):
        commit(spark, table, f"file:{place}/{spelling}")
    other = table.removesuffix(".t") + ".u"
    spark.sql(f"CREATE TABLE {other} (id BIGINT) USING iceberg TBLPROPERTIES ('write.data.path' = '{place}')")
    spark.sql(f"INSERT INTO {other} SELECT id FROM range(5)")
    whose = {path: "u" if path.name[0].isdigit() else "t" for path in place.iterdir() if path.suffix == ".parquet"}
    assert set(whose.values()) == {"t", "u"}

    done = ended(spark, table)
    catalog, namespace, _ = table.split(".")
    assert {path: (each.fate, (each.why or "").partition(" ")[0]) for path, each in done.items()} == {
        path: (Disposition.KEPT, f"`{catalog}`.`{namespace}`.`{name}`") for path, name in whose.items()
    }
    assert spark.table(other).count() == 5
    spark.sql(f"DROP TABLE {other}")
    ends = {"t": Disposition.KEPT, "u": Disposition.DELETED}
    assert {path: each.fate for path, each in ended(spark, table).items()} == {
        path: ends[name] for path, name in whose.items()
    }
    assert {path for path in whose if path.exists()} == {path for path, name in whose.items() if name == "t"}


def test_where_a_table_cannot_be_read_nothing_is_deleted(spark: SparkSession, table: str) -> None:
    unset(spark, table)
    path = left(data(spark, table) / "web-1" / "a.parquet")
    other = table.removesuffix(".t") + ".broken"
    spark.sql(f"CREATE TABLE {other} (id BIGINT) USING iceberg")
    spark.sql(f"INSERT INTO {other} SELECT id FROM range(5)")
    (snapshot,) = load_metadata(spark, other)["snapshots"]
    local(snapshot["manifest-list"]).write_bytes(b"nothing")
    with pytest.raises(UpstreamFailed, match="broken"):
        ended(spark, table)
    assert path.exists()
    spark.sql(f"DROP TABLE {other}")
    assert ended(spark, table)[path].fate is Disposition.DELETED


def test_a_file_that_may_not_or_cannot_be_deleted_is_kept_and_told(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset(spark, table)
    path = left(data(spark, table) / "web-1" / "a.parquet")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    kept = ended(spark, table)[path]
    assert (kept.fate, path.exists()) == (Disposition.KEPT, True)
    assert "gc.enabled" in (kept.why or "")
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('gc.enabled')")

    def failing(what: str, work: Callable[[], Any]) -> Any:
        if what.startswith("deleting"):
            raise UpstreamFailed(f"{what}: no room for that")
        return work()

    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "translating_errors", failing)
        kept = ended(spark, table)[path]
    assert (kept.fate, path.exists()) == (Disposition.KEPT, True)
    assert "no room" in (kept.why or "")
    assert kept.to_json()["why"] == kept.why
    assert ended(spark, table)[path].fate is Disposition.DELETED


def test_what_is_committed_after_the_first_proof_is_kept(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second proof is made of the table as it stands then, not of what the first one has read."""
    unset(spark, table)
    path = left(data(spark, table) / "web-1" / "late.parquet")
    find = cleanup.find_orphans

    def late(*given: Any, **how: Any) -> Any:
        found = find(*given, **how).localCheckpoint()
        commit(spark, table, f"file:{path}")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(cleanup, "find_orphans", late)
        done = ended(spark, table)
    assert (done[path].fate, path.exists()) == (Disposition.KEPT, True)
    assert ended(spark, table) == {}


def test_what_a_table_names_that_no_list_has_had_is_kept(
    spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is renamed while tables are listed may be where it isn't looked for any more."""
    unset(spark, table)
    path = left(data(spark, table) / "web-1" / "a.parquet")
    other = table.removesuffix(".t") + ".u"
    spark.sql(f"CREATE TABLE {other} (id BIGINT) USING iceberg")
    commit(spark, other, f"file:{path}")
    listing, missed = cleanup.tables_of, ["`u`"]

    def once(*given: Any) -> list[str]:
        without = missed.pop() if missed else "nothing"
        return [each for each in listing(*given) if not each.endswith(without)]

    monkeypatch.setattr(cleanup, "tables_of", once)
    done = ended(spark, table)
    assert (done[path].fate, path.exists(), missed) == (Disposition.KEPT, True, [])
    spark.sql(f"DROP TABLE {other}")


def test_what_lies_behind_a_symbolic_link_or_was_written_again_is_kept(
    spark: SparkSession, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset(spark, table)
    place = data(spark, table) / "web-1"
    again, plain = left(place / "again.parquet"), left(place / "plain.parquet")
    elsewhere, moved = left(tmp_path / "elsewhere" / "b.parquet"), left(place / "moved" / "b.parquet")
    (place / "link").symlink_to(elsewhere.parent)  # nobody looks behind it
    prove = cleanup._referenced_elsewhere  # pyright: ignore[reportPrivateUsage]

    def late(*given: Any) -> Any:
        found = prove(*given)
        again.write_bytes(b"another one")
        moved.unlink()
        moved.parent.rmdir()
        moved.parent.symlink_to(elsewhere.parent)
        return found

    monkeypatch.setattr(cleanup, "_referenced_elsewhere", late)
    done = ended(spark, table)
    assert {path.name: (each.fate, path.exists()) for path, each in done.items()} == {
        "again.parquet": (Disposition.KEPT, True),
        "b.parquet": (Disposition.KEPT, True),
        "plain.parquet": (Disposition.DELETED, False),
    }
    assert "symbolic link" in (done[moved].why or "")
    assert "written again" in (done[again].why or "")
    assert elsewhere.exists()
    assert not plain.exists()

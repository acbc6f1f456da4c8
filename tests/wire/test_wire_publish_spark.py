"""Branches that Spark writes, published: write-audit-publish, random statements, and Iceberg's own ways beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icetower.agent import new_key
from icetower.errors import CommitConflict, PublishConflict
from icetower.pipelines.session import spark_session
from tests.pages.page_blocks import blocks_of
from tests.wire.test_wire_spark import CATALOG, Spark
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

SNAPSHOT = {f"write.{each}.isolation-level": "snapshot" for each in ("delete", "update", "merge")}
MERGE_ON_READ = {f"write.{each}.mode": "merge-on-read" for each in ("delete", "update", "merge")}
Row = tuple[str, int]


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "publish-tests",
        catalog_uri=tower.uri,
        catalog_name=CATALOG,
        token=tower.secret,
        settings={
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            **LIGHT,
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        },
    )
    session.conf.set("spark.sql.defaultCatalog", CATALOG)
    yield session
    session.stop()


@pytest.fixture
def t(spark: SparkSession, namespace: str) -> Spark:
    return Spark(spark, namespace)


def read(t: Spark, catalog: Catalog, source: str = "{t}") -> dict[int, Row]:
    """The rows, by id; every reader and ``count(*)`` agree."""
    found = t.sql(f"SELECT id, owner, value FROM {source}")
    assert t.sql(f"SELECT count(*) FROM {source}") == [(len(found),)]
    rows = {row[0]: (row[1], row[2]) for row in found}
    assert len(rows) == len(found), "an id is there twice"
    if source == "{t}":
        theirs = catalog.load_table(t.short).scan().to_arrow().to_pylist()
        assert {row["id"]: (row["owner"], row["value"]) for row in theirs} == rows
        assert len(theirs) == len(rows)
    return rows


# -- write, audit, publish --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2", "3"])
def test_write_audit_publish(tower: TowerProcess, catalog: Catalog, t: Spark, version: str) -> None:
    t.create(**SNAPSHOT, **MERGE_ON_READ, **{"format-version": version, "write.wap.enabled": "true"})
    t.sql("INSERT INTO {t} VALUES (1, 'a', 0), (2, 'a', 0)")
    t.sql("INSERT INTO {t} VALUES (5, 'a', 0)")
    base = t.head()
    t.sql("ALTER TABLE {t} CREATE BRANCH audit")
    with t.setting("spark.wap.branch", "audit"):
        t.sql("INSERT INTO {t} VALUES (3, 'b', 0), (4, 'b', 0)")
        t.sql("DELETE FROM {t} WHERE id = 1")
        t.sql("UPDATE {t} SET value = 7 WHERE id = 2")
        assert t.sql("SELECT count(*) FROM {t}") == [(4,)]  # the audit
    assert t.ids() == [1, 2, 5]
    t.sql("INSERT INTO {t} VALUES (9, 'main', 0)")
    with pytest.raises(CommitConflict, match="isolation: snapshot"):
        tower.admin.publish(t.short, "audit", key=new_key())  # a delete by a filter, maybe
    done = tower.admin.publish(t.short, "audit", key=new_key(), isolation="snapshot")
    assert (done.outcome, len(done.snapshots)) == ("rebased", 3)
    expected = {2: ("a", 7), 3: ("b", 0), 4: ("b", 0), 5: ("a", 0), 9: ("main", 0)}
    assert read(t, catalog) == expected
    assert t.ids("{t}.branch_audit") == [2, 3, 4, 5]
    # Who follows the table by what is appended hears of each row once.
    appended = t.session.read.option("start-snapshot-id", base).option("end-snapshot-id", done.snapshots[0][0])
    assert sorted(row.id for row in appended.table(t.table).collect()) == [3, 4, 9]
    with t.setting("spark.wap.branch", "audit"):
        t.sql("INSERT INTO {t} VALUES (6, 'b', 0)")
    t.sql("DELETE FROM {t} WHERE id = 9")
    assert len(tower.admin.publish(t.short, "audit", key=new_key(), keep="squash").snapshots) == 1
    assert read(t, catalog) == {**{i: row for i, row in expected.items() if i != 9}, 6: ("b", 0)}
    if version == "3":
        found = t.sql("SELECT id, _row_id FROM {t}")
        assert len({row[1] for row in found}) == len(found)


def test_the_statements_of_the_page(tower: TowerProcess, catalog: Catalog, t: Spark) -> None:
    t.sql("CREATE TABLE {t} (id BIGINT, region STRING) USING iceberg")
    t.sql("INSERT INTO {t} VALUES (1, 'eu'), (2, 'eu')")
    (block,) = [block for block in blocks_of("docs/branches.md") if block.language == "sql"]
    last: list[tuple[Any, ...]] = []
    try:
        for statement in block.text.replace("tower.shop.sales", t.table).split(";"):
            if statement.strip():
                last = t.sql(statement)
    finally:
        t.session.conf.unset("spark.wap.branch")
    assert last == [(2,)]
    assert t.ids() == [1, 2]
    assert tower.admin.publish(t.short, "audit", key=new_key()).outcome == "forwarded"
    assert t.ids() == [2, 3]


# -- beside Iceberg's own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2", "3"])
def test_as_icebergs_own_where_these_apply(tower: TowerProcess, catalog: Catalog, t: Spark, version: str) -> None:
    """Fast-forward, and picking appends and overwritten partitions one by one: the same rows, files and totals."""
    ours, theirs = Spark(t.session, t.short.partition(".")[0]), Spark(t.session, t.short.partition(".")[0])
    ours.short, theirs.short = f"{t.short}_ours", f"{t.short}_theirs"
    random = Random(f"cherry-pick {version}")
    for table in (ours, theirs):
        table.table = f"{CATALOG}.{table.short}"
        table.create("PARTITIONED BY (owner)", **SNAPSHOT, **{"format-version": version})
        table.sql("INSERT INTO {t} VALUES (0, 'x', 0), (1, 'y', 0)")
        table.sql("ALTER TABLE {t} CREATE BRANCH dev")
    number = 10
    for round_ in range(4):
        statements: list[tuple[str, str]] = []
        for branch in ["dev"] * 2 if round_ == 0 else random.sample(["dev", "dev", "main"], 3):
            number += 1
            statements.append((branch, f"INSERT INTO {{t}}.branch_{branch} VALUES ({number}, 'xy', {number})"))
        for table in (ours, theirs):
            for _, statement in statements:
                table.sql(statement)
        done = tower.admin.publish(ours.short, "dev", key=new_key(), blind=True)
        assert done.outcome == ("rebased" if round_ else "forwarded")
        if done.outcome == "forwarded":
            theirs.sql(f"CALL {CATALOG}.system.fast_forward('{theirs.short}', 'main', 'dev')")
        else:
            for source in _last_of(theirs, "dev", len(done.snapshots)):
                theirs.sql(f"CALL {CATALOG}.system.cherrypick_snapshot('{theirs.short}', {source})")
        assert read(ours, catalog) == read(theirs, catalog)
        assert _totals(ours) == _totals(theirs)
        assert _files(ours) == _files(theirs)


def _last_of(table: Spark, branch: str, count: int) -> list[int]:
    """The last snapshots of a branch, oldest first."""
    parents = dict(table.sql("SELECT snapshot_id, parent_id FROM {t}.snapshots"))
    at = table.sql(f"SELECT snapshot_id FROM {{t}}.refs WHERE name = '{branch}'")[0][0]
    found: list[int] = []
    for _ in range(count):
        found.append(at)
        at = parents[at]
    return found[::-1]


def _totals(table: Spark) -> dict[str, str]:
    summary = table.sql(f"SELECT summary FROM {{t}}.snapshots WHERE snapshot_id = {table.head()}")[0][0]
    return {name: value for name, value in summary.items() if name.startswith("total-") and name != "total-files-size"}


def _files(table: Spark) -> list[Any]:
    """Partition, rows, sequence number and first row id of each live file; the numbers by their order."""
    entries = table.sql(
        "SELECT data_file.partition.owner, data_file.record_count, sequence_number FROM {t}.entries "
        "WHERE status < 2 ORDER BY sequence_number"
    )
    order = {number: place for place, number in enumerate(sorted({row[2] for row in entries}))}
    return sorted((row[0], row[1], order[row[2]]) for row in entries)


# -- random statements ------------------------------------------------------------------------------------------------


@dataclass
class Histories:
    """Random statements on main and on a branch, with the rows as they must be."""

    t: Spark
    random: Random
    rows: dict[str, dict[int, Row]] = field(default_factory=dict[str, "dict[int, Row]"])
    next_id: int = 100

    def step(self, branch: str) -> None:
        rows, name = self.rows[branch], "{t}" if branch == "main" else f"{{t}}.branch_{branch}"
        kind = self.random.choice("iidu") if rows else "i"
        if kind == "i":
            owner = self.random.choice("abc")
            new = {self.next_id + n: (owner, 0) for n in range(self.random.randint(1, 3))}
            self.next_id += len(new)
            values = ", ".join(f"({i}, '{owner}', 0)" for i in new)
            self.t.sql(f"INSERT INTO {name} VALUES {values}")
            rows |= new
            return
        one = self.random.choice(sorted(rows))
        if kind == "d":
            self.t.sql(f"DELETE FROM {name} WHERE id = {one}")
            del rows[one]
        else:
            self.t.sql(f"UPDATE {name} SET value = value + 1 WHERE id = {one}")
            rows[one] = rows[one][0], rows[one][1] + 1


def merged(before: dict[int, Row], main: dict[int, Row], branch: dict[int, Row]) -> dict[int, Row] | None:
    """The rows after the publication; None where both have changed the same row."""
    found = dict(main)
    for at in before.keys() | branch.keys():
        if branch.get(at) == before.get(at):
            continue
        if main.get(at) != before.get(at):
            return None
        found.pop(at, None)
        if at in branch:
            found[at] = branch[at]
    return found


@pytest.mark.parametrize(
    ("version", "properties", "keep"),
    [("2", {}, "each"), ("2", MERGE_ON_READ, "squash"), ("3", MERGE_ON_READ, "each"), ("3", {}, "squash")],
    ids=["v2-cow-each", "v2-mor-squash", "v3-mor-each", "v3-cow-squash"],
)
def test_random_statements(
    tower: TowerProcess, catalog: Catalog, t: Spark, version: str, properties: dict[str, str], keep: Any
) -> None:
    ended: Counter[str] = Counter()
    random = Random(f"{version} {keep}")
    for number in range(4):
        t.short = f"{t.short.partition('.')[0]}.t{number}"
        t.table = f"{CATALOG}.{t.short}"
        t.create("PARTITIONED BY (owner)", **{"format-version": version}, **SNAPSHOT, **properties)
        first = {i: ("abc"[i % 3], 0) for i in range(9)}
        for start in (0, 3, 6):
            values = ", ".join(f"({i}, '{first[i][0]}', 0)" for i in range(start, start + 3))
            t.sql(f"INSERT INTO {{t}} VALUES {values}")
        t.sql("ALTER TABLE {t} CREATE BRANCH dev")
        history = Histories(t, random, {"main": dict(first), "dev": dict(first)})
        before = dict(first)
        for _ in range(2):
            for branch in random.choices(["dev", "main"], k=random.randint(2, 4)):
                history.step(branch)
            expected = merged(before, history.rows["main"], history.rows["dev"])
            try:
                done = tower.admin.publish(t.short, "dev", key=new_key(), keep=keep, isolation="snapshot")
            except PublishConflict as conflict:
                ended[conflict.rule] += 1
                assert read(t, catalog) == history.rows["main"]
                break
            assert expected is not None, "both have changed one row"
            ended[done.outcome] += 1
            assert read(t, catalog) == expected
            assert read(t, catalog, "{t}.branch_dev") == history.rows["dev"]
            history.rows["main"], before = expected, dict(history.rows["dev"])
    assert ended["rebased"] > 1, ended

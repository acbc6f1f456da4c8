"""The agents of docs/pipeline.md in one Spark session, and the reconciliation that judges them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from icetower.agent import Tower
from icetower.demo import data
from icetower.demo.retail import inventory, pricing, promotions, recommendation, tills
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.jobs import collection, read_merged
from icetower.demo.retail.notes import Notes
from icetower.demo.retail.reconcile import Verdict, reconcile
from icetower.demo.retail.shipped import statements
from icetower.pipelines.collector import collect
from icetower.pipelines.tables import load_metadata, private_session

pytestmark = pytest.mark.spark

NOBODY = cast(Tower, None)
"""A tower is asked after a refusal alone."""
HOURS = 3


@pytest.fixture
def source(tmp_path: Path) -> Hours:
    hours = Hours(tmp_path / "hours")
    for number, rows in enumerate(by_hour(data.load_source(1))[:HOURS], 1):
        hours.publish(number, rows.slice(0, 40))
    hours.finish(HOURS)
    return hours


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[None]:
    for statement in statements():
        spark.sql(statement)
    yield
    for name in re.findall(r"CREATE TABLE IF NOT EXISTS tower\.([\w.]+)", "".join(statements())):
        spark.sql(f"DROP TABLE tower.{name}")


class Killed(Exception):
    """In place of an agent's end."""


def killed_after(hours: int, folder: Path, agent: str) -> Any:
    """Notes that end their agent after so many hours were committed, and before they are noted."""
    notes = Notes(folder, agent)
    take = notes.hour

    class Dying:
        def hour(self, number: int) -> Any:
            if number > hours:
                raise Killed
            return take(number)

    return Dying()


def by_table(verdicts: tuple[Verdict, ...]) -> dict[str, Verdict]:
    return {verdict.table: verdict for verdict in verdicts}


def promotions_of_both(spark: SparkSession, source: Hours, folder: Path) -> None:
    """The two agents of the promotions, the second one backwards; the merged view, before and after the collector."""
    promotions.run(spark, NOBODY, source, Notes(folder, promotions.NAME))
    job = collection(snapshots_max=2)
    folded = [collect(spark, job)]
    for number in range(HOURS, 0, -1):
        rows = tills.changes(source.path(number)).to_pylist()
        columns = spark.table(job.wal).schema
        spark.createDataFrame([tuple(row.values()) for row in rows], columns).writeTo(job.wal).append()
    before = read_merged(spark)
    while (done := collect(spark, job)).status == "applied":
        folded.append(done)
    after = read_merged(spark)
    assert before is not None
    assert after is not None
    assert (before["wrong"], after["wrong"]) == (0, 0)
    assert before["ahead"] > after["ahead"] == 0
    assert before["rows"] == after["rows"]
    assert [batch.rejected for batch in folded] == [0] * HOURS


def test_agents_go_on_where_the_table_is_whatever_became_of_their_own_state(
    spark: SparkSession, tables: None, source: Hours, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Killed):
        pricing.run(spark, NOBODY, source, killed_after(2, tmp_path, pricing.NAME))
    with pytest.raises(Exception, match="Killed"):
        inventory.run(spark, NOBODY, source, killed_after(2, tmp_path, inventory.NAME), checkpoint)
    shutil.rmtree(checkpoint)
    for _ in range(2):  # the second run finds nothing to do
        pricing.run(spark, NOBODY, source, Notes(tmp_path, pricing.NAME))
        inventory.run(spark, NOBODY, source, Notes(tmp_path, inventory.NAME), checkpoint)
        recommendation.run(spark, NOBODY, source, Notes(tmp_path, recommendation.NAME))
    spark.sql(
        "INSERT INTO tower.recommendations.user_interactions "
        "SELECT row_id, interacted_at, household_id, product_id, basket_id, quantity, sales_value, _idempotency_key "
        "FROM tower.recommendations.user_interactions_wal"
    )
    promotions_of_both(spark, source, tmp_path)
    verdicts = reconcile(spark, str(source.folder))
    assert [(verdict.table, verdict.exact) for verdict in verdicts] == [
        (pricing.TABLE, True),
        (inventory.TABLE, True),
        (recommendation.TABLE, True),
        (promotions.TABLE, True),
    ]
    snapshots = spark.sql(f"SELECT count(*) FROM tower.{inventory.TABLE}.snapshots").collect()[0][0]
    assert snapshots == HOURS
    # The table is set back behind the checkpoint: the stream refuses to leave a hole.
    first = spark.sql(f"SELECT snapshot_id FROM tower.{inventory.TABLE}.snapshots ORDER BY committed_at").collect()[0][
        0
    ]
    spark.sql(f"CALL tower.system.rollback_to_snapshot('{inventory.TABLE}', {first})")
    spark.sql(f"CALL tower.system.expire_snapshots(table => '{inventory.TABLE}', older_than => current_timestamp())")
    more = source.path(HOURS).read_bytes()
    source.path(HOURS + 1).write_bytes(more)
    source.finish(HOURS + 1)
    with pytest.raises(Exception, match="ends with file 1"):
        inventory.run(spark, NOBODY, source, Notes(tmp_path, inventory.NAME), checkpoint)
    # And the reconciliation sees what was lost, doubled or altered.
    spark.sql(f"INSERT INTO tower.{recommendation.TABLE} SELECT * FROM tower.{recommendation.TABLE} WHERE row_id = 0")
    spark.sql(f"UPDATE tower.{pricing.TABLE} SET sales_value = sales_value + 0.01 WHERE product_id IN "
              f"(SELECT min(product_id) FROM tower.{pricing.TABLE})")  # fmt: skip
    spark.sql(f"DELETE FROM tower.{promotions.TABLE} WHERE product_id IN "
              f"(SELECT min(product_id) FROM tower.{promotions.TABLE})")  # fmt: skip
    found = by_table(reconcile(spark, str(source.folder)))
    assert found[inventory.TABLE].missing > 0
    assert found[recommendation.TABLE].unexpected == 1
    assert (found[promotions.TABLE].missing, found[promotions.TABLE].unexpected) == (1, 0)
    assert found[pricing.TABLE].missing == found[pricing.TABLE].unexpected > 0
    assert not any(verdict.exact for verdict in found.values())


def test_a_session_in_a_thread_knows_its_own_catalogs(spark: SparkSession, tmp_path: Path) -> None:
    """Jobs share one Spark, each with the secret of its own: what Java loads for one must not be by another's."""

    def work(name: str) -> str:
        session = spark.newSession()
        catalog = "spark.sql.catalog.own"
        settings = {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
        for key, value in {**settings, f"{catalog}.warehouse": str(tmp_path / name)}.items():
            session.conf.set(key, value)
        session.sql(f"CREATE TABLE own.a.{name} (x INT) USING iceberg")
        return load_metadata(private_session(session), f"own.a.{name}")["location"]

    here = work("one")
    with ThreadPoolExecutor(2) as threads:
        found = [here, *threads.map(work, ("two", "three"))]
    assert found == [f"{tmp_path}/{name}/a/{name}" for name in ("one", "two", "three")]

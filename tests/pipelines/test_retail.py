"""The three agents of docs/pipeline.md in one Spark session, and the reconciliation that judges them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from icetower.agent import Tower
from icetower.demo import data
from icetower.demo.retail import inventory, pricing, recommendation
from icetower.demo.retail.hours import Hours, by_hour
from icetower.demo.retail.notes import Notes
from icetower.demo.retail.reconcile import Verdict, reconcile
from icetower.demo.retail.shipped import statements

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
    for name in (pricing.TABLE, inventory.TABLE, recommendation.TABLE, recommendation.LOG):
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
    verdicts = reconcile(spark, str(source.folder))
    assert [(verdict.table, verdict.exact) for verdict in verdicts] == [
        (pricing.TABLE, True),
        (inventory.TABLE, True),
        (recommendation.TABLE, True),
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
    found = by_table(reconcile(spark, str(source.folder)))
    assert found[inventory.TABLE].missing > 0
    assert found[recommendation.TABLE].unexpected == 1
    assert found[pricing.TABLE].missing == found[pricing.TABLE].unexpected > 0
    assert not any(verdict.exact for verdict in found.values())

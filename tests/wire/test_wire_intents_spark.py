"""Spark's statements under intents: by a holder, and into rows that others hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.agent import Agent
from icetower.pipelines.session import spark_session
from icetower.spark import declaring
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess

pytestmark = pytest.mark.spark

CATALOG, SPACE = "intents", "intents_spark"
TABLE = f"{CATALOG}.{SPACE}.t"
FIELDS = [
    {"id": 1, "name": "id", "type": "long", "required": False},
    {"id": 2, "name": "region", "type": "string", "required": False},
    {"id": 3, "name": "value", "type": "long", "required": False},
]
SPEC = {"spec-id": 0, "fields": [{"name": "region", "transform": "identity", "source-id": 2, "field-id": 1000}]}


@pytest.fixture(scope="module")
def secret(tower: TowerProcess) -> str:
    """Of an agent that may write all of a table which requires intents."""
    tower.catalog().create_namespace(SPACE)
    body = {
        "name": "t",
        "schema": {"type": "struct", "fields": FIELDS},
        "partition-spec": SPEC,
        "properties": {"icetower.intents": "required"},
    }
    with tower.client() as http:
        http.post(f"/v1/namespaces/{SPACE}/tables", json=body).raise_for_status()
    contract = f"tables: [{{table: {SPACE}.t, operations: [overwrite], partitions: all}}]\n"
    return tower.principal(f"{SPACE}_ann", contract)


@pytest.fixture(scope="module")
def spark(tower: TowerProcess, secret: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = spark_session(
        "intents-tests",
        catalog_uri=tower.uri,
        catalog_name=CATALOG,
        token=secret,
        settings={
            "spark.master": "local[2]",
            **LIGHT,
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        },
    )
    yield session
    session.stop()


def rows(spark: SparkSession) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(f"SELECT id, region, value FROM {TABLE}").collect())


def test_spark_works_under_an_intent(tower: TowerProcess, secret: str, spark: SparkSession) -> None:
    spark.sql(f"INSERT INTO {TABLE} VALUES (1, 'eu', 1), (2, 'as', 1)")
    with Agent(tower.uri, secret) as ann, Agent(tower.uri, tower.secret) as boss:
        with boss.intent(f"{SPACE}.t", partitions=[{"region": "as"}]):
            with pytest.raises(Exception, match="are held"):
                spark.sql(f"UPDATE {TABLE} SET value = 9 WHERE region = 'as'")
            with ann.intent(f"{SPACE}.t", partitions=[{"region": "eu"}]) as lease, declaring(spark, lease.properties):
                spark.sql(f"UPDATE {TABLE} SET value = 2 WHERE region = 'eu'")
        assert rows(spark) == [(1, "eu", 2), (2, "as", 1)]
        properties = tower.catalog().load_table(f"{SPACE}.t").properties
        assert int(properties["icetower.intents.fence"]) >= lease.fence

"""One agent with PySpark under four contracts: the same code, and what is in the table each time."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.agent import Patience, Tower, new_key
from icetower.pipelines.collector import Changes, collect
from icetower.pipelines.wal_mediator import Job, mediate
from icetower.spark import add_tower, next_slot, send, tower_session
from verify.kit.clocked_tower import ClockedTower, MovedClock

pytestmark = pytest.mark.spark

NINE = 1_767_258_000_000
"""2026-01-01 09:00 UTC: long ago for Java, which refuses tables that are newer than its clock."""
TABLE = "shop.prices"
COLUMNS = "product BIGINT NOT NULL, price DECIMAL(9, 2), _event_time TIMESTAMP, _idempotency_key STRING"
PROPERTIES = "'format-version' = '3', " + ", ".join(
    f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge")
)

Prices = dict[int, Decimal]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockedTower]:
    tower = ClockedTower(tmp_path_factory.mktemp("clocked"), MovedClock(NINE))
    yield tower
    assert tower.stop() == 0


@pytest.fixture(scope="module")
def spark(tower: ClockedTower, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    session = tower_session("patterns", tower.admin, catalog="keeper", master="local[2]", settings=settings)
    yield session
    session.stop()


class Pricing:
    """The agent. Nothing in it knows of patterns."""

    def __init__(self, spark: SparkSession, tower: ClockedTower, name: str) -> None:
        self.spark = spark
        self.name = name
        self.clock = tower.clock
        add_tower(spark, name, Tower(tower.uri, tower.admin.create_principal(f"{name}-1", name)))

    def send(self, operation: Any, prices: dict[int, str], key: str) -> Any:
        rows = [(product, Decimal(price)) for product, price in prices.items()]
        frame = self.spark.createDataFrame(rows, "product BIGINT, price DECIMAL(9, 2)")
        patience = Patience(pause=self.clock.move, ambient=self.clock, total_s=86_400)
        return send(frame, f"{self.name}.{TABLE}", operation=operation, key=key, patience=patience)


CONTRACTS = {
    "direct": "{table: shop.prices, operations: [append, overwrite], partitions: all}",
    "mediator": "{table: shop.prices, operations: [append, overwrite], partitions: all, pattern: mediator, "
    "through: shop.prices_wal}, {table: shop.prices_wal, operations: [append], partitions: [{_agent: [pricing]}], "
    "blind_appends: true}",
    "collector": "{table: shop.prices, operations: [append, overwrite], partitions: all, pattern: collector}, "
    "{table: shop.prices_deltas, operations: [append], partitions: [{_agent: [pricing]}], blind_appends: true}",
    "scheduler": "{table: shop.prices, operations: [append, overwrite], pattern: scheduler, "
    "partitions: [{now: {every: 2m, from: 1m, to: 2m}}]}",
}


def contract(pattern: str) -> str:
    return f"version: 1\nagent: pricing\nowner: shop@example.com\ntables: [{CONTRACTS[pattern]}]\n"


def test_moving_an_agent_to_another_pattern_is_a_change_of_its_contract(
    spark: SparkSession, tower: ClockedTower, tmp_path: Path
) -> None:
    del tmp_path
    spark.sql("CREATE NAMESPACE keeper.shop")
    spark.sql("CREATE NAMESPACE keeper.system")
    spark.sql(f"CREATE TABLE keeper.shop.prices ({COLUMNS}) USING iceberg TBLPROPERTIES ({PROPERTIES})")
    spark.sql("ALTER TABLE keeper.shop.prices SET IDENTIFIER FIELDS product")
    for name, more in (("wal", "_written_at TIMESTAMP"), ("deltas", "_operation STRING")):
        spark.sql(
            f"CREATE TABLE keeper.shop.prices_{name} ({COLUMNS.replace(' NOT NULL', '')}, {more}, _agent STRING) "
            "USING iceberg PARTITIONED BY (_agent) TBLPROPERTIES ('format-version' = '3')"
        )
    tower.admin.apply_contract(contract("direct"))
    agent = Pricing(spark, tower, "pricing")
    job = Job(
        target="keeper.shop.prices", wal="keeper.shop.prices_wal", system="keeper.system", merge_keys=("product",),
        contracts=None,
    )  # fmt: skip
    changes = Changes(
        Job(
            target="keeper.shop.prices", wal="keeper.shop.prices_deltas", system="keeper.system",
            merge_keys=("product",), contracts=None,
        )
    )  # fmt: skip
    after = {
        "direct": lambda: None,
        "mediator": lambda: mediate(spark, job),
        "collector": lambda: collect(spark, changes),
        "scheduler": lambda: None,
    }
    held: dict[int, str] = {}
    for number, pattern in enumerate(CONTRACTS):
        tower.admin.apply_contract(contract(pattern))
        new = {10 * number + 1: f"{number}.10", 10 * number + 2: f"{number}.20"}
        changed = dict.fromkeys((1, 10 * number + 2), f"{number}.99")
        for operation, prices in (("append", new), ("upsert", changed)):
            key = new_key()
            sent = [agent.send(operation, prices, key) for _ in range(2)]
            assert [each.pattern for each in sent] == [pattern] * 2
            assert [each.again for each in sent] == [False, True]
            after[pattern]()
            held |= prices
            rows = spark.sql("SELECT product, price FROM keeper.shop.prices ORDER BY product").collect()
            assert [(row[0], str(row[1])) for row in rows] == sorted(held.items())
    assert tower.clock.now_ms() == NINE + 60_000  # it has waited for its slot
    assert next_slot(spark, f"pricing.{TABLE}").starts_in_s == 0

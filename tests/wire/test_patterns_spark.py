"""One agent with PySpark under four contracts: the same code, and what is in the table each time."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.agent import Delivery, Patience, Tower, keyed, new_key
from icetower.contracts.document import load
from icetower.contracts.model import Contract
from icetower.pipelines.collector import collect
from icetower.pipelines.wal_mediator import Job, mediate
from icetower.spark import add_tower, in_slot, next_slot, options, refusal_of, send, tower_session
from tests.pages.page_blocks import ROOT, blocks_of
from verify.kit.clocked_tower import ClockedTower, MovedClock
from verify.kit.light_spark import LIGHT

pytestmark = pytest.mark.spark

NINE = 1_767_258_000_000
"""2026-01-01 09:00 UTC: long ago for Java, which refuses tables that are newer than its clock."""
TABLE = "shop.prices"
COLUMNS = "product BIGINT NOT NULL, price DECIMAL(9, 2), _event_time TIMESTAMP, _idempotency_key STRING"
PROPERTIES = "'format-version' = '3', " + ", ".join(
    f"'write.{kind}.mode' = 'merge-on-read'" for kind in ("delete", "update", "merge")
)

EXAMPLE = ROOT / "examples" / "patterns"


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockedTower]:
    tower = ClockedTower(tmp_path_factory.mktemp("clocked"), MovedClock(NINE))
    yield tower
    assert tower.stop() == 0


@pytest.fixture(scope="module")
def spark(tower: ClockedTower, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark")), **LIGHT}
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
    spark: SparkSession, tower: ClockedTower
) -> None:
    spark.sql("CREATE NAMESPACE keeper.shop")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS keeper.system")
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
    changes = Job(
        target="keeper.shop.prices", wal="keeper.shop.prices_deltas", system="keeper.system",
        merge_keys=("product",), contracts=None,
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


class Slow(Tower):
    """Its agent takes a minute for its first write."""

    def __init__(self, uri: str, token: str, clock: MovedClock) -> None:
        super().__init__(uri, token)
        self.clock = clock
        self.late = False

    def delivery(self, table: str, operation: str = "append", *, least_s: float = 0.0) -> Delivery:
        found = super().delivery(table, operation, least_s=least_s)
        if found.slot is not None and found.slot.starts_in_s == 0 and not self.late:
            self.late = True
            self.clock.move(66)
        return found


def test_the_guides_split_works_as_it_is_shipped(spark: SparkSession, tower: ClockedTower, tmp_path: Path) -> None:
    """Read-heavy agents through the collector, write-heavy ones in slots, alerting ones through the log."""
    spark.sql("USE keeper")
    lines = [line for line in (EXAMPLE / "tables.sql").read_text().splitlines() if not line.startswith("--")]
    for statement in filter(str.strip, "\n".join(lines).split(";")):
        spark.sql(statement)
    contracts: dict[str, Contract] = {}
    secrets: dict[str, str] = {}
    for path in sorted((EXAMPLE / "contracts").glob("*.yaml")):
        tower.admin.apply_contract(path.read_text())
        contracts[path.stem] = load(path.read_text(), source=path.name)
        secrets[path.stem] = tower.admin.create_principal(f"{path.stem}-1", path.stem)
        add_tower(spark, path.stem, Tower(tower.uri, secrets[path.stem]))
    tower.clock.at_ms = tower.clock.at_ms // 120_000 * 120_000 + 120_000 + 1_000
    first_ms = tower.clock.at_ms - 1_000
    patience = Patience(pause=tower.clock.move, ambient=tower.clock)
    (block,) = (block for block in blocks_of("docs/patterns.md") if "test_patterns_spark" in block.more)
    _, _, path_of_it, readings_table, append, _, _ = shlex.split(block.text)
    program = importlib.util.spec_from_file_location("agent", ROOT / path_of_it)
    assert program is not None
    assert program.loader is not None
    agent: Any = importlib.util.module_from_spec(program)
    program.loader.exec_module(agent)

    def deliver(who: str, table: str, operation: str, rows: list[dict[str, Any]], key: str, **more: Any) -> Any:
        path = tmp_path / f"{key}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        return agent.deliver(spark, f"{who}.{table}", operation, key, str(path), patience=patience, **more)

    readings = [{"machine": 1, "value": 0.5}, {"machine": 1, "value": 0.5}, {"machine": 2, "value": 1.5}]
    sent = [
        deliver("summary_agent", "fleet.summaries", "upsert", [{"machine": 1, "state": "hot"}], new_key()),
        deliver("summary_agent", "fleet.summaries", "upsert", [{"machine": 1, "state": "cold"}], new_key()),
        deliver("summary_agent", "fleet.summaries", "append", [{"machine": 2, "state": "off"}], new_key()),
        deliver("alerting_agent", "fleet.anomalies", "append", [{"machine": 1, "what": "heat"}] * 2, "same"),
        deliver("alerting_agent", "fleet.anomalies", "append", [{"machine": 1, "what": "heat"}] * 2, "same"),
        deliver("readings_agent_a", readings_table, append, readings, new_key()),
        deliver("readings_agent_b", "fleet.readings", "append", readings, new_key()),
    ]
    assert [each.pattern for each in sent] == ["collector"] * 3 + ["mediator"] * 2 + ["scheduler"] * 2
    assert [each.again for each in sent] == [False] * 4 + [True] + [False] * 2
    jobs = "fleet_jobs.fleet."
    collect(spark, Job(
        target=f"{jobs}summaries", wal=f"{jobs}summaries_deltas", system="fleet_jobs.system",
        merge_keys=("machine",), contracts=contracts,
    ))  # fmt: skip
    for _ in range(2):
        mediate(spark, Job(
            target=f"{jobs}anomalies", wal=f"{jobs}anomalies_wal", system="fleet_jobs.system", contracts=contracts,
        ))  # fmt: skip

    def rows_of(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(query).collect()]

    assert rows_of("SELECT machine, state FROM fleet.summaries ORDER BY machine") == [(1, "cold"), (2, "off")]
    assert rows_of("SELECT machine, what FROM fleet.anomalies") == [(1, "heat")] * 2
    by_slot = "SELECT CAST((unix_millis(slot) - {}) / 60000 AS INT) s, count(*), sum(value) FROM fleet.readings "
    by_slot = by_slot.format(first_ms) + "GROUP BY slot ORDER BY slot"
    assert rows_of(by_slot) == [(0, 3, 2.5), (1, 3, 2.5)]

    # Agent A comes too late: it is told when to come again, and what is sent anew is in its next slot.
    slot = next_slot(spark, "readings_agent_a.fleet.readings", patience=patience)
    assert (slot.column, slot.starts_ms, slot.until_ms) == ("slot", first_ms + 120_000, first_ms + 185_000)
    late = spark.createDataFrame([(3, 9.5, slot.value)], "machine BIGINT, value DOUBLE, slot TIMESTAMP")
    late = late.selectExpr("machine", "value", "slot", "'k' AS _idempotency_key")
    tower.clock.at_ms = slot.until_ms - 1  # in grace
    late.writeTo("readings_agent_a.fleet.readings").options(**options(keyed(new_key()))).append()
    tower.clock.at_ms = slot.until_ms
    with pytest.raises(Exception, match="in its slot alone") as refused:
        late.writeTo("readings_agent_a.fleet.readings").options(**options(keyed(new_key()))).append()
    refusal = refusal_of(refused.value)
    assert refusal is not None
    assert (refusal.status, refusal.rule, refusal.next_step) == (403, "contract.slot", "fix_request")
    assert refusal.wait_until_ms == first_ms + 240_000
    with Slow(tower.uri, secrets["readings_agent_a"], tower.clock) as slow:
        again = deliver("readings_agent_a", "fleet.readings", "append", readings, new_key(), tower=slow)
    assert again.slot.starts_ms == first_ms + 360_000
    assert rows_of(by_slot) == [(0, 3, 2.5), (1, 3, 2.5), (2, 1, 9.5), (6, 3, 2.5)]
    attempts = tower.admin.commits(table="fleet.readings", principal="readings_agent_a-1")
    assert [each["rule"] for each in reversed(attempts)] == [None, None, "contract.slot", "contract.slot", None]


def test_a_job_holds_its_slot_while_it_runs(spark: SparkSession, tower: ClockedTower) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS keeper.shop")
    spark.sql("CREATE TABLE keeper.shop.auction (item BIGINT) USING iceberg")
    for number in range(2):
        turn = f"{{every: 2m, from: {number}m, to: {number + 1}m}}"
        tower.admin.apply_contract(
            f"version: 1\nagent: auction{number}\ntables: [{{table: shop.auction, operations: [append], "
            f"pattern: scheduler, claim_within: 15s, partitions: [{{now: {turn}}}]}}]\n"
        )
        secret = tower.admin.create_principal(f"auction{number}-1", f"auction{number}")
        add_tower(spark, f"auction{number}", Tower(tower.uri, secret))
    tower.clock.at_ms = tower.clock.at_ms // 120_000 * 120_000 + 120_000
    table = "auction0.shop.auction"
    (block,) = (block for block in blocks_of("docs/intents.md") if "test_patterns_spark" in block.more)
    frame = spark.sql("SELECT 1L item")
    names: dict[str, Any] = {"spark": spark, "table": table, "frame": frame}
    exec(compile(block.text, block.place, "exec"), names)
    assert spark.sql("SELECT item FROM keeper.shop.auction").count() == 1
    assert names["lease"].slot.starts_ms == tower.clock.at_ms
    with in_slot(spark, table) as lease:
        tower.clock.move(60)  # it overruns
        with pytest.raises(Exception, match="has ended") as refused:
            frame.writeTo(table).options(**options(keyed(new_key()) | lease.properties)).append()
        refusal = refusal_of(refused.value)
        assert refusal is not None
        assert (refusal.status, refusal.rule) == (403, "intent.fenced")
    assert spark.sql("SELECT item FROM keeper.shop.auction").count() == 1

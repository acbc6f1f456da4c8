"""PyIceberg's upserts: unchanged, each into partitions of its own agent; and such as declare what they read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import Tower, carry_out, keyed, new_key, reads, refusal_of
from icetower.errors import IcetowerError
from verify.kit.tower_process import TowerProcess

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", LongType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
AGENTS = 4
ROUNDS = 3


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    process = TowerProcess(tmp_path_factory.mktemp("upserts") / "data")
    process.catalog().create_namespace("upserts")
    yield process
    assert process.stop() == 0, process.log.read_text()


def rows(region: int, price: int, ids: range) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([100 * region + i for i in ids], pa.int64()),
            "region": pa.array([f"r{region}"] * len(ids), pa.string()),
            "price": pa.array([price] * len(ids), pa.int64()),
        }
    )


def contract(table: str, region: int, promise: str) -> str:
    return (
        f"tables:\n- {{table: {table}, operations: [overwrite], partitions: [{{region: r{region}}}]{promise}}}\n"
        "escalation: {after_failures: 2, within: 10m, to: dana@example.com}\n"
    )


def side_by_side(
    tower: TowerProcess, name: str, promise: str, properties: Callable[[Table, int], dict[str, str]]
) -> Catalog:
    """Some agents that upsert at the same moment, each its own rows, on the same base, again and again."""
    table = f"upserts.{name}"
    catalog = tower.catalog()
    seeded = catalog.create_table(table, SCHEMA, partition_spec=BY_REGION)
    seeded.append(pa.concat_tables([rows(region, 0, range(5)) for region in range(AGENTS)]))
    secrets = [tower.principal(f"{name}-{region}", contract(table, region, promise)) for region in range(AGENTS)]
    together = threading.Barrier(AGENTS)

    def work(region: int) -> None:
        mine = tower.catalog(secrets[region])
        for price in range(1, ROUNDS + 1):
            loaded = mine.load_table(table)
            together.wait(60)  # all have read the same version before the first of them writes
            loaded.upsert(
                rows(region, price, range(price, 6 + price)),
                join_cols=["id"],
                snapshot_properties=properties(loaded, region),
            )
            together.wait(60)

    with ThreadPoolExecutor(AGENTS) as pool:
        for done in [pool.submit(work, region) for region in range(AGENTS)]:
            done.result(120)
    return catalog


def check(tower: TowerProcess, catalog: Catalog, name: str) -> None:
    found = catalog.load_table(f"upserts.{name}").scan().to_arrow().to_pylist()
    expected = {100 * r + i: min(i, ROUNDS) for r in range(AGENTS) for i in range(6 + ROUNDS)}
    assert len(found) == len(expected)
    assert {row["id"]: row["price"] for row in found} == expected
    outcomes = tower.outcomes(f"upserts.{name}")
    assert set(outcomes) <= {"direct", "rebased"}
    assert outcomes.count("rebased") >= ROUNDS  # all but the first of a round at least were stale
    assert tower.admin.escalations(state="open") == []


def test_r3_unchanged_upserts_land_under_read_scope_owned(tower: TowerProcess) -> None:
    catalog = side_by_side(tower, "owned", ", read_scope: owned", lambda table, region: {})
    check(tower, catalog, "owned")


def test_upserts_that_declare_what_they_read_land_without_a_promise_of_the_contract(tower: TowerProcess) -> None:
    catalog = side_by_side(
        tower, "declared", "", lambda table, region: keyed(new_key()) | reads(table, f"region = 'r{region}'")
    )
    check(tower, catalog, "declared")


def test_a9_a_retry_of_pyicebergs_own_is_no_failure(tower: TowerProcess) -> None:
    """A contract that forgives no failure: the 409 upon which PyIceberg validates and sends again is none."""
    table = tower.catalog().create_table("upserts.silent", SCHEMA, partition_spec=BY_REGION)
    table.append(rows(0, 0, range(5)))
    secret = tower.principal("silent", contract("upserts.silent", 0, "").replace("failures: 2", "failures: 1"))
    for price in range(1, 4):
        stale = tower.catalog(secret).load_table("upserts.silent")
        table.append(rows(1, 0, range(1)))  # by somebody else, elsewhere
        stale.upsert(rows(0, price, range(5)), join_cols=["id"])
    assert tower.outcomes("upserts.silent").count("conflict") >= 3
    assert tower.admin.escalations(state="open") == []
    assert {row["price"] for row in table.refresh().scan("region = 'r0'").to_arrow().to_pylist()} == {3}


QUICK = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}
CLAUSES = ["", ", read_scope: owned", ", blind_appends: true, read_scope: owned", ", strict: true"]


@pytest.mark.parametrize("clauses", CLAUSES, ids=["none", "owned", "blind", "strict"])
def test_r2_of_two_upserts_that_insert_one_row_the_second_is_run_again(tower: TowerProcess, clauses: str) -> None:
    """Both find nothing to update, so both are appends. PyIceberg writes the stale one anew and validates nothing."""
    number = CLAUSES.index(clauses)
    name = f"upserts.twice{number}"
    seeded = tower.catalog().create_table(name, SCHEMA, partition_spec=BY_REGION, properties=QUICK)
    seeded.append(rows(0, 0, range(3)))
    secret = tower.principal(f"twice-{number}", contract(name, 0, clauses))
    first, stale = (tower.catalog(secret).load_table(name) for _ in range(2))
    loaded = [stale]
    refusals: list[IcetowerError | None] = []

    def upsert(table: Table, price: int, key: str) -> None:
        said = keyed(key) | reads(table, "region = 'r0'")
        table.upsert(rows(0, price, range(7, 8)), ["id"], snapshot_properties=said)

    def work(_: Tower, key: str) -> None:
        table = loaded.pop() if loaded else tower.catalog(secret).load_table(name)
        try:
            upsert(table, 2, key)
        except CommitFailedException as refused:
            refusals.append(refusal_of(refused))
            raise

    upsert(first, 1, new_key())
    carry_out(work, tower.admin, name, operations=["overwrite"], reason="a row")
    found = seeded.refresh().scan("id = 7").to_arrow().to_pylist()
    assert [row["price"] for row in found] == [2]
    assert [(each.rule, each.next_step) for each in refusals if each] == [("conflict.C1", "refresh")]
    assert tower.outcomes(name).count("conflict") == 5  # PyIceberg's own attempts, each but the first written anew


def test_reads_takes_text_and_expressions(tower: TowerProcess) -> None:
    table = tower.catalog().create_table("upserts.filters", SCHEMA, partition_spec=BY_REGION)
    both = And(EqualTo("region", "eu"), GreaterThanOrEqual("id", 7))
    assert reads(table, "region = 'eu' and id >= 7") == reads(table, both)
    for where in (both, True, In("id", {1, 2}), "region is null or not (price > 3)", "region like 'a%'"):
        table.append(rows(0, 1, range(1)), snapshot_properties=reads(table.refresh(), where))
    assert table.refresh().scan().to_arrow().num_rows == 5

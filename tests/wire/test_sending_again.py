"""Rows that an agent sends again under their key with `icetower.agent.send`, whatever has happened since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icetower.agent import Tower, send
from verify.kit.tower_process import TowerProcess

COLUMNS = pa.schema([("sale", pa.int64()), ("amount", pa.int64())])
CONTRACT = """owner: shop@example.com
tables:
  - {table: shop.sales, operations: [append], partitions: all, pattern: mediator, through: shop.sales_log}
  - {table: shop.sales_log, operations: [append], partitions: all, blind_appends: true}
  - {table: shop.stock, operations: [append, overwrite, delete], partitions: all}
  - {table: shop.gone0, operations: [delete], partitions: all}
  - {table: shop.gone1, operations: [delete], partitions: all}
  - {table: shop.parts, operations: [append], partitions: all, blind_appends: true}
reads: ['**']
"""


class Agent:
    """An agent of a tower, and the tables as an administrator sees them."""

    def __init__(self, tower: TowerProcess) -> None:
        self.admin = tower.catalog()
        self.admin.create_namespace("shop")
        self.tower = Tower(tower.uri, tower.principal("till", CONTRACT))
        self.catalog = load_catalog("agent", **self.tower.pyiceberg_properties())

    def send(self, table: str, rows: pa.Table, key: str, **more: Any) -> Any:
        return send(rows, table, self.tower, self.catalog, key=key, **more)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.admin.load_table(table).scan().to_arrow().to_pylist()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    tower = TowerProcess(tmp_path_factory.mktemp("tower") / "data")
    agent = Agent(tower)
    yield agent
    agent.tower.close()
    assert tower.stop() == 0


def rows(*sales: tuple[int, int]) -> pa.Table:
    return pa.Table.from_pylist([{"sale": sale, "amount": amount} for sale, amount in sales], COLUMNS)


def test_rows_keep_their_keys_when_the_log_was_rolled_back(agent: Agent) -> None:
    """A mediator may have applied them: it knows them by their keys."""
    keyed = COLUMNS.append(pa.field("_idempotency_key", pa.string()))
    agent.admin.create_table("shop.sales", keyed)
    log = agent.admin.create_table("shop.sales_log", keyed.append(pa.field("_agent", pa.string())))
    agent.send("shop.sales", rows((0, 0)), "first")
    before = log.refresh().metadata.current_snapshot_id
    assert before is not None
    agent.send("shop.sales", rows((1, 1)), "second")
    sent = agent.rows("shop.sales_log")
    log.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    again = agent.send("shop.sales", rows((1, 1)), "second")
    assert again.key != "second"
    assert sorted(map(str, agent.rows("shop.sales_log"))) == sorted(map(str, sent))


def test_a_write_that_changed_nothing_changes_nothing_later(agent: Agent) -> None:
    agent.admin.create_table("shop.stock", COLUMNS)
    how = {"operation": "upsert", "keys": ("sale",)}
    agent.send("shop.stock", rows((1, 5)), "u1", **how)
    agent.send("shop.stock", rows((1, 5)), "u2", **how)  # it is so already
    assert not agent.send("shop.stock", rows((1, 6)), "u3", **how).again
    assert agent.send("shop.stock", rows((1, 5)), "u2", **how).again
    assert agent.rows("shop.stock") == [{"sale": 1, "amount": 6}]
    gone = {"operation": "delete", "keys": ("sale",)}
    agent.send("shop.stock", rows((2, 0)).select(["sale"]), "d1", **gone)  # there is none
    agent.send("shop.stock", rows((2, 7)), "u4", **how)
    agent.send("shop.stock", rows((2, 0)).select(["sale"]), "d1", **gone)
    assert sorted(row["amount"] for row in agent.rows("shop.stock")) == [6, 7]


@pytest.mark.parametrize("held", [[], [(1, 1)]])
def test_an_agent_that_may_only_delete_may_delete_what_is_not_there(agent: Agent, held: list[tuple[int, int]]) -> None:
    name = f"shop.gone{len(held)}"
    table = agent.admin.create_table(name, COLUMNS)
    if held:
        table.append(rows(*held))
    agent.send(name, rows((2, 0)).select(["sale"]), "d1", operation="delete", keys=("sale",))
    assert agent.send(name, rows((2, 0)).select(["sale"]), "d1", operation="delete", keys=("sale",)).again
    assert agent.rows(name) == rows(*held).to_pylist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.binary(), [b"\x00\xff", b"abc"]),
        (pa.binary(4), [b"\x00\x01\xfe\xff"]),
        (pa.float32(), [0.1, 1e30]),
        (pa.float64(), [0.1, -2.5e-300]),
    ],
    ids=str,
)
def test_values_without_one_form_in_json_may_partition_a_table(
    agent: Agent, kind: pa.DataType, values: list[Any]
) -> None:
    columns = pa.schema([("id", pa.int64()), ("part", kind)])
    if agent.admin.table_exists("shop.parts"):
        agent.admin.drop_table("shop.parts")
    with agent.admin.create_table("shop.parts", columns).update_spec() as spec:
        spec.add_identity("part")
    sent = pa.table({"id": pa.array(range(len(values)), pa.int64()), "part": pa.array(values, kind)})
    agent.send("shop.parts", sent, str(kind))
    agent.send("shop.parts", sent, str(kind))
    found = agent.admin.load_table("shop.parts").scan().to_arrow().sort_by("id")
    assert found.to_pylist() == sent.to_pylist()

"""Agents with PyIceberg and the SDK: slots on a tower whose clock the test moves, and rows by the contract's way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from icetower.agent import Patience, Tower, keyed, new_key, refusal_of, send, wait_for_slot
from icetower.errors import ContractViolation, IcetowerError, UsageError
from tests.pages.page_blocks import blocks_of
from verify.kit.clocked_tower import ClockedTower, MovedClock

NINE = 1_767_258_000_000
"""2026-01-01 09:00 UTC."""
BIDS = Schema(
    NestedField(1, "item", LongType(), required=True),
    NestedField(2, "price", LongType(), required=False),
    NestedField(3, "slot", TimestamptzType(), required=False),
    NestedField(4, "_idempotency_key", StringType(), required=False),
    identifier_field_ids=[1],
)
PRICES = Schema(*(field for field in BIDS.fields if field.name != "slot"), identifier_field_ids=[1])
BY_SLOT = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "slot"))


class Bidder:
    """A principal under a contract of its own."""

    def __init__(self, tower: ClockedTower, name: str, *entries: str) -> None:
        self.clock = tower.clock
        self.name = name
        self._served = tower
        self.change(*entries)
        self.secret = tower.admin.create_principal(name, name)
        self.tower = Tower(tower.uri, self.secret)
        self.catalog: Catalog = tower.catalog(self.secret)
        self.patience = Patience(pause=self.clock.move, ambient=self.clock)

    def change(self, *entries: str) -> None:
        listed = "".join(f"- {{{entry}}}\n" for entry in entries)
        self._served.admin.apply_contract(f"version: 1\nagent: {self.name}\ntables:\n{listed}")

    def send(self, table: str, rows: dict[int, int], operation: Any = "append", key: str = "") -> Any:
        arrow = pa.table({"item": pa.array(rows, pa.int64()), "price": pa.array(rows.values(), pa.int64())})
        if operation == "delete":
            arrow = arrow.select(["item"])
        key = key or new_key()
        return send(arrow, table, self.tower, self.catalog, operation=operation, key=key, patience=self.patience)


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockedTower]:
    tower = ClockedTower(tmp_path_factory.mktemp("clocked") / "data", MovedClock(NINE))
    tower.catalog().create_namespace("shop")
    yield tower
    assert tower.stop() == 0


def contents(tower: ClockedTower, table: str) -> list[dict[str, Any]]:
    return tower.catalog().load_table(table).scan().to_arrow().sort_by("item").to_pylist()


def prices(tower: ClockedTower, table: str) -> dict[int, int]:
    rows = contents(tower, table)
    found = {row["item"]: row["price"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_two_agents_take_turns_by_the_minute(tower: ClockedTower) -> None:
    """As the guide has it: agent A 09:00:00 to 09:00:59, agent B 09:01:00 to 09:01:59."""
    tower.catalog().create_table("shop.bids", BIDS, partition_spec=BY_SLOT)
    entry = (
        "table: shop.bids, operations: [append, overwrite], pattern: scheduler, partitions: [{{identity(slot): {}}}]"
    )
    one = Bidder(tower, "a", entry.format("{every: 2m, from: 0s, to: 1m}"))
    other = Bidder(tower, "b", entry.format("{every: 2m, from: 1m, to: 2m}"))
    tower.clock.at_ms = NINE + 59_999
    one.send("shop.bids", {1: 10, 2: 20})
    assert other.send("shop.bids", {3: 30}).slot.value == dt.datetime(2026, 1, 1, 9, 1, tzinfo=dt.UTC)
    assert tower.clock.at_ms == NINE + 60_000  # B has waited
    slots = [(row["slot"].minute, row["item"]) for row in contents(tower, "shop.bids")]
    assert slots == [(0, 1), (0, 2), (1, 3)]
    # A came a minute too late with rows of nine, and B's are not its either; B changes what is in its own slot.
    table = one.catalog.load_table("shop.bids")
    for minute in (0, 1, 2):
        at = dt.datetime(2026, 1, 1, 9, minute, tzinfo=dt.UTC)
        schema = table.schema().as_arrow()
        late = pa.Table.from_pylist([{"item": 9, "price": 9, "slot": at}], schema=schema)
        with pytest.raises(Exception, match="its slot next is from 2026-01-01 09:02:00") as refused:
            table.append(late, snapshot_properties=keyed(new_key()))
        refusal = refusal_of(refused.value)
        assert refusal is not None
        assert (refusal.rule, refusal.next_step, refusal.wait_until_ms) == (
            "contract.slot",
            "fix_request" if minute == 0 else "wait_until",  # rows of nine come into no slot that is still to come
            NINE + 120_000,
        )
    other.send("shop.bids", {3: 31, 4: 40}, "upsert")
    with pytest.raises(ContractViolation, match="begins in 60 s"):
        wait_for_slot(one.tower, "shop.bids", patience=Patience(total_s=59, pause=one.clock.move, ambient=one.clock))
    assert one.tower.next_slot("shop.bids", least_s=60).starts_in_s == 60
    assert prices(tower, "shop.bids") == {1: 10, 2: 20, 3: 31, 4: 40}
    block = next(block for block in blocks_of("docs/sdk.md") if "test_patterns_pyiceberg" in block.more)
    tower.clock.move(60)
    exec(compile(block.text, block.place, "exec"), {"tower": one.tower})
    # In shadow mode what is late lands, and is reported.
    tower.clock.move(60)
    turn = entry.format("{every: 2m, from: 0s, to: 1m}")
    tower.admin.apply_contract(f"version: 1\nagent: a\nmode: shadow\ntables: [{{{turn}}}]\n")
    one.catalog.load_table("shop.bids").append(late, snapshot_properties=keyed(new_key()))
    (report,) = tower.admin.shadow_report("a")
    assert [(each["rule"], each["count"]) for each in report["refusals"]] == [("contract.slot", 1)]


def test_the_contract_says_which_way_rows_go(tower: ClockedTower) -> None:
    catalog = tower.catalog()
    catalog.create_table("shop.prices", PRICES)
    log = Schema(
        *(field.model_copy(update={"required": False}) for field in PRICES.fields),
        NestedField(5, "_agent", StringType(), required=False),
        NestedField(6, "_operation", StringType(), required=False),
    )
    for name in ("prices_wal", "prices_deltas"):
        spec = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "_agent"))
        catalog.create_table(f"shop.{name}", log, partition_spec=spec)
    target = "table: shop.prices, operations: [append, overwrite], partitions: "
    agent = Bidder(tower, "c", target + "all")
    key = new_key()
    for _ in range(2):
        agent.send("shop.prices", {1: 10, 2: 20}, key=key)
        agent.send("shop.prices", {2: 21, 3: 30}, "upsert", key=f"{key}-upsert")
    agent.send("shop.prices", {1: 0}, "delete")
    assert prices(tower, "shop.prices") == {2: 21, 3: 30}
    agent.change(target + "all, blind_appends: true")
    key = new_key()
    sent = [agent.send("shop.prices", {4: 40}, key=key) for _ in range(2)]
    assert [(each.pattern, each.again) for each in sent] == [("direct", False), ("direct", True)]
    agent.change(target + "[{now: {every: 10m, from: 5m, to: 10m}}], pattern: scheduler")
    assert agent.send("shop.prices", {2: 22}, "upsert").slot.column is None
    assert tower.clock.at_ms % 600_000 == 300_000
    assert prices(tower, "shop.prices") == {2: 22, 3: 30, 4: 40}
    for pattern, name in (("mediator", "prices_wal"), ("collector", "prices_deltas")):
        through = f"table: shop.{name}, operations: [append], partitions: [{{_agent: [c]}}], blind_appends: true"
        agent.change(target + f"all, pattern: {pattern}", through)
        key = new_key()
        sent = [agent.send("shop.prices", {5: 50, 6: 60}, "upsert", key=key) for _ in range(2)]
        assert [(each.table, each.again) for each in sent] == [(f"shop.{name}", False), (f"shop.{name}", True)]
        rows = contents(tower, f"shop.{name}")
        assert [(row["item"], row["_agent"], row["_operation"]) for row in rows] == [
            (5, "c", "upsert"),
            (6, "c", "upsert"),
        ]
        assert len({row["_idempotency_key"] for row in rows}) == 2
        if pattern == "mediator":
            with pytest.raises(UsageError, match="takes no deletes"):
                agent.send("shop.prices", {5: 0}, "delete")
        else:
            agent.send("shop.prices", {5: 0}, "delete")
            assert sorted(row["_operation"] for row in contents(tower, f"shop.{name}")) == [
                "delete",
                "upsert",
                "upsert",
            ]
    assert prices(tower, "shop.prices") == {2: 22, 3: 30, 4: 40}
    for entry, rule in ((target + "all, pattern: mediator", "contract.through"),
                        ("table: shop.prices, operations: [read]", "contract.operation")):  # fmt: skip
        agent.change(entry)
        with pytest.raises(IcetowerError) as refused:
            agent.tower.delivery("shop.prices")
        assert refused.value.rule == rule
    with pytest.raises(UsageError, match="no slots"):
        tower.admin.next_slot("shop.prices")


def test_rows_at_the_door_go_the_contract_s_way(tower: ClockedTower) -> None:
    """To the log, the delta table, or into the slot: with what the jobs go by filled in, once under a key."""
    catalog = tower.catalog()
    catalog.create_table("shop.door", PRICES)
    log = Schema(
        *(field.model_copy(update={"required": False}) for field in PRICES.fields),
        NestedField(5, "_agent", StringType(), required=True),
        NestedField(6, "_operation", StringType(), required=True),
        NestedField(7, "_written_at", TimestamptzType(), required=True),
    )
    spec = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "_agent"))
    for name in ("door_wal", "door_deltas"):
        catalog.create_table(f"shop.{name}", log, partition_spec=spec)
    target = "table: shop.door, operations: [append, overwrite], partitions: "
    agent = Bidder(tower, "d", target + "all")
    client = httpx2.Client(base_url=tower.uri, headers={"Authorization": f"Bearer {agent.secret}"}, trust_env=False)

    def send(table: str, *rows: dict[str, Any], **body: Any) -> dict[str, Any]:
        answer: dict[str, Any] = client.post(
            f"/v1/namespaces/shop/tables/{table}/rows", json={"rows": rows, **body}
        ).json()
        return answer

    assert send("door", {"item": 1}, operation="upsert")["error"]["rule"] == "rows.operation"
    assert send("door", {"item": 1, "price": 1}, key="k1")["table"] == "shop.door"
    for pattern, name in (("mediator", "door_wal"), ("collector", "door_deltas")):
        through = f"table: shop.{name}, operations: [append], partitions: [{{_agent: [d]}}]"
        agent.change(target + f"all, pattern: {pattern}", through)
        bare = send("door", {"item": 5}, operation="upsert", key=f"bare-{name}")["error"]
        assert bare["rule"] == "rows.values"  # the others of its columns would have become null
        assert "an upsert replaces whole rows; name it" in bare["message"]
        row = {"item": 5, "price": None}
        sent = [send("door", row, row, operation="upsert", key=f"up-{name}") for _ in range(2)]
        assert [(each["table"], each["outcome"]) for each in sent] == [
            (f"shop.{name}", "appended"),
            (f"shop.{name}", "replayed"),
        ]
        forged = send("door", {"item": 6, "price": 1, "_agent": "somebody"}, operation="upsert")
        assert forged["error"]["rule"] == "contract.partitions"
        deleted = send("door", {"item": 5}, operation="delete", key=f"del-{name}")
        wanted = [("d", "upsert"), ("d", "upsert")]
        if pattern == "mediator":
            assert deleted["error"]["rule"] == "rows.operation"
        else:
            assert deleted["outcome"] == "appended"
            wanted = [("d", "delete"), *wanted]
        rows = contents(tower, f"shop.{name}")
        assert sorted((row["_agent"], row["_operation"]) for row in rows) == wanted
        assert len({row["_idempotency_key"] for row in rows}) == len(rows)
        assert all(row["_written_at"] is not None for row in rows)
    assert prices(tower, "shop.door") == {1: 1}
    catalog.create_table("shop.door_bids", BIDS, partition_spec=BY_SLOT)
    slot = "[{identity(slot): {every: 2m, from: 0s, to: 1m}}]"
    agent.change(f"table: shop.door_bids, operations: [append], pattern: scheduler, partitions: {slot}")
    tower.clock.at_ms = -(-tower.clock.at_ms // 120_000) * 120_000
    assert send("door_bids", {"item": 1, "price": 2})["outcome"] == "appended"
    (row,) = contents(tower, "shop.door_bids")
    assert row["slot"].timestamp() * 1_000 == tower.clock.at_ms
    tower.clock.move(60)
    late = send("door_bids", {"item": 2, "slot": row["slot"].isoformat()})
    assert (late["error"]["rule"], late["error"]["next_step"]) == ("contract.slot", "fix_request")
    assert late["error"]["wait_until_ms"] == tower.clock.at_ms + 60_000
    early = send("door_bids", {"item": 2})
    assert (early["error"]["rule"], early["error"]["next_step"]) == ("contract.slot", "wait_until")
    client.close()

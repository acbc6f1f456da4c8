"""Trap A8: all caches of a tower share one budget, counted by what they really take in memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import orjson
import pytest

from icetower.commit.head import Heads
from icetower.commit.steps import PlanCache
from icetower.gateway.answers import answer as answer_of
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.growing import Growing
from icetower.iceberg.puffin import BlobAt
from icetower.protocol.names import Identifier
from icetower.recent import ENTRY_BYTES, Budget, Recent, Reservation
from icetower.table.keys import KeyRecord
from verify.kit.storage import MemoryStorage

MIB = 1024 * 1024


def test_what_was_used_longest_ago_goes_first_whichever_cache_has_it() -> None:
    budget = Budget(4 * (ENTRY_BYTES + 1 + 100))
    one: Recent[str] = budget.cache("one")
    other: Recent[str] = budget.cache("other")
    for key in "ab":
        one.put(key, key, 100)
        other.put(key, key, 100)
    assert budget.used_bytes == budget.max_bytes
    assert one["a"] == "a", "so it was used last"
    one.put("c", "c", 100)
    assert (list(one), list(other)) == (["b", "a", "c"], ["b"])
    assert other.peek("b") == "b", "which is no use of it"
    one.put("d", "d", 100)
    assert (list(one), list(other)) == (["a", "c", "d"], ["b"])
    assert budget.by_cache() == {"one": 3 * (ENTRY_BYTES + 101), "other": ENTRY_BYTES + 101}


def test_a_cache_takes_its_own_share_and_no_more() -> None:
    budget = Budget(100_000)
    greedy: Recent[int] = budget.cache("greedy", share=0.25)
    modest: Recent[int] = budget.cache("modest")
    modest.put("m", 0, 1_000)
    for number in range(1_000):
        greedy.put(str(number), number, 1_000)
    assert greedy.weight <= 25_000
    assert "m" in modest


def test_an_entry_that_grows_pushes_others_out_and_what_is_forgotten_makes_room() -> None:
    budget = Budget(10_000)
    cache: Recent[int] = budget.cache("cache")
    for key in ("a", "b"):
        cache.put(key, 0, 3_000)
    cache.reweigh("b", 9_000)
    assert list(cache) == ["b"]
    cache.forget("b")
    cache.forget("unknown")
    cache.reweigh("unknown", 5)
    assert (budget.used_bytes, cache.weight) == (0, 0)


def test_one_large_entry_pushes_out_thousands_of_small_ones() -> None:
    budget = Budget(8 * MIB)
    small: Recent[bytes] = budget.cache("small")
    large: Recent[bytes] = budget.cache("large")
    for at in range(5_000):
        small.put(str(at), b"", 1_000)
    large.put("a", b"", 7 * MIB)
    assert 0 < len(small) < 1_000
    assert budget.used_bytes == small.weight + large.weight <= budget.max_bytes
    Reservation(budget).take(budget.max_bytes)
    assert (len(small), len(large)) == (0, 0)


def test_work_in_progress_takes_of_the_same_memory_and_is_not_evicted() -> None:
    budget = Budget(10_000)
    cache: Recent[int] = budget.cache("cache")
    cache.put("a", 0, 5_000)
    held = Reservation(budget)
    held.take(9_000)
    assert not cache
    assert budget.used_bytes == budget.held_bytes == 9_000
    held.release()
    assert budget.used_bytes == budget.held_bytes == 0


def test_tables_workers_share_one_part_of_it() -> None:
    budget = Budget(MIB)
    tables = [PlanCache(budget) for _ in range(8)]
    small, large = PlanCache(budget), tables[0]
    for number, known in enumerate(tables):
        known.trim()
        known.add({}, {}, {BlobAt("p", number, 100_000): bytes(100_000)}, {})
    assert budget.held_bytes == budget.used_bytes == 800_000
    small.add({}, {}, {BlobAt("p", 9, 1_000): bytes(1_000)}, {})
    assert (large.overflows, small.overflows) == (True, False), "the large ones give way"
    for known in tables[:6]:
        known.trim()
    assert budget.held_bytes == 201_000, "each forgets before its next plan, until it is less than a quarter"
    assert not large.overflows
    for known in (*tables, small):
        known.clear()
    assert budget.held_bytes == budget.used_bytes == 0


class Pointers:
    def __init__(self) -> None:
        self.locations: dict[Identifier, str] = {}

    async def location(self, identifier: Identifier) -> str:
        return self.locations[identifier]


def metadata(number: int, snapshots: int) -> dict[str, Any]:
    def snapshot(at: int) -> dict[str, Any]:
        summary = dict.fromkeys(("added-records", "total-records", "total-data-files", "app-id"), f"{at}")
        path = f"s3://bucket/warehouse/db/t{number}/metadata/snap-{at}-0123456789abcdef.avro"
        return {
            "snapshot-id": 10**15 + at,
            "sequence-number": at,
            "timestamp-ms": 1_700_000_000_000 + at,
            "manifest-list": path,
            "summary": {"operation": "append", "icetower.key": f"{number}-{at:032d}"} | summary,
            "schema-id": 0,
        } | ({} if at == 1 else {"parent-snapshot-id": 10**15 + at - 1})

    every = [snapshot(at) for at in range(1, snapshots + 1)]
    last = every[-1]["snapshot-id"]
    return {
        "format-version": 2,
        "table-uuid": f"{number:08d}-0000-4000-8000-000000000000",
        "location": f"s3://bucket/warehouse/db/t{number}",
        "last-sequence-number": snapshots,
        "last-updated-ms": 1_700_000_000_000 + snapshots,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [FIELD]}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": last,
        "refs": {"main": {"snapshot-id": last, "type": "branch"}},
        "snapshots": every,
        "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in every],
        "metadata-log": [],
    }


FIELD = {"id": 1, "name": "a", "required": False, "type": "long"}


def measured(story: Any) -> int:
    """What a story leaves in memory, in bytes."""
    gc.collect()
    tracemalloc.start()
    asyncio.run(story)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken


@pytest.mark.parametrize("told", [False, True])
def test_versions_of_many_tables_take_what_the_budget_says(told: bool) -> None:
    storage, pointers, budget = MemoryStorage(), Pointers(), Budget(12 * MIB)
    heads = Heads(pointers, storage, budget=budget)  # type: ignore[arg-type]
    for number in range(24):
        table = Identifier(("db",), f"t{number}")
        pointers.locations[table] = f"s3://bucket/{number}.metadata.json"
        storage.files[pointers.locations[table]] = orjson.dumps(metadata(number, 300))

    async def story() -> None:
        for table in pointers.locations:
            head = await heads.load(table)
            if told:
                assert answer_of(head, b"{}", compressed=True)
                assert head.json_bytes

    taken = measured(story())
    assert 4 * MIB < taken < 12 * MIB
    assert budget.used_bytes <= budget.max_bytes


def test_versions_of_one_table_share_their_history_and_few_are_kept() -> None:
    storage, pointers, budget = MemoryStorage(), Pointers(), Budget(16 * MIB)
    heads = Heads(pointers, storage, budget=budget)  # type: ignore[arg-type]
    table = Identifier(("db",), "t")
    pointers.locations[table] = "s3://bucket/0.metadata.json"
    start = metadata(0, 1_000)
    storage.files[pointers.locations[table]] = orjson.dumps(start)

    async def story() -> None:
        head = await heads.load(table)
        for step in range(1, 200):
            growing = Growing(head.metadata, now_ms=1_800_000_000_000 + step, index=head.snapshots)
            before = head.metadata["snapshots"][-1]
            added = {
                **before,
                "snapshot-id": 10**16 + step,
                "parent-snapshot-id": before["snapshot-id"],
                "sequence-number": before["sequence-number"] + 1,
                "timestamp-ms": 1_800_000_000_000 + step,
            }
            ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 10**16 + step}
            growing.apply([{"action": "add-snapshot", "snapshot": added}, ref])
            head = head.after(f"s3://bucket/{step}.metadata.json", growing.metadata, snapshots=growing.index)
            assert answer_of(head, b"{}", compressed=True)
            assert head.json_bytes
            heads.remember(head)

    taken = measured(story())
    kept = [
        location
        for location in (f"s3://bucket/{step}.metadata.json" for step in range(200))
        if location in heads._recent
    ]
    assert "s3://bucket/199.metadata.json" in kept
    assert len(kept) <= 6
    assert taken <= budget.used_bytes <= budget.max_bytes
    parsed = table_metadata.parse(storage.files["s3://bucket/0.metadata.json"])
    assert parsed["table-uuid"] == start["table-uuid"]


def test_the_keys_of_a_group_file_are_counted_though_the_metadata_does_not_name_them() -> None:
    storage, pointers, budget = MemoryStorage(), Pointers(), Budget(64 * MIB)
    heads = Heads(pointers, storage, budget=budget)  # type: ignore[arg-type]
    table = Identifier(("db",), "t")
    pointers.locations[table] = "s3://bucket/0.metadata.json"
    storage.files[pointers.locations[table]] = orjson.dumps(metadata(0, 20))

    async def story() -> None:
        head = await heads.load(table)
        for step in range(60):  # as many groups, each of which stands for 500 appends
            landed = (KeyRecord(f"agent-{at % 50}", "main", f"{step}-{at:034d}", None, (10**15,)) for at in range(500))
            head = head.after(f"s3://bucket/{step + 1}.metadata.json", head.metadata, indexed=head.keys.plus(landed))
            heads.remember(head)

    taken = measured(story())
    assert taken > 5 * MIB
    assert taken <= budget.used_bytes <= 1.5 * taken

"""Trap A8: the contract speaks before manifests are read; long ones are parsed elsewhere, in turn, and counted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from icetower.admission.facts import Facts
from icetower.admission.gate import REQUEST_CHECKS, ask
from icetower.admission.identity import Identity
from icetower.contracts.document import load
from icetower.errors import CommitConflict, ContractViolation, ValidationFailed
from icetower.files import changes
from icetower.files.changes import Manifests
from icetower.files.parsing import WAITING_MAX, Parsing, Turns
from icetower.iceberg import avro_files
from icetower.iceberg.avro_shapes import check_shape
from icetower.iceberg.manifest_writing import manifest_row, write_manifest
from icetower.iceberg.manifests import read_manifest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.protocol.wire import OBJECTS_MAX, read_object
from icetower.recent import Budget
from icetower.registry.principals import Principal
from tests.files.test_manifest_cache import SHAPE, Memory, entries

MIB = 1024 * 1024
WHAT = ("commits", "the commit was")


def test_long_manifests_are_parsed_in_a_thread_and_short_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, threads = Memory(), list[str]()
    storage.files = {
        "short": write_manifest(entries(20, 3), format_version=2, **SHAPE),
        "long": write_manifest(entries(1_000, 3), format_version=2, **SHAPE),
    }

    def read(data: bytes, **options: Any) -> Any:
        found = read_manifest(data, **options)
        threads.append(threading.current_thread().name)
        return found

    monkeypatch.setattr(changes, "read_manifest", read)
    manifests = Manifests(storage)  # type: ignore[arg-type]
    assert len(asyncio.run(manifests.manifest_at("short")).entries) == 20
    assert len(asyncio.run(manifests.manifest_at("long")).entries) == 1_000
    assert threads == ["MainThread", "parsing-0"]


def test_a_commits_manifests_are_held_until_it_is_answered_and_are_bounded() -> None:
    storage, budget = Memory(), Budget(16 * MIB)
    data = write_manifest(entries(1_000, 3), format_version=2, **SHAPE)
    only = entries(1, 0)
    row = manifest_row("m", data, only, sequence_number=1, **SHAPE)
    storage.files = {"m": data}
    manifests = Manifests(storage, budget=budget)  # type: ignore[arg-type]

    async def story() -> None:
        async with manifests.parsing.commit("a"):
            await manifests.manifests_at([row])
            assert 4 * MIB < budget.held_bytes < 8 * MIB
            with pytest.raises(ValidationFailed, match="split the commit") as refused:
                await asyncio.gather(*(manifests.manifests_at([row]) for _ in range(3)))
            assert refused.value.rule == "limit.manifests"
        assert budget.held_bytes == 0

    asyncio.run(story())


def test_principals_take_turns() -> None:
    async def story() -> list[str]:
        turns, order = Turns(WHAT, lambda: True, 30), list[str]()

        async def commit(name: str) -> None:
            await turns.enter(name)
            order.append(name)
            turns.leave()

        await turns.enter("first")
        waiting = [asyncio.ensure_future(commit(name)) for name in ("greedy",) * 20 + ("polite",)]
        for _ in range(3):
            await asyncio.sleep(0)
        turns.leave()
        await asyncio.gather(*waiting)
        return order

    assert asyncio.run(story()).index("polite") == 1


def test_the_thread_goes_from_principal_to_principal_whatever_it_does() -> None:
    """Bodies of one that has many connections, and a commit of another that comes after them."""

    async def story() -> list[str]:
        parsing, order = Parsing(Budget(MIB)), list[str]()
        first = asyncio.ensure_future(parsing.body(lambda: order.append("greedy"), "greedy"))
        await asyncio.sleep(0)
        bodies = [asyncio.ensure_future(parsing.body(lambda: order.append("greedy"), "greedy")) for _ in range(32)]
        for _ in range(3):
            await asyncio.sleep(0)

        async def commit() -> None:
            async with parsing.commit("polite"):
                for _ in range(3):
                    await parsing.away(lambda: order.append("polite"))

        await asyncio.gather(first, *bodies, commit())
        return order

    order = asyncio.run(story())
    assert order.count("greedy") == 33
    assert max(at for at, name in enumerate(order) if name == "polite") < 12


def test_nobody_waits_for_ever_or_in_any_number_and_memory_is_waited_for() -> None:
    async def story() -> None:
        free = False
        turns = Turns(WHAT, lambda: free, 0.01)
        with pytest.raises(CommitConflict, match="within"):
            await turns.enter("a")
        free = True
        await turns.enter("a")
        patient = Turns(WHAT, lambda: False, 30)
        waiting = [asyncio.ensure_future(patient.enter("a")) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(CommitConflict) as refused:
            await patient.enter("a")
        assert refused.value.rule == "queue.full"
        for each in waiting:
            each.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*waiting, return_exceptions=True)
        )

    asyncio.run(story())


def test_what_outlives_its_commit_waits_for_no_turn() -> None:
    """The worker of a table is started by a commit, and goes on when that is answered."""

    async def story() -> int:
        parsing = Parsing(Budget(MIB))
        go_on = asyncio.Event()

        async def worker() -> int:
            await go_on.wait()
            parsing.read(10 * MIB, 1)
            return await parsing.away(lambda: 7)

        async with parsing.commit("a"):
            task = asyncio.ensure_future(worker())
            await asyncio.sleep(0)
        async with parsing.commit("b") as reading:
            await reading.enter()
            go_on.set()
            return await task

    assert asyncio.run(story()) == 7


def test_a_contract_speaks_before_any_manifest_is_read() -> None:
    contract = load("version: 1\nagent: r\nreads: [db.t]", source="test")
    principal = Principal("r", contract, 1)
    snapshot = {"snapshot-id": 7, "manifest-list": "file:///anything", "summary": {}}
    update = {"action": "add-snapshot", "snapshot": snapshot}
    table = {"refs": {}, "properties": {}, "location": "file:///w/t"}
    facts = Facts(
        principal, Identifier(("db",), "t"), table, [], Updates([update]), Identity("r", "", None, None), now_ms=0
    )
    with pytest.raises(ContractViolation) as refused:
        ask(REQUEST_CHECKS, facts.unread())
    assert refused.value.rule == "contract.operation"
    snapshot["summary"] = {"icetower.unknown": "1"}
    with pytest.raises(ValidationFailed):
        ask(REQUEST_CHECKS, facts.unread())


def test_records_are_bounded_by_what_they_take_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_manifest(entries(100, 50), format_version=2, **SHAPE)
    assert len(read_manifest(data).entries) == 100
    monkeypatch.setattr(avro_files, "MEMORY_MAX_BYTES", 2 * MIB)
    with pytest.raises(ValidationFailed, match="of memory"):
        read_manifest(data)


def test_a_block_longer_than_a_record_may_be_is_read_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_manifest(entries(100, 5), format_version=2, **SHAPE)
    whole = read_manifest(data)
    monkeypatch.setattr(avro_files, "RECORD_MAX_BYTES", 2_000)
    assert read_manifest(data) == whole
    monkeypatch.setattr(avro_files, "RECORD_MAX_BYTES", 100)
    with pytest.raises(ValidationFailed, match="not a readable Avro file"):
        read_manifest(data)


def test_types_within_types_are_asked_about_once() -> None:
    """Thirty types of two fields each were asked about a thousand million times."""
    last: Any = {"type": "record", "name": "r0", "fields": []}
    for at in range(1, 40):
        first, second = {"name": "a", "type": last}, {"name": "b", "type": f"r{at - 1}"}
        last = {"type": "record", "name": f"r{at}", "fields": [first, second]}
    schema = {"type": "record", "name": "m", "fields": [{"name": "x", "type": {"type": "array", "items": last}}]}
    with pytest.raises(ValueError, match="no bytes"):
        check_shape(schema)


def test_a_body_of_very_many_objects_is_not_parsed() -> None:
    from icetower.errors import BadRequest

    with pytest.raises(BadRequest) as refused:
        read_object(b'{"a":[' + b"[]," * OBJECTS_MAX + b"0]}", "commit")
    assert refused.value.rule == "limit.objects"

"""A dry run says what the commit itself would get, by the same rule, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from icetower.contracts.model import Operation
from icetower.errors import BadRequest, IcetowerError, TooManyRequests
from icetower.gateway.checks import CHECKS, CheckRate
from icetower.protocol.checks import IntentRequest, parse_check
from icetower.protocol.commits import CommitRequest
from icetower.registry.principals import administrator
from icetower.service.checks import Intent
from tests.gateway.test_gate_order import (
    BY_A_CONTRACT,
    TABLE,
    Scene,
    begun,
    bound,
    contract,
    forged,
    refuse_stopped,
    scene,
)


def test_a_check_is_refused_by_the_rule_of_the_commit_and_reads_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            free = place.tower.records.escalations.require_free
            faults = {fault for fault, *_ in BY_A_CONTRACT} - {"too soon"}
            for fault, rule, read in BY_A_CONTRACT:
                if fault == "too soon":
                    continue
                if fault == "stopped":
                    refuse_stopped(place)
                place.read()
                verdict = await place.tower.checks.commit(*forged(place, faults), None)
                assert verdict.error is not None
                assert (fault, verdict.error.rule, place.read()) == (fault, rule, read)
                assert verdict.outcome is None
                faults.remove(fault)
                if fault == "stopped":
                    place.tower.records.escalations.require_free = free  # type: ignore[method-assign]
            who, request = forged(place, faults)
            verdict = await place.tower.checks.commit(who, request, None)
            assert (verdict.outcome, verdict.error) == ("direct", None)
            assert verdict.operations == ("append",)
            assert verdict.partitions == ("day=0",)
            assert verdict.snapshot == place.head.metadata["current-snapshot-id"]

    asyncio.run(story())


def test_a_check_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            tower, before = place.tower, place.head.location
            shadow = bound(contract(mode="shadow", quotas="{bytes_per_commit: 1, commits_per_minute: 1}"))
            who, request = forged(place, {"too soon"})
            ledger = await tower.records.journal.read_through()
            logged = (await ledger.attempts_after(0, limit=1_000)).newest
            for _ in range(5):
                verdict = await tower.checks.commit(who, request, None)
                assert (verdict.outcome, verdict.wait_s) == ("direct", 0.0)
                assert (await tower.checks.intent(who, TABLE, INTO_ONE)).error is None
            noted = await tower.checks.commit(shadow, request, None)
            assert [each.rule for each in noted.shadowed] == ["contract.quota"]
            assert noted.error is None
            ledger = await tower.records.journal.read_through()
            assert (await ledger.attempts_after(0, limit=1_000)).newest == logged
            assert (await tower.lake.heads.load(TABLE)).location == before
            # The one place of the minute is still free for the commit itself.
            assert tower.checks._rates.wait_now_s(who, TABLE) == 0.0  # pyright: ignore[reportPrivateUsage]

    asyncio.run(story())


INTO_ONE = Intent(frozenset({Operation.APPEND}), ("day=0",))


def test_a_stale_check_is_told_what_the_stale_commit_would_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            ann = administrator("ann")
            _, stale = forged(place, set())
            _, other = forged(place, set())
            assert (await place.tower.checks.commit(ann, stale, None)).outcome == "direct"
            await place.tower.commits.commit(ann, other, None)
            verdict = await place.tower.checks.commit(ann, stale, None)
            with pytest.raises(IcetowerError) as refused:
                await place.tower.commits.commit(ann, stale, None)
            assert verdict.error is not None
            found = (verdict.error.rule, verdict.error.status, verdict.error.message, verdict.error.next_step)
            error = refused.value
            assert found == (error.rule, error.status, error.message, error.next_step)
            again = await place.tower.checks.commit(ann, other, None)
            assert again.outcome == "replayed"
            creating = CommitRequest(TABLE, ({"type": "assert-create"},), stale.updates)
            there = await place.tower.checks.commit(ann, creating, None)
            assert there.error is not None
            assert there.error.rule == "requirement.assert-create"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("intent", "rule", "partitions"),
    [
        ({"operation": "append", "partitions": ["day=0"]}, None, ("day=0",)),
        ({"operation": "append", "partitions": [{"day": 0}]}, None, ("day=0",)),
        ({"operation": "append"}, None, ()),
        ({"operation": "append", "partitions": ["day=7"]}, "contract.partitions", ("day=7",)),
        ({"operation": "append", "partitions": [{"day": [0, 7]}]}, "contract.partitions", ("day=7",)),
        ({"operation": "append", "partitions": ["day=null"]}, "contract.partitions", ("day=null",)),
        ({"operation": "append", "partitions": [{"day": None}]}, "contract.partitions", ("day=null",)),
        ({"operation": "delete", "partitions": ["day=0"]}, "contract.operation", ()),
        ({"operation": ["append", "delete"], "partitions": ["day=0"]}, "contract.operation", ()),
        ({"operation": "append", "files": 9}, "contract.quota", ()),
        ({"operation": "append", "files": 1, "bytes": 10**9}, "contract.quota", ()),
    ],
)
def test_an_intent_meets_the_contract_without_files(
    intent: Mapping[str, Any],
    rule: str | None,
    partitions: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            text = contract(operations="append", quotas="{files_per_commit: 4, bytes_per_commit: 1000}")
            verdict = await place.tower.checks.intent(bound(text), TABLE, wanted(intent))
            assert (None if verdict.error is None else verdict.error.rule) == rule
            assert verdict.partitions == partitions
            assert verdict.outcome == ("admitted" if rule is None else None)

    asyncio.run(story())


def wanted(intent: Mapping[str, Any]) -> Intent:
    request = IntentRequest.model_validate(intent)
    operations = frozenset(map(Operation, request.operations()))
    return Intent(operations, request.regions(), request.files, request.size_bytes)


@pytest.mark.parametrize(
    ("partition", "said"),
    [
        ("nonsense", "no name of a partition"),
        ("day=", "cannot be read"),
        ({"other": 1}, "a partition names other"),
        ({}, "a partition names nothing"),
        ({"day": []}, "a list without values"),
        ({"day": [*range(1000)]}, ""),
        ("day=x", "cannot be read"),
    ],
)
def test_an_intent_that_does_not_fit_the_table_is_400(
    partition: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            asked = wanted({"operation": "append", "partitions": [partition]})
            if not said:  # as many as are allowed
                assert (await place.tower.checks.intent(administrator("ann"), TABLE, asked)).error is None
                return
            with pytest.raises(BadRequest, match=said) as refused:
                await place.tower.checks.intent(administrator("ann"), TABLE, asked)
            assert refused.value.rule == "request.partitions"

    asyncio.run(story())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"intent": 3}',
        b'{"intent": {}}',
        b'{"intent": {"operation": "drop"}}',
        b'{"intent": {"operation": []}}',
        b'{"intent": {"operation": "append", "files": -1}}',
        b'{"intent": {"operation": "append", "partitions": [3]}}',
        b'{"intent": {"operation": "append", "partitions": [{"day": {"from": 1}}]}}',
        b'{"updates": 3}',
        b"{}",
        b'{"operation": "append"}',
        b'{"intents": {"operation": "append"}}',
    ],
)
def test_what_is_neither_commit_nor_intent_is_400(body: bytes) -> None:
    def read() -> None:
        found = parse_check(body)
        assert isinstance(found, IntentRequest)
        found.operations()
        found.regions()

    with pytest.raises(BadRequest):
        read()


def test_who_may_not_see_the_table_learns_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            elsewhere = bound(contract().replace("ns.t", "ns.other"))
            _, request = forged(place, set())
            place.read()
            for verdict in (
                await place.tower.checks.commit(elsewhere, request, None),
                await place.tower.checks.intent(elsewhere, TABLE, Intent(frozenset({Operation.APPEND}), ("x",))),
            ):
                assert verdict.error is not None
                assert verdict.error.rule == "contract.table"
                assert verdict.snapshot is None
            assert place.read() == ()

    asyncio.run(story())


def test_checks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            rate = CheckRate(place.tower.front.ambient)

            def many(count: int) -> None:
                for _ in range(count):
                    rate.take_turn("bob")

            many(CHECKS[0])
            with pytest.raises(TooManyRequests) as refused:
                many(100)
            assert (refused.value.rule, refused.value.next_step) == ("check.rate", "wait_until")
            rate.take_turn("ann")

    asyncio.run(story())


def test_the_scene_is_as_it_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that nobody could fail proves nothing: with all mended the commit of an administrator lands."""

    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            assert isinstance(place, Scene)
            _, request = forged(place, set())
            head = await place.tower.commits.commit(administrator("ann"), request, None)
            assert head.metadata["current-snapshot-id"] == request.updates.snapshots[0].id

    asyncio.run(story())

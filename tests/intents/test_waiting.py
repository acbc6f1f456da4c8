"""Waiting for intents at two towers: nobody misses the moment, and what is lost on the way costs one place at most."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.contracts.model import Operation
from icetower.database import Database, sqlite_url
from icetower.errors import BadRequest, Conflict, ContractViolation, Forbidden, TooManyRequests
from icetower.intents.fencing import Fencing
from icetower.intents.model import State
from icetower.intents.regions import read_regions
from icetower.intents.store import Store
from icetower.protocol.marks import INTENT
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal, administrator
from icetower.service import intents as service
from icetower.service.intents import Intents, Wish
from tests.intents.world import TABLE, Table, append, require_fair

WITHIN_S = 60


class Stopped(SystemAmbient):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = super().now_ms()

    def now_ms(self) -> int:
        return self.ms


class Towers:
    """Some towers on one control database, and a table that all of them see."""

    def __init__(self, path: Path, count: int = 2, ambient: SystemAmbient | None = None, **table: Any) -> None:
        self.ambient = ambient or SystemAmbient()
        self.table = Table(**table)
        self.databases = [Database(sqlite_url(path / "control.db"), own=True) for _ in range(count)]
        heads: Any = SimpleNamespace(load=self._load)
        stores = [Store(database, self.ambient) for database in self.databases]
        self.towers = [Intents(store, Fencing(store), heads, self.ambient) for store in stores]
        self.shadow = ShadowRecorder(self.ambient, lambda _: None)

    async def _load(self, table: Any) -> Any:
        del table
        return SimpleNamespace(metadata=self.table.metadata)

    async def declare(self, at: int, who: Principal, *days: int, **more: Any) -> service.Seen:
        regions = read_regions([{"day": list(days)}]) if days else None
        operations = more.pop("operations", frozenset({Operation.OVERWRITE}))
        said = json.dumps([{"day": list(days)}]) if days else "all"
        wish = Wish(TABLE, operations, regions, said=said, exclusive=more.pop("exclusive", False))
        given = {"ttl_ms": 60_000} | more
        return await self.towers[at].declare(who, [wish], self.shadow, **given)

    async def close(self) -> None:
        for tower in self.towers:
            await tower.close()
        for database in self.databases:
            database.close()


def at_towers(path: Path, story: Callable[[Towers], Coroutine[Any, Any, None]], **given: Any) -> None:
    async def scenario() -> None:
        towers = Towers(path, **given)
        try:
            await asyncio.wait_for(story(towers), WITHIN_S)
        finally:
            await towers.close()

    asyncio.run(scenario())


ANN, BOB = administrator("ann"), administrator("bob")


@pytest.mark.parametrize("released_at", [0, 1])
def test_who_waits_hears_of_a_release_at_either_tower(tmp_path: Path, released_at: int) -> None:
    async def story(towers: Towers) -> None:
        first = await towers.declare(0, ANN, 1)
        second = await towers.declare(1, BOB, 1, queue=True)
        assert [each.id for each in second.in_the_way] == [first.intent.id]
        waiting = asyncio.create_task(towers.towers[1].wait(BOB, second.intent.id, WITHIN_S, known=State.QUEUED))
        await towers.towers[released_at].release(ANN, first.intent.id)
        assert (await waiting).intent.state is State.HELD

    at_towers(tmp_path, story)


def test_who_waits_comes_when_a_lease_is_not_renewed(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        await towers.declare(0, ANN, 1, ttl_ms=50)
        second = await towers.declare(1, BOB, 1, queue=True)
        found = await towers.towers[1].wait(BOB, second.intent.id, WITHIN_S, known=State.QUEUED)
        assert found.intent.state is State.HELD

    at_towers(tmp_path, story)


def test_a_herd_passes_through_one_partition_one_by_one(tmp_path: Path) -> None:
    """Twenty agents at two towers: each comes, nobody beside another, in the order in which they were declared."""

    async def story(towers: Towers) -> None:
        inside: list[str] = []
        order: list[int] = []
        dice = random.Random(5)

        async def agent(number: int) -> None:
            at, who = number % 2, administrator(f"agent-{number}")
            days = dice.choice(((1,), (1, 2), (2,), ()))
            seen = await towers.declare(at, who, *days, queue=True)
            while seen.intent.state is State.QUEUED:
                seen = await towers.towers[at].wait(who, seen.intent.id, 1.0, known=State.QUEUED)
            assert seen.intent.state is State.HELD
            require_fair(await towers.towers[at].live())
            inside.append(seen.intent.id)
            order.append(seen.intent.fence or 0)
            await towers.towers[1 - at].release(who, seen.intent.id)

        await asyncio.gather(*(agent(number) for number in range(20)))
        assert len(set(inside)) == 20
        assert sorted(order) == list(range(1, 21))
        assert await towers.towers[0].live() == []

    at_towers(tmp_path, story)


def test_a_waiter_that_is_asked_for_lives(tmp_path: Path) -> None:
    clock = Stopped()

    async def story(towers: Towers) -> None:
        await towers.declare(0, ANN, 1)
        second = await towers.declare(0, BOB, 1, queue=True, ttl_ms=200)
        waiting = asyncio.create_task(towers.towers[0].wait(BOB, second.intent.id, WITHIN_S, known=State.QUEUED))
        found = second
        for _ in range(4):
            clock.ms += 150
            while found.intent.renewed_ms != clock.ms:
                await clock.sleep(0.005)
                found = await towers.towers[0].find(BOB, second.intent.id)
                assert found.intent.state is State.QUEUED
        waiting.cancel()
        refusal = await towers.towers[0].withdraw(BOB, found)
        assert isinstance(refusal, Conflict)
        assert refusal.rule == "intent.held"
        assert (await towers.towers[0].find(BOB, second.intent.id)).intent.state is State.ENDED
        assert isinstance(await towers.towers[0].withdraw(BOB, found), Forbidden)  # nobody stands in the way any more

    at_towers(tmp_path, story, ambient=clock)


def test_who_is_granted_at_the_last_moment_keeps_it(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        first = await towers.declare(0, ANN, 1)
        second = await towers.declare(0, BOB, 1, queue=True)
        await towers.towers[0].release(ANN, first.intent.id)
        assert await towers.towers[0].withdraw(BOB, second) is None

    at_towers(tmp_path, story)


def test_holders_hear_of_commits_at_the_other_tower(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        held = await towers.declare(0, ANN, 1)
        other = await towers.declare(0, ANN, 3)
        head = SimpleNamespace(metadata=towers.table.metadata, specs={}, snapshots={})
        done: Any = SimpleNamespace(outcome="appended", head=head, snapshots=(77,))
        await towers.towers[1].find(ANN, held.intent.id)  # as the gate has asked before
        waiting = asyncio.create_task(towers.towers[0].wait(ANN, held.intent.id, WITHIN_S, known=State.HELD))
        towers.towers[1].landed(append((1, 0), (2, 0), principal="bob"), done)
        [warning] = (await waiting).warnings
        assert '"snapshot-id": 77' in warning
        assert (await towers.towers[0].find(ANN, other.intent.id)).warnings == ()
        replayed: Any = SimpleNamespace(outcome="replayed", head=head, snapshots=(77,))
        towers.towers[1].landed(append((3, 0), principal="bob"), replayed)
        assert (await towers.towers[0].find(ANN, other.intent.id)).warnings == ()
        assert towers.towers[1].warned == 1

    at_towers(tmp_path, story)


def test_a_tower_that_stops_answers_all_who_wait(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        await towers.declare(0, ANN, 1)
        second = await towers.declare(0, BOB, 1, queue=True)
        waiting = asyncio.create_task(towers.towers[0].wait(BOB, second.intent.id, WITHIN_S, known=State.QUEUED))
        await asyncio.sleep(0)
        towers.towers[0].let_go()
        assert (await waiting).intent.state is State.QUEUED

    at_towers(tmp_path, story)


def test_so_many_requests_of_a_principal_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WAITING_MAX", 1)

    async def story(towers: Towers) -> None:
        held = await towers.declare(0, ANN, 1)
        waiting = asyncio.create_task(towers.towers[0].wait(ANN, held.intent.id, WITHIN_S, known=State.HELD))
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests) as refused:
            await towers.towers[0].wait(ANN, held.intent.id, 1.0)
        assert refused.value.rule == "intent.waiting"
        await towers.towers[0].release(ANN, held.intent.id)
        assert (await waiting).intent.state is State.ENDED

    at_towers(tmp_path, story)


def test_fewer_may_wait_for_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SLOTS_WAITING_MAX", 1)

    async def never() -> tuple[str, service.Again]:
        return "not yet", service.Again(60.0, lambda: True)

    async def story(towers: Towers) -> None:
        tower = towers.towers[0]
        waiting = asyncio.create_task(tower.repeated(ANN, WITHIN_S, never))
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests, match="wait for slots") as refused:
            await tower.repeated(ANN, 1.0, never)
        assert refused.value.rule == "intent.waiting"
        held = await towers.declare(0, ANN, 1)  # neither counts for the other
        assert (await tower.wait(ANN, held.intent.id, 0.0)).intent.state is State.HELD
        tower.let_go()
        assert await waiting == "not yet"

    at_towers(tmp_path, story)


def test_whoever_waits_for_a_slot_tries_again_for_what_concerns_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "NAP_S_MAX", WITHIN_S)

    async def story(towers: Towers) -> None:
        tower, asked, tries = towers.towers[0], asyncio.Event(), 0
        concerned = False

        def moved() -> bool:
            asked.set()
            return concerned

        async def attempt() -> tuple[int, service.Again | None]:
            nonlocal tries
            tries += 1
            return tries, None if concerned else service.Again(WITHIN_S, moved)

        waiting = asyncio.create_task(tower.repeated(ANN, WITHIN_S, attempt))
        for number in range(3):  # changes of the book
            await towers.declare(0, ANN, number)
            await asked.wait()
            asked.clear()
            assert tries == 1
        concerned = True
        await towers.declare(0, ANN, 4)
        assert await waiting == 2

    at_towers(tmp_path, story)


def test_an_administrator_breaks_a_lease_and_nobody_else(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        text = "version: 1\nagent: bob\ntables: [{table: ns.t, operations: [overwrite], partitions: [{day: [1]}]}]\n"
        owner = Principal("bob", load(text, source="test"), 1)
        held = await towers.declare(0, owner)  # all that it owns
        assert held.intent.claims[0].boxes != ({},)
        with pytest.raises(ContractViolation):
            await towers.declare(0, owner, 2)
        with pytest.raises(ContractViolation):
            await towers.declare(0, owner, operations=frozenset({Operation.ALTER}))
        broken = await towers.towers[1].release(ANN, held.intent.id)
        assert (broken.intent.ended, broken.intent.ended_by) == ("broken", "ann")
        again = await towers.towers[1].release(owner, held.intent.id)
        assert again.intent.ended == "broken"
        with pytest.raises(Forbidden):
            await towers.declare(0, owner, id_=held.intent.id)

    at_towers(tmp_path, story)


def test_exclusive_needs_a_table_that_heeds_it(tmp_path: Path) -> None:
    async def story(towers: Towers) -> None:
        with pytest.raises(BadRequest) as refused:
            await towers.declare(0, ANN, 1, exclusive=True)
        assert refused.value.rule == "intent.exclusive"
        towers.table.required = True
        assert (await towers.declare(0, ANN, 1, exclusive=True)).intent.claims[0].exclusive

    at_towers(tmp_path, story)


def test_waiting_for_a_slot_is_no_way_out_under_an_intent_that_has_ended(tmp_path: Path) -> None:
    """A slot by the clock: no column tells that the rows are of a slot that is over, but the intent does."""

    async def refused(towers: Towers, principal: Principal, **summary: str) -> str:
        updates = Updates([{"action": "add-snapshot", "snapshot": {"snapshot-id": 7, "summary": summary}}])
        with pytest.raises(ContractViolation) as raised:
            async with towers.towers[0].judging(principal, updates):
                raise ContractViolation("late", rule="contract.slot", next_step="wait_until", wait_until_ms=1)
        return raised.value.next_step

    async def story(towers: Towers) -> None:
        held = (await towers.declare(1, ANN, 1)).intent.id
        assert await refused(towers, ANN) == "wait_until"
        assert await refused(towers, ANN, **{INTENT: held}) == "wait_until"
        assert await refused(towers, BOB, **{INTENT: held}) == "fix_request"
        await towers.towers[1].release(ANN, held)
        assert await refused(towers, ANN, **{INTENT: held}) == "fix_request"
        assert await refused(towers, ANN, **{INTENT: "of-no-intent-that-is"}) == "fix_request"

    at_towers(tmp_path, story)

"""The contracts in force, and their calendars: read and derived once for each change of the registry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.database import Database
from icetower.protocol.names import Identifier
from icetower.registry import versions
from icetower.registry.registry import Registry
from icetower.service import in_force
from icetower.service.in_force import InForce
from tests.contracts.test_slots import NINE, TABLE, contract, minute

MORE = ", pattern: scheduler, claim_within: 15s"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(Database(f"sqlite:///{tmp_path / 'control.db'}"), SystemAmbient())


def test_a_contract_is_read_again_only_once_one_has_changed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    everything = versions.everything
    monkeypatch.setattr(versions, "everything", lambda c: read.append(1) or everything(c))
    agents = [contract(f"a{n}", f"{{identity(slot): {minute(n, 3)}}}", more=MORE) for n in range(3)]
    elsewhere = Registry(Database(f"sqlite:///{tmp_path / 'control.db'}"), SystemAmbient())
    kept = InForce(registry, SystemAmbient())

    async def story() -> None:
        for each in agents:
            await registry.apply_contract(each, by="owner")
        first = await kept.calendars(TABLE)
        found = await asyncio.gather(*(kept.calendars(TABLE) for _ in range(50)))
        assert all(each is first for each in found)
        assert len(read) == 1
        await registry.create_principal("somebody", "a0")  # the registry changes, and no contract
        assert await kept.calendars(TABLE) is first
        before = await kept.contracts()
        await elsewhere.revoke_contract("a1", by="owner")  # by another tower
        after = await kept.contracts()
        assert [each.name for each in after] == ["a0", "a2"]
        assert after[0] is before[0]
        again = await kept.calendars(TABLE)
        assert again is not first
        # a0's next slot but one was a1's; a2's is open to it sooner without a1 before it
        assert again.openings(agents[0], NINE) != first.openings(agents[0], NINE)

    asyncio.run(story())


def test_few_places_are_kept(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_force, "PLACES_MAX", 4)
    text = "version: 1\nagent: a\ntables: [{table: ns.*, operations: [append], partitions: [{now: {every: 1m}}]}]\n"
    kept = InForce(registry, SystemAmbient())

    async def story() -> None:
        await registry.apply_contract(load(text, source="test"), by="owner", text=text)
        for number in range(10):
            await kept.calendars(Identifier(("ns",), f"t{number}"))
        assert len(kept._calendars) == 2

    asyncio.run(story())

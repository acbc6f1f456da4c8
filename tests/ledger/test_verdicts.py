"""Verdicts of checks: the last one of each principal counts, for one snapshot of one table."""

from __future__ import annotations

import asyncio
from pathlib import Path

from icetower.ambient import SystemAmbient
from icetower.database import Database, sqlite_url
from icetower.ledger.ledger import Ledger
from icetower.ledger.verdicts import KEPT_MS, Verdicts


class Clock(SystemAmbient):
    ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms


def test_the_last_verdict_of_those_who_are_asked_counts(tmp_path: Path) -> None:
    clock = Clock()
    database = Database(sqlite_url(tmp_path / "control.db"), own=True)
    Ledger(database, clock)
    verdicts = Verdicts(database, clock)

    async def report(name: str, principal: str, *, passed: bool, snapshot: int = 1, uuid: str = "u") -> None:
        await verdicts.report(uuid, snapshot, name, passed=passed, details="d", principal=principal)

    async def found(*by: str, snapshot: int = 1, uuid: str = "u") -> dict[str, bool]:
        return {name: each.passed for name, each in (await verdicts.of(uuid, snapshot, by)).items()}

    async def story() -> None:
        await report("a", "ann", passed=False)
        await report("a", "ann", passed=True)
        await report("a", "bob", passed=False)
        await report("b", "bob", passed=True)
        await report("a", "ann", passed=False, snapshot=2)
        await report("a", "ann", passed=False, uuid="other")
        assert await found("ann") == {"a": True}
        assert await found("bob") == {"a": False, "b": True}
        assert await found("ann", "bob") == {"a": False, "b": True}
        await report("a", "ann", passed=True)
        assert await found("ann", "bob") == {"a": True, "b": True}
        assert await found() == {}
        assert await found("ann", snapshot=2) == {"a": False}
        clock.ms += KEPT_MS + 10
        await report("c", "ann", passed=True)
        assert await found("ann", "bob") == {"c": True}

    try:
        asyncio.run(story())
    finally:
        database.close()

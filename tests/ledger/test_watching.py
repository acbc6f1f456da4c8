"""Events and reports in the control database: numbered in order, bounded, and gone where a person's text is erased."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icetower.ambient import SystemAmbient
from icetower.database import Database, sqlite_url
from icetower.ledger import watching
from icetower.ledger.ledger import Batch, Ledger
from icetower.ledger.watching import Changed, Reported


def changed(at_ms: int, event: str = "{}") -> Changed:
    return Changed(at_ms, "update-table", (("shop", "sales"),), None, event)


def reported(principal: str, snapshot: int, attempts: int) -> Reported:
    return Reported(1, principal, "shop.sales", snapshot, "append", attempts, None)


def test_events_have_numbers_that_grow_and_the_oldest_give_way(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = Ledger(Database(sqlite_url(tmp_path / "control.db")), SystemAmbient(), events_max=3)
        assert (await ledger.changes_after(0, limit=10)) == watching.Changes((), None, None)
        for number in range(1, 6):
            await ledger.write(Batch(changed=[changed(number * 10)]))
        found = await ledger.changes_after(0, limit=2)
        assert [(number, event.at_ms) for number, event in found.events] == [(3, 30), (4, 40)]
        assert (found.oldest, found.newest) == (3, 5)
        assert [number for number, _ in (await ledger.changes_after(4, limit=10)).events] == [5]
        assert [number for number, _ in (await ledger.changes_after(0, since_ms=40, limit=10)).events] == [4, 5]
        assert (await ledger.changes_after(0, since_ms=60, limit=10)).events == ()
        assert found.events[0][1].objects == (("shop", "sales"),)

    asyncio.run(story())


def test_numbers_are_not_used_again_when_all_have_gone(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = Ledger(Database(sqlite_url(tmp_path / "control.db")), SystemAmbient())
        await ledger.write(Batch(changed=[changed(1, '{"name": "grace hopper"}'), changed(2, '{"name": "ada"}')]))
        await ledger.forget("grace hopper")
        assert [number for number, _ in (await ledger.changes_after(0, limit=10)).events] == [2]
        await ledger.forget("ada")
        await ledger.write(Batch(changed=[changed(3)]))
        assert [number for number, _ in (await ledger.changes_after(0, limit=10)).events] == [3]

    asyncio.run(story())


def test_none_are_kept_where_none_are_wanted(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = Ledger(Database(sqlite_url(tmp_path / "control.db")), SystemAmbient(), events_max=0)
        await ledger.write(Batch(changed=[changed(1)]))
        assert (await ledger.changes_after(0, limit=10)).events == ()

    asyncio.run(story())


def test_reports_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REPORTS_MAX", 2)

    async def story() -> None:
        ledger = Ledger(Database(sqlite_url(tmp_path / "control.db")), SystemAmbient())
        await ledger.write(Batch(reported=[reported("ann", snapshot, 1) for snapshot in (1, 2, 3)]))
        assert [each.snapshot_id for each in await ledger.reports(limit=10)] == [3, 2]

    asyncio.run(story())

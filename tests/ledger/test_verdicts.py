"""Verdicts of checks: the last one of each principal counts, for one snapshot of one table."""

from __future__ import annotations

import asyncio
from pathlib import Path

from icetower.ambient import SystemAmbient
from icetower.database import Database, sqlite_url
from icetower.ledger.ledger import Ledger
from icetower.ledger.schema import verdicts as kept
from icetower.ledger.verdicts import KEPT_MS, Verdicts
from icetower.protocol.snapshots import Snapshot


class Clock(SystemAmbient):
    ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms


def snapshot_of(id_: int, **fields: object) -> Snapshot:
    return Snapshot(
        {"snapshot-id": id_, "manifest-list": "s3://a/1.avro", "sequence-number": 2, "timestamp-ms": 5, **fields}
    )


OTHERS = [
    {"manifest-list": "s3://a/2.avro"},
    {"sequence-number": 3},
    {"timestamp-ms": 6},
    {"manifest-list": None, "manifests": ["s3://a/m.avro"]},
]


def test_a_verdict_counts_for_no_other_snapshot_under_the_same_id(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "control.db"), own=True)
    Ledger(database, Clock())
    verdicts = Verdicts(database, Clock())

    async def story() -> None:
        await verdicts.report("u", snapshot_of(1), "a", passed=True, details="", principal="ann")
        same = snapshot_of(1, **{"schema-id": 7, "summary": {"operation": "append"}})
        assert set(await verdicts.of("u", same, ["ann"])) == {"a"}
        for fields in OTHERS:
            assert await verdicts.of("u", snapshot_of(1, **fields), ["ann"]) == {}
        await database.run(
            lambda connection: connection.execute(kept.update().values(content=None)), write=True
        )  # as kept before 0011
        assert await verdicts.of("u", snapshot_of(1), ["ann"]) == {}
        await verdicts.report("u", snapshot_of(1), "a", passed=True, details="", principal="ann")
        assert set(await verdicts.of("u", snapshot_of(1), ["ann"])) == {"a"}

    try:
        asyncio.run(story())
    finally:
        database.close()


def test_the_last_verdict_of_those_who_are_asked_counts(tmp_path: Path) -> None:
    clock = Clock()
    database = Database(sqlite_url(tmp_path / "control.db"), own=True)
    Ledger(database, clock)
    verdicts = Verdicts(database, clock)

    async def report(name: str, principal: str, *, passed: bool, snapshot: int = 1, uuid: str = "u") -> None:
        await verdicts.report(uuid, snapshot_of(snapshot), name, passed=passed, details="d", principal=principal)

    async def found(*by: str, snapshot: int = 1, uuid: str = "u") -> dict[str, bool]:
        return {name: each.passed for name, each in (await verdicts.of(uuid, snapshot_of(snapshot), by)).items()}

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

"""The export of the tower's log: killed at every step, overtaken by another, and read row by row."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.errors import BadRequest
from icetower.pipelines import export as job
from icetower.pipelines.export import Exported, Source, export
from icetower.pipelines.system_teams import Team
from icetower.pipelines.tables import iceberg_table
from tests.pages.page_blocks import blocks_of
from tests.pipelines.wal_world import Crash, once

PAGE = Path(__file__).parents[2] / "docs/system-tables.md"
FIVE_MIN = 300_000
START = 1_700_000_100_000  # a multiple of five minutes
DAY = 24 * 60
BINDINGS = {"a": "agents"}
LANDED = ("direct", "rebased", "appended")
TEAM = Team("ours", frozenset({"agents"}), frozenset({"a"}))


class Log:
    """The control API of a tower, and an oracle of what the tables must hold."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.versions: dict[str, list[dict[str, Any]]] = {}

    def add(self, outcome: str, *, minute: float = 0, principal: str = "a", table: str = "s.t", **more: Any) -> None:
        number = len(self.rows) + 1
        row = dict.fromkeys(("rule", "key_hash", "request_id", "message")) | {
            "id": number, "at_ms": START + int(minute * 60_000), "principal": principal, "table": table,
            "operation": "append", "outcome": outcome, "partitions": ["d=1"], "snapshots": [number],
            "queue_wait_ms": 1.0, "latency_ms": float(number), "group_size": 2,
        }  # fmt: skip
        self.rows.append(row | more)

    def retries(self, row: dict[str, Any]) -> int | None:
        """As the page says: earlier tries of the same write, on the same day and the one before it."""
        write = row["key_hash"] or row.get("work")
        if write is None:
            return None
        days = {row["at_ms"] // 86_400_000 - back for back in (0, 1)}
        same = [
            r for r in self.rows
            if r["id"] < row["id"] and (r["principal"], r["table"]) == (row["principal"], row["table"])
            and (r["key_hash"] or r.get("work")) == write and r["at_ms"] // 86_400_000 in days
        ]  # fmt: skip
        return len(same)

    def contract(self, name: str, text: str | None) -> None:
        of = self.versions.setdefault(name, [])
        version = {"name": name, "version": len(of) + 1, "text": text, "applied_by": "root", "message": None}
        of.append(version | {"applied_ms": START + 1_000 * len(of)})

    def after(self, number: int, limit: int) -> dict[str, Any]:
        rows = [row for row in self.rows if row["id"] > number][:limit]
        ids = [row["id"] for row in self.rows]
        return {"attempts": rows, "oldest": min(ids, default=None), "newest": max(ids, default=None)}

    def source(self) -> Source:
        newest = lambda: [versions[-1] for versions in self.versions.values()]  # noqa: E731
        return Source(self.after, newest, self.versions.__getitem__, lambda: dict(BINDINGS))


class World:
    def __init__(self, spark: SparkSession, namespace: str) -> None:
        self.spark, self.system, self.log = spark, f"{namespace}.system", Log()

    def run(self, after: Callable[[str], None] = lambda _: None, *teams: Team) -> Exported:
        return export(self.spark, self.system, self.log.source(), teams=teams, after=after)

    def table(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        rows = self.spark.table(f"{self.system}.{name}").selectExpr(*columns).orderBy(*columns[:3])
        return [tuple(row) for row in rows.collect()]

    def check(self) -> None:
        """Every attempt once, every window as it follows from the log, every version with its time in force."""
        rows = self.log.rows
        names = ("attempt_id", "principal", "outcome", "unix_millis(at)", "partitions", "snapshots", "contract",
                 "retries")  # fmt: skip
        wanted = [
            (r["id"], r["principal"], r["outcome"], r["at_ms"], r["partitions"], r["snapshots"],
             r.get("contract") or BINDINGS.get(r["principal"]), self.log.retries(r))
            for r in rows
        ]  # fmt: skip
        assert self.table("iceberg_commits", *names) == wanted
        self.check_metrics("agent_write_metrics", rows)
        versions = [
            (name, v["version"], v["text"], v["applied_ms"], after["applied_ms"] if after else None)
            for name, of in sorted(self.log.versions.items())
            for v, after in zip(of, [*of[1:], None], strict=True)
        ]
        names = ("contract", "version", "text", "unix_millis(in_force_from)", "unix_millis(in_force_until)")
        assert self.table("contract_history", *names) == versions

    def check_metrics(self, table: str, rows: list[dict[str, Any]]) -> None:
        windows: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        for r in rows:
            if r["outcome"] != "done" and r["operation"] != "read":
                key = (r["principal"], r["table"], r["at_ms"] // FIVE_MIN * FIVE_MIN)
                windows.setdefault(key, []).append(r)

        def counts(found: list[dict[str, Any]]) -> tuple[Any, ...]:
            landed = [r for r in found if r["outcome"] in LANDED]
            retries = sum(r["outcome"] in ("conflict", "unknown", "replayed") for r in found)
            first = [r for r in found if self.log.retries(r) == 0 and r["outcome"] != "replayed"]
            at_once = sum(r in landed for r in first)
            return (
                len(found), len(landed), retries, len(landed) / len(found), len(first), at_once,
                at_once / len(first) if first else None, sum(1 / r["group_size"] for r in landed) if landed else None,
            )  # fmt: skip

        names = ("principal", "table_name", "unix_millis(window_start)", "attempts", "landed", "retries",
                 "commit_success_rate", "first_tries", "first_try_landed", "first_try_success_rate",
                 "metadata_versions")  # fmt: skip
        assert self.table(table, *names) == [(*key, *counts(found)) for key, found in sorted(windows.items())]


def filled(spark: SparkSession, namespace: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """A log of six attempts and a contract, which are exported in several pages."""
    monkeypatch.setattr(job, "PAGE", 2)
    monkeypatch.setattr(job, "ROWS_MAX", 4)
    world = World(spark, namespace)
    outcomes = ("direct", "conflict", "rebased", "refused", "replayed", "unknown")
    for outcome, key in zip(outcomes, (None, "k", "k", "l", "k", "m"), strict=True):
        world.log.add(outcome, minute=1 if world.log.rows else 0, key_hash=key)
    world.log.contract("agents", "version: 1")
    return world


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> World:
    return filled(spark, fresh(), monkeypatch)


@pytest.mark.parametrize(
    "step", ["commits", *(pytest.param(step, marks=pytest.mark.sharp) for step in
                          ("created", "contracts", "keys", "metrics", "team 1", "team 2", "team 3", "team 4"))]
)  # fmt: skip
def test_an_export_that_is_killed_goes_on(world: World, step: str) -> None:
    name, _, times = step.partition(" ")
    steps: list[str] = []

    def killed(done: str) -> None:
        steps.append(done)
        if steps.count(name) == int(times or 1):
            raise Crash(step)

    with pytest.raises(Crash):
        world.run(killed, TEAM)
    world.log.add("appended", minute=3, principal="b", contract="others")
    world.log.add("conflict", minute=DAY, key_hash="m")  # the next day: a retry
    world.log.add("appended", minute=3 * DAY, key_hash="m")  # too late to be one
    world.log.contract("agents", None)
    world.run(lambda _: None, TEAM)
    world.check()
    ours = [row for row in world.log.rows if row["principal"] == "a"]
    assert world.table("iceberg_commits", "attempt_id")[0] == (1,)
    system, world.system = world.system, f"{world.system}_ours"
    assert world.table("iceberg_commits", "attempt_id") == [(row["id"],) for row in ours]
    world.check_metrics("agent_write_metrics", ours)
    hashed = [f"sha256:{key}" for key in ("k", "m")]  # of tables that are gone
    assert [key for key, _ in world.table("agent_dedup_log", "idempotency_key", "attempt_id")] == hashed
    assert len(world.table("contract_history", "contract", "version")) == 2
    world.system = system
    assert len(world.table("agent_dedup_log", "idempotency_key")) == 2


def test_late_rows_and_new_versions(world: World) -> None:
    assert world.run() == Exported(6, 1, 1, 1, 0)
    world.log.add("direct", minute=2)  # into a window that was counted
    world.log.add("direct", minute=9, operation="read")
    world.log.add("done", minute=20, operation="drop")
    world.log.contract("agents", "version: 1 # changed")
    assert world.run() == Exported(3, 0, 1, 2, 0)
    world.check()
    own = world.system.partition(".")[2]
    for table in (f"{own}.iceberg_commits", f"{own}_team", f"{own}_team.contract_history"):  # its own commits
        world.log.add("direct", table=table)
    before = iceberg_table(world.spark, f"{world.system}.iceberg_commits").currentSnapshot().snapshotId()
    assert world.run() == Exported(0, 0, 0, 0, 0)
    assert iceberg_table(world.spark, f"{world.system}.iceberg_commits").currentSnapshot().snapshotId() == before


def test_two_at_once_write_each_attempt_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one commits after this one has read its progress and its rows."""
    merged, other = job.merge, once("merge", world.run)

    def overtaken(*arguments: Any, **options: Any) -> None:
        other("merge")
        merged(*arguments, **options)

    world.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {world.system}")
    monkeypatch.setattr(job, "_export_contracts", lambda *_: 0)
    world.log.versions.clear()
    monkeypatch.setattr(job, "merge", overtaken)
    world.run()
    world.check()


def test_the_progress_outlives_its_snapshot(world: World) -> None:
    world.run()
    table = f"{world.system}.iceberg_commits"
    plain = iceberg_table(world.spark, table)
    plain.newAppend().commit()
    expire = iceberg_table(world.spark, table).expireSnapshots().retainLast(1)
    expire.expireOlderThan(plain.currentSnapshot().timestampMillis()).cleanExpiredFiles(False).commit()
    world.log.add("direct")
    assert world.run().attempts == 1
    world.check()


def test_another_log_is_refused_and_a_gap_is_told(world: World) -> None:
    world.run()
    whole = replace(world.log.source(), attempts_after=lambda *_: {"attempts": [], "oldest": 1, "newest": 2})
    with pytest.raises(BadRequest, match="another log"):
        export(world.spark, world.system, whole)
    for _ in range(3):
        world.log.add("direct")
    del world.log.rows[:8]
    assert world.run().lost_at_most == 2


def test_the_examples_of_the_page(world: World) -> None:
    world.run()
    (example,) = (each.text for each in blocks_of("docs/system-tables.md") if "AS rate" in each.text)
    (retention,) = re.findall(r"`(DELETE .*?)`", PAGE.read_text(), re.DOTALL)

    def ask(text: str) -> list[Any]:
        return world.spark.sql(text.replace("tower.system.", f"{world.system}.")).collect()

    assert ask(example) == []  # nothing is of today
    assert [tuple(row) for row in ask(example.replace("current_date()", "DATE '2020-01-01'"))] == [("a", 1 / 3, 3)]
    ask(retention)
    assert world.table("iceberg_commits", "attempt_id") == []
    assert world.run() == Exported(0, 0, 0, 0, 0)  # what was deleted is not written again


def test_many_commits_to_the_system_tables_hold_nothing_up(world: World) -> None:
    """The mediator's logs are among them: a chunk that has nothing else is written all the same."""
    world.run()
    for _ in range(9):
        world.log.add("direct", table=f"{world.system.partition('.')[2]}.wal_mediations")
    world.log.add("direct", minute=9)
    assert world.run().attempts == 10
    world.check()

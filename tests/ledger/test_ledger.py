"""Keys, answers and attempts, on a real database file."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import inspect, text

from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.errors import KeyMisused
from icetower.ledger.ledger import Answer, Attempt, Commit, CommitKey, Ledger, Outcome, key_hash, percentile
from icetower.ledger.schema import metadata

T = TypeVar("T")


class Clock(SystemAmbient):
    def __init__(self) -> None:
        self.ms = 1_500_000_000_000

    def now_ms(self) -> int:
        return self.ms


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'control.db'}")
    yield database
    database.close()


@pytest.fixture
def ledger(database: Database, clock: Clock) -> Ledger:
    return Ledger(database, clock, lifetime_s=100, attempts_max=5)


OWNER = CommitKey("uuid-1", "main", "agent-1", "key-1")


def test_k2_a_key_belongs_to_table_ref_and_principal(ledger: Ledger) -> None:
    run(ledger.remember_commits([Commit(OWNER, (7, 8), "app-1", "f" * 64)]))
    found = run(ledger.find_commit(OWNER))
    assert found is not None
    assert (found.snapshots, found.application_id, found.fingerprint) == ((7, 8), "app-1", "f" * 64)
    others = [
        CommitKey("uuid-2", "main", "agent-1", "key-1"),
        CommitKey("uuid-1", "wap", "agent-1", "key-1"),
        CommitKey("uuid-1", "main", "agent-2", "key-1"),
        CommitKey("uuid-1", "main", "agent-1", "key-2"),
    ]
    assert [run(ledger.find_commit(other)) for other in others] == [None] * 4


def test_k1_live_keys_are_kept_and_expired_ones_make_room(ledger: Ledger, clock: Clock, database: Database) -> None:
    run(ledger.remember_commits([Commit(OWNER, (7,), None, "a")]))
    clock.ms += 60_000
    # Seen again: the first content stays and the window begins anew.
    run(ledger.remember_commits([Commit(OWNER, (9,), None, "b")]))
    clock.ms += 99_999
    found = run(ledger.find_commit(OWNER))
    assert found is not None
    assert (found.snapshots, found.fingerprint, found.last_ms - found.first_ms) == ((7,), "a", 60_000)
    clock.ms += 1
    assert run(ledger.find_commit(OWNER)) is None
    run(ledger.remember_commits([Commit(OWNER, (9,), None, "b")]))
    other = CommitKey("uuid-1", "main", "agent-1", "key-2")
    clock.ms += 100_000
    run(ledger.remember_commits([Commit(other, (10,), None, "c")]))
    count = database.run_now(lambda c: c.execute(text("SELECT key FROM ledger_keys")).scalars().all())
    assert count == ["key-2"]


def test_answers_are_replayed_to_the_same_request_alone(ledger: Ledger, clock: Clock) -> None:
    answer = Answer("POST /v1/namespaces", 200, b'{"namespace":["a"]}', "print")
    run(ledger.remember("agent-1", "k", answer))
    run(ledger.remember("agent-1", "k", Answer("POST /v1/namespaces", 409, b"", "print")))
    assert run(ledger.find("agent-1", "k", "POST /v1/namespaces", "print")) == answer
    assert run(ledger.find("agent-2", "k", "POST /v1/namespaces", "print")) is None
    for endpoint, fingerprint in (("POST /v1/tables/rename", "print"), ("POST /v1/namespaces", "other")):
        with pytest.raises(KeyMisused, match="POST /v1/namespaces"):
            run(ledger.find("agent-1", "k", endpoint, fingerprint))
    clock.ms += 100_000
    assert run(ledger.find("agent-1", "k", "POST /v1/tables/rename")) is None


def test_a_server_error_is_never_replayed(ledger: Ledger) -> None:
    run(ledger.remember("agent-1", "k", Answer("DELETE /v1/namespaces/a", 503, b"")))
    assert run(ledger.find("agent-1", "k", "DELETE /v1/namespaces/a")) is None


def attempt(outcome: Outcome, latency_ms: float = 1.0, *, table: str = "a.b", principal: str = "p") -> Attempt:
    return Attempt(principal, table, "append", outcome, None, latency_ms / 2, latency_ms, (1,), key_hash("k"))


def test_the_log_counts_and_keeps_the_newest(ledger: Ledger, clock: Clock) -> None:
    run(ledger.record([attempt(Outcome.REFUSED), attempt(Outcome.DIRECT, 10), attempt(Outcome.DIRECT, 20)]))
    clock.ms += 1
    run(
        ledger.record(
            [
                attempt(Outcome.REBASED, 30),
                attempt(Outcome.CONFLICT, 900, table="a.c"),
                attempt(Outcome.DIRECT, 5, principal="q"),
            ]
        )
    )
    # Six were logged and five are kept: the refusal is gone.
    assert run(ledger.counts()) == {Outcome.DIRECT: 3, Outcome.REBASED: 1, Outcome.CONFLICT: 1}
    assert run(ledger.counts(since_ms=clock.ms)) == {Outcome.DIRECT: 1, Outcome.REBASED: 1, Outcome.CONFLICT: 1}
    assert run(ledger.counts(table="a.c")) == {Outcome.CONFLICT: 1}
    newest = run(ledger.recent(limit=2))
    assert [(a.principal, a.outcome, a.at_ms) for a in newest] == [
        ("q", Outcome.DIRECT, clock.ms),
        ("p", Outcome.CONFLICT, clock.ms),
    ]
    by_table = {s.name: s for s in run(ledger.summary("table", percentiles=(50, 99)))}
    assert by_table["a.b"].outcomes == {"direct": 3, "rebased": 1}
    assert by_table["a.b"].latency_ms == {50: 10.0, 99: 30.0}
    assert by_table["a.b"].queue_wait_ms == {50: 5.0, 99: 15.0}
    assert by_table["a.c"].latency_ms == {50: 0.0, 99: 0.0}  # nothing was committed
    assert [s.name for s in run(ledger.summary("principal"))] == ["p", "q"]


def test_client_keys_are_logged_as_hashes(ledger: Ledger) -> None:
    run(ledger.record([attempt(Outcome.DIRECT)]))
    assert [a.key_hash for a in run(ledger.recent())] == [key_hash("k")]
    assert key_hash(None) is None


def test_empty_batches_are_nothing(ledger: Ledger) -> None:
    run(ledger.record([]))
    run(ledger.remember_commits([]))
    assert run(ledger.counts()) == {}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_percentiles_are_nearest_rank(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < len(values) * percent / 100


def test_migrated_tables_are_those_that_queries_name(ledger: Ledger, database: Database) -> None:
    found = inspect(database.engine)
    for table in metadata.tables.values():
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in found.get_columns(table.name)}
        assert columns == {c.name: (str(c.type), c.nullable) for c in table.columns}
        assert found.get_pk_constraint(table.name)["constrained_columns"] == [c.name for c in table.primary_key.columns]

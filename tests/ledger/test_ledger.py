"""Keys, answers and attempts, on a real database file."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Connection, event, inspect, text

from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.errors import KeyMisused
from icetower.ledger import ledger as ledger_module
from icetower.ledger.answers import Answer
from icetower.ledger.attempts import Numbered, percentile, write_attempts
from icetower.ledger.hashes import APPLICATION, KEY, hashed, key_hash
from icetower.ledger.histories import BEFORE
from icetower.ledger.ledger import (
    SEQUENCE_LIFETIMES,
    SWEPT_MIN,
    SWEPT_PER_ROW,
    Attempt,
    Batch,
    Commit,
    CommitKey,
    Group,
    Ledger,
    Outcome,
)
from icetower.ledger.schema import metadata

T = TypeVar("T")


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_500_000_000_000

    def now_ms(self) -> int:
        return self.ms


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty one of each kind."""
    sqlite = request.param == "sqlite"
    database = Database(f"sqlite:///{tmp_path / 'control.db'}" if sqlite else request.getfixturevalue("postgres_url"))
    if not sqlite:
        for table in ("version", *(name.removeprefix("ledger_") for name in metadata.tables)):
            database.run_now(lambda c, name=f"ledger_{table}": c.execute(text(f"DROP TABLE IF EXISTS {name}")))
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
    run(ledger.remember_commits([Commit(OWNER, (7,), None, "aa")]))
    clock.ms += 60_000
    # Seen again: the first content stays and the window begins anew.
    run(ledger.remember_commits([Commit(OWNER, (9,), None, "bb")]))
    clock.ms += 99_999
    found = run(ledger.find_commit(OWNER))
    assert found is not None
    assert (found.snapshots, found.fingerprint, found.expires_ms - found.landed_ms) == ((7,), "aa", 160_000)
    clock.ms += 1
    assert run(ledger.find_commit(OWNER)) is None
    run(ledger.remember_commits([Commit(OWNER, (9,), None, "bb")]))
    found = run(ledger.find_commit(OWNER))
    assert found is not None
    assert (found.snapshots, found.fingerprint) == ((9,), "bb")


def keyed(number: int) -> Commit:
    return Commit(CommitKey("uuid-1", "main", "agent-1", f"key-{number}"), (number,))


def test_h1_the_sweep_meets_everything_that_has_expired_in_bounded_pieces_and_nothing_that_lives(
    ledger: Ledger, clock: Clock, database: Database
) -> None:
    run(ledger.remember_commits([keyed(n) for n in range(1_000)]))
    clock.ms += 50_000
    run(ledger.remember_commits([keyed(n) for n in range(1_000, 1_500)]))
    clock.ms += 50_000  # the first thousand have expired, the others live half of their window still
    left = [count(database)]
    for n in range(1_500, 1_550):
        run(ledger.remember_commits([keyed(n)]))
        left.append(count(database))
    swept = [before + 1 - after for before, after in itertools.pairwise(left)]
    assert max(swept) <= SWEPT_MIN + SWEPT_PER_ROW
    assert left[-1] == 550
    assert all(run(ledger.find_commit(keyed(n).owner)) is not None for n in (1_000, 1_499, 1_549))


def count(database: Database) -> int:
    return database.run_now(lambda c: c.execute(text("SELECT count(*) FROM ledger_keys")).scalar_one())


def test_an_application_s_highest_number_stays_and_outlives_its_keys(ledger: Ledger, clock: Clock) -> None:
    app = CommitKey("uuid-1", "main", "agent-1", "app", numbered=True)
    for number, snapshot_id in ((5, 50), (9, 90), (7, 70), (9, 91)):
        run(ledger.remember_commits([Commit(app, (snapshot_id,), sequence=number)]))
    found = run(ledger.find_commit(app))
    assert found is not None
    assert (found.sequence, found.snapshots) == (9, (90,))
    assert run(ledger.find_commit(replace(app, numbered=False))) is None  # a key of that name is something else
    clock.ms += 100_000 * SEQUENCE_LIFETIMES - 1
    assert run(ledger.find_commit(app)) is not None
    clock.ms += 1
    assert run(ledger.find_commit(app)) is None
    run(ledger.remember_commits([Commit(app, (10,), sequence=1)]))
    found = run(ledger.find_commit(app))
    assert found is not None
    assert found.sequence == 1


def test_k1_a_group_counts_as_kept_only_together_with_all_its_keys(
    ledger: Ledger, clock: Clock, database: Database
) -> None:
    group = Group("uuid-1", 42, (keyed(1), keyed(2)))
    forged = replace(keyed(3), fingerprint="no hash")
    with pytest.raises(ValueError, match="hex"):
        run(ledger.write(Batch(groups=[replace(group, commits=(*group.commits, forged))])))
    assert run(ledger.kept_groups("uuid-1", [42])) == frozenset()
    assert count(database) == 0
    run(ledger.write(Batch(groups=[group])))
    assert run(ledger.kept_groups("uuid-1", [41, 42])) == {42}
    assert run(ledger.kept_groups("uuid-2", [42])) == frozenset()  # K2: dropped and created again
    assert len(run(ledger.find_commits([c.owner for c in group.commits]))) == 2
    # As long as anything of it may count: an application's number outlives the keys.
    clock.ms += 100_000 * SEQUENCE_LIFETIMES - 1
    assert run(ledger.kept_groups("uuid-1", [42])) == {42}
    clock.ms += 1
    assert run(ledger.kept_groups("uuid-1", [42])) == frozenset()


def test_many_are_asked_for_at_once(ledger: Ledger) -> None:
    commits = [keyed(n) for n in range(1_200)]
    run(ledger.write(Batch(commits=commits, groups=[Group("u", n, ()) for n in range(1_200)])))
    found = run(ledger.find_commits([commit.owner for commit in [*commits, keyed(5_000)]]))
    assert {owner: commit.snapshots for owner, commit in found.items()} == {c.owner: c.snapshots for c in commits}
    assert run(ledger.kept_groups("u", range(1_100, 1_300))) == frozenset(range(1_100, 1_200))
    run(ledger.forget_commits([commit.owner for commit in commits[1:]]))
    assert list(run(ledger.find_commits([commit.owner for commit in commits]))) == [commits[0].owner]


def test_ids_are_of_names_in_their_places() -> None:
    """What is stored is found by them, by every release: they must not change."""
    assert hashed(KEY, "ab", "c") != hashed(KEY, "a", "bc")
    assert hashed(KEY, "a") != hashed(APPLICATION, "a")
    assert hashed(KEY, "u", "main", "ann", "\ud800").hex() == "3ec3f589e3148478a5730ef5ac1e75b6"


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
    later = Answer("POST /v1/tables/rename", 204, b"")
    run(ledger.remember("agent-1", "k", later))
    assert run(ledger.find("agent-1", "k", "POST /v1/tables/rename")) == later


def test_of_several_answers_in_one_batch_the_first_stays(ledger: Ledger) -> None:
    one, other = Answer("POST /a", 200, b"1"), Answer("POST /b", 200, b"2")
    run(ledger.write(Batch(answers=[("p", "k", one), ("p", "k", other), ("p", "k2", other)])))
    assert run(ledger.find("p", "k", "POST /a")) == one
    assert run(ledger.find("p", "k2", "POST /b")) == other


def test_an_answer_may_be_kept_briefly_and_makes_room_for_another(ledger: Ledger, clock: Clock) -> None:
    first, second = (Answer(f"DELETE /v1/{name}", 204, b"", None, 10) for name in "ab")
    run(ledger.remember("p", "k", first))
    clock.ms += 9_999
    assert run(ledger.find("p", "k", first.endpoint)) is not None
    clock.ms += 1
    assert run(ledger.find("p", "k", first.endpoint)) is None
    run(ledger.remember("p", "k", second))
    assert run(ledger.find("p", "k", second.endpoint)) is not None
    long = Answer("DELETE /v1/c", 204, b"", None, 1_000_000)
    run(ledger.remember("p", "long", long))
    clock.ms += 100_000
    assert run(ledger.find("p", "long", long.endpoint)) is None


def test_a_server_error_is_never_replayed(ledger: Ledger) -> None:
    run(ledger.remember("agent-1", "k", Answer("DELETE /v1/namespaces/a", 503, b"")))
    assert run(ledger.find("agent-1", "k", "DELETE /v1/namespaces/a")) is None


def attempt(outcome: Outcome, latency_ms: float = 1.0, *, table: str = "a.b", principal: str = "p") -> Attempt:
    return Attempt(principal, table, "append", outcome, None, latency_ms / 2, latency_ms, (1,), key_hash("k"))


def test_the_log_counts_and_keeps_the_newest(ledger: Ledger, clock: Clock) -> None:
    attempts = [attempt(Outcome.REFUSED), attempt(Outcome.DIRECT, 10), attempt(Outcome.DIRECT, 20)]
    run(ledger.write(Batch(attempts=attempts)))
    clock.ms += 1
    attempts = [
        attempt(Outcome.REBASED, 30),
        attempt(Outcome.CONFLICT, 900, table="a.c"),
        attempt(Outcome.DIRECT, 5, principal="q"),
    ]
    run(ledger.write(Batch(attempts=attempts)))
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
    run(ledger.write(Batch(attempts=[attempt(Outcome.DIRECT)])))
    assert [a.key_hash for a in run(ledger.recent())] == [key_hash("k")]
    assert key_hash(None) is None


def test_empty_batches_are_nothing(ledger: Ledger) -> None:
    run(ledger.write(Batch(attempts=[])))
    run(ledger.remember_commits([]))
    assert run(ledger.counts()) == {}


def test_lookups_that_are_asked_for_together_share_their_queries(ledger: Ledger, database: Database) -> None:
    run(ledger.remember_commits([keyed(n) for n in range(100)]))
    asked: list[str] = []

    def listen(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(database.engine, "before_cursor_execute", listen)

    async def many() -> list[Commit | None]:
        return await asyncio.gather(*(ledger.find_commit(keyed(n % 150).owner) for n in range(300)))

    found = run(many())
    assert [None if commit is None else commit.snapshots for commit in found] == [
        (n % 150,) if n % 150 < 100 else None for n in range(300)
    ]
    assert len([statement for statement in asked if statement.startswith("SELECT")]) == 1


def test_a_lookup_that_fails_fails_for_those_who_asked_and_nobody_after_them(
    ledger: Ledger, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(ledger.remember_commits([keyed(1)]))

    async def story() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(database, "run_now", lambda *_, **__: (_ for _ in ()).throw(OSError("gone")))
            results = await asyncio.gather(
                *(ledger.find_commit(keyed(n).owner) for n in (1, 2)), return_exceptions=True
            )
            assert [str(result) for result in results] == ["gone", "gone"]
        assert await ledger.find_commit(keyed(1).owner) is not None

    run(story())


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_percentiles_are_nearest_rank(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < len(values) * percent / 100


def test_migrated_tables_are_those_that_queries_name(ledger: Ledger, database: Database) -> None:
    found = inspect(database.engine)
    for table in metadata.tables.values():
        columns = {c["name"]: (c["type"].compile(database.engine.dialect), c["nullable"])
                   for c in found.get_columns(table.name)}  # fmt: skip
        named = {c.name: (kind_of(c, database), c.nullable) for c in table.columns}
        assert columns == named
        assert found.get_pk_constraint(table.name)["constrained_columns"] == [c.name for c in table.primary_key.columns]


def kind_of(column: Column[Any], database: Database) -> str:
    kind = column.type.compile(database.engine.dialect)
    return {"FLOAT": "DOUBLE PRECISION"}.get(kind, kind) if database.engine.dialect.name == "postgresql" else kind


def test_on_sqlite_a_key_s_place_is_its_id(database: Database, ledger: Ledger) -> None:
    """One tree, walked once; and no other index that would have to be kept for every key."""
    if not database.is_sqlite:
        pytest.skip("SQLite's own")
    tables = "SELECT sql FROM sqlite_master WHERE name IN ('ledger_keys', 'ledger_groups', 'ledger_answers')"
    made = database.run_now(lambda c: c.execute(text(tables)).scalars().all())
    assert len(made) == 3
    assert all("WITHOUT ROWID" in statement for statement in made)
    indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'ledger_keys' AND sql IS NOT NULL"
    assert database.run_now(lambda c: c.execute(text(indexes)).scalars().all()) == []


def test_a_ledger_of_the_first_version_is_brought_up_to_date_without_loss(database: Database, clock: Clock) -> None:
    directory = Path(ledger_module.__file__).parent / "migrations"
    first(database, directory)
    owners = [CommitKey("uuid-1", "main", "agent-1", f"key-{n}") for n in range(12_000)]
    old_keys = "INSERT INTO ledger_keys VALUES (:u, :r, :p, :k, '[7, -8]', :a, :f, :first, :last, :expires)"
    times = {"first": clock.ms - 10, "last": clock.ms - 5, "expires": clock.ms + 50_000}
    rows = [{"u": o.table_uuid, "r": o.ref, "p": o.principal, "k": o.key, "a": "app-1", "f": "ab" * 32, **times}
            for o in owners]  # fmt: skip
    database.run_now(lambda c: c.execute(text(old_keys), rows), write=True)
    old_answer = "INSERT INTO ledger_answers VALUES ('ann', 'k', 'POST /a', NULL, 200, :body, :expires)"
    database.run_now(lambda c: c.execute(text(old_answer), {"body": b"x", "expires": clock.ms + 9}), write=True)
    logged = "INSERT INTO ledger_attempts VALUES (7, 5, 'p', 'a.b', 'append', 'direct', NULL, 1.5, 2.5, '[9]', NULL)"
    database.run_now(lambda c: c.execute(text(logged)), write=True)
    ledger = Ledger(database, clock, lifetime_s=100)
    assert run(ledger.recent()) == [Attempt("p", "a.b", "append", Outcome.DIRECT, None, 1.5, 2.5, (9,), at_ms=5)]
    times_ms = clock.ms - 10, clock.ms + 50_000
    expected = Commit(owners[0], (7, -8), "app-1", "ab" * 32, None, *times_ms, registration=BEFORE)
    assert run(ledger.find_commit(owners[0])) == expected
    assert len(run(ledger.find_commits(owners))) == 12_000
    assert run(ledger.find("ann", "k", "POST /a")) == Answer("POST /a", 200, b"x")
    assert not [name for name in inspect(database.engine).get_table_names() if "0001" in name]


def first(database: Database, directory: Path) -> None:
    """The tables as the first release made them."""
    scripts = ScriptDirectory(str(directory))
    config = Config()
    config.set_main_option("script_location", str(directory))

    def upgrade(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("0001", revision)

    def work(connection: Connection) -> None:
        with EnvironmentContext(config, scripts, fn=upgrade, destination_rev="0001") as environment:
            environment.configure(connection=connection, version_table="ledger_version", transactional_ddl=False)
            environment.run_migrations()

    database.run_now(work, write=True)


def test_the_log_is_read_in_its_order(ledger: Ledger) -> None:
    assert run(ledger.attempts_after(0, limit=9)) == Numbered((), None, None)
    for principal in "pqrstuv":
        run(ledger.write(Batch(attempts=[attempt(Outcome.DIRECT, principal=principal)])))
    first = run(ledger.attempts_after(0, limit=2))
    assert [each.principal for _, each in first.attempts] == ["r", "s"]  # five are kept
    rest = run(ledger.attempts_after(first.attempts[-1][0], limit=9))
    assert [each.principal for _, each in rest.attempts] == ["t", "u", "v"]
    assert (rest.oldest, rest.newest) == (first.attempts[0][0], rest.attempts[-1][0])


def test_what_is_known_of_an_attempt_is_kept_as_it_is(ledger: Ledger) -> None:
    known: dict[str, Any] = {"contract": "c", "work": "number:" + "f" * 64, "base": -(2**63), "head": 2**63 - 1}
    known |= {"decided_ms": 2**41, "group_size": 3, "metadata_bytes": 2**40, "manifests": 0.25}
    known |= {"judge_ms": 1.5, "plan_ms": 2.5, "write_ms": 3.5, "swap_ms": 4.5}
    told = Attempt("p", "a.b", "append", Outcome.DIRECT, at_ms=5, **known)
    run(ledger.write(Batch(attempts=[told])))
    assert run(ledger.recent()) == [told]


def test_towers_number_attempts_in_the_order_in_which_they_commit(ledger: Ledger, database: Database) -> None:
    """A reader goes on from the newest number that it has seen: a lower one that comes later would be skipped."""

    def write(connection: Connection, principal: str) -> None:
        write_attempts(connection, [attempt(Outcome.DIRECT, principal=principal)], 1, 100)

    with database.engine.connect() as slow, ThreadPoolExecutor(1) as other:
        begun = slow.begin()
        write(slow, "slow")
        quick = other.submit(lambda: database.run_now(lambda connection: write(connection, "quick"), write=True))
        with pytest.raises(TimeoutError):
            quick.result(0.5)  # while the lower number is not committed, no higher one is
        assert run(ledger.attempts_after(0, limit=9)).attempts == ()
        begun.commit()
        quick.result(10.0)
    found = run(ledger.attempts_after(0, limit=9)).attempts
    assert [each.principal for _, each in found] == ["slow", "quick"]

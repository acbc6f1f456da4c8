"""What the ledger says of keys whose snapshots a table does not have: done, not done, or that nobody can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.ledger.histories import BEFORE, Fate, History, TableName
from icetower.ledger.ledger import Batch, Commit, CommitKey, Expired, Group, Ledger
from icetower.ledger.schema import metadata
from icetower.protocol.names import Identifier

T = TypeVar("T")
ORDERS, CLONE = (TableName("uuid-1", Identifier(("sales",), name)) for name in ("orders", "clone"))
KEY = CommitKey("uuid-1", "main", "agent-1", "key-1")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Database]]:
    """An empty one of each kind, as two towers open it."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'control.db'}" if sqlite else request.getfixturevalue("postgres_url")
    databases = [Database(url), Database(url)]
    if not sqlite:
        for table in ("ledger_version", *metadata.tables):
            databases[0].run_now(lambda c, name=table: c.execute(text(f"DROP TABLE IF EXISTS {name}")))
    yield databases
    for database in databases:
        database.close()


@pytest.fixture
def towers(databases: list[Database]) -> list[Ledger]:
    """The ledgers of two towers with one control database."""
    return [Ledger(database, SystemAmbient()) for database in databases]


def remember(ledger: Ledger, *snapshots: int, number: int = 10, owner: CommitKey = KEY) -> Commit:
    """The key's commit, as it is found after this one was kept."""
    sequence = 1 if owner.numbered else None
    run(ledger.remember_commits([Commit(owner, snapshots, sequence=sequence, sequence_number=number)]))
    found = run(ledger.find_commit(owner))
    assert found is not None
    return found


def expire(ledger: Ledger, *snapshots: int, table: TableName = ORDERS) -> None:
    run(ledger.write(Batch(expired=[Expired(table, snapshots)])))


def register(ledger: Ledger, last_number: int, table: TableName = ORDERS) -> None:
    run(ledger.confirm_history(table, run(ledger.begin_history(table)), last_number))


NEVER, ONCE = History(0, None, None), History(1, 1, 7)


@pytest.mark.parametrize(
    ("history", "seen", "registration", "number", "fate"),
    [
        # seen to expire: done
        (NEVER, True, 0, 5, Fate.EXPIRED),
        (ONCE, True, 0, 9, Fate.EXPIRED),
        # not seen: an outside writer's expiry, or another tower's
        (NEVER, False, 0, 5, Fate.GONE),
        # kept before expiries were: as it was then, unless the table was registered since
        (NEVER, False, BEFORE, None, Fate.EXPIRED),
        (ONCE, False, BEFORE, None, Fate.REGISTERED_ANEW),
        # landed before the registration, and beyond the file's last number: verifiably not in it
        (ONCE, False, 0, 8, Fate.LEFT_BEHIND),
        # may have expired before the file was written
        (ONCE, False, 0, 7, Fate.REGISTERED_ANEW),
        (ONCE, False, 0, None, Fate.REGISTERED_ANEW),
        # kept since: may be of this history, and have gone past the tower
        (ONCE, False, 1, 8, Fate.REGISTERED_ANEW),
        # the pointer may never have been set
        (History(1, 1, None), False, 0, 8, Fate.REGISTERED_ANEW),
        # another name was registered; this one never was
        (History(1, None, None), False, 0, 8, Fate.REGISTERED_ANEW),
        # another name since: this one's file counts for what came before it
        (History(2, 1, 7), False, 0, 8, Fate.LEFT_BEHIND),
        (History(2, 1, 7), False, 1, 8, Fate.REGISTERED_ANEW),
    ],
)
def test_k2_what_became_of_a_commit(
    history: History, seen: bool, registration: int, number: int | None, fate: Fate
) -> None:
    assert history.fate(seen=seen, registration=registration, sequence_number=number) is fate


def test_k2_done_is_what_was_seen_to_expire(towers: list[Ledger]) -> None:
    ours, theirs = towers
    commit = remember(ours, 70, 71)
    assert run(theirs.fate(ORDERS, commit)) is Fate.GONE
    expire(ours, 71)
    assert [run(ledger.fate(ORDERS, commit)) for ledger in towers] == [Fate.EXPIRED] * 2
    # Whatever the table is named by now; and no other table's.
    assert run(theirs.fate(CLONE, commit)) is Fate.EXPIRED
    assert run(theirs.fate(TableName("uuid-2", ORDERS.identifier), commit)) is Fate.GONE


def test_k2_no_tower_calls_done_what_another_one_has_registered_away(towers: list[Ledger]) -> None:
    ours, theirs = towers
    commit = remember(ours, 70, number=10)
    expire(ours, 70)
    assert run(ours.fate(ORDERS, commit)) is Fate.EXPIRED
    number = run(theirs.begin_history(ORDERS))
    # From here on, whether the catalog's pointer is set or its tower dies before: nobody can tell.
    assert [run(ledger.fate(ORDERS, commit)) for ledger in towers] == [Fate.REGISTERED_ANEW] * 2
    run(theirs.confirm_history(ORDERS, number, 9))
    assert [run(ledger.fate(ORDERS, commit)) for ledger in towers] == [Fate.LEFT_BEHIND] * 2
    # What is in the file, and expires from the table as it is now, is done again.
    expire(ours, 70)
    assert run(theirs.fate(ORDERS, commit)) is Fate.EXPIRED


def test_k2_of_two_registrations_at_once_nobody_knows_which_file_stands(towers: list[Ledger]) -> None:
    commit = remember(towers[0], 70, number=10)
    first, second = (run(ledger.begin_history(ORDERS)) for ledger in towers)
    assert (first, second) == (1, 2)
    run(towers[1].confirm_history(ORDERS, second, 5))
    assert run(towers[0].fate(ORDERS, commit)) is Fate.LEFT_BEHIND
    run(towers[0].confirm_history(ORDERS, first, 12))
    assert run(towers[0].fate(ORDERS, commit)) is Fate.REGISTERED_ANEW


def test_k2_one_file_registered_at_two_names_is_two_tables(towers: list[Ledger]) -> None:
    ours, theirs = towers
    before = remember(ours, 70, number=10)
    register(theirs, 9, CLONE)
    after = remember(ours, 80, number=11, owner=CommitKey("uuid-1", "main", "agent-1", "key-2"))
    assert [run(ours.fate(CLONE, commit)) for commit in (before, after)] == [Fate.LEFT_BEHIND, Fate.REGISTERED_ANEW]
    expire(ours, 70, 80, table=ORDERS)
    assert [run(theirs.fate(ORDERS, commit)) for commit in (before, after)] == [Fate.EXPIRED] * 2
    assert [run(ours.fate(CLONE, commit)) for commit in (before, after)] == [Fate.LEFT_BEHIND, Fate.REGISTERED_ANEW]
    expire(theirs, 80, table=CLONE)
    assert run(ours.fate(CLONE, after)) is Fate.EXPIRED
    assert [run(ours.registered(uuid)) for uuid in ("uuid-1", "uuid-2")] == [True, False]


def test_a_number_that_was_left_behind_says_nothing_of_those_below_it(towers: list[Ledger]) -> None:
    app = CommitKey("uuid-1", "main", "agent-1", "app", numbered=True)
    commit = remember(towers[0], 70, number=10, owner=app)
    register(towers[0], 9)
    assert run(towers[0].fate(ORDERS, commit)) is Fate.REGISTERED_ANEW


def test_k2_a_key_that_is_used_again_after_a_registration_is_known_in_both_histories(towers: list[Ledger]) -> None:
    ours, theirs = towers
    assert remember(ours, 70, -71, number=10).snapshots == (70, -71)
    assert remember(theirs, 99, number=20).snapshots == (70, -71)  # a live key keeps its first content
    register(ours, 9)
    again = remember(theirs, 80, number=11)
    assert (again.snapshots, again.sequence_number, again.registration) == ((70, -71, 80), 10, 1)
    assert remember(ours, 80, number=11).snapshots == again.snapshots  # kept once more, it is not known twice
    # The next registration may bring the first one back, or the second, or none; nothing lies below the lowest.
    register(ours, 10)
    assert run(theirs.fate(ORDERS, again)) is Fate.REGISTERED_ANEW
    assert remember(ours, 70, number=10).snapshots == again.snapshots
    register(ours, 9)
    assert run(theirs.fate(ORDERS, again)) is Fate.LEFT_BEHIND
    expire(ours, 80)
    assert run(theirs.fate(ORDERS, again)) is Fate.EXPIRED
    unknown = CommitKey("uuid-1", "main", "agent-1", "key-3")
    remember(ours, 1, number=10, owner=unknown)
    register(ours, 9)
    run(ours.remember_commits([Commit(unknown, (2,))]))  # of which nobody knows where it lies
    found = run(ours.find_commit(unknown))
    assert found is not None
    assert (found.snapshots, found.sequence_number) == ((1, 2), None)


def test_k1_of_a_group_whose_keys_were_forgotten_the_file_is_read_again(towers: list[Ledger]) -> None:
    group = Group("uuid-1", 42, (Commit(KEY, (42,)),))
    other = Group("uuid-1", 43, ())
    run(towers[0].write(Batch(groups=[group, other])))
    assert run(towers[1].kept_groups("uuid-1", [42, 43])) == {42, 43}
    run(towers[0].forget_commits([KEY], "uuid-1", [42]))
    assert run(towers[1].kept_groups("uuid-1", [42, 43])) == {43}
    assert run(towers[1].find_commit(KEY)) is None

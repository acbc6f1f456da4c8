"""Figures in the database: counted once each, whoever counts them, in bounded rows; SQLite, and PostgreSQL (full)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from icetower.database import Database
from icetower.ledger import metrics as metrics_module
from icetower.ledger.ledger import ATTEMPTS_MAX, Attempt, Batch, Ledger, Outcome
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import COUNT_EVERY, DAY_MS, ORPHANS, WAL_LAG, Report, Wanted, count_rows, read_noted
from icetower.ledger.tallies import WINDOW_MS
from tests.ledger.test_ledger import Clock, clock, database, run

__all__ = ["clock", "database"]  # fixtures

START = 1_500_000_000_000 - 1_500_000_000_000 % DAY_MS
ONE = Attempt("agent-1", "ns.t", "append", Outcome.DIRECT, latency_ms=100.0, at_ms=START, group_size=2)

ALL = Wanted()


@pytest.fixture
def ledger(database: Database, clock: Clock) -> Ledger:
    return Ledger(database, clock, attempts_max=ATTEMPTS_MAX)


@pytest.fixture
def measures(database: Database, ledger: Ledger) -> Measures:
    return Measures(database)


def log(ledger: Ledger, *attempts: Attempt) -> None:
    run(ledger.write(Batch(attempts=attempts)))


def counted(measures: Measures, wanted: Wanted = ALL, limit: int = 100) -> list[tuple[object, ...]]:
    """Window, principal, table, attempts, landed, first tries, those of them that landed; then the totals."""

    async def ask() -> list[tuple[object, ...]]:
        await measures.count()
        rows = [*(await measures.windows(wanted, limit=limit)).rows, *await measures.totals(wanted, limit=limit)]
        return [
            (
                None if r.window_ms is None else (r.window_ms - START) // WINDOW_MS,
                r.principal,
                r.table,
                r.tally.attempts,
                r.tally.landed,
                r.tally.first_tries,
                r.tally.first_try_landed,
            )
            for r in rows
        ]

    return run(ask())


def test_attempts_are_counted_by_window_agent_and_table_and_since_ever(ledger: Ledger, measures: Measures) -> None:
    later = replace(ONE, at_ms=START + WINDOW_MS)
    log(ledger, ONE, replace(ONE, outcome=Outcome.DONE), replace(ONE, operation="read", outcome=Outcome.REFUSED))
    log(ledger, later, replace(later, table="ns.u"), replace(later, principal="agent-2", outcome=Outcome.REFUSED))
    found = counted(measures)
    assert sorted(found[:4], key=str) == [
        (0, "agent-1", "ns.t", 1, 1, 0, 0),
        (1, "agent-1", "ns.t", 1, 1, 0, 0),
        (1, "agent-1", "ns.u", 1, 1, 0, 0),
        (1, "agent-2", "ns.t", 1, 0, 0, 0),
    ]
    assert found[4][:4] == (None, "agent-1", "ns.t", 2)
    assert [each[0] for each in counted(measures, Wanted(principal="agent-2"))] == [1, None]
    assert {each[2] for each in counted(measures, Wanted(table="ns.u"))} == {"ns.u"}
    assert {each[0] for each in counted(measures, Wanted(since_ms=START + WINDOW_MS))} == {1, None}
    every = counted(measures, Wanted(principal="", table=""))
    assert [each[3] for each in every] == [3, 1, 4]
    of_one = counted(measures, Wanted(principal="", table="ns.u"))
    assert [each[:4] for each in of_one] == [(1, "", "ns.u", 1), (None, "", "ns.u", 1)]
    tables = counted(measures, Wanted(principal=""))
    assert [(each[0], each[2], each[3]) for each in tables if each[0] is None] == [
        (None, "ns.t", 3),
        (None, "ns.u", 1),
    ]


KEYED = replace(ONE, key_hash="a" * 64)


@pytest.mark.parametrize(
    ("attempts", "first", "landed"),
    [
        ((KEYED,), 1, 1),
        ((replace(KEYED, outcome=Outcome.CONFLICT), KEYED), 1, 0),
        ((replace(KEYED, outcome=Outcome.UNKNOWN), replace(KEYED, outcome=Outcome.REPLAYED)), 1, 0),
        ((replace(KEYED, outcome=Outcome.REPLAYED),), 0, 0),
        ((ONE,), 0, 0),
        ((replace(ONE, work="files:1"), replace(ONE, work="files:2", outcome=Outcome.CONFLICT)), 2, 1),
        ((replace(KEYED, outcome=Outcome.CONFLICT), replace(KEYED, principal="agent-2")), 2, 1),
        ((replace(KEYED, outcome=Outcome.CONFLICT), replace(KEYED, table="ns.u")), 2, 1),
        ((replace(KEYED, outcome=Outcome.CONFLICT), replace(KEYED, at_ms=START + 2 * DAY_MS - 1)), 1, 0),
        ((replace(KEYED, outcome=Outcome.CONFLICT), replace(KEYED, at_ms=START + 2 * DAY_MS)), 2, 1),
        ((KEYED, replace(KEYED, outcome=Outcome.REFUSED, rule="key.per-write")), 1, 1),
    ],
    ids=[
        "lands", "conflict-then-lands", "unknown-then-replayed", "replayed", "no-key", "other-files", "other-agent",
        "other-table", "a-day-later", "two-days-later", "key-in-use",
    ],
)  # fmt: skip
@pytest.mark.parametrize("together", [True, False])
def test_a_first_try_is_told_from_a_later_one(
    ledger: Ledger, measures: Measures, attempts: Sequence[Attempt], first: int, landed: int, together: bool
) -> None:
    if together:
        log(ledger, *attempts)
    else:
        for each in attempts:
            log(ledger, each)
            run(measures.count())
    whole = counted(measures, Wanted(principal="", table=""))[-1]
    assert whole[5:] == (first, landed)


def test_each_attempt_is_counted_once_by_several_towers_at_once(
    ledger: Ledger, measures: Measures, database: Database, clock: Clock
) -> None:
    other = Ledger(database, clock)

    async def work() -> None:
        async def tower(of: Ledger, name: str) -> None:
            for number in range(60):
                batch = [replace(ONE, principal=name, at_ms=START + number * 10_000)] * 20
                await of.write(Batch(attempts=batch))
                if number % 7 == 0:
                    await measures.count()

        await asyncio.gather(tower(ledger, "a"), tower(other, "b"))

    run(work())
    assert [each[1:5] for each in counted(measures)[-2:]] == [("a", "ns.t", 1200, 1200), ("b", "ns.t", 1200, 1200)]
    windows = run(measures.busiest(Wanted(principal="", table=""), limit=100))
    assert sum(each.tally.attempts for each in windows) == 2400
    assert run(measures.outcomes()) == {("direct", ""): 2400}


def test_a_full_batch_is_counted_without_anybody_asking(ledger: Ledger, measures: Measures) -> None:
    log(ledger, *[ONE] * (COUNT_EVERY - 1))
    assert run(measures.totals(Wanted(), limit=9)) == []
    log(ledger, ONE)
    assert [each.tally.attempts for each in run(measures.totals(Wanted(), limit=9))] == [COUNT_EVERY]


def test_what_a_short_log_lets_go_was_counted(database: Database, clock: Clock, measures: Measures) -> None:
    short = Ledger(database, clock, attempts_max=5)
    for _ in range(7):
        log(short, ONE, ONE, ONE)
    assert counted(measures)[-1][3] == 21


def test_a_log_from_before_the_figures_stays_uncounted(database: Database, clock: Clock) -> None:
    ledger = Ledger(database, clock)
    log(ledger, ONE)
    # As if it had been made by the version before: the migration begins at the newest attempt.
    database.run_now(lambda c: c.exec_driver_sql("UPDATE ledger_version SET version_num = '0006'"), write=True)
    for name in (
        "metric_windows",
        "metric_totals",
        "metric_counts",
        "tries",
        "metric_reports",
        "events",
        "client_reports",
        "verdicts",
    ):
        database.run_now(lambda c, name=name: c.exec_driver_sql(f"DROP TABLE ledger_{name}"), write=True)
    database.run_now(lambda c: c.exec_driver_sql("ALTER TABLE ledger_keys DROP COLUMN mark"), write=True)
    again = Ledger(database, clock)
    log(again, ONE, ONE)
    assert counted(Measures(database))[-1][3] == 2


def test_pages_have_each_row_once(ledger: Ledger, measures: Measures) -> None:
    some = [
        replace(ONE, principal=f"a{n % 5}", table=f"ns.t{n % 3}", at_ms=START + n * WINDOW_MS // 4) for n in range(40)
    ]
    log(ledger, *some)
    run(measures.count())
    seen, before, last = list[tuple[int | None, str, str]](), None, None
    while True:
        page = run(measures.windows(Wanted(), limit=7, before=before))
        seen += [(row.window_ms, row.principal, row.table) for row in page.rows]
        if page.next is None:
            break
        assert page.next != last
        before = last = page.next
    assert len(seen) == len(set(seen)) == len({(a.at_ms // WINDOW_MS, a.principal, a.table) for a in some})
    assert [each[0] for each in seen] == sorted((each[0] for each in seen), reverse=True)


def test_rows_are_bounded_and_the_whole_is_kept(
    ledger: Ledger, measures: Measures, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "WINDOWS_MAX", 30)
    monkeypatch.setattr(metrics_module, "TOTALS_MAX", 12)
    monkeypatch.setattr(metrics_module, "TRIES_MAX", 10)
    monkeypatch.setattr(metrics_module, "REPORTS_MAX", 10)
    for n in range(100):
        refused = Attempt(f"a{n}", "ns.t", "append", Outcome.REFUSED, at_ms=START + n * WINDOW_MS, key_hash=f"{n:064}")
        log(ledger, refused)
        run(measures.count())
        run(measures.report([Report(ORPHANS, f"ns.t{n}", "", n, START + n)]))
    rows = database.run_now(count_rows)
    assert rows["ledger_metric_windows"] <= 30
    assert rows["ledger_metric_totals"] <= 12
    assert rows["ledger_tries"] <= 10
    assert rows["ledger_metric_reports"] <= 10
    newest = run(measures.windows(Wanted(), limit=1)).rows[0]
    assert (newest.principal, counted(measures, Wanted(principal="", table=""))[-1][3]) == ("a99", 100)


def test_reports_stand_for_the_last_look_and_notes_are_counted_once(measures: Measures, database: Database) -> None:
    run(measures.report([Report(ORPHANS, "t", "a", 5, 1, {"bytes": 9}), Report(ORPHANS, "t", "b", 1, 1)]))
    run(measures.report([Report(WAL_LAG, "t", "", 30.5, 2)]))
    run(measures.report([Report(ORPHANS, "t", "a", 2, 3)], instead_of={"t"}))
    found = run(measures.reports([ORPHANS, WAL_LAG], limit=9))
    assert [(each.kind, each.source, each.value, each.at_ms) for each in found] == [
        (ORPHANS, "a", 2, 3),
        (WAL_LAG, "", 30.5, 2),
    ]
    noticed = [Report("bypass", "t", str(n), 1, n) for n in range(3)]
    assert [run(measures.note(noticed[:2])), run(measures.note(noticed))] == [2, 1]
    assert database.run_now(lambda connection: read_noted(connection, "bypass")) == 3


def test_a_text_is_taken_out_of_the_partitions(ledger: Ledger, measures: Measures) -> None:
    log(ledger, replace(ONE, partitions=("customer=Zoë", "day=1")))
    run(measures.count())
    assert run(ledger.forget("Zoë")) == 1
    (window,) = run(measures.windows(Wanted(), limit=9)).rows
    assert [each["partition"] for each in window.tally.hottest()] == ["day=1"]
    log(ledger, ONE)  # and a row that cannot be read starts anew
    assert counted(measures)[-1][3] == 2

"""What contracts in shadow mode would have refused, counted by kind, in SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icetower.ledger import shadow as module
from icetower.ledger.ledger import Attempt, Batch, Ledger, Outcome
from icetower.ledger.shadow import MESSAGE_CHARACTERS_MAX, PARTITIONS_MAX, Ended, Shadowed
from tests.ledger.test_ledger import Clock, clock, database, ledger, run

__all__ = ["clock", "database", "ledger"]  # fixtures

ONE = Shadowed("p", "c", 1, "ns.t", "append", "contract.partitions", "no", ("day=1",), 1_000)


def note(ledger: Ledger, *refusals: Shadowed) -> None:
    run(ledger.write(Batch(shadowed=refusals)))


def test_refusals_of_one_kind_are_counted_with_the_first_time_and_the_last_words(ledger: Ledger) -> None:
    note(ledger, ONE, replace(ONE, at_ms=2_000), ONE)
    note(ledger, replace(ONE, at_ms=3_000, message="not that either", partitions=("day=2", "day=3")))
    (row,) = run(ledger.shadowed())
    assert (row.count, row.first_ms) == (4, 1_000)
    assert row.last == replace(ONE, at_ms=3_000, message="not that either", partitions=("day=2", "day=3"))


@pytest.mark.parametrize(
    "other",
    [
        {"principal": "q"},
        {"contract": "d"},
        {"contract_version": 2},
        {"about": "ns.u"},
        {"operation": "delete"},
        {"rule": "contract.key"},
    ],
    ids=str,
)
def test_who_what_and_why_make_a_kind(ledger: Ledger, other: dict[str, object]) -> None:
    note(ledger, ONE, replace(ONE, **other), ONE)
    assert [row.count for row in run(ledger.shadowed())] == [2, 1]  # the most frequent first
    of_c = run(ledger.shadowed("c"))
    assert [row.last.contract for row in of_c] == ["c"] * (1 if "contract" in other else 2)


def test_what_is_long_is_cut(ledger: Ledger) -> None:
    many = tuple(f"day={n}" for n in range(PARTITIONS_MAX + 5))
    note(ledger, replace(ONE, message="x" * 10_000, partitions=many, operation="+".join(["overwrite"] * 9)))
    (row,) = run(ledger.shadowed())
    assert len(row.last.message) == MESSAGE_CHARACTERS_MAX
    assert row.last.partitions == many[:PARTITIONS_MAX]


def test_who_makes_up_names_pushes_out_its_own_oldest_kinds(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KINDS_MAX", 3)
    note(ledger, replace(ONE, principal="quiet", at_ms=1))
    for number in range(5):
        note(ledger, replace(ONE, about=f"ns.t{number}", at_ms=10 + number))
    note(ledger, replace(ONE, about="ns.t2", at_ms=20))
    note(ledger, replace(ONE, about="ns.t9", at_ms=21))
    found = {(row.last.principal, row.last.about): row.count for row in run(ledger.shadowed())}
    assert found == {("quiet", "ns.t"): 1, ("p", "ns.t2"): 2, ("p", "ns.t4"): 1, ("p", "ns.t9"): 1}


def test_how_attempts_of_some_principals_have_ended_since_a_time(ledger: Ledger, clock: Clock) -> None:
    def attempt(
        principal: str, outcome: Outcome, latency_ms: float, rule: str | None = None, at_ms: int = 0
    ) -> Attempt:
        return Attempt(principal, "ns.t", "append", outcome, rule, latency_ms=latency_ms, at_ms=at_ms)

    run(ledger.write(Batch(attempts=[attempt("p", Outcome.DIRECT, 9, at_ms=clock.ms - 1)])))
    attempts = [
        attempt("p", Outcome.REBASED, 1),
        attempt("p", Outcome.CONFLICT, 2, "rebase.reads"),
        attempt("q", Outcome.DIRECT, 3),
        attempt("p", Outcome.REBASED, 4),
    ]
    run(ledger.write(Batch(attempts=attempts)))
    found = run(ledger.endings(["p", "r"], since_ms=clock.ms))
    assert sorted(found, key=lambda each: each.outcome) == [
        Ended("p", "conflict", "rebase.reads", (2.0,)),
        Ended("p", "rebased", None, (4.0, 1.0)),
    ]
    assert run(ledger.endings([], since_ms=0)) == []

"""Overwrites that nobody can have meant: which commits a contract's guard refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.admission.guards import Excess, excess, rows_of, unapproved
from icetower.contracts.document import dump, load
from icetower.contracts.limits import GUARD_ABOVE_ROWS, Guard, Quota
from icetower.errors import BadRequest
from icetower.iceberg.change import Touched
from icetower.iceberg.manifests import EQUALITY_DELETES, POSITION_DELETES
from icetower.registry.principals import Principal, administrator
from tests.admission.test_admit import TABLE, change, dv, file
from tests.admission.test_clauses import agent


def guarded(guard: str, operations: str = "overwrite") -> Principal:
    return agent(f"operations: [{operations}], partitions: all, guard: {guard}")


BIG = file("big", rows=10_000)
GUARDS = [
    # what, guard, added, removed: rows added and removed where it is refused, None where it passes
    ("the doubling UPDATE of iceberg #18004", "{times: 3}", [file("n", rows=71_428_702)],
     [file("o", rows=154_479)], (71_428_702, 154_479)),
    ("as many rows again", "{times: 3}", [file("n", rows=10_000)], [BIG], None),
    ("exactly the bound", "{times: 3}", [file("n", rows=30_000)], [BIG], None),
    ("one row more than the bound", "{times: 3}", [file("n", rows=30_001)], [BIG], (30_001, 10_000)),
    ("an append", "{times: 3}", [BIG], [], None),
    ("a delete", "{times: 3}", [], [BIG], None),
    ("a small overwrite", "{times: 3}", [file("n", rows=1_000)], [file("o", rows=1)], None),
    ("a small overwrite, guarded from one row on", "{times: 3, above: 1}", [file("n", rows=4)],
     [file("o", rows=1)], (4, 1)),
    ("a merge-on-read UPDATE", "{times: 1}", [file("n", rows=2_000), dv("v", BIG, rows=2_000)], [], None),
    ("a merge-on-read UPDATE that adds more", "{times: 1}", [file("n", rows=2_001), dv("v", BIG, rows=2_000)], [],
     (2_001, 2_000)),
    ("a vector that takes an older one over", "{times: 1}", [file("n", rows=2_000), dv("w", BIG, rows=2_500)],
     [dv("v", BIG, rows=2_000)], (2_000, 500)),
    ("position deletes that go with their data file", "{times: 1}", [file("n", rows=5_000)],
     [BIG, file("p", content=POSITION_DELETES, rows=5_000)], None),
    ("equality deletes count as a row each", "{times: 1}",
     [file("n", rows=2_000), file("e", content=EQUALITY_DELETES, rows=2_000)], [], None),
    ("no guard", "{}", [file("n", rows=71_428_702)], [file("o", rows=1)], None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "guard", "added", "removed", "expected"), GUARDS, ids=[each[0] for each in GUARDS])
def test_a_guard_goes_by_the_rows_that_a_commit_adds_and_removes(
    what: str, guard: str, added: Sequence[Touched], removed: Sequence[Touched], expected: tuple[int, int] | None
) -> None:
    changes = [change(added, removed, claim="overwrite")]
    found = excess(guarded(guard), TABLE, changes, "main")
    assert (None if found is None else (found.rows_added, found.rows_removed)) == expected, what
    assert excess(administrator("root"), TABLE, changes, "main") is None


def test_the_snapshots_of_a_commit_count_together() -> None:
    """PyIceberg removes in one snapshot and adds in the next, and writes what stays of a file anew in between."""
    removes = change([file("kept", rows=9_000)], [BIG], claim="overwrite")
    adds = change([file("new", rows=1_000)], snapshot_id=9, parent=8)
    assert rows_of([removes, adds]) == (10_000, 10_000)
    doubles = change([file("new", rows=50_000)], snapshot_id=9, parent=8)
    assert excess(guarded("{times: 3}"), TABLE, [removes, doubles], "main") == Excess(59_000, 10_000, 3, "main")


def test_a_file_that_comes_and_goes_within_the_commit_counts_for_neither() -> None:
    staged = file("staged", rows=5_000)
    assert rows_of([change([staged]), change([], [staged], snapshot_id=9, parent=8)]) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=4), st.integers(1, 5))
def test_a_commit_in_several_snapshots_is_judged_like_one(sides: Sequence[tuple[int, int]], times: int) -> None:
    several = [
        change(
            [file(f"n{at}", rows=added)] if added else [],
            [file(f"o{at}", rows=removed)] if removed else [],
            snapshot_id=8 + at,
            parent=7 + at,
        )
        for at, (added, removed) in enumerate(sides)
    ]
    one = [change([t for c in several for t in c.added], [t for c in several for t in c.removed])]
    by = guarded(f"{{times: {times}, above: 1}}")
    assert rows_of(several) == rows_of(one) == (sum(a for a, _ in sides), sum(r for _, r in sides))
    assert excess(by, TABLE, several, "main") == excess(by, TABLE, one, "main")


def test_of_several_rules_that_write_the_strictest_guard_counts() -> None:
    bound = agent(
        """operations: [overwrite], partitions: [{day: 1970-01-01}], guard: {times: 5}
        operations: [delete], partitions: [{day: 1970-01-02}], guard: {times: 2, above: 50}
        operations: [read], guard: {times: 1}"""
    )
    assert bound.contract.on(TABLE).guard == Guard(2, 50)
    assert Guard.strictest([]) == Guard()
    assert Guard().above_rows == GUARD_ABOVE_ROWS
    assert Quota.strictest([Quota(3, None, 7), Quota(2, 5, None)]) == Quota(2, 5, 7)


def test_a_guard_is_written_as_it_is_read() -> None:
    contract = guarded("{times: 3, above: 50}").contract
    assert load(dump(contract), source="test") == contract


@pytest.mark.parametrize("guard", ["{above: 50}", "{times: 0}", "{times: 1.5}", "{rows: 3}"])
def test_a_guard_that_says_nothing_is_refused(guard: str) -> None:
    with pytest.raises(BadRequest, match=r"guard|times|rows"):
        guarded(guard)


def test_the_refusal_says_how_many_rows_and_who_decides() -> None:
    error = unapproved(guarded("{times: 3}"), TABLE, Excess(71_428_702, 154_479, 3, "main"), "Dana <dana@example.com>")
    assert (error.status, error.rule, error.next_step) == (403, "guard.rows", "escalated_to")
    assert error.escalated_to == "Dana <dana@example.com>"
    assert "adds 71,428,702 rows and removes 154,479" in error.message

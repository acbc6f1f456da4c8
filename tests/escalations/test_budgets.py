"""Retry budgets: what counts as a failure, and when failures in a row have used one up."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.contracts.model import Escalation
from icetower.errors import (
    BadRequest,
    CommitConflict,
    CommitStateUnknown,
    Conflict,
    ContractViolation,
    Forbidden,
    IcetowerError,
    KeyMisused,
    NoSuchTable,
    NotFound,
    Unavailable,
    UpstreamFailed,
)
from icetower.escalations import failures
from icetower.escalations.failures import STOPPED, Failure, Streaks, budget, counts, summary

THREE_IN_A_MINUTE = Escalation(3, 60.0, "Dana <dana@example.com>")


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        # What the agent answers for.
        (CommitConflict("stale"), True),
        (CommitConflict("true conflict", rule="conflict.C1"), True),
        (Conflict("exists"), True),
        (ContractViolation("not owned", rule="contract.partitions", next_step="request_partition"), True),
        (ContractViolation("too many", rule="contract.quota", next_step="wait_until"), True),
        (Forbidden("no"), True),
        (BadRequest("malformed"), True),
        (NoSuchTable("no table"), True),
        (KeyMisused("another write"), True),
        # What may be sent again as it is.
        (CommitConflict("the queue is full", rule="queue.full", next_step="retry"), False),
        (CommitConflict("the contract changed", rule="contract.changed", next_step="retry"), False),
        # What the tower, the catalog and the storage answer for.
        (IcetowerError("ours"), False),
        (UpstreamFailed("storage"), False),
        (Unavailable("away"), False),
        (CommitStateUnknown("perhaps"), False),
        (NotFound("the catalog points at nothing", rule="upstream.metadata"), False),
        # A decision about the agent, and not its failure.
        (Forbidden("revoked", rule="contract.revoked"), False),
        (ContractViolation("stopped", rule=STOPPED), False),
    ],
)
def test_what_counts(error: IcetowerError, counted: bool) -> None:
    assert counts(error) is counted


# seconds at which it fails; ✓ lands; the number after which the budget is used up, 0: never
@pytest.mark.parametrize(
    ("told", "used_up_at"),
    [
        ("0 1 2", 3),
        ("0 1", 0),
        ("0 1 ✓ 2 3", 0),
        ("0 1 ✓ 2 3 4", 6),
        ("✓ 0 ✓ 1 ✓ 2 ✓ 3", 0),
        ("0 1 60", 3),  # the window's end counts
        ("0 1 61", 0),
        ("0 40 80 120 160", 0),  # never three within a minute
        ("0 40 80 90 95", 4),
        ("0 0 0", 3),
        ("5 4 3", 3),  # the clock was set back
    ],
)
def test_failures_in_a_row_within_a_time(told: str, used_up_at: int) -> None:
    streaks = Streaks()
    found = 0
    for position, word in enumerate(told.split(), 1):
        if word == "✓":
            streaks.ended("agent", "t")
            continue
        if streaks.failed("agent", "t", Failure(int(word) * 1000, "conflict.C1"), THREE_IN_A_MINUTE):
            found = found or position
    assert found == used_up_at


def test_the_failures_that_used_it_up_are_told_oldest_first() -> None:
    streaks = Streaks()
    told = [Failure(at, rule) for at, rule in ((0, "conflict.C1"), (5, "contract.key"), (7, "conflict.C1"), (9, "key"))]
    results = [streaks.failed("agent", "t", failure, THREE_IN_A_MINUTE) for failure in told]
    assert results == [None, None, tuple(told[:3]), tuple(told[1:])]
    assert summary(told) == "conflict.C1 (2), contract.key, key"


def test_agents_and_tables_are_counted_apart() -> None:
    streaks = Streaks()
    for principal, table in (("a", "t"), ("a", "t"), ("b", "t"), ("b", "t"), ("a", "u"), ("a", "u")):
        assert streaks.failed(principal, table, Failure(0, "r"), THREE_IN_A_MINUTE) is None
    streaks.ended("a", "t")
    assert streaks.failed("a", "t", Failure(0, "r"), THREE_IN_A_MINUTE) is None
    assert streaks.failed("b", "t", Failure(0, "r"), THREE_IN_A_MINUTE) is not None
    assert streaks.failed("a", "u", Failure(0, "r"), THREE_IN_A_MINUTE) is not None


def test_a_budget_that_was_lowered_holds_at_once() -> None:
    streaks = Streaks()
    for _ in range(4):
        assert streaks.failed("a", "t", Failure(0, "r"), Escalation(9, 60.0, "x@y")) is None
    assert len(streaks.failed("a", "t", Failure(0, "r"), THREE_IN_A_MINUTE) or ()) == 3


def test_memory_is_bounded_and_nobody_pushes_out_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "OWN_MAX", 20)
    monkeypatch.setattr(failures, "KEPT_MAX", 100)
    streaks = Streaks()
    careful = Failure(0, "r")
    streaks.failed("quiet", "t", careful, THREE_IN_A_MINUTE)
    streaks.failed("quiet", "t", careful, THREE_IN_A_MINUTE)
    for at in range(1_000):  # one principal that fails at a thousand tables
        assert streaks.failed("wild", f"t{at}", Failure(at, "r"), THREE_IN_A_MINUTE) is None
        assert len(streaks) <= 22
    assert streaks.failed("quiet", "t", careful, THREE_IN_A_MINUTE) is not None
    for at in range(1_000):  # a thousand principals
        streaks.failed(f"p{at}", "t", Failure(at, "r"), THREE_IN_A_MINUTE)
        assert len(streaks) <= 100
    assert budget(Escalation(10**9, 1.0, "x@y")) == failures.BUDGET_MAX


EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("tu"), st.integers(0, 30), st.booleans()), max_size=60
)


@given(events=EVENTS, after=st.integers(1, 5), within_s=st.integers(1, 60))
def test_counting_equals_looking_back_over_everything(
    events: list[tuple[str, str, int, bool]], after: int, within_s: int
) -> None:
    """Used up: the last `after` attempts at the table all failed, the first of them within the window."""
    escalation = Escalation(after, float(within_s), "x@y")
    streaks = Streaks()
    told: defaultdict[tuple[str, str], list[int | None]] = defaultdict(list)
    now_s = 0
    for principal, table, pause_s, failed in events:
        now_s += pause_s
        history = told[principal, table]
        if not failed:
            history.append(None)
            streaks.ended(principal, table)
            continue
        history.append(now_s)
        last = history[-after:]
        expected = len(last) == after and all(at is not None and at >= now_s - within_s for at in last)
        found = streaks.failed(principal, table, Failure(now_s * 1000, "r"), escalation)
        assert (found is not None) is expected
        if found is not None:
            assert [failure.at_ms for failure in found] == [(at or 0) * 1000 for at in last]
    assert len(streaks) <= len(events)

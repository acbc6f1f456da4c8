"""`Retry-After`: when a client should send the same again, in whole seconds."""

from __future__ import annotations

import pytest

from icetower.errors import (
    CommitConflict,
    CommitStateUnknown,
    ContractViolation,
    IcetowerError,
    KeyMisused,
    TooManyRequests,
    Unavailable,
    UpstreamFailed,
)
from icetower.protocol.catalog import RETRY_AFTER_MAX_S, RETRY_AFTER_S, retry_after_s

NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Unavailable("no"), RETRY_AFTER_S),
        (UpstreamFailed("no"), RETRY_AFTER_S),
        (CommitConflict("full", rule="queue.full", next_step="retry"), RETRY_AFTER_S),
        (TooManyRequests("rows", rule="rows.busy", next_step="retry"), RETRY_AFTER_S),
        # the client has to load the table first, or somebody has to look: nothing is sent again as it is
        (CommitConflict("stale"), None),
        (CommitStateUnknown("who knows"), None),
        (KeyMisused("another write"), None),
        (IcetowerError("ours"), None),
    ],
)
def test_a4_what_may_be_sent_again_as_it_is_says_when(error: IcetowerError, seconds: int | None) -> None:
    assert retry_after_s(error, NOW_MS) == seconds


@pytest.mark.parametrize(
    ("wait_ms", "seconds"),
    [(1, 1), (1000, 1), (1001, 2), (59_001, 60), (0, 1), (-5000, 1), (10**9, RETRY_AFTER_MAX_S)],
)
def test_a4_a_wait_is_rounded_up_and_bounded(wait_ms: int, seconds: int) -> None:
    error = ContractViolation("later", rule="contract.slot", next_step="wait_until", wait_until_ms=NOW_MS + wait_ms)
    assert retry_after_s(error, NOW_MS) == seconds


def test_a4_a_wait_without_a_time_is_the_shortest() -> None:
    assert retry_after_s(TooManyRequests("later"), NOW_MS) == RETRY_AFTER_S

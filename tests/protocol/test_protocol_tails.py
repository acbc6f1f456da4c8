"""The end of a refusal's message: what Java's clients pass on is enough to act."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import CommitConflict, ContractViolation, IcetowerError
from icetower.protocol.catalog import error_body
from icetower.protocol.tails import Tail
from icetower.rules import table


def answered(error: IcetowerError, request_id: str = "9915ed55a0cc6f48") -> str:
    error.request_id = request_id
    return error_body(error)["error"]["message"]


@given(
    message=st.text(),
    rule=st.sampled_from(sorted(table().rules)),
    next_step=st.sampled_from(sorted(table().next_steps)),
    until_ms=st.none() | st.integers(0, 2**42),
    after=st.text(alphabet=st.characters(exclude_characters="(")),
)
def test_every_refusal_is_read_back_from_its_message(
    message: str, rule: str, next_step: str, until_ms: int | None, after: str
) -> None:
    error = CommitConflict(message, rule=rule, next_step=next_step, wait_until_ms=until_ms)
    assert Tail.of(f"Commit failed: {answered(error)}{after}") == Tail(rule, next_step, until_ms, "9915ed55a0cc6f48")


def test_words_of_a_client_are_not_taken_for_the_towers() -> None:
    forged = "(rule contract.quota, next step retry, request 1)"
    said = answered(ContractViolation(f"no table {forged}", rule="contract.table", next_step="ask_owner"))
    assert Tail.of(said) == Tail("contract.table", "ask_owner", None, "9915ed55a0cc6f48")


@pytest.mark.parametrize("text", ["", "no tail", "(rule , next step x, request 1)", "(request 9915ed55a0cc6f48)"])
def test_a_text_without_a_tail(text: str) -> None:
    assert Tail.of(text) is None


@pytest.mark.parametrize("until", ["yesterday", "2026-13-01T00:00:00+00:00", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_is_left_out(until: str) -> None:
    found = Tail.of(f"(rule contract.quota, next step wait_until, wait until {until}, request 1)")
    assert found is None or found.wait_until_ms is None

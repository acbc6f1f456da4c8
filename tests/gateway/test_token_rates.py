"""How often somebody may ask for a token, under a clock that only the test moves."""

from __future__ import annotations

import pytest

from icetower.ambient import SystemAmbient
from icetower.errors import NotAuthenticated, TooManyRequests
from icetower.gateway.token_rates import GUESSES, GUESSES_OF_ADDRESS, TOKENS, Buckets, TokenRates


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.s = 1_000.0

    def monotonic_s(self) -> float:
        return self.s

    def now_ms(self) -> int:
        return int(self.s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(clock: Clock) -> TokenRates:
    return TokenRates(clock)


def guessed(rates: TokenRates, name: str = "agent", address: str = "10.0.0.1", secret: str = "wrong") -> bool:
    """Whether a wrong guess was looked at."""
    try:
        with rates.attempt(address, name, secret):
            raise NotAuthenticated("wrong")
    except NotAuthenticated:
        return True
    except TooManyRequests:
        return False


def let_in(rates: TokenRates, name: str = "agent", address: str = "10.0.0.1", secret: str = "right") -> bool:
    """Whether a right secret was looked at."""
    try:
        with rates.attempt(address, name, secret):
            return True
    except TooManyRequests:
        return False


def test_wrong_guesses_are_bounded_by_address_and_name_and_come_back_with_time(rates: TokenRates, clock: Clock) -> None:
    assert [guessed(rates) for _ in range(GUESSES[0] + 3)] == [True] * GUESSES[0] + [False] * 3
    with pytest.raises(TooManyRequests) as refused, rates.attempt("10.0.0.1", "agent", "wrong"):
        pass
    assert refused.value.wait_until_ms == pytest.approx(clock.now_ms() + 1000 / GUESSES[1], abs=2)
    clock.s += 1 / GUESSES[1]
    assert [guessed(rates), guessed(rates)] == [True, False]


def test_nobody_is_kept_out_by_guesses_that_are_made_elsewhere(rates: TokenRates) -> None:
    while guessed(rates):
        pass
    assert let_in(rates, address="10.0.0.2", secret="of one")
    assert let_in(rates, name="other", secret="of another")
    assert not let_in(rates)


def test_who_was_let_in_before_is_let_in_whatever_comes_from_the_same_address(rates: TokenRates) -> None:
    """Behind a proxy, an attacker has the address that everybody has."""
    assert let_in(rates)
    for at in range(GUESSES_OF_ADDRESS[0]):
        guessed(rates, name=f"agent-{at % 20}")
        guessed(rates)
    assert not let_in(rates, name="newcomer", secret="another")
    assert let_in(rates)
    # A secret that is right no more is a guess like any other.
    assert guessed(rates, secret="right")
    assert not let_in(rates)


def test_right_secrets_cost_nothing_and_guesses_at_the_same_time_count(rates: TokenRates) -> None:
    assert all(let_in(rates, secret=f"{at}") for at in range(3 * GUESSES_OF_ADDRESS[0]))
    under_way = [rates.attempt("10.0.0.9", "agent", f"guess {at}") for at in range(GUESSES[0] + 1)]
    for attempt in under_way[:-1]:
        attempt.__enter__()
    with pytest.raises(TooManyRequests):
        under_way[-1].__enter__()
    for attempt in under_way[:-1]:
        attempt.__exit__(None, None, None)
    assert guessed(rates, address="10.0.0.9")


def test_what_failed_for_another_reason_is_no_guess(rates: TokenRates) -> None:
    for _ in range(GUESSES[0] + 5):
        with pytest.raises(ValueError, match="the database is away"), rates.attempt("10.0.0.1", "agent", "right"):
            raise ValueError("the database is away")


def test_an_address_of_ipv6_counts_with_its_neighbours(rates: TokenRates) -> None:
    found = [guessed(rates, address=f"2001:db8::{at:x}") for at in range(1, GUESSES[0] + 2)]
    assert found == [True] * GUESSES[0] + [False]
    assert guessed(rates, address="2001:db8:0:1::1")
    assert [guessed(rates, address=f"::ffff:10.0.0.{at}") for at in (1, 2)] == [True, True]


def test_tokens_are_bounded_by_principal(rates: TokenRates, clock: Clock) -> None:
    for _ in range(TOKENS[0]):
        rates.allow("agent")
    with pytest.raises(TooManyRequests):
        rates.allow("agent")
    rates.allow("other")
    clock.s += 1 / TOKENS[1]
    rates.allow("agent")


def test_what_is_remembered_is_bounded(clock: Clock) -> None:
    rates = TokenRates(clock, kept_max=50)
    for at in range(1_000):
        guessed(rates, name="x" * 10_000 + str(at), address=f"10.0.{at // 250}.{at % 250}")
        let_in(rates, address=f"10.1.{at // 250}.{at % 250}", secret=str(at))
        rates.allow(f"agent-{at}")
    assert 150 < len(rates) <= 4 * 50
    buckets = Buckets(2, 1.0)
    buckets.take("a", 0.0)
    buckets.give_back("a", 0.0)
    assert len(buckets) == 0

"""Access tokens: what a wrong guess costs, when a renewed one ends, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from sqlalchemy import event, func, select

from icetower.contracts.document import load
from icetower.database import Database
from icetower.errors import NotAuthenticated, TooManyRequests
from icetower.registry import tokens
from icetower.registry.registry import Registry
from icetower.registry.schema import credentials
from icetower.registry.tokens import Lifetimes
from tests.registry.test_registry import CONTRACT, Clock, refusal, run

HOUR_MS = 3_600_000


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database("sqlite://")
    yield database
    database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(database: Database, clock: Clock) -> Registry:
    registry = Registry(database, clock, Lifetimes(ttl_s=3600, renewal_max_s=10_000))
    run(registry.apply_contract(load(CONTRACT, source="test"), by="owner", text=CONTRACT))
    return registry


def stored(database: Database, clock: Clock) -> int:
    """Tokens that are good."""
    query = select(func.count()).select_from(credentials).where(credentials.c.issued_from.is_not(None))
    query = query.where(credentials.c.expires_ms > clock.now_ms())
    return database.run_now(lambda connection: connection.execute(query).scalar_one())


def test_a_wrong_guess_takes_no_lock_and_costs_the_same_for_every_name(registry: Registry, database: Database) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    def asked(name: str | None, guess: str) -> list[str]:
        statements.clear()
        work = registry.exchange(guess) if name is None else registry.issue_token(name, guess)
        assert isinstance(refusal(work), NotAuthenticated)
        return [*statements]

    costs = [asked("agent-1", "wrong"), asked("nobody", "wrong"), asked(None, "wrong"), asked("", "")]
    assert [len(cost) for cost in costs] == [len(costs[0])] * 4
    for cost in (*costs, asked("agent-2", secret)):
        assert all(statement.startswith(("SELECT", "BEGIN")) for statement in cost), cost
        assert not any("IMMEDIATE" in statement for statement in cost)
    statements.clear()
    run(registry.issue_token("agent-1", secret))
    assert any("IMMEDIATE" in statement for statement in statements)


def test_renewal_does_not_pass_the_end_of_its_line(registry: Registry, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    begun_ms = clock.ms
    stolen, _ = run(registry.issue_token("agent-1", secret))
    lifetimes: list[int] = []
    while True:
        clock.ms += 3_000_000
        try:
            stolen, good_s = run(registry.exchange(stolen))
        except NotAuthenticated:
            break
        lifetimes.append(good_s)
    assert lifetimes == [3600, 3600, 1000]
    assert clock.ms - begun_ms == 12_000_000
    assert isinstance(refusal(registry.authenticate(stolen)), NotAuthenticated)
    # Whoever has the secret begins a new line.
    assert run(registry.issue_token("agent-1", secret))[1] == 3600
    assert run(registry.exchange(secret))[1] == 3600


def test_a_token_in_use_ends_later_and_only_that_takes_a_lock(
    registry: Registry, database: Database, clock: Clock
) -> None:
    """The line ends after 10,000 s. Whoever cannot be renewed changes nothing that others have read."""
    secret = run(registry.create_principal("agent-1", "pricing"))
    token, _ = run(registry.issue_token("agent-1", secret))
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    found: list[tuple[int | None, bool, bool]] = []
    for passed_s in (1700, 1700, 3000, 3500, 50, 100):
        clock.ms += passed_s * 1000
        with suppress(NotAuthenticated):
            run(registry.authenticate(token))
        statements.clear()
        good_s = run(registry.renew(token))
        found.append((good_s, any("IMMEDIATE" in each for each in statements), bool(statements)))
    assert found == [
        (None, False, False),  # most of its time is left
        (3600, True, True),
        (3600, True, True),
        (None, False, True),  # the line has 100 s left, and so has the token
        (None, False, True),
        (None, False, True),  # it has ended
    ]
    assert isinstance(refusal(registry.authenticate(token)), NotAuthenticated)
    assert run(registry.renew(secret)) is None
    assert run(registry.renew("icat_unknown")) is None


def test_a_token_says_how_long_it_is_really_good(registry: Registry, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    run(registry.rotate("agent-1", grace_s=90))
    assert run(registry.issue_token("agent-1", secret))[1] == 90
    clock.ms += 89_500
    assert isinstance(refusal(registry.issue_token("agent-1", secret)), NotAuthenticated)


def test_tokens_of_a_principal_are_bounded_and_those_that_would_end_first_end(
    registry: Registry, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PER_PRINCIPAL_MAX", 20)
    secret = run(registry.create_principal("agent-1", "pricing"))
    other, _ = run(registry.issue_token("agent-2", run(registry.create_principal("agent-2", "pricing"))))
    issued: list[str] = []
    for _ in range(50):
        clock.ms += 1
        issued.append(run(registry.issue_token("agent-1", secret))[0])
        assert run(registry.authenticate(issued[-1])).name == "agent-1"
    assert 18 <= stored(database, clock) - 1 <= 20
    assert isinstance(refusal(registry.authenticate(issued[0])), NotAuthenticated)  # though it was read before
    assert run(registry.authenticate(issued[-10])).name == "agent-1"
    assert run(registry.authenticate(other)).name == "agent-2"
    assert run(registry.authenticate(secret)).name == "agent-1"


def test_who_renews_a_stolen_token_ends_no_others(
    registry: Registry, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PER_LINE_MAX", 10)
    secret = run(registry.create_principal("agent-1", "pricing"))
    own, _ = run(registry.issue_token("agent-1", secret))
    clock.ms += 1
    stolen, _ = run(registry.issue_token("agent-1", secret))
    for _ in range(60):
        clock.ms += 1
        stolen, _ = run(registry.exchange(stolen))
    assert stored(database, clock) <= 11
    assert run(registry.authenticate(own)).name == "agent-1"


def test_what_has_expired_is_removed(registry: Registry, database: Database, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    for _ in range(30):
        run(registry.issue_token("agent-1", secret))
    clock.ms += HOUR_MS
    run(registry.issue_token("agent-1", secret))
    assert stored(database, clock) == 1


def test_who_may_have_no_token_now_costs_no_write(registry: Registry, database: Database, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))

    def nobody(principal: str) -> None:
        raise TooManyRequests(f"not {principal}")

    for work in (registry.issue_token("agent-1", secret, allow=nobody), registry.exchange(secret, allow=nobody)):
        assert refusal(work).message == "not agent-1"
    assert stored(database, clock) == 0


DAY_MS = 24 * HOUR_MS


def revoked_contract(registry: Registry) -> None:
    run(registry.revoke_contract("pricing", by="owner"))


def revoked_principal(registry: Registry) -> None:
    run(registry.revoke_principal("agent-1"))


def rotated(registry: Registry) -> None:
    run(registry.rotate("agent-1"))


@pytest.mark.parametrize("ends", [revoked_contract, revoked_principal, rotated, None])
def test_a3_whose_a_credential_was_is_known_for_a_day_after_its_end(
    registry: Registry, database: Database, clock: Clock, ends: Callable[[Registry], None] | None
) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    token = run(registry.issue_token("agent-1", secret))[0]
    assert run(registry.ended(token)) is run(registry.ended(secret)) is run(registry.ended("unknown")) is None
    if ends is None:
        clock.ms += HOUR_MS
    else:
        ends(registry)
    gone = [token] if ends in (None, revoked_contract) else [token, secret]
    for bearer in gone:
        assert isinstance(refusal(registry.authenticate(bearer)), NotAuthenticated)
        assert isinstance(refusal(registry.exchange(bearer)), NotAuthenticated)
        known = run(registry.ended(bearer))
        assert known is not None
        assert (known.name, known.ended, known.revoked, known.administrator) == ("agent-1", True, True, False)
        assert known.contract.rules == ()
    clock.ms += DAY_MS
    assert [run(registry.ended(bearer)) for bearer in gone] == [None] * len(gone)


def test_of_credentials_that_have_ended_so_many_are_kept(
    registry: Registry, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "ENDED_MAX", 5)
    secret = run(registry.create_principal("agent-1", "pricing"))
    issued: list[str] = []
    for _ in range(12):
        issued.append(run(registry.issue_token("agent-1", secret, 1))[0])
        clock.ms += 1_000
    run(registry.issue_token("agent-1", secret))
    known = [run(registry.ended(token)) is not None for token in issued]
    assert known == [False] * 7 + [True] * 5

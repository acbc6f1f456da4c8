"""Versions of contracts: applied together or not at all, revoked with their tokens, and restored without them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import text as sql

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.database import Database
from icetower.errors import BadRequest, Conflict, Forbidden, IcetowerError, NotAuthenticated, NotFound, Unavailable
from icetower.registry.registry import Registry
from icetower.registry.versions import MESSAGE_CHARACTERS_MAX, Applied, Proposal

T = TypeVar("T")

PRICING = "version: 1\nagent: pricing\nrevocation: {by: [oncall]}\nreads: [pricing.*]\n"
WIDER = PRICING + "description: more\n"
STOCK = "version: 1\nagent: stock # kept\nreads: [stock.*]\n"


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def refusal(work: Coroutine[Any, Any, Any]) -> IcetowerError:
    with pytest.raises(IcetowerError) as caught:
        run(work)
    return caught.value


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'control.db'}")
    yield database
    database.close()


@pytest.fixture
def registry(database: Database) -> Registry:
    return Registry(database, SystemAmbient())


def proposal(text: str, expected: int | None = None) -> Proposal:
    return Proposal(load(text, source="test"), text, expected)


def versions_of(registry: Registry) -> list[tuple[str, int]]:
    return [(each.name, each.version) for each in run(registry.contracts())]


def test_contracts_are_applied_together_and_the_unchanged_keep_their_version(registry: Registry) -> None:
    both = [proposal(PRICING), proposal(STOCK)]
    assert run(registry.apply_contracts(both, by="ann", message="first")) == [
        Applied("pricing", 1, True),
        Applied("stock", 1, True),
    ]
    assert run(registry.apply_contracts([proposal(WIDER), proposal(STOCK)], by="bob")) == [
        Applied("pricing", 2, True),
        Applied("stock", 1, False),
    ]
    assert [(v.version, v.applied_by, v.message) for v in run(registry.history("pricing"))] == [
        (1, "ann", "first"),
        (2, "bob", None),
    ]
    assert run(registry.contract("stock")).text == STOCK  # as its author wrote it, comments and all


def test_either_all_are_applied_or_none(registry: Registry) -> None:
    run(registry.apply_contracts([proposal(PRICING)], by="ann"))
    stale = refusal(registry.apply_contracts([proposal(STOCK), proposal(WIDER, expected=0)], by="bob"))
    assert (type(stale), stale.rule, stale.next_step) == (Conflict, "contract.version", "refresh")
    assert "at version 1, not 0" in stale.message
    twice = refusal(registry.apply_contracts([proposal(STOCK), proposal(STOCK)], by="bob"))
    assert (type(twice), twice.rule) == (BadRequest, "contract.twice")
    lying = Proposal(load(STOCK, source="test"), PRICING)
    assert isinstance(refusal(registry.apply_contracts([proposal(WIDER), lying], by="bob")), BadRequest)
    long = "x" * (MESSAGE_CHARACTERS_MAX + 1)
    assert refusal(registry.apply_contracts([proposal(STOCK)], by="bob", message=long)).rule == "contract.message"
    assert versions_of(registry) == [("pricing", 1)]


def test_an_expected_version_guards_against_lost_updates_but_not_against_being_sent_again(registry: Registry) -> None:
    run(registry.apply_contracts([proposal(PRICING, expected=0)], by="ann"))
    assert run(registry.apply_contracts([proposal(WIDER, expected=1)], by="ann")) == [Applied("pricing", 2, True)]
    assert run(registry.apply_contracts([proposal(WIDER, expected=1)], by="ann")) == [Applied("pricing", 2, False)]
    assert isinstance(refusal(registry.apply_contracts([proposal(PRICING, expected=1)], by="bob")), Conflict)


def test_a_restored_contract_works_again_with_its_secrets_and_without_its_tokens(registry: Registry) -> None:
    run(registry.apply_contracts([proposal(PRICING), proposal(STOCK)], by="ann"))
    secret, other = (run(registry.create_principal(f"{name}-1", name)) for name in ("pricing", "stock"))
    tokens = [run(registry.issue_token("pricing-1", secret))[0]]
    tokens.append(run(registry.exchange(tokens[0]))[0])
    others, _ = run(registry.issue_token("stock-1", other))
    run(registry.apply_contracts([proposal(WIDER)], by="ann"))
    assert run(registry.authenticate(tokens[1])).contract.description == "more"

    assert run(registry.revoke_contract("pricing", by="ann", message="misbehaves")) == 3
    bound = run(registry.authenticate(secret))
    assert (bound.revoked, bound.contract.rules, bound.contract_version) == (True, (), 3)
    # Nothing is issued meanwhile that could come back to life with the contract.
    # Why, only the right secret hears.
    for work in (registry.issue_token("pricing-1", secret), registry.exchange(secret)):
        assert refusal(work).rule == "contract.revoked"
    for work in (
        registry.issue_token("stock-1", secret),
        registry.issue_token("pricing-1", secret + "x"),
        *map(registry.exchange, tokens),
        *map(registry.authenticate, tokens),
    ):
        assert isinstance(refusal(work), NotAuthenticated)
    assert run(registry.authenticate(others)).name == "stock-1"

    assert run(registry.restore_contract("pricing", by="bob", message="fixed")) == Applied("pricing", 4, True)
    assert run(registry.authenticate(secret)).contract == load(WIDER, source="test")
    for token in tokens:
        assert isinstance(refusal(registry.authenticate(token)), NotAuthenticated)
    fresh, _ = run(registry.issue_token("pricing-1", secret))
    assert not run(registry.authenticate(fresh)).revoked
    assert [(v.version, v.applied_by, v.message, v.text is None) for v in run(registry.history("pricing"))][2:] == [
        (3, "ann", "misbehaves", True),
        (4, "bob", "fixed", False),
    ]


def test_an_older_version_is_shown_and_restored_by_its_number(registry: Registry) -> None:
    for text in (PRICING, WIDER):
        run(registry.apply_contracts([proposal(text)], by="ann"))
    assert run(registry.contract("pricing", 1)).text == PRICING
    assert isinstance(refusal(registry.restore_contract("pricing", by="ann")), BadRequest)  # which one?
    assert isinstance(refusal(registry.restore_contract("pricing", 1, by="ann", expected=1)), Conflict)
    assert run(registry.restore_contract("pricing", 1, by="ann", expected=2)) == Applied("pricing", 3, True)
    assert run(registry.restore_contract("pricing", 1, by="ann")) == Applied("pricing", 3, False)
    run(registry.revoke_contract("pricing", by="ann"))
    for number in (-1, 0, 4, 5, 2**40):
        assert isinstance(refusal(registry.contract("pricing", number)), NotFound)
        assert isinstance(refusal(registry.restore_contract("pricing", number, by="ann")), NotFound)
    for work in (registry.restore_contract("nobody", by="ann"), registry.revoke_contract("nobody", by="ann")):
        assert isinstance(refusal(work), NotFound)


def test_those_whom_a_contract_names_may_revoke_it_and_nobody_else(registry: Registry) -> None:
    run(registry.apply_contracts([proposal(PRICING), proposal(STOCK)], by="ann"))

    def revoked_by(who: str, name: str) -> Coroutine[Any, Any, int]:
        return registry.revoke_contract(name, by=who, named_only=True)

    # One that is not there is refused alike: nobody learns which contracts there are.
    for who, name in (("oncall", "stock"), ("pricing-1", "pricing"), ("oncall", "nobody")):
        refused = refusal(revoked_by(who, name))
        assert (type(refused), refused.rule) == (Forbidden, "permission.revocation")
    assert run(revoked_by("oncall", "pricing")) == 2
    assert run(revoked_by("oncall", "pricing")) == 2
    assert isinstance(refusal(revoked_by("pricing-1", "pricing")), Forbidden)
    assert versions_of(registry) == [("pricing", 2), ("stock", 1)]


def test_without_its_database_the_registry_lets_nobody_in(registry: Registry, database: Database) -> None:
    run(registry.apply_contracts([proposal(PRICING)], by="ann"))
    secret = run(registry.create_principal("pricing-1", "pricing"))
    run(registry.authenticate(secret))
    run(registry.bindings(["pricing-1"]))  # all that is to be known is known, and still has to be asked for

    database.run_now(lambda connection: connection.execute(sql("ALTER TABLE registry_changes RENAME TO away")))
    for work in (
        registry.authenticate(secret),
        registry.bindings(["pricing-1"]),
        registry.revoke_contract("pricing", by="ann"),
    ):
        refused = refusal(work)
        assert (type(refused), refused.rule, refused.next_step) == (Unavailable, "registry.available", "retry")
        assert "registry_changes" not in refused.message
    database.run_now(lambda connection: connection.execute(sql("ALTER TABLE away RENAME TO registry_changes")))
    assert not run(registry.authenticate(secret)).revoked

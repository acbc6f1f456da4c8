"""Principals, secrets, tokens and contracts in force, on a real database file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import event, inspect, text

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.contracts.model import ADMINISTRATOR
from icetower.database import Database
from icetower.errors import AlreadyExists, BadRequest, IcetowerError, NotAuthenticated, NotFound
from icetower.registry.principals import Principal
from icetower.registry.registry import Registry, hash_of
from icetower.registry.schema import metadata

T = TypeVar("T")

CONTRACT = "version: 1\nagent: pricing\ntables:\n- {table: pricing.prices, operations: [append], partitions: all}\n"
WIDER = CONTRACT + "reads: [inventory.*]\n"


class Clock(SystemAmbient):
    """The machine's randomness under a clock that only tests move."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_500_000_000_000

    def now_ms(self) -> int:
        return self.ms


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'control.db'}"


@pytest.fixture
def registry(url: str, clock: Clock) -> Iterator[Registry]:
    database = Database(url)
    registry = Registry(database, clock)
    run(registry.apply_contract(load(CONTRACT, source="test"), by="owner", text=CONTRACT))
    yield registry
    database.close()


def refusal(work: Coroutine[Any, Any, Any]) -> IcetowerError:
    with pytest.raises(IcetowerError) as caught:
        run(work)
    return caught.value


def test_a_secret_authenticates_its_principal_with_its_contract(registry: Registry) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    assert run(registry.authenticate(secret)) == Principal("agent-1", load(CONTRACT, source="test"), 1)
    chief = run(registry.authenticate(run(registry.create_principal("chief", "administrator"))))
    assert (chief.administrator, chief.contract, chief.contract_version) == (True, ADMINISTRATOR, 0)


def test_tokens_are_issued_exchanged_and_expire(registry: Registry, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    token, expires_s = run(registry.issue_token("agent-1", secret, ttl_s=60))
    assert expires_s == 60
    clock.ms += 59_999
    assert run(registry.authenticate(token)).name == "agent-1"
    fresh, _ = run(registry.exchange(token, ttl_s=60))
    clock.ms += 1
    assert isinstance(refusal(registry.authenticate(token)), NotAuthenticated)
    assert isinstance(refusal(registry.exchange(token)), NotAuthenticated)
    assert run(registry.authenticate(fresh)).name == "agent-1"


def test_every_failed_proof_reads_the_same(registry: Registry) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    run(registry.create_principal("agent-2", "pricing"))
    token, _ = run(registry.issue_token("agent-1", secret))
    failures = [
        registry.authenticate(""),
        registry.authenticate(secret + "x"),
        registry.authenticate(secret[:-1]),
        registry.authenticate("x" * 100_000),
        registry.authenticate("\udc80"),
        registry.authenticate(hash_of(secret)),
        registry.issue_token("agent-1", "wrong"),
        registry.issue_token("agent-2", secret),
        registry.issue_token("nobody", secret),
        registry.issue_token("agent-1", token),
    ]
    errors = [refusal(failure) for failure in failures]
    assert {type(error) for error in errors} == {NotAuthenticated}
    assert len({(error.message, error.rule, error.next_step) for error in errors}) == 1


def test_revocation_holds_from_the_next_request_on(registry: Registry, url: str, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    other = run(registry.create_principal("agent-2", "pricing"))
    token, _ = run(registry.issue_token("agent-1", secret))
    assert run(registry.authenticate(token)).name == "agent-1"
    # By another process, which this one hears nothing of.
    elsewhere = Database(url)
    run(Registry(elsewhere, clock).revoke_principal("agent-1"))
    elsewhere.close()
    for bearer in (secret, token):
        assert isinstance(refusal(registry.authenticate(bearer)), NotAuthenticated)
    assert run(registry.authenticate(other)).name == "agent-2"
    assert [(p.name, p.revoked_ms is not None) for p in run(registry.principals())] == [
        ("agent-1", True),
        ("agent-2", False),
    ]
    assert isinstance(refusal(registry.create_principal("agent-1", "pricing")), AlreadyExists)
    assert isinstance(refusal(registry.rotate("agent-1")), NotFound)


def test_rotation_ends_the_old_secret_and_its_tokens_after_the_grace(registry: Registry, clock: Clock) -> None:
    old = run(registry.create_principal("agent-1", "pricing"))
    token, _ = run(registry.issue_token("agent-1", old, ttl_s=3600))
    new = run(registry.rotate("agent-1", grace_s=10))
    late, _ = run(registry.issue_token("agent-1", old, ttl_s=3600))
    for bearer in (old, token, late, new):
        assert run(registry.authenticate(bearer)).name == "agent-1"
    clock.ms += 10_000
    for bearer in (old, token, late):
        assert isinstance(refusal(registry.authenticate(bearer)), NotAuthenticated)
    assert run(registry.authenticate(new)).name == "agent-1"
    run(registry.rotate("agent-1"))
    assert isinstance(refusal(registry.authenticate(new)), NotAuthenticated)


def test_a_changed_contract_is_a_new_version_and_holds_at_once(registry: Registry, clock: Clock) -> None:
    secret = run(registry.create_principal("agent-1", "pricing"))
    assert run(registry.apply_contract(load(CONTRACT, source="again"), by="somebody")) == 1
    clock.ms += 5
    assert run(registry.apply_contract(load(WIDER, source="wider"), by="ann", text=WIDER)) == 2
    assert run(registry.authenticate(secret)).contract == load(WIDER, source="wider")
    shown = run(registry.contract("pricing"))
    assert (shown.version, shown.text, shown.applied_by) == (2, WIDER, "ann")
    clock.ms += 5
    assert run(registry.revoke_contract("pricing", by="bob")) == 3
    bound = run(registry.authenticate(secret))
    assert (bound.contract.rules, bound.contract_version, bound.administrator) == ((), 3, False)
    assert isinstance(refusal(registry.contract("pricing")), NotFound)
    assert isinstance(refusal(registry.create_principal("agent-2", "pricing")), NotFound)
    start = 1_500_000_000_000
    assert [(v.version, v.applied_by, v.applied_ms - start, v.text) for v in run(registry.history("pricing"))] == [
        (1, "owner", 0, CONTRACT),
        (2, "ann", 5, WIDER),
        (3, "bob", 10, None),
    ]
    assert [(v.name, v.version) for v in run(registry.contracts())] == [("pricing", 3)]
    assert run(registry.apply_contract(load(CONTRACT, source="back"), by="ann")) == 4
    assert run(registry.authenticate(secret)).contract == load(CONTRACT, source="test")


def test_what_cannot_be_registered(registry: Registry) -> None:
    assert isinstance(refusal(registry.create_principal("no spaces", "pricing")), BadRequest)
    assert isinstance(refusal(registry.create_principal("agent-1", "unknown")), NotFound)
    assert isinstance(refusal(registry.bind("nobody", "pricing")), NotFound)
    assert isinstance(refusal(registry.apply_contract(ADMINISTRATOR, by="x")), BadRequest)
    assert isinstance(refusal(registry.apply_contract(load(WIDER, source="w"), by="x", text=CONTRACT)), BadRequest)
    run(registry.create_principal("agent-1", "pricing"))
    assert isinstance(refusal(registry.create_principal("agent-1", "pricing")), AlreadyExists)


def test_secrets_are_neither_in_the_database_files_nor_in_logs(
    tmp_path: Path, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = run(registry.create_principal("agent-1", "pricing"))
    token, _ = run(registry.issue_token("agent-1", secret))
    fresh, _ = run(registry.exchange(token))
    run(registry.authenticate(fresh))
    rotated = run(registry.rotate("agent-1"))
    wrong = refusal(registry.authenticate(secret))
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert hash_of(rotated).encode() in stored
    for bearer in (secret, token, fresh, rotated):
        assert len(bearer) >= 43
        assert bearer.encode() not in stored
        assert bearer.split("_", 1)[1].encode() not in stored
        assert bearer not in caplog.text
        assert bearer not in str(wrong)


def test_what_another_process_changes_holds_from_the_next_request_on(
    registry: Registry, url: str, clock: Clock
) -> None:
    other = Registry(Database(url), clock)
    secret = run(registry.create_principal("agent-1", "pricing"))
    for _ in range(2):
        assert run(registry.authenticate(secret)).contract_version == 1
        assert run(registry.bindings(["agent-1", "nobody"])) == {"agent-1": ("pricing", 1)}
    run(other.apply_contract(load(WIDER, source="test"), by="owner"))
    assert run(registry.authenticate(secret)).contract_version == 2
    assert run(registry.bindings(["agent-1"])) == {"agent-1": ("pricing", 2)}
    run(other.revoke_contract("pricing", by="owner"))
    assert run(registry.authenticate(secret)).contract.tables == ()
    assert run(registry.bindings(["agent-1"])) == {}
    run(other.apply_contract(load(CONTRACT, source="test"), by="owner"))
    assert run(registry.bindings(["agent-1"])) == {"agent-1": ("pricing", 4)}
    run(other.revoke_principal("agent-1"))
    assert run(registry.bindings(["agent-1"])) == {}
    refusal(registry.authenticate(secret))


def test_what_was_read_serves_until_the_registry_changes_and_a_token_not_beyond_its_end(url: str, clock: Clock) -> None:
    database = Database(url)
    registry = Registry(database, clock)
    run(registry.apply_contract(load(CONTRACT, source="test"), by="owner"))
    secret = run(registry.create_principal("agent-1", "pricing"))
    token, _ = run(registry.issue_token("agent-1", secret, ttl_s=60))
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    run(registry.authenticate(token))
    first = len(statements)
    run(registry.authenticate(token))
    assert [s for s in statements[first:] if not s.startswith("BEGIN")] == [
        "SELECT registry_changes.number \nFROM registry_changes"
    ]
    clock.ms += 60_000
    refusal(registry.authenticate(token))
    assert run(registry.authenticate(secret)).name == "agent-1"
    database.close()


def test_migrations_run_once_and_when_several_start_together(url: str, clock: Clock) -> None:
    async def open_all() -> None:
        databases = [Database(url) for _ in range(4)]
        await asyncio.gather(*(asyncio.to_thread(Registry, database, clock) for database in databases))
        for database in databases:
            database.close()

    run(open_all())
    database = Database(url)
    versions = database.run_now(lambda c: c.execute(text("SELECT version_num FROM registry_version")).scalars().all())
    database.close()
    assert versions == ["0005"]


def test_migrated_tables_are_those_that_queries_name(url: str, registry: Registry) -> None:
    database = Database(url)
    found = inspect(database.engine)
    for table in metadata.tables.values():
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in found.get_columns(table.name)}
        assert columns == {c.name: (str(c.type), c.nullable) for c in table.columns}
        assert found.get_pk_constraint(table.name)["constrained_columns"] == [c.name for c in table.primary_key.columns]
    database.close()

"""Escalations and requests on real databases: open once, for all towers, over restarts, until a person closes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.contracts.model import Operation, Retries
from icetower.database import Database
from icetower.errors import (
    BadRequest,
    CommitConflict,
    Conflict,
    ContractViolation,
    IcetowerError,
    NotFound,
    Unavailable,
)
from icetower.escalations import store
from icetower.escalations.escalations import Escalations
from icetower.escalations.sending import Channels, Encryption, MailServer, Webhook
from icetower.escalations.tickets import Decision, Kind, Wanted, mail_address, stop_of
from icetower.observe.events import Form, LineFormatter
from icetower.protocol.names import Identifier
from icetower.registry.registry import Registry
from icetower.registry.schema import metadata

TABLE, OTHER = Identifier(("a",), "t"), Identifier(("a",), "u")
CONTRACT = """\
version: 1
agent: pricing
owner: team@example.com
escalation: {after_failures: 3, within: 1m, to: Dana <dana@example.com>, webhook: oncall}
"""
NOT_OWNED = ContractViolation("not owned", rule="contract.partitions", next_step="request_partition")
STALE = CommitConflict("stale", rule="conflict.C1")
SENDER = mail_address("icetower@example.com")
assert SENDER is not None
WAYS = Channels({"oncall": Webhook("http://127.0.0.1:9/")}, MailServer("127.0.0.1", 9, Encryption.NONE, SENDER))


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_500_000_000_000

    def now_ms(self) -> int:
        return self.ms


class Side:
    """One tower's part in it: a registry and its escalations, on a database that others may share."""

    def __init__(self, url: str, clock: Clock, channels: Channels = WAYS) -> None:
        self.database = Database(url)
        self.registry = Registry(self.database, clock)
        self.escalations = Escalations(self.registry, clock, channels)
        self.secrets: dict[str, str] = {}

    async def principal(self, name: str, contract: str = CONTRACT) -> None:
        """A principal under a contract of its own."""
        await self.registry.apply_contract(
            load(contract.replace("agent: pricing", f"agent: {name}"), source="t"), by="x"
        )
        self.secrets[name] = await self.registry.create_principal(name, name)

    async def attempt(self, secret: str, table: Identifier, error: IcetowerError | None = None) -> str:
        """One commit, as the tower handles it: what it is told, as a rule; or ``landed``."""
        principal = await self.registry.authenticate(secret)
        try:
            await self.escalations.require_free(principal, table)
        except ContractViolation as stop:
            error = stop
        if error is None:
            self.escalations.succeeded(principal.name, table)
            return "landed"
        return (await self.escalations.failed(principal, table, error)).rule

    async def given_up(self, clock: Clock) -> None:
        """Nothing that was refused as stale is sent again within twice the longest wait of its contract."""
        clock.ms += 2 * Retries().max_wait_ms + 1
        await self.escalations.give_up_overdue()

    async def fail(self, secret: str, times: int, table: Identifier = TABLE) -> list[str]:
        return [await self.attempt(secret, table, NOT_OWNED) for _ in range(times)]

    async def open(self) -> Sequence[str]:
        found = await self.escalations.list(Kind.ESCALATION, principal=None, open_=True, limit=1000)
        return [ticket.id for ticket in found]

    async def close_all(self) -> None:
        for id_ in await self.open():
            await self.escalations.close_ticket(Kind.ESCALATION, id_, "ops", Decision.CLOSED, "mended")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'control.db'}"
    url = request.getfixturevalue("postgres_url")
    database = Database(url)
    for name in ("registry_version", *metadata.tables):
        database.run_now(lambda c, name=name: c.execute(text(f"DROP TABLE IF EXISTS {name} CASCADE")))
    database.close()
    return url


@pytest.fixture
def sides(url: str, clock: Clock) -> Iterator[Callable[..., Side]]:
    opened: list[Side] = []

    def side(channels: Channels = WAYS) -> Side:
        opened.append(Side(url, clock, channels))
        return opened[-1]

    yield side
    for each in opened:
        each.database.close()


def test_after_its_budget_an_agent_is_stopped_at_that_table_alone(sides: Callable[..., Side]) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        await tower.principal("b")
        a, b = tower.secrets["a"], tower.secrets["b"]
        assert await tower.fail(a, 2) == ["contract.partitions"] * 2
        assert await tower.attempt(a, TABLE) == "landed"
        assert await tower.fail(a, 5) == ["contract.partitions"] * 3 + ["contract.escalated"] * 2
        assert await tower.attempt(a, TABLE) == "contract.escalated"
        assert await tower.attempt(a, OTHER) == "landed"
        assert await tower.fail(b, 2) == ["contract.partitions"] * 2
        assert await tower.attempt(b, TABLE) == "landed"
        assert len(await tower.open()) == 1

    asyncio.run(work())


def test_the_stop_says_who_and_why_and_names_the_way_out(sides: Callable[..., Side], clock: Clock) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        secret = tower.secrets["a"]
        await tower.attempt(secret, TABLE, STALE)
        await tower.given_up(clock)
        await tower.fail(secret, 2)
        principal = await tower.registry.authenticate(secret)
        with pytest.raises(ContractViolation) as caught:
            await tower.escalations.require_free(principal, TABLE)
        stop = caught.value
        (id_,) = await tower.open()
        assert (stop.rule, stop.next_step, stop.escalated_to) == (
            "contract.escalated",
            "escalated_to",
            "Dana <dana@example.com>",
        )
        for said in ("a is stopped at a.t", "contract.partitions (2), conflict.C1", id_, "Dana"):
            assert said in stop.message
        ticket = await tower.escalations.find(Kind.ESCALATION, id_, "a")
        assert [failure["rule"] for failure in ticket.details["failures"]] == [
            "conflict.C1",
            "contract.partitions",
            "contract.partitions",
        ]
        assert [(each.channel, each.address, each.state) for each in ticket.deliveries] == [
            ("webhook", "oncall", "waiting"),
            ("mail", "Dana <dana@example.com>", "waiting"),
        ]

    asyncio.run(work())


def test_closing_frees_the_agent_and_its_budget_begins_anew(sides: Callable[..., Side], clock: Clock) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        secret = tower.secrets["a"]
        await tower.fail(secret, 3)
        (id_,) = await tower.open()
        clock.ms += 1
        closed = await tower.escalations.close_ticket(Kind.ESCALATION, id_, "ops", Decision.CLOSED, "mended")
        assert closed.closing is not None
        assert (closed.closing.by, closed.closing.note, closed.closing.at_ms) == ("ops", "mended", clock.ms)
        assert {(each.state, each.fault) for each in closed.deliveries} == {("given up", store.CLOSED_FIRST)}
        assert await tower.attempt(secret, TABLE) == "landed"
        clock.ms += 1
        assert await tower.fail(secret, 4) == ["contract.partitions"] * 3 + ["contract.escalated"]
        with pytest.raises(Conflict, match="by ops: mended"):
            await tower.escalations.close_ticket(Kind.ESCALATION, id_, "else", Decision.CLOSED, "again")
        with pytest.raises(NotFound):
            await tower.escalations.close_ticket(Kind.REQUEST, id_, "ops", Decision.GRANTED, "no request")
        with pytest.raises(BadRequest, match="closed"):
            await tower.escalations.close_ticket(Kind.ESCALATION, id_, "ops", Decision.GRANTED, "no request")
        with pytest.raises(NotFound):
            await tower.escalations.find(Kind.ESCALATION, id_, "b")

    asyncio.run(work())


def test_two_towers_hear_of_what_the_other_opens_and_closes(sides: Callable[..., Side], clock: Clock) -> None:
    async def work() -> None:
        here, there = sides(), sides()
        await here.principal("a")
        secret = here.secrets["a"]
        assert await there.attempt(secret, TABLE) == "landed"
        await here.fail(secret, 3)
        assert await there.attempt(secret, TABLE) == "contract.escalated"
        clock.ms += 1
        await there.close_all()
        assert await here.attempt(secret, TABLE) == "landed"
        assert await there.attempt(secret, TABLE) == "landed"

    asyncio.run(work())


def test_failures_before_a_closing_elsewhere_do_not_count_again(sides: Callable[..., Side], clock: Clock) -> None:
    """A tower that had counted two of three opens nothing by one more, once a person has closed it elsewhere."""

    async def work() -> None:
        here, there = sides(), sides()
        await here.principal("a")
        secret = here.secrets["a"]
        await there.fail(secret, 2)
        await here.fail(secret, 3)
        clock.ms += 1
        await here.close_all()
        clock.ms += 1
        assert await there.fail(secret, 1) == ["contract.partitions"]
        assert await there.attempt(secret, TABLE, STALE) == "conflict.C1"
        await there.given_up(clock)
        assert await there.open() == []
        assert await there.fail(secret, 2) == ["contract.partitions", "contract.escalated"]

    asyncio.run(work())


def test_a9_a_clients_own_retries_stop_nobody_and_giving_up_does(sides: Callable[..., Side], clock: Clock) -> None:
    """Trap A9: what a client sends again within its attempts is one piece of work, not as many failures."""

    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        principal = await tower.registry.authenticate(tower.secrets["a"])
        escalations = tower.escalations
        for name in range(4):  # four commits, each refused five times, as PyIceberg's four retries are; three land
            for _ in range(5):
                assert await escalations.failed(principal, TABLE, STALE, work=name) is STALE
                clock.ms += 100
            if name < 3:
                escalations.succeeded("a", TABLE)
        await tower.given_up(clock)
        assert await tower.open() == []
        # The fourth was given up, which is one failure of three.
        await tower.fail(tower.secrets["a"], 1)
        assert await tower.open() == []
        assert await escalations.failed(principal, TABLE, STALE, work="fifth") is STALE
        assert await tower.open() == []
        await tower.given_up(clock)
        assert len(await tower.open()) == 1

    asyncio.run(work())


def test_a9_the_tries_of_one_commit_that_a_quota_refuses_are_one_failure(
    sides: Callable[..., Side], clock: Clock
) -> None:
    """Iceberg's clients retry any 409 at once; one that heeds `wait_until_ms` comes later, and has not given up."""

    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        principal = await tower.registry.authenticate(tower.secrets["a"])
        free_ms = clock.ms + 50_000
        quota = CommitConflict("used up", rule="contract.quota", next_step="wait_until", wait_until_ms=free_ms)
        for _ in range(5):
            await tower.escalations.failed(principal, TABLE, quota, work="one")
        await tower.given_up(clock)
        await tower.fail(tower.secrets["a"], 2)
        assert await tower.open() == []  # it is not expected before there is a place
        clock.ms = free_ms
        await tower.given_up(clock)
        assert len(await tower.open()) == 1

    asyncio.run(work())


def test_a9_more_tries_than_the_contract_allows_are_a_failure(sides: Callable[..., Side], clock: Clock) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a", CONTRACT + "retries: {attempts: 1}\n")
        principal = await tower.registry.authenticate(tower.secrets["a"])
        for sends in range(1, 10):  # sent twice: within its attempts; each third time is over them
            await tower.escalations.failed(principal, TABLE, STALE, work="one")
            clock.ms += 100
            assert len(await tower.open()) == sends // 9

    asyncio.run(work())


def test_a9_what_is_overdue_is_looked_for_without_another_request(
    sides: Callable[..., Side], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that gives up and says no more is a person's business as well."""

    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        principal = await tower.registry.authenticate(tower.secrets["a"])

        async def sleep(seconds: float) -> None:
            clock.ms += round(seconds * 1000)
            await asyncio.sleep(0)

        monkeypatch.setattr(clock, "sleep", sleep)
        opened = asyncio.Event()
        monkeypatch.setattr(tower.escalations._notifier, "wake", opened.set)
        for name in range(3):
            await tower.escalations.failed(principal, TABLE, STALE, work=name)
        await asyncio.wait_for(opened.wait(), 30)
        assert len(await tower.open()) == 1

    asyncio.run(work())


def test_a_restart_keeps_what_is_open_and_loses_what_was_counted(sides: Callable[..., Side]) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        secret = tower.secrets["a"]
        await tower.fail(secret, 3, TABLE)
        await tower.fail(secret, 2, OTHER)
        again = sides()
        assert await again.attempt(secret, TABLE) == "contract.escalated"
        assert await again.fail(secret, 2, OTHER) == ["contract.partitions"] * 2
        assert await again.attempt(secret, OTHER) == "landed"

    asyncio.run(work())


def test_of_failures_at_the_same_moment_one_opens(sides: Callable[..., Side], caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        towers = [sides() for _ in range(3)]
        await towers[0].principal("a")
        secret = towers[0].secrets["a"]
        told = await asyncio.gather(*(tower.attempt(secret, TABLE, NOT_OWNED) for tower in towers for _ in range(20)))
        assert set(told) <= {"contract.partitions", "contract.escalated"}
        assert len(await towers[0].open()) == 1
        for tower in towers:
            assert await tower.attempt(secret, TABLE) == "contract.escalated"

    with caplog.at_level(logging.WARNING, "icetower"):
        asyncio.run(work())
    (opened,) = caplog.records  # the others found it open, and failed at nothing
    line = LineFormatter(Form.LOGFMT).format(opened)
    assert " event=escalation id=" in line
    assert " principal=a contract=a table=a.t " in line


def test_the_database_itself_allows_one_open_matter_of_a_subject(sides: Callable[..., Side]) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        await tower.fail(tower.secrets["a"], 3)
        columns = "kind, subject, principal, contract, target, contact, details, opened_ms"
        twice = text(f"INSERT INTO registry_matters (id, {columns}) SELECT 'twice', {columns} FROM registry_matters")
        with pytest.raises(IntegrityError):
            await tower.database.run(lambda connection: connection.execute(twice), write=True)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (CONTRACT + "description: changed\n", "contract.escalated"),
        (CONTRACT.replace("after_failures: 3", "after_failures: 9"), "contract.escalated"),
        ("version: 1\nagent: pricing\n", "contract.escalated"),  # without the clause
        (CONTRACT + "mode: shadow\n", "landed"),  # it admits everything
    ],
)
def test_a_change_of_the_contract_closes_nothing(sides: Callable[..., Side], then: str, told: str) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("pricing")
        secret = tower.secrets["pricing"]
        await tower.fail(secret, 3)
        await tower.registry.apply_contract(load(then, source="t"), by="x")
        assert await tower.attempt(secret, TABLE) == told
        await tower.registry.revoke_contract("pricing", by="x")
        await tower.registry.apply_contract(load(CONTRACT, source="t"), by="x")
        assert await tower.attempt(secret, TABLE) == "contract.escalated"

    asyncio.run(work())


def test_nobody_is_counted_without_the_clause_in_shadow_mode_or_as_an_administrator(
    sides: Callable[..., Side],
) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a", "version: 1\nagent: pricing\n")
        await tower.principal("b", CONTRACT + "mode: shadow\n")
        tower.secrets["c"] = await tower.registry.create_principal("c", "administrator")
        for name in "abc":
            assert await tower.fail(tower.secrets[name], 9) == ["contract.partitions"] * 9
        assert await tower.open() == []

    asyncio.run(work())


def test_what_is_not_the_agents_failure_is_told_as_it_is_also_to_a_stopped_one(sides: Callable[..., Side]) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        secret = tower.secrets["a"]
        away = Unavailable("away", rule="upstream.storage")
        principal = await tower.registry.authenticate(secret)
        for _ in range(9):
            assert await tower.escalations.failed(principal, TABLE, away) is away
        await tower.fail(secret, 3)
        assert await tower.escalations.failed(principal, TABLE, away) is away
        # Whoever was under way when it came to it is told of it, with whatever else it fails.
        assert (await tower.escalations.failed(principal, TABLE, STALE)).rule == "contract.escalated"

    asyncio.run(work())


def test_where_the_registry_is_away_the_refusal_stands_and_the_next_failure_opens(
    sides: Callable[..., Side], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        secret = tower.secrets["a"]
        escalate = store.Store.escalate

        async def away(*_: object) -> bool:
            raise Unavailable("the registry is away")

        monkeypatch.setattr(store.Store, "escalate", away)
        with caplog.at_level(logging.WARNING, "icetower"):
            assert await tower.fail(secret, 4) == ["contract.partitions"] * 4
        assert "no escalation of a at a.t: the registry is away" in caplog.text
        monkeypatch.setattr(store.Store, "escalate", escalate)
        assert await tower.fail(secret, 2) == ["contract.partitions", "contract.escalated"]

    asyncio.run(work())


def test_one_principal_has_only_so_many_open(
    sides: Callable[..., Side], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "OPEN_MAX", {Kind.ESCALATION: 2, Kind.REQUEST: 2})

    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        await tower.principal("b")
        for position in range(4):
            await tower.fail(tower.secrets["a"], 4, Identifier(("a",), f"t{position}"))
        await tower.fail(tower.secrets["b"], 3)
        assert len(await tower.open()) == 3
        assert "a has 2 open escalations" in caplog.text

    with caplog.at_level(logging.WARNING, "icetower"):
        asyncio.run(work())


def test_closed_matters_make_room_oldest_first(
    sides: Callable[..., Side], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CLOSED_MAX", 2)

    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        for position in range(5):
            await tower.fail(tower.secrets["a"], 3, Identifier(("a",), f"t{position}"))
            clock.ms += 1
            await tower.close_all()
            clock.ms += 1
        await tower.fail(tower.secrets["a"], 3)
        found = await tower.escalations.list(Kind.ESCALATION, principal="a", open_=None, limit=10)
        assert [ticket.table for ticket in found] == ["a.t", "a.t4", "a.t3"]
        closed = await tower.escalations.list(Kind.ESCALATION, principal=None, open_=False, limit=1)
        assert [ticket.table for ticket in closed] == ["a.t4"]

    asyncio.run(work())


def test_a_table_with_a_strange_name_is_stopped_like_any_other(sides: Callable[..., Side]) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        strange = Identifier(("a",), "t\x00\r\n\ud800")
        assert await tower.fail(tower.secrets["a"], 4, strange) == ["contract.partitions"] * 3 + ["contract.escalated"]
        (found,) = await tower.escalations.list(Kind.ESCALATION, principal="a", open_=True, limit=10)
        assert found.table == "a.t ?"
        assert found.subject == stop_of("a", strange)

    asyncio.run(work())


# -- who is told ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "webhook", "told"),
    [
        (WAYS, True, [("webhook", "waiting"), ("mail", "waiting")]),
        (WAYS, False, [("mail", "waiting")]),
        (Channels(WAYS.webhooks), True, [("webhook", "waiting")]),
        (Channels(), True, [("webhook", "waiting")]),  # the settings may have it again after a restart
        (Channels(), False, [("mail", "given up")]),
    ],
)
def test_who_is_told(
    sides: Callable[..., Side], channels: Channels, webhook: bool, told: list[tuple[str, str]]
) -> None:
    async def work() -> None:
        tower = sides(channels)
        await tower.principal("a", CONTRACT if webhook else CONTRACT.replace(", webhook: oncall", ""))
        await tower.fail(tower.secrets["a"], 3)
        (found,) = await tower.escalations.list(Kind.ESCALATION, principal=None, open_=True, limit=10)
        assert [(each.channel, each.state) for each in found.deliveries] == told

    asyncio.run(work())


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_is_open_once_and_answered_once(sides: Callable[..., Side], clock: Clock) -> None:
    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        agent = await tower.registry.authenticate(tower.secrets["a"])
        wish = Wanted(TABLE, ("day=1",), (Operation.APPEND,), "early")
        first, new = await tower.escalations.ask(agent, wish)
        assert (new, first.contact, first.kind) == (True, "team@example.com", Kind.REQUEST)
        assert [(each.channel, each.address) for each in first.deliveries] == [
            ("webhook", "oncall"),
            ("mail", "team@example.com"),
        ]
        again, new = await tower.escalations.ask(agent, Wanted(TABLE, ("day=1",), (Operation.APPEND,), "please"))
        assert (again, new) == (first, False)
        with pytest.raises(BadRequest, match="denied or granted"):
            await tower.escalations.close_ticket(Kind.REQUEST, first.id, "ops", Decision.CLOSED, "?")
        done = await tower.escalations.close_ticket(Kind.REQUEST, first.id, "ops", Decision.DENIED, "not yours")
        assert done.to_json()["state"] == "denied"
        assert (await tower.escalations.find(Kind.REQUEST, first.id, "a")).to_json()["note"] == "not yours"
        clock.ms += 1
        assert (await tower.escalations.ask(agent, wish))[1]
        # It stops nobody.
        assert await tower.attempt(tower.secrets["a"], TABLE) == "landed"

    asyncio.run(work())


def test_requests_have_a_quota_for_each_principal(
    sides: Callable[..., Side], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "OPEN_MAX", {Kind.ESCALATION: 2, Kind.REQUEST: 2})
    monkeypatch.setattr(store, "REQUESTS_A_DAY_MAX", 3)

    async def work() -> None:
        tower = sides()
        await tower.principal("a")
        await tower.principal("b")
        agents = [await tower.registry.authenticate(tower.secrets[name]) for name in "ab"]

        def wish(day: int) -> Wanted:
            return Wanted(TABLE, (f"day={day}",), (Operation.APPEND,), "early")

        for day in (1, 2):
            await tower.escalations.ask(agents[0], wish(day))
        with pytest.raises(Conflict, match="2 open requests") as caught:
            await tower.escalations.ask(agents[0], wish(3))
        assert caught.value.rule == "request.quota"
        await tower.escalations.ask(agents[1], wish(3))
        for ticket in await tower.escalations.list(Kind.REQUEST, principal="a", open_=True, limit=10):
            await tower.escalations.close_ticket(Kind.REQUEST, ticket.id, "ops", Decision.GRANTED, "yes")
        await tower.escalations.ask(agents[0], wish(3))
        with pytest.raises(Conflict, match="3 requests within a day"):
            await tower.escalations.ask(agents[0], wish(4))
        clock.ms += store.DAY_MS
        await tower.escalations.ask(agents[0], wish(4))

    asyncio.run(work())

"""Alerts in the database: from attempts to a notification, once for all towers. SQLite, and PostgreSQL (full)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from email.headerregistry import Address
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from icetower.alerts.alerts import Alerts, Recipients
from icetower.alerts.rules import DEFAULTS, State
from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.errors import NotFound
from icetower.escalations.escalations import Escalations
from icetower.escalations.messages import mail, webhook_body
from icetower.escalations.sending import Channels, Webhook
from icetower.escalations.store import Store
from icetower.escalations.tickets import Delivery, Ticket
from icetower.ledger.ledger import Attempt, Batch, Ledger, Outcome
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import BYPASS, ORPHANS, WAL_LAG, Report
from icetower.ledger.schema import metadata as ledger_metadata
from icetower.registry.registry import Registry
from icetower.registry.schema import metadata as registry_metadata

T = TypeVar("T")
START = 1_700_000_000_000


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.ms = START

    def now_ms(self) -> int:
        return self.ms


class World:
    """Two towers on one control database."""

    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.free = 10**12
        self.registry = Registry(database, self.clock)
        self.ledger = Ledger(database, self.clock)
        self.measures = Measures(database)
        self.store = Store(self.registry)
        self.towers = [self._tower(database) for _ in range(2)]

    def _tower(self, database: Database) -> Alerts:
        registry = Registry(database, self.clock)
        channels = Channels({"ops": Webhook("http://127.0.0.1:9/")})
        escalations = Escalations(registry, self.clock, channels)
        recipients = Recipients("ops", "oncall@example.com")
        return Alerts(
            registry, Measures(database), escalations, self.clock, DEFAULTS, recipients, name="t", free_bytes=self._free
        )

    def _free(self) -> int:
        return self.free

    def wrote(self, outcome: Outcome, count: int, principal: str = "agent-1") -> None:
        one = Attempt(principal, "ns.t", "append", outcome, partitions=("day=1",), at_ms=self.clock.ms, latency_ms=5)
        run(self.ledger.write(Batch(attempts=[one] * count)))

    def look(self) -> None:
        """Both towers at once."""

        async def both() -> None:
            await asyncio.gather(*(tower.look() for tower in self.towers))

        run(both())

    def states(self, principal: str | None = None) -> dict[str, str]:
        shown = [run(tower.shown(principal)) for tower in self.towers]
        assert shown[0] == shown[1]
        return {each["rule"]: each["state"] for each in shown[0]}

    def due(self) -> list[tuple[Ticket, Delivery]]:
        """What is sent now, taken as a notifier takes it."""
        return run(self.store.claim(self.clock.ms, self.clock.ms + 60_000, 99))[0]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    sqlite = request.param == "sqlite"
    database = Database(f"sqlite:///{tmp_path / 'control.db'}" if sqlite else request.getfixturevalue("postgres_url"))
    if not sqlite:
        tables = (*ledger_metadata.tables, *registry_metadata.tables, "ledger_version", "registry_version")
        for name in tables:
            database.run_now(lambda c, name=name: c.execute(text(f"DROP TABLE IF EXISTS {name} CASCADE")))
    yield World(database)
    database.close()


def test_two_towers_tell_people_once_and_the_alert_ends_by_itself(world: World) -> None:
    world.wrote(Outcome.DIRECT, 10)
    world.wrote(Outcome.CONFLICT, 5)
    world.look()
    world.look()
    assert world.states() == {"retry-rate": "firing"}
    (alert,) = run(world.towers[0].shown(None))
    assert alert["about"] == {"principal": "agent-1", "table": "ns.t"}
    assert (alert["value"], alert["threshold"], alert["partitions"]) == (0.5, 0.1, ["day=1"])
    ((ticket, delivery),) = world.due()
    assert (delivery.address, ticket.id) == ("ops", alert["ticket"])
    assert "day=1" in ticket.title
    world.clock.ms += 15 * 60_000
    world.look()
    assert world.states() == {"retry-rate": "resolved"}
    assert world.due() == []  # what has not arrived by now says nothing any more
    world.wrote(Outcome.DIRECT, 10)
    world.wrote(Outcome.CONFLICT, 5)
    world.look()
    assert len(world.due()) == 1


def test_who_heard_that_it_fires_hears_that_it_has_ended(world: World) -> None:
    world.wrote(Outcome.DIRECT, 10)
    world.wrote(Outcome.CONFLICT, 5)
    world.look()
    ((opened, delivery),) = world.due()
    arrived = replace(delivery, next_ms=None, delivered_ms=world.clock.ms)
    run(world.store.settle(opened, arrived))
    world.clock.ms += 15 * 60_000
    world.look()
    ((ended, again),) = world.due()
    assert (ended.id, again.address, again.attempts) == (opened.id, "ops", 2)
    events = [(body["event"], body["id"]) for body in (json.loads(webhook_body(each)) for each in (opened, ended))]
    assert events == [("alert.opened", opened.id), ("alert.resolved", opened.id)]
    body = json.loads(webhook_body(ended))
    assert (body["closed_ms"], body["rule"]) == (world.clock.ms, "retry-rate")
    to = Address("oncall", "oncall", "example.com")
    first, second = (mail(each, to, to, world.clock.ms) for each in (opened, ended))
    assert first["Message-ID"] != second["Message-ID"]
    assert "ended: retry-rate" in second["Subject"]
    assert "the value is back" in second.get_content()
    run(world.store.settle(ended, replace(again, next_ms=None, delivered_ms=world.clock.ms)))
    world.look()
    assert world.due() == []


def test_a_silenced_alert_is_told_when_the_silence_is_over(world: World) -> None:
    world.wrote(Outcome.CONFLICT, 20)
    first, second = world.towers
    run(first.silence("rule:retry-rate", 60.0, "admin", "we know"))
    world.look()
    assert world.states() == {"retry-rate": State.SILENCED.value}
    assert world.due() == []
    (alert,) = run(second.shown(None))
    assert (alert["silenced_by"], alert["silence_reason"]) == ("admin", "we know")
    world.clock.ms += 60_001
    world.look()
    assert world.states() == {"retry-rate": "firing"}
    assert len(world.due()) == 1
    run(second.silence(alert["id"], 60.0, "admin", "again"))
    assert world.states() == {"retry-rate": State.SILENCED.value}
    assert run(first.speak(alert["id"]))
    assert not run(first.speak(alert["id"]))
    for unknown in ("0" * 32, "rule:none"):
        with pytest.raises(NotFound):
            run(first.silence(unknown, 60.0, "admin", "?"))


def test_what_is_reported_and_noticed_fires_too_and_agents_see_their_own(world: World) -> None:
    now = world.clock.ms
    run(world.measures.report([Report(ORPHANS, "ns.t", "a", 900, now), Report(ORPHANS, "ns.t", "b", 200, now)]))
    run(world.measures.report([Report(WAL_LAG, "ns.t", "", 899, now)]))
    run(world.measures.note([Report(BYPASS, "ns.t", "7", 1, now, {"partitions": ["day=9"]})]))
    world.free = 10**8
    world.look()
    assert world.states() == {"orphaned-files": "firing", "bypass": "firing", "disk": "firing"}
    world.clock.ms += 2_000  # a job that says nothing more falls behind
    world.look()
    assert world.states()["wal-lag"] == "firing"
    assert world.states("agent-1") == {}
    world.clock.ms += 3600_000
    world.free = 10**12
    run(world.measures.report([Report(ORPHANS, "ns.t", "", 0, world.clock.ms)], instead_of={"ns.t"}))
    world.look()
    assert {name: state for name, state in world.states().items() if state == "firing"} == {"wal-lag": "firing"}


def test_few_attempts_say_nothing(world: World) -> None:
    world.wrote(Outcome.CONFLICT, 9)
    world.look()
    assert world.states() == {}


def test_a_mail_names_the_partitions_and_what_to_do(world: World) -> None:
    world.wrote(Outcome.CONFLICT, 20)
    world.look()
    ((ticket, _),) = world.due()
    sent = mail(ticket, Address("Icetower", "icetower", "example.com"), Address("", "oncall", "example.com"), START)
    text = sent.get_content()
    assert sent["Subject"].startswith("[icetower] retry-rate: agent_write_retry_rate of agent-1 at ns.t is 20")
    for said in ("partitions day=1\n", "docs/patterns.md", "/icetower/v1/alerts/silence", ticket.details["alert"]):
        assert said in text

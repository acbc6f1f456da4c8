"""What is sent again, by whom and how often: receivers that are down, slow or broken, restarts, two towers, no end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.escalations import notifier
from icetower.escalations.failures import Failure
from icetower.escalations.notifier import CLAIM_MS, Notifier, wait_s
from icetower.escalations.sending import Channels, Encryption, MailServer, Sender, Webhook
from icetower.escalations.store import CLOSED_FIRST, Store
from icetower.escalations.tickets import Channel, Closing, Decision, Delivery, Kind, Ticket, mail_address
from icetower.registry.registry import Registry
from tests.wire.receivers import hook, mail_server

SENDER = mail_address("icetower@example.com")
assert SENDER is not None
DANA = "Dana <dana@example.com>"


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_500_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def uniform(self) -> float:
        return 0.0


class Watched(Store):
    """Tells when it is known what became of an attempt."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.settled: asyncio.Queue[Delivery] = asyncio.Queue()

    async def settle(self, ticket: Ticket, delivery: Delivery) -> None:
        await super().settle(ticket, delivery)
        self.settled.put_nowait(delivery)


class Tower:
    """What sends, and the database that it sends from."""

    def __init__(self, database: Database, clock: Clock, channels: Channels) -> None:
        self.clock = clock
        self.store = Watched(Registry(database, clock))
        self.notifier = Notifier(self.store, Sender(channels, clock), clock)

    async def __aenter__(self) -> Tower:
        self.notifier.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.notifier.close()

    async def open(self, *addresses: str, name: str = "a") -> Ticket:
        """An escalation of which word is to be sent: to mail addresses, and to webhooks by name."""
        now_ms = self.clock.now_ms()
        ticket = Ticket(
            id=self.clock.uuid7(),
            kind=Kind.ESCALATION,
            subject=name * 64,
            principal=name,
            contract=name,
            table="a.t",
            contact=DANA,
            details={"after_failures": 1, "within_s": 1.0, "failures": [{"at_ms": 1, "rule": "conflict.C1"}]},
            opened_ms=now_ms,
            deliveries=tuple(
                Delivery(Channel.MAIL if "@" in address else Channel.WEBHOOK, address, next_ms=now_ms)
                for address in addresses
            ),
        )
        assert await self.store.escalate(ticket, [Failure(now_ms, "conflict.C1")])
        self.notifier.wake()
        return ticket

    async def sent(self, ticket: Ticket) -> list[tuple[str, int, str | None]]:
        found = await self.store.find(Kind.ESCALATION, ticket.id)
        return [(each.state, each.attempts, each.fault) for each in found.deliveries]


def by_hook(url: str) -> Channels:
    return Channels({"oncall": Webhook(url)})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tower(tmp_path: Path, clock: Clock) -> Iterator[Callable[[Channels], Tower]]:
    """Towers on one database, each with a connection of its own."""
    databases: list[Database] = []

    def make(channels: Channels) -> Tower:
        databases.append(Database(f"sqlite:///{tmp_path / 'control.db'}"))
        return Tower(databases[-1], clock, channels)

    yield make
    for database in databases:
        database.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("attempts", "chance", "seconds"),
    [(1, 0.0, 1), (2, 0.0, 2), (3, 0.0, 4), (10, 0.0, 512), (11, 0.0, 900), (10_000, 0.0, 900), (3, 0.5, 3)],
)
def test_the_wait_doubles_up_to_a_quarter_of_an_hour(attempts: int, chance: float, seconds: float) -> None:
    assert wait_s(attempts, chance) == seconds


def test_the_budget_lasts_for_hours() -> None:
    hours = sum(wait_s(attempt, 0.5) for attempt in range(1, notifier.ATTEMPTS_MAX)) / 3600
    assert 2 < hours < 4


def test_it_is_sent_again_until_it_arrives(tower: Callable[[Channels], Tower], clock: Clock) -> None:
    async def work() -> None:
        with hook([500, 302]) as receiver:
            async with tower(by_hook(receiver.url)) as sending:
                ticket = await sending.open("oncall")
                first = await sending.store.settled.get()
                assert (first.fault, first.next_ms) == ("HTTP status 500", clock.ms + 1_000)
                clock.ms += 1_000
                sending.notifier.wake()
                second = await sending.store.settled.get()
                assert (second.fault, second.next_ms) == (
                    "HTTP status 302: redirects are not followed",
                    clock.ms + 2_000,
                )
                clock.ms += 1_999
                assert await sending.store.claim(clock.ms, clock.ms + 1, 1) == ([], clock.ms + 1)
                clock.ms += 1
                sending.notifier.wake()
                third = await sending.store.settled.get()
                assert (third.attempts, third.delivered_ms, third.next_ms) == (3, clock.ms, None)
                assert await sending.sent(ticket) == [("delivered", 3, None)]
            assert [receiver.next().json["id"] for _ in range(3)] == [ticket.id] * 3
            assert receiver.posts.empty()

    run(work)


def test_it_is_given_up_at_last_and_shows_it(
    tower: Callable[[Channels], Tower], clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifier, "ATTEMPTS_MAX", 3)

    async def work() -> None:
        with hook([500] * 9) as receiver:
            async with tower(by_hook(receiver.url)) as sending:
                ticket = await sending.open("oncall")
                for _ in range(3):
                    await sending.store.settled.get()
                    clock.ms += 3_600_000
                    sending.notifier.wake()
                assert await sending.sent(ticket) == [("given up", 3, "HTTP status 500")]
                assert await sending.store.claim(clock.ms, clock.ms + 1, 4) == ([], None)
            assert receiver.posts.qsize() == 3

    with caplog.at_level(logging.WARNING, "icetower"):
        run(work)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert "given up after 3 attempts" in caplog.text
    assert "hook?team" not in caplog.text


def test_a_restart_goes_on_where_the_last_one_stopped(tower: Callable[[Channels], Tower], clock: Clock) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            nobody = listener.getsockname()[1]
        async with tower(by_hook(f"http://127.0.0.1:{nobody}/")) as sending:
            ticket = await sending.open("oncall")
            assert (await sending.store.settled.get()).fault == "ConnectionRefusedError"
        clock.ms += 1_000
        with hook() as receiver:
            async with tower(by_hook(receiver.url)) as again:
                await again.store.settled.get()
                assert await again.sent(ticket) == [("delivered", 2, None)]

    run(work)


def test_a_tower_that_stops_while_it_sends_leaves_it_to_the_next(
    tower: Callable[[Channels], Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "GRACE_S", 0.0)

    async def work() -> None:
        with hook([None]) as receiver:
            async with tower(by_hook(receiver.url)) as sending:
                ticket = await sending.open("oncall")
                await asyncio.to_thread(receiver.next)
            assert await sending.sent(ticket) == [("waiting", 1, notifier.STOPPED)]
            async with tower(by_hook(receiver.url)) as again:
                await again.store.settled.get()
                assert await again.sent(ticket) == [("delivered", 2, None)]

    run(work)


def test_what_a_tower_died_over_is_taken_over_when_its_time_is_up(
    tower: Callable[[Channels], Tower], clock: Clock
) -> None:
    async def work() -> None:
        with hook([None]) as receiver:
            dead = tower(Channels())
            ticket = await dead.open("oncall")
            ((_, delivery),), _ = await dead.store.claim(clock.ms, clock.ms + CLAIM_MS, 1)
            async with tower(by_hook(receiver.url)) as living:
                clock.ms += CLAIM_MS - 1
                assert await living.store.claim(clock.ms, clock.ms + 1, 1) == ([], clock.ms + 1)
                clock.ms += 1
                living.notifier.wake()
                await asyncio.to_thread(receiver.next)
                # The dead one comes back to life, and what it has to say counts no more.
                await dead.store.settle(ticket, replace(delivery, fault="late", next_ms=clock.ms))
                assert await living.sent(ticket) == [("waiting", 2, None)]
                receiver.released.set()
                await living.store.settled.get()
                assert await living.sent(ticket) == [("delivered", 2, None)]

    run(work)


def test_two_towers_send_each_message_once(tower: Callable[[Channels], Tower]) -> None:
    async def work() -> None:
        with hook() as receiver:
            async with tower(by_hook(receiver.url)) as here, tower(by_hook(receiver.url)) as there:
                for name in "abcdefghijkl":
                    await here.open("oncall", name=name)
                    there.notifier.wake()
                posts = await asyncio.to_thread(lambda: [receiver.next() for _ in range(12)])
            assert len({post.json["id"] for post in posts}) == 12
            assert receiver.posts.empty()

    run(work)


def test_a_receiver_that_does_not_answer_holds_up_no_other(tower: Callable[[Channels], Tower]) -> None:
    async def work() -> None:
        with hook([None]) as receiver, mail_server(["451 later"]) as post_office:
            assert SENDER is not None
            channels = Channels(
                {"oncall": Webhook(receiver.url)},
                MailServer("127.0.0.1", post_office.port, Encryption.NONE, SENDER),
            )
            async with tower(channels) as sending:
                ticket = await sending.open("oncall")
                await asyncio.to_thread(receiver.next)
                other = await sending.open(DANA, name="b")
                assert (await sending.store.settled.get()).fault == "SMTPDataError: SMTP status 451"
                sending.clock.ms += 1_000
                sending.notifier.wake()
                assert (await sending.store.settled.get()).channel is Channel.MAIL
                assert await sending.sent(other) == [("delivered", 2, None)]
                receiver.released.set()
                await sending.store.settled.get()
                assert await sending.sent(ticket) == [("delivered", 1, None)]

    run(work)


def test_what_is_closed_is_not_sent_any_more(tower: Callable[[Channels], Tower], clock: Clock) -> None:
    async def work() -> None:
        with hook([500]) as receiver:
            async with tower(by_hook(receiver.url)) as sending:
                ticket = await sending.open("oncall")
                await sending.store.settled.get()
                closing = Closing(clock.ms, "ops", Decision.CLOSED, "mended")
                await sending.store.close(Kind.ESCALATION, ticket.id, closing)
                clock.ms += 3_600_000
                assert await sending.store.claim(clock.ms, clock.ms + 1, 4) == ([], None)
                assert await sending.sent(ticket) == [("given up", 1, CLOSED_FIRST)]

    run(work)


def test_a_failure_that_is_settled_after_the_closing_revives_nothing(
    tower: Callable[[Channels], Tower], clock: Clock
) -> None:
    async def work() -> None:
        with hook([None]) as receiver:
            receiver.answers = [None]
            async with tower(by_hook(receiver.url)) as sending:
                ticket = await sending.open("oncall")
                await asyncio.to_thread(receiver.next)
                closing = Closing(clock.ms, "ops", Decision.CLOSED, "mended")
                await sending.store.close(Kind.ESCALATION, ticket.id, closing)
                failed = Delivery(Channel.WEBHOOK, "oncall", 1, clock.ms, None, "HTTP status 500")
                await sending.store.settle(ticket, failed)
                assert await sending.sent(ticket) == [("given up", 1, CLOSED_FIRST)]
                receiver.released.set()
                assert (await sending.store.settled.get()) == failed
                await sending.store.settled.get()
                assert await sending.sent(ticket) == [("delivered", 1, None)]

    run(work)


def test_the_loop_goes_on_where_the_database_fails(
    tower: Callable[[Channels], Tower], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim = Store.claim
    failed = asyncio.Event()

    async def fails_once(self: Store, now_ms: int, until_ms: int, count: int) -> object:
        if not failed.is_set():
            failed.set()
            raise OSError("the disk")
        return await claim(self, now_ms, until_ms, count)

    monkeypatch.setattr(Store, "claim", fails_once)

    async def work() -> None:
        with hook() as receiver:
            async with tower(by_hook(receiver.url)) as sending:
                await failed.wait()
                await sending.open("oncall")
                await sending.store.settled.get()

    run(work)
    assert "could not be read" in caplog.text

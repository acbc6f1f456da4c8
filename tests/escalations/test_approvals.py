"""What a guard has refused is asked of a person, and goes through once when it was granted, on every tower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from icetower.admission.guards import Excess
from icetower.errors import ContractViolation
from icetower.escalations.approvals import APPROVED_FOR_MS, Approvals, DryApprovals, Meant, Standing, standing, work_of
from icetower.escalations.messages import mail, webhook_body
from icetower.escalations.store import OPEN_MAX
from icetower.escalations.tickets import Closing, Decision, Kind, Ticket
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from tests.escalations.test_escalations import SENDER, TABLE, Clock, Side

EXCESS = Excess(10_000, 100, 3, "main")


class Desk(Side):
    """One tower's part in it."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock)
        self.approvals = Approvals(self.registry, self.escalations, clock)

    async def agent(self) -> Principal:
        return await self.registry.authenticate(self.secrets["pricing"])

    async def take(
        self, work: Hashable = "k-1", excess: Excess = EXCESS, table: Identifier = TABLE, *, dry: bool = False
    ) -> str:
        """``approved``, or what stands in the refusal's message about the request."""
        desk = DryApprovals(self.approvals) if dry else self.approvals
        try:
            await desk.take(await self.agent(), table, excess, work)
        except ContractViolation as error:
            return error.message.rsplit("once: ", 1)[1]
        return "approved"

    async def requests(self, *, open_: bool | None = True) -> list[Ticket]:
        return await self.escalations.list(Kind.REQUEST, principal=None, open_=open_, limit=100)

    async def answer(self, decision: Decision = Decision.GRANTED) -> str:
        """Answers the one request that is open."""
        (ticket,) = await self.requests()
        closed = await self.escalations.close_ticket(Kind.REQUEST, ticket.id, "dana", decision, "looked at it")
        return closed.id


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Runs a scene with two towers on one database."""

    @asynccontextmanager
    async def towers(clock: Clock) -> AsyncIterator[tuple[Desk, Desk]]:
        url = f"sqlite:///{tmp_path / 'control.db'}"
        here, there = Desk(url, clock), Desk(url, clock)
        await here.principal("pricing")
        there.secrets = here.secrets
        yield here, there
        for desk in (here, there):
            await desk.escalations.close()
            desk.database.close()

    def scene(act: Callable[..., object]) -> None:
        async def play() -> None:
            clock = Clock()
            async with towers(clock) as (here, there):
                await act(here, there, clock)  # type: ignore[misc]

        asyncio.run(play())

    return scene


def test_a_refusal_opens_one_request_and_the_grant_lets_one_commit_by(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        assert "is open for it" in await here.take()
        assert "waits for its answer" in await there.take("k-2")
        (ticket,) = await here.requests()
        assert ticket.details["guard"] == {"ref": "main", "rows_added": 10_000, "rows_removed": 100, "times": 3}
        assert ticket.title == "pricing asks whether an overwrite of a.t was meant"
        await there.answer()
        assert [await here.take("k-3"), await there.take("k-3")] == ["approved", "approved"]  # sent again
        assert "is open for it" in await there.take("k-4")
        assert len(await here.requests(open_=None)) == 2

    run(act)


def test_of_two_commits_at_once_one_gets_the_approval(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        await here.answer()
        sent = [desk.take(f"k-{number}") for number, desk in enumerate((here, there) * 4)]
        outcomes = await asyncio.gather(*sent)
        assert outcomes.count("approved") == 1

    run(act)


def test_a_commit_that_was_refused_gives_the_approval_back(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        id_ = await here.answer()
        assert await here.take("stale") == "approved"
        await here.approvals.release(id_)
        assert await there.take("written anew") == "approved"
        assert "is open for it" in await here.take("another")

    run(act)


def test_an_approval_ends_after_a_day(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        await here.answer()
        clock.ms += APPROVED_FOR_MS + 1
        assert "is open for it" in await here.take()

    run(act)


def test_a_denial_is_said_to_who_tries_again(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        await here.answer(Decision.DENIED)
        assert "the last one was denied by dana: looked at it" in await here.take()

    run(act)


def test_what_a_person_has_read_is_what_they_grant(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        read = await here.requests()
        larger = replace(EXCESS, rows_added=50_000)
        for desk, dry in ((there, False), (here, True)):
            said = await desk.take("k-2", larger, dry=dry)
            assert f"request {read[0].id} waits for its answer, is about an overwrite that adds 10,000 rows" in said
            assert "opens a request of its own when it is sent again" in said
        about = "is about an overwrite"
        assert about not in await here.take("k-3", replace(EXCESS, rows_added=11_000)), "a tenth more is covered"
        assert await here.requests() == read
        await here.answer()
        clock.ms += 1
        assert "is open for it" in await here.take("k-4", larger)
        (own,) = await here.requests()
        assert own.details["guard"]["rows_added"] == 50_000
        assert await here.take("k-6") == "approved", "what was granted holds beside the request that is open"
        assert "waits for its answer" in await here.take("k-7")
        await here.answer()
        assert await there.take("k-5", larger) == "approved"

    run(act)


def test_what_is_much_larger_than_what_was_granted_is_asked_anew(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        await here.answer()
        assert "is open for it" in await here.take("k-2", replace(EXCESS, rows_added=11_001))

    run(act)


def test_branches_and_tables_are_asked_for_one_by_one(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        await here.answer()
        assert "is open for it" in await here.take(excess=replace(EXCESS, ref="audit"))
        assert "is open for it" in await here.take(table=Identifier(("a",), "u"))
        assert await here.take() == "approved"

    run(act)


def test_a_dry_run_takes_nothing_and_opens_nothing(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        assert "nobody has approved it" in await here.take(dry=True)
        assert await here.requests() == []
        await here.take()
        assert "waits for its answer" in await here.take(dry=True)
        await here.answer()
        assert [await here.take("dry", dry=True), await here.take("k-2")] == ["approved", "approved"]
        assert "nobody has approved it" in await here.take("k-3", dry=True)

    run(act)


def test_where_no_request_can_be_opened_the_refusal_says_so(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        for number in range(OPEN_MAX[Kind.REQUEST]):
            await here.take(table=Identifier(("a",), f"t{number}"))
        assert "no request could be opened for it" in await here.take()

    run(act)


def test_people_hear_what_granting_does(run: Callable[..., None]) -> None:
    async def act(here: Desk, there: Desk, clock: Clock) -> None:
        await here.take()
        (ticket,) = await here.requests()
        assert SENDER is not None
        text = mail(ticket, SENDER, SENDER, clock.ms).get_content()
        assert "it adds 10,000 rows and removes 100" in text
        assert "Granted, it may be sent again, once" in text
        assert b'"rows_added": 10000' in webhook_body(ticket)

    run(act)


CLOSED = Closing(1_000, "dana", Decision.GRANTED, "meant")
STANDINGS = [
    # the request's closing, its taker, rows, when: what it means to the commit "k-1"
    (None, None, 10_000, 0, Standing.WAITS),
    (CLOSED, None, 10_000, 1_000, Standing.FREE),
    (CLOSED, None, 10_000, 1_000 + APPROVED_FOR_MS, Standing.FREE),
    (CLOSED, None, 10_000, 1_001 + APPROVED_FOR_MS, Standing.NONE),
    (CLOSED, None, 11_000, 1_000, Standing.FREE),
    (CLOSED, None, 11_001, 1_000, Standing.NONE),
    (CLOSED, "k-1", 10_000, 2_000 + APPROVED_FOR_MS, Standing.TAKEN_BY_IT),
    (CLOSED, "k-2", 10_000, 1_000, Standing.NONE),
    (replace(CLOSED, decision=Decision.DENIED), None, 10_000, 1_000, Standing.NONE),
]


@pytest.mark.parametrize(("closing", "taker", "rows", "now_ms", "expected"), STANDINGS)
def test_what_a_request_means_to_a_commit(
    closing: Closing | None, taker: str | None, rows: int, now_ms: int, expected: Standing
) -> None:
    details = Meant(TABLE, EXCESS).details
    if taker is not None:
        details["guard"]["taken_by"] = work_of(taker)
    ticket = Ticket("id", Kind.REQUEST, "s", "pricing", "pricing", "a.t", None, details, 0, closing)
    assert standing(ticket, replace(EXCESS, rows_added=rows), work_of("k-1"), now_ms) is expected
    assert standing(None, EXCESS, work_of("k-1"), now_ms) is Standing.NONE

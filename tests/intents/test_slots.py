"""Slots that are handed out: never two agents in one, over clocks that jump and two towers that differ; by a naive rule
beside the book, and as cases."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from icetower.admission.admitted import AdmittedAppend, UnderIntent
from icetower.admission.identity import Identity
from icetower.contracts.calendars import openings
from icetower.contracts.deliveries import Slot
from icetower.contracts.model import Contract
from icetower.database import Database, sqlite_url
from icetower.errors import Conflict, Forbidden, IcetowerError, KeyMisused
from icetower.iceberg.change import Touched
from icetower.iceberg.records import DataFile
from icetower.intents.book import SKEW_MS_MAX, Book
from icetower.intents.fencing import check_intended, judged, scope_of_intent
from icetower.intents.model import Claim, End, Intent, State, Wanted
from icetower.intents.regions import EVERYTHING
from icetower.intents.slots import Later, Taker, had_ms, take, waiting
from icetower.intents.store import Store
from tests.contracts.test_slots import METADATA, MINUTE, NINE, TABLE, contract, minute
from tests.intents.world import Clock, wanted

UUID = "bids"
SHOP: dict[str, Any] = {**METADATA, "table-uuid": UUID, "properties": {}}
WITHIN_MS = 15_000
MORE = ", pattern: scheduler, claim_within: 15s"
AGENTS = 3


def team(term: str = "identity(slot)", *, fair: bool = False, grace: str = "") -> list[Contract]:
    turns = [minute(0, 1, grace) if fair else minute(n, AGENTS, grace) for n in range(AGENTS)]
    return [contract(f"a{n}", f"{{{term}: {turn}}}", more=MORE) for n, turn in enumerate(turns)]


def opened() -> Book:
    book = Book()
    book.begin()
    return book


def taking(book: Book, agents: list[Contract], who: str, now_ms: int, **more: Any) -> Intent | Later:
    """A principal of an agent, such as `a1-0`, takes the next slot."""
    own = next(each for each in agents if each.name == who.partition("-")[0])
    book.settle(now_ms)
    found = openings(
        own,
        [each for each in agents if each is not own],
        TABLE,
        now_ms,
        lambda before_ms, length_ms: had_ms([*book.ended(), *book.live()], UUID, before_ms, length_ms),
    )
    id_ = more.pop("id", f"{who}@{now_ms}")
    return take(book, now_ms, Taker(id_, who, own.name, TABLE, **more), found, SHOP)


def took(found: Intent | Later) -> Intent:
    assert isinstance(found, Intent)
    assert found.slot is not None
    return found


def test_whoever_comes_too_late_for_each_slot_hears_why() -> None:
    book, more = opened(), ", pattern: scheduler, claim_within: 15s"
    agents = [contract(f"a{n}", "{now: {every: 1m}}", more=more) for n in range(5)]
    found = taking(book, agents, "a4-0", NINE)
    assert isinstance(found, Later)
    refused = waiting(found, TABLE)
    assert (found.behind, refused.rule, refused.wait_until_ms) == (4, "slot.waiting", NINE + MINUTE)
    assert "4 contracts come before this one" in refused.message
    starts(took(taking(book, agents, "a0-0", NINE)))  # it has had a slot, and is no more before it in the next
    assert starts(took(taking(book, agents, "a4-0", NINE + MINUTE + 3 * WITHIN_MS))) == NINE + MINUTE


def rows(slot_ms: int, principal: str, under: Intent | None = None, *, region: str = "eu") -> AdmittedAppend:
    """An append by the fast path into the slot that begins at a moment."""
    file = Touched(DataFile(0, "f", "PARQUET", (slot_ms * 1000, region), 1, 1, None, None, {}), 0, None)
    identity = Identity(principal, "main", None, None, is_append=True)
    named = None if under is None else UnderIntent(under.id, under.fence or 0, 0)
    return AdmittedAppend(identity, TABLE, (file,), "c", 1, "print", UUID, slot_required=True, under=named)


def starts(found: Intent) -> int:
    assert found.slot is not None
    return found.slot.starts_ms


# ── At any moment ────────────────────────────────────────────────────────────────────────────────────────────────────


class Slots(RuleBasedStateMachine):
    """Three agents of two principals each, at two towers whose clocks differ, on one book."""

    fair = False
    term = "identity(slot)"

    def __init__(self) -> None:
        super().__init__()
        self.book = opened()
        self.agents = team(self.term, fair=self.fair, grace=", grace: 5s" if self.term != "now" else "")
        self.clocks = [NINE, NINE + 1_500]
        self.given: list[Intent] = []
        self.landed: list[tuple[int, int, str, int]] = []

    @rule(
        at=st.integers(0, 1),
        who=st.sampled_from([f"a{n}-{m}" for n in range(AGENTS) for m in range(2)]),
        ttl_ms=st.sampled_from([None, 5_000, 40_000]),
        least_ms=st.sampled_from([0, 0, 20_000]),
    )
    def take(self, at: int, who: str, ttl_ms: int | None, least_ms: int) -> None:
        now_ms, id_ = self.clocks[at], f"{len(self.given)}-{who}"
        found = taking(self.book, self.agents, who, now_ms, id=id_, ttl_ms=ttl_ms, least_ms=least_ms)
        if isinstance(found, Later):
            assert found.from_ms > now_ms or found.in_the_way
            return
        slot = found.slot
        assert slot is not None
        assert found.holds(now_ms)
        assert slot.starts_ms <= now_ms < slot.ends_ms
        assert found.expires_ms <= slot.until_ms
        if not self.fair:  # by a rule of its own: it is so many places behind the one whose turn it is
            turn = slot.starts_ms // MINUTE % AGENTS
            behind = (int(who[1]) - turn) % AGENTS
            assert now_ms >= slot.starts_ms + behind * WITHIN_MS
        if found not in self.given:
            self.given.append(found)

    @rule(at=st.integers(0, 1), pick=st.integers(0, 99))
    def renew(self, at: int, pick: int) -> None:
        if self.given:
            each = self.given[pick % len(self.given)]
            self.book.settle(self.clocks[at])
            with suppress(IcetowerError):
                found = self.book.renew(each.id, each.principal, self.clocks[at], 3_600_000)
                assert found.slot is not None
                assert found.expires_ms <= found.slot.until_ms

    @rule(at=st.integers(0, 1), pick=st.integers(0, 99))
    def release(self, at: int, pick: int) -> None:
        if self.given:
            each = self.given[pick % len(self.given)]
            self.book.end(each.id, End.RELEASED, self.clocks[at], each.principal)

    @rule(
        at=st.integers(0, 1), pick=st.integers(0, 99), later_ms=st.sampled_from([0, 900, 70_000]), named=st.booleans()
    )
    def commit(self, at: int, pick: int, later_ms: int, named: bool) -> None:
        """Whoever was given a slot once writes into it: asked at the gate, and just before the swap."""
        if not self.given:
            return
        each = self.given[pick % len(self.given)]
        member = rows(starts(each), each.principal, each if named else None)
        try:
            self.book.settle(self.clocks[at])
            under = judged(self.book, self.clocks[at], member, SHOP)
            self.clocks[at] += later_ms
            self.book.settle(self.clocks[at])
            judged(self.book, self.clocks[at], member, SHOP)
        except Forbidden:
            return
        assert under is not None
        holder = self.book.find(under.id)
        assert holder is not None
        assert (holder.principal, starts(holder)) == (each.principal, starts(each))
        self.landed.append((starts(each), under.fence, each.principal, self.clocks[at]))

    @rule(at=st.integers(0, 1), who=st.sampled_from(["a0-0", "a1-1", "stranger"]))
    def commit_without_a_slot(self, at: int, who: str) -> None:
        now_ms = self.clocks[at]
        self.book.settle(now_ms)
        held = [each for each in self.book.live() if each.principal == who and each.holds(now_ms)]
        if not held:
            with pytest.raises(Forbidden) as refused:
                judged(self.book, now_ms, rows(now_ms // MINUTE * MINUTE, who), SHOP)
            assert refused.value.rule == "slot.taken"

    @rule(at=st.integers(0, 1), by=st.sampled_from([1_000, 16_000, 59_000, -900, -45_000, 180_000]))
    def clock(self, at: int, by: int) -> None:
        """One tower's clock jumps; the other one's follows, as far as they may differ."""
        self.clocks[at] += by
        low, high = self.clocks[at] - SKEW_MS_MAX, self.clocks[at] + SKEW_MS_MAX
        self.clocks[1 - at] = min(max(self.clocks[1 - at], low), high)

    @rule(by=st.sampled_from([500, 7_000, 30_000]))
    def time_passes(self, by: int) -> None:
        self.clocks = [each + by for each in self.clocks]

    @invariant()
    def nobody_is_in_a_slot_beside_another(self) -> None:
        held = [each for each in self.book.live() if each.state is State.HELD]
        if self.term == "now":
            assert len(held) <= 1
        assert len({starts(each) for each in held}) == len(held)

    @invariant()
    def what_landed_in_a_slot_came_from_one_holder_after_the_other(self) -> None:
        for one, other in zip(self.landed, self.landed[1:], strict=False):
            if self.term == "now" or one[0] == other[0]:
                assert one[1] <= other[1], "a zombie has landed behind its successor"
        fences: dict[tuple[int, int], str] = {}
        for slot, fence, principal, _ in self.landed:
            assert fences.setdefault((slot, fence), principal) == principal


class FairSlots(Slots):
    fair = True


class SlotsByTheClock(Slots):
    term = "now"


for machine in (Slots, FairSlots, SlotsByTheClock):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSlots, TestFairSlots, TestSlotsByTheClock = Slots.TestCase, FairSlots.TestCase, SlotsByTheClock.TestCase


# ── Cases ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_intent_of_a_slot_says_and_holds_its_rows_alone() -> None:
    book, agents = opened(), team()
    found = took(taking(book, agents, "a0-0", NINE + 1_000))
    (claim,) = found.claims
    assert claim.slot == Slot("identity(slot)", NINE, NINE + MINUTE, NINE + MINUTE)
    assert claim.said == '[{"identity(slot)": {"from": "2026-01-01 09:00:00", "to": "2026-01-01 09:01:00"}}]'
    assert (claim.exclusive, claim.operations) == (True, frozenset({"append"}))
    assert found.expires_ms == NINE + MINUTE
    for at_ms, inside in ((0, True), (MINUTE - 1, True), (-1, False), (MINUTE, False)):
        rows_of_it = rows(NINE + at_ms, "a0-0", found)
        if inside:
            under = judged(book, NINE + 2_000, rows_of_it, SHOP)
            assert under is not None
            assert under.fence == found.fence
        else:
            with pytest.raises(Forbidden) as refused:
                judged(book, NINE + 2_000, rows_of_it, SHOP)
            assert refused.value.rule == "intent.region"
    assert scope_of_intent(found, SHOP) is None  # it says nothing of what was read


@pytest.mark.parametrize("term", ["now", "slot", "identity(slot)"])
def test_beside_other_rows_of_the_region_a_slot_is_held_with_them(term: str) -> None:
    book = opened()
    agents = [contract("a0", f"{{{term}: {minute(0, 1)}, region: eu}}", more=MORE)]
    took(taking(book, agents, "a0-0", NINE))
    assert judged(book, NINE, rows(NINE, "a0-0"), SHOP) is not None
    with pytest.raises(Forbidden):
        judged(book, NINE, rows(NINE, "a0-0", region="us"), SHOP)
    elsewhere = [contract("a1", f"{{{term}: {minute(0, 1)}, region: us}}", more=MORE)]
    took(taking(book, elsewhere, "a1-0", NINE))


def test_a_slot_by_the_clock_alone_is_the_whole_table() -> None:
    book = opened()
    found = took(taking(book, team("now"), "a0-0", NINE))
    assert (found.claims[0].boxes, found.claims[0].said) == (EVERYTHING, "all")


def test_who_overruns_is_fenced_and_the_next_one_is_let_in() -> None:
    book, agents = opened(), team("now")
    slow = took(taking(book, agents, "a0-0", NINE))
    assert judged(book, NINE + MINUTE - 1, rows(NINE, "a0-0", slow), SHOP) is not None
    late_ms = NINE + MINUTE
    following = took(taking(book, agents, "a1-0", late_ms))
    with pytest.raises(Forbidden) as refused:
        judged(book, late_ms, rows(NINE, "a0-0", slow), SHOP)
    assert refused.value.rule == "intent.fenced"
    assert judged(book, late_ms, rows(late_ms, "a1-0", following), SHOP) is not None
    with pytest.raises(Forbidden) as refused:
        book.renew(slow.id, "a0-0", late_ms)
    assert refused.value.rule == "intent.fenced"


def test_a_second_principal_of_the_same_contract_waits() -> None:
    book, agents = opened(), team()
    first = took(taking(book, agents, "a0-0", NINE))
    second = taking(book, agents, "a0-1", NINE + 1_000)
    assert isinstance(second, Later)
    assert (second.from_ms, [each.id for each in second.in_the_way]) == (NINE + MINUTE + 30_000, [first.id])
    refusal = waiting(second, TABLE)
    assert isinstance(refusal, Conflict)
    assert (refusal.rule, refusal.wait_until_ms) == ("slot.waiting", NINE + MINUTE + 30_000)
    assert "a0-0 holds them" in refusal.message


def test_a_slot_that_was_let_go_early_is_free_for_the_next_in_line() -> None:
    book, agents = opened(), team()
    dead = took(taking(book, agents, "a0-0", NINE, ttl_ms=10_000))
    assert isinstance(taking(book, agents, "a1-0", NINE + 9_999), Later)
    assert isinstance(taking(book, agents, "a1-0", NINE + 14_999), Later)  # it may come again until then
    following = took(taking(book, agents, "a1-0", NINE + 15_000))
    assert (starts(following), following.expires_ms) == (NINE, NINE + MINUTE)
    ended = book.find(dead.id)
    assert ended is not None
    assert ended.ended is End.EXPIRED


def test_enough_must_be_left_of_a_slot() -> None:
    book, agents = opened(), team()
    found = taking(book, agents, "a0-0", NINE + 31_000, least_ms=30_000)
    assert isinstance(found, Later)
    assert found.slot.starts_ms == NINE + MINUTE
    took(taking(book, agents, "a0-0", NINE + 31_000, least_ms=61_000))  # longer than a slot: no use to wait


def test_an_answer_that_was_lost_is_given_again() -> None:
    book, agents = opened(), team()
    first = took(taking(book, agents, "a0-0", NINE, id="mine"))
    assert took(taking(book, agents, "a0-0", NINE + 5_000, id="mine")).fence == first.fence
    for who, at_ms, error in (("a0-1", NINE, KeyMisused), ("a0-0", NINE + MINUTE, Forbidden)):
        with pytest.raises(error):
            taking(book, agents, who, at_ms, id="mine")
    book.declare(Wanted("other", "a0-0", "a0", (Claim("shop.bids", "another", ({},), frozenset({"append"})),), 9), NINE)
    with pytest.raises(KeyMisused):
        taking(book, agents, "a0-0", NINE, id="other")


def test_an_intent_on_the_rows_keeps_a_slot_from_being_handed_out() -> None:
    book, agents = opened(), team()
    whole = Claim("shop.bids", UUID, EVERYTHING, frozenset({"overwrite"}))
    book.declare(wanted("compaction", whole, principal="jobs", ttl_ms=20_000), NINE)
    assert isinstance(taking(book, agents, "a0-0", NINE), Later)
    took(taking(book, agents, "a0-0", NINE + 20_000))


def test_time_is_shared_fairly_by_those_who_come() -> None:
    """One stays away at first. Once it comes it catches up, and from then on each has as much time as the others."""
    book, agents = opened(), team(fair=True)
    came = dict.fromkeys(("a0", "a1", "a2"), 0)
    for number in range(30):
        for second in (0, 15, 30):
            now_ms = NINE + number * MINUTE + second * 1_000
            for who in came:
                if number < 12 and who == "a2":
                    continue
                found = taking(book, agents, f"{who}-0", now_ms)
                if isinstance(found, Intent):
                    came[who] += 1
                    assert not isinstance(taking(book, agents, "a2-1", now_ms + 1), Intent)
    assert sum(came.values()) == 30
    had = had_ms([*book.ended(), *book.live()], UUID, NINE + 30 * MINUTE, MINUTE)
    assert max(had.values()) - min(had.values()) <= MINUTE


def test_what_is_had_is_counted_within_a_bound() -> None:
    book, agents = opened(), team(fair=True)
    took(taking(book, agents, "a0-0", NINE))
    took(taking(book, agents, "a1-0", NINE + MINUTE + 30_000))
    book.settle(NINE + 10 * MINUTE)
    everything = [*book.ended(), *book.live()]
    assert had_ms(everything, UUID, NINE + 10 * MINUTE, MINUTE) == {"a0": MINUTE, "a1": 30_000}
    assert had_ms(everything, UUID, NINE + MINUTE + 40_000, MINUTE) == {"a0": MINUTE, "a1": 10_000}
    assert had_ms(everything, UUID, NINE + 101 * MINUTE, MINUTE) == {"a1": 30_000}
    assert had_ms(everything, "another", NINE + 10 * MINUTE, MINUTE) == {}


def test_a_dry_run_says_that_a_slot_is_needed() -> None:
    book, agents = opened(), team()

    def ask(who: str) -> None:
        check_intended(
            book, NINE, who, TABLE, SHOP, [(0, (NINE * 1000, "eu"))], frozenset({"append"}),
            required=False, blind=True, slot_required=True,
        )  # fmt: skip

    with pytest.raises(Forbidden) as refused:
        ask("a0-0")
    assert refused.value.rule == "slot.taken"
    took(taking(book, agents, "a0-0", NINE))
    ask("a0-0")
    with pytest.raises(Forbidden, match="a0-0 holds them"):
        ask("a0-1")


def test_a_slot_is_known_to_every_tower_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, agents = Clock(NINE), team()
        databases = [Database(sqlite_url(tmp_path / "control.db"), own=True) for _ in range(2)]
        one, other = (Store(database, clock) for database in databases)
        given = await one.ask(lambda book, now_ms: took(taking(book, agents, "a0-0", now_ms)))
        found = await other.ask(lambda book, now_ms: book.find(given.id))
        assert found is not None
        assert found.slot == given.slot
        blocked = await other.ask(lambda book, now_ms: taking(book, agents, "a0-1", now_ms))
        assert isinstance(blocked, Later)
        clock.ms = NINE + MINUTE
        following = await other.ask(lambda book, now_ms: took(taking(book, agents, "a1-0", now_ms)))
        assert starts(following) == NINE + MINUTE
        for store in (one, other):
            await store.close()
        for database in databases:
            database.close()

    asyncio.run(scenario())

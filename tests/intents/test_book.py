"""Who holds and who waits, as a table of cases and as a state machine beside a naive rule."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from icetower.errors import Conflict, Forbidden, IcetowerError, KeyMisused, NotFound, TooManyRequests
from icetower.intents.book import (
    HELD_MAX_MS,
    OF_PRINCIPAL_MAX,
    PIECES_MAX,
    SKEW_MS_MAX,
    TEXT_MAX,
    WAITING_MAX,
    WARNINGS_MAX,
    Book,
)
from icetower.intents.model import Claim, End, State
from tests.intents.world import BUCKETS, DAYS, box, claim, conflict, held_in, require_fair, wanted

NOW = 1_000_000


def opened() -> Book:
    book = Book()
    book.begin()
    return book


def state(book: Book, id_: str) -> State:
    found = book.find(id_)
    assert found is not None
    return found.state


OVERLAPS = [
    # what is held, what is wanted, whether both may be
    (claim(box([0])), claim(box([1])), True),
    (claim(box([0])), claim(box([0, 1])), False),
    (claim(box([0])), claim(), False),
    (claim(box([0])), claim(box(None, [1])), False),
    (claim(box([0], [0])), claim(box([0], [1])), True),
    (claim(box([0])), claim(box([0]), uuid="other"), True),
    (claim(operations="append"), claim(operations="append"), True),
    (claim(operations="append"), claim(box([2]), operations="delete"), False),
    (claim(operations="append"), claim(box([2]), operations="append", exclusive=True), False),
    (claim(operations="append", exclusive=True), claim(box([2]), operations="append"), False),
]


@pytest.mark.parametrize(("held", "other", "both"), OVERLAPS)
def test_disjoint_intents_are_held_side_by_side(held: Claim, other: Claim, both: bool) -> None:
    book = opened()
    book.declare(wanted("a", held), NOW)
    book.declare(wanted("b", other, principal="bob"), NOW)
    assert state(book, "a") is State.HELD
    assert state(book, "b") is (State.HELD if both else State.QUEUED)
    assert conflict([held], [other]) is not both


def test_who_does_not_wait_is_refused_with_who_holds_until_when() -> None:
    book = opened()
    book.declare(wanted("a", claim(box([0])), ttl_ms=60_000), NOW)
    with pytest.raises(Conflict) as refused:
        book.declare(wanted("b", claim(box([0, 1])), principal="bob", queue=False), NOW)
    error = refused.value
    assert (error.rule, error.next_step, error.wait_until_ms) == ("intent.held", "wait_until", NOW + 60_000)
    assert error.owner == "of ann"
    assert "ann holds" in error.message
    assert "1970-01-01 00:17:40" in error.message
    assert book.find("b") is None


def test_a_principals_own_second_intent_conflicts_like_anothers() -> None:
    book = opened()
    book.declare(wanted("a"), NOW)
    assert book.declare(wanted("b"), NOW).state is State.QUEUED


def test_the_line_is_fair() -> None:
    """Who waits for both days goes before who came later for one of them, free as it is."""
    book = opened()
    book.declare(wanted("a", claim(box([0]))), NOW)
    book.declare(wanted("both", claim(box([0, 1])), principal="bob"), NOW)
    later = book.declare(wanted("later", claim(box([1])), principal="cy"), NOW)
    assert later.state is State.QUEUED
    assert [each.id for each in book.waits_for("later")] == ["both"]
    book.end("a", End.RELEASED, NOW, "ann")
    assert (state(book, "both"), state(book, "later")) == (State.HELD, State.QUEUED)
    book.end("both", End.RELEASED, NOW, "bob")
    assert state(book, "later") is State.HELD


def test_several_tables_are_held_all_or_none() -> None:
    book = opened()
    book.declare(wanted("a", claim(uuid="one")), NOW)
    book.declare(wanted("b", claim(uuid="two"), principal="bob"), NOW)
    book.declare(wanted("both", claim(uuid="two"), claim(uuid="one"), principal="cy"), NOW)
    assert state(book, "both") is State.QUEUED
    book.end("a", End.RELEASED, NOW, "ann")
    assert state(book, "both") is State.QUEUED
    book.end("b", End.RELEASED, NOW, "bob")
    assert state(book, "both") is State.HELD
    assert book.granted == {"one": 3, "two": 3}


def test_fences_grow_over_all_tables() -> None:
    book = opened()
    fences = [book.declare(wanted(id_, claim(uuid=id_)), NOW).fence for id_ in ("a", "b")]
    book.end("a", End.RELEASED, NOW, "ann")
    fences.append(book.declare(wanted("c", claim(uuid="a")), NOW).fence)
    assert fences == [1, 2, 3]


def test_what_is_not_renewed_ends_and_makes_room() -> None:
    book = opened()
    book.declare(wanted("a", ttl_ms=1_000), NOW)
    book.declare(wanted("b", principal="bob", ttl_ms=5_000), NOW)
    book.renew("a", "ann", NOW + 900)
    book.settle(NOW + 1_899)
    assert state(book, "a") is State.HELD
    book.settle(NOW + 1_900)
    found = book.find("a")
    assert found is not None
    assert (found.state, found.ended, found.ended_ms) == (State.ENDED, End.EXPIRED, NOW + 1_900)
    assert state(book, "b") is State.HELD
    with pytest.raises(Forbidden) as refused:
        book.renew("a", "ann", NOW + 1_900)
    assert refused.value.rule == "intent.fenced"


def test_a_waiter_that_nobody_asks_for_holds_up_nobody() -> None:
    book = opened()
    book.declare(wanted("a", ttl_ms=100_000), NOW)
    book.declare(wanted("gone", principal="bob", ttl_ms=1_000), NOW)
    book.declare(wanted("c", principal="cy", ttl_ms=100_000), NOW)
    book.settle(NOW + 1_000)
    assert state(book, "gone") is State.ENDED
    book.end("a", End.RELEASED, NOW + 1_000, "ann")
    assert state(book, "c") is State.HELD


def test_nobody_renews_for_ever() -> None:
    book = opened()
    book.declare(wanted("a", ttl_ms=3_600_000), NOW)
    for hour in range(1, 6):
        book.renew("a", "ann", NOW + hour * 3_600_000)
    with pytest.raises(Forbidden, match="renewed no more"):
        book.renew("a", "ann", NOW + HELD_MAX_MS)


def test_a_clock_that_goes_back_lets_nobody_live_longer() -> None:
    book = opened()
    book.declare(wanted("a", ttl_ms=1_000), NOW + 1_000_000)
    book.settle(NOW)
    found = book.find("a")
    assert found is not None
    assert found.expires_ms == NOW + 1_000
    book.settle(NOW - SKEW_MS_MAX)  # within what the clocks of towers may differ by
    assert book.find("a") == found


def test_the_same_intent_declared_again_is_there_once() -> None:
    book = opened()
    first = book.declare(wanted("a", claim(box([0]))), NOW)
    again = book.declare(wanted("a", claim(box([0]))), NOW + 5)
    assert again.fence == first.fence
    assert len(book.live()) == 1
    for other in (wanted("a", claim(box([1]))), wanted("a", claim(box([0])), principal="bob")):
        with pytest.raises(KeyMisused) as refused:
            book.declare(other, NOW)
        assert refused.value.rule == "intent.id"


def test_a_principal_has_so_many_and_no_more() -> None:
    book = opened()
    for number in range(OF_PRINCIPAL_MAX):
        book.declare(wanted(str(number), claim(uuid=str(number))), NOW)
    with pytest.raises(TooManyRequests) as refused:
        book.declare(wanted("more", claim(uuid="more")), NOW)
    assert refused.value.rule == "intent.limit"
    book.end("0", End.RELEASED, NOW, "ann")
    book.declare(wanted("more", claim(uuid="more")), NOW)


def test_others_intents_are_nobodys_to_see() -> None:
    book = opened()
    book.declare(wanted("a"), NOW)
    for ask in (lambda: book.renew("a", "bob", NOW), lambda: book.require("never", "ann")):
        with pytest.raises(NotFound):
            ask()


def test_warnings_are_kept_for_the_living_and_bounded() -> None:
    book = opened()
    book.declare(wanted("a"), NOW)
    for number in range(WARNINGS_MAX + 5):
        book.warn("a", str(number))
    book.warn("gone", "nobody hears it")
    assert book.warnings("a") == ()
    book.keep(1)
    assert list(book.warnings("a")) == [str(number) for number in range(WARNINGS_MAX)]


def test_a_table_that_knows_a_later_fence_ends_all_its_intents() -> None:
    book = opened()
    book.declare(wanted("a"), NOW)
    book.declare(wanted("b", principal="bob"), NOW)
    book.declare(wanted("other", claim(uuid="other"), claim(uuid="t"), principal="cy"), NOW)
    book.declare(wanted("free", claim(uuid="other"), principal="di"), NOW)
    book.overtake("t", 1, NOW)
    assert state(book, "a") is State.HELD
    book.overtake("t", 70, NOW)
    assert [each.id for each in book.live()] == ["free"]
    assert {book.find(id_).ended for id_ in ("a", "b", "other")} == {End.OVERTAKEN}  # type: ignore[union-attr]
    assert state(book, "free") is State.HELD
    assert book.declare(wanted("c"), NOW).fence == 72


CLAIMS = st.lists(
    st.builds(
        lambda days, buckets, table, operations, exclusive: claim(
            box(days, buckets), uuid=table, operations=operations, exclusive=exclusive
        ),
        st.one_of(st.none(), st.sets(st.integers(0, DAYS - 1), min_size=1, max_size=2)),
        st.one_of(st.none(), st.sets(st.integers(0, BUCKETS - 1), min_size=1, max_size=1)),
        st.sampled_from(["t", "u"]),
        st.sampled_from(["append", "overwrite"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=2,
)


class Books(RuleBasedStateMachine):
    """Drafts that are kept or undone, clocks that jump, and at any moment what `require_fair` says."""

    def __init__(self) -> None:
        super().__init__()
        self.book = opened()
        self.now = NOW
        self.ids = 0

    def draft(self, undone: bool) -> None:
        number = self.book.number
        self.book.settle(self.now)
        if undone:
            self.book.undo()
            assert (self.book.live(), dict(self.book.granted), self.book.fence, self.book.order) == self.was
        else:
            self.book.keep(number + 1)

    def attempt(self, work: object, undone: bool) -> None:
        assert callable(work)
        self.was = (self.book.live(), dict(self.book.granted), self.book.fence, self.book.order)
        self.book.begin()
        self.book.settle(self.now)
        with suppress(IcetowerError):
            work()
        require_fair(self.book.live())
        self.draft(undone)

    @rule(
        claims=CLAIMS, who=st.sampled_from("abc"), queue=st.booleans(), ttl=st.integers(1, 5_000), undone=st.booleans()
    )
    def declare(self, claims: list[Claim], who: str, queue: bool, ttl: int, undone: bool) -> None:
        self.ids += 1
        asked = wanted(str(self.ids), *claims, principal=who, queue=queue, ttl_ms=ttl)
        self.attempt(lambda: self.book.declare(asked, self.now), undone)

    @rule(pick=st.integers(0, 50), undone=st.booleans())
    def renew(self, pick: int, undone: bool) -> None:
        live = self.book.live()
        if live:
            each = live[pick % len(live)]
            self.attempt(lambda: self.book.renew(each.id, each.principal, self.now), undone)

    @rule(pick=st.integers(0, 50), undone=st.booleans(), how=st.sampled_from([End.RELEASED, End.BROKEN]))
    def end(self, pick: int, undone: bool, how: End) -> None:
        live = self.book.live()
        if live:
            each = live[pick % len(live)]
            self.attempt(lambda: self.book.end(each.id, how, self.now, "x"), undone)

    @rule(table=st.sampled_from(["t", "u"]), by=st.integers(-3, 5), undone=st.booleans())
    def overtake(self, table: str, by: int, undone: bool) -> None:
        self.attempt(lambda: self.book.overtake(table, self.book.fence + by, self.now), undone)

    @rule(by=st.sampled_from([1, 500, 2_000, 10_000, -700, -60_000]))
    def tick(self, by: int) -> None:
        self.now += by

    @invariant()
    def fair(self) -> None:
        require_fair(self.book.live())
        for each in held_in(self.book):
            assert each.fence is not None
            assert each.fence <= min(self.book.granted[claim.uuid] for claim in each.claims)

    def teardown(self) -> None:
        """Nobody waits for ever: without renewals all ends, and whoever comes then is served."""
        self.book.settle(self.now)  # what a clock has written that has gone back since is taken back
        self.now += 100_000
        self.book.settle(self.now)
        assert self.book.live() == []
        assert self.book.is_free("t")
        assert self.book.is_free("u")
        assert self.book.declare(wanted("last"), self.now).state is State.HELD


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_many_wait_in_one_line_and_each_comes_once() -> None:
    dice = random.Random(7)
    book, order = opened(), list[str]()
    for number in range(60):
        days = dice.sample(range(DAYS), 2)
        book.declare(wanted(str(number), claim(box(days)), principal=str(number)), NOW)
    while book.live():
        held = held_in(book)
        assert held
        order += [each.id for each in held]
        for each in held:
            book.end(each.id, End.RELEASED, NOW, "x")
        require_fair(book.live())
    assert len(order) == 60
    assert len(set(order)) == 60


def test_a_principal_has_so_many_intents_that_wait_and_so_many_values_at_most() -> None:
    book = Book()
    book.declare(wanted("first", claim(box([0]))), NOW)
    for at in range(WAITING_MAX):
        assert book.declare(wanted(f"b{at}", claim(box([0])), principal="bob"), NOW).state is State.QUEUED
    for name, days in (("wide", range(0, 4 * PIECES_MAX, 2)), ("more", range(0, 20, 2))):
        given = wanted(name, claim(box(days)), principal="bob")
        with pytest.raises(TooManyRequests) as refused:
            book.declare(given, NOW)
        assert refused.value.rule == "intent.limit"
    book.end("b7", End.RELEASED, NOW, "bob")
    book.declare(wanted("next", claim(box([0])), principal="bob"), NOW)
    for at in range(WAITING_MAX):
        book.end(f"b{at}", End.RELEASED, NOW, "bob")
    book.end("first", End.RELEASED, NOW, "ann")
    assert [each.id for each in book.live()] == ["next"]
    many = PIECES_MAX // 2
    book.declare(wanted("half", claim(box(range(1, 2 * many, 2))), principal="cy"), NOW)
    with pytest.raises(TooManyRequests, match="name ranges"):
        book.declare(wanted("rest", claim(box(range(1, 2 * many + 20, 2))), principal="cy", queue=True), NOW)


def test_what_a_long_intent_said_is_not_kept_when_it_has_ended() -> None:
    book = Book()
    long, short = replace(claim(box([0])), said="[" + "1," * 5_000 + "1]"), claim(box([1]))
    for name, each in (("long", long), ("short", short)):
        book.declare(wanted(name, each), NOW)
        book.end(name, End.RELEASED, NOW, "ann")
    kept = {each.id: each.claims[0] for each in book.ended()}
    assert (kept["long"].said, kept["long"].boxes, kept["short"]) == ("null", (), short)
    fitting = TEXT_MAX // len(long.said)
    for at in range(fitting):
        book.declare(wanted(f"n{at}", replace(long, boxes=(box([at + 2]),))), NOW)
    with pytest.raises(TooManyRequests, match="characters"):
        book.declare(wanted("one more", replace(long, boxes=(box([fitting + 2]),))), NOW)


def test_a_commit_beside_many_boxes_that_it_does_not_meet_finds_none_of_them() -> None:
    book = Book()
    for at in range(20):
        book.declare(wanted(f"i{at}", claim(box([0], [at])), principal=f"p{at}"), NOW)
    commit = [box([day]) for day in range(1, DAYS)]
    assert book.near("t", commit) == []
    assert len(book.near("t", [*commit, box([0])])) == 20
    assert [each.id for each in book.near("t", [box(None, [3]), box([0], [7])])] == ["i3", "i7"]

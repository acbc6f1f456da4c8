"""A table's queue by itself: turns between principals, its bound, who comes back, and who leaves."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.admission.identity import Identity
from icetower.commit.limits import Limits
from icetower.commit.queue import Committed, FairQueue, Waiting, bases_of, regrouped
from icetower.errors import CommitConflict
from icetower.protocol.marks import SNAPSHOTS_PER_SECOND
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.rows.batches import Batch

TABLE = Identifier(("db",), "t")
NOBODY = cast("asyncio.Future[Committed]", None)


def commit(principal: str, **given_: Any) -> Admitted:
    told: dict[str, Any] = {"requirements": (), "updates": Updates(), "changes": (), "contract": "c"}
    told |= {"contract_version": 1, "blind_appends": False, "strict": False, "operations": frozenset()}
    identity = Identity.of_commit(principal, given_.get("updates", Updates()), None, None)
    return Admitted(identity, TABLE, **(told | {"fingerprint": "", "application_id": None} | given_))


def append(principal: str) -> AdmittedAppend:
    return AdmittedAppend(Identity.of_append(principal, "main", None, None), TABLE, (), "c", 1, "")


def waiting(name: str) -> Waiting:
    """`a1` is the first commit of principal a; `a1+` an append by the fast path."""
    member = append(name[0]) if name.endswith("+") else commit(name[0])
    return Waiting(member, NOBODY, 0.0, frozenset())


class Named:
    """A queue whose members have names."""

    def __init__(self, queue_max: int = 100, held_max: int = 100) -> None:
        self.queue = FairQueue(queue_max, held_max)
        self.members: dict[str, Waiting] = {}

    def put(self, names: str) -> None:
        for name in names.split():
            self.members[name] = waiting(name)
            self.queue.put(self.members[name])

    def take(self, commits_max: int = 100, appends_max: int = 100) -> str:
        return self.names(self.queue.take(commits_max, appends_max, 0.0))

    def names(self, members: Iterable[Waiting]) -> str:
        names = {id(member): name for name, member in self.members.items()}
        return " ".join(names[id(member)] for member in members)


TURNS = [
    # what comes, in order             so many a group   the groups
    ("a1 b1 c1", 9, ["a1 b1 c1"]),
    ("a1 a2 a3 b1", 9, ["a1 b1 a2 a3"]),
    ("a1 a2 a3 a4 b1", 2, ["a1 b1", "a2 a3", "a4"]),
    ("a1 a2 a3 b1 b2 c1", 2, ["a1 b1", "c1 a2", "b2 a3"]),
    ("a1 a2 a3 a4 a5 b1 b2", 3, ["a1 b1 a2", "b2 a3 a4", "a5"]),
]


@pytest.mark.parametrize(("names", "group_max", "groups"), TURNS)
def test_principals_take_turns_and_each_keeps_its_order(names: str, group_max: int, groups: list[str]) -> None:
    named = Named()
    named.put(names)
    assert [named.take(group_max) for _ in groups] == groups
    assert not named.queue


def test_a4_a_full_queue_holds_callers_and_a_principal_below_its_share_gets_the_next_place() -> None:
    named = Named(queue_max=4)
    named.put("a1 a2 a3 a4 a5 a6 b1")
    assert len(named.queue) == 7
    # In the queue are a1 to a4. Two leave it; of those held, a5 and b1 get their places.
    assert named.take(2) == "a1 a2"
    assert named.take(3) == "a3 b1 a4"
    assert named.take() == "a5 a6"


def test_more_than_can_be_held_are_told_to_come_again() -> None:
    named = Named(queue_max=1, held_max=2)
    named.put("a1 a2 a3")
    with pytest.raises(CommitConflict) as caught:
        named.put("b1")
    assert (caught.value.rule, caught.value.next_step) == ("queue.full", "retry")
    assert [named.take(), named.take(), named.take(), named.take()] == ["a1", "a2", "a3", ""]


def test_who_comes_back_goes_first_and_in_the_old_order() -> None:
    named = Named()
    named.put("a1 a2 b1 b2")
    group = named.queue.take(3, 0, 1.0)
    assert named.names(group) == "a1 b1 a2"
    named.put("c1")
    named.queue.put_back(group)
    assert all(member.taken_s is None for member in group)
    assert named.take(2) == "a1 b1"
    assert named.take() == "a2 b2 c1"


def test_a_failed_group_is_tried_again_in_halves_that_nobody_joins() -> None:
    named = Named()
    named.put("a1 b1 c1")
    named.queue.put_back(regrouped(named.queue.take(9, 0, 0.0)))
    named.put("d1")
    half = named.queue.take(9, 0, 0.0)
    assert named.names(half) == "a1 b1"
    named.queue.put_back(regrouped(half))
    assert [named.take() for _ in range(4)] == ["a1", "b1", "c1", "d1"]


def test_appends_have_a_bound_of_their_own_and_block_no_commit() -> None:
    named = Named()
    named.put("a1+ a2 b1+ c1 c2+")
    # One append fits. What doesn't fit waits, and nobody overtakes within a principal.
    assert named.take(5, 1) == "a1+ c1 a2"
    assert named.take(5, 1) == "b1+"
    assert named.take(5, 1) == "c2+"


LINGER = [("a1+ b1+", True), ("a1+ b1", False), ("", True)]


@pytest.mark.parametrize(("names", "may"), LINGER)
def test_h2_only_appends_may_linger(names: str, may: bool) -> None:
    named = Named()
    named.put(names)
    assert named.queue.may_linger is may


@pytest.mark.parametrize(
    ("appends", "before", "properties", "linger_s"),
    [
        (1, 0, {}, 0.02),
        (10, 10, {}, 0.02),
        (20, 4, {}, 0.04),
        (4, 20, {}, 0.04),  # the small one of two cohorts waits as long as the large one does
        (2, 124, {}, 0.052),
        (2, 124, {SNAPSHOTS_PER_SECOND: "2"}, 0.5),
    ],
)
def test_the_next_group_lingers_by_the_larger_of_the_last_two(
    appends: int, before: int, properties: dict[str, str], linger_s: float
) -> None:
    assert Limits().linger_s(appends, before, properties) == linger_s


def test_h2_an_append_that_comes_back_does_not_linger() -> None:
    named = Named()
    named.put("a1+")
    named.queue.put_back(named.queue.take(1, 1, 0.0))
    assert not named.queue.may_linger


def test_whoever_leaves_gives_its_place_to_one_that_is_held() -> None:
    named = Named(queue_max=2)
    named.put("a1 a2 b1 c1")
    assert named.queue.withdraw(named.members["c1"])  # held
    assert named.queue.withdraw(named.members["a1"])  # in the queue
    assert not named.queue.withdraw(named.members["a1"])
    assert named.take() == "a2 b1"
    assert not named.queue


def test_h1_a_commit_was_written_on_its_parent_and_on_what_it_asserts() -> None:
    change = cast(Any, type("C", (), {"snapshot": Snapshot({"parent-snapshot-id": 5})}))
    sibling = cast(Any, type("C", (), {"snapshot": Snapshot({"parent-snapshot-id": 6})}))
    member = commit(
        "a",
        changes=(change, sibling),
        requirements=(
            {"type": "assert-table-uuid", "uuid": "u"},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4},
            {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None},
        ),
    )
    assert bases_of(member) == {4, 5}
    assert bases_of(append("a")) == frozenset()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd")),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("back"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(STEPS)
def test_nobody_is_lost_doubled_overtaken_or_starved(steps: list[tuple[str, Any]]) -> None:
    named = Named(queue_max=4)
    numbers: Counter[str] = Counter()
    inside: list[str] = []
    gone: list[str] = []
    last: list[Waiting] = []
    for what, how in steps:
        if what == "put":
            numbers[how] += 1
            name = f"{how}{numbers[how]}"
            named.put(name)
            inside.append(name)
        elif what == "take":
            last = list(named.queue.take(how, 0, 0.0))
            names = named.names(last).split()
            assert len(names) <= how
            assert bool(names) == bool(inside)
            inside = [name for name in inside if name not in names]
            gone += names
        elif what == "back":
            named.queue.put_back(last)
            back = named.names(last).split()
            gone = [name for name in gone if name not in back]
            inside += back
            last = []
        elif inside:
            name = inside.pop(how % len(inside))
            assert named.queue.withdraw(named.members[name])
        assert sorted(named.names(named.queue).split()) == sorted(inside)
    while rest := named.take().split():
        gone += rest
        inside = [name for name in inside if name not in rest]
    assert not inside
    by_principal: dict[str, list[int]] = defaultdict(list)
    for name in gone:
        by_principal[name[0]].append(int(name[1:]))
    assert all(order == sorted(set(order)) for order in by_principal.values())


def test_rows_of_one_group_are_bounded_and_nobody_starves_for_it() -> None:
    """Small requests go on beside one that is larger than a group, and that one has its turn first in the next."""
    named = Named()
    part: Any = None

    def put(name: str, size_bytes: int, parts: int = 1) -> None:
        rows = Batch((part,) * parts, 1, size_bytes)
        member = AdmittedAppend(Identity.of_append(name[0], "main", None, None), TABLE, (), "c", 1, "", rows=rows)
        named.members[name] = Waiting(member, NOBODY, 0.0, frozenset())
        named.queue.put(named.members[name])

    for name, size_bytes in (("a1", 4), ("b1", 100), ("c1", 4), ("a2", 4), ("c2", 4)):
        put(name, size_bytes)
    groups = [named.names(named.queue.take(9, 9, 0.0, 10)) for _ in range(3)]
    assert groups == ["a1 c1", "b1", "a2 c2"]
    named.put("d1 d2")  # commits bring no rows
    put("a3", 11)
    assert named.names(named.queue.take(9, 9, 0.0, 10)) == "d1 a3 d2"
    for name in ("a4", "b2", "a5", "b3"):  # each partition is a file: 512 of one row take longer than their bytes
        put(name, 4, parts=400)
    assert [named.names(named.queue.take(9, 9, 0.0)) for _ in range(4)] == ["a4", "b2", "a5", "b3"]

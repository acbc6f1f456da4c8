"""`Keys`: what is in a table under which key; however it was put together, it answers as a plain scan would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.ambient import uuid7_of
from icetower.errors import BadRequest, KeyMisused
from icetower.protocol.marks import APPLICATION, KEY, PRINCIPAL, REF, SEQUENCE
from icetower.table import keys as keys_module
from icetower.table.keys import (
    CLOCKS_APART_MAX_MS,
    KeyRecord,
    Keys,
    Unreadable,
    application_sequence,
    record_of,
)


def snapshot(snapshot_id: int, **marks: str) -> dict[str, Any]:
    named = {"key": KEY, "principal": PRINCIPAL, "ref": REF, "application": APPLICATION, "sequence": SEQUENCE}
    return {"snapshot-id": snapshot_id, "summary": {named[name]: text for name, text in marks.items()}}


def test_k1_keys_are_found_in_every_snapshot_and_in_group_files_not_only_at_the_head() -> None:
    old = snapshot(1, key="k1", principal="ann", ref="main")
    group = {2: (KeyRecord("bob", "main", "k2", None, (2,)), KeyRecord("cat", "main", None, ("app", 4), (2,)))}
    keys = Keys.of([old, snapshot(2), snapshot(3)], group)
    assert keys.find("ann", "main", "k1") == (1,)
    assert keys.find("bob", "main", "k2") == (2,)
    assert keys.sequence("cat", "main", "app") == (4, (2,))


def test_k2_a_key_belongs_to_its_principal_and_ref() -> None:
    keys = Keys.of([snapshot(1, key="k", principal="ann", ref="main", application="app", sequence="3")])
    others = [("bob", "main"), ("ann", "wap"), ("ann", ""), ("", "main")]
    assert [keys.find(principal, ref, "k") for principal, ref in others] == [None] * 4
    assert [keys.sequence(principal, ref, "app") for principal, ref in others] == [None] * 4
    assert keys.sequence("ann", "main", "k") is None
    assert keys.find("ann", "main", "app") is None


def test_the_highest_number_counts_whatever_the_order_and_a_rollback_s_expiry_uncovers_the_one_before() -> None:
    keys = Keys().plus([numbered(1, 5)]).plus([numbered(2, 9)]).plus([numbered(3, 7)])
    assert keys.sequence("ann", "main", "app") == (9, (2,))
    assert keys.without([2]).sequence("ann", "main", "app") == (7, (3,))
    assert keys.without([1, 2, 3]).sequence("ann", "main", "app") is None


def numbered(snapshot_id: int, number: int) -> KeyRecord:
    return KeyRecord("ann", "main", None, ("app", number), (snapshot_id,))


def test_a_commit_of_several_snapshots_is_one_under_its_key() -> None:
    first, second = (snapshot(i, key="k", principal="a", ref="main", application="app", sequence="1") for i in (1, 2))
    for keys in (Keys.of([first, second]), Keys.of([first]).plus([one for one in [record_of(second)] if one])):
        assert keys.find("a", "main", "k") == (1, 2)
        assert keys.sequence("a", "main", "app") == (1, (1, 2))
        assert keys.without([1]).find("a", "main", "k") == (2,)


def test_an_index_is_never_changed_by_what_is_planned_on_it() -> None:
    before = Keys.of([snapshot(1, key="k1", principal="a", ref="main")])
    after = before.plus([KeyRecord("a", "main", "k2", None, (2,))])
    other = before.plus([KeyRecord("a", "main", "k3", None, (3,))])
    assert before.find("a", "main", "k2") is None
    assert (after.find("a", "main", "k2"), after.find("a", "main", "k3")) == ((2,), None)
    assert (other.find("a", "main", "k2"), other.find("a", "main", "k3")) == (None, (3,))
    assert before.without([1]).find("a", "main", "k1") is None
    assert before.find("a", "main", "k1") == (1,)


KEYS = st.none() | st.sampled_from(["k1", "k2", "k3"])
NUMBERS = st.none() | st.tuples(st.sampled_from(["app-1", "app-2"]), st.integers(0, 5))
RECORDS = st.builds(
    lambda principal, ref, key, application, snapshot_id: KeyRecord(principal, ref, key, application, (snapshot_id,)),
    st.sampled_from(["ann", "bob"]),
    st.sampled_from(["main", ""]),
    KEYS,
    NUMBERS,
    st.integers(1, 30),
)
STEPS = st.lists(st.lists(RECORDS, max_size=6) | st.frozensets(st.integers(1, 30), max_size=8), max_size=25)


@given(STEPS)
def test_every_history_answers_as_a_scan_of_what_is_left(steps: list[list[KeyRecord] | frozenset[int]]) -> None:
    keys, scanned = Keys(), list[KeyRecord]()
    used: set[int] = set()
    for step in steps:
        if isinstance(step, frozenset):
            keys = keys.without(step)
            scanned = [record for record in scanned if record.snapshots[0] not in step]
        else:  # a snapshot id stands for one snapshot, and comes once
            fresh = [record for record in step if record.snapshots[0] not in used]
            used |= {record.snapshots[0] for record in fresh}
            keys = keys.plus(fresh)
            scanned += fresh
    assert answers(keys) == answers_of_a_scan(scanned)


def answers(keys: Keys) -> Mapping[Any, Any]:
    owners = [(p, r) for p in ("ann", "bob") for r in ("main", "")]
    told: dict[Any, Any] = {(*o, k): keys.find(*o, k) for o in owners for k in ("k1", "k2", "k3")}
    told |= {(*o, a): keys.sequence(*o, a) for o in owners for a in ("app-1", "app-2")}
    return {owner: found if found is None else sorted_ids(found) for owner, found in told.items()}


def sorted_ids(found: Any) -> Any:
    return (found[0], sorted(found[1])) if len(found) == 2 and isinstance(found[1], tuple) else sorted(found)


def answers_of_a_scan(records: list[KeyRecord]) -> Mapping[Any, Any]:
    told: dict[Any, Any] = {}
    for p in ("ann", "bob"):
        for r in ("main", ""):
            mine = [record for record in records if (record.principal, record.ref) == (p, r)]
            for k in ("k1", "k2", "k3"):
                ids = sorted({i for record in mine if record.key == k for i in record.snapshots})
                told[p, r, k] = ids or None
            for a in ("app-1", "app-2"):
                numbers = [(record.application[1], record) for record in mine if record.application is not None
                           and record.application[0] == a]  # fmt: skip
                highest = max((number for number, _ in numbers), default=None)
                ids = sorted({i for number, record in numbers if number == highest for i in record.snapshots})
                told[p, r, a] = None if highest is None else (highest, ids)
    return told


def test_a_commit_copies_little_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers stay few, and none is copied that is larger than the bound."""
    monkeypatch.setattr(keys_module, "LAYER_MAX", 64)
    keys = Keys()
    for i in range(1_000):
        keys = keys.plus([KeyRecord("ann", "main", f"k{i}", None, (i,))])
    sizes = [layer.size for layer in keys._layers]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 64
    assert len(sizes) <= 1_000 // 32 + 7
    left = keys.without(range(990))
    assert sum(layer.size for layer in left._layers) <= 64
    assert left.find("ann", "main", "k995") == (995,)
    assert left.find("ann", "main", "k5") is None


def test_marks_that_make_no_sense_are_none() -> None:
    assert record_of({"snapshot-id": 1}) is None
    assert record_of(snapshot(1, application="app", sequence="many")) is None
    assert record_of(snapshot(1, key="k", sequence="1")) == KeyRecord("", "", "k", None, (1,))


MISNUMBERED: list[tuple[object, object]] = [
    (None, "1"), ("app", None), ("", "1"), ("a" * 256, "1"), ("a\n", "1"), (5, "1"), ("app", "-1"), ("app", "1.0"),
    ("app", ""), ("app", str(2**63)), ("app", "٣"), ("app", True),
]  # fmt: skip


@pytest.mark.parametrize(("application", "sequence"), MISNUMBERED)
def test_malformed_numbers_are_refused(application: object, sequence: object) -> None:
    with pytest.raises(BadRequest) as caught:
        application_sequence(application, sequence)
    assert caught.value.rule == "key.sequence"


def test_numbers_are_read() -> None:
    assert application_sequence(None, None) is None
    assert application_sequence("app", "0") == ("app", 0)
    assert application_sequence("app", 2**63 - 1) == ("app", 2**63 - 1)


LOST = Unreadable(7, "main", 1_000_000_000_000, "t/g.json")


def minted(ms: int) -> str:
    return uuid7_of(ms, 5)


DOUBTS = [
    # branch of the lost one, branch and key of the commit, whether it may have landed
    ("main", "main", "any text", True),
    ("main", "main", str(UUID(int=5, version=4)), True),
    ("main", "main", minted(LOST.at_ms - 1), True),
    ("main", "main", minted(LOST.at_ms + CLOCKS_APART_MAX_MS), True),
    ("main", "main", minted(LOST.at_ms + CLOCKS_APART_MAX_MS + 1), False),
    ("main", "other", "any text", False),
    (None, "other", "any text", True),
    (None, "other", minted(LOST.at_ms + CLOCKS_APART_MAX_MS + 1), False),
]


@pytest.mark.parametrize(("theirs", "ours", "key", "doubtful"), DOUBTS)
def test_k1_a_key_that_may_be_in_a_file_that_cannot_be_read_is_not_called_new(
    theirs: str | None, ours: str, key: str, doubtful: bool
) -> None:
    keys = Keys().with_unreadable([replace(LOST, ref=theirs)])
    more = keys.plus([KeyRecord("ann", ours, "other key", None, (8,))])
    for known in (keys, more, more.without([8])):
        if doubtful:
            with pytest.raises(KeyMisused, match=r"t/g\.json"):
                known.check_key(ours, key)
        else:
            known.check_key(ours, key)
    Keys().check_key(ours, key)
    keys.without([7]).check_key(ours, key)
    more.without([7, 8]).check_key(ours, key)


@pytest.mark.parametrize(
    ("ref", "last_ms", "doubtful"),
    [("main", None, True), ("main", LOST.at_ms, True), ("main", LOST.at_ms + 1, False), ("other", None, False)],
)
def test_k1_a_number_may_have_landed_with_what_cannot_be_read_unless_a_lower_one_landed_after_it(
    ref: str, last_ms: int | None, doubtful: bool
) -> None:
    keys = Keys().with_unreadable([LOST])
    if doubtful:
        with pytest.raises(KeyMisused, match="application app") as told:
            keys.check_number(ref, "app", last_ms)
        assert (told.value.rule, told.value.next_step) == ("key.unreadable", "ask_owner")
    else:
        keys.check_number(ref, "app", last_ms)

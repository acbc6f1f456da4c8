"""May a commit go on? Who holds what, what the commit names, and what the table requires, as a table of cases."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from icetower.admission.admitted import Admitted, Publication, UnderIntent
from icetower.admission.identity import Identity
from icetower.contracts.model import Operation
from icetower.errors import CommitConflict, Forbidden, IcetowerError
from icetower.iceberg.change import Change, ListDiff, Touched
from icetower.iceberg.records import DataFile
from icetower.iceberg.validation import Level
from icetower.intents.book import Book
from icetower.intents.fencing import check_intended, is_blind, judged, named_in, scope_of_intent, touched
from icetower.intents.model import End, State
from icetower.intents.regions import EVERYTHING
from icetower.protocol.marks import INTENT, INTENT_FENCE
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from tests.intents.world import BUCKET, TABLE, Table, append, box, claim, numbers, wanted

NOW = 1_000_000


def commit(
    *places: tuple[int, ...],
    principal: str = "ann",
    operation: str = "overwrite",
    summary: dict[str, str] | None = None,
    ref: str = "main",
    required: bool = False,
    moves_to: int | None = None,
) -> Admitted:
    """A commit that adds a file to each of some partitions, and removes one from each unless it appends."""
    snapshot = Snapshot({"snapshot-id": 7, "summary": {"operation": operation, **(summary or {})}})
    files = tuple(
        Touched(DataFile(0, f"f-{place}", "PARQUET", place, 1, 1, None, None, {}), 0, None) for place in places
    )
    removed = () if operation == "append" else files
    change = Change(snapshot, ListDiff((), (), (), ()), files, removed, {}, {}, (), names_sibling=False)
    updates = Updates(
        [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": moves_to or 7},
        ]
    )
    return Admitted(
        identity=Identity(principal, ref, None, None),
        identifier=TABLE,
        requirements=(),
        updates=updates,
        changes=(change,),
        contract=f"of {principal}",
        contract_version=1,
        blind_appends=False,
        strict=False,
        operations=frozenset({Operation(operation)}),
        fingerprint="",
        application_id=None,
        table_uuid="t",
        intents_required=required,
    )


def opened() -> Book:
    """Ann holds day 0, Bob day 1; both to overwrite."""
    book = Book()
    book.begin()
    book.declare(wanted("anns", claim(box([0]))), NOW)
    book.declare(wanted("bobs", claim(box([1])), principal="bob"), NOW)
    return book


REQUIRED, ADVISORY = Table(required=True), Table(required=False)


def verdict(book: Book, member: Any, table: Table, now_ms: int = NOW + 1) -> str | None:
    """The intent that a commit is made under, or the rule that refuses it."""
    try:
        under = judged(book, now_ms, member, table.metadata)
    except IcetowerError as error:
        return error.rule
    return None if under is None else under.id


CASES = [
    # a commit, what becomes of it where intents are required, and where they are not
    (commit((0, 0)), "anns", "anns"),
    (commit((0, 0), (0, 1)), "anns", "anns"),
    (commit((2, 0)), None, None),
    (commit((1, 0)), "intent.held", None),
    (commit((0, 0), (1, 0)), "intent.held", None),
    (commit((1, 0), operation="append"), "intent.held", None),
    (commit((1, 0), operation="append", summary={"icetower.blind": "true"}), None, None),
    (append((1, 0)), None, None),
    (append((0, 0)), "anns", "anns"),
    (commit((1, 0), principal="bob"), "bobs", "bobs"),
    (commit((1, 0), principal="cy"), "intent.held", None),
    (commit((1, 0), principal="cy", required=True), "intent.held", "intent.held"),
    (commit((1, 0), principal="cy", ref="side"), None, None),
    (commit((0, 0), ref="side"), None, None),
    (commit((0, 0), ref="side", summary={INTENT: "anns", INTENT_FENCE: "1"}), "anns", "anns"),
    (commit((0, 0), ref="side", summary={INTENT: "anns", INTENT_FENCE: "9"}), "intent.fenced", "intent.fenced"),
    (commit((1, 0), ref="side", summary={INTENT: "anns"}), "intent.region", "intent.region"),
    (commit((2, 0), principal="cy", moves_to=3), "intent.held", None),  # main rolled back, or put elsewhere
    (commit((0, 0), summary={INTENT: "anns", INTENT_FENCE: "1"}), "anns", "anns"),
    (commit((0, 0), summary={INTENT: "anns"}), "anns", "anns"),
    (commit((0, 0), summary={INTENT: "anns", INTENT_FENCE: "9"}), "intent.fenced", "intent.fenced"),
    (commit((0, 0), summary={INTENT: "never"}), "intent.fenced", "intent.fenced"),
    (commit((1, 0), summary={INTENT: "bobs", INTENT_FENCE: "2"}), "intent.fenced", "intent.fenced"),
    (commit((2, 0), summary={INTENT: "anns"}), "intent.region", "intent.region"),
]


@pytest.mark.parametrize(("member", "required", "advisory"), CASES)
def test_what_becomes_of_a_commit(member: Any, required: str | None, advisory: str | None) -> None:
    assert verdict(opened(), member, REQUIRED) == required
    assert verdict(opened(), member, ADVISORY) == advisory


def test_a_refusal_names_who_holds_until_when() -> None:
    with pytest.raises(CommitConflict) as refused:
        judged(opened(), NOW + 1, commit((1, 0)), REQUIRED.metadata)
    error = refused.value
    assert (error.rule, error.next_step) == ("intent.held", "wait_until")
    assert (error.wait_until_ms, error.owner) == (NOW + 10_000, "of bob")
    assert "bob holds" in error.message


@pytest.mark.parametrize("named", [True, False])
def test_nobody_commits_as_the_holder_of_a_lease_that_has_passed(named: bool) -> None:
    book = opened()
    member = commit((0, 0), summary={INTENT: "anns"} if named else None)
    assert verdict(book, member, REQUIRED, NOW + 10_000) == ("intent.fenced" if named else None)
    admitted = replace(member, under=UnderIntent("anns", 1, 1))  # it was let in while it was held
    assert verdict(book, admitted, REQUIRED, NOW + 9_999) == "anns"
    assert verdict(book, admitted, REQUIRED, NOW + 10_000) == "intent.fenced"
    book.end("anns", End.BROKEN, NOW, "admin")
    assert verdict(book, admitted, ADVISORY) == "intent.fenced"


def test_a_broken_lease_says_who_has_broken_it() -> None:
    book = opened()
    book.end("anns", End.BROKEN, NOW, "dana")
    with pytest.raises(Forbidden, match="broken by dana"):
        judged(book, NOW, commit((0, 0), summary={INTENT: "anns"}), ADVISORY.metadata)


def test_an_intent_to_append_covers_no_overwrite() -> None:
    book = Book()
    book.begin()
    book.declare(wanted("a", claim(box([0]), operations="append")), NOW)
    assert verdict(book, commit((0, 0), operation="append"), REQUIRED) == "a"
    assert verdict(book, commit((0, 0)), REQUIRED) == "intent.held"
    assert verdict(book, commit((0, 0), summary={INTENT: "a"}), REQUIRED) == "intent.region"
    assert verdict(book, commit((0, 0), operation="append", principal="bob"), REQUIRED) is None  # they share


def test_of_two_intents_that_cover_it_a_commit_must_name_one() -> None:
    book = Book()
    book.begin()
    for id_ in ("one", "two"):
        book.declare(wanted(id_, claim(box([0]), operations="append")), NOW)
    assert verdict(book, append((0, 0)), REQUIRED) is None
    assert verdict(book, commit((0, 0), operation="append", summary={INTENT: "two"}), REQUIRED) == "two"


def test_nothing_comes_into_rows_that_are_held_exclusively() -> None:
    book = Book()
    book.begin()
    book.declare(wanted("a", claim(box([0]), exclusive=True)), NOW)
    for blind in (append((0, 0), principal="bob"), commit((0, 0), principal="bob", operation="append")):
        assert verdict(book, blind, REQUIRED) == "intent.held"
    assert verdict(book, append((1, 0), principal="bob"), REQUIRED) is None
    assert verdict(book, append((0, 0)), REQUIRED) == "a"


def test_a_commit_under_an_exclusive_intent_depends_on_its_rows() -> None:
    book = Book()
    book.begin()
    shared = book.declare(wanted("s", claim(box([1]))), NOW)
    alone = book.declare(wanted("a", claim(box([0]), exclusive=True)), NOW)
    assert scope_of_intent(shared, REQUIRED.metadata) is None
    scope = scope_of_intent(alone, REQUIRED.metadata)
    assert scope is not None
    assert (scope.level, scope.source, scope.filter) == (Level.SERIALIZABLE, "intent", None)
    assert scope.owned is not None
    assert scope.owned(0, (0, 1))
    assert not scope.owned(0, (1, 1))
    assert scope.owned(9, (1, 1))  # of a spec that is not known


def test_a_table_that_knows_more_than_the_database_believes_it_no_more() -> None:
    book = opened()
    ahead = replace(REQUIRED, fence=7)
    assert verdict(book, commit((0, 0), summary={INTENT: "anns"}), ahead) == "intent.fenced"
    assert {each.state for each in map(book.find, ("anns", "bobs")) if each is not None} == {State.ENDED}
    assert book.fence == 7
    assert verdict(book, commit((0, 0)), replace(REQUIRED, fence=2)) is None


def test_what_is_intended_is_held_against_others() -> None:
    book, overwrite = opened(), frozenset({"overwrite"})

    def ask(table: Table, place: tuple[int, int], operations: frozenset[str] = overwrite, **how: bool) -> str | None:
        given = {"required": False, "blind": False} | how
        try:
            check_intended(book, NOW, "ann", TABLE, table.metadata, [(0, place)], operations, **given)
        except CommitConflict as error:
            return error.rule
        return None

    assert ask(REQUIRED, (0, 0)) is None
    assert ask(REQUIRED, (1, 0)) == "intent.held"
    assert ask(ADVISORY, (1, 0)) is None
    assert ask(ADVISORY, (1, 0), required=True) == "intent.held"
    assert ask(REQUIRED, (1, 0), frozenset({"append"})) == "intent.held"
    assert ask(REQUIRED, (1, 0), frozenset({"append"}), blind=True) is None


STANDS = replace(REQUIRED, stands=3).metadata


def on(member: Admitted, parent: int | None, asserted: int | None = None) -> Admitted:
    """The commit on a parent, of which it asserts that ``main`` stands there; None: it asserts nothing."""
    change = member.changes[0]
    snapshot = Snapshot({**change.snapshot, "parent-snapshot-id": parent})
    requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": asserted}
    changes = (replace(change, snapshot=snapshot),)
    return replace(member, changes=changes, requirements=() if asserted is None else (requirement,))


def published(member: Admitted, stage: str | None = None) -> Admitted:
    """The commit as a publication of a branch that has left ``main`` before it stood at 3."""
    publication = Publication("dev", 7, 1, 1, False, False, stage, frozenset(), {}, 0)
    return replace(on(member, 1), publication=publication)


FOLLOWS = [
    # a commit to day 2, which nobody holds, while others hold day 0 and 1
    ("on the head", on(commit((2, 0)), 3), True),
    ("stale, and it says where main stood", on(commit((2, 0)), 2, 2), True),
    ("stale, and it does not say so", on(commit((2, 0)), 2), False),
    ("on what main stood at before: what came since would go", on(commit((2, 0)), 2, 3), False),
    ("CREATE OR REPLACE TABLE", on(commit((2, 0)), None), False),
    ("published", published(commit((2, 0))), True),
]


@pytest.mark.parametrize(("what", "member", "follows"), FOLLOWS, ids=[each[0] for each in FOLLOWS])
def test_what_does_not_follow_main_touches_all_of_it(what: str, member: Admitted, follows: bool) -> None:
    boxes, operations = touched(member, STANDS)
    assert (boxes != EVERYTHING, operations) == (follows, {"overwrite"}), what
    cys = replace(member, identity=Identity("cy", "main", None, None))
    assert verdict(opened(), cys, replace(REQUIRED, stands=3)) == (None if follows else "intent.held")


def test_a_publication_is_fenced_between_the_gate_and_the_swap() -> None:
    book = opened()
    member = published(commit((0, 0)))
    under = judged(book, NOW + 1, member, STANDS)
    assert under is not None
    book.end("anns", End.BROKEN, NOW + 2, "admin")
    assert verdict(book, replace(member, under=under), replace(REQUIRED, stands=3)) == "intent.fenced"


def test_what_is_staged_for_checks_touches_nothing_of_main() -> None:
    assert touched(published(commit((1, 0)), stage="dev.publish"), STANDS) == ((), frozenset())
    named = published(commit((0, 0), summary={INTENT: "anns", INTENT_FENCE: "9"}), stage="dev.publish")
    assert verdict(opened(), named, REQUIRED) == "intent.fenced"
    assert verdict(opened(), published(commit((1, 0), principal="cy")), REQUIRED) == "intent.held"


def with_bounds(member: Admitted, low: int, high: int, nulls: int | None = 0) -> Admitted:
    """The commit, whose files have values of `bucket` between two, and so many nulls; None: nobody says."""
    record: dict[str, Any] = {
        "value_counts": [{"key": 2, "value": 10}],
        "lower_bounds": [{"key": 2, "value": struct.pack("<i", low)}],
        "upper_bounds": [{"key": 2, "value": struct.pack("<i", high)}],
    }
    if nulls is not None:
        record["null_value_counts"] = [{"key": 2, "value": nulls}]
    change = member.changes[0]
    added = tuple(replace(each, file=replace(each.file, record=record)) for each in change.added)
    return replace(member, changes=(replace(change, added=added),))


BOUNDED = [
    # the values of a column in the file, whether it comes into rows that are held by a filter on that column
    ((0, 3), False),
    ((4, 9), True),
    ((0, 5), True),
    ((9, 9), True),
    ((10, 12), False),
]


@pytest.mark.parametrize(("values", "meets"), BOUNDED)
def test_statistics_tell_where_no_partition_does(values: tuple[int, int], meets: bool) -> None:
    """A table by day, and an intent on a column beside it: `bucket` from 5 up to 9."""
    by_day = Table(required=True, fields=1)
    book = Book()
    book.begin()
    book.declare(wanted("b", claim({BUCKET: numbers(range(4, 10))}), principal="bob"), NOW)
    append_ = commit((0,), operation="append")
    assert verdict(book, with_bounds(append_, *values), by_day) == ("intent.held" if meets else None)
    assert verdict(book, with_bounds(append_, *values, nulls=None), by_day) == ("intent.held" if meets else None)
    assert verdict(book, append_, by_day) == "intent.held"


def test_what_a_commit_touches() -> None:
    metadata = REQUIRED.metadata
    boxes, operations = touched(commit((0, 0), (0, 0), (1, 1)), metadata)
    assert (len(boxes), operations) == (2, {"overwrite"})
    assert touched(commit((0, 0), moves_to=3), metadata) == (EVERYTHING, {"overwrite"})
    assert touched(commit((0, 0), ref="side"), metadata) == ((), frozenset())
    assert touched(append((0, 0)), metadata)[1] == {"append"}
    nameless = commit((0, 0))
    strange = replace(nameless.changes[0], added=(replace(nameless.changes[0].added[0], spec_id=5),))
    assert touched(replace(nameless, changes=(strange,)), metadata)[0] == EVERYTHING
    assert named_in(append((0, 0))) is None
    assert is_blind(append((0, 0)), {})
    assert not is_blind(commit((0, 0), operation="append"), {})
    assert is_blind(commit((0, 0), operation="append"), {"icetower.blind-appends": "true"})

"""Declared reads, through the whole engine (trap R2): what they admit, and that a lie hides no object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icetower.commit.engine import Committed
from icetower.contracts.document import load
from icetower.errors import IcetowerError
from icetower.files.changes import read_changes
from icetower.iceberg.change import Touched
from icetower.iceberg.expressions import from_json
from icetower.iceberg.pruning import comparisons
from icetower.protocol.updates import Updates
from icetower.rebase import written
from icetower.registry.principals import Principal
from icetower_client_model.operations import Kind, Operation
from tests.commit.engine_world import World, judged, outcomes, run
from tests.commit.iceberg_client import Client, create, data, equalities, positions

BLIND = {"icetower.blind": "true"}
IN_A = json.dumps({"type": "eq", "term": "category", "value": "a"})
A1, A2, B1 = data("a1", "a"), data("a2", "a"), data("b1", "b")


def words(level: str, filter_: str | None = None) -> dict[str, str]:
    return {"icetower.isolation-level": level, **({} if filter_ is None else {"icetower.filter": filter_})}


async def after(
    theirs: dict[str, Any], summary: dict[str, str], *, version: int = 2, mine: dict[str, Any] | None = None
) -> str:
    """Ann replaces a1 on a base; before she commits, Bob does something. What becomes of Ann's commit."""
    world = World()
    await create(world, version)
    ann, bob = Client(world, "ann"), Client(world, "bob")
    await ann.refresh()
    assert await outcomes(await ann.append(A1, A2, B1, **BLIND)) == ["direct"]
    await ann.refresh()
    await bob.refresh()
    request = await ann.merge(**(mine or {"add": [data("a3", "a")], "remove": ["a1"]}), **summary)
    assert await outcomes(await bob.merge(**theirs)) == ["direct"]
    (told,) = await outcomes(request)
    return told


def elsewhere(category: str) -> dict[str, list[Touched]]:
    return {"add": [data("new", category)]}


DECLARED = [
    # level, filter, what came meanwhile, outcome
    ("snapshot", None, elsewhere("a"), "rebased"),
    ("snapshot", None, {"remove": ["a2"], "add": [data("n", "a")]}, "rebased"),
    ("snapshot", None, {"remove": ["a1"], "add": [data("n", "a")]}, "409 conflict.C6"),
    ("serializable", IN_A, elsewhere("b"), "rebased"),
    ("serializable", IN_A, elsewhere("a"), "409 conflict.C1"),
    ("serializable", IN_A, {"remove": ["a2"], "add": [data("n", "b")]}, "409 conflict.C2"),
    ("serializable", "true", elsewhere("b"), "409 conflict.C1"),
]


@pytest.mark.parametrize(("level", "filter_", "theirs", "expected"), DECLARED)
def test_r2_a_declared_scope_decides(level: str, filter_: str | None, theirs: dict[str, Any], expected: str) -> None:
    assert run(after(theirs, words(level, filter_))) == expected


def test_a_conflict_in_what_was_read_names_the_partition_of_what_came_or_went() -> None:
    """The commit's own files name it no more than its scope does: the file is the other's."""

    async def story(filter_: str, theirs: dict[str, Any]) -> IcetowerError:
        world = World()
        await create(world, 2)
        ann, bob = Client(world, "ann"), Client(world, "bob")
        await ann.refresh()
        await outcomes(await ann.append(A1, A2, B1, **BLIND))
        await ann.refresh()
        await bob.refresh()
        request = await ann.merge(add=[data("a3", "a")], remove=["a1"], **words("serializable", filter_))
        assert await outcomes(await bob.merge(**theirs)) == ["direct"]
        with pytest.raises(IcetowerError) as caught:
            await request.send()
        return caught.value

    escape = elsewhere("c\x1b[2J")
    gone = {"remove": ["a2"], "add": [data("n", "b")]}
    for filter_, theirs, rule, partition in (
        ("true", escape, "conflict.C1", "category=c\x1b[2J"),
        (IN_A, gone, "conflict.C2", "category=a"),
    ):
        error = run(story(filter_, theirs))
        assert (error.rule, error.partitions) == (rule, (partition,))
        assert f" in {partition.replace(chr(27), ' ')}: " in error.message  # a name commands no terminal


@pytest.mark.parametrize(("most", "expected"), [(100, "rebased"), (59, "409 conflict.C1")])
def test_a8_a_filter_is_compared_with_so_many_files_and_takes_the_rest_for_read(
    most: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit with a filter of 60 KB, after one of 20,000 files, held up everybody for a hundred seconds."""
    monkeypatch.setattr(written, "COMPARISONS_MAX", most)
    long = json.dumps({"type": "in", "term": "category", "values": ["a", *(f"x{n}" for n in range(18))]})
    theirs = {"add": [data(f"new{n}", "b") for n in range(3)]}
    assert comparisons(from_json(json.loads(long))) == 20
    assert run(after(theirs, words("serializable", long))) == expected


LIES = [
    # what came meanwhile, what must stand against Ann, whatever she says that she has read
    ({"remove": ["a1"], "add": [data("n", "b")]}, "409 conflict.C6"),
    ({"deletes": [positions("p", "a", target=A1)]}, "409 conflict.C3b"),
    ({"deletes": [positions("p", "a")]}, "409 conflict.C3b"),
    ({"deletes": [equalities("e", "a")]}, "409 conflict.C3b"),
]


@pytest.mark.parametrize("filter_", ["false", json.dumps({"type": "eq", "term": "category", "value": "zzz"}), IN_A])
@pytest.mark.parametrize(("theirs", "expected"), LIES)
def test_r2_a_lying_filter_hides_no_object(filter_: str, theirs: dict[str, Any], expected: str) -> None:
    """C4 and C5 of Iceberg's own client look through the filter; the tower compares what both have written."""
    assert run(after(theirs, words("serializable", filter_))) == expected
    assert run(after(theirs, words("snapshot", filter_))) == expected


def test_r2_a_lying_filter_hides_no_data_file_that_is_gone() -> None:
    mine = {"deletes": [positions("mine", "a", target=A1)]}
    gone = {"remove": ["a1"], "add": [data("n", "a")]}
    assert run(after(gone, words("serializable", "false"), mine=mine)) == "409 conflict.C4"


def test_r2_who_lies_loses_isolation_and_nobody_else_anything() -> None:
    """A phantom is the writer's own loss: had it said that it reads nothing, it would have been a blind append."""
    assert run(after(elsewhere("a"), words("serializable", "false"))) == "rebased"


CONTRACT = """version: 1
agent: ann
tables:
- {table: db.t, operations: [overwrite], write_location: table, partitions: [{category: a}], read_scope: owned}
"""


TWO_OWNED = CONTRACT.replace("{category: a}", "{category: [a, c]}")


async def by_contract(text: str, theirs: dict[str, Any], *, predicate: bool = False) -> str:
    """How ann's commit ends under a contract: a MERGE of a1, or an INSERT OVERWRITE of the empty partition c."""
    world = World()
    await create(world, **{"write.data.path": "file:///w/db/t/data"})
    ann, bob = Client(world, "ann"), Client(world, "bob")
    await ann.refresh()
    assert await outcomes(await ann.append(A1, A2, B1, **BLIND)) == ["direct"]
    await ann.refresh()
    await bob.refresh()
    if predicate:
        request = await ann.prepare(Operation(Kind.REPLACE_PARTITIONS, (data("c1", "c"),)))
    else:
        request = await ann.merge(add=[data("a3", "a")], remove=["a1"])
    base = await world.head()
    changes = await read_changes(world.manifests, base.metadata, Updates(request.updates))
    assert await outcomes(await bob.merge(**theirs)) == ["direct"]
    principal = Principal("ann", load(text, source="test"), 1)
    member = judged(principal, request.table, base.metadata, changes, request.requirements, request.updates)
    try:
        committed = await world.engine.submit(member)
    except IcetowerError as error:
        return f"{error.status} {error.rule}"
    assert isinstance(committed, Committed)
    return committed.outcome


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (elsewhere("b"), "rebased"),
        ({"remove": ["b1"], "add": [data("n", "b")]}, "rebased"),
        (elsewhere("a"), "409 conflict.C1"),
        ({"remove": ["a2"], "add": [data("n", "b")]}, "409 conflict.C2"),
        ({"deletes": [positions("p", "a", target=A2)]}, "409 conflict.C3a"),
        ({"remove": ["a1"], "add": [data("n", "b")]}, "409 conflict.C6"),
    ],
)
def test_r2_a_contract_that_owns_what_it_reads_decides(theirs: dict[str, Any], expected: str) -> None:
    assert run(by_contract(CONTRACT, theirs)) == expected


def test_r2_without_the_promise_the_client_is_sent_back() -> None:
    silent = CONTRACT.replace(", read_scope: owned", "")
    assert run(by_contract(silent, elsewhere("b"))) == "409 rebase.reads"


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (elsewhere("b"), "rebased"),
        ({"remove": ["b1"], "add": [data("n", "b")]}, "rebased"),
        (elsewhere("c"), "409 conflict.C1"),  # the other job's rows, which an evaluation anew would have replaced
        (elsewhere("a"), "409 conflict.C1"),
        ({"remove": ["a2"], "add": [data("n", "b")]}, "409 conflict.C2"),
        ({"deletes": [positions("p", "a", target=A2)]}, "409 conflict.C3a"),
    ],
)
def test_r3_a_predicate_inside_owned_partitions_finds_the_same_rows_where_nothing_came_in(
    theirs: dict[str, Any], expected: str
) -> None:
    """PyIceberg's `overwrite` and `upsert`, and INSERT OVERWRITE, under `read_scope: owned`."""
    assert run(by_contract(TWO_OWNED, theirs, predicate=True)) == expected


@pytest.mark.parametrize("instead", ["", ", isolation: snapshot"])
def test_r3_without_that_promise_a_predicate_is_evaluated_anew(instead: str) -> None:
    text = TWO_OWNED.replace(", read_scope: owned", instead)
    assert run(by_contract(text, elsewhere("b"), predicate=True)) == "409 rebase.predicate"

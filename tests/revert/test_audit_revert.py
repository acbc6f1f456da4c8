"""What an agent wrote is taken back: what remains is the history without it, or it is refused by name."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from icetower.audit.auditor import Options
from icetower.contracts.document import load
from icetower.errors import BadRequest
from icetower.iceberg.entry_checks import live_entries
from icetower.iceberg.manifests import read_manifest, read_manifest_list
from icetower.protocol.marks import (
    AUTHOR,
    BASE,
    BLIND,
    BLIND_APPENDS,
    FILTER,
    GROUP_FILE,
    PRINCIPAL,
    PUBLISHED_BRANCH,
    PUBLISHED_OF,
    READ_SNAPSHOT,
    REVERTS,
    REVERTS_OF,
    SOURCE_SNAPSHOT,
)
from icetower.protocol.names import Identifier
from icetower.revert.agents import Agent, Naming, Wanted
from icetower.revert.reverting import Plan
from icetower.revert.unread import Promises, Version
from icetower.table.groups import Group, GroupedAppend, write_group
from icetower.table.head import HeadState
from tests.audit.audit_world import audited, said
from verify.histories.memory import MemoryFiles, Table
from verify.histories.serial import START_MS, File, World

RED = ("red",)


def taken_back(
    table: Table, agent: str = "ann", since_ms: int = 0, *, promises: Promises | None = None, unread: bool = False
) -> tuple[Plan, Table | None]:
    """The plan, and the table after the commit; None where something stands against it.

    Args:
        unread: who doesn't say what it has read has not read what the agent wrote.
    """

    async def story() -> tuple[Plan, Table | None]:
        revert = Agent(table.head, table.files, Wanted(agent, since_ms))
        plan = await revert.plan(promises)
        if any(each.certain or not unread for each in plan.dependencies) or plan.nothing:
            return plan, None
        names = (f"r{at}" for at in itertools.count())
        naming = Naming(777, START_MS + 10**9, {"engine-name": "icetower"}, lambda: next(names))
        draft = await revert.draft(plan, naming)
        metadata: dict[str, Any] = {
            **table.head.metadata,
            "snapshots": [*table.head.metadata["snapshots"], draft.snapshot],
            "current-snapshot-id": 777,
            "refs": {"main": {"type": "branch", "snapshot-id": 777}},
            "last-sequence-number": draft.snapshot.get("sequence-number", 0),
        }
        files = MemoryFiles({**table.files.files, **draft.files})
        return plan, Table(HeadState("after", metadata), files)

    return asyncio.run(story())


def content_of(world: World, table: Table) -> list[int]:
    """The rows of the table's head, read from its manifests."""
    snapshot = table.head.metadata["snapshots"][-1]
    rows = read_manifest_list(table.files.files[snapshot["manifest-list"]])
    manifests = {row.path: read_manifest(table.files.files[row.path]) for row in rows}
    files: list[File] = []
    for live in live_entries(rows, manifests):
        known = world.by_path[live.entry.file.path]
        entry = replace(live.entry, sequence_number=live.sequence_number)
        files.append(File(entry, known.spec_id, known.rows, known.positions))
    return world.content(files)


def without(world: World, agent: str, since: int = 0) -> list[int] | None:
    """The rows of the history without an agent; None where others' commits cannot be done without it."""
    files: dict[str, File] = {}
    for at, (author, added, removed) in enumerate(world.log):
        if author == agent and at >= since:
            continue
        for file in removed:
            if files.pop(file.path, None) is None and any(each.content == 0 for each in added):
                return None
        files.update((file.path, file) for file in added)
    return world.content(files.values())


def world_of_two(seed: int, commits: int = 24) -> World:
    """Two agents that keep to partitions of their own, now and then to each other's."""
    chance = random.Random(seed)
    world = World(seed, 1 + seed % 3, declared=0)
    for _ in range(commits):
        world.author = chance.choice(("ann", "bob", "bob"))
        world.commit_any()
    return world


@pytest.mark.parametrize("seed", range(60))
def test_what_remains_is_the_history_without_the_agent_or_it_is_refused(seed: int) -> None:
    world = world_of_two(seed, 10 + seed % 20)
    table = world.table()
    since = len(world.log) - 6
    plan, after = taken_back(table, since_ms=START_MS + since * 1_000, unread=True)
    if after is None:
        assert plan.dependencies or plan.nothing
        return
    assert content_of(world, after) == without(world, "ann", since)
    assert not said(audited(after, Options(tower=False)))


def test_the_property_above_is_not_empty() -> None:
    taken = refused = 0
    for seed in range(60):
        world = world_of_two(seed, 10 + seed % 20)
        plan, after = taken_back(world.table(), since_ms=START_MS + (len(world.log) - 6) * 1_000, unread=True)
        taken, refused = taken + (after is not None), refused + any(each.certain for each in plan.dependencies)
    assert taken > 10
    assert refused > 10


def story(*, version: int = 2) -> tuple[World, File]:
    """Bob has a file, and so has the agent."""
    world = World(1, version, declared=0)
    world.author = "bob"
    world.commit("append", [world.data(range(10), (0, RED))])
    world.author = "ann"
    file = world.data(range(100, 110), (0, RED))
    world.commit("append", [file])
    world.author = "bob"
    return world, file


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_append_is_taken_back(version: int) -> None:
    world, file = story(version=version)
    world.commit("append", [world.data(range(200, 210), (0, RED))], summary={BLIND: "true"})
    plan, after = taken_back(world.table())
    assert after is not None
    assert [item.path for item in plan.remove] == [file.path]
    assert content_of(world, after) == [*range(10), *range(200, 210)]
    snapshot = after.head.metadata["snapshots"][-1]
    assert snapshot["summary"]["operation"] == "delete"
    assert snapshot["summary"]["deleted-records"] == "10"
    assert snapshot["summary"]["icetower.reverts"] == str(plan.snapshots[0])
    assert snapshot["parent-snapshot-id"] == table_head(world)
    assert len(after.head.metadata["snapshots"]) == 4  # history stays


def table_head(world: World) -> int:
    return world.metadata["snapshots"][-1]["snapshot-id"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_rewrite_is_taken_back_and_what_it_replaced_is_there_again(version: int) -> None:
    world = World(1, version, declared=0)
    world.author = "bob"
    old = world.data(range(10), (0, RED))
    world.commit("append", [old])
    world.author = "ann"
    world.commit("overwrite", [world.data(range(3), (0, RED))], [old])
    plan, after = taken_back(world.table())
    assert after is not None
    assert [item.path for item in plan.restore] == [old.path]
    assert content_of(world, after) == list(range(10))
    assert after.head.metadata["snapshots"][-1]["summary"]["operation"] == "overwrite"
    assert not said(audited(after, Options(tower=False)))


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_are_taken_back_and_older_ones_are_there_again(version: int) -> None:
    world = World(1, version, declared=0)
    world.author = "bob"
    data = world.data(range(10), (0, RED))
    world.commit("append", [data])
    first = world.deletes({data.path: frozenset({1})})
    world.commit("delete", [first])
    world.author = "ann"
    world.commit("delete", [world.deletes({data.path: frozenset({1, 5})})], [first])
    plan, after = taken_back(world.table())
    assert after is not None
    assert [item.path for item in plan.restore] == [first.path]
    assert content_of(world, after) == [0, *range(2, 10)]


def depends(world: World) -> list[tuple[int | None, str]]:
    plan, after = taken_back(world.table())
    assert after is None
    return [(each.snapshot_id, each.why) for each in plan.dependencies]


def test_who_replaced_what_the_agent_wrote_is_named() -> None:
    world, file = story()
    blamed = world.commit("overwrite", [world.data(range(100, 105), (0, RED))], [file])
    ((snapshot_id, why),) = [each for each in depends(world) if "replaced" in each[1]]
    assert snapshot_id == blamed
    assert f"replaced {file.path.rpartition('/')[2]}" in why


def test_who_compacted_what_the_agent_wrote_is_named() -> None:
    world, file = story()
    blamed = world.commit("replace", [world.data(file.rows, (0, RED))], [file])
    assert [snapshot_id for snapshot_id, _ in depends(world)] == [blamed]


def test_who_deleted_rows_of_what_the_agent_wrote_is_named() -> None:
    world, file = story()
    blamed = world.commit("delete", [world.deletes({file.path: frozenset({1})})])
    assert (blamed, True) in [(snapshot_id, "deleted rows of" in why) for snapshot_id, why in depends(world)]


def test_who_has_read_what_the_agent_wrote_is_named() -> None:
    world, _ = story()
    seen = str(table_head(world))
    words = {READ_SNAPSHOT: seen, FILTER: '{"type": "gt", "term": "id", "value": 50}'}
    blamed = world.commit("overwrite", [world.data(range(300, 305), (0, ("blue",)))], summary=words)
    assert [(snapshot_id, "has read" in why) for snapshot_id, why in depends(world)] == [(blamed, True)]
    elsewhere = {**words, FILTER: '{"type": "lt", "term": "id", "value": 50}'}
    other, _ = story()
    other.commit("overwrite", [other.data(range(300, 305), (0, ("blue",)))], summary=elsewhere)
    assert taken_back(other.table())[1] is not None


def test_who_may_have_read_it_is_named_as_such() -> None:
    world, _ = story()
    mine = next(file for file in world.of(0) if file.rows[0] == 0)
    blamed = world.commit("overwrite", [world.data(range(5), (0, RED))], [mine])
    plan, _ = taken_back(world.table())
    assert [(each.snapshot_id, each.certain) for each in plan.dependencies] == [(blamed, False)]


SPARK = {"engine-name": "spark", "engine-version": "4.1.0", "spark.app.id": "app-1"}
MERGED = {**SPARK, "spark.merge-into.num-target-rows-inserted": "5"}
BLUE = (0, ("blue",))


@pytest.mark.parametrize("words", [{}, SPARK, MERGED, {"engine-name": "pyiceberg"}, {READ_SNAPSHOT: "1007"}])
@pytest.mark.parametrize("operation", ["append", "overwrite"])
def test_r11_who_says_nothing_of_its_reads_may_have_read_it(words: dict[str, str], operation: str) -> None:
    """Trap R11: an insert-only MERGE and INSERT … SELECT are appends, wherever they write; Spark marks only the one."""
    world, _ = story()
    blamed = world.commit(operation, [world.data(range(200, 210), BLUE)], summary=words)
    plan, after = taken_back(world.table())
    assert [(each.snapshot_id, each.certain) for each in plan.dependencies] == [(blamed, False)]
    assert after is None
    _, after = taken_back(world.table(), unread=True)
    assert after is not None
    assert content_of(world, after) == [*range(10), *range(200, 210)]


@pytest.mark.parametrize(
    "words",
    [
        {BLIND: "true"},
        {READ_SNAPSHOT: "none"},
        {READ_SNAPSHOT: "1000"},  # bob's first: before the agent's
        {BASE: "1000"},
        {FILTER: "false"},
        {REVERTS: "1000"},
        {"kafka.connect.offsets.t.0": "7"},
        {GROUP_FILE: "mem://serial/metadata/_group.json"},
    ],
)
def test_r11_who_says_that_it_has_not_read_it_is_no_obstacle(words: dict[str, str]) -> None:
    world, _ = story()
    added = world.data(range(200, 210), (0, RED))
    snapshot_id = world.commit("append", [added], summary=words)
    theirs = (GroupedAppend("bob", None, None, "", (added.path,)),)
    path = "mem://serial/metadata/_group.json"
    world.storage[path] = write_group(Group(world.metadata["table-uuid"], "main", snapshot_id, theirs))
    assert taken_back(world.table())[1] is not None


@pytest.mark.parametrize(
    ("words", "stands"),
    [({}, False), (SPARK, False), (MERGED, True), ({"source-snapshot-id": "1000"}, True), ({BLIND: "false"}, True)],
)
def test_r11_the_table_says_that_its_appends_read_nothing(words: dict[str, str], stands: bool) -> None:
    world, _ = story()
    world.metadata["properties"] = {BLIND_APPENDS: "true"}
    world.commit("append", [world.data(range(200, 210), (0, RED))], summary=words)
    assert (taken_back(world.table())[1] is None) == stands


def promises(words: str, *, since_ms: int = 0) -> Promises:
    """Of bob, in force from a time on."""
    text = f"version: 1\nagent: bob\ntables:\n  - table: shop.sales\n    operations: [append, overwrite]\n{words}"
    version = Version(since_ms, load(text, source="test"))
    return Promises(Identifier.parse("shop.sales"), {"bob": [version]})


WHOLE = "    partitions: all\n"
ITS_OWN = "    partitions: [{category: [blue]}]\n"


@pytest.mark.parametrize(
    ("words", "operation", "stands"),
    [
        (WHOLE, "append", True),
        (WHOLE + "    blind_appends: true\n", "append", False),
        (WHOLE + "    blind_appends: true\n", "overwrite", True),
        (WHOLE + "    read_scope: owned\n", "append", True),
        (ITS_OWN + "    read_scope: owned\n", "append", False),
        (ITS_OWN + "    read_scope: owned\n", "overwrite", False),
        ("    partitions: [{category: [red]}]\n    read_scope: owned\n", "append", True),
        (ITS_OWN, "append", True),
    ],
)
def test_r11_the_contract_that_was_in_force_says_what_was_read(words: str, operation: str, stands: bool) -> None:
    """`read_scope: owned` covers those who own nothing where the agent wrote."""
    world, _ = story()
    world.commit(operation, [world.data(range(200, 210), BLUE)])
    assert (taken_back(world.table(), promises=promises(words))[1] is None) == stands
    later = promises(words, since_ms=START_MS + 10**9)
    assert taken_back(world.table(), promises=later)[1] is None


@pytest.mark.parametrize(
    ("operation", "certain", "reads"), [("overwrite", True, "reads"), ("append", False, "may have")]
)
def test_r11_who_reads_by_contract_where_the_agent_wrote_is_explained_by_it(
    operation: str, certain: bool, reads: str
) -> None:
    """A contract is heard as the summary's own filter is. An append may depend on nothing."""
    world, _ = story()
    blamed = world.commit(operation, [world.data(range(200, 210), (0, RED))])
    declared = promises("    partitions: [{category: [red]}]\n    read_scope: owned\n")
    plan, after = taken_back(world.table(), promises=declared, unread=True)
    ((snapshot_id, why, known),) = [(each.snapshot_id, each.why, each.certain) for each in plan.dependencies]
    assert (snapshot_id, known) == (blamed, certain)
    assert "nothing says" not in why
    assert reads in why
    assert "partition category=red by its contract (read_scope: owned), and the agent wrote there" in why
    assert (after is None) == certain


def test_who_only_dropped_it_is_no_obstacle() -> None:
    world, file = story()
    world.commit("delete", (), [file], summary={FILTER: "false"})
    plan, _ = taken_back(world.table())
    assert (plan.dependencies, plan.nothing) == ((), True)


def test_a_file_whose_deletes_would_not_reach_it_any_more_stays_away() -> None:
    world = World(1, 2, declared=0)
    world.author = "bob"
    data = world.data(range(10), (0, RED))
    world.commit("append", [data])
    world.commit("delete", [world.equality([3], (0, RED))])
    world.author = "ann"
    world.commit("delete", (), [data])
    ((snapshot_id, why),) = depends(world)
    assert snapshot_id is None
    assert "cannot come back" in why


def bobs_file(version: int) -> tuple[World, File]:
    world = World(1, version, declared=0)
    world.author = "bob"
    data = world.data(range(10), (0, RED))
    world.commit("append", [data])
    return world, data


@pytest.mark.parametrize("kind", ["of the file", "of the partition", "by equality", "superseded"])
@pytest.mark.parametrize("operation", ["replace", "overwrite"])
def test_who_rewrote_a_file_under_the_agents_deletes_is_named(kind: str, operation: str) -> None:
    """Iceberg's compaction leaves delete files where they are: they are about nothing any more."""
    world, data = bobs_file(2)
    second = world.data(range(10, 20), (0, RED))
    world.commit("append", [second])
    world.author = "ann"
    made = {
        "of the file": world.deletes({data.path: frozenset({1})}),
        "of the partition": world.deletes({data.path: frozenset({1}), second.path: frozenset({1})}),
        "by equality": world.equality([1], (0, RED)),
        "superseded": world.deletes({data.path: frozenset({1})}),
    }[kind]
    world.commit("delete", [made])
    world.author = "bob"
    words = {FILTER: "false"}
    if kind == "superseded":
        merged = world.deletes({data.path: frozenset({1, 3})})
        world.commit("delete", [merged], [made], summary=words)
    blamed = world.commit(operation, [world.data([0, 2], (0, RED))], [data], summary=words)
    named = depends(world)
    if kind == "superseded":
        assert "took the place of" in named.pop(0)[1]
    assert [(snapshot_id, "of which the agent had deleted rows" in why) for snapshot_id, why in named] == [
        (blamed, True)
    ]


@pytest.mark.parametrize("version", [2, 3])
def test_a_vector_that_another_supersedes_is_built_on_though_its_file_goes_later(version: int) -> None:
    world, data = bobs_file(version)
    world.author = "ann"
    first = world.deletes({data.path: frozenset({1})})
    world.commit("delete", [first])
    world.author = "bob"
    second = world.deletes({data.path: frozenset({1, 3})})
    blamed = world.commit("delete", [second], [first], summary={FILTER: "false"})
    world.commit("replace", [world.data([0, 2, *range(4, 10)], (0, RED))], [data, second])
    assert (blamed, True) in [(snapshot_id, "took the place of" in why) for snapshot_id, why in depends(world)]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("author", ["bob", "ann"])
def test_who_removed_deletes_that_were_about_nothing_is_named(version: int, author: str) -> None:
    """Without the agent's compaction they would have been about something: their rows would come back with the file."""
    world, data = bobs_file(version)
    world.author = author
    deletes = world.deletes({data.path: frozenset({1})})
    world.commit("delete", [deletes])
    world.author = "ann"
    world.commit("replace", [world.data([0, *range(2, 10)], (0, RED))], [data])
    world.author = "bob"
    blamed = world.commit("delete", (), [deletes], summary={FILTER: "false"})
    if author == "bob":
        assert [(snapshot_id, "removed positions-2" in why) for snapshot_id, why in depends(world)] == [(blamed, True)]
        return
    _, after = taken_back(world.table())
    assert after is not None
    assert content_of(world, after) == list(range(10))


@pytest.mark.parametrize("said", [False, True])
def test_what_was_brought_back_by_taking_back_that_is_taken_back_again(said: bool) -> None:
    """Whether or not the commits say whose they take back; a revert is the principal's who ran it."""
    world, file = story()
    written = str(table_head(world))
    world.author = "admin"
    of_ann, of_admin = ({REVERTS_OF: "ann"}, {REVERTS_OF: "admin"}) if said else ({}, {})
    taken = world.commit("delete", (), [file], summary={REVERTS: written, **of_ann})
    assert taken_back(world.table())[0].nothing
    world.commit("append", [file], summary={REVERTS: str(taken), **of_admin})
    plan, after = taken_back(world.table())
    assert len(plan.snapshots) == 3
    assert plan.written == (int(written),)  # the administrator's reverts are not the agent's commits
    assert len(plan.reverts) == 2
    assert after is not None
    assert content_of(world, after) == list(range(10))


def published(of: int, **words: str) -> dict[str, str]:
    return {BLIND: "true", PUBLISHED_BRANCH: "dev", PUBLISHED_OF: str(of), SOURCE_SNAPSHOT: str(of), **words}


def test_what_another_has_published_is_taken_back_by_either_name() -> None:
    world, _ = story()
    world.author = "carl"
    theirs = world.data(range(300, 305), (0, RED))
    world.commit("append", [theirs], summary=published(1, **{AUTHOR: "ann,bert"}))
    own = world.data(range(400, 405), (0, RED))
    copy = world.commit("append", [own], summary=published(2, **{AUTHOR: "bert"}))
    world.commit("append", [world.data(range(500, 505), (0, RED))], summary=published(3))
    with pytest.raises(BadRequest, match="several agents") as refused:
        taken_back(world.table(), agent="bert")
    assert refused.value.rule == "revert.blind"
    when = next(each["timestamp-ms"] for each in world.metadata["snapshots"] if each["snapshot-id"] == copy)
    plan, after = taken_back(world.table(), agent="bert", since_ms=when, unread=True)
    assert [item.path for item in plan.remove] == [own.path]
    assert after is not None
    assert taken_back(after, agent="bert", since_ms=when)[0].nothing
    assert len(taken_back(world.table(), agent="carl")[0].written) == 3
    again = asyncio.run(Agent(after.head, after.files, Wanted("carl", when)).plan())
    assert (len(again.written), len(again.reverts), again.dependencies) == (2, 1, ())
    assert not taken_back(world.table(), agent="dora")[0].written


@pytest.mark.parametrize("grouped", [False, True])
def test_of_a_published_snapshot_that_several_have_made_the_agents_own_files_go(grouped: bool) -> None:
    """The branch's own snapshots say whose files they are, for as long as the table has them."""
    world = World(1, 2, declared=0)
    world.author = "ann"
    mine, theirs = world.data(range(10), (0, RED)), world.data(range(10, 20), (0, RED))
    path = "mem://serial/metadata/_group.json"
    if grouped:
        first = world.commit("append", [mine, theirs], summary={GROUP_FILE: path})
        appends = tuple(GroupedAppend(who, None, None, "", (f.path,)) for who, f in (("ann", mine), ("bob", theirs)))
        world.storage[path] = write_group(Group(world.metadata["table-uuid"], "dev", first, appends))
        made = [first]
    else:
        made = [world.commit("append", [mine])]
        world.author = "bob"
        made.append(world.commit("append", [theirs]))
    table = world.table()
    world.author = "carl"
    named = {PUBLISHED_BRANCH: "dev", PUBLISHED_OF: ",".join(map(str, made)), SOURCE_SNAPSHOT: str(made[-1])}
    copy = {"snapshot-id": 9, "summary": {**named, PRINCIPAL: "carl", **({} if grouped else {AUTHOR: "ann,bob"})}}
    found = Agent(table.head, table.files, Wanted("ann", 0)).published.own(copy)
    assert asyncio.run(found) == {mine.path: None}
    nobody = Agent(table.head, table.files, Wanted("dora", 0)).published.own(copy)
    assert asyncio.run(nobody) is None


def test_the_principals_of_one_contract_are_taken_back_together() -> None:
    world, _ = story()
    world.author = "cy"
    world.commit("append", [world.data(range(300, 305), (0, RED))], summary={BLIND: "true"})
    table = world.table()

    async def planned(*principals: str) -> int:
        plan = await Agent(table.head, table.files, Wanted("team", 0, principals=principals)).plan()
        return len(plan.written)

    assert [asyncio.run(planned(*who)) for who in ((), ("ann",), ("ann", "cy"))] == [0, 1, 2]


def test_only_what_came_since_then_and_only_that_agent() -> None:
    world, _ = story()
    world.author = "ann"
    late = world.data(range(400, 405), (0, RED))
    world.commit("append", [late])
    when = world.metadata["snapshots"][-1]["timestamp-ms"]
    plan, after = taken_back(world.table(), since_ms=when)
    assert [item.path for item in plan.remove] == [late.path]
    assert after is not None
    assert content_of(world, after) == [*range(10), *range(100, 110)]
    assert taken_back(world.table(), since_ms=when + 1)[0].nothing
    assert taken_back(world.table(), agent="cy")[0].nothing


def test_what_was_taken_back_is_not_taken_back_again() -> None:
    world, file = story()
    table = world.table()
    plan, after = taken_back(table)
    assert after is not None
    again, _ = taken_back(after)
    assert (again.nothing, again.dependencies) == (True, ())
    assert len(again.snapshots) == len(plan.snapshots) + 1
    world.author = "ann"
    world.commit("append", [world.data(range(400, 405), (0, RED))])
    later = world.metadata["snapshots"][-1]["timestamp-ms"]
    _, both = taken_back(world.table())
    assert both is not None
    with pytest.raises(BadRequest, match="name an earlier time"):
        taken_back(both, since_ms=later)
    assert file.path in world.by_path


def test_of_a_group_of_appends_the_agents_own_files_go() -> None:
    world = World(1, 2, declared=0)
    mine, theirs = world.data(range(10), (0, RED)), world.data(range(10, 20), (0, RED))
    path = "mem://serial/metadata/_group.json"
    snapshot_id = world.commit("append", [mine, theirs], summary={GROUP_FILE: path})
    appends = tuple(GroupedAppend(who, None, None, "", (f.path,)) for who, f in (("ann", mine), ("bob", theirs)))
    world.storage[path] = write_group(Group(world.metadata["table-uuid"], "main", snapshot_id, appends))
    plan, after = taken_back(world.table())
    assert after is not None
    assert [item.path for item in plan.remove] == [mine.path]
    assert content_of(world, after) == list(range(10, 20))


@pytest.mark.parametrize(("data", "why"), [(None, "is gone: restore mem://"), (b"{}", "cannot be read")])
def test_k1_a_snapshot_whose_group_file_is_gone_is_named(data: bytes | None, why: str) -> None:
    """Trap K1: whose appends they are is written there alone."""
    world = World(1, 2, declared=0)
    path = "mem://serial/metadata/_group.json"
    snapshot_id = world.commit("append", [world.data(range(10), (0, RED))], summary={GROUP_FILE: path})
    when = world.metadata["snapshots"][-1]["timestamp-ms"]
    if data is not None:
        world.storage[path] = data
    with pytest.raises(BadRequest, match=f"snapshot {snapshot_id} .*{why}") as refused:
        taken_back(world.table())
    assert refused.value.rule == "revert.group"
    assert taken_back(world.table(), since_ms=when + 1)[0].nothing


def test_a_branch_keeps_its_retention_and_a_tag_does_not_move() -> None:
    world, _ = story()
    table = world.table()
    head = {"type": "branch", "snapshot-id": table_head(world)}
    kept = {"max-ref-age-ms": 7, "max-snapshot-age-ms": 8, "min-snapshots-to-keep": 9}
    refs = {"main": head, "dev": head | kept, "v1": head | {"type": "tag"}}
    table = Table(HeadState("refs", {**table.head.metadata, "refs": refs}), table.files)

    async def reference(branch: str) -> Any:
        revert = Agent(table.head, table.files, Wanted("ann", 0, branch))
        plan = await revert.plan()
        names = (f"r{at}" for at in itertools.count())
        return (await revert.draft(plan, Naming(777, START_MS + 10**9, {}, lambda: next(names)))).updates[1]

    moved = {"action": "set-snapshot-ref", "ref-name": "dev", "type": "branch", "snapshot-id": 777}
    assert asyncio.run(reference("dev")) == moved | kept
    assert asyncio.run(reference("main")) == moved | {"ref-name": "main"}
    with pytest.raises(BadRequest, match="'v1' is a tag"):
        asyncio.run(reference("v1"))


@pytest.mark.parametrize("named", [True, False], ids=["parent", "rootless"])
@pytest.mark.parametrize(
    ("expired", "since", "told"),
    [
        (1, 0, False),  # bob's alone: nobody knows that
        (2, 0, False),  # the agent's first commit: only a part of what it wrote could be taken back
        (5, 0, False),  # all of the agent's: "nothing" would not be true
        (5, 5, False),  # the oldest that is left is as old as what is asked for
        (5, 6, True),
        (2, 3, True),
        (0, 0, True),
    ],
)
def test_what_has_expired_since_is_never_passed_over(named: bool, expired: int, since: int, told: bool) -> None:
    """PyIceberg's expiry leaves no parent behind; Java's leaves the name of one that is gone."""
    world = World(1, 2, declared=0)
    for at, author in enumerate(("bob", "ann", "bob", "ann", "bob", "bob")):
        world.author = author
        world.commit("append", [world.data(range(10 * at, 10 * at + 10), (0, RED))], summary={BLIND: "true"})
    table = world.table()
    listed = [dict(snapshot) for snapshot in table.head.metadata["snapshots"]][expired:]
    if expired and not named:
        listed[0].pop("parent-snapshot-id")
    since_ms = world.metadata["snapshots"][since]["timestamp-ms"] if since < 6 else listed[0]["timestamp-ms"] + 1
    table = Table(HeadState("x", {**table.head.metadata, "snapshots": listed}), table.files)
    if not told:
        with pytest.raises(BadRequest, match="its parent has expired") as refused:
            taken_back(table, since_ms=since_ms)
        assert refused.value.rule == "revert.expired"
        return
    plan, after = taken_back(table, since_ms=since_ms)
    assert len(plan.snapshots) == {6: 0, 3: 1, 0: 2}[since]
    assert (after is None) == plan.nothing


def test_what_cannot_be_told_is_refused() -> None:
    world, _ = story()
    table = world.table()
    del table.head.metadata["snapshots"][0]
    with pytest.raises(BadRequest, match="its parent has expired"):
        taken_back(Table(HeadState("x", table.head.metadata), table.files))
    table = world.table()
    path = next(path for path in table.files.files if path.endswith(("m1.avro", "m2.avro")))
    del table.files.files[path]
    with pytest.raises(BadRequest, match="a manifest or manifest list is gone"):
        taken_back(table)
    with pytest.raises(BadRequest, match="no branch 'dev'"):
        asyncio.run(Agent(table.head, table.files, Wanted("ann", 0, "dev")).plan())

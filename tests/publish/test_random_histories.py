"""Random histories of a branch and of main, published: each row is there as often as it should be.

The oracle is no plan of the tower's: it looks at which delete files apply to which data file, by the specification's
rules, before and after. What is published must leave every data file of main with its deletes, every one of the branch
with its own, and those that both began with with the deletes of both. A delete by equality on the branch also reaches
what came to main meanwhile, as after a rebase: it comes later. One on main reaches nothing that the branch has added.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from icetower.errors import CommitConflict, PublishConflict
from icetower.iceberg.change import Touched
from icetower.iceberg.entries import Live
from icetower.iceberg.records import DATA, EQUALITY_DELETES, is_vector, referenced_file
from icetower.publish.preparing import Reads
from icetower.table.head import HeadState
from icetower_client_model.operations import Kind, Operation
from tests.commit.engine_world import World, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, create, data, equalities, positions, vector
from tests.publish.publish_world import BranchClient, branch_off, live_files, publish

BLIND = {"icetower.blind": "true"}
HISTORIES = 12
CATEGORIES = "abc"
State = dict[str, frozenset[str]]
"""By the name of each live data file: the delete files that apply to it."""


@dataclass
class History:
    """One random history."""

    random: Random
    version: int
    world: World = field(default_factory=World)
    counter: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def name(self, kind: str) -> str:
        return f"{kind}{next(self.counter)}"

    async def begin(self) -> None:
        await create(self.world, self.version, **SNAPSHOT)
        main = BranchClient(self.world, "bob")
        for category in CATEGORIES:
            await main.refresh()
            files = [data(self.name("f"), category) for _ in range(self.random.randint(1, 2))]
            assert await outcomes(await main.append(*files, **BLIND)) == ["direct"]
        await branch_off(self.world)

    async def step(self, branch: str, kinds: str) -> None:
        """One commit on the newest head of a branch."""
        client = BranchClient(self.world, "ann" if branch == "agent" else "bob", branch=branch)
        await client.refresh()
        live = await live_files(self.world, client.base, branch)
        files = [each for each in live if each.entry.file.content == DATA]
        kind = self.random.choice(kinds) if files else "a"
        request: Any
        match kind:
            case "a":
                request = await client.append(data(self.name("f"), self.random.choice(CATEGORIES)), **BLIND)
            case "o":
                gone = self.random.choice(files)
                about = [_name(each) for each in live if referenced_file(each.entry.file) == gone.path]
                request = await client.merge(
                    add=[data(self.name("f"), _category(gone))], remove=[_name(gone)], supersedes=about
                )
            case "c":
                one = self.random.choice(files)
                same = [each for each in files if _category(each) == _category(one)]
                if any(_reach(each, one) for each in live if each.entry.file.content != DATA):
                    return  # its deletes would have to be written into the new file
                same = [each for each in same if not any(_reach(d, each) for d in live if d.entry.file.content != DATA)]
                some = self.random.sample(same, min(len(same), 2))
                rows = sum(each.entry.file.record_count for each in some)
                request = await client.compact(
                    data(self.name("k"), _category(one), rows), *[_name(each) for each in some]
                )
            case "e":
                delete = equalities(self.name("e"), self.random.choice(CATEGORIES))
                request = await client.prepare(Operation(Kind.ROW_DELTA, (), (delete,)))
            case _:
                target = _touched(self.random.choice(files))
                if self.version < 3:
                    delete = positions(self.name("p"), str(target.file.partition[0]), target=target)
                    request = await client.merge(deletes=[delete])
                else:
                    old = [_name(d) for d in live if is_vector(d.entry.file) and _about(d) == target.file.path]
                    request = await client.merge(deletes=[vector(self.name("v"), target)], supersedes=old)
        assert await outcomes(request) == ["direct"]

    async def state(self, branch: str) -> State:
        live = await live_files(self.world, branch=branch)
        deletes = [each for each in live if each.entry.file.content != DATA]
        return {
            _name(file): frozenset(_name(delete) for delete in deletes if _reach(delete, file))
            for file in live
            if file.entry.file.content == DATA
        }


def _name(live: Live) -> str:
    return live.path.rpartition("/")[2]


def _category(live: Live) -> str:
    return str(live.entry.file.partition[0])


def _about(live: Live) -> str | None:
    return referenced_file(live.entry.file)


def _touched(live: Live) -> Touched:
    return Touched(live.entry.file, live.row.spec_id, live.sequence_number)


def _reach(delete: Live, file: Live) -> bool:
    """Whether a delete file applies to a data file (specification, "Scan Planning")."""
    if is_vector(delete.entry.file):
        return _about(delete) == file.path
    at, since = delete.sequence_number or 0, file.sequence_number or 0
    if _category(delete) != _category(file):
        return False
    if delete.entry.file.content == EQUALITY_DELETES:
        return since < at
    return since <= at and _about(delete) in (None, file.path)


async def expected(history: History, before: State, base_number: int) -> State:
    """What main is to be after the publication. `before`: where the two parted."""
    main, agent = await history.state("main"), await history.state("agent")
    live = {branch: await live_files(history.world, branch=branch) for branch in ("main", "agent")}
    equal = {
        branch: [
            d
            for d in live[branch]
            if d.entry.file.content == EQUALITY_DELETES and (d.sequence_number or 0) > base_number
        ]
        for branch in live
    }
    files = {_name(each): each for branch in live for each in live[branch]}
    found: State = {}
    for name in main.keys() | agent.keys():
        category = _category(files[name])
        if name in before and (name not in main or name not in agent):
            continue  # one of them has removed it
        if name in before:
            found[name] = (main[name] - (before[name] - agent[name])) | (agent[name] - before[name])
        elif name in agent:
            # Rows from before the branch, compacted on it, are reached by what was deleted on main since.
            old = (files[name].sequence_number or 0) <= base_number
            theirs = {_name(d) for d in equal["main"] if _category(d) == category} if old else set[str]()
            found[name] = agent[name] | theirs
        else:
            found[name] = main[name] | {_name(d) for d in equal["agent"] if _category(d) == category}
    return found


def _totals(head: HeadState, live: list[Live]) -> None:
    """Readers answer ``count(*)`` from these."""
    summary = head.snapshots[head.metadata["refs"]["main"]["snapshot-id"]]["summary"]
    files = [each for each in live if each.entry.file.content == DATA]
    assert int(summary["total-data-files"]) == len(files)
    assert int(summary["total-delete-files"]) == len(live) - len(files)
    assert int(summary["total-records"]) == sum(each.entry.file.record_count for each in files)


def _row_ids(live: list[Live], head: HeadState) -> None:
    files = [each.entry.file for each in live if each.entry.file.content == DATA]
    spans = sorted((file.first_row_id, file.record_count) for file in files if file.first_row_id is not None)
    assert len(spans) == len(files)
    assert all(start + count <= later for (start, count), (later, _) in itertools.pairwise(spans))
    assert all(start + count <= head.metadata["next-row-id"] for start, count in spans)


async def told(history: History, *, squash: bool) -> str:
    """Two rounds of work and publication; how the first one ended."""
    await history.begin()
    ended = ""
    # A tower that was started since does not know what the table asked for when the branch began.
    for kinds, reads in (("aaoocedd", None), ("aaodde", Reads(isolation="snapshot"))):
        head = await history.world.head()
        parted = head.ref("agent")
        before, number = await history.state("agent"), head.metadata["last-sequence-number"]
        for _ in range(history.random.randint(1, 7)):
            await history.step(history.random.choice(["main", "agent"]), kinds)
        now = await history.world.head()
        if now.ref("agent") == parted:
            continue
        wanted = await expected(history, before, number)
        try:
            done = await publish(history.world, squash=squash, reads=reads, key=str(next(history.counter)))
        except PublishConflict:
            return ended or "conflict"
        except CommitConflict as refused:
            if refused.rule != "publish.squash":
                raise
            return ended or "no squash"
        assert await history.state("main") == wanted, done.outcome
        head, live = await history.world.head(), await live_files(history.world)
        _totals(head, live)
        if history.version >= 3:
            _row_ids(live, head)
        ended = ended or done.outcome
        history.world.restart()
    return ended or "nothing"


@pytest.mark.parametrize("squash", [False, True], ids=["each", "squash"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_r13_random_histories(seed: int, version: int, squash: bool) -> None:
    ended: Counter[str] = Counter()
    for number in range(HISTORIES):
        history = History(Random(f"{seed} {version} {squash} {number}"), version)
        try:
            ended[run(told(history, squash=squash))] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}, history {number}")
            raise
    assert ended["direct"] + ended["rebased"] > HISTORIES // 4, ended
    assert ended["rebased"] > 1, ended

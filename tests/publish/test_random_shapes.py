"""Random histories of several branches that are published to one another, whole and in other shapes.

The oracle knows rows and statements alone. Each statement has added some rows, or deleted one. A branch has the
statements that were made on it, those with which it began, and those of all branches that were published to it; it
reads each row that one of them has added and none has deleted, and reads it once. So it is however the statements came:
one by one, as one snapshot, as one snapshot of such snapshots, picked by a client, on two ways; also after rows were
deleted by rewriting their file, after branches were set back, and where others came in between. A publication may be
refused. Then nothing has changed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from icetower.errors import IcetowerError
from icetower.protocol.marks import SOURCE_SNAPSHOT
from icetower.publish.comparison import branches_of
from icetower.publish.preparing import Reads
from tests.commit.engine_world import TABLE, World, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, create, data
from tests.publish.publish_world import BranchClient, branch_off, names, publication, refs

BLIND = {"icetower.blind": "true"}
BRANCHES = ["main", "p", "q", "r"]
HISTORIES, STEPS = 5, 32
ALLOWED = {"publish.part", "publish.moved", "requirement.assert-ref-snapshot-id", "contract.manifest"}
"""Of what stands against a publication, beside conflicts. The last: one snapshot was made of a compaction and others,
and what the compaction wrote keeps the sequence number that it named, which the gate takes from compactions alone."""


@dataclass
class Shapes:
    """One random history, and what is known of it.

    Attributes:
        rows: of each data file.
        made: the statements that a snapshot has, with all before it.
        own: those of a snapshot alone; of those that add rows and do nothing else, which a client may pick.
        gone, brought: by statement, the row that it has deleted, and the rows that it has added.
    """

    random: Random
    version: int
    world: World = field(default_factory=World)
    counter: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    rows: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    made: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    own: dict[int, tuple[frozenset[int], list[str]]] = field(
        default_factory=dict[int, tuple[frozenset[int], list[str]]]
    )
    gone: dict[int, int] = field(default_factory=dict[int, int])
    brought: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    ended: Counter[str] = field(default_factory=Counter[str])

    async def begin(self) -> None:
        await create(self.world, self.version, **SNAPSHOT)
        await self.add("main")
        for branch in BRANCHES[1:]:
            await branch_off(self.world, branch)

    def file(self, rows: frozenset[int]) -> Any:
        name = f"f{next(self.counter)}"
        self.rows[name] = rows
        return data(name, "a", len(rows))

    async def client(self, branch: str) -> BranchClient:
        client = BranchClient(self.world, "ann", branch=branch)
        await client.refresh()
        return client

    async def committed(self, request: Any, branch: str, *statements: int) -> int:
        before = (await self.world.head()).ref(branch)
        assert await outcomes(request) == ["direct"]
        self.made[request.snapshot_id] = self.made.get(before or 0, frozenset()) | {*statements}
        return request.snapshot_id

    async def add(self, branch: str) -> None:
        statement = next(self.counter)
        self.brought[statement] = frozenset(next(self.counter) for _ in range(self.random.randint(1, 3)))
        file = self.file(self.brought[statement])
        request = await (await self.client(branch)).append(file, **BLIND)
        snapshot = await self.committed(request, branch, statement)
        self.own[snapshot] = (frozenset({statement}), [list(self.rows)[-1]])

    async def delete(self, branch: str) -> None:
        """Rewrite a file without one of its rows."""
        found = await names(self.world, branch)
        if not found:
            return
        name = self.random.choice(found)
        statement = next(self.counter)
        row = self.random.choice(sorted(self.rows[name]))
        left = self.rows[name] - {row}
        self.gone[statement] = row
        request = await (await self.client(branch)).merge(add=[self.file(left)] if left else [], remove=[name])
        await self.committed(request, branch, statement)

    async def compact(self, branch: str) -> None:
        found = await names(self.world, branch)
        if len(found) < 2:
            return
        some = self.random.sample(found, 2)
        file = self.file(self.rows[some[0]] | self.rows[some[1]])
        await self.committed(await (await self.client(branch)).compact(file, *some), branch)

    async def pick(self, branch: str) -> None:
        """A client commits an append of another branch again, maybe one that the tower has published."""
        has = self.made[(await self.world.head()).ref(branch) or 0]
        new = [snapshot for snapshot, (statements, _) in sorted(self.own.items()) if not statements & has]
        if not new:
            return
        source = self.random.choice(new)
        statements, files = self.own[source]
        again = [data(name, "a", len(self.rows[name])) for name in files]
        client = await self.client(branch)
        await self.committed(
            await client.append(*again, **BLIND, **{SOURCE_SNAPSHOT: str(source)}), branch, *statements
        )

    async def set_back(self, branch: str) -> None:
        head = await self.world.head()
        at = head.ref(branch)
        parent = head.snapshots[at].get("parent-snapshot-id") if at is not None else None
        if parent in self.made:
            await refs(self.world, {branch: parent})

    async def publish(self, *pairs: tuple[str, str]) -> None:
        """Publish branches that were compared at one time."""
        ready: list[tuple[Any, str, int]] = []
        for branch, to in pairs:
            squash = self.random.random() < 0.6
            reads = Reads(isolation="snapshot", blind=True)
            try:
                if not branches_of(await self.world.head(), TABLE, branch, to).lacking:
                    self.ended["nothing"] += 1
                    continue
                member, comparison = await publication(self.world, branch, to, squash=squash, reads=reads)
            except IcetowerError as refused:
                self.refused(refused)
                continue
            ready.append((member, to, comparison.head))
        for member, to, at in ready:
            before = self.made[(await self.world.head()).ref(to) or 0]
            was = await names(self.world, to)
            try:
                done = await self.world.engine.submit(member)
            except IcetowerError as refused:
                self.refused(refused)
                continue
            self.ended[done.outcome] += 1
            if done.outcome == "rebased" and done.snapshots:
                self.made[done.snapshots[-1]] = before | self.made[at]
                added = [name for name in await names(self.world, to) if name not in was]
                statements = self.made[at] - before
                if set(was) < set(await names(self.world, to)) and len(done.snapshots) == 1:
                    self.own[done.snapshots[-1]] = (statements, added)
            await self.check()

    def refused(self, refusal: IcetowerError) -> None:
        if refusal.rule not in ALLOWED and not refusal.rule.startswith("conflict."):
            raise refusal
        self.ended[refusal.rule] += 1

    async def check(self) -> None:
        """Each branch reads each row that it should, once."""
        head = await self.world.head()
        for branch in BRANCHES:
            statements = self.made[head.ref(branch) or 0]
            wanted = {row for each in statements for row in self.brought.get(each, ())}
            wanted -= {self.gone[each] for each in statements if each in self.gone}
            read = Counter(row for name in await names(self.world, branch) for row in self.rows[name])
            assert read == Counter(wanted), f"{branch} reads {read - Counter(wanted)} too much, or too little"

    async def step(self) -> None:
        branch, other, third = self.random.sample(BRANCHES, 3)
        match self.random.choice("aaaaaaaadddkpppppppppwwwbssxx"):
            case "a":
                await self.add(branch)
            case "d":
                await self.delete(branch)
            case "k":
                await self.compact(branch)
            case "b":
                await refs(self.world, {branch: (await self.world.head()).ref(other)})
            case "s":
                await self.set_back(branch)
            case "x":
                await self.pick(branch)
            case "w":
                await self.publish((branch, third), (other, third))
            case _:
                await self.publish((branch, other))


async def told(shapes: Shapes) -> None:
    await shapes.begin()
    for _ in range(STEPS):
        await shapes.step()
        await shapes.check()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_r13_random_shapes(seed: int, version: int) -> None:
    ended: Counter[str] = Counter()
    for number in range(HISTORIES):
        shapes = Shapes(Random(f"{seed} {version} {number}"), version)
        try:
            run(told(shapes))
        except BaseException as error:
            error.add_note(f"seed {seed}, history {number}")
            raise
        ended += shapes.ended
    assert ended["direct"] > 1, ended
    assert ended["rebased"] > HISTORIES, ended
    assert ended["publish.part"], ended

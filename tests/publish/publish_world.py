"""A tower in memory with branches: clients that work on any of them, and publications as the service makes them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icetower.admission.admitted import Admitted, Publication
from icetower.admission.facts import Facts
from icetower.admission.gate import judge
from icetower.admission.identity import Identity
from icetower.commit.engine import Committed
from icetower.commit.head import Heads
from icetower.files.changes import Manifests, read_changes
from icetower.iceberg.change import Touched
from icetower.iceberg.entries import Live, inherit
from icetower.iceberg.manifest_writing import write_manifest_list
from icetower.iceberg.manifests import DELETED
from icetower.publish.comparison import Comparison, branches_of
from icetower.publish.preparing import Reads, prepared, request_of
from icetower.registry.principals import administrator
from icetower.table.head import HeadState
from icetower_client_model.history import branch_head
from icetower_client_model.operations import Operation
from icetower_client_model.producer import Producer
from tests.commit.engine_world import TABLE, Request, World
from tests.commit.iceberg_client import Client

LATER_MS = 24 * 3600 * 1000


@dataclass
class BranchClient(Client):
    """A client of one branch."""

    branch: str = "main"

    async def live(self, head: HeadState | None = None) -> dict[str, tuple[Touched, str]]:
        head = head or self.base
        assert head is not None
        return {
            each.path.rpartition("/")[2]: (
                Touched(each.entry.file, each.row.spec_id, each.sequence_number),
                each.row.path,
            )
            for each in await live_files(self.world, head, self.branch)
        }

    async def prepare(self, operation: Operation, *, key: str | None = None, **summary: str) -> Request:
        assert self.base is not None
        world, base = self.world, self.base
        snapshot_id = world.clock.snapshot_id()
        location = base.metadata["location"]
        paths = (f"{location}/metadata/{snapshot_id}-m{at}.avro" for at in itertools.count())
        head = branch_head(base, self.branch)
        start = operation.start if operation.start is not None or head is None else head["snapshot-id"]
        operation = replace(operation, start=start, branch=self.branch)
        producer = Producer(operation, snapshot_id, base, lambda: next(paths))
        list_path = f"{location}/metadata/snap-{snapshot_id}-client.avro"
        draft = await self._attempt(producer, base, list_path)
        rows = tuple([self._stored(row, dict(draft.manifests), base, snapshot_id) for row in draft.rows])
        world.storage.files[list_path] = write_manifest_list(
            rows,
            format_version=base.format_version,
            snapshot_id=snapshot_id,
            parent_id=draft.snapshot.get("parent-snapshot-id"),
            sequence_number=draft.snapshot.get("sequence-number", 0),
            first_row_id=draft.snapshot.get("first-row-id"),
        )
        snapshot = {**draft.snapshot, "summary": {**draft.snapshot["summary"], **summary}}
        updates = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": self.branch, "type": "branch", "snapshot-id": snapshot_id},
        ]
        requirements = [
            {"type": "assert-table-uuid", "uuid": base.metadata["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": self.branch, "snapshot-id": base.ref(self.branch)},
        ]
        return Request(self, TABLE, requirements, updates, rows, key)  # type: ignore[arg-type]


async def branch_off(world: World, name: str = "agent", start: str = "main") -> None:
    """A branch at the last snapshot of another one."""
    await refs(world, {name: (await world.head()).ref(start)})


async def refs(world: World, wanted: Mapping[str, int | None]) -> None:
    """Set branches, or remove those of None, whatever they had."""
    updates: list[dict[str, Any]] = [
        {"action": "remove-snapshot-ref", "ref-name": name}
        if at is None
        else {"action": "set-snapshot-ref", "ref-name": name, "type": "branch", "snapshot-id": at}
        for name, at in wanted.items()
    ]
    await world.engine.submit(await Request(world.writer("root"), TABLE, [], updates, ()).admitted())


async def publication(
    world: World,
    branch: str = "agent",
    to: str = "main",
    *,
    squash: bool = False,
    reads: Reads | None = None,
    key: str | None = None,
    name: str = "ann",
    stage: str | None = None,
    forward_only: bool = False,
) -> tuple[Admitted, Comparison]:
    """A publication as the engine takes it."""
    head = await world.head()
    comparison = branches_of(head, TABLE, branch, to)
    assert comparison.lacking, "there is nothing to publish"
    named = head.metadata["refs"]
    request = request_of(TABLE, comparison, branch, to, named, reads or Reads())
    changes = await read_changes(world.manifests, head.metadata, request.updates, snapshots=head.snapshots)
    identity = Identity.of_append(name, to, key, None)
    who = administrator(name)
    facts = Facts(who, TABLE, head.metadata, request.requirements, request.updates, identity, world.clock.now_ms())
    parted = Publication(
        branch,
        comparison.head,
        comparison.base,
        comparison.onto,
        forward_only,
        squash,
        stage,
        comparison.copies,
        comparison.numbers,
        world.clock.now_ms() + LATER_MS,
        predicates=reads is not None and reads.isolation is not None,
    )
    admitted = judge(facts.with_files(changes, {}))
    return prepared(admitted, comparison, parted, identity, named), comparison


async def publish(world: World, branch: str = "agent", to: str = "main", **how: Any) -> Committed:
    """Publish a branch."""
    member, _ = await publication(world, branch, to, **how)
    return await world.engine.submit(member)


async def live_files(world: World, head: HeadState | None = None, branch: str = "main") -> list[Live]:
    """The live files of a branch, with everything that they inherit, as a stranger reads them."""
    head = head or await Heads(world.upstream, world.storage).load(TABLE)  # pyright: ignore[reportArgumentType]
    snapshot = branch_head(head, branch)
    manifests = Manifests(world.storage)
    return [
        live
        for row in (() if snapshot is None else await manifests.list_at(snapshot["manifest-list"]))
        for live in inherit(row, await manifests.manifest_at(row.path))
        if live.status != DELETED
    ]


async def names(world: World, branch: str = "main") -> list[str]:
    """The names of the live files of a branch, sorted."""
    return sorted(live.path.rpartition("/")[2] for live in await live_files(world, branch=branch))

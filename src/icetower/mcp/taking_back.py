"""`revert_my_commit`: one commit of the caller's own is taken back by a new one, if nobody has built on it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.agent import new_key
from icetower.contracts.model import Operation
from icetower.errors import (
    BadRequest,
    CommitConflict,
    CommitStateUnknown,
    Forbidden,
    IcetowerError,
    Unavailable,
    UpstreamFailed,
)
from icetower.iceberg import metadata as table_metadata
from icetower.mcp.results import Reverted, clean
from icetower.mcp.tables import Desk
from icetower.protocol.marks import KEY, REVERTS
from icetower.protocol.names import Identifier
from icetower.revert.agents import Agent, Naming, Wanted
from icetower.revert.reverting import Plan
from icetower.storage.file_io import FileIOStorage
from icetower.table.head import HeadState

ATTEMPTS_MAX = 3
LISTED_MAX = 20
SNAPSHOTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Place:
    head: HeadState
    storage: Mapping[str, str]


class _Files:
    """The files of a table, read on the caller's own account."""

    def __init__(self, storage: Mapping[str, str]) -> None:
        self.storage = FileIOStorage(storage)

    async def read(self, path: str) -> bytes:
        return await self.storage.read(path)

    async def read_many(self, paths: Any) -> list[bytes | None]:
        return await self.storage.read_many([*paths])

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        return await self.storage.read_range(path, offset, length_bytes)

    async def exists(self, path: str) -> bool:
        return await self.storage.exists(path)


def planned(desk: Desk, name: str, snapshot: str) -> Reverted:
    """What taking it back would do, and what stands against it; nothing is committed."""
    return asyncio.run(_revert(desk, name, snapshot, None))


def taken_back(desk: Desk, name: str, snapshot: str, confirmed: str) -> Reverted:
    """Take it back, if that is still what `question_of` has asked for (`confirmed`: its digest)."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            return asyncio.run(_revert(desk, name, snapshot, confirmed))
        except CommitConflict:
            if attempt + 1 == ATTEMPTS_MAX:
                raise
    raise AssertionError("the last attempt has returned or raised")


def question_of(plan: Reverted) -> str:
    """What a person is asked."""
    lines = [f"Take back snapshot {', '.join(plan.taken_back)} of {plan.table}? One new commit would"]
    lines += [f"- remove {each}" for each in plan.removes[:LISTED_MAX]]
    lines += [f"- bring back {each}" for each in plan.brings_back[:LISTED_MAX]]
    left_out = max(0, len(plan.removes) - LISTED_MAX) + max(0, len(plan.brings_back) - LISTED_MAX)
    return "\n".join([*lines, *([f"- and {left_out} more"] if left_out else [])])


def digest_of(plan: Reverted) -> str:
    """Stands for exactly what a person is asked: an answer counts for that alone."""
    said = json.dumps([plan.table, plan.taken_back, plan.removes, plan.brings_back])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


async def _revert(desk: Desk, name: str, snapshot: str, confirmed: str | None) -> Reverted:
    place, principal = _place(desk, name), desk.me.principal
    head = place.head
    id_ = int(snapshot) if snapshot.isascii() and snapshot.isdigit() and len(snapshot) < 20 else -1
    found = head.snapshots.get(id_)
    if found is None or len(head.snapshots) > SNAPSHOTS_MAX:
        raise BadRequest(
            f"{clean(name)} has no snapshot {clean(snapshot, 100)!r} (or too many); commit_status and query_rows name "
            "snapshots",
            rule="mcp.arguments",
        )
    wanted = Wanted(principal, found["timestamp-ms"], only=frozenset({id_}))
    files = _Files(place.storage)
    try:
        agent = Agent(head, files, wanted)
        plan = await agent.plan(None)
        if not plan.snapshots:
            raise Forbidden(
                f"snapshot {snapshot} of {clean(name)} is not {principal}'s; it can take back its own alone"
            )
        result = _result(name, plan)
        if confirmed is None or plan.dependencies or plan.nothing:
            return result
        if confirmed != digest_of(result):
            raise CommitConflict("the table has changed since a person was asked; ask again")
        words = {"engine-name": "icetower-mcp", KEY: new_key(desk.ambient)}
        naming = Naming(desk.ambient.snapshot_id(), desk.ambient.now_ms(), words, desk.ambient.uuid4)
        draft = await agent.draft(plan, naming)
        await asyncio.gather(*(files.storage.write(path, data) for path, data in draft.files.items()))
        try:
            desk.tower.commit(Identifier.parse(name), draft.requirements, _without_mark(desk, name, draft.updates))
        except (CommitStateUnknown, Unavailable, UpstreamFailed):
            raise  # it may be committed, and then the table needs its files
        except IcetowerError:
            await files.storage.delete_many(draft.files)
            raise
        done = str(draft.snapshot["snapshot-id"])
        return result.model_copy(
            update={"snapshot": done, "summary": f"snapshot {snapshot} of {clean(name)} is taken back by {done}"}
        )
    finally:
        await files.storage.close()


def _result(name: str, plan: Plan) -> Reverted:
    blocked = [clean(each.why) for each in plan.dependencies[:LISTED_MAX]]
    if blocked:
        summary = f"nothing is taken back: {len(plan.dependencies)} commits build on it, or may have read it"
    elif plan.nothing:
        summary = "nothing of it is left: there is nothing to take back"
    else:
        summary = f"taking it back removes {len(plan.remove)} files and brings back {len(plan.restore)}"
    return Reverted(
        ok=not blocked,
        summary=summary,
        table=clean(name),
        taken_back=[str(each) for each in plan.written],
        removes=[clean(f"{item.what} {item.path.rpartition('/')[2]} ({item.records} rows)") for item in plan.remove],
        brings_back=[
            clean(f"{item.what} {item.path.rpartition('/')[2]} ({item.records} rows)") for item in plan.restore
        ],
        blocked_by=blocked,
    )


def _place(desk: Desk, name: str) -> _Place:
    table = desk.table(name)
    found = desk.tower.load(name)  # as it is: PyIceberg's models leave out what they do not know
    metadata = table_metadata.parse(json.dumps(found["metadata"]).encode())
    return _Place(HeadState(str(found.get("metadata-location") or ""), metadata), dict(table.io.properties))


def _without_mark(desk: Desk, name: str, updates: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the mark of a revert, which the tower takes from those alone who may delete everywhere in the table.

    An audit then sees a delete of the caller's own files, which it is.
    """
    if desk.me.contract.grants_everywhere(frozenset({Operation.DELETE}), Identifier.parse(name)):
        return list(updates)
    found: list[Mapping[str, Any]] = []
    for update in updates:
        snapshot: Mapping[str, Any] | None = update.get("snapshot")
        if snapshot is not None:
            summary = {key: value for key, value in snapshot["summary"].items() if key != REVERTS}
            update = {**update, "snapshot": {**snapshot, "summary": summary}}
        found.append(update)
    return found

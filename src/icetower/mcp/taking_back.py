"""`revert_my_commit`: one commit of the caller's own is taken back by a new one, if nobody has built on it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from icetower.agent import new_key
from icetower.contracts.model import Operation
from icetower.errors import (
    BadRequest,
    CommitConflict,
    CommitStateUnknown,
    Forbidden,
    IcetowerError,
    NotFound,
    Unavailable,
    UpstreamFailed,
)
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.metadata import MAIN
from icetower.mcp.confined import Confines
from icetower.mcp.results import Reverted, clean
from icetower.mcp.tables import Desk
from icetower.protocol.marks import KEY, PRINCIPAL, REVERTS
from icetower.protocol.names import Identifier
from icetower.revert.agents import Agent, Naming, Wanted
from icetower.revert.reverting import Plan
from icetower.storage.file_io import FileIOStorage
from icetower.table.head import HeadState

ATTEMPTS_MAX = 3
LISTED_MAX = 20
SNAPSHOTS_MAX = 10_000
LOGGED_MAX = 1_000
LOGGED_BEFORE_MS = 3_600_000
"""A snapshot has its client's clock, and the log the tower's."""


@dataclass(frozen=True, slots=True)
class _Place:
    head: HeadState
    storage: Mapping[str, str]
    confines: Confines


class _Files:
    """The files of a table, and no others, read on the caller's own account."""

    def __init__(self, place: _Place) -> None:
        self.storage = FileIOStorage(place.storage)
        self._confines = place.confines

    async def read(self, path: str) -> bytes:
        if not self._confines.is_local(path):
            return await self.storage.read(path)
        with self._opened(path) as stream:
            return stream.read()

    async def read_many(self, paths: Any) -> list[bytes | None]:
        found: list[bytes | None] = []
        for path in paths:
            try:
                found.append(await self.read(path))
            except NotFound:
                found.append(None)
        return found

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        if not self._confines.is_local(path):
            return await self.storage.read_range(path, offset, length_bytes)
        with self._opened(path) as stream:
            stream.seek(offset)
            return stream.read(length_bytes)

    async def exists(self, path: str) -> bool:
        if not self._confines.is_local(path):
            return await self.storage.exists(path)
        try:
            self._opened(path).close()
        except NotFound:
            return False
        return True

    def _opened(self, path: str) -> BinaryIO:
        """A file of this machine, which this process alone waits for."""
        try:
            return os.fdopen(self._confines.opened(path), "rb")
        except FileNotFoundError as error:
            raise NotFound(f"File does not exist: {clean(path)}", rule="file.exists", next_step="none") from error


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
    if id_ not in head.snapshots or len(head.snapshots) > SNAPSHOTS_MAX:
        raise BadRequest(
            f"{clean(name)} has no snapshot {clean(snapshot, 100)!r} (or too many); commit_status and query_rows name "
            "snapshots",
            rule="mcp.arguments",
        )
    together = committed_together(head, id_, _logged(desk, name, head.snapshots[id_]))
    wanted = Wanted(principal, min(head.snapshots[each]["timestamp-ms"] for each in together), only=together)
    files = _Files(place)
    try:
        agent = Agent(head, files, wanted)
        plan = await agent.plan(None)
        if not plan.snapshots:
            raise Forbidden(
                f"snapshot {snapshot} of {clean(name)} is not {principal}'s; it can take back its own alone"
            )
        if len(plan.written) < len(together):
            left = min(together.difference(plan.written))
            raise Forbidden(
                f"snapshot {snapshot} of {clean(name)} came in one commit with {left}, which is not {principal}'s to "
                "take back, and a part of a commit is not taken back alone"
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
        summary += f", and deletes rows of {len(plan.delete)} that others share" if plan.delete else ""
    return Reverted(
        ok=not blocked,
        summary=summary,
        table=clean(name),
        taken_back=[str(each) for each in plan.written],
        removes=[
            *(clean(f"{item.what} {item.path.rpartition('/')[2]} ({item.records} rows)") for item in plan.remove),
            *(
                clean(f"{rows} of the {item.records} rows of {item.path.rpartition('/')[2]}")
                for item, rows in plan.rows_deleted
            ),
        ],
        brings_back=[
            clean(f"{item.what} {item.path.rpartition('/')[2]} ({item.records} rows)") for item in plan.restore
        ],
        blocked_by=blocked,
    )


def _place(desk: Desk, name: str) -> _Place:
    table = desk.table(name)
    found = desk.tower.load(name)  # as it is: PyIceberg's models leave out what they do not know
    metadata = table_metadata.parse(json.dumps(found["metadata"]).encode())
    head = HeadState(str(found.get("metadata-location") or ""), metadata)
    return _Place(head, dict(table.io.properties), Confines(name, metadata))


def _logged(desk: Desk, name: str, snapshot: Mapping[str, Any]) -> frozenset[int]:
    """The snapshots of the commit that a snapshot came in, as the log of attempts has them; none where it has not."""
    since_ms = snapshot["timestamp-ms"] - LOGGED_BEFORE_MS
    for each in desk.tower.commits(limit=LOGGED_MAX, table=name, since_ms=since_ms):
        ids = frozenset(map(int, each["snapshots"]))
        if snapshot["snapshot-id"] in ids:
            return ids
    return frozenset()


def committed_together(head: HeadState, snapshot_id: int, logged: frozenset[int]) -> frozenset[int]:
    """The snapshots that came in one commit with this one. A client's upsert makes several. Pure.

    Args:
        logged: as the log of attempts has them, if it still does.

    Raises:
        BadRequest: some of them have expired, or nobody can tell which they are.
    """
    line = {each["snapshot-id"]: each for each in table_metadata.ancestors(head.metadata, head.ref(MAIN) or -1)}
    order = list(line)
    if snapshot_id not in line:
        return frozenset({snapshot_id})
    at = order.index(snapshot_id)
    first = last = at
    while first > 0 and _same_write(line[order[first - 1]], line[order[first]]):
        first -= 1
    while last + 1 < len(order) and _same_write(line[order[last + 1]], line[order[last]]):
        last += 1
    found = frozenset(order[first : last + 1]) | logged
    if not found <= line.keys():
        raise BadRequest(
            f"snapshot {snapshot_id} came in one commit with {min(found - line.keys())}, which is not in the history "
            "of the table any more, and a part of a commit is not taken back alone",
            rule="mcp.arguments",
        )
    return found


def _same_write(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two neighbours are of one write: the same principal's, under the same key."""
    ours, theirs = (each.get("summary") or {} for each in (one, other))
    return KEY in ours and all(ours.get(name) == theirs.get(name) for name in (KEY, PRINCIPAL))


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

"""Keys in group files: read where the ledger does not have them yet, and brought into it (trap K1).

A group file is part of the table and the truth; the ledger spares reading it. The ledger says of each snapshot whether
all keys of its file are among its own, and learns it in one transaction with the keys. So nothing has to happen in any
order, and there is no number below which everything must be known: a crash leaves some snapshots unmarked, as does an
outside writer or another tower with a ledger of its own, and those are read.

What is known of a version of a table carries over to the next one, whoever wrote it: only snapshots that are new are
looked at. Their files are read even where the ledger has them: a commit that has asked the ledger before they landed
will not ask again, and must meet their keys in the plan (trap K4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from icetower.ambient import Ambient
from icetower.errors import IcetowerError, NotFound, ValidationFailed
from icetower.ledger.ledger import SEQUENCE_LIFETIMES, Batch, Commit, Group, Ledger
from icetower.ledger.ledger import commits_of as kept_as
from icetower.protocol.marks import GROUP_FILE, REF
from icetower.recent import Recent
from icetower.storage import port
from icetower.storage.port import Storage
from icetower.table.groups import key_records, read_group, snapshot_of_group_file
from icetower.table.head import HeadState
from icetower.table.keys import KeyRecord, Keys, Unreadable, records_of
from icetower.table.published import records_in

Metadata = Mapping[str, Any]

READ_AT_ONCE = 32
KEPT_AT_ONCE = 50
"""Groups in one transaction of the ledger."""

WAITING_MAX = 10_000
WAITING_MAX_BYTES = 32 * 1024 * 1024
"""Groups that wait to be brought into the ledger; the oldest give way, and are read from their files again some day."""

UNDER_WAY_MS = 15 * 60 * 1000
"""No commit is under way for longer than this between asking the ledger and its swap."""

TABLES_MAX = 100_000

log = logging.getLogger("icetower")


class GroupKeys:
    """The keys of tables, those in group files included.

    Args:
        ledger: None where there is none; then every group file is read.
    """

    def __init__(self, storage: Storage, ledger: Ledger | None, ambient: Ambient | None) -> None:
        self._storage = storage
        self._ledger = ledger
        self._ambient = ambient
        self._seen: Recent[bool] = Recent(TABLES_MAX)
        self._waiting: deque[tuple[str, Metadata, bytes]] = deque()
        self._waiting_bytes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._came = 0
        self._left = 0
        """How many have come to wait, and how many of them wait no more."""
        self._step: asyncio.Future[None] | None = None
        """Is done as soon as some wait no more."""

    async def keys_of(self, metadata: Metadata, before: HeadState | None) -> Keys:
        """The keys of a version of a table.

        Args:
            before: a version of the same table whose keys are known, if any.

        Raises:
            UpstreamFailed: a group file cannot be read now.
        """
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
        known: Collection[int] = () if before is None else before.snapshots
        fresh = [snapshot for snapshot_id, snapshot in snapshots.items() if snapshot_id not in known]
        named = {s["snapshot-id"]: s for s in fresh if GROUP_FILE in (s.get("summary") or {})}
        uuid = str(metadata.get("table-uuid"))
        if before is None:
            named = await self._unknown(uuid, named)
        read = await self._read(uuid, named.values())
        groups = {i: records for i, records in read.items() if records is not None}
        unreadable = [_unreadable(named[i]) for i, records in read.items() if records is None]
        keys = Keys() if before is None else before.keys.without([i for i in known if i not in snapshots])
        keys = keys.plus(records_of(fresh, groups)).with_unreadable(unreadable)
        forwarded = (each for each in records_in(metadata.get("properties") or {}) if each.snapshots[-1] in snapshots)
        return keys.plus([each for each in forwarded if keys.find(each.principal, each.ref, each.key or "") is None])

    async def _unknown(self, uuid: str, named: Mapping[int, Metadata]) -> dict[int, Metadata]:
        """Of snapshots with group files, those whose files must be read when nothing is known of the table."""
        first = self._seen.get(uuid) is None
        self._seen.put(uuid, True, 1)
        if self._ledger is None or self._ambient is None:
            return dict(named)
        now_ms = self._ambient.now_ms()
        kept = await self._ledger.kept_groups(uuid, named)
        if not first:
            # Commits may be under way here that asked the ledger before these were in it.
            kept = frozenset(i for i in kept if named[i].get("timestamp-ms", now_ms) < now_ms - UNDER_WAY_MS)
        oldest_ms = now_ms - SEQUENCE_LIFETIMES * self._ledger.lifetime_ms
        return {i: s for i, s in named.items() if i not in kept and s.get("timestamp-ms", now_ms) > oldest_ms}

    async def read(self, uuid: str, snapshots: Iterable[Metadata]) -> dict[int, tuple[KeyRecord, ...]]:
        """The keys in the group files of snapshots (JSON), by their ids; they are brought into the ledger as well.

        Raises `UpstreamFailed`. A file that is missing or damaged has none.
        """
        return {i: records or () for i, records in (await self._read(uuid, snapshots)).items()}

    async def _read(self, uuid: str, snapshots: Iterable[Metadata]) -> dict[int, tuple[KeyRecord, ...] | None]:
        """Likewise, with None for what is missing or damaged: the table is there to be read all the same."""
        room = asyncio.Semaphore(READ_AT_ONCE)

        async def read(snapshot: Metadata) -> tuple[KeyRecord, ...] | None:
            snapshot_id, path = snapshot["snapshot-id"], str(snapshot["summary"][GROUP_FILE])
            async with room:
                try:
                    data = await self._storage.read(path, port.GROUP_FILE)
                    records = _records(uuid, snapshot_id, data)
                except (NotFound, ValidationFailed) as error:
                    # A table stays readable though somebody has deleted a file whose purpose he did not know.
                    log.error("the keys of snapshot %d are not known: group file %s: %s", snapshot_id, path, error)
                    return None
            self._keep_soon(uuid, snapshot, data)
            return records

        named = {snapshot["snapshot-id"]: snapshot for snapshot in snapshots}
        found = await asyncio.gather(*(read(snapshot) for snapshot in named.values()))
        return dict(zip(named, found, strict=True))

    # -- into the ledger ------------------------------------------------------------------------------------------

    def landed(self, head: HeadState, before: HeadState | None, files: Mapping[str, bytes]) -> None:
        """A version was swapped in here; `files` holds its new group files. Bring their keys into the ledger."""
        uuid = str(head.metadata.get("table-uuid"))
        self._seen.put(uuid, True, 1)
        known: Collection[int] = () if before is None else before.snapshots
        for path, data in files.items():  # and not the snapshots: of these a table has thousands
            snapshot_id = snapshot_of_group_file(path)
            snapshot = None if snapshot_id is None or snapshot_id in known else head.snapshots.get(snapshot_id)
            if snapshot is not None and (snapshot.get("summary") or {}).get(GROUP_FILE) == path:
                self._keep_soon(uuid, snapshot, data)

    def _keep_soon(self, uuid: str, snapshot: Metadata, data: bytes) -> None:
        if self._ledger is None:
            return
        self._waiting.append((uuid, snapshot, data))
        self._waiting_bytes += len(data)
        self._came += 1
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_MAX_BYTES:
            self._next()
            self._left += 1
        if self._step is None:
            self._step = asyncio.get_running_loop().create_future()
            self._keeping = asyncio.create_task(self._keep(self._ledger, self._step))

    async def flush(self) -> None:
        """Wait until what was read or landed before this call is in the ledger, and for nothing that comes later."""
        came = self._came
        while self._left < came and self._step is not None:
            await asyncio.shield(self._step)

    async def _keep(self, ledger: Ledger, step: asyncio.Future[None]) -> None:
        try:
            while self._waiting:
                some = [self._next() for _ in range(min(len(self._waiting), KEPT_AT_ONCE))]
                try:
                    await ledger.write(Batch(groups=[_group(*each) for each in some]))
                except IcetowerError as error:
                    log.warning("the ledger could not be written: %s", error.message)
                self._left += len(some)
                step.set_result(None)
                step = self._step = asyncio.get_running_loop().create_future()
        finally:
            self._step = None
            step.set_result(None)

    def _next(self) -> tuple[str, Metadata, bytes]:
        waited = self._waiting.popleft()
        self._waiting_bytes -= len(waited[2])
        return waited


def _unreadable(snapshot: Metadata) -> Unreadable:
    summary = snapshot["summary"]
    at_ms = snapshot.get("timestamp-ms", 0)
    return Unreadable(snapshot["snapshot-id"], summary.get(REF), at_ms, str(summary[GROUP_FILE]))


def _group(uuid: str, snapshot: Metadata, data: bytes) -> Group:
    return group_of(uuid, snapshot, _records(uuid, snapshot["snapshot-id"], data))


def group_of(uuid: str, snapshot: Metadata, records: Collection[KeyRecord]) -> Group:
    """A snapshot (JSON) and what its group file holds, as the ledger keeps them."""
    return Group(uuid, snapshot["snapshot-id"], tuple(commits_of(uuid, records, snapshot.get("sequence-number"))))


def _records(uuid: str, snapshot_id: int, data: bytes) -> tuple[KeyRecord, ...]:
    group = read_group(data)
    # Of another table: a copy of its metadata under a uuid of its own has no part in its keys (trap K2).
    return key_records(group) if (group.table_uuid, group.snapshot_id) == (uuid, snapshot_id) else ()


def commits_of(table_uuid: str, records: Collection[KeyRecord], sequence_number: int | None) -> list[Commit]:
    """Records of a table as the ledger keeps them. `sequence_number`: the lowest of their snapshots, if it is known."""
    return [commit for record in records for commit in kept_as(table_uuid, record, record.snapshots, sequence_number)]

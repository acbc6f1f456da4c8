"""The batches in the target's history: those that are applied, without those that were rolled back. Pure.

A key counts as applied while the snapshot that applied it is an ancestor of the target's head. The line of ancestors
ends where snapshots have expired, and an expired snapshot may have been an ancestor, or may have been rolled back
before. So each batch names the previous batch of the same log: if one batch is in the line, so are all before it, and
no others.

The newest batch of such a chain is found in one of three ways: it is in the line; it is the missing parent of the line;
or the target has rows with its keys, if neither holds. A batch that is not decided so is unknown; a run then refuses.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icetower.iceberg.lineage import Lineage
from icetower.iceberg.metadata import current_snapshot_id
from icetower.protocol.marks import SOURCE_SNAPSHOT
from icetower.protocol.snapshots import Snapshot

Metadata = Mapping[str, Any]
FIRST = -1
"""Stands for the previous batch of a log's first one."""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch that was committed to the target, whether or not it is still in its history.

    Attributes:
        snapshot: the snapshot that committed it.
        previous: the snapshot of the batch before it; `FIRST` if there was none, None if it is not recorded.
    """

    snapshot: int
    wal_uuid: str
    start: int | None
    through: int
    committed_at_ms: int
    previous: int | None


@dataclass(frozen=True, slots=True)
class BatchStates:
    """The states of logged batches.

    Attributes:
        applied: snapshots of batches that are in the target's history.
        unknown: snapshots that have expired, and may have been rolled back before.
        tips: the newest applied batch of each log; logs without one are left out.
        complete: the target still has its whole line of ancestors, so nothing is unknown.
        cut_at_ms: when the oldest snapshot that is left in the line was committed.
    """

    applied: frozenset[int]
    unknown: frozenset[int]
    tips: Mapping[str, int]
    complete: bool
    cut_at_ms: int


def legacy_batch_id(target_uuid: str, wal_uuid: str, start: int | None, through: int) -> str:
    """The id of batches in versions whose ids did not reflect rollbacks. It proves a batch's table and log."""
    return str(uuid.uuid5(uuid.UUID(wal_uuid), f"{target_uuid}/{start}/{through}"))


def with_predecessors(batches: Iterable[LoggedBatch]) -> dict[int, LoggedBatch]:
    """The batches by snapshot, each with the one before it; if not recorded, that is found by the start of its read."""
    oldest_first = sorted(batches, key=lambda each: each.committed_at_ms)
    found: dict[int, LoggedBatch] = {}
    for batch in oldest_first:
        if batch.previous is None:
            batch = replace(batch, previous=_before(batch, found.values()))
        found[batch.snapshot] = batch
    return found


def _before(batch: LoggedBatch, earlier: Iterable[LoggedBatch]) -> int | None:
    before = [
        each.snapshot for each in earlier if each.wal_uuid == batch.wal_uuid and batch.start in (None, each.through)
    ]
    if before:
        return before[-1]
    return FIRST if batch.start is None else None


def lineage(batches: Mapping[int, LoggedBatch], snapshot: int | None) -> tuple[set[int], bool]:
    """A batch and those before it, and whether the chain is complete: it ends at a batch that is not known."""
    found: set[int] = set()
    while snapshot is not None and snapshot != FIRST and snapshot not in found:
        found.add(snapshot)
        batch = batches.get(snapshot)
        snapshot = None if batch is None else batch.previous
    return found, snapshot == FIRST


def cherry_picked(target: Metadata) -> Iterator[int]:
    """Snapshots that were cherry-picked into the target's history (Iceberg's `cherrypick_snapshot`,
    `publish_changes`)."""
    by_id = {entry["snapshot-id"]: Snapshot(entry) for entry in target["snapshots"]}
    for snapshot_id in Lineage.of(by_id.get, current_snapshot_id(target)).ids:
        source = by_id[snapshot_id].get("summary", {}).get(SOURCE_SNAPSHOT, "")
        if source.isascii() and source.isdigit():
            yield int(source)


def batch_states(target: Metadata, batches: Mapping[int, LoggedBatch], seen: Collection[int] = ()) -> BatchStates:
    """The states of the batches.

    Args:
        batches: as returned by `with_predecessors`.
        seen: batches whose rows the target has, by keys that came with no other batch.
    """
    by_id: dict[int, Snapshot] = {entry["snapshot-id"]: Snapshot(entry) for entry in target["snapshots"]}
    line = Lineage.of(by_id.get, current_snapshot_id(target))
    complete = line.cut_at is None
    path = [*line.ids]
    cut_at_ms = by_id[path[-1]]["timestamp-ms"] if path else 0
    beyond = by_id[path[-1]].parent_id if path and not complete else None
    if beyond is not None:
        path.append(beyond)
    in_history = {snapshot_id for snapshot_id in (*path, *cherry_picked(target)) if snapshot_id in batches}
    logs: dict[str, list[LoggedBatch]] = {}
    for batch in batches.values():
        logs.setdefault(batch.wal_uuid, []).append(batch)
    applied, unknown, tips = in_history, set[int](), dict[str, int]()
    for wal_uuid, of_log in logs.items():
        ids = {batch.snapshot for batch in of_log}
        tip = next((snapshot_id for snapshot_id in path if snapshot_id in ids), None)
        in_question = set[int]()
        if not complete:
            absent = {i for i in ids - in_history if i in by_id and line.has(by_id[i]) is False}
            in_question = ids - in_history - absent
        if tip is None:
            tip = next(
                (batch.snapshot for batch in reversed(of_log) if batch.snapshot in in_question & set(seen)), None
            )
            chain, whole = lineage(batches, tip)
            unknown |= (
                in_question - chain - (set() if tip is None else _on_other_lines(batches, in_question - chain, tip))
            )
        else:
            chain, whole = lineage(batches, tip)
            unknown |= set() if whole else in_question - chain
        if tip is not None:
            tips[wal_uuid] = tip
            applied |= chain if not complete else set()
    return BatchStates(frozenset(applied), frozenset(unknown - applied), tips, complete, cut_at_ms)


def _on_other_lines(batches: Mapping[int, LoggedBatch], snapshots: Collection[int], tip: int) -> set[int]:
    """The snapshots that are neither before nor after the tip: a line has either them or the tip."""
    beside: dict[int, bool] = {tip: False, FIRST: True}
    for start in snapshots:
        at, path = start, list[int]()
        while at not in beside and at in batches:
            path.append(at)
            beside[at] = False  # forged predecessors may form a cycle
            before = batches[at].previous
            if before is None:
                break
            at = before
        beside.update(dict.fromkeys(path, bool(path) and at not in path and beside.get(at, False)))
    return {snapshot for snapshot in snapshots if beside[snapshot]}


def returned_at_ms(target: Metadata) -> int:
    """When the table last returned to an existing snapshot: a rollback, or its undoing. 0 if it is not known.

    The snapshot log has each snapshot that became the current one with a time: a new snapshot's own, or the time of the
    return to an older one.
    """
    times = {entry["snapshot-id"]: entry["timestamp-ms"] for entry in target["snapshots"]}
    for entry in reversed(target.get("snapshot-log") or ()):
        if times.get(entry["snapshot-id"], entry["timestamp-ms"]) != entry["timestamp-ms"]:
            return int(entry["timestamp-ms"])
    return 0

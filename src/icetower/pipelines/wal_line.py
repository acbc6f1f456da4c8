"""Which batches are in the target's history: those that were applied, not those that a rollback took out. Pure.

A key counts as applied while the snapshot that applied it is in the target's line of ancestors. The line ends where
snapshots have expired, and an expired snapshot may have been an ancestor, or may have been rolled back before. So each
batch names the batch of the same log before it: where one batch is in the line, so are all before it, and no others.

Three things say where such a chain begins: a batch in the line; a batch that is the missing parent of the line; and
rows with a batch's keys, if the line has neither. What none of them decides is unknown, and a run refuses then.
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
"""In place of the batch before the first one of a log."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A batch that was committed to the target, whether or not it is still in its history.

    Attributes:
        snapshot: that committed it.
        previous: the snapshot of the batch before it; `FIRST` where there was none, None where nothing says it.
    """

    snapshot: int
    wal_uuid: str
    start: int | None
    through: int
    committed_at_ms: int
    previous: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What has become of logged batches.

    Attributes:
        applied: snapshots of batches that are in the target's history.
        unknown: those that have expired, and may have been rolled back before.
        tips: of each log, the newest batch that is applied; a log without one is missing.
        complete: the target still has its whole line, so that nothing is unknown.
        cut_at_ms: when the oldest snapshot was committed that the line still has.
    """

    applied: frozenset[int]
    unknown: frozenset[int]
    tips: Mapping[str, int]
    complete: bool
    cut_at_ms: int


def legacy_batch_id(target_uuid: str, wal_uuid: str, start: int | None, through: int) -> str:
    """The id that batches had before ids told of rollbacks. It proves for which table and log a batch was."""
    return str(uuid.uuid5(uuid.UUID(wal_uuid), f"{target_uuid}/{start}/{through}"))


def chained(batches: Iterable[Logged]) -> dict[int, Logged]:
    """The batches by snapshot. Of those that don't name the one before, it is found by where the log was read from."""
    oldest_first = sorted(batches, key=lambda one: one.committed_at_ms)
    found: dict[int, Logged] = {}
    for batch in oldest_first:
        if batch.previous is None:
            batch = replace(batch, previous=_before(batch, found.values()))
        found[batch.snapshot] = batch
    return found


def _before(batch: Logged, earlier: Iterable[Logged]) -> int | None:
    before = [one.snapshot for one in earlier if one.wal_uuid == batch.wal_uuid and batch.start in (None, one.through)]
    if before:
        return before[-1]
    return FIRST if batch.start is None else None


def lineage(batches: Mapping[int, Logged], snapshot: int | None) -> tuple[set[int], bool]:
    """A batch and those before it, and whether these are all: one that nothing is known of ends the chain."""
    found: set[int] = set()
    while snapshot is not None and snapshot != FIRST and snapshot not in found:
        found.add(snapshot)
        batch = batches.get(snapshot)
        snapshot = None if batch is None else batch.previous
    return found, snapshot == FIRST


def picked(target: Metadata) -> Iterator[int]:
    """Snapshots that were picked into the target's history (Iceberg's `cherrypick_snapshot`, `publish_changes`)."""
    by_id = {entry["snapshot-id"]: Snapshot(entry) for entry in target["snapshots"]}
    for snapshot_id in Lineage.of(by_id.get, current_snapshot_id(target)).ids:
        source = by_id[snapshot_id].get("summary", {}).get(SOURCE_SNAPSHOT, "")
        if source.isascii() and source.isdigit():
            yield int(source)


def standing(target: Metadata, batches: Mapping[int, Logged], seen: Collection[int] = ()) -> Standing:
    """What has become of the batches.

    Args:
        batches: as `chained` gives them.
        seen: the target has rows with keys that came with these batches, and with no other.
    """
    by_id: dict[int, Snapshot] = {entry["snapshot-id"]: Snapshot(entry) for entry in target["snapshots"]}
    line = Lineage.of(by_id.get, current_snapshot_id(target))
    complete = line.cut_at is None
    path = [*line.ids]
    cut_at_ms = by_id[path[-1]]["timestamp-ms"] if path else 0
    if path and not complete:
        path.append(by_id[path[-1]]["parent-snapshot-id"])
    there = {snapshot_id for snapshot_id in (*path, *picked(target)) if snapshot_id in batches}
    logs: dict[str, list[Logged]] = {}
    for batch in batches.values():
        logs.setdefault(batch.wal_uuid, []).append(batch)
    applied, unknown, tips = there, set[int](), dict[str, int]()
    for wal_uuid, its in logs.items():
        ids = {batch.snapshot for batch in its}
        tip = next((snapshot_id for snapshot_id in path if snapshot_id in ids), None)
        in_question = set[int]()
        if not complete:
            absent = {i for i in ids - there if i in by_id and line.has(by_id[i]) is False}
            in_question = ids - there - absent
        if tip is None:
            tip = next((batch.snapshot for batch in reversed(its) if batch.snapshot in in_question & set(seen)), None)
            chain, whole = lineage(batches, tip)
            unknown |= in_question - chain - (set() if tip is None else _beside(batches, in_question - chain, tip))
        else:
            chain, whole = lineage(batches, tip)
            unknown |= set() if whole else in_question - chain
        if tip is not None:
            tips[wal_uuid] = tip
            applied |= chain if not complete else set()
    return Standing(frozenset(applied), frozenset(unknown - applied), tips, complete, cut_at_ms)


def _beside(batches: Mapping[int, Logged], snapshots: Collection[int], tip: int) -> set[int]:
    """Those of snapshots that the tip was not built on, nor they on it: one line has either them or the tip."""
    beside: dict[int, bool] = {tip: False, FIRST: True}
    for start in snapshots:
        at, path = start, list[int]()
        while at not in beside and at in batches:
            path.append(at)
            beside[at] = False  # forged ones may go round in circles
            before = batches[at].previous
            if before is None:
                break
            at = before
        beside.update(dict.fromkeys(path, bool(path) and at not in path and beside.get(at, False)))
    return {snapshot for snapshot in snapshots if beside[snapshot]}


def returned_at_ms(target: Metadata) -> int:
    """When the table last went to a snapshot that was there before: a rollback, or its undoing. 0 if it is not known.

    The snapshot log names each snapshot that became the current one with the time: a new one's own, or that of the
    change to an older one.
    """
    times = {entry["snapshot-id"]: entry["timestamp-ms"] for entry in target["snapshots"]}
    for entry in reversed(target.get("snapshot-log") or ()):
        if times.get(entry["snapshot-id"], entry["timestamp-ms"]) != entry["timestamp-ms"]:
            return int(entry["timestamp-ms"])
    return 0

"""The next part of the write-ahead log to apply, and the batches that a target's own history records. Pure.

Progress is not a table of its own: the snapshot that applies a batch records it in its summary, so both are committed
or neither is. The newest such snapshot among the ancestors of the target's head is the progress; after a rollback of
the target the log is therefore read again from the target's state, in batches with new ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from icetower.errors import BadRequest
from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines.wal_line import FIRST, LoggedBatch, cherry_picked, returned_at_ms
from icetower.protocol.marks import KEY, MEDIATOR

Metadata = Mapping[str, Any]
Snapshot = Mapping[str, Any]

Removals = Mapping[int, int]
"""Snapshots of the log that only removed whole files → the highest data sequence number of these files."""
NO_REMOVALS: Removals = {}

REST_MS = 3_600_000
"""If the log was only compacted and pruned for so long, the progress moves on, lest it ends at an expired snapshot."""

WAL = MEDIATOR + "table-uuid"
SEQUENCE = MEDIATOR + "sequence"
FROM = MEDIATOR + "from-snapshot"
THROUGH = MEDIATOR + "through-snapshot"
BATCH = MEDIATOR + "batch"
BASE = MEDIATOR + "base-snapshot"
PREVIOUS = MEDIATOR + "previous-snapshot"
OLDEST = MEDIATOR + "oldest-decided-ms"
MEDIAN = MEDIATOR + "median-decided-ms"
PLAN = MEDIATOR + "plan"
PLAN_CHARACTERS = 12
COUNTS = ("read", "applied", "superseded", "duplicates", "rejected")


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of a batch. `read` is the sum of the others.

    Attributes:
        applied: inserted, or updated in the target.
        superseded: valid, but followed by a newer row of the same merge key in the batch.
        duplicates: their key was applied before.
        rejected: refused, with a reason in the log of rejections.
    """

    read: int = 0
    applied: int = 0
    superseded: int = 0
    duplicates: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Decided:
    """When the applied rows of a batch were decided, in milliseconds since 1970: `_written_at`, or when they landed in
    the log. What the snapshot's time exceeds it by is the lag of the batch's rows."""

    oldest_ms: int
    median_ms: int

    def lags_ms(self, committed_at_ms: int) -> tuple[int, int]:
        """The largest lag and the median one; 0 if the agent's clock is ahead."""
        return max(committed_at_ms - self.oldest_ms, 0), max(committed_at_ms - self.median_ms, 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Snapshots of the log from `start` (not included) to `through`; `start` None: the whole log as of `through`.

    Attributes:
        compacted: files of the batch may have been replaced since, by a compaction of the log.
        base: of a whole log: the snapshot whose state is read; the rest is read append by append.
        previous: the target's snapshot with the batch before this one; `FIRST` if there is none.
        returned_at_ms: when the target last went back to an older snapshot.
    """

    target_uuid: str
    wal_uuid: str
    sequence: int
    start: int | None
    through: int
    compacted: bool = True
    base: int | None = None
    previous: int = FIRST
    returned_at_ms: int = 0

    @property
    def whole(self) -> bool:
        return self.start is None

    @property
    def id(self) -> str:
        """The batch's idempotency key: the same for the same rows at the same place in the target's history, so a
        repeated batch is recognised. It differs after a rollback, so rows that are applied once more are not taken for
        a replay (trap K2)."""
        place = (self.sequence, self.previous, self.returned_at_ms)
        parts = (self.target_uuid, self.start, self.through, *place)
        return str(uuid.uuid5(uuid.UUID(self.wal_uuid), "/".join(map(str, parts))))

    def based_on(self, base: int) -> Batch:
        """The same rows, read from another state of the log."""
        return replace(self, base=base, compacted=base != self.through)

    def properties(self, counts: Counts, decided: Decided | None = None, plan: str | None = None) -> dict[str, str]:
        """The properties of the snapshot that applies the batch; `AppliedBatch` reads them back."""
        based = {} if self.base is None else {BASE: str(self.base)}
        if decided is not None:
            based |= {OLDEST: str(decided.oldest_ms), MEDIAN: str(decided.median_ms)}
        if plan is not None:
            based[PLAN] = plan
        return {
            KEY: self.id,
            WAL: self.wal_uuid,
            SEQUENCE: str(self.sequence),
            FROM: "none" if self.start is None else str(self.start),
            THROUGH: str(self.through),
            BATCH: self.id,
            PREVIOUS: str(self.previous),
            **based,
            **{MEDIATOR + name: str(getattr(counts, name)) for name in COUNTS},
        }


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """An applied batch, as the target's history records it.

    Attributes:
        plan: of the attempt that committed it: its rejections are the batch's. None if an earlier version did.
    """

    batch: str
    sequence: int
    start: int | None
    through: int
    counts: Counts
    snapshot: int
    committed_at_ms: int
    base: int | None = None
    previous: int | None = None
    decided: Decided | None = None
    plan: str | None = None


def history(target: Metadata, wal_uuid: str) -> Iterator[AppliedBatch]:
    """The batches of a log that were applied to the target, newest first, as far as the target still has them."""
    head = current_snapshot_id(target)
    if head is None:
        return
    for snapshot in ancestors(target, head):
        summary = snapshot.get("summary", {})
        if summary.get(WAL) == wal_uuid:
            yield _done(snapshot, summary)


def published(target: Metadata, wal_uuid: str) -> Iterator[AppliedBatch]:
    """The batches that are in the target's history through a cherry-pick of their snapshot.

    They are not progress: the batches before them may be missing.
    """
    sources = set(cherry_picked(target))
    return (done for uuid_, done in _marks(target) if uuid_ == wal_uuid and done.snapshot in sources)


def marked(target: Metadata) -> list[LoggedBatch]:
    """The batches of all logs that the target's metadata names, whether or not they are in its history."""
    return [
        LoggedBatch(done.snapshot, wal_uuid, done.start, done.through, done.committed_at_ms, done.previous)
        for wal_uuid, done in _marks(target)
    ]


def _marks(target: Metadata) -> Iterator[tuple[str, AppliedBatch]]:
    for snapshot in target["snapshots"]:
        summary = snapshot.get("summary", {})
        if WAL in summary:
            # Invalid marks are refused where they count as progress, in `history`.
            with suppress(BadRequest):
                yield str(summary[WAL]), _done(snapshot, summary)


def _done(snapshot: Snapshot, summary: Mapping[str, str]) -> AppliedBatch:
    try:
        start = summary[FROM]
        return AppliedBatch(
            batch=summary[BATCH],
            sequence=int(summary[SEQUENCE]),
            start=None if start == "none" else int(start),
            through=int(summary[THROUGH]),
            counts=Counts(*(int(summary[MEDIATOR + name]) for name in COUNTS)),
            snapshot=snapshot["snapshot-id"],
            committed_at_ms=snapshot["timestamp-ms"],
            base=int(summary.get(BASE, summary[THROUGH])) if start == "none" else None,
            previous=int(summary[PREVIOUS]) if PREVIOUS in summary else None,
            decided=Decided(int(summary[OLDEST]), int(summary[MEDIAN])) if MEDIAN in summary else None,
            plan=summary.get(PLAN),
        )
    except (KeyError, ValueError) as error:
        raise BadRequest(
            f"snapshot {snapshot['snapshot-id']} of the target claims progress of a log, but this is missing or "
            f"invalid: {error}; roll the target back to before it",
            rule="wal.progress",
            snapshot=snapshot["snapshot-id"],
        ) from error


def latest(target: Metadata, wal_uuid: str) -> AppliedBatch | None:
    """The progress: the batch with the highest sequence; the newest of two (an empty batch may race)."""
    return max(history(target, wal_uuid), key=lambda done: done.sequence, default=None)


def last_sequence(target: Metadata, wal_uuid: str) -> int:
    """The highest sequence in any snapshot of the target, ancestors or not; 0 if there is none."""
    summaries = (snapshot.get("summary", {}) for snapshot in target["snapshots"])
    return max((int(s[SEQUENCE]) for s in summaries if s.get(WAL) == wal_uuid and SEQUENCE in s), default=0)


def next_batch(
    target: Metadata,
    wal: Metadata,
    *,
    snapshots_max: int,
    rows_max: int,
    reread: bool,
    now_ms: int,
    removals: Removals = NO_REMOVALS,
) -> Batch | None:
    """The batch to apply now; None if there is nothing new.

    Args:
        snapshots_max: the most commits to the log in one batch; the rest is left for the next one.
        rows_max: the most rows in one batch, as long as no single snapshot has more. A whole log is one batch.
        now_ms: the time; compactions and prunings alone are passed over in a batch without rows after `REST_MS`.
        removals: what snapshots removed from the log since the end of the progress.
        reread: if the log can no longer be read from the end of the progress, take the whole log. Rows that were
            applied before are dropped by their keys.

    Raises:
        BadRequest: the log can't be read further: it has expired, was rolled back, or rows were deleted from it.
    """
    done = latest(target, wal["table-uuid"])
    head = current_snapshot_id(wal)
    if head is None or (done is not None and done.through == head):
        return None
    start = None if done is None else done.through
    fresh = None if start is None else _fresh(wal, start, head, removals, reread=reread)
    sequence = last_sequence(target, wal["table-uuid"]) + 1
    whole = Batch(
        target["table-uuid"],
        wal["table-uuid"],
        sequence,
        None,
        head,
        compacted=False,
        base=head,
        previous=FIRST if done is None else done.snapshot,
        returned_at_ms=returned_at_ms(target),
    )
    if fresh is None:
        return whole
    if all(_operation(snapshot) != "append" for snapshot in fresh) and fresh[0]["timestamp-ms"] > now_ms - REST_MS:
        return None
    through = _bounded(fresh, snapshots_max, rows_max)[-1]["snapshot-id"]
    compacted = any(_operation(snapshot) == "replace" for snapshot in fresh)
    return replace(whole, start=start, through=through, compacted=compacted, base=None)


def _bounded(snapshots: list[Snapshot], snapshots_max: int, rows_max: int) -> list[Snapshot]:
    """The first of the snapshots, with at most so many appends, and so many rows unless the first append has more."""
    rows = appends = 0
    for number, snapshot in enumerate(snapshots):
        if _operation(snapshot) != "append":
            continue
        added = int(snapshot.get("summary", {}).get("added-records", 0))
        if appends == snapshots_max or (rows and rows + added > rows_max):
            return snapshots[:number]
        rows += added
        appends += 1
    return snapshots


def _fresh(wal: Metadata, start: int, head: int, removals: Removals, *, reread: bool) -> list[Snapshot] | None:
    """The snapshots of `between`; None if it raises and `reread` asks for the whole log."""
    try:
        return between(wal, start, head, removals)
    except BadRequest:
        if reread:
            return None
        raise


def removing(wal: Metadata, start: int) -> list[int]:
    """The snapshots after `start` that only removed rows from the log."""
    found: list[int] = []
    for snapshot in ancestors(wal, current_snapshot_id(wal) or start):
        if snapshot["snapshot-id"] == start:
            break
        if _operation(snapshot) == "delete":
            found.append(snapshot["snapshot-id"])
        if snapshot.get("parent-snapshot-id") == start:
            break
    return found


def readable(wal: Metadata, batch: Batch, removals: Removals = NO_REMOVALS) -> bool:
    """Whether the log still has the snapshots that the batch was read from."""
    first = batch.base if batch.whole else batch.start
    needed = {batch.through, batch.base} if batch.whole else {batch.through}
    if not needed <= {snapshot["snapshot-id"] for snapshot in wal["snapshots"]}:
        return False
    try:
        return first is None or first == batch.through or bool(between(wal, first, batch.through, removals))
    except BadRequest:
        return False


def between(wal: Metadata, start: int, through: int, removals: Removals = NO_REMOVALS) -> list[Snapshot]:
    """The log's snapshots after `start` up to `through`, oldest first.

    `start` itself may have expired, as long as its child exists. Raises `BadRequest` if a snapshot in between is
    missing, or is neither an append, nor a compaction, nor a pruning: one that removed only files of `start` and of
    snapshots before it.
    """
    found: list[Snapshot] = []
    reached = False
    for snapshot in ancestors(wal, through):
        if snapshot["snapshot-id"] == start:
            reached = True
            break
        found.append(snapshot)
        if snapshot.get("parent-snapshot-id") == start:
            reached = True
            break
    if not reached:
        raise BadRequest(
            f"the log can't be read from snapshot {start}, where the progress ends: its history no longer has the "
            "snapshots after it (expired, or rolled back). Run once with --reread (`Job.reread`) to take the whole "
            "log: rows that were applied before are dropped by their keys. And let the log keep its snapshots longer "
            "than the longest pause of the mediator",
            rule="wal.expired",
            snapshot=start,
        )
    # Sequence numbers grow by one with each snapshot, so files of `start` have less than its child.
    applied = found[-1].get("sequence-number", 0) - 1 if found else 0
    for snapshot in found:
        pruned = removals.get(snapshot["snapshot-id"])
        if _operation(snapshot) not in ("append", "replace") and (pruned is None or pruned > applied):
            raise BadRequest(
                f"snapshot {snapshot['snapshot-id']} of the log is a {_operation(snapshot)} of rows that are not known "
                "to be applied: a log is only appended to, compacted, and pruned of what was applied. Run once with "
                "--reread (`Job.reread`) to take the log's current state",
                rule="wal.append-only",
                snapshot=snapshot["snapshot-id"],
            )
    return found[::-1]


def oldest_base(wal: Metadata, through: int) -> int:
    """The oldest snapshot from which the log can be read append by append up to `through`."""
    base = through
    for snapshot in ancestors(wal, through):
        base = snapshot["snapshot-id"]
        if _operation(snapshot) not in ("append", "replace"):
            break
    return base


def line_ranks(wal: Metadata, through: int) -> dict[int, int | None]:
    """The snapshots up to `through` that the log still has → for appends, the rank of their rows.

    A rank is the sequence number of the snapshot; snapshots of format version 1, which have none, come before others.
    """
    return {
        snapshot["snapshot-id"]: rank if _operation(snapshot) == "append" else None
        for snapshot, rank in _ranked(wal, through)
    }


def last_rank(wal: Metadata, through: int, last: int) -> int:
    """The highest rank of the snapshots up to `through` that had landed by `last`, whether or not the log has that one.

    If `last` has expired, it came before all that the log still has. If the log was rolled back to before it, what
    both have in common counts.
    """
    ranked = _ranked(wal, through)
    ranks = {snapshot["snapshot-id"]: rank for snapshot, rank in ranked}
    if any(snapshot["snapshot-id"] == last for snapshot in wal["snapshots"]):
        for snapshot in ancestors(wal, last):
            if snapshot["snapshot-id"] in ranks:
                return ranks[snapshot["snapshot-id"]]
    return ranked[-1][1] - 1


def _ranked(wal: Metadata, through: int) -> list[tuple[Snapshot, int]]:
    line = enumerate(ancestors(wal, through), 1)
    return [(snapshot, snapshot.get("sequence-number") or -at) for at, snapshot in line]


def _operation(snapshot: Snapshot) -> str:
    return str(snapshot.get("summary", {}).get("operation", "append"))

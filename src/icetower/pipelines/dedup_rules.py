"""Which rows of a table are copies of a write that landed before, and which part of its history to look at next. Pure.

A key names one write. Its rows land with one commit, so rows under one key that landed with different commits are a
write and its copies; several rows under one key that landed together are one write. The copy that landed first stays.

Where a row landed is its *origin*: a sequence number, and in a snapshot that stands for several appends (the fast path)
the number of the append. What rewrote a row since (an UPDATE, a MERGE, a compaction) does not change its origin, but in
format version 2 may leave it unknown (trap R12). Of an unknown origin is known at most when it was at the latest.

Two things always hold: no key loses its last row, and a row of unknown origin is never removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icetower.iceberg.metadata import ancestors, current_snapshot_id
from icetower.pipelines.wal_line import FIRST, returned_at_ms
from icetower.pipelines.wal_plan import REST_MS, WAL, Batch, Metadata, Snapshot, last_sequence, latest
from icetower.protocol.marks import GROUP_FILE, MEDIATOR, PRINCIPAL

THROUGH_SEQUENCE = MEDIATOR + "through-sequence"
"""Beside the progress: the sequence number of the last validated commit, which outlives that commit's snapshot."""

Origin = tuple[int, int]
"""The sequence number of the commit, and the number of the append within its snapshot (0 where it is one)."""

UNKNOWN: frozenset[Origin] = frozenset()


@dataclass(frozen=True, slots=True)
class Copy:
    """A live row.

    Attributes:
        file, position: where it is.
        origins: of which one is its own; `UNKNOWN` where nothing is known.
        by: the sequence number by which it had landed, whatever its origin is.
    """

    file: str
    position: int
    origins: frozenset[Origin]
    by: int

    @property
    def origin(self) -> Origin | None:
        return next(iter(self.origins)) if len(self.origins) == 1 else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about the rows under one key.

    Attributes:
        remove: the rows that landed with a later commit than the first.
        keep: all others.
        untold: rows among `keep` that may be copies; their origin is not known.
    """

    remove: tuple[Copy, ...]
    keep: tuple[Copy, ...]
    untold: int = 0


def decide(copies: Sequence[Copy]) -> Verdict:
    """All live rows under one key: which are copies of a write that landed before."""
    known = sorted({copy.origin for copy in copies if copy.origin is not None})
    unknown = [copy for copy in copies if copy.origin is None]
    first = known[0] if known else None
    if first is not None and any(copy.by < first[0] for copy in unknown):
        first = None  # the write of an unknown row landed before all of those
    remove = tuple(copy for copy in copies if copy.origin is not None and copy.origin != first)
    keep = tuple(copy for copy in copies if copy not in remove)
    mixed = any(copy.origins for copy in unknown)
    untold = len(unknown) if mixed or (unknown and first is not None) else 0
    return Verdict(remove, keep, untold)


@dataclass(frozen=True, slots=True)
class Landing:
    """A commit in the table's line.

    Attributes:
        group_file: names the appends that it stands for; None for one write.
        mediated: a mediator or collector committed it, and logs its keys itself.
        first_row, rows: the ids of rows that it gave out; None below format version 3.
    """

    snapshot: int
    parent: int | None
    sequence: int
    at_ms: int
    operation: str
    agent: str | None
    group_file: str | None
    mediated: bool
    first_row: int | None
    rows: int

    @property
    def brings_rows(self) -> bool:
        return self.operation in ("append", "overwrite")


def landing(snapshot: Snapshot) -> Landing:
    summary = snapshot.get("summary") or {}
    return Landing(
        snapshot=snapshot["snapshot-id"],
        parent=snapshot.get("parent-snapshot-id"),
        sequence=snapshot.get("sequence-number", 0),
        at_ms=snapshot["timestamp-ms"],
        operation=str(summary.get("operation", "append")),
        agent=summary.get(PRINCIPAL),
        group_file=summary.get(GROUP_FILE),
        mediated=WAL in summary,
        first_row=snapshot.get("first-row-id"),
        rows=int(snapshot.get("added-rows") or 0),
    )


def gave_out(line: Sequence[Landing], row_id: int) -> Landing | None:
    """The commit that gave a row its id; None if the history no longer has it."""
    for each in line:
        if each.first_row is not None and each.first_row <= row_id < each.first_row + each.rows:
            return each
    return None


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a table's history to validate now.

    Attributes:
        batch: its progress: from a snapshot (not included) through another.
        landings: the commits that brought rows, oldest first.
        lost_after: if commits of it have expired: the sequence number of the last one that was validated.
    """

    batch: Batch
    landings: tuple[Landing, ...]
    lost_after: int | None = None


def next_part(table: Metadata, *, now_ms: int, window_ms: int, snapshots_max: int, rows_max: int) -> Part | None:
    """The part to validate now; None if no rows landed since the progress.

    Without progress it begins where the window does: a write that is older is sent again by nobody.

    Args:
        snapshots_max, rows_max: bounds of one part, as long as no single commit has more rows.
    """
    uuid = table["table-uuid"]
    head = current_snapshot_id(table)
    done = latest(table, uuid)
    if head is None or (done is not None and done.through == head):
        return None
    fresh: list[Snapshot] = []
    start, found = None if done is None else done.through, done is None
    for snapshot in ancestors(table, head):
        if snapshot["snapshot-id"] == start or (done is None and snapshot["timestamp-ms"] < now_ms - window_ms):
            start, found = snapshot["snapshot-id"], True
            break
        fresh.append(snapshot)
        if start is not None and snapshot.get("parent-snapshot-id") == start:
            found = True
            break
    fresh.reverse()
    own = {s["snapshot-id"] for s in fresh if (s.get("summary") or {}).get(WAL) == uuid}
    landings = [each for each in map(landing, fresh) if each.brings_rows and each.snapshot not in own]
    bounded = _bounded(landings, table, snapshots_max, rows_max)
    through = head if len(bounded) == len(landings) else bounded[-1].snapshot
    batch = Batch(
        target_uuid=uuid,
        wal_uuid=uuid,
        sequence=last_sequence(table, uuid) + 1,
        start=start,
        through=through,
        previous=FIRST if done is None else done.snapshot,
        returned_at_ms=returned_at_ms(table),
    )
    if not found and done is not None:
        # The snapshots in between are gone; the progress itself is in the line, so it was not rolled back.
        marks = next(s for s in table["snapshots"] if s["snapshot-id"] == done.snapshot)["summary"]
        return Part(replace(batch, through=head), tuple(landings), int(marks.get(THROUGH_SEQUENCE, 0)))
    if start is None and fresh[0].get("parent-snapshot-id") is not None:
        # Not even the window is there: all files that are left are read, once.
        return Part(replace(batch, through=head), tuple(landings), lost_after=0)
    if not landings and (not fresh or fresh[0]["timestamp-ms"] > now_ms - REST_MS):
        return None
    return Part(batch, tuple(bounded))


def _bounded(landings: list[Landing], table: Metadata, snapshots_max: int, rows_max: int) -> list[Landing]:
    added = {s["snapshot-id"]: int((s.get("summary") or {}).get("added-records", 0)) for s in table["snapshots"]}
    rows = 0
    for number, each in enumerate(landings[:snapshots_max]):
        if rows and rows + added[each.snapshot] > rows_max:
            return landings[:number]
        rows += added[each.snapshot]
    return landings[:snapshots_max]


def line_of(table: Metadata, snapshot_id: int | None) -> list[Landing]:
    """The commits up to a snapshot, newest first."""
    return [] if snapshot_id is None else [landing(snapshot) for snapshot in ancestors(table, snapshot_id)]


def floor_of(line: Sequence[Landing], since_ms: int) -> int:
    """The highest sequence number before the window: rows that landed in the window are in files above it."""
    return max((each.sequence for each in line if each.at_ms < since_ms), default=0)

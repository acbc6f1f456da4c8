"""Where a sink's commit stands to the last one that its branch has; and what it is told that does not go on from it.

Pure. The refusals are 422, upon which Iceberg's Java client deletes nothing. Spark names the files of an epoch by the
query, the epoch and the task, so that two drivers may write to the same names: what the one that is refused deleted
may be live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icetower.errors import KeyMisused
from icetower.protocol.snapshots import Snapshot
from icetower.table.sinks import Kind, Mark, Place

Standing = tuple[int, ...] | KeyMisused | None
"""The snapshots as which it is done, its refusal, or None: it is new."""


def standing(
    mark: Mark, told: Sequence[tuple[Snapshot, Mark]], ref: str, has_read: Callable[[Snapshot], bool]
) -> Standing:
    """The standing of a commit to what its branch tells of its sink.

    Args:
        told: from `sinks.stated_by`; not empty.
        has_read: whether the commit was written on a version that has a snapshot in its history.
    """
    newest, last = told[0]
    place = mark.beside(last)
    # A coordinator of Kafka Connect goes by what it has read; older ones don't look again when they commit anew.
    if place is Place.AHEAD and (mark.kind is not Kind.KAFKA or has_read(newest)):
        return None
    if place is not Place.LEVEL:
        return behind(mark, last, newest.id, ref)
    if mark.in_parts and has_read(newest):
        return None  # another part; the same one again would be written on a version that lacks it, or have its files
    together = "+".join(each.content for _, each in reversed(told))
    same = tuple(snapshot.id for snapshot, each in reversed(told) if mark.content in (each.content, together))
    return same or differs(mark, last, newest.id)


def behind(mark: Mark, last: Mark, snapshot_id: int, ref: str) -> KeyMisused:
    """A number below the last one, or offsets that do not go on from the last ones."""
    is_kafka = mark.kind is Kind.KAFKA
    sent = f"offsets {dict(mark.offsets)}" if is_kafka else f"number {mark.number}"
    before = f"offsets {dict(last.offsets)}" if is_kafka else f"number {last.number}"
    return KeyMisused(
        f"{mark.application} sends {sent}, and has committed {before} as snapshot {snapshot_id}, from which this run "
        "does not go on: another run of it is at work, or this one was set back to an older checkpoint. Nothing of it "
        "was committed. Stop the run that is too much. To do again what came after an older checkpoint, set "
        f"{ref} back to the snapshot of that checkpoint. To begin anew, give the sink another name: "
        f"{mark.kind.another_name}",
        rule="sink.behind",
        snapshot=snapshot_id,
        next_step="ask_owner",
    )


def differs(mark: Mark, last: Mark, snapshot_id: int) -> KeyMisused:
    """The last number again, which stands for another commit."""
    return KeyMisused(
        f"{mark.application} sends number {mark.number} with other content ({mark.content}) than it has committed "
        f"under it as snapshot {snapshot_id} ({last.content or 'unknown'}): its numbers have begun again, two runs of "
        "it are at work, or its source gives other rows each time. Nothing of it was committed. Look which rows are "
        f"missing. To begin anew, give the sink another name: {mark.kind.another_name}",
        rule="sink.differs",
        snapshot=snapshot_id,
        next_step="ask_owner",
    )

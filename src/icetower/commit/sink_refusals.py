"""What a sink is told whose commit does not go on from its last one. Pure.

It is 422, upon which Iceberg's Java client deletes nothing. Spark names the files of an epoch by the query, the epoch
and the task, so that two drivers may write to the same names: what the one that is refused deleted may be live.
"""

from __future__ import annotations

from icetower.errors import KeyMisused
from icetower.table.sinks import Kind, Mark


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

"""Commits that only their client can validate again, because the rule that they obey is not Iceberg's own (trap R10).

Such a commit is never rebased, whoever declares what: the table, a contract or the summary. Its client gets a 409 and
validates again. The summary shows them:

- A snapshot that is *picked* (`cherrypick_snapshot`, `publish_changes`). Iceberg refuses to pick one a second time.
- A commit of *Kafka Connect*. It validates the consumer offsets that the table's history holds.
- A commit of a *mediator*. It promises that each row of a write-ahead log is applied once.
- `icetower.blind=false`, by which any other client says so.

Java's `SnapshotUpdate.validateWith` runs code of the client before each attempt, and nothing of it is sent: the request
looks like any other. In Iceberg 1.12 two writers use it. Kafka Connect's commits are named above. Flink's dynamic sink
refuses a checkpoint that is in the table; `shared_sinks` finds these, and those of every other sink that keeps its
progress in summaries. Any other client that uses `validateWith` has to say `icetower.blind=false`.

Sources: `CherryPickOperation.validate`, `WapUtil.validateWapPublish`, `SnapshotProducer.runValidations`;
`Coordinator.offsetValidator` of Kafka Connect; `DynamicCommitter.MaxCommittedCheckpointIdValidator` of Flink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from icetower.protocol.marks import (
    BLIND,
    FILTER,
    ISOLATION,
    KAFKA,
    MERGES,
    PROGRESS,
    PUBLISHED_WAP,
    READ_SNAPSHOT,
    SOURCE_SNAPSHOT,
)
from icetower.protocol.snapshots import Snapshot
from icetower.table.sinks import Sink, sinks_of

JSON = Mapping[str, Any]

_INSERTED = f"{MERGES}num-target-rows-inserted"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a commit is not rebased: the rule, and what to say."""

    rule: str
    message: str


_PICKED = Reason(
    "rebase.picked",
    "it commits a staged snapshot again, and only its client can see whether it was picked or published since",
)
_MEDIATED = Reason(
    "rebase.progress",
    "it says how far a log has been read, and only its mediator or exporter can see whether these rows are in the "
    "table since. Run it again",
)
_OFFSETS = Reason("rebase.offsets", "it validates consumer offsets, which only its client can")
_VALIDATED = Reason("rebase.not-blind", f"its summary says {BLIND}=false: only its client can validate it")


def only_its_client_validates(summary: JSON) -> Reason | None:
    """Why no declaration covers the commit of a snapshot with this summary; None where declarations count."""
    if SOURCE_SNAPSHOT in summary or PUBLISHED_WAP in summary:
        return _PICKED
    for name in summary:
        if name.startswith(KAFKA):
            return _OFFSETS
        if name.startswith(PROGRESS):
            return _MEDIATED
    return _VALIDATED if str(summary.get(BLIND, "")).lower() == "false" else None


def is_merge(summary: JSON) -> bool:
    """Whether Spark marks it as a MERGE, which has read the table."""
    return any(name.startswith(MERGES) for name in summary)


def says_what_it_read(summary: JSON) -> bool:
    """Whether its writer says that it depends on what was read."""
    return any(name in summary for name in (FILTER, ISOLATION, READ_SNAPSHOT))


def merges_new_rows(summary: JSON) -> bool:
    """Whether a MERGE inserted rows that it did not find, as far as Spark's marks tell. Twice inserted, they double."""
    if _INSERTED in summary:
        return str(summary[_INSERTED]) != "0"
    return is_merge(summary)


def shared_sinks(own: Iterable[Snapshot], since: Iterable[Snapshot]) -> tuple[Sink, Snapshot] | None:
    """A sink whose progress a commit states and a later snapshot has stated too, with that snapshot; else None.

    Args:
        own: the commit's snapshots.
        since: the snapshots that landed since the commit's base.
    """
    sinks = {sink for snapshot in own for sink in sinks_of(snapshot.summary)}
    for snapshot in since if sinks else ():
        for sink in sinks_of(snapshot.summary):
            if sink in sinks:
                return sink, snapshot
    return None

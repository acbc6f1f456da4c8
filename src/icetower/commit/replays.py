"""Was this commit sent before, and has it landed? Asked before anything of it is read.

A client that hears nothing sends again, or deletes what it wrote; a scheduler runs a job anew with other files. So the
answer must not depend on files: a commit is told by its key, by the number that its application gave it, or by the ids
of its snapshots. The plan asks again, when everything before it in the queue is known (trap K4).

The table's own word goes first. What it does not have is asked of the ledger: keys whose snapshots have expired, and
those in group files that were not read since the ledger has them. The ledger must be asked after the head was loaded:
whatever was left out of the head because the ledger had it, the ledger has then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.admit import application_of
from icetower.errors import KeyMisused
from icetower.ledger.ledger import CommitKey, Ledger
from icetower.protocol.marks import CLIENT_LIST, PRINCIPAL
from icetower.table import metadata as table_metadata
from icetower.table.head import HeadState


@dataclass(frozen=True, slots=True)
class Sent:
    """A commit by the names that it goes under.

    Attributes:
        ref: the branch or tag that it moves; empty where it moves none.
        key: its idempotency key.
        application: (application, sequence).
        snapshots: its snapshots as sent (JSON); none for an append by the fast path.
    """

    principal: str
    ref: str
    key: str | None
    application: tuple[str, int] | None
    snapshots: Sequence[Mapping[str, Any]] = ()

    @property
    def own(self) -> tuple[int, ...]:
        """The ids of its snapshots."""
        return tuple(snapshot["snapshot-id"] for snapshot in self.snapshots)


async def landed(ledger: Ledger, head: HeadState, sent: Sent) -> tuple[int, ...] | None:
    """The snapshots as which a commit has landed before; None if it has not, as far as this version of the table knows.

    Args:
        head: must have been loaded before this is called.

    Raises:
        KeyMisused: it landed and was rolled back (trap K2), or its key stands for another write of the same running
            application (trap K3).
    """
    uuid, principal, ref = str(head.metadata["table-uuid"]), sent.principal, sent.ref
    if sent.key is not None:
        snapshots, application = head.keys.find(principal, ref, sent.key), None
        if snapshots is not None:
            saved = head.snapshots.get(snapshots[-1]) or {}
            application = application_of(saved.get("summary") or {})
        elif (commit := await ledger.find_commit(CommitKey(uuid, ref, principal, sent.key))) is not None:
            snapshots, application = commit.snapshots, commit.application_id
        if snapshots is not None:
            check_on_branch(head, f"idempotency key {sent.key}", ref, snapshots)
            _check_same_write(sent, snapshots, application)
            return snapshots
    if sent.application is not None:
        name, number = sent.application
        last = head.keys.sequence(principal, ref, name)
        if last is None or last[0] < number:
            commit = await ledger.find_commit(CommitKey(uuid, ref, principal, name, numbered=True))
            last = None if commit is None or commit.sequence is None else (commit.sequence, commit.snapshots)
        if last is not None and number <= last[0]:
            check_on_branch(head, f"number {last[0]} of application {name}", ref, last[1])
            return last[1]
    return None


def check_on_branch(head: HeadState, what: str, ref: str, snapshots: Sequence[int]) -> None:
    """What was rolled back is not done: an explicit error (trap K2). Raises `KeyMisused`.

    Snapshots that have expired are done: whoever lets one go that was rolled back has its keys forgotten.
    """
    there = [snapshot_id for snapshot_id in snapshots if snapshot_id in head.snapshots]
    at = head.ref(ref)
    if not ref or not there or (at is not None and all(_is_ancestor(head, i, at) for i in there)):
        return
    raise KeyMisused(
        f"the commit under {what} landed as snapshot {there[-1]}, which is no longer in the history of {ref} "
        "(rolled back); use a new key to write it again",
        rule="key.rolled-back",
        snapshot=there[-1],
    )


def resent(head: HeadState, sent: Sent) -> tuple[int, ...] | None:
    """The snapshots of a commit that is sent once more as it is, where they are in the table and on its branch.

    All else about snapshots whose ids are known already (another's, other content, rolled back) is for the plan to say.
    """
    at = head.ref(sent.ref)
    if not sent.own or at is None:
        return None
    for snapshot in sent.snapshots:
        saved = head.snapshots.get(snapshot["snapshot-id"])
        if saved is None:
            return None
        summary: Mapping[str, Any] = saved.get("summary") or {}
        same = snapshot.get("manifest-list") in (saved.get("manifest-list"), summary.get(CLIENT_LIST))
        if not same or summary.get(PRINCIPAL) != sent.principal:
            return None
    on_branch = all(_is_ancestor(head, snapshot_id, at) for snapshot_id in sent.own)
    return sent.own if on_branch else None


def _check_same_write(sent: Sent, snapshots: tuple[int, ...], application: str | None) -> None:
    """One key for two writes of one running application would turn the second into a silent no-op (trap K3)."""
    if sent.key is None or sent.own == snapshots or application is None:
        return
    if application in {application_of(snapshot.get("summary") or {}) for snapshot in sent.snapshots}:
        raise KeyMisused(
            f"application {application} has already committed snapshot {snapshots[-1]} under idempotency key "
            f"{sent.key} and now sends other content under it; set the key per write, not per session",
            rule="key.per-write",
            snapshot=snapshots[-1],
        )


def _is_ancestor(head: HeadState, snapshot_id: int, of: int) -> bool:
    return table_metadata.is_ancestor(head.metadata, snapshot_id, of)

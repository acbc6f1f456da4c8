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
from icetower.ledger.ledger import Commit, CommitKey, Ledger
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
    found = _in_table(head, sent)
    if found is not None:
        what, snapshots = found
        if sent.ref:
            check_on_branch(head, what, sent.ref, snapshots)
        if sent.key is not None and snapshots == head.keys.find(sent.principal, sent.ref, sent.key):
            saved = head.snapshots.get(snapshots[-1]) or {}
            _check_same_write(sent, snapshots, application_of(saved.get("summary") or {}))
        return snapshots
    remembered = await _in_ledger(ledger, head, sent)
    if remembered is None:
        return None
    there = [snapshot_id for snapshot_id in remembered.snapshots if snapshot_id in head.snapshots]
    if there and sent.ref:
        name, number = remembered.owner.key, remembered.sequence
        what = f"idempotency key {name}" if number is None else f"number {number} of application {name}"
        check_on_branch(head, what, sent.ref, there)
    _check_same_write(sent, remembered.snapshots, remembered.application_id)
    return remembered.snapshots


def check_on_branch(head: HeadState, what: str, ref: str, snapshots: Sequence[int]) -> None:
    """What was rolled back is not done: an explicit error (trap K2). Raises `KeyMisused`."""
    at = head.ref(ref)
    if at is not None and all(table_metadata.is_ancestor(head.metadata, i, at) for i in snapshots):
        return
    raise KeyMisused(
        f"the commit under {what} landed as snapshot {snapshots[-1]}, which is no longer in the history of {ref} "
        "(rolled back); use a new key to write it again",
        rule="key.rolled-back",
        snapshot=snapshots[-1],
    )


def _in_table(head: HeadState, sent: Sent) -> tuple[str, tuple[int, ...]] | None:
    """What it goes under in the table, and its snapshots."""
    if sent.key is not None:
        under_key = head.keys.find(sent.principal, sent.ref, sent.key)
        if under_key is not None:
            return f"idempotency key {sent.key}", under_key
    if sent.application is not None:
        name, number = sent.application
        last = head.keys.sequence(sent.principal, sent.ref, name)
        if last is not None and number <= last[0]:
            return f"number {last[0]} of application {name}", last[1]
    return None


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
    on_branch = all(table_metadata.is_ancestor(head.metadata, snapshot_id, at) for snapshot_id in sent.own)
    return sent.own if on_branch else None


async def _in_ledger(ledger: Ledger, head: HeadState, sent: Sent) -> Commit | None:
    uuid = str(head.metadata["table-uuid"])
    owners: list[CommitKey] = []
    if sent.key is not None:
        owners.append(CommitKey(uuid, sent.ref, sent.principal, sent.key))
    if sent.application is not None:
        owners.append(CommitKey(uuid, sent.ref, sent.principal, sent.application[0], numbered=True))
    found = await ledger.find_commits(owners) if owners else {}
    for owner in owners:
        commit = found.get(owner)
        if commit is None:
            continue
        if not owner.numbered:
            return commit
        if sent.application is not None and commit.sequence is not None and sent.application[1] <= commit.sequence:
            return commit
    return None


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

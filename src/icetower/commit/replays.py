"""Was this commit sent before, and has it landed? Asked before anything of it is read.

A client that hears nothing sends again, or deletes what it wrote; a scheduler runs a job anew with other files. So the
answer must not depend on files: a commit is told by its key, by the number that its application gave it, or by the ids
of its snapshots. The plan asks again, when everything before it in the queue is known (trap K4).

The table's own word goes first. What it does not have is asked of the ledger: keys whose snapshots have expired, and
those in group files that were not read since the ledger has them. The ledger must be asked after the head was loaded:
whatever was left out of the head because the ledger had it, the ledger has then.

That a key is in the ledger says that its commit has landed in a table with this uuid, once. Done is only what is in the
history of its branch now, or was seen to leave it by expiry (`ledger.histories`). Of a commit's snapshots the last one
tells of all: they came together, and are ancestors of each other. A rollback to the one before it leaves half of a
commit in the table; when the other half has gone, only the ledger knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.identity import Identity, application_of
from icetower.commit.head import Heads
from icetower.commit.queue import Committed
from icetower.errors import KeyMisused
from icetower.ledger.histories import Fate, TableName
from icetower.ledger.ledger import Commit, CommitKey, Ledger
from icetower.protocol.marks import CLIENT_LIST, PRINCIPAL
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState
from icetower.table.keys import cut_off, rolled_back
from icetower.table.lines import reaches

LOADS_MAX = 3
"""So often a table is loaded again for a commit that another has overtaken."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit that has landed, once.

    Attributes:
        name: by which of its names it is known, in words.
        snapshots: as which it landed.
        on_branch: whether its branch has it, in the version of the table that was asked; None where nobody can tell.
        remembered: what the ledger has of it; None where the table itself tells.
    """

    name: str
    snapshots: tuple[int, ...]
    on_branch: bool | None
    remembered: Commit | None = None

    def shows_in(self, head: HeadState) -> bool:
        """Whether a version of the table has anything of it."""
        return any(snapshot_id in head.snapshots for snapshot_id in self.snapshots)


class Replays:
    """Looks for the answer that a commit has got before."""

    def __init__(self, heads: Heads, ledger: Ledger) -> None:
        self._heads = heads
        self._ledger = ledger

    async def find(self, identifier: Identifier, head: HeadState, identity: Identity) -> Committed | None:
        """The answer that a commit has got before, if any (traps K1 to K3). Raises `KeyMisused`."""
        own = resent(head, identity)
        if own is not None:
            return Committed("replayed", head, own, 0.0, 1)
        found = await landed(self._ledger, head, identity)
        for _ in range(LOADS_MAX):
            if found is None or found.shows_in(head):
                break
            # The ledger knows what this version does not: it came after it, or is gone.
            newest = await self._heads.load(identifier)
            if newest.location == head.location:
                break
            head, found = newest, await landed(self._ledger, newest, identity)
        if found is None or not await is_done(self._ledger, identifier, head, found):
            return None
        return Committed("replayed", head, found.snapshots, 0.0, 1)


async def landed(ledger: Ledger, head: HeadState, identity: Identity) -> Landed | None:
    """How a commit has landed before; None if it has not, as far as this version of the table and the ledger know.

    Args:
        head: must have been loaded before this is called.

    Raises:
        KeyMisused: it landed and was rolled back (trap K2), or its key stands for another write of the same running
            application (trap K3).
    """
    uuid, principal, ref = str(head.metadata["table-uuid"]), identity.principal, identity.ref
    if identity.key is not None:
        there, commit = head.keys.find(principal, ref, identity.key), None
        snapshots, application = there, None
        if there is not None:
            application = application_of((head.snapshots.get(there[-1]) or {}).get("summary") or {})
        elif (commit := await ledger.find_commit(CommitKey(uuid, ref, principal, identity.key))) is not None:
            snapshots, application = commit.snapshots, commit.application_id
        if snapshots is not None:
            name = f"idempotency key {identity.key}"
            on_branch = check_on_branch(head, name, ref, snapshots)
            _check_same_write(identity, snapshots, application)
            await _check_whole(ledger, uuid, name, there)
            return Landed(name, snapshots, on_branch, commit)
    if identity.application is not None:
        application, number = identity.application
        last, commit = head.keys.sequence(principal, ref, application), None
        there = None if last is None else last[1]
        if last is None or last[0] < number:
            commit = await ledger.find_commit(CommitKey(uuid, ref, principal, application, numbered=True))
            last = None if commit is None or commit.sequence is None else (commit.sequence, commit.snapshots)
            there = None
        if last is not None and number <= last[0]:
            name = f"number {last[0]} of application {application}"
            try:
                on_branch = check_on_branch(head, name, ref, last[1])
            except KeyMisused:
                # A higher one was rolled back: of this very one that says nothing.
                own = head.keys.numbered(principal, ref, application, number)
                if own is None or own == last[1]:
                    raise
                last, there, name = (number, own), own, f"number {number} of application {application}"
                on_branch = check_on_branch(head, name, ref, own)
            await _check_whole(ledger, uuid, name, there)
            return Landed(name, last[1], on_branch, commit)
    return None


async def _check_whole(ledger: Ledger, uuid: str, name: str, there: tuple[int, ...] | None) -> None:
    """What the table tells of must be all of the commit, not what a rollback has left. Raises `KeyMisused`."""
    if there is not None and await ledger.torn(uuid, there[-1:]):
        raise KeyMisused(
            f"of the commit under {name}, snapshot {there[-1]} is in the table, and what came with it was rolled back "
            "and has expired. Look for its rows, and write what is missing under a new key",
            rule="key.gone",
            snapshot=there[-1],
            next_step="ask_owner",
        )


async def is_done(ledger: Ledger, identifier: Identifier, head: HeadState, found: Landed) -> bool:
    """Whether a commit that has landed once is done; where it is not, it may be done now.

    Args:
        head: the newest version, loaded after the commit was found.

    Raises:
        KeyMisused: nobody can tell whether the table has its rows.
    """
    if found.on_branch:
        return True
    table = TableName(str(head.metadata["table-uuid"]), identifier)
    if found.remembered is None or found.shows_in(head):
        there = [snapshot_id for snapshot_id in found.snapshots if snapshot_id in head.snapshots]
        if await ledger.saw_leave(table, there[-1]):
            return True
        raise cut_off(found.name, there[-1])
    fate = await ledger.fate(table, found.remembered)
    if fate in (Fate.EXPIRED, Fate.LEFT_BEHIND):
        return fate is Fate.EXPIRED
    numbered = found.remembered.owner.numbered
    anew = "a higher number, or another name of the application" if numbered else "a new key"
    if fate is Fate.REGISTERED_ANEW:
        why, rule = "the table was registered anew since, or at two names", "key.registered-anew"
    else:
        why, rule = "it was rolled back, or removed past this server, or with or after its branch", "key.gone"
    raise KeyMisused(
        f"the commit under {found.name} landed as snapshot {found.snapshots[-1]}, which {identifier} does not have: "
        f"{why}. Whether its rows are in the table cannot be told: look for them, and if they are missing, write them "
        f"under {anew}",
        rule=rule,
        snapshot=found.snapshots[-1],
        next_step="ask_owner",
    )


def check_on_branch(head: HeadState, what: str, ref: str, snapshots: Sequence[int]) -> bool | None:
    """What was rolled back is not done: an explicit error (trap K2). Raises `KeyMisused`.

    True where the branch has the commit; None where this version of the table does not tell: it has nothing of it, or
    not what was between that and the branch's head (`is_done`).
    """
    there = [snapshot_id for snapshot_id in snapshots if snapshot_id in head.snapshots]
    if not there:
        return None
    last = there[-1]
    has = not ref or reaches(head.snapshots.get, head.ref(ref), last)
    if has is False:
        raise rolled_back(what, last, ref)
    return has


def resent(head: HeadState, identity: Identity) -> tuple[int, ...] | None:
    """The snapshots of a commit that is sent once more as it is, where they are in the table and on its branch.

    Of several, the first may have expired since: they came together, and the last tells of all. All else about
    snapshots whose ids are known already (another's, other content, rolled back) is for the plan to say.
    """
    at = head.ref(identity.ref)
    if at is None or not identity.snapshot_ids or identity.snapshot_ids[-1] not in head.snapshots:
        return None
    there = [snapshot for snapshot in identity.snapshots if snapshot["snapshot-id"] in head.snapshots]
    for snapshot in there:
        saved = head.snapshots[snapshot["snapshot-id"]]
        summary: Mapping[str, Any] = saved.get("summary") or {}
        same = snapshot.get("manifest-list") in (saved.get("manifest-list"), summary.get(CLIENT_LIST))
        if not same or summary.get(PRINCIPAL) != identity.principal:
            return None
    own = tuple(snapshot["snapshot-id"] for snapshot in there)
    return own if reaches(head.snapshots.get, at, own[-1]) else None


def _check_same_write(identity: Identity, snapshots: tuple[int, ...], application: str | None) -> None:
    """One key for two writes of one running application would turn the second into a silent no-op (trap K3)."""
    if identity.key is None or identity.snapshot_ids[-len(snapshots) :] == snapshots or application is None:
        return
    if application in {application_of(snapshot.get("summary") or {}) for snapshot in identity.snapshots}:
        raise KeyMisused(
            f"application {application} has already committed snapshot {snapshots[-1]} under idempotency key "
            f"{identity.key} and now sends other content under it; set the key per write, not per session",
            rule="key.per-write",
            snapshot=snapshots[-1],
            next_step="fix_request",  # under a new key, a write that is tried again would land twice
        )

"""What is asked, and kept, just before a swap: revocations (trap K4), and keys of snapshots that are about to go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icetower.admission.admit import application_of
from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.commit.group_keys import GroupKeys, commits_of
from icetower.errors import CommitConflict, Forbidden, IcetowerError
from icetower.ledger.ledger import Batch, Commit, CommitKey, Group, Ledger
from icetower.protocol.marks import GROUP_FILE
from icetower.protocol.names import Identifier
from icetower.registry.registry import RESERVED_NAME, Registry
from icetower.table import metadata as table_metadata
from icetower.table.head import HeadState
from icetower.table.keys import record_of


class Gatekeeper:
    """Reads principals and contracts anew, and sees to it that no key goes with its snapshot.

    Args:
        flush: writes what waits for the ledger.
    """

    def __init__(
        self, registry: Registry, ledger: Ledger, group_keys: GroupKeys, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._group_keys = group_keys
        self._flush = flush

    async def still_admits(self, members: Sequence[Admitted | AdmittedAppend]) -> Mapping[int, IcetowerError]:
        """The members that may no longer go on: position → why (trap K4)."""
        # Whom an open tower let in is nobody that could be revoked.
        bound = {member.principal for member in members if member.principal != RESERVED_NAME}
        standings = await self._registry.standings(sorted(bound))
        found: dict[int, IcetowerError] = {}
        for position, member in enumerate(members):
            if member.principal not in bound:
                continue
            standing = standings.get(member.principal)
            if standing is None:
                found[position] = Forbidden(
                    f"{member.principal} or its contract was revoked while the commit was under way; nothing of it was "
                    "committed",
                    rule="contract.revoked",
                )
            elif standing != (member.contract, member.contract_version):
                found[position] = CommitConflict(
                    f"contract {member.contract} changed while the commit was under way; try again under the new one",
                    rule="contract.changed",
                    next_step="retry",
                )
        return found

    async def keep_keys(self, identifier: Identifier, head: HeadState, snapshot_ids: Collection[int]) -> None:
        """Before snapshots go: bring into the ledger what it may have missed of their keys (traps K1, H1).

        It may have, by a crash or since another tower committed them. A key whose snapshot was rolled back is forgotten
        instead: nothing of it will be left to call done (K2).

        Args:
            head: the version that still has the snapshots.

        Raises:
            IcetowerError: the ledger or a group file is away; the snapshots must stay for now.
        """
        del identifier
        uuid = str(head.metadata["table-uuid"])
        gone = [head.snapshots[i] for i in snapshot_ids if i in head.snapshots]
        branches = _Branches(head)
        kept: dict[CommitKey, Commit] = {}
        lost: list[Commit] = []
        for snapshot in gone:
            record = record_of(snapshot)
            application_id = application_of(snapshot.get("summary") or {})
            for commit in commits_of(uuid, [] if record is None else [record]):
                owner = commit.owner
                if branches.has(owner.ref, snapshot["snapshot-id"]):
                    whole = None if owner.numbered else head.keys.find(owner.principal, owner.ref, owner.key)
                    highest = kept.get(owner, commit)
                    if (highest.sequence or 0) <= (commit.sequence or 0):
                        kept[owner] = replace(
                            commit, snapshots=whole or commit.snapshots, application_id=application_id
                        )
                else:
                    lost.append(commit)
        groups = await self._groups(uuid, gone, branches, lost)
        if lost:
            await self._forget(head, lost, frozenset(snapshot_ids))
        await self._ledger.write(Batch(commits=list(kept.values()), groups=groups))

    async def _groups(
        self, uuid: str, gone: Sequence[Mapping[str, Any]], branches: _Branches, lost: list[Commit]
    ) -> list[Group]:
        """Of those with a group file: what the ledger misses; what its own branch has no more joins the lost."""
        named = {
            s["snapshot-id"]: str(s["summary"][GROUP_FILE]) for s in gone if GROUP_FILE in (s.get("summary") or {})
        }
        # Which branch it was for, only its file says. What is on all of them needs no reading, as with a single branch.
        everywhere = [snapshot_id for snapshot_id in named if branches.all_have(snapshot_id)]
        spared = await self._ledger.kept_groups(uuid, everywhere)
        read = await self._group_keys.read(uuid, {i: path for i, path in named.items() if i not in spared})
        missed: list[Group] = []
        for snapshot_id in sorted(read):
            commits = commits_of(uuid, read[snapshot_id])
            there = [commit for commit in commits if branches.has(commit.owner.ref, snapshot_id)]
            lost += [commit for commit in commits if commit not in there]
            if len(there) == len(commits):
                missed.append(Group(uuid, snapshot_id, tuple(commits)))
        return missed

    async def _forget(self, head: HeadState, lost: Sequence[Commit], gone: frozenset[int]) -> None:
        await self._flush()  # what waits to be written would bring it back
        remembered = await self._ledger.find_commits([commit.owner for commit in lost])
        owners = [owner for owner, commit in remembered.items() if gone.issuperset(commit.snapshots)]
        await self._ledger.forget_commits(owners)
        numbered = [owner for owner in owners if owner.numbered]
        if not numbered:
            return
        # The number that counts now is the highest that is left, wherever it stands: also in files that were not read,
        # and in snapshots that go without having been rolled back.
        lost_ids = frozenset(snapshot_id for commit in lost for snapshot_id in commit.snapshots)
        named = _group_files(s for snapshot_id, s in head.snapshots.items() if snapshot_id not in lost_ids)
        groups = await self._group_keys.read(str(head.metadata["table-uuid"]), named)
        left = head.keys.without(lost_ids).plus(record for records in groups.values() for record in records)
        before: list[Commit] = []
        for owner in numbered:
            landed = left.sequence(owner.principal, owner.ref, owner.key)
            if landed is not None:
                before.append(Commit(owner, landed[1], sequence=landed[0]))
        await self._ledger.remember_commits(before)


def _group_files(snapshots: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Paths of group files, by snapshot."""
    return {
        s["snapshot-id"]: str(s["summary"][GROUP_FILE]) for s in snapshots if GROUP_FILE in (s.get("summary") or {})
    }


class _Branches:
    """Which snapshots are in the history of which ref; each history is walked once, when it is asked for."""

    def __init__(self, head: HeadState) -> None:
        self._head = head
        self._histories: dict[str, frozenset[int]] = {}

    def has(self, ref: str, snapshot_id: int) -> bool:
        """Whether a snapshot is in the history of a ref. A commit that moved none cannot be lost."""
        return not ref or snapshot_id in self._history(ref)

    def all_have(self, snapshot_id: int) -> bool:
        """Whether a snapshot is in the history of every branch, and there is one."""
        refs: Mapping[str, Any] = self._head.metadata.get("refs") or {}
        branches = [name for name, ref in refs.items() if ref.get("type") != "tag"]
        return bool(branches) and all(snapshot_id in self._history(name) for name in branches)

    def _history(self, ref: str) -> frozenset[int]:
        if ref not in self._histories:
            at = self._head.ref(ref)
            walked = () if at is None else table_metadata.ancestors(self._head.metadata, at)
            self._histories[ref] = frozenset(snapshot["snapshot-id"] for snapshot in walked)
        return self._histories[ref]

"""What is asked, and kept, just before a swap: revocations (trap K4), and keys of snapshots that are about to go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icetower.admission.admit import application_of
from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.commit.group_keys import GroupKeys, commits_of, group_of
from icetower.errors import CommitConflict, Forbidden, IcetowerError
from icetower.ledger.histories import TableName
from icetower.ledger.ledger import Batch, Commit, CommitKey, Expired, Group, Ledger
from icetower.protocol.marks import GROUP_FILE, REF
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

        It may have, by a crash or since another tower committed them. It is kept, too, which of them their branch has:
        only those are done once they are gone. A key whose snapshot was rolled back is forgotten: nothing of it is left
        to call done (K2). Where its branch is gone, nobody can tell, and the ledger says so.

        Args:
            head: the version that still has the snapshots.

        Raises:
            IcetowerError: the ledger or a group file is away; the snapshots must stay for now.
        """
        uuid = str(head.metadata["table-uuid"])
        gone = [head.snapshots[i] for i in snapshot_ids if i in head.snapshots]
        branches = _Branches(head)
        going = _Going()
        kept: dict[CommitKey, Commit] = {}
        for snapshot in gone:
            record = record_of(snapshot)
            if record is None:
                continue
            has = branches.has(record.ref, snapshot["snapshot-id"])
            commits = commits_of(uuid, [record], snapshot.get("sequence-number"))
            going.take(snapshot["snapshot-id"], commits, has)
            for commit in commits if has is not False else ():
                owner = commit.owner
                whole = None if owner.numbered else head.keys.find(owner.principal, owner.ref, owner.key)
                highest = kept.get(owner, commit)
                if (highest.sequence or 0) <= (commit.sequence or 0):
                    about = application_of(snapshot.get("summary") or {})
                    kept[owner] = replace(commit, snapshots=whole or commit.snapshots, application_id=about)
        groups = await self._groups(uuid, gone, branches, going)
        if going.lost:
            await self._forget(head, going, frozenset(snapshot_ids))
        expired = [Expired(TableName(uuid, identifier), tuple(going.had))] if going.had else []
        await self._ledger.write(Batch(commits=list(kept.values()), groups=groups, expired=expired))

    async def _groups(
        self, uuid: str, gone: Sequence[Mapping[str, Any]], branches: _Branches, going: _Going
    ) -> list[Group]:
        """Of those with a group file: what the ledger misses of them."""
        named = {snapshot["snapshot-id"]: snapshot for snapshot in _with_group_files(gone)}
        # Which branch it was for, summaries say only since they were given the mark; its file does.
        refs = {snapshot_id: snapshot["summary"].get(REF) for snapshot_id, snapshot in named.items()}
        # What its branch has needs no reading, where the ledger has it already.
        there = [snapshot_id for snapshot_id, ref in refs.items() if ref is not None and branches.has(ref, snapshot_id)]
        spared = await self._ledger.kept_groups(uuid, there)
        read = await self._group_keys.read(uuid, [s for snapshot_id, s in named.items() if snapshot_id not in spared])
        missed: list[Group] = []
        for snapshot_id, records in read.items():
            group = group_of(uuid, named[snapshot_id], records)
            ref = next((record.ref for record in records), refs[snapshot_id])
            has = None if ref is None else branches.has(ref, snapshot_id)
            going.take(snapshot_id, group.commits, has)
            if has is not False:
                missed.append(group)
        going.had += sorted(spared)
        return missed

    async def _forget(self, head: HeadState, going: _Going, gone: frozenset[int]) -> None:
        await self._flush()  # what waits to be written would bring it back
        remembered = await self._ledger.find_commits([commit.owner for commit in going.lost])
        owners = [owner for owner, commit in remembered.items() if gone.issuperset(commit.snapshots)]
        uuid = str(head.metadata["table-uuid"])
        lost_ids = frozenset(snapshot_id for commit in going.lost for snapshot_id in commit.snapshots)
        numbered = [owner for owner in owners if owner.numbered]
        before = await self._numbers_left(head, uuid, numbered, lost_ids) if numbered else {}
        # Of lower numbers that have expired earlier the ledger knows nothing but that there was a higher one. That one
        # stays, and whoever sends any of them again hears that nobody can tell (`key.gone`).
        gone_for_good = [owner for owner in owners if not owner.numbered or owner in before]
        await self._ledger.forget_commits(gone_for_good, uuid, lost_ids)
        await self._ledger.remember_commits(list(before.values()))

    async def _numbers_left(
        self, head: HeadState, uuid: str, numbered: Sequence[CommitKey], lost_ids: frozenset[int]
    ) -> dict[CommitKey, Commit]:
        """What counts now of applications that number their commits: the highest number that is left, if any is.

        It may stand anywhere: also in files that were not read, and in snapshots that go without having been rolled
        back.
        """
        named = _with_group_files(s for snapshot_id, s in head.snapshots.items() if snapshot_id not in lost_ids)
        groups = await self._group_keys.read(uuid, named)
        left = head.keys.without(lost_ids).plus(record for records in groups.values() for record in records)
        landed = {owner: left.sequence(owner.principal, owner.ref, owner.key) for owner in numbered}
        return {owner: Commit(owner, at[1], sequence=at[0]) for owner, at in landed.items() if at is not None}


def _with_group_files(snapshots: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [snapshot for snapshot in snapshots if GROUP_FILE in (snapshot.get("summary") or {})]


@dataclass(slots=True)
class _Going:
    """What becomes of the keys of snapshots that go.

    Attributes:
        had: the snapshots that their branch has: done.
        lost: commits that their branch has no more: not done.
    """

    had: list[int] = field(default_factory=list[int])
    lost: list[Commit] = field(default_factory=list[Commit])

    def take(self, snapshot_id: int, commits: Sequence[Commit], has: bool | None) -> None:
        if has:
            self.had.append(snapshot_id)
        elif has is not None:
            self.lost += commits


class _Branches:
    """Which snapshots are in the history of which ref; each history is walked once, when it is asked for."""

    def __init__(self, head: HeadState) -> None:
        self._head = head
        self._histories: dict[str, frozenset[int]] = {}

    def has(self, ref: str, snapshot_id: int) -> bool | None:
        """Whether a snapshot is in the history of a ref; None where there is no such ref any more.

        A commit that moved none cannot be lost.
        """
        if ref and self._head.ref(ref) is None:
            return None
        return not ref or snapshot_id in self._history(ref)

    def _history(self, ref: str) -> frozenset[int]:
        if ref not in self._histories:
            at = self._head.ref(ref)
            walked = () if at is None else table_metadata.ancestors(self._head.metadata, at)
            self._histories[ref] = frozenset(snapshot["snapshot-id"] for snapshot in walked)
        return self._histories[ref]

"""What is asked, and kept, just before a swap: revocations and intents (trap K4), and keys of snapshots that go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icetower.admission.admitted import Admitted, AdmittedAppend, AdmittedFence
from icetower.admission.identity import application_of
from icetower.commit.group_keys import GroupKeys, commits_of, group_of
from icetower.commit.retention import YOUNG_MS
from icetower.errors import CommitConflict, CommitStateUnknown, Forbidden, IcetowerError
from icetower.intents.fencing import Fencing
from icetower.ledger.histories import Fate, TableName
from icetower.ledger.ledger import Batch, Commit, CommitKey, Expired, Group, Ledger
from icetower.protocol.marks import GROUP_FILE, PRINCIPAL, REF
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.registry.registry import RESERVED_NAME, Registry
from icetower.table.branches import Branches
from icetower.table.head import HeadState
from icetower.table.keys import KeyRecord, record_of
from icetower.table.sinks import mark_of

LOOKS_MAX = 4
"""So often it is asked again who holds what, where that changes while it is asked."""

TABLES_MAX = 1_024
"""Of so many tables it is known when young snapshots were removed from them last."""


class Gatekeeper:
    """Reads principals and contracts anew, and sees to it that no key goes with its snapshot.

    Args:
        flush: writes what waits for the ledger.
        fencing: who holds which rows; None: nobody can.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        group_keys: GroupKeys,
        flush: Callable[[], Awaitable[None]],
        fencing: Fencing | None = None,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._group_keys = group_keys
        self._flush = flush
        self._fencing = fencing
        # By the uuid of a table: when snapshots with keys went last from it that were young.
        self._young_gone_ms: OrderedDict[str, int] = OrderedDict()

    async def last_word(
        self, members: Sequence[tuple[Admitted | AdmittedAppend | AdmittedFence, HeadState]]
    ) -> Mapping[int, IcetowerError]:
        """As `still_admits`; and of those, whose intents have ended, or who touch rows that others hold.

        Args:
            members: each with the version that it goes on.
        """
        asked = [(member, head.metadata) for member, head in members]
        for _ in range(LOOKS_MAX):
            found = await self.still_admits([member for member, _ in members])
            if self._fencing is None:
                return found
            # What it goes by was read along with the contracts, and nothing is awaited from here on.
            at_once = self._fencing.late(asked)
            if at_once is not None:
                return {**at_once, **found}
            late = await self._fencing.late_anew(asked)
            if late or found:  # the others are planned again, and asked again
                return {**late, **found}
        return await self.still_admits([member for member, _ in members])

    async def still_admits(
        self, members: Sequence[Admitted | AdmittedAppend | AdmittedFence]
    ) -> Mapping[int, IcetowerError]:
        """The members that may no longer go on: position → why (trap K4)."""
        # Without authentication there is nobody to revoke.
        bound = {member.principal for member in members if member.principal != RESERVED_NAME}
        bindings = await self._registry.bindings(sorted(bound))
        found: dict[int, IcetowerError] = {}
        for position, member in enumerate(members):
            if member.principal not in bound:
                continue
            binding = bindings.get(member.principal)
            if binding is None:
                found[position] = Forbidden(
                    f"{member.principal} or its contract was revoked while the commit was under way; nothing of it was "
                    "committed",
                    rule="contract.revoked",
                )
            elif binding != (member.contract, member.contract_version):
                found[position] = CommitConflict(
                    f"contract {member.contract} changed while the commit was under way; try again under the new one",
                    rule="contract.changed",
                    next_step="retry",
                )
        return found

    async def keep_keys(
        self, identifier: Identifier, old: HeadState, new: HeadState, snapshot_ids: Collection[int]
    ) -> None:
        """Before snapshots go: bring into the ledger what it may have missed of their keys (traps K1, H1).

        It may have, by a crash or since another tower committed them. It is kept, too, which of them their branch has:
        only those are done once they are gone. A key whose snapshot was rolled back is forgotten: nothing of it is left
        to call done (K2). Where that is unknown, the ledger says so.

        Args:
            old: the version that still has the snapshots.
            new: the one that will not have them. Its branches may be elsewhere, and the swap may be lost.

        Raises:
            IcetowerError: the ledger or a group file is away; the snapshots must stay for now.
        """
        uuid = str(old.metadata["table-uuid"])
        gone = [Snapshot(old.snapshots[i]) for i in snapshot_ids if i in old.snapshots]
        self._see_young(uuid, gone, new)
        branches = Branches(old, new)
        leaving = _Leaving()
        kept: dict[CommitKey, Commit] = {}
        torn: set[int] = set()
        parts = await self._ledger.torn(uuid, [s.id for s in gone if record_of(s) is not None])
        for snapshot in gone:
            snapshot_id = snapshot.id
            records = _records(snapshot, old, branches)
            for commit in commits_of(uuid, records, snapshot.get("sequence-number")):
                owner, whole = commit.owner, _whole(old, commit)
                found = {branches.has(owner.ref, Snapshot(old.snapshots[i])) for i in whole}
                # Half of a commit is neither done nor gone; once the other half has gone, the table tells of neither.
                has = found.pop() if len(found) == 1 and snapshot_id not in parts else None
                if found:
                    torn.update(i for i in whole if i not in snapshot_ids)
                leaving.take(snapshot_id, [commit], has)
                highest = kept.get(owner, commit)
                if has is not False and (highest.sequence or 0) <= (commit.sequence or 0):
                    about = application_of(snapshot.summary)
                    mark = _mark_kept(commit, snapshot)
                    kept[owner] = replace(commit, snapshots=whole, application_id=about, mark=mark)
        groups = await self._groups(uuid, gone, branches, leaving)
        if leaving.lost:
            await self._forget(old, uuid, leaving, frozenset(snapshot_ids))
        left = (*leaving.had, *branches.cut_off(snapshot_ids))
        expired = [Expired(TableName(uuid, identifier), left, tuple(torn))] if left or torn else []
        await self._ledger.write(Batch(commits=list(kept.values()), groups=groups, expired=expired))

    async def landed_meanwhile(
        self, old: HeadState, members: Sequence[Admitted | AdmittedAppend | AdmittedFence]
    ) -> Mapping[int, IcetowerError]:
        """Members whose keys have landed since they were admitted, and whose snapshots have been removed since (K4).

        Retention leaves what is young. Only where somebody has removed such a snapshot here, the ledger is asked again.
        """
        uuid = str(old.metadata.get("table-uuid"))
        seen_ms = self._young_gone_ms.get(uuid)
        if seen_ms is None or seen_ms + YOUNG_MS < old.metadata["last-updated-ms"]:
            return {}
        await self._flush()
        owners = [
            (position, owner)
            for position, member in enumerate(members)
            for owner in CommitKey.of(uuid, member.identity)
            if owner is not None
        ]
        known = await self._ledger.find_commits([owner for _, owner in owners])
        found: dict[int, IcetowerError] = {}
        for position, owner in owners:
            member, commit = members[position], known.get(owner)
            if commit is None or any(i in old.snapshots for i in commit.snapshots):
                continue
            number = None if member.application is None else member.application[1]
            if owner.numbered and (commit.sequence is None or number is None or number > commit.sequence):
                continue
            if await self._ledger.fate(TableName(uuid, member.identifier), commit) is Fate.LEFT_BEHIND:
                continue
            found[position] = CommitStateUnknown(
                f"a commit under the same key landed as snapshot {commit.snapshots[-1]} while this one was under way, "
                "and the snapshot was removed since; nothing more was committed. Send it again to hear what became of "
                "it"
            )
        return found

    def _see_young(self, uuid: str, gone: Sequence[Snapshot], new: HeadState) -> None:
        now_ms = new.metadata["last-updated-ms"]
        if any(snapshot.timestamp_ms >= now_ms - YOUNG_MS and _has_keys(snapshot) for snapshot in gone):
            self._young_gone_ms[uuid] = now_ms
            self._young_gone_ms.move_to_end(uuid)
            if len(self._young_gone_ms) > TABLES_MAX:
                self._young_gone_ms.popitem(last=False)

    async def _groups(self, uuid: str, gone: Sequence[Snapshot], branches: Branches, leaving: _Leaving) -> list[Group]:
        """Of those with a group file: what the ledger misses of them."""
        named = {snapshot.id: snapshot for snapshot in _with_group_files(gone)}
        # Which branch it was for, summaries say only since they were given the mark; its file does.
        refs = {snapshot_id: snapshot.summary.get(REF) for snapshot_id, snapshot in named.items()}
        # What its branch has needs no reading, where the ledger has it already.
        there = [i for i, ref in refs.items() if ref is not None and branches.has(ref, named[i])]
        spared = await self._ledger.kept_groups(uuid, there)
        read = await self._group_keys.read(uuid, [s for snapshot_id, s in named.items() if snapshot_id not in spared])
        missed: list[Group] = []
        for snapshot_id, records in read.items():
            group = group_of(uuid, named[snapshot_id], records)
            ref = next((record.ref for record in records), refs[snapshot_id])
            has = None if ref is None else branches.has(ref, named[snapshot_id])
            leaving.take(snapshot_id, group.commits, has)
            if has is not False:
                missed.append(group)
        leaving.had += sorted(spared)
        return missed

    async def _forget(self, old: HeadState, uuid: str, leaving: _Leaving, gone: frozenset[int]) -> None:
        """Forget the keys of commits that were rolled back; an application's highest number that is left counts again.

        That is done where every number between the two was lost just now. Of other numbers the ledger knows only that
        there was a higher one: they may have expired before, as done, and would land again. Then the highest number
        stays, and a commit with it or a lower one is answered `key.gone`.
        """
        await self._flush()  # what waits to be written would bring it back
        remembered = await self._ledger.find_commits([commit.owner for commit in leaving.lost])
        lost = {owner: commit for owner, commit in remembered.items() if gone.issuperset(commit.snapshots)}
        lost_ids = frozenset(snapshot_id for commit in leaving.lost for snapshot_id in commit.snapshots)
        numbered = {owner: commit.sequence for owner, commit in lost.items() if commit.sequence is not None}
        left = await self._numbers_left(old, uuid, list(numbered), lost_ids) if numbered else {}
        again: list[Commit] = []
        for owner, highest in numbered.items():
            below = left.get(owner)
            floor = highest if below is None or below.sequence is None else below.sequence
            numbers = {
                commit.sequence for commit in leaving.lost if commit.owner == owner and (commit.sequence or 0) > floor
            }
            if below is not None and len(numbers) == highest - floor > 0:
                again.append(below)
        counted = {commit.owner for commit in again}
        forgotten = [owner for owner in lost if not owner.numbered or owner in counted]
        await self._ledger.forget_commits(forgotten, uuid, lost_ids)
        await self._ledger.remember_commits(again)

    async def _numbers_left(
        self, head: HeadState, uuid: str, numbered: Sequence[CommitKey], lost_ids: frozenset[int]
    ) -> dict[CommitKey, Commit]:
        """The highest number of each application that the table has without what is lost, if any.

        It may stand anywhere: also in files that were not read, and in snapshots that go without having been rolled
        back.
        """
        named = _with_group_files(Snapshot(s) for i, s in head.snapshots.items() if i not in lost_ids)
        groups = await self._group_keys.read(uuid, named)
        left = head.keys.without(lost_ids).plus(record for records in groups.values() for record in records)
        landed = {owner: left.sequence(owner.principal, owner.ref, owner.key) for owner in numbered}
        return {owner: Commit(owner, at[1], sequence=at[0]) for owner, at in landed.items() if at is not None}


def _with_group_files(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    return [snapshot for snapshot in snapshots if GROUP_FILE in snapshot.summary]


@dataclass(slots=True)
class _Leaving:
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


def _has_keys(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    return GROUP_FILE in summary or record_of(snapshot) is not None or mark_of(summary) is not None


def _records(snapshot: Snapshot, head: HeadState, branches: Branches) -> list[KeyRecord]:
    """What a snapshot stands for. One that came past the tower says how far its sink is, and not on which branch."""
    record, mark = record_of(snapshot), mark_of(snapshot.summary)
    records = [] if record is None else [record]
    if mark is None or (record is not None and record.application is not None):
        return records
    principal, number = str(snapshot.summary.get(PRINCIPAL, "")), (mark.application, mark.number)
    named = [name for name, ref in (head.metadata.get("refs") or {}).items() if ref.get("type") == "branch"]
    refs = [ref for ref in named if branches.has(ref, snapshot)]
    return [*records, *(KeyRecord(principal, ref, None, number, (snapshot.id,)) for ref in refs)]


def _mark_kept(commit: Commit, snapshot: Snapshot) -> str | None:
    """What is kept of a sink's number beside it; None where the number is no sink's."""
    mark = mark_of(snapshot.summary)
    if mark is None or (mark.application, mark.number) != (commit.owner.key, commit.sequence):
        return None
    return mark.kept


def _whole(head: HeadState, commit: Commit) -> tuple[int, ...]:
    """All snapshots of a commit that a version of the table still has."""
    owner = commit.owner
    if owner.numbered:
        last = head.keys.sequence(owner.principal, owner.ref, owner.key)
        found = last[1] if last is not None and last[0] == commit.sequence else None
    else:
        found = head.keys.find(owner.principal, owner.ref, owner.key)
    return tuple(i for i in found or () if i in head.snapshots) or commit.snapshots

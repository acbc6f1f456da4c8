"""The plan for a group: which of the waiting commits go into the next version of a table, and as what. Pure.

The members are taken in queue order, each planned on the table as its predecessors leave it:

1. A commit whose key or snapshots are in the table already is *replayed*: answered as the original was.
2. Requirements are checked. All hold: the commit goes in *direct*.
3. Only the assertion on the branch's head fails, and the change is known to be blind: it is *rebased*.
4. Anything else is *refused* with 409: the client validates and tries again, as everywhere.

A snapshot keeps its id through all of this, since clients look for it (trap A1), and the manifests that its client
wrote are named by path wherever possible (trap A2). What may change is its parent, sequence number, timestamp, running
totals and manifest list. The new lists are written by the engine; here they are only bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from icetower.admission.admit import application_of
from icetower.admission.admitted import Admitted
from icetower.commit.draft import Draft, NeedsList, target_ref
from icetower.conflicts.blindness import known_blind
from icetower.errors import CommitConflict, IcetowerError, KeyMisused, ValidationFailed
from icetower.protocol.marks import BLIND_APPENDS, CLIENT_LIST, STRICT
from icetower.table import metadata as table_metadata
from icetower.table.head import HeadState
from icetower.table.manifests import ManifestFile
from icetower.table.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Accepted:
    member: Admitted
    outcome: str
    """``direct`` or ``rebased``."""
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    member: Admitted
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    member: Admitted
    error: IcetowerError


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write before the swap, and what to answer after it.

    Attributes:
        metadata: the table after the group, without the entry for the swap in its metadata log.
        files: path → bytes of new manifest lists and manifests.
        lists: path → rows of every new snapshot's manifest list, for the cache.
        needs: manifest lists that must be read before the group can be planned; while there are any, nothing else is
            valid.
    """

    metadata: Metadata
    accepted: tuple[Accepted, ...] = ()
    replayed: tuple[Replayed, ...] = ()
    refused: tuple[Refused, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    lists: Mapping[str, tuple[ManifestFile, ...]] = field(default_factory=dict[str, "tuple[ManifestFile, ...]"])
    needs: frozenset[str] = frozenset()


def plan(
    head: HeadState,
    group: Sequence[Admitted],
    lists: Mapping[str, tuple[ManifestFile, ...]],
    *,
    now_ms: int,
    new_name: Callable[[], str],
) -> Plan:
    """Plan a group on a head.

    Args:
        lists: the manifest lists that are known, by path; those of the branches' heads are needed.
        now_ms: the server's clock.
        new_name: gives a name that was never used, for each new file.
    """
    planner = _Planner(head, lists, now_ms, new_name)
    needs: set[str] = set()
    for member in group:
        try:
            planner.take(member)
        except NeedsList as need:
            needs.add(need.path)
    if needs:
        return Plan(head.metadata, needs=frozenset(needs))
    return Plan(
        planner.metadata,
        tuple(planner.accepted),
        tuple(planner.replayed),
        tuple(planner.refused),
        planner.files,
        planner.new_lists,
    )


def plan_creation(
    member: Admitted, *, now_ms: int, new_name: Callable[[], str]
) -> tuple[Metadata, Mapping[str, bytes]]:
    """The first metadata of a table that a commit creates (it asserts that there is none), and files to write."""
    failed = table_metadata.failed_requirements(None, member.requirements)
    if failed:
        raise CommitConflict(failed[0].message, rule=f"requirement.{failed[0].requirement['type']}")
    draft = Draft(None, member, rebase=False, lists=(), now_ms=now_ms, new_name=new_name)
    return draft.apply(), draft.files


class _Planner:
    def __init__(
        self,
        head: HeadState,
        lists: Mapping[str, tuple[ManifestFile, ...]],
        now_ms: int,
        new_name: Callable[[], str],
    ) -> None:
        self.metadata = head.metadata
        self._head = head
        self._fresh: dict[int, Mapping[str, Any]] = {}
        self.keys = dict(head.keys)
        self.lists = lists
        self.new_lists: dict[str, tuple[ManifestFile, ...]] = {}
        self.files: dict[str, bytes] = {}
        self.accepted: list[Accepted] = []
        self.replayed: list[Replayed] = []
        self.refused: list[Refused] = []
        self._now_ms = now_ms
        self._new_name = new_name

    def take(self, member: Admitted) -> None:
        try:
            landed = self._landed(member)
            if landed is not None:
                self.replayed.append(Replayed(member, landed))
                return
            stale_ref = self._check_requirements(member)
            draft = Draft(
                self.metadata,
                member,
                rebase=stale_ref,
                lists=(self.new_lists, self.lists),
                now_ms=self._now_ms,
                new_name=self._new_name,
            )
            metadata = draft.apply()
            # What cannot be written back as JSON (a lone surrogate, a number beyond 64 bits) must not reach the file
            # that the whole group shares.
            orjson.dumps(draft.final_updates)
        except NeedsList:
            raise
        except IcetowerError as error:
            self.refused.append(Refused(member, error))
            return
        except Exception as error:  # noqa: BLE001 - one commit's oddity must not fail its whole group
            refusal = ValidationFailed(
                f"the commit cannot be applied: {type(error).__name__} in what it says", rule="commit.content"
            )
            refusal.__cause__ = error
            self.refused.append(Refused(member, refusal))
            return
        # Only now does anything of this member become part of the plan: a refusal half-way leaves no trace.
        self.metadata = metadata
        self.files |= draft.files
        self.new_lists |= draft.lists
        snapshots = tuple(change.snapshot["snapshot-id"] for change in member.changes)
        if member.key is not None and snapshots:
            self.keys[(member.principal, target_ref(member.updates) or "", member.key)] = snapshots
        for update in draft.final_updates:
            if update["action"] == "add-snapshot":
                self._fresh[update["snapshot"]["snapshot-id"]] = update["snapshot"]
        self.accepted.append(Accepted(member, "rebased" if stale_ref else "direct", snapshots))

    # -- what is there already ------------------------------------------------------------------------------------

    def _landed(self, member: Admitted) -> tuple[int, ...] | None:
        """The snapshots of this very commit, if it is in the table already (traps A3, K1, K2, K3)."""
        own = tuple(change.snapshot["snapshot-id"] for change in member.changes)
        if member.key is not None and own:
            under_key = self.keys.get((member.principal, target_ref(member.updates) or "", member.key))
            if under_key is not None:
                self._check_replay(member, own, under_key)
                return under_key
        present = [snapshot_id for snapshot_id in own if self._snapshot(snapshot_id) is not None]
        if not present:
            return None
        for change in member.changes:
            saved = self._snapshot(change.snapshot["snapshot-id"])
            lists = () if saved is None else (saved.get("manifest-list"), (saved.get("summary") or {}).get(CLIENT_LIST))
            if change.snapshot["manifest-list"] not in lists:
                raise ValidationFailed(
                    f"snapshot {present[0]} is in the table already, with other content; "
                    "a snapshot id stands for one snapshot",
                    rule="snapshot.id",
                    snapshot=present[0],
                )
        self._check_still_there(member, own)
        return own

    def _check_still_there(self, member: Admitted, own: tuple[int, ...]) -> None:
        """A snapshot that is in the table, but not on the branch it is sent for, is not done (trap K2)."""
        for update in member.updates:
            if update["action"] != "set-snapshot-ref" or update["snapshot-id"] not in own:
                continue
            head_id = table_metadata.ref_head(self.metadata, update["ref-name"])
            if head_id is None or not table_metadata.is_ancestor(self.metadata, update["snapshot-id"], head_id):
                # Not 409: its client would delete the manifests of a snapshot that the table still has (trap A3).
                raise KeyMisused(
                    f"snapshot {update['snapshot-id']} is in the table, but not in the history of "
                    f"{update['ref-name']} (staged, or rolled back); point the ref at it without adding it again, or "
                    "write a new snapshot",
                    rule="snapshot.rolled-back",
                    snapshot=update["snapshot-id"],
                    next_step="refresh",
                )

    def _snapshot(self, snapshot_id: int) -> Mapping[str, Any] | None:
        """A snapshot of the head or of this group, without a walk through the table's history."""
        return self._head.snapshots.get(snapshot_id) or self._fresh.get(snapshot_id)

    def _check_replay(self, member: Admitted, own: tuple[int, ...], landed: tuple[int, ...]) -> None:
        ref = target_ref(member.updates)
        head_id = table_metadata.ref_head(self.metadata, ref) if ref is not None else None
        if ref is not None and (
            head_id is None or not all(table_metadata.is_ancestor(self.metadata, i, head_id) for i in landed)
        ):
            raise KeyMisused(
                f"the commit under idempotency key {member.key} landed as snapshot {landed[-1]}, which is no longer "
                f"in the history of {ref} (rolled back); use a new key to write it again",
                rule="key.rolled-back",
                snapshot=landed[-1],
            )
        if own == landed:
            return
        saved = self._snapshot(landed[-1]) or {}
        application = application_of(saved.get("summary") or {})
        if application is not None and application == member.application_id:
            raise KeyMisused(
                f"application {application} has already committed snapshot {landed[-1]} under idempotency key "
                f"{member.key} and now sends other content under it; set the key per write, not per session",
                rule="key.per-write",
                snapshot=landed[-1],
            )

    # -- may it go in ---------------------------------------------------------------------------------------------

    def _check_requirements(self, member: Admitted) -> bool:
        """Whether the commit must be rebased. Raises `CommitConflict` where it may not."""
        if member.table_uuid is not None and member.table_uuid != self.metadata.get("table-uuid"):
            raise CommitConflict(
                f"{member.identifier} was dropped and created again, or renamed, while the commit was under way; "
                "refresh and write again",
                rule="requirement.assert-table-uuid",
            )
        failed = table_metadata.failed_requirements(self.metadata, member.requirements)
        if not failed:
            return False
        target = target_ref(member.updates)
        for failure in failed:
            requirement = failure.requirement
            if requirement["type"] != "assert-ref-snapshot-id" or requirement["ref"] != target:
                raise CommitConflict(failure.message, rule=f"requirement.{requirement['type']}")
        reason = self._why_not_rebased(member)
        if reason is not None:
            rule, why = reason
            head_id = table_metadata.ref_head(self.metadata, target) if target is not None else None
            raise CommitConflict(f"{failed[0].message}; not rebased: {why}", rule=rule, snapshot=head_id)
        return True

    def _why_not_rebased(self, member: Admitted) -> tuple[str, str] | None:
        properties = self.metadata.get("properties", {})
        if member.strict or properties.get(STRICT, "").lower() == "true":
            return "rebase.strict", "the table or the contract is strict (icetower.strict)"
        if not member.changes:
            return "rebase.no-snapshot", "the commit adds no snapshot"
        refs = {update["ref-name"] for update in member.updates if update["action"] == "set-snapshot-ref"}
        if len(refs) != 1 or any(self.metadata.get("refs", {}).get(r, {}).get("type") != "branch" for r in refs):
            return "rebase.branch", f"the commit must move one branch of the table, and moves {sorted(refs) or 'none'}"
        own = [change.snapshot["snapshot-id"] for change in member.changes]
        if [change.snapshot.get("parent-snapshot-id") for change in member.changes[1:]] != own[:-1]:
            return "rebase.chain", "its snapshots do not follow one another"
        if {update["action"] for update in member.updates} - {"add-snapshot", "set-snapshot-ref"}:
            return "rebase.other-updates", "the commit changes more than the table's content"
        declared = member.blind_appends or properties.get(BLIND_APPENDS, "").lower() == "true"
        for change in member.changes:
            if not change.is_pure_append:
                return "rebase.reads", "only appends are rebased, and this commit removes or deletes"
            if not known_blind(change.snapshot.get("summary") or {}, declared=declared):
                why = (
                    "nothing says that this append is blind. Where it is, set the table property "
                    f"{BLIND_APPENDS}=true, blind_appends in the contract, or icetower.blind=true in its summary"
                )
                return "rebase.not-blind", why
            if change.snapshot.get("key-id") is not None:
                return "rebase.encrypted", "its manifest list is encrypted"
        return None

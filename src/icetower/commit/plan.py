"""The plan for a group: which of the waiting commits go into the next version of a table, and as what. Pure.

The members are taken in queue order, each planned on the table as its predecessors leave it:

1. A commit whose key, number or snapshots are in the table already is *replayed*: answered as the original was.
2. Requirements are checked. All hold: the commit goes in *direct*, unless it declares itself that its writer has read
   an older version, and something of what it read has changed since (`declared`).
3. Only the assertion on the branch's head fails: it is *rebased*, if something grants that and nothing that was
   written meanwhile conflicts with it (`rebase`).
4. Anything else is *refused*. What is merely stale is 409: the client validates and tries again, as everywhere.

Appends of the fast path come last, all of a branch in one snapshot (`appends`). A snapshot keeps its id through all of
this, since clients look for it (trap A1), and the manifests that its client wrote are named by path wherever possible
(trap A2). The files are written by the engine; here they are only bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.commit.appends import Folded, another_table, fold, once_each, why_not
from icetower.commit.draft import Replacement, data_path, finish, merged_parent
from icetower.commit.live_files import LivePathsOf, NeedsPaths, check, named_by
from icetower.commit.merging import NeedsToMerge
from icetower.commit.resolution import Table, in_the_plan, snapshots_of
from icetower.commit.retention import expirable
from icetower.commit.vectors import NeedsBlobs, among, collisions_of, unite
from icetower.errors import CommitConflict, IcetowerError, ValidationFailed
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.entries import Files, NeedsFile, NeedsFiles
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import DataFile, ManifestFile
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.puffin import BlobAt
from icetower.protocol.sizes import check_room
from icetower.rebase.declared import scope_to_hold
from icetower.rebase.grants import RebaseGrant, base_of, conflicts_of, grant_for, refusal, steps_since
from icetower.rebase.written import Targets, untargeted
from icetower.rows.encoding import NewFile
from icetower.storage.port import METADATA_MAX_BYTES
from icetower.table.head import HeadState
from icetower.table.keys import Keys
from icetower.table.staged import NewFiles, StagedTable

JSON = Mapping[str, Any]
Member = Admitted | AdmittedAppend
Encoding = tuple[int, ...]
"""Stands for some appends with rows, in their order, for as long as their group is planned."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A commit that goes in. `outcome`: ``direct``, ``rebased`` or ``appended``."""

    member: Member
    outcome: str
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A commit that is in the table already, as these snapshots."""

    member: Member
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A commit that does not go in."""

    member: Member
    error: IcetowerError


@dataclass(frozen=True, slots=True)
class Sources:
    """What a plan may read. It asks for what is missing (`Plan.needs`).

    Attributes:
        files: manifest lists and manifests, by path.
        listings: manifest lists that are known in runs, by path; they need not be in `files`.
        blobs: deletion vectors, by where they lie.
        targets: by the path of a position delete file that doesn't say which data files it is about: those files.
        live: the live paths of the table's branches, by which appends of the fast path are judged; None: they are not.
        encoded: the files that were made for the rows of some appends, by those appends (`encoding_of`). Positions in
            them count these.
    """

    files: Files = field(default_factory=lambda: Files({}, {}))
    listings: Mapping[str, Listing] = field(default_factory=dict[str, Listing])
    blobs: Mapping[BlobAt, bytes] = field(default_factory=dict[BlobAt, bytes])
    targets: Targets = field(default_factory=dict[str, "frozenset[str] | None"])
    live: LivePathsOf | None = None
    encoded: Mapping[Encoding, Sequence[NewFile]] = field(default_factory=dict[Encoding, "Sequence[NewFile]"])


def encoding_of(appends: Sequence[AdmittedAppend]) -> Encoding:
    """By what the files of their rows are known."""
    return tuple(map(id, appends))


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be read before a group can be planned: see `Sources`. False where there is nothing."""

    lists: frozenset[str] = frozenset()
    manifests: frozenset[str] = frozenset()
    blobs: frozenset[BlobAt] = frozenset()
    targets: tuple[DataFile, ...] = ()
    paths: tuple[tuple[str, ManifestFile], ...] = ()
    """Manifests whose live paths are asked for, each with its branch."""
    rows: tuple[tuple[AdmittedAppend, ...], ...] = ()
    """Appends whose rows must be made into files, together."""

    def __bool__(self) -> bool:
        return bool(len(self))

    def __len__(self) -> int:
        files = len(self.lists) + len(self.manifests) + len(self.blobs) + len(self.targets) + len(self.paths)
        return files + len(self.rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write before the swap, and what to answer after it.

    Attributes:
        metadata: the table after the group, without the entry for the swap in its metadata log.
        files: path → bytes of new manifest lists, manifests and group files.
        lists: by path, the manifest lists at which a branch or tag now stands, for the plans after this one.
        own: by the path of every new manifest list, the manifests that its snapshot added itself.
        snapshots: the table's snapshots after the group, by id.
        keys: the table's keys after the group.
        expired: snapshots that retention lets go with this swap.
        live: by the path of a new data manifest, the live files that it names, where they are known.
        needs: what must be read first; while there is anything, nothing else is valid.
    """

    metadata: Metadata
    accepted: tuple[Accepted, ...] = ()
    replayed: tuple[Replayed, ...] = ()
    refused: tuple[Refused, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    lists: Mapping[str, Listing] = field(default_factory=dict[str, Listing])
    own: Mapping[str, tuple[ManifestFile, ...]] = field(default_factory=dict[str, "tuple[ManifestFile, ...]"])
    snapshots: Mapping[int, JSON] = field(default_factory=dict[int, JSON])
    keys: Keys = field(default_factory=Keys)
    expired: tuple[int, ...] = ()
    live: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    needs: Needs = Needs()


def plan(
    head: HeadState,
    group: Sequence[Member],
    sources: Sources,
    *,
    now_ms: int,
    new_name: Callable[[], str],
    new_id: Callable[[], int],
    metadata_max_bytes: int = METADATA_MAX_BYTES,
    isolation_since: int | None = None,
    keep: frozenset[int] = frozenset(),
    merges: bool = True,
) -> Plan:
    """Plan a group on a head.

    Args:
        sources: what is known.
        now_ms: the server's clock.
        new_name: gives a name that was never used, for each new file.
        new_id: gives an id for a snapshot of the tower's own.
        metadata_max_bytes: longer metadata would not be read again.
        isolation_since: the sequence number since which the table is known to have asked for snapshot isolation.
        keep: snapshots that retention must not let go, since commits that are under way were written on them.
        merges: whether small manifests may be merged, which is never worth failing for.
    """
    planner = _Planner(head, sources, now_ms, new_name, new_id, isolation_since, metadata_max_bytes)
    appends = [member for member in group if isinstance(member, AdmittedAppend)]
    steps = [partial(planner.take, member) for member in group if isinstance(member, Admitted)]
    steps += [partial(planner.fold, each) for each in _by_ref(appends)]
    if merges:
        planner.let_merge(group)
    lacking: list[_Lacking] = []
    for step in steps:
        try:
            step()
        except _LACKING as need:
            lacking.append(need)
            if isinstance(need, NeedsToMerge):  # every member after it would need it, and is planned again anyway
                break
    if lacking:
        return Plan(head.metadata, needs=_needs(lacking))
    return planner.result(keep)


def landed(head: HeadState, member: Member) -> tuple[int, ...] | None:
    """The snapshots as which a commit is in a version of the table already; None if it is not.

    Raises:
        KeyMisused: it is there, but rolled back, or its key stands for something else.
        ValidationFailed: its snapshots are there with other content.
    """
    return _landed(member, Table.of(member.identifier, head), head.metadata)


def _landed(member: Member, table: Table, metadata: Metadata) -> tuple[int, ...] | None:
    if isinstance(member, AdmittedAppend) and member.table_uuid not in (None, metadata.get("table-uuid")):
        return None  # the table of its key was dropped, and another one created
    return snapshots_of(in_the_plan(member.identity, table))


class _NeedsTargets(Exception):
    """Position delete files must be read first, which don't say which data files they are about (trap R6)."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self.files = tuple(files)
        super().__init__([file.path for file in self.files])


class _NeedsEncoding(Exception):
    """The rows of some appends must be made into files first."""

    def __init__(self, appends: Iterable[AdmittedAppend]) -> None:
        self.appends = tuple(appends)
        super().__init__(len(self.appends))


_Lacking = NeedsFile | NeedsFiles | NeedsBlobs | _NeedsTargets | NeedsPaths | _NeedsEncoding
_LACKING = (NeedsFile, NeedsFiles, NeedsBlobs, _NeedsTargets, NeedsPaths, _NeedsEncoding)


def _needs(lacking: Sequence[_Lacking]) -> Needs:
    files = [need for each in lacking if isinstance(each, NeedsFiles) for need in each.needs]
    files += [each for each in lacking if isinstance(each, NeedsFile)]
    return Needs(
        frozenset(need.path for need in files if need.is_list),
        frozenset(need.path for need in files if not need.is_list),
        frozenset(blob for each in lacking if isinstance(each, NeedsBlobs) for blob in each.blobs),
        tuple({f.path: f for each in lacking if isinstance(each, _NeedsTargets) for f in each.files}.values()),
        tuple((each.ref, row) for each in lacking if isinstance(each, NeedsPaths) for row in each.rows),
        tuple(each.appends for each in lacking if isinstance(each, _NeedsEncoding)),
    )


def _by_ref(appends: Sequence[AdmittedAppend]) -> list[list[AdmittedAppend]]:
    found: dict[str, list[AdmittedAppend]] = {}
    for append in appends:
        found.setdefault(append.ref, []).append(append)
    return list(found.values())


def plan_creation(
    member: Admitted, *, now_ms: int, new_name: Callable[[], str]
) -> tuple[Metadata, Mapping[str, bytes]]:
    """The first metadata of a table that a commit creates (it asserts that there is none), and files to write."""
    failed = table_metadata.failed_requirements(None, member.requirements)
    if failed:
        raise CommitConflict(failed[0].message, rule=f"requirement.{failed[0].requirement['type']}")
    staged = StagedTable(None, Files({}, {}), {}, now_ms)
    with staged.attempt() as new_files:
        finish(member, staged, new_files, rebase=False, new_name=new_name)
    return staged.metadata, staged.new_files.files


class _Planner:
    def __init__(
        self,
        head: HeadState,
        sources: Sources,
        now_ms: int,
        new_name: Callable[[], str],
        new_id: Callable[[], int],
        isolation_since: int | None,
        metadata_max_bytes: int,
    ) -> None:
        self._head = head
        self._staged = StagedTable(head, sources.files, sources.listings, now_ms)
        self._sources = sources
        self._keys = head.keys
        self._new_name = new_name
        self._new_id = new_id
        self._isolation_since = isolation_since
        self._metadata_max_bytes = metadata_max_bytes
        self._added_bytes = 0
        self._accepted: list[Accepted] = []
        self._replayed: list[Replayed] = []
        self._refused: list[Refused] = []

    def let_merge(self, group: Sequence[Member]) -> None:
        """Small manifests may be merged that every commit of the group which removes files knows already (trap S4)."""
        staged = self._staged
        through = staged.last_sequence_number
        for member in group:
            if isinstance(member, Admitted) and any(change.diff.removed for change in member.changes):
                base = base_of(member)
                snapshot = None if base is None else staged.snapshot(base)
                through = min(through, 0 if snapshot is None else snapshot.sequence_number)
        staged.merges_through = through

    def take(self, member: Admitted) -> None:
        """Decide on one member. Raises what is in `_LACKING`."""
        try:
            landed = self._landed(member)
            if landed is not None:
                self._replayed.append(Replayed(member, landed))
                return
            grant = self._grant(member)
            with self._staged.attempt() as new_files:
                vectors = self._check(member, grant, new_files)
                finish(
                    member, self._staged, new_files, rebase=grant is not None, new_name=self._new_name, vectors=vectors
                )
                for change in member.changes:
                    new_files.live.update(named_by(change))
                self._take_room(member.updates)
        except _LACKING:
            raise
        except IcetowerError as error:
            self._refused.append(Refused(member, error))
            return
        except Exception as error:  # noqa: BLE001 - one commit's oddity must not fail its whole group
            refused = ValidationFailed(
                f"the commit cannot be applied: {type(error).__name__} in what it says", rule="commit.content"
            )
            refused.__cause__ = error
            self._refused.append(Refused(member, refused))
            return
        snapshots = tuple(change.snapshot.id for change in member.changes)
        if snapshots:
            self._keys = self._keys.plus([member.identity.landed_as(snapshots)])
        removed = member.updates.removed_snapshots
        self._keys = self._keys.without(removed)
        self._accepted.append(Accepted(member, "direct" if grant is None else "rebased", snapshots))

    def fold(self, appends: Sequence[AdmittedAppend]) -> None:
        """Decide on the appends to one branch, and fold those that go in. Raises what is in `_LACKING`."""
        able: list[AdmittedAppend] = []
        for append in appends:
            try:
                landed = self._landed(append)
            except IcetowerError as error:
                self._refused.append(Refused(append, error))
                continue
            if landed is not None:
                self._replayed.append(Replayed(append, landed))
                continue
            error = why_not(append, self._staged.view)
            if error is not None:
                self._refused.append(Refused(append, error))
                continue
            able.append(append)
        going, later, refused = once_each(self._new_to_the_branch(able))
        self._refused += [Refused(append, error) for append, error in refused]
        if not going:
            return
        try:
            snapshot_id, folded = self._folded(going)
        except ValidationFailed as error:  # the table is full
            self._refused += [Refused(append, error) for append in (*going, *later)]
            return
        self._keys = self._keys.plus(folded.keys)
        self._accepted += [Accepted(append, "appended", (snapshot_id,)) for append in going]
        self._replayed += [Replayed(append, (snapshot_id,)) for append in later]

    def _folded(self, going: Sequence[AdmittedAppend]) -> tuple[int, Folded]:
        """Appends to one branch as one snapshot. Raises `NeedsFile`, and `ValidationFailed` where the table is full."""
        staged, ref = self._staged, going[0].ref
        encoded = self._encoded(going)
        parent_id = staged.ref_head(ref)
        snapshot_id = self._new_id()
        number = staged.last_sequence_number + 1
        with staged.attempt() as new_files:
            listing, _ = merged_parent(
                staged, new_files, staged.listing(parent_id), snapshot_id, number, self._new_name
            )
            folded = fold(
                going,
                metadata=staged.view,
                parent=None if parent_id is None else staged.snapshot(parent_id),
                listing=listing,
                snapshot_id=snapshot_id,
                sequence_number=number,
                now_ms=staged.now_ms,
                new_name=self._new_name,
                encoded=encoded,
            )
            new_files.files.update(folded.files)
            new_files.listings.update(folded.lists)
            new_files.live.update(folded.live)
            for path, folded_list in folded.lists.items():
                new_files.own[path] = tuple(
                    row for row in folded_list.runs[0].rows if row.added_snapshot_id == snapshot_id
                )
            staged.apply(folded.updates)
            self._take_room(folded.updates)
        return snapshot_id, folded

    def _encoded(self, going: Sequence[AdmittedAppend]) -> list[NewFile]:
        """The files of the rows among appends; positions count all of these. Raises `_NeedsEncoding`."""
        with_rows = [(position, append) for position, append in enumerate(going) if append.rows is not None]
        if not with_rows:
            return []
        found = self._sources.encoded.get(encoding_of([append for _, append in with_rows]))
        if found is None:
            raise _NeedsEncoding(append for _, append in with_rows)
        return [replace(new, owners={with_rows[at][0]: spans for at, spans in new.owners.items()}) for new in found]

    def _take_room(self, updates: Sequence[JSON]) -> None:
        """Raises `ValidationFailed` where the metadata would become too long."""
        size_bytes = self._head.size_bytes + self._added_bytes
        self._added_bytes += check_room(size_bytes, updates, self._metadata_max_bytes)

    def _new_to_the_branch(self, going: list[AdmittedAppend]) -> list[AdmittedAppend]:
        """The appends without those that name a file which is live there. Raises `NeedsPaths`, `NeedsFile`."""
        if not going or self._sources.live is None:
            return going
        staged, ref = self._staged, going[0].ref
        listing, live = staged.listing(staged.ref_head(ref)), self._sources.live(ref)
        for path, paths in staged.new_files.live.items():  # of those before them in the group
            live.add(path, paths)
        refused = check(going, listing, live, staged.files, staged.specs)
        self._refused += [Refused(going[position], error) for position, error in refused.items()]
        return [append for position, append in enumerate(going) if position not in refused]

    def _landed(self, member: Member) -> tuple[int, ...] | None:
        """The snapshots of this very commit, if it is in the table already (traps A3, K1 to K3)."""
        staged = self._staged
        return _landed(member, Table(member.identifier, staged.snapshot, staged.ref_head, self._keys), staged.view)

    def result(self, keep: frozenset[int]) -> Plan:
        """The plan, when every member was taken."""
        staged = self._staged
        expired = expirable(staged.view, staged.index, now_ms=staged.now_ms, keep=keep) if self._accepted else ()
        if expired:
            staged.apply([{"action": "remove-snapshots", "snapshot-ids": list(expired)}])
        metadata = staged.metadata
        named = [staged.snapshot(ref["snapshot-id"]) for ref in staged.refs.values()]
        paths = {str(snapshot.get("manifest-list")) for snapshot in named if snapshot is not None}
        return Plan(
            metadata,
            tuple(self._accepted),
            tuple(self._replayed),
            tuple(self._refused),
            staged.new_files.files,
            {path: listing for path, listing in staged.new_files.listings.items() if path in paths},
            staged.new_files.own,
            staged.index,
            self._keys.without(expired),
            expired,
            staged.new_files.live,
        )

    # -- may it go in ---------------------------------------------------------------------------------------------

    def _grant(self, member: Admitted) -> RebaseGrant | None:
        """What allows the commit to be rebased; None where it goes in as it is. Raises `CommitConflict`."""
        view = self._staged.view
        if member.table_uuid is not None and member.table_uuid != view.get("table-uuid"):
            raise another_table(member.identifier)
        failed = table_metadata.failed_requirements(view, member.requirements)
        if not failed:
            return None
        target = member.updates.target_ref
        for failure in failed:
            requirement = failure.requirement
            if requirement["type"] != "assert-ref-snapshot-id" or requirement["ref"] != target:
                raise CommitConflict(failure.message, rule=f"requirement.{requirement['type']}")
        try:
            return grant_for(member, self._staged, isolation_since=self._isolation_since)
        except CommitConflict as refused:
            head_id = self._staged.ref_head(target) if target is not None else None
            error = CommitConflict(f"{failed[0].message}; {refused.message}", rule=refused.rule, snapshot=head_id)
            error.missing = refused.missing
            raise error from refused

    def _check(self, member: Admitted, grant: RebaseGrant | None, new_files: NewFiles) -> Mapping[int, Replacement]:
        """Check that nothing conflicts with the commit. Returns, by snapshot, the deletion vectors merged for that.

        Args:
            grant: None: the commit goes in as it is, and is checked only against what it declares itself.

        Raises:
            CommitConflict: for the first conflict.
        """
        direct = grant is None
        if grant is None:
            scope = scope_to_hold(member)
            if scope is None:
                return {}
            grant = RebaseGrant(scope.source, scope)
        if grant.source == "blind":
            return {}
        staged, targets = self._staged, self._sources.targets
        unread = [file for change in member.changes for file in untargeted(change) if file.path not in targets]
        if unread:
            raise _NeedsTargets(unread)
        head = base_of(member) if direct else staged.ref_head(member.updates.target_ref or "")
        replacements: dict[int, Replacement] = {}
        for change, conflicts in conflicts_of(member, grant, staged, head=head, targets=targets):
            against = tuple(conflicts)
            collisions = ()
            if against and grant.merges_vectors:
                collisions = collisions_of(change, steps_since(member, staged, head), staged.files)
            if collisions:
                superseded = {collision.base.path for collision in collisions if collision.base is not None}
                against = tuple(
                    c for c in against if c.rule != "C5" and not (c.rule == "C6" and superseded.issuperset(c.paths))
                )
            if collisions and not against:
                path = data_path(staged.view, f"{self._new_name()}-deletes.puffin")
                # What an earlier member of the group has united is in no storage yet.
                united = unite(collisions, among(staged.new_files.files, self._sources.blobs), path=path)
                new_files.files[path] = united.data
                replacements[change.snapshot.id] = united.replacement
            if against:
                raise refusal(change, against[0], staged)
        return replacements

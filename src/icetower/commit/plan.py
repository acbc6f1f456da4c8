"""The plan for a group: which of the waiting commits go into the next version of a table, and as what. Pure.

The members are taken in queue order, each planned on the table as its predecessors leave it:

1. A commit whose key, number or snapshots are in the table already is *replayed*: answered as the original was.
2. Requirements are checked. All hold: the commit goes in *direct*, unless it declares itself that its writer has read
   an older version, and something of what it read has changed since (`declared`).
3. Only the assertion on the branch's head fails: it is *rebased*, if something grants that and nothing that was
   written meanwhile conflicts with it (`rebase`).
4. Anything else is *refused*. What is merely stale is 409: the client validates and tries again, as everywhere.

Appends of the fast path come last, all of a branch in one snapshot (`appends`), and after them what only changes the
schema. A snapshot keeps its id through all of this, since clients look for it (trap A1), and the manifests that its
client wrote are named by path wherever possible (trap A2). The files are written by the engine; here they are only
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

from icetower.admission.admitted import Admitted, AdmittedAppend, AdmittedFence
from icetower.admission.properties import positive
from icetower.commit import gained, twice
from icetower.commit.appends import Folded, another_table, by_ref, fold, once_each, why_not
from icetower.commit.draft import Replacement, data_path, finish, merged_parent
from icetower.commit.merging import NeedsToMerge
from icetower.commit.needs import LACKING, Encoding, Lacking, Needs, NeedsEncoding, NeedsTargets, encoding_of, needs_of
from icetower.commit.pieces import Pieces, at_once
from icetower.commit.publishing import check_compared, publish
from icetower.commit.resolution import Done, Table, in_the_plan, snapshots_of
from icetower.commit.retention import expirable
from icetower.commit.twice import Again, Branch, LivePathsOf, NeedsPaths
from icetower.commit.vectors import among, collisions_of, unite
from icetower.errors import CommitConflict, IcetowerError, KeyMisused, ValidationFailed
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.entries import Files
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import ManifestFile
from icetower.iceberg.metadata import Metadata
from icetower.iceberg.puffin import BlobAt
from icetower.protocol.marks import INTENTS_FENCE
from icetower.protocol.sizes import check_room
from icetower.rebase.declared import scope_to_hold
from icetower.rebase.grants import RebaseGrant, base_of, conflicts_of, grant_for, refusal, steps_since
from icetower.rebase.written import Targets, untargeted
from icetower.rows.encoding import NewFile
from icetower.storage.port import METADATA_MAX_BYTES
from icetower.table import fences
from icetower.table.groups import Group
from icetower.table.head import HeadState
from icetower.table.keys import Keys
from icetower.table.live_paths import LivePaths
from icetower.table.staged import NewFiles, StagedTable

JSON = Mapping[str, Any]
Member = Admitted | AdmittedAppend | AdmittedFence


@dataclass(frozen=True, slots=True)
class Accepted:
    """A commit that goes in. `outcome`: ``direct``, ``rebased``, ``appended`` or ``fenced``."""

    member: Member
    outcome: str
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A commit that is in the table already, as these snapshots.

    Attributes:
        refusal: of one that is known by its files alone: its answer where it cannot be a replay.
    """

    member: Member
    snapshots: tuple[int, ...]
    refusal: KeyMisused | None = None


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
        live: the live paths of the table's branches, by which files are found that are added again; None: none are.
        groups: group files by path; None for one that cannot be read.
        encoded: the files that were made for the rows of some appends, by those appends (`encoding_of`). Positions in
            them count these.
    """

    files: Files = field(default_factory=lambda: Files({}, {}))
    listings: Mapping[str, Listing] = field(default_factory=dict[str, Listing])
    blobs: Mapping[BlobAt, bytes] = field(default_factory=dict[BlobAt, bytes])
    targets: Targets = field(default_factory=dict[str, "frozenset[str] | None"])
    live: LivePathsOf | None = None
    groups: Mapping[str, Group | None] = field(default_factory=dict[str, "Group | None"])
    encoded: Mapping[Encoding, Sequence[NewFile]] = field(default_factory=dict[Encoding, "Sequence[NewFile]"])


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
    lately_ms: int = 0,
) -> Pieces[Plan]:
    """Plan a group on a head, in pieces.

    Args:
        sources: what is known.
        now_ms: the server's clock.
        new_name: gives a name that was never used, for each new file.
        new_id: gives an id for a snapshot of the tower's own.
        metadata_max_bytes: longer metadata would not be read again.
        isolation_since: the sequence number since which the table is known to have asked for snapshot isolation.
        keep: snapshots that retention must not let go, since commits that are under way were written on them.
        merges: whether small manifests may be merged, which is never worth failing for.
        lately_ms: files that came no longer ago must be known before a commit is judged that may add them again.
    """
    planner = _Planner(head, sources, now_ms, new_name, new_id, isolation_since, metadata_max_bytes, lately_ms)
    appends = [member for member in group if isinstance(member, AdmittedAppend)]
    others = [member for member in group if not isinstance(member, AdmittedAppend)]
    # Appends were judged by the schema of the head: what only changes the schema waits for them, and refuses none.
    early: list[Callable[[], Pieces[None] | None]] = []
    late: list[Callable[[], Pieces[None] | None]] = []
    for each in others:
        (late if _changes_schema_only(each) else early).append(planner.step(each))
    steps = [*early, *(partial(planner.fold, each) for each in by_ref(appends)), *late]
    if merges:
        planner.let_merge(group)
    lacking: list[Lacking] = []
    for step in steps:
        try:
            pieces = step()
            if pieces is not None:
                yield from pieces
        except LACKING as need:
            lacking.append(need)
            # Every member after it would need it, and is planned again anyway.
            if isinstance(need, NeedsToMerge) or (isinstance(need, NeedsPaths) and need.lately):
                break
    if lacking:
        return Plan(head.metadata, needs=needs_of(lacking))
    return planner.result(keep)


def _changes_schema_only(member: Admitted | AdmittedFence) -> bool:
    return isinstance(member, Admitted) and member.publication is None and member.updates.change_schema_only


def landed(head: HeadState, member: Member) -> tuple[int, ...] | None:
    """The snapshots as which a commit is in a version of the table already; None if it is not.

    Raises:
        KeyMisused: it is there, but rolled back, or its key stands for something else.
        ValidationFailed: its snapshots are there with other content.
    """
    return _landed(member, Table.of(member.identifier, head), head.metadata)


def _landed(member: Member, table: Table, metadata: Metadata) -> tuple[int, ...] | None:
    if not isinstance(member, Admitted) and member.table_uuid not in (None, metadata.get("table-uuid")):
        return None  # the table of its key was dropped, and another one created
    return snapshots_of(in_the_plan(member.identity, table))


def plan_creation(
    member: Admitted, *, now_ms: int, new_name: Callable[[], str]
) -> tuple[Metadata, Mapping[str, bytes]]:
    """The first metadata of a table that a commit creates (it asserts that there is none), and files to write."""
    failed = table_metadata.failed_requirements(None, member.requirements)
    if failed:
        raise CommitConflict(failed[0].message, rule=f"requirement.{failed[0].requirement['type']}")
    staged = StagedTable(None, Files({}, {}), {}, now_ms)
    with staged.attempt() as new_files:
        at_once(finish(member, staged, new_files, rebase=False, new_name=new_name))
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
        lately_ms: int,
    ) -> None:
        self._head = head
        self._lately_since_ms = now_ms - lately_ms
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
        self._looked_at: set[str] = set()
        self._live: dict[str, tuple[LivePaths, int]] = {}  # and of how many of this plan's manifests these are

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

    def step(self, member: Admitted | AdmittedFence) -> Callable[[], Pieces[None] | None]:
        """What decides on one member that is no append."""
        return partial(self.take, member) if isinstance(member, Admitted) else partial(self.fence, member)

    def take(self, member: Admitted) -> Pieces[None]:
        """Decide on one member. Raises what is in `LACKING`."""
        try:
            landed = self._landed(member)
            if landed is not None:
                self._replayed.append(Replayed(member, landed))
                return
            check_compared(member, self._staged)
            again = self._adds_again(member)
            if again is not None:
                self._note(member, again)
                return
            grant = self._grant(member)
            if grant is None:
                self._check_gained(member)
            with self._staged.attempt() as new_files:
                snapshots = yield from self._put(member, grant, new_files)
        except LACKING:
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
        if snapshots:
            self._keys = self._keys.plus([member.identity.landed_as(snapshots)])
        removed = member.updates.removed_snapshots
        self._keys = self._keys.without(removed)
        self._accepted.append(Accepted(member, "direct" if grant is None else "rebased", snapshots))

    def _put(self, member: Admitted, grant: RebaseGrant | None, new_files: NewFiles) -> Pieces[tuple[int, ...]]:
        """Put one member on the staged table, within an attempt; its snapshots there."""
        staged, new_name = self._staged, self._new_name
        if member.publication is not None:
            targets = self._sources.targets
            put = yield from publish(
                member, grant, staged, new_files, targets=targets, new_name=new_name, new_id=self._new_id
            )
            self._take_room(put.updates)
            return put.snapshots
        vectors = self._check(member, grant, new_files)
        yield from finish(member, staged, new_files, rebase=grant is not None, new_name=new_name, vectors=vectors)
        for change in member.changes:
            new_files.live.update(change.live)
        self._take_room(member.updates)
        return tuple(change.snapshot.id for change in member.changes)

    def fence(self, member: AdmittedFence) -> None:
        """Fence a write, unless the table has it."""
        table = self._table(member)
        verdict = in_the_plan(member.identity, table)
        try:
            if member.table_uuid != self._staged.view.get("table-uuid"):
                raise another_table(member.identifier)
            if isinstance(verdict, Done):
                self._replayed.append(Replayed(member, verdict.snapshots))
                return
            updates = fences.fence(
                member.identity, table.properties, now_ms=self._staged.now_ms, until_ms=member.until_ms
            )
            with self._staged.attempt():
                self._staged.apply(updates)
                self._take_room(updates)
        except IcetowerError as error:
            self._refused.append(Refused(member, error))
            return
        self._accepted.append(Accepted(member, "fenced", ()))

    def fold(self, appends: Sequence[AdmittedAppend]) -> Pieces[None]:
        """Decide on the appends to one branch, and fold those that go in. Raises what is in `LACKING`."""
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
            snapshot_id, folded = yield from self._folded(going)
        except ValidationFailed as error:  # the table is full, or one of them is the cause: tried again in halves
            if error.rule == "manifest.writable" and len(able) > 1:
                raise
            self._refused += [Refused(append, error) for append in (*going, *(append for append, _ in later))]
            return
        self._keys = self._keys.plus(folded.keys)
        self._accepted += [Accepted(append, "appended", (snapshot_id,)) for append in going]
        for append, error in later:
            self._replay(append, (snapshot_id,), error)

    def _folded(self, going: Sequence[AdmittedAppend]) -> Pieces[tuple[int, Folded]]:
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
            yield from listing.packing(staged.format_version)
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
                new_files.own[path] = tuple(takewhile(lambda row: row.added_snapshot_id == snapshot_id, folded_list))
            staged.apply(folded.updates)
            self._take_room(folded.updates)
        return snapshot_id, folded

    def _encoded(self, going: Sequence[AdmittedAppend]) -> list[NewFile]:
        """The files of the rows among appends; positions count all of these. Raises `NeedsEncoding`."""
        with_rows = [(position, append) for position, append in enumerate(going) if append.rows is not None]
        if not with_rows:
            return []
        found = self._sources.encoded.get(encoding_of([append for _, append in with_rows]))
        if found is None:
            raise NeedsEncoding(append for _, append in with_rows)
        return [replace(new, owners={with_rows[at][0]: spans for at, spans in new.owners.items()}) for new in found]

    def _take_room(self, updates: Sequence[JSON]) -> None:
        """Raises `ValidationFailed` where the metadata would become too long."""
        size_bytes = self._head.size_bytes + self._added_bytes
        self._added_bytes += check_room(size_bytes, updates, self._metadata_max_bytes)

    # -- files that are live already ------------------------------------------------------------------------------

    def _adds_again(self, member: Admitted) -> Again | None:
        staged = self._staged
        ref = None if self._sources.live is None else twice.branch_of(member, staged)
        if ref is None:
            return None
        branch = self._branch(ref)
        if member.publication is not None and staged.ref_head(ref) != member.publication.base:
            twice.require_known([member], branch, staged.specs)
        if ref not in self._looked_at:  # what this plan adds is noted
            twice.require_lately(branch, self._came_lately)
            self._looked_at.add(ref)
        return twice.again_of(member, branch)

    def _check_gained(self, member: Admitted) -> None:
        """Raises `KeyMisused` where it sets a branch to a snapshot with a file twice; what is in `LACKING`."""
        if self._sources.live is None or member.publication is not None:  # what is published is on its branch
            return
        for gain in gained.gains_of(member, self._staged):
            gained.check(member, gain, self._staged, self._live_of, lately_since_ms=self._lately_since_ms)

    def _new_to_the_branch(self, going: list[AdmittedAppend]) -> list[AdmittedAppend]:
        """The appends without those that name a file which is live there. Raises as `check`, and `NeedsFile`."""
        if not going or self._sources.live is None:
            return going
        found = twice.check(going, self._branch(going[0].ref), self._staged.specs)
        for position, again in found.items():
            self._note(going[position], again)
        return [append for position, append in enumerate(going) if position not in found]

    def _branch(self, ref: str) -> Branch:
        staged = self._staged
        listing = staged.listing(staged.ref_head(ref))
        return Branch(ref, listing, self._live_of(ref), staged, self._sources.groups)

    def _live_of(self, ref: str) -> LivePaths:
        """The live paths of a branch, with what this plan adds."""
        assert self._sources.live is not None
        live, known = self._live.get(ref) or (self._sources.live(ref), 0)
        named = self._staged.new_files.live
        for path in islice(named, known, None):
            live.add(path, named[path])
        self._live[ref] = live, len(named)
        return live

    def _came_lately(self, row: ManifestFile) -> bool:
        snapshot = self._staged.snapshot(row.added_snapshot_id)
        return snapshot is not None and snapshot.timestamp_ms >= self._lately_since_ms

    def _note(self, member: Member, again: Again) -> None:
        if again.snapshots is None:
            self._refused.append(Refused(member, again.refusal))
        else:
            self._replay(member, again.snapshots, again.refusal)

    def _replay(self, member: Member, snapshots: tuple[int, ...], refusal: KeyMisused | None) -> None:
        self._replayed.append(Replayed(member, snapshots, refusal))
        if refusal is not None:  # from now on its key stands for that
            self._keys = self._keys.plus([member.identity.landed_as(snapshots)])

    def _landed(self, member: Member) -> tuple[int, ...] | None:
        """The snapshots of this very commit, if it is in the table already (traps A3, K1 to K3)."""
        return _landed(member, self._table(member), self._staged.view)

    def _table(self, member: Member) -> Table:
        staged = self._staged
        properties = staged.view.get("properties") or {}
        return Table(member.identifier, staged.snapshot, staged.ref_head, self._keys, properties)

    def _bring_fences(self) -> None:
        """The highest fence that was given for the table goes into its properties, with the commits under intents."""
        members = (accepted.member for accepted in self._accepted)
        under = (each.under for each in members if not isinstance(each, AdmittedFence) and each.under is not None)
        highest = max((each.highest for each in under), default=0)
        known = (self._staged.view.get("properties") or {}).get(INTENTS_FENCE, "0")
        if highest > (positive(known) or 0):
            updates = {INTENTS_FENCE: str(highest)}
            self._staged.apply([{"action": "set-properties", "updates": updates}])

    def result(self, keep: frozenset[int]) -> Plan:
        """The plan, when every member was taken."""
        staged = self._staged
        expired = expirable(staged.view, staged.index, now_ms=staged.now_ms, keep=keep) if self._accepted else ()
        if expired:
            staged.apply([{"action": "remove-snapshots", "snapshot-ids": list(expired)}])
        self._bring_fences()
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
            raise NeedsTargets(unread)
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

"""Does a write name a data file that is live on its branch already? Its rows would be read twice. Pure.

A client that has lost an answer, and its key with it, sends the same files again in a new snapshot. Where all of them
are live, and its own principal added them, the write has landed: a replay. Anything else that adds a live file is
refused, and never so that its client deletes files which the table lives on (traps K5, A3).

Only what is live where the write would come counts. So files of a staged snapshot may be picked or published, and what
was removed, or rolled back, may come again; a commit may take a file out and put it back, as rewrites do. What a branch
gains when it is set to a staged snapshot itself is looked at then (`gained`).

What is live is asked of `table.live_paths`, which parses nothing. Where one of its hashes is met, the manifest that
holds it is looked into, and the snapshot that added the file says whose it is; of a snapshot that stands for many
appends, its group file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.errors import KeyMisused, ValidationFailed
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.entries import NeedsFiles
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import DATA, DELETED, ManifestFile
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.pruning import can_contain
from icetower.protocol.marks import GROUP_FILE, PRINCIPAL, PUBLISHED_WAP, SOURCE_SNAPSHOT
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.table.groups import Group
from icetower.table.live_paths import LivePaths, Place, plain
from icetower.table.staged import StagedTable

LivePathsOf = Callable[[str], LivePaths]
"""The live paths of a branch of a table, by its name."""

NAMED_MAX = 20
"""So many files a refusal names."""


class NeedsPaths(Exception):
    """Manifests must be read first.

    Attributes:
        ref: the branch.
        rows: the manifests.
        lately: those that came lately, for a commit; else for an append.
    """

    def __init__(self, ref: str, rows: Iterable[ManifestFile], *, lately: bool = False) -> None:
        self.ref = ref
        self.rows = tuple(rows)
        self.lately = lately
        super().__init__([row.path for row in self.rows])


class NeedsGroups(Exception):
    """Group files must be read first. `paths`: of these."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        super().__init__(sorted(self.paths))


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch as a write meets it.

    Attributes:
        listing: of its head.
        live: its live paths, as far as they are known.
        staged: the table, and the manifests that are known.
        groups: group files by path; None for one that cannot be read.
    """

    ref: str
    listing: Listing
    live: LivePaths
    staged: StagedTable
    groups: Mapping[str, Group | None]


@dataclass(frozen=True, slots=True)
class Again:
    """A write that names files which are live on its branch.

    Attributes:
        snapshots: as which it has landed: they have all of its files, and its own principal committed them. None where
            that is not so.
        refusal: the answer where it is no replay.
    """

    snapshots: tuple[int, ...] | None
    refusal: KeyMisused


# -- ordinary commits -------------------------------------------------------------------------------------------------


def branch_of(member: Admitted, staged: StagedTable) -> str | None:
    """The branch on whose head a commit would come, as it is or rebased; None where it goes elsewhere, or adds nothing.

    A snapshot without a branch is staged. One that is put on another parent than the branch's head, and does not
    assert where that stands, replaces what the branch has (trap R7).
    """
    ref = member.updates.target_ref
    if ref is None or not any(change.added for change in member.changes):
        return None
    if member.table_uuid not in (None, staged.view.get("table-uuid")):
        return None
    head = staged.ref_head(ref)
    if head is None:
        return None
    if member.changes[0].snapshot.parent_id == head:
        return ref
    stale = any(
        requirement["type"] == "assert-ref-snapshot-id"
        and requirement["ref"] == ref
        and requirement.get("snapshot-id") != head
        for requirement in member.requirements
    )
    return ref if stale and not any(is_picked(change.snapshot) for change in member.changes) else None


def is_picked(snapshot: Snapshot) -> bool:
    """Whether it commits a staged snapshot again. One that is stale is for its client to validate again (trap R10)."""
    return SOURCE_SNAPSHOT in snapshot.summary or PUBLISHED_WAP in snapshot.summary


def require_lately(branch: Branch, came_lately: Callable[[ManifestFile], bool]) -> None:
    """Before commits are judged: what came lately must be known.

    Args:
        came_lately: whether a manifest did.

    Raises:
        NeedsPaths: these must be read first.
    """
    unread = branch.live.unread_lately(branch.listing, came_lately)
    if unread:
        raise NeedsPaths(branch.ref, unread, lately=True)


def again_of(member: Admitted, branch: Branch) -> Again | None:
    """Whether a commit adds files that are live on its branch.

    Raises:
        NeedsFiles, NeedsGroups: these must be read first.
    """
    line = _line(member, branch.ref)
    paths = _brought(line)
    there = _there(paths, branch)
    if not there:
        return None
    landed = None
    if len(there) == len(paths) and _only_appends(member, line, branch.staged.view.get("properties") or {}):
        landed = _landed(member.principal, there, branch)
    again = next((row.path for change in line for row in change.diff.added if row.path in branch.listing), None)
    if again is not None:
        return Again(landed, reused(again))
    return Again(landed, already_there(sorted(there), f"{member.identifier}, on branch {branch.ref}"))


def already_there(paths: Sequence[str], where: str = "the table") -> KeyMisused:
    """The refusal of a commit."""
    return _refusal(
        paths,
        f"the file {paths[0]} is in {where} already; with this commit, its rows would be read twice. Do not delete it. "
        "If it came with an earlier commit whose answer was lost, that one is done; else write the rows into a new "
        "file",
        rule="file.exists",
    )


def gained_again(paths: Sequence[str], snapshot_id: int, ref: str) -> KeyMisused:
    """The refusal of a commit that sets a branch to a snapshot that the table has, or on top of it."""
    return _refusal(
        paths,
        f"snapshot {snapshot_id} adds the file {paths[0]}, which its parent has already; with branch {ref} there, its "
        "rows would be read twice. Do not delete the file. Leave the branch where it is, and commit the snapshot's "
        "other files, if it has any, in a new snapshot",
        rule="file.exists",
    )


def reused(path: str) -> KeyMisused:
    """The refusal of a commit that names a manifest of the table as its own."""
    return KeyMisused(
        f"manifest {path} is in the table already, by another snapshot; a manifest belongs to one snapshot: look "
        "whether the commit landed, and write new manifests",
        rule="manifest.reused",
        next_step="refresh",
    )


def repeated(member: Admitted) -> list[str]:
    """The data files that two snapshots of a commit add, and that none between them takes out."""
    there: set[str] = set()
    again: set[str] = set()
    for change in _line(member, member.ref) if member.ref else ():
        there.difference_update(touched.file.path for touched in change.removed)
        added = {touched.file.path for touched in change.added if touched.file.content == DATA}
        again |= added & there
        there |= added
    return sorted(again)


def brought(member: Admitted) -> list[str]:
    """The data files that a commit adds to its branch, without those that it takes out before."""
    return _brought(_line(member, member.ref))


def brought_again(member: Admitted, ref: str, branch: Branch) -> list[str]:
    """The data files that a commit adds to a branch, and that are live where it is put. Raises `NeedsFiles`.

    Args:
        branch: as it is at the snapshot on which the commit lies.
    """
    return sorted(_there(_brought(_line(member, ref)), branch))


def _line(member: Admitted, ref: str) -> Sequence[Change]:
    """The changes that come onto a branch, oldest first; one that is only staged beside them does not."""
    at: int | None = dict(member.updates.moves).get(ref)
    by_id = {change.snapshot.id: change for change in member.changes}
    line: list[Change] = []
    while at is not None and (change := by_id.pop(at, None)) is not None:
        line.append(change)
        at = change.snapshot.parent_id
    return line[::-1]


def _brought(line: Sequence[Change]) -> list[str]:
    """The data files that a commit adds, each once, without those that it takes out before."""
    gone: set[str] = set()
    found: dict[str, None] = {}
    for change in line:
        if change.removed:
            gone.update(touched.file.path for touched in change.removed)
        added = [touched.file.path for touched in change.added if touched.file.content == DATA]
        found.update(dict.fromkeys(added if not gone else (path for path in added if path not in gone)))
    return [*found]


def _only_appends(member: Admitted, line: Sequence[Change], properties: Mapping[str, str]) -> bool:
    """Whether a commit does nothing but append files to its branch: nothing of it is lost where they are there.

    Args:
        properties: of the table. PyIceberg says some of them again with the files that it adds.
    """
    refs = {ref for ref, _ in member.updates.moves}
    return (
        len(line) == len(member.changes)
        and len(refs) == 1
        and all(change.is_pure_append for change in line)
        and all(_is_so(update, properties) for update in member.updates)
    )


def _is_so(update: Mapping[str, Any], properties: Mapping[str, str]) -> bool:
    if update["action"] == "set-properties":
        return (update.get("updates") or update.get("updated") or {}).items() <= properties.items()
    return update["action"] in ("add-snapshot", "set-snapshot-ref")


# -- appends by the fast path -----------------------------------------------------------------------------------------


def check(appends: Sequence[AdmittedAppend], branch: Branch, specs: Mapping[int, PartitionSpec]) -> dict[int, Again]:
    """The appends to one branch that name files which are live there, by their position.

    Raises:
        NeedsPaths, NeedsFiles, NeedsGroups: these must be read first.
    """
    require_known(appends, branch, specs)
    found: dict[int, Again] = {}
    every = _there([touched.file.path for append in appends for touched in append.files], branch)
    for position, append in enumerate(appends) if every else ():
        paths = [touched.file.path for touched in append.files]
        there = {path: every[path] for path in paths if path in every}
        if there:
            landed = _landed(append.principal, there, branch) if len(there) == len(paths) else None
            found[position] = Again(landed, already_live(append.identifier, branch.ref, sorted(there)))
    return found


def require_known(
    members: Iterable[AdmittedAppend | Admitted], branch: Branch, specs: Mapping[int, PartitionSpec]
) -> None:
    """Before appends, and publications, are judged: what their partitions have must be known, however old it is.

    Raises:
        NeedsPaths: these must be read first.
    """
    unread = branch.live.unread(branch.listing, places_of(members), pruned_by(specs))
    if unread:
        raise NeedsPaths(branch.ref, unread)


def already_live(identifier: Identifier, ref: str, paths: Sequence[str]) -> KeyMisused:
    """The refusal of an append by the fast path."""
    return _refusal(
        paths,
        f"the file {paths[0]} is in {identifier} already, on branch {ref}; appended again, its rows would be read "
        "twice. Do not delete it. If it was appended under another key or number, it is done; else write the rows into "
        "a new file",
        rule="append.live",
    )


def places_of(members: Iterable[AdmittedAppend | Admitted]) -> set[Place]:
    """The partitions that the data files of appends, and of commits, go to."""
    return {(each.spec_id, each.file.partition) for member in members for each in _data_files(member)}


def _data_files(member: AdmittedAppend | Admitted) -> Iterable[Touched]:
    if isinstance(member, AdmittedAppend):
        return member.files
    return (each for change in member.changes for each in change.added if each.file.content == DATA)


def pruned_by(specs: Mapping[int, PartitionSpec]) -> Callable[[ManifestFile, Collection[Place]], bool]:
    """Whether a manifest may, by its bounds, hold a file that is said to belong to one of these partitions.

    A file may have been added under another spec than the one that is named for it now.
    """

    def may_hold(row: ManifestFile, places: Collection[Place]) -> bool:
        spec = specs.get(row.spec_id)
        if spec is None or any(spec_id != row.spec_id for spec_id, _ in places):
            return True
        try:
            return can_contain(row, spec, places)
        except (ValidationFailed, TypeError, ValueError, AttributeError):
            return True

    return may_hold


# -- of both ----------------------------------------------------------------------------------------------------------


def _there(paths: Sequence[str], branch: Branch) -> dict[str, tuple[int, ...]]:
    """Those of some paths that are live on a branch, each with the snapshots that added it. Raises `NeedsFiles`."""
    wanted: dict[str, set[str]] = {}
    for path in branch.live.met(paths):
        for manifest in branch.live.holding(branch.listing, path):
            wanted.setdefault(manifest, set()).add(plain(path))
    if not wanted:
        return {}
    rows = [row for row in map(branch.listing.get, wanted) if row is not None]
    files = branch.staged.files
    if missing := files.missing(rows):
        raise NeedsFiles(missing)
    found: dict[str, list[int]] = {}
    for row in rows:
        names = wanted[row.path]
        for entry in files.manifests[row.path].entries:
            name = plain(entry.file.path)
            if name in names and entry.status != DELETED:
                added_by = row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id
                found.setdefault(name, []).append(added_by)
    return {path: tuple(found[plain(path)]) for path in paths if plain(path) in found}


def _landed(principal: str, there: Mapping[str, Iterable[int]], branch: Branch) -> tuple[int, ...] | None:
    """The snapshots by which a principal added files, in the order of their commits; None where another did with one.

    Raises:
        NeedsGroups: these must be read first.
    """
    ids = {snapshot_id for added_by in there.values() for snapshot_id in added_by}
    snapshots = [snapshot for snapshot in map(branch.staged.snapshot, ids) if snapshot is not None]
    named = {snapshot.id: str(snapshot.summary[GROUP_FILE]) for snapshot in snapshots if GROUP_FILE in snapshot.summary}
    lacking = [path for path in named.values() if path not in branch.groups]
    if lacking:
        raise NeedsGroups(lacking)
    whole = {snapshot.id for snapshot in snapshots if snapshot.summary.get(PRINCIPAL) == principal}
    own = {i: _appended(principal, branch.groups[path]) for i, path in named.items()}
    found: set[int] = set()
    for path, added_by in there.items():
        at = next((i for i in added_by if i in whole or plain(path) in own.get(i, ())), None)
        if at is None:
            return None
        found.add(at)
    return tuple(snapshot.id for snapshot in sorted(snapshots, key=_age) if snapshot.id in found)


def _appended(principal: str, group: Group | None) -> frozenset[str]:
    """The files that a principal appended in a group. Those that were made for rows are nobody's alone."""
    appends = () if group is None else group.appends
    return frozenset(plain(path) for append in appends if append.principal == principal for path in append.files)


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.sequence_number, snapshot.timestamp_ms


def _refusal(paths: Sequence[str], message: str, *, rule: str) -> KeyMisused:
    # Not 409, upon which a client may believe its files lost and delete them: they are in the table (trap A3).
    return KeyMisused(message, rule=rule, files=tuple(paths[:NAMED_MAX]), next_step="none")

"""What a branch gains when it is set to a snapshot that the table has already: is a file in it twice? Pure.

A staged snapshot may add any file, since nobody reads it. Once a branch is set to it, or to a snapshot on top of it,
its rows are read there. So the snapshots that a branch would gain are looked at when it is set to them. The commit is
refused where one of them adds a data file that was live in its own parent (trap K5).

Snapshots that are on a branch were looked at when they came there, and so was each that has been the current one. So
rollbacks, new branches, and branches that are set forward to others read nothing, and neither do ordinary commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from icetower.admission.admitted import Admitted
from icetower.commit.twice import Branch, LivePathsOf, already_there, brought_again, gained_again, require_lately
from icetower.iceberg.entries import NeedsFiles
from icetower.iceberg.lineage import ancestors
from icetower.iceberg.manifests import ADDED, DATA, ManifestFile
from icetower.protocol.snapshots import Snapshot
from icetower.table.live_paths import live_in, plain
from icetower.table.staged import StagedTable


@dataclass(frozen=True, slots=True)
class Gain:
    """A branch that a commit sets to a snapshot which is not on top of the branch's head.

    Attributes:
        ref: the branch.
        snapshots: those of the table that no branch has yet, oldest first.
        onto: the snapshot of the table on which those lie that the commit brings itself; None: it brings none.
        forward: whether the branch is only set forward.
    """

    ref: str
    snapshots: tuple[Snapshot, ...]
    onto: int | None
    forward: bool


def gains_of(member: Admitted, staged: StagedTable) -> Iterator[Gain]:
    """The branches that a commit sets to other snapshots than their heads, or new ones on top of these."""
    for update in member.updates.of("set-snapshot-ref"):
        ref, target = update["ref-name"], update["snapshot-id"]
        parents = {change.snapshot.id: change.snapshot.parent_id for change in member.changes}
        at: int | None = target
        while at in parents:
            at = parents.pop(at)
        head = staged.ref_head(ref)
        if at is None or at == head or update.get("type", "branch") != "branch":
            continue
        gained = _on_no_branch(staged, at)
        base = gained[0].parent_id if gained else at
        if gained or at != target:
            yield Gain(ref, gained, None if at == target else at, forward=base == head)


def _on_no_branch(staged: StagedTable, snapshot_id: int) -> tuple[Snapshot, ...]:
    """A snapshot and its ancestors, without those that are on a branch or were the current one; oldest first."""
    heads = {ref["snapshot-id"] for ref in staged.refs.values() if ref.get("type") == "branch"}
    if snapshot_id in heads:
        return ()
    known = {entry["snapshot-id"] for entry in staged.view.get("snapshot-log") or ()}
    walked: set[int] = set()
    for head in heads:
        for _ in ancestors(staged.snapshot, head, seen=walked):
            pass
    return tuple(ancestors(staged.snapshot, snapshot_id, seen=walked | known))[::-1]


def check(member: Admitted, gain: Gain, staged: StagedTable, live: LivePathsOf, *, lately_since_ms: int) -> None:
    """Check that a branch gains no file twice.

    Args:
        live: the live paths of a branch, by its name.
        lately_since_ms: files that came since then must be known for commits; for a snapshot that was staged before,
            those that came as long before it.

    Raises:
        KeyMisused: it would.
        NeedsFile, NeedsFiles, NeedsPaths: these must be read first.
    """
    name, since_ms = gain.ref, lately_since_ms
    first = gain.snapshots[0] if gain.snapshots else None
    old = first is not None and first.timestamp_ms < since_ms
    if first is not None and old:
        since_ms += first.timestamp_ms - staged.now_ms
    if old or not gain.forward:
        # The live paths of the branch would forget what its head has, and have dismissed what didn't come lately.
        name = f"{gain.ref} at {gain.onto if first is None else first.id}"

    def came_lately(row: ManifestFile) -> bool:
        added_by = staged.snapshot(row.added_snapshot_id)
        return added_by is not None and added_by.timestamp_ms >= since_ms

    for snapshot in gain.snapshots:
        again = _again(snapshot, name, staged, live, came_lately)
        if again:
            raise gained_again(again, snapshot.id, gain.ref)
    if gain.onto is not None and any(change.added for change in member.changes):
        branch = Branch(name, staged.listing(gain.onto), live(name), staged, {})
        require_lately(branch, came_lately)
        again = brought_again(member, gain.ref, branch)
        if again:
            raise already_there(again, f"snapshot {gain.onto}, on which the commit is put,")


def _again(
    snapshot: Snapshot, name: str, staged: StagedTable, live: LivePathsOf, came_lately: Callable[[ManifestFile], bool]
) -> list[str]:
    """The data files that a snapshot adds, and that were live in its parent. Raises as `check`."""
    if snapshot.manifest_list is None:
        return []
    listing = staged.listing(snapshot.id)
    own = {
        row.path: row
        for row in listing
        if row.added_snapshot_id == snapshot.id and row.content == DATA and row.added_files != 0
    }
    if not own:
        return []
    branch = Branch(name, listing, live(name), staged, {})
    require_lately(branch, lambda row: row.path in own or came_lately(row))
    others = {path: branch.live.sharing(listing, path) for path in own}
    rows = [row for row in map(listing.get, {*others, *chain(*others.values())}) if row is not None]
    if not any(others.values()):
        return []
    manifests = staged.files.manifests
    if missing := staged.files.missing(rows):
        raise NeedsFiles(missing)
    found: set[str] = set()
    for path, shared in others.items():
        added = {plain(entry.file.path) for entry in manifests[path].entries if entry.status == ADDED}
        found |= {each for other in shared for each in map(plain, live_in(manifests[other])) if each in added}
    return sorted(found)

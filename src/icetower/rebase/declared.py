"""A commit that says which version its writer has read is checked against all that came after that version (trap R2).

Its parent does not tell. A client whose commit was refused as stale may write the same snapshot anew on the new head
and read nothing again: PyIceberg's append does, and an upsert that finds no row to update is such an append. Then all
requirements hold, and the summary still names the version that was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icetower.admission.admitted import Admitted
from icetower.admission.operations import preserves_rows
from icetower.admission.read_scope import ReadScope
from icetower.errors import CommitConflict
from icetower.iceberg.change import Change
from icetower.protocol.marks import READ_SNAPSHOT
from icetower.protocol.snapshots import Snapshot
from icetower.table.staged import StagedTable


def scope_to_hold(member: Admitted) -> ReadScope | None:
    """The scope against which a commit is checked that needs no rebase; None: it goes in as it is.

    So it is where its summary declares what was read, and of another version than the one that it was written on. A
    rewrite that changes no row depends on no rows.
    """
    scope = member.read_scope
    if scope is None or scope.source != "summary":
        return None
    own = {change.snapshot.id: change.snapshot for change in member.changes}
    if all(_read(change) in (None, _name(_base(change, own))) for change in member.changes):
        return None
    return None if all(_changes_no_row(change) for change in member.changes) else scope


def unseen(change: Change, member: Admitted, staged: StagedTable, since: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """The snapshots before the commit's base that the writer of one of its snapshots has not seen, oldest first.

    Args:
        since: what landed since the base.

    Raises:
        CommitConflict: the version that was read is not in the history of the branch.
    """
    said = _read(change)
    own = {each.snapshot.id: each.snapshot for each in member.changes}
    base = _base(change, own)
    if said in (None, _name(base)) or any(said == _name(step.id) for step in since):
        return ()
    known = base is None or staged.snapshot(base) is not None
    steps = staged.steps(None if said == _name(None) else int(said or 0), base) if known else None
    if steps is None:
        version = "the empty table" if said == _name(None) else f"snapshot {said}"
        raise CommitConflict(
            f"the commit's summary says that its writer has read {version} ({READ_SNAPSHOT}), from which no history "
            f"leads to the snapshot that it was written on (expired, or rolled back): what it has missed cannot be "
            "seen; refresh and run the statement again",
            rule="commit.read-snapshot",
            snapshot=base,
        )
    return steps


def _read(change: Change) -> str | None:
    """The version that its writer has read, as the summary names it."""
    said = change.snapshot.summary.get(READ_SNAPSHOT)
    return said if said in (None, "none") else str(int(said))


def _name(snapshot_id: int | None) -> str:
    return "none" if snapshot_id is None else str(snapshot_id)


def _base(change: Change, own: Mapping[int, Snapshot]) -> int | None:
    """The snapshot that it was written on. Those of the same commit are not others'."""
    parent = change.snapshot.parent_id
    for _ in own:
        if parent is None or parent not in own:
            break
        parent = own[parent].parent_id
    return parent


def _changes_no_row(change: Change) -> bool:
    return change.snapshot.operation == "replace" and preserves_rows(change)

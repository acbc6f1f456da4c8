"""What stands against a publication: for each of its snapshots, what came to the other branch and conflicts. Pure."""

from __future__ import annotations

from itertools import islice

from icetower.admission.admitted import Admitted
from icetower.errors import CommitConflict, PublishConflict, SnapshotConflict
from icetower.rebase.grants import RebaseGrant, conflicts_of, refusal
from icetower.rebase.written import Targets
from icetower.table.staged import StagedTable

SNAPSHOTS_MAX = 100
"""Of so many snapshots a refusal says what stands against them, and of each so many conflicts."""

EACH_MAX = 5


def check_conflicts(member: Admitted, grant: RebaseGrant, staged: StagedTable, targets: Targets) -> None:
    """Raises `PublishConflict` where something conflicts, and what is in `commit.needs.LACKING`."""
    if grant.source == "blind":
        return
    found: list[SnapshotConflict] = []
    errors: list[CommitConflict] = []
    snapshots = 0
    head = staged.ref_head(member.ref)
    for change, conflicts in conflicts_of(member, grant, staged, head=head, targets=targets):
        some = [refusal(change, conflict, staged) for conflict in islice(conflicts, EACH_MAX)]
        if not some:
            continue
        errors += some
        snapshots += 1
        if snapshots <= SNAPSHOTS_MAX:
            found += [_of(change.snapshot.id, error) for error in some]
    if errors:
        raise _refused(member, errors[0], found, snapshots)


def _of(snapshot_id: int, error: CommitConflict) -> SnapshotConflict:
    return SnapshotConflict(snapshot_id, error.rule, error.message, error.files, error.partitions, error.snapshot)


def _refused(member: Admitted, first: CommitConflict, found: list[SnapshotConflict], snapshots: int) -> PublishConflict:
    assert member.publication is not None
    which = f"snapshot {found[0].source}" + (f" and {snapshots - 1} more" if snapshots > 1 else "")
    return PublishConflict(
        f"branch {member.publication.branch} was not published to {member.ref}: of its snapshots, {which} cannot go "
        f"on what came to {member.ref} since they parted. {first.message}",
        rule=first.rule,
        partitions=first.partitions,
        snapshot=first.snapshot,
        files=first.files,
        next_step="refresh",
        conflicts=found,
    )

"""A publication in the plan of a group: a branch set forward, or copies of another one's snapshots put on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.admission.admitted import Admitted
from icetower.commit.draft import finish
from icetower.commit.needs import NeedsTargets
from icetower.commit.pieces import Pieces
from icetower.errors import CommitConflict
from icetower.protocol.marks import AUTHOR, PRINCIPAL
from icetower.protocol.updates import Updates
from icetower.publish.comparison import compare, origins_of
from icetower.publish.conflicts import check_conflicts
from icetower.publish.copies import copies_of
from icetower.publish.preparing import moved
from icetower.rebase.grants import RebaseGrant
from icetower.rebase.written import Targets, untargeted
from icetower.table.published import keep
from icetower.table.staged import NewFiles, StagedTable

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication comes to: the updates of the table, final snapshots included, and the ids of the latter."""

    updates: Sequence[JSON]
    snapshots: tuple[int, ...]


def check_compared(member: Admitted, staged: StagedTable) -> None:
    """Check that a branch still lacks what it lacked when it was compared with the one that is published.

    Another publication, or a client's pick, may have brought some of it since.

    Raises:
        CommitConflict: it lacks something else now, or its snapshots expired.
    """
    publication = member.publication
    if publication is None or staged.ref_head(member.ref) == publication.onto:
        return
    now = compare(staged.snapshot, publication.head, staged.ref_head(member.ref))
    lacked = [change.snapshot.id for change in member.changes]
    if now.base != publication.base or now.partly or [snapshot.id for snapshot in now.lacking] != lacked:
        raise CommitConflict(
            f"{member.ref} has moved on since {publication.branch} was compared with it, and lacks other snapshots now",
            rule="publish.moved",
            snapshot=staged.ref_head(member.ref),
            next_step="retry",
        )


def publish(
    member: Admitted,
    grant: RebaseGrant | None,
    staged: StagedTable,
    new_files: NewFiles,
    *,
    targets: Targets,
    new_name: Callable[[], str],
    new_id: Callable[[], int],
) -> Pieces[Published]:
    """Put a publication on the staged table, within an attempt.

    Args:
        grant: what allows its snapshots to be rebased; None: its branch stands where the two have parted.

    Raises:
        PublishConflict: what came to its branch meanwhile conflicts with some of its snapshots.
        CommitConflict: its branch has moved on, and it may only be set forward; or its snapshots do not fit it now.
        NeedsFile, NeedsFiles, NeedsTargets: something must be read first.
    """
    publication = member.publication
    assert publication is not None
    if grant is None:
        return _forward(member, staged)
    if publication.forward_only:
        raise CommitConflict(
            f"{member.ref} has moved on since {publication.branch} was checked; its snapshots are rebased again, and "
            "have to be checked again",
            rule="publish.moved",
            snapshot=staged.ref_head(member.ref),
            next_step="retry",
        )
    unread = [file for change in member.changes for file in untargeted(change) if file.path not in targets]
    if unread and grant.source != "blind":
        raise NeedsTargets(unread)
    check_conflicts(member, grant, staged, targets)
    changes = copies_of(member, new_id, _authors(member, staged), _origins(member, staged))
    if not changes:
        return Published((), ())
    ids = tuple(change.snapshot.id for change in changes)
    updates = Updates(
        (
            *({"action": "add-snapshot", "snapshot": dict(change.snapshot)} for change in changes),
            moved(staged.refs, publication.stage or member.ref, ids[-1]),
        )
    )
    member = replace(member, changes=changes, updates=updates)
    yield from finish(member, staged, new_files, rebase=True, new_name=new_name)
    return Published(updates, ids)


def _forward(member: Admitted, staged: StagedTable) -> Published:
    publication = member.publication
    assert publication is not None
    _require_as_judged(member, staged)
    ids = tuple(change.snapshot.id for change in member.changes)
    properties: Mapping[str, str] = staged.view.get("properties") or {}
    kept = keep(
        member.identity.landed_as((publication.head,)),
        properties,
        now_ms=staged.now_ms,
        until_ms=publication.until_ms,
    )
    updates = (moved(staged.refs, member.ref, publication.head), *kept)
    staged.apply(updates)
    return Published(updates, ids)


def _require_as_judged(member: Admitted, staged: StagedTable) -> None:
    """Raises `CommitConflict` where the table has other snapshots by now under the ids of those that were judged."""
    for change in member.changes:
        found = staged.snapshot(change.snapshot.id)
        if found is None or found.content != change.snapshot.content:
            raise CommitConflict(
                f"snapshot {change.snapshot.id} was removed while it was published, and another has come under its id",
                rule="publish.moved",
                snapshot=change.snapshot.id,
                next_step="retry",
            )


def _authors(member: Admitted, staged: StagedTable) -> dict[int, str]:
    """Who made the snapshots, first of all. Appends by the fast path have many authors, whom their group files name."""
    found: dict[int, str] = {}
    for change in member.changes:
        snapshot = staged.snapshot(change.snapshot.id)
        author = None if snapshot is None else snapshot.summary.get(AUTHOR) or snapshot.summary.get(PRINCIPAL)
        if author is not None:
            found[change.snapshot.id] = author
    return found


def _origins(member: Admitted, staged: StagedTable) -> dict[int, frozenset[int]]:
    """What the snapshots stand for, as they are on their branch."""
    found: dict[int, frozenset[int]] = {}
    for change in member.changes:
        snapshot = staged.snapshot(change.snapshot.id)
        found[change.snapshot.id] = origins_of(change.snapshot if snapshot is None else snapshot, staged.snapshot)
    return found

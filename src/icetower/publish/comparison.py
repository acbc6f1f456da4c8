"""A branch beside the one that it is published to: what the latter lacks, and since when they differ. Pure.

What was published before, other than by a fast-forward, is in the other branch under new ids. The tower writes into
such a snapshot which ones it stands for, as they were first committed (`icetower.published-of`): so they are known
wherever they came from, also over several branches, and after a branch was set back. A snapshot that a client has
picked (`source-snapshot-id` alone) stands for that one, or for what that one stands for.

One snapshot that stands for several is there, or lacking, as a whole. Where the other branch has a part of them, it can
be neither left out nor published: that part would be there twice, and rows would come back that were deleted since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icetower.errors import CommitConflict, NotFound
from icetower.iceberg.lineage import Find, ancestors
from icetower.protocol.marks import PUBLISHED_BRANCH, PUBLISHED_OF, SOURCE_SNAPSHOT
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower.texts import printable

STEPS_MAX = 50_000
"""Branches that are further apart are not compared."""

NAMED_MAX = 10
"""So many snapshots of each kind a refusal names."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two branches beside each other.

    Attributes:
        base: the last snapshot that both have; None where the branches began apart, or one of them with the table.
        head: where the branch stands.
        onto: where the other one stands; None where it has no snapshot yet.
        own: the branch's snapshots since the base, oldest first.
        lacking: those of them that the other branch does not have, or not wholly.
        partly: those of them of which the other branch has a part.
        picked: those that a client has picked into the other branch, each with the snapshot as which it is there.
        copies: the other branch's snapshots that the tower made of those of this branch which all that it lacks were
            written on, and of no others.
        numbers: sequence numbers of the branch's snapshots: of what is on the other branch, each with that which it
            has there; of all others with that of the base, until they have copies.
    """

    base: int | None
    head: int
    onto: int | None
    own: tuple[Snapshot, ...]
    lacking: tuple[Snapshot, ...]
    partly: tuple[Snapshot, ...]
    picked: Mapping[int, int]
    copies: frozenset[int]
    numbers: Mapping[int, int]

    @property
    def forward(self) -> bool:
        """Whether the other branch can be set to this one's head, and loses nothing."""
        return self.base == self.onto


def branches_of(head: HeadState, table: Identifier, branch: str, to: str) -> Comparison:
    """Compare two branches of a table, to publish the one to the other.

    Raises:
        NotFound: there is no such branch.
        CommitConflict: as `compare`; or the other branch has a part of one of its snapshots.
    """
    refs = head.metadata.get("refs") or {}
    for name in (branch, to):
        ref = refs.get(name)
        if (ref is None and name != "main") or (ref is not None and ref.get("type") != "branch"):
            raise NotFound(f"{table} has no branch {name}", rule="branch.exists")
    at = head.ref(branch)
    if at is None:
        raise NotFound(f"{table} has no branch {branch}", rule="branch.exists")
    comparison = compare(head.snapshots.get, at, head.ref(to))
    if comparison.partly:
        raise _partly_there(head.snapshots.get, comparison, branch, to)
    return comparison


def compare(find: Find, head: int, onto: int | None) -> Comparison:
    """Compare the line of snapshots up to `head` with the one up to `onto`.

    Raises:
        CommitConflict: the snapshots at which they parted have expired, or they are too far apart.
    """
    line = list(ancestors(find, head))
    places = {snapshot.id: at for at, snapshot in enumerate(line)}
    since: list[Snapshot] = []
    base: int | None = None
    for snapshot in ancestors(find, onto):
        if snapshot.id in places:
            base = snapshot.id
            break
        since.append(snapshot)
    if len(since) > STEPS_MAX or (base is None and not _whole(line)) or (base is None and since and not _whole(since)):
        raise CommitConflict(
            f"the branches have no snapshot in common that the table still has, or lie more than {STEPS_MAX} apart: "
            "what came since they parted cannot be seen. Create the branch anew from where it is to be published, "
            "and write its changes again",
            rule="publish.base",
            snapshot=head,
            next_step="fix_request",
        )
    own = tuple(reversed(line if base is None else line[: places[base]]))
    origins = {snapshot.id: origins_of(snapshot, find) for snapshot in (*own, *since)}
    there = {origin: snapshot for snapshot in reversed(since) for origin in origins[snapshot.id]}
    picked = {snapshot.summary[SOURCE_SNAPSHOT]: snapshot.id for snapshot in reversed(since) if _is_picked(snapshot)}
    lacking = tuple(snapshot for snapshot in own if not origins[snapshot.id] <= there.keys())
    # Whoever wrote the first of them has seen what lies before it on the branch, and nothing else of the other branch.
    seen = own[: own.index(lacking[0])] if lacking else own
    mine = frozenset[int]().union(*(origins[snapshot.id] for snapshot in seen))
    copies = frozenset(
        snapshot.id for snapshot in since if PUBLISHED_BRANCH in snapshot.summary and origins[snapshot.id] <= mine
    )
    base_number = 0 if base is None else Snapshot(find(base) or {}).sequence_number
    left = {snapshot.id for snapshot in lacking}
    return Comparison(
        base,
        head,
        onto,
        own,
        lacking,
        tuple(snapshot for snapshot in lacking if not origins[snapshot.id].isdisjoint(there)),
        {snapshot.id: picked[str(snapshot.id)] for snapshot in own if str(snapshot.id) in picked},
        copies,
        {
            snapshot.sequence_number: base_number
            if snapshot.id in left
            else max(there[origin].sequence_number for origin in origins[snapshot.id])
            for snapshot in own
        },
    )


def origins_of(snapshot: Snapshot, find: Find) -> frozenset[int]:
    """The snapshots whose content one has, as they were first committed; itself where it is no copy.

    Args:
        find: a copy's sources may be copies themselves, as far as the table still has them.
    """
    found: set[int] = set()
    seen = {snapshot.id}
    copies = [snapshot]
    while copies:
        copy = copies.pop()
        sources = _sources(copy)
        if not sources:
            found.add(copy.id)
        for source in sources - seen:
            seen.add(source)
            known = find(source)
            if known is None:
                found.add(source)
            else:
                copies.append(Snapshot(known))
    return frozenset(found)


def _sources(snapshot: Snapshot) -> set[int]:
    """The snapshots whose content one has by its own words; none where it is no copy."""
    summary = snapshot.summary
    published = PUBLISHED_BRANCH in summary and PUBLISHED_OF in summary
    words = summary[PUBLISHED_OF].split(",") if published else [summary.get(SOURCE_SNAPSHOT)]
    return {source for source in map(_id, words) if source not in (None, snapshot.id)}


def _partly_there(find: Find, comparison: Comparison, branch: str, to: str) -> CommitConflict:
    """The refusal of a branch with a snapshot of which the other one has a part."""
    snapshot, others = comparison.partly[0], len(comparison.partly) - 1
    since = ancestors(find, comparison.onto, until=comparison.base)
    there = frozenset[int]().union(*(origins_of(each, find) for each in since))
    wanted = origins_of(snapshot, find)
    missing = wanted - there
    known = [Snapshot(found) for each in missing if (found := find(each)) is not None]
    made_on = snapshot.summary.get(PUBLISHED_BRANCH)
    if known:
        last = max(known, key=lambda each: each.sequence_number)
        way_out = (
            f"Publish those that it lacks as they were made{f' on branch {made_on}' if made_on else ''}, with keep: "
            f"each, from a branch at snapshot {last.id}. Then {to} has all of snapshot {snapshot.id}, and {branch} can "
            "be published"
        )
    else:
        way_out = "The table does not have those that it lacks any more: write their rows anew, on a new branch"
    text = (
        f"snapshot {snapshot.id} of branch {branch}{f', as {others} more,' if others else ''} stands for several that "
        f"were published as one. {to} has {_listed(wanted & there)} of these, and lacks {_listed(missing)}; with "
        f"snapshot {snapshot.id}, it would have the rows of the former twice. {way_out}"
    )
    return CommitConflict(printable(text), rule="publish.part", snapshot=snapshot.id, next_step="fix_request")


def _listed(ids: Iterable[int]) -> str:
    found = sorted(ids)
    return ", ".join(map(str, found[:NAMED_MAX])) + (f" and {len(found) - NAMED_MAX} more" * (len(found) > NAMED_MAX))


def _is_picked(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and SOURCE_SNAPSHOT in snapshot.summary and PUBLISHED_BRANCH not in snapshot.summary


def _whole(line: list[Snapshot]) -> bool:
    return bool(line) and line[-1].parent_id is None


def _id(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 20 else None

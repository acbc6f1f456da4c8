"""A branch beside the one that it is published to: what the latter lacks, and since when they differ. Pure.

What was published before, other than by a fast-forward, is in the other branch under new ids. The tower marks such a
snapshot with the branch's head at that time (`icetower.published-head`): all that the branch had up to there is in. A
snapshot that a client has picked (`source-snapshot-id` alone) is in by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icetower.errors import CommitConflict, NotFound
from icetower.iceberg.lineage import Find, ancestors
from icetower.protocol.marks import PUBLISHED_BRANCH, PUBLISHED_HEAD, SOURCE_SNAPSHOT
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState

STEPS_MAX = 50_000
"""Branches that are further apart are not compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two branches beside each other.

    Attributes:
        base: the last snapshot that both have; None where the branches began apart, or one of them with the table.
        head: where the branch stands.
        onto: where the other one stands; None where it has no snapshot yet.
        own: the branch's snapshots since the base, oldest first.
        lacking: those of them that the other branch does not have.
        picked: those that a client has picked into the other branch, each with the snapshot as which it is there.
        copies: the other branch's snapshots that the tower made of this branch's.
        numbers: sequence numbers of the branch's snapshots: of what was published before, each with that of its copy;
            of all others with that of the base, until they have copies.
    """

    base: int | None
    head: int
    onto: int | None
    own: tuple[Snapshot, ...]
    lacking: tuple[Snapshot, ...]
    picked: Mapping[int, int]
    copies: frozenset[int]
    numbers: Mapping[int, int]

    @property
    def forward(self) -> bool:
        """Whether the other branch can be set to this one's head, and loses nothing."""
        return self.base == self.onto


def branches_of(head: HeadState, table: Identifier, branch: str, to: str) -> Comparison:
    """Compare two branches of a table.

    Raises:
        NotFound: there is no such branch.
        CommitConflict: as `compare`.
    """
    refs = head.metadata.get("refs") or {}
    for name in (branch, to):
        ref = refs.get(name)
        if (ref is None and name != "main") or (ref is not None and ref.get("type") != "branch"):
            raise NotFound(f"{table} has no branch {name}", rule="branch.exists")
    at = head.ref(branch)
    if at is None:
        raise NotFound(f"{table} has no branch {branch}", rule="branch.exists")
    return compare(head.snapshots.get, at, head.ref(to))


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
    picked = _picked(since)
    positions = {snapshot.id: at for at, snapshot in enumerate(own)}
    copies = {at: some for at, some in _published(since).items() if at in positions}
    through = max((positions[at] for at in copies), default=-1)
    left = own[through + 1 :]
    base_number = 0 if base is None else Snapshot(find(base) or {}).sequence_number
    return Comparison(
        base,
        head,
        onto,
        own,
        tuple(snapshot for snapshot in left if snapshot.id not in picked),
        {snapshot.id: picked[snapshot.id] for snapshot in left if snapshot.id in picked},
        frozenset(copy.id for some in copies.values() for copy in some),
        {each.sequence_number: base_number for each in own} | _numbers(own[: through + 1], copies.values()),
    )


def _whole(line: list[Snapshot]) -> bool:
    return bool(line) and line[-1].parent_id is None


def _published(since: list[Snapshot]) -> dict[int, list[Snapshot]]:
    """The copies that the tower has made, by the head of the branch that they were made of."""
    found: dict[int, list[Snapshot]] = {}
    for snapshot in since:
        head = _id(snapshot.summary.get(PUBLISHED_HEAD))
        if head is not None and PUBLISHED_BRANCH in snapshot.summary:
            found.setdefault(head, []).append(snapshot)
    return found


def _picked(since: list[Snapshot]) -> dict[int, int]:
    """What clients have picked, with the snapshot that it became."""
    found: dict[int, int] = {}
    for snapshot in since:
        source = _id(snapshot.summary.get(SOURCE_SNAPSHOT))
        if source is not None and PUBLISHED_BRANCH not in snapshot.summary:
            found[source] = snapshot.id
    return found


def _numbers(published: Sequence[Snapshot], copies: Iterable[Sequence[Snapshot]]) -> dict[int, int]:
    """Sequence numbers with those of the copies: of a snapshot without one of its own, that of the next copy."""
    by_source = {_id(copy.summary.get(SOURCE_SNAPSHOT)): copy.sequence_number for some in copies for copy in some}
    found: dict[int, int] = {}
    at: int | None = None
    for snapshot in reversed(published):
        at = by_source.get(snapshot.id, at)
        if at is not None:
            found[snapshot.sequence_number] = at
    return found


def _id(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 20 else None

"""`Branches`: which snapshots are in the history of which branch, when a swap takes some of them away. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from icetower.errors import KeyMisused
from icetower.iceberg.lineage import Lineage, ancestors, cut_at
from icetower.protocol.marks import REF, SOURCE_SNAPSHOT
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState


class Branches:
    """Which snapshots are in the history of which ref, before a swap and after it; each is walked once, when needed.

    What goes with the swap counts as history of the version after it, too. The swap may yet be lost, so that only
    what holds in both versions holds.
    """

    def __init__(self, old: HeadState, new: HeadState) -> None:
        self._old = old
        self._new = new
        self._lines: dict[tuple[bool, str], Lineage] = {}

    def has(self, ref: str, snapshot: Snapshot) -> bool | None:
        """Whether a snapshot is in the history of a ref, or of any where there is no name; None: unknown.

        It is unknown where there is no such ref any more, where its history was cut, where the swap itself moves it
        past the snapshot, and where the snapshot is in the past of another one that stays, so that a ref that is set
        there would bring its rows back.
        """
        if not ref:  # staged: its rows are in the table where somebody has published it
            return True if self._is_published(snapshot) else None
        both = [self._line(ref, after=after) for after in (False, True)]
        found = {None if line is None else line.has(snapshot) for line in both}
        has = found.pop() if len(found) == 1 else None
        return None if has is False and self._may_come_back(snapshot) else has

    def cut_off(self, gone: Collection[int]) -> list[int]:
        """Snapshots that stay, but are not found any more from the head of their own ref when some have gone."""
        newest = max((found.sequence_number for found in map(self._find, gone) if found is not None), default=0)
        left: dict[str, Lineage] = {}
        found: list[int] = []
        for snapshot in map(Snapshot, self._new.snapshots.values()):
            ref = snapshot.summary.get(REF)
            if not ref or snapshot.sequence_number > newest or not self.has(ref, snapshot):
                continue
            if ref not in left:
                left[ref] = Lineage.of(self._new.snapshots.get, self._new.ref(ref))
            if left[ref].has(snapshot) is None:
                found.append(snapshot.id)
        return found

    def _is_published(self, snapshot: Snapshot) -> bool:
        if str(snapshot.id) in self._picked:
            return True
        return all(snapshot.id in reached for reached in self._reached)

    @cached_property
    def _picked(self) -> Collection[str | None]:
        return {snapshot.summary.get(SOURCE_SNAPSHOT) for snapshot in map(Snapshot, self._old.snapshots.values())}

    def _may_come_back(self, snapshot: Snapshot) -> bool:
        past, cut_at = self._pasts
        if snapshot.id in past:
            return True
        return cut_at is not None and (not snapshot.sequence_number or snapshot.sequence_number < cut_at)

    @cached_property
    def _pasts(self) -> tuple[Collection[int], int | None]:
        """All that is in the past of a snapshot that stays, and the highest number before which a past is cut off."""
        return self._past_of(self._new.snapshots)

    @cached_property
    def _reached(self) -> tuple[Collection[int], ...]:
        """What is in the history of any ref, before the swap and after it."""
        refs = [(head.metadata.get("refs") or {}).values() for head in (self._old, self._new)]
        return tuple(self._past_of([ref["snapshot-id"] for ref in some])[0] for some in refs)

    def _past_of(self, heads: Iterable[int]) -> tuple[Collection[int], int | None]:
        seen: set[int] = set()
        cuts: list[int] = []
        for head_id in heads:
            walked = list(ancestors(self._find, head_id, seen=seen))
            cut = cut_at(head_id, walked[-1] if walked else None, seen)
            cuts += [] if cut is None else [cut]
        return seen, max(cuts, default=None)

    def _line(self, ref: str, *, after: bool) -> Lineage | None:
        if (after, ref) not in self._lines:
            self._lines[after, ref] = Lineage.of(self._find, (self._new if after else self._old).ref(ref))
        line = self._lines[after, ref]
        return line if line.ids else None

    def _find(self, snapshot_id: int) -> Snapshot | None:
        found = self._new.snapshots.get(snapshot_id) or self._old.snapshots.get(snapshot_id)
        return None if found is None else Snapshot(found)


def cut_off(snapshot_id: int, ref: str) -> KeyMisused:
    """The refusal of a snapshot of which it is unknown whether its branch has it."""
    return KeyMisused(
        f"snapshot {snapshot_id} is in the table, and what came after it on {ref} has expired: it is unknown whether "
        "it was rolled back before. Look for its rows, and if they are missing, write a new snapshot",
        rule="snapshot.cut-off",
        snapshot=snapshot_id,
        next_step="ask_owner",
    )


def staged_or_rolled_back(snapshot_id: int, ref: str) -> KeyMisused:
    """The refusal of a snapshot that is in the table and not on its branch."""
    return KeyMisused(
        f"snapshot {snapshot_id} is in the table, but not in the history of {ref} (staged, or rolled back); point the "
        "ref at it without adding it again, or write a new snapshot",
        rule="snapshot.rolled-back",
        snapshot=snapshot_id,
        next_step="refresh",
    )

"""`Growing`: a table's metadata under a group of commits, at a cost that doesn't grow with its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.iceberg.builder import Builder, Metadata, Savepoint
from icetower.iceberg.shapes import JSON
from icetower.iceberg.updates import perform


class Growing:
    """Metadata that takes one commit after another, as `updates.apply` would one by one, built once in the end.

        growing = Growing(head.metadata, now_ms=now_ms, index=head.snapshots)
        growing.apply(member.updates)                 # one commit: all of it, or an error and nothing
        growing.view["last-sequence-number"]          # what the table says now
        head.after(location, growing.metadata, snapshots=growing.index)

    A commit of one snapshot costs some microseconds, however many snapshots there are; so does taking it back. Only
    updates that remove snapshots walk through the history.

    Each `apply` is a commit of its own: its last snapshot on `main` gets a place in the snapshot log, and those that it
    passes over don't. To try a commit step by step, and then apply it whole:

        before = growing.savepoint()
        growing.apply(first)
        growing.apply(then)
        growing.roll_back(before)
        growing.apply([*first, *then])

    Args:
        base: metadata of a table that exists; it is never changed.
        now_ms: wall clock; the result's time is never before the base's.
        index: the base's snapshots by id, where somebody has them (`HeadState.snapshots`); else it is made.
    """

    def __init__(self, base: Metadata, *, now_ms: int, index: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        self._builder = Builder(base, now_ms, int(base["format-version"]), index=index)
        self._built: Metadata | None = base

    def apply(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """One commit: updates as JSON, as the REST specification has them, in order.

        Raises:
            BadRequest, ValidationFailed, CommitConflict: as `updates.apply` does; the table is as it was before.
        """
        before = self._builder.savepoint()
        try:
            perform(self._builder, updates)
            self._builder.finish()
        except BaseException:
            self._builder.roll_back(before)
            raise
        if self._builder.changed:
            self._built = None
        self._builder.begin()

    def savepoint(self) -> Savepoint:
        """The table as it is now, to go back to. Good for any number of times."""
        return self._builder.savepoint()

    def roll_back(self, to: Savepoint) -> None:
        """Forget all commits since a savepoint of this object."""
        self._builder.roll_back(to)
        self._built = None

    @property
    def view(self) -> Metadata:
        """The metadata as it is now, for reading at once: its lists grow with the next commit. Never keep it."""
        return self._builder.state

    @property
    def metadata(self) -> Metadata:
        """The metadata as it is now, to keep. Made anew after a commit, at the cost of copying its lists later."""
        if self._built is None:
            self._built = self._builder.build()
        return self._built

    @property
    def index(self) -> Mapping[int, JSON]:
        """All snapshots by id, to keep: for the next version's `HeadState`."""
        return self._builder.index

    def snapshot(self, snapshot_id: int) -> JSON | None:
        """A snapshot by id, without a walk."""
        return self._builder.snapshot(snapshot_id)

"""Which places are being purged.

A purge deletes a table's files after the catalog has let go of the table, and others' requests go on meanwhile. A table
that is created there, or registered, would come to stand on files that are about to go.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from icetower.errors import CommitConflict
from icetower.paths import is_under
from icetower.protocol.names import Identifier

Places = Sequence[str]
"""Directories of one table."""


class Watch:
    """The purges that run, or begin, while a table is on its way into the catalog."""

    def __init__(self, running: Iterable[Places]) -> None:
        self._seen = list(running)

    def add(self, places: Places) -> None:
        """Take note of a purge that begins."""
        self._seen.append(places)

    def require_apart(self, identifier: Identifier, paths: Iterable[str]) -> None:
        """Raise `CommitConflict` where one of a new table's paths lies in a purged place, or above one."""
        purged = {place for places in self._seen for place in places}
        for path in sorted(paths) if purged else ():
            if any(is_under(f"{path}/", place) or is_under(f"{place}/", path) for place in purged):
                raise CommitConflict(
                    f"{identifier} would have files at {path}, where those of a table that was dropped are being "
                    "deleted; send this again once that is through",
                    rule="purge.running",
                    next_step="retry",
                )


class Purges:
    """The purges of one tower."""

    def __init__(self) -> None:
        self._running: list[Places] = []
        self._watches: set[Watch] = set()

    @contextmanager
    def running(self, places: Places) -> Generator[None]:
        """A purge runs within. It is begun before the catalog lets go of the table."""
        self._running.append(places)
        for watch in self._watches:
            watch.add(places)
        try:
            yield
        finally:
            self._running.remove(places)

    @contextmanager
    def watched(self) -> Generator[Watch]:
        """Purges are noticed within: also one that ends before the new table's paths are known."""
        watch = Watch(self._running)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

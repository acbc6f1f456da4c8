"""How many bytes of rows are on their way at once: of one principal, and of all. Beyond that: 429 at once.

What a request has is on its way once its body was read and parsed. Before that it is only asked whether there would be
room, so that no body is read in vain. Who sends one slowly takes nobody's room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from icetower.errors import TooManyRequests

ALL_MAX_BYTES = 64 * 1024 * 1024
"""Of all principals. A group holds no more than that, either: what its rows take as Parquet is held beside."""

SHARE = 4
"""One principal may have so many-th part of it on its way."""


class RowsInFlight:
    """One a tower. What is counted is the length of bodies.

    Args:
        all_max_bytes: of all principals together.

    Attributes:
        size_bytes: on their way now.
        requests, rows: that were taken in since the tower was started, whatever became of them.
        refused: requests that were answered 429.
    """

    def __init__(self, all_max_bytes: int = ALL_MAX_BYTES) -> None:
        self.all_max_bytes = all_max_bytes
        self.size_bytes = 0
        self.requests = 0
        self.rows = 0
        self.refused = 0
        self._of: Counter[str] = Counter()

    def busiest(self, most: int) -> list[tuple[str, int]]:
        """Whose rows are on their way, and how many bytes, the most first."""
        return self._of.most_common(most)

    def check(self, principal: str, size_bytes: int) -> None:
        """Check that so many bytes more could be on their way now; nothing is held for them.

        Raises:
            TooManyRequests: they could not (``limit.in-flight``).
        """
        own, own_max_bytes = self._of.get(principal, 0), self.all_max_bytes // SHARE
        if own + size_bytes > own_max_bytes:
            self.refused += 1
            raise _busy(f"{own} bytes of {principal}'s rows", own_max_bytes)
        if self.size_bytes + size_bytes > self.all_max_bytes:
            self.refused += 1
            raise _busy(f"{self.size_bytes} bytes of rows", self.all_max_bytes)

    @contextmanager
    def taken(self, principal: str, size_bytes: int, rows: int = 0) -> Generator[None]:
        """While within, these bytes are on their way. Raises as `check`."""
        self.check(principal, size_bytes)
        self.requests += 1
        self.rows += rows
        self.size_bytes += size_bytes
        self._of[principal] += size_bytes
        try:
            yield
        finally:
            self.size_bytes -= size_bytes
            self._of[principal] -= size_bytes
            if not self._of[principal]:
                del self._of[principal]


def _busy(what: str, most: int) -> TooManyRequests:
    return TooManyRequests(
        f"{what} are on their way, and at most {most} may be at once; nothing of these was written. Send them again in "
        "a second",
        rule="limit.in-flight",
        next_step="retry",
    )

"""How many bytes of rows are on their way at once: of one principal, and of all. Beyond that they are told to wait."""

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
    """

    def __init__(self, all_max_bytes: int = ALL_MAX_BYTES) -> None:
        self._all_max_bytes = all_max_bytes
        self._all = 0
        self._of: Counter[str] = Counter()

    @contextmanager
    def taken(self, principal: str, size_bytes: int) -> Generator[None]:
        """While within, these bytes are on their way. Raises `TooManyRequests` (``limit.in-flight``)."""
        own_max_bytes = self._all_max_bytes // SHARE
        if self._of[principal] + size_bytes > own_max_bytes:
            raise _busy(f"{self._of[principal]} bytes of {principal}'s rows", own_max_bytes)
        if self._all + size_bytes > self._all_max_bytes:
            raise _busy(f"{self._all} bytes of rows", self._all_max_bytes)
        self._all += size_bytes
        self._of[principal] += size_bytes
        try:
            yield
        finally:
            self._all -= size_bytes
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

"""Names of the commits that landed last, of all tables, in as little memory as can be."""

from __future__ import annotations

from collections import deque

LANDED_MAX = 131_072
"""A thousand appends a second, for four times as long as a commit may wait for its turn."""


class Landed:
    """The names that were added last, each known by its hash of 64 bits: 12 MB in all.

    That an unknown name has the hash of one of them is too rare to count on, and harmless: the commit is taken for one
    that may have landed, and looked for once more before it is turned away.
    """

    def __init__(self, names_max: int = LANDED_MAX) -> None:
        self._names_max = names_max
        self._order: deque[int] = deque()
        self._known: set[int] = set()

    def __contains__(self, name: str) -> bool:
        return hash(name) in self._known

    def __len__(self) -> int:
        return len(self._order)

    def add(self, name: str) -> None:
        """This one has landed, or may have. The oldest one beyond the bound is forgotten."""
        known = hash(name)
        if known in self._known:
            return
        self._known.add(known)
        self._order.append(known)
        if len(self._order) > self._names_max:
            self._known.discard(self._order.popleft())

"""Which writes are under way here: from when their requests are read until these are answered, or given up.

Who has lost an answer asks whether the write has landed. While its request is under way, that is unknown. The
engine knows those in its queues (`Engine.under_way`), also where their clients have hung up; here are those that the
gate still looks at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from icetower.admission.identity import Identity
from icetower.protocol.names import Identifier


class UnderWay:
    """One a tower."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Identifier, str]] = Counter()

    @contextmanager
    def noted(self, writes: Iterable[tuple[Identifier, Identity]]) -> Generator[None]:
        """These are under way within."""
        names = [(identifier, name) for identifier, identity in writes for name in identity.asked_by]
        self._counts.update(names)
        try:
            yield
        finally:
            self._counts.subtract(names)
            for name in names:
                if not self._counts[name]:
                    del self._counts[name]

    def has(self, identifier: Identifier, names: frozenset[str]) -> bool:
        """Whether a write is that goes by one of these (`Identity.asked_by`)."""
        return any((identifier, name) in self._counts for name in names)

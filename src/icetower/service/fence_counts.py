"""What became of the fences that were asked for at this tower: how many by outcome, and the last ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

OUTCOMES = ("fenced", "landed", "unknown", "refused")
"""``fenced``: the write never lands; ``landed``: it had landed; ``unknown``: it never lands from now on, and whether it
had landed cannot be told; ``refused``: nothing is known, and the request failed."""

LAST = 20
NAME_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """A fence that was asked for. `write`: its key, or its application and number."""

    at_ms: int
    principal: str
    table: str
    write: str
    outcome: str


class FenceCounts:
    """One a tower, since it was started."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._last: deque[Asked] = deque(maxlen=LAST)

    @property
    def counts(self) -> dict[str, int]:
        """By outcome, each of `OUTCOMES`."""
        return dict(self._counts)

    @property
    def last(self) -> Sequence[Asked]:
        """The last ones, the newest first."""
        return [*reversed(self._last)]

    def note(self, asked: Asked) -> None:
        """Count one."""
        self._counts[asked.outcome] += 1
        self._last.append(asked)

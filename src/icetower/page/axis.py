"""`Axis`: where times stand in a drawing, and the slots of a calendar that it shows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from icetower.contracts.slots import Turn
from icetower.page.times import clock_text


@dataclass(frozen=True, slots=True)
class Axis:
    """Times from `start_ms` to `end_ms` between two places, in the units of the drawing."""

    start_ms: int
    end_ms: int
    left: float
    right: float

    def across(self, ms: int) -> float:
        """Where a time stands; at an end, where it lies beyond it."""
        share = (min(max(ms, self.start_ms), self.end_ms) - self.start_ms) / (self.end_ms - self.start_ms)
        return round(self.left + (self.right - self.left) * share, 1)

    def stretch(self, from_ms: int, to_ms: int, least: float = 1.0) -> tuple[float, float]:
        """Where a stretch of time begins, and how wide it is drawn: `least`, so that it is seen."""
        left = self.across(from_ms)
        return left, max(least, round(self.across(to_ms) - left, 1))

    def slots(self, turn: Turn) -> Iterator[tuple[int, int]]:
        """The slots of a calendar, from when to when, that begin before the axis ends; the first may be over."""
        begin = turn.slot(self.start_ms)[0]
        while begin < self.end_ms:
            yield begin, begin + turn.length_ms
            begin += turn.every_ms

    def ticks(self, count: int) -> tuple[tuple[float, str], ...]:
        """So many equal parts: where each ends and begins, and its time in words."""
        times = (self.start_ms + (self.end_ms - self.start_ms) * at // count for at in range(count + 1))
        return tuple((self.across(ms), clock_text(ms)) for ms in times)

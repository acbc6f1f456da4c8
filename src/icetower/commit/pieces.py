"""Long planning in pieces, between which the event loop does whatever else waits for it.

A plan is pure and makes each of its files by itself. One that writes many entries anew, as a publication does, says
after each snapshot how many these were. What it has begun stays its own until it ends: others only see it whole.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from icetower.files.changes import Pause
from icetower.files.parsing import ON_LOOP_ENTRIES

T = TypeVar("T")
Pieces = Generator[int, None, T]
"""Yields how many entries each piece has taken, and returns the result."""


def at_once(pieces: Pieces[T]) -> T:
    """The result, with no pause."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value


async def with_pauses(pieces: Pieces[T]) -> T:
    """The result, with a pause whenever some hundreds of entries were taken."""
    taken = 0
    while True:
        try:
            taken += next(pieces)
        except StopIteration as end:
            return end.value
        if taken >= ON_LOOP_ENTRIES:
            taken = 0
            await Pause()

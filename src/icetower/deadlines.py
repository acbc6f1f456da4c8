"""Deadlines that hardly ever come: many of them, with one timer of the event loop.

uvloop makes a handle of its own for every timer, and takes the interpreter's lock once more to close it: at hundreds of
commits a second, each with half a dozen deadlines, that costs more than the clock is worth. Here a deadline is an entry
of a heap, and one that is cancelled stays there until its turn, or until the cancelled ones are most of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush

_KEPT_MAX = 64
"""So many cancelled ones are kept in any case."""


class Deadline:
    """One of them. `when_s`: by the clock of its loop. `heap`: where it waits; None once its time has come."""

    __slots__ = ("do", "heap", "number", "when_s")

    def __init__(self, heap: Heap, when_s: float, number: int, do: Callable[[], None]) -> None:
        self.heap: Heap | None = heap
        self.when_s = when_s
        self.number = number
        self.do: Callable[[], None] | None = do

    def __lt__(self, other: Deadline) -> bool:
        return (self.when_s, self.number) < (other.when_s, other.number)

    def cancel(self) -> None:
        """It does nothing when its time comes."""
        if self.do is not None:
            self.do = None
            if self.heap is not None:
                self.heap.lose_one()

    def come(self) -> None:
        do, self.do = self.do, None
        if do is not None:
            do()


class Deadlines:
    """Those of whoever holds this, on whichever event loop they are set. `heaps`: one for each loop."""

    def __init__(self) -> None:
        self.heaps: list[Heap] = []

    def after(self, seconds: float, do: Callable[[], None]) -> Deadline:
        """Call `do` on the running loop, once so many seconds have passed, unless it is cancelled before."""
        loop = asyncio.get_running_loop()
        for heap in self.heaps:
            if heap.loop is loop:
                return heap.add(seconds, do)
        self.heaps = [heap for heap in self.heaps if not heap.loop.is_closed()]
        self.heaps.append(Heap(loop))
        return self.heaps[-1].add(seconds, do)


class Heap:
    """The deadlines of one loop. Its timer is set for the first of them, or for one that was cancelled before that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._all: list[Deadline] = []
        self._cancelled = self._made = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def __len__(self) -> int:
        """How many it holds, cancelled ones included."""
        return len(self._all)

    def add(self, seconds: float, do: Callable[[], None]) -> Deadline:
        self._made += 1
        made = Deadline(self, self.loop.time() + seconds, self._made, do)
        heappush(self._all, made)
        if self._timer is None or made.when_s < self._timer_s:
            self._set_timer()
        return made

    def lose_one(self) -> None:
        self._cancelled += 1
        if self._cancelled > _KEPT_MAX and self._cancelled * 2 > len(self._all):
            self._all = [each for each in self._all if each.do is not None]
            heapify(self._all)
            self._cancelled = 0

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._all[0].when_s
        self._timer = self.loop.call_at(self._timer_s, self._look)

    def _look(self) -> None:
        """Do what is due, and set the timer for the next one."""
        self._timer = None
        now_s = max(self.loop.time(), self._timer_s)  # a clock may show a moment less than the timer was set for
        while self._all and (self._all[0].do is None or self._all[0].when_s <= now_s):
            first = heappop(self._all)
            first.heap = None
            if first.do is None:
                self._cancelled -= 1
            else:
                self.loop.call_soon(first.come)  # one that raises stops no other
        if self._all:
            self._set_timer()

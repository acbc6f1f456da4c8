"""Long manifests are parsed away from the event loop, for one commit at a time, and their memory is counted.

What is short is parsed where it is read: a thread would cost more than the parsing does. The rest goes to one thread.
It shares the interpreter's lock with the loop, so a second one would only take more of it; `SWITCH_S` bounds how long
the loop waits when it has something to do. A process of its own was measured, too: bringing the records back into this
one takes as long as parsing them here.

A commit that has long manifests waits for its turn before the first of them. Principals take turns, so that one with a
thousand such commits delays another by one of them. The commit holds the memory of its manifests (`recent.Held`) until
it is answered; while commits hold half of the budget, nobody gets a turn (trap A8).

The thread itself goes from principal to principal, too, one piece of work at a time: the bodies of requests that one
has sent with many connections delay another's commit by one of them each time that it needs the thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

from icetower.errors import CommitConflict, UpstreamFailed, ValidationFailed
from icetower.recent import Budget, Reservation
from icetower.threads import Threads

T = TypeVar("T")

ON_LOOP_BYTES = 48 * 1024
"""A file of so many bytes, unpacked, is parsed on the event loop, which takes 5 to 10 ms."""

ON_LOOP_ENTRIES = 200
"""So many entries are judged on the event loop."""

SWITCH_S = 0.0002
"""For so long a thread may keep the interpreter's lock while another waits for it. Python's own 5 ms would add up: a
commit takes the loop about twenty times."""

TIMEOUT_S = 60.0
WAITING_MAX = 64
"""Commits of one principal that wait for their turn."""

HELD_SHARE = 0.5
"""The part of the budget that the manifests of commits under way may take; one commit never takes more either."""


class Reading:
    """What one commit has read.

    Attributes:
        principal: by its name.
        entries: of the manifests that it has read.
        over: it reads no more.
    """

    def __init__(self, parsing: Parsing, principal: str) -> None:
        self._parsing = parsing
        self.principal = principal
        self._held = Reservation(parsing.budget)
        self._entering = asyncio.Lock()
        self._entered = False
        self.entries = 0
        self.over = False

    async def enter(self) -> None:
        """Wait for the turn, once. Raises `CommitConflict` where too many wait, or for too long."""
        async with self._entering:
            if not self._entered:
                await self._parsing.turns.enter(self.principal)
                self._entered = True

    def hold(self, size_bytes: int, entries: int) -> None:
        """Count a manifest. Raises `ValidationFailed` where the commit's manifests take too much together."""
        self.entries += entries
        self._held.take(size_bytes)
        most = int(self._parsing.budget.max_bytes * HELD_SHARE)
        if self._held.size_bytes > most:
            raise ValidationFailed(
                f"the manifests that the commit adds and replaces take more than {most} bytes of memory (half of "
                "server.cache_max_bytes); split the commit",
                rule="limit.manifests",
            )

    def leave(self) -> None:
        """All is read: the next one's turn."""
        self.over = True
        if self._entered:
            self._entered = False
            self._parsing.turns.leave()

    def end(self) -> None:
        """The commit is answered."""
        self.leave()
        self._held.release()
        self._parsing.turns.next()


class Turns:
    """Who may read long manifests now: one commit, of one principal after the other.

    Args:
        free: whether there is memory for another one.
        wait_s: how long a commit waits.
        waiting_max: how many of one principal wait; None: any number, which something else bounds.
    """

    def __init__(self, free: Callable[[], bool], wait_s: float, waiting_max: int | None = WAITING_MAX) -> None:
        self._free = free
        self._wait_s = wait_s
        self._waiting_max = waiting_max
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, principal: str) -> None:
        """Raises `CommitConflict`."""
        waiting = self._waiting.setdefault(principal, deque())
        if self._waiting_max is not None and len(waiting) >= self._waiting_max:
            raise CommitConflict(
                f"{len(waiting)} commits of {principal} with long manifests wait to be read; try again, with fewer at "
                "a time",
                rule="queue.full",
                next_step="retry",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self.next()
        try:
            await asyncio.wait_for(asyncio.shield(turn), self._wait_s)
        except BaseException as error:
            self._give_up(principal, turn)
            if isinstance(error, TimeoutError):
                raise CommitConflict(
                    f"the commit was not read within {self._wait_s:g} s, since others are before it; try again",
                    rule="queue.deadline",
                    next_step="retry",
                ) from error
            raise

    def leave(self) -> None:
        """Whoever has the turn gives it up."""
        self._busy = False
        self.next()

    def next(self) -> None:
        """Give the turn to the next principal's first commit, where it is free."""
        while self._waiting and not self._busy and self._free():
            principal, waiting = self._waiting.popitem(last=False)
            turn = waiting.popleft() if waiting else None
            if waiting:
                self._waiting[principal] = waiting  # behind the others
            if turn is not None and not turn.done():
                self._busy = True
                turn.set_result(None)

    def _give_up(self, principal: str, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self.leave()
            return
        turn.cancel()
        waiting = self._waiting.get(principal)
        if waiting is not None:
            waiting.remove(turn)
            if not waiting:
                del self._waiting[principal]


_current: ContextVar[Reading | None] = ContextVar("reading", default=None)


def _reading() -> Reading | None:
    """The commit that reads. Tasks that it has started may outlive its reading, such as the worker of its table."""
    reading = _current.get()
    return None if reading is None or reading.over else reading


class Parsing:
    """See the module. `budget`: the memory that commits' manifests are counted in."""

    def __init__(self, budget: Budget, *, wait_s: float = 30.0) -> None:
        self.budget = budget
        self.turns = Turns(lambda: budget.held_bytes < budget.max_bytes * HELD_SHARE, wait_s)
        self._threads = Threads(1, "parsing")
        self._pieces = Turns(lambda: True, TIMEOUT_S, waiting_max=None)  # requests under way are bounded

    @asynccontextmanager
    async def commit(self, principal: str) -> AsyncGenerator[Reading]:
        """What is read within, by this task and those that it starts, is read for one commit."""
        reading = Reading(self, principal)
        token = _current.set(reading)
        try:
            yield reading
        finally:
            _current.reset(token)
            reading.end()

    async def away(self, work: Callable[[], T], principal: str = "") -> T:
        """Do something long in the thread, after the pieces of work that it owes to others.

        Args:
            principal: for whom, where no commit is being read; a commit waits for its turn first.

        Raises:
            CommitConflict: too many wait, or for too long.
            UpstreamFailed: it took more than a minute.
        """
        reading = _reading()
        if reading is not None:
            await reading.enter()
            principal = reading.principal
        if sys.getswitchinterval() > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
        await self._pieces.enter(principal)
        try:
            return await self._threads.run(work, TIMEOUT_S)
        except TimeoutError as error:
            raise UpstreamFailed(
                f"manifests were not read within {TIMEOUT_S:g} s: send smaller ones, or try again later",
                rule="upstream.storage",
            ) from error
        finally:
            self._pieces.leave()

    async def judge(self, work: Callable[[], T]) -> T:
        """Do something that takes long for a commit with many entries: in the thread, if it has many."""
        reading = _reading()
        if reading is None or reading.entries <= ON_LOOP_ENTRIES:
            return work()
        return await self.away(work)

    def read(self, size_bytes: int, entries: int) -> None:
        """A manifest was read for the commit at hand. Raises as `Reading.hold`."""
        reading = _reading()
        if reading is not None:
            reading.hold(size_bytes, entries)

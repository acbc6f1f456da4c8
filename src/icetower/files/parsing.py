"""Long manifests are parsed away from the event loop, for one commit at a time, and their memory is counted.

What is short is parsed where it is read: a thread would cost more than the parsing does. The rest goes to one thread.
It shares the interpreter's lock with the loop, so a second one would only take more of it; `SWITCH_S` bounds how long
the loop waits when it has something to do. A process of its own was measured, too: bringing the records back into this
one takes as long as parsing them here.

A commit that has long manifests waits for its turn before the first of them. Principals take turns, so that one with a
thousand such commits delays another by one of them. The commit holds the memory of its manifests (`recent.Held`) until
it is answered; while commits hold half of the budget, nobody gets a turn (trap A8).

Each piece of work for the thread (a manifest, a manifest list, the judging of many entries, the body of a request)
waits for the thread in turn, too: it waits for the piece under way and for one of each other principal, however many
bodies one of them sends. Within one principal, the pieces of its commit go before its bodies, since other commits wait
for that one. What the server reads for itself waits for the piece under way alone.
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
"""Commits of one principal that wait for their turn, and long bodies of one principal."""

HELD_SHARE = 0.5
"""The part of the budget that the manifests of commits under way may take; one commit never takes more either."""


class Reading:
    """What one commit has read.

    Attributes:
        principal: the name of the one that commits.
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
    """Who goes next: one at a time, of one principal after the other.

    Whose turn has just ended stands behind all others, those included that came meanwhile.

    Args:
        what: that waits, for errors: what there are too many of, and what was not read in time.
        free: whether another one may go.
        wait_s: how long one waits.
    """

    def __init__(self, what: tuple[str, str], free: Callable[[], bool], wait_s: float) -> None:
        self._many, self._one = what
        self._free = free
        self._wait_s = wait_s
        self._busy = False
        self._served = ""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, principal: str, *, most: int | None = WAITING_MAX, first: bool = False) -> None:
        """Wait for a turn.

        Args:
            most: of one principal may wait; None: any number.
            first: before the others of the same principal.

        Raises:
            CommitConflict: too many wait, or for too long.
        """
        if not self._busy and not self._waiting and self._free():
            self._busy, self._served = True, principal
            return
        waiting = self._waiting.get(principal)
        if waiting is None:
            waiting = self._waiting[principal] = deque()
        if most is not None and len(waiting) >= most:
            raise CommitConflict(
                f"{len(waiting)} {self._many} of {principal} wait to be read; try again, with fewer at a time",
                rule="queue.full",
                next_step="retry",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.insert(0 if first else len(waiting), turn)
        self.next()
        try:
            await asyncio.wait_for(asyncio.shield(turn), self._wait_s)
        except BaseException as error:
            self._give_up(principal, turn)
            if isinstance(error, TimeoutError):
                raise CommitConflict(
                    f"{self._one} not read within {self._wait_s:g} s, since others are before it; try again",
                    rule="queue.deadline",
                    next_step="retry",
                ) from error
            raise

    @asynccontextmanager
    async def turn(self, principal: str) -> AsyncGenerator[None]:
        """A turn for what is done within. Raises as `enter`."""
        await self.enter(principal)
        try:
            yield
        finally:
            self.leave()

    def leave(self) -> None:
        """Whoever has the turn gives it up."""
        self._busy = False
        if self._served in self._waiting:
            self._waiting.move_to_end(self._served)
        self.next()

    def next(self) -> None:
        """Give the turn to the next principal's first commit, where it is free."""
        while self._waiting and not self._busy and self._free():
            principal, waiting = next(iter(self._waiting.items()))
            turn = waiting.popleft()
            if not waiting:
                del self._waiting[principal]
            if not turn.done():
                self._busy, self._served = True, principal
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
        self.turns = Turns(
            ("commits with long manifests", "the commit's manifests were"),
            lambda: budget.held_bytes < budget.max_bytes * HELD_SHARE,
            wait_s,
        )
        self.pieces = Turns(("long bodies", "the request was"), lambda: True, wait_s)
        self.listings = Turns(("lists", "the list was"), lambda: True, wait_s)
        self.searches = Turns(("searches of the log", "the search was"), lambda: True, wait_s)
        self._threads = Threads(1, "parsing")

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

    async def away(self, work: Callable[[], T]) -> T:
        """Do something long in the thread; a commit waits for its turn first.

        Raises:
            CommitConflict: too many wait, or for too long.
            UpstreamFailed: it took more than a minute.
        """
        reading = _reading()
        if reading is None:
            return await self._run(work)
        await reading.enter()
        return await self._piece(work, reading.principal, most=None, first=True)

    async def body(self, work: Callable[[], T], principal: str) -> T:
        """Parse a long body of a principal in the thread. Raises as `away`."""
        return await self._piece(work, principal, most=WAITING_MAX, first=False)

    async def shared(self, work: Callable[[], T]) -> T:
        """Do something long that any request may wait for in the thread. Raises `UpstreamFailed` as `away`."""
        return await self._run(work)

    @asynccontextmanager
    async def listing(self, principal: str) -> AsyncGenerator[None]:
        """The turn of one that lists names, of which there may be tens of thousands. Raises `CommitConflict`."""
        async with self.listings.turn(principal):
            yield

    async def _piece(self, work: Callable[[], T], principal: str, *, most: int | None, first: bool) -> T:
        await self.pieces.enter(principal, most=most, first=first)
        try:
            return await self._run(work)
        finally:
            self.pieces.leave()

    async def _run(self, work: Callable[[], T]) -> T:
        if sys.getswitchinterval() > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
        try:
            return await self._threads.run(work, TIMEOUT_S)
        except TimeoutError as error:
            raise UpstreamFailed(
                f"manifests were not read within {TIMEOUT_S:g} s: send smaller ones, or try again later",
                rule="upstream.storage",
            ) from error

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

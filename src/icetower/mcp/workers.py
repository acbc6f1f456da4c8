"""Places for what blocks: few, each call bounded in time, what waits bounded in number.

Short calls of the tower run in threads. What opens files or converts rows runs in a process of its own (`apart`), with
a thread that waits for it, and has places of its own: whoever fills these takes none of the short calls'. A principal
has fewer still, and beyond a short queue the answer is a refusal at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from icetower.errors import BadRequest, CommitStateUnknown, IcetowerError, Unavailable
from icetower.mcp.apart import Call, Given
from icetower.threads import Threads

PLACES = 4
"""Of each kind."""
BY_CALLER_MAX = 2
"""Calls of one caller at the same time."""
WAITING_BY_CALLER_MAX = 8
WAITING_MAX = 64
TIMEOUT_S = 60.0

T = TypeVar("T")


class Workers:
    """One for a server.

    Args:
        places: calls in threads at once, and as many in processes.
        timeout_s: of a call, what it waits for its turn included. A process that is late is ended. A thread that is
            late is not: it keeps its place until its own calls have ended, each of which has a timeout.
    """

    def __init__(self, places: int = PLACES, timeout_s: float = TIMEOUT_S) -> None:
        self._places_max = places
        self._timeout_s = timeout_s
        self._threads = Threads(places, "mcp", lost_max=0)
        self._waiting = Threads(places, "mcp-apart", lost_max=0)
        self._under_way: Counter[str] = Counter()
        self._places: dict[str, asyncio.Semaphore] = {}
        self._in_threads = asyncio.Semaphore(places)
        self._apart = asyncio.Semaphore(places)
        self._calls: set[Call] = set()

    async def run(self, caller: str, work: Callable[[], T], *, writes: bool = False) -> T:
        """What `work` returns, in a thread.

        Args:
            caller: who shares places; a hash of a credential, or a name.
            writes: whether it may commit: then being late is an unknown outcome.

        Raises:
            Unavailable: too much waits already, or it takes too long.
            CommitStateUnknown: it takes too long, and may commit.
        """
        began: list[bool] = []

        def noted() -> T:
            began.append(True)
            return work()

        task = self._admitted(caller, self._in_threads, lambda: self._threads.run(noted))
        try:
            return await asyncio.wait_for(asyncio.shield(task), self._timeout_s)
        except TimeoutError:
            task.add_done_callback(_heard)
            raise self._late(writes=writes, began=bool(began)) from None
        except asyncio.CancelledError:
            task.add_done_callback(_heard)
            raise

    async def run_apart(self, caller: str, call: Call, *, writes: bool = False) -> Any:
        """What a call returns, in a process of its own, which ends with the wait for it.

        Raises:
            Unavailable: too much waits already, or it was not its turn in time.
            BadRequest: it takes too long, or too much memory.
            CommitStateUnknown: so, and it may have committed.
            Failed: it raised what is not for the caller.
        """
        task = self._admitted(caller, self._apart, lambda: self._waiting.run(call.run))
        self._calls.add(call)
        task.add_done_callback(lambda _: self._calls.discard(call))
        try:
            return await asyncio.wait_for(asyncio.shield(task), self._timeout_s)
        except TimeoutError:
            began = call.began
            _give_up(task, call)
            if began and not writes:
                raise BadRequest(
                    f"the call took longer than {self._timeout_s:.0f} s, and was ended: narrow it by `where`, or name "
                    "fewer `columns`",
                    rule="mcp.time",
                ) from None
            raise self._late(writes=writes, began=began) from None
        except asyncio.CancelledError:
            _give_up(task, call)
            raise
        except Given:
            raise self._ended(writes=writes, began=call.began) from None
        except BadRequest as error:
            if writes and error.rule == "mcp.memory":
                raise CommitStateUnknown(f"{error.message}; it may have committed before") from None
            raise

    def _admitted(self, caller: str, places: asyncio.Semaphore, work: Callable[[], Any]) -> asyncio.Task[Any]:
        """Work that waits for its turn. Raises `Unavailable` where too much waits."""
        if self._under_way[caller] >= BY_CALLER_MAX + WAITING_BY_CALLER_MAX or self._under_way.total() >= (
            2 * self._places_max + WAITING_MAX
        ):
            raise Unavailable("too many tool calls are under way; make fewer at once", rule="mcp.busy")
        self._under_way[caller] += 1
        place = self._places.setdefault(caller, asyncio.Semaphore(BY_CALLER_MAX))
        task = asyncio.ensure_future(_in_turn(place, places, work))
        task.add_done_callback(lambda _: self._left(caller))
        return task

    def _late(self, *, writes: bool, began: bool) -> IcetowerError:
        late = f"the call has taken longer than {self._timeout_s:.0f} s"
        if writes and began:
            return CommitStateUnknown(f"{late}, and may still commit, or have committed")
        return Unavailable(late if began else f"{late} to get its turn, and was not begun", rule="mcp.busy")

    @staticmethod
    def _ended(*, writes: bool, began: bool) -> IcetowerError:
        if writes and began:
            return CommitStateUnknown("the call was ended, since the server stops; it may have committed")
        return Unavailable("the call was ended, since the server stops", rule="mcp.busy")

    def _left(self, caller: str) -> None:
        self._under_way[caller] -= 1
        if self._under_way[caller] <= 0:
            del self._under_way[caller]
            self._places.pop(caller, None)

    def close(self) -> None:
        """End the processes, and let go of the threads: one that works ends with the program."""
        for call in [*self._calls]:
            call.give_up()
        self._threads.close(wait=False)
        self._waiting.close(wait=False)


async def _in_turn(place: asyncio.Semaphore, places: asyncio.Semaphore, work: Callable[[], Any]) -> Any:
    async with place, places:
        return await work()


def _give_up(task: asyncio.Task[Any], call: Call) -> None:
    """Nobody waits for a call any more. Where it has not begun, it leaves the queue; else its process ends."""
    call.give_up()
    if not call.began:
        task.cancel()
    task.add_done_callback(_heard)


def _heard(task: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more: what it ends with is not reported as never looked at."""
    with suppress(asyncio.CancelledError):
        task.exception()

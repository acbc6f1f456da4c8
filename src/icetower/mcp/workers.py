"""Threads for what blocks: few, each call bounded in time, what waits bounded in number.

PyIceberg blocks, and some of it holds the interpreter. So a tower has few of these threads, whatever its callers ask, a
principal has fewer still, and beyond a short queue the answer is a refusal at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from icetower.errors import CommitStateUnknown, Unavailable

THREADS = 4
BY_CALLER_MAX = 2
"""Calls of one caller at the same time."""
WAITING_BY_CALLER_MAX = 8
WAITING_MAX = 64
TIMEOUT_S = 60.0

T = TypeVar("T")


class Workers:
    """One for a server.

    Args:
        threads: at once.
        timeout_s: of a call, what it waits for its turn included. A thread that is late is not stopped: it keeps its
            place until its own calls have ended, each of which has a timeout.
    """

    def __init__(self, threads: int = THREADS, timeout_s: float = TIMEOUT_S) -> None:
        self._threads = threads
        self._timeout_s = timeout_s
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: Counter[str] = Counter()
        self._places: dict[str, asyncio.Semaphore] = {}
        self._all = asyncio.Semaphore(threads)

    async def run(self, caller: str, work: Callable[[], T], *, writes: bool = False) -> T:
        """What `work` returns, in a thread.

        Args:
            caller: who shares places; a hash of a credential, or a name.
            writes: whether it may commit: then being late is an unknown outcome.

        Raises:
            Unavailable: too much waits already, or it takes too long.
            CommitStateUnknown: it takes too long, and may commit.
        """
        if self._under_way[caller] >= BY_CALLER_MAX + WAITING_BY_CALLER_MAX or self._under_way.total() >= (
            self._threads + WAITING_MAX
        ):
            raise Unavailable("too many tool calls are under way; make fewer at once", rule="mcp.busy")
        self._under_way[caller] += 1
        place = self._places.setdefault(caller, asyncio.Semaphore(BY_CALLER_MAX))
        task = asyncio.ensure_future(self._in_turn(place, work))
        task.add_done_callback(lambda _: self._left(caller))
        try:
            return await asyncio.wait_for(asyncio.shield(task), self._timeout_s)
        except TimeoutError:
            task.add_done_callback(_heard)
            if writes:
                raise CommitStateUnknown(
                    f"the call has taken longer than {self._timeout_s:.0f} s, and may still commit"
                ) from None
            raise Unavailable(f"the call has taken longer than {self._timeout_s:.0f} s", rule="mcp.busy") from None
        except asyncio.CancelledError:
            task.add_done_callback(_heard)
            raise

    async def _in_turn(self, place: asyncio.Semaphore, work: Callable[[], T]) -> T:
        async with place, self._all:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="mcp")
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _left(self, caller: str) -> None:
        self._under_way[caller] -= 1
        if self._under_way[caller] <= 0:
            del self._under_way[caller]
            self._places.pop(caller, None)

    def close(self) -> None:
        """Let go of the threads; one that works ends by itself."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _heard(task: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more: what it ends with is not reported as never looked at."""
    with suppress(asyncio.CancelledError):
        task.exception()

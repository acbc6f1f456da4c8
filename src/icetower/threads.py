"""Threads for calls that block, awaited on an event loop.

An executor makes a second future for every call, with a lock and a condition of its own, and chains the two: at
hundreds of calls a second that costs the event loop more than the calls do. Here a call is one future and one message.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from icetower.deadlines import Deadlines

T = TypeVar("T")

LOST_FOR_EACH = 2
"""So many threads may hang for each that works: then calls wait, and run out of their time."""


class Threads:
    """At most `count` threads, each started when there is work and no other is idle; they end with the process.

    Calls beyond that wait for a thread; how many may wait is for the callers to bound.

    A call that has run out of its time keeps its thread for as long as it hangs, which may be for ever: nothing ends a
    thread. Another thread takes its place, as long as no more than `lost_max` hang, and it ends when its call returns.
    """

    def __init__(self, count: int, name: str, *, lost_max: int | None = None) -> None:
        self._count = count
        self._name = name
        self._lost_max = LOST_FOR_EACH * count if lost_max is None else lost_max
        self._lost = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._queued = self._working = 0
        """Calls that no thread has taken, and threads that have one."""
        self._started: set[threading.Thread] = set()
        self._deadlines = Deadlines()
        self._closed = False

    @property
    def lost(self) -> int:
        """How many threads hang in calls that have run out of their time."""
        return self._lost

    async def run(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        """What `work` returns or raises, in a thread.

        Raises:
            TimeoutError: it took longer, its wait for a thread included. It goes on, and nobody hears how it ends.
            RuntimeError: the threads were closed.
        """
        if self._closed:
            raise RuntimeError(f"the {self._name} threads were closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        call = _Call(loop, answer, work)
        with self._lock:
            self._queued += 1
            self._calls.put(call)
            self._grow()
        if timeout_s is None:
            return await answer
        deadline = self._deadlines.after(timeout_s, partial(self._expire, call))
        try:
            return await answer
        finally:
            # What nobody waits for any more may still hang for ever, and its thread is lost then as any other.
            if not (answer.cancelled() and call.running):
                deadline.cancel()

    def close(self, *, wait: bool) -> None:
        """Take no more calls. With `wait`, finish all that were made; without it, drop what has not begun."""
        self._closed = True
        while not wait:
            try:
                self._calls.get_nowait()
            except queue.Empty:
                break
        with self._lock:
            threads = tuple(self._started)
        for _ in threads:
            self._calls.put(None)
        for thread in threads if wait else ():
            thread.join()

    def _grow(self) -> None:
        """Another thread, where a call waits for one and there may be one more. The lock is held."""
        if self._queued <= len(self._started) - self._working:
            return
        if len(self._started) - min(self._lost, self._lost_max) >= self._count:
            return
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._started)}", daemon=True)
        self._started.add(thread)
        thread.start()  # within the lock: whoever closes waits for what has begun

    def _expire(self, call: _Call) -> None:
        if not call.answer.done():
            call.answer.set_exception(TimeoutError())
        with self._lock:
            if not call.running:  # it waits for a thread, which will pass it over; or it has ended
                return
            call.lost = True
            self._lost += 1
            self._grow()  # others wait for the thread that hangs

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                self._queued -= 1
                self._working += 1
                call.running = True
            call.answer_it()
            with self._lock:
                self._working -= 1
                call.running = False
                if lost := call.lost:
                    self._lost -= 1
                    self._started.discard(threading.current_thread())
                    self._grow()  # more hung than could be replaced
            if lost:
                return
            del call  # nothing of it is kept while the thread waits for the next
        with self._lock:
            self._started.discard(threading.current_thread())


class _Call:
    """`running`: a thread has it. `lost`: it has run out of its time, and goes on."""

    __slots__ = ("_loop", "_work", "answer", "lost", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        self._loop = loop
        self.answer = answer
        self._work = work
        self.running = False
        self.lost = False

    def answer_it(self) -> None:
        if self.answer.done():  # whoever asked has given up
            return
        result: Any = None
        error: BaseException | None = None
        work, self._work = self._work, _nothing  # what it holds is let go with it, though its deadline may come later
        try:
            result = work()
        except StopIteration as raised:  # a future cannot bear it
            error = RuntimeError("a call raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 - it is for whoever asked
            error = raised
        try:
            self._loop.call_soon_threadsafe(_settle, self.answer, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def _nothing() -> None:
    return None


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)

"""Threads for calls that block, awaited on an event loop.

An executor makes a second future for every call, with a lock and a condition of its own, and chains the two: at
hundreds of calls a second that costs the event loop more than the calls do. Here a call is one future and one message.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most `count` threads, each started when there is work and no other is idle; they end with the process.

    Calls beyond that wait for a thread; how many may wait is for the callers to bound.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started: list[threading.Thread] = []
        self._closed = False

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
        self._calls.put(_Call(loop, answer, work))
        if not self._idle.acquire(blocking=False) and len(self._started) < self._count:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._started)}", daemon=True)
            self._started.append(thread)
            thread.start()
        if timeout_s is None:
            return await answer
        timer = loop.call_later(timeout_s, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def close(self, *, wait: bool) -> None:
        """Take no more calls. With `wait`, finish all that were made; without it, drop what has not begun."""
        self._closed = True
        while not wait:
            try:
                self._calls.get_nowait()
            except queue.Empty:
                break
        for _ in self._started:
            self._calls.put(None)
        for thread in self._started if wait else ():
            thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.answer_it()
            del call  # nothing of it is kept while the thread waits for the next
            self._idle.release()


class _Call:
    __slots__ = ("_answer", "_loop", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], work: Callable[[], Any]) -> None:
        self._loop = loop
        self._answer = answer
        self._work = work

    def answer_it(self) -> None:
        if self._answer.done():  # whoever asked has given up
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._work()
        except StopIteration as raised:  # a future cannot bear it
            error = RuntimeError("a call raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 - it is for whoever asked
            error = raised
        try:
            self._loop.call_soon_threadsafe(_settle, self._answer, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _expire(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())

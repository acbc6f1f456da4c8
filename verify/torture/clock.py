"""Virtual time: an event loop whose clock jumps to the next timer, and randomness that is a function of a seed.

Nothing here waits, and nothing runs in another thread, so that a run is a function of its seed alone.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

STEPS_MAX = 400_000
"""Rounds of the loop in one run; more is a livelock."""


class Stuck(Exception):
    """Nobody will ever go on: no timer is set and nothing is ready; or the loop turns for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop without a clock, files or threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._steps = 0
        self._selector = self  # what BaseEventLoop waits with

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        """Stand in for the selector: the time that it was to wait has passed."""
        self._steps += 1
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        if self._steps > STEPS_MAX:
            raise Stuck(f"the loop has turned {STEPS_MAX:,} times; time stands at {self._now_s:.3f} s")
        if timeout > 0:
            self._now_s = max(self._now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        del event_list

    def _write_to_self(self) -> None:
        raise RuntimeError("something called the loop from another thread")

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """What asks for a thread is done at once, here."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits
            done.set_exception(error)
        return done


def run(story: Coroutine[Any, Any, T], unhandled: list[str]) -> T:
    """Run a story to its end in virtual time; what tasks failed with unseen is added to `unhandled`."""
    loop = VirtualLoop()

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # A crash cancels tasks one by one. A `gather` then has the end of one as its error, and nobody left to read it.
        if isinstance(error, asyncio.CancelledError):
            return
        unhandled.append(f"{context['message']}: {type(error).__name__}: {error}")

    loop.set_exception_handler(note)
    try:
        return loop.run_until_complete(story)
    finally:
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


class Chance:
    """Randomness by name: what happens to one operation does not depend on how many others came before it."""

    def __init__(self, seed: int | str) -> None:
        self._seed = str(seed).encode()

    def number(self, *what: object) -> int:
        """64 bits that stand for this seed and these words."""
        words = "\0".join(map(str, what)).encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8, key=self._seed[:64]).digest(), "big")

    def draw(self, *what: object) -> float:
        """A number in [0, 1)."""
        return self.number(*what) / 2**64

    def stream(self, *what: object) -> random.Random:
        """A generator of its own."""
        return random.Random(self.number(*what))


def without_garbage(work: Callable[[], T]) -> T:
    """Do some work with the cyclic collector off: it would run in the middle, and finalisers with it."""
    was = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if was:
            gc.enable()

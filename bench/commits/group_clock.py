"""A tower that counts what its groups take: `python -m bench.group_clock SETTINGS OUT`.

A commit takes the tower's processor twice: before it waits for its group (its request, what it does, whether it may),
and as one of a group (the plan, the new files). When the tower has stopped OUT has, as JSON, the seconds of the serving
thread's processor in the tasks that make groups and bring them to their end, and in all since it answers requests.
"""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from pathlib import Path
from typing import Any

from icetower.ambient import SystemAmbient
from icetower.commit.engine import Engine
from icetower.gateway.app import serve
from icetower.gateway.settings import load_settings

GROUPS = ("_work", "_fly")
"""Of the engine: the tasks of a table's groups. Neither awaits the other's work."""


def share(out: Path) -> float:
    """How much of its processor time a tower spent on its groups."""
    figures = json.loads(out.read_text())
    return figures["groups_s"] / figures["all_s"]


class Clock:
    """Seconds of the thread's processor within coroutines: from each await to the next."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watched(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Awaitable[Any]]:
        """The same coroutine function, timed."""

        @wraps(function)
        async def timed(*arguments: Any, **named: Any) -> Any:
            return await self._driven(function(*arguments, **named))

        return timed

    @types.coroutine
    def _driven(self, inner: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = inner.send
        given: Any = None
        while True:
            began_s = time.thread_time()
            try:
                awaited = step(given)
            except StopIteration as end:
                return end.value
            finally:
                self.seconds += time.thread_time() - began_s
            try:
                step, given = inner.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - cancellation is the inner one's to deal with
                step, given = inner.throw, error


def main() -> None:
    settings, out = Path(sys.argv[1]), Path(sys.argv[2])
    clock = Clock()
    for name in GROUPS:
        setattr(Engine, name, clock.watched(getattr(Engine, name)))
    began_s = time.thread_time()

    def ready(uri: str) -> None:
        nonlocal began_s
        began_s = time.thread_time()
        print(f"icetower: serving {uri} (its groups are timed)", flush=True)

    serve(load_settings(settings), SystemAmbient(), open_to_all=False, ready=ready)
    out.write_text(json.dumps({"groups_s": clock.seconds, "all_s": time.thread_time() - began_s}))


if __name__ == "__main__":
    main()

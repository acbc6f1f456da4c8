"""The page's own thread: templates, and what else takes milliseconds, are made apart from the event loop.

There is one: it shares the interpreter's lock with the loop, on which commits wait, and a second one would only take
more of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from icetower.errors import Unavailable
from icetower.files.parsing import SWITCH_S
from icetower.threads import Threads

T = TypeVar("T")

TIMEOUT_S = 20.0


class PageThread:
    """One for a tower; `close` it at its end."""

    def __init__(self) -> None:
        self._threads = Threads(1, "page")

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises `Unavailable` where it takes too long."""
        if sys.getswitchinterval() > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
        try:
            return await self._threads.run(work, TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable("making that page took too long; look again in a moment") from error

    def close(self) -> None:
        self._threads.close(wait=False)

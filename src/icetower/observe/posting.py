"""Posts documents to one address, behind everything else: a bounded queue, deadlines, retries within a budget.

Nothing waits for it. Where the receiver is away, documents wait in the queue and the oldest give way; each is tried
again for a while, with longer and longer pauses. What is dropped is counted, and a line on the log, at most one a
minute. The address and the token may be secrets, and so may be what the receiver answers: failures are told by their
kind alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from icetower.ambient import Ambient
from icetower.observe.events import Event, Events

Made = Callable[[], Sequence[Any]]
"""Makes documents, each of which JSON can hold."""

log = logging.getLogger("icetower")

QUEUE_MAX = 10_000
AT_ONCE = 4
"""Posts under way at once."""
TIMEOUT_S = 5.0
RETRY_FOR_S = 300.0
"""So long after its first try a document is given up."""
RETRIES_MAX = 10.0
"""Retries that are made soon. Each document that is taken adds `RETRIES_SHARE` to what is left of them; where nothing
is left, a document is tried again after the longest pause only."""
RETRIES_SHARE = 0.2
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 15.0
SAID_EVERY_S = 60.0
CLOSE_S = 3.0
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses upon which the same document may be taken later."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where documents go. `token`: is sent as a bearer. Neither is ever shown."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class Poster:
    """Args:
    address: where to.
    kind: what the log calls the documents.
    queue_max: so many wait at most.
    """

    def __init__(
        self,
        address: Address,
        kind: str,
        ambient: Ambient,
        events: Events,
        *,
        queue_max: int = QUEUE_MAX,
        timeout_s: float = TIMEOUT_S,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        self._address = address
        self._kind = kind
        self._ambient = ambient
        self._events = events
        self._queue_max = queue_max
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._waiting: deque[Made] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._busy = 0
        """Workers that send something, for which they may wait for long."""
        self._client: httpx2.AsyncClient | None = None
        self._budget = RETRIES_MAX
        self._said_s: float | None = None
        self._unsaid = 0
        self.sent = 0
        """Documents that were taken, since the start of the tower."""
        self.dropped = 0
        """Entries of the queue of which something was dropped."""

    def put(self, made: Made) -> None:
        """Some documents that go one after the other; they are made when their turn comes. Returns at once."""
        if len(self._waiting) >= self._queue_max:
            self._waiting.popleft()
            self._drop(1, "the queue is full")
        self._waiting.append(made)
        if len(self._workers) < min(AT_ONCE, len(self._waiting) + self._busy):
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)

    async def close(self) -> None:
        """Send what waits, for a short while; what is left then is dropped."""
        if self._workers:
            await asyncio.wait(self._workers, timeout=CLOSE_S)
        for worker in tuple(self._workers):
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._waiting:
            self._drop(len(self._waiting), "the tower stops")
            self._waiting.clear()
        self._say("the tower stops")
        if self._client is not None:
            await self._client.aclose()

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._busy += 1
                try:
                    await self._send(self._waiting.popleft())
                finally:
                    self._busy -= 1
        finally:
            # At its end, not in a callback after it: what comes in between would find nobody to send it.
            worker = asyncio.current_task()
            assert worker is not None
            self._workers.discard(worker)

    async def _send(self, made: Made) -> None:
        try:
            for document in made():
                fault = await self._sent(json.dumps(document, separators=(",", ":")).encode())
                if fault is not None:
                    self._drop(1, fault)
                    break
        except asyncio.CancelledError:
            self._drop(1, "the tower stops")
            raise
        except Exception as error:
            log.exception("what was to be sent (%s) could not be put into words", self._kind)
            self._drop(1, type(error).__name__)

    async def _sent(self, body: bytes) -> str | None:
        """Post one until it is taken. Why it is given up, or None."""
        until_s, attempt = self._ambient.monotonic_s() + self._retry_for_s, 0
        while True:
            again, fault = await self._post(body)
            if fault is None:
                self.sent += 1
                self._budget = min(self._budget + RETRIES_SHARE, RETRIES_MAX)
                return None
            if not again or self._ambient.monotonic_s() >= until_s:
                return fault
            pause_s = min(PAUSE_MIN_S * 2 ** min(attempt, 10), PAUSE_MAX_S) * (0.5 + self._ambient.uniform() / 2)
            if self._budget < 1:
                pause_s = PAUSE_MAX_S
            self._budget = max(0.0, self._budget - 1)
            attempt += 1
            await self._ambient.sleep(pause_s)

    async def _post(self, body: bytes) -> tuple[bool, str | None]:
        """Post once: whether it may be tried again, and what was wrong; None where it was taken."""
        headers = {"Content-Type": "application/json", "User-Agent": "icetower"}
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {self._address.token}"
        if self._client is None:
            # No proxy of the environment and no redirect: it goes to the address in the settings or nowhere.
            self._client = httpx2.AsyncClient(timeout=self._timeout_s, trust_env=False, follow_redirects=False)
        try:
            async with (
                asyncio.timeout(self._timeout_s),  # a receiver that answers byte by byte holds up nobody
                self._client.stream("POST", self._address.url, content=body, headers=headers) as response,
            ):
                status = response.status_code  # what it says beyond that is nobody's business
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError) as error:
            return True, "timed out" if isinstance(error, TimeoutError | httpx2.TimeoutException) else type(
                error
            ).__name__
        if 200 <= status < 300:
            return False, None
        return status in AGAIN, f"HTTP status {status}"

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        self._unsaid += count
        now_s = self._ambient.monotonic_s()
        if self._said_s is None or now_s >= self._said_s + SAID_EVERY_S:
            self._said_s = now_s
            self._say(why)

    def _say(self, why: str) -> None:
        if self._unsaid:
            self._events.say(
                Event.NOT_SENT, of=self._kind, count=self._unsaid, dropped=self.dropped, sent=self.sent, message=why
            )
        self._unsaid = 0

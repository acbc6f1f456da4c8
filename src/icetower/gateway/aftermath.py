"""What is kept of commits after they were answered: keys, answers, the log of attempts.

It is written to the ledger in batches, behind the answers: no commit waits for a log's disk. What a crash takes, the
tables still tell. While the ledger cannot be written (its disk is full, another process has locked it), entries wait in
memory up to a bound, the oldest give way, and the log says how many did.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from icetower.ambient import Ambient
from icetower.errors import IcetowerError, UpstreamFailed
from icetower.ledger.answers import Answer
from icetower.ledger.ledger import Attempt, Batch, Commit, Ledger
from icetower.ledger.shadow import Shadowed

Item = Attempt | Commit | Shadowed | tuple[str, str, Answer]

ITEMS_MAX = 50_000
BATCH = 500
AGAIN_MIN_S = 0.5
AGAIN_MAX_S = 15.0

log = logging.getLogger("icetower")


class Aftermath:
    """Entries on their way to the ledger.

    Args:
        items_max: how many may wait.
    """

    def __init__(self, ledger: Ledger, ambient: Ambient, *, items_max: int = ITEMS_MAX) -> None:
        self._ledger = ledger
        self._ambient = ambient
        self._items: deque[Item] = deque()
        self._answers: dict[tuple[str, str], Answer] = {}
        self._items_max = items_max
        self._came = 0
        self._left = 0
        """How many entries have come, and how many of them wait no more."""
        self._dropped = 0
        self._writer: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    def put(self, *items: Item) -> None:
        """Keep some entries, soon."""
        self._items.extend(items)
        self._came += len(items)
        self._answers |= {item[:2]: item[2] for item in items if isinstance(item, tuple)}
        self._make_room()
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_until_done())

    async def flush(self) -> None:
        """Write all that waits, and nothing that comes later, unless it goes into the last batch.

        Raises `IcetowerError` where the ledger cannot be written; the entries wait on.
        """
        # A task of its own: a caller that goes away takes no batch with it.
        await asyncio.shield(asyncio.create_task(self._write_all(self._came)))

    async def find(self, principal: str, key: str, endpoint: str, fingerprint: str | None = None) -> Answer | None:
        """The answer that was given under a live key, also where it waits to be written.

        Raises:
            KeyMisused: it stands for another request.
        """
        waiting = self._answers.get((principal, key))
        if waiting is not None:
            return waiting.to(endpoint, fingerprint)
        return await self._ledger.find(principal, key, endpoint, fingerprint)

    async def close(self) -> None:
        """Write what waits, for the last time."""
        try:
            await self.flush()
        except IcetowerError as error:
            log.error("%d entries of the ledger are lost: %s", len(self._items), error.message)
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _write_until_done(self) -> None:
        failures = 0
        while self._items or failures:
            try:
                await self.flush()
            except IcetowerError as error:
                if not failures:
                    log.warning("the ledger is behind, and catches up as soon as it can be written: %s", error.message)
                await self._ambient.sleep(min(AGAIN_MIN_S * 2**failures, AGAIN_MAX_S))
                failures += 1
                continue
            if failures:
                log.warning("the ledger has caught up; %d entries were dropped meanwhile", self._dropped)
                self._dropped, failures = 0, 0

    async def _write_all(self, came: int) -> None:
        async with self._one_at_a_time:
            while self._left < came and self._items:  # who was here before may have written it
                await self._write_batch()

    async def _write_batch(self) -> None:
        batch = [self._items.popleft() for _ in range(min(len(self._items), BATCH))]
        try:
            await self._ledger.write(
                Batch(
                    attempts=[item for item in batch if isinstance(item, Attempt)],
                    commits=[item for item in batch if isinstance(item, Commit)],
                    answers=[item for item in batch if isinstance(item, tuple)],
                    shadowed=[item for item in batch if isinstance(item, Shadowed)],
                )
            )
        except UpstreamFailed:
            self._items.extendleft(reversed(batch))
            self._make_room()
            raise
        except IcetowerError as error:  # no time makes it right
            log.error("%d entries of the ledger were dropped: %s", len(batch), error.message)
        self._forget(batch)

    def _make_room(self) -> None:
        while len(self._items) > self._items_max:
            self._forget([self._items.popleft()])
            self._dropped += 1

    def _forget(self, items: Sequence[Item]) -> None:
        self._left += len(items)
        for item in items:
            if isinstance(item, tuple) and self._answers.get(item[:2]) is item[2]:
                del self._answers[item[:2]]

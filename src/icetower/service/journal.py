"""The journal of what is kept of requests after they were answered: keys, answers, the log of attempts.

It is written to the ledger in batches, behind the answers: no commit waits for a log's disk. What a crash takes, the
tables still tell. While the ledger cannot be written (its disk is full, another process has locked it), entries wait in
memory up to a bound, the oldest give way, and the log says how many did.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from icetower.admission.admitted import Admitted
from icetower.admission.identity import Identity
from icetower.ambient import Ambient
from icetower.commit.engine import Committed
from icetower.commit.group_keys import GroupKeys
from icetower.errors import IcetowerError, UpstreamFailed
from icetower.ledger.answers import Answer
from icetower.ledger.ledger import Attempt, Batch, Commit, Ledger, commits_of
from icetower.ledger.metrics import Report
from icetower.ledger.shadow import Shadowed
from icetower.ledger.watching import Changed, Reported
from icetower.protocol.snapshots import Snapshot
from icetower.table.sinks import mark_of_commit

Item = Attempt | Commit | Shadowed | Report | Changed | Reported | tuple[str, str, Answer]

ITEMS_MAX = 50_000
BATCH = 500
AGAIN_MIN_S = 0.5
AGAIN_MAX_S = 15.0

log = logging.getLogger("icetower")


class Journal:
    """Entries on their way to the ledger.

    Args:
        group_keys: keys of group files, which go to the ledger by a way of their own.
        items_max: how many entries may wait.
    """

    def __init__(self, ledger: Ledger, group_keys: GroupKeys, ambient: Ambient, *, items_max: int = ITEMS_MAX) -> None:
        self._ledger = ledger
        self._group_keys = group_keys
        self._ambient = ambient
        self._items: deque[Item] = deque()
        self._answers: dict[tuple[str, str], Answer] = {}
        self._items_max = items_max
        self._came = 0
        self._left = 0
        """How many entries have come, and how many of them wait no more."""
        self._dropped = 0
        self.dropped_ever = 0
        """Entries that were never written."""
        self._writer: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """How many entries are not written yet."""
        return self._came - self._left

    @property
    def ledger(self) -> Ledger:
        """The ledger, without what waits."""
        return self._ledger

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
        await self._write_waiting()
        await self._group_keys.flush()

    async def read_through(self) -> Ledger:
        """The ledger, with all that came before. Raises `IcetowerError` where it cannot be written."""
        await self.flush()
        return self._ledger

    def remember_commit(self, admitted: Admitted, done: Committed) -> None:
        """Keep a commit's keys for the time after their snapshots expire. The table has them already (trap K1)."""
        if done.snapshots and done.outcome != "replayed":
            self.put(*_commits(admitted, done))

    async def keep_replay(self, identity: Identity, done: Committed) -> None:
        """Keep the key of a write that was a replay by its files alone: the table has these under another one.

        It was called done, so it must not be done when it comes again, with other files or after these were rewritten.
        """
        uuid = str(done.head.metadata["table-uuid"])
        self.put(*commits_of(uuid, identity, done.snapshots, _lowest(done)))
        with suppress(IcetowerError):
            await self.flush()

    def remember_answer(self, principal: str, key: str, answer: Answer) -> None:
        """Keep that a key was used on an endpoint."""
        self.put((principal, key, answer))

    async def keep_answer(self, principal: str, key: str, answer: Answer) -> None:
        """Keep an answer for whoever sends its request again: at once, or, where that cannot be, soon."""
        try:
            await self._ledger.remember(principal, key, answer)
        except UpstreamFailed:  # it has been done: that its answer cannot be kept now must not call it a failure
            self.remember_answer(principal, key, answer)

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
            await self._write_waiting()
        except IcetowerError as error:
            log.error("%d entries of the ledger are lost: %s", len(self._items), error.message)
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self._group_keys.flush()

    async def _write_until_done(self) -> None:
        failures = 0
        while self._items or failures:
            try:
                await self._write_waiting()
            except IcetowerError as error:
                if not failures:
                    log.warning("the ledger is behind, and catches up as soon as it can be written: %s", error.message)
                await self._ambient.sleep(min(AGAIN_MIN_S * 2**failures, AGAIN_MAX_S))
                failures += 1
                continue
            if failures:
                log.warning("the ledger has caught up; %d entries were dropped meanwhile", self._dropped)
                self._dropped, failures = 0, 0

    async def _write_waiting(self) -> None:
        # A task of its own: a caller that goes away takes no batch with it.
        await asyncio.shield(asyncio.create_task(self._write_all(self._came)))

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
                    noticed=[item for item in batch if isinstance(item, Report)],
                    changed=[item for item in batch if isinstance(item, Changed)],
                    reported=[item for item in batch if isinstance(item, Reported)],
                )
            )
        except UpstreamFailed:
            self._items.extendleft(reversed(batch))
            self._make_room()
            raise
        except IcetowerError as error:  # no time makes it right
            log.error("%d entries of the ledger were dropped: %s", len(batch), error.message)
            self.dropped_ever += len(batch)
        self._forget(batch)

    def _make_room(self) -> None:
        while len(self._items) > self._items_max:
            self._forget([self._items.popleft()])
            self._dropped += 1
            self.dropped_ever += 1

    def _forget(self, items: Sequence[Item]) -> None:
        self._left += len(items)
        for item in items:
            if isinstance(item, tuple) and self._answers.get(item[:2]) is item[2]:
                del self._answers[item[:2]]


def _commits(admitted: Admitted, done: Committed) -> list[Commit]:
    """What the ledger keeps of a commit."""
    # As it landed, with counts that the manifests bear out, and not as its client says.
    landed = [Snapshot(done.head.snapshots[i]) for i in done.snapshots if i in done.head.snapshots]
    mark = None if admitted.identity.mark is None else mark_of_commit(landed)
    return commits_of(
        str(done.head.metadata["table-uuid"]),
        admitted.identity,
        done.snapshots,
        _lowest(done),
        application_id=admitted.application_id,
        fingerprint=admitted.fingerprint,
        mark=None if mark is None else mark.kept,
    )


def _lowest(done: Committed) -> int:
    """The lowest sequence number of a commit's snapshots; 0 where one has none."""
    return min((done.head.snapshots.get(i) or {}).get("sequence-number") or 0 for i in done.snapshots)

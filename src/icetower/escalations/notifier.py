"""Sends what is due, again where it has not arrived: a loop beside the commits, which never wait for it.

What is to be sent stands in the database, so a tower that stops, or dies, leaves it to its next start or to another
tower. A message may arrive twice, where nobody could tell whether it had; its id says that it is the same.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from icetower.ambient import Ambient
from icetower.errors import IcetowerError
from icetower.escalations.sending import DEADLINE_S, SENDERS, Sender
from icetower.escalations.store import Store
from icetower.escalations.tickets import Delivery, Ticket

ATTEMPTS_MAX = 24
"""Attempts at one message, over about three hours; then it is given up, and its ticket shows it."""

WAIT_MAX_S = 900.0
POLL_S = 30.0
"""So often is looked at what another tower has left, in seconds."""

CLAIM_MS = int(2 * DEADLINE_S * 1000)
"""So long a message that somebody is sending is left to them, in milliseconds."""

GRACE_S = 3.0
"""For what is being sent when the tower stops, in seconds."""

_SOON_S = 0.05
STOPPED = "the tower stopped while it was being sent"

log = logging.getLogger("icetower")


def wait_s(attempts: int, chance: float) -> float:
    """Between an attempt and the next, in seconds: 1, 2, 4 … 900, less up to a half, by `chance` in [0, 1)."""
    return min(2.0 ** min(attempts - 1, 30), WAIT_MAX_S) * (1 - chance / 2)


class Notifier:
    """One a tower. `start` it on the event loop, and `close` it there."""

    def __init__(self, store: Store, sender: Sender, ambient: Ambient) -> None:
        self._store = store
        self._sender = sender
        self._ambient = ambient
        self._woken = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    def wake(self) -> None:
        """There is something new to send."""
        self._woken.set()

    async def close(self) -> None:
        """Begin nothing more, and give what is under way a moment."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._sender.close()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            pause_s = POLL_S
            try:
                pause_s = await self._begin()
            except IcetowerError as error:
                log.warning("what is to be sent could not be read: %s", error.message)
            except Exception:
                log.exception("what is to be sent could not be read")  # and the loop goes on
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()

    async def _begin(self) -> float:
        """Begin to send what is due, as far as there is room. How long nothing more is to do, in seconds."""
        room = SENDERS - len(self._sending)
        if room == 0:
            return POLL_S  # whoever ends wakes
        now = self._ambient.now_ms()
        claimed, next_ms = await self._store.claim(now, now + CLAIM_MS, room)
        for ticket, delivery in claimed:
            task = asyncio.create_task(self._deliver(ticket, delivery))
            self._sending.add(task)
            task.add_done_callback(self._ended)
        return POLL_S if next_ms is None else min(max((next_ms - now) / 1000, _SOON_S), POLL_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what became of a message could not be written: %s", error)
        self.wake()

    async def _deliver(self, ticket: Ticket, delivery: Delivery) -> None:
        try:
            await self._sender.send(ticket, delivery)
        except asyncio.CancelledError:
            # It is unknown whether it has arrived. The next start may try at once.
            await self._store.settle(ticket, replace(delivery, next_ms=self._ambient.now_ms(), fault=STOPPED))
            raise
        except IcetowerError as error:
            await self._failed(ticket, delivery, error.message)
        except Exception as error:
            log.exception("%s %s could not be put into words", ticket.kind, ticket.id)
            await self._failed(ticket, delivery, type(error).__name__)
        else:
            sent = replace(delivery, next_ms=None, delivered_ms=self._ambient.now_ms(), fault=None)
            await self._store.settle(ticket, sent)

    async def _failed(self, ticket: Ticket, delivery: Delivery, fault: str) -> None:
        about = f"{ticket.kind} {ticket.id}: {delivery.channel} to {delivery.address}: {fault}"
        next_ms = None
        if delivery.attempts < ATTEMPTS_MAX:
            pause_s = wait_s(delivery.attempts, self._ambient.uniform())
            next_ms = self._ambient.now_ms() + int(pause_s * 1000)
            log.warning("%s; it is tried again (attempt %d of %d)", about, delivery.attempts, ATTEMPTS_MAX)
        else:
            log.error("%s; it is given up after %d attempts", about, delivery.attempts)
        await self._store.settle(ticket, replace(delivery, next_ms=next_ms, fault=fault))

"""Requests under way, fair by principal over all tables and routes (trap A8).

The queue of a table lets principals take turns, and so nobody is crowded out at one table. But reading, asking
contracts and planning share one event loop over all tables, and a commit alone in its group costs it most. So where
several principals are at work, each may have an equal part of the places. How many there are follows from the load:
fewer while the event loop is late, until each principal has one, and more again while it is not. Further requests are
held before their bodies are read, in their order; nobody is refused (trap A4). Who is alone is held by the quota of its
contract only.

While the loop is late, a place is free again in the loop's next turn, and no sooner. Requests that never wait for
anything hold their place for an instant: without this, who sends many of those at once would have a whole turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from icetower.gateway.connection_state import ConnectionState

SLOTS_MAX = 256
LOOK_S = 0.05
LATE_S = 0.01
"""The event loop is busy where it comes so much later than it was asked to."""


@dataclass(slots=True)
class _Principal:
    most: int = 1
    """So many at once, by its contract."""
    under_way: int = 0
    held: deque[asyncio.Future[bool]] = field(default_factory=deque["asyncio.Future[bool]"])


class Places:
    """Args:
    deadline_s: who was held for so long goes on all the same: what becomes of a commit, only its table tells.
    """

    def __init__(self, *, deadline_s: float, slots_max: int = SLOTS_MAX) -> None:
        self._deadline_s = deadline_s
        self._places_max = slots_max
        self._places = float(slots_max)
        self._look: asyncio.TimerHandle | None = None
        self._principals: dict[str, _Principal] = {}
        self._with_held: dict[str, None] = {}
        """Principals with held requests."""

    @asynccontextmanager
    async def place(self, name: str, connection_state: ConnectionState, most: int = 1 << 30) -> AsyncGenerator[None]:
        """A place for one request of a principal, as soon as it may have one more.

        Args:
            most: that it has at once.

        Raises:
            ClientDisconnect: its connection has gone meanwhile.
        """
        principal = self._principals.get(name)
        if principal is None:
            principal = self._principals[name] = _Principal()
            if self._look is None and len(self._principals) > 1:
                self._look_later()
        principal.most = most
        if principal.held or principal.under_way >= self._each(principal):
            await self._hold(name, principal, connection_state)
        else:
            principal.under_way += 1
        try:
            yield
        finally:
            if self._places < self._places_max and len(self._principals) > 1:
                asyncio.get_running_loop().call_soon(self._leave, name, principal)
            else:
                self._leave(name, principal)

    def _each(self, principal: _Principal) -> int:
        active = len(self._principals)
        return min(principal.most, max(1, int(self._places) // active)) if active > 1 else principal.most

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + LOOK_S

        def look() -> None:
            self.felt(loop.time() - due_s)
            self._look = None
            if len(self._principals) > 1:
                self._look_later()

        self._look = loop.call_at(due_s, look)

    def felt(self, late_s: float) -> None:
        """The event loop was late: fewer places, or one more for everybody."""
        active = max(1, len(self._principals))
        if late_s > LATE_S:
            self._places = max(float(active), self._places * 0.7)
        else:
            self._places = min(float(self._places_max), self._places + max(1.0, active / 8))
        if self._with_held:
            self._let_go_on()

    async def _hold(self, name: str, principal: _Principal, connection_state: ConnectionState) -> None:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[bool] = loop.create_future()
        principal.held.append(place)
        self._with_held[name] = None
        deadline = loop.call_later(self._deadline_s, self._give, principal, place)
        try:
            given = await connection_state.wait(place)
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():  # it was given at the same moment
                self._leave(name, principal)
            else:
                self._let_go(name, principal, place)
            raise
        finally:
            deadline.cancel()
        if not given:
            self._let_go(name, principal, place)
            raise ClientDisconnect

    def _let_go(self, name: str, principal: _Principal, place: asyncio.Future[bool]) -> None:
        if place in principal.held:
            principal.held.remove(place)
        self._forget(name, principal)

    def _give(self, principal: _Principal, place: asyncio.Future[bool]) -> None:
        """Let one go on that is held, unless its connection has gone."""
        if place in principal.held:
            principal.held.remove(place)
            if not place.done():
                principal.under_way += 1
                place.set_result(True)

    def _leave(self, name: str, principal: _Principal) -> None:
        principal.under_way -= 1
        self._forget(name, principal)
        if self._with_held:
            self._let_go_on()

    def _forget(self, name: str, principal: _Principal) -> None:
        if not principal.under_way and not principal.held:
            self._principals.pop(name, None)

    def _let_go_on(self) -> None:
        for name in tuple(self._with_held):
            principal = self._principals.get(name)
            while principal is not None and principal.held and principal.under_way < self._each(principal):
                self._give(principal, principal.held[0])
            if principal is None or not principal.held:
                del self._with_held[name]

"""Memory for the bodies of requests: one budget over all of them, fair by principal (traps A4, A8).

A body is held before it is read until there is room for as much as it says it has; it keeps its room until its request
is answered. No principal with a body under way gets more than would leave as much free for others: one alone may have a
half, two a third each. So whoever comes finds room, however much others send. Nobody is refused for want of it; but
where a principal with nothing under way has waited for long, a body that takes longer still ends (408).

Short bodies take no room: they are bounded by the number of connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import TracebackType

from starlette.requests import ClientDisconnect

from icetower.errors import RequestTooSlow
from icetower.gateway.connection_state import ConnectionState

FREE_BYTES = 64 * 1024
"""A body up to this takes no room: a connection holds as much of it anyway."""

LOOK_S = 1.0


@dataclass(slots=True)
class _Principal:
    held_bytes: int = 0
    rooms: dict[Room, None] = field(default_factory=dict["Room", None])
    waiting: deque[tuple[Room, int, asyncio.Future[bool]]] = field(
        default_factory=deque["tuple[Room, int, asyncio.Future[bool]]"]
    )


class Bodies:
    """One for a tower.

    Args:
        max_bytes: for all bodies under way.
        deadline_s: a body may take so long in any case.

    Attributes:
        held_bytes: what they take now.
    """

    def __init__(self, max_bytes: int, *, deadline_s: float) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.deadline_s = deadline_s
        self._principals: dict[str, _Principal] = {}
        self._with_waiting: dict[str, None] = {}
        """Principals with bodies that wait, in the order of their turns."""
        self._look: asyncio.TimerHandle | None = None

    def room(self, name: str, connection_state: ConnectionState) -> Room:
        """For one request of a principal."""
        return Room(self, name, connection_state)

    async def take(self, room: Room, size: int) -> None:
        """See `Room.take`."""
        size = min(size, self.max_bytes)
        principal = self._principals.setdefault(room.name, _Principal())
        if not self._with_waiting and self._fits(principal, size):
            self._give(principal, room, size)
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        entry = room, size, turn
        principal.waiting.append(entry)
        self._with_waiting[room.name] = None
        room.since_s = loop.time()
        self._let_go_on()
        if self._look is None:
            self._look = loop.call_later(LOOK_S, self._look_around, loop)
        given = False
        try:
            given = await room.connection_state.wait(turn)
        finally:
            if not given and entry in principal.waiting:
                principal.waiting.remove(entry)
                self._forget(room.name)
                self._let_go_on()
        if not given:
            raise ClientDisconnect

    def give_back(self, room: Room, size: int) -> None:
        """A room needs so much less."""
        if not size:
            return
        principal = self._principals[room.name]
        principal.held_bytes -= size
        self.held_bytes -= size
        room.size -= size
        if not room.size:
            del principal.rooms[room]
        self._forget(room.name)
        if self._with_waiting:
            self._let_go_on()

    def look(self, now_s: float) -> None:
        """End a body that has taken long, where a principal with none under way waits for room."""
        if not any(self._starves(name, now_s) for name in self._with_waiting):
            return
        late = [
            (principal.held_bytes, -room.since_s, room)
            for principal in self._principals.values()
            for room in principal.rooms
            if room.reading is not None and now_s - room.since_s > self.deadline_s
        ]
        if late:
            _, _, room = max(late, key=lambda each: each[:2])
            assert room.reading is not None
            room.reading.reschedule(0.0)
            room.reading = None

    def _starves(self, name: str, now_s: float) -> bool:
        principal = self._principals[name]
        return not principal.held_bytes and now_s - principal.waiting[0][0].since_s > self.deadline_s

    def _look_around(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look(loop.time())
        self._look = loop.call_later(LOOK_S, self._look_around, loop) if self._with_waiting else None

    def _fits(self, principal: _Principal, size: int) -> bool:
        free = self.max_bytes - self.held_bytes
        return size <= free and (not principal.held_bytes or principal.held_bytes + size <= free - size)

    def _give(self, principal: _Principal, room: Room, size: int) -> None:
        principal.held_bytes += size
        principal.rooms[room] = None
        self.held_bytes += size
        room.size += size
        room.since_s = asyncio.get_running_loop().time()

    def _let_go_on(self) -> None:
        """Give room to those that wait: first to principals with nothing under way, then to all others in turn."""
        for name in sorted(self._with_waiting, key=lambda name: self._principals[name].held_bytes > 0):
            principal = self._principals[name]
            while principal.waiting:
                room, size, turn = principal.waiting[0]
                if not self._fits(principal, size):
                    if not principal.held_bytes:
                        return  # what becomes free is for this one
                    break
                principal.waiting.popleft()
                if turn.done():  # its connection has gone
                    continue
                self._give(principal, room, size)
                turn.set_result(True)
                self._with_waiting[name] = self._with_waiting.pop(name)
            self._forget(name)

    def _forget(self, name: str) -> None:
        principal = self._principals[name]
        if not principal.waiting:
            self._with_waiting.pop(name, None)
            if not principal.held_bytes:
                del self._principals[name]


class Room:
    """What the body of one request takes; use it as an asynchronous context manager around the request.

    Attributes:
        reading: the time that reading the body has, while it is read.
        since_s: when it began to wait, or to be read.
    """

    def __init__(self, bodies: Bodies, name: str, connection_state: ConnectionState) -> None:
        self.name = name
        self.connection_state = connection_state
        self.size = 0
        self.reading: asyncio.Timeout | None = None
        self.since_s = 0.0
        self._bodies = bodies

    async def __aenter__(self) -> Room:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._bodies.give_back(self, self.size)

    async def take(self, size: int) -> None:
        """Wait for room for a body of so many bytes. Raises `ClientDisconnect` if its connection has gone meanwhile."""
        await self._bodies.take(self, size)

    def keep(self, size: int) -> None:
        """The body has only so many; give the rest back."""
        self._bodies.give_back(self, max(0, self.size - size))

    async def read(self, body: Awaitable[bytes]) -> bytes:
        """Read the body. Raises `RequestTooSlow` where it takes long and others wait for its memory."""
        try:
            async with asyncio.timeout(None) as self.reading:
                return await body
        except TimeoutError as error:
            raise RequestTooSlow(
                f"the body took longer than {self._bodies.deadline_s:g} s while others waited for its memory; send it "
                "faster, or less at once"
            ) from error
        finally:
            self.reading = None

"""Single flight: a request that is sent twice at once is done once, and both senders get one answer (trap A3).

A client that hears nothing sends again, and so does many a proxy. If each of the two went its own way, one could get
409, so that its client deletes its manifests, and the other could land a moment later and name them: the engine
recognises the same commit only once both are in its queue, and a slow storage may keep one of them from there for as
long as the other may wait. So whichever comes second waits for the first, from the very beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from icetower.errors import IcetowerError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Flight(Generic[Answer]):
    """`ended`: an answer, an error, or None where there was no answer: its client hung up, or it broke down."""

    request: object
    ended: asyncio.Future[Answer | IcetowerError | None]


class SingleFlight(Generic[Answer]):
    """The requests in flight that their clients may send again."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[Answer]] = {}

    async def run(self, name: Hashable, request: object, work: Callable[[], Awaitable[Answer]]) -> tuple[Answer, bool]:
        """Do the work, or wait for the equal request that does it. The answer, and whether it is that request's.

        Args:
            name: the identity of the request; None: it has none, and an equal one may be meant anew.
            request: all of it. Requests are the same where both name and content are equal.

        Raises:
            IcetowerError: whatever the work was refused with.
        """
        if name is None:
            return await work(), False
        while (first := self._flights.get(name)) is not None:
            if first.request != request:
                return await work(), False
            answer = await asyncio.shield(first.ended)
            if isinstance(answer, IcetowerError):
                raise answer
            if answer is not None:
                return answer, True
        mine: _Flight[Answer] = _Flight(request, asyncio.get_running_loop().create_future())
        self._flights[name] = mine
        ended: Answer | IcetowerError | None = None
        try:
            answer = ended = await work()
        except IcetowerError as error:
            ended = error
            raise
        finally:
            # Landed before its end is known: of those who get no answer, the first takes its place.
            del self._flights[name]
            mine.ended.set_result(ended)
        return answer, False


class Turns:
    """One request at a time under a name; the others wait, whatever they ask for."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, name: Hashable) -> AsyncGenerator[None]:
        """Wait for the turn of a name, and hold it."""
        turn, users = self._turns.get(name, (asyncio.Lock(), 0))
        self._turns[name] = turn, users + 1
        try:
            async with turn:
                yield
        finally:
            _, users = self._turns.pop(name)
            if users > 1:  # a lock that is free for a moment may have somebody waiting for it
                self._turns[name] = turn, users - 1

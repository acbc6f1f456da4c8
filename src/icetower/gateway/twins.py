"""One request, sent twice at once: both get one answer (trap A3).

A client that hears nothing sends again, and so does many a proxy. If each of the two were on its own, one could be told
409, so that its client deletes its manifests, and the other land a moment later and name them: the engine knows its
twin only once both are in its queue, and a slow storage may keep one of them from there for as long as the other may
wait. So whoever comes second waits for the first, from the very beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from icetower.errors import IcetowerError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _InHand(Generic[Answer]):
    """`ended`: an answer, an error, or None where nobody was told anything: its client hung up, or it broke down."""

    request: object
    ended: asyncio.Future[Answer | IcetowerError | None]


class Twins(Generic[Answer]):
    """The requests in hand that somebody may send again."""

    def __init__(self) -> None:
        self._in_hand: dict[Hashable, _InHand[Answer]] = {}

    async def once(self, name: Hashable, request: object, work: Callable[[], Awaitable[Answer]]) -> tuple[Answer, bool]:
        """Do what was asked for, or wait for the request that does. The answer, and whether it is another's.

        Args:
            name: what the request is known by; None: it cannot be told from a second wish for the same.
            request: all of it. A twin is one that is equal, under an equal name.

        Raises:
            IcetowerError: whatever the work was refused with.
        """
        if name is None:
            return await work(), False
        while (first := self._in_hand.get(name)) is not None:
            if first.request != request:
                return await work(), False
            told = await asyncio.shield(first.ended)
            if isinstance(told, IcetowerError):
                raise told
            if told is not None:
                return told, True
        mine: _InHand[Answer] = _InHand(request, asyncio.get_running_loop().create_future())
        self._in_hand[name] = mine
        ended: Answer | IcetowerError | None = None
        try:
            answer = ended = await work()
        except IcetowerError as error:
            ended = error
            raise
        finally:
            # Out of hand before it is told: of those who hear nothing, the first takes its place.
            del self._in_hand[name]
            mine.ended.set_result(ended)
        return answer, False

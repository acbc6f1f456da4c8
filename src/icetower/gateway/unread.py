"""Answers that wait to be read: sent in pieces, and bounded by one budget over all of them (trap A8).

A connection holds one piece of a long answer, and the rest only where nobody else has it: what several answers share
counts once. Where all of them take too much, those that hardly anybody reads are closed, of the principal that has most
of them, the longest first. Where one principal has very many answers under way, one that is hardly read is closed for
each further one.

One piece goes out in each turn of the event loop, and principals take turns. So whoever loads a long table on many
connections at once delays others by a piece, and not by all of its connections.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Scope, Send

from icetower.gateway.connection_state import ConnectionState, connection_state_of

PIECE_BYTES = 128 * 1024
STALLED_S = 1.0
"""An answer of which no piece went for so long is hardly read."""

PRINCIPAL_MAX = 64
"""Answers of one principal under way; beyond, those that are hardly read are closed."""


class SharedResponse(Response):
    """An answer in several parts, some of which other answers may share. `body` puts them together."""

    def __init__(self, parts: Sequence[bytes], headers: dict[str, str], media_type: str) -> None:
        self.parts = tuple(parts)
        length = sum(map(len, parts))
        super().__init__(None, 200, headers | {"content-length": str(length)}, media_type)

    @property
    def body(self) -> bytes:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The whole; a copy."""
        return b"".join(self.parts)

    @body.setter
    def body(self, _: object) -> None:
        """Starlette sets what there is not."""


class PieceTurns:
    """Pieces go out one in each turn of the event loop, of one principal after the other."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def turn(self, name: str) -> None:
        """Wait until a piece of this principal may go."""
        loop = asyncio.get_running_loop()
        if not self._busy:
            self._busy = True
            loop.call_soon(self._next, loop)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(name, deque()).append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            name, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[name] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._busy = False


class _Answer:
    """One under way.

    Attributes:
        moved_s: when its last piece went; infinite while the next one waits for its turn.
    """

    def __init__(self, name: str, parts: Sequence[bytes], connection_state: ConnectionState, now_s: float) -> None:
        self.name = name
        self.parts = parts
        self.connection_state = connection_state
        self.size = sum(map(len, parts))
        self.moved_s = now_s


class Unread:
    """One for a tower.

    Args:
        max_bytes: for all answers that wait to be read; a single one may be longer.

    Attributes:
        held_bytes: what they take now.
    """

    def __init__(self, max_bytes: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._answers: dict[_Answer, None] = {}
        self._by_name: defaultdict[str, dict[_Answer, None]] = defaultdict(dict)
        self._users: Counter[int] = Counter()  # by the id of a part, which they keep
        self._turns = PieceTurns()

    async def turn(self, response: Response, name: str, scope: Scope) -> None:
        """Wait until the first piece of an answer may go; a short one goes at once.

        The request keeps its place meanwhile: no more answers of a principal are made than go out.
        """
        if _is_long(_parts_of(response), scope):
            await self._turns.turn(name)

    async def send(self, response: Response, name: str, scope: Scope, send: Send) -> None:
        """Send an answer to a principal, the first piece at once."""
        parts = _parts_of(response)
        if not _is_long(parts, scope):
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": b"".join(parts)})
            return
        loop = asyncio.get_running_loop()
        answer = _Answer(name, parts, connection_state_of(scope), loop.time())
        self._begin(answer)
        first = True
        try:
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            for part in parts:
                for at in range(0, len(part), PIECE_BYTES):
                    if not first:
                        answer.moved_s = math.inf
                        await self._turns.turn(name)
                        answer.moved_s = loop.time()
                    first = False
                    if answer.connection_state.lost:
                        return
                    piece = part[at : at + PIECE_BYTES]  # a copy: what is in the connection's buffer keeps no more
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    answer.moved_s = loop.time()
                    answer.connection_state.sent_bytes += len(piece)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._end(answer)

    def _begin(self, answer: _Answer) -> None:
        self._answers[answer] = None
        self._by_name[answer.name][answer] = None
        self._close_beyond(answer)
        for part in answer.parts:
            self._users[id(part)] += 1
            if self._users[id(part)] == 1:
                self.held_bytes += len(part)
        while self.held_bytes > self._max_bytes and (worst := self._worst(answer)) is not None:
            worst.connection_state.abort()
            self._end(worst)

    def _end(self, answer: _Answer) -> None:
        if self._answers.pop(answer, self) is not None:
            return
        own = self._by_name[answer.name]
        del own[answer]
        if not own:
            del self._by_name[answer.name]
        for part in answer.parts:
            self._users[id(part)] -= 1
            if not self._users[id(part)]:
                del self._users[id(part)]
                self.held_bytes -= len(part)

    def _close_beyond(self, newest: _Answer) -> None:
        """Close the answer of a principal that has not moved for longest, where it has too many under way."""
        own = self._by_name[newest.name]
        if len(own) > PRINCIPAL_MAX:
            oldest = min(own, key=lambda each: each.moved_s)
            if newest.moved_s - oldest.moved_s > STALLED_S:
                oldest.connection_state.abort()
                self._end(oldest)

    def _worst(self, newest: _Answer) -> _Answer | None:
        """What is closed first; never the one that came last."""
        by_name: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for answer in self._answers:
            by_name[answer.name] |= {id(part): len(part) for part in answer.parts}
        now_s = newest.moved_s
        return max(
            (answer for answer in self._answers if answer is not newest),
            key=lambda each: (sum(by_name[each.name].values()), now_s - each.moved_s > STALLED_S, each.size),
            default=None,
        )


def _parts_of(response: Response) -> Sequence[bytes]:
    return response.parts if isinstance(response, SharedResponse) else (bytes(response.body),)


def _is_long(parts: Sequence[bytes], scope: Scope) -> bool:
    return sum(map(len, parts)) > PIECE_BYTES and scope["method"] != "HEAD"

"""Answers that wait to be read: sent in pieces, and bounded by one budget over all of them (trap A8).

A connection holds one piece of a long answer, and the rest only where nobody else has it: what several answers share
counts once. Where all of them take too much, those that hardly anybody reads are closed, of the principal that has most
of them, the longest first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Scope, Send

from icetower.gateway.connection_state import ConnectionState, connection_state_of

PIECE_BYTES = 128 * 1024
STALLED_S = 1.0
"""An answer of which no piece went for so long is hardly read."""


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


class _Answer:
    """One under way."""

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
        self._users: Counter[int] = Counter()  # by the id of a part, which they keep

    async def send(self, response: Response, name: str, scope: Scope, send: Send) -> None:
        """Send an answer to a principal."""
        parts = response.parts if isinstance(response, SharedResponse) else (bytes(response.body),)
        if sum(map(len, parts)) <= PIECE_BYTES or scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": b"".join(parts)})
            return
        loop = asyncio.get_running_loop()
        answer = _Answer(name, parts, connection_state_of(scope), loop.time())
        self._begin(answer)
        try:
            await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
            for part in parts:
                for at in range(0, len(part), PIECE_BYTES):
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
        for part in answer.parts:
            self._users[id(part)] -= 1
            if not self._users[id(part)]:
                del self._users[id(part)]
                self.held_bytes -= len(part)

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

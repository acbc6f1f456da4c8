"""Answers that wait to be read are sent in pieces, and bounded by one budget over all of them (trap A8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.responses import Response

from icetower.gateway.connection_state import ConnectionState, attach
from icetower.gateway.unread import PIECE_BYTES, STALLED_S, SharedResponse, Unread

MIB = 1024 * 1024


class Reader:
    """One connection that is sent an answer; it takes a piece whenever it is told to."""

    def __init__(self, unread: Unread, name: str, *parts: bytes) -> None:
        self.closed = False
        self.got: list[Any] = []
        self._pieces = asyncio.Semaphore(1)
        self._connection_state = ConnectionState(abort=self._abort)
        scope: dict[str, Any] = {"type": "http", "method": "GET"}
        attach(scope, self._connection_state)
        self.task = asyncio.create_task(unread.send(SharedResponse(parts, {}, "x/y"), name, scope, self._send))

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await self._pieces.acquire()
            self.got.append(message["body"])

    async def read(self, pieces: int) -> None:
        for _ in range(pieces):
            self._pieces.release()
        await rest()

    def _abort(self) -> None:
        self.closed = True
        self._connection_state.lose()
        for _ in range(100):
            self._pieces.release()


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def closed(readers: Sequence[Reader]) -> list[int]:
    return [number for number, reader in enumerate(readers) if reader.closed]


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def test_a8_a_long_answer_goes_in_pieces_that_keep_nothing_else() -> None:
    async def story() -> None:
        unread, body = Unread(10 * MIB), bytes(range(256)) * 4096
        reader = Reader(unread, "ann", b"<", body, b">")
        await rest()
        assert len(reader.got) == 1
        await reader.read(100)
        await reader.task
        assert b"".join(reader.got) == b"<" + body + b">"
        assert max(map(len, reader.got)) <= PIECE_BYTES
        assert {type(piece) for piece in reader.got} == {bytes}  # no view, which would keep the whole
        assert unread.held_bytes == 0

    run(story())


def test_a8_what_answers_share_counts_once() -> None:
    async def story() -> None:
        unread, shared = Unread(2 * MIB), b"x" * MIB
        readers = [Reader(unread, f"agent-{number}", b"%d" % number, shared) for number in range(50)]
        await rest()
        assert MIB < unread.held_bytes < MIB + 100
        assert closed(readers) == []
        for reader in readers:
            await reader.read(100)
            await reader.task
        assert (unread.held_bytes, unread._users, unread._answers) == (0, {}, {})

    run(story())


def test_a8_who_does_not_read_is_closed_first_and_of_those_the_longest() -> None:
    async def story() -> None:
        unread = Unread(10 * MIB)
        sizes = [1, 3, 2, 3]
        greedy = [Reader(unread, "greedy", bytes(size * MIB)) for size in sizes]
        await rest()
        assert unread.held_bytes == 9 * MIB
        for answer in unread._answers:
            answer.moved_s -= 2 * STALLED_S
        await greedy[1].read(1)
        others = [Reader(unread, "ann", bytes(2 * MIB))]
        await rest()
        assert closed(greedy) == [3]  # as long as the second, which was read
        others += [Reader(unread, "ann", bytes(3 * MIB))]
        await rest()
        assert closed(greedy) == [2, 3]
        assert closed(others) == []
        newest = Reader(unread, "bob", bytes(20 * MIB))  # a single one may be longer
        await rest()
        assert not newest.closed
        await newest.read(1000)
        await newest.task
        assert closed(greedy) == [0, 1, 2, 3]
        assert unread.held_bytes == 0

    run(story())


def test_a_short_answer_goes_at_once() -> None:
    async def story() -> None:
        unread, sent = Unread(1), list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        await unread.send(Response(b"short", 201), "ann", {"type": "http", "method": "GET"}, send)
        assert [(m.get("status"), m.get("body")) for m in sent] == [(201, None), (None, b"short")]

    run(story())

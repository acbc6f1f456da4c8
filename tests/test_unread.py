"""Answers that wait to be read are sent in pieces, and bounded by one budget over all of them (trap A8)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.responses import Response

from icetower.gateway.connection_state import ConnectionState, attach
from icetower.gateway.places import Places
from icetower.gateway.unread import PIECE_BYTES, PRINCIPAL_MAX, STALLED_S, PieceTurns, SharedResponse, Unread

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


async def rest(turns: int = 1000) -> None:
    for _ in range(turns):
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


def test_a8_one_piece_goes_in_each_turn_of_the_loop_and_principals_take_turns() -> None:
    async def story() -> None:
        unread, sent = Unread(100 * MIB), list[str]()

        async def load(name: str) -> None:
            async def send(message: Any) -> None:
                if message.get("body"):
                    sent.append(name)

            response, scope = SharedResponse([bytes(MIB)], {}, "x/y"), {"type": "http", "method": "GET"}
            await unread.turn(response, name, scope)
            await unread.send(response, name, scope, send)

        tasks = [asyncio.create_task(load("greedy")) for _ in range(50)]
        await rest(5)
        before = len(sent)
        assert before <= 6, "all of its connections send at once"
        tasks.append(asyncio.create_task(load("ann")))
        await tasks[-1]
        assert len(sent) - before < 20, "eight pieces each, and no more"
        await asyncio.gather(*tasks)
        assert len(sent) == 51 * MIB // PIECE_BYTES
        await rest()
        assert (unread._answers, unread._by_name, unread._turns._waiting) == ({}, {}, {})
        assert not unread._turns._busy

    run(story())


def test_a8_a_request_keeps_its_place_until_its_first_piece_has_its_turn() -> None:
    async def story() -> None:
        unread, places = Unread(100 * MIB), Places(deadline_s=3600)
        made: list[int] = []

        async def load(number: int) -> None:
            response = SharedResponse([bytes(MIB)], {}, "x/y")
            async with places.place("greedy", ConnectionState(), 2):
                made.append(number)
                await unread.turn(response, "greedy", {"type": "http", "method": "GET"})

        for _ in range(20):
            await unread._turns.turn("greedy")  # others of its pieces go out
        others = [asyncio.create_task(unread._turns.turn("greedy")) for _ in range(50)]
        loads = [asyncio.create_task(load(number)) for number in range(10)]
        await rest(20)
        assert made == [0, 1]
        await asyncio.gather(*others, *loads)
        assert made == [*range(10)]

    run(story())


def test_who_goes_before_its_turn_holds_up_nobody() -> None:
    async def story() -> None:
        turns = PieceTurns()
        tasks = [asyncio.create_task(turns.turn(name)) for name in ("ann", "ann", "bob")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(tasks[0], tasks[2])
        await rest()
        assert not turns._busy

    run(story())


def test_a8_of_very_many_answers_of_one_principal_those_that_are_not_read_are_closed() -> None:
    async def story() -> None:
        unread, shared = Unread(1000 * MIB), bytes(MIB)
        greedy = [Reader(unread, "greedy", shared) for _ in range(PRINCIPAL_MAX + 10)]
        polite = Reader(unread, "ann", shared)
        await rest()
        assert closed(greedy) == []  # none has stood still for long
        for number, answer in enumerate(unread._answers):
            answer.moved_s += 3600 if number >= 3 else -2 * STALLED_S  # the first three stand still
        greedy += [Reader(unread, "greedy", shared) for _ in range(5)]
        await rest()
        assert closed(greedy) == [0, 1, 2]
        assert not polite.closed
        for reader in (*greedy, polite):
            await reader.read(100)
            await reader.task
        assert (unread.held_bytes, unread._answers, unread._by_name) == (0, {}, {})

    run(story())

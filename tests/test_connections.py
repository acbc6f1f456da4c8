"""Connections are bounded before any credential is read (trap A8): raw sockets against the server's own protocol."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
import uvicorn
import uvloop
from starlette.responses import Response
from uvicorn.server import ServerState

from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.connections import (
    DRAINED_MAX_BYTES,
    OVERHEAD_MAX_BYTES,
    PIECE_BYTES_MIN,
    PIECES_FREE,
    PIPELINED_MAX,
    UNKNOWN_MAX_BYTES,
    Bounds,
    Connections,
    Doing,
    Rank,
    protocol_of,
    raise_file_limit,
)
from icetower.gateway.unread import PIECE_BYTES, Unread

BOUNDS = Bounds(connections_max=8, by_address_max=6, head_s=10, idle_s=60, slow_s=30)
GET = b"GET /%s HTTP/1.1\r\nHost: t\r\n\r\n"
POST = b"POST /%s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"


@dataclass
class Served:
    """An application that answers `/held` once `open` is set, `/large` with 32 MB, `/wait` never, all else by its path.

    `/pieces` is `/large` as the gateway sends it. It reads bodies of what has `body` in its name alone, and takes
    whoever asks for `/known-ann` for ann, with a credential. What ends in `wait` waits for its turn, in vain.
    """

    connections: Connections
    port: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    waiting: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/")
        self.asked.append(path)
        if path.startswith("known"):
            connection_state_of(scope).prove(path.split("-")[1] if "-" in path else path)
        if path.startswith("held"):
            await self.open.wait()
        if path.startswith("wait") or path.endswith("wait"):
            self.waiting += 1
            assert not await connection_state_of(scope).wait(asyncio.get_running_loop().create_future())
            self.waiting -= 1
            return
        if path == "pieces":
            await Unread(1 << 30).send(Response(b"x" * 32_000_000), "ann", scope, send)
            return
        body = b"x" * 32_000_000 if path == "large" else path.encode()
        while "body" in path and (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def ranks(self, rank: Rank) -> int:
        """How many connections have it."""
        return sum(connection.rank is rank for connection in self.connections.all)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def settled(self, count: int) -> None:
        """Wait until the server has so many connections."""
        await until(lambda: len(self.connections.all) == count)

    def later(self, seconds: float) -> None:
        self.connections.look(asyncio.get_running_loop().time() + seconds)


@asynccontextmanager
async def serving(bounds: Bounds = BOUNDS) -> AsyncIterator[Served]:
    protocol = protocol_of(bounds)
    served = Served(protocol.peers)
    config = uvicorn.Config(served, access_log=False, log_level="error", lifespan="off", ws="none")
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: protocol(config, state, {}, loop), "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        served.open.set()
        for connection in tuple(served.connections.all):
            connection.transport.abort()
        await served.settled(0)
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(next(line for line in head.split(b"\r\n") if line.startswith(b"content-length")).split()[1])
    return int(head.split()[1]), await reader.readexactly(length)


async def rule(reader: asyncio.StreamReader) -> str:
    """The refusal that a connection ends with."""
    status, body = await answer(reader)
    error = orjson.loads(body)["error"]
    assert error["code"] == status
    assert await gone(reader)
    return f"{status} {error['rule']}"


async def gone(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def endless(writer: asyncio.StreamWriter, head: bytes) -> None:
    writer.write(head)
    while True:
        writer.write(b"x" * 100_000)
        await writer.drain()
        await asyncio.sleep(0)


async def until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - it is about the server's state, which sets no event
        await asyncio.sleep(0.001)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def test_a8_long_heads_and_urls_are_refused_however_they_come() -> None:
    async def story() -> None:
        async with serving() as served:
            for sent, expected in (
                (b"GET / HTTP/1.1\r\nA: " + b"x" * 33_000 + b"\r\n\r\n", "431 limit.headers"),
                (b"GET / HTTP/1.1\r\nA: " + b"x" * 33_000, "431 limit.headers"),
                (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", "431 limit.headers"),
                (b"GET /" + b"x" * 17_000 + b" HTTP/1.1\r\n\r\n", "414 limit.url"),
                (b"GET /" + b"x" * 17_000, "414 limit.url"),
                (b"nonsense\r\n\r\n", "400 request.http"),
            ):
                reader, writer = await served.connect()
                writer.write(sent)
                assert await rule(reader) == expected
            reader, writer = await served.connect()
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await endless(writer, b"GET / HTTP/1.1\r\nA: ")
            assert served.asked == []
            reader, writer = await served.connect()
            writer.write(b"GET /fine HTTP/1.1\r\nA: " + b"x" * 30_000 + b"\r\n\r\n")
            assert await answer(reader) == (200, b"fine")

    run(story())


def test_a8_heads_bodies_and_idle_connections_have_a_time() -> None:
    async def story() -> None:
        async with serving() as served:
            silent, slow_head, slow_body, held, served_once = [await served.connect() for _ in range(5)]
            slow_head[1].write(b"GET / HTTP/1.1\r\nA: ")
            slow_body[1].write(POST % (b"body", 100_000) + b"x" * 100)
            held[1].write(GET % b"held")
            served_once[1].write(GET % b"once")
            assert await answer(served_once[0]) == (200, b"once")
            await until(lambda: len(served.asked) == 3)
            served.later(9)
            await served.settled(5)
            served.later(11)
            assert await gone(silent[0])
            assert await rule(slow_head[0]) == "408 limit.slow"
            await served.settled(3)
            served.later(31)
            assert await rule(slow_body[0]) == "408 limit.slow"
            served.later(61)
            assert await gone(served_once[0])
            served.later(3600)  # a request under way may take as long as it likes
            served.open.set()
            assert await answer(held[0]) == (200, b"held")

    run(story())


def test_a8_an_answer_that_nobody_reads_is_given_up_and_one_that_is_read_is_not() -> None:
    async def story() -> None:
        async with serving() as served:
            (stuck, _), (reader, writer) = reads = [await served.connect() for _ in range(2)]
            for _, each in reads:
                each.transport.pause_reading()
                each.write(GET % b"large")
            await until(lambda: sum(c.transport.get_write_buffer_size() > 0 for c in served.connections.all) == 2)
            served.later(0)
            writer.transport.resume_reading()
            own = writer.get_extra_info("sockname")[1]
            (transport,) = (c.transport for c in served.connections.all if c.client and c.client[1] == own)
            left, read = transport.get_write_buffer_size(), 0
            while transport.get_write_buffer_size() > left - 100_000:
                read += len(await reader.read(1 << 20))
            served.later(31)
            await served.settled(1)
            while read < 32_000_000:
                read += len(await reader.read(1 << 20))
            reads[0][1].transport.resume_reading()
            assert len(await all_of(stuck)) < 32_000_000

    async def all_of(reader: asyncio.StreamReader) -> bytes:
        data = b""
        try:
            while piece := await reader.read(1 << 20):
                data += piece
        except ConnectionResetError:
            pass
        return data

    run(story())


def test_a8_a_connection_holds_a_piece_of_a_long_answer_and_is_kept_while_it_is_read() -> None:
    async def story() -> None:
        async with serving() as served:
            (reader, writer), (_, stuck) = reads = [await served.connect() for _ in range(2)]
            for _, each in reads:
                each.transport.pause_reading()
                each.write((GET % b"pieces") * 3)
            await until(lambda: sum(c.flow.write_paused for c in served.connections.all) == 2)
            assert all(c.transport.get_write_buffer_size() <= 2 * PIECE_BYTES for c in served.connections.all)
            assert served.asked == ["pieces"] * 2  # the next is not begun before this one is read
            served.later(0)
            writer.transport.resume_reading()
            read = 0
            while read < 8_000_000:
                read += len(await reader.read(1 << 20))
            served.later(31)
            await served.settled(1)
            while read < 3 * 32_000_000:
                read += len(await reader.read(1 << 20))
            stuck.transport.abort()

    run(story())


def test_a8_nothing_is_read_ahead_of_a_request_under_way() -> None:
    async def story() -> None:
        async with serving() as served:
            _, writer = await served.connect()
            writer.write(GET % b"held0")
            await until(lambda: bool(served.asked))
            for n in range(20_000):
                writer.write(GET % b"p%d" % n)
            (connection,) = served.connections.all
            await until(lambda: connection.flow.read_paused)
            assert len(connection.pipeline) == 0
            assert len(connection._kept) < 1 << 20
            assert served.asked == ["held0"]
            writer.transport.abort()
            await served.settled(1)  # nobody reads: its end is not seen before the answer

    run(story())


def test_a_few_requests_in_one_piece_are_answered_in_order_and_very_many_are_not() -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(b"".join(GET % b"p%d" % n for n in range(PIPELINED_MAX)))
            for n in range(PIPELINED_MAX):
                assert await answer(reader) == (200, b"p%d" % n)
            writer.write(GET % b"held" + POST % (b"body-", 4) + b"ab")
            await until(lambda: "held" in served.asked)
            writer.write(b"cd" + GET % b"last")
            served.open.set()
            assert [await answer(reader) for _ in range(3)] == [(200, b"held"), (200, b"body-abcd"), (200, b"last")]
            served.open.clear()
            asked = len(served.asked)
            writer.write(b"".join(GET % b"held%d" % n for n in range(PIPELINED_MAX + 1)))
            # Closed without an answer: it would be taken for the answer to the first.
            assert await gone(reader)
            served.open.set()
            assert len(served.asked) <= asked + 1

    run(story())


def test_a8_who_leaves_before_the_answers_leaves_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn marks the request that came last alone; uvloop raises for each write on a closed connection."""

    log = logging.getLogger("uvicorn.error")

    async def story() -> None:
        async with serving() as served:
            log.addHandler(caplog.handler)  # it passes on nothing, and the server has just set its handlers
            _, writer = await served.connect()
            writer.write(3 * (GET % b"pieces"))
            await until(lambda: served.asked == ["pieces"])
            writer.transport.abort()
            await served.settled(0)
        assert served.asked == ["pieces"]

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(story(), 30))
    finally:
        log.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_refusal_is_never_taken_for_the_answer_of_the_request_before_it() -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(GET % b"held" + b"nonsense\r\n\r\n")
            assert await gone(reader)
            served.open.set()

    run(story())


def test_an_early_answer_leaves_the_connection_to_the_next_request() -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(POST % (b"early", 10) + b"half!")
            assert await answer(reader) == (200, b"early")
            writer.write(b"half!" + GET % b"next")
            assert await answer(reader) == (200, b"next")
            (connection,) = served.connections.all
            assert connection.rank is Rank.UNKNOWN

    run(story())


CHUNKED = b"POST /%s HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"body", b"early"])
def test_a8_a_body_of_tiny_chunks_ends_its_connection_before_and_after_the_answer(path: bytes) -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(CHUNKED % path)
            if path == b"early":
                assert await answer(reader) == (200, b"early")
            writer.write(b"1\r\na\r\n" * (PIECES_FREE - 1))
            writer.write(b"1\r\na\r\n" * 2)
            if path == b"early":
                assert await gone(reader)
            else:
                assert await rule(reader) == "400 limit.chunks"

    run(story())


def test_a8_chunks_of_usual_sizes_are_taken_however_many_they_are() -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            size = 2 * PIECE_BYTES_MIN
            writer.write(CHUNKED % b"body" + (b"%x\r\n" % size + b"x" * size + b"\r\n") * (3 * PIECES_FREE))
            writer.write(b"0\r\n\r\n")
            assert await answer(reader) == (200, b"body" + b"x" * size * 3 * PIECES_FREE)

    run(story())


def test_a8_what_comes_after_the_answer_is_read_up_to_a_bound_and_a_time() -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(POST % (b"early", DRAINED_MAX_BYTES) + b"x" * DRAINED_MAX_BYTES + GET % b"next")
            assert (await answer(reader), await answer(reader)) == ((200, b"early"), (200, b"next"))
            sending = asyncio.create_task(endless(writer, POST % (b"early", 1 << 40)))
            assert await answer(reader) == (200, b"early")
            assert await gone(reader)
            await asyncio.gather(sending, return_exceptions=True)
            reader, writer = await served.connect()
            writer.write(POST % (b"early", 1 << 20))
            assert await answer(reader) == (200, b"early")
            served.later(BOUNDS.head_s + 1)
            assert await gone(reader)

    run(story())


def test_a8_chunk_headers_are_bounded_too() -> None:
    async def story() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(CHUNKED % b"body" + b"1;" + b"x" * (OVERHEAD_MAX_BYTES + 100))
            assert await rule(reader) == "400 limit.chunks"

    run(story())


def test_a8_too_many_connections_cost_idle_ones_then_new_ones_and_never_a_request() -> None:
    async def story() -> None:
        async with serving(replace(BOUNDS, by_address_max=4)) as served:
            busy = [await served.connect() for _ in range(2)]
            for n, (_, writer) in enumerate(busy):
                writer.write(GET % b"held%d" % n)
            await until(lambda: len(served.asked) == 2)
            idle = [await served.connect() for _ in range(2)]
            await served.settled(4)
            newer = [await served.connect() for _ in range(2)]
            for reader, _ in idle:
                assert await gone(reader)
            for n, (_, writer) in enumerate(newer):
                writer.write(GET % b"held%d" % (n + 2))
            await until(lambda: len(served.asked) == 4)
            refused, _ = await served.connect()
            assert await gone(refused)
            served.open.set()
            for n, (reader, _) in enumerate([*busy, *newer]):
                assert await answer(reader) == (200, b"held%d" % n)

    run(story())


@pytest.mark.parametrize("sent", [CHUNKED % b"early" + b"1\r\na\r\n", b"GET /", CHUNKED % b"body" + b"1\r\na\r\n"])
def test_a8_who_has_shown_no_credential_keeps_nobody_out(sent: bytes) -> None:
    """Connections whose bodies or heads trickle are never idle: they are closed before those of clients are."""

    async def story() -> None:
        async with serving(replace(BOUNDS, by_address_max=6)) as served:
            known = [await served.connect() for _ in range(2)]
            for reader, writer in known:
                writer.write(GET % b"known")
                assert await answer(reader) == (200, b"known")
            slow = [await served.connect() for _ in range(4)]
            for reader, writer in slow:
                writer.write(sent)
                if b"early" in sent:
                    assert await answer(reader) == (200, b"early")
            await until(lambda: sum(c._doing in (Doing.HEAD, Doing.BODY) for c in served.connections.all) == 4)
            newer = [await served.connect() for _ in range(4)]
            for reader, writer in (*newer, *known):
                writer.write(GET % b"known")
                assert await answer(reader) == (200, b"known")
            for reader, _ in slow:
                assert await gone(reader)
            assert len(served.connections.all) == 6

    run(story())


def test_a8_a_request_that_waits_for_its_turn_is_closed_for_others_and_one_under_way_is_not() -> None:
    async def story() -> None:
        async with serving(replace(BOUNDS, by_address_max=2)) as served:
            (held, waiting) = [await served.connect() for _ in range(2)]
            held[1].write(GET % b"held")
            waiting[1].write(GET % b"wait")
            await until(lambda: served.waiting == 1)
            newer = await served.connect()
            newer[1].write(GET % b"held-too")
            await until(lambda: served.asked[-1] == "held-too")
            assert await gone(waiting[0])
            await until(lambda: served.waiting == 0)
            assert await gone((await served.connect())[0])
            served.open.set()
            assert await answer(held[0]) == (200, b"held")
            assert await answer(newer[0]) == (200, b"held-too")

    run(story())


@pytest.mark.parametrize(
    "sent",
    [POST % (b"known-greedy-body", 32_000_000), b"GET /", GET % b"known-greedy-wait"],
    ids=["its body is to come", "its next head comes slowly", "it waits for its turn"],
)
@pytest.mark.parametrize("bounds", [replace(BOUNDS, by_address_max=6), replace(BOUNDS, connections_max=6)])
def test_a8_one_principal_with_many_connections_keeps_nobody_out(sent: bytes, bounds: Bounds) -> None:
    """Nothing is done yet for their requests: they are closed for others, before those of who has fewer."""

    async def story() -> None:
        async with serving(bounds) as served:
            known = [await served.connect() for _ in range(2)]
            for reader, writer in known:
                writer.write(GET % b"known-ann")
                assert await answer(reader) == (200, b"known-ann")
            greedy = [await served.connect() for _ in range(4)]
            for reader, writer in greedy:
                writer.write(GET % b"known-greedy")
                assert await answer(reader) == (200, b"known-greedy")
                writer.write(sent)
            await until(lambda: served.ranks(Rank.COMING) == 4)
            newer: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            for _ in range(2):
                newer.append(await served.connect())
                newer[-1][1].write(GET % b"known-bob")
                assert await answer(newer[-1][0]) == (200, b"known-bob")
            for reader, writer in known:
                writer.write(GET % b"known-ann")
                assert await answer(reader) == (200, b"known-ann")
            assert (served.ranks(Rank.COMING), len(served.connections.all)) == (2, 6)

    run(story())


def test_a8_what_is_sent_ahead_without_a_credential_is_bounded_over_all_connections() -> None:
    async def story() -> None:
        async with serving(replace(BOUNDS, connections_max=1000, by_address_max=1000)) as served:
            known = await served.connect()
            known[1].write(GET % b"known")
            assert await answer(known[0]) == (200, b"known")
            piece = 60_000
            sent = UNKNOWN_MAX_BYTES // piece + 20
            for _ in range(sent):
                _, writer = await served.connect()
                writer.write(POST % (b"held", 1 << 20) + b"x" * piece)
            await until(lambda: len(served.asked) == sent + 1)
            assert len(served.connections.all) <= sent
            assert served.connections.unknown_bytes <= UNKNOWN_MAX_BYTES
            assert served.connections.unknown_bytes == sum(c.unseen_bytes for c in served.connections.all)
            known[1].write(GET % b"known")
            assert await answer(known[0]) == (200, b"known")

    run(story())


def test_the_limit_of_open_files_is_raised_and_said_where_it_is_too_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"now": (256, 1024)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    with caplog.at_level(logging.WARNING, "icetower"):
        room = raise_file_limit(4096, storage_threads=64)
    assert limits["now"] == (1024, 1024)
    assert room == 1024 - 256
    assert len(caplog.records) == 1
    caplog.clear()
    limits["now"] = (1024, 1 << 20)
    assert raise_file_limit(4096, storage_threads=64) == 4096
    assert not caplog.records

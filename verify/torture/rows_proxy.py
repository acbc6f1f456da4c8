"""Between agents and towers in the exactness run: answers are lost, requests come twice, late, in half, or not at all.

One address for agents, whichever tower is up. Each request goes to one tower by chance, and meets a fate by chance.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 30.0
LATE_S = 5.0
"""So much later, at most, the copy of a request comes that was answered already."""

FATES: tuple[tuple[str, float], ...] = (
    ("lost on the way there", 0.03),
    ("cut in half", 0.02),
    ("answer lost", 0.05),
    ("answer too late", 0.01),
    ("sent twice at once", 0.04),
    ("sent again later", 0.04),
    ("delayed", 0.03),
)
"""And how often each is met; the others pass."""


class Proxy:
    """Use as a context.

    Args:
        towers: gives the addresses of the towers that are up.

    Attributes:
        port: on loopback.
        counts: fates, by name.
    """

    def __init__(self, towers: Callable[[], Sequence[str]], seed: int) -> None:
        self.port = 0
        self.counts: Counter[str] = Counter()
        self._towers = towers
        self._random = random.Random(seed)
        self._later: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.settle()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)

    async def settle(self) -> None:
        """Wait until the last copy of a request was sent."""
        while self._later:
            await asyncio.gather(*self._later, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while (request := await _message(reader)) is not None:
                answer = await self._fate(request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def _fate(self, request: bytes) -> bytes | None:
        """The answer; None: the connection is lost."""
        dice, fate = self._random.random(), "passed"
        for name, share in FATES:
            dice -= share
            if dice < 0:
                fate = name
                break
        self.counts[fate] += 1
        match fate:
            case "lost on the way there":
                return None
            case "cut in half":
                await self._ask(request[: len(request) // 2], whole=False)
                return None
            case "answer lost":
                await self._ask(request)
                return None
            case "answer too late":
                await self._ask(request)
                await asyncio.sleep(TIMEOUT_S)
                return None
            case "sent twice at once":
                first, _ = await asyncio.gather(self._ask(request), self._ask(request))
                return first
            case "sent again later":
                answer = await self._ask(request)
                task = asyncio.create_task(self._again(request, self._random.uniform(0, LATE_S)))
                self._later.add(task)
                task.add_done_callback(self._later.discard)
                return answer
            case "delayed":
                await asyncio.sleep(self._random.uniform(0, LATE_S / 2))
                return await self._ask(request)
            case _:
                return await self._ask(request)

    async def _again(self, request: bytes, after_s: float) -> None:
        await asyncio.sleep(after_s)
        answer = await self._ask(request)
        self.counts[f"again: {answer[9:12].decode() if answer else 'lost'}"] += 1

    async def _ask(self, request: bytes, *, whole: bool = True) -> bytes | None:
        """One request to a tower, over a connection of its own; None where there is no answer."""
        towers = self._towers()
        if not towers:
            await asyncio.sleep(0.1)
            return None
        parts = urlsplit(self._random.choice(towers))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                try:
                    writer.write(request)
                    await writer.drain()
                    return await _message(reader) if whole else None
                finally:
                    writer.close()
        except (OSError, EOFError):
            return None


async def _message(reader: asyncio.StreamReader) -> bytes | None:
    """A request or an answer with its body; None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)

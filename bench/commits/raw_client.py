"""HTTP/1.1 with as little work as can be: persistent connections of asyncio, prepared bytes out, a status in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

TIMEOUT_S = 120.0


class Broken(Exception):
    """The connection ended, or the answer is none that this client understands."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time. Bodies of successful answers are counted, and dropped unless asked for."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._head = b""
        self._status = 0
        self._left = -1
        self._kept: list[bytes] = []
        self._keep = False
        self.received_bytes = 0

    @classmethod
    async def open(cls, uri: str) -> Connection:
        """Connect. Raises `OSError`."""
        parts = urlsplit(uri)
        assert parts.hostname is not None, uri
        assert parts.port is not None, uri
        _, connection = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        return connection

    async def send(self, request: bytes, *, keep: bool = False) -> tuple[int, bytes]:
        """Send a whole request; the status, and the body where it is no success or is to be kept.

        Raises `Broken`, `TimeoutError`.
        """
        if self._transport is None or self._transport.is_closing():
            raise Broken("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._head, self._left, self._kept, self._keep = b"", -1, [], keep
        self._transport.write(request)
        async with asyncio.timeout(TIMEOUT_S):
            return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(f"the connection was lost: {exc}"))

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._status, self._left = _status_and_length(self._head[:end])
        self._left -= len(data)
        if self._keep or self._status >= 300:
            self._kept.append(data)
        if self._left <= 0 and self._answer is not None and not self._answer.done():
            self._answer.set_result((self._status, b"".join(self._kept)))


def _status_and_length(head: bytes) -> tuple[int, int]:
    first, *lines = head.split(b"\r\n")
    status = int(first.split(b" ", 2)[1])
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return status, int(value)
    return status, 0


def request_bytes(uri: str, path: str, body: bytes, headers: Mapping[str, str], *, method: str = "POST") -> bytes:
    """A request with a JSON body, ready for the wire."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {urlsplit(uri).netloc}",
        "Content-Type: application/json",
        "Accept-Encoding: gzip",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

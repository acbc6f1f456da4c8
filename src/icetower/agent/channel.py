"""HTTP for the call that agents make most: a POST over connections that stay open.

A general client spends more time on a small request than the server does. This one only supports HTTP/1.1 to one host,
with a body of known length: no redirects, no proxies, no compression.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from typing import BinaryIO
from urllib.parse import urlsplit

from icetower.agent.causes import unreachable, without_password
from icetower.errors import BadRequest, Unavailable

IDLE_MAX = 64
"""The most idle connections that are kept open."""

BODY_MAX_BYTES = 16 * 1024 * 1024
_LINE_MAX = 65_536
_HEADERS_MAX = 200


class Stale(Exception):
    """The server closed a kept connection before it answered; the request may not have arrived."""


class Channel:
    """Keeps connections to one server. Threads may share it; each call uses a connection of its own.

    Args:
        uri: of the server, such as ``http://127.0.0.1:8181``.
        timeout_s: of every step of a call, in seconds.
    """

    def __init__(self, uri: str, *, timeout_s: float) -> None:
        try:
            parts = urlsplit(uri)
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:
            parts, scheme, host, port = urlsplit(""), "", None, None
        if scheme not in ("http", "https") or not host:
            raise BadRequest(
                f"{without_password(uri)!r} is not an address of a tower; write it like http://127.0.0.1:8181"
            )
        self._uri = uri
        self._address = (host, port or (443 if scheme == "https" else 80))
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._idle: deque[_Connection] = deque()
        self._lock = threading.Lock()

    def post(self, path: str, headers: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer.

        Args:
            headers: further header lines, each ended by CR LF.

        Raises:
            Unavailable: no connection, or the connection broke: the request may have arrived.
        """
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        )
        message = head.encode("latin-1") + body
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            try:
                connection = kept or _Connection(self._address, self._tls, self._timeout_s)
            except OSError as error:
                raise self._unavailable(error) from error
            try:
                status, answer, keep = connection.exchange(message)
            except Stale as error:
                connection.close()
                if kept is not None:  # other kept connections may be as old: each is tried once
                    continue
                raise self._unavailable(error) from error
            except (OSError, ValueError) as error:
                connection.close()
                raise self._unavailable(error) from error
            self._give_back(connection, keep=keep)
            return status, answer

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def _give_back(self, connection: _Connection, *, keep: bool) -> None:
        with self._lock:
            if keep and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(unreachable("tower", self._uri, error), rule="client.connection")


class _Connection:
    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None, timeout_s: float) -> None:
        plain = socket.create_connection(address, timeout_s)
        # Without it a small request waits for the acknowledgement of the one before (trap A7).
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=address[0])
        self._stream: BinaryIO = self._socket.makefile("rb")

    def exchange(self, message: bytes) -> tuple[int, bytes, bool]:
        """Status, body, and whether the connection may be used again.

        Raises:
            Stale: it was closed before the first byte of an answer.
            ValueError: the answer is not HTTP.
        """
        try:
            self._socket.sendall(message)
            first = self._stream.readline(_LINE_MAX)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Stale from error
        if not first:
            raise Stale
        version, status, *_ = first.split(None, 2)
        length, chunked, keep = None, False, version == b"HTTP/1.1"
        for _ in range(_HEADERS_MAX):
            line = self._stream.readline(_LINE_MAX)
            if line in (b"\r\n", b"\n"):
                break
            name, _, value = line.partition(b":")
            match name.lower():
                case b"content-length":
                    length = int(value)
                case b"transfer-encoding":
                    chunked = value.strip().lower() == b"chunked"
                case b"connection":
                    keep = keep and value.strip().lower() != b"close"
                case _:
                    pass
        else:
            raise ValueError("too many headers")
        if chunked:
            return int(status), self._chunks(), keep
        if length is None:
            raise ValueError("an answer of unknown length")
        return int(status), self._read(length), keep

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _chunks(self) -> bytes:
        """A body in chunks, as proxies send it."""
        parts: list[bytes] = []
        while size := int(self._stream.readline(_LINE_MAX).split(b";")[0], 16):
            parts.append(self._read(size))
            self._stream.readline(_LINE_MAX)
            if sum(map(len, parts)) > BODY_MAX_BYTES:
                raise ValueError("an answer that is too long")
        while self._stream.readline(_LINE_MAX) not in (b"\r\n", b"\n", b""):
            pass
        return b"".join(parts)

    def _read(self, size_bytes: int) -> bytes:
        if not 0 <= size_bytes <= BODY_MAX_BYTES:
            raise ValueError("an answer that is too long")
        data = self._stream.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionError("the answer ended early")
        return data

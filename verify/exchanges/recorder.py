"""A proxy between clients and a tower that records each exchange as it stands on the wire."""

from __future__ import annotations

import gzip
import http.client
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120.0
PER_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host"})
"""Headers that belong to one connection; the proxy writes its own."""

REQUEST_HEADERS = (
    "authorization", "content-type", "content-encoding", "accept", "idempotency-key", "if-none-match",
    "x-iceberg-access-delegation",
)  # fmt: skip
"""The request's headers that a tower may look at. The others name the client's version and its libraries."""

Hook = Callable[[], None]


@dataclass
class Exchange:
    """One request and its answer. `step` names the act of the session that caused it."""

    step: str
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer_headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    answer: bytes = b""


@dataclass
class Recorder:
    """The exchanges so far, in the order in which the requests came. `uri` is the proxy's address."""

    uri: str
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    _step: str = ""
    _hooks: list[tuple[str, Hook]] = field(default_factory=list[tuple[str, Hook]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, name: str) -> None:
        """Name the act that follows."""
        with self._lock:
            self._step = name

    def before_commit(self, table: str, hook: Hook) -> None:
        """Hold the next commit to `table` (its last name), or to several, until `hook` has run: so it arrives stale."""
        with self._lock:
            self._hooks.append((table, hook))

    def begin(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Exchange:
        with self._lock:
            kept = {name: headers[name] for name in REQUEST_HEADERS if name in headers}
            exchange = Exchange(self._step, method, target, kept, body)
            self.exchanges.append(exchange)
        return exchange

    def held(self, method: str, target: str) -> Hook | None:
        """What has to happen before this request goes on."""
        path = urlsplit(target).path
        with self._lock:
            for at, (table, hook) in enumerate(self._hooks):
                if method == "POST" and path.endswith((f"/tables/{table}", "/transactions/commit")):
                    del self._hooks[at]
                    return hook
        return None


@contextmanager
def recording(upstream: str) -> Generator[Recorder]:
    """Stand before the tower at `upstream` (``http://host:port``) for the time of the block."""
    target = urlsplit(upstream)
    connections = threading.local()

    def ask(method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        connection: http.client.HTTPConnection | None = getattr(connections, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=TIMEOUT_S)
            connections.connection = connection
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response, response.read()
        except OSError:
            connection.close()
            raise

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _pass(self) -> None:
            assert "chunked" not in self.headers.get("Transfer-Encoding", ""), "a request in chunks is not recorded"
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): text for name, text in self.headers.items()}
            exchange = recorder.begin(self.command, self.path, headers, _unpacked(body, headers))
            hook = recorder.held(self.command, self.path)
            if hook is not None:
                hook()
            passed = {name: text for name, text in headers.items() if name not in PER_HOP}
            response, answer = ask(self.command, self.path, body, passed | {"content-length": str(len(body))})
            exchange.answer_headers = [(name.lower(), text) for name, text in response.getheaders()]
            exchange.answer = _unpacked(answer, dict(exchange.answer_headers))
            exchange.status = response.status
            self.send_response_only(response.status)
            for name, text in response.getheaders():
                if name.lower() not in PER_HOP:
                    self.send_header(name, text)
            if response.status not in (204, 304):
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Nothing: the recording is the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    recorder = Recorder(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _unpacked(body: bytes, headers: dict[str, str]) -> bytes:
    return gzip.decompress(body) if headers.get("content-encoding") == "gzip" and body else body

"""A proxy that counts what a catalog answers to commits: the same eyes for every server. It may lose an answer."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120.0
_PER_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass
class Answers:
    """What was answered to commits of tables so far. `uri` is the proxy's."""

    uri: str
    statuses: Counter[int] = field(default_factory=Counter)
    refusals: list[str] = field(default_factory=list)
    """The bodies of all answers but 200."""
    lock: threading.Lock = field(default_factory=threading.Lock)


Seen = Callable[[Mapping[str, str], bytes, int], bool]


@contextmanager
def counting(upstream: str, seen: Seen | None = None) -> Generator[Answers]:
    """Stand before the server at `upstream` (``http://host:port``) for the time of the block.

    Args:
        seen: is given the headers and the body of each commit, and the status of its answer; where it says True the
            client gets no answer.
    """
    target = urlsplit(upstream)
    handlers = threading.local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = {name: text for name, text in self.headers.items() if name.lower() not in _PER_HOP}
            kept["Content-Length"] = str(len(body))
            response, answer = _ask(self.command, self.path, body, kept)
            if self.command == "POST" and "/tables/" in self.path and not self.path.endswith("/metrics"):
                with answers.lock:
                    answers.statuses[response.status] += 1
                    if response.status != 200:
                        answers.refusals.append(answer.decode(errors="replace"))
                    if seen is not None and seen(kept, body, response.status):
                        self.close_connection = True
                        return
            self.send_response(response.status)
            for name, text in response.getheaders():
                if name.lower() not in (*_PER_HOP, "date", "server"):
                    self.send_header(name, text)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Nothing: the counts are the log."""

    def _ask(method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """On this thread's own connection, opened when it is first needed; a commit is never sent twice."""
        connection: http.client.HTTPConnection | None = getattr(handlers, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=TIMEOUT_S)
            handlers.connection = connection
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response, response.read()
        except OSError:
            connection.close()
            raise

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    answers = Answers(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)

"""Stands between Spark and a catalog, and notes what is planned and what is committed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

PLAN = re.compile(r"/v1/(?:[^/]+/)?namespaces/[^/]+/tables/([^/]+)/plan$")
COMMIT = re.compile(r"/v1/(?:[^/]+/)?namespaces/[^/]+/tables/([^/]+)$")
_HOP = frozenset({"host", "content-length", "connection", "accept-encoding", "transfer-encoding", "content-encoding"})


@dataclass
class Noted:
    """What has come by since it was last taken, in order: (``plan`` or ``commit``, table, body, status)."""

    seen: list[tuple[str, str, Any, int]] = field(default_factory=list[tuple[str, str, Any, int]])

    def take(self) -> list[tuple[str, str, Any, int]]:
        seen, self.seen = self.seen, []
        return seen


@contextmanager
def proxy(uri: str) -> Generator[tuple[str, Noted]]:
    """The address of a proxy for a catalog, and what it notes."""
    noted, upstream = Noted(), httpx2.Client(base_url=uri, timeout=60.0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            answer = upstream.request(self.command, self.path, content=body, headers=headers)
            path = self.path.partition("?")[0]
            for what, pattern in (("plan", PLAN), ("commit", COMMIT)):
                found = pattern.search(path)
                if found and self.command == "POST":
                    noted.seen.append((what, found[1], json.loads(body or b"{}"), answer.status_code))
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - the library calls them so

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", noted
    finally:
        server.shutdown()
        server.server_close()
        upstream.close()

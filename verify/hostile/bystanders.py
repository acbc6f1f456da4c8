"""Those who do nothing wrong while a tower is attacked: in a process of their own, where only the tower delays them.

Polite agents commit to tables of their own, one commit each in about `THINK_S`. One probe asks the tower's `/healthz`,
another asks a server that does nothing else: what both see is the machine's.
"""

from __future__ import annotations

import http.client
import http.server
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import orjson

THINK_S = 0.05
PROBE_EACH_S = 0.01
TIMEOUT_S = 60.0
REFUSALS_KEPT = 20


@dataclass(slots=True)
class Seen:
    """What they have seen. Times are of the monotonic clock, in seconds, which all processes of a machine share."""

    health: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When the tower's `/healthz` was asked, and how long the answer took."""
    control: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The same of the server that does nothing else."""
    commits: list[float] = field(default_factory=list[float])
    """When a commit was answered 200."""
    refused: list[str] = field(default_factory=list[str])
    """What else was answered, the first of them."""

    def rate(self, from_s: float, to_s: float) -> float:
        """Commits a second between two times."""
        return sum(from_s <= at_s < to_s for at_s in self.commits) / (to_s - from_s)


class Bystanders:
    """Runs from the beginning to `stop`. `tables`: one polite agent each."""

    def __init__(self, host: str, port: int, token: str, tables: list[str]) -> None:
        context = get_context("spawn")
        self._over = context.Event()
        self._received, sent = context.Pipe(duplex=False)
        arguments = (host, port, token, tables, self._over, sent)
        self._process = context.Process(target=_stand_by, args=arguments, daemon=True)
        self._process.start()
        self._received.recv()

    def stop(self) -> Seen:
        """The end: what they have seen."""
        self._over.set()
        seen: Seen = self._received.recv()
        self._process.join(TIMEOUT_S)
        return seen


class _Nothing(http.server.BaseHTTPRequestHandler):
    """The control: a server that does nothing else."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        return


def _stand_by(host: str, port: int, token: str, tables: list[str], over: Any, sent: Connection[Any, Any]) -> None:
    seen, ended = Seen(), threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Nothing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threads = [
        threading.Thread(target=_probe, args=(seen.health, host, port, ended), daemon=True),
        threading.Thread(target=_probe, args=(seen.control, "127.0.0.1", server.server_port, ended), daemon=True),
    ]
    threads += [threading.Thread(target=_commit, args=(seen, host, port, token, t, ended), daemon=True) for t in tables]
    for thread in threads:
        thread.start()
    sent.send(None)
    over.wait()
    ended.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    server.shutdown()
    sent.send(seen)


def _probe(times: list[tuple[float, float]], host: str, port: int, ended: threading.Event) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    while not times or not ended.wait(PROBE_EACH_S):
        started_s = time.monotonic()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        times.append((started_s, time.monotonic() - started_s))
    connection.close()


def _commit(seen: Seen, host: str, port: int, token: str, path: str, ended: threading.Event) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    at = 0
    while not at or not ended.wait(THINK_S):
        at += 1
        update = {"action": "set-properties", "updates": {"polite.commit": str(at)}}
        try:
            connection.request("POST", path, orjson.dumps({"requirements": [], "updates": [update]}), headers)
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            status, data = 0, f"{type(error).__name__}: {error}".encode()
        if status == 200:
            seen.commits.append(time.monotonic())
        elif len(seen.refused) < REFUSALS_KEPT:
            seen.refused.append(f"{path}: {status} {data[:300]!r}")
    connection.close()

"""The steps of an agent over sockets, by threads and by an event loop: what is lost, and what was never sent."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from icetower import Agent, AsyncAgent
from icetower.agent.recovery import Patience
from icetower.agent.steps import Lost, Pause, Request, Response, Work
from icetower.agent.transport import AsyncTransport, Transport
from icetower.ambient import SystemAmbient
from icetower.errors import BadRequest, CommitStateUnknown, UsageError

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; `None` closes the connection, `...` leaves it waiting."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.heads: list[bytes] = []
        self.asked = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while (head := b"".join(iter(stream.readline, b"\r\n"))) or not stream.closed:
                if not head:
                    return
                length = [int(line.split(b":")[1]) for line in head.lower().splitlines() if b"content-length" in line]
                self.heads.append(head + stream.read(sum(length)))
                answer = self.answers.pop(0) if self.answers else ANSWER
                self.asked.set()
                if answer is ...:
                    threading.Event().wait(60)
                if answer is None or answer is ...:
                    return
                connection.sendall(answer)

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


Take = Callable[[str, Any], Any]


@pytest.fixture(params=["threads", "event loop"])
def take(request: pytest.FixtureRequest) -> Take:
    """Takes a step with a tower at an address."""

    def by_thread(uri: str, step: Any) -> Any:
        transport = Transport(uri, answer_within_s=5, patience=Patience())
        try:
            return transport.take(step)
        finally:
            transport.close()

    def by_loop(uri: str, step: Any) -> Any:
        async def taken() -> Any:
            transport = AsyncTransport(uri, answer_within_s=5, patience=Patience())
            try:
                return await transport.take(step)
            finally:
                await transport.close()

        return asyncio.run(taken())

    return by_thread if request.param == "threads" else by_loop


POST = Request("POST", "/v1/namespaces/a%1Fb/tables/t/rows", {"ref": "x y"}, {"X-One": "1"}, b"body")


def test_a_request_arrives_as_it_is(server: Server, take: Take) -> None:
    found = take(server.uri, POST)
    assert isinstance(found, Response)
    assert (found.status, found.body, found.headers["retry-after"]) == (200, b"ok", "7")
    (head,) = server.heads
    assert head.replace(b"%20", b"+").startswith(b"POST /v1/namespaces/a%1Fb/tables/t/rows?ref=x+y HTTP/1.1\r\n")
    assert b"x-one: 1\r\n" in head.lower()
    assert head.endswith(b"body")


@pytest.mark.parametrize(
    "answer",
    [None, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nok", b"hello\r\n\r\n"],
    ids=["no answer", "half an answer", "no HTTP"],
)
def test_a_request_that_was_sent_may_have_arrived(server: Server, take: Take, answer: bytes | None) -> None:
    server.answers = [answer]
    if answer is not None:
        server.answers = [answer, None]
    with pytest.raises(Lost) as lost:
        take(server.uri, POST)
    assert lost.value.sent
    assert lost.value.error.rule == "client.connection"


def test_a_request_without_a_connection_was_not_sent(take: Take) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(Lost, match="the connection was refused") as lost:
        take(uri, POST)
    assert not lost.value.sent


def test_pauses_and_work_are_taken_too(server: Server, take: Take) -> None:
    take(server.uri, Pause(0.0))
    assert take(server.uri, Work(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        take(server.uri, Work(lambda: 1 // 0))


@pytest.mark.parametrize("kind", [Agent, AsyncAgent])
def test_what_is_no_address_and_no_setting(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no tower answers"):
        kind("http://[::1", journal=tmp_path / "journal")
    with pytest.raises(UsageError, match="a request takes 1 to 10000 rows"):
        kind("http://127.0.0.1:1", rows_max=0, journal=tmp_path / "journal")
    assert kind("http://127.0.0.1:1", journal=tmp_path / "journal").journal.pending() == ()


class Hurried(SystemAmbient):
    """No wait is long."""

    def uniform(self) -> float:
        return -1.0


def answer(document: Any) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


DELIVERY = answer(
    {
        "table": "a.t",
        "operation": "append",
        "agent": "c",
        "pattern": "direct",
        "through": None,
        "blind": True,
        "key_columns": [],
        "slot": None,
        "now_ms": 0,
    }
)
LANDED = answer({"table": "a.t", "snapshot-id": 5, "sequence-number": 1, "outcome": "replayed", "rows": 1})
CONFIG = answer({"idempotency-key-lifetime": "PT1H"})


def test_a_call_that_is_cancelled_leaves_its_key(server: Server, tmp_path: Path) -> None:
    """Its request may have arrived: the same call, made again, goes under the same key."""

    async def run() -> None:
        agent = AsyncAgent(server.uri, journal=tmp_path / "journal", patience=Patience(ambient=Hurried()))
        async with agent:
            server.answers = [DELIVERY, ...]
            call = asyncio.ensure_future(agent.append("a.t", {"x": 1}))
            while len(server.heads) < 2:
                await asyncio.to_thread(server.asked.wait, 0.01)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert agent.journal is not None
            (pending,) = agent.journal.pending()
            server.answers = [CONFIG, DELIVERY, LANDED]
            done = await agent.append("a.t", {"x": 1})
            assert (done.outcome, done.key) == ("replayed", pending.key)
            assert agent.journal.pending() == ()

    asyncio.run(run())
    keys = [line for head in server.heads for line in head.lower().splitlines() if b"idempotency-key:" in line]
    assert len(keys) == 2
    assert len({*keys}) == 1


def test_no_answer_within_the_time(server: Server) -> None:
    server.answers = [...]
    with (
        Agent(server.uri, answer_within_s=0.05, patience=Patience(attempts_max=1)) as agent,
        pytest.raises(Exception, match="no answer within the time limit") as raised,
    ):
        agent.append("a.t", {"x": 1})
    assert not isinstance(raised.value, CommitStateUnknown)  # nothing of rows was sent yet


BARE = """
import sys

for name in ("pyarrow", "pandas", "numpy", "pyiceberg", "orjson", "sqlalchemy", "starlette"):
    sys.modules[name] = None  # as where it is not installed

from dataclasses import dataclass
from icetower import Agent
from icetower.errors import UsageError


@dataclass
class Row:
    x: int


class Frame:
    __arrow_c_stream__ = None


with Agent(sys.argv[1], journal=sys.argv[2]) as agent:
    print(agent.append("a.t", Row(1)).snapshot_id)
    for call, rows in ((agent.append, Frame()), (agent.upsert, {"x": 1})):
        try:
            call("a.t", rows)
        except UsageError as error:
            print(error)
"""


def test_the_bare_package_is_enough_for_rows_of_python(server: Server, tmp_path: Path) -> None:
    server.answers = [DELIVERY, LANDED, DELIVERY]
    arguments = [sys.executable, "-c", BARE, server.uri, str(tmp_path / "journal")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    snapshot, frame, upsert = done.stdout.splitlines()
    assert snapshot == "5"
    assert frame == "rows in this form need pyarrow; install it, or pass mappings or dataclasses"
    assert upsert.startswith("the contract has the agent commit this itself, for which it needs PyIceberg: install")

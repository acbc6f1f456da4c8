"""Protocol-level writers: a connection each, prepared requests one after the other. The server is what is measured."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.commits.operations import Operation
from bench.commits.raw_client import Broken, Connection, request_bytes
from bench.commits.servers import Server
from bench.commits.verify import NAMESPACE, TABLE
from icetower.agent import Tower

CONTRACT = f"""version: 1
agent: bench
tables:
  - table: {NAMESPACE}.{TABLE}
    operations: [append]
    write_location: table
    partitions: all
    blind_appends: true
"""
COMMIT_PATH = f"/v1/namespaces/{NAMESPACE}/tables/{TABLE}"
APPEND_PATH = f"{COMMIT_PATH}/append"


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent for one row, and headers besides the usual ones."""

    row_id: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What a crew of writers did. `from_s` is when they began, on the monotonic clock."""

    operations: list[Operation]
    from_s: float
    cpu_s: float
    received_bytes: int = 0


def principals(server: Server, count: int) -> list[str]:
    """As many principals under one contract; their secrets."""
    with Tower(server.uri, server.token) as tower:
        tower.apply_contract(CONTRACT)
        return [tower.create_principal(f"writer-{number}", "bench") for number in range(count)]


Before = Callable[[Request], Awaitable[None]]


async def _nothing(_: Request) -> None:
    pass


def replay(
    uri: str,
    path: str,
    tokens: Sequence[str],
    requests: Iterable[Request],
    seconds: float,
    *,
    before: Before = _nothing,
) -> Load:
    """One writer for each token; together they send the requests, until there are none or the time is over.

    Args:
        before: what a writer does before it sends one; it counts as part of the operation.
    """
    shared = iter(requests)
    return asyncio.run(_replay(uri, path, tokens, [shared] * len(tokens), seconds, before))


def replay_each(
    uri: str,
    path: str,
    tokens: Sequence[str],
    requests: Sequence[Iterable[Request]],
    seconds: float,
    *,
    before: Before = _nothing,
) -> Load:
    """As `replay`, but each writer has requests of its own."""
    return asyncio.run(_replay(uri, path, tokens, [iter(each) for each in requests], seconds, before))


async def _replay(
    uri: str,
    path: str,
    tokens: Sequence[str],
    queues: Sequence[Iterator[Request]],
    seconds: float,
    before: Before = _nothing,
) -> Load:
    connections = await asyncio.gather(*(Connection.open(uri) for _ in tokens))
    gc.collect()
    gc.freeze()
    done: list[Operation] = []
    began_cpu_s, from_s = _own_cpu_s(), time.monotonic()

    async def writer(number: int, connection: Connection, token: str) -> None:
        while time.monotonic() < from_s + seconds:
            request = next(queues[number], None)
            if request is None:
                return
            headers = {"Authorization": f"Bearer {token}", **dict(request.headers)}
            raw = request_bytes(uri, path, request.body, headers)
            start_s = time.monotonic()
            await before(request)
            try:
                status, said = await connection.send(raw)
                outcome = _outcome(status, said)
            except (Broken, TimeoutError) as error:
                outcome = type(error).__name__
            done.append(Operation(request.row_id, start_s, time.monotonic(), outcome, writer=number))
            if outcome in ("Broken", "TimeoutError"):
                return

    try:
        await asyncio.gather(*(writer(at, *pair) for at, pair in enumerate(zip(connections, tokens, strict=True))))
    finally:
        gc.unfreeze()
        for connection in connections:
            connection.close()
    received = sum(connection.received_bytes for connection in connections)
    return Load(done, from_s, _own_cpu_s() - began_cpu_s, received)


def _outcome(status: int, said: bytes) -> str:
    if status in (200, 204):
        return "ok"
    if status == 409:
        return "conflict"
    return f"{status} {said[:160].decode(errors='replace')}"


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

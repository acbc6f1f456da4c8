"""CPU and time of one small POST, by `icetower.agent.Agent`'s transport (httpx2) and by `Tower.append`'s (`Channel`).

    python -m bench.transport.run [--requests 2000] [--threads 1,8]

A server in a process of its own answers each request at once with what the rows door answers. CPU is this process's,
in user and system mode, so that it hardly depends on what else runs on the machine. The two take turns, and the median
of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection

from icetower.agent.channel import Channel
from icetower.agent.recovery import Patience
from icetower.agent.steps import Request
from icetower.agent.transport import Transport

ROUNDS = 5
BODY = json.dumps({"rows": [{"product_id": 17, "day": "2017-01-31", "price": "9.99"}]}).encode()
ANSWER = json.dumps(
    {
        "snapshot-id": 3814472253249775124,
        "sequence-number": 12,
        "outcome": "appended",
        "group-size": 41,
        "rows": 1,
        "queue-wait-ms": 12.5,
    }
).encode()
PATH = "/v1/namespaces/shop/tables/prices/rows"
KEY = "01a1fe03-73b8-78ac-b3d5-6bcc4d844630"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request, in microseconds."""

    cpu_us: float
    wall_us: float


def serve(ready: Connection) -> None:
    """Answer until the process is ended."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
                await reader.readexactly(length)
                writer.write(head + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def cost(send: Callable[[], object], requests: int, threads: int) -> Cost:
    """What a request costs where so many threads send them."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: send(), range(threads * 4)))  # connections are open
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        list(pool.map(lambda _: [send() for _ in range(requests // threads)], range(threads)))
        done = requests // threads * threads
        return Cost((time.process_time() - cpu_s) / done * 1e6, (time.perf_counter() - wall_s) / done * 1e6)


def measured(uri: str, requests: int, threads: int) -> dict[str, Cost]:
    """The median of the rounds, by transport."""
    channel = Channel(uri, timeout_s=30)
    transport = Transport(uri, answer_within_s=30, patience=Patience())
    head = f"Content-Type: application/json\r\nIdempotency-Key: {KEY}\r\nAuthorization: Bearer secret\r\n"
    request = Request(
        "POST",
        PATH,
        headers={"Content-Type": "application/json", "Idempotency-Key": KEY, "Authorization": "Bearer secret"},
        body=BODY,
    )
    ways: dict[str, Callable[[], object]] = {
        "httpx2": lambda: json.loads(transport.take(request).body),
        "channel": lambda: json.loads(channel.post(PATH, head, BODY)[1]),
    }
    rounds = [{name: cost(send, requests, threads) for name, send in ways.items()} for _ in range(ROUNDS)]
    channel.close()
    transport.close()
    return {
        name: Cost(
            statistics.median(each[name].cpu_us for each in rounds),
            statistics.median(each[name].wall_us for each in rounds),
        )
        for name in ways
    }


def report(found: dict[int, dict[str, Cost]]) -> str:
    lines = ["| threads | transport | CPU a request | time a request |", "| --- | --- | --- | --- |"]
    for threads, costs in found.items():
        lines += [f"| {threads} | {name} | {c.cpu_us:.0f} µs | {c.wall_us:.0f} µs |" for name, c in costs.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--threads", default="1,8")
    given = parser.parse_args(arguments)
    receiving, sending = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(sending,), daemon=True)
    server.start()
    try:
        uri = f"http://127.0.0.1:{receiving.recv()}"
        found = {int(each): measured(uri, given.requests, int(each)) for each in given.threads.split(",")}
    finally:
        server.terminate()
        server.join()
    sys.stdout.write(report(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

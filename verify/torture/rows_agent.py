"""An agent of the exactness run: a process that may be killed at any moment, and goes on where it was.

    rows_agent.py SPEC        a JSON object, see `Spec`

It notes each request before it sends it, and each answer. After a start it first sends the unanswered requests again,
under the same keys. Now and then it gives one up.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.commits.raw_client import Broken, Connection
from verify.torture.row_batches import ACKNOWLEDGED, ANSWER, BEGUN, GIVEN_UP, JSON, REFUSED, Batch, Journal, batch, body

PATIENCE_S = 6.0
GIVES_UP = 0.01
"""Of the requests that have to be sent again."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The order of an agent.

    Attributes:
        path: of the table's rows.
        journal: the file that it writes down in.
        rows: how many of its rows are to be acknowledged.
        rows_most: of one request.
        width: requests at once.
    """

    host: str
    port: int
    path: str
    token: str
    number: int
    seed: int
    journal: str
    rows: int
    rows_most: int
    width: int


class Agent:
    """One life of an agent."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._file = os.open(spec.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        past = Journal.read(Path(spec.journal).read_text().splitlines())
        self._next = max(past.rows, default=0) + 1
        self._done = past.acknowledged_rows
        self._waiting = past.under_way
        self._random = random.Random(os.getpid())

    async def live(self) -> None:
        """Until enough rows are acknowledged."""
        await asyncio.gather(*(self._work() for _ in range(self._spec.width)))

    def _note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def _batch(self, number: int) -> Batch:
        spec = self._spec
        return batch(spec.seed, spec.number, number, spec.rows_most, arrow=spec.number % 2 == 1)

    async def _work(self) -> None:
        line = _Line(f"http://{self._spec.host}:{self._spec.port}")
        try:
            while self._waiting or self._done < self._spec.rows:
                if self._waiting:
                    of = self._batch(self._waiting.pop(0))
                    if self._random.random() < GIVES_UP:
                        self._note(GIVEN_UP, of.number)
                        continue
                else:
                    of = self._batch(self._next)
                    self._next += 1
                    self._note(BEGUN, of.number, of.rows)
                await self._send(line, of)
        finally:
            line.close()

    async def _send(self, line: _Line, of: Batch) -> None:
        """Until it has ended."""
        request = _request(self._spec, of)
        pause_s = 0.05
        while True:
            status, said = await line.ask(request)
            self._note(ANSWER, status)
            if status == "200" and not of.bad:
                self._done += of.rows
                self._note(ACKNOWLEDGED, of.number)
                return
            if status in ("400", "422") and of.bad:
                self._note(REFUSED, of.number)
                return
            if status[0] in "24" and status not in ("408", "409", "429"):
                raise RuntimeError(f"request {of.number} of {of.rows} rows, bad: {of.bad}: {status} {said[:500]}")
            if self._random.random() < GIVES_UP:
                self._note(GIVEN_UP, of.number)
                return
            await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, 1.0)


class _Line:
    """A connection that is opened anew where it was lost."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._connection: Connection | None = None

    async def ask(self, request: bytes) -> tuple[str, str]:
        """The status and the body; ``lost-…`` where there was no answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._connection is None:
                    self._connection = await Connection.open(self._uri)
                status, said = await self._connection.send(request)
        except (Broken, TimeoutError, OSError) as error:
            self.close()
            return f"lost-{type(error).__name__}", ""
        return str(status), said.decode(errors="replace")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _request(spec: Spec, of: Batch) -> bytes:
    content_type, data = body(of)
    # In JSON the key may stand in the body: both ways are taken.
    in_body = of.form == JSON and of.number % 2 == 0
    if in_body:
        data = data[:-1] + f',"key":"{of.key}"}}'.encode()
    lines = [
        f"POST {spec.path} HTTP/1.1",
        f"Host: {spec.host}:{spec.port}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(data)}",
        f"Authorization: Bearer {spec.token}",
        *([] if in_body else [f"Idempotency-Key: {of.key}"]),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def main() -> None:
    """One life."""
    asyncio.run(Agent(Spec(**json.loads(sys.argv[1]))).live())


if __name__ == "__main__":
    main()

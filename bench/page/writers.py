"""Agents that commit at a fixed rate while the pages are asked for: prepared commits, each due at its own moment."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.commits.operations import Operation
from bench.commits.prepared import Plan, prepare
from bench.commits.raw_client import Broken, Connection, request_bytes
from bench.commits.shapes import SPREAD, values_of
from bench.commits.verify import head_of
from bench.page.warehouse import HOT, Size, table_name
from icetower.agent import keyed, new_key

CONNECTIONS_MAX = 128
ROW_IDS_FROM = 1_000


@dataclass(frozen=True, slots=True)
class Load:
    """What goes on at the tables.

    Attributes:
        rate: commits a second.
        hot: at one table; else over all of them.
    """

    name: str
    rate: float
    hot: bool

    def agents(self, size: Size) -> list[int]:
        """Who commits, one connection each: where all tables are meant, two of each table."""
        count = min(size.agents, CONNECTIONS_MAX if self.hot else 2 * size.tables)
        return [number * size.agents // count for number in range(count)] if self.hot else list(range(count))

    def table(self, agent: int, size: Size) -> int:
        """Where an agent commits."""
        return HOT if self.hot else agent % size.tables


ONE_TABLE = Load("one table", 200.0, hot=True)
ALL_TABLES = Load("all tables", 60.0, hot=False)
LOADS = (ONE_TABLE, ALL_TABLES)


@dataclass(frozen=True, slots=True)
class Writer:
    """One connection: whose it is, and what is sent to which path, in order."""

    secret: str
    path: str
    bodies: Sequence[bytes]


def writers(load: Load, size: Size, secrets: Sequence[str], database: Path, seconds: float, turn: int) -> list[Writer]:
    """What is sent within so many seconds, each commit on its table's head as it is now.

    Args:
        turn: which run it is; each has rows of its own.
    """
    agents = load.agents(size)
    each = -(-int(load.rate * seconds) // len(agents))
    first = ROW_IDS_FROM + turn * 10_000_000
    by_table: dict[int, dict[int, int]] = {}
    for at, agent in enumerate(agents):
        rows = range(first + at * each, first + (at + 1) * each)
        by_table.setdefault(load.table(agent, size), {}).update(dict.fromkeys(rows, agent))
    bodies: dict[int, list[bytes]] = {agent: [] for agent in agents}
    for number, rows in by_table.items():
        for row_id, body in _prepared(number, rows, database):
            bodies[rows[row_id]].append(body)
    return [Writer(secrets[agent], _path(load.table(agent, size)), bodies[agent]) for agent in agents]


def _prepared(table: int, rows: Mapping[int, int], database: Path) -> list[tuple[int, bytes]]:
    name = table_name(table)
    plan = Plan(
        SPREAD,
        values=lambda row_id: values_of(row_id, rows[row_id]),
        summary=lambda _: keyed(new_key(), blind=True),
    )
    made = prepare(head_of(database, ".".join(name.namespace), name.name), list(rows), plan)
    return [(commit.row_id, commit.body) for commit in made]


def _path(table: int) -> str:
    name = table_name(table)
    return f"/v1/namespaces/{'.'.join(name.namespace)}/tables/{name.name}"


def ready() -> None:
    """Returns once a process has loaded what `write` needs."""


def write(uri: str, crew: Sequence[Writer], rate: float, begin_s: float, seconds: float) -> list[Operation]:
    """Send what is due, from a moment of the monotonic clock on; who is late sends at once. In a process of its own."""
    return asyncio.run(_write(uri, crew, rate, begin_s, begin_s + seconds))


async def _write(uri: str, crew: Sequence[Writer], rate: float, begin_s: float, end_s: float) -> list[Operation]:
    connections = await asyncio.gather(*(Connection.open(uri) for _ in crew))
    done: list[Operation] = []
    gc.freeze()

    async def one(number: int, writer: Writer, connection: Connection) -> None:
        headers = {"Authorization": f"Bearer {writer.secret}"}
        for turn, body in enumerate(writer.bodies):
            due_s = begin_s + (turn * len(crew) + number) / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            start_s = time.monotonic()
            if start_s >= end_s:
                return
            try:
                status, said = await connection.send(request_bytes(uri, writer.path, body, headers))
                outcome = "ok" if status == 200 else f"{status} {said[:160].decode(errors='replace')}"
            except (Broken, TimeoutError) as error:
                done.append(Operation(turn, start_s, time.monotonic(), type(error).__name__, writer=number))
                return
            done.append(Operation(turn, start_s, time.monotonic(), outcome, writer=number))

    try:
        await asyncio.gather(*(one(at, *pair) for at, pair in enumerate(zip(crew, connections, strict=True))))
    finally:
        for connection in connections:
            connection.close()
    return done

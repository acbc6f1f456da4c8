"""The agents: many in one process, each with a connection, a table and a think time of its own.

An agent thinks, then writes one row: by the fast path (a data file is named), or by a commit as an Iceberg client makes
it: the table is loaded, a manifest and a manifest list are written, the snapshot is sent.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import orjson

from bench.commits import verify
from bench.commits.operations import Operation
from bench.commits.prepared import prepare_one, write_data_files
from bench.commits.raw_client import Broken, Connection, request_bytes
from icetower.agent import DataFile, new_key
from icetower.iceberg.manifests import ManifestFile, read_manifest_list

NAMESPACE = "soak"
ROWS_MAX = 1_000_000
"""Rows of one agent: its number times this is where its ids begin."""
BEGIN_S = 5.0
"""Agents begin within so many seconds, so that they do not think in step."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent. `number`: of all agents, from 1. `location`: of its table."""

    number: int
    token: str
    table: str
    location: str


@dataclass(frozen=True, slots=True)
class Work:
    """What the agents of one process do. `commits`: how many of ten writes are commits and not the fast path's."""

    uri: str
    agents: tuple[Agent, ...]
    seconds: float
    think_s: float
    commits: float
    seed: int


def run(work: Work, processes: int) -> list[Operation]:
    """All agents, from some processes; what became of each write. The writer of an operation is an agent's number."""
    parts = [
        Work(work.uri, work.agents[at::processes], work.seconds, work.think_s, work.commits, work.seed + at)
        for at in range(processes)
    ]
    if processes == 1:
        return _run(work)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return [operation for done in pool.map(_run, parts) for operation in done]


def _run(work: Work) -> list[Operation]:
    return asyncio.run(_all(work))


async def _all(work: Work) -> list[Operation]:
    done: list[Operation] = []
    ends_s = time.monotonic() + work.seconds
    gc.freeze()
    try:
        await asyncio.gather(*(_one(agent, work, ends_s, done) for agent in work.agents))
    finally:
        gc.unfreeze()
    return done


async def _one(agent: Agent, work: Work, ends_s: float, done: list[Operation]) -> None:
    source = random.Random(work.seed * 1_000_000 + agent.number)
    await asyncio.sleep(source.uniform(0, min(BEGIN_S, work.seconds / 4)))
    connection = await Connection.open(work.uri)
    row_id = agent.number * ROWS_MAX
    while time.monotonic() < ends_s:
        row_id += 1
        write = _commit if source.random() * 10 < work.commits else _append
        start_s = time.monotonic()
        try:
            start_s, status, said = await write(agent, work.uri, connection, row_id)
            outcome = "ok" if status in (200, 204) else f"{status} {said[:200].decode(errors='replace')}"
        except (Broken, TimeoutError) as error:
            outcome = type(error).__name__
            connection = await Connection.open(work.uri)
        done.append(Operation(row_id, start_s, time.monotonic(), outcome, writer=agent.number))
        await asyncio.sleep(min(source.expovariate(1 / work.think_s), max(0.0, ends_s - time.monotonic())))
    connection.close()


def _path(agent: Agent) -> str:
    return f"/v1/namespaces/{NAMESPACE}/tables/{agent.table}"


def _headers(agent: Agent) -> dict[str, str]:
    return {"Authorization": f"Bearer {agent.token}"}


async def _append(agent: Agent, uri: str, connection: Connection, row_id: int) -> tuple[float, int, bytes]:
    (file,) = write_data_files({"location": agent.location}, [row_id])
    described = DataFile(file.path, 1, file.size_bytes).to_json()
    body = orjson.dumps({"files": [described], "ref": "main", "key": new_key()})
    start_s = time.monotonic()
    status, said = await connection.send(request_bytes(uri, f"{_path(agent)}/append", body, _headers(agent)))
    return start_s, status, said


async def _commit(agent: Agent, uri: str, connection: Connection, row_id: int) -> tuple[float, int, bytes]:
    request = request_bytes(uri, _path(agent), b"", _headers(agent), method="GET")
    status, said = await connection.send(request, keep=True)
    if status != 200:
        return time.monotonic(), status, said
    metadata: dict[str, Any] = orjson.loads(zlib.decompress(said, 31) if said[:2] == b"\x1f\x8b" else said)["metadata"]
    base = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    rows = _listed(base)
    (file,) = write_data_files(metadata, [row_id])
    prepared = prepare_one(metadata, base, rows, row_id, file, {})
    start_s = time.monotonic()
    status, said = await connection.send(request_bytes(uri, _path(agent), prepared.body, _headers(agent)))
    return start_s, status, said


def _listed(snapshot: dict[str, Any]) -> Sequence[ManifestFile]:
    return read_manifest_list(Path(verify.plain(snapshot["manifest-list"])).read_bytes())


def rows_of(operations: Sequence[Operation], agents: Sequence[Agent]) -> dict[str, list[Operation]]:
    """What was written, by table."""
    tables = {agent.number: agent.table for agent in agents}
    found: dict[str, list[Operation]] = {agent.table: [] for agent in agents}
    for operation in operations:
        found[tables[operation.writer]].append(operation)
    return found

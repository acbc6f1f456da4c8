"""The sides, each with its servers and writers, and a run of one from an empty table to the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from bench.commits import protocol_writers, pyiceberg_writers, servers, verify
from bench.commits.operations import Operation, figures, judge, percentile
from bench.commits.protocol_writers import APPEND_PATH, COMMIT_PATH, Before, Load, Request
from bench.commits.pyiceberg_writers import Job
from bench.commits.shapes import FLAT, NOTE
from bench.commits.sides import WARM_S, rest
from bench.commits.verify import NAMESPACE, TABLE
from bench.rows import ducklake
from bench.rows.cases import APPENDS, DIRECT, DOOR, DUCKLAKE, TOWER, Case
from bench.rows.reading import Found, by_row, read_iceberg
from icetower.agent import DataFile, new_key
from icetower.demo import slow_io
from icetower.demo.latency import PROFILES, Latency
from verify.kit import postgres_cluster

ROWS_PATH = f"{COMMIT_PATH}/rows"
WARM_MAX_S = 60.0
"""For every agent's first request."""


def run(case: Case, folder: Path, postgres: ducklake.Postgres | None) -> dict[str, Any]:
    """Run a case in an empty folder; its figures as a JSON object. Raises `Trouble` where it cannot be run."""
    folder.mkdir(parents=True, exist_ok=True)
    if case.side == DIRECT:
        return _direct(case, folder)
    if case.side != DUCKLAKE:
        return _served(case, folder)
    if postgres is None:
        raise servers.Trouble("DuckLake needs PostgreSQL")
    return _ducklake(case, folder, postgres)


def _served(case: Case, folder: Path) -> dict[str, Any]:
    prepared: Callable[[Case, servers.Server], Crew] = {DOOR: _rows, APPENDS: _appends, TOWER: _pyiceberg}[case.side]
    with servers.tower(folder, case.profile, case.seed) as server:
        _create(load_catalog("bench", **rest(server)))
        crew = prepared(case, server)
        first = crew.first()
        before_s = server.cpu_s()
        load = crew.rest()
        used_s = server.cpu_s() - before_s
        found = read_iceberg(verify.location_of(server.database))
        return _record(case, load, used_s, found, first)


@dataclass(frozen=True, slots=True)
class Crew:
    """Agents with their requests.

    Attributes:
        first: one request of each, with which the tower reads its contract; these are not measured.
        rest: all others.
    """

    first: Callable[[], Sequence[Operation]]
    rest: Callable[[], Load]


def _create(catalog: Catalog) -> None:
    catalog.create_namespace(NAMESPACE)
    declared = {"icetower.blind-appends": "true"}
    catalog.create_table(f"{NAMESPACE}.{TABLE}", schema=FLAT.schema, properties=declared)


def _record(
    case: Case, load: Load, server_cpu_s: float | None, found: Found, first: Sequence[Operation] = ()
) -> dict[str, Any]:
    """The figures of a run, and whether its table holds what the agents were answered.

    Rates are of the requests that ended within the run, but for its first second; latencies of those that began in that
    time, however late they ended.
    """
    from_s, to_s = load.from_s + min(WARM_S, case.seconds / 4), load.from_s + case.seconds
    counted = figures(load.operations, from_s=from_s, to_s=to_s)
    good = [op for op in load.operations if op.outcome == "ok"]
    took_ms = sorted((op.end_s - op.start_s) * 1000 for op in good if op.start_s >= from_s)
    verdict = judge(by_row([*first, *load.operations], case.rows), found.ids)
    lasted_s = max((op.end_s for op in load.operations), default=to_s) - load.from_s
    each = 1000 / max(len(good), 1)
    return {
        **asdict(case),
        "requests_per_s": counted.commits_per_s,
        "rows_per_s": counted.commits_per_s * case.rows,
        "success": len(good) / max(len(load.operations), 1),
        "p50_ms": percentile(took_ms, 50),
        "p99_ms": percentile(took_ms, 99),
        "retries": counted.retries,
        "failures": counted.failures,
        "acknowledged": len(good),
        "tried": len(load.operations),
        "server_cpu_ms": None if server_cpu_s is None else server_cpu_s * each,
        "clients_cpu_ms": load.cpu_s * each,
        "clients_cores": load.cpu_s / max(lasted_s, 1e-9),
        "files": found.files,
        "files_per_s": found.files / max(lasted_s, 1e-9),
        "missing": len(verdict.missing),
        "doubled": len(verdict.doubled),
        "unexpected": len(verdict.unexpected),
        "exact": verdict.exact,
    }


# -- agents that speak to the tower by themselves ---------------------------------------------------------------------


def _protocol(case: Case, server: servers.Server, path: str, requests: Sequence[Request], before: Before) -> Crew:
    tokens = protocol_writers.principals(server, case.agents)
    firsts, others = [[request] for request in requests[: case.agents]], requests[case.agents :]

    def first() -> Sequence[Operation]:
        return protocol_writers.replay_each(server.uri, path, tokens, firsts, WARM_MAX_S, before=before).operations

    def rest() -> Load:
        return protocol_writers.replay(server.uri, path, tokens, others, case.seconds, before=before)

    return Crew(first, rest)


async def _nothing(_: Request) -> None:
    pass


def _rows(case: Case, server: servers.Server) -> Crew:
    """Rows as JSON, each request under a key of its own."""
    numbers = range(1, case.agents + case.requests_max + 1)
    requests = [Request(number, _rows_body(number, case.rows)) for number in numbers]
    return _protocol(case, server, ROWS_PATH, requests, _nothing)


def _rows_body(number: int, rows: int) -> bytes:
    sent = [{"id": number * rows + at, "writer": number, "note": NOTE} for at in range(rows)]
    return orjson.dumps({"rows": sent, "key": new_key()})


def _appends(case: Case, server: servers.Server) -> Crew:
    """Files by the fast path, in requests as the SDK sends them. Each is written, with its latency, within the time."""
    location = verify.head_of(server.database)["location"]
    folder = Path(verify.plain(location)) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    latency = Latency(PROFILES[case.profile], case.seed + 1_000)
    contents: dict[int, bytes] = {}
    requests: list[Request] = []
    for number in range(1, case.agents + case.requests_max + 1):
        data = contents[number] = _parquet(number, case.rows)
        file = DataFile(f"{location}/data/{number}.parquet", case.rows, len(data)).to_json()
        requests.append(Request(number, orjson.dumps({"files": [file], "ref": "main", "key": new_key()})))

    async def put(request: Request) -> None:
        data = contents[request.row_id]
        if case.profile != "none":
            await asyncio.sleep(latency.put_s(len(data)))
        (folder / f"{request.row_id}.parquet").write_bytes(data)

    return _protocol(case, server, APPEND_PATH, requests, put)


def _parquet(number: int, rows: int) -> bytes:
    if rows == 1:
        return FLAT.parquet({"id": number, "writer": number})
    table = FLAT.rows([{"id": number * rows + at, "writer": number} for at in range(rows)])
    out = BytesIO()
    pq.write_table(table.cast(schema_to_pyarrow(FLAT.schema)), out)
    return out.getvalue()


# -- engines as agents ------------------------------------------------------------------------------------------------


def append(table: Any, writer: int, row_id: int, summary: Mapping[str, str], *, rows: int) -> None:
    """An append of some rows by PyIceberg."""
    made = FLAT.rows([{"id": row_id * rows + at, "writer": writer} for at in range(rows)])
    table.append(made, snapshot_properties=dict(summary))


def _pyiceberg(case: Case, server: servers.Server) -> Crew:
    tokens = protocol_writers.principals(server, case.agents)
    return Crew(tuple, lambda: _appended(case, [rest(server, token) for token in tokens]))


def _appended(case: Case, properties: list[dict[str, str]]) -> Load:
    act = partial(append, rows=case.rows)
    jobs = [
        Job(number, own | slow_io.properties(case.profile, case.seed * 1000 + number), case.seconds, act=act)
        for number, own in enumerate(properties)
    ]
    return pyiceberg_writers.run(jobs)


def _direct(case: Case, folder: Path) -> dict[str, Any]:
    database = folder / "catalog.db"
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{folder}/warehouse"}
    _create(load_catalog("bench", **properties))
    load = _appended(case, [properties] * case.agents)
    return _record(case, load, None, read_iceberg(verify.location_of(database)))


def _ducklake(case: Case, folder: Path, postgres: ducklake.Postgres) -> dict[str, Any]:
    with postgres_cluster.database(postgres.url, f"lake_{new_key().replace('-', '')}") as url:
        given = ducklake.properties(url, folder / "files")
        ducklake.create(given)
        act = partial(ducklake.insert, rows=case.rows)
        jobs = [Job(n, given, case.seconds, act=act, opens=ducklake.open_lake) for n in range(case.agents)]
        before_s = postgres.cpu_s()
        load = pyiceberg_writers.run(jobs)
        return _record(case, load, postgres.cpu_s() - before_s, ducklake.read(given))

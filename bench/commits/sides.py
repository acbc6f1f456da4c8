"""The sides of the benchmark: what each starts, who writes, and one run of it from an empty table to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pyiceberg.catalog import Catalog, load_catalog

from bench.commits import protocol_writers, pyiceberg_writers, servers, verify
from bench.commits.operations import figures, judge, unattributed
from bench.commits.plain import Plain
from bench.commits.prepared import descriptors, prepare
from bench.commits.protocol_writers import APPEND_PATH, COMMIT_PATH, Load, Request
from bench.commits.pyiceberg_writers import Job
from bench.commits.shapes import FLAT
from bench.commits.verify import NAMESPACE, TABLE
from icetower.agent import Tower, new_key
from icetower.demo import slow_io
from icetower.demo.latency import PROFILES, Latency
from icetower.iceberg.manifests import read_manifest_list

FIRST_ROW = 1
PREPARED_FROM = 1_000
WARM_S = 1.0
"""Left out at the beginning of each run."""

DIRECT = "PyIceberg, SQL catalog"
REFERENCE = "PyIceberg, Java reference"
TOWER = "PyIceberg, Icetower"
PREPARED = "protocol, Icetower"
APPENDS = "SDK appends, Icetower"
OPTIMISTIC = "protocol, plain OCC"
LOCKED = "protocol, table lock"
SIDES = (DIRECT, REFERENCE, TOWER, PREPARED, APPENDS, OPTIMISTIC, LOCKED)


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        profile: name of the storage latency.
        seconds: for how long new commits are begun.
        rate_max: commits a second for which requests are prepared, where they are.
        properties: of the table, besides those that every side gets.
    """

    side: str
    writers: int
    profile: str = "none"
    seconds: float = 8.0
    seed: int = 1
    rate_max: int = 900
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Java:
    """Where Java and the jars of the reference server are."""

    program: Path
    library: Path


def run(case: Case, folder: Path, java: Java | None = None, launcher: Sequence[str] = ()) -> dict[str, Any]:
    """Run a case in an empty folder; its figures as a JSON object. Raises `Trouble` where it cannot be run.

    Args:
        launcher: for a tower, as `servers.tower` has it.
    """
    if case.side in (OPTIMISTIC, LOCKED):
        return _plain(case, folder)
    if case.side == DIRECT:
        return _direct(case, folder)
    if case.side == REFERENCE:
        if java is None:
            raise servers.Trouble("the reference server needs Java")
        return _served(case, servers.reference(folder, java.program, java.library), _pyiceberg)
    writers = {TOWER: _pyiceberg, PREPARED: _prepared, APPENDS: _appends}[case.side]
    return _served(case, servers.tower(folder, case.profile, case.seed, launcher=launcher), writers)


# -- a table, and what became of it -----------------------------------------------------------------------------------


def create(catalog: Catalog, case: Case) -> None:
    """The table, with one row in it: the base of prepared commits."""
    catalog.create_namespace(NAMESPACE)
    declared = {"icetower.blind-appends": "true"}
    table = catalog.create_table(
        f"{NAMESPACE}.{TABLE}", schema=FLAT.schema, properties=declared | dict(case.properties)
    )
    table.append(FLAT.rows([{"id": FIRST_ROW}]))


@dataclass(frozen=True, slots=True)
class Work:
    """What the writers of one run did, and what the table must tell of it.

    Attributes:
        keys: row id → the key under which it was sent, where the table must tell its principal and key.
    """

    load: Load
    keys: Mapping[int, str] = field(default_factory=dict[int, str])


Writers = Callable[[Case, servers.Server], Callable[[], Work]]
"""Makes principals and requests ready; what it returns writes them. Only that is counted as the server's time."""

Rows = Callable[[Mapping[str, Any]], Iterator[int]]


def _served(case: Case, server: AbstractContextManager[servers.Server], writers: Writers) -> dict[str, Any]:
    with server as running:
        create(load_catalog("bench", **rest(running)), case)
        write = writers(case, running)
        before_s, before_files = running.cpu_s(), verify.metadata_files(verify.head_of(running.database))
        work = write()
        return record_of(case, work, running.database, before_files, running.cpu_s() - before_s)


def record_of(
    case: Case,
    work: Work,
    database: Path,
    before_files: int,
    server_cpu_s: float | None,
    rows_of: Rows = verify.row_ids,
) -> dict[str, Any]:
    """The figures of a run, and whether its table holds what the writers were told."""
    load = work.load
    counted = figures(load.operations, from_s=load.from_s + WARM_S, to_s=load.from_s + case.seconds)
    metadata = verify.head_of(database)
    verdict = judge(load.operations, rows_of(metadata), before=[FIRST_ROW])
    lost = unattributed(load.operations, work.keys, verify.attributions(metadata)) if work.keys else ()
    acknowledged = sum(op.outcome == "ok" for op in load.operations)
    lasted_s = max((op.end_s for op in load.operations), default=load.from_s) - load.from_s
    return asdict(counted) | {
        "side": case.side,
        "writers": case.writers,
        "profile": case.profile,
        "seed": case.seed,
        "properties": dict(case.properties),
        "acknowledged": acknowledged,
        "tried_in_all": len(load.operations),
        "server_cpu_ms": None if server_cpu_s is None or not acknowledged else server_cpu_s * 1000 / acknowledged,
        "clients_cpu_s": load.cpu_s,
        "received_bytes": load.received_bytes,
        "metadata_files_per_s": (verify.metadata_files(metadata) - before_files) / max(lasted_s, 1e-9),
        "snapshots": len(metadata["snapshots"]),
        "missing": len(verdict.missing),
        "doubled": len(verdict.doubled),
        "unexpected": len(verdict.unexpected),
        "unattributed": len(lost),
        "exact": verdict.exact and not lost,
    }


def rest(server: servers.Server, token: str | None = None) -> dict[str, str]:
    return Tower(server.uri, token or server.token).pyiceberg_properties()


# -- who writes -------------------------------------------------------------------------------------------------------


def _pyiceberg(case: Case, server: servers.Server) -> Callable[[], Work]:
    tokens = protocol_writers.principals(server, case.writers) if server.token else [None] * case.writers
    # The Java server has no latency of its own; its clients have none either, or they would be measured instead of it.
    profile = "none" if case.side == REFERENCE else case.profile
    jobs = [
        Job(number, rest(server, token) | slow_io.properties(profile, case.seed * 1000 + number), case.seconds)
        for number, token in enumerate(tokens)
    ]
    return lambda: Work(pyiceberg_writers.run(jobs))


def _direct(case: Case, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "catalog.db"
    properties = {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{folder}/warehouse"}
    create(load_catalog("bench", **properties), case)
    before_files = verify.metadata_files(verify.head_of(database))
    jobs = [
        Job(number, properties | slow_io.properties(case.profile, case.seed * 1000 + number), case.seconds)
        for number in range(case.writers)
    ]
    return record_of(case, Work(pyiceberg_writers.run(jobs)), database, before_files, None)


def _prepared(case: Case, server: servers.Server) -> Callable[[], Work]:
    tokens = protocol_writers.principals(server, case.writers)
    commits = prepare(verify.head_of(server.database), _row_ids(case))
    requests = [Request(commit.row_id, commit.body) for commit in commits]
    return lambda: Work(protocol_writers.replay(server.uri, COMMIT_PATH, tokens, requests, case.seconds))


def _appends(case: Case, server: servers.Server) -> Callable[[], Work]:
    tokens = protocol_writers.principals(server, case.writers)
    files = dict(descriptors(verify.head_of(server.database), _row_ids(case)))
    keys = {row_id: new_key() for row_id in files}
    requests = [
        Request(row_id, orjson.dumps({"files": [file], "ref": "main", "key": keys[row_id]}))
        for row_id, file in files.items()
    ]
    return lambda: Work(protocol_writers.replay(server.uri, APPEND_PATH, tokens, requests, case.seconds), keys)


def _row_ids(case: Case) -> range:
    return range(PREPARED_FROM, PREPARED_FROM + max(2 * case.writers, int(case.rate_max * case.seconds)))


def _plain(case: Case, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "catalog.db"
    catalog = load_catalog("bench", type="sql", uri=f"sqlite:///{database}", warehouse=f"file://{folder}/warehouse")
    create(catalog, case)
    metadata = verify.head_of(database)
    (manifest,) = _listed(metadata)
    before_files = verify.metadata_files(metadata)
    latency = Latency(PROFILES[case.profile], case.seed)
    plain = Plain(database, latency, manifest, locked=case.side == LOCKED)
    load = plain.run(case.writers, case.seconds)

    def row_ids(metadata: Mapping[str, Any]) -> Iterator[int]:
        # Its manifests are taken as written: their names tell the rows.
        for row in _listed(metadata):
            name = row.path.rpartition("/")[2]
            yield FIRST_ROW if row.path == manifest.path else int(name.partition("-")[0])

    return record_of(case, Work(load), database, before_files, None, row_ids)


def _listed(metadata: Mapping[str, Any]) -> tuple[Any, ...]:
    current = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    return tuple(read_manifest_list(Path(current["manifest-list"].removeprefix("file://")).read_bytes()))

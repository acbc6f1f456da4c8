"""kill -9: a small scenario against a real tower that is killed before or after one of its writes, deletions or swaps.

Clients speak the raw protocol. Their tower dies in the middle; another is started over the same data; they send the
very same commits again, under the same keys, until each is acknowledged. Then a stranger reads the tables.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from icetower.protocol.marks import BLIND, BLIND_APPENDS, KEY
from icetower.protocol.names import Identifier
from verify.torture.judge import ISOLATION
from verify.torture.ledger import Attempt, Intent
from verify.torture.writing import Gone, Pen, SnapshotPlan

ROOT = Path(__file__).resolve().parent.parent.parent
NAMESPACE = "db"
READY_WITHIN_S = 60.0
HTTP_TIMEOUT_S = 30.0
DONE_WITHIN_S = 90.0
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "p", "type": "int", "required": False},
    ],
}
SPEC = {"spec-id": 0, "fields": [{"name": "p", "transform": "identity", "source-id": 2, "field-id": 1000}]}


class Broken(AssertionError):
    """What must not happen has happened."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a tower dies: at which step, and ``before``, ``after`` or ``torn``."""

    at: int
    when: str

    def __str__(self) -> str:
        return f"{self.when} step {self.at}"


class Launcher:
    """The process that starts towers. Use as a context.

    Args:
        home: a directory of its own; what towers say on standard error goes to a file there.
    """

    def __init__(self, home: Path) -> None:
        self.home = home

    def __enter__(self) -> Launcher:
        self._errors = (self.home / "stderr").open("wb")
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "verify.torture.launcher"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._expect("warm")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def _expect(self, *beginnings: str) -> str:
        until_s = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, until_s - time.monotonic()))
            except Empty:
                raise Broken(f"the launcher did not say any of {beginnings} in {READY_WITHIN_S:g} s") from None
            if line.startswith(beginnings):
                return line

    def start(self, data: Path, kill: Point | None = None) -> Served:
        """A tower over a data directory."""
        order = {"arguments": ["serve", "--port", "0", "--open", "--data", str(data)]}
        if kill is not None:
            order["kill"] = {"at": kill.at, "when": kill.when}  # type: ignore[assignment]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        pid = int(self._expect("started").split()[1])
        line = self._expect("icetower: serving", "ended")
        return Served(self, pid, None if line.startswith("ended") else line.split()[2], line)

    def ended(self) -> tuple[int, int]:
        """Wait for the tower's end: exit status (-9: killed), and how many steps it began."""
        _, status, steps = self._expect("ended").split()
        return int(status), int(steps)


@dataclass(slots=True)
class Served:
    """A tower that was started. `uri`: None if it died before it could say."""

    launcher: Launcher
    pid: int
    uri: str | None
    line: str

    def stop(self) -> tuple[int, int]:
        """SIGTERM, unless it is dead already: exit status and steps."""
        if self.uri is None:
            _, status, steps = self.line.split()
            return int(status), int(steps)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return self.launcher.ended()


class Disk:
    """The warehouse as a mapping of paths to bytes, which is what a `Pen` writes to."""

    @staticmethod
    def _place(path: str) -> Path:
        return Path("/" + path.removeprefix("file:").lstrip("/"))

    def __getitem__(self, path: str) -> bytes:
        try:
            return self._place(path).read_bytes()
        except FileNotFoundError:
            raise Gone(path) from None

    def __setitem__(self, path: str, data: bytes) -> None:
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)

    def __contains__(self, path: object) -> bool:
        return self._place(str(path)).is_file()

    def pop(self, path: str, default: object = None) -> object:
        self._place(path).unlink(missing_ok=True)
        return default


class RealPen(Pen):
    """A pen whose data files are Parquet: one row each, with a number of its own."""

    def data_files(
        self, metadata: Mapping[str, Any], names: Sequence[str], partition: int, rows: int
    ) -> dict[str, Any]:
        made = super().data_files(metadata, names, partition, 1)
        del rows
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
                pa.field("p", pa.int32(), metadata={"PARQUET:field_id": "2"}),
            ]
        )
        for path in made:
            number = row_of(path)
            out = io.BytesIO()
            pq.write_table(pa.table({"id": [number], "p": [partition]}, schema=schema), out)
            self.files[path] = out.getvalue()
        return made


def _named(path: str) -> bool:
    """Whether a data file is one of these clients': the tower's have other names."""
    return path.rsplit("/", 1)[-1].removesuffix(".parquet").isdigit()


def row_of(path: str) -> int:
    """The number of the row in a data file: its name."""
    return int(path.rsplit("/", 1)[-1].removesuffix(".parquet"))


@dataclass(slots=True)
class Job:
    """One thing that a client does: `kind` as `_Client` knows it, and the numbers of the files that it adds."""

    kind: str
    key: str
    table: str = "t"
    adds: list[int] = field(default_factory=list[int])
    removes: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Story:
    """What a run came to: steps of the first tower, whether it was killed, and what clients saw."""

    steps: int
    killed: bool
    counts: Counter[str]


class _Place:
    """Where the tower is by now; clients wait here while it is away."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._uri: str | None = None
        self.over = False

    def move(self, uri: str | None) -> None:
        with self._changed:
            self._uri = uri
            self._changed.notify_all()

    def uri(self, not_this: str | None) -> str:
        """The address of a tower other than the one that was just lost."""
        with self._changed:
            ok = self._changed.wait_for(lambda: self._uri is not None and self._uri != not_this, DONE_WITHIN_S)
            if not ok or self._uri is None:
                raise Broken("no tower came up again")
            return self._uri


class _Client(threading.Thread):
    """One client process: it does its jobs in order, each until it is acknowledged."""

    def __init__(self, place: _Place, number: int, jobs: Sequence[Job]) -> None:
        super().__init__(name=f"agent{number}", daemon=True)
        self.jobs = jobs
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._place = place
        self._number = number
        self._uri: str | None = None
        self._pen = RealPen(Disk(), set())  # type: ignore[arg-type]
        self._http = httpx2.Client(timeout=HTTP_TIMEOUT_S)

    def run(self) -> None:
        try:
            for job in self.jobs:
                self._do(job)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.failure = error
        finally:
            self._http.close()

    # -- requests -------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """None where the connection broke: nobody can tell."""
        self._uri = self._uri or self._place.uri(None)
        try:
            return self._http.request(method, self._uri + path, **more)
        except httpx2.TransportError:
            self.counts["connections lost"] += 1
            self._uri = self._place.uri(self._uri)
            return None

    def _load(self, table: str) -> Mapping[str, Any]:
        while True:
            answer = self._ask("GET", f"/v1/namespaces/{NAMESPACE}/tables/{table}")
            if answer is not None and answer.status_code == 200:
                return answer.json()["metadata"]
            if answer is not None and answer.status_code < 500:
                raise Broken(f"loading {table}: {answer.status_code} {answer.text[:300]}")

    def _do(self, job: Job) -> None:
        until_s = time.monotonic() + DONE_WITHIN_S
        attempts: list[Attempt] = []
        while time.monotonic() < until_s:
            try:
                attempts = attempts or self._prepare(job)
            except Gone:
                continue
            answer = self._send(job, attempts)
            status = None if answer is None else answer.status_code
            self.counts[f"answers {status}"] += 1
            if status in (200, 204):
                return
            if status == 409:  # stale: as every client does, clean up, read anew, write anew
                for attempt in attempts:
                    for path in attempt.own:
                        self._pen.files.pop(path, None)
                attempts = []
            elif status is not None and status < 500:
                raise Broken(f"{job.kind} under {job.key}: {status} {answer.text[:400] if answer else ''}")
        raise Broken(f"{job.kind} under {job.key} was not acknowledged in {DONE_WITHIN_S:g} s")

    def _send(self, job: Job, attempts: Sequence[Attempt]) -> httpx2.Response | None:
        headers = {"Idempotency-Key": job.key}
        if job.kind == "transaction":
            changes = [_body(attempt) for attempt in attempts]
            return self._ask("POST", "/v1/transactions/commit", json={"table-changes": changes}, headers=headers)
        if job.kind == "fast":
            body = {"key": job.key, "files": self._descriptors(job)}
            return self._ask("POST", f"/v1/namespaces/{NAMESPACE}/tables/{job.table}/append", json=body)
        if job.kind == "rows":
            body = {"key": job.key, "rows": [{"id": number, "p": self._number} for number in job.adds]}
            return self._ask("POST", f"/v1/namespaces/{NAMESPACE}/tables/{job.table}/rows", json=body)
        path = f"/v1/namespaces/{NAMESPACE}/tables/{job.table}"
        return self._ask("POST", path, json=_body(attempts[0]), headers=headers)

    # -- commits --------------------------------------------------------------------------------------------------

    def _prepare(self, job: Job) -> list[Attempt]:
        if job.kind == "transaction":
            return [self._append(job, table, number) for table, number in zip("tu", job.adds, strict=True)]
        if job.kind == "rows":
            return [Attempt(self._intent(job, job.table), [], [])]
        if job.kind == "fast":
            metadata = self._load(job.table)
            self._files = self._pen.data_files(metadata, [str(n) for n in job.adds], self._number, 1)
            return [Attempt(self._intent(job, job.table), [], [])]
        if job.kind == "append":
            return [self._append(job, job.table, *job.adds)]
        metadata = self._load(job.table)
        live = sorted(self._pen.live(metadata, "main"))
        # On its own partition it alone removes: what it chose first is what it removes, whenever it is done.
        mine = [path for path in live if f"/p={self._number}/" in path and _named(path)]
        job.removes = job.removes or mine[:1]
        made = self._pen.data_files(metadata, [str(n) for n in job.adds], self._number, 1)
        marks = {"spark.merge-into.test": "rows"} if job.kind == "overwrite" else {}
        plan = SnapshotPlan(job.kind, made, frozenset(job.removes), summary=self._marks(job, marks))
        return [self._commit(job, job.table, metadata, plan)]

    def _append(self, job: Job, table: str, *numbers: int) -> Attempt:
        metadata = self._load(table)
        made = self._pen.data_files(metadata, [str(number) for number in numbers], self._number, 1)
        return self._commit(
            job, table, metadata, SnapshotPlan("append", made, summary=self._marks(job, {BLIND: "true"}))
        )

    def _marks(self, job: Job, marks: Mapping[str, str]) -> dict[str, str]:
        return {**marks, **({KEY: job.key} if len(job.adds) % 2 else {})}

    def _intent(self, job: Job, table: str) -> Intent:
        return Intent(0, self.name, job.kind, Identifier((NAMESPACE,), table), key=job.key)

    def _commit(self, job: Job, table: str, metadata: Mapping[str, Any], plan: SnapshotPlan) -> Attempt:
        snapshot_id = uuid.uuid4().int >> 66
        return self._pen.commit(self._intent(job, table), metadata, [plan], [snapshot_id], int(time.time() * 1000))

    def _descriptors(self, job: Job) -> list[dict[str, Any]]:
        del job
        return [
            {
                "content": "data",
                "file-path": path,
                "file-format": "parquet",
                "spec-id": 0,
                "partition": [partition],
                "record-count": rows,
                "file-size-in-bytes": len(self._pen.files[path]),
            }
            for path, (partition, rows) in self._files.items()
        ]


def _body(attempt: Attempt) -> dict[str, Any]:
    identifier = {"namespace": list(attempt.intent.table.namespace), "name": attempt.intent.table.name}
    return {"identifier": identifier, "requirements": attempt.requirements, "updates": attempt.updates}


# ── One run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def template(launcher: Launcher) -> bool:
    """Make a data directory with two empty tables, to begin every run with; whether the tower has the fast path."""
    data = launcher.home / "data"
    served = launcher.start(data)
    properties = {BLIND_APPENDS: "true", **dict.fromkeys(ISOLATION, "snapshot"), "format-version": "2"}
    properties |= {"write.metadata.previous-versions-max": "4", "write.metadata.delete-after-commit.enabled": "true"}
    with httpx2.Client(base_url=served.uri or "", timeout=HTTP_TIMEOUT_S) as http:
        http.post("/v1/namespaces", json={"namespace": [NAMESPACE]}).raise_for_status()
        for table in "tu":
            body = {"name": table, "schema": SCHEMA, "partition-spec": SPEC, "properties": properties}
            http.post(f"/v1/namespaces/{NAMESPACE}/tables", json=body).raise_for_status()
        probe = http.post(f"/v1/namespaces/{NAMESPACE}/tables/t/append", json={})
    status, _ = served.stop()
    if status:
        raise Broken(f"the tower ended with {status}")
    shutil.copytree(data, launcher.home / "template")
    return probe.status_code not in (404, 405)


def jobs_of(*, clients: int, fast: bool) -> list[list[Job]]:
    """The scenario: groups of rebased appends, overwrites and removals, a transaction, the fast path, rows."""

    def key() -> str:
        return str(uuid.UUID(int=(uuid.uuid4().int & ~(0xF << 76)) | (7 << 76)))

    jobs: list[list[Job]] = []
    for number in range(clients):
        at = 100 * number
        mine = [Job("append", key(), adds=[at + 1, at + 2]), Job("overwrite", key(), adds=[at + 4])]
        if fast:
            mine.append(Job("fast", key(), adds=[at + 5, at + 6]))
            mine.append(Job("rows", key(), adds=[at + 10, at + 11]))
        mine.append(Job("transaction", key(), adds=[at + 7, at + 8]) if number == 0 else Job("delete", key()))
        if clients > 2:
            mine.append(Job("append", key(), adds=[at + 9]))
        jobs.append(mine)
    return jobs


def play(launcher: Launcher, point: Point | None, *, clients: int, fast: bool) -> Story:
    """One run of the scenario over a fresh copy of the template, and the judgement. Raises `Broken`."""
    data = launcher.home / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(launcher.home / "template", data)
    place = _Place()
    served = launcher.start(data, point)
    agents = [_Client(place, number, jobs) for number, jobs in enumerate(jobs_of(clients=clients, fast=fast))]
    with _following(launcher, data, place, served) as watch:
        for client in agents:
            client.start()
        for client in agents:
            client.join(DONE_WITHIN_S * 2)
            if client.is_alive():
                raise Broken(f"{client.name} never came to an end")
    counts: Counter[str] = Counter()
    for client in agents:
        if client.failure is not None:
            raise Broken(f"{point}: {client.name}: {client.failure}") from client.failure
        counts += client.counts
    judge(data, [job for client in agents for job in client.jobs], str(point))
    return Story(watch.steps, watch.killed, counts)


MISSED_MAX = 3


def every_point(launcher: Launcher, when: str, *, clients: int, fast: bool, share: int = 0, of: int = 1) -> list[Story]:
    """Kill at every step of the scenario in turn, until a run ends before its step `MISSED_MAX` times in a row.

    Args:
        when: ``before``, ``after`` or ``torn``.
        share, of: only every `of`-th step, from the `share`-th on.
    """
    stories: list[Story] = []
    missed, at = 0, 1 + share
    while missed < MISSED_MAX:
        story = play(launcher, Point(at, when), clients=clients, fast=fast)
        stories.append(story)
        missed = missed + 1 if at > story.steps else 0
        at += of
    return stories


@dataclass(slots=True)
class _Watch:
    """What became of the first tower."""

    steps: int = 0
    killed: bool = False


@contextmanager
def _following(launcher: Launcher, data: Path, place: _Place, served: Served) -> Generator[_Watch]:
    """While clients work: when the tower dies, another takes its place. In the end, it stops as it should."""
    watch = _Watch()
    ended: Queue[tuple[int, int]] = Queue()

    def follow() -> None:
        if served.uri is not None:
            place.move(served.uri)
        ended.put(served.stop() if served.uri is None else launcher.ended())
        status, watch.steps = ended.queue[0]
        watch.killed = status == -signal.SIGKILL
        if watch.killed:
            again.append(launcher.start(data))
            place.move(again[0].uri)

    again: list[Served] = []
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        if not watch.killed and thread.is_alive():
            with suppress(ProcessLookupError):
                os.kill(served.pid, signal.SIGTERM)
        thread.join(READY_WITHIN_S)
        status = again[0].stop()[0] if again else 0
        if status:
            raise Broken(f"the second tower ended with {status}")


# ── The judgement ────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(data: Path, jobs: Sequence[Job], where: str) -> None:
    """Read the tables as a stranger, and hold them against what the clients were told: every job was acknowledged."""
    with sqlite3.connect(data / "catalog.db") as catalog:
        rows = catalog.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()
    heads = dict(rows)
    for table in "tu":
        static = StaticTable.from_metadata(heads[table])
        wanted, keys = _wanted(jobs, table)
        _check_rows(static, wanted, f"{where}: table {table}")
        _check_snapshots(static, keys, f"{where}: table {table}")


def _wanted(jobs: Sequence[Job], table: str) -> tuple[set[int], Counter[str]]:
    added: set[int] = set()
    removed: set[int] = set()
    keys: Counter[str] = Counter()
    for job in jobs:
        if job.kind == "transaction":
            added.add(job.adds["tu".index(table)])
            keys[job.key] += 1
        elif job.table == table:
            added.update(job.adds)
            removed.update(row_of(path) for path in job.removes)
            keys[job.key] += job.kind not in ("fast", "rows")
    return added - removed, keys


def _check_rows(table: StaticTable, wanted: set[int], where: str) -> None:
    found: list[int] = table.scan().to_arrow()["id"].to_pylist()
    twice = sorted(number for number, times in Counter(found).items() if times > 1)
    if twice:
        raise Broken(f"{where}: rows {twice} are there twice")
    if missing := sorted(wanted - set(found)):
        raise Broken(f"{where}: acknowledged rows {missing} are missing")
    if more := sorted(set(found) - wanted):
        raise Broken(f"{where}: rows {more} have come back")


def _check_snapshots(table: StaticTable, keys: Counter[str], where: str) -> None:
    disk = Disk()
    seen: Counter[str] = Counter()
    for snapshot in table.metadata.snapshots:
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
            if task.file.file_path not in disk:
                raise Broken(f"{where}: snapshot {snapshot.snapshot_id} names {task.file.file_path}, which is gone")
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if KEY in summary:
            seen[summary[KEY]] += 1
    if seen != +keys:
        raise Broken(f"{where}: keys in the table {seen - keys} too often, {keys - seen} missing")
    for entry in table.metadata.metadata_log:
        if entry.metadata_file not in disk:
            raise Broken(f"{where}: the metadata log names {entry.metadata_file}, which is gone")

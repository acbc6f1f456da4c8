"""PyIceberg as its users run it: threads in a few processes, each with a catalog and a table handle of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, Protocol

from bench.commits.acts import Act, append
from bench.commits.operations import Operation
from bench.commits.protocol_writers import Load
from bench.commits.servers import OWN_PATH
from bench.commits.verify import NAMESPACE, TABLE

PROCESSES_MAX = 16
PRELOADED = (
    "pyarrow.parquet",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "pyiceberg.table.update.snapshot",
)
IDS_PER_WRITER = 1_000_000
READY_TIMEOUT_S = 300
LEEWAY_S = 600
"""How long the last commits may take after the end: a client that loses waits, and tries four times more."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a writer is told.

    Attributes:
        properties: of its catalog.
        seconds: for how long it begins commits, one after the other; not asked where it has a schedule.
        starts_s: when it begins each, from the common start; at once where the one before took longer. It then looks at
            the table anew, as somebody who has just decided to write.
        act: what it does.
        summary: of its snapshots.
        opens: how it opens the table, in its own process, where it is no PyIceberg table.
    """

    writer: int
    properties: Mapping[str, str]
    seconds: float
    starts_s: tuple[float, ...] | None = None
    act: Act = append
    summary: Mapping[str, str] = field(default_factory=dict[str, str])
    opens: Callable[[Job], tuple[Any, Attempts]] | None = None


class Attempts(Protocol):
    """Counts what a client has sent, its own retries included."""

    @property
    def sent(self) -> int: ...


def forks() -> ForkServerContext:
    """Where processes of writers come from: a server that has imported, once, what they and this command need.

    Each of them runs the command's own module anew, and finds all that it imports.
    """
    os.environ["PYTHONPATH"] = OWN_PATH  # the server does not inherit the path of this process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *sorted(name for name in sys.modules if name.startswith("bench."))])
    return context


def run(jobs: Sequence[Job], *, begun: Callable[[float], None] = lambda _: None) -> Load:
    """All writers at once. Raises `RuntimeError` where one cannot begin.

    Args:
        begun: is told when they begin, on the monotonic clock, a moment before.
    """
    context = forks()
    shares = [list(jobs[at::PROCESSES_MAX]) for at in range(min(PROCESSES_MAX, len(jobs)))]
    pipes = [context.Pipe() for _ in shares]
    processes = [
        context.Process(target=_process, args=(share, theirs), daemon=True)
        for share, (_, theirs) in zip(shares, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    ours = [ours for ours, _ in pipes]
    try:
        for pipe in ours:
            said = _told(pipe, READY_TIMEOUT_S)
            if said != "ready":
                raise RuntimeError(f"a writer cannot begin: {said}")
        from_s = time.monotonic() + 0.2
        for pipe in ours:
            pipe.send(from_s)
        begun(from_s)
        seconds = max(max(job.starts_s or (job.seconds,)) for job in jobs)
        found = [_told(pipe, seconds + LEEWAY_S) for pipe in ours]
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    operations = [operation for part, _ in found for operation in part]
    return Load(operations, from_s, sum(cpu_s for _, cpu_s in found))


def _told(pipe: Connection, timeout_s: float) -> Any:
    if not pipe.poll(timeout_s):
        raise RuntimeError(f"a process of writers said nothing for {timeout_s:g} s")
    return pipe.recv()


def _process(jobs: list[Job], pipe: Connection) -> None:
    logging.disable(logging.WARNING)  # every retry is one
    warnings.simplefilter("ignore")
    done: list[Operation] = []
    try:
        tables = _with_threads([lambda job=job: (job.opens or _open)(job) for job in jobs])
        pipe.send("ready")
        from_s: float = pipe.recv()
        used = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(max(0.0, from_s - time.monotonic()))
        _with_threads(
            [
                lambda job=job, t=table: _write(job, t[0], t[1], from_s, done)
                for job, table in zip(jobs, tables, strict=True)
            ]
        )
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise
    after = resource.getrusage(resource.RUSAGE_SELF)
    pipe.send((done, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime))


def _with_threads(work: Sequence[Any]) -> list[Any]:
    found: list[Any] = [None] * len(work)
    errors: list[BaseException] = []

    def one(at: int) -> None:
        try:
            found[at] = work[at]()
        except BaseException as error:  # noqa: BLE001 - raised again below, by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


class _Attempts:
    """Those of PyIceberg."""

    def __init__(self, catalog: Any) -> None:
        self.sent = 0
        self._commit = catalog.commit_table
        catalog.commit_table = self

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.sent += 1
        return self._commit(*arguments, **more)


def _open(job: Job) -> tuple[Any, _Attempts]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("bench", **job.properties)
    attempts = _Attempts(catalog)
    return catalog.load_table(f"{NAMESPACE}.{TABLE}"), attempts


def _write(job: Job, table: Any, attempts: Attempts, from_s: float, done: list[Operation]) -> None:
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    for row_id in _turns(job, from_s):
        before, start_s, outcome = attempts.sent, time.monotonic(), "ok"
        try:
            if job.starts_s is not None:
                table.refresh()
            job.act(table, job.writer, row_id, job.summary)
        except (CommitFailedException, ValidationException):
            outcome = "conflict"
        except Exception as error:  # noqa: BLE001 - whatever else clients meet is counted by its name
            outcome = type(error).__name__
        done.append(
            Operation(row_id, start_s, time.monotonic(), outcome, max(0, attempts.sent - before - 1), job.writer)
        )
        if outcome != "ok":
            try:
                table.refresh()
            except Exception:  # noqa: BLE001 - the next one will tell
                time.sleep(0.1)


def _turns(job: Job, from_s: float) -> Iterator[int]:
    """The ids of the rows that a writer is to commit, each when it is time."""
    ids = count((job.writer + 1) * IDS_PER_WRITER + 1)
    if job.starts_s is None:
        while time.monotonic() < from_s + job.seconds:
            yield next(ids)
        return
    for start_s in job.starts_s:
        time.sleep(max(0.0, from_s + start_s - time.monotonic()))
        yield next(ids)

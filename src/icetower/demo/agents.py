"""One agent process that writes with PyIceberg: `python -m icetower.demo.agents`, its job as JSON on standard input.

It knows the catalog by its URI and its own credential only, and notes in its own ledger what it was told. The baseline
runs the very same code against PyIceberg's SQL catalog.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.table import Table, Transaction

from icetower.agent import keyed
from icetower.ambient import SystemAmbient
from icetower.demo import journal, plan
from icetower.demo.journal import Journal
from icetower.demo.plan import Agent, Conduct

RESENDS_MAX = 3
_POLL_S = 0.05
_OTHERS_WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """What an agent process is told. `deadline_s` counts from the common start; later batches are not begun."""

    agent: str
    days: int
    seed: int
    source: str
    journal: str
    go: str
    catalog: Mapping[str, str] = field(default_factory=dict[str, str])
    baseline: bool = False
    deadline_s: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Landing:
    """How an acknowledged commit landed: `direct` on its base, `rebased` on a later snapshot, or `absent`: a replay."""

    landed: str
    retries: int
    latency_ms: float
    snapshot: int


class RetryCounter(logging.Handler):
    """Counts the retries of PyIceberg's own commit loop, by the warning that it logs for each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Commit failed due to a concurrent update, retrying")


def read_job() -> Job:
    return Job(**json.loads(sys.stdin.read()))


def read_source(path: str) -> pa.Table:
    """The source that the parent wrote once for all agents, memory-mapped."""
    with pa.memory_map(path) as mapped:
        return pa.ipc.open_file(mapped).read_all()


def await_go(job: Job, ledger: Journal) -> None:
    """Report for duty, then wait for the common start."""
    ledger.write(journal.READY)
    pause = threading.Event()
    while not Path(job.go).exists():
        pause.wait(_POLL_S)


class PyIcebergAgent:
    """Writes the batches of one agent. One instance a process."""

    def __init__(self, job: Job, agent: Agent, catalog: Catalog, ledger: Journal, source: pa.Table) -> None:
        self._job, self._agent, self._catalog, self._ledger, self._source = job, agent, catalog, ledger, source
        self._rows = plan.rows_of(agent, source, job.days)
        self._batches = agent.batches(job.days)
        self._conduct = Conduct.ORDINARY if job.baseline else agent.conduct
        self._clock = SystemAmbient()
        self._retries = RetryCounter()
        logger = logging.getLogger("pyiceberg.table")
        logger.addHandler(self._retries)
        logger.propagate = False

    def run(self) -> None:
        """Write what has not been acknowledged before. A batch that failed in the baseline stays out."""
        before = list(journal.entries(Path(self._job.journal)))
        acknowledged = {entry["batch"] for entry in before if entry["event"] == journal.ACKNOWLEDGED}
        died = any(entry["event"] == journal.SENT for entry in before)
        await_go(self._job, self._ledger)
        start_s = self._clock.monotonic_s()
        if self._conduct is Conduct.STRAYS:
            self._stray()
        for number, table in self._handles(number for number in range(self._batches) if number not in acknowledged):
            if self._job.deadline_s is not None and self._clock.monotonic_s() - start_s > self._job.deadline_s:
                break
            if self._conduct is Conduct.DIES and not died and number == self._batches // 2:
                self._die(number, table)
            self._write(number, table)
        self._ledger.write(journal.DONE)

    def _handles(self, numbers: Iterator[int]) -> Iterator[tuple[int, Table]]:
        """A loaded table for each batch; a stale one, loaded before the batch before was written, where so told."""
        if self._conduct is not Conduct.STALE:
            for number in numbers:
                yield number, self._load()
            return
        stale = self._load()
        self._await_others(stale)
        for number in numbers:
            later = self._load()
            yield number, stale
            stale = later

    def _await_others(self, table: Table) -> None:
        """Until somebody else has committed since `table` was loaded."""
        base, end_s = table.metadata.current_snapshot_id, self._clock.monotonic_s() + _OTHERS_WAIT_S
        pause = threading.Event()
        while self._load().metadata.current_snapshot_id == base and self._clock.monotonic_s() < end_s:
            pause.wait(_POLL_S)

    def _load(self) -> Table:
        return self._catalog.load_table(self._agent.table)

    def _write(self, number: int, table: Table) -> None:
        rows = plan.batch(self._rows, number, self._batches)
        for attempt in range(1 if self._job.baseline else 1 + RESENDS_MAX):
            try:
                landing = self._append(table if attempt == 0 else self._load(), number, rows)
            except Exception as error:  # noqa: BLE001 - whatever the client made of it, the batch was not acknowledged
                self._not_acknowledged(journal.FAILED, number, rows, error)
                continue
            self._ledger.write(
                journal.ACKNOWLEDGED,
                batch=number,
                rows=journal.runs_of(rows["row_id"].to_numpy()),
                at_ms=self._clock.now_ms(),
                **asdict(landing),
            )
            break
        else:
            return
        if self._conduct is Conduct.REPEATS:
            again = self._append(self._load(), number, rows)
            self._ledger.write(journal.REPEATED, batch=number, at_ms=self._clock.now_ms(), **asdict(again))

    def _append(self, table: Table, number: int, rows: pa.Table) -> Landing:
        base, start_s, retried = table.metadata.current_snapshot_id, self._clock.monotonic_s(), self._retries.count
        transaction = self._stage(table, number, rows)
        mine = transaction.table_metadata.current_snapshot_id
        assert mine is not None, "an append makes a snapshot"
        saved = transaction.commit_transaction().metadata.snapshot_by_id(mine)
        landed = "absent" if saved is None else "direct" if saved.parent_snapshot_id == base else "rebased"
        latency_ms = round((self._clock.monotonic_s() - start_s) * 1000, 1)
        return Landing(landed, self._retries.count - retried, latency_ms, mine)

    def _stage(self, table: Table, number: int, rows: pa.Table) -> Transaction:
        """Data files and manifests are written; nothing is committed."""
        transaction = table.transaction()
        properties = {} if self._job.baseline else keyed(plan.batch_key(self._agent, number, self._job.seed))
        transaction.append(plan.table_rows(self._agent, rows), snapshot_properties=properties)
        return transaction

    def _stray(self) -> None:
        """Write rows of a neighbour, once."""
        rows = plan.stray_rows(self._agent, self._source, self._job.days)
        try:
            # A number no batch has: the refusal must not depend on a key, nor use up one of a batch.
            landing = self._append(self._load(), self._batches, rows)
        except ForbiddenError as error:
            self._not_acknowledged(journal.REFUSED, self._batches, rows, error)
        else:
            runs = journal.runs_of(rows["row_id"].to_numpy())
            self._ledger.write(
                journal.ACKNOWLEDGED, batch=self._batches, rows=runs, at_ms=self._clock.now_ms(), **asdict(landing)
            )

    def _die(self, number: int, table: Table) -> None:
        transaction = self._stage(table, number, plan.batch(self._rows, number, self._batches))
        snapshot = transaction.table_metadata.current_snapshot()
        assert snapshot is not None, "an append makes a snapshot"
        added = (
            entry.data_file.file_path
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io)
        )
        self._ledger.write(journal.SENT, batch=number, files=sorted(added))
        os.kill(os.getpid(), signal.SIGKILL)

    def _not_acknowledged(self, event: str, number: int, rows: pa.Table, error: Exception) -> None:
        self._ledger.write(
            event,
            batch=number,
            rows=journal.runs_of(rows["row_id"].to_numpy()),
            error=type(error).__name__,
            conflict=isinstance(error, CommitFailedException),
            message=str(error)[:500],
            retries=self._retries.count,
            at_ms=self._clock.now_ms(),
        )


def main() -> None:
    job = read_job()
    ledger = Journal(Path(job.journal))
    catalog = load_catalog("tower", **job.catalog)
    PyIcebergAgent(job, plan.agent_named(job.agent), catalog, ledger, read_source(job.source)).run()
    ledger.close()


if __name__ == "__main__":
    main()

"""One agent process that writes with PyIceberg: `python -m icetower.demo.agents`, its job as JSON on standard input.

It knows the properties of its catalog, and writes into its own journal which of its commits were acknowledged. Both
sides of the comparison run this code.
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
from icetower.demo import journal, plan, slow_io
from icetower.demo.journal import Journal
from icetower.demo.plan import Agent, Behaviour

RESENDS_MAX = 3
_POLL_S = 0.05
_OTHERS_WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """The input of an agent process. `catalog`: the properties of its engine's catalog, without the storage latency."""

    agent: str
    days: int
    seed: int
    source: str
    journal: str
    go: str
    catalog: Mapping[str, str] = field(default_factory=dict[str, str])
    latency: str = "none"
    latency_seed: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Landing:
    """How an acknowledged commit landed: `direct` on its base, `rebased` on a later snapshot, or `absent`: a replay."""

    landed: str
    retries: int
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


def await_go(job: Job, own_journal: Journal) -> None:
    """Note that this agent is ready, then wait for the common start."""
    own_journal.write(journal.READY)
    pause = threading.Event()
    while not Path(job.go).exists():
        pause.wait(_POLL_S)


class PyIcebergAgent:
    """Writes the batches of one agent. There is one instance in each process."""

    def __init__(self, job: Job, agent: Agent, catalog: Catalog, own_journal: Journal, source: pa.Table) -> None:
        self._job, self._agent, self._catalog, self._journal, self._source = job, agent, catalog, own_journal, source
        self._rows = plan.rows_of(agent, source, job.days)
        self._batches = agent.batches(job.days)
        self._behaviour = agent.behaviour
        self._clock = SystemAmbient()
        self._retries = RetryCounter()
        logger = logging.getLogger("pyiceberg.table")
        logger.addHandler(self._retries)
        logger.propagate = False

    def run(self) -> None:
        """Write the batches that were not acknowledged before."""
        before = list(journal.entries(Path(self._job.journal)))
        acknowledged = {entry["batch"] for entry in before if entry["event"] == journal.ACKNOWLEDGED}
        died = any(entry["event"] == journal.SENT for entry in before)
        await_go(self._job, self._journal)
        if self._behaviour is Behaviour.STRAYS:
            self._stray()
        for number, table in self._handles(number for number in range(self._batches) if number not in acknowledged):
            if self._behaviour is Behaviour.DIES and not died and number == self._batches // 2:
                self._die(number, table)
            self._write(number, table)
        self._journal.write(journal.DONE)

    def _handles(self, numbers: Iterator[int]) -> Iterator[tuple[int, Table]]:
        """A loaded table for each batch. The agent with a stale base gets one that was loaded a batch earlier."""
        if self._behaviour is not Behaviour.STALE:
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
        """Wait until another agent has committed since `table` was loaded."""
        base, end_s = table.metadata.current_snapshot_id, self._clock.monotonic_s() + _OTHERS_WAIT_S
        pause = threading.Event()
        while self._load().metadata.current_snapshot_id == base and self._clock.monotonic_s() < end_s:
            pause.wait(_POLL_S)

    def _load(self) -> Table:
        return self._catalog.load_table(self._agent.table)

    def _write(self, number: int, table: Table) -> None:
        rows = plan.batch(self._rows, number, self._batches)
        start_s = self._clock.monotonic_s()
        for attempt in range(1 + RESENDS_MAX):
            try:
                landing = self._append(table if attempt == 0 else self._load(), number, rows)
            except Exception as error:  # noqa: BLE001 - whatever the error is, the batch was not acknowledged
                self._not_acknowledged(journal.FAILED, number, rows, error)
                continue
            self._accepted(journal.ACKNOWLEDGED, number, rows, landing, start_s)
            break
        else:
            return
        if self._behaviour is Behaviour.REPEATS:
            self._repeat(number, rows)

    def _repeat(self, number: int, rows: pa.Table) -> None:
        """Send an acknowledged batch once more, with its key, as a client does that has lost the answer."""
        start_s = self._clock.monotonic_s()
        try:
            landing = self._append(self._load(), number, rows)
        except Exception as error:  # noqa: BLE001 - whatever the error is, the second sending was not acknowledged
            self._not_acknowledged(journal.REPEAT_FAILED, number, rows, error)
        else:
            self._accepted(journal.REPEATED, number, rows, landing, start_s)

    def _append(self, table: Table, number: int, rows: pa.Table) -> Landing:
        base, retried = table.metadata.current_snapshot_id, self._retries.count
        transaction = self._stage(table, number, rows)
        staged = transaction.table_metadata.current_snapshot_id
        assert staged is not None, "an append makes a snapshot"
        saved = transaction.commit_transaction().metadata.snapshot_by_id(staged)
        landed = "absent" if saved is None else "direct" if saved.parent_snapshot_id == base else "rebased"
        return Landing(landed, self._retries.count - retried, staged)

    def _stage(self, table: Table, number: int, rows: pa.Table) -> Transaction:
        """Write data files and manifests, without committing them."""
        transaction = table.transaction()
        properties = keyed(plan.batch_key(self._agent, number, self._job.seed))
        transaction.append(plan.table_rows(self._agent, rows), snapshot_properties=properties)
        return transaction

    def _stray(self) -> None:
        """Write rows of a neighbour, once. The batch is sent a second time only if it failed by accident."""
        rows = plan.stray_rows(self._agent, self._source, self._job.days)
        start_s = self._clock.monotonic_s()
        for _ in range(1 + RESENDS_MAX):
            try:
                # A number that no batch has: the refusal must not depend on a key, nor use up the key of a batch.
                landing = self._append(self._load(), self._batches, rows)
            except ForbiddenError as error:
                self._not_acknowledged(journal.REFUSED, self._batches, rows, error)
                return
            except Exception as error:  # noqa: BLE001 - the refusal is what the demo is about; anything else is tried again
                self._not_acknowledged(journal.REPEAT_FAILED, self._batches, rows, error)
                continue
            self._accepted(journal.STRAYED, self._batches, rows, landing, start_s)
            return

    def _accepted(self, event: str, number: int, rows: pa.Table, landing: Landing, start_s: float) -> None:
        self._journal.write(
            event,
            batch=number,
            rows=journal.runs_of(rows["row_id"].to_numpy()),
            at_ms=self._clock.now_ms(),
            latency_ms=round((self._clock.monotonic_s() - start_s) * 1000, 1),
            **asdict(landing),
        )

    def _die(self, number: int, table: Table) -> None:
        """End as if killed, with a batch staged and not committed. Notes its data files: they become orphans."""
        transaction = self._stage(table, number, plan.batch(self._rows, number, self._batches))
        snapshot = transaction.table_metadata.current_snapshot()
        assert snapshot is not None, "an append makes a snapshot"
        added = (
            entry.data_file.file_path
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(table.io)
        )
        self._journal.write(journal.SENT, batch=number, files=sorted(added))
        os.kill(os.getpid(), signal.SIGKILL)

    def _not_acknowledged(self, event: str, number: int, rows: pa.Table, error: Exception) -> None:
        self._journal.write(
            event,
            batch=number,
            rows=journal.runs_of(rows["row_id"].to_numpy()),
            error=type(error).__name__,
            conflict=isinstance(error, CommitFailedException),
            message=str(error)[:4000],
            at_ms=self._clock.now_ms(),
        )


def main() -> None:
    job = read_job()
    own_journal = Journal(Path(job.journal))
    catalog = load_catalog("tower", **job.catalog, **slow_io.properties(job.latency, job.latency_seed))
    PyIcebergAgent(job, plan.agent_named(job.agent), catalog, own_journal, read_source(job.source)).run()
    own_journal.close()


if __name__ == "__main__":
    main()

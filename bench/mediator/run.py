"""A mediator that follows a log while agents write to it at a steady rate, and is killed now and then.

    run.py                 two minutes, 1,000 rows a second of ten agents, pruned of what is older than 20 s
    run.py --minutes 10    the full run
    run.py --kill-every 60 kill the mediator with -9 so often, and start it again
    run.py --json          the figures as JSON

A tower, the agents (fast path, a key for each append) and `icetower mediate --follow --prune-older` run on one machine.
Every tenth row is sent twice. At the end each row must be in the table once. The lag of a row is the time from its
decision to the snapshot that shows it, as the mediator records it; what is asked is whether it stays as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from icetower.agent import DataFile, Tower
from verify.kit.tower_process import TowerProcess, command

AGENTS = 10
APPENDS_PER_S = 1.0
DRAINED_WITHIN_S = 240.0
WAL, TARGET = "shop.events_log", "shop.events"
COLUMNS = pa.schema(
    [("store", pa.int64()), ("number", pa.int64()), ("amount", pa.int64()), ("_idempotency_key", pa.string())]
)
LOG_COLUMNS = pa.schema([*COLUMNS, ("_agent", pa.string()), ("_written_at", pa.timestamp("us", tz="UTC"))])
CONTRACT = """version: 1
agent: {name}
tables:
  - {{table: {target}, operations: [append], partitions: [{{store: [{store}]}}], pattern: mediator}}
  - {{table: {wal}, operations: [append], partitions: [{{_agent: [{name}]}}], blind_appends: true}}
"""
MEDIATOR = f"""version: 1
agent: mediator
role: pipeline
tables:
  - {{table: {TARGET}, operations: [append, overwrite], partitions: all}}
  - {{table: {WAL}, operations: [delete], partitions: all}}
  - {{table: system.*, operations: [create, append, overwrite], partitions: all}}
reads: [shop.*, system.*]
"""


@dataclass
class Figures:
    """What was measured.

    Attributes:
        sent: rows, each once.
        rows_per_s: as the agents sent them.
        doubled, lost: rows of the table at the end.
        batches: that the mediators reported.
        lag_median_s, lag_max_s: of the batches of each quarter of the time, in order.
        log_rows: the most rows that the log had when it was looked at, once in five seconds.
        log_snapshots: likewise, of its metadata.
        pruned: rows taken out of the log.
        killed: how often a mediator was killed.
        failures: that the mediators reported, by rule.
    """

    sent: int = 0
    rows_per_s: float = 0.0
    doubled: int = 0
    lost: int = 0
    batches: int = 0
    lag_median_s: list[float] = field(default_factory=list[float])
    lag_max_s: list[float] = field(default_factory=list[float])
    log_rows: int = 0
    log_snapshots: int = 0
    pruned: int = 0
    killed: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])


def make_tables(tower: TowerProcess) -> dict[str, str]:
    """The two tables, the contracts, and a principal for each agent and the mediator: name → secret."""
    catalog = tower.catalog()
    for namespace in ("shop", "system"):
        catalog.create_namespace(namespace)
    with catalog.create_table(TARGET, COLUMNS).update_spec() as spec:
        spec.add_identity("store")
    properties = {"icetower.retention.age-max-ms": "30000", "icetower.retention.snapshots-max": "200"}
    with catalog.create_table(WAL, LOG_COLUMNS, properties=properties).update_spec() as spec:
        spec.add_identity("_agent")
    names = [f"agent{number}" for number in range(AGENTS)]
    for number, name in enumerate(names):
        tower.admin.apply_contract(CONTRACT.format(name=name, store=number, wal=WAL, target=TARGET))
    tower.admin.apply_contract(MEDIATOR)
    return {name: tower.admin.create_principal(name, name) for name in (*names, "mediator")}


class Agents:
    """Agents that append to the log until they are told to stop, each in a thread."""

    def __init__(self, tower: TowerProcess, secrets: dict[str, str], rows_per_s: int) -> None:
        self.rows = max(1, round(rows_per_s / AGENTS / APPENDS_PER_S))
        self.schema = tower.catalog().load_table(WAL).schema().as_arrow()
        self.stop = threading.Event()
        self.sent = [0] * AGENTS
        self.errors: list[Exception] = []
        self.threads = [
            threading.Thread(target=self._run, args=(number, Tower(tower.uri, secrets[f"agent{number}"])))
            for number in range(AGENTS)
        ]

    def _run(self, number: int, tower: Tower) -> None:
        try:
            with tower:
                began_s, appends = time.monotonic(), 0
                while not self.stop.wait(max(0.0, began_s + appends / APPENDS_PER_S - time.monotonic())):
                    self._append(number, tower, self.sent[number])
                    appends += 1
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.errors.append(error)

    def _append(self, number: int, tower: Tower, first: int) -> None:
        now = datetime.now(UTC)
        rows: list[dict[str, Any]] = [
            {
                "store": number,
                "number": first + at,
                "amount": 1,
                "_idempotency_key": f"{number}-{first + at}",
                "_agent": f"agent{number}",
                "_written_at": now,
            }
            for at in range(self.rows)
        ]
        again = [row for row in rows if int(row["number"]) % 10 == 0]
        append_rows(tower, WAL, pa.Table.from_pylist([*rows, *again], self.schema), f"agent{number}")
        self.sent[number] += self.rows


def append_rows(tower: Tower, log: str, rows: pa.Table, agent: str) -> None:
    """Append an agent's rows to its partition of a log, in one file."""
    path = tower.new_data_file(log)
    file = Path(path.removeprefix("file://"))
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows, file)
    tower.append(log, [DataFile.of_parquet(path, partition={"_agent": agent})])


def arguments(*, uri: str, keep: str, contracts: Path | None) -> list[str]:
    """Of the command that runs on."""
    folder = [] if contracts is None else ["--contracts", str(contracts)]
    shown = ["--follow", "--every", "2s", "--prune-older", keep, "--json", "--uri", uri]
    return ["mediate", "--wal", WAL, "--target", TARGET, *shown, *folder]


class Mediator:
    """`icetower mediate --follow`, started again after it was killed."""

    def __init__(self, tower: TowerProcess, secret: str, folder: Path, keep: str) -> None:
        self.arguments = arguments(uri=tower.uri, keep=keep, contracts=folder / "contracts")
        self.environment = {**os.environ, "ICETOWER_TOKEN": secret}
        self.output = folder / "mediator.jsonl"
        self.errors = folder / "mediator.stderr"
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            return subprocess.Popen(command(*self.arguments), stdout=output, stderr=errors, env=self.environment)

    def kill(self) -> None:
        """Also what a JVM in the middle of a commit does is cut off: it ends with its parent."""
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        self.process = self._started()

    def events(self) -> list[dict[str, Any]]:
        """What it reported; the last line may be cut."""
        found: list[dict[str, Any]] = []
        for line in self.output.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def applied(self) -> list[dict[str, Any]]:
        """The batches that it reported."""
        return [event for event in self.events() if event["status"] == "applied"]

    def pruned(self) -> int:
        """The rows that it took out of the log."""
        return sum(event["rows"] for event in self.events() if event["status"] == "pruned")


def run(folder: Path, *, seconds: float, rows_per_s: int, keep: str, kill_every_s: float | None) -> Figures:
    """One run. Raises what an agent raised, and `AssertionError` if the mediator ended by itself."""
    tower = TowerProcess(folder / "tower")
    figures = Figures()
    try:
        secrets = make_tables(tower)
        (folder / "contracts").mkdir()
        for number in range(AGENTS):
            text = CONTRACT.format(name=f"agent{number}", store=number, wal=WAL, target=TARGET)
            (folder / "contracts" / f"agent{number}.yaml").write_text(text)
        mediator = Mediator(tower, secrets["mediator"], folder, keep)
        agents = Agents(tower, secrets, rows_per_s)
        try:
            _drive(tower, mediator, agents, figures, seconds, kill_every_s)
            _drain(tower, mediator, sum(agents.sent))
        finally:
            agents.stop.set()
            mediator.process.send_signal(signal.SIGINT)
            mediator.process.wait(60)
        _count(tower, mediator, agents, figures, seconds)
    finally:
        tower.stop()
    return figures


def _drive(
    tower: TowerProcess,
    mediator: Mediator,
    agents: Agents,
    figures: Figures,
    seconds: float,
    kill_every_s: float | None,
) -> None:
    catalog = tower.catalog()
    began_s = time.monotonic()
    kill_at_s = began_s + (kill_every_s or 0.0)
    batches = 0  # when it was last killed: each start gets as far as a batch
    for thread in agents.threads:
        thread.start()
    while not agents.errors:
        now_s = time.monotonic()
        # However slow the machine is: a kill, and then a batch and a pruning.
        seen = figures.killed > 0 and len(mediator.applied()) > batches and mediator.pruned() > 0
        if now_s >= began_s + seconds + (DRAINED_WITHIN_S if kill_every_s is not None and not seen else 0.0):
            break
        assert mediator.process.poll() is None, mediator.errors.read_text()[-2000:]
        log = catalog.load_table(WAL)
        head = log.current_snapshot()
        rows = 0 if head is None or head.summary is None else int(head.summary["total-records"] or 0)
        figures.log_rows = max(figures.log_rows, rows)
        figures.log_snapshots = max(figures.log_snapshots, len(log.metadata.snapshots))
        may_kill = now_s < began_s + seconds or figures.killed == 0
        if kill_every_s is not None and may_kill and now_s >= kill_at_s and len(mediator.applied()) > batches:
            mediator.kill()
            mediator.again()
            figures.killed += 1
            batches = len(mediator.applied())
            kill_at_s = now_s + kill_every_s
        agents.stop.wait(5.0)
    agents.stop.set()
    for thread in agents.threads:
        thread.join(60)
    if agents.errors:
        raise agents.errors[0]
    figures.rows_per_s = round(sum(agents.sent) / (time.monotonic() - began_s), 1)


def _rows(tower: TowerProcess) -> int:
    head = tower.catalog().load_table(TARGET).current_snapshot()
    return 0 if head is None or head.summary is None else int(head.summary["total-records"] or 0)


def _drain(tower: TowerProcess, mediator: Mediator, sent: int) -> None:
    end_s = time.monotonic() + DRAINED_WITHIN_S
    while _rows(tower) < sent and time.monotonic() < end_s:
        assert mediator.process.poll() is None, mediator.errors.read_text()[-2000:]
        time.sleep(1)


def _count(tower: TowerProcess, mediator: Mediator, agents: Agents, figures: Figures, seconds: float) -> None:
    table = tower.catalog().load_table(TARGET).scan(selected_fields=("store", "number")).to_arrow()
    found = list(zip(table["store"].to_pylist(), table["number"].to_pylist(), strict=True))
    wanted = {(store, number) for store, sent in enumerate(agents.sent) for number in range(sent)}
    figures.sent = len(wanted)
    figures.doubled, figures.lost = len(found) - len(set(found)), len(wanted - set(found))
    assert set(found) <= wanted
    batches = mediator.applied()
    figures.batches = len(batches)
    times = [batch["committed_at_ms"] for batch in batches]
    for quarter in range(4):
        bounds = [times[0] + seconds * 1000 * part / 4 for part in (quarter, quarter + 1)]
        its = [b for b in batches if bounds[0] <= b["committed_at_ms"] < bounds[1] and b["lag_max_ms"] is not None]
        if its:
            figures.lag_median_s.append(round(statistics.median(b["lag_median_ms"] for b in its) / 1000, 1))
            figures.lag_max_s.append(round(max(b["lag_max_ms"] for b in its) / 1000, 1))
    figures.pruned = mediator.pruned()
    for event in mediator.events():
        if event["status"] == "failed":
            figures.failures[event["rule"]] = figures.failures.get(event["rule"], 0) + 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--rows-per-s", type=int, default=1000)
    parser.add_argument("--keep", default="20s", help="prune rows that landed longer ago")
    parser.add_argument("--kill-every", type=float, metavar="SECONDS")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="icetower-mediator-") as folder:
        figures = run(
            Path(folder),
            seconds=options.minutes * 60,
            rows_per_s=options.rows_per_s,
            keep=options.keep,
            kill_every_s=options.kill_every,
        )
    if options.json:
        print(json.dumps(asdict(figures)))
    else:
        for name, value in asdict(figures).items():
            print(f"{name:>14}  {value:,}" if isinstance(value, int) else f"{name:>14}  {value}")
    return 1 if figures.doubled or figures.lost else 0


if __name__ == "__main__":
    sys.exit(main())

"""Days of a warehouse in minutes: does everything that is kept for a time stay flat?

    run.py                 four days, of six minutes each
    run.py --days 1        a quarter of that

Ten agents change 2,000 rows of stock through a write-ahead log, behind a tower. The mediator, the maintenance and the
export run beside them in one Spark. Periods are 240 times shorter than in production: what the guide keeps for a day is
kept for six minutes. One period is Icetower's own and stays as it is: no snapshot expires in its first ten minutes, so
that the second day ends before the first snapshot goes.

Every few seconds the run looks at the warehouse. Flat is what has, in the last quarter of the time, at most `FLAT`
times the median that it had in the quarter before. Writes docs/plots/bench/bench-day.svg and bench-day.json. Exit
status 1: something grew, or a row is wrong at the end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from pyiceberg.catalog import Catalog

from bench.experiments.plots import BLUE, STYLE
from bench.mediator.run import append_rows
from icetower.agent import Tower
from icetower.contracts.document import load
from icetower.pipelines.export import Source, export
from icetower.pipelines.maintenance import Job as Maintenance
from icetower.pipelines.maintenance import Maintainer, Report
from icetower.pipelines.session import spark_session
from icetower.pipelines.tables import private_session
from icetower.pipelines.wal_follow import Follower
from icetower.pipelines.wal_mediator import Job, Mediation
from icetower.protocol.names import Identifier
from verify.kit.tower_process import TowerProcess

DAY_S = 360.0
DAYS = 4.0
FLAT = 1.25
AGENTS = 10
ITEMS = 200
"""Of each agent."""
ROWS = 20
APPEND_EVERY_S = 2.0
MEDIATE_EVERY_S = 5.0
MAINTAIN_EVERY_S = 15.0
EXPORT_EVERY_S = 30.0
LOOK_EVERY_S = 5.0
DRAINED_WITHIN_S = 240.0
DIRECTORY = Path(__file__).parents[2] / "docs" / "plots" / "bench"

TARGET, LOG, SYSTEM = "shop.stock", "shop.stock_log", "system"
COLUMNS = pa.schema(
    [("store", pa.int64()), ("item", pa.int64()), ("amount", pa.int64()), ("_idempotency_key", pa.string())]
)
LOG_COLUMNS = pa.schema([*COLUMNS, ("_agent", pa.string()), ("_written_at", pa.timestamp("us", tz="UTC"))])
CONTRACT = """version: 1
agent: {name}
tables:
  - {{table: shop.stock, operations: [append, overwrite], partitions: [{{store: [{store}]}}], pattern: mediator}}
  - {{table: shop.stock_log, operations: [append], partitions: [{{_agent: [{name}]}}], blind_appends: true}}
"""
OF_ALL = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "history.expire.max-snapshot-age-ms": "1000",  # that is: ten minutes
    "history.expire.min-snapshots-to-keep": "1",
}
SERIES: Mapping[str, str] = {
    "storage_mb": "files of the warehouse, MB",
    "snapshots": "snapshots of all tables",
    "log_rows": "rows of the write-ahead log",
    "system_rows": "rows of the system tables",
    "lag_s": "decision to visible, s (median of a batch)",
    "manifests": "manifests of all tables",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What there was at one moment, `at_s` seconds after the beginning; by the names of `SERIES`."""

    at_s: float
    storage_mb: float
    snapshots: int
    log_rows: int
    system_rows: int
    lag_s: float
    manifests: int


@dataclass(slots=True)
class Result:
    """A run.

    Attributes:
        day_s: how long a day was.
        looks: in order.
        grown: by name of the series, how many times the median of the third quarter it had in the last one; only of
            those that were not flat.
        sent, batches: how many rows, and how many batches of the mediator.
        wrong: rows that are not as the last change left them.
        failures: what jobs reported, by rule.
    """

    day_s: float
    looks: list[Look]
    grown: dict[str, float]
    sent: int
    batches: int
    wrong: int
    failures: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Warehouse:
    """The tables behind a tower."""

    def __init__(self, tower: TowerProcess, day_s: float) -> None:
        self.tower = tower
        self.catalog: Catalog = tower.catalog()
        self.keep = {"maintenance.keep-ms": str(round(day_s * 1000))}
        for namespace in ("shop", SYSTEM):
            self.catalog.create_namespace(namespace)
        with self.catalog.create_table(TARGET, COLUMNS, properties=OF_ALL).update_spec() as spec:
            spec.add_identity("store")
        soon = {"maintenance.keep-ms": str(round(day_s * 1000 / 24))}
        with self.catalog.create_table(LOG, LOG_COLUMNS, properties=OF_ALL | soon).update_spec() as spec:
            spec.add_identity("_agent")
        self.contracts = {
            f"agent{store}": CONTRACT.format(name=f"agent{store}", store=store) for store in range(AGENTS)
        }
        self.secrets: dict[str, str] = {}
        for name, text in self.contracts.items():
            tower.admin.apply_contract(text)
            self.secrets[name] = tower.admin.create_principal(name, name)
        self.kept: set[tuple[str, ...]] = set()

    def keep_a_day(self) -> None:
        """Tell how long each table of the system is kept, as soon as a job has made it."""
        for name in self.catalog.list_tables(SYSTEM):
            if name not in self.kept:
                with self.catalog.load_table(name).transaction() as change:
                    change.set_properties({**OF_ALL, **self.keep})
                self.kept.add(name)

    def look(self, at_s: float, lag_s: float) -> Look:
        size = sum(
            _size(Path(folder) / name) for folder, _, names in os.walk(self.tower.data / "warehouse") for name in names
        )
        tables = {
            name: self.catalog.load_table(name)
            for space in ("shop", SYSTEM)
            for name in self.catalog.list_tables(space)
        }
        rows = {name: _rows(table) for name, table in tables.items()}
        return Look(
            round(at_s, 1),
            round(size / 1e6, 3),
            sum(len(table.metadata.snapshots) for table in tables.values()),
            rows[tuple(LOG.split("."))],
            sum(count for name, count in rows.items() if name[0] == SYSTEM),
            lag_s,
            sum(_manifests(table) for table in tables.values()),
        )


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # it was deleted meanwhile
        return path.stat().st_size
    return 0


def _rows(table: Any) -> int:
    head = table.current_snapshot()
    return 0 if head is None or head.summary is None else int(head.summary["total-records"] or 0)


def _manifests(table: Any) -> int:
    head = table.current_snapshot()
    return 0 if head is None else len(head.manifests(table.io))


class Agents:
    """Agents that change rows of their own store, each in a thread, until they are told to stop."""

    def __init__(self, warehouse: Warehouse, stop: threading.Event) -> None:
        self.stop = stop
        self.schema = warehouse.catalog.load_table(LOG).schema().as_arrow()
        self.last: dict[tuple[int, int], int] = {}
        self.sent = 0
        self._lock = threading.Lock()
        self.works = [
            lambda store=store, name=name: self._run(store, Tower(warehouse.tower.uri, warehouse.secrets[name]), name)
            for store, name in enumerate(warehouse.contracts)
        ]

    def _run(self, store: int, tower: Tower, name: str) -> None:
        dice, turn = random.Random(store), 0
        with tower:
            while not self.stop.wait(APPEND_EVERY_S):
                turn += 1
                amounts = dict.fromkeys(dice.sample(range(ITEMS), ROWS), turn)
                rows = [
                    {
                        "store": store,
                        "item": item,
                        "amount": amount,
                        "_idempotency_key": f"{store}-{turn}-{item}",
                        "_agent": name,
                        "_written_at": datetime.now(UTC),
                    }
                    for item, amount in amounts.items()
                ]
                append_rows(tower, LOG, pa.Table.from_pylist(rows, self.schema), name)
                with self._lock:
                    self.last |= {(store, item): amount for item, amount in amounts.items()}
                    self.sent += len(rows)


class Jobs:
    """The mediator, the maintenance and the export, in one Spark."""

    def __init__(self, warehouse: Warehouse, stop: threading.Event, settings: Mapping[str, str]) -> None:
        self.warehouse, self.stop = warehouse, stop
        tower = warehouse.tower
        self.spark = spark_session("bench-day", catalog_uri=tower.uri, token=tower.secret, settings=settings)
        contracts = {name: load(text, source=name) for name, text in warehouse.contracts.items()}
        self.mediation = Job(
            f"tower.{LOG}", f"tower.{TARGET}", contracts, system=f"tower.{SYSTEM}", merge_keys=("store", "item")
        )
        self.lag_s, self.batches, self.failures = 0.0, 0, dict[str, int]()
        self.works: list[Callable[[], None]] = [self._mediate, self._maintain, self._export]

    def _failed(self, rule: str) -> None:
        self.failures[rule] = self.failures.get(rule, 0) + 1

    def _mediate(self) -> None:
        def on(event: Any) -> None:
            if isinstance(event, Mediation):
                self.batches += 1
                self.lag_s = (event.lag_median_ms or 0) / 1000
            elif event.to_json()["status"] == "failed":
                self._failed(event.to_json()["rule"])

        Follower(self.spark, lambda: [self.mediation], on, every_s=MEDIATE_EVERY_S).follow(self.stop.wait)

    def _maintain(self) -> None:
        def on(report: Report) -> None:
            for failure in report.failures:
                self._failed(failure.to_json()["rule"])

        def jobs() -> Maintenance:
            self.warehouse.keep_a_day()
            names = [name for space in ("shop", SYSTEM) for name in self.warehouse.catalog.list_tables(space)]
            return Maintenance(system=f"tower.{SYSTEM}", tables=[Identifier.parse(".".join(name)) for name in names])

        while not self.warehouse.catalog.table_exists(f"{SYSTEM}.wal_mediations"):
            if self.stop.wait(1.0):
                return
        maintainer = Maintainer(self.spark, jobs())
        maintainer.follow(jobs, on, self.stop.wait, MAINTAIN_EVERY_S)

    def _export(self) -> None:
        session = private_session(self.spark)
        with Tower(self.warehouse.tower.uri, self.warehouse.tower.secret) as tower:
            while not self.stop.wait(EXPORT_EVERY_S):
                export(session, f"tower.{SYSTEM}", Source.of(tower))


def run(folder: Path, *, days: float, day_s: float = DAY_S, settings: Mapping[str, str] | None = None) -> Result:
    """One run in an empty folder. Raises the first error of an agent or a job."""
    tower = TowerProcess(folder / "tower")
    errors: list[BaseException] = []
    writing, working = threading.Event(), threading.Event()

    def started(works: list[Callable[[], None]]) -> list[threading.Thread]:
        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        return threads

    try:
        warehouse = Warehouse(tower, day_s)
        jobs = Jobs(warehouse, working, settings or {})
        agents = Agents(warehouse, writing)
        began_s, looks = time.monotonic(), list[Look]()
        threads = started(agents.works)
        its_jobs = started(jobs.works)
        try:
            while (at_s := time.monotonic() - began_s) < days * day_s and not errors:
                looks.append(warehouse.look(at_s, jobs.lag_s))
                _shown(looks[-1], days * day_s)
                writing.wait(LOOK_EVERY_S)
            writing.set()
            for thread in threads:
                thread.join()
            end_s = time.monotonic() + DRAINED_WITHIN_S
            while (wrong := _wrong(warehouse, agents)) and time.monotonic() < end_s and not errors:
                working.wait(1.0)
        finally:
            writing.set()
            working.set()
            for thread in (*threads, *its_jobs):
                thread.join()
            jobs.spark.stop()
    finally:
        tower.stop()
    if errors:
        raise errors[0]
    return Result(day_s, looks, grown(looks), agents.sent, jobs.batches, wrong, jobs.failures)


def _wrong(warehouse: Warehouse, agents: Agents) -> int:
    table = warehouse.catalog.load_table(TARGET).scan(selected_fields=("store", "item", "amount")).to_arrow()
    found = [((row["store"], row["item"]), row["amount"]) for row in table.to_pylist()]
    return len(found) - len(dict(found)) + len(set(found) ^ set(agents.last.items()))


def grown(looks: list[Look]) -> dict[str, float]:
    """The series that are higher in the last quarter than in the one before: name → how many times."""
    end_s = looks[-1].at_s
    found: dict[str, float] = {}
    for name in SERIES:
        quarters = (
            [getattr(look, name) for look in looks if low * end_s <= look.at_s <= high * end_s]
            for low, high in ((0.5, 0.75), (0.75, 1.0))
        )
        # A run that is too short to look at it in each quarter has no median there.
        third, last = (statistics.median(quarter or [getattr(looks[-1], name)]) for quarter in quarters)
        if last > FLAT * max(third, 1e-9):
            found[name] = round(last / max(third, 1e-9), 2)
    return found


def _shown(look: Look, end_s: float) -> None:
    figures = "  ".join(f"{name} {getattr(look, name):,}" for name in SERIES)
    print(f"{look.at_s / end_s:4.0%}  {figures}", file=sys.stderr, flush=True)


def plot(result: Result) -> str:
    """The series over the days, as SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 6.4), layout=ConstrainedLayoutEngine())
        axes = figure.subplots(3, 2, sharex=True)
        for axis, (name, label) in zip(axes.flat, SERIES.items(), strict=True):
            days = [look.at_s / result.day_s for look in result.looks]
            axis.plot(days, [getattr(look, name) for look in result.looks], color=BLUE, linewidth=1.4)
            axis.set_title(label, loc="left", fontsize=9)
            axis.set_ylim(bottom=0)
        for axis in axes[-1]:
            axis.set_xlabel(f"days, of {result.day_s / 60:g} minutes each")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=DAYS)
    parser.add_argument("--day-s", type=float, default=DAY_S, help="how long a day is")
    parser.add_argument("--out", type=Path, default=DIRECTORY)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="icetower-day-") as folder:
        result = run(Path(folder), days=options.days, day_s=options.day_s)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bench-day.svg").write_text(plot(result))
    (options.out / "bench-day.json").write_text(json.dumps(result.to_json(), indent=1) + "\n")
    for name in SERIES:
        first, last = (getattr(result.looks[at], name) for at in (len(result.looks) // 2, -1))
        print(f"{name:>12}  half-way {first:>10,}  at the end {last:>10,}")
    print(f"{result.sent:,} rows in {result.batches} batches, {result.wrong} wrong; grown: {result.grown or 'nothing'}")
    if result.failures:
        print(f"failures of jobs that were tried again: {result.failures}")
    return 1 if result.grown or result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a run of each job costs when there is nothing new: the mediator, the collector, the maintenance and the export.

    run.py              a day of the pipeline on real data, then each job in a session of its own
    run.py --hours 2    fewer hours of that day
    run.py --json       the figures as JSON

The day runs through a tower, with all jobs beside the agents, and the tower starts anew. Then each job gets a Spark of
its own, and takes what may be left. From then on nothing is new. Its Spark is started again, and the job is run five
times: the first of these runs meets a Spark that has just started. Exit status 1: a run took more than `WANTED_S`, or
was not idle.

`python -m bench.dedup.run` has the same figure for the deduplication.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from icetower.agent import Tower
from icetower.demo.retail import jobs
from icetower.demo.retail.shipped import contract_of
from icetower.demo.serving import tower_process
from icetower.pipelines.collector import collect
from icetower.pipelines.export import Source, export
from icetower.pipelines.maintenance import Job as Maintenance
from icetower.pipelines.maintenance import Maintainer
from icetower.pipelines.wal_mediator import mediate
from icetower.protocol.names import Identifier
from icetower.spark import tower_session

WANTED_S = 3.0
RUNS = 5
SNAPSHOTS_MAX = 100
LEFT_MAX = 20
"""Runs with something to do, before there is nothing new."""
NAMES = (jobs.MEDIATOR, jobs.COLLECTOR, jobs.MAINTENANCE, jobs.EXPORT)


@dataclass(frozen=True, slots=True)
class Idle:
    """Runs of a job with nothing new, in order, in seconds. `session_s`: until its Spark was up."""

    job: str
    session_s: float
    runs_s: tuple[float, ...]
    idle: bool

    @staticmethod
    def of_json(text: str) -> Idle:
        read: dict[str, Any] = json.loads(text)
        read["runs_s"] = tuple(read["runs_s"])
        return Idle(**read)

    @property
    def good(self) -> bool:
        return self.idle and max(self.runs_s) <= WANTED_S


def _job(name: str, spark: Any, tower: Tower) -> Callable[[], bool]:
    """Runs the job once; whether it found nothing to do."""
    if name == jobs.MEDIATOR:
        return lambda: mediate(spark, jobs.mediation(SNAPSHOTS_MAX)).status == "idle"
    if name == jobs.COLLECTOR:
        return lambda: collect(spark, jobs.collection(SNAPSHOTS_MAX)).status == "idle"
    if name == jobs.EXPORT:
        return lambda: not sum(asdict(export(spark, jobs.SYSTEM, Source.of(tower))).values())
    tables = [Identifier.parse(table) for table in jobs.MAINTAINED]
    maintainer = Maintainer(spark, Maintenance(system=jobs.SYSTEM, tables=tables, own=contract_of(name)))

    def maintain() -> bool:
        report = maintainer.run()
        return not report.entries and not report.failures

    return maintain


def _session(name: str, uri: str, token: str, *, warm: bool) -> Idle:
    """In a process of its own: the runs of a job. `warm`: until nothing is left."""
    began_s = time.perf_counter()
    with Tower(uri, token) as tower:
        spark = tower_session(name, tower, settings={"spark.sql.shuffle.partitions": "4"})
        try:
            spark.sql("SELECT 1").collect()
            session_s = time.perf_counter() - began_s
            run = _job(name, spark, tower)
            if warm:
                left = any(run() for _ in range(LEFT_MAX))
                return Idle(name, session_s, (), left)
            found = [_timed(run) for _ in range(RUNS)]
        finally:
            spark.stop()
    return Idle(name, round(session_s, 2), tuple(round(s, 2) for s, _ in found), all(idle for _, idle in found))


def _timed(run: Callable[[], bool]) -> tuple[float, bool]:
    began_s = time.perf_counter()
    idle = run()
    return time.perf_counter() - began_s, idle


def _in_process(name: str, uri: str, token: str, *, warm: bool) -> Idle:
    given = json.dumps({"name": name, "uri": uri, "token": token, "warm": warm})
    command = [sys.executable, "-m", "bench.idle.run", "--session"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2_000:]}")
    return Idle.of_json(done.stdout.splitlines()[-1])


def _run_pipeline(place: Path, hours: int) -> None:
    given = ["pipeline", "run", "--days", "1", "--hours", str(hours), "--kills", "0", "--keep", str(place), "--json"]
    command = [sys.executable, "-c", "from icetower.cli import main; main()", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"icetower {' '.join(given)}: {done.stderr[-2_000:]}")


def measured(hours: int, names: Sequence[str], tell: Callable[[str], None]) -> list[Idle]:
    """Run `hours` of the pipeline, then each of these jobs on nothing new."""
    with tempfile.TemporaryDirectory(prefix="icetower-idle-") as folder:
        place = Path(folder).resolve()
        tell(f"{hours} hours of the pipeline")
        _run_pipeline(place, hours)
        found: list[Idle] = []
        with tower_process(place, {}) as serving:
            for name in names:
                tell(f"{name}: what is left, then nothing new")
                _in_process(name, serving.uri, serving.token, warm=True)
                found.append(_in_process(name, serving.uri, serving.token, warm=False))
        return found


def show(found: list[Idle], console: Console) -> None:
    """A table of the runs."""
    table = Table("job", "Spark, s", "first run, s", "later, s", f"≤ {WANTED_S:g} s")
    for each in found:
        later = f"{min(each.runs_s[1:]):.2f} to {max(each.runs_s[1:]):.2f}"
        table.add_row(each.job, f"{each.session_s:.1f}", f"{each.runs_s[0]:.2f}", later, "yes" if each.good else "NO")
    console.print(table)


def main(given: list[str] | None = None) -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--session", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.session:
        print(json.dumps(asdict(_session(**json.loads(sys.stdin.read())))))
        return 0
    found = measured(asked.hours, NAMES, lambda line: print(line, file=sys.stderr))
    if asked.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        show(found, Console())
    return 0 if all(each.good for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())

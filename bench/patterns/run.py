"""Which pattern for which writers: the same writes through each, on the retail data; and is the planner right?

    run.py                   4 and 32 agents on hot rows and on disjoint ones, one round: twenty minutes on two cores
    run.py --full            4 to 128 agents, three rounds: some hours
    run.py --agents 32 --shapes hot --sides direct,wal --rounds 3
    run.py --add             adds the runs to those that are kept
    run.py --no-page         leaves docs/ as it is; so does --json, which prints the runs alone

Agents write a price list of up to 20 products each, every two seconds, for `--seconds`; what has not ended 30 seconds
later is cut off. Spark is one JVM that MERGEs and jobs share. Storage has the latency of S3 on all sides. After each
run the table must have what the landed writes leave, or the run ends. Exit status 1: a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from bench.commits import pages
from bench.patterns import rows, sides
from bench.patterns.advice import Verdict, verdict, workload
from bench.patterns.agents import Timing
from bench.patterns.places import SLOT_MS, Place, open_place
from bench.patterns.records import Figures
from bench.patterns.report import advice_table, figure_table, promise_table
from bench.patterns.sides import DIRECT, EVERY_S, ICETOWER, SIDES, Case
from icetower.demo.latency import PROFILES

NAME = "bench-patterns"
RESULTS = pages.PLOTS / "bench-patterns.json"
AGENTS, FULL_AGENTS = (4, 32), (4, 8, 16, 32, 64, 128)
FULL_ROUNDS = 3
PERIOD_S = 2.0
GRACE_S = 30.0
_WARM = Timing(2.0, 1.0, 60.0)


def cases(agents: Sequence[int], shapes: Sequence[str], chosen: Sequence[str], rounds: int) -> list[Case]:
    """The runs: all sides of a workload one after the other, so that they meet the same machine."""
    return [
        Case(side, shape, number, at)
        for at in range(1, rounds + 1)
        for number in agents
        for shape in shapes
        for side in chosen
    ]


def measure(place: Place, prices: pa.Table, wanted: Sequence[Case], timing: Timing) -> Iterator[Figures]:
    """Run all cases, each in tables of its own."""
    for case in wanted:
        yield sides.run(place, case, rows.deal(prices, case.shape, case.agents, timing.writes), timing)


def _line(found: Figures) -> str:
    return (
        f"{found.shape:<9}{found.agents:>4} {found.side:<10} {found.rows_per_s:>8.1f} rows/s, {found.landed} of "
        f"{found.due} landed, p99 {found.lag_p99_ms / 1000:.1f} s, exact: {found.exact} {dict(found.failures) or ''}"
    )


def verdicts(found: Sequence[Figures]) -> list[Verdict]:
    """The planner's advice for each workload, told how fast this machine is."""
    work_s, job_s, engine = speeds(found)
    groups: dict[tuple[str, int], list[Figures]] = {}
    for each in found:
        groups.setdefault((each.shape, each.agents), []).append(each)
    return [
        verdict(workload(shape, agents, PERIOD_S, work_s, job_s, EVERY_S, SLOT_MS / 1000, engine), shape, its)
        for (shape, agents), its in sorted(groups.items(), key=lambda group: (group[0][0] != rows.HOT, group[0][1]))
    ]


def speeds(found: Sequence[Figures]) -> tuple[float, float, float | None]:
    """How long a MERGE of the fewest agents takes, and a batch of a job; and the most MERGEs that ended in a second."""
    merges = [each for each in found if each.side in (DIRECT, ICETOWER)]
    fewest = min((each.agents for each in merges), default=0)
    alone = [each.try_p50_ms for each in merges if each.agents == fewest and each.tries]
    batches = [each.batch_ms for each in found if each.batches]
    return (
        statistics.median(alone) / 1000 if alone else 1.0,
        statistics.median(batches) / 1000 if batches else 5.0,
        max((each.tries / each.seconds for each in merges if each.tries), default=None),
    )


def main(given: Sequence[str] | None = None) -> int:
    options = _options(given)
    console = Console(width=None if sys.stdout.isatty() else pages.WIDTH, stderr=options.json)
    kept = Kept.read() if options.add else Kept({"patterns": pages.machine_now()}, [])
    timing = Timing(options.seconds, PERIOD_S, GRACE_S)
    prices = rows.load()
    with (
        tempfile.TemporaryDirectory(prefix="icetower-patterns-") as folder,
        open_place(Path(folder), options.latency) as place,
    ):
        if not options.cold:
            list(measure(place, prices, cases((2,), (rows.HOT,), options.sides, 1), _WARM))
        wanted = cases(options.agents, options.shapes, options.sides, options.rounds)
        for found in measure(place, prices, wanted, timing):
            console.print(_line(found))
            kept.runs.append(found)
            if not (options.no_page or options.json):
                kept.write()
    promises = promise_table(kept.runs)
    if options.json:
        print(json.dumps(kept.as_json()))
        return _status(promises)
    tables = [promises, figure_table(kept.runs), advice_table(verdicts(kept.runs))]
    for table in tables:
        if table.rows:
            console.print(pages.on_terminal(table))
    if not options.no_page:
        about = pages.machine_text(kept.machines)
        text = pages.PAGE.read_text(encoding="utf-8")
        pages.PAGE.write_text(pages.between(text, NAME, [t for t in tables if t.rows], about), encoding="utf-8")
    return _status(promises)


def _status(promises: pages.Shown) -> int:
    return 1 if any(row[-1] != "PASS" for row in promises.rows) else 0


@dataclass(slots=True)
class Kept:
    """The runs behind the page, and the machines that they ran on."""

    machines: dict[str, Any]
    runs: list[Figures]

    @classmethod
    def read(cls) -> Kept:
        """Those of the last time, to which runs are added."""
        document = json.loads(RESULTS.read_text(encoding="utf-8"))
        runs: list[Figures] = []
        for each in document["runs"]:
            values: dict[str, Any] = {name: math.nan if value is None else value for name, value in each.items()}
            runs.append(Figures(**values))
        machines = document["machines"]
        return cls(machines | {f"patterns, added {len(machines)}": pages.machine_now()}, runs)

    def write(self) -> None:
        RESULTS.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")

    def as_json(self) -> dict[str, Any]:
        """In JSON there is no NaN."""
        runs = [
            {
                name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in asdict(each).items()
            }
            for each in self.runs
        ]
        return {"machines": self.machines, "runs": runs}


def _options(given: Sequence[str] | None) -> Any:
    def listed(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--agents", type=lambda text: tuple(map(int, listed(text))))
    parser.add_argument("--shapes", type=listed, default=rows.SHAPES)
    parser.add_argument("--sides", type=listed, default=SIDES)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--latency", choices=sorted(PROFILES), default="s3", help="of the storage, on all sides")
    parser.add_argument("--cold", action="store_true", help="without a run before the first one, which warms Spark")
    parser.add_argument("--add", action="store_true", help="to the runs that are kept")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON")
    options = parser.parse_args(given)
    options.agents = options.agents or (FULL_AGENTS if options.full else AGENTS)
    options.rounds = options.rounds or (FULL_ROUNDS if options.full else 1)
    return options


if __name__ == "__main__":
    sys.exit(main())

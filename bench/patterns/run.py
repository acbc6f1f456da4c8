"""Which pattern for which writers: the same writes through each, on the retail data; and is the planner right?

    run.py                   4 and 32 agents on hot rows and on disjoint ones, one round: under ten minutes on two cores
    run.py --full            4 to 128 agents, three rounds: some hours
    run.py --agents 32 --shapes hot --sides direct,wal --rounds 3
    run.py --no-page         leaves docs/ as it is

Agents write a price list of up to 20 products each, every two seconds, for `--seconds`; what has not ended 30 seconds
later is cut off. Spark is one JVM that MERGEs and jobs share. Storage has the latency of S3 on all sides. After each
run the table must have what the landed writes leave, or the run ends. Exit status 1: a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from bench.commits import pages
from bench.patterns import rows, sides
from bench.patterns.advice import Verdict, verdict, workload
from bench.patterns.agents import Timing
from bench.patterns.places import Place, open_place
from bench.patterns.records import Figures
from bench.patterns.report import advice_table, figure_table, promise_table
from bench.patterns.sides import DIRECT, EVERY_S, SIDES, Case
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


def measure(
    place: Place, prices: pa.Table, wanted: Sequence[Case], timing: Timing, console: Console | None = None
) -> list[Figures]:
    """Run all cases, each in tables of its own."""
    found: list[Figures] = []
    for case in wanted:
        writes = rows.deal(prices, case.shape, case.agents, timing.writes)
        found.append(sides.run(place, case, writes, timing))
        if console is not None:
            console.print(_line(found[-1]))
    return found


def _line(found: Figures) -> str:
    return (
        f"{found.shape:<9}{found.agents:>4} {found.side:<10} {found.rows_per_s:>8.1f} rows/s, {found.landed} of "
        f"{found.due} landed, p99 {found.lag_p99_ms / 1000:.1f} s, exact: {found.exact} {dict(found.failures) or ''}"
    )


def verdicts(found: Sequence[Figures]) -> list[Verdict]:
    """The planner's advice for each workload, told what one MERGE and one batch take here."""
    work_s, job_s = durations_s(found)
    groups: dict[tuple[str, int], list[Figures]] = {}
    for each in found:
        groups.setdefault((each.shape, each.agents), []).append(each)
    return [
        verdict(workload(shape, agents, PERIOD_S, work_s, job_s, EVERY_S), shape, its)
        for (shape, agents), its in sorted(groups.items(), key=lambda group: (group[0][0] != rows.HOT, group[0][1]))
    ]


def durations_s(found: Sequence[Figures]) -> tuple[float, float]:
    """A direct MERGE of the fewest agents on disjoint rows, and a batch of the jobs."""
    fewest = min(each.agents for each in found)
    alone = [
        each.try_p50_ms for each in found if (each.side, each.agents, each.shape) == (DIRECT, fewest, rows.DISJOINT)
    ]
    batches = [each.batch_ms for each in found if each.batches]
    return (
        statistics.median(alone) / 1000 if alone else 1.0,
        statistics.median(batches) / 1000 if batches else 5.0,
    )


def main(given: Sequence[str] | None = None) -> int:
    options = _options(given)
    console = Console(width=None if sys.stdout.isatty() else pages.WIDTH)
    machine = pages.machine_now()
    timing = Timing(options.seconds, PERIOD_S, GRACE_S)
    prices = rows.load()
    with (
        tempfile.TemporaryDirectory(prefix="icetower-patterns-") as folder,
        open_place(Path(folder), options.latency) as place,
    ):
        if not options.cold:
            measure(place, prices, cases((2,), (rows.HOT,), options.sides, 1), _WARM)
        wanted = cases(options.agents, options.shapes, options.sides, options.rounds)
        found = measure(place, prices, wanted, timing, None if options.json else console)
    kept = {"machine": machine, "seconds": options.seconds, "runs": [asdict(each) for each in found]}
    tables = [promise_table(found), figure_table(found), advice_table(verdicts(found))]
    if options.json:
        print(json.dumps(kept))
    for table in [] if options.json else tables:
        if table.rows:
            console.print(pages.on_terminal(table))
    if not options.no_page:
        RESULTS.write_text(json.dumps(kept, indent=1, default=str) + "\n", encoding="utf-8")
        about = pages.machine_text({"patterns": machine})
        text = pages.PAGE.read_text(encoding="utf-8")
        pages.PAGE.write_text(pages.between(text, NAME, [t for t in tables if t.rows], about), encoding="utf-8")
    return 1 if any(row[-1] not in ("PASS", "") for row in tables[0].rows) else 0


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
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON")
    options = parser.parse_args(given)
    options.agents = options.agents or (FULL_AGENTS if options.full else AGENTS)
    options.rounds = options.rounds or (FULL_ROUNDS if options.full else 1)
    return options


if __name__ == "__main__":
    sys.exit(main())

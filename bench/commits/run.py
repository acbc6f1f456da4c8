"""Commits to one table by many writers: Icetower beside what people use today, side by side in one run.

    run.py                       the headline runs (three interleaved rounds) and a small grid: under twelve minutes
    run.py --full                all numbers of writers with and without latency, and the curve over 20,000 commits
    run.py --only SECTION ...    headlines, grid, history
    run.py --rounds N            of the headline runs and of the tower's curves
    run.py --tables              no runs: tables, plots and page from the results that there are

Every run starts its side on a fresh SQLite file and warehouse, and ends by reading the table: each acknowledged commit
must be in it exactly once. Results go to docs/plots/bench/bench-commit.json, plots beside it, tables into
docs/benchmarks.md; sections that were not run stay as they are. Exit status 1: a
table was not exact, or a side could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commits import curve, pages, report, schedule, sides
from bench.commits.pages import PAGE, PLOTS, WIDTH
from bench.commits.plots import all_plots
from bench.commits.servers import Trouble
from tools import java
from verify.rck import run as rck

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = PLOTS / "bench-commit.json"
HISTORY_COMMITS = 20_000


def main(given: list[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    asked = _arguments(given)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    status = 0
    try:
        if not asked.tables:
            status = _run(asked, results, console)
    except (Trouble, java.NoJava, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    tables = report.all_tables(results)
    for shown in tables:
        console.print(pages.on_terminal(shown))
    for name, svg in all_plots(results).items():
        PLOTS.mkdir(parents=True, exist_ok=True)
        (PLOTS / name).write_text(svg)
    if PAGE.exists():
        about = pages.machine_text(results.get("machines", {}))
        PAGE.write_text(pages.between(PAGE.read_text(), "bench-commit", tables, about))
    return status


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all of it")
    parser.add_argument("--only", nargs="+", choices=schedule.SECTIONS, help="these sections")
    parser.add_argument(
        "--rounds", type=int, default=schedule.ROUNDS, help=f"of headlines and history ({schedule.ROUNDS})"
    )
    parser.add_argument("--tables", action="store_true", help="tables and plots from the results that there are")
    parser.add_argument("--history", type=int, default=HISTORY_COMMITS, help=f"commits ({HISTORY_COMMITS})")
    return parser.parse_args(given)


def _run(asked: argparse.Namespace, results: dict[str, Any], console: Console) -> int:
    sections = asked.only or (schedule.SECTIONS if asked.full else ("headlines", "grid"))
    found_java = _java()
    exact = True
    for section in sections:
        machine = pages.machine_now()
        if section == "history":
            histories: dict[str, list[list[float]]] = {}
            with pages.folders() as folder:
                for name, points, good in curve.curves(asked.history, asked.rounds, folder):
                    histories[name], exact = curve.together(histories.get(name, ()), points), exact and good
                    console.print(f"history: {name}: {_course(points)}, exact: {good}")
                    results["history"] = histories
                    _keep(results)
        else:
            plan = list(schedule.headlines(asked.rounds) if section == "headlines" else schedule.grid(full=asked.full))
            records = []
            for at, (number, case) in enumerate(plan, 1):
                record = _one(case, found_java) | {"round": number}
                records.append(record)
                exact = exact and record["exact"]
                console.print(f"{section} {at}/{len(plan)}: {_line(record)}")
            results.setdefault("runs", {})[section] = records
        results.setdefault("machines", {})[section] = machine
        _keep(results)
    return 0 if exact else 1


def _keep(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _course(points: Sequence[tuple[int, float]]) -> str:
    """A curve in a line: where it begins, its lowest point, and where it ends."""
    if not points:
        return "nothing"
    shown = (points[0], min(points, key=lambda point: point[1]), points[-1])
    return ", ".join(f"{rate:.1f} commits/s after {size:,}" for size, rate in shown)


def _one(case: sides.Case, found_java: sides.Java) -> dict[str, Any]:
    with pages.folders() as folder:
        return sides.run(case, folder(), found_java)


def _line(record: dict[str, Any]) -> str:
    failures = f", failures {record['failures']}" if record["failures"] else ""
    return (
        f"{record['side']}, {record['writers']} writers, {record['profile']}: {record['commits_per_s']:.1f} commits/s, "
        f"{record['success'] * 100:.1f} %, p50 {record['p50_ms']:.0f} ms, exact {record['exact']}{failures}"
    )


def _java() -> sides.Java:
    program = java.find()
    return sides.Java(program, rck.jars(program))


if __name__ == "__main__":
    sys.exit(main())

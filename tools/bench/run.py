"""Commits to one table by many writers: Icetower beside what people use today, side by side in one run.

    run.py                       the headline runs (three interleaved rounds) and a small grid: under twelve minutes
    run.py --full                all numbers of writers with and without latency, and the curve over 20,000 commits
    run.py --only SECTION ...    headlines, grid, history
    run.py --rounds N            of the headline runs
    run.py --tables              no runs: tables, plots and page from the results that there are

Every run starts its side on a fresh SQLite file and warehouse, and ends by reading the table: each acknowledged commit
must be in it exactly once. Results go to docs/plots/bench/bench-commit.json, plots beside it, tables into
docs/benchmarks.md; sections that were not run stay as they are. Exit status 1: a
table was not exact, or a side could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
if __package__ in {None, ""}:
    sys.path.insert(0, str(ROOT / "tools"))

import java  # noqa: E402
from rck import run as rck  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import course, curve, report, sides  # noqa: E402
from bench.plots import all_plots  # noqa: E402
from bench.servers import Trouble  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "plots" / "bench"
RESULTS = PLOTS / "bench-commit.json"
HISTORY_COMMITS = 20_000
WIDTH = 150


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
    for shown in report.all_tables(results):
        console.print(_rich(shown))
    for name, svg in all_plots(results).items():
        PLOTS.mkdir(parents=True, exist_ok=True)
        (PLOTS / name).write_text(svg)
    if PAGE.exists():
        PAGE.write_text(report.in_page(PAGE.read_text(), results))
    return status


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all of it")
    parser.add_argument("--only", nargs="+", choices=course.SECTIONS, help="these sections")
    parser.add_argument("--rounds", type=int, default=course.ROUNDS, help=f"of the headline runs ({course.ROUNDS})")
    parser.add_argument("--tables", action="store_true", help="tables and plots from the results that there are")
    parser.add_argument("--history", type=int, default=HISTORY_COMMITS, help=f"commits ({HISTORY_COMMITS})")
    return parser.parse_args(given)


def _run(asked: argparse.Namespace, results: dict[str, Any], console: Console) -> int:
    sections = asked.only or (course.SECTIONS if asked.full else ("headlines", "grid"))
    found_java = _java()
    exact = True
    for section in sections:
        machine = machine_now()
        if section == "history":
            told: dict[str, Any] = {}
            with _folders() as folder:
                for name, points, good in curve.curves(asked.history, folder):
                    told[name], exact = points, exact and good
                    console.print(f"history: {name}: {points[-1] if points else 'nothing'}, exact: {good}")
            results["history"] = told
        else:
            plan = list(course.headlines(asked.rounds) if section == "headlines" else course.grid(full=asked.full))
            records = []
            for at, (number, case) in enumerate(plan, 1):
                record = _one(case, found_java) | {"round": number}
                records.append(record)
                exact = exact and record["exact"]
                console.print(f"{section} {at}/{len(plan)}: {_line(record)}")
            results.setdefault("runs", {})[section] = records
        results.setdefault("machines", {})[section] = machine
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if exact else 1


def _one(case: sides.Case, found_java: sides.Java) -> dict[str, Any]:
    with _folders() as folder:
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


@contextmanager
def _folders() -> Iterator[Any]:
    """Gives fresh folders, which are gone afterwards."""
    made: list[Path] = []

    def folder() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="icetower-bench-")))
        return made[-1] / "run"

    try:
        yield folder
    finally:
        for path in made:
            shutil.rmtree(path, ignore_errors=True)


def machine_now() -> dict[str, Any]:
    """The machine, the commit and the hour; and how busy it was before anything was started."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    return {
        "when": datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.stdout.strip() or "unknown",
        "cpus": os.cpu_count(),
        "cpu": names[0] if names else platform.processor() or "unknown",
        "memory_gib": round(pages / 2**30),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _rich(shown: report.Shown) -> Table:
    table = Table(title=shown.title, title_justify="left", title_style="bold")
    for at, column in enumerate(shown.columns):
        table.add_column(column, justify="left" if at < shown.left else "right", overflow="fold")
    for row in shown.rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    sys.exit(main())

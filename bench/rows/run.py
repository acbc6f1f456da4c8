"""Rows by many agents into one table: the rows door beside other ways, side by side in one run.

    run.py                       the runs with a promise (three rounds) and a small grid: about twenty minutes
    run.py --full                the grid with all numbers of agents
    run.py --short               every side once, two agents, a second and a half: whether it runs; writes nothing
    run.py --only SECTION ...    headlines, grid
    run.py --rounds N            of the headline runs
    run.py --tables              no runs: tables, plot and page from the results that there are

Every run starts its side on a fresh catalog and warehouse, and ends by reading the table: each acknowledged row must be
in it exactly once. Results go to docs/plots/bench/bench-rows.json, the plot beside it, tables into docs/benchmarks.md;
sections that were not run stay as they are. Exit status 1: a table was not exact, or a side could not be run; 2: a
promise was not kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commits import pages
from bench.commits.servers import Trouble
from bench.rows import cases, ducklake, plots, report, sides

RESULTS = pages.PLOTS / "bench-rows.json"
NAME = "bench-rows"


def main(given: list[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    asked = _arguments(given)
    console = Console(width=None if sys.stdout.isatty() else pages.WIDTH)
    results: dict[str, Any] = {}
    if RESULTS.exists() and not asked.short:
        results = json.loads(RESULTS.read_text())
    try:
        if asked.short:
            results = {"runs": {"grid": _runs("short", cases.short(), console)}}
        elif not asked.tables:
            _run(asked, results, console)
    except Trouble as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    tables = report.all_tables(results)
    for shown in tables:
        console.print(pages.on_terminal(shown))
    records = [record for section in results.get("runs", {}).values() for record in section]
    if not asked.short:
        _write(results, records, tables)
    if not all(record["exact"] for record in records):
        return 1
    kept = [promise.kept for promise in cases.promises(results["runs"].get("headlines", ())) if promise.found]
    return 0 if all(kept) else 2


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all numbers of agents")
    parser.add_argument("--short", action="store_true", help="every side once, for a moment")
    parser.add_argument("--only", nargs="+", choices=cases.SECTIONS, help="these sections")
    parser.add_argument("--rounds", type=int, default=cases.ROUNDS, help=f"of the headlines ({cases.ROUNDS})")
    parser.add_argument("--tables", action="store_true", help="tables and plot from the results that there are")
    return parser.parse_args(given)


def _run(asked: argparse.Namespace, results: dict[str, Any], console: Console) -> None:
    """The sections that were asked for; results are kept after each."""
    for section in asked.only or cases.SECTIONS:
        machine = pages.machine_now()
        plan = cases.headlines(asked.rounds) if section == "headlines" else cases.grid(full=asked.full)
        results.setdefault("runs", {})[section] = _runs(section, plan, console)
        results.setdefault("machines", {})[section] = machine
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _runs(section: str, plan: Iterable[tuple[int, cases.Case]], console: Console) -> list[dict[str, Any]]:
    todo, records = list(plan), list[dict[str, Any]]()
    with ducklake.postgres() as postgres:
        for at, (number, case) in enumerate(todo, 1):
            with pages.folders() as folder:
                records.append(sides.run(case, folder(), postgres) | {"round": number})
            console.print(f"{section} {at}/{len(todo)}: {_line(records[-1])}")
    return records


def _line(record: cases.Record) -> str:
    failures = f", failures {record['failures']}" if record["failures"] else ""
    return (
        f"{record['side']}, {record['agents']} agents of {record['rows']}, {record['profile']}: "
        f"{record['requests_per_s']:.0f} requests/s, {record['rows_per_s']:.0f} rows/s, p50 {record['p50_ms']:.0f} ms, "
        f"p99 {record['p99_ms']:.0f} ms, {record['files_per_s']:.1f} files/s, exact {record['exact']}{failures}"
    )


def _write(results: dict[str, Any], records: list[dict[str, Any]], tables: list[pages.Shown]) -> None:
    """The plot and the page."""
    about = pages.machine_text(results.get("machines", {}))
    if any(record["rows"] == 1 for record in records):
        (pages.PLOTS / plots.NAME).write_text(plots.by_agents(records))
        about += f"\n![Requests a second and their latency, by agents]({_relative(pages.PLOTS / plots.NAME)})\n"
    pages.PAGE.write_text(pages.between(pages.PAGE.read_text(), NAME, tables, about))


def _relative(path: Path) -> str:
    return path.relative_to(pages.PAGE.parent).as_posix()


if __name__ == "__main__":
    sys.exit(main())

"""Run the experiments, tell the findings, and write data, plots and tables for docs/experiments.md.

    run.py                     both experiments in two processes: about two minutes of two cores
    run.py --seeds 2           a quick look with fewer seeds; writes nothing
    run.py --plots             no runs: plots and tables from the data that is there
    run.py --iceberg           besides, ask Iceberg itself about every run of the first seed that it can judge
    run.py --json              the tables as JSON

The same program gives the same data, plots and tables, byte for byte. Exit status 1: an invariant is broken, or Iceberg
does not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Shown

from bench.experiments import clustering, path_statistics
from bench.experiments.iceberg import disagreements
from bench.experiments.plots import all_plots
from bench.experiments.records import Record, as_csv, from_csv, run_all
from bench.experiments.single_run import Broken
from bench.experiments.tables import Table, all_tables, in_page
from verify.differential.oracle import Oracle, OracleError

ROOT = Path(__file__).resolve().parent.parent.parent
EXPERIMENTS = (path_statistics, clustering)
PAGE = ROOT / "docs" / "experiments.md"
PLOTS = ROOT / "docs" / "plots"
JOBS = 2
WIDTH = 120
"""Of the tables in characters, without a terminal."""
TELL_EVERY = 500
"""Without a terminal: a line after so many runs."""

Item = TypeVar("Item")


def main(given: list[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    arguments = _arguments(given)
    try:
        records = _records(arguments)
        compared = _compare(arguments.quiet) if arguments.iceberg else None
    except (Broken, OracleError) as error:
        print(error, file=sys.stderr)
        return 1
    tables = all_tables(records)
    if arguments.seeds is None:
        PLOTS.mkdir(parents=True, exist_ok=True)
        if not arguments.plots:
            for name, found in records.items():
                (PLOTS / f"{name}.csv").write_text(as_csv(found))
        for name, svg in all_plots(records).items():
            (PLOTS / name).write_text(svg)
        if PAGE.exists():
            PAGE.write_text(in_page(PAGE.read_text(), tables))
    _report(tables, compared, as_json=arguments.json)
    return 0


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"processes ({JOBS})")
    parser.add_argument("--seeds", type=int, help="this many seeds, and write nothing")
    parser.add_argument("--plots", action="store_true", help="plots and tables from the data that is there")
    parser.add_argument("--iceberg", action="store_true", help="ask Iceberg, too")
    parser.add_argument("--json", action="store_true", help="the tables as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(given)


def _records(arguments: argparse.Namespace) -> dict[str, list[Record]]:
    """The results of both experiments. Raises `Broken`."""
    if arguments.plots:
        return {experiment.NAME: from_csv(PLOTS / f"{experiment.NAME}.csv") for experiment in EXPERIMENTS}
    found: dict[str, list[Record]] = {}
    for experiment in EXPERIMENTS:
        points = list(experiment.points())
        seeds = range(1, (arguments.seeds or experiment.SEEDS) + 1)
        runs = run_all(points, seeds, arguments.jobs)
        found[experiment.NAME] = list(_shown(runs, len(points) * len(seeds), experiment.NAME, arguments.quiet))
    return found


def _compare(quiet: bool) -> dict[str, int]:
    """Ask Iceberg about the first seed of every point without the precise check. Raises `Broken`, `OracleError`."""
    setups = [point.setup for experiment in EXPERIMENTS for point in experiment.points() if not point.setup.precise]
    writers = 0
    with Oracle() as oracle:
        answers = disagreements(oracle, [(setup, 1) for setup in setups])
        for setup, (count, problem) in zip(setups, _shown(answers, len(setups), "on Iceberg", quiet), strict=True):
            writers += count
            if problem is not None:
                raise Broken(f"Iceberg does not agree on {setup}, seed 1: {problem}")
    return {"runs": len(setups), "writers": writers}


def _shown(items: Iterable[Item], total: int, what: str, quiet: bool) -> Iterator[Item]:
    if quiet:
        yield from items
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield from progress.track(items, total=total, description=what)
    else:
        for number, item in enumerate(items, 1):
            yield item
            if number % TELL_EVERY == 0 or number == total:
                print(f"{what}: {number} of {total}", file=sys.stderr, flush=True)


def _report(tables: Sequence[Table], compared: dict[str, int] | None, *, as_json: bool) -> None:
    if as_json:
        results: dict[str, Any] = {
            table.name: {"title": table.title, "columns": table.columns, "rows": table.rows} for table in tables
        }
        print(json.dumps(results | ({"iceberg": compared} if compared else {}), indent=1, ensure_ascii=False))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in tables:
        shown = Shown(title=table.title, title_justify="left", title_style="bold")
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if number else "left", no_wrap=not number, overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    if compared is not None:
        console.print(f"Iceberg agrees on {compared['runs']} runs with {compared['writers']} writers.")


if __name__ == "__main__":
    sys.exit(main())

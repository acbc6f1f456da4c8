"""How long each page takes while agents commit: a thousand agents, a hundred tables, a million logged attempts.

    run.py                       four rounds of both loads, about nine minutes with what they need
    run.py --agents N --tables N --attempts N --seconds S --rounds N
    run.py --json                the figures as JSON on standard output, and nothing else
    run.py --show                no runs: tables and page from the results that there are

A data directory is filled by the tower's own code, and in each round a tower is started on a copy of it. An
administrator and an agent ask for every page, one after the other, over and over, while others commit: 200 commits a
second to one table, then 60 over all tables. Results go to docs/plots/bench/bench-page.json, a table into
docs/benchmarks.md. Exit status 1: a page was not shown, or 95 % of its answers took 300 ms or more; 2: the commits did
not reach their rate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commits import pages, servers
from bench.page import report
from bench.page.filling import Tell, fill
from bench.page.readers import Asked, NotShown, read
from bench.page.warehouse import Size
from bench.page.writers import LOADS, Load, ready, write, writers

RESULTS = pages.PLOTS / "bench-page.json"
SECONDS, ROUNDS = 30.0, 4
BEGIN_S = 1.0
"""Until the writers have connected."""
WARM_S = 3.0
"""Of each load, in which nothing is measured: each agent's first commit has the tower read its contract."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run. `seconds`: of each load, in each round; `warm_s`: before that."""

    size: Size
    seconds: float = SECONDS
    rounds: int = ROUNDS
    loads: Sequence[Load] = LOADS
    warm_s: float = WARM_S


def run(case: Case, folder: Path, tell: Tell) -> dict[str, Any]:
    """Fill a folder, and run it; what was measured. Raises `Trouble` and `NotShown` where it cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    tower, kept = folder / "tower", folder / "kept"
    tower.mkdir()
    secrets = fill(tower / "data", case.size, tell)
    tower.rename(kept)
    asked: dict[str, list[Asked]] = {load.name: [] for load in case.loads}
    loads: list[dict[str, Any]] = []
    turn = 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        for number in range(1, case.rounds + 1):
            for load in case.loads:
                turn += 1
                shutil.copytree(kept, tower)  # in the same place: tables name their files by their paths
                with servers.tower(tower, "none", 1, settings="") as server:
                    found, record = _one(case, load, number, turn, server, secrets, process)
                shutil.rmtree(tower)
                asked[load.name] += found
                loads.append(record)
                tell(_line(record, found))
    shown = [each for name, some in asked.items() for each in report.page_records(name, some)]
    return {"size": asdict(case.size), "seconds": case.seconds, "pages": shown, "loads": loads}


def _one(
    case: Case,
    load: Load,
    number: int,
    turn: int,
    server: servers.Server,
    secrets: list[str],
    process: ProcessPoolExecutor,
) -> tuple[list[Asked], dict[str, Any]]:
    """One load, with pages asked for meanwhile."""
    lasts_s = case.warm_s + case.seconds
    crew = writers(load, case.size, secrets, server.database, lasts_s, turn)
    os.sync()  # what was prepared is not to be flushed while the tower flushes its own
    process.submit(ready).result()
    begin_s = time.monotonic() + BEGIN_S
    writing = process.submit(write, server.uri, crew, load.rate, begin_s, lasts_s)
    time.sleep(max(0.0, begin_s + case.warm_s - time.monotonic()))
    to_s, from_s, before_s = begin_s + lasts_s, time.monotonic(), server.cpu_s()
    found = read(server.uri, server.database.parent, case.size, secrets, to_s, turn)
    cores = (server.cpu_s() - before_s) / (time.monotonic() - from_s)
    return found, report.load_record(load, number, writing.result(), begin_s + case.warm_s, to_s, cores)


def _line(record: report.Record, found: Sequence[Asked]) -> str:
    failures = f", failures {record['failures']}" if record["failures"] else ""
    slowest = max(found, key=lambda each: each.took_ms)
    return (
        f"round {record['round']}, {record['load']}: {record['commits_per_s']:.0f} commits/s of "
        f"{record['wanted_per_s']:.0f}, p50 {record['p50_ms']:.0f} ms, p99 {record['p99_ms']:.0f} ms{failures}, "
        f"{record['tower_cores']:.2f} cores of the tower; "
        f"{len(found)} pages, the slowest {slowest.address} ({slowest.took_ms:.0f} ms)"
    )


def main(given: list[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    asked = _arguments(given)
    console = Console(stderr=asked.json, width=None if sys.stdout.isatty() else pages.WIDTH)
    if asked.show:
        results: dict[str, Any] = json.loads(RESULTS.read_text())
    else:
        size = Size(asked.agents, asked.tables, asked.attempts)
        machine = pages.machine_now()
        try:
            with pages.folders() as folder:
                found = run(Case(size, asked.seconds, asked.rounds), folder(), console.print)
        except (servers.Trouble, NotShown) as error:
            print(f"page: {error}", file=sys.stderr)
            return 1
        results = {"machines": {"page": machine}, **found}
        if size == Size():
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    shown = report.tables(results["pages"], results["loads"])
    for table in shown:
        console.print(pages.on_terminal(table))
    if Size(**results["size"]) == Size():  # a smaller one is for a look, and not for the page
        about = pages.machine_text(results["machines"])
        pages.PAGE.write_text(pages.between(pages.PAGE.read_text(), "bench-page", shown, about))
    if asked.json:
        print(json.dumps(results))
    slow, light = report.too_slow(results["pages"]), report.not_reached(results["loads"])
    for fault in (*slow, *light):
        console.print(fault, style="bold red")
    return 1 if slow else 2 if light else 0


def _arguments(given: list[str] | None) -> argparse.Namespace:
    usual = Size()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=usual.agents, help=f"({usual.agents})")
    parser.add_argument("--tables", type=int, default=usual.tables, help=f"({usual.tables})")
    parser.add_argument("--attempts", type=int, default=usual.attempts, help=f"in the log ({usual.attempts})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each load in each round ({SECONDS:g})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"({ROUNDS})")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    parser.add_argument("--show", action="store_true", help="tables and page from the results that there are")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())

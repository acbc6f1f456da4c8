"""Torture the commit engine: new seeds of the simulation, and real towers that are killed, for as long as one likes.

    run.py --seed N            replay one seed of the simulation: its trace, and what was broken
    run.py --seconds S         new seeds for S seconds (default 60), then a summary
    run.py --hours H           likewise
    run.py --start N           the first seed (default: drawn from the clock, and printed)
    run.py --kill 0            without the towers that are killed with SIGKILL
    run.py --rows N            then rows at the door, until so many are acknowledged (default 100,000; 0: none)

A summary of faults, commits, answers and seeds is printed, and written to .cache/torture/summary.json. Exit status 1:
an invariant was broken; the seeds are printed, and replay exactly.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from verify.torture.chunks import Summary, pool, run_seeds
from verify.torture.kill import Broken, Launcher, Point, play, template
from verify.torture.rows import Plan
from verify.torture.rows import Report as Rows
from verify.torture.rows import torture as torture_rows
from verify.torture.simulate import simulate

ROOT = Path(__file__).resolve().parent.parent.parent
CHUNK = 50
FAILURES_MAX = 10
CLIENTS = 3
MOMENTS = ("before", "after", "torn")
STEPS_MAX = 1_000
TELL_EVERY_S = 30
SUMMARY = ROOT / ".cache" / "torture" / "summary.json"


def replay(seed: int) -> int:
    """One seed, with its trace."""
    outcome = simulate(seed)
    print(*outcome.trace, sep="\n")
    broken = len(outcome.violations)
    print(f"seed {seed}: {f'{broken} invariants were broken' if broken else 'no invariant was broken'}")
    return 1 if broken else 0


def simulate_for(seconds: float, start: int, workers: int) -> Summary:
    """New seeds from `start` on until the time is over, or too many have failed."""
    whole, next_seed = Summary(), start
    until_s = time.monotonic() + seconds
    told_s = time.monotonic()
    with pool(workers) as processes:
        running: set[Future[Summary]] = set()
        while running or time.monotonic() < until_s:
            while len(running) < 2 * workers and time.monotonic() < until_s and len(whole.failures) < FAILURES_MAX:
                running.add(processes.submit(run_seeds, range(next_seed, next_seed + CHUNK)))
                next_seed += CHUNK
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                whole.add(future.result())
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                acked, crashes = whole.counts["commits acked"], whole.counts["crashes"]
                print(
                    f"{whole.seeds:,} seeds, {acked:,} commits, {crashes:,} crashes, {len(whole.failures)} failures",
                    flush=True,
                )
    return whole


@dataclass(slots=True)
class Kills:
    """What became of the towers that were killed."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])


def kill_for(seconds: float) -> Kills:
    """Towers killed at every step, round after round, until the time is over or something broke."""
    kills, until_s = Kills(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="torture-") as home, Launcher(Path(home)) as launcher:
        fast = template(launcher)
        while not kills.broken:
            for at, when in product(range(1, STEPS_MAX), MOMENTS):
                if time.monotonic() >= until_s:
                    return kills
                try:
                    story = play(launcher, Point(at, when), clients=CLIENTS, fast=fast)
                except Broken as broken:
                    kills.broken.append(f"{when} step {at}: {broken}")
                    break
                kills.runs += 1
                kills.counts += story.counts
                kills.counts[f"killed {when} a step" if story.killed else "not reached"] += 1
                if at > story.steps:
                    break
    return kills


def report(summary: Summary, kills: Kills, rows: Rows, start: int) -> dict[str, object]:
    """What is printed and kept."""
    return {
        "first seed": start,
        "seeds": summary.seeds,
        "failures": [seed for seed, _ in summary.failures],
        "counts": dict(sorted(summary.counts.items())),
        "invariants checked": dict(sorted(summary.checked.items())),
        "runs of towers that were killed": kills.runs,
        "kills": dict(sorted(kills.counts.items())),
        "kills that broke something": kills.broken,
        "rows at the door": dict(sorted(rows.counts.items())),
        "what was wrong with the rows": rows.faults,
    }


def main() -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hours", type=float)
    parser.add_argument("--start", type=int)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kill", type=int, default=1)
    parser.add_argument("--rows", type=int, default=Plan().rows)
    given = parser.parse_args()
    if given.seed is not None:
        return replay(given.seed)
    seconds = given.hours * 3600 if given.hours else given.seconds
    start = given.start if given.start is not None else int(time.time()) % 1_000_000_000
    print(f"seeds from {start} on, for {seconds:g} s", flush=True)
    with ThreadPoolExecutor(1) as beside:
        killing = beside.submit(kill_for, seconds) if given.kill else None
        summary = simulate_for(seconds, start, max(1, given.workers - given.kill))
        kills = killing.result() if killing is not None else Kills()
    rows = Rows()
    if given.rows:
        rows = torture_rows(Plan(rows=given.rows, seed=start), tell=lambda line: print(line, flush=True))
    found = report(summary, kills, rows, start)
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for what, times in value.items():
                print(f"  {what:44} {times:>12,}")
        else:
            print(f"{name}: {value}")
    if summary.failures:
        print(summary.as_text())
    return 1 if summary.failures or kills.broken or rows.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""The simulator held against real writers: predicted and measured commits a second and success, side by side.

    simulated.py                 8, 32 and 128 writers, plain optimistic concurrency and group commit: about six minutes
    simulated.py --rounds N      so many rounds; each takes two minutes
    simulated.py --add           adds rounds to those that are kept

Nothing is fitted to what is predicted. Latencies are fitted to calls of the benchmark's storage (S3 profile) and of a
SQLite file; processor time, the clients' own included, comes of runs with one writer and with 256, which lack nothing
else. The predictions are made for runs as long as the measured ones. Writes docs/plots/bench/bench-simulator.json and
the tables in docs/simulator.md. Exit status 1: a predicted rate is 20 % or more off, or a table was not exact.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commits import group_clock, pages, sides
from bench.commits.operations import Spread
from bench.commits.pages import Shown, spread_text
from bench.commits.sides import OPTIMISTIC, PREPARED, WARM_S, Case
from icetower.demo import slow_io
from icetower_simulator.calibration import Fit, fitted, provider_section
from icetower_simulator.latencies import MIB, Provider, provider_from
from icetower_simulator.pool import run_one
from icetower_simulator.setup import Setup

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "simulator.md"
RESULTS = pages.PLOTS / "bench-simulator.json"
NAME = "bench"
WRITERS = (8, 32, 128)
SATURATED = 256
"""So many writers keep every processor busy: what is calibrated with them is not predicted."""
CALIBRATING = ((PREPARED, 1), (PREPARED, SATURATED), (OPTIMISTIC, SATURATED))
SECONDS = 8.0
ROUNDS = 3
SEEDS = 40
CLOSE_PCT = 20.0
CALLS = 400
AT_ONCE = 8
SIZES = (4 * 1024, 128 * 1024, MIB)
RATE_MAX = 900
CLIENT_CPU_MAX_MS = 50.0


def main(given: list[str] | None = None) -> int:
    """Calibrate, measure, predict, write, and answer with the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the measured runs ({ROUNDS})")
    parser.add_argument("--add", action="store_true", help="to the rounds that are kept")
    asked = parser.parse_args(given)
    if asked.rounds < (0 if asked.add else 1):
        parser.error("--rounds is a number above 0")
    if asked.add and not RESULTS.exists():
        parser.error(f"--add: there is no {RESULTS}")
    console = Console(width=None if sys.stdout.isatty() else pages.WIDTH)
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if asked.add else {}
    results: dict[str, Any] = {
        "machine": pages.machine_now(),
        "provider": kept.get("provider"),
        "rounds": kept.get("rounds", []),
    }
    if results["provider"] is None:
        with pages.folders() as folder:
            results["provider"] = measure_calls(folder())
    before = len(results["rounds"])
    for number in range(before + 1, before + asked.rounds + 1):
        results["rounds"].append(one_round(number, provider_of(results["provider"]), console))
        rows = rows_of(results["rounds"])
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results | {"rows": [row.to_json() for row in rows]}, indent=1) + "\n")
    rows = rows_of(results["rounds"])
    shown = [table(rows), processor_table([each["processors"] for each in results["rounds"]])]
    for each in shown:
        console.print(pages.on_terminal(each))
    console.print(results["provider"], markup=False)
    about = pages.machine_text({"measured": results["machine"]})
    PAGE.write_text(pages.between(PAGE.read_text(), "bench-simulator", shown, about))
    exact = all(run["exact"] for each in results["rounds"] for run in each["runs"])
    return 0 if exact and all(row.close for row in rows) else 1


def one_round(number: int, provider: Provider, console: Console) -> dict[str, Any]:
    """Calibrate processor time, measure, and predict, as a JSON object: whatever else the machine does is in all."""
    processors, runs = calibrate(number, provider, console)
    cases = [(side, writers) for side in (OPTIMISTIC, PREPARED) for writers in WRITERS]
    runs += [measured(side, writers, number, console) for side, writers in cases]
    predictions = [
        {"side": side, "writers": writers, "commits_per_s": rate, "success_pct": success}
        for side, writers in cases
        for rate, success in [predicted(setup_of(side, writers, processors), provider)]
    ]
    return {"processors": processors, "runs": runs, "predicted": predictions}


# -- calibration ------------------------------------------------------------------------------------------------------


def calibrate(number: int, provider: Provider, console: Console) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Processor time in milliseconds, as a setup has it, and the runs that tell it."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "groups.json"
        timed = ("bench.commits.group_clock", str(clock))
        runs = [
            measured(side, writers, number, console, timed if (side, writers) == (PREPARED, SATURATED) else ())
            for side, writers in CALIBRATING
        ]
        share = group_clock.share(clock)
    alone, busy, clients = runs
    processors = split_cpu(
        alone_ms=alone["server_cpu_ms"],
        busy_ms=1000 / busy["commits_per_s"],
        busy_size=busy["commits_per_s"] / busy["metadata_files_per_s"],
        busy_share=share,
    )
    return {"client_cpu_ms": client_cpu(clients["commits_per_s"], provider)} | processors, runs


def provider_of(section: str) -> Provider:
    return provider_from(NAME, tomllib.loads(section)["providers"][NAME], "the calibration")


def client_cpu(commits_per_s: float, provider: Provider) -> float:
    """The processor time of an attempt with which plain clients, so many that it runs out, come to a rate."""
    low, high = 0.0, CLIENT_CPU_MAX_MS
    while high - low > 0.05:
        middle = (low + high) / 2
        processors = {"client_cpu_ms": middle, "server_cpu_ms": 0.0, "group_cpu_ms": 0.0}
        found, _ = predicted(setup_of(OPTIMISTIC, SATURATED, processors), provider)
        low, high = (middle, high) if found > commits_per_s else (low, middle)
    return (low + high) / 2


def split_cpu(*, alone_ms: float, busy_ms: float, busy_size: float, busy_share: float) -> dict[str, float]:
    """Processor time of the tower, as a setup has it: for a commit, for its group, and for it as one of its group.

    Args:
        alone_ms: for a commit that is a group of its own.
        busy_ms: for a commit among `busy_size` in a group.
        busy_share: how much of that is its group's.
    """
    group_ms = 0.0
    if busy_size > 1:
        group_ms = min(max((alone_ms - busy_ms) / (1 - 1 / busy_size), 0.0), busy_ms * busy_size * busy_share)
    member_ms = busy_ms * busy_share - group_ms / busy_size
    return {"server_cpu_ms": busy_ms * (1 - busy_share), "group_cpu_ms": group_ms, "member_cpu_ms": member_ms}


def measure_calls(folder: Path) -> str:
    """Fit the storage of all sides, and a pointer in a SQLite file, as `icetower simulate calibrate` fits others."""
    folder.mkdir(parents=True)
    storage = slow_io.SlowFileIO(slow_io.properties("s3", 1))
    writes: dict[int, list[float]] = {}
    for size in SIZES:
        paths = [str(folder / f"{size}-{at}") for at in range(CALLS)]
        writes[size] = _timed(lambda path, size=size: _write(storage, path, size), paths)
    reads = _timed(lambda path: _read(storage, path), [str(folder / f"{SIZES[0]}-{at}") for at in range(CALLS)])
    with sqlite3.connect(folder / "pointer.db", isolation_level=None) as pointer:
        pointer.execute("create table pointers (place text)")
        pointer.execute("insert into pointers values ('')")
        texts = [str(at) for at in range(CALLS)]
        swaps = _timed(lambda text: pointer.execute("update pointers set place = ?", (text,)), texts, at_once=1)
        looks = _timed(lambda _: pointer.execute("select place from pointers").fetchone(), texts, at_once=1)
    fits: list[Fit] = [fitted(found) for found in (reads, looks, swaps)]
    return provider_section(NAME, fits[0], writes, fits[1], fits[2])


def _timed(call: Callable[[str], object], given: Sequence[str], at_once: int = AT_ONCE) -> list[float]:
    """Milliseconds of each call."""

    def timed(argument: str) -> float:
        began_s = time.monotonic()
        call(argument)
        return (time.monotonic() - began_s) * 1000

    if at_once == 1:
        return [timed(argument) for argument in given]
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(timed, given))


def _write(storage: slow_io.SlowFileIO, path: str, size: int) -> None:
    with storage.new_output(path).create() as file:
        file.write(b"\0" * size)


def _read(storage: slow_io.SlowFileIO, path: str) -> None:
    storage.new_input(path).open().read()


# -- predicted and measured -------------------------------------------------------------------------------------------


def setup_of(side: str, writers: int, processors: Mapping[str, float]) -> Setup:
    """What the writers of a side do: each begins anew as soon as it has been answered."""
    more: dict[str, Any] = dict(processors)
    return Setup(
        model="client",
        pattern="optimistic" if side == OPTIMISTIC else "group",
        writers=writers,
        cold=True,
        prepared=True,
        storage=NAME,
        catalog=NAME,
        duration_s=SECONDS,
        runtime_s=1e-5,
        runtime_sigma=0.0,
        runtime_floor_s=0.0,
        deadline_s=60.0,
        **more,
    )


def predicted(setup: Setup, provider: Provider) -> tuple[float, float]:
    """Commits a second and success in per cent, of what ends after the first second and before the end."""
    committed = ended = 0
    for seed in range(SEEDS):
        # A seed's run is the same up to any time: the shorter one is the first second of the longer.
        whole, warm = (
            run_one(replace(setup, duration_s=lasts_s), seed, {NAME: provider})
            for lasts_s in (setup.duration_s, WARM_S)
        )
        committed += whole.committed - warm.committed
        ended += whole.committed + whole.failed - warm.committed - warm.failed
    return committed / SEEDS / (setup.duration_s - WARM_S), 100 * committed / max(ended, 1)


def measured(side: str, writers: int, number_: int, console: Console, launcher: Sequence[str] = ()) -> dict[str, Any]:
    """One run, as `make bench-commit` makes it."""
    rate_max = min(RATE_MAX, writers * 12)
    with pages.folders() as folder:
        record = sides.run(Case(side, writers, "s3", SECONDS, number_, rate_max), folder(), launcher=launcher)
    console.print(
        f"{number_}: {side}, {writers} writers: {record['commits_per_s']:.2f} commits/s, "
        f"{100 * record['success']:.1f} %, exact {record['exact']}"
    )
    return record


@dataclass(frozen=True, slots=True)
class Row:
    """One side with so many writers, over the rounds. `difference`: of the rates, within each round, in per cent."""

    side: str
    writers: int
    predicted: tuple[Spread, Spread]
    measured: tuple[Spread, Spread]
    difference: Spread

    @property
    def close(self) -> bool:
        return abs(self.difference.median) < CLOSE_PCT

    def to_json(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "writers": self.writers,
            "predicted_commits_per_s": self.predicted[0].median,
            "predicted_success_pct": self.predicted[1].median,
            "measured_commits_per_s": self.measured[0].median,
            "measured_success_pct": self.measured[1].median,
            "difference_pct": self.difference.median if math.isfinite(self.difference.median) else None,
        }


def rows_of(rounds: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each side and number of writers that was predicted."""
    found: list[Row] = []
    for case in rounds[0]["predicted"]:
        key = (case["side"], case["writers"])
        reported = [_of(each["predicted"], key) for each in rounds]
        seen = [_of(each["runs"], key) for each in rounds]
        rates = [(one["commits_per_s"], other["commits_per_s"]) for one, other in zip(reported, seen, strict=True)]
        found.append(
            Row(
                *key,
                predicted=(Spread.of(rate for rate, _ in rates), Spread.of(each["success_pct"] for each in reported)),
                measured=(Spread.of(rate for _, rate in rates), Spread.of(100 * each["success"] for each in seen)),
                difference=Spread.of(100 * (rate / real - 1) if real else math.inf for rate, real in rates),
            )
        )
    return found


def _of(records: Sequence[Mapping[str, Any]], key: tuple[str, int]) -> Mapping[str, Any]:
    return next(each for each in records if (each["side"], each["writers"]) == key)


def table(rows: Sequence[Row]) -> Shown:
    """Predicted beside measured."""
    columns = (
        "side", "writers", "predicted commits/s", "measured commits/s", "difference %", "predicted success %",
        "measured success %", "within 20 %",
    )  # fmt: skip
    return Shown(
        "Predicted, and measured (least / median / greatest of the rounds)",
        columns,
        tuple(
            (
                row.side,
                str(row.writers),
                spread_text(row.predicted[0]),
                spread_text(row.measured[0]),
                " / ".join(f"{part:+.0f}" for part in astuple(row.difference)),
                spread_text(row.predicted[1]),
                spread_text(row.measured[1]),
                "yes" if row.close else "NO",
            )
            for row in rows
        ),
    )


def processor_table(processors: Sequence[Mapping[str, float]]) -> Shown:
    """What was calibrated besides latencies."""
    said = {
        "client_cpu_ms": f"plain clients, for each attempt (by the rate of {SATURATED} writers)",
        "server_cpu_ms": f"the tower, for each commit before its group (by the rate of {SATURATED} writers)",
        "group_cpu_ms": "the tower, for each group (by one writer beside them)",
        "member_cpu_ms": "the tower, for each commit of a group besides",
    }
    rows = tuple(
        (text, f"`{name}`", spread_text(Spread.of(each[name] for each in processors))) for name, text in said.items()
    )
    return Shown("Processor time, calibrated", ("of", "in a setup", "ms"), rows, left=2)


if __name__ == "__main__":
    sys.exit(main())

"""Audit a long history as a busy table has it, and parts of it; figures as JSON, a plot, and a table for docs/audit.md.

    run.py                    ten thousand commits: about two minutes
    run.py --commits 20000    a longer history
    run.py --plot FILE        where the plot goes (docs/plots/bench/bench-audit.svg)

The history is made first, as files on this machine's disk (`verify.histories.long`), and its making is not measured.
Three questions are asked of it: what audits of its first n commits cost; what audits that go on from a checkpoint
cost, by how many commits are new; and what the same number of new commits costs, by how large the table has become.
Each audit runs in a process of its own, and the median of some runs is told.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import orjson
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bench.experiments.plots import BLUE, GREEN, ORANGE, STYLE
from icetower.audit.auditor import Options, audit
from icetower.iceberg.metadata import parse
from icetower.storage.file_io import FileIOStorage
from icetower.table.head import HeadState
from verify.histories.long import LongHistory, into_folder

ROOT = Path(__file__).resolve().parents[2]
PLOT = ROOT / "docs" / "plots" / "bench" / "bench-audit.svg"
RUNS = 3
NEW = 500
"""New commits, where it is asked by the size of the table."""

Record = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    if arguments.one:
        _one(Path(arguments.one), arguments.after)
        return
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder)
        write, location = into_folder(table)
        history = LongHistory(write, location)
        started = time.perf_counter()
        sizes = _sizes(arguments.commits)
        live = {}
        for commits in range(NEW, arguments.commits + 1, NEW):
            history.run(NEW)
            live[commits] = history.files
            _metadata(table, commits).write_bytes(orjson.dumps(history.metadata()))
        print(f"{arguments.commits} commits made in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        ids = [snapshot["snapshot-id"] for snapshot in history.snapshots]
        found = {
            "whole": [_measured(table, size) | {"files": live[size]} for size in sizes],
            "going_on": [_measured(table, arguments.commits, ids[-new - 1]) | {"new": new} for new in _news(sizes)],
            "by_size": [_measured(table, size, ids[size - NEW - 1]) | {"files": live[size]} for size in sizes],
        }
    print(json.dumps(found, indent=1))
    arguments.plot.write_text(_plot(found))
    arguments.plot.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Audit a long history, and parts of it")
    parser.add_argument("--commits", type=int, default=10_000, help="a multiple of 2,000")
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _sizes(commits: int) -> list[int]:
    return [commits * part // 20 // NEW * NEW for part in (2, 5, 10, 15, 20)]


def _news(sizes: Sequence[int]) -> list[int]:
    return [1, 10, 100, *(size for size in sizes[:-1])]


def _metadata(table: Path, commits: int) -> Path:
    return table / "metadata" / f"{commits}.metadata.json"


def _measured(table: Path, commits: int, after: int | None = None) -> Record:
    """The median run of a process that does one audit and nothing else."""
    command = [sys.executable, "-m", "bench.audit.run", "--one", str(_metadata(table, commits))]
    command += [] if after is None else ["--after", str(after)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout) for _ in range(RUNS)]
    runs.sort(key=lambda run: run["seconds"])
    return {"commits": commits, **runs[RUNS // 2], "spread_s": [runs[0]["seconds"], runs[-1]["seconds"]]}


def _one(file: Path, after: int | None) -> None:
    data = file.read_bytes()

    async def story() -> Record:
        storage = FileIOStorage()
        started = time.perf_counter()
        head = HeadState(str(file), parse(data))
        report = await audit(head, storage, Options(after=after))
        seconds = time.perf_counter() - started
        await storage.close()
        assert not report.violations, report.violations[:3]
        return {
            "seconds": round(seconds, 3),
            "snapshots": report.checked.snapshots,
            "manifests": report.checked.manifests_read,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }

    print(json.dumps(asyncio.run(story())))


def _plot(found: dict[str, list[Record]]) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.2), layout=ConstrainedLayoutEngine())
        whole, going_on, by_size = figure.subplots(1, 3)
        whole.plot(*_points(found["whole"], "commits"), color=BLUE, marker="o")
        whole.set_title("The whole history")
        whole.set_xlabel("commits")
        whole.set_ylabel("seconds")
        going_on.plot(*_points(found["going_on"], "new"), color=GREEN, marker="o")
        going_on.set_title("Going on from a checkpoint")
        going_on.set_xlabel("new commits")
        by_size.plot(*_points(found["by_size"], "files"), color=ORANGE, marker="o")
        by_size.set_title(f"{NEW} new commits")
        by_size.set_xlabel("data files in the table")
        for axis in (whole, going_on, by_size):
            axis.set_ylim(bottom=0)
            axis.set_xlim(left=0)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _points(records: Sequence[Record], across: str) -> tuple[list[float], list[float]]:
    return [record[across] for record in records], [record["seconds"] for record in records]


if __name__ == "__main__":
    main()

"""Around the runs of all benchmarks: fresh folders, what machine it was, tables on a terminal and in a page."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.commits.operations import Spread

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "plots" / "bench"
WIDTH = 150
"""Of tables that go to no terminal."""


@contextmanager
def folders() -> Generator[Callable[[], Path]]:
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


def machine_text(machines: Mapping[str, Mapping[str, Any]]) -> str:
    """On what, and when, each section was measured."""
    lines = []
    for section, machine in machines.items():
        lines.append(
            f"{section}: {machine['when']}, commit {machine['commit']}, {machine['cpus']} cores ({machine['cpu']}), "
            f"{machine['memory_gib']} GiB, load average before {machine['load_before']}, Python {machine['python']}.  "
        )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Shown:
    """One table: all cells are text; all columns but the first `left` are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def spread_text(spread: Spread | None, *, single: bool = False) -> str:
    if spread is None:
        return "–"
    if single:
        return number(spread.median)
    return f"{number(spread.least)} / {number(spread.median)} / {number(spread.greatest)}"


def number(value: float) -> str:
    """Three digits that count."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def markdown(table: Shown) -> str:
    """A table of Markdown under its title."""
    rule = ["---" if at < table.left else "--:" for at in range(len(table.columns))]
    lines = [table.columns, tuple(rule), *table.rows]
    return f"**{table.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def on_terminal(shown: Shown) -> Table:
    """The table for a terminal."""
    table = Table(title=shown.title, title_justify="left", title_style="bold")
    for at, column in enumerate(shown.columns):
        table.add_column(column, justify="left" if at < shown.left else "right", overflow="fold")
    for row in shown.rows:
        table.add_row(*row)
    return table


def between(page: str, name: str, tables: Sequence[Shown], before_them: str = "") -> str:
    """The page with tables between its markers of that name. Raises `ValueError` where it has none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the page has no {begin} … {end}")
    content = "\n".join([before_them, *(markdown(table) for table in tables)])
    return f"{before}{begin}\n{content}\n{end}{after}"

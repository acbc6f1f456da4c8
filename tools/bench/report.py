"""Tables of the results: for the terminal, and as Markdown between the markers of docs/benchmarks.md. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.course import Promise, Record, promises
from bench.operations import Spread
from bench.sides import REFERENCE, SIDES

BEGIN, END = "<!-- bench-commit: begin -->", "<!-- bench-commit: end -->"


@dataclass(frozen=True, slots=True)
class Shown:
    """One table: all cells are text; all columns but the first `left` are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def promise_table(found: Sequence[Promise]) -> Shown:
    """PASS, or by how much it is short."""
    rows = tuple(
        (
            promise.name,
            f"{'at most' if promise.at_most else 'at least'} {_number(promise.wanted)} {promise.unit}".strip(),
            spread_text(promise.found),
            verdict(promise),
        )
        for promise in found
    )
    return Shown("Promises (least / median / greatest of the rounds; judged by the median)", _PROMISE_COLUMNS, rows)


_PROMISE_COLUMNS = ("what", "wanted", "measured", "")


def verdict(promise: Promise) -> str:
    if promise.found is None:
        return "not run"
    return "PASS" if promise.kept else f"short by {_number(promise.short_by)} {promise.unit}".strip()


def figure_table(title: str, records: Sequence[Record]) -> Shown:
    """A row for each side, number of writers and profile: medians, and the spread of the rate."""
    groups: defaultdict[tuple[str, int, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record["profile"], record["writers"], record["side"]].append(record)
    order = sorted(groups, key=lambda group: (group[0], group[1], SIDES.index(group[2])))
    rows = tuple(_figures(group, groups[group]) for group in order)
    columns = (
        "side", "storage", "writers", "commits/s", "success %", "p50 ms", "p99 ms", "retries each",
        "server CPU ms each", "metadata files/s", "exact",
    )  # fmt: skip
    return Shown(title, columns, rows, left=2)


def _figures(group: tuple[str, int, str], records: Sequence[Record]) -> tuple[str, ...]:
    profile, writers, side = group
    cpu = [record["server_cpu_ms"] for record in records if record["server_cpu_ms"] is not None]
    retries = [record["retries"] / record["tried"] if record["tried"] else 0.0 for record in records]
    return (
        side,
        "none (any)" if side == REFERENCE else {"none": "none", "s3": "S3"}[profile],
        str(writers),
        spread_text(Spread.of(record["commits_per_s"] for record in records), single=len(records) == 1),
        _number(_median(record["success"] * 100 for record in records)),
        _number(_median(record["p50_ms"] for record in records)),
        _number(_median(record["p99_ms"] for record in records)),
        _number(_median(retries)),
        _number(_median(cpu)) if cpu else "–",
        _number(_median(record["metadata_files_per_s"] for record in records)),
        "yes" if all(record["exact"] for record in records) else "NO",
    )


def history_table(curves: Mapping[str, Sequence[Sequence[float]]]) -> Shown:
    """Rates at a few lengths of history, and as a share of the first."""
    marks = sorted({int(point[0]) for points in curves.values() for point in points})
    chosen = [mark for mark in marks if mark in {1_000, 2_000, 5_000, 10_000, 15_000, 20_000}]
    rows = []
    for name, points in curves.items():
        at = {int(history): rate for history, rate in points}
        first = next((rate for _, rate in points if rate), math.nan)
        cells = [f"{_number(at[m])} ({at[m] / first * 100:.0f} %)" if m in at else "–" for m in chosen]
        rows.append((name, *cells))
    columns = ("commits/s after so many commits", *(f"{mark:,}" for mark in chosen))
    return Shown("History (in brackets: of the first value of the curve)", columns, tuple(rows))


def spread_text(spread: Spread | None, *, single: bool = False) -> str:
    if spread is None:
        return "–"
    if single:
        return _number(spread.median)
    return f"{_number(spread.least)} / {_number(spread.median)} / {_number(spread.greatest)}"


def _median(values: Any) -> float:
    known = [value for value in values if not math.isnan(value)]
    return Spread.of(known).median if known else math.nan


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def all_tables(results: Mapping[str, Any]) -> list[Shown]:
    """The tables of the sections that there are."""
    found: list[Shown] = []
    runs: Mapping[str, list[Record]] = results.get("runs", {})
    if runs.get("headlines"):
        found.append(promise_table(promises(runs["headlines"])))
        found.append(figure_table("The runs behind the promises", runs["headlines"]))
    if runs.get("grid"):
        found.append(figure_table("By number of writers (one run each)", runs["grid"]))
    if results.get("history"):
        found.append(history_table(results["history"]))
    return found


def markdown(table: Shown) -> str:
    """A table of Markdown under its title."""
    rule = ["---" if at < table.left else "--:" for at in range(len(table.columns))]
    lines = [table.columns, tuple(rule), *table.rows]
    return f"**{table.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def in_page(page: str, results: Mapping[str, Any]) -> str:
    """The page with the tables between its markers. Raises `ValueError` where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    told = "\n".join([machine_text(results), *(markdown(table) for table in all_tables(results))])
    return f"{before}{BEGIN}\n{told}\n{END}{after}"


def machine_text(results: Mapping[str, Any]) -> str:
    """On what, and when, each section was measured."""
    lines = []
    for section, machine in results.get("machines", {}).items():
        lines.append(
            f"{section}: {machine['when']}, commit {machine['commit']}, {machine['cpus']} cores ({machine['cpu']}), "
            f"{machine['memory_gib']} GiB, load average before {machine['load_before']}, Python {machine['python']}.  "
        )
    return "\n".join(lines) + "\n"

"""Tables of `make bench-commit`. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bench.commits.curve import Curves, medians
from bench.commits.operations import Spread
from bench.commits.pages import Shown, number, spread_text
from bench.commits.schedule import Promise, Record, promises
from bench.commits.sides import REFERENCE, SIDES


def promise_table(found: Sequence[Promise]) -> Shown:
    """PASS, or by how much it is short."""
    rows = tuple(
        (
            promise.name,
            f"{'at most' if promise.at_most else 'at least'} {number(promise.wanted)} {promise.unit}".strip(),
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
    return "PASS" if promise.kept else f"short by {number(promise.short_by)} {promise.unit}".strip()


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
        number(_median(record["success"] * 100 for record in records)),
        number(_median(record["p50_ms"] for record in records)),
        number(_median(record["p99_ms"] for record in records)),
        number(_median(retries)),
        number(_median(cpu)) if cpu else "–",
        number(_median(record["metadata_files_per_s"] for record in records)),
        "yes" if all(record["exact"] for record in records) else "NO",
    )


def history_table(curves: Curves) -> Shown:
    """Rates at a few lengths of history, and as a share of the first."""
    marks = sorted({int(point[0]) for points in curves.values() for point in points})
    chosen = [mark for mark in marks if mark in {1_000, 2_000, 5_000, 10_000, 15_000, 20_000}]
    rows = []
    for name, points in curves.items():
        at = dict(medians(points))
        first = next((rate for rate in at.values() if rate), math.nan)
        cells = [f"{number(at[m])} ({at[m] / first * 100:.0f} %)" if m in at else "–" for m in chosen]
        rows.append((name, *cells))
    columns = ("commits/s after so many commits", *(f"{mark:,}" for mark in chosen))
    return Shown("History (medians of the rounds; in brackets: of the first value of the curve)", columns, tuple(rows))


def _median(values: Any) -> float:
    known = [value for value in values if not math.isnan(value)]
    return Spread.of(known).median if known else math.nan


def all_tables(results: Mapping[str, Any]) -> list[Shown]:
    """The tables of the sections that there are."""
    found: list[Shown] = []
    runs: Mapping[str, list[Record]] = results.get("runs", {})
    if runs.get("headlines"):
        found.append(promise_table(promises(runs["headlines"], results.get("history", {}))))
        found.append(figure_table("The runs behind the promises", runs["headlines"]))
    if runs.get("grid"):
        found.append(figure_table("By number of writers (one run each)", runs["grid"]))
    if results.get("history"):
        found.append(history_table(results["history"]))
    return found

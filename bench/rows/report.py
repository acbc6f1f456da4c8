"""Tables of `make bench-rows`. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.commits.operations import Spread
from bench.commits.pages import Shown, number, spread_text
from bench.commits.report import promise_table
from bench.rows.cases import DUCKLAKE, SIDES, Record, key, promises


def all_tables(results: Mapping[str, Any]) -> list[Shown]:
    """The tables of the sections that there are."""
    found: list[Shown] = []
    runs: Mapping[str, list[Record]] = results.get("runs", {})
    if runs.get("headlines"):
        found.append(promise_table(promises(runs["headlines"])))
        found.append(figure_table("The runs behind the promises", runs["headlines"]))
    if runs.get("grid"):
        found.append(figure_table("By number of agents and rows a request (one run each)", runs["grid"]))
    return found


COLUMNS = (
    "side", "storage", "agents", "rows a request", "requests/s", "rows/s", "success %", "p50 ms", "p99 ms",
    "server CPU ms each", "clients CPU ms each", "data files/s", "exact",
)  # fmt: skip


def figure_table(title: str, records: Sequence[Record]) -> Shown:
    """A row for each side, number of agents, rows a request and profile: medians, and the spread of the rate."""
    groups: defaultdict[tuple[str, int, int, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    order = sorted(groups, key=lambda group: (group[2], group[3], group[1], SIDES.index(group[0])))
    return Shown(title, COLUMNS, tuple(_figures(group, groups[group]) for group in order), left=2)


def _figures(group: tuple[str, int, int, str], records: Sequence[Record]) -> tuple[str, ...]:
    side, agents, rows, profile = group

    def median(value: Callable[[Record], float | None]) -> str:
        known = [found for record in records if (found := value(record)) is not None and not math.isnan(found)]
        return number(Spread.of(known).median) if known else "–"

    return (
        side,
        "none (any)" if side == DUCKLAKE else {"none": "none", "s3": "S3"}[profile],
        str(agents),
        str(rows),
        spread_text(Spread.of(record["requests_per_s"] for record in records), single=len(records) == 1),
        median(lambda record: record["rows_per_s"]),
        median(lambda record: record["success"] * 100),
        median(lambda record: record["p50_ms"]),
        median(lambda record: record["p99_ms"]),
        median(lambda record: record["server_cpu_ms"]),
        median(lambda record: record["clients_cpu_ms"]),
        median(lambda record: record["files_per_s"]),
        "yes" if all(record["exact"] for record in records) else "NO",
    )

"""What the pages took, as tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.commits.operations import Operation, figures, percentile
from bench.commits.pages import Shown, number
from bench.page.readers import Asked
from bench.page.writers import LOADS, Load

LIMIT_MS = 300.0
"""A page's p95 is below it."""
REACHED_MIN = 0.95
"""Of the rate that a load is meant to have."""

Record = Mapping[str, Any]


def page_records(load: str, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """The figures of each page under one load, over all rounds."""
    by_page: dict[tuple[str, str], list[Asked]] = {}
    for each in asked:
        by_page.setdefault((each.visitor, each.page), []).append(each)
    return [_page(load, visitor, page, some) for (visitor, page), some in sorted(by_page.items())]


def _page(load: str, visitor: str, page: str, some: Sequence[Asked]) -> dict[str, Any]:
    took = sorted(each.took_ms for each in some)
    slowest = max(some, key=lambda each: each.took_ms)
    return {
        "load": load,
        "visitor": visitor,
        "page": page,
        "asked": len(took),
        "p50_ms": percentile(took, 50),
        "p95_ms": percentile(took, 95),
        "most_ms": took[-1],
        "slowest": slowest.address,
        "not_shown": sorted({f"{each.status} {each.address}" for each in some if each.status != 200})[:5],
    }


def load_record(
    load: Load, number: int, operations: Sequence[Operation], from_s: float, to_s: float, cores: float = 0.0
) -> dict[str, Any]:
    """What the writers of one run reached while pages were asked for; `cores`: processor time of the tower a second."""
    found = figures(operations, from_s=from_s, to_s=to_s)
    return {
        "load": load.name,
        "round": number,
        "wanted_per_s": load.rate,
        "commits_per_s": found.commits_per_s,
        "acknowledged": sum(operation.outcome == "ok" for operation in operations),
        "p50_ms": found.p50_ms,
        "p99_ms": found.p99_ms,
        "tower_cores": cores,
        "failures": found.failures,
    }


def too_slow(pages: Sequence[Record]) -> list[str]:
    """Pages whose p95 is not below the limit, and those that were not shown."""
    slow = [
        f"{each['page']} ({each['visitor']}, {each['load']}): p95 {each['p95_ms']:.0f} ms"
        for each in pages
        if each["p95_ms"] >= LIMIT_MS
    ]
    return slow + [f"{each['page']}: {each['not_shown'][0]}" for each in pages if each["not_shown"]]


def not_reached(loads: Sequence[Record]) -> list[str]:
    """Loads that were lighter than they were meant to be, or of which a commit failed."""
    return [
        f"{each['load']}, round {each['round']}: {each['commits_per_s']:.0f} of {each['wanted_per_s']:.0f} commits/s"
        + (f", failures {each['failures']}" if each["failures"] else "")
        for each in loads
        if each["commits_per_s"] < each["wanted_per_s"] * REACHED_MIN or each["failures"]
    ]


def tables(pages: Sequence[Record], loads: Sequence[Record]) -> list[Shown]:
    """Each page under both loads, and what the loads were."""
    found = {(each["visitor"], each["page"], each["load"]): each for each in pages}
    rows: list[tuple[str, ...]] = []
    for visitor, page in dict.fromkeys((each["visitor"], each["page"]) for each in pages):
        cells: list[str] = []
        for load in LOADS:
            one = found.get((visitor, page, load.name))
            names = ("p50_ms", "p95_ms", "most_ms")
            cells += ["–"] * 3 if one is None else [f"{one[name]:.0f}" for name in names]
        of_both = [found[visitor, page, load.name] for load in LOADS if (visitor, page, load.name) in found]
        kept = all(each["p95_ms"] < LIMIT_MS and not each["not_shown"] for each in of_both)
        asked = sum(each["asked"] for each in of_both)
        rows.append((page, visitor, str(asked), *cells, "PASS" if kept else "TOO SLOW"))
    headings = [f"{load.name}: {what}" for load in LOADS for what in ("p50", "p95", "most")]
    columns = ("page", "who looks", "asked", *headings, "")
    told = tuple(
        (
            each["load"],
            str(each["round"]),
            number(each["wanted_per_s"]),
            number(each["commits_per_s"]),
            number(each["p50_ms"]),
            number(each["p99_ms"]),
            f"{each['tower_cores']:.2f}",
            str(sum(each["failures"].values())),
        )
        for each in loads
    )
    return [
        Shown(f"Milliseconds until a page is there; wanted: a p95 below {LIMIT_MS:.0f}", columns, tuple(rows), left=2),
        Shown(
            "The commits meanwhile",
            ("load", "round", "wanted/s", "reached/s", "p50 ms", "p99 ms", "cores of the tower", "failed"),
            told,
        ),
    ]

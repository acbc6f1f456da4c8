"""The guide's failure modes, and its claim about retries: plain optimistic clients beside Icetower with contracts.

    isolation.py                 three rounds: under ten minutes
    isolation.py --full          the retry rate at four loads; a tug of war whose agents declare nothing to Icetower
    isolation.py --rounds N
    isolation.py --tables        no runs: tables, plot and page from the results that there are

Each round runs all sides, in turns from the front and from the back, each run on a fresh SQLite file and warehouse.
After it the table's rows are read and held against what every writer was told. Results go to
docs/plots/bench/bench-isolation.json, a plot beside it, tables into docs/benchmarks.md. Exit status 1: a side could not
be run; 2: Icetower's table was not exact, an orphan of its was not found or not attributed, or more of its commits were
retried than the document promises.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commits import claims, crashes, pages, sides
from bench.commits.claims import ALIGNED, HERD, ORPHAN, RATE, SILENT, TOGETHER, TUG, Case
from bench.commits.operations import Spread
from bench.commits.pages import PAGE, PLOTS, Shown, number, spread_text
from bench.commits.plots import isolation_plot
from bench.commits.servers import Trouble
from bench.commits.sides import DIRECT, REFERENCE, TOWER
from tools import java
from verify.rck import run as rck

ROOT = Path(__file__).resolve().parent.parent.parent

RESULTS, PLOT = PLOTS / "bench-isolation.json", "bench-isolation.svg"
SIDES = (DIRECT, REFERENCE, TOWER)
CLAIMS = ((HERD, ALIGNED), (TUG, ALIGNED), (RATE, TOGETHER), (RATE, ALIGNED), (ORPHAN, ALIGNED))
ROUNDS = 3
RATE_S = 12.0
LOAD_PER_S, LOADS_PER_S = 1.25, (0.5, 1.25, 2.5, 5.0)
"""At the first, plain clients retry about as often as the guide says."""
RETRIED_MAX = 0.03
"""The guide: "partition-aligned writes reduced retry rates from 30 percent to under 3 percent"."""

Record = Mapping[str, Any]


def course(rounds: int, *, full: bool = False) -> Iterator[tuple[Case, ...]]:
    """What is run, one after the other; those of one tuple at the same time, since they mostly wait.

    Every other round goes from the back, so that no side always comes first. Writers are killed in the first one: there
    it is done several times in one run.
    """
    for at in range(1, rounds + 1):
        for side in SIDES if at % 2 else SIDES[::-1]:
            for claim in (HERD, TUG, ORPHAN) if at == 1 else (HERD, TUG):
                yield (Case(claim, side, at),)
            if full and side == TOWER:
                yield (Case(TUG, SILENT, at),)
            for per_s in LOADS_PER_S if full else (LOAD_PER_S,):
                yield tuple(Case(RATE, side, at, layout, per_s, RATE_S) for layout in (ALIGNED, TOGETHER))


def run(cases: Sequence[Case], folder: Callable[[], Path], found_java: sides.Java) -> list[dict[str, Any]]:
    """Run cases at the same time; their figures. Raises `Trouble`."""

    def one(case: Case) -> dict[str, Any]:
        return (crashes if case.claim == ORPHAN else claims).run(case, folder(), found_java)

    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(one, cases))


# -- what it comes to -------------------------------------------------------------------------------------------------


def tables(records: Sequence[Record]) -> list[Shown]:
    """All tables, of the claims and sides that were run."""
    return [said_table(records), figure_table(records), orphan_table(records)]


def _of(records: Sequence[Record], claim: str, layout: str, side: str) -> list[Record]:
    """The runs of a side; of several loads, those at the usual one."""
    return [
        r
        for r in records
        if (r["claim"], r["layout"], r["side"]) == (claim, layout, side) and r["per_s"] in (0.0, LOAD_PER_S)
    ]


def spread(records: Sequence[Record], figure: str, scale: float = 1.0) -> Spread | None:
    """Of one figure over runs; None where there are none, or where it has no meaning."""
    values = [record[figure] * scale for record in records if record.get(figure) is not None]
    return Spread.of(values) if values else None


def said_table(records: Sequence[Record]) -> Shown:
    """What the document says, and what it was here."""
    load = f"{number(LOAD_PER_S)} appends a second"
    said = (
        (f"{load}, not partitioned: retried, %", "30", RATE, TOGETHER, "retried", 100),
        (f"{load}, a partition each: retried, %", "under 3", RATE, ALIGNED, "retried", 100),
        ("… land at the first try, %", "over 95", RATE, ALIGNED, "first", 100),
        ("a herd of ten: retries for its ten records", "9", HERD, ALIGNED, "retries_each", claims.HERD_AGENTS),
        ("… until the last of them has its answer, s", "–", HERD, ALIGNED, "herd_s", 1),
        ("tug of war of two on disjoint rows: retried, %", "–", TUG, ALIGNED, "retried", 100),
        ("… commits of the worse served, % of a fair share", "–", TUG, ALIGNED, "worse_off", 100),
    )
    rows = tuple(
        (what, words, *(spread_text(spread(_of(records, claim, layout, side), figure, scale)) for side in SIDES))
        for what, words, claim, layout, figure, scale in said
    )
    return Shown("What the guide says, and what it was (least / median / greatest)", _SAID_COLUMNS, rows, left=2)


_SAID_COLUMNS = ("", "the guide", *SIDES)


def figure_table(records: Sequence[Record]) -> Shown:
    """A row for each failure mode and side: medians, and the spread of what is retried."""
    rows = []
    loads = sorted({record["per_s"] for record in records if record["claim"] == RATE})
    for claim, layout in CLAIMS:
        for per_s in loads if claim == RATE else (0.0,):
            for side in (*SIDES, SILENT):
                own = [
                    r
                    for r in records
                    if (r["claim"], r["layout"], r["side"], r["per_s"]) == (claim, layout, side, per_s)
                ]
                if own:
                    rows.append(_figures(own))
    columns = (
        "claim", "side", "commits tried", "retried %", "retries each", "succeed %", "p50 ms", "p99 ms",
        "metadata files/s", "… a commit", "rows right",
    )  # fmt: skip
    return Shown("The runs (medians of the rounds; retried: least / median / greatest)", columns, tuple(rows), left=2)


def _figures(own: Sequence[Record]) -> tuple[str, ...]:
    first = own[0]
    about = f", {first['layout']}, {number(first['per_s'])} a second" if first["claim"] == RATE else ""

    def median(figure: str, scale: float = 1.0) -> str:
        found = spread(own, figure, scale)
        return "–" if found is None else number(found.median)

    return (
        first["claim"] + about,
        first["side"],
        str(sum(record["tried"] for record in own)),
        spread_text(spread(own, "retried", 100)),
        median("retries_each"),
        median("success", 100),
        median("p50_ms"),
        median("p99_ms"),
        median("metadata_per_s"),
        median("metadata_each"),
        "yes" if all(record["exact"] for record in own) else "NO",
    )


def orphan_table(records: Sequence[Record]) -> Shown:
    """What killed writers left, who found it, and what the others felt of it."""
    rows = []
    for side in SIDES:
        own = _of(records, ORPHAN, ALIGNED, side)
        if own:
            calm, crashing = (spread([record[part] for record in own], "p50_ms") for part in ("calm", "crashing"))
            others = min(record["crashing"]["success"] for record in own) * 100
            rows.append(
                (
                    side,
                    *(_sum(own, figure) for figure in _ORPHAN_FIGURES),
                    f"{spread_text(calm, single=True)} → {spread_text(crashing, single=True)}",
                    number(others),
                )
            )
    return Shown("Orphaned writers (one run each)", _ORPHAN_COLUMNS, tuple(rows))


_ORPHAN_FIGURES = (
    "killed", "orphaned_data", "found_data", "attributed", "orphaned_metadata", "found_metadata", "false_finds",
    "doubled",
)  # fmt: skip
_ORPHAN_COLUMNS = (
    "side", "killed", "data files left", "found", "attributed", "metadata files left", "found", "found wrongly",
    "rows doubled by the next life", "others' p50 ms before → meanwhile", "others succeed %",
)  # fmt: skip


def _sum(own: Sequence[Record], figure: str) -> str:
    values = [record[figure] for record in own]
    return "–" if None in values else number(sum(values))


def broken(records: Sequence[Record]) -> list[str]:
    """What of Icetower's is not as it must be, in words."""
    own = [record for record in records if record["side"] in (TOWER, SILENT)]
    found = [f"round {r['round']}, {r['claim']}: rows are missing, doubled or wrong" for r in own if not r["exact"]]
    aligned = spread([r for r in own if r["claim"] == RATE and r["layout"] == ALIGNED], "retried")
    if aligned is not None and aligned.median >= RETRIED_MAX:
        found.append(f"{aligned.median * 100:.1f} % of the commits to partitions of their own are retried")
    for r in own:
        if r["claim"] == ORPHAN:
            left = r["orphaned_data"]
            if not left == r["found_data"] == r["attributed"] or r["false_finds"]:
                found.append(
                    f"round {r['round']}: of {left} orphaned data files {r['found_data']} are found, "
                    f"{r['attributed']} attributed; {r['false_finds']} files are no orphans"
                )
    return found


# -- the command ------------------------------------------------------------------------------------------------------


def main(given: list[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    asked = _arguments(given)
    console = Console(width=None if sys.stdout.isatty() else pages.WIDTH)
    if not asked.tables:
        try:
            results = _run(asked, console)
        except (Trouble, java.NoJava, RuntimeError) as error:
            print(f"isolation: {error}", file=sys.stderr)
            return 1
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    results = json.loads(RESULTS.read_text())
    shown = tables(results["runs"])
    for table in shown:
        console.print(pages.on_terminal(table))
    (PLOTS / PLOT).write_text(isolation_plot(results["runs"], SIDES, CLAIMS[:-1], LOAD_PER_S))
    about = pages.machine_text(results["machines"])
    PAGE.write_text(pages.between(PAGE.read_text(), "bench-isolation", shown, about))
    wrong = broken(results["runs"])
    for line in wrong:
        print(f"isolation: {line}", file=sys.stderr)
    return 2 if wrong else 0


def _run(asked: argparse.Namespace, console: Console) -> dict[str, Any]:
    program = java.find()
    found_java = sides.Java(program, rck.jars(program))
    machine, records, began_s = pages.machine_now(), list[dict[str, Any]](), time.monotonic()
    for cases in course(asked.rounds, full=asked.full):
        with pages.folders() as folder:
            made = run(cases, folder, found_java)
        records += made
        for record in made:
            console.print(f"{time.monotonic() - began_s:.0f} s: {_line(record)}")
    return {"machines": {"isolation": machine}, "runs": records}


def _line(record: Record) -> str:
    failures = f", failures {record['failures']}" if record["failures"] else ""
    return (
        f"round {record['round']}: {record['claim']} ({record['layout']}): {record['side']}: "
        f"{record['retried'] * 100:.0f} % of {record['tried']} retried, {record['success'] * 100:.0f} % succeed, "
        f"p50 {record['p50_ms']:.0f} ms, {record['metadata_each']:.1f} metadata files a commit, "
        f"exact {record['exact']}{failures}"
    )


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more loads, and agents that declare nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"({ROUNDS})")
    parser.add_argument("--tables", action="store_true", help="tables, plot and page from the results that there are")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())

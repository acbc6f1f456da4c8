"""Agents that rewrite partitions while others append (apache/iceberg-python #1202): how much of their work is in vain?

    run.py                       8, 16 and 32 agents on every side, one round: some ten minutes
    run.py --full                three rounds, with the storage latency of S3
    run.py --short               every side once, four agents, a moment: whether it runs; writes nothing
    run.py --agents 8,32 --sides plain,tower --rounds 2 --scale 10 --storage s3

Half of the agents rewrite: each reads a partition, thinks for 1 to 60 s (`--scale` times shorter here), and overwrites
it; what is refused is read and thought again, five times at most. The others append to the same partitions, as often,
until the rewriters have ended; on the side `intents` they wait until the partition is free. After each run the table
must have every acknowledged row once, and every rewrite that was acknowledged. Results go to
docs/plots/bench/bench-rewriters.json, the table into docs/benchmarks.md; what was measured there for other numbers of
agents, sides or storages stays.

Exit status 1: a promise is not kept, or a side could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.commits import pages
from bench.commits.servers import Trouble
from bench.rewriters import report, sides, work
from bench.rewriters.sides import Record
from bench.rewriters.work import Case
from icetower.demo.latency import PROFILES

NAME = "bench-rewriters"
RESULTS = pages.PLOTS / "bench-rewriters.json"
AGENTS = (8, 16, 32)
FULL_ROUNDS = 3


def main(given: Sequence[str] | None = None) -> int:
    """Run, write, report, and answer with the exit status."""
    asked = _arguments(given)
    console = Console(width=None if sys.stdout.isatty() else pages.WIDTH)
    machines = {work.SECTION: pages.machine_now()}
    try:
        records = _runs(_cases(asked), console)
    except Trouble as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    console.print(pages.on_terminal(report.figure_table(records)))
    if not (asked.short or asked.no_page):
        every = with_others(RESULTS, records)
        _write(RESULTS, {"machines": machines, "runs": every})
        text, table = pages.PAGE.read_text(encoding="utf-8"), report.figure_table(every)
        about = pages.machine_text(machines)
        pages.PAGE.write_text(pages.between(text, NAME, [table], about), encoding="utf-8")
    broken = report.broken(records)
    for sentence in broken:
        console.print(sentence)
    return 1 if broken else 0


def _cases(asked: argparse.Namespace) -> Iterable[Case]:
    chosen = tuple(side for side in work.SIDES if side in (asked.sides or work.SIDES))
    if asked.short:
        return work.short(chosen)
    rounds = asked.rounds or (FULL_ROUNDS if asked.full else 1)
    storage = asked.storage or ("s3" if asked.full else "none")
    return work.cases(asked.agents or AGENTS, chosen, rounds, asked.scale, storage)


def _runs(wanted: Iterable[Case], console: Console) -> list[Record]:
    records: list[Record] = []
    for case in wanted:
        with pages.folders() as folder:
            records.append(sides.run(case, folder()))
        console.print(_line(records[-1]))
    return records


def _line(record: Record) -> str:
    return (
        f"{record['side']}, {record['agents']} agents, {record['profile']}: {record['failed']} of {record['due']} "
        f"rewrites failed, {100 * record['wasted']:.0f} % of {record['thought_s']:.0f} s of thinking wasted, "
        f"{record['took_s']:.0f} s, {record['wrong']} wrong rows {record['failures'] or ''}"
    )


def with_others(path: Path, records: Sequence[Record]) -> list[Record]:
    """The records, and those of before of other cases."""
    before: list[Record] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    new = {_case_of(record) for record in records}
    return [*(record for record in before if _case_of(record) not in new), *records]


def _case_of(record: Record) -> tuple[str, int, str]:
    return record["side"], record["agents"], record["profile"]


def _write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    def listed(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="three rounds, with the latency of S3")
    parser.add_argument("--short", action="store_true", help="every side once, for a moment")
    parser.add_argument("--agents", type=lambda text: tuple(map(int, listed(text))))
    parser.add_argument("--sides", type=listed)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--scale", type=float, default=20.0, help="so many times shorter than in life is thinking")
    parser.add_argument("--storage", choices=sorted(PROFILES), help="whose latency the storage has")
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())

"""Load keys into a ledger and measure, at each power of ten on the way, what a lookup and a written key cost.

    run.py                     a million keys, on SQLite in a directory that is deleted afterwards
    run.py --count 100000000   the full run: about 10 GB of disk, and 20 more while it is filled
    run.py --directory DIR     keep the database there; on the disk that is to be measured
    run.py --url URL           PostgreSQL: a database that has no ledger yet
    run.py --json              the figures as JSON

What is measured goes through `Ledger`, as in a tower: at each size 10,000 keys are written in groups of 500, one
transaction each. The others are filled in by the database itself, under random ids, which is what hashes look like.
Lookups are of random keys, half of which are there, so that neither cache nor position helps. They are measured one at
a time (what a single commit waits) and 100 together (what a busy tower pays), in runs of which the spread is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from icetower.ambient import SystemAmbient
from icetower.database import Database
from icetower.ledger.attempts import percentile
from icetower.ledger.ledger import Batch, Commit, CommitKey, Group, Ledger

GROUP = 500
RUNS = 5
LOOKUPS = 400
TOGETHER = 100
SEED = 20261121
WRITTEN = 10_000
TABLES = 16
LIFETIME_S = 365 * 24 * 3600


@dataclass(frozen=True)
class Figures:
    """What was measured with this many keys in the ledger. Times in microseconds; lists: one for each run.

    Attributes:
        lookup_p50_us, lookup_p99_us: one lookup at a time.
        together_us: a lookup, where 100 are asked for at once.
        write_us, write_cpu_us: a key written at this size; the second in processor time.
        size_bytes: of the database; 0 where it cannot be told.
    """

    keys: int
    lookup_p50_us: list[float]
    lookup_p99_us: list[float]
    together_us: list[float]
    write_us: float
    write_cpu_us: float
    size_bytes: int


def commit(number: int) -> Commit:
    owner = CommitKey(f"table-{number % TABLES}", "main", f"agent-{number % 97}", f"key-{number}")
    return Commit(owner, (number + 1,))


async def write(ledger: Ledger, start: int, end: int) -> tuple[float, float]:
    """Write keys as a tower does; seconds, and seconds of processor time."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for first in range(start, end, GROUP):
        commits = tuple(commit(number) for number in range(first, min(first + GROUP, end)))
        await ledger.write(Batch(groups=[Group("table", first, commits)]))
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def fill(database: Database, rows: int, expires_ms: int) -> None:
    """Rows as the ledger would have written them, under random ids.

    All of them at once: sorted, they go through the table's tree a single time, and not once for each batch.
    """
    if database.is_sqlite:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) "
        drawn = f"{numbers} SELECT randomblob(16) AS id, randomblob(8), 0, :expires FROM n ORDER BY 1"
    else:
        drawn = (
            "SELECT decode(md5(random()::text || i), 'hex') AS id, decode(substr(md5(i::text), 1, 16), 'hex'), 0, "
            "CAST(:expires AS BIGINT) FROM generate_series(1, :rows) AS i ORDER BY 1"
        )
    statement = text(f"INSERT INTO ledger_keys (id, snapshots, landed_ms, expires_ms) {drawn}")

    def work(connection: Connection) -> None:
        connection.execute(statement, {"rows": rows, "expires": expires_ms})

    if rows:
        database.run_now(work, write=True)


async def measure(ledger: Ledger, written: int, chance: random.Random) -> tuple[list[float], list[float], list[float]]:
    """Medians, 99th percentiles and means together of lookups, a value for each run."""
    p50, p99, together = list[float](), list[float](), list[float]()
    for _ in range(RUNS):
        taken_us: list[float] = []
        for _ in range(LOOKUPS):
            number = chance.randrange(2 * written)
            began_ns = time.perf_counter_ns()
            found = await ledger.find_commit(commit(number).owner)
            taken_us.append((time.perf_counter_ns() - began_ns) / 1000)
            if (found is not None) != (number < written):
                raise SystemExit(f"key {number} of {written} was {'found' if found else 'not found'}")
        p50.append(percentile(taken_us, 50))
        p99.append(percentile(taken_us, 99))
        owners = [[commit(chance.randrange(2 * written)).owner for _ in range(TOGETHER)] for _ in range(10)]
        began_ns = time.perf_counter_ns()
        for some in owners:
            await asyncio.gather(*(ledger.find_commit(owner) for owner in some))
        together.append((time.perf_counter_ns() - began_ns) / 1000 / TOGETHER / len(owners))
    return p50, p99, together


async def bench(ledger: Ledger, database: Database, count: int, path: Path | None, tell: Any) -> list[Figures]:
    stations = [station for power in range(3, 10) if (station := 10**power) < count]
    chance = random.Random(SEED)  # the same keys in every run
    figures: list[Figures] = []
    written = have = 0
    for keys in [*stations, count]:
        fresh = min(WRITTEN, keys - have)
        fill(database, keys - have - fresh, SystemAmbient().now_ms() + LIFETIME_S * 1000)
        wall_s, cpu_s = await write(ledger, written, written + fresh)
        have, written = keys, written + fresh
        p50, p99, together = await measure(ledger, written, chance)
        size_bytes = sum(p.stat().st_size for p in path.parent.glob(path.name + "*")) if path is not None else 0
        figures.append(Figures(keys, p50, p99, together, wall_s / fresh * 1e6, cpu_s / fresh * 1e6, size_bytes))
        tell(figures[-1])
    return figures


def spread(values: Sequence[float]) -> str:
    """The median of the runs, with the lowest and the highest."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def shown(figures: Figures) -> str:
    parts = (
        f"{figures.keys:,}",
        spread(figures.lookup_p50_us),
        spread(figures.lookup_p99_us),
        spread(figures.together_us),
        f"{figures.write_us:.0f}",
        f"{figures.write_cpu_us:.0f}",
        f"{figures.size_bytes / figures.keys:.0f}",
    )
    return "| " + " | ".join(parts) + " |"


HEADING = (
    "| keys | lookup p50, µs | lookup p99, µs | of 100 together, µs | written key, µs | its processor time, µs "
    "| bytes a key |\n|---|---|---|---|---|---|---|"
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.count < 1:
        raise SystemExit("--count must be at least 1")
    with ExitStack() as stack:
        path: Path | None = None
        url = given.url
        if url is None:
            directory = given.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            directory.mkdir(parents=True, exist_ok=True)
            path = place = directory / "ledger.db"
            if place.exists():
                raise SystemExit(f"{place} is there already; name another directory")
            url = f"sqlite:///{place}"
        database = Database(url)
        stack.callback(database.close)
        ledger = Ledger(database, SystemAmbient(), lifetime_s=LIFETIME_S)

        def tell(figures: Figures) -> None:
            if not given.json:
                print(shown(figures), flush=True)

        if not given.json:
            print(HEADING, flush=True)
        figures = asyncio.run(bench(ledger, database, given.count, path, tell))
    if given.json:
        json.dump([asdict(each) for each in figures], sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()

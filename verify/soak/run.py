"""Many agents over many tables, for minutes: memory flat, everybody served alike, no row lost.

    run.py                              1,000 agents over 100 tables for ten minutes
    run.py --minutes 2 --agents 200 --tables 20
    run.py --history 0                  no retention: histories grow, and with them what tables take
    run.py --trace                      follow allocations in the second half (slow; memory is then not judged)
    run.py --json                       the report as JSON

Exit status 1: the tower's memory grew in the second half, or came over 1 GiB; a principal's p95 is over twice that of
the median principal; a write failed; an acknowledged row is missing, or there twice. Rates are what the machine gives:
agents think, write, and wait for the answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from bench.commits import servers, verify
from bench.commits.operations import percentile
from bench.commits.shapes import FLAT
from icetower.agent import Tower
from icetower.recent import CACHE_MAX_BYTES
from verify.soak.agents import NAMESPACE, Agent, Work, rows_of, run
from verify.soak.judgement import MIB, Fairness, Memory, rows_faults

ROOT = Path(__file__).resolve().parent.parent.parent
HISTORY = 100
YOUNG_S = 30.0
"""Younger snapshots stay, here; elsewhere it is ten minutes."""
AGENTS_A_PROCESS = 200
PROCESSES_MAX = 2


@dataclass(frozen=True)
class Case:
    """A run. `history`: snapshots that each table keeps; 0: all. `commits`: of ten writes, not by the fast path."""

    agents: int = 1_000
    tables: int = 100
    seconds: float = 600.0
    think_s: float = 2.0
    commits: float = 5.0
    history: int = HISTORY
    seed: int = 1
    young_s: float = YOUNG_S
    trace: bool = False
    cache_bytes: int = CACHE_MAX_BYTES


def table_properties(case: Case) -> dict[str, str]:
    """What the tables of a run say."""
    found = {
        "icetower.blind-appends": "true",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "5",
    }
    if case.history:
        found["icetower.retention.snapshots-max"] = str(case.history)
    return found


def prepared(case: Case, server: servers.Server) -> tuple[Agent, ...]:
    """The tables, with a row each, and the agents under one contract."""
    with Tower(server.uri, server.token or "") as tower:
        catalog = load_catalog("soak", **tower.pyiceberg_properties())
        catalog.create_namespace(NAMESPACE)
        locations: dict[str, str] = {}
        for number in range(case.tables):
            name = f"t{number}"
            table = catalog.create_table(f"{NAMESPACE}.{name}", schema=FLAT.schema, properties=table_properties(case))
            table.append(FLAT.rows([{"id": number}]))
            locations[name] = table.location()
        lines = [f"version: 1\nagent: {NAMESPACE}\ntables:"]
        lines += [
            f"  - {{table: {NAMESPACE}.{name}, operations: [read, append], write_location: table, partitions: all, "
            "blind_appends: true}"
            for name in locations
        ]
        tower.apply_contract("\n".join(lines) + "\n")
        names = list(locations)
        return tuple(
            Agent(number, tower.create_principal(f"agent-{number}", NAMESPACE), name, locations[name])
            for number in range(1, case.agents + 1)
            for name in (names[number % len(names)],)
        )


def soaked(case: Case, folder: Path) -> dict[str, Any]:
    """One run in an empty folder: its figures, and what is wrong.

    `lost`: writes that failed, rows that are missing or doubled. `faults`: those, and what memory and p95s show.
    """
    memory_file = folder / "memory"
    launcher = ["verify.soak.served", str(memory_file), str(case.young_s)]
    if case.trace:
        launcher += [str(case.seconds / 3), str(case.seconds / 2)]
    with servers.tower(
        folder, "none", case.seed, launcher=launcher, settings=f"cache_max_bytes = {case.cache_bytes}\n"
    ) as server:
        agents = prepared(case, server)
        cpu_s = server.cpu_s()
        work = Work(server.uri, agents, case.seconds, case.think_s, case.commits, case.seed)
        operations = run(work, min(PROCESSES_MAX, -(-case.agents // AGENTS_A_PROCESS)))
        to_s = time.monotonic()
        used_s = server.cpu_s() - cpu_s
        database = server.database
    from_s = min((operation.start_s for operation in operations), default=to_s)
    samples = [json.loads(line) for line in memory_file.read_text().splitlines()]
    memory = Memory.of([(each["at_s"], each["rss_bytes"]) for each in samples], from_s, to_s)
    fairness = Fairness.of(operations)
    failed = Counter(operation.outcome for operation in operations if operation.outcome != "ok")
    faults = [f"{count} writes failed: {outcome}" for outcome, count in failed.most_common(5)]
    snapshots = 0
    for table, done in rows_of(operations, agents).items():
        metadata = verify.head_of(database, NAMESPACE, table)
        snapshots = max(snapshots, len(metadata["snapshots"]))
        faults += rows_faults(table, done, Counter(verify.row_ids(metadata)))
    during = [each for each in samples if from_s <= each["at_s"] <= to_s]
    times = sorted(operation.end_s - operation.start_s for operation in operations)
    return {
        "case": asdict(case),
        "writes": len(operations),
        "writes_per_s": len(operations) / (to_s - from_s),
        "p50_s": percentile(times, 50),
        "p95_s": percentile(times, 95),
        "tower_cpu": used_s / (to_s - from_s),
        "snapshots_max": snapshots,
        "fairness": asdict(fairness),
        "memory_bytes": asdict(memory),
        "memory_samples": [_sample(each, from_s) for each in during[:: max(1, len(during) // 12)]],
        "lost": faults,
        "faults": [*faults, *([] if case.trace else [*memory.faults(), *fairness.faults(case.agents)])],
    }


def _sample(line: Mapping[str, Any], from_s: float) -> dict[str, Any]:
    return {**line, "at_s": round(line["at_s"] - from_s, 1)}


def report(found: Mapping[str, Any]) -> None:
    """Figures for people."""
    memory, fairness = found["memory_bytes"], found["fairness"]
    print(f"{found['writes']:,} writes, {found['writes_per_s']:.0f}/s, p50 {found['p50_s']:.2f} s, ", end="")
    print(f"p95 {found['p95_s']:.2f} s; the tower used {found['tower_cpu']:.2f} processors")
    print(f"p95 by principal: median {fairness['median_s']:.2f} s, largest {fairness['worst_s']:.2f} s", end="")
    print(f" ({fairness['principals']} principals)")
    print(f"{'second':>8}{'resident':>10}{'counted':>9}{'allocated':>11}{'unused':>8}  MiB; caches")
    for each in found["memory_samples"]:
        allocator = each["allocator"]
        caches = ", ".join(f"{name} {size // MIB}" for name, size in each.get("caches", {}).items() if size >= MIB)
        print(f"{each['at_s']:>8.0f}{each['rss_bytes'] // MIB:>10,}{each.get('counted_bytes', 0) // MIB:>9,}", end="")
        print(f"{allocator.get('taken', 0) // MIB:>11,}{allocator.get('free', 0) // MIB:>8,}  {caches}")
    print(f"second half: {memory['begins'] / MIB:.0f} to {memory['ends'] / MIB:.0f} MiB", end="")
    print(f", largest {memory['largest'] / MIB:.0f} MiB; up to {found['snapshots_max']} snapshots a table")
    for fault in found["faults"]:
        print(f"FAILED {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--agents", type=int, default=Case.agents)
    parser.add_argument("--tables", type=int, default=Case.tables)
    parser.add_argument("--think", type=float, default=Case.think_s, help="seconds between two writes, on average")
    parser.add_argument("--commits", type=float, default=Case.commits, help="of ten writes, not by the fast path")
    parser.add_argument("--history", type=int, default=Case.history, help="snapshots that a table keeps; 0: all")
    parser.add_argument("--young", type=float, default=YOUNG_S, help="seconds before retention lets a snapshot go")
    parser.add_argument("--seed", type=int, default=Case.seed)
    parser.add_argument("--cache-mib", type=int, default=CACHE_MAX_BYTES // MIB, help="server.cache_max_bytes")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the tower's files, instead of a temporary one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    case = Case(
        given.agents, given.tables, 60 * given.minutes, given.think, given.commits, given.history, given.seed,
        given.young, given.trace, given.cache_mib * MIB,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="icetower-soak-") as place:
        found = soaked(case, given.keep or Path(place))
        trace = (given.keep or Path(place)) / "memory.trace"
        if trace.exists():
            print(trace.read_text())
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        report(found)
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Hostile inputs for as long as one likes: every one is read or refused as the input's fault, and soon.

    run.py --seconds S           about S seconds (default 60): two thirds in process, one third over the wire
    run.py --count N             N inputs of each kind in process, and a tenth of all over the wire
    run.py --kind K --seed N     one input again: what it is, and what becomes of it
    run.py --start N             the first seed (default 0)
    run.py --wire 0              nothing over the wire
    run.py --json                the report as JSON

Exit status 1: something was answered 5xx, raised what is no refusal, or took too long. The kinds and seeds are printed,
and replay exactly. Over the wire the tower's memory is read (`/proc`), `/healthz` is asked beside a control probe that
nothing disturbs, and polite agents commit to other tables. It is a failure if the tower holds 1 GiB, and, from 5,000
inputs over the wire, if `/healthz` takes 50 ms at p99 or 250 ms at p99.9, or if the polite agents fall below half of
their rate before the attack.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from verify.hostile.generate import KINDS, made
from verify.hostile.inside import Failure, tried
from verify.hostile.wire import Wire

ROOT = Path(__file__).resolve().parent.parent.parent
CHUNK = 100
PROCESSES = 2
ALONE_S = 10.0
"""For so long the polite agents are alone, before the attack over the wire."""


def chunk(kind: str, start: int, count: int) -> tuple[str, Counter[str], list[Failure]]:
    """Some inputs of one kind: how often each outcome came, and what failed."""
    outcomes: Counter[str] = Counter()
    failures: list[Failure] = []
    for seed in range(start, start + count):
        outcome, failure = tried(kind, seed)
        outcomes[outcome] += 1
        if failure is not None:
            failures.append(failure)
    return kind, outcomes, failures


def inside(start: int, count: int | None, seconds: float) -> tuple[dict[str, Counter[str]], list[Failure]]:
    """In process: so many of each kind, or for so long."""
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    failures: list[Failure] = []
    ends_s = time.monotonic() + seconds
    with ProcessPoolExecutor(PROCESSES) as pool:
        at = start
        while at - start < count if count is not None else time.monotonic() < ends_s:
            some = CHUNK if count is None else min(CHUNK, count - (at - start))
            for kind, found, failed in pool.map(chunk, KINDS, [at] * len(KINDS), [some] * len(KINDS)):
                outcomes[kind] += found
                failures += failed
            at += some
    return outcomes, failures


def report(outcomes: dict[str, Counter[str]], wire: dict[str, Any] | None, failures: list[Failure]) -> None:
    """A table: what was tried, and what became of it."""
    print(f"{'kind':14}{'inputs':>10}{'read':>10}{'refused':>10}{'failed':>8}  most frequent refusals")
    for kind, found in outcomes.items():
        total, read = sum(found.values()), found["read"]
        failed = sum(failure.kind == kind for failure in failures)
        rules = ", ".join(f"{rule} {n}" for rule, n in found.most_common(4) if rule not in ("read", "failed"))
        print(f"{kind:14}{total:>10,}{read:>10,}{total - read - found['failed']:>10,}{failed:>8}  {rules}")
    for key, value in (wire or {}).items():
        print(f"{key:34} {value}")
    for failure in failures[:20]:
        print(f"FAILED {failure.kind} --seed {failure.seed}: {failure.why}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--wire", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.kind is not None and given.seed is not None:
        print(repr(made(given.kind, given.seed)[:4_000]))
        outcome, failure = tried(given.kind, given.seed)
        print(f"{given.kind} --seed {given.seed}: {outcome if failure is None else failure.why}")
        return failure is not None
    outcomes, failures = inside(given.start, given.count, given.seconds * (2 / 3 if given.wire else 1))
    wire: dict[str, Any] | None = None
    if given.wire:
        total = None if given.count is None else max(1, given.count * len(KINDS) // 10)
        with tempfile.TemporaryDirectory(prefix="icetower-hostile-") as place:
            attack = Wire(Path(place))
            try:
                wire, found = attack.run(given.start, total, given.seconds / 3, alone_s=ALONE_S)
            finally:
                attack.stop()
        failures += found
    if given.json:
        reported = {kind: dict(found) for kind, found in outcomes.items()}
        failed = [{"kind": f.kind, "seed": f.seed, "why": f.why} for f in failures]
        print(json.dumps({"inside": reported, "wire": wire, "failures": failed}, indent=2))
    else:
        report(outcomes, wire, failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

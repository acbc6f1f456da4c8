"""Is the oracle sharp? The gate is mutated, in one way after the other, and each must be caught.

    mutations.py                    every mutation of mutations.txt, beginning with the case that caught it last
    mutations.py --anew             from the first case on
    mutations.py --part deletes     those of one part; may be repeated
    mutations.py --save             keep which case caught each, for the tests (caught.json)

A mutation is caught by the first case of which the judge says that something is wrong: a false pass, or a partition
that is taken for what it is not. Exit status 1: one that no case caught.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from verify.mutants import Mutation, parsed
from verify.oracle import generate
from verify.oracle.judge import judge
from verify.oracle.world import Gate

ROOT = Path(__file__).resolve().parent.parent.parent
CASES_MAX = 10_000
"""A mutation that survives so many cases is not caught."""

CAUGHT = Path(__file__).with_name("caught.json")
"""Mutation → the case that caught it last: the tests begin there."""

MUTATIONS = parsed(Path(__file__).with_name("mutations.txt").read_text().splitlines(), Mutation)


@dataclass(frozen=True, slots=True)
class Caught:
    """What became of a mutation: the case that caught it, and what was wrong; None where it survived."""

    mutation: Mutation
    case: int | None
    wrong: str | None = None


def hunt(mutation: Mutation, first: int = 0, cases_max: int = CASES_MAX) -> Caught:
    """Judge cases until one catches a mutation."""
    with Gate() as gate, mutation.applied():
        for number in range(first, first + cases_max):
            wrong = judge(gate, generate.case(number)).wrong
            if wrong is not None:
                return Caught(mutation, number, wrong)
    return Caught(mutation, None)


def hunt_again(mutation: Mutation, cases_max: int = CASES_MAX) -> Caught:
    """The same, beginning with the case that caught it last: others are judged where the gate or the cases changed."""
    known: dict[str, int] = json.loads(CAUGHT.read_text())
    if mutation.name in known:
        caught = hunt(mutation, known[mutation.name], 1)
        if caught.case is not None:
            return caught
    return hunt(mutation, 0, cases_max)


def main(given: list[str] | None = None) -> int:
    """Hunt them all, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", default=[], help="only the mutations of this part")
    parser.add_argument("--save", action="store_true", help="keep which case caught each")
    parser.add_argument("--anew", action="store_true", help="do not begin with the case that caught each last")
    parser.add_argument("--first", type=int, default=0, help="the first case (0)")
    parser.add_argument("--count", type=int, default=CASES_MAX, help=f"how many cases at most ({CASES_MAX})")
    arguments = parser.parse_args(given)
    chosen = [each for each in MUTATIONS if not arguments.part or each.rule in arguments.part]
    began_s = time.monotonic()
    found: dict[str, int] = {}
    for mutation in chosen:
        again = not (arguments.anew or arguments.first)
        count: int = arguments.count
        caught = hunt_again(mutation, count) if again else hunt(mutation, arguments.first, count)
        if caught.case is not None:
            found[mutation.name] = caught.case
        what = "NONE" if caught.case is None else f"case {caught.case}: {caught.wrong}"
        print(f"{mutation.rule:8} {mutation.name:64} {what[:160]}", flush=True)
    if arguments.save:
        known = json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}
        names = {mutation.name for mutation in MUTATIONS}
        kept = {name: case for name, case in sorted({**known, **found}.items()) if name in names}
        CAUGHT.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"\n{len(chosen)} mutations in {time.monotonic() - began_s:.0f} s, {len(chosen) - len(found)} not caught.")
    return 1 if len(found) < len(chosen) or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())

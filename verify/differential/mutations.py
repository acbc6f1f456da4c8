"""Is every rule of the conflict model held fast by the differential test? The model is mutated, and must be caught.

    mutations.py                    every mutation, against the listed interleavings and 1,000 random cases
    mutations.py --count 300        fewer random cases; --seed S others
    mutations.py --rule C1          the mutations of some rules or effects; may be repeated
    mutations.py --json             the report as JSON

`mutations.txt` holds the mutations. Each is put into the running model, and replays cases until its answer is another
than the model's; Iceberg then says who is right. Cases that come by the mutation's rule are tried first. Exit status 1:
a mutation that no case caught. Then it changes nothing that can be seen, or the cases lack something; hand-made ones
are in `tests/client_model/cases`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from icetower_client_model import cases
from icetower_client_model.replay import Trace, replay
from verify import mutants
from verify.differential import run
from verify.differential.compare import difference
from verify.differential.oracle import Oracle

ROOT = Path(__file__).resolve().parent.parent.parent

Outcome = Mapping[str, Any]

PACKAGE = "icetower_client_model"
LIST = Path(__file__).with_name("mutations.txt")
HAND_MADE = ROOT / "tests" / "client_model" / "cases"
"""Cases for what random ones meet too rarely, with Iceberg's outcomes."""


@dataclass(frozen=True, slots=True)
class Mutation(mutants.Mutation):
    """One change of the model. `rule`: an id of `checks.RULES` or an effect of `producer.EFFECTS`."""

    package: str = PACKAGE


def parsed(lines: Iterable[str]) -> tuple[Mutation, ...]:
    """The mutations of a list; its head tells the format. Raises `Stale`."""
    return mutants.parsed(lines, Mutation)


MUTATIONS = parsed(LIST.read_text().splitlines())
"""All of them, in the order of the list."""


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Caught:
    """What became of a mutation.

    Attributes:
        case: the name of the case that caught it; None if none did.
        tried: how many cases it replayed.
    """

    mutation: Mutation
    case: str | None
    tried: int


@dataclass(frozen=True, slots=True)
class Known:
    """A case with the model's own answer, and what the model came by."""

    name: str
    given: Mapping[str, Any]
    case: cases.Case
    outcome: Outcome
    trace: Trace

    def touches(self, rule: str) -> bool:
        """Whether the rule refused something or had something to look at, or whether the effect was seen."""
        trace = self.trace
        return bool(trace.fired[rule] or trace.considered[rule] or trace.effects[rule])


class Bench:
    """Cases on which mutations are tried, one after the other."""

    def __init__(self, oracle: Oracle, given: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        self._oracle = oracle
        self._known: list[Known] = []
        self._answers: dict[str, Outcome] = {}
        for name, each in given:
            case, trace = cases.parse(each), Trace()
            self._known.append(Known(name, each, case, replay(case, trace), trace))

    def attempt(self, mutation: Mutation) -> Caught:
        """Replay the cases with the mutation, those first that come by its rule, until one catches it."""
        in_order = sorted(self._known, key=lambda known: not known.touches(mutation.rule))
        with mutation.applied():
            for tried, known in enumerate(in_order, 1):
                if self._catches(known):
                    return Caught(mutation, known.name, tried)
        return Caught(mutation, None, len(in_order))

    def _catches(self, known: Known) -> bool:
        try:
            answer = replay(known.case)
        except Exception:  # noqa: BLE001  the test finds a model that fails, whatever it fails with
            return True
        # Where the mutant says what the model says, Iceberg does so too, and need not be asked: that is another test.
        return difference(known.outcome, answer) is not None and difference(self._iceberg(known), answer) is not None

    def _iceberg(self, known: Known) -> Outcome:
        if known.name not in self._answers:
            self._answers[known.name] = self._oracle.run(known.given)
        return self._answers[known.name]


def saved_cases() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Hand-made cases, and divergences of the past."""
    for folder in (HAND_MADE, run.SAVED):
        for path in sorted(folder.glob("*.json")):
            yield path.stem, json.loads(path.read_text())["case"]


def all_cases(seed: int, count: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What the differential test runs, and the saved cases: those first, as they are small and to the point."""
    yield from saved_cases()
    yield from run.listed_cases()
    yield from run.random_cases(seed, 0, count)


def described(caught: Sequence[Caught]) -> str:
    """The report for people: by rule, which case caught each mutation, after how many."""
    lines = [f"{'rule or effect':24} {'mutation':72} {'cases':>5}  caught by"]
    for each in caught:
        rule, name = each.mutation.rule, each.mutation.name
        lines.append(f"{rule:24} {name:72} {each.tried:5}  {each.case or 'NONE'}")
    return "\n".join(lines)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=run.COUNT, help=f"how many random cases ({run.COUNT})")
    parser.add_argument("--seed", type=int, default=run.SEED, help=f"of the first of them ({run.SEED})")
    parser.add_argument("--rule", action="append", default=[], help="only the mutations of this rule or effect")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Try every mutation, report, and answer with the exit status."""
    arguments, began_s = _arguments(given), time.monotonic()
    chosen = [each for each in MUTATIONS if not arguments.rule or each.rule in arguments.rule]
    with Oracle() as oracle:
        bench = Bench(oracle, all_cases(arguments.seed, arguments.count))
        caught = [bench.attempt(mutation) for mutation in chosen]
    took_s = time.monotonic() - began_s
    survivors = [each for each in caught if each.case is None]
    if arguments.json:
        report = {
            "seed": arguments.seed,
            "count": arguments.count,
            "took_s": round(took_s, 1),
            "mutations": [{**asdict(each.mutation), "caught_by": each.case, "cases": each.tried} for each in caught],
            "survivors": [each.mutation.name for each in survivors],
        }
        print(json.dumps(report, indent=1))
    else:
        print(described(caught))
        print(f"\n{len(caught)} mutations in {took_s:.0f} s, seed {arguments.seed}, {len(survivors)} not caught.")
    return 1 if survivors or not caught else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run cases through the model and through Iceberg itself, and say where they differ.

    run.py                     the listed interleavings and 1,000 random cases
    run.py --count 20000       more of them; --seed S and --start N say which (the cases of seeds S + N and on)
    run.py --listed-only       the listed interleavings alone
    run.py --json              the report as JSON
    run.py --save DIR          where minimal divergent cases are saved (tests/client_model/divergences)

It stops after five divergences; each is shrunk and saved with what Iceberg answers, as a test. At the end it tells how
often each rule was asked, refused a commit, and let one pass although it had something to look at. Exit status 1: a
divergence, or a rule or effect that at least 1,000 random cases never reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from icetower_client_model.checks import RULES
from icetower_client_model.figures import LISTED
from icetower_client_model.producer import EFFECTS
from icetower_client_model.replay import Trace, replay
from verify.differential import generate
from verify.differential.compare import difference, live
from verify.differential.oracle import Oracle
from verify.differential.shrink import shrink

ROOT = Path(__file__).resolve().parent.parent.parent

Case = dict[str, Any]

SEED = 20261121
COUNT = 1000
DIVERGENCES_MAX = 5
CHUNK = 50
"""How many cases go to Iceberg at once, while the model works on them, too."""
TELL_EVERY = 1000
"""Without a terminal: a line after so many cases."""
SAVED = ROOT / "tests" / "client_model" / "divergences"


@dataclass(frozen=True, slots=True)
class Answer:
    """One case, what Iceberg answered, and what is wrong with the model's answer (None: nothing)."""

    name: str
    case: Case
    outcome: Mapping[str, Any]
    problem: str | None
    crashed: bool = False
    """The model did not answer at all."""


@dataclass
class Coverage:
    """What a run reached: counts by rule id, effect, and (kind, verdict)."""

    evaluated: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    considered: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, trace: Trace) -> None:
        """Count one replay."""
        self.evaluated.update(trace.evaluated)
        self.fired.update(trace.fired)
        self.considered.update(trace.considered)
        self.effects.update(trace.effects)

    def count(self, case: Case, outcome: Mapping[str, Any]) -> None:
        """Count the verdicts of one case."""
        kinds = dict(_kinds(case["steps"]))
        for number, verdict in outcome["verdicts"].items():
            self.verdicts[kinds[int(number)], verdict["verdict"]] += 1

    def unreached(self) -> list[str]:
        """Rules that refused nothing, and effects that were not seen."""
        return [rule for rule in RULES if not self.fired[rule]] + [name for name in EFFECTS if not self.effects[name]]


def _kinds(steps: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    for step in steps:
        if "op" in step:
            yield step["id"], step["op"]["kind"]
        for slot in step.get("between", ()):
            yield from _kinds(slot)


def judge(name: str, case: Case, outcome: Mapping[str, Any], coverage: Coverage | None = None) -> Answer:
    """Ask the model, and compare its answer with Iceberg's."""
    if "error" in outcome:
        return Answer(name, case, outcome, f"Iceberg cannot be asked: {outcome['error']}")
    trace = Trace()
    try:
        actual = replay(case, trace=trace)
    except Exception:  # noqa: BLE001  a model that fails is a finding, whatever it fails with
        return Answer(name, case, outcome, f"the model failed:\n{traceback.format_exc(limit=-3)}", crashed=True)
    if coverage is not None:
        coverage.add(trace)
        coverage.count(case, outcome)
    return Answer(name, case, outcome, difference(outcome, actual))


def answers(
    oracle: Oracle, cases: Iterable[tuple[str, Case]], coverage: Coverage | None = None, chunk: int = CHUNK
) -> Generator[Answer]:
    """Every case through both, in order. Iceberg is a chunk ahead of the model, in a thread of its own."""
    waiting = iter(cases)
    with ThreadPoolExecutor(1) as pool:

        def ask() -> tuple[list[tuple[str, Case]], Future[list[dict[str, Any]]]] | None:
            batch = list(islice(waiting, chunk))
            return (batch, pool.submit(lambda: list(oracle.run_many([case for _, case in batch])))) if batch else None

        asked = ask()
        while asked is not None:
            (batch, outcomes), asked = asked, ask()
            for (name, case), outcome in zip(batch, outcomes.result(), strict=True):
                yield judge(name, case, outcome, coverage)


def smallest(oracle: Oracle, answer: Answer) -> Answer:
    """The divergence, shrunk to a minimal case that both can still read."""

    def diverges(case: Case) -> bool:
        outcome = oracle.run(case)
        if "error" in outcome:
            return False
        again = judge(answer.name, case, outcome)
        return again.problem is not None and again.crashed == answer.crashed

    if "error" in answer.outcome:
        return answer
    case = shrink(answer.case, diverges)
    return judge(answer.name, case, oracle.run(case))


def random_cases(seed: int, start: int, count: int) -> Iterator[tuple[str, Case]]:
    """`count` random cases from the seeds `seed + start` on."""
    for number in range(seed + start, seed + start + count):
        yield f"random-{number}", generate.case(number)


def listed_cases() -> Iterator[tuple[str, Case]]:
    """The interleavings that have names."""
    for name, listed in LISTED.items():
        yield name, dict(listed.case)


def save(answer: Answer, folder: Path) -> Path:
    """Keep a minimal case, with Iceberg's outcome, for the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{answer.name}.json"
    path.write_text(json.dumps({"case": answer.case, "outcome": answer.outcome}, indent=1) + "\n")
    return path


def described(answer: Answer) -> str:
    """A divergence for people: the case, what Iceberg says, what differs."""
    if "error" in answer.outcome:
        return f"{answer.name}: {answer.problem}\n{json.dumps(answer.case)}"
    data, deletes = live(answer.outcome)
    verdicts = "\n".join(f"  {number}: {json.dumps(verdict)}" for number, verdict in answer.outcome["verdicts"].items())
    return (
        f"{answer.name} diverges.\n{json.dumps(answer.case)}\nIceberg:\n{verdicts}\n"
        f"  live data {data}, live deletes {deletes}\nIceberg != model:\n{answer.problem}"
    )


def table(coverage: Coverage) -> str:
    """Rules and effects with their counts, and verdicts by kind of operation."""
    lines = [f"{'rule':26} {'evaluated':>10} {'refused':>10} {'passed, with candidates':>24}"]
    lines += [
        f"{rule:26} {coverage.evaluated[rule]:10} {coverage.fired[rule]:10} {coverage.considered[rule]:24}"
        for rule in RULES
    ]
    lines += ["", f"{'effect':26} {'seen':>10}", *(f"{name:26} {coverage.effects[name]:10}" for name in EFFECTS)]
    names = ("committed", "refused", "exhausted")
    lines += ["", f"{'operation':26} " + " ".join(f"{name:>10}" for name in names)]
    for kind in sorted({kind for kind, _ in coverage.verdicts}):
        lines.append(f"{kind:26} " + " ".join(f"{coverage.verdicts[kind, name]:10}" for name in names))
    return "\n".join(lines)


def _shown(answers: Iterator[Answer], total: int, quiet: bool) -> Iterator[Answer]:
    """The answers, with a progress bar on a terminal, and a line now and then elsewhere."""
    if quiet:
        yield from answers
    elif sys.stdout.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns) as progress:
            yield from progress.track(answers, total=total, description="cases")
    else:
        for number, answer in enumerate(answers, 1):
            yield answer
            if number % TELL_EVERY == 0 or number == total:
                print(f"{number} of {total} cases", flush=True)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=_count, default=COUNT, help="how many random cases (1000)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the first of them ({SEED})")
    parser.add_argument("--start", type=int, default=0, help="begin with this one")
    parser.add_argument("--listed-only", action="store_true", help="no random cases")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--save", type=Path, default=SAVED, metavar="DIR", help="where minimal cases go")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Run, report, and answer with the exit status."""
    arguments = _arguments(given)
    count = 0 if arguments.listed_only else arguments.count
    coverage, began_s = Coverage(), time.monotonic()
    found: list[Answer] = []

    def cases() -> Iterator[tuple[str, Case]]:
        yield from listed_cases()
        yield from random_cases(arguments.seed, arguments.start, count)

    done = 0
    with Oracle() as oracle:
        # Closed before anything is shrunk: until then a thread of its own asks the oracle.
        with closing(answers(oracle, cases(), coverage)) as answered:
            for answer in _shown(answered, len(LISTED) + count, arguments.json):
                done += 1
                if answer.problem is not None:
                    found.append(answer)
                if len(found) == DIVERGENCES_MAX:
                    break
        for number, answer in enumerate(found):
            found[number] = least = smallest(oracle, answer)
            saved = save(least, arguments.save)
            if not arguments.json:
                print(f"{described(least)}\nsaved as {saved}\n", flush=True)
    unreached = coverage.unreached() if count >= COUNT and not found else []
    _report(arguments, coverage, found, unreached, done, time.monotonic() - began_s)
    if not done:
        print("Nothing was compared.", file=sys.stderr)
    return 1 if found or unreached or not done else 0


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{count}: a number of cases, or 0")
    return count


def _report(
    arguments: argparse.Namespace,
    coverage: Coverage,
    found: list[Answer],
    unreached: list[str],
    done: int,
    took_s: float,
) -> None:
    """Print what was reached."""
    if arguments.json:
        report = {
            "seed": arguments.seed,
            "start": arguments.start,
            "cases": done,
            "took_s": round(took_s, 1),
            "rules": {
                rule: {
                    "evaluated": coverage.evaluated[rule],
                    "refused": coverage.fired[rule],
                    "passed_with_candidates": coverage.considered[rule],
                }
                for rule in RULES
            },
            "effects": {name: coverage.effects[name] for name in EFFECTS},
            "verdicts": {f"{kind} {verdict}": number for (kind, verdict), number in sorted(coverage.verdicts.items())},
            "divergences": [{"name": answer.name, "case": answer.case, "problem": answer.problem} for answer in found],
            "unreached": unreached,
        }
        print(json.dumps(report, indent=1))
        return
    print(table(coverage))
    print(f"\n{done} cases in {took_s:.0f} s, seed {arguments.seed}, {len(found)} divergences.")
    if unreached:
        print(f"Never reached: {', '.join(unreached)}.")


if __name__ == "__main__":
    sys.exit(main())

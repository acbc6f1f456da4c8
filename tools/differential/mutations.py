"""Is every rule of the conflict model held fast by the differential test? The model is mutated, and must be caught.

    mutations.py                    every mutation, against the listed interleavings and 1,000 random cases
    mutations.py --count 300        fewer random cases; --seed S others
    mutations.py --rule C1          the mutations of some rules or effects; may be repeated
    mutations.py --json             the report as JSON

`mutations.txt` holds the mutations. Each is put into the running model, and replays cases until its answer is another
than the model's; Iceberg then says who is right. Cases that come by the mutation's rule are tried first. Exit status 1:
a mutation that no case caught. Then it changes nothing that can be seen, or the cases lack something; hand-made ones
are in `tests/conflicts/cases`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
if __package__ in {None, ""}:
    sys.path.insert(0, str(ROOT / "tools"))

from differential import run  # noqa: E402
from differential.compare import difference  # noqa: E402
from differential.oracle import Oracle  # noqa: E402
from icetower.conflicts import cases  # noqa: E402
from icetower.conflicts.replay import Trace, replay  # noqa: E402

Outcome = Mapping[str, Any]

PACKAGE = "icetower.conflicts"
LIST = Path(__file__).with_name("mutations.txt")
HAND_MADE = ROOT / "tests" / "conflicts" / "cases"
"""Cases for what random ones meet too rarely, with Iceberg's outcomes."""


class Stale(Exception):
    """A mutation no longer fits the model, or the list of them is malformed; the message says where."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the model.

    Attributes:
        rule: whose mutation it is: an id of `checks.RULES` or an effect of `producer.EFFECTS`.
        where: the function, as ``module.function`` or ``module.Class.method`` below `icetower.conflicts`.
        name: what the mutant does.
        old, new: a text that the function holds once, and what it says instead.
    """

    rule: str
    where: str
    name: str
    old: str = ""
    new: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The running model with this change, while the context lasts. Raises `Stale`.

        The function stays the same object with other code, so that everybody who holds it has the mutant.
        """
        function = _function(self.where)
        code, mutant = function.__code__, self._code(function)
        function.__code__ = mutant
        try:
            yield
        finally:
            function.__code__ = code

    def _code(self, function: FunctionType) -> CodeType:
        text = textwrap.dedent(inspect.getsource(function))
        if text.count(self.old) != 1:
            raise Stale(f"{self.name!r}: {self.where} holds {self.old!r} {text.count(self.old)} times, not once")
        tree = ast.parse(text.replace(self.old, self.new))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list.clear()
        module = compile(tree, f"<{self.name}>", "exec")  # with this module's future features, which are the model's
        return next(each for each in module.co_consts if isinstance(each, CodeType))


def _function(where: str) -> FunctionType:
    module, *names = where.split(".")
    found: Any = importlib.import_module(f"{PACKAGE}.{module}")
    for name in names:
        found = inspect.getattr_static(found, name, None)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    if not isinstance(found, FunctionType):
        raise Stale(f"{PACKAGE} has no function {where}")
    return found


def parsed(lines: Iterable[str]) -> tuple[Mutation, ...]:
    """The mutations of a list; its head tells the format. Raises `Stale`."""
    found: list[Mutation] = []
    rule = where = part = ""
    for line in (line.rstrip("\n") for line in lines):
        text = line[4:]
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            rule, _, where = line.partition(" ")
        elif line.startswith(("  - ", "  + ")) and found:
            part = "old" if line[2] == "-" else "new"
            found[-1] = replace(found[-1], **{part: text})
        elif line.startswith("    ") and found:
            found[-1] = replace(found[-1], **{part: f"{getattr(found[-1], part)}\n{line[2:]}"})
        elif rule and where:
            found.append(Mutation(rule, where, line.strip()))
        else:
            raise Stale(f"{LIST.name}: {line!r} belongs to nothing")
    return tuple(found)


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


def told(caught: Sequence[Caught]) -> str:
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
        print(told(caught))
        print(f"\n{len(caught)} mutations in {took_s:.0f} s, seed {arguments.seed}, {len(survivors)} not caught.")
    return 1 if survivors or not caught else 0


if __name__ == "__main__":
    sys.exit(main())

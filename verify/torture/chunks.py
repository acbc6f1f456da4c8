"""Many seeds, side by side in processes; what they came to, added up."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from verify.torture.simulate import simulate

FAILURES_SHOWN_MAX = 5


@dataclass(slots=True)
class Summary:
    """What some seeds came to.

    Attributes:
        failures: for each failing seed, the first invariants that did not hold.
        counts: faults, answers and commits by kind. checked: how often each invariant was looked at.
    """

    seeds: int = 0
    failures: list[tuple[int, list[str]]] = field(default_factory=list[tuple[int, list[str]]])
    counts: Counter[str] = field(default_factory=Counter[str])
    checked: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: Summary) -> None:
        """Take in what others have found."""
        self.seeds += other.seeds
        self.failures += other.failures
        self.counts.update(other.counts)
        self.checked.update(other.checked)

    def as_text(self) -> str:
        """The failing seeds, and how to see them again."""
        lines = [
            f"seed {seed} (replay: python -m verify.torture.run --seed {seed})\n  " + "\n  ".join(found)
            for seed, found in self.failures[:FAILURES_SHOWN_MAX]
        ]
        more = len(self.failures) - len(lines)
        return "\n".join(lines + ([f"and {more} more seeds"] if more > 0 else []))


def run_seeds(seeds: Iterable[int]) -> Summary:
    """Run seeds one after the other, in this process."""
    summary = Summary()
    for seed in seeds:
        outcome = simulate(seed)
        found = [str(violation) for violation in outcome.violations[:3]]
        failures = [(seed, found)] if found else []
        summary.add(Summary(1, failures, outcome.counts, outcome.checked))
    return summary


def pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Processes that start fresh: nothing of this one's state is in them."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))

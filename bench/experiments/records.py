"""The points of an experiment, run over seeds in a few processes, and their results as records and as CSV."""

from __future__ import annotations

import csv
import io
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.experiments.single_run import RULES, Setup, Tally, run

COUNTS = ("writers", "committed", "true", "false", "unneeded", "overlaps", "wrong_rows", "runs", "rounds")
BY_RULE = tuple(f"{rule}_{kind}" for rule in RULES for kind in ("true", "false"))
CHUNK = 8

Record = Mapping[str, Any]
"""Labels of the point, `seed`, and the counts of the run's `Tally`."""


@dataclass(frozen=True, slots=True)
class Point:
    """A setup, and what an experiment calls it."""

    labels: Mapping[str, str | float]
    setup: Setup


def record(labels: Mapping[str, str | float], seed: int, tally: Tally) -> Record:
    """A run's results."""
    by_rule = {f"{rule}_true": tally.true_by[rule] for rule in RULES}
    by_rule |= {f"{rule}_false": tally.false_by[rule] for rule in RULES}
    return {**labels, "seed": seed} | {name: getattr(tally, name) for name in COUNTS} | by_rule


def run_all(points: Iterable[Point], seeds: Sequence[int], jobs: int) -> Iterator[Record]:
    """Every point with every seed, in this order, whatever the number of processes. Raises `course.Broken`."""
    tasks = [(point, seed) for point in points for seed in seeds]
    if jobs == 1:
        yield from map(_run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run, tasks, CHUNK)


def _run(task: tuple[Point, int]) -> Record:
    point, seed = task
    return record(point.labels, seed, run(point.setup, seed))


def as_csv(records: Sequence[Record]) -> str:
    """The records as CSV; columns that are 0 everywhere are left out, and zeros are empty."""
    columns = [name for name in records[0] if name not in BY_RULE or any(each[name] for each in records)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [each[name] if each[name] != 0 or name in ("scatter", "x") else "" for name in columns] for each in records
    )
    return out.getvalue()


def from_csv(path: Path) -> list[Record]:
    """What `as_csv` wrote."""
    with path.open(newline="") as lines:
        return [_typed(row) for row in csv.DictReader(lines)]


def _typed(row: Mapping[str, str]) -> Record:
    numbers = {"seed", *COUNTS, *BY_RULE}
    found: dict[str, Any] = dict.fromkeys(BY_RULE, 0)
    for name, text in row.items():
        found[name] = int(text or 0) if name in numbers else _number(text)
    return found


def _number(text: str) -> str | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def chosen(records: Iterable[Record], **labels: object) -> list[Record]:
    """The records with these labels."""
    return [each for each in records if all(each[name] == value for name, value in labels.items())]


def percent(records: Sequence[Record], *names: str) -> list[float]:
    """For each record, what share of its writers these counts are, in %."""
    return [100 * sum(each[name] for name in names) / each["writers"] for each in records]


def mean_percent(records: Sequence[Record], *names: str) -> float:
    """The mean over the records."""
    return fmean(percent(records, *names))

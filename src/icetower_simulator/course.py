"""An experiment from its first run to its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icetower.errors import UsageError
from icetower_simulator.experiments import Comparison, Experiment, Row, compare, mean_row, run_row
from icetower_simulator.pool import compile_now, gathered
from icetower_simulator.setup import MODELS

Told = Callable[[int, int], None]
"""Is told how many runs there are, and how many are done."""


@dataclass(frozen=True, slots=True)
class Course:
    """An experiment that was run.

    Attributes:
        wall_s: how long all runs took.
        rows: a row a configuration, means over the seeds; `each_run`: a row a run.
        compared: figures that were printed for this model, beside those found.
    """

    experiment: Experiment
    model: str
    seeds: int
    wall_s: float
    rows: tuple[Row, ...]
    each_run: tuple[Row, ...]
    compared: tuple[Comparison, ...]

    @property
    def runs(self) -> int:
        return len(self.each_run)

    def as_json(self) -> dict[str, Any]:
        """One object; what is not known is null."""
        return {
            "experiment": self.experiment.name,
            "model": self.model,
            "wall_s": round(self.wall_s, 3),
            "rows": [dict(row) for row in self.rows],
        }


def run(
    experiment: Experiment,
    model: str | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    workers: int | None = None,
    told: Told | None = None,
    now_s: Callable[[], float] = lambda: 0.0,
) -> Course:
    """Run an experiment. What is not given is as the experiment has it. Raises `UsageError`, `ConfigurationError`.

    Args:
        now_s: the clock by which it is timed, without what is compiled before.
    """
    chosen = model or experiment.model
    if chosen not in MODELS:
        raise UsageError(f"no model is called {chosen!r}; there are {', '.join(MODELS)}")
    count = experiment.runs_each(seeds)
    first = experiment.first_seed if first_seed is None else first_seed
    points = experiment.points(chosen)
    jobs = [(setup, first + number) for _, setup in points for number in range(count)]
    compile_now({setup.pattern for setup, _ in jobs})
    begun_s = now_s()
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        if told is not None:
            told(len(jobs), done)

    outcomes = gathered(jobs, workers, one_more, dict(experiment.providers))
    each_run: list[Row] = []
    rows: list[Row] = []
    for place, (swept, _) in enumerate(points):
        figures = [run_row(outcome, experiment.window) for outcome in outcomes[place * count : (place + 1) * count]]
        each_run += [swept | {"seed": first + number} | _known(row) for number, row in enumerate(figures)]
        rows.append(swept | mean_row(figures))
    return Course(
        experiment=experiment,
        model=chosen,
        seeds=count,
        wall_s=now_s() - begun_s,
        rows=tuple(rows),
        each_run=tuple(each_run),
        compared=tuple(compare(experiment, chosen, rows)),
    )


def _known(row: Row) -> Row:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}

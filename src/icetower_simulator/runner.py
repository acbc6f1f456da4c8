"""Runs an experiment: every configuration with every seed, summarised as rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icetower.errors import UsageError
from icetower_simulator.experiments import Comparison, Experiment, Row, compare, mean_row, run_row
from icetower_simulator.pool import compile_now, outcomes_of
from icetower_simulator.setup import MODELS

OnProgress = Callable[[int, int], None]
"""Called with the number of all runs and the number of finished ones."""


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """The result of an experiment.

    Attributes:
        wall_s: how long all runs took.
        rows: one row for each configuration, means over the seeds.
        each_run: one row for each run.
        compared: the published figures of this model, beside the simulated ones.
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
        """One object; unknown figures are null."""
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
    on_progress: OnProgress | None = None,
    now_s: Callable[[], float] = lambda: 0.0,
) -> ExperimentResult:
    """Run an experiment.

    Args:
        model, seeds, first_seed: instead of the experiment's own.
        workers: processes; None: one for each processor.
        now_s: the clock that times the runs; compilation is not included.

    Raises:
        UsageError: no model has that name.
        ConfigurationError: a configuration is invalid, or there are too many runs.
    """
    chosen = model or experiment.model
    if chosen not in MODELS:
        raise UsageError(f"no model is called {chosen!r}; there are {', '.join(MODELS)}")
    count = experiment.runs_each(seeds)
    first = experiment.first_seed if first_seed is None else first_seed
    points = experiment.points(chosen)
    jobs = [(setup, first + number) for _, setup in points for number in range(count)]
    compile_now({setup.pattern for setup, _ in jobs})
    started_s = now_s()
    done = 0

    def on_done() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(len(jobs), done)

    outcomes = outcomes_of(jobs, workers, on_done, dict(experiment.providers))
    each_run: list[Row] = []
    rows: list[Row] = []
    for place, (swept, _) in enumerate(points):
        figures = [run_row(outcome, experiment.window) for outcome in outcomes[place * count : (place + 1) * count]]
        each_run += [swept | {"seed": first + number} | _known(row) for number, row in enumerate(figures)]
        rows.append(swept | mean_row(figures))
    return ExperimentResult(
        experiment=experiment,
        model=chosen,
        seeds=count,
        wall_s=now_s() - started_s,
        rows=tuple(rows),
        each_run=tuple(each_run),
        compared=tuple(compare(experiment, chosen, rows)),
    )


def _known(row: Row) -> Row:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}

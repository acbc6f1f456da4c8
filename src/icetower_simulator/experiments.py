"""Experiments as files: a setup, the parameters that are swept, and published figures to compare with.

The rows of an experiment are means over its seeds, one row for each configuration.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from icetower.errors import ConfigurationError, UsageError
from icetower_simulator.latencies import PROVIDERS, Provider, provider_from
from icetower_simulator.setup import KINDS, MODELS, Setup, setup_from, timing
from icetower_simulator.tallies import BEGUN, WHOLE, Figures, Outcome

WINDOWS = {"begun": BEGUN, "whole": WHOLE}
DRAWINGS = ("lines", "heat")
POINTS_MAX, RUNS_MAX = 100_000, 1_000_000
"""Limits on the configurations of an experiment, and on the runs of all of them."""
CLOSE = 0.03
"""Two figures agree if they differ by this fraction at most, or round to the same text."""
_SECTIONS = {"title", "model", "window", "draw", "seeds", "first_seed", "setup", "sweep", "printed", "providers"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Printed:
    """Published figures of one model. A row has the swept parameters' values, as numbers, and figures, as text."""

    model: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment's file.

    Attributes:
        source: the file's name, for messages.
        window: `begun`: figures of the transactions that begin in the middle half of the run. `whole`: success over the
            whole run, latencies of the middle eight tenths.
        providers: the providers that a setup may name as storage and catalog: the package's, and the file's own.
        sweep: parameters of the setup and their values; every combination is a configuration.
    """

    name: str
    source: str
    title: str
    model: str
    window: str
    draw: str
    seeds: int
    first_seed: int
    setup: Mapping[str, Any]
    sweep: Mapping[str, tuple[Any, ...]]
    printed: tuple[Printed, ...] = field(default=())
    providers: Mapping[str, Provider] = field(default_factory=lambda: PROVIDERS)

    def points(self, model: str | None = None) -> list[tuple[Row, Setup]]:
        """Every configuration: the swept parameters' values, and the setup. Raises `ConfigurationError`."""
        names = list(self.sweep)
        found: list[tuple[Row, Setup]] = []
        for values in itertools.product(*self.sweep.values()):
            swept = dict(zip(names, values, strict=True))
            raw = {"model": model or self.model, **self.setup, **swept}
            found.append((swept, setup_from(raw, self.source)))
        return found

    def runs_each(self, seeds: int | None = None) -> int:
        """The number of runs of each configuration. Raises `ConfigurationError` if all runs are too many."""
        count = seeds or self.seeds
        if count * math.prod(len(values) for values in self.sweep.values()) > RUNS_MAX:
            raise ConfigurationError(
                f"{self.source}: {count:,} seeds for each configuration make more than {RUNS_MAX:,} runs; "
                "ask for fewer seeds"
            )
        return count


def names() -> list[str]:
    """The experiments that come with the package."""
    files = resources.files("icetower_simulator").joinpath("experiments").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load(name: str) -> Experiment:
    """An experiment of the package, or one from a file. Raises `UsageError`, `ConfigurationError`."""
    if name in names():
        text = resources.files("icetower_simulator").joinpath("experiments", f"{name}.toml").read_text()
        return parse(text, name, name)
    path = Path(name)
    if path.suffix != ".toml":
        raise UsageError(
            f"no experiment is called {name!r}; there are {', '.join(names())}, or name a file that ends in .toml"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} is not TOML: it is not UTF-8 ({error.reason})") from error
    return parse(text, path.stem, name)


def parse(text: str, name: str, source: str) -> Experiment:
    """An experiment from its TOML. Raises `ConfigurationError`, which names the source."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {error}") from error
    unknown = sorted(set(document) - _SECTIONS)
    if unknown:
        raise ConfigurationError(
            f"{source}: an experiment has no setting {', '.join(unknown)}; it has {', '.join(sorted(_SECTIONS))}"
        )
    tables = {key: document.get(key, {}) for key in ("setup", "sweep", "providers")}
    tables |= {f"providers.{key}": value for key, value in tables["providers"].items()} if _is_table(tables) else {}
    for key, value in tables.items():
        if not isinstance(value, dict):
            raise ConfigurationError(f"{source}: [{key}] must be a section of names and values, not {value!r}")
        if "model" in value:
            raise ConfigurationError(f"{source}: model must stand above all sections: it applies to every figure")
    sweep = document.get("sweep", {})
    if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
        raise ConfigurationError(f"{source}: [sweep] must have a list of values for each name")
    try:
        printed = tuple(_printed(each, sweep) for each in document.get("printed", []))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{source}: a [[printed]] must have a model, columns, and rows as long as these, whose figures are numbers "
            f"({error})"
        ) from error
    if math.prod(len(values) for values in sweep.values()) > POINTS_MAX:
        raise ConfigurationError(f"{source}: [sweep] has more than {POINTS_MAX:,} combinations")
    found = Experiment(
        name=name,
        source=source,
        title=str(document.get("title", name)),
        model=str(document.get("model", "published")),
        window=str(document.get("window", "begun")),
        draw=str(document.get("draw", "lines")),
        seeds=_whole(document, "seeds", 5, source),
        first_seed=_whole(document, "first_seed", 1, source),
        setup=dict(document.get("setup", {})),
        sweep={key: tuple(values) for key, values in sweep.items()},
        printed=printed,
        providers={
            **PROVIDERS,
            **{key: provider_from(key, value, source) for key, value in document.get("providers", {}).items()},
        },
    )
    for key, allowed in (("window", tuple(WINDOWS)), ("draw", DRAWINGS), ("model", tuple(MODELS))):
        if getattr(found, key) not in allowed:
            raise ConfigurationError(
                f"{source}: {key} must be one of {', '.join(allowed)}, not {getattr(found, key)!r}"
            )
    for _, setup in found.points():  # report a mistake before anything runs
        timing(setup, found.providers)
    for key, values in found.sweep.items():
        if len({tuple(value) if isinstance(value, list) else value for value in values}) < len(values):
            raise ConfigurationError(f"{source}: [sweep] {key} has a value twice; list each value once")
    return found


def _printed(raw: Mapping[str, Any], sweep: Mapping[str, Any]) -> Printed:
    """Raises `KeyError`, `TypeError`, `ValueError` if the section is invalid."""
    found = Printed(str(raw["model"]), tuple(raw["columns"]), tuple(tuple(row) for row in raw["rows"]))
    if found.model not in MODELS:
        raise ValueError(f"no model is called {found.model!r}")
    for row in found.rows:
        for name, value in zip(found.columns, row, strict=True):
            if name not in sweep and not math.isfinite(float(value)):
                raise ValueError(f"{name} is {value}")
    return found


def _is_table(tables: Mapping[str, Any]) -> bool:
    return isinstance(tables["providers"], dict)


def _whole(document: Mapping[str, Any], name: str, default: int, source: str) -> int:
    value = document.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**53:
        raise ConfigurationError(f"{source}: {name} must be a whole number above 0, not {value!r}")
    return value


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_row(outcome: Outcome, window: str) -> Row:
    """The figures of one run."""
    at = WINDOWS[window]
    row: Row = {"commits_per_s": outcome.commits_per_s}
    row |= _named(outcome.figures[at], "")
    fresh = outcome.fresh[at]
    row |= {"fresh_p50_s": fresh.p50_s, "fresh_p99_s": fresh.p99_s}
    for kind, figures in zip(KINDS, outcome.by_kind[at], strict=True):
        if figures.committed + figures.failed > 0:
            row |= _named(figures, f"{kind}_")
    row |= {
        name: getattr(outcome, name)
        for name in ("arrived", "in_flight", "swaps", "reads", "writes", "catalog_reads", "catalog_commits", "events")
    }
    return row


def _named(figures: Figures, prefix: str) -> Row:
    return {prefix + each.name: getattr(figures, each.name) for each in fields(Figures)}


def mean_row(runs: Sequence[Row]) -> Row:
    """The means over the seeds; `_sd` is the standard deviation. A figure that no seed has is None."""
    row: Row = {}
    names = dict.fromkeys(name for run in runs for name in run)
    for name in names:
        values = [float(run[name]) for run in runs if name in run and not math.isnan(run[name])]
        row[name] = fmean(values) if values else None
        row[f"{name}_sd"] = stdev(values) if len(values) > 1 else None
    return row


# ── Comparison with published figures ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Comparison:
    """A simulated figure beside the published one. `sd`: the standard deviation over the seeds."""

    where: Row
    figure: str
    printed: str
    found: float | None
    sd: float | None

    @property
    def difference_pct(self) -> float | None:
        if self.found is None or float(self.printed) == 0:
            return None
        return 100 * (self.found / float(self.printed) - 1)

    @property
    def agrees(self) -> bool:
        if self.found is None:
            return False
        decimals = len(self.printed.partition(".")[2])
        rounded = f"{self.found:.{decimals}f}" == f"{float(self.printed):.{decimals}f}"
        difference = self.difference_pct
        return rounded or (difference is not None and abs(difference) <= 100 * CLOSE)


def compare(experiment: Experiment, model: str, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Every published figure of the model, beside the row of its configuration."""
    for table in experiment.printed:
        if table.model != model:
            continue
        for values in table.rows:
            raw = dict(zip(table.columns, values, strict=True))
            where = {name: value for name, value in raw.items() if name in experiment.sweep}
            row = next((row for row in rows if all(row[name] == value for name, value in where.items())), None)
            for name, value in raw.items():
                if name not in where:
                    yield Comparison(where, name, str(value), *_figure(row, name))


def _figure(row: Row | None, name: str) -> tuple[float | None, float | None]:
    """A figure of a row, and its standard deviation; a name in `_min` means minutes."""
    if row is None:
        return None, None
    if name.endswith("_min"):
        seconds, deviation = _figure(row, f"{name.removesuffix('_min')}_s")
        return (None if seconds is None else seconds / 60, None if deviation is None else deviation / 60)
    return row.get(name), row.get(f"{name}_sd")

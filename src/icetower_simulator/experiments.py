"""Experiments as files: a setup, what is swept, and figures that were printed elsewhere, to be held against.

The rows of an experiment are means over its seeds, one row a configuration.
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
"""Configurations of an experiment, and runs of all of them."""
CLOSE = 0.03
"""Two figures agree that differ by this share at most, or that round to the same text."""
_SECTIONS = {"title", "model", "window", "draw", "seeds", "first_seed", "setup", "sweep", "printed", "providers"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Printed:
    """Figures that were printed for one model. A row: values of what is swept, as numbers, and figures, as texts."""

    model: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is simulated.

    Attributes:
        source: where it was read, for messages.
        window: `begun`: figures of the transactions that begin in the middle half of the run. `whole`: success over the
            whole run, latencies of the middle eight tenths.
        providers: what may be named as storage and catalog: those of the package, and the file's own.
        sweep: names of a setup's values, and all values of each; every combination is a configuration.
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
        """Every configuration: what is swept, and the setup. Raises `ConfigurationError`."""
        names = list(self.sweep)
        found: list[tuple[Row, Setup]] = []
        for values in itertools.product(*self.sweep.values()):
            swept = dict(zip(names, values, strict=True))
            given = {"model": model or self.model, **self.setup, **swept}
            found.append((swept, setup_from(given, self.source)))
        return found

    def runs_each(self, seeds: int | None = None) -> int:
        """How many runs each configuration gets. Raises `ConfigurationError`: too many in all."""
        count = seeds or self.seeds
        if count * math.prod(len(values) for values in self.sweep.values()) > RUNS_MAX:
            raise ConfigurationError(f"{self.source}: {count:,} seeds a configuration are more than {RUNS_MAX:,} runs")
        return count


def names() -> list[str]:
    """The experiments that come with the package."""
    files = resources.files("icetower_simulator").joinpath("experiments").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load(name: str) -> Experiment:
    """One that comes with the package, or one from a file. Raises `UsageError`, `ConfigurationError`."""
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
    """Raises `ConfigurationError`, which names the source."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {error}") from error
    unknown = sorted(set(document) - _SECTIONS)
    if unknown:
        raise ConfigurationError(
            f"{source}: {', '.join(unknown)} is nothing that an experiment has; it has {', '.join(sorted(_SECTIONS))}"
        )
    tables = {key: document.get(key, {}) for key in ("setup", "sweep", "providers")}
    tables |= {f"providers.{key}": value for key, value in tables["providers"].items()} if _is_table(tables) else {}
    for key, value in tables.items():
        if not isinstance(value, dict):
            raise ConfigurationError(f"{source}: [{key}] is a section of names and values, not {value!r}")
        if "model" in value:
            raise ConfigurationError(f"{source}: model stands above all sections, so that it is that of every figure")
    sweep = document.get("sweep", {})
    if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
        raise ConfigurationError(f"{source}: [sweep] has a list of values for each name")
    try:
        printed = tuple(_printed(each, sweep) for each in document.get("printed", []))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{source}: a [[printed]] has a model, columns and rows as long as these, and figures are numbers ({error})"
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
            raise ConfigurationError(f"{source}: {key} is one of {', '.join(allowed)}, not {getattr(found, key)!r}")
    for _, setup in found.points():  # a mistake is told before anything runs
        timing(setup, found.providers)
    for key, values in found.sweep.items():
        if len({tuple(value) if isinstance(value, list) else value for value in values}) < len(values):
            raise ConfigurationError(f"{source}: [sweep] {key} has a value twice; each is a configuration of its own")
    return found


def _printed(given: Mapping[str, Any], sweep: Mapping[str, Any]) -> Printed:
    """Raises `KeyError`, `TypeError`, `ValueError`: it is none."""
    found = Printed(str(given["model"]), tuple(given["columns"]), tuple(tuple(row) for row in given["rows"]))
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
        raise ConfigurationError(f"{source}: {name} is a whole number above 0, not {value!r}")
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
    """The means over the seeds; `_sd` is their standard deviation. What no seed has is None."""
    row: Row = {}
    names = dict.fromkeys(name for run in runs for name in run)
    for name in names:
        values = [float(run[name]) for run in runs if name in run and not math.isnan(run[name])]
        row[name] = fmean(values) if values else None
        row[f"{name}_sd"] = stdev(values) if len(values) > 1 else None
    return row


# ── Beside what was printed ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure beside the one that was printed. `sd`: by how much seeds differ."""

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
    """Every figure that was printed for the model, beside the row of its configuration."""
    for table in experiment.printed:
        if table.model != model:
            continue
        for values in table.rows:
            given = dict(zip(table.columns, values, strict=True))
            where = {name: value for name, value in given.items() if name in experiment.sweep}
            row = next((row for row in rows if all(row[name] == value for name, value in where.items())), None)
            for name, value in given.items():
                if name not in where:
                    yield Comparison(where, name, str(value), *_figure(row, name))


def _figure(row: Row | None, name: str) -> tuple[float | None, float | None]:
    """A figure of a row, and its deviation; `_min` asks for minutes."""
    if row is None:
        return None, None
    if name.endswith("_min"):
        seconds, deviation = _figure(row, f"{name.removesuffix('_min')}_s")
        return (None if seconds is None else seconds / 60, None if deviation is None else deviation / 60)
    return row.get(name), row.get(f"{name}_sd")

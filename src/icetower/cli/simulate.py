"""`icetower simulate`: experiments of the simulator, run here or on Spark, and compared with what was published."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from icetower.ambient import SystemAmbient
from icetower.cli.printing import show
from icetower.cli.registry import Json
from icetower.cli.terminal import say
from icetower.counting import counted
from icetower.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from icetower_simulator.experiments import Comparison
    from icetower_simulator.runner import ExperimentResult

simulate = typer.Typer(help="Simulate many writers to one table, or many.", no_args_is_help=True)

Model = Annotated[str | None, typer.Option(help="published, corrected or client; else the experiment's.")]
Seeds = Annotated[int | None, typer.Option(min=1, max=10_000, help="Runs of each configuration.")]
First = Annotated[int | None, typer.Option("--first-seed", min=0, help="The first seed; the others follow it.")]
Workers = Annotated[int | None, typer.Option(min=1, max=256, help="Processes; one a processor if not given.")]
Out = Annotated[Path | None, typer.Option(help="A folder for plots, CSV and Parquet.")]

REPRODUCED = (("1a", "published"), ("1a", "corrected"), ("1b", "published"), ("2a", "published"), ("2b", "published"))
"""The experiments and models that have published figures."""
SHOWN = ("commits_per_s", "success_pct", "p50_s", "p95_s", "p99_s", "mean_retries")


@simulate.command("list")
def list_experiments(as_json: Json = False) -> None:
    """List the experiments that come with Icetower.

    \b
    Example:
      icetower simulate list
    """
    experiments = needed("experiments")
    loaded = {name: experiments.load(name) for name in experiments.names()}
    if as_json:
        rows = [
            {"name": name, "title": each.title, "configurations": len(each.points()), "seeds": each.seeds}
            for name, each in loaded.items()
        ]
        say(json.dumps(rows))
        return
    for name, found in loaded.items():
        points, seeds = counted(len(found.points()), "configuration"), counted(found.seeds, "seed")
        say(f"{name:12} {points:>18}, {seeds:>8}  {found.title}")


@simulate.command("run")
def run(
    experiment: Annotated[str, typer.Argument(help="1a, 1b, 2a, 2b, another of `list`, or a TOML file.")],
    model: Model = None,
    seeds: Seeds = None,
    first_seed: First = None,
    workers: Workers = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run an experiment: a row for each configuration.

    \b
    Example:
      icetower simulate run 1a --seeds 3
    """
    runner = needed("runner")
    make_folder(out)
    with progress(quiet=as_json) as on_progress:
        found = needed("experiments").load(experiment)
        result = runner.run(found, model, seeds, first_seed, workers, on_progress, _now_s)
    if out is not None:
        _write(out, result)
    if as_json:
        say(json.dumps(result.as_json()))
        return
    _show_rows(result)
    if result.compared:
        _show_compared(result.compared)


@simulate.command("reproduce")
def reproduce(
    seeds: Seeds = None, first_seed: First = None, workers: Workers = None, out: Out = None, as_json: Json = False
) -> None:
    """Compare the published figures with simulated ones.

    It runs experiments 1a, 1b, 2a and 2b.

    Exit status 1: some figures agree neither by their rounding nor within 3 %.

    \b
    Example:
      icetower simulate reproduce --seeds 3
    """
    experiments, runner = needed("experiments"), needed("runner")
    make_folder(out)
    off = total = 0
    found: list[dict[str, Any]] = []
    for name, model in REPRODUCED:
        with progress(quiet=as_json) as on_progress:
            result = runner.run(experiments.load(name), model, seeds, first_seed, workers, on_progress, _now_s)
        if out is not None:
            _write(out, result)
        compared = [asdict(each) | {"agrees": each.agrees} for each in result.compared]
        found.append({"experiment": name, "model": model, "runs": result.runs, "compared": compared})
        if not as_json:
            say(f"{name}, model {model}: {counted(result.runs, 'run')} in {result.wall_s:.1f} s")
            _show_compared(result.compared)
        off += sum(not each.agrees for each in result.compared)
        total += len(result.compared)
    agree = f"{total - off} of {total} published figures agree, by their rounding or within 3 %"
    say(json.dumps({"agree": total - off, "figures": total, "experiments": found}) if as_json else agree)
    if off:
        raise typer.Exit(1)


def _now_s() -> float:
    return SystemAmbient().monotonic_s()


def needed(module: str) -> Any:
    """A module of the simulator, which needs more than the server does. Raises `UsageError`."""
    try:
        return import_module(f"icetower_simulator.{module}")
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").startswith("icetower"):
        return error
    return UsageError(f"the simulator needs more than the server ({error.name}): install icetower[simulator]")


@contextmanager
def progress(*, quiet: bool = False) -> Generator[Any]:
    """Yields a callback, to be called with the number of runs and the number of finished ones; None without a bar."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("runs", total=None)

        def on_progress(total: int, done: int) -> None:
            bars.update(task, total=total, completed=done)

        yield on_progress


def make_folder(out: Path | None) -> None:
    """Create the folder for results before anything is run. Raises `ConfigurationError`."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: the folder cannot be created: {error.strerror or error}") from error
    if not os.access(out, os.W_OK):
        raise ConfigurationError(f"--out {out} cannot be written to")


def _write(out: Path, result: ExperimentResult) -> None:
    """Write rows, runs and plots into a folder. Raises `ConfigurationError`."""
    from icetower_simulator.plots import plots

    stem = f"{result.experiment.name}-{result.model}"
    try:
        for kind, rows in (("", result.rows), ("-runs", result.each_run)):
            (out / f"{stem}{kind}.csv").write_text(_csv(rows))
            _parquet(out / f"{stem}{kind}.parquet", rows)
        for name, svg in plots(result.experiment, result.model, result.rows, result.compared).items():
            (out / f"{stem}{'-' if name else ''}{name}.svg").write_text(svg)
    except OSError as error:
        raise ConfigurationError(f"--out {out} cannot be written: {error.strerror or error}") from error


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    import csv
    import io

    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    names = list(dict.fromkeys(name for row in rows for name in row))
    parquet.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)


def _show_rows(result: ExperimentResult) -> None:
    shown = Table(
        title=f"{result.experiment.name}: {result.experiment.title}\nmodel {result.model}, "
        f"{counted(result.seeds, 'seed')}, "
        f"{counted(result.runs, 'run')} in {result.wall_s:.1f} s",
        title_justify="left",
        title_style="bold",
    )
    swept = list(result.experiment.sweep)
    kinds = [f"{kind}_success_pct" for kind in ("append", "overwrite")]
    kinds = kinds if all(any(row.get(kind) is not None for row in result.rows) for kind in kinds) else []
    columns = [*swept, *SHOWN, *kinds]
    for name in columns:
        shown.add_column(name.replace("_", " "), justify="right")
    for row in result.rows:
        shown.add_row(*(_text(name, row.get(name)) for name in columns))
    show(shown)


def _show_compared(compared: Sequence[Comparison]) -> None:
    shown = Table(title="compared with the published figures", title_justify="left", title_style="bold")
    shown.add_column("configuration", overflow="fold")
    shown.add_column("figure", no_wrap=True, min_width=21)
    for name, width in (("published", 9), ("found", 7), ("± seeds", 7), ("difference %", 12), ("", 6)):
        shown.add_column(name, justify="right", no_wrap=True, min_width=width)
    for each in compared:
        where = ", ".join(f"{name} {value}" for name, value in each.where.items())
        shown.add_row(
            where,
            each.figure,
            each.printed,
            _number(each.found),
            _number(each.sd),
            "" if each.difference_pct is None else f"{each.difference_pct:+.1f}",
            "agrees" if each.agrees else "OFF",
        )
    show(shown)


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if not name.endswith(("_s", "_pct", "retries")) else _number(value)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"

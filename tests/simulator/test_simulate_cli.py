"""`icetower simulate`: experiments from the package and from files, their output, and what is wrong with some."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from icetower.errors import ConfigurationError, UsageError
from icetower_simulator import runner
from icetower_simulator.experiments import Comparison, Experiment, compare, load, names, parse
from icetower_simulator.plots import plots

SMALL = """
title = "a small one"
window = "whole"
draw = "heat"
seeds = 2
[setup]
duration_s = 60
runtime_s = 5
runtime_floor_s = 1
[sweep]
fast_append_ratio = [1.0, 0.5]
inter_arrival_ms = [50, 500]
[[printed]]
model = "published"
columns = ["fast_append_ratio", "inter_arrival_ms", "append_success_pct"]
rows = [[1.0, 500, "100"], [1.0, 50, "3.0"]]
"""


def icetower(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("icetower")), "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "small.toml"
    path.write_text(SMALL)
    return path


def test_json_is_one_object_with_a_row_a_configuration(small: Path) -> None:
    done = icetower("run", str(small), "--json", "--model", "corrected", "--seeds", "3", "--workers", "1")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert list(report) == ["experiment", "model", "wall_s", "rows"]
    assert report["experiment"] == "small"
    assert report["model"] == "corrected"
    assert report["wall_s"] > 0
    assert [(row["fast_append_ratio"], row["inter_arrival_ms"]) for row in report["rows"]] == [
        (1.0, 50), (1.0, 500), (0.5, 50), (0.5, 500)
    ]  # fmt: skip
    for row in report["rows"]:
        assert {"commits_per_s", "success_pct", "p50_s", "p95_s", "p99_s", "mean_retries"} <= set(row)
        assert 0 < row["success_pct"] <= 100


def test_a_folder_gets_plots_and_rows_and_runs(small: Path, tmp_path: Path) -> None:
    done = icetower("run", str(small), "--out", str(tmp_path / "out"), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "OFF" in done.stdout
    assert "agrees" in done.stdout
    found = {path.name for path in (tmp_path / "out").iterdir()}
    stem = "small-published"
    assert {f"{stem}.csv", f"{stem}.parquet", f"{stem}-runs.csv", f"{stem}-runs.parquet"} <= found
    assert {f"{stem}-append-success.svg", f"{stem}-overwrite-latency.svg", f"{stem}-throughput.svg"} <= found
    with (tmp_path / "out" / f"{stem}-runs.csv").open() as lines:
        runs = list(csv.DictReader(lines))
    assert len(runs) == 8
    stored = parquet.read_table(tmp_path / "out" / f"{stem}.parquet").to_pylist()
    assert [row["inter_arrival_ms"] for row in stored] == [50, 500, 50, 500]


def test_the_list_names_every_experiment() -> None:
    done = icetower("list")
    assert done.returncode == 0, done.stderr
    for name in names():
        assert name in done.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("speed = 3", "an experiment has no setting speed"),
        ("x = [", "is not TOML"),
        ("draw = 'cake'", "draw must be one of lines, heat"),
        ("seeds = 0", "seeds must be a whole number above 0"),
        ("[setup]\nsped = 3", "a setup has no setting sped"),
        ("[sweep]\ninter_arrival_ms = 5", "[sweep] must have a list of values for each name"),
        ("[sweep]\ninter_arrival_ms = [5, -1]", "above 0"),
        ("[[printed]]\nmodel = 'published'", "a [[printed]] must have a model, columns, and rows"),
        ("setup = 3", "[setup] must be a section of names and values"),
        ("[providers]\nmine = 3", "[providers.mine] must be a section of names and values"),
        ("[setup]\nmodel = 'client'", "model must stand above all sections"),
        ("[sweep]\nmodel = ['client']", "model must stand above all sections"),
        ("seeds = true", "seeds must be a whole number above 0"),
        ("[setup]\nduration_s = nan", "duration_s must be between -1e+15 and 1e+15"),
        ("[sweep]\ninter_arrival_ms = [[5]]", "must be"),
        (
            "[sweep]\n" + "\n".join(f"{name} = {list(range(1, 60))}" for name in ("agents", "tables", "writers")),
            "more than 100,000 combinations",
        ),
        ("[sweep]\ninter_arrival_ms = [100, 50, 100.0]", "[sweep] inter_arrival_ms has a value twice"),
        ("[sweep]\nwindow_s = [[1, 2], [1, 2]]", "[sweep] window_s has a value twice"),
        ("[[printed]]\nmodel = 'published'\ncolumns = ['p50_s', 'p99_s']\nrows = [['1']]", "rows as long as these"),
        ("[[printed]]\nmodel = 'published'\ncolumns = ['p50_s']\nrows = [['fast']]", "could not convert"),
        ("[[printed]]\nmodel = 'publisched'\ncolumns = ['p50_s']\nrows = [['1']]", "no model is called 'publisched'"),
        ("[providers.x]\nget_ms = [-1, 0.1]\nput_ms = [1, 1, 0.1]\nswap_ms = [1, 1]", "the provider 'x': a latency"),
        (
            "[providers.x]\nget_ms = [1, 0]\nput_ms = [9, -9, 0]\nswap_ms = [1, 1]",
            "milliseconds per MiB must be 0 or more",
        ),
    ],
)
def test_an_experiment_that_is_none_says_why(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, "wrong", "there/wrong.toml")
    assert caught.value.message.startswith("there/wrong.toml")
    assert expected in caught.value.message


def test_more_runs_than_anybody_waits_for_are_none() -> None:
    text = "seeds = 1_000_000_000_000\n[setup]\nduration_s = 1"
    with pytest.raises(ConfigurationError, match="more than 1,000,000 runs"):
        runner.run(parse(text, "wrong", "wrong.toml"))
    assert runner.run(parse(text, "few", "few.toml"), seeds=2, workers=1).runs == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("run", "9z"), "no experiment is called '9z'"), (("run", "gone.toml"), "gone.toml cannot be read")],
)
def test_what_is_not_there_is_said(arguments: tuple[str, ...], expected: str) -> None:
    done = icetower(*arguments)
    assert done.returncode == 2
    assert expected in done.stderr


def test_what_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"title = '\xff'")
    done = icetower("run", str(tmp_path / "bytes.toml"))
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for command in (("run", "1b"), ("reproduce",)):
        done = icetower(*command, "--seeds", "10000", "--out", str(tmp_path / "taken"))
        assert done.returncode == 2
        assert "the folder cannot be created" in done.stderr


def test_nothing_is_nan_in_json_and_the_folder_may_be_there(small: Path, tmp_path: Path) -> None:
    """Nothing ends in these runs: what is not known is null."""
    text = SMALL.replace("runtime_floor_s = 1", "runtime_floor_s = 1000")
    (tmp_path / "endless.toml").write_text(text)
    for _ in range(2):
        done = icetower("run", str(tmp_path / "endless.toml"), "--json", "--out", str(tmp_path), "--workers", "3")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
        assert {row["success_pct"] for row in report["rows"]} == {None}
        assert {row["commits_per_s"] for row in report["rows"]} == {0.0}


@pytest.mark.parametrize("command", [("simulate", "run", "1a"), ("simulate", "list"), ("plan", "--log", "a.b")])
def test_without_the_extra_it_is_asked_for(command: tuple[str, ...]) -> None:
    program = "import sys; sys.modules['numba'] = None; from icetower.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "(numba): install icetower[simulator]" in done.stderr


def test_who_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C, as a terminal sends it to all processes of a command."""
    command = [str(Path(sys.executable).with_name("icetower")), "simulate", "run", "1b", "--seeds", "10000"]
    child = subprocess.Popen(
        [*command, "--workers", "2", "--out", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    while len(children.read_text().split()) < 2:  # the workers have been started
        assert child.poll() is None
    workers = children.read_text().split()
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode not in (0, None)
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    end_s = time.monotonic() + 60
    while any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers):
        assert time.monotonic() < end_s, "workers are left"


def test_a_model_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="no model is called 'ideal'; there are published, corrected, client"):
        runner.run(load("1a"), "ideal")


@pytest.mark.parametrize(
    ("printed", "found", "agrees"),
    [
        ("0.2", 0.163, True),
        ("0.2", 0.149, False),
        ("100", 97.1, True),
        ("100", 96.9, False),
        ("0", 0.4, True),
        ("0", 0.6, False),
        ("0.53", None, False),
    ],
)
def test_figures_agree_by_rounding_or_within_three_percent(printed: str, found: float | None, agrees: bool) -> None:
    assert Comparison({}, "p50_s", printed, found, None).agrees is agrees


def test_every_printed_figure_is_compared_and_stands_for_a_configuration() -> None:
    for name in names():
        experiment = load(name)
        rows = [swept for swept, _ in experiment.points()]
        for printed in experiment.printed:
            for values in printed.rows:
                where = {k: v for k, v in zip(printed.columns, values, strict=True) if k in experiment.sweep}
                assert where in [{key: row[key] for key in where} for row in rows], (name, where)
        models = {printed.model for printed in experiment.printed}
        figures = sum(len(p.rows) * sum(c not in experiment.sweep for c in p.columns) for p in experiment.printed)
        assert sum(len(list(compare(experiment, model, rows))) for model in models) == figures


def test_the_same_rows_give_the_same_plots() -> None:
    experiment: Experiment = parse(SMALL, "small", "small")
    found = runner.run(experiment, workers=1)
    once, again = (plots(experiment, found.model, found.rows, found.compared) for _ in range(2))
    assert once == again
    assert len(once) == 5

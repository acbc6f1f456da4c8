"""Providers of one's own: fitted to samples, read from files, and measured at a real catalog and storage."""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icetower.errors import ConfigurationError, UsageError
from icetower_simulator import runner
from icetower_simulator.calibration import fitted, fitted_writes, provider_section
from icetower_simulator.experiments import parse
from icetower_simulator.latencies import MIB, Latency, provider_from

EXPERIMENT = """
model = "client"
seeds = 1
[setup]
storage = "mine"
catalog = "mine"
duration_s = 120
runtime_s = 2
runtime_floor_s = 0
[sweep]
inter_arrival_ms = [100]
"""
WRITES_MS = {10_000: [4.5 + i / 100 for i in range(100)], MIB: [6.5 + i / 100 for i in range(100)]}


def samples(latency: Latency, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    mu = math.log(latency.median_ms)
    return [max(chance.lognormvariate(mu, latency.sigma), latency.floor_ms) for _ in range(count)]


@pytest.mark.parametrize("latency", [Latency(27, 0.62, 5), Latency(2, 0.1), Latency(170, 0.91)], ids=str)
def test_a_latency_is_found_again_in_its_samples(latency: Latency) -> None:
    fit = fitted(samples(latency, 20_000, 1))
    assert fit.latency.median_ms == pytest.approx(latency.median_ms, rel=0.03)
    assert fit.latency.sigma == pytest.approx(latency.sigma, rel=0.05)
    for part, measured, found in fit.percentiles:
        assert found == pytest.approx(measured, rel=0.1), part


def test_writes_are_fitted_by_their_size() -> None:
    found = {size: samples(Latency(60 + 20 * size / MIB, 0.29), 5000, size) for size in (10_000, MIB, 8 * MIB)}
    base, slope, sigma = fitted_writes(found)
    assert base == pytest.approx(60, rel=0.03)
    assert slope == pytest.approx(20, rel=0.05)
    assert sigma == pytest.approx(0.29, rel=0.05)


def test_constant_calls_have_no_spread() -> None:
    fit = fitted([5.0] * 30)
    assert fit.latency == Latency(5.0, 0.0, 5.0)
    with pytest.raises(UsageError, match="too few"):
        fitted([1.0] * 3)


def test_what_was_fitted_can_be_simulated() -> None:
    fit = fitted(samples(Latency(3.0, 0.2), 500, 1))
    section = provider_section("mine", fit, WRITES_MS, fit, fit)
    given = tomllib.loads(section)["providers"]["mine"]
    assert provider_from("mine", given, "here").get.median_ms == pytest.approx(3.0, rel=0.05)
    found = runner.run(parse(EXPERIMENT + section, "own", "own"), workers=1)
    assert found.rows[0]["p50_s"] < 0.1
    assert found.rows[0]["success_pct"] > 95
    spawned = runner.run(parse(EXPERIMENT + section, "own", "own"), seeds=2, workers=2)
    assert spawned.each_run[0] == found.each_run[0]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("[providers.mine]\nget_ms = [1, 0.1]\nput_ms = [1, 1, 0.1]", "lacks swap_ms"),
        (
            "[providers.mine]\nget_ms = [1]\nput_ms = [1, 1, 0.1]\nswap_ms = [1, 1]",
            "get_ms must be a list of 2 numbers",
        ),
        (
            "[providers.mine]\nget_ms = [1, 1]\nput_ms = [1, 1, 0.1]\nswap_ms = [1, 1]\nspeed = 1",
            "has no setting speed",
        ),
        ("[providers.mine]\nget_ms = [0, 1]\nput_ms = [1, 1, 0.1]\nswap_ms = [1, 1]", "must be positive"),
        ("", "no provider is called 'mine'"),
        ("[providers.s3]\nget_ms = [1, 1]\nput_ms = [1, 1, 0.1]\nswap_ms = [1, 1]", "already has that name"),
        (
            "[providers.mine]\nget_ms = [1, inf]\nput_ms = [1, 1, 0.1]\nswap_ms = [1, 1]",
            "get_ms must be a list of 2 numbers",
        ),
        (
            "[providers.mine]\nget_ms = [1, 1]\nput_ms = [1, -9, 0.1]\nswap_ms = [1, 1]\nfloor_ms = 'x'",
            "floor_ms must be a num",
        ),
    ],
)
def test_a_provider_that_is_none_says_why(section: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected.replace("(", "\\(")):
        parse(EXPERIMENT + section, "own", "own")


def calibrate(name: str, folder: Path, *program: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(program or (str(Path(sys.executable).with_name("icetower")),)),
        "simulate", "calibrate", name, "--count", "20",
        "-p", "type=sql", "-p", f"uri=sqlite:///{folder}/catalog.db", "-p", f"warehouse=file://{folder}/lake",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_catalog_and_its_storage_are_measured_and_left_as_they_were(tmp_path: Path) -> None:
    done = calibrate("here", tmp_path)
    assert done.returncode == 0, done.stderr
    section = done.stdout[done.stdout.index("[providers.here]") :]
    provider = provider_from("here", tomllib.loads(section)["providers"]["here"], "output")
    assert 0 < provider.get.median_ms < provider.swap.median_ms
    left = [path for path in (tmp_path / "lake").rglob("*") if path.is_file() and "/data/" in str(path)]
    assert left == []
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        assert database.execute("select count(*) from iceberg_namespace_properties").fetchone() == (0,)


def test_a_namespace_that_was_there_before_is_left(tmp_path: Path) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    catalog = SqlCatalog("calibrated", **properties)
    catalog.create_namespace("icetower_calibration")
    assert calibrate("here", tmp_path).returncode == 0
    assert catalog.list_namespaces() == [("icetower_calibration",)]
    assert catalog.list_tables("icetower_calibration") == []


def test_a_catalog_that_is_not_there_is_said() -> None:
    command = [str(Path(sys.executable).with_name("icetower")), "simulate", "calibrate", "here", "-p", "uri"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "key=value" in done.stderr


def test_writes_may_be_the_fastest_calls() -> None:
    slow, quick = fitted([20.0, 21.0] * 20), [1.0, 1.1] * 20
    given = tomllib.loads(provider_section("mine", slow, {1024: quick, MIB: quick}, slow, slow))["providers"]["mine"]
    assert given["floor_ms"] == 1.0
    assert provider_from("mine", given, "here").put(1024).mean_ms == pytest.approx(1.05, rel=0.05)


@pytest.mark.parametrize("name", ["s3", "instant", "my lake", "a.b", ""])
def test_a_name_that_no_experiment_could_use_is_told_before_anything_is_measured(name: str, tmp_path: Path) -> None:
    done = calibrate(name, tmp_path)
    assert done.returncode == 2
    assert "cannot be called" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_is_told_and_leaves_no_files(tmp_path: Path) -> None:
    """Where the storage writes no second file, the first one and the table are taken away."""
    lake = tmp_path / "lake"
    script = (
        "import importlib; c = importlib.import_module('icetower.cli.calibrate'); from icetower.cli import main\n"
        "real = c._write; made = []\n"
        "def write(io, path, size):\n"
        "    if made: raise ValueError('the disk is full')\n"
        "    made.append(path); real(io, path, size)\n"
        "c._write = write; main()"
    )
    done = calibrate("here", tmp_path, sys.executable, "-c", script)
    assert done.returncode == 1, done.stderr
    assert "failed: the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in lake.rglob("*") if path.is_file() and "/data/" in str(path)] == []
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        assert database.execute("select count(*) from iceberg_tables").fetchone() == (0,)

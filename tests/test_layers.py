"""Each test belongs to one layer, and a quick one stays in it."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import layers

TESTS = Path(__file__).parent


def item(path: str, *marks: str, fixtures: tuple[str, ...] = (), parameters: dict[str, Any] | None = None) -> Any:
    """As much of a test as layers look at."""
    return SimpleNamespace(
        nodeid=path,
        path=TESTS / path,
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=parameters or {}),
        iter_markers=lambda: (SimpleNamespace(name=mark) for mark in marks),
        get_closest_marker=lambda name: name if name in marks else None,
    )


def test_every_test_of_this_run_has_one_layer(request: pytest.FixtureRequest) -> None:
    for each in request.session.items:
        assert len({mark.name for mark in each.iter_markers()} & set(layers.LAYERS)) == 1, each.nodeid


def test_every_folder_has_a_layer_and_nothing_else_is_named() -> None:
    folders = {path.parent.name for path in TESTS.rglob("test_*.py")}
    assert folders == set(layers.FOLDERS)
    assert set(layers.MODULES) | layers.SPARK <= {path.stem for path in TESTS.rglob("test_*.py")}
    assert set(layers.PURE) | layers.STARTERS <= folders
    assert {*layers.FOLDERS.values(), *layers.MODULES.values()} <= set(layers.LAYERS)


@pytest.mark.parametrize(
    ("given", "layer"),
    [
        (item("iceberg/test_change.py"), "quick"),
        (item("test_house.py"), "quick"),
        (item("wire/test_wire_spark.py"), "full"),
        (item("iceberg/test_change.py", "java"), "full"),
        (item("iceberg/test_change.py", "sharp", "java"), "sharp"),
        (item("upstream/test_upstreams.py", fixtures=("postgres_url",)), "full"),
        (item("ledger/test_ledger.py", parameters={"database": "postgres"}), "full"),
        (item("ledger/test_ledger.py", parameters={"database": "sqlite"}), "quick"),
    ],
)
def test_the_layer_of_a_test(given: Any, layer: str) -> None:
    assert layers.layer_of(given) == layer


def test_a_test_without_a_layer_or_with_two_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="tests/elsewhere has no layer"):
        layers.layer_of(item("elsewhere/test_new.py"))
    with pytest.raises(pytest.UsageError, match="a test has one layer"):
        layers.layer_of(item("iceberg/test_change.py", "quick", "sharp"))
    with pytest.raises(pytest.UsageError, match="tests/wire has no quick tests"):
        layers.layer_of(item("wire/test_wire_spark.py", "quick"))


def test_a_module_of_quick_tests_alone_is_not_imported_for_the_others() -> None:
    assert layers.only_quick(TESTS / "iceberg" / "test_change.py")
    for module in ("ledger/test_shadow.py", "iceberg/test_listing.py", "wire/test_wire_spark.py", "test_bench.py"):
        assert not layers.only_quick(TESTS / module)
    with pytest.raises(pytest.UsageError, match="mark it full there"):
        layers.marked([item("iceberg/test_change.py", fixtures=("postgres_url",))])


def test_a_quick_test_starts_no_process() -> None:
    spawned = multiprocessing.get_context("spawn").Process()
    for start in (lambda: subprocess.run(["true"], check=True), os.fork, lambda: os.system("true"), spawned.start):
        with pytest.raises(layers.LeftItsLayer, match="is quick and starts a process"):
            start()
    subprocess.run(["git", "--version"], check=True, capture_output=True)


def test_a_quick_test_opens_no_connection() -> None:
    with socket.socket() as one, pytest.raises(layers.LeftItsLayer, match="is quick and opens a connection"):
        one.connect(("127.0.0.1", 9))


def test_the_commands_run_every_layer_once() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    assert [makefile.count(f"pytest -m {layer} ") for layer in layers.LAYERS] == [1, 1, 1, 1]
    ci = (TESTS.parent / ".ci" / "run").read_text().splitlines()
    assert [line for line in ci if line.startswith("make ")] == ["make setup", "make rck", "make test", "make verify"]

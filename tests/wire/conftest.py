"""One tower for the whole session of tests; every test works in a namespace of its own."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.wire import pyiceberg_writers
from verify.kit.tower_process import TowerProcess

CREW = 10
ALIGNED = 8


@pytest.fixture(scope="session")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    tower = TowerProcess(tmp_path_factory.mktemp("tower") / "data")
    try:
        yield tower
    finally:
        status = tower.stop()
    assert status == 0, tower.log.read_text()


@pytest.fixture
def start_tower(tmp_path: Path) -> Iterator[Callable[..., TowerProcess]]:
    """Starts more towers; they are stopped, and must exit with 0."""
    running: list[TowerProcess] = []

    def start(*arguments: str, data: str = "data") -> TowerProcess:
        running.append(TowerProcess(tmp_path / data, *arguments))
        return running[-1]

    yield start
    assert [tower.stop() for tower in running] == [0] * len(running)


@pytest.fixture(scope="session")
def catalog(tower: TowerProcess) -> Catalog:
    return tower.catalog()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, catalog: Catalog) -> str:
    """Of the test alone: the tower is the whole session's, and tests of two modules may share a name."""
    name = re.sub(r"\W+", "_", f"{request.node.path.stem}_{request.node.name}").strip("_").lower()
    catalog.create_namespace(name)
    return name


@pytest.fixture(scope="session")
def crew() -> Iterator[ProcessPoolExecutor]:
    """Ten writers, each a process of its own; the eight of them that start together wait for each other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyarrow.parquet", "pyiceberg.catalog.rest", "pyiceberg.io.pyarrow"])
    with ProcessPoolExecutor(
        CREW, mp_context=context, initializer=pyiceberg_writers.initialise, initargs=(context.Barrier(ALIGNED),)
    ) as processes:
        yield processes

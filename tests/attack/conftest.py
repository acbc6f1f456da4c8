"""One tower for all attacks; every attack works in a namespace of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from verify.kit.forger import Forger
from verify.kit.tower_process import TowerProcess


@pytest.fixture(scope="session")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    tower = TowerProcess(tmp_path_factory.mktemp("tower") / "data")
    try:
        yield tower
    finally:
        status = tower.stop()
    assert status == 0, tower.log.read_text()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, tower: TowerProcess) -> str:
    name = re.sub(r"\W+", "_", request.node.name).strip("_").lower()
    with tower.client() as http:
        http.post("/v1/namespaces", json={"namespace": [name]}).raise_for_status()
    return name


@pytest.fixture
def forge(tower: TowerProcess, namespace: str) -> Iterator[Callable[[str | None], Forger]]:
    """Makes writers: the administrator's, or those of a principal bound by a contract."""
    made: list[Forger] = []

    def make(contract: str | None = None) -> Forger:
        token = None
        if contract is not None:
            token = tower.principal(f"{namespace}-{len(made)}", contract.replace("NS", namespace))
        made.append(Forger(tower.client(token), namespace))
        return made[-1]

    yield make
    for forger in made:
        forger.http.close()

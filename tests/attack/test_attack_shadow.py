"""Shadow mode is for contracts: what holds for all below administrators it lets nobody do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icetower.iceberg.manifests import DATA, EXISTING, Entry
from verify.kit.forger import Forger, added, data_file
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
TRYING = "mode: shadow\ntables: []\n"
"""Under such a contract everything is refused, if it is enforced."""


@pytest.fixture
def agent(forge: Forge) -> Forger:
    forge().create()
    return forge(TRYING)


def test_forged_summaries_stay_refused(agent: Forger) -> None:
    for mark in ("icetower.principal", "icetower.group-file", "icetower.wal.sequence"):
        answer = agent.send(agent.append("a.parquet", summary={mark: "1"}))
        assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.summary")
    assert agent.send(agent.append("a.parquet")).status_code == 200


def test_files_and_locations_outside_of_the_table_stay_refused(agent: Forger, tmp_path: Path) -> None:
    base = agent.load()
    outside = Entry(1, None, None, None, data_file(f"file://{tmp_path}/theirs.parquet", (1, 2)))
    table = f"/v1/namespaces/{agent.namespace}/tables"
    refused = [
        agent.send(agent.snapshot([(DATA, [outside])])),
        agent.commit([], [{"action": "set-location", "location": f"file://{tmp_path}"}]),
        agent.commit([], [{"action": "set-properties", "updates": {"write.data.path": f"file://{tmp_path}"}}]),
        agent.commit([], [{"action": "remove-properties", "removals": ["write.metadata.path"]}]),
        agent.http.post(table, json={"name": "u", "schema": base["schemas"][0], "location": f"file://{tmp_path}"}),
        agent.http.post(f"{agent.url}/append", json={"files": [_described(f"file://{tmp_path}/x.parquet")]}),
    ]
    assert [(answer.status_code, error_of(answer)["rule"]) for answer in refused] == [(403, "contract.location")] * 6
    inside = agent.send(agent.snapshot([(DATA, [added(agent.path(base, "a.parquet"), (9, 9))])]))
    assert inside.status_code == 200


def _described(path: str) -> dict[str, Any]:
    size = {"record-count": 1, "file-size-in-bytes": 100}
    return {"file-path": path, "file-format": "PARQUET", "partition": {"region": 1, "product": 2}, **size}


def test_r5_manifests_that_lie_stay_refused(agent: Forger) -> None:
    base = agent.load()
    smuggled = Entry(EXISTING, 7, 1, 1, data_file(agent.path(base, "never-added.parquet"), (1, 2)))
    answer = agent.send(agent.snapshot([(DATA, [smuggled])]))
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "contract.manifest")


def test_nobody_in_shadow_mode_administers_anything(agent: Forger, tower: TowerProcess) -> None:
    name = f"{agent.namespace}-1"
    for method, path in (
        ("GET", "/shadow"),
        ("GET", "/principals"),
        ("POST", "/contracts"),
        ("DELETE", f"/contracts/{name}"),
        ("POST", f"/contracts/{name}/restore"),
    ):
        assert agent.http.request(method, f"/icetower/v1{path}").status_code == 403, path
    tower.admin.revoke_contract(name)
    answer = agent.http.get(agent.url)
    assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.revoked")

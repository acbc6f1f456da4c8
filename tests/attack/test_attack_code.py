"""Trap S8: nobody has the clients of others load code by a table's properties; shown with PyIceberg over the wire."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from verify.kit.forger import SCHEMA, Forger, plain
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
ALL = "tables: [{table: NS.*, operations: [read, append, alter, create, register, drop], partitions: all}]\n"
PROVIDER = "write.py-location-provider.impl"
CODE = {
    PROVIDER: "intruder.Provider",
    "write.location-provider.impl": "evil.Provider",
    "metrics-reporter-impl": "evil.Reporter",
    "encryption.kms-impl": "evil.Keys",
    "fs.file.impl": "evil.FileSystem",
    "write.of-the-future.impl": "evil.Anything",
}
ROWS = pa.table({"region": pa.array([1], pa.int32()), "product": pa.array([2], pa.int32())})
INTRUDER = """
from pyiceberg.table.locations import SimpleLocationProvider
class Provider(SimpleLocationProvider):
    pass
"""


@pytest.fixture
def intruder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that every client of this process could import."""
    (tmp_path / "intruder.py").write_text(INTRUDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("intruder", None)
    yield "intruder"
    sys.modules.pop("intruder", None)


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, error_of(answer)["rule"]


@pytest.mark.parametrize("mode", ["enforce", "shadow", "administrator"])
def test_s8_nobody_sets_code_at_create_or_commit(forge: Forge, mode: str) -> None:
    admin = forge()
    admin.create()
    agent = admin if mode == "administrator" else forge(f"mode: {mode}\n{ALL}")
    tables = f"/v1/namespaces/{agent.namespace}/tables"
    for name, value in CODE.items():
        evil = {name: value, "comment": "harmless"}
        new = {"name": "t2", "schema": SCHEMA, "properties": evil}
        for answer in (
            agent.commit([], [{"action": "set-properties", "updates": evil}]),
            agent.commit([], [{"action": "set-properties", "updated": evil}]),
            agent.http.post(tables, json=new),
            agent.http.post(tables, json={**new, "stage-create": True}),
        ):
            assert code_of(answer) == (400, "property.code"), name
    assert not CODE.keys() & agent.load()["properties"].keys()
    assert agent.commit([], [{"action": "set-properties", "updates": {"comment": "of mine"}}]).status_code == 200


@pytest.mark.parametrize("mode", ["enforce", "shadow", "administrator"])
def test_s8_nobody_brings_code_in_with_a_staged_table_or_a_namespace(forge: Forge, mode: str) -> None:
    agent = forge() if mode == "administrator" else forge(f"mode: {mode}\n{ALL}")
    tables = f"/v1/namespaces/{agent.namespace}/tables"
    staged = agent.http.post(tables, json={"name": agent.table, "schema": SCHEMA, "stage-create": True}).json()
    table = staged["metadata"]
    creation = [
        {"action": "assign-uuid", "uuid": table["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": table["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": table["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": table["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": table["location"]},
    ]
    evil = {"action": "set-properties", "updates": {PROVIDER: CODE[PROVIDER]}}
    assert code_of(agent.commit([{"type": "assert-create"}], [*creation, evil])) == (400, "property.code")
    own = f"{agent.namespace}_own"
    spaces = {"namespace": [own], "properties": {PROVIDER: CODE[PROVIDER]}}
    assert code_of(forge().http.post("/v1/namespaces", json=spaces)) == (400, "property.code")
    changed = {"updates": {"io-impl": "evil.FileIO"}, "removals": []}
    answer = agent.http.post(f"/v1/namespaces/{agent.namespace}/properties", json=changed)
    assert code_of(answer) == (400, "property.code")


@pytest.mark.parametrize("mode", ["enforce", "shadow", "administrator"])
def test_s8_nobody_registers_a_table_that_has_code(forge: Forge, mode: str) -> None:
    agent = forge() if mode == "administrator" else forge(f"mode: {mode}\n{ALL}")
    base = agent.create()
    assert agent.http.delete(agent.url).status_code == 204
    path = plain(base["location"]) / "metadata" / "00001-forged.metadata.json"
    path.write_bytes(orjson.dumps({**base, "properties": {PROVIDER: CODE[PROVIDER]}}))
    wanted = {"name": "t", "metadata-location": f"file://{path}"}
    assert code_of(agent.http.post(f"/v1/namespaces/{agent.namespace}/register", json=wanted)) == (400, "property.code")


def smuggled(tower: TowerProcess, name: str) -> None:
    """The property in a table of the upstream catalog, set past the tower."""
    upstream = SqlCatalog("icetower", uri=f"sqlite:///{tower.data}/catalog.db")
    with upstream.load_table(name).transaction() as transaction:
        transaction.set_properties({PROVIDER: CODE[PROVIDER]})


def test_s8_what_a_table_has_already_is_given_to_no_client(
    forge: Forge, tower: TowerProcess, intruder: str, namespace: str
) -> None:
    admin = forge()
    admin.create()
    agent = forge(ALL)
    smuggled(tower, f"{namespace}.t")
    assert sys.modules.pop(intruder, None) is not None  # whoever goes past the tower runs it
    for writer in (admin, agent):
        catalog = tower.catalog(writer.http.headers["authorization"].removeprefix("Bearer "))
        table = catalog.load_table(f"{namespace}.t")
        assert PROVIDER not in table.properties
        table.append(ROWS)
        assert PROVIDER not in writer.load()["properties"]
        refs = writer.http.get(writer.url, params={"snapshots": "refs"}).json()
        assert PROVIDER not in refs["metadata"]["properties"]
    assert intruder not in sys.modules
    # The table's owner has it still, and an administrator may take it out.
    kept = SqlCatalog("icetower", uri=f"sqlite:///{tower.data}/catalog.db").load_table(f"{namespace}.t")
    assert kept.properties[PROVIDER] == CODE[PROVIDER]
    removal = [{"action": "remove-properties", "removals": [PROVIDER]}]
    assert code_of(agent.commit([], removal)) == (403, "contract.location")
    assert admin.commit([], removal).status_code == 200


def test_s8_what_the_operator_allows_is_loaded(tmp_path: Path, intruder: str) -> None:
    """Without this, the test above would show nothing."""
    settings = tmp_path / "icetower.toml"
    settings.write_text(f'[client-code]\n"{PROVIDER}" = ["{CODE[PROVIDER]}"]\n')
    tower = TowerProcess(tmp_path / "data", "--config", str(settings))
    try:
        catalog = tower.catalog()
        catalog.create_namespace("a")
        table = catalog.create_table("a.t", pa.schema(ROWS.schema), properties={PROVIDER: CODE[PROVIDER]})
        table.append(ROWS)
        assert intruder in sys.modules
        with tower.client() as http:
            other = {"name": "u", "schema": SCHEMA, "properties": {PROVIDER: "evil.Provider"}}
            assert code_of(http.post("/v1/namespaces/a/tables", json=other)) == (400, "property.code")
    finally:
        assert tower.stop() == 0


def test_nobody_in_shadow_mode_gives_the_tower_orders_for_others(forge: Forge) -> None:
    """Blind appends, retention: the tower would act upon them at once, whatever the contract will say."""
    forge().create()
    agent = forge("mode: shadow\ntables: []\n")
    for order in ({"icetower.blind-appends": "true"}, {"icetower.retention.snapshots-max": "1"}):
        answer = agent.commit([], [{"action": "set-properties", "updates": order}])
        assert code_of(answer) == (403, "contract.shared")
    others = {"write.parquet.compression-codec": "zstd", "write.merge.isolation-level": "snapshot"}
    assert agent.commit([], [{"action": "set-properties", "updates": others}]).status_code == 200

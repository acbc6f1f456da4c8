"""The same data files sent once more, in a new snapshot, by clients over the wire: never twice in the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.table import Table

from icetower.agent import DataFile, Tower, keyed, new_key
from icetower.errors import KeyMisused
from verify.kit.tower_process import SCHEMA, TowerProcess

MAPPING = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["region"]}]
CONTRACT = """owner: a@example.com
tables:
  - table: {0}.t
    operations: [append, overwrite, delete]
    partitions: all
    blind_appends: true
    write_location: table
reads: ['{0}.*']
"""


class Place:
    """A table, and two principals that write to it."""

    def __init__(self, tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
        with tower.client() as http:
            body = {"name": "t", "schema": SCHEMA, "properties": {"schema.name-mapping.default": json.dumps(MAPPING)}}
            http.post(f"/v1/namespaces/{namespace}/tables", json=body).raise_for_status()
        self.tower, self.identifier = tower, (namespace, "t")
        self.tokens = {
            name: tower.principal(f"{namespace}_{name}", CONTRACT.format(namespace)) for name in ("ann", "bob")
        }
        self.admin = catalog.load_table(self.identifier)

    def table(self, who: str) -> Table:
        return self.tower.catalog(self.tokens[who]).load_table(self.identifier)

    def file(self, name: str, *ids: int) -> str:
        folder = local(self.admin.location()) / "data"
        folder.mkdir(parents=True, exist_ok=True)
        rows = pa.table(
            {"id": ids, "region": ["eu"] * len(ids)}, schema=pa.schema([("id", pa.int64()), ("region", pa.string())])
        )
        pq.write_table(rows, folder / name)
        return f"{self.admin.location()}/data/{name}"

    def ids(self) -> list[int]:
        return sorted(self.admin.refresh().scan().to_arrow()["id"].to_pylist())

    def outcomes(self) -> list[str]:
        return self.tower.outcomes(".".join(self.identifier))

    @property
    def snapshots(self) -> int:
        return len(self.admin.refresh().metadata.snapshots)


@pytest.fixture
def place(tower: TowerProcess, catalog: Catalog, namespace: str) -> Place:
    return Place(tower, catalog, namespace)


def add(table: Table, *paths: str, key: str | None = None) -> None:
    properties = {} if key is None else keyed(key)
    table.add_files([*paths], snapshot_properties=properties, check_duplicate_files=False)


def test_k5_files_that_a_client_has_committed_and_lost_the_answer_of_are_a_replay(place: Place) -> None:
    one, two = place.file("a.parquet", 1, 2), place.file("b.parquet", 3)
    stale = place.table("ann")
    add(place.table("ann"), one, two, key=new_key())
    add(place.table("ann"), one, two, key=new_key())
    add(place.table("ann"), two)
    add(stale, one)
    assert place.ids() == [1, 2, 3]
    assert place.snapshots == 1
    assert place.outcomes() == ["replayed"] * 3 + ["direct"]


@pytest.mark.parametrize("stale", [False, True])
def test_files_of_another_are_refused_and_so_are_new_ones_among_them(place: Place, stale: bool) -> None:
    one, two = place.file("a.parquet", 1), place.file("b.parquet", 2)
    early = {who: place.table(who) for who in ("ann", "bob")}
    add(place.table("ann"), one)
    for who, paths in (("bob", [one]), ("bob", [two, one]), ("ann", [two, one])):
        table = early[who] if stale else place.table(who)
        with pytest.raises(RESTError, match=r"file\.exists"):
            add(table, *paths)
    (attempt, *_) = place.tower.admin.commits(refused=True, table=".".join(place.identifier), limit=1)
    assert (attempt["outcome"], attempt["rule"]) == ("refused", "file.exists")
    assert place.ids() == [1]
    add(place.table("bob"), two)
    assert place.ids() == [1, 2]


def test_the_answer_is_422_with_its_eight_fields(place: Place) -> None:
    path = place.file("a.parquet", 1)
    add(place.table("ann"), path)
    transaction = place.table("bob").transaction()
    transaction.add_files([path], check_duplicate_files=False)
    body = {
        "requirements": [
            each.model_dump(mode="json", by_alias=True)
            for each in transaction._requirements  # pyright: ignore[reportPrivateUsage]
        ],
        "updates": [
            each.model_dump(mode="json", by_alias=True, exclude_none=True)
            for each in transaction._updates  # pyright: ignore[reportPrivateUsage]
        ],
    }
    namespace, name = place.identifier
    with place.tower.client(place.tokens["bob"]) as http:
        answer = http.post(f"/v1/namespaces/{namespace}/tables/{name}", json=body)
        checked = http.post(f"/v1/namespaces/{namespace}/tables/{name}/check", json=body).json()
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["rule"], error["next_step"]) == (422, "file.exists", "none")
    assert [each.rsplit("/", 1)[-1] for each in error["files"]] == ["a.parquet"]
    assert (checked["allowed"], checked["error"]["rule"]) == (False, "file.exists")


def test_a_key_that_was_called_done_for_its_files_stays_done(place: Place) -> None:
    """A rerun under it has other files; or compaction has taken the first ones meanwhile."""
    key, path = new_key(), place.file("a.parquet", 1)
    add(place.table("ann"), path, key=new_key())
    add(place.table("ann"), path, key=key)
    assert place.snapshots == 1
    add(place.table("ann"), place.file("b.parquet", 1), key=key)
    place.table("ann").append(pa.table({"id": [1], "region": ["eu"]}), snapshot_properties=keyed(key))
    assert place.ids() == [1]
    with Tower(place.tower.uri, place.tokens["ann"]) as mine:
        assert mine.landed(".".join(place.identifier), key).landed
    place.table("ann").delete("id = 1")
    add(place.table("ann"), path, key=key)
    assert place.ids() == []
    add(place.table("ann"), path, key=new_key())
    assert place.ids() == [1], "what was removed may come again"


def test_from_one_route_to_the_other(place: Place) -> None:
    name = ".".join(place.identifier)
    place.table("ann").append(pa.table({"id": [1], "region": ["eu"]}))
    add(place.table("ann"), place.file("a.parquet", 2))
    files = [local(task.file.file_path) for task in place.admin.refresh().scan().plan_files()]
    with Tower(place.tower.uri, place.tokens["ann"]) as ann, Tower(place.tower.uri, place.tokens["bob"]) as bob:
        for file in files:
            assert ann.append(name, [DataFile.of_parquet(file)], key=new_key()).outcome == "replayed"
            with pytest.raises(KeyMisused, match="already"):
                bob.append(name, [DataFile.of_parquet(file)], key=new_key())
        other = place.file("b.parquet", 3)
        assert ann.append(name, [DataFile.of_parquet(local(other))], key=new_key()).outcome == "appended"
        assert place.snapshots == 3
        add(place.table("ann"), other)
        with pytest.raises(RESTError, match=r"file\.exists"):
            add(place.table("bob"), other)
    assert place.ids() == [1, 2, 3]
    assert place.snapshots == 3


def local(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))

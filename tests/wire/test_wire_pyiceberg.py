"""PyIceberg through the tower, in processes of its own: nothing lost, nothing twice, by row identity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import boto3
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError, RESTError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import keyed, new_key
from icetower.protocol.marks import APPLICATION, KEY, SEQUENCE
from tests.s3_server import s3_server
from tests.wire import pyiceberg_writers as writers
from verify.kit.tower_process import TowerProcess, error_of

SCHEMA = pa.schema([("id", pa.int64()), ("owner", pa.string()), ("value", pa.int64())])
BLIND = {"icetower.blind-appends": "true"}


def rows(*ids: int, owner: str = "me", value: int = 0) -> pa.Table:
    return pa.table({"id": ids, "owner": [owner] * len(ids), "value": [value] * len(ids)}, schema=SCHEMA)


def ids(table: Table, **scan: Any) -> list[int]:
    return sorted(table.refresh().scan(**scan).to_arrow()["id"].to_pylist())


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", schema=SCHEMA, properties=BLIND)


def name_of(table: Table) -> str:
    return ".".join(table.name())


# -- many writers -----------------------------------------------------------------------------------------------------


def test_eight_processes_append_without_a_retry(
    tower: TowerProcess, catalog: Catalog, table: Table, crew: ProcessPoolExecutor
) -> None:
    """All of them start on one base and keep their own handle: what would conflict elsewhere is rebased."""
    table.append(rows(1))
    name = name_of(table)
    started = [crew.submit(writers.append, tower.uri, tower.secret, name, n, 6) for n in range(1, 9)]
    done = [future.result(120) for future in started]
    assert [work.statuses for work in done] == [[200] * 6] * 8
    assert ids(table) == sorted([1, *(row for work in done for row in work.acknowledged)])
    outcomes = Counter(tower.outcomes(name))
    assert set(outcomes) == {"direct", "rebased"}
    assert outcomes["rebased"] >= 7
    history = table.metadata.snapshots
    assert len(history) == 49
    totals = [int(snapshot.summary["total-records"]) for snapshot in history if snapshot.summary]
    assert totals == list(range(1, 99, 2))  # trap S3: each from its real parent


def test_the_first_append_of_eight_to_an_empty_table(
    tower: TowerProcess, table: Table, crew: ProcessPoolExecutor
) -> None:
    name = name_of(table)
    started = [crew.submit(writers.append, tower.uri, tower.secret, name, n, 1) for n in range(1, 9)]
    done = [future.result(120) for future in started]
    assert [work.statuses for work in done] == [[200]] * 8
    assert ids(table) == sorted(row for work in done for row in work.acknowledged)
    assert Counter(tower.outcomes(name)) == {"direct": 1, "rebased": 7}


def test_overwrites_and_upserts_of_own_keys_are_exact(
    tower: TowerProcess, catalog: Catalog, namespace: str, crew: ProcessPoolExecutor
) -> None:
    """Several snapshots a commit, on a table that declares nothing: compared and swapped strictly, never half."""
    table = catalog.create_table(f"{namespace}.t", schema=SCHEMA)
    table.append(rows(7, owner="nobody"))
    name = name_of(table)
    kinds = [writers.overwrite, writers.upsert] * 4
    started = [crew.submit(kind, tower.uri, tower.secret, name, n, 2) for n, kind in enumerate(kinds, 1)]
    done = [future.result(240) for future in started]
    expected = {7: 0} | {key: value for work in done for key, value in work.acknowledged.items()}
    found = table.refresh().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["value"]) for row in found) == sorted(expected.items())
    assert set(tower.outcomes(name)) == {"direct", "conflict"}
    assert {status for work in done for status in work.statuses} == {200, 409}


# -- keys -------------------------------------------------------------------------------------------------------------


def test_an_overwrite_that_was_rebased_is_followed_by_another(
    tower: TowerProcess, catalog: Catalog, namespace: str
) -> None:
    """PyIceberg reads the list of an overwrite's first snapshot before it commits, and remembers what it says of each
    manifest: also of one with others' files, that stays. It may not be listed by another number afterwards."""
    by_owner = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="owner"))
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "owner", StringType()), NestedField(3, "value", LongType())
    )
    table = catalog.create_table(f"{namespace}.t", schema=schema, partition_spec=by_owner, properties=BLIND)
    table.append(pa.concat_tables([rows(1, owner="a"), rows(2, owner="b")]))
    handle, other = (catalog.load_table(name_of(table)) for _ in range(2))
    read = {"type": "eq", "term": "owner", "value": "a"}
    declared = {"icetower.filter": json.dumps(read), "icetower.isolation-level": "serializable"}
    for value in (1, 2):
        other.append(rows(9, owner="c"))
        handle.overwrite(rows(1, owner="a", value=value), overwrite_filter="owner = 'a'", snapshot_properties=declared)
    found = table.refresh().scan().to_arrow().to_pylist()
    assert sorted((row["owner"], row["value"]) for row in found) == [("a", 2), ("b", 0), ("c", 0), ("c", 0)]
    assert Counter(tower.outcomes(name_of(table))) == {"direct": 2, "rebased": 3}


def test_a_key_that_is_sent_twice_is_in_the_table_once(tower: TowerProcess, catalog: Catalog, table: Table) -> None:
    """Trap K3: the second time with other file names, on a handle of its own, as a scheduler's rerun does."""
    key = keyed(new_key())
    catalog.load_table(name_of(table)).append(rows(1, 2), snapshot_properties=key)
    table.append(rows(3))
    catalog.load_table(name_of(table)).append(rows(1, 2), snapshot_properties=key)
    assert ids(table) == [1, 2, 3]
    assert tower.outcomes(name_of(table))[:3] == ["replayed", "rebased", "direct"]


def test_one_key_raced_by_twenty_is_one_snapshot(tower: TowerProcess, table: Table) -> None:
    key = keyed("nightly load of 2017-01-02", blind=True)
    start = Barrier(20)

    def write(_: int) -> None:
        own = tower.catalog().load_table(name_of(table))
        start.wait(60)
        own.append(rows(1, 2, 3), snapshot_properties=key)

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(write, range(20)))
    assert ids(table) == [1, 2, 3]
    assert len(table.metadata.snapshots) == 1
    assert Counter(tower.outcomes(name_of(table))) == {"direct": 1, "replayed": 19}


def noted(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, dict[str, Any]]], Any]:
    """The requests that a catalog posts from now on, as they come, and the way to post them once more."""
    session: Any = catalog._session  # type: ignore[attr-defined]
    sent: list[tuple[str, dict[str, Any]]] = []
    post = session.post

    def note(url: str, **given: Any) -> Any:
        sent.append((url, given))
        return post(url, **given)

    monkeypatch.setattr(session, "post", note)
    return sent, post


@pytest.mark.parametrize("properties", [{}, {"app-id": "job"}, keyed("one"), {**keyed("one"), "app-id": "job"}])
def test_a_commit_of_two_snapshots_is_known_when_the_first_has_expired(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    """PyIceberg's overwrite makes two. Told that its commit failed, a client would delete its manifests."""
    table.append(rows(1))
    sent, post = noted(catalog, monkeypatch)
    table.overwrite(rows(2), snapshot_properties=properties)
    url, given = sent[-1]
    updates = json.loads(given["data"])["updates"]
    first, _ = (update["snapshot"]["snapshot-id"] for update in updates if update["action"] == "add-snapshot")
    table.refresh().append(rows(3))
    remove = {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [first]}]}
    assert post(url, data=json.dumps(remove)).status_code == 200
    assert post(url, **given).status_code == 200
    assert ids(table) == [2, 3]


def test_a_creation_sent_again_is_not_refused_when_its_first_snapshot_has_expired(
    catalog: Catalog, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told 409 its client would delete the manifest that the table lives on (trap A3)."""
    sent, post = noted(catalog, monkeypatch)
    with catalog.create_table_transaction(f"{namespace}.made", schema=rows(1).schema) as transaction:
        transaction.append(rows(1))
    url, given = sent[-1]
    assert post(url, **given).status_code == 200
    made = catalog.load_table(f"{namespace}.made")
    first = made.metadata.current_snapshot_id
    assert first is not None
    made.append(rows(2))
    made.maintenance.expire_snapshots().by_id(first).commit()
    again = post(url, **given)
    assert (again.status_code, error_of(again)["rule"]) == (504, "commit.unknown")
    assert ids(made.refresh()) == [1, 2]


@pytest.mark.parametrize("properties", [{KEY: "half"}, {APPLICATION: "app", SEQUENCE: "1"}], ids=["key", "number"])
def test_k2_half_of_a_commit_that_a_rollback_has_left_is_never_done(table: Table, properties: dict[str, str]) -> None:
    """PyIceberg's overwrite deletes and appends under one key; "back by one snapshot" lands between the two."""
    table.append(rows(1))
    table.overwrite(rows(2), snapshot_properties=properties)
    second = table.metadata.current_snapshot_id
    assert second is not None
    saved = table.metadata.snapshot_by_id(second)
    assert saved is not None
    first = saved.parent_snapshot_id
    assert first is not None
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.append(rows(3))
    for gone in (second, first):
        table.maintenance.expire_snapshots().by_id(gone).commit()
        with pytest.raises(RESTError, match="rolled back"):
            table.refresh().overwrite(rows(2), snapshot_properties=properties)
    assert ids(table) == [3]


def test_a_key_whose_snapshot_was_rolled_back_is_refused(tower: TowerProcess, catalog: Catalog, table: Table) -> None:
    """Trap K2: never "done" for what is not in the branch."""
    table.append(rows(1))
    first = table.metadata.current_snapshot_id
    assert first is not None
    key = keyed(new_key())
    table.append(rows(2), snapshot_properties=key)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(Exception, match="rolled back"):
        catalog.load_table(name_of(table)).append(rows(2), snapshot_properties=key)
    assert tower.admin.commits(table=name_of(table))[0]["rule"] == "key.rolled-back"
    assert ids(table) == [1]


def test_one_application_cannot_write_two_things_under_a_key(tower: TowerProcess, table: Table) -> None:
    """Trap K3: a key set for a whole session would turn later writes into silent no-ops."""
    session = keyed(new_key()) | {"app-id": "session-1"}
    table.append(rows(1), snapshot_properties=session)
    with pytest.raises(Exception, match="per write"):
        table.append(rows(2), snapshot_properties=session)
    assert tower.admin.commits(table=name_of(table))[0]["rule"] == "key.per-write"
    assert ids(table) == [1]


def test_a_key_belongs_to_its_principal_and_branch(tower: TowerProcess, catalog: Catalog, table: Table) -> None:
    """Trap K2."""
    name = name_of(table)
    key = keyed(new_key())
    table.append(rows(1), snapshot_properties=key)
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_branch(head, "audit").commit()
    table.append(rows(2), snapshot_properties=key, branch="audit")
    table.append(rows(2), snapshot_properties=key, branch="audit")
    secret = tower.principal("key-sharer", f"tables:\n  - {{table: {name}, operations: [append], partitions: all}}\n")
    tower.catalog(secret).load_table(name).append(rows(3), snapshot_properties=key)
    assert ids(table) == [1, 3]
    audit = table.metadata.refs["audit"].snapshot_id
    assert ids(table, snapshot_id=audit) == [1, 2]


def test_a_table_that_is_dropped_and_created_again_starts_afresh(catalog: Catalog, table: Table) -> None:
    """Trap K2: the key belongs to the table, not to its name."""
    key = keyed(new_key())
    table.append(rows(1), snapshot_properties=key)
    catalog.drop_table(name_of(table))
    again = catalog.create_table(name_of(table), schema=SCHEMA)
    assert ids(again) == []
    again.append(rows(1), snapshot_properties=key)
    assert ids(again) == [1]


# -- what else a table lives through ----------------------------------------------------------------------------------


def test_branches_and_time_travel(catalog: Catalog, table: Table) -> None:
    table.append(rows(1))
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_branch(first, "audit").create_tag(first, "start").commit()
    stale = catalog.load_table(name_of(table))
    table.append(rows(2), branch="audit")
    stale.append(rows(3), branch="audit")  # rebased on the branch that it is for
    table.append(rows(4))
    assert ids(table) == [1, 4]
    assert ids(table, snapshot_id=table.metadata.refs["audit"].snapshot_id) == [1, 2, 3]
    assert ids(table, snapshot_id=table.metadata.refs["start"].snapshot_id) == [1]
    assert [entry.snapshot_id for entry in table.metadata.snapshot_log] == [
        first,
        table.metadata.current_snapshot_id,
    ]


def test_the_schema_evolves_under_a_writer(catalog: Catalog, table: Table) -> None:
    stale = catalog.load_table(name_of(table))
    with table.update_schema() as update:
        update.add_column("note", StringType())
    table.append(rows(1).append_column("note", pa.array(["new"])))
    stale.append(rows(2))
    found = table.refresh().scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["note"]) for row in found] == [(1, "new"), (2, None)]
    head = table.current_snapshot()
    assert head is not None
    assert head.schema_id == table.metadata.current_schema_id


def test_a_property_of_the_tower_that_is_misspelt_or_says_nothing_is_refused(
    catalog: Catalog, namespace: str, table: Table
) -> None:
    misspelt, senseless = {"icetower.retention.max-age-ms": "600000"}, {"icetower.retention.age-max-ms": "10min"}
    before = table.metadata_location
    for given, named in ((misspelt, "icetower.retention.age-max-ms"), (senseless, "whole number")):
        with pytest.raises(BadRequestError, match=named), table.transaction() as transaction:
            transaction.set_properties(given)
        with pytest.raises(BadRequestError, match=named):
            catalog.create_table(f"{namespace}.other", schema=SCHEMA, properties=given)
    assert not catalog.table_exists(f"{namespace}.other")
    assert table.refresh().metadata_location == before


def test_a_purge_leaves_no_file(catalog: Catalog, table: Table) -> None:
    table.append(rows(1))
    table.overwrite(rows(2))
    root = Path(table.location().removeprefix("file://"))
    assert any(path.is_file() for path in root.rglob("*"))
    catalog.purge_table(name_of(table))
    assert [path for path in root.rglob("*") if path.is_file()] == []


# -- other places -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3_properties() -> Iterator[dict[str, str]]:
    with s3_server() as properties:
        yield properties


def test_a_warehouse_on_s3(
    start_tower: Callable[..., TowerProcess], s3_properties: dict[str, str], tmp_path: Path
) -> None:
    """The tower hands the clients what they need to reach the files."""
    s3 = boto3.client(
        "s3",
        endpoint_url=s3_properties["s3.endpoint"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    s3.create_bucket(Bucket="lake")
    properties = "\n".join(f'"{key}" = {json.dumps(value)}' for key, value in s3_properties.items())
    config = tmp_path / "tower.toml"
    config.write_text(
        f'[upstream]\nwarehouse = "s3://lake/warehouse"\n[storage]\n{properties}\n[table-config]\n{properties}\n'
    )
    catalog = start_tower("--config", str(config)).catalog()
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", schema=SCHEMA, properties=BLIND)
    place = f"warehouse/sales/orders-{table.metadata.table_uuid}"
    assert table.location() == f"s3://lake/{place}"
    stale = catalog.load_table("sales.orders")
    table.append(rows(1))
    stale.append(rows(2))
    table.refresh().overwrite(rows(3), "id == 1")
    assert ids(catalog.load_table("sales.orders")) == [2, 3]
    names = [item["Key"] for item in s3.list_objects_v2(Bucket="lake")["Contents"]]
    assert all(name.startswith(f"{place}/") for name in names)
    s3.close()


def test_an_existing_sql_catalog_is_opened_and_written_side_by_side(
    start_tower: Callable[..., TowerProcess], tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path / 'existing.db'}"
    old = SqlCatalog("legacy", uri=uri, warehouse=(tmp_path / "lake").as_uri())
    old.create_namespace("sales")
    direct = old.create_table("sales.orders", schema=SCHEMA, properties=BLIND)
    direct.append(rows(1))
    config = tmp_path / "tower.toml"
    config.write_text(f'[upstream]\nuri = "{uri}"\ncatalog = "legacy"\nwarehouse = "{(tmp_path / "lake").as_uri()}"\n')
    catalog = start_tower("--config", str(config)).catalog()
    assert catalog.list_tables("sales") == [("sales", "orders")]
    through = catalog.load_table("sales.orders")
    through.append(rows(2))
    direct.refresh().append(rows(3))  # behind the tower's back
    through.append(rows(4))  # stale for both: the head that the tower has, and the client's
    assert ids(through) == ids(direct) == [1, 2, 3, 4]
    catalog.create_table("sales.returns", schema=SCHEMA).append(rows(9))
    assert ids(old.load_table("sales.returns")) == [9]
    old.drop_table("sales.returns")
    assert not catalog.table_exists("sales.returns")
    old.close()


def test_k1_an_expiry_past_the_tower_that_takes_the_parents_names_away_brings_no_row_twice(
    start_tower: Callable[..., TowerProcess], tmp_path: Path
) -> None:
    """PyIceberg does so, where it writes the metadata itself: the rest looks like a whole history."""
    uri = f"sqlite:///{tmp_path / 'existing.db'}"
    past = SqlCatalog("legacy", uri=uri, warehouse=(tmp_path / "lake").as_uri())
    past.create_namespace("sales")
    config = tmp_path / "tower.toml"
    config.write_text(f'[upstream]\nuri = "{uri}"\ncatalog = "legacy"\nwarehouse = "{(tmp_path / "lake").as_uri()}"\n')
    catalog = start_tower("--config", str(config)).catalog()

    def begun(name: str, key: str) -> tuple[Table, list[int]]:
        """Three appends, the first of them under a key; their snapshots."""
        table = catalog.create_table(name, schema=SCHEMA, properties=BLIND)
        table.append(rows(1), snapshot_properties=keyed(key))
        for number in (2, 3):
            table.append(rows(number))
        return table, [snapshot.snapshot_id for snapshot in table.metadata.snapshots]

    def expire(by: Catalog, table: Table, snapshot_id: int) -> None:
        by.load_table(table.name()).maintenance.expire_snapshots().by_ids([snapshot_id]).commit()

    key = new_key()
    done, [first, second, _] = begun("sales.done", key)
    expire(catalog, done, first)
    expire(past, done, second)
    assert [snapshot.parent_snapshot_id for snapshot in done.refresh().metadata.snapshots] == [None]
    done.append(rows(1), snapshot_properties=keyed(key))  # as after a lost answer
    assert ids(done) == [1, 2, 3]

    key = new_key()
    tagged, [first, second, _] = begun("sales.tagged", key)
    tagged.manage_snapshots().create_tag(first, "keep").commit()
    expire(past, tagged, second)
    with pytest.raises(RESTError, match="unknown whether it was rolled back"):
        tagged.refresh().append(rows(1), snapshot_properties=keyed(key))
    tagged.manage_snapshots().remove_tag("keep").commit()
    expire(catalog, tagged, first)
    with pytest.raises(RESTError, match="Whether its rows are in the table is unknown"):
        tagged.refresh().append(rows(1), snapshot_properties=keyed(key))
    assert ids(tagged) == [1, 2, 3]
    past.close()


def test_a_namespace_with_a_slash_is_made_found_and_dropped(catalog: Catalog) -> None:
    name = ("a/b, of test_wire_pyiceberg",)
    catalog.create_namespace(name, {"owner": "x"})
    assert catalog.load_namespace_properties(name)["owner"] == "x"
    assert catalog.list_tables(name) == []
    catalog.drop_namespace(name)
    assert not catalog.namespace_exists(name)

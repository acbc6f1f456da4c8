"""Appends by the fast path, as agents send them: over a socket through the SDK, and read back by PyIceberg."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from icetower.agent import DataFile, Tower, new_key
from icetower.errors import BadRequest, Forbidden, IcetowerError, KeyMisused
from icetower.table.groups import Group, read_group
from verify.kit.tower_process import TowerProcess, error_of

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "at", TimestampType(), required=False),
    NestedField(3, "owner", StringType(), required=False),
)
BY_DAY = PartitionSpec(
    PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="day"),
    PartitionField(source_id=1, field_id=1001, transform=BucketTransform(4), name="bucket"),
)
FIRST = dt.datetime(2017, 1, 1)  # noqa: DTZ001 - a timestamp without zone


def local(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def write(table: Table, name: str, ids: Sequence[int], *, day: int = 0, owner: str = "me") -> DataFile:
    """A Parquet file in the table's place, with the table's field ids; described by its footer."""
    folder = local(table.location()) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    at = [FIRST + dt.timedelta(days=day)] * len(ids)
    rows = pa.table({"id": ids, "at": at, "owner": [owner] * len(ids)}, schema=schema_to_pyarrow(table.schema()))
    pq.write_table(rows, folder / name)
    return DataFile.of_parquet(folder / name)


def ids(table: Table, **scan: Any) -> list[int]:
    return sorted(table.refresh().scan(**scan).to_arrow()["id"].to_pylist())


def groups_of(table: Table) -> list[Path]:
    return [
        local(snapshot.summary["icetower.group-file"])
        for snapshot in table.refresh().metadata.snapshots
        if snapshot.summary and "icetower.group-file" in snapshot.summary.additional_properties
    ]


def groups(table: Table) -> list[Group]:
    return [read_group(path.read_bytes()) for path in groups_of(table)]


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", schema=SCHEMA)


@pytest.fixture
def by_day(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", schema=SCHEMA, partition_spec=BY_DAY)


def name_of(table: Table) -> str:
    return ".".join(table.name())


def refused(call: Any) -> tuple[int, str | None]:
    with pytest.raises(IcetowerError) as error:
        call()
    return error.value.status, error.value.rule


ODD = "a b%20c+ü&=~"


def test_locations_are_taken_as_they_are(start_tower: Callable[..., TowerProcess], tmp_path: Path) -> None:
    """Spaces, per cent signs and other characters that URIs quote: in the data directory, in a file's name."""
    tower = start_tower(data=ODD)
    catalog = tower.catalog()
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", schema=SCHEMA)
    assert local(table.location()).is_relative_to(tmp_path / ODD)
    table.append(pa.table({"id": [1], "at": [FIRST], "owner": ["me"]}, schema=schema_to_pyarrow(table.schema())))
    tower.admin.append("ns.t", [write(table, f"{ODD}.parquet", [2]), write(table, "plain.parquet", [3])])
    assert ids(table) == [1, 2, 3]
    for name in ("a#b", "a?b"):  # of which some readers take a part only
        file = write(table, f"{name}.parquet", [4])
        assert refused(lambda file=file: tower.admin.append("ns.t", [file])) == (400, "append.path")
    assert ids(table) == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [ODD, f"{ODD}.stderr"]


# -- contents ---------------------------------------------------------------------------------------------------------


def test_h2_a_herd_of_agents_appends_and_every_row_is_there_once(tower: TowerProcess, table: Table) -> None:
    """Sixteen agents with principals of their own: few snapshots, every file attributed to its agent and its key."""
    name = name_of(table)
    agents, each = 16, 4
    granted = "operations: [append], write_location: table, partitions: all, require_key: true"
    rule = f"tables:\n  - {{table: {name}, {granted}}}\n"
    secrets = {n: tower.principal(f"herd-{n}", rule) for n in range(agents)}
    start = Barrier(agents)

    def work(agent: int) -> list[tuple[str, str, int]]:
        done: list[tuple[str, str, int]] = []
        with Tower(tower.uri, secrets[agent]) as sdk:
            files = [write(table, f"{agent}-{n}.parquet", [agent * 100 + n], owner=f"w{agent}") for n in range(each)]
            start.wait(60)
            for file in files:
                key = new_key()
                told = sdk.append(name, [file], key=key)
                assert (told.outcome, told.files, told.key) == ("appended", 1, key)
                done.append((file.path, key, told.snapshot_id))
        return done

    with ThreadPoolExecutor(agents) as threads:
        told = dict(zip(secrets, threads.map(work, secrets), strict=True))
    assert ids(table) == sorted(agent * 100 + n for agent in range(agents) for n in range(each))

    appended = {
        append.files: (append.principal, append.key, group.snapshot_id)
        for group in groups(table)
        for append in group.appends
    }
    assert appended == {
        (path,): (f"herd-{agent}", key, snapshot_id) for agent, done in told.items() for path, key, snapshot_id in done
    }
    history = table.metadata.snapshots
    assert len(history) < agents * each
    assert history[-1].summary is not None
    assert history[-1].summary["total-records"] == str(agents * each)
    sizes = [int(s.summary["icetower.group-size"]) for s in history if s.summary]
    assert sum(sizes) == agents * each
    assert Counter(tower.outcomes(name)) == {"appended": agents * each}


def test_rows_are_counted_pruned_and_read_incrementally(tower: TowerProcess, by_day: Table) -> None:
    files = [write(by_day, f"{day}.parquet", [8 + day, 8 + day], day=day) for day in range(3)]
    buckets = [BucketTransform(4).transform(LongType())(8 + day) for day in range(3)]
    told = [
        tower.admin.append(
            name_of(by_day), [DataFile(f.path, 2, f.size_bytes, {"day": f"2017-01-{day + 1:02d}", "bucket": bucket})]
        )
        for day, (f, bucket) in enumerate(zip(files, buckets, strict=True))
    ]
    assert by_day.refresh().scan().count() == 6
    assert ids(by_day, row_filter=EqualTo("id", 9)) == [9, 9]
    for row_filter in (EqualTo("id", 10), GreaterThanOrEqual("at", "2017-01-03T00:00:00")):
        assert [task.file.file_path for task in by_day.scan(row_filter=row_filter).plan_files()] == [files[2].path]
    nothing = And(EqualTo("id", 8), GreaterThanOrEqual("at", "2017-01-02T00:00:00"))
    assert not list(by_day.scan(row_filter=nothing).plan_files())
    for n, done in enumerate(told):  # what a snapshot adds is found in manifests of its own (trap S4)
        snapshot = by_day.metadata.snapshot_by_id(done.snapshot_id)
        assert snapshot is not None
        own = [m for m in snapshot.manifests(by_day.io) if m.added_snapshot_id == done.snapshot_id]
        entries = [e for m in own for e in m.fetch_manifest_entry(by_day.io)]
        assert [(e.data_file.file_path, e.status, e.snapshot_id) for e in entries] == [
            (files[n].path, 1, done.snapshot_id)
        ]


def test_appends_and_commits_of_other_clients_go_together(tower: TowerProcess, table: Table) -> None:
    rows = pa.table({"id": [1], "at": [FIRST], "owner": ["p"]}, schema=schema_to_pyarrow(table.schema()))
    table.append(rows)
    tower.admin.append(name_of(table), [write(table, "a.parquet", [2, 3])])
    table.refresh().append(rows)
    table.refresh().delete("id = 2")
    assert ids(table) == [1, 1, 3]


def test_a_branch_of_its_own(tower: TowerProcess, table: Table) -> None:
    tower.admin.append(name_of(table), [write(table, "a.parquet", [1])])
    head = table.refresh().current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    tower.admin.append(name_of(table), [write(table, "b.parquet", [2])], ref="audit")
    assert ids(table) == [1]
    assert sorted(table.scan().use_ref("audit").to_arrow()["id"].to_pylist()) == [1, 2]
    assert refused(lambda: tower.admin.append(name_of(table), [write(table, "c.parquet", [3])], ref="none")) == (
        400,
        "append.branch",
    )


# -- exactly once -----------------------------------------------------------------------------------------------------


def test_a_file_is_appended_once_whatever_its_key_and_number(tower: TowerProcess, table: Table) -> None:
    """Refused, since its rows would be read twice, and not as what a client may clean up after (trap A3)."""
    name, file = name_of(table), write(table, "a.parquet", range(10))
    assert tower.admin.append(name, [file], key=new_key()).outcome == "appended"
    granted = f"tables: [{{table: {name}, operations: [append], partitions: all, write_location: table}}]"
    other = tower.principal(f"{name.partition('.')[0]}_other", granted)
    with Tower(tower.uri, other) as theirs:
        for words in ({"key": new_key()}, {}, {"application": ("a", 1)}, {"application": ("b", 7)}):
            assert tower.admin.append(name, [file], **words).outcome == "replayed"
            assert refused(lambda words=words: theirs.append(name, [file], **words)) == (422, "append.live")
    rows = pa.table({"id": [10], "at": [FIRST], "owner": ["me"]}, schema=schema_to_pyarrow(table.schema()))
    table.refresh().append(rows)
    (theirs,) = (task.file for task in table.scan(row_filter="id = 10").plan_files())
    spark = DataFile.of_parquet(local(theirs.file_path))
    assert refused(lambda: tower.admin.append(name, [write(table, "b.parquet", [11]), spark])) == (422, "append.live")
    assert ids(table) == list(range(11))
    table.delete("id < 10")
    assert tower.admin.append(name, [file]).outcome == "appended"
    assert ids(table) == list(range(11))


def test_a_key_makes_an_append_exactly_once_though_many_send_it(tower: TowerProcess, table: Table) -> None:
    file, key, senders = write(table, "a.parquet", [1]), new_key(), 8
    start = Barrier(senders)

    def send(_: int) -> tuple[int, str]:
        start.wait(60)
        told = tower.admin.append(name_of(table), [file], key=key)
        return told.snapshot_id, told.outcome

    with ThreadPoolExecutor(senders) as threads:
        told = list(threads.map(send, range(senders)))
    assert len({snapshot_id for snapshot_id, _ in told}) == 1
    assert Counter(outcome for _, outcome in told) == {"appended": 1, "replayed": senders - 1}
    again = tower.admin.append(name_of(table), [write(table, "b.parquet", [2])], key=key)  # a rerun, with another file
    assert (again.outcome, again.snapshot_id) == ("replayed", told[0][0])
    assert ids(table) == [1]
    assert len(table.metadata.snapshots) == 1


def test_numbers_make_appends_exactly_once_too(tower: TowerProcess, table: Table) -> None:
    name = name_of(table)
    first = tower.admin.append(name, [write(table, "a.parquet", [1])], application=("ingest", 5))
    assert (first.outcome, first.key) == ("appended", None)
    for number in (5, 4):
        again = tower.admin.append(name, [write(table, f"r{number}.parquet", [9])], application=("ingest", number))
        assert (again.outcome, again.snapshot_id) == ("replayed", first.snapshot_id)
    other = tower.admin.append(name, [write(table, "b.parquet", [2])], application=("other", 1))
    later = tower.admin.append(name, [write(table, "c.parquet", [3])], application=("ingest", 7))
    assert [other.outcome, later.outcome] == ["appended", "appended"]
    assert ids(table) == [1, 2, 3]


def test_k1_a_key_is_known_after_the_tower_has_forgotten_everything(start_tower: Any) -> None:
    """It is in the table: the group file. Neither memory nor ledger is needed."""
    first = start_tower()
    catalog = first.catalog()
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=SCHEMA)
    key, file = new_key(), write(table, "a.parquet", [1])
    told = first.admin.append("n.t", [file], key=key)
    assert first.stop() == 0
    (first.data / "control.db").rename(first.data / "control.db.lost")
    for rest in first.data.glob("control.db-*"):
        rest.unlink()
    second = start_tower()
    again = second.admin.append("n.t", [file], key=key)
    assert (again.outcome, again.snapshot_id) == ("replayed", told.snapshot_id)
    assert ids(second.catalog().load_table("n.t")) == [1]


def test_k1_a_purge_deletes_the_group_files_with_their_table(
    tower: TowerProcess, catalog: Catalog, table: Table
) -> None:
    """Trap K1: they lie in the table's place, and nothing but its summaries names them."""
    name = name_of(table)
    tower.admin.append(name, [write(table, "a.parquet", [1])], key=new_key())
    (group,) = groups_of(table)
    assert group.exists()
    catalog.purge_table(name)
    assert not group.exists()


def test_k2_what_was_rolled_back_is_not_done(tower: TowerProcess, table: Table) -> None:
    name, key = name_of(table), new_key()
    kept = tower.admin.append(name, [write(table, "a.parquet", [1])])
    gone = write(table, "b.parquet", [2])
    tower.admin.append(name, [gone], key=key)
    table.refresh().manage_snapshots().rollback_to_snapshot(kept.snapshot_id).commit()
    with pytest.raises(KeyMisused) as refusal:
        tower.admin.append(name, [gone], key=key)
    assert refusal.value.rule == "key.rolled-back"
    assert tower.admin.append(name, [gone]).outcome == "appended"
    assert ids(table) == [1, 2]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_s6_files_without_field_ids_are_refused(tower: TowerProcess, table: Table) -> None:
    file = write(table, "a.parquet", [1])
    pq.write_table(pa.table({"id": [1]}), local(file.path))
    bare = DataFile.of_parquet(local(file.path))
    with pytest.raises(BadRequest) as refusal:
        tower.admin.append(name_of(table), [bare])
    assert refusal.value.rule == "append.field-ids"
    table.transaction().set_properties(
        {"schema.name-mapping.default": json.dumps([{"field-id": 1, "names": ["id"]}])}
    ).commit_transaction()
    tower.admin.append(name_of(table), [bare])
    assert ids(table) == [1]


def test_what_is_said_of_a_file_is_looked_at(tower: TowerProcess, by_day: Table) -> None:
    name, file = name_of(by_day), write(by_day, "a.parquet", [1, 1], day=1)
    bucket = BucketTransform(4).transform(LongType())(1)
    right = {"day": "2017-01-02", "bucket": bucket}
    wrong = [
        (DataFile(file.path, 3, file.size_bytes, right), "append.records"),
        (DataFile(file.path, 2, file.size_bytes + 1, right), "append.size"),
        (DataFile(file.path + "x", 2, file.size_bytes, right), "append.file"),
        (DataFile(file.path, 2, file.size_bytes, right | {"day": "2017-01-03"}), "append.partition"),
        (DataFile(file.path, 2, file.size_bytes, right | {"bucket": (bucket or 0) ^ 1}), "append.partition"),
        (DataFile(file.path, 2, file.size_bytes, {}), "append.partition"),
    ]
    assert [refused(lambda f=f: tower.admin.append(name, [f])) for f, _ in wrong] == [(400, rule) for _, rule in wrong]
    assert by_day.refresh().current_snapshot() is None
    assert tower.admin.append(name, [DataFile(file.path, 2, file.size_bytes, right)]).outcome == "appended"


def test_nobody_appends_outside_their_contract(tower: TowerProcess, by_day: Table, namespace: str) -> None:
    name = name_of(by_day)
    owner = Tower(
        tower.uri,
        tower.principal(
            f"{namespace}.owner",
            f"tables:\n  - {{table: {name}, operations: [append], partitions: [{{day: 2017-01-02}}], require_key: true,"
            " write_location: table,"
            " prove_partitions: true}\n",
        ),
    )
    inside, outside = write(by_day, "a.parquet", [1, 1], day=1), write(by_day, "b.parquet", [1, 1], day=2)
    bucket = BucketTransform(4).transform(LongType())(1)
    mine = DataFile(inside.path, 2, inside.size_bytes, {"day": "2017-01-02", "bucket": bucket})
    with pytest.raises(Forbidden) as refusal:
        owner.append(
            name, [mine, DataFile(outside.path, 2, outside.size_bytes, {"day": "2017-01-03", "bucket": bucket})]
        )
    assert refusal.value.rule == "contract.partitions"
    assert refusal.value.partitions == (f"day=2017-01-03/bucket={bucket}",)
    # To say that the file lies in one's own partition does not help: its statistics tell.
    lie = DataFile(outside.path, 2, outside.size_bytes, {"day": "2017-01-02", "bucket": bucket})
    assert refused(lambda: owner.append(name, [lie])) == (400, "append.partition")
    both = write(by_day, "c.parquet", [1, 2], day=1)  # of two values nothing proves a bucket
    believed = DataFile(both.path, 2, both.size_bytes, {"day": "2017-01-02", "bucket": bucket})
    assert refused(lambda: owner.append(name, [believed])) == (403, "append.unproven")
    assert owner.append(name, [mine]).outcome == "appended"
    stranger = Tower(tower.uri, tower.principal(f"{namespace}.reader", f"reads: [{name}]\n"))
    assert refused(lambda: stranger.append(name, [mine])) == (403, "contract.operation")
    owner.close()
    stranger.close()


def test_the_route_as_others_may_call_it(tower: TowerProcess, table: Table, namespace: str) -> None:
    """By the header's key, and without the SDK; it is not among the endpoints that Iceberg's clients are told of."""
    file, key = write(table, "a.parquet", [1]), new_key()
    url = f"/v1/namespaces/{namespace}/tables/t/append"
    with tower.client() as http:
        answer = http.post(url, json={"files": [file.to_json()]}, headers={"Idempotency-Key": key})
        assert answer.status_code == 200
        assert set(answer.json()) == {
            "snapshot-id",
            "sequence-number",
            "outcome",
            "group-size",
            "files",
            "queue-wait-ms",
        }
        again = http.post(url, json={"files": [file.to_json()], "key": key})
        assert (again.json()["outcome"], again.json()["snapshot-id"]) == ("replayed", answer.json()["snapshot-id"])
        both = http.post(url, json={"files": [file.to_json()], "key": "other"}, headers={"Idempotency-Key": key})
        assert error_of(both)["rule"] == "key"
        # K1: numbers by headers, as for commits.
        numbered = {"Icetower-Application": "headers", "Icetower-Sequence": "5"}
        files = [{"files": [write(table, f"{name}.parquet", [1]).to_json()]} for name in "bcd"]
        first, second = (http.post(url, json=body, headers=numbered).json() for body in files[:2])
        assert (first["outcome"], second["outcome"]) == ("appended", "replayed")
        named = {**files[2], "application": {"id": "body", "sequence": 5}}
        assert error_of(http.post(url, json=named, headers=numbered))["rule"] == "key.sequence"
        assert error_of(http.post(url, json={"files": []}))["rule"] == "shape"
        assert (
            error_of(http.post(f"/v1/namespaces/{namespace}/tables/none/append", json={"files": [file.to_json()]}))[
                "code"
            ]
            == 404
        )
        assert not any("append" in endpoint for endpoint in http.get("/v1/config").json()["endpoints"])
    with tower.client("wrong") as http:
        assert error_of(http.post(url, json={"files": [file.to_json()]}))["code"] == 401
    assert ids(table) == [1, 1]


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_k1_a_table_whose_group_file_is_damaged_is_read_and_no_key_is_called_new_that_may_be_in_it(
    start_tower: Callable[..., TowerProcess], tmp_path: Path, damage: str
) -> None:
    first = start_tower(data="first")
    catalog = first.catalog()
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", schema=SCHEMA)
    key = new_key()
    landed = first.admin.append("ns.t", [write(table, "a.parquet", [1])], key=key)
    (group,) = groups_of(table)
    whole = group.read_bytes()
    group.unlink()
    if damage == "torn":
        group.write_bytes(whole[: len(whole) // 2])

    # Another tower on the same catalog, with a ledger of its own that knows nothing.
    config = tmp_path / "second.toml"
    database = tmp_path / "first" / "catalog.db"
    config.write_text(f'[upstream]\nuri = "sqlite:///{database}"\n')
    second = start_tower("--config", str(config), data="second")
    table = second.catalog().load_table("ns.t")
    assert ids(table) == [1]
    again = write(table, "b.parquet", [1])
    for attempt in ({"key": key}, {"key": "any text"}, {"application": ("app", 1)}):
        with pytest.raises(KeyMisused) as told:
            second.admin.append("ns.t", [again], **attempt)
        error = told.value
        assert (error.rule, error.snapshot, error.files) == ("key.unreadable", landed.snapshot_id, (f"file://{group}",))
        assert str(group) in error.message
    table.append(pa.table({"id": [2], "at": [FIRST], "owner": ["me"]}, schema=schema_to_pyarrow(table.schema())))
    assert ids(table) == [1, 2]

    group.write_bytes(whole)  # restored: a tower that starts now knows the key
    third = start_tower("--config", str(config), data="third")
    assert third.admin.append("ns.t", [again], key=key).outcome == "replayed"
    assert third.admin.append("ns.t", [write(table, "c.parquet", [3])]).outcome == "appended"
    assert ids(third.catalog().load_table("ns.t")) == [1, 2, 3]


def test_an_append_of_the_old_schema_does_not_land_in_a_table_that_was_replaced(
    tower: TowerProcess, table: Table
) -> None:
    """As `CREATE OR REPLACE TABLE` does it, while the append waits: nobody could read the table any more."""
    tower.admin.append(name_of(table), [write(table, "before.parquet", [1])])
    file = write(table, "waits.parquet", [2])
    fields = [field.model_dump(by_alias=True, mode="json") for field in table.schema().fields]
    replaced = {"type": "struct", "schema-id": 1, "fields": [{**fields[0], "type": "string"}, *fields[1:]]}
    updates = [
        {"action": "add-schema", "schema": replaced},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "remove-snapshot-ref", "ref-name": "main"},
    ]
    path = f"/v1/namespaces/{name_of(table).split('.')[0]}/tables/{name_of(table).split('.')[1]}"
    with ThreadPoolExecutor(1) as threads, tower.client() as http:
        waiting = threads.submit(lambda: refused(lambda: tower.admin.append(name_of(table), [file])))
        http.post(path, json={"requirements": [], "updates": updates}).raise_for_status()
        assert waiting.exception() or waiting.result() == (400, "append.types")
    assert table.refresh().scan().to_arrow().num_rows == 0

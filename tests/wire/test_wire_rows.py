"""Rows at the door, as agents send them over a socket; read back by PyIceberg, attributed, and taken back."""

from __future__ import annotations

import datetime as dt
import io
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestamptzType

from icetower.agent import new_key
from tests.wire.test_wire_appends import groups
from verify.kit.tower_process import TowerProcess, command

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestamptzType(), required=False),
    NestedField(3, "owner", StringType(), required=False),
    NestedField(4, "price", DecimalType(9, 2), required=False),
)
BY_DAY = PartitionSpec(
    PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="day"),
    PartitionField(source_id=1, field_id=1001, transform=BucketTransform(4), name="bucket"),
)
ARROW = "application/vnd.apache.arrow.stream"


class Door:
    """One principal's way to the door."""

    def __init__(self, tower: TowerProcess, secret: str) -> None:
        self._client = httpx2.Client(
            base_url=tower.uri, headers={"Authorization": f"Bearer {secret}"}, timeout=60, trust_env=False
        )

    def send(self, table: Table, *rows: Mapping[str, Any], **body: Any) -> dict[str, Any]:
        return self.answer(self.post(table, json={"rows": rows, **body}))

    def post(self, table: Table, **request: Any) -> httpx2.Response:
        return self._client.post(f"/v1/namespaces/{table.name()[0]}/tables/{table.name()[1]}/rows", **request)

    @staticmethod
    def answer(response: httpx2.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def refused(self, table: Table, *rows: Mapping[str, Any], **body: Any) -> tuple[int, str]:
        response = self.post(table, json={"rows": rows, **body})
        return response.status_code, response.json()["error"]["rule"]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def door(tower: TowerProcess) -> Iterator[Door]:
    found = Door(tower, tower.secret)
    yield found
    found.close()


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", schema=SCHEMA)


@pytest.fixture
def by_day(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", schema=SCHEMA, partition_spec=BY_DAY)


def ids(table: Table, **scan: Any) -> list[int]:
    return sorted(table.refresh().scan(**scan).to_arrow()["id"].to_pylist())


def test_rows_are_in_the_table_when_the_answer_is_here(door: Door, by_day: Table) -> None:
    answer = door.send(by_day, {"id": 1, "at": "2026-01-01T00:00:00+02:00", "price": "9.99"}, {"id": 2})
    assert (answer["outcome"], answer["rows"], answer["group-size"]) == ("appended", 2, 1)
    snapshot = by_day.refresh().current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == answer["snapshot-id"]
    rows = {row["id"]: row for row in by_day.scan().to_arrow().to_pylist()}
    assert rows[1]["at"] == dt.datetime(2025, 12, 31, 22, tzinfo=dt.UTC)
    assert str(rows[1]["price"]) == "9.99"
    assert rows[2]["at"] is None
    assert ids(by_day, row_filter="id = 1") == [1]
    files = by_day.inspect.files().to_pylist()
    assert {str(file["partition"]["day"]) for file in files} == {"2025-12-31", "None"}
    assert all("/data/-rows/" in file["file_path"] for file in files)
    assert all(file["readable_metrics"]["id"]["lower_bound"] is not None for file in files)


def test_a_key_is_done_once_whatever_the_form(door: Door, table: Table) -> None:
    key = new_key()
    first = door.send(table, {"id": 1}, key=key)
    again = door.send(table, {"id": 1}, key=key)
    assert (first["outcome"], again["outcome"]) == ("appended", "replayed")
    assert again["snapshot-id"] == first["snapshot-id"]
    lines = b'{"id": 2}\n{"id": 3, "owner": "me"}\n'
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": new_key()}
    outcomes = [door.answer(door.post(table, content=lines, headers=headers))["outcome"] for _ in range(2)]
    assert outcomes == ["appended", "replayed"]
    sink = io.BytesIO()
    rows = pa.table({"id": pa.array([4, 5], pa.int32()), "price": ["1", "2"]})
    rows = rows.set_column(1, "price", rows["price"].cast(pa.decimal128(4, 2)))
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    headers = {"Content-Type": ARROW, "Idempotency-Key": new_key()}
    answers = [door.answer(door.post(table, content=sink.getvalue(), headers=headers)) for _ in range(2)]
    assert [(each["outcome"], each["rows"]) for each in answers] == [("appended", 2), ("replayed", 2)]
    assert ids(table) == [1, 2, 3, 4, 5]


def test_all_rows_of_a_request_land_or_none(door: Door, table: Table) -> None:
    assert door.refused(table, {"id": 1}, {"id": "x"}) == (400, "rows.values")
    assert door.refused(table, {"id": 1}, {"id": 2, "nope": 1}) == (400, "rows.columns")
    assert door.refused(table) == (400, "shape")
    assert door.refused(table, {"id": 1}, ref="nowhere") == (400, "append.branch")
    assert table.refresh().current_snapshot() is None


def test_a_herd_shares_files_and_each_row_is_its_own_s(tower: TowerProcess, table: Table) -> None:
    """Sixteen principals: every row once, few files, and the group files say whose each row is."""
    agents, each = 16, 6
    granted = f"table: {'.'.join(table.name())}, operations: [append]"

    def door_of(name: str) -> Door:
        rule = f"tables:\n  - {{{granted}, partitions: [{{identity(owner): [{name}]}}]}}\n"
        return Door(tower, tower.principal(name, rule))

    doors = {name: door_of(name) for name in (f"door-{n}" for n in range(agents))}
    start = Barrier(agents)

    def work(name: str) -> list[int]:
        start.wait(60)
        first = int(name.removeprefix("door-")) * 1_000
        for at in range(each):
            doors[name].send(table, {"id": first + at, "owner": name}, key=new_key())
        assert doors[name].refused(table, {"id": first, "owner": "door-x"}) == (403, "contract.partitions")
        return [first + at for at in range(each)]

    with ThreadPoolExecutor(agents) as threads:
        sent = [n for some in threads.map(work, doors) for n in some]
    assert ids(table) == sorted(sent)
    rows = {row["file"]: row["rows"] for row in _files(table)}
    told: Counter[tuple[str, int]] = Counter()
    for group in groups(table):
        for append in group.appends:
            for path, spans in append.rows.items():
                for start_at, count in spans:
                    told.update((append.principal, row) for row in rows[path][start_at : start_at + count])
    assert told == Counter((f"door-{n // 1_000}", n) for n in sent)
    assert len(rows) < len(sent)


def _files(table: Table) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    paths = [task.file.file_path for task in table.refresh().scan().plan_files()]
    return [{"file": path, "rows": pq.read_table(path.removeprefix("file://"))["id"].to_pylist()} for path in paths]


@pytest.mark.parametrize("version", ["2", "3"])
def test_one_agent_s_rows_of_a_shared_file_are_taken_back(
    start_tower: Callable[..., TowerProcess], version: str
) -> None:
    tower = start_tower()
    catalog = tower.catalog()
    catalog.create_namespace("ns")
    properties = {"format-version": version, "icetower.appends.snapshots-per-second": "1"}
    table = catalog.create_table("ns.t", schema=SCHEMA, properties=properties)
    rule = "tables:\n  - {table: ns.t, operations: [append], partitions: all}\n"
    doors = {name: Door(tower, tower.principal(name, rule)) for name in ("ann", "bob")}
    doors["ann"].send(table, {"id": 0, "owner": "ann"})  # the next group waits, and takes all of these

    def send(name: str, at: int) -> None:
        doors[name].send(table, {"id": at, "owner": name}, {"id": at + 1, "owner": name})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, ("ann", "bob", "ann", "bob"), (1, 3, 5, 7)))
    assert ids(table) == list(range(9))

    def revert(agent: str = "ann", status: int = 0) -> dict[str, Any]:
        environment = {"PATH": "/usr/bin:/bin", "ICETOWER_TOKEN": tower.secret}
        arguments = ("revert", "ns.t", "--agent", agent, "--since", "1h", "--catalog", tower.uri, "--json", "--yes")
        done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == status, done.stderr + done.stdout
        plan: dict[str, Any] = json.loads(done.stdout)
        return plan

    plan = revert()
    assert sum(each["rows"] for each in plan["delete"]) + len(plan["remove"]) >= 1
    assert ids(table) == [3, 4, 7, 8]
    plan = revert()
    assert (plan["remove"], plan["delete"], plan["committed"]) == ([], [], None)
    assert ids(table) == [3, 4, 7, 8]
    audit = subprocess.run(
        command("audit", "ns.t", "--catalog", tower.uri, "--json"),
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "ICETOWER_TOKEN": tower.secret},
    )
    assert audit.returncode == 0, audit.stderr + audit.stdout
    # Then the other one, of the same snapshots: none of the first one's rows come back. One deletion vector stands for
    # the deletes of both, and is not parted.
    plan = revert("bob", status=0 if version == "2" else 3)
    assert ids(table) == ([] if version == "2" else [3, 4, 7, 8])
    for each in doors.values():
        each.close()


def test_the_schema_and_the_partitioning_may_change_while_rows_come(door: Door, table: Table) -> None:
    def write(first: int) -> list[int]:
        found = list(range(first, first + 40))
        for at in found:
            door.send(table, {"id": at, "owner": "me"}, key=new_key())
        return found

    with ThreadPoolExecutor(3) as threads:
        writing = [threads.submit(write, 1_000 * n) for n in (1, 2)]
        other = table.catalog.load_table(table.name())
        for at in range(4):
            with other.update_schema() as schema:
                schema.add_column(f"extra{at}", StringType())
        with other.update_spec() as spec:
            spec.add_field("id", BucketTransform(4), "bucket")
        sent = [each for done in writing for each in done.result()]
    assert ids(table) == sorted(sent)


def test_too_many_rows_on_their_way_are_told_so_at_once(door: Door, table: Table) -> None:
    rows = [{"id": at, "owner": "x" * 3_000} for at in range(1_200)]
    body = json.dumps({"rows": rows}).encode()

    def post(_: int) -> int:
        return door.post(table, content=body, headers={"Content-Type": "application/json"}).status_code

    with ThreadPoolExecutor(12) as threads:
        statuses = Counter(threads.map(post, range(12)))
    assert set(statuses) <= {200, 429}
    assert len(ids(table)) == 1_200 * statuses[200]

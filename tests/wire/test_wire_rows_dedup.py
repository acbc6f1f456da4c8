"""Rows at the door that share files, deduplicated: whose a row is tells its place in the file, and not the file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import new_key
from icetower.table.groups import Group
from tests.wire.test_wire_appends import groups
from tests.wire.test_wire_rows import Door
from verify.kit.tower_process import TowerProcess, command

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "p", StringType(), required=False),
    NestedField(3, "_idempotency_key", StringType(), required=False),
)
BY_P = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="p"))
ROUNDS_MAX = 20


class Rounds:
    """Rounds of requests that share a snapshot: some single rows, an order of two rows, and one row sent twice."""

    def __init__(self, table: Table, doors: list[Door]) -> None:
        self._table, self._doors = table, doors
        self.once: set[int] = set()
        self.twice: list[set[int]] = []

    def run(self, at: int) -> None:
        """Ids and keys from a number on. Each request has a protocol key of its own."""
        requests = [
            [(at + 1, "a", f"single-{at}")],
            [(at + 2, "a", f"order-{at}"), (at + 3, "b", f"order-{at}")],
            [(at + 4, "a", f"twice-{at}")],
            [(at + 5, "a", f"twice-{at}")],
        ]
        together = Barrier(len(requests))

        def send(door: Door, rows: list[tuple[int, str, str]]) -> None:
            named = [{"id": number, "p": p, "_idempotency_key": key} for number, p, key in rows]
            together.wait(60)
            door.send(self._table, *named, key=new_key())

        with ThreadPoolExecutor(len(requests)) as threads:
            list(threads.map(send, self._doors, requests))
        self.once |= {at + 1, at + 2, at + 3}
        self.twice.append({at + 4, at + 5})


def parted(group: Group) -> bool:
    """Whether a request of two rows has files of which others were the first, and one row came twice in a file."""
    firsts: dict[str, int] = {}
    for number, append in enumerate(group.appends):
        for path in append.rows:
            firsts.setdefault(path, number)
    orders = [(number, append) for number, append in enumerate(group.appends) if len(append.rows) == 2]
    return len(group.appends) == 4 and any(
        {firsts[path] for path in append.rows} != {number} for number, append in orders
    )


@pytest.mark.spark
@pytest.mark.sharp
@pytest.mark.parametrize("version", ["2", "3"])
def test_rows_that_share_files_stay_once_each(start_tower: Callable[..., TowerProcess], version: str) -> None:
    tower = start_tower()
    catalog = tower.catalog()
    catalog.create_namespace("ns")
    properties = {"format-version": version, "icetower.appends.snapshots-per-second": "1"}
    table = catalog.create_table("ns.t", schema=SCHEMA, partition_spec=BY_P, properties=properties)
    doors = [Door(tower, tower.secret) for _ in range(4)]
    rounds = Rounds(table, doors)
    doors[0].send(table, {"id": 0, "p": "a", "_idempotency_key": "zero"})  # the next group waits
    for at in range(10, 10 * ROUNDS_MAX, 10):
        rounds.run(at)
        if any(map(parted, groups(table))):
            break
    assert any(map(parted, groups(table)))
    for door in doors:
        door.close()
    arguments = ("dedup", "--target", "ns.t", "--uri", tower.uri, "--json", "--master", "local[2]")
    environment = {"PATH": "/usr/bin:/bin", "ICETOWER_TOKEN": tower.secret}
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    left = set(table.refresh().scan().to_arrow()["id"].to_pylist())
    assert left >= rounds.once | {0}
    assert [len(left & pair) for pair in rounds.twice] == [1] * len(rounds.twice)
    assert (said["removed"], said["untold"]) == (len(rounds.twice), 0)

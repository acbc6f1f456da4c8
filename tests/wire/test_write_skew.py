"""The write skew of trinodb/trino #31072, against `read_scope: owned`: two MERGEs insert one key into two partitions.

Each looks for the key in the whole table, and writes to its own partition alone. Who promises that its writes depend on
nothing but its own partitions gets what Trino's narrowed validation gives, and the auditor finds it. Who says what it
reads is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import keyed, new_key, reads
from tests.wire.clauses import NO_RETRY, Agent
from tests.wire.test_wire_audit import typed
from verify.kit.tower_process import TowerProcess

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "v", StringType(), required=False),
    NestedField(3, "dt", StringType(), required=False),
    identifier_field_ids=[1],
)
BY_DAY = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "dt"))
Say = Callable[[Table, int], dict[str, str]]
OWNED = ", read_scope: owned"


def row(id_: int, dt: str) -> pa.Table:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string()), pa.field("dt", pa.string())]
    return pa.table([[id_], [f"by {dt}"], [dt]], schema=pa.schema(fields))


def says_nothing(table: Table, id_: int) -> dict[str, str]:
    return keyed(new_key())


def says_what_it_reads(table: Table, id_: int) -> dict[str, str]:
    return keyed(new_key()) | reads(table, EqualTo("id", id_))


def merge(table: Table, id_: int, dt: str, say: Say = says_nothing) -> None:
    """MERGE … ON t.id = s.id WHEN MATCHED THEN UPDATE … WHEN NOT MATCHED THEN INSERT, into the writer's own day."""
    said = say(table, id_)
    if table.scan(EqualTo("id", id_)).to_arrow().num_rows == 0:
        table.append(row(id_, dt), snapshot_properties=said)
    else:
        table.overwrite(row(id_, dt), EqualTo("id", id_), snapshot_properties=said)


class Scene:
    def __init__(self, tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
        self.tower = tower
        self.name = f"{namespace}.t"
        self.seeded = catalog.create_table(self.name, SCHEMA, partition_spec=BY_DAY, properties=NO_RETRY)
        self.seeded.append(row(1, "d0"))
        self._namespace = namespace

    def both(self, promise: str) -> tuple[Table, Table]:
        """The table as two agents have loaded it, each the owner of a day, before either writes."""
        contract = "tables: [{table: T, operations: [overwrite], partitions: [{dt: DAY}]PROMISE}]\n"
        agents = [
            Agent(
                self.tower,
                self._namespace,
                contract.replace("DAY", day).replace("PROMISE", promise),
                name=f"agent-{day}",
            )
            for day in ("d1", "d2")
        ]
        first, second = (agent.table() for agent in agents)
        return first, second

    def found(self, id_: int) -> list[dict[str, Any]]:
        return self.seeded.refresh().scan(EqualTo("id", id_)).to_arrow().to_pylist()

    def audit(self, *words: str) -> list[dict[str, Any]]:
        done = typed(self.tower, "audit", self.name, "--json", "--fail-on", "never", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["violations"]

    def snapshots(self) -> list[int]:
        """Oldest first."""
        return [each.snapshot_id for each in self.seeded.refresh().history()]


@pytest.fixture
def scene(tower: TowerProcess, catalog: Catalog, namespace: str) -> Scene:
    return Scene(tower, catalog, namespace)


def test_a_promise_that_is_not_true_lets_a_key_in_twice_and_the_auditor_finds_it(scene: Scene) -> None:
    first, second = scene.both(OWNED)
    merge(first, 2, "d1")
    merge(second, 2, "d2")
    assert sorted(each["dt"] for each in scene.found(2)) == ["d1", "d2"]
    assert scene.audit() == []  # by manifests alone there is nothing to see
    (violation,) = scene.audit("--content")
    assert (violation["rule"], violation["verdict"]) == ("key-twice", "possible")
    assert violation["snapshots"] == scene.snapshots()[-2:]
    assert "to partition dt=d1: in it id is 2" in violation["witness"][0]
    assert "partition dt=d2" in violation["witness"][1]
    assert "rebased, because somebody has declared" in violation["witness"][2]
    assert scene.audit("--content", "--key", "v") == []  # by which no row is there twice


def test_who_says_what_it_reads_is_refused(scene: Scene) -> None:
    first, second = scene.both(OWNED)
    merge(first, 2, "d1", says_what_it_reads)
    with pytest.raises(CommitFailedException):
        merge(second, 2, "d2", says_what_it_reads)
    assert [each["dt"] for each in scene.found(2)] == ["d1"]
    assert scene.audit("--content") == []


def test_without_the_promise_the_second_is_refused(scene: Scene) -> None:
    first, second = scene.both("")
    merge(first, 2, "d1")
    with pytest.raises(CommitFailedException):
        merge(second, 2, "d2")
    assert scene.audit("--content") == []


def test_other_keys_are_no_finding(scene: Scene) -> None:
    first, second = scene.both(OWNED)
    merge(first, 2, "d1")
    merge(second, 3, "d2")
    assert len(scene.found(2)) == len(scene.found(3)) == 1
    assert scene.audit("--content") == []


def test_a_key_that_was_deleted_since_is_there_once(scene: Scene, catalog: Catalog) -> None:
    first, second = scene.both(OWNED)
    merge(first, 2, "d1")
    merge(second, 2, "d2")
    catalog.load_table(scene.name).delete(EqualTo("dt", "d1"))
    assert len(scene.found(2)) == 1
    (violation,) = scene.audit("--content")  # what happened, happened
    assert violation["rule"] == "key-twice"


def test_a_column_that_is_not_there_cannot_be_a_key(scene: Scene) -> None:
    done = typed(scene.tower, "audit", scene.name, "--content", "--key", "nothing")
    assert done.returncode == 1
    assert "no column 'nothing'" in done.stderr + done.stdout

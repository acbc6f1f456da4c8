"""Random jobs by PyIceberg: the same writers on two catalogs, Icetower and PyIceberg's own on SQLite.

A job's writers read the table at one moment or another, prepare a transaction with real data, and commit one after the
other; whoever commits on an old base is rebased, or tries again by PyIceberg's own retry. In the end both tables must
hold the same rows, and every writer must have been told the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.protocol.marks import BLIND_APPENDS

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "owner", StringType(), required=False),
    NestedField(3, "value", LongType(), required=False),
)
ARROW = pa.schema([("id", pa.int64()), ("owner", pa.string()), ("value", pa.int64())])
OWNERS = ("north", "south", "west")
PROPERTIES: tuple[Mapping[str, str], ...] = (
    {},
    {BLIND_APPENDS: "true"},
    {f"write.{what}.isolation-level": "snapshot" for what in ("merge", "update", "delete")},
    {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2", BLIND_APPENDS: "true"},
)
WAIT = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
REFUSED = (CommitFailedException, ValidationException)


@dataclass(frozen=True, slots=True)
class Write:
    """What one writer does after it has read the table."""

    kind: str
    rows: tuple[tuple[int, str, int], ...] = ()
    filter: str = ""

    def prepare(self, table: Table) -> Transaction:
        """Read and write files, commit nothing."""
        given = pa.Table.from_pylist([dict(zip(ARROW.names, row, strict=True)) for row in self.rows], schema=ARROW)
        transaction = table.transaction()
        match self.kind:
            case "append":
                transaction.append(given)
            case "delete":
                transaction.delete(self.filter)
            case "overwrite":
                transaction.overwrite(given, overwrite_filter=self.filter)
            case "partitions":
                transaction.dynamic_partition_overwrite(given)
            case _:
                transaction.upsert(given, join_cols=["id"])
        return transaction


@dataclass(frozen=True, slots=True)
class Job:
    """One table and its writers: `steps` are (``read`` or ``commit``, which writer)."""

    partitioned: bool
    properties: Mapping[str, str]
    first: tuple[Write, ...]
    writers: tuple[Write, ...]
    steps: tuple[tuple[str, int], ...]


def job(seed: int) -> Job:
    """The job of a seed."""
    rng = Random(f"icetower pyiceberg job {seed}")
    partitioned = rng.random() < 0.6
    kinds = ["append", "append", "append", "delete", "overwrite", "upsert", *(["partitions"] if partitioned else [])]
    first = tuple(Write("append", _rows(rng, 4)) for _ in range(2))
    writers = tuple(_write(rng, rng.choice(kinds)) for _ in range(rng.choice((2, 3, 3, 4))))
    waiting = {number: ["read", "commit"] for number in range(len(writers))}
    steps: list[tuple[str, int]] = []
    while waiting:
        # Reads first, mostly: a writer whose base is still the head proves nothing.
        unread = [number for number, left in waiting.items() if len(left) == 2]
        number = rng.choice(unread if unread and rng.random() < 0.8 else list(waiting))
        steps.append((waiting[number].pop(0), number))
        if not waiting[number]:
            del waiting[number]
    return Job(partitioned, rng.choice(PROPERTIES), first, writers, tuple(steps))


def _rows(rng: Random, most: int) -> tuple[tuple[int, str, int], ...]:
    chosen = rng.sample(range(12), rng.randint(1, most))
    return tuple((number, OWNERS[number % len(OWNERS)], rng.randint(0, 99)) for number in chosen)


def _write(rng: Random, kind: str) -> Write:
    filters = [f"owner == '{rng.choice(OWNERS)}'", f"id < {rng.randint(1, 11)}", f"value >= {rng.randint(0, 99)}"]
    rows = () if kind == "delete" else _rows(rng, 3)
    return Write(kind, rows, rng.choice(filters) if kind in ("delete", "overwrite") else "")


@dataclass(frozen=True, slots=True)
class Told:
    """What writers were told, in order of their commits, and what was left."""

    verdicts: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    totals: tuple[tuple[str, int, int], ...]
    """By snapshot: its operation, the records that it tells of, and those that a scan counts."""


def run(given: Job, catalog: Catalog, name: str) -> Told:
    """Run the job on a new table of a catalog."""
    field = PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="owner")
    spec = PartitionSpec(field) if given.partitioned else PartitionSpec()
    table = catalog.create_table(name, SCHEMA, partition_spec=spec, properties={**given.properties, **WAIT})
    for write in given.first:
        write.prepare(table).commit_transaction()
        table.refresh()
    ready: dict[int, Transaction] = {}
    verdicts: list[str] = []
    for step, number in given.steps:
        if step == "read":
            ready[number] = given.writers[number].prepare(catalog.load_table(name))
            continue
        try:
            ready[number].commit_transaction()
        except REFUSED as error:
            verdicts.append(f"{number}: {type(error).__name__}")
        else:
            verdicts.append(f"{number}: committed")
    table = catalog.load_table(name)
    rows = sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())
    return Told(tuple(verdicts), tuple(rows), _totals(table))


def _totals(table: Table) -> tuple[tuple[str, int, int], ...]:
    out: list[tuple[str, int, int]] = []
    for snapshot in table.snapshots():
        summary = snapshot.summary
        assert summary is not None
        counted = table.scan(snapshot_id=snapshot.snapshot_id).count()
        out.append((summary.operation.value, int(summary["total-records"] or 0), counted))
    return tuple(out)

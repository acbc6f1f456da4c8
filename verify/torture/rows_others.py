"""Others at the table of the exactness run: a writer past every tower, and an administrator who changes the table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, parse_transform
from pyiceberg.types import DateType, DecimalType, DoubleType, IntegerType, LongType, NestedField, StringType

from verify.torture.row_batches import PARTS, Batch, cents

NAMESPACE, TABLE = "torture", "rows"
TRIES = 10
OUTSIDE = 900
"""The number that this writer has among the agents."""

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "agent", IntegerType(), required=False),
    NestedField(3, "part", IntegerType(), required=False),
    NestedField(4, "price", DecimalType(12, 2), required=False),
    NestedField(5, "note", StringType(), required=False),
)
PROPERTIES = {
    "format-version": "2",
    "icetower.retention.snapshots-max": "1000",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}


def catalog(data: Path) -> Catalog:
    """The towers' own catalog, past every tower."""
    uri, warehouse = f"sqlite:///{data / 'catalog.db'}", f"file://{data / 'warehouse'}"
    return load_catalog("icetower", type="sql", uri=uri, warehouse=warehouse)


def prepared(data: Path) -> None:
    """The table, before there are towers."""
    made = catalog(data)
    made.create_namespace(NAMESPACE)
    made.create_table(f"{NAMESPACE}.{TABLE}", schema=SCHEMA, properties=PROPERTIES)


def opened(data: Path) -> Table:
    """The table as it is now."""
    return catalog(data).load_table(f"{NAMESPACE}.{TABLE}")


class Outside:
    """Appends by PyIceberg, straight to the catalog.

    Attributes:
        acknowledged, open: requests by their id, with how many rows each has.
    """

    def __init__(self, data: Path, seed: int) -> None:
        self.acknowledged: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self._data = data
        self._random = random.Random(seed + 1)
        self._number = 0

    def append(self) -> None:
        """Some rows."""
        self._number += 1
        of = Batch(OUTSIDE, self._number, self._random.choice((1, 10, 500)))
        self.open[of.id] = of.rows
        try:
            table = opened(self._data)
            table.append(_rows(of, table.schema().as_arrow()))
        except Exception as error:  # noqa: BLE001 - it may have landed: counted by its name
            self.counts[_named(error)] += 1
            return
        self.acknowledged[of.id] = self.open.pop(of.id)
        self.counts["appends"] += 1


def _named(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:40]}".strip()


def _rows(of: Batch, schema: pa.Schema) -> pa.Table:
    """In the columns that every version of the table has."""
    values: dict[str, list[Any]] = {
        "id": list(of.ids),
        "agent": [of.agent] * of.rows,
        "part": [id_ % PARTS for id_ in of.ids],
        "price": [Decimal(cents(id_)) / 100 for id_ in of.ids],
        "note": [f"row {id_}" for id_ in of.ids],
    }
    fields = [schema.field(name) for name in values]
    return pa.table({name: pa.array(values[name], schema.field(name).type) for name in values}, pa.schema(fields))


class Changes:
    """Columns, partitioning, sort order and properties, changed past the towers, as an administrator's tool does."""

    def __init__(self, data: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._data = data
        self._random = random.Random(seed + 2)
        self._number = 0

    def make(self) -> None:
        """One change."""
        self._number += 1
        kinds: tuple[Callable[[Table], str], ...] = (
            self._column, self._column, self._partitioning, self._partitioning, self._order, self._property,
        )  # fmt: skip
        work = self._random.choice(kinds)
        try:
            for _ in range(TRIES):
                with suppress(CommitFailedException):
                    self.counts[work(opened(self._data))] += 1
                    return
            self.counts["lost to other commits"] += 1
        except Exception as error:  # noqa: BLE001 - counted by its name
            self.counts[_named(error)] += 1

    def _column(self, table: Table) -> str:
        extra = [field.name for field in table.schema().fields if field.name.startswith("extra")]
        with table.update_schema() as update:
            if table.schema().find_type("agent") == IntegerType() and self._random.random() < 0.3:
                update.update_column("agent", LongType())
                return "column widened"
            if not extra or self._random.random() < 0.5:
                kind = self._random.choice((StringType(), DoubleType(), DateType()))
                update.add_column(f"extra_{self._number}", kind)
                return "column added"
            name = self._random.choice(extra)
            if self._random.random() < 0.5:
                update.rename_column(name, f"extra_{self._number}")
                return "column renamed"
            if self._random.random() < 0.5:
                update.move_first(name)
                return "column moved"
            update.delete_column(name)
            return "column dropped"

    def _partitioning(self, table: Table) -> str:
        fields = [field.name for field in table.spec().fields if str(field.transform) != "void"]
        with table.update_spec() as update:
            if len(fields) == 2 or (fields and self._random.random() < 0.5):
                update.remove_field(self._random.choice(fields))
                return "partition field removed"
            # PyIceberg writes to no table with two partition fields of one column.
            if any(name.startswith("part") for name in fields) or (not fields and self._random.random() < 0.5):
                update.add_field("id", BucketTransform(self._random.choice((2, 3, 4))), f"bucket_{self._number}")
            else:
                update.add_field("part", IdentityTransform(), f"part_{self._number}")
        return "partition field added"

    def _order(self, table: Table) -> str:
        with table.update_sort_order() as update:
            update.asc(self._random.choice(("id", "price", "part")), parse_transform("identity"))
        return "sort order changed"

    def _property(self, table: Table) -> str:
        chosen = self._random.choice(
            (
                ("write.parquet.compression-codec", self._random.choice(("zstd", "snappy", "gzip", "uncompressed"))),
                ("write.target-file-size-bytes", self._random.choice(("20000", "536870912"))),
                ("icetower.appends.snapshots-per-second", self._random.choice(("5", "50", "1000"))),
                ("write.metadata.metrics.default", self._random.choice(("counts", "full", "truncate(16)"))),
            )
        )
        with table.transaction() as transaction:
            transaction.set_properties({chosen[0]: chosen[1]})
        return "property set"

"""The benchmark's tables: what a row is, and how it is partitioned. A data file holds one row, made without a writer.

Every column but `note` is a number of eight bytes, so that a file of one row is made of another by putting numbers in
place of numbers.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from icetower.iceberg.records import DATA, DataFile
from icetower.iceberg.transforms import apply

NOTE = "one row of one writer"
HOUR_US = 3_600_000_000
FIRST_HOUR = 412_800
"""2017-02-03T00, in hours since 1970: the first writer's hour, where tables are partitioned by it."""

Values = Mapping[str, int]
_TYPES = {"id": "long", "writer": "long", "at": "timestamptz"}


@dataclass(frozen=True)
class Shape:
    """A table.

    Attributes:
        numbers: its columns but the note, which comes third.
        partitions: (column, transform, name of the partition field).
    """

    numbers: tuple[str, ...]
    partitions: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def schema(self) -> Schema:
        """Iceberg's; columns are numbered from 1."""
        kinds = {name: LongType() for name in self.numbers} | {"at": TimestamptzType(), "note": StringType()}
        return Schema(*(NestedField(at, name, kinds[name], required=False) for at, name in enumerate(self._columns, 1)))

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        return (*self.numbers[:2], "note", *self.numbers[2:])

    def spec(self) -> PartitionSpec:
        """For PyIceberg to create the table with."""
        return PartitionSpec(
            *(
                PartitionField(
                    source_id=1 + self._columns.index(column),
                    field_id=1000 + at,
                    transform=parse_transform(transform),
                    name=name,
                )
                for at, (column, transform, name) in enumerate(self.partitions)
            )
        )

    def rows(self, several: Iterable[Values]) -> pa.Table:
        """Rows of these values."""
        whole = [{**dict.fromkeys(self.numbers, 0), **values, "note": NOTE} for values in several]
        schema = schema_to_pyarrow(self.schema, include_field_ids=False)
        return pa.table({name: [row[name] for row in whole] for name in self._columns}, schema=schema)

    def parquet(self, values: Values) -> bytes:
        """A Parquet file of one row; of each number the placeholder, in the page and in its statistics, is replaced."""
        data = self._template
        for column in self.numbers:
            data = data.replace(_raw(_placeholder(column)), _raw(values.get(column, 0)))
        return data

    @cached_property
    def _template(self) -> bytes:
        table = self.rows([{column: _placeholder(column) for column in self.numbers}])
        table = table.cast(schema_to_pyarrow(self.schema))  # with field ids: Iceberg's readers go by them
        out = BytesIO()
        pq.write_table(table, out, compression="none", use_dictionary=False)
        return out.getvalue()

    def file(self, path: str, values: Values, size_bytes: int) -> DataFile:
        """The data file as a writer describes it, with the metrics of its one row."""
        low = {
            at: NOTE[:16].encode() if column == "note" else _raw(values.get(column, 0))
            for at, column in enumerate(self._columns, 1)
        }
        note = 1 + self._columns.index("note")
        high = low | {note: NOTE[:15].encode() + b"x"}
        record = {
            "file_path": path,
            "file_format": "PARQUET",
            "record_count": 1,
            "file_size_in_bytes": size_bytes,
            "column_sizes": [{"key": at, "value": 60} for at in low],
            "value_counts": [{"key": at, "value": 1} for at in low],
            "null_value_counts": [{"key": at, "value": 0} for at in low],
            "lower_bounds": [{"key": at, "value": value} for at, value in low.items()],
            "upper_bounds": [{"key": at, "value": value} for at, value in high.items()],
            "split_offsets": [4],
            "sort_order_id": 0,
        }
        return DataFile(DATA, path, "PARQUET", self.partition(values), 1, size_bytes, None, None, record)

    def partition(self, values: Values) -> tuple[Any, ...]:
        """Where a row of these values lies."""
        return tuple(
            apply(transform, _TYPES[column], values.get(column, 0)) for column, transform, _ in self.partitions
        )


def _placeholder(column: str) -> int:
    return 0x1122334455667700 + sum(column.encode()) % 256


def _raw(number: int) -> bytes:
    return struct.pack("<q", number)


FLAT = Shape(("id", "writer"))
"""What `make bench-commit` appends to."""

TIMED = Shape(("id", "writer", "at"))
HOURLY = Shape(("id", "writer", "at"), (("at", "hour", "at_hour"),))
"""The same rows, not partitioned and by the hour: each writer has one of its own (`values_of`)."""

SPREAD = Shape(("id", "writer", "at"), (("at", "hour", "at_hour"), ("id", "bucket[16]", "id_bucket")))


def values_of(row_id: int, writer: int) -> Values:
    """A row of a writer, in the writer's hour."""
    return {"id": row_id, "writer": writer, "at": (FIRST_HOUR + writer) * HOUR_US + row_id % 1_000_000}


def hour_text(writer: int, after: int = 0) -> str:
    """A writer's hour as contracts write it; `after`: so many hours later."""
    days, hour = divmod(FIRST_HOUR + writer + after, 24)
    return f"{dt.date(1970, 1, 1) + dt.timedelta(days=days)}T{hour:02d}"

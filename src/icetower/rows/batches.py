"""The rows of one request by the partitions that they belong to, each computed from the row itself. Pure.

Nothing is believed: what an agent sends has no partition of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg import transforms
from icetower.iceberg.partitions import PartitionField, PartitionSpec, partition_key

PARTITIONS_MAX = 512
"""Of one request: each becomes a data file at least."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition.

    Attributes:
        partition: as manifests hold it.
        rows: a `pyarrow.Table` with the columns of the table.
        numbers: which rows of the request they are, from 1, for messages; None: all of them.
    """

    spec: PartitionSpec
    partition: tuple[Any, ...]
    rows: Any
    numbers: tuple[int, ...] | None = None

    @property
    def place(self) -> tuple[int, tuple[Any, ...]]:
        """What to compare: partitions differ by it where they do for Iceberg."""
        return self.spec.spec_id, partition_key(self.partition)


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of one request, and what they take in memory."""

    parts: tuple[Part, ...]
    count: int
    size_bytes: int


def batch_of(table: Any, spec: PartitionSpec) -> Batch:
    """The rows of a table by a spec. Raises `ValidationFailed` (``limit.partitions``, ``rows.partition``)."""
    return Batch(split(table, spec), table.num_rows, table.nbytes)


def split(table: Any, spec: PartitionSpec, most: int = PARTITIONS_MAX) -> tuple[Part, ...]:
    """Likewise, at most `most` partitions, in the order in which they occur."""
    pa = import_module("pyarrow")
    values = [_transformed(table, field) for field in spec.fields if field.transform != "void"]
    if not values:
        return (Part(spec, tuple(None for _ in spec.fields), table),)
    places: dict[tuple[Any, ...], list[int]] = {}
    firsts: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for at, row in enumerate(zip(*values, strict=True)):
        key = partition_key(row)
        found = places.get(key)
        if found is None:
            if len(places) >= most:
                raise ValidationFailed(
                    f"the rows lie in more than {most} partitions; send those of a few at once",
                    rule="limit.partitions",
                )
            found, firsts[key] = places.setdefault(key, []), row
        found.append(at)
    parts: list[Part] = []
    for key, positions in places.items():
        given = iter(firsts[key])
        partition = tuple(None if field.transform == "void" else next(given) for field in spec.fields)
        whole = len(places) == 1
        rows = table if whole else table.take(pa.array(positions, pa.int64()))
        parts.append(Part(spec, partition, rows, None if whole else tuple(at + 1 for at in positions)))
    return tuple(parts)


def _transformed(table: Any, field: PartitionField) -> Sequence[Any]:
    """The partition's value of each row. Raises `ValidationFailed` for a value that the transform cannot take."""
    values = internal_values(source_column(table, field.source_name), field.source_type)
    if field.transform == "identity":
        return values
    known: dict[Any, Any] = {}
    found: list[Any] = []
    for value in values:
        if value not in known:
            known[value] = _applied(field, value)
        found.append(known[value])
    return found


def _applied(field: PartitionField, value: Any) -> Any:
    try:
        return transforms.apply(field.transform, field.source_type, value)
    except (OverflowError, ValueError, ArithmeticError) as error:
        raise ValidationFailed(
            f"the partition {field.transform} of {field.source_name} cannot be told for one of its values",
            rule="rows.partition",
        ) from error


def source_column(table: Any, name: str) -> Any:
    """The column that a partition field, or a sort order, comes from; it may lie within structs (``a.b``)."""
    pc = import_module("pyarrow.compute")
    if name in table.column_names:
        return table.column(name)
    best = max((each for each in table.column_names if name.startswith(f"{each}.")), key=len, default=None)
    if best is None:
        raise ValidationFailed(
            f"the table is partitioned or sorted by {name}, which its rows do not have; append files",
            rule="rows.partition",
        )
    return pc.struct_field(table.column(best), name[len(best) + 1 :].split("."))


def internal_values(column: Any, kind: str) -> list[Any]:
    """The values of a column in the form that Iceberg's transforms take: days, microseconds, bytes of UUIDs."""
    pa = import_module("pyarrow")
    convert: Callable[[], Any] | None = {
        "date": pa.int32,
        "time": pa.int64,
        "timestamp": pa.int64,
        "timestamptz": pa.int64,
        "timestamp_ns": pa.int64,
        "timestamptz_ns": pa.int64,
    }.get(kind)
    if convert is not None:
        column = column.cast(convert())
    elif kind == "uuid":
        return [None if value is None else value.bytes for value in column.to_pylist()]
    return column.to_pylist()

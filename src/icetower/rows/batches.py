"""The rows of one request by the partitions that they belong to, each computed from the row itself. Pure.

Nothing is believed: what an agent sends has no partition of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg import transforms
from icetower.iceberg.partitions import PartitionField, PartitionSpec, partition_key
from icetower.rows.blocks import Block

PARTITIONS_MAX = 512
"""Of one request: each becomes a data file at least."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition.

    Attributes:
        partition: as manifests hold it.
        numbers: which rows of the request they are, from 1, for messages; None: all of them.
    """

    spec: PartitionSpec
    partition: tuple[Any, ...]
    rows: Block
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


def batch_of(rows: Block, spec: PartitionSpec) -> Batch:
    """Rows by a spec. Raises `ValidationFailed` (``limit.partitions``, ``rows.partition``)."""
    return Batch(split(rows, spec), rows.count, rows.size_bytes)


def split(rows: Block, spec: PartitionSpec, most: int = PARTITIONS_MAX) -> tuple[Part, ...]:
    """Likewise, at most `most` partitions, in the order in which they occur."""
    values = [_transformed(rows, field) for field in spec.fields if field.transform != "void"]
    if not values:
        return (Part(spec, tuple(None for _ in spec.fields), rows),)
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
    whole = len(places) == 1
    parts: list[Part] = []
    for key, positions in places.items():
        given = iter(firsts[key])
        partition = tuple(None if field.transform == "void" else next(given) for field in spec.fields)
        numbers = None if whole else tuple(at + 1 for at in positions)
        parts.append(Part(spec, partition, rows if whole else rows.take(positions), numbers))
    return tuple(parts)


def _transformed(rows: Block, field: PartitionField) -> Sequence[Any]:
    """The partition's value of each row. Raises `ValidationFailed` for a value that the transform cannot take."""
    values = rows.source(field.source_name, field.source_type)
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

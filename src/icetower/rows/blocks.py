"""Rows in one of two forms: as Python values, which become Arrow with those of a whole group, or as Arrow. Pure.

To make an Arrow array of a value or two takes longer than all else that is done for a request with one row.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Protocol

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.rows.arrow import array, compute, pyarrow
from icetower.rows.schemas import RowSchema

VALUE_BYTES = 48
"""What a Python value takes in memory, about, with its place in a list."""

_DAY_ZERO = dt.date(1970, 1, 1)
_EXACT = Context(prec=76)
"""For decimals of all widths: Python's own context keeps 28 digits, and a table may have 38."""


class Block(Protocol):
    """Some rows with the columns of a table."""

    @property
    def count(self) -> int:
        """How many rows."""
        ...

    @property
    def size_bytes(self) -> int:
        """What they take in memory, about."""
        ...

    def source(self, name: str, kind: str) -> list[Any]:
        """The values of a column, which may lie within structs (``a.b``), as Iceberg's transforms take them: days,
        microseconds, the bytes of a UUID.

        Raises:
            ValidationFailed: there is no such column among the rows'.
        """
        ...

    def take(self, positions: Sequence[int]) -> Block:
        """Some of the rows, in this order."""
        ...

    def arrow(self) -> Any:
        """As a `pyarrow.Table`."""
        ...


@dataclass(frozen=True, slots=True)
class PlainBlock:
    """Rows as Python values that fit their columns, as lists in the order of the schema. `text_bytes`: of the body."""

    schema: RowSchema
    columns: tuple[list[Any], ...]
    count: int
    text_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.text_bytes + VALUE_BYTES * self.count * len(self.columns)

    def source(self, name: str, kind: str) -> list[Any]:
        column, path = _found(name, self.schema.names)
        values = self.columns[column]
        for part in path:
            values = [None if value is None else value[part] for value in values]
        convert = _internal(kind)
        return values if convert is None else [None if value is None else convert(value) for value in values]

    def take(self, positions: Sequence[int]) -> PlainBlock:
        columns = tuple([column[at] for at in positions] for column in self.columns)
        return PlainBlock(self.schema, columns, len(positions), self.text_bytes * len(positions) // self.count)

    def arrow(self) -> Any:
        return together([self])


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """Rows as a `pyarrow.Table`."""

    table: Any

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    @property
    def size_bytes(self) -> int:
        return int(self.table.nbytes)

    def source(self, name: str, kind: str) -> list[Any]:
        return internal_values(source_column(self.table, name), kind)

    def take(self, positions: Sequence[int]) -> ArrowBlock:
        pa = pyarrow()
        return ArrowBlock(self.table.take(pa.array(positions, pa.int64())))

    def arrow(self) -> Any:
        return self.table


def together(blocks: Sequence[Block]) -> Any:
    """All rows of some blocks of one table, in order, as one `pyarrow.Table` without chunks."""
    pa = pyarrow()
    tables: list[Any] = []
    plain: list[PlainBlock] = []

    def made() -> None:
        if plain:
            fields = plain[0].schema.fields
            columns = ([v for block in plain for v in block.columns[at]] for at in range(len(fields)))
            arrays = [array(values, field.type) for field, values in zip(fields, columns, strict=True)]
            tables.append(pa.Table.from_arrays(arrays, schema=plain[0].schema.arrow))
            plain.clear()

    for block in blocks:
        if isinstance(block, PlainBlock):
            plain.append(block)
        else:
            made()
            tables.append(block.arrow())
    made()
    return tables[0].combine_chunks() if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


# ── Values as transforms take them ───────────────────────────────────────────────────────────────────────────────────


def _found(name: str, names: Sequence[str]) -> tuple[int, list[str]]:
    """The column that a source lies in, and the way to it from there."""
    if name in names:
        return names.index(name), []
    best = max((each for each in names if name.startswith(f"{each}.")), key=len, default=None)
    if best is None:
        raise ValidationFailed(
            f"the table is partitioned or sorted by {name}, which its rows do not have; append files",
            rule="rows.partition",
        )
    return names.index(best), name[len(best) + 1 :].split(".")


def _internal(kind: str) -> Callable[[Any], Any] | None:
    """What a value that fits a column of a type is to a transform; None: the value itself."""
    if kind == "date":
        return lambda day: (day - _DAY_ZERO).days
    if kind == "float":
        return lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
    decimal = parse_decimal(kind)
    if decimal:
        scaled = Decimal(1).scaleb(-decimal[1])
        return lambda value: value.quantize(scaled, context=_EXACT)
    return None


def source_column(table: Any, name: str) -> Any:
    """The column of a `pyarrow.Table` that a partition field, or a sort order, comes from."""
    column, path = _found(name, table.column_names)
    return compute().struct_field(table.column(column), path) if path else table.column(column)


def internal_values(column: Any, kind: str) -> list[Any]:
    """The values of an Arrow column as Iceberg's transforms take them."""
    pa = pyarrow()
    whole = {"date": pa.int32, "time": pa.int64}.get(kind, pa.int64 if kind.startswith("timestamp") else None)
    if whole is not None:
        column = column.cast(whole())
    elif kind == "uuid":
        return [None if value is None else value.bytes for value in column.to_pylist()]
    return column.to_pylist()

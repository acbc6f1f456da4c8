"""Many rows into the ledger's tables, in as few steps of the driver as there can be (see `read_at_once` for why)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Insert

VALUES_MAX = 900
"""In one statement; a SQLite from before 2020 takes 999."""
ROWS_MAX = 64
"""In one statement. They are powers of two, so that the driver meets few statements, and has them ready."""


@dataclass(frozen=True, slots=True)
class Put:
    """How rows are put into a table: an INSERT, as a driver takes it. One row at a time is what a database sees.

    Straight to the driver: SQLAlchemy's way with parameters costs several times what the database does.

    Attributes:
        names: of columns, in the order of the statement; None where the driver takes them by name.
        row: the marks of one row, as they stand in the statement.
    """

    statement: str
    names: tuple[str, ...] | None
    row: str

    @classmethod
    def of(cls, insert: Insert, dialect: Dialect, columns: Sequence[str]) -> Put:
        """An INSERT of these columns, with what it does where a row is there already."""
        compiled = insert.compile(dialect=dialect, column_keys=list(columns))
        names = compiled.positiontup if compiled.positional else None  # pyright: ignore[reportAttributeAccessIssue]
        if names is None:
            return cls(str(compiled), None, "")
        return cls(str(compiled), tuple(names), f"({', '.join('?' * len(names))})")

    def rows(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Put rows in, in their order."""
        names = self.names
        if names is None:
            connection.exec_driver_sql(self.statement, rows)
            return
        at_once = min(ROWS_MAX, max(1, VALUES_MAX // len(names)))
        start = 0
        while start < len(rows):
            size = min(1 << (len(rows) - start).bit_length() - 1, 1 << at_once.bit_length() - 1)
            values = tuple(row[name] for row in rows[start : start + size] for name in names)
            connection.exec_driver_sql(self._many(size), values)
            start += size

    def _many(self, size: int) -> str:
        return self.statement.replace(self.row, ", ".join([self.row] * size), 1)

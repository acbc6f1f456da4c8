"""Rows that an agent was given, in whichever form, as requests of the rows door. PyArrow is imported when it is needed.

    rows_of(anything) → Rows    Rows.requests() → Rows, …    Rows.body()

Which rows go into one request depends on the rows alone: on nothing of the table, the contract or the tower, which may
change before the rows are sent again under their keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from icetower.agent.spelling import fields_of, kind_of, spelled_row
from icetower.errors import UsageError
from icetower.protocol.row_limits import ARROW_TYPE, BODY_MAX_BYTES, CELLS_MAX, JSON_TYPE, ROWS_MAX
from icetower.protocol.wire import OBJECTS_MAX, VALUES_MAX

# Rows that are sent again are parted as they were, by whichever version of this package: these stay as they are.
ENVELOPE_BYTES = 64 * 1024
COLUMN_BYTES = 512
"""What the head of an Arrow stream takes for a column, at most."""

WIDER_TIMES = 4
"""A table may have so many times the columns that its rows have; the door counts those that they leave out, too."""


class Rows(Protocol):
    """Rows in one of the door's two forms."""

    @property
    def count(self) -> int: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Each column that a row has."""
        ...

    def lacking(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Those columns that some row leaves out."""
        ...

    def requests(self, rows_max: int = ROWS_MAX) -> list[Rows]:
        """The rows in the order in which they were given, in parts that fit into a request each."""
        ...

    def with_text(self, column: str, text: str) -> Rows:
        """The same rows with a text in a further column."""
        ...

    def body(self) -> tuple[str, bytes]:
        """The content type and the body of the request."""
        ...

    def fingerprint(self) -> str:
        """Stands for the rows: the same whenever these are given."""
        ...

    def as_arrow(self) -> Any:
        """As a `pyarrow.Table`. Raises `UsageError` where PyArrow is not installed."""
        ...


Piece = tuple[str, "Rows"]
"""Rows, and what is done with them."""


def together(parts: Sequence[Rows]) -> Rows:
    """Rows of one form as one request. Raises `UsageError` where their forms or the types of their columns differ."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(each, JSONRows) for each in parts):
        return JSONRows.joined([each for each in parts if isinstance(each, JSONRows)])
    tables = [each.table for each in parts if isinstance(each, ArrowRows)]
    if len(tables) < len(parts):
        raise UsageError("one request takes tables and frames, or mappings and dataclasses, not both; pass one form")
    return ArrowRows(_arrow().joined(tables))


def rows_of(given: Any) -> Rows:
    """Rows of an Arrow table or the like, of a pandas or Polars frame, or of one or several mappings and dataclasses.

    Raises:
        UsageError: it is something else, or has a value that cannot be sent; the message names it.
    """
    of = type(given).__module__.partition(".")[0]
    if of == "pandas" and hasattr(given, "columns"):
        return _of_pandas(given)
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return _of_arrow(given)
    if of == "polars" and hasattr(given, "collect"):
        return _of_arrow(given.collect())
    if (row := fields_of(given)) is not None:
        return JSONRows([row])
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(_NO_ROWS.format(kind_of(given)))
    found: list[Mapping[str, Any]] = []
    for number, each in enumerate(cast("Iterable[object]", given), 1):
        row = fields_of(each)
        if row is None:
            raise UsageError(f"row {number}: {_NO_ROWS.format(kind_of(each))}")
        found.append(row)
    return JSONRows(found)


_NO_ROWS = (
    "a value of type {} is no row; pass an Arrow table, a pandas or Polars frame, or mappings or dataclasses, one a row"
)


def _of_pandas(frame: Any) -> ArrowRows:
    # An index without a name counts rows; one with a name is a column as others.
    named = any(name is not None for name in frame.index.names)
    return ArrowRows(_arrow().plain_table(_pyarrow().Table.from_pandas(frame, preserve_index=named)))


def _of_arrow(given: Any) -> ArrowRows:
    pa = _pyarrow()
    table = (
        pa.table(given) if hasattr(given, "__arrow_c_array__") else pa.RecordBatchReader.from_stream(given).read_all()
    )
    return ArrowRows(_arrow().plain_table(table))


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise UsageError("rows in this form need pyarrow; install it, or pass mappings or dataclasses") from error


def _arrow() -> Any:
    return import_module("icetower.agent.arrow_rows")


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class JSONRows:
    """Rows of Python. `spelled`: in JSON's types, if they are there already."""

    def __init__(self, given: Sequence[Mapping[str, Any]], spelled: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._given = tuple(given)
        self._spelled: tuple[Mapping[str, Any], ...] = (
            tuple(spelled_row(row, number) for number, row in enumerate(given, 1))
            if spelled is None
            else tuple(spelled)
        )

    @classmethod
    def joined(cls, parts: Sequence[JSONRows]) -> JSONRows:
        return cls([row for each in parts for row in each._given], [row for each in parts for row in each._spelled])

    @property
    def count(self) -> int:
        return len(self._spelled)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for row in self._spelled for name in row))

    def lacking(self, columns: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in columns if any(name not in row for row in self._spelled))

    def requests(self, rows_max: int = ROWS_MAX) -> list[Rows]:
        most = min(rows_max, ROWS_MAX, max(1, CELLS_MAX // (WIDER_TIMES * max(1, len(self.columns)))))
        bounds = (most, BODY_MAX_BYTES - ENVELOPE_BYTES, OBJECTS_MAX - 16, VALUES_MAX - 16)
        found: list[Rows] = []
        start, sums = 0, [0, 0, 0, 0]
        for at, row in enumerate(self._spelled):
            text = _text(row, at + 1)
            opened, commas = text.count(b"{") + text.count(b"["), text.count(b",")
            costs = (1, len(text) + 1, opened, commas + 1)
            if any(cost > bound for cost, bound in zip(costs, bounds, strict=True)):
                raise UsageError(
                    f"row {at + 1} is too large for a request: {len(text)} bytes, {opened} lists and objects"
                )
            if any(done + cost > bound for done, cost, bound in zip(sums, costs, bounds, strict=True)):
                found.append(self._part(start, at))
                start, sums = at, [0, 0, 0, 0]
            sums = [done + cost for done, cost in zip(sums, costs, strict=True)]
        return [*found, self._part(start, self.count)] if self.count else found

    def _part(self, start: int, end: int) -> JSONRows:
        return JSONRows(self._given[start:end], self._spelled[start:end])

    def with_text(self, column: str, text: str) -> JSONRows:
        return JSONRows(self._given, [{**row, column: text} for row in self._spelled])

    def body(self) -> tuple[str, bytes]:
        texts = (_text(row, number) for number, row in enumerate(self._spelled, 1))
        return JSON_TYPE, b'{"rows":[' + b",".join(texts) + b"]}"

    def fingerprint(self) -> str:
        return hashlib.sha256(b"\n".join(json.dumps(row, sort_keys=True).encode() for row in self._spelled)).hexdigest()

    def as_arrow(self) -> Any:
        _pyarrow()
        return _arrow().plain_table(_arrow().as_arrow(self._given))


def _text(row: Mapping[str, Any], number: int) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"row {number} has a text with half a surrogate pair") from error


# ── Arrow ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ArrowRows:
    """Rows of a plain Arrow table."""

    def __init__(self, table: Any) -> None:
        self.table = table

    @property
    def count(self) -> int:
        return self.table.num_rows

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def lacking(self, columns: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in columns if name not in self.table.column_names)

    def requests(self, rows_max: int = ROWS_MAX) -> list[Rows]:
        width = max(1, self.table.num_columns)
        rows_each = min(rows_max, ROWS_MAX, max(1, CELLS_MAX // (WIDER_TIMES * width)))
        bytes_max = BODY_MAX_BYTES - ENVELOPE_BYTES - COLUMN_BYTES * width
        while True:
            parts = [self.table.slice(at, rows_each) for at in range(0, self.count, rows_each)]
            if all(_arrow().weight(part) <= bytes_max for part in parts):
                return [ArrowRows(part) for part in parts]
            if rows_each == 1:
                raise UsageError(f"a row is too large for a request: it takes more than {bytes_max} bytes")
            rows_each = (rows_each + 1) // 2

    def with_text(self, column: str, text: str) -> ArrowRows:
        return ArrowRows(self.table.append_column(column, _pyarrow().array([text] * self.count)))

    def body(self) -> tuple[str, bytes]:
        return ARROW_TYPE, _arrow().stream(self.table)

    def fingerprint(self) -> str:
        return _arrow().fingerprint(self.table)

    def as_arrow(self) -> Any:
        return self.table

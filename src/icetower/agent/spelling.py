"""A value of Python as the rows door takes it in JSON (docs/protocol.md, "Rows"): exactly, or not at all.

Decimal             "9.99"                        datetime with a zone     "2017-01-02T03:04:05.000000Z", in UTC
bytes               "base64:…"                    datetime without one     "2017-01-02T03:04:05.000000"
UUID, date, time    as text                       integer beyond 64 bits   as text
mapping, dataclass, Pydantic's model              an object; a list of pairs where its keys are no texts
list, tuple                                       a list
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

from icetower.errors import UsageError

DEPTH_MAX = 32


class Unspelled(Exception):
    """A value that no JSON stands for.

    Attributes:
        path: to it, such as `prices[2].amount`.
        problem: with it.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def fields_of(row: object) -> Mapping[str, Any] | None:
    """A row's values by column: of a mapping, a dataclass or a model of Pydantic's; None for anything else."""
    if isinstance(row, Mapping):
        return cast("Mapping[str, Any]", row)
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    model: Mapping[str, Any] | None = None if isinstance(row, type) else getattr(type(row), "model_fields", None)
    return None if model is None else {name: getattr(row, name) for name in model}


def spelled_row(row: Mapping[Any, Any], number: int) -> dict[str, Any]:
    """A row in JSON's types. Raises `UsageError` naming the row, which counts from 1, and the column."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(name, str):
            raise UsageError(f"row {number}: a column's name must be a text, and {name!r:.100} is none")
        try:
            found[name] = spelled(value, name)
        except Unspelled as error:
            raise UsageError(f"row {number}, column {error}") from None
    return found


def spelled(value: Any, path: str, depth: int = 0) -> Any:
    """Raises `Unspelled`."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return _integer(value, path)
    if kind is float:
        if not math.isfinite(value):
            raise Unspelled(path, f"JSON has no {value}; send null, or the rows as an Arrow table")
        return value
    if depth > DEPTH_MAX:
        raise Unspelled(path, f"it is deeper than {DEPTH_MAX} levels")
    if isinstance(value, Enum):
        return spelled(value.value, path, depth + 1)
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "item"):
        return spelled(_item(value, path), path, depth + 1)
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        return [spelled(each, f"{path}[{at}]", depth + 1) for at, each in enumerate(items)]
    inner = fields_of(value)
    if inner is not None:
        return _object(inner, path, depth)
    return _scalar(value, path)


def _item(value: Any, path: str) -> Any:
    """A scalar of NumPy's as Python has it."""
    item = value.item() if getattr(value, "ndim", 0) == 0 else value.tolist()
    if kind_of(value) == "datetime64" and isinstance(item, int):
        raise Unspelled(path, "a moment of NumPy's in nanoseconds is no datetime; send the rows as an Arrow table")
    if type(item).__module__.partition(".")[0] == "numpy":
        raise Unspelled(path, f"{kind_of(value)} is none of JSON's types")
    return item


def kind_of(value: object) -> str:
    return type(value).__name__


def _integer(value: int, path: str) -> int | str:
    if -(2**63) <= value < 2**63:
        return value
    try:
        return str(value)
    except ValueError as error:
        raise Unspelled(path, "the number has too many digits") from error


def _object(fields: Mapping[Any, Any], path: str, depth: int) -> Any:
    if all(isinstance(name, str) for name in fields):
        return {name: spelled(value, f"{path}.{name}", depth + 1) for name, value in fields.items()}
    return [
        [spelled(key, f"{path} (key)", depth + 1), spelled(value, f"{path}[{key!r:.60}]", depth + 1)]
        for key, value in fields.items()
    ]


def _scalar(value: Any, path: str) -> Any:
    match value:
        case str():
            return str(value)
        case bool() | int():
            return _integer(int(value), path)
        case float():
            return spelled(float(value), path)
        case Decimal():
            if not value.is_finite():
                raise Unspelled(path, f"{value} is no number")
            return f"{value:f}"
        case dt.datetime():
            return _moment(value, path)
        case dt.date() | dt.time():
            return value.isoformat()
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return "base64:" + base64.b64encode(value).decode()
        case _:
            if kind_of(value) == "NAType":  # of pandas
                return None
            raise Unspelled(path, f"a value of type {kind_of(value)} is not written from rows")


def _moment(value: dt.datetime, path: str) -> str | None:
    if kind_of(value) == "NaTType":  # of pandas: it calls itself a datetime
        return None
    if value.tzinfo is None:
        return value.isoformat()
    try:
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"
    except (OverflowError, ValueError) as error:
        raise Unspelled(path, f"{value!r} is beyond the years 1 to 9999 in UTC") from error

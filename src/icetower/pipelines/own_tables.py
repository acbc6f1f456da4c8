"""Whether the tables that jobs write for themselves still have the columns that the jobs rely on.

A column that a table never had is one of a later version: whoever writes the table adds it. A column that it has no
longer was renamed or dropped by somebody. To add it again would leave it null in every row, and what follows from the
rows (which keys have landed, which attempt is exported) would be wrong. So that is left to people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from icetower.errors import BadRequest, UpstreamFailed
from icetower.iceberg.metadata import current_schema

T = TypeVar("T")

Metadata = Mapping[str, Any]

_KINDS = {"string": "STRING", "int": "INT", "long": "BIGINT", "double": "DOUBLE", "timestamp": "TIMESTAMP",
          "timestamptz": "TIMESTAMP"}  # fmt: skip
_WIDER = {("BIGINT", "INT")}
"""A type, and a narrower one whose values it has, too."""


def names_of(columns: str | Sequence[str]) -> list[str]:
    """The names in the columns of a DDL statement, or in a list of such columns."""
    return [one.partition(" ")[0] for one in (columns.split(", ") if isinstance(columns, str) else columns)]


def lacking(metadata: Metadata, table: str, columns: str) -> list[str]:
    """The columns that a table never had, as the DDL statement has them.

    Args:
        table: its name, for messages.
        columns: of the DDL statement that creates it.

    Raises:
        BadRequest: one of the columns was renamed or dropped, or has another type (`system.columns`).
    """
    there = fields_of(metadata)
    never: list[str] = []
    for one in columns.split(", "):
        name, _, kind = one.partition(" ")
        if name in there:
            found = _kind(there[name]["type"])
            if found != kind and (found, kind) not in _WIDER:
                raise _changed(
                    f"{table} has the column {name} of type {found}, and needs {kind}: "
                    f"drop it and add {name} {kind}, or restore the table"
                )
        elif (was := _before(metadata, name)) is None:
            never.append(one)
        else:
            raise _changed(f"{table} {_gone(name, kind, was, there)}")
    return never


def telling(work: Callable[[], T], table: str, columns: str, metadata: Callable[[], Metadata]) -> T:
    """Do work with a table. If it fails, and somebody has changed the table's columns meanwhile, say so as `lacking`.

    Args:
        metadata: loads the table's metadata.
    """
    try:
        return work()
    except UpstreamFailed:
        lacking(metadata(), table, columns)
        raise


def renamed(metadata: Metadata, name: str) -> str | None:
    """How a column that had this name is called now; None if there is none."""
    was = _before(metadata, name)
    return None if was is None else next((each for each, its in fields_of(metadata).items() if its["id"] == was), None)


def fields_of(metadata: Metadata) -> dict[str, Mapping[str, Any]]:
    """The columns of a table, by name."""
    return {field["name"]: field for field in current_schema(metadata)["fields"]}


def _before(metadata: Metadata, name: str) -> int | None:
    """The id of the column that had this name in the newest of the table's other schemas with one."""
    schemas = sorted(metadata["schemas"], key=lambda each: -each["schema-id"])
    return next((field["id"] for schema in schemas for field in schema["fields"] if field["name"] == name), None)


def _gone(name: str, kind: str, was: int, there: Mapping[str, Mapping[str, Any]]) -> str:
    now = next((each for each, field in there.items() if field["id"] == was), None)
    if now is not None:
        return f"has the column {name} under the name {now}: ALTER TABLE … RENAME COLUMN {now} TO {name}"
    return (
        f"has lost its column {name}: restore the table, or, if rows may go without, "
        f"ALTER TABLE … ADD COLUMN {name} {kind}"
    )


def _changed(problem: str) -> BadRequest:
    return BadRequest(problem, rule="system.columns")


def _kind(of: Any) -> str:
    if isinstance(of, str):
        return _KINDS.get(of, of)
    return f"ARRAY<{_kind(of['element'])}>" if of["type"] == "list" else str(of["type"])

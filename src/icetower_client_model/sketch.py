"""Builds cases concisely, for figures, interleavings and tests. Pure.

The table of every case has the columns ``id`` (1), ``category`` (2), ``amount`` (3), ``day`` (4) and ``price`` (5); a
case lists its files, and the writers' steps in order. `cases` reads what is built here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JSON = dict[str, Any]

UNPARTITIONED: tuple[list[JSON], ...] = ([],)
BY_CATEGORY: tuple[list[JSON], ...] = ([{"column": "category", "transform": "identity"}],)


def case(
    files: Mapping[str, JSON],
    *steps: JSON,
    format_version: int = 2,
    specs: Sequence[list[JSON]] = UNPARTITIONED,
    properties: Mapping[str, str] | None = None,
) -> JSON:
    """A table's history.

    Args:
        files: every file that a step names.
        steps: the steps, in order.
        format_version: of the table at its creation.
        specs: the partition specs; the first is the table's own, others come by a step ``spec``.
        properties: of the table.
    """
    return {
        "format": format_version,
        "specs": list(specs),
        "properties": dict(properties or {}),
        "files": dict(files),
        "steps": list(steps),
    }


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def data(*partition: Any, ids: tuple[int, int] | None = None, records: int = 10, spec: int = 0) -> JSON:
    """A data file; `ids`: the lowest and highest id in its statistics."""
    return _file("data", partition, spec, records, ids)


def positions(*partition: Any, of: str | None = None, records: int = 1, spec: int = 0) -> JSON:
    """Position deletes: for one data file, or, without `of`, for all files of the partition."""
    file = _file("position-deletes", partition, spec, records, None)
    return file if of is None else {**file, "references": of}


def equalities(*partition: Any, ids: tuple[int, int] | None = None, records: int = 1, spec: int = 0) -> JSON:
    """Equality deletes by the column ``id``."""
    return {**_file("equality-deletes", partition, spec, records, ids), "equality_ids": [1]}


def vector(of: str, *partition: Any, records: int = 1, spec: int = 0) -> JSON:
    """A deletion vector of one data file (format version 3)."""
    return {**_file("dv", partition, spec, records, None), "references": of}


def _file(content: str, partition: Sequence[Any], spec: int, records: int, ids: tuple[int, int] | None) -> JSON:
    file: JSON = {"content": content, "spec": spec, "partition": list(partition), "records": records}
    if ids is not None:
        file["metrics"] = {"values": {"1": records}, "nulls": {"1": 0}, "lower": {"1": ids[0]}, "upper": {"1": ids[1]}}
    return file


# ── Filters, in Iceberg's JSON ───────────────────────────────────────────────────────────────────────────────────────


def eq(column: str, value: Any) -> JSON:
    """Rows whose column has this value."""
    return {"type": "eq", "term": column, "value": value}


def both(left: Any, right: Any) -> JSON:
    """Rows that match both."""
    return {"type": "and", "left": left, "right": right}


# ── Steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def op(kind: str, **fields: Any) -> JSON:
    """An operation as its writer builds it; `Flags.operation` builds those of engines."""
    return {"kind": kind, **fields}


def begin(writer: int, operation: JSON) -> JSON:
    """A writer loads the table and prepares its commit, which will create the snapshot `writer`."""
    return {"do": "begin", "id": writer, "op": operation}


def commit(writer: int, *between: Sequence[JSON]) -> JSON:
    """A writer commits. `between`: for each attempt, the steps after its preparation and before its swap."""
    step: JSON = {"do": "commit", "id": writer}
    return {**step, "between": [list(steps) for steps in between]} if between else step


def write(writer: int, operation: JSON) -> JSON:
    """A writer begins and commits at once."""
    return {"do": "write", "id": writer, "op": operation}


def append(writer: int, *files: str) -> JSON:
    """A writer begins an append and commits it at once."""
    return write(writer, op("append", add=list(files)))


FAIL: JSON = {"do": "fail"}
"""Between an attempt and its swap: the swap is lost, though the head has not changed."""


def use_spec(spec: int) -> JSON:
    """The table's default partition spec becomes this one."""
    return {"do": "spec", "spec": spec}


def upgrade(format_version: int) -> JSON:
    """The table's format version rises."""
    return {"do": "upgrade", "format": format_version}


def rollback(to: int) -> JSON:
    """The branch `main` is set back to a snapshot."""
    return {"do": "rollback", "to": to}


def expire(*ids: int) -> JSON:
    """Snapshots leave the table's metadata."""
    return {"do": "expire", "ids": list(ids)}

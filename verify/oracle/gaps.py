"""Might a partition hold a row that the contract does not grant? Looked for among values that lie where it matters.

That tells refusals that nobody could avoid, since the rows of a partition are not known, from those that a closer look
at several regions together would have spared. Nothing is proven here: it only gives a refusal its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import islice, product
from typing import Any

from icetower.contracts.model import Operation
from icetower.errors import ValidationFailed
from verify.oracle import values
from verify.oracle.cases import Case, Partition
from verify.oracle.regions import Grants, read
from verify.oracle.tables import applied

ROWS_MAX = 4_000
_DATES = {"year": 366, "month": 31, "day": 1, "hour": 1}


def may_hold_others(case: Case, spec: int, partition: Partition, operation: Operation) -> bool:
    """Whether some row that would lie in a partition is granted by no rule."""
    grants = Grants(case)
    rows = product(*(list(_fitting(case, at, spec, partition)) for at in range(len(case.columns))))
    return any(not grants.grants(operation, row, spec) for row in islice(rows, ROWS_MAX))


def _fitting(case: Case, at: int, spec: int, partition: Partition) -> Iterator[Any]:
    """Values of a column that may be in a partition: those around every border, and some more for buckets."""
    kind = case.columns[at].kind
    fields = [(f.transform, value) for f, value in zip(case.specs[spec], partition, strict=True) if f.column == at]
    fields = [(transform, value) for transform, value in fields if transform != "void"]
    found: dict[Any, None] = {None: None}
    for transform, border in (*_borders(case, at), *fields):
        found |= dict.fromkeys(_around(transform, kind, border))
    for row in (r for s in case.history for _, e in s.live(0) for r in e.file.rows):
        found[row[at]] = None
    for value in found:
        try:
            if all(applied(transform, kind, value) == wanted for transform, wanted in fields):
                yield value
        except (ValidationFailed, OverflowError):
            continue


def _borders(case: Case, at: int) -> Iterator[tuple[str, Any]]:
    """Every bound and value that the rules name for a column, with its transform."""
    grants = Grants(case)
    for rule in case.rules:
        for region in (*(rule.regions or ()), *rule.excluded):
            for term, extent in region:
                for spec in range(len(case.specs)):
                    meant = grants.meaning(term, spec)
                    if meant is None or meant[1] != at:
                        continue
                    known = read(extent, meant[0], case.columns[at].kind, case.now_ms)
                    for value in () if known is None else (*(known.values or ()), known.start, known.end):
                        if value is not None:
                            yield meant[0], value


def _around(transform: str, kind: str, border: Any) -> Iterator[Any]:
    """Source values at both sides of a transform's value; for a bucket some of every bucket."""
    if border is None:
        return
    if transform.startswith("bucket"):
        yield from _many(kind)
    elif isinstance(border, str):
        yield from (border, border + "a", border + "\U0010ffff", border[:-1])
    elif isinstance(border, bytes):
        yield from (border, border + b"\x00", border + b"\xff" * 4, border[:-1]) if kind == "binary" else (border,)
    elif isinstance(border, Decimal):
        yield from (border + Decimal(step).scaleb(-2) for step in range(-1, 100))
    elif isinstance(border, bool):
        yield from (True, False)
    else:
        least = values.LEAST.get(kind, values.LEAST["long"])
        yield from (number for number in _numbers(transform, kind, border) if least <= number < -least)


def _many(kind: str) -> Iterator[Any]:
    for number in range(64):
        match kind:
            case "string":
                yield from (f"!{number}", f"b{number}", f"z{number}")
            case "uuid" | "binary" | "fixed[4]":
                width = {"uuid": 16, "fixed[4]": 4}.get(kind, 1)
                yield from (number.to_bytes(width), (256**width - 1 - number).to_bytes(width))
            case "decimal(9, 2)":
                yield from (Decimal(number).scaleb(-2), Decimal(-10 * number).scaleb(-2))
            case _:
                yield from (number, -number)


def _numbers(transform: str, kind: str, border: int) -> Iterator[int]:
    if transform in _DATES:
        unit = {"date": 1}.get(kind, values.DAY_S * (10**9 if kind.endswith("_ns") else 10**6))
        for count in (border, border + 1):
            begins = _begin(transform, count, unit)
            yield from (begins, begins - 1, begins + unit // values.DAY_S - 1, begins + unit // 2)
            yield from (begins + step * (unit // 24 or 1) for step in range(32))
    else:
        width = int(transform[9:-1]) if transform.startswith("truncate") else 1
        yield from (border + width, border + width - 1, *range(border - 24, border + max(24, min(width, 64))))


def _begin(unit: str, count: int, day: int) -> int:
    """Where a unit of time begins, as a source value."""
    if unit == "hour":
        return count * day // 24
    years, month = (count, 0) if unit == "year" else divmod(count, 12)
    days = count if unit == "day" else values.days_before(1970 + years, month)
    return days * day

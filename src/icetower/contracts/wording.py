"""Sets of values and operations, in the words and the spelling that contracts use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from icetower.contracts.boxes import Cut, Spans
from icetower.contracts.model import IMPLIED, Operation
from icetower.contracts.reading import duration_text
from icetower.contracts.regions import Extent, Region, Values
from icetower.contracts.slots import Turn, span_text
from icetower.counting import series
from icetower.iceberg.partitions import PartitionField, human_value

CALENDAR = ("year", "month", "day", "hour")
UNIT_MS = {"year": 366 * 86_400_000, "month": 31 * 86_400_000, "day": 86_400_000, "hour": 3_600_000}
"""How long a unit of the calendar is at most."""
LISTED_MAX = 8
"""Values that are listed one by one."""
OFFSET = "offset"
"""The transform of a field whose values are milliseconds from now on."""
CYCLE = "cycle["
"""With a number and ``]``, the transform of a field whose values are milliseconds of a time that comes round."""


def operations_text(operations: Iterable[Operation]) -> str:
    """Operations in the order in which contracts list them, without those that others of them imply."""
    held = set(operations)
    implied = {each for other in held for each in IMPLIED.get(other, ()) if each != other}
    return series([operation.value for operation in Operation if operation in held - implied])


def region_text(region: Region) -> str:
    """A region as its author wrote it."""
    return " and ".join(f"{name} is {_extent_text(extent)}" for name, extent in region.fields)


def _extent_text(extent: Extent) -> str:
    if isinstance(extent, Values):
        return series(["null" if text is None else text for text in extent.values], "or")
    return str(extent) if isinstance(extent, Turn) else _range_text(extent.start, extent.end)


def _range_text(start: str | None, end: str | None) -> str:
    if start is None:
        return "anything" if end is None else f"before {end}"
    return f"{start} or later" if end is None else f"from {start} to {end}"


def spans_text(field: PartitionField, spans: Spans) -> str:
    """What values of a field there are, such as ``from 2017-01-01 to 2017-02-01`` (half open), ``0–3 or 7``."""
    pieces = spans.pieces
    whole = len(pieces) == 1 and pieces[0][0][0] == -1 and pieces[0][1][0] == 1
    if whole:
        return "anything, or null" if spans.null else "anything but null"
    texts = _numbers(pieces) if field.transform.startswith("bucket[") else [_piece(field, *piece) for piece in pieces]
    if len(texts) > LISTED_MAX:
        texts = [*texts[: LISTED_MAX - 1], f"{len(texts) - LISTED_MAX + 1} more"]
    if field.transform.startswith(CYCLE):
        return f"{series(texts, 'or')} of every {span_text(int(field.transform[len(CYCLE) : -1]))}"
    return series([*texts, *(["null"] if spans.null else [])], "or")


def _numbers(pieces: Sequence[tuple[Cut, Cut]]) -> list[str]:
    """Runs of whole numbers, ends included."""
    texts: list[str] = []
    for start, end in pieces:
        first, last = start[1], end[1] - 1
        texts += [str(n) for n in range(first, last + 1)] if last - first < 2 else [f"{first}–{last}"]
    return texts


def _piece(field: PartitionField, start: Cut, end: Cut) -> str:
    first, last = (None if cut[0] else _cut_text(field, cut) for cut in (start, end))
    if first is not None and last is not None and _is_one(field, start, end):
        return value_text(field, start[1])
    if first is not None and last is not None and _is_whole_number(field):
        return f"from {first} to below {last}"  # of numbers, the end would be taken for granted
    return _range_text(first, last)


def _is_whole_number(field: PartitionField) -> bool:
    return field.transform == "identity" and field.source_type in ("int", "long")


def _is_counted(piece: tuple[Cut, Cut]) -> bool:
    return all(isinstance(cut[1], int) and not cut[2] for cut in piece)


def _is_one(field: PartitionField, start: Cut, end: Cut) -> bool:
    """Whether a piece is one value."""
    if start[1] == end[1]:
        return True
    measured = field.transform == OFFSET or field.transform.startswith(CYCLE)
    return _is_counted((start, end)) and not measured and end[1] - start[1] == 1


def _cut_text(field: PartitionField, cut: Cut) -> str:
    return ("just after " if cut[2] else "") + value_text(field, cut[1])


def value_text(field: PartitionField, raw: Any) -> str:
    """A value as a contract would have it, which need not be as Iceberg prints it."""
    try:
        return _value_text(field, raw)
    except (ValueError, TypeError, OverflowError, AttributeError):
        return str(raw)


def _value_text(field: PartitionField, raw: Any) -> str:
    if field.transform.startswith(CYCLE):
        return span_text(raw)
    if field.transform == OFFSET:
        return "now" + (f"{'-' if raw < 0 else '+'}{duration_text(abs(raw) / 1000)}" if raw else "")
    if isinstance(raw, bytes) and field.source_type != "uuid":
        return raw.hex()
    if field.transform == "hour":
        return human_value(field, raw)[:-3] + "T" + human_value(field, raw)[-2:]
    if field.transform in CALENDAR or not field.source_type.startswith("timestamp"):
        return human_value(field, raw)
    # Moments, as short as they can be written.
    second = 1_000_000_000 if field.source_type.endswith("_ns") else 1_000_000
    text = human_value(field, raw).removesuffix("+00:00")
    if raw % (second * 86_400) == 0:
        return text[:10]
    return text[:13] if raw % (second * 3_600) == 0 else text

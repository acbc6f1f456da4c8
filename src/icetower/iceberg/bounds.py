"""Do the partition bounds in a manifest list hold what the manifest holds?

Readers skip a manifest by them without opening it. Bounds that are too narrow hide files, those of others included:
whoever rewrites a manifest writes its row too (R5). Bounds that are too wide hide nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

from icetower.iceberg.avro_files import decimal_of
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.iceberg.change import Header
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.records import FieldSummary


def bound_problems(header: Header, spec: PartitionSpec) -> Iterator[str]:
    """What is wrong with the bounds, one sentence each. No bounds at all are fine."""
    listed = header.row.partitions
    if listed is None or not header.partitions:
        return
    if len(listed) != len(spec.fields):
        yield f"{len(listed)} fields instead of {len(spec.fields)}"
        return
    for at, field in enumerate(spec.fields):
        problem = _problem(listed[at], [partition[at] for partition in header.partitions], field.result_type)
        if problem is not None:
            yield f"{field.name} {problem}"


def _problem(listed: FieldSummary, values: list[Any], kind: str) -> str | None:
    known = [value for value in values if value is not None]
    numbers = [value for value in known if not (isinstance(value, float) and math.isnan(value))]
    if len(known) < len(values) and not listed.contains_null:
        return "is said to hold no null"
    if len(numbers) < len(known) and listed.contains_nan is False:
        return "is said to hold no NaN"
    if not numbers:
        return None
    if listed.lower is None or listed.upper is None:
        return "has values and no bounds"
    try:
        lower, upper = from_single_value(listed.lower, kind), from_single_value(listed.upper, kind)
        if not any(_within(order, numbers, lower, upper) for order in _ORDERS.get(kind, (_as_it_is,))):
            return f"goes from {min(numbers)} to {max(numbers)}, and is listed from {lower} to {upper}"
    except (struct.error, UnicodeDecodeError, TypeError):
        return f"has bounds or values that are no {kind}"
    return None


def _within(order: Callable[[Any], Any], values: list[Any], lower: Any, upper: Any) -> bool:
    keys = [order(value) for value in values]
    return order(lower) <= min(keys) and max(keys) <= order(upper)


def _as_it_is(value: Any) -> Any:
    return value


_ORDERS: dict[str, tuple[Callable[[Any], Any], ...]] = {"uuid": (_as_it_is, struct.Struct(">qq").unpack)}
"""Java orders UUIDs as two signed numbers, others as bytes. Bounds that are right in one of the orders are honest."""


def from_single_value(data: bytes, kind: str) -> Any:
    """A value of the type `kind` from Iceberg's binary form, as partition tuples hold it.

    Types that were widened since are read as they were written: a long from four bytes, a double from a float's.
    Source: specification, Appendix D ("Binary single-value serialization"), and Iceberg's `Conversions`.

    Raises:
        struct.error: the number of bytes is not the type's.
        UnicodeDecodeError: a string that is no UTF-8.
    """
    match kind:
        case "boolean":
            return data != b"\x00"
        case "int" | "date":
            return struct.unpack("<i", data)[0]
        case "float":
            return struct.unpack("<f", data)[0]
        case "double":
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        case "string":
            return data.decode()
        case "binary" | "uuid":
            return data
        case "unknown":
            return None
        case _ if kind.startswith("fixed"):
            return data
        case _ if decimal := parse_decimal(kind):
            return decimal_of(data, {"scale": decimal[1]})
        case _:
            return struct.unpack("<i" if len(data) == 4 else "<q", data)[0]

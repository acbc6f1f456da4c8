"""Which statistics of a column a manifest keeps, and how long bounds are cut. Pure.

Sources: Iceberg's documentation of the properties `write.metadata.metrics.*`; Iceberg 1.12, `MetricsConfig`,
`MetricsModes`, `UnicodeUtil`, `BinaryUtil`; specification, "Manifests" (order of floating-point bounds).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from icetower.iceberg.manifest_writing import single_value
from icetower.iceberg.schemas import Type, columns_by_id, columns_by_name, is_primitive, kind, source_of

PREFIX = "write.metadata.metrics."
INFERRED_MAX = 100
"""Columns that have statistics by default, where the table says nothing."""

_INT, _LONG = struct.Struct("<i").pack, struct.Struct("<q").pack
_PACK: Mapping[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("int", "date"), _INT),
    **dict.fromkeys(("long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), _LONG),
    "double": struct.Struct("<d").pack,
    "string": str.encode,
}
_CUT = ("string", "binary")
"""Fixed values and UUIDs are kept whole."""

_FLOATING = ("float", "double")
_SURROGATES = range(0xD800, 0xE000)
_LAST_CODE_POINT = 0x10FFFF
_NO_ORDER = re.compile(r"bucket\[.*|void")


@dataclass(frozen=True, slots=True)
class Mode:
    """What is kept of a column. `length`: characters or bytes that bounds are cut to; None: whole."""

    counts: bool
    bounds: bool
    length: int | None = None


NONE = Mode(counts=False, bounds=False)
COUNTS = Mode(counts=True, bounds=False)
FULL = Mode(counts=True, bounds=True)
DEFAULT = Mode(counts=True, bounds=True, length=16)


def parse_mode(text: str, fallback: Mode) -> Mode:
    """``none``, ``counts``, ``full`` or ``truncate(N)``; anything else is the fallback, as in Iceberg."""
    plain = text.strip().lower()
    if found := re.fullmatch(r"truncate\((\d{1,9})\)", plain):
        return Mode(counts=True, bounds=True, length=int(found[1])) if int(found[1]) else fallback
    return {"none": NONE, "counts": COUNTS, "full": FULL}.get(plain, fallback)


def modes_of(
    schema: Mapping[str, Any], properties: Mapping[str, str], sort_fields: Sequence[Mapping[str, Any]] = ()
) -> dict[int, Mode]:
    """The mode of every column of a schema, by id.

    Args:
        sort_fields: of the table's sort order (JSON): columns that files are sorted by have bounds by default.
    """
    by_id = columns_by_id(schema)
    configured = properties.get(PREFIX + "default")
    if configured is not None:
        default = parse_mode(configured, DEFAULT)
        modes = dict.fromkeys(by_id, default)
    else:
        most = _whole(properties.get(PREFIX + "max-inferred-column-defaults"), INFERRED_MAX)
        few = len(by_id) <= most
        default = DEFAULT if few else NONE
        modes = dict.fromkeys(by_id, default)
        if not few:
            modes |= dict.fromkeys(islice(_eligible(schema["fields"]), most), DEFAULT)
    for field in sort_fields:
        source = source_of(field)
        if source in modes and not _NO_ORDER.fullmatch(str(field.get("transform"))):
            modes[source] = default if default.bounds else DEFAULT
    by_name = columns_by_name(schema)
    for name, text in properties.items():
        column = by_name.get(name.removeprefix(PREFIX + "column.")) if name.startswith(PREFIX + "column.") else None
        if column is not None:
            modes[column.id] = parse_mode(text, default)
    return modes


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else default


def _eligible(fields: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Columns that may have statistics: those of a struct before those of what is nested in it."""
    for field in fields:
        if is_primitive(field["type"]) or field["type"] == "variant":
            yield field["id"]
    for field in fields:
        if not isinstance(field["type"], str):
            yield from _eligible(_inside(field["type"]))


def _inside(type_: Type) -> Sequence[Mapping[str, Any]]:
    assert not isinstance(type_, str)
    if kind(type_) == "struct":
        return type_["fields"]
    parts = ("element",) if kind(type_) == "list" else ("key", "value")
    return [{"id": type_[f"{part}-id"], "type": type_[part]} for part in parts]


def lower_bound(value: Any, type_: str, length: int | None) -> bytes:
    """A lower bound in Iceberg's binary form: a text or binary value is cut, and so stays below.

    Zeros become -0.0 here and +0.0 above: where a bound came from, the two may have been one (trap S7), and Iceberg's
    readers order -0.0 before +0.0.
    """
    if type_ in _FLOATING and value == 0:
        value = -0.0
    return _binary(value[:length] if length is not None and type_ in _CUT else value, type_)


def upper_bound(value: Any, type_: str, length: int | None) -> bytes | None:
    """An upper bound in Iceberg's binary form, or None where a cut value has no next one."""
    if length is not None and type_ in _CUT and len(value) > length:
        value = (_next_text if type_ == "string" else _next_bytes)(value[:length])
    if type_ in _FLOATING and value == 0:
        value = 0.0
    return None if value is None else _binary(value, type_)


def _binary(value: Any, type_: str) -> bytes:
    """As `single_value`; the plain types, which most columns have, without a search."""
    pack = _PACK.get(type_)
    return single_value(value, type_) if pack is None else pack(value)


def _next_text(text: str) -> str | None:
    """The shortest text above all that begin with this one."""
    for at in range(len(text) - 1, -1, -1):
        code = ord(text[at])
        if code < _LAST_CODE_POINT:
            code += 1
            return text[:at] + chr(_SURROGATES.stop if code in _SURROGATES else code)
    return None


def _next_bytes(data: bytes) -> bytes | None:
    for at in range(len(data) - 1, -1, -1):
        if data[at] < 0xFF:
            return data[:at] + bytes((data[at] + 1,))
    return None

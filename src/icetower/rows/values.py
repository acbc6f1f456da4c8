"""A value of JSON as a column's type has it, exactly, or not at all. Pure.

PyArrow's own conversion is generous: it cuts 1.5 to 1, takes a number of seconds for microseconds, drops fields that a
struct does not have, and reads `0x10` as 16. Here such a value is refused.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from icetower.errors import BadRequest
from icetower.rows.arrow import array, pyarrow
from icetower.texts import clipped, escaped

SHOWN_CHARACTERS_MAX = 60
DEPTH_MAX = 32
_EXACT = 2**53
"""Up to here JSON's numbers are integers everywhere."""
_DIGITS = re.compile(r"-?[0-9]{1,20}")
_DECIMAL = re.compile(r"-?[0-9]{1,80}(\.[0-9]{1,80})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.([0-9]{1,9}))?")
_ZONE = re.compile(r"Z|[+-][0-9]{2}:?[0-9]{2}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DAY_ZERO = dt.date(1970, 1, 1)
FIRST_DAY, LAST_DAY = ((day - _DAY_ZERO).days for day in (dt.date.min, dt.date.max))
_FIRST_NS, _LAST_NS = (day * 86_400 * 10**9 for day in (FIRST_DAY, LAST_DAY))
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Unfit(Exception):
    """A value that is none of its column's type.

    Attributes:
        path: to it from the row, such as `prices[2].amount`.
        expected: in words.
    """

    def __init__(self, path: str, value: object, expected: str) -> None:
        super().__init__(path)
        self.path = path
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        return f"{_shown(self.value)} does not fit; it takes {self.expected}"


def column(name: str, values: Sequence[object], field: Any, rule: str) -> Any:
    """The values of a column, one a row, as an Arrow array. Raises `BadRequest` naming row, column and value.

    Args:
        field: of Arrow; where it is not nullable, no value may be null.
        rule: of the refusal.
    """
    pa = pyarrow()
    kind, found = field.type, list[Any]()
    for number, value in enumerate(values, 1):
        try:
            found.append(converted(value, kind, name, nullable=field.nullable))
        except Unfit as error:
            raise BadRequest(f"rows: row {number}, column {clean(error.path, 200)}: {error}", rule=rule) from None
    try:
        return array(found, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise BadRequest(
            f"rows: the values of column {clean(name, 200)} are no {clean(str(kind), 200)}", rule=rule
        ) from error


def converted(value: object, kind: Any, path: str, *, nullable: bool = True, depth: int = 0) -> Any:
    """What PyArrow makes an array of this type of without changing it. Raises `Unfit`."""
    if value is None:
        if not nullable:
            raise Unfit(path, value, "a value, for it is required")
        return None
    if depth > DEPTH_MAX:
        raise Unfit(path, value, f"at most {DEPTH_MAX} levels")
    nested, convert = _conversion(kind)
    if convert is None:
        raise Unfit(path, value, f"{kind}, which cannot be written from JSON")
    return convert(value, kind, path, depth) if nested else convert(value, kind, path)


def of_column(kind: Any) -> Callable[[object, str], Any]:
    """What converts the values of a column of this type, none of them null: (value, path) → value."""
    nested, convert = _conversion(kind)
    if convert is None or nested:
        return lambda value, path: converted(value, kind, path)
    return lambda value, path: convert(value, kind, path)


def _conversion(kind: Any) -> tuple[bool, Callable[..., Any] | None]:
    """How values of a type are converted, and whether the type is nested; None for one of which no JSON is read."""
    types = pyarrow().types
    for is_kind, convert in _NESTED:
        if getattr(types, is_kind)(kind):
            return True, convert
    for is_kind, convert in _PLAIN:
        if getattr(types, is_kind)(kind):
            return False, convert
    return False, _uuid if "uuid" in str(kind) else None


def clean(text: str, characters_max: int) -> str:
    """A text of others, of bounded length and without characters that act on a terminal or turn its direction."""
    return clipped(escaped(text, but="\n\t"), characters_max)


def _shown(value: object) -> str:
    """A value in a message: short, and nothing of it acts."""
    if isinstance(value, str):
        return repr(clean(value, SHOWN_CHARACTERS_MAX))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return clean(_number(value), SHOWN_CHARACTERS_MAX)
    return "an object" if isinstance(value, Mapping) else "a list"


def _number(value: float) -> str:
    """Python refuses to write out integers of thousands of digits."""
    return str(value) if isinstance(value, float) or value.bit_length() < 1_000 else "a number of many digits"


# ── Plain values ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _boolean(value: object, kind: Any, path: str) -> bool:
    del kind
    if not isinstance(value, bool):
        raise Unfit(path, value, "true or false")
    return value


def _integer(value: object, kind: Any, path: str) -> int:
    most = 1 << (kind.bit_width - 1)
    expected = f"a whole number from {-most} to {most - 1}"
    if most > _EXACT:
        expected += ", as a text of digits where it is beyond 2^53"
    found = value
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        found = int(value)
    if not isinstance(found, int) or isinstance(found, bool) or not -most <= found < most:
        raise Unfit(path, value, expected)
    return found


def _float(value: object, kind: Any, path: str) -> float:
    expected = "a number" + (" that a float of 32 bits can hold" if kind.bit_width == 32 else "")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Unfit(path, value, expected)
    try:
        found = float(value)
        as_kept = struct.unpack("<f", struct.pack("<f", found))[0] if kind.bit_width == 32 else found
    except OverflowError:
        raise Unfit(path, value, expected) from None
    if not math.isfinite(as_kept) or (isinstance(value, int) and int(as_kept) != value):
        raise Unfit(path, value, f"{expected}, and an integer only where it is kept as it is")
    return found


def _decimal(value: object, kind: Any, path: str) -> Decimal:
    precision, scale = kind.precision, kind.scale
    whole = precision - scale
    expected = f"a text such as '9.99', or an integer, of at most {whole} digits and {scale} decimals"
    if isinstance(value, float):  # JSON's and Python's, which have no exact 9.99
        expected = f"no float: send Decimal('9.99') in Python, or {expected}"
    is_text = isinstance(value, str) and _DECIMAL.fullmatch(value) is not None
    is_integer = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 256
    if not (is_text or is_integer):
        raise Unfit(path, value, expected)
    found = Decimal(cast("str | int", value))
    sign, digits, exponent = found.as_tuple()
    assert isinstance(exponent, int)
    left_over = -exponent - scale
    if left_over > 0:  # more decimals than are kept: fine where they are zeros
        kept, dropped = digits[:-left_over], digits[-left_over:]
        if any(dropped):
            raise Unfit(path, value, expected)
        found = Decimal((sign, kept or (0,), -scale))
    if found and found.adjusted() >= whole:
        raise Unfit(path, value, expected)
    return found


def _text(value: object, kind: Any, path: str) -> str:
    del kind
    if not isinstance(value, str):
        raise Unfit(path, value, "a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(path, value, "a text of whole characters, without half a surrogate pair") from None
    return value


def _binary(value: object, kind: Any, path: str) -> bytes:
    del kind
    expected = "a text that begins with 'base64:', and is the bytes in base64"
    if not isinstance(value, str) or not value.startswith("base64:"):
        raise Unfit(path, value, expected)
    try:
        return base64.b64decode(value.removeprefix("base64:"), validate=True)
    except (binascii.Error, ValueError):
        raise Unfit(path, value, expected) from None


def _fixed(value: object, kind: Any, path: str) -> bytes:
    found = _binary(value, kind, path)
    if len(found) != kind.byte_width:
        raise Unfit(path, value, f"{kind.byte_width} bytes, and these are {len(found)}")
    return found


def _uuid(value: object, kind: Any, path: str) -> bytes:
    del kind
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise Unfit(path, value, "a UUID, such as '12345678-1234-5678-1234-567812345678'")
    return uuid.UUID(value).bytes


# ── Days and times ───────────────────────────────────────────────────────────────────────────────────────────────────


def _date(value: object, kind: Any, path: str) -> dt.date:
    del kind
    expected = "a day as text, such as '2017-01-02'"
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise Unfit(path, value, expected)
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        raise Unfit(path, value, expected) from None


def _time(value: object, kind: Any, path: str) -> int:
    expected = "a time as text, such as '03:04:05'"
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise Unfit(path, value, expected)
    return _units(_nanoseconds(found, path, value, expected), kind.unit, path, value)


def _timestamp(value: object, kind: Any, path: str) -> int:
    example = "'2017-01-02T03:04:05Z', with its offset" if kind.tz else "'2017-01-02T03:04:05', without an offset"
    expected = f"a moment as text, such as {example}"
    if not isinstance(value, str) or len(value) > 40 or value[10:11] not in ("T", " "):
        raise Unfit(path, value, expected)
    zone = _ZONE.search(value, 11)
    time = _TIME.fullmatch(value[11 : zone.start()] if zone else value[11:])
    if not _DATE.fullmatch(value[:10]) or time is None or (zone is not None) != bool(kind.tz):
        raise Unfit(path, value, expected)
    if zone is not None and zone.end() != len(value):
        raise Unfit(path, value, expected)
    try:
        days = (dt.date.fromisoformat(value[:10]) - _DAY_ZERO).days
    except ValueError:
        raise Unfit(path, value, expected) from None
    since = days * 86_400 * 10**9 + _nanoseconds(time, path, value, expected)
    if zone is not None and zone.group() != "Z":
        offset = zone.group().replace(":", "")
        hours, minutes = int(offset[1:3]), int(offset[3:])
        if hours > 18 or minutes > 59:
            raise Unfit(path, value, expected)
        since -= (hours * 60 + minutes) * 60 * 10**9 * (1 if offset[0] == "+" else -1)
    found = _units(since, kind.unit, path, value)
    # Python reads no other years again, and so none of these tools.
    if abs(found) >= 2**63 or not _FIRST_NS <= since < _LAST_NS + 86_400 * 10**9:
        raise Unfit(path, value, "a moment of the years 1 to 9999")
    return found


def _nanoseconds(found: re.Match[str], path: str, value: object, expected: str) -> int:
    parts = [int(each) for each in found.group(1).split(":")]
    hours, minutes, seconds = (*parts, 0)[:3]
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Unfit(path, value, expected)
    return (hours * 3600 + minutes * 60 + seconds) * 10**9 + int((found.group(2) or "").ljust(9, "0"))


def _units(nanoseconds: int, unit: str, path: str, value: object) -> int:
    found, rest = divmod(nanoseconds, _NANOSECONDS[unit])
    if rest:
        raise Unfit(path, value, f"no finer fractions of a second than {unit}")
    return found


# ── Lists, maps and structs ──────────────────────────────────────────────────────────────────────────────────────────


def _list(value: object, kind: Any, path: str, depth: int) -> list[Any]:
    if not isinstance(value, list):
        raise Unfit(path, value, "a list")
    inner = kind.value_field
    return [
        converted(each, inner.type, f"{path}[{at}]", nullable=inner.nullable, depth=depth + 1)
        for at, each in enumerate(cast("list[object]", value))
    ]


def _map(value: object, kind: Any, path: str, depth: int) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        pairs: list[Any] = [list(each) for each in cast("dict[str, object]", value).items()]
    else:
        pairs = cast("list[Any]", value) if isinstance(value, list) else [None]
    if not all(isinstance(each, list) and len(cast("list[Any]", each)) == 2 for each in pairs):
        raise Unfit(path, value, "an object, or a list of pairs [key, value]")
    found: list[tuple[Any, Any]] = []
    for key, inner in pairs:
        as_key = converted(key, kind.key_type, f"{path} (key)", nullable=False, depth=depth + 1)
        of_key = f"{path}[{_shown(key)}]"
        nullable = kind.item_field.nullable
        found.append((as_key, converted(inner, kind.item_type, of_key, nullable=nullable, depth=depth + 1)))
    if len({repr(key) for key, _ in found}) < len(found):
        raise Unfit(path, value, "each key once")
    return found


def _struct(value: object, kind: Any, path: str, depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfit(path, value, "an object with the fields of the column")
    given = cast("dict[str, object]", value)
    fields = {field.name: field for field in kind}
    for name in given:
        if name not in fields:
            raise Unfit(path, name, f"the fields {', '.join(map(str, list(fields)[:20]))} alone")
    return {
        name: converted(given.get(name), field.type, f"{path}.{name}", nullable=field.nullable, depth=depth + 1)
        for name, field in fields.items()
    }


_PLAIN: tuple[tuple[str, Callable[[object, Any, str], Any]], ...] = (
    ("is_boolean", _boolean),
    ("is_integer", _integer),
    ("is_floating", _float),
    ("is_decimal", _decimal),
    ("is_string", _text),
    ("is_large_string", _text),
    ("is_fixed_size_binary", _fixed),
    ("is_binary", _binary),
    ("is_large_binary", _binary),
    ("is_date", _date),
    ("is_time", _time),
    ("is_timestamp", _timestamp),
)
_NESTED: tuple[tuple[str, Callable[[object, Any, str, int], Any]], ...] = (
    ("is_map", _map),
    ("is_list", _list),
    ("is_large_list", _list),
    ("is_struct", _struct),
)

"""Hostile bodies for the rows door: good ones of every type, with something wrong in them that knows the format. Pure.

An input is a function of its number and the seed. It has a value of another kind, a number or a text that no column can
hold, a shape that costs more than its bytes, or changed bytes and words; and some inputs are good.
"""

from __future__ import annotations

import base64
import io
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icetower.protocol.rows import ARROW_TYPE, JSON_TYPE, NDJSON_TYPES

KINDS = (JSON_TYPE, NDJSON_TYPES[0], ARROW_TYPE)
BIG_EVERY = 4_000
"""One input of this many is of megabytes."""

BIG_BYTES = 4 * 1024 * 1024


def _column(number: int, name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "type": kind, "required": False, **more}


_STRUCT = {
    "type": "struct",
    "fields": [
        _column(41, "x", "int", required=True),
        _column(42, "y", {"type": "list", "element-id": 43, "element": "decimal(5, 2)", "element-required": False}),
        _column(44, "u", "uuid", required=True),
    ],
}
COLUMNS: Sequence[Mapping[str, Any]] = (
    _column(1, "id", "long", required=True),
    _column(2, "flag", "boolean"),
    _column(3, "small", "int"),
    _column(4, "f", "float"),
    _column(5, "d", "double"),
    _column(6, "price", "decimal(9, 2)"),
    _column(7, "wide", "decimal(38, 10)"),
    _column(8, "day", "date"),
    _column(9, "clock", "time"),
    _column(10, "at", "timestamp"),
    _column(11, "atz", "timestamptz"),
    _column(12, "ns", "timestamptz_ns"),
    _column(13, "text", "string", **{"write-default": "nothing"}),
    _column(14, "raw", "binary"),
    _column(15, "four", "fixed[4]"),
    _column(16, "uid", "uuid"),
    _column(17, "many", {"type": "list", "element-id": 31, "element": "long", "element-required": True}),
    _column(
        18, "pairs", {"type": "map", "key-id": 32, "key": "string", "value-id": 33, "value": "double",
                      "value-required": False},
    ),
    _column(19, "inner", _STRUCT),
    _column(20, "free", "variant"),
    _column(21, "uids", {"type": "list", "element-id": 45, "element": "uuid", "element-required": False}),
)  # fmt: skip

_PARTITIONED = (
    (1, "bucket[16]"), (2, "identity"), (3, "truncate[10]"), (4, "identity"), (5, "identity"), (6, "truncate[50]"),
    (7, "identity"), (8, "month"), (9, "identity"), (10, "year"), (11, "hour"), (12, "day"), (13, "truncate[4]"),
    (14, "bucket[4]"), (15, "identity"), (16, "bucket[4]"), (41, "identity"),
)  # fmt: skip
"""The partition specs of the table but the first: the id of the column, and the transform."""


def _spec(number: int, source_id: int, transform: str) -> dict[str, Any]:
    field = {"source-id": source_id, "field-id": 1000 + number, "transform": transform, "name": f"p{number}"}
    return {"spec-id": number, "fields": [field]}


def _sorted(source_id: int, direction: str) -> dict[str, Any]:
    return {"source-id": source_id, "transform": "identity", "direction": direction, "null-order": "nulls-last"}


TABLE: Mapping[str, Any] = {
    "format-version": 3,
    "table-uuid": "0198c1a2-0000-7000-8000-000000000001",
    "location": "file:///lake/ns/t",
    "current-schema-id": 0,
    "schemas": [{"type": "struct", "schema-id": 0, "fields": list(COLUMNS)}],
    "default-spec-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}, *(_spec(at, *each) for at, each in enumerate(_PARTITIONED, 1))],
    "default-sort-order-id": 1,
    "sort-orders": [{"order-id": 1, "fields": [_sorted(13, "asc"), _sorted(6, "desc")]}],
    "properties": {},
}
SPECS = len(_PARTITIONED) + 1


@dataclass(frozen=True, slots=True)
class Body:
    """A request's content type and body. `spec_id`: by which the table is partitioned."""

    content_type: str
    data: bytes
    spec_id: int


def body(number: int, seed: int) -> Body:
    """The input of that number."""
    chance = random.Random(seed * 2**40 + number)
    kind = KINDS[number % len(KINDS)]
    spec_id = chance.randrange(SPECS)
    if number % BIG_EVERY < len(KINDS):
        return Body(kind, _big(kind, chance), spec_id)
    return Body(kind, {JSON_TYPE: _json, NDJSON_TYPES[0]: _ndjson, ARROW_TYPE: _arrow}[kind](chance), spec_id)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _row(chance: random.Random) -> dict[str, Any]:
    """A row that fits; some of its columns are left out."""
    number = chance.randrange(2**40)
    day = f"20{chance.randrange(10, 30)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
    clock = (
        f"{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}.{chance.randrange(10**6):06}"
    )
    row: dict[str, Any] = {
        "id": number if chance.random() < 0.8 else str(number),
        "flag": chance.random() < 0.5,
        "small": chance.randrange(-(2**31), 2**31),
        "f": chance.randrange(2**20) / 4,
        "d": chance.uniform(-1e300, 1e300),
        "price": f"{chance.randrange(10**7)}.{chance.randrange(100):02}",
        "wide": str(chance.randrange(10**28)),
        "day": day,
        "clock": clock,
        "at": f"{day}T{clock}",
        "atz": f"{day}T{clock}{chance.choice(('Z', '+02:00', '-0930'))}",
        "ns": f"{day} {clock}123Z",
        "text": chance.choice(("", "a", "é\u0000", "\U0001f427", "x" * 200)),
        "raw": "base64:" + base64.b64encode(chance.randbytes(chance.randrange(9))).decode(),
        "four": "base64:" + base64.b64encode(chance.randbytes(4)).decode(),
        "uid": "12345678-1234-5678-1234-567812345678",
        "many": [chance.randrange(100) for _ in range(chance.randrange(4))],
        "pairs": {"a": 1.5, "b": None} if chance.random() < 0.5 else [["a", 1], ["b", 2.0]],
        "inner": {"x": 1, "y": ["1.25", None], "u": "12345678-1234-5678-1234-567812345678"},
        "uids": ["12345678-1234-5678-1234-567812345678", None],
    }
    return {name: value for name, value in row.items() if name == "id" or chance.random() < 0.7}


_DIGITS = "1234567890" * 500
_TOKENS: Sequence[Callable[[random.Random], bytes]] = tuple(
    (lambda _, token=token: token)
    for token in (
        b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1E-400", b"-0", b"-0.0", b"00", b"01", b".5",
        b"5.", b"+1", b"0x10", b"1e5", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
        b"18446744073709551616", b"2147483648", b"16777217", b"3.5e38", b"0.1", b"1.00", b"1e-2", _DIGITS.encode(),
        b"-" + _DIGITS.encode(), f"0.{_DIGITS}".encode(), f"1e{_DIGITS}".encode(), f'"{_DIGITS}"'.encode(),
        f'"0.{_DIGITS}"'.encode(), f'"1e{_DIGITS[:9]}"'.encode(), b'"1E+999999999"', b'"1e-999999999"', b'"NaN"',
        b'"-Infinity"', b'"sNaN"', b'"1_000"', '"\u0661"'.encode(), '"１２"'.encode(), b'" 1"', b'"1 "', b'"1\\n"',
        b'"+1"', b'"--1"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\udc27"', b'"\\u0000"', b'"\xff"',
        b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'"\x00"', b'"\t"', b'"\\x"',
        b'"\\u12"', b'"unended', b"'single'", b"null", b"true", b"tru", b"undefined", b"[]", b"{}", b"[null]",
        b"[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", b"[" * 300 + b"]" * 300, b"[" * 5_000,
        b'{"a":' * 300 + b"1" + b"}" * 300, b'{"a":' * 5_000, b'{"a":1,"a":2}', b'{"":1}', b'{"x":1,"z":2}',
        b'{"x":null}', b'{"x":"1","y":7}', b"[1,,2]", b"[1,]", b"[[1]]", b"[[1,2,3]]", b'[["a",1],["a",2]]',
        b'[[null,1]]', b"{1:2}", b'"base64:"', b'"base64:!"', b'"base64:AAAA"', b'"base64:AA"', b'"base64:\\u00e9"',
        b'"AAAA"', b'"0000-00-00"', b'"9999-12-31"', b'"10000-01-01"', b'"-001-01-01"', b'"2017-02-30"',
        b'"2017-13-01"', b'"2017-1-1"', b'"24:00:00"', b'"23:59:60"', b'"1:2:3"', b'"00:00:00.0000000001"',
        b'"2017-01-01T00:00:00"', b'"2017-01-01T00:00:00Z"', b'"2017-01-01T00:00:00+99:99"',
        b'"2017-01-01T00:00:00+24:00"', b'"2017-01-01T24:00:00Z"', b'"0001-01-01T00:00:00+18:00"',
        b'"9999-12-31T23:59:59.999999-18:00"', b'"1677-09-21T00:12:43Z"', b'"2262-04-12T00:00:00Z"',
        b'"2017-01-01T00:00:00[Europe/Paris]"', b'"now"', b'"12345678-1234-5678-1234-56781234567"',
        b'"{12345678-1234-5678-1234-567812345678}"', b'"urn:uuid:12345678-1234-5678-1234-567812345678"',
        b"12345678", b'"99999999.99"', b'"9999999.999"', b'"9999999.990"', b'"12345678901234567890123456789.1"',
        b"99999999", b"1.5", b'"-.5"', b'"5."', b'"."', b'""', b'"-"',
    )
)  # fmt: skip


def _replaced(row: dict[str, Any], chance: random.Random, tokens: dict[str, bytes]) -> None:
    """Put a hostile token in place of a value of the row, at any depth; `tokens` has it by its placeholder."""
    at: Any = row
    name: Any = chance.choice(list(row))
    while chance.random() < 0.5 and isinstance(at[name], dict | list) and at[name]:
        at = at[name]
        name = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
    placeholder = f"@{len(tokens)}@"
    tokens[placeholder] = chance.choice(_TOKENS)(chance)
    at[name] = placeholder


_NAMES = ("ID", "id ", "", "free", "no", "inner.x", "\u0000", "é" * 300, "_pos", "id\n")


def _rows(chance: random.Random) -> tuple[list[Any], dict[str, bytes]]:
    """Some rows, of which one or another is wrong, and the tokens to put in."""
    rows: list[Any] = [_row(chance) for _ in range(chance.choice((1, 1, 1, 2, 3, 25)))]
    tokens: dict[str, bytes] = {}
    for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
        row = chance.choice(rows)
        if not isinstance(row, dict) or not row:
            continue
        match chance.randrange(8):
            case 0:
                row[chance.choice(_NAMES)] = 1
            case 1:
                row.pop("id", None)
                row["text"] = "without its id"
            case 2:
                rows[chance.randrange(len(rows))] = chance.choice((None, 1, "x", [], [{}], {}))
            case _:
                _replaced(row, chance, tokens)
    return rows, tokens


def _dumped(value: Any, tokens: Mapping[str, bytes]) -> bytes:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for placeholder, token in tokens.items():
        data = data.replace(f'"{placeholder}"'.encode(), token, 1)
    return data


def _json(chance: random.Random) -> bytes:
    rows, tokens = _rows(chance)
    document: dict[str, Any] = {"rows": rows}
    if chance.random() < 0.3:
        document["key"] = chance.choice(("k", "", "k" * 10_000, None, 7, "\n", "\ud800", ["k"]))
    if chance.random() < 0.2:
        sequence = chance.choice((0, -1, 2**63 - 1, 2**63, 1.5, True, "1", None))
        document["application"] = chance.choice(({"id": "a", "sequence": sequence}, {"id": ""}, [], "a", {}))
    if chance.random() < 0.2:
        document["ref"] = chance.choice(("main", "", "a/b", None, 1, "x" * 5_000, "\u202e"))
    if chance.random() < 0.1:
        document[chance.choice(("row", "files", "", "rows "))] = rows
    data = _dumped(document, tokens)
    if chance.random() < 0.02:
        data = chance.choice((b"\xef\xbb\xbf" + data, data + data, data + b"//", b"", b"[]", b"null", b"[" * 100_000))
    return _broken(data, chance) if chance.random() < 0.15 else data


def _ndjson(chance: random.Random) -> bytes:
    rows, tokens = _rows(chance)
    lines = [_dumped(row, tokens) for row in rows]
    if chance.random() < 0.2:
        lines.insert(chance.randrange(len(lines) + 1), chance.choice((b"", b" ", b"\r", b"\x00", b"[]", b"1", b"\xff")))
    data = chance.choice((b"\n", b"\r\n", b"\n\n", b"\r", b"\x0b", "\u2028".encode())).join(lines)
    return _broken(data, chance) if chance.random() < 0.15 else data


def _broken(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out, doubled, or the end cut off."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not found:
            break
        at = chance.randrange(len(found))
        match chance.randrange(5):
            case 0:
                del found[at : at + chance.randint(1, 8)]
            case 1:
                found[at:at] = found[max(0, at - chance.randint(1, 64)) : at]
            case 2:
                found[at] = chance.choice(b'{}[]",:\\\x00\xff0-eE')
            case _:
                found[at] = chance.randrange(256)
    return bytes(found[: chance.randint(1, len(found))] if found and chance.random() < 0.2 else found)


# ── Arrow ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _streamed(table: pa.Table, chunk: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue()


def _fitting() -> pa.Table:
    """Rows of every type that is taken."""
    return pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "flag": [True, None, False],
            "small": pa.array([1, 2, None], pa.int32()),
            "f": pa.array([0.5, None, -2.0], pa.float32()),
            "d": [0.1, 1e300, None],
            "price": pa.array(["1.25", None, "9"]).cast(pa.decimal128(9, 2)),
            "wide": pa.array(["1.5", "2", None]).cast(pa.decimal128(38, 10)),
            "day": pa.array([0, 1, None], pa.date32()),
            "clock": pa.array([0, 1, None], pa.time64("us")),
            "at": pa.array([0, 1, None], pa.timestamp("us")),
            "atz": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
            "ns": pa.array([0, 1, None], pa.timestamp("ns", "UTC")),
            "text": ["a", None, "é"],
            "raw": pa.array([b"a", None, b"\xff"], pa.binary()),
            "four": pa.array([b"abcd", None, b"\xff\xff\xff\xff"], pa.binary(4)),
            "many": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
            "pairs": pa.array([[("a", 1.5)], None, []], pa.map_(pa.string(), pa.float64())),
            # With nulls of required fields under its null, as some writers have them.
            "inner": pa.StructArray.from_arrays(
                [pa.array([1, None, 2], pa.int32()), pa.array([None, None, []], pa.list_(pa.decimal128(5, 2))), _UIDS],
                names=["x", "y", "u"],
                mask=pa.array([False, True, False]),
            ),
            "uids": pa.ListArray.from_arrays([0, 1, 1, 3], _UIDS),
        }
    )


_UIDS = pa.array([b"0123456789abcdef", None, bytes(16)], pa.uuid())


def _odd() -> list[pa.Table]:
    """Tables in forms that are not taken, or hardly."""
    three = pa.array([1, 2, 3], pa.int64())
    texts = ["a", "b" * 100, None]
    columns: list[Any] = [
        pa.array(texts).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([3], ["a"]),
        pa.array(texts, pa.string_view()),
        pa.array([b"a", None, b"b"], pa.binary_view()),
        pa.array([[1], None, [2]], pa.list_view(pa.int64())),
        pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        pa.array([[1], None, [2]], pa.large_list(pa.int64())),
        pa.array(texts, pa.large_string()),
        pa.array([None] * 3, pa.null()),
        pa.array([[None], [], None], pa.list_(pa.null())),
        pa.array([{}, {}, {}], pa.struct([])),
        pa.array([b"", b"", b""], pa.binary(0)),
        pa.array([1, 2, 3], pa.duration("s")),
        pa.array([0.5, 1.5, None], pa.float16()),
        pa.array([pa.scalar((1, 2, 3), pa.month_day_nano_interval()).as_py()] * 3, pa.month_day_nano_interval()),
        pa.array(["1", "2", None]).cast(pa.decimal256(60, 5)),
        pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [three]),
        pa.UnionArray.from_dense(pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [three]),
        pa.array([1, 2**63, None], pa.uint64()),
        pa.array([1, 2, 3], pa.timestamp("s", "Europe/Paris")),
        pa.array([2**62, 2, 3], pa.timestamp("s")),
        pa.array([2**62, 2, 3], pa.date64()),
    ]
    found = [pa.table({"id": three, name: column}) for column in columns for name in ("text", "at", "many", "other")]
    deep: Any = pa.int64()
    for _ in range(40):
        deep = pa.list_(deep)
    return [
        *found,
        pa.table({"id": three, "many": pa.nulls(3, deep)}),
        pa.table({f"c{at}": three for at in range(500)}),
        pa.Table.from_arrays([three, three], names=["id", "id"]),
        pa.Table.from_arrays([three], schema=pa.schema([pa.field("id", pa.int64(), metadata={"x": "y" * 1_000})])),
        pa.table({"id": three}).slice(0, 0),
        pa.table({}),
    ]


def _seeds() -> list[bytes]:
    """Streams to begin with, most of them good."""
    good = _fitting()
    plain = _streamed(good)
    several = _streamed(pa.concat_tables([good] * 3).combine_chunks(), chunk=2)
    squeezed = [_streamed(pa.table({"id": [1] * 500}), compression=codec) for codec in ("lz4", "zstd")]
    found = [plain] * 20 + [several] * 10 + [_streamed(good.select(["id", name])) for name in good.column_names]
    return [*found, *squeezed, *(_streamed(table) for table in _odd())]


_STREAMS: list[bytes] = []
_WORDS = (0, 1, -1, 2, 8, 16, 255, 0x7FFFFFFF, -0x80000000, 0x10000, 1_000_000)
_LONGS = (0, 1, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


def _arrow(chance: random.Random) -> bytes:
    if not _STREAMS:
        _STREAMS.extend(_seeds())
    data = bytearray(chance.choice(_STREAMS))
    if chance.random() < 0.03:
        other = chance.choice(_STREAMS)
        cut = 8 * chance.randrange(len(data) // 8 + 1)
        data[cut:] = other[8 * chance.randrange(len(other) // 8 + 1) :]
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        if len(data) < 16:
            break
        word = 4 * chance.randrange(len(data) // 4 - 1)
        match chance.randrange(6):
            case 0:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                struct.pack_into("<i", data, word, chance.choice(_WORDS))
            case 2:
                struct.pack_into("<q", data, word, chance.choice(_LONGS))
            case 3:
                near = struct.unpack_from("<i", data, word)[0] + chance.choice((-8, -4, -1, 1, 4, 8))
                struct.pack_into("<i", data, word, max(-(2**31), min(2**31 - 1, near)))
            case 4:
                struct.pack_into("<H", data, word, chance.randrange(64))
            case _:
                data[word] ^= 1 << chance.randrange(8)
    return bytes(data[: chance.randint(1, len(data))] if chance.random() < 0.05 else data)


# ── Megabytes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _big(kind: str, chance: random.Random) -> bytes:
    """As long as a body may be, or a little longer, in the shape that costs the reader most."""
    size = chance.choice((BIG_BYTES, BIG_BYTES - 64, BIG_BYTES + 1))
    if kind == ARROW_TYPE:
        rows = chance.choice((10_000, 10_001, 100))
        if chance.random() < 0.3:
            return _streamed(pa.table({"id": [1] * 999}), chunk=1)[:size]
        text = "x" * max(1, (size - 2_000) // rows - 16)
        return _streamed(pa.table({"id": list(range(rows)), "text": [text] * rows}))[:size]
    unit = chance.choice(
        (b"[", b'{"a":', b"{},", b"[],", b'{"id":1},', b'{"id":"1"},', b"1,", b'"a",', b" ", b"\\u0000")
    )
    filling = unit * (size // len(unit))
    if kind != JSON_TYPE:
        return chance.choice((filling, filling.replace(b",", b"\n"), b'{"id":1,"text":"' + filling))[:size]
    return chance.choice((b'{"rows":[' + filling, b'{"rows":[{"id":1,"many":[' + filling, b'{"key":"' + filling))[:size]

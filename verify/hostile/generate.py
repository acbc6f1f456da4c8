"""Hostile bytes by format: sound samples, changed by what knows how they are built. Everything follows from a seed."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from icetower.iceberg import puffin
from icetower.iceberg.avro_encoding import put_long
from icetower.iceberg.manifest_writing import manifest_row, write_manifest, write_manifest_list
from icetower.iceberg.manifests import ADDED, DATA, DataFile, Entry
from icetower.iceberg.vectors import Vector, as_blob
from icetower.table.groups import Group, GroupedAppend, write_group

KINDS = ("manifest", "list", "metadata", "parquet", "delete-file", "avro-deletes", "puffin", "vector", "group", "json")
NUMBERS = (0, -1, 1, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, 0.5, 1e308)
TEXTS = (
    "",
    "\x00",
    "a" * 70_000,
    "../../etc/passwd",
    "file:///dev/zero",
    "\ud7ff\uffff",
    "%1F",
    "s3://",
    "🜁",
    "-1",
    "NaN",
)
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "type": "long", "required": False}]}
ROOT = "file:///w/t"


def made(kind: str, seed: int) -> bytes:
    """The input of a kind and a seed: always the same."""
    source = random.Random(f"{kind}:{seed}")
    return GENERATORS[kind](source)


# -- bytes -------------------------------------------------------------------------------------------------------------


def bytes_changed(source: random.Random, data: bytes) -> bytes:
    """A few bytes flipped, cut, doubled, zeroed or put in."""
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4, 16))):
        at = source.randrange(len(out) + 1)
        length = min(source.choice((1, 2, 4, 8, 64)), len(out) - at)
        match source.randrange(6):
            case 0 if length:
                out[at] ^= 1 << source.randrange(8)
            case 1:
                del out[at : at + length]
            case 2:
                out[at:at] = out[at : at + length]
            case 3:
                out[at : at + length] = bytes(length)
            case 4:
                out[at:at] = source.randbytes(source.choice((1, 4, 8)))
            case _:
                out[at : at + length] = b"\xff" * length
    return bytes(out[: source.randrange(len(out) + 1)] if source.random() < 0.1 else out)


def json_changed(source: random.Random, value: Any, times: int | None = None) -> Any:
    """A few places of a JSON value changed: other types, extreme numbers, long texts, missing keys, deep nests."""
    root = [orjson.loads(orjson.dumps(value))]
    for _ in range(times or source.choice((1, 1, 2, 3, 6))):
        places: list[tuple[Any, Any]] = []
        waiting: list[Any] = [root]
        while waiting:
            holder = waiting.pop()
            keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
            for key in keys:
                places.append((holder, key))
                if isinstance(holder[key], dict | list):
                    waiting.append(holder[key])
        holder, key = source.choice(places)
        match source.randrange(7):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1:
                holder[key] = source.choice(NUMBERS)
            case 2:
                holder[key] = source.choice(TEXTS)
            case 3:
                holder[key] = source.choice((None, True, [], {}, [[]], [None], {"": None}))
            case 4 if isinstance(holder[key], list):
                holder[key] = holder[key] * source.choice((2, 3, 50))
            case 5 if isinstance(holder, dict):
                holder[source.choice(TEXTS)] = holder[key]
            case _:
                nest: Any = holder[key]
                for _ in range(source.choice((1, 5, 120))):  # six times are fewer than the encoder takes
                    nest = {"type": nest} if source.random() < 0.5 else [nest]
                holder[key] = nest
    return root[0]


def dumped(value: Any) -> bytes:
    """JSON of what other writers may send, too: numbers beyond 64 bits."""
    import json

    return json.dumps(value).encode("utf-8", "surrogatepass")


# -- Avro --------------------------------------------------------------------------------------------------------------


def avro_changed(source: random.Random, data: bytes) -> bytes:
    """A container file whose schema, header, block counts or records were changed, packed again so that it is read."""
    stream = io.BytesIO(data)
    header: Any = fastavro.schemaless_reader(stream, _HEADER, None)
    meta: dict[str, bytes] = dict(header["meta"])
    marker: bytes = header["sync"]
    blocks: list[tuple[int, bytes]] = []
    while stream.tell() < len(data):
        count: Any = fastavro.schemaless_reader(stream, _LONG, None)
        packed: Any = fastavro.schemaless_reader(stream, _BYTES, None)
        stream.read(16)
        blocks.append((count, zlib.decompress(packed, -15) if meta.get("avro.codec") == b"deflate" else packed))
    for _ in range(source.choice((1, 1, 2))):
        match source.randrange(8):
            case 0:
                meta["avro.schema"] = dumped(json_changed(source, orjson.loads(meta["avro.schema"])))
            case 1:
                key = source.choice(sorted(meta))
                meta[key] = source.choice((b"", b"0", b"-1", b"[]", b"{}", b"9" * 400, source.randbytes(8)))
            case 2 if "partition-spec" in meta:
                meta["partition-spec"] = dumped(json_changed(source, orjson.loads(meta["partition-spec"])))
            case 3:
                meta["avro.codec"] = source.choice((b"null", b"deflate", b"snappy", b"zstandard", b"bzip2", b"\xff"))
            case 4 if blocks:
                at = source.randrange(len(blocks))
                blocks[at] = (source.choice((0, -1, 2, 100, 2_000_001, 2**40, -(2**63))), blocks[at][1])
            case 5 if blocks:  # a bomb, which nobody shall unpack
                blocks.append((1, bytes(source.choice((1, 20)) * 1024 * 1024)))
            case 6 if blocks:
                blocks *= source.choice((2, 20))
            case _ if blocks:
                at = source.randrange(len(blocks))
                blocks[at] = (blocks[at][0], bytes_changed(source, blocks[at][1]))
            case _:
                pass
    out = bytearray(b"Obj\x01")
    put_long(out, len(meta))
    for key, value in meta.items():
        for text in (key.encode(), value):
            put_long(out, len(text))
            out += text
    put_long(out, 0)
    out += marker
    for count, block in blocks:
        pack = zlib.compressobj(1, zlib.DEFLATED, -15)
        packed = pack.compress(block) + pack.flush() if meta["avro.codec"] == b"deflate" else block
        put_long(out, max(min(count, 2**63 - 1), -(2**63)))
        put_long(out, len(packed))
        out += packed + marker
    return bytes(out)


_HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
)
_LONG, _BYTES = fastavro.parse_schema({"type": "long"}), fastavro.parse_schema({"type": "bytes"})


# -- sound samples -----------------------------------------------------------------------------------------------------


def entries(count: int = 3) -> list[Entry]:
    """Entries of data files, with statistics."""
    found: list[Entry] = []
    for at in range(count):
        path = f"{ROOT}/data/{at}.parquet"
        record = {"content": DATA, "file_path": path, "file_format": "PARQUET", "record_count": 3}
        record |= {"file_size_in_bytes": 500, "value_counts": [{"key": 1, "value": 3}]}
        record |= {name: [{"key": 1, "value": bytes(8)}] for name in ("lower_bounds", "upper_bounds")}
        found.append(Entry(ADDED, None, None, None, DataFile(DATA, path, "PARQUET", (), 3, 500, None, None, record)))
    return found


@cache
def manifest(version: int) -> bytes:
    """A manifest."""
    shape: dict[str, Any] = {"spec_fields": (), "spec_id": 0, "schema": SCHEMA, "content": DATA, "snapshot_id": 7}
    return write_manifest(entries(), format_version=version, **shape)


@cache
def manifest_list(version: int) -> bytes:
    """A manifest list of forty rows."""
    shape: dict[str, Any] = {"spec_fields": (), "spec_id": 0, "schema": SCHEMA, "content": DATA, "snapshot_id": 7}
    rows = [
        manifest_row(f"{ROOT}/metadata/{at}-m0.avro", manifest(version), entries(), sequence_number=1, **shape)
        for at in range(40)
    ]
    ids: dict[str, Any] = {"snapshot_id": 7, "parent_id": None, "sequence_number": 1, "first_row_id": None}
    if version == 3:
        ids["first_row_id"], rows = 0, [replace(row, first_row_id=3 * at) for at, row in enumerate(rows)]
    return write_manifest_list(rows, format_version=version, **ids)


def metadata() -> dict[str, Any]:
    """A table's metadata."""
    snapshot = {"snapshot-id": 7, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": f"{ROOT}/metadata/l.avro"}
    snapshot |= {"summary": {"operation": "append"}, "schema-id": 0}
    spec = {"spec-id": 0, "fields": [{"name": "a", "transform": "bucket[4]", "source-id": 1, "field-id": 1000}]}
    return {
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": ROOT,
        "last-sequence-number": 1,
        "last-updated-ms": 1,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [SCHEMA],
        "default-spec-id": 0,
        "partition-specs": [spec],
        "last-partition-id": 1000,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"a": "b"},
        "current-snapshot-id": 7,
        "refs": {"main": {"snapshot-id": 7, "type": "branch"}},
        "snapshots": [snapshot],
        "snapshot-log": [{"snapshot-id": 7, "timestamp-ms": 1}],
        "metadata-log": [],
    }


@cache
def parquet(deletes: bool) -> bytes:
    """A data file, or a position delete file, by Arrow."""
    columns = [("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545)] if deletes else _DATA
    fields = [pa.field(name, kind, metadata={b"PARQUET:field_id": str(i).encode()}) for name, kind, i in columns]
    values: list[list[Any]] = [[f"{ROOT}/data/0.parquet"] * 3, [0, 1, 2]] if deletes else [[1, 2, 3]]
    arrays = [pa.array(each, type=f.type) for each, f in zip(values, fields, strict=True)]
    out = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=pa.schema(fields)), out)
    return out.getvalue()


_DATA = [("a", pa.int64(), 1)]


def parquet_changed(source: random.Random, data: bytes) -> bytes:
    """A file whose footer or pages were changed, with its frame mended most of the time."""
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - length], data[-8 - length : -8]
    if source.random() < 0.7:
        footer = bytes_changed(source, footer)
    else:
        body = bytes_changed(source, body)
    said = len(footer) if source.random() < 0.95 else source.choice((0, 2**31, 2**32 - 1, len(data), 5 << 20))
    return body + footer + struct.pack("<I", said & 0xFFFFFFFF) + b"PAR1"


@cache
def puffin_file() -> bytes:
    """A Puffin file with two deletion vectors."""
    vectors = [as_blob(Vector.of(range(9)), f"{ROOT}/data/{name}.parquet") for name in "ab"]
    return puffin.write(vectors, created_by="hostile")[0]


def puffin_changed(source: random.Random, data: bytes) -> bytes:
    """A Puffin file whose footer was changed, with its frame mended most of the time."""
    length = int.from_bytes(data[-12:-8], "little")
    footer = orjson.loads(data[-12 - length : -12])
    changed = dumped(json_changed(source, footer))
    said = len(changed) if source.random() < 0.9 else source.choice((-1, 2**31 - 1, 0, 7))
    flags = source.choice((0, 0, 0, 0, 1, 2, 2**31 - 1))
    return data[: -12 - length] + changed + struct.pack("<iI4s", said, flags, b"PFA1")


def group() -> dict[str, Any]:
    """A group file."""
    append = GroupedAppend("agent", "key", ("app", 7), "0" * 64, (f"{ROOT}/data/0.parquet",))
    return orjson.loads(write_group(Group("9c12d441-03fe-4693-9a96-a0705ddf69c1", "main", 7, (append, append))))


def bodies() -> list[dict[str, Any]]:
    """Bodies of requests: commits, appends, creations, registrations."""
    snapshot = metadata()["snapshots"][0]
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7}
    requirements = [{"type": "assert-table-uuid", "uuid": metadata()["table-uuid"]}]
    requirements += [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
    spec = metadata()["partition-specs"][0]
    shapes = [{"action": "add-schema", "schema": SCHEMA}, {"action": "add-spec", "spec": spec}]
    shapes += [
        {"action": "set-properties", "updates": {"a": "b"}},
        {"action": "upgrade-format-version", "format-version": 3},
    ]
    commit = {"requirements": requirements, "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref]}
    file = {"file-path": f"{ROOT}/data/0.parquet", "record-count": 3, "file-size-in-bytes": 500, "partition": [1]}
    file |= {"content": "data", "file-format": "parquet", "spec-id": 0}
    return [
        commit,
        {"requirements": [], "updates": shapes},
        {"files": [file], "ref": "main"},
        {"name": "x", "schema": SCHEMA, "partition-spec": spec, "properties": {"a": "b"}},
        {"name": "x", "metadata-location": f"{ROOT}/metadata/1.metadata.json"},
        {"table-changes": [{"identifier": {"namespace": ["a"], "name": "t"}, **commit}]},
        {"namespace": ["a", "b"], "properties": {"a": "b"}},
        {"source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["a"], "name": "u"}},
    ]


def _avro(source: random.Random, data: bytes) -> bytes:
    if source.random() < 0.6:
        try:
            return avro_changed(source, data)
        except (ValueError, KeyError, TypeError, OverflowError):
            return bytes_changed(source, data)
    return bytes_changed(source, data)


def _json(source: random.Random, value: Any) -> bytes:
    data = dumped(json_changed(source, value))
    return bytes_changed(source, data) if source.random() < 0.1 else data


def _metadata(source: random.Random) -> bytes:
    data = _json(source, metadata())
    if source.random() < 0.1:
        data = b"[" + source.choice((b"[],", b"{},", b"0,")) * 300_000 + b"0]"
    if source.random() < 0.3:
        data = gzip.compress(data, 1)
        return bytes_changed(source, data) if source.random() < 0.3 else data
    return data


def _avro_deletes() -> bytes:
    schema = {
        "type": "record",
        "name": "deletes",
        "fields": [
            {"name": "file_path", "type": "string", "field-id": 2147483546},
            {"name": "pos", "type": "long", "field-id": 2147483545},
        ],
    }
    out = io.BytesIO()
    rows = [{"file_path": f"{ROOT}/data/0.parquet", "pos": at} for at in range(3)]
    fastavro.writer(out, schema, rows, codec="deflate", sync_marker=b"hostile-sync-mrk")
    return out.getvalue()


GENERATORS: Mapping[str, Callable[[random.Random], bytes]] = {
    "manifest": lambda source: _avro(source, manifest(source.choice((1, 2, 3)))),
    "list": lambda source: _avro(source, manifest_list(source.choice((1, 2, 3)))),
    "metadata": _metadata,
    "parquet": lambda source: parquet_changed(source, parquet(False)),
    "delete-file": lambda source: parquet_changed(source, parquet(True)),
    "avro-deletes": lambda source: _avro(source, _avro_deletes()),
    "puffin": lambda source: puffin_changed(source, puffin_file()),
    "vector": lambda source: bytes_changed(source, puffin_file()[4:60]),
    "group": lambda source: _json(source, group()),
    "json": lambda source: _json(source, source.choice(bodies())),
}
assert set(GENERATORS) == set(KINDS)

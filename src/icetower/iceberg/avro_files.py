"""Avro object container files, as Iceberg uses them: fields are known by their `field-id`, not by their name.

fastavro reads the records, and `avro_encoding` writes them. What fastavro will not do is done on the schema before it
reads: fields get the names that this package uses, and logical types are taken away, so that a date stays the number
of days that it is.

Source: Avro specification, "Object Container Files".
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Generic, TypeVar, cast

import fastavro
import orjson
from fastavro.schema import SchemaParseException

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_encoding import Encoder, encoder, put_long
from icetower.iceberg.avro_shapes import PRIMITIVE, check_shape, named_types
from icetower.recent import Budget, Recent, bounded_cache

T = TypeVar("T")
AvroSchema = Any
Rename = Callable[[int, str], str]
MAGIC = b"Obj\x01"
_HEADER_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "org.apache.avro.file.Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
)
_put_header = encoder(_HEADER_SCHEMA)
Block = tuple[bytes, int]  # unpacked, and how many records it has
_LONG = fastavro.parse_schema({"type": "long"})
_BYTES = fastavro.parse_schema({"type": "bytes"})
_MARKER_BYTES = 16
UNPACKED_MAX_BYTES = 256 * 1024 * 1024
ROWS_MAX = 2_000_000
"""Bounds of one file. Iceberg's writers begin a new manifest at 8 MiB, packed."""

HEADER_MAX_BYTES = 8 * 1024 * 1024
RECORD_MAX_BYTES = 1024 * 1024
"""A record of ten thousand columns with all their statistics is shorter. An item of two bytes takes 224 in memory."""

MEMORY_MAX_BYTES = 256 * 1024 * 1024
"""What the records of one file may take in memory."""

RECORD_MEMORY_BYTES, ITEM_MEMORY_BYTES = 1_000, 224
"""What a record takes in memory, and each item of its lists."""

_SCHEMA_KEPT_MAX_BYTES = 64 * 1024
_SCHEMAS_KEPT_MAX_BYTES = 16 * 1024 * 1024
_SCHEMA_FACTOR = 30
"""What a schema takes in memory, as it is written and made ready, by the length of its JSON."""

_BLOCK_BYTES = 64 * 1024
"""A block ends with the record that reaches this, unpacked. Larger ones pack no better: deflate looks back 32 KiB."""

_WIDE = Context(prec=60)  # Iceberg's decimals have up to 38 digits, Python's default context 28
# What damaged or hostile bytes make fastavro, zlib and orjson raise.
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, EOFError, OverflowError, AttributeError, MemoryError)
_UNREADABLE_TOO = (struct.error, zlib.error, RecursionError, SchemaParseException)


@dataclass(frozen=True, slots=True)
class AvroFile:
    """A file as read: header values by key, its own writer's schema, and records by canonical field names.

    Attributes:
        unpacked_bytes: how long the records are in Avro's encoding.
    """

    header: Mapping[str, str]
    schema: AvroSchema
    records: list[dict[str, Any]]
    unpacked_bytes: int


class LongFile(Exception):
    """A file that is longer, unpacked, than its reader wants to read here. Nothing of it was decoded."""


def read(data: bytes, *, rename: Rename, what: str, most_bytes: int | None = None) -> AvroFile:
    """Read a container file; `rename` gives each field that has an id its name, logical types are left raw.

    Args:
        most_bytes: how long it may be, unpacked, to be read here and now.

    Raises:
        ValidationFailed: not a readable Avro file; the message starts with `what`.
        LongFile: it is longer than `most_bytes`.
    """
    try:
        header, body = _split(data)
        if most_bytes is None:
            blocks = _unpacked_blocks(_codec(header), header["sync"], body)
        else:
            blocks = _short_blocks(header, len(data) - len(body), body, most_bytes)
        schema = _ready(header["meta"]["avro.schema"], rename)
        records, unpacked_bytes = _records(schema.readable, blocks)
        values = {key: value.decode() for key, value in header["meta"].items() if key != "avro.schema"}
    except (*_UNREADABLE, *_UNREADABLE_TOO) as error:
        raise _unreadable(what, error) from error
    return AvroFile(header=values, schema=schema.written, records=records, unpacked_bytes=unpacked_bytes)


def read_each(
    data: bytes,
    *,
    rename: Rename,
    what: str,
    make: Callable[[dict[str, Any]], T],
    cache: RowCache[T],
    most_new: int | None = None,
) -> tuple[T, ...]:
    """What is made of each record, in the file's order; of one with known bytes, what was made of them before.

    For files that repeat most of what others say, in any order (`list_reading` is for those of one history). A record
    whose bytes are those of another means the same under the same schema, whatever file it stands in.

    Args:
        make: what it raises is raised.
        cache: of one way to make and to rename.
        most_new: so many records that are not known yet are decoded here and now.

    Raises:
        ValidationFailed: as `read`.
        LongFile: there are more of them; these are known now.
    """
    cache.decoded = 0
    cache.most = most_new
    try:
        header, body = _split(data)
        raw = header["meta"]["avro.schema"]
        schema = _ready(raw, rename).readable
        codec = _codec(header)
        if not _begins_with_text(schema):
            return tuple(make(record) for record in _records(schema, _unpacked_blocks(codec, header["sync"], body))[0])
        name = hashlib.blake2b(raw, digest_size=16).hexdigest()
        found: list[T] = []
        for block, count in _unpacked_blocks(codec, header["sync"], body):
            found += _each_of_block(block, count, schema, name, make, cache)
    except (*_UNREADABLE, *_UNREADABLE_TOO) as error:
        raise _unreadable(what, error) from error
    return tuple(found)


def _each_of_block(
    block: bytes, count: int, schema: AvroSchema, name: str, make: Callable[[dict[str, Any]], T], cache: RowCache[T]
) -> list[T]:
    found: list[T] = []
    known_from: tuple[str, int, int] | None = None  # key, position and number of the first record that was known
    rows, at = io.BytesIO(block), 0
    while len(found) < count:
        key = f"{name}{_first_text(block, at).decode('latin-1')}"
        run = cache.run(key, block, at, count - len(found))
        if run is None:
            cache.decoded += 1
            if cache.most is not None and cache.decoded > cache.most:
                raise LongFile(f"it has more than {cache.most} records that were not known")
            rows.seek(at)
            record = cast("dict[str, Any]", fastavro.schemaless_reader(rows, schema, None))
            run = cache.keep(key, block[at : rows.tell()], (make(record),))
        elif known_from is None:
            known_from = key, at, len(found)
        at += len(run[0])
        found += run[1]
    if known_from is not None:
        key, start, number = known_from
        if count - number > 1:  # the next list repeats it, most likely
            cache.keep_run(key, block[start:at], tuple(found[number:]))
    return found


class RowCache(Generic[T]):
    """Records by their very bytes, and what was made of them, one by one and in runs; the most recently used.

    Args:
        budget: the memory that is used.
        name: what the records are.
        share: the part of the budget that single records may take, and as much runs.
        weigh: what is kept of one takes besides its bytes.
    """

    def __init__(self, budget: Budget, name: str, share: float, weigh: Callable[[T], int]) -> None:
        self._one_max = int(budget.max_bytes * share) // 8
        self._ones: Recent[tuple[bytes, tuple[T, ...]]] = budget.cache(name, share=share)
        self._runs: Recent[tuple[bytes, tuple[T, ...]]] = budget.cache(name, share=share)
        self._weigh = weigh
        self.decoded = 0
        self.most: int | None = None

    def run(self, key: str, block: bytes, at: int, most: int) -> tuple[bytes, tuple[T, ...]] | None:
        """What is known of the records that begin there, `most` at most: their bytes must be the same, not the key."""
        for kept in (self._runs, self._ones):
            known = kept.get(key)
            if known is not None and len(known[1]) <= most and block.startswith(known[0], at):
                return known
        return None

    def keep(self, key: str, record: bytes, made: tuple[T, ...]) -> tuple[bytes, tuple[T, ...]]:
        """Remember the newest record of a key; none that is large beside the limit, which would push out the rest."""
        self._put(self._ones, key, record, made)
        return record, made

    def keep_run(self, key: str, records: bytes, made: tuple[T, ...]) -> None:
        """Remember the newest run of records that begins with that of a key."""
        known = self._runs.get(key)
        if known is None or known[0] != records:
            self._put(self._runs, key, records, made)

    def _put(self, kept: Recent[tuple[bytes, tuple[T, ...]]], key: str, records: bytes, made: tuple[T, ...]) -> None:
        weight = len(records) + sum(map(self._weigh, made))
        if weight <= self._one_max:
            kept.put(key, (records, made), weight)


def _begins_with_text(schema: AvroSchema) -> bool:
    fields = schema["fields"] if isinstance(schema, dict) else []
    return bool(fields) and fields[0]["type"] in ("string", "bytes")


def _first_text(block: bytes, at: int) -> bytes:
    """The bytes of the text with which a record begins, as far as there are any. Raises `IndexError`."""
    length = shift = 0
    while True:
        byte = block[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return block[at : at + (length >> 1)]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A container file whose records stand end to end, not decoded yet.

    Attributes:
        header: values by key, but for the schema.
        schema: as it stands in the file.
        body: the records.
        count: how many there are.
    """

    header: Mapping[str, str]
    schema: bytes
    body: bytes
    count: int


def unpack(data: bytes, *, what: str) -> Unpacked:
    """Take a container file apart. Raises `ValidationFailed` as `read` does."""
    try:
        header, body = _split(data)
        codec = _codec(header)
        blocks = list(_unpacked_blocks(codec, header["sync"], body))
        values = {key: value.decode() for key, value in header["meta"].items() if key != "avro.schema"}
        schema = header["meta"]["avro.schema"]
    except (*_UNREADABLE, *_UNREADABLE_TOO) as error:
        raise _unreadable(what, error) from error
    return Unpacked(values, schema, b"".join(block for block, _ in blocks), sum(count for _, count in blocks))


def written_schema(file: Unpacked) -> AvroSchema:
    """The schema with which a file was written. Raises `ValidationFailed` as `read` does."""
    try:
        return _ready(file.schema, _keep).written
    except (*_UNREADABLE, *_UNREADABLE_TOO) as error:
        raise _unreadable("the file", error) from error


def decode(file: Unpacked, start: int, end: int, *, rename: Rename, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records between two positions of a body, each with where it ends. The last one may end beyond `end`.

    Raises `ValidationFailed` as `read` does.
    """
    try:
        schema = _ready(file.schema, rename).readable
        rows = io.BytesIO(file.body)
        rows.seek(start)
        while start < end:
            record = cast("dict[str, Any]", fastavro.schemaless_reader(rows, schema, None))
            if rows.tell() == start:
                raise ValueError("a record takes no bytes")
            start = rows.tell()
            yield start, record
    except (*_UNREADABLE, *_UNREADABLE_TOO) as error:
        raise _unreadable(what, error) from error


def _unreadable(what: str, error: Exception) -> ValidationFailed:
    message = f"{what} is not a readable Avro file ({type(error).__name__}: {error}); write it again"
    return ValidationFailed(message, rule="manifest.readable")


@dataclass(frozen=True, slots=True)
class _Schema:
    """A writer's schema as it stands in the file, and made ready to read by."""

    written: AvroSchema
    readable: AvroSchema


def _ready(raw: bytes, rename: Rename) -> _Schema:
    # All manifests of a table have the same schema to the byte, and parsing it costs more than reading their rows.
    return _ready_once((raw, rename)) if len(raw) <= _SCHEMA_KEPT_MAX_BYTES else _made_ready(raw, rename)


def _made_ready(raw: bytes, rename: Rename) -> _Schema:
    written = orjson.loads(raw)
    check_shape(written)
    return _Schema(written, fastavro.parse_schema(_plain(written, rename)))


def _weight(key: tuple[bytes, Rename]) -> int:
    return _SCHEMA_FACTOR * len(key[0])


def _raw_weight(raw: bytes) -> int:
    return _SCHEMA_FACTOR * len(raw)


@bounded_cache(_SCHEMAS_KEPT_MAX_BYTES, _weight)
def _ready_once(key: tuple[bytes, Rename]) -> _Schema:
    return _made_ready(*key)


def _records(schema: AvroSchema, blocks: Iterable[Block]) -> tuple[list[dict[str, Any]], int]:
    """The records of all blocks, and how many bytes they are unpacked. Raises `ValueError`."""
    unpacked_bytes, records, left = 0, cast("list[dict[str, Any]]", []), MEMORY_MAX_BYTES
    for block, count in blocks:
        unpacked_bytes += len(block)
        if len(block) <= RECORD_MAX_BYTES:
            rows = io.BytesIO(block)
            found = [cast("dict[str, Any]", fastavro.schemaless_reader(rows, schema, None)) for _ in range(count)]
            left -= sum(map(_memory_of, found))
        else:
            found: list[dict[str, Any]] = []
            for record in _records_of_long_block(schema, block, count):
                left -= _memory_of(record)
                if left < 0:
                    break
                found.append(record)
        if left < 0:
            raise ValueError(f"it takes more than {MEMORY_MAX_BYTES} bytes of memory; write it in several files")
        records += found
    return records, unpacked_bytes


def _records_of_long_block(schema: AvroSchema, block: bytes, count: int) -> Iterator[dict[str, Any]]:
    """Its records, none of which may be longer than `RECORD_MAX_BYTES`: what one decodes to is bounded by that."""
    start, slice_ = 0, block[:RECORD_MAX_BYTES]
    rows = io.BytesIO(slice_)
    for _ in range(count):
        at = rows.tell()
        record: dict[str, Any] | None = None
        with suppress(*_UNREADABLE):
            record = cast("dict[str, Any]", fastavro.schemaless_reader(rows, schema, None))
        # What reaches the end of a slice may have been cut by it.
        if record is None or (rows.tell() == len(slice_) and start + len(slice_) < len(block)):
            start, slice_ = start + at, block[start + at : start + at + RECORD_MAX_BYTES]
            rows = io.BytesIO(slice_)
            record = cast("dict[str, Any]", fastavro.schemaless_reader(rows, schema, None))
            if rows.tell() == len(slice_) and start + len(slice_) < len(block):
                raise ValueError(f"a record has more than {RECORD_MAX_BYTES} bytes")
        yield record


def _memory_of(record: Mapping[str, Any]) -> int:
    """What a record takes in memory, without its texts: its items, and those of the records in it."""
    size = RECORD_MEMORY_BYTES
    for value in record.values():
        if isinstance(value, list):
            size += ITEM_MEMORY_BYTES * len(value)
        elif isinstance(value, dict):
            size += _memory_of(value)
    return size


def _short_blocks(header: Mapping[str, Any], header_bytes: int, body: bytes, most_bytes: int) -> list[Block]:
    """`_unpacked_blocks` of a short file. Raises `LongFile`; unpacks as much as fits."""
    blocks, left = list[Block](), most_bytes - header_bytes
    if left > 0:
        for block, count in _unpacked_blocks(_codec(header), header["sync"], body, left):
            left -= len(block)
            if left < 0:
                break
            blocks.append((block, count))
    if left <= 0:
        raise LongFile(f"it has more than {most_bytes} bytes, unpacked")
    return blocks


def _codec(header: Mapping[str, Any]) -> str:
    return header["meta"].get("avro.codec", b"null").decode()


def _unpacked_blocks(codec: str, marker: bytes, body: bytes, most_bytes: int = UNPACKED_MAX_BYTES) -> Iterator[Block]:
    """The blocks, unpacked, and how many records each has. The one that goes beyond `most_bytes` is cut.

    Bounds are checked before anything is made of a block: a few bytes may claim anything. Raises `ValueError`.
    """
    stream, left, rows = io.BytesIO(body), UNPACKED_MAX_BYTES, 0
    cut = UNPACKED_MAX_BYTES - most_bytes
    while stream.tell() < len(body):
        count = cast("int", fastavro.schemaless_reader(stream, _LONG, None))
        packed = cast("bytes", fastavro.schemaless_reader(stream, _BYTES, None))
        if stream.read(_MARKER_BYTES) != marker:
            raise ValueError("a block does not end with the file's marker")
        block = _unpacked(codec, packed, left - cut)
        left -= len(block)
        if count < 0 or left < 0 or rows + count > ROWS_MAX:
            raise ValueError(f"it has more than {UNPACKED_MAX_BYTES} bytes unpacked, or more than {ROWS_MAX} rows")
        rows += count
        yield block, count


def write(schema: AvroSchema, records: Iterable[Mapping[str, Any]], header: Mapping[str, str]) -> bytes:
    """Write a container file, deflated. Values go in raw: a date as days, a decimal as its fixed bytes.

    The same input gives the same bytes: the sync marker is a digest, not a random number.

    Raises:
        ValidationFailed: a record doesn't fit the schema, or `read` would not take the file.
    """
    try:
        raw = orjson.dumps(schema)
        marker = hashlib.blake2b(raw + orjson.dumps(dict(header)), digest_size=_MARKER_BYTES).digest()
        meta = {key: value.encode() for key, value in header.items()}
        meta |= {"avro.codec": b"deflate", "avro.schema": raw}
        start = _joined({"magic": MAGIC, "meta": meta, "sync": marker}, b"")
        if len(start) > HEADER_MAX_BYTES:
            raise _unwritable(f"a header of {len(start)} bytes, and at most {HEADER_MAX_BYTES} are read")
        return b"".join((start, *_blocks(_encoder_of(raw), records, marker)))
    except (*_UNREADABLE, *_UNREADABLE_TOO) as error:
        message = f"a record doesn't fit the Avro schema of {schema.get('name')} ({type(error).__name__}: {error})"
        raise ValidationFailed(message, rule="manifest.writable") from error


def _blocks(encode: Encoder, records: Iterable[Mapping[str, Any]], marker: bytes) -> Iterator[bytes]:
    """Raises `ValidationFailed` for what `_records` does not take."""
    block, count, rows, unpacked_bytes, left = bytearray(), 0, 0, 0, MEMORY_MAX_BYTES
    for record in records:
        before = len(block)
        encode(block, record)
        own_bytes = len(block) - before
        count, rows, unpacked_bytes, left = count + 1, rows + 1, unpacked_bytes + own_bytes, left - _memory_of(record)
        if own_bytes >= RECORD_MAX_BYTES:
            raise _unwritable(f"a record of {own_bytes} bytes, and less than {RECORD_MAX_BYTES} are read")
        if left < 0 or unpacked_bytes > UNPACKED_MAX_BYTES or rows > ROWS_MAX:
            raise _unwritable(f"{rows} records or more, which take more memory than their readers give them")
        if len(block) >= _BLOCK_BYTES:
            yield _block(block, count, marker)
            block, count = bytearray(), 0
    if count:
        yield _block(block, count, marker)


def _unwritable(what: str) -> ValidationFailed:
    message = f"a manifest would have {what}; write less of partitions and statistics, or fewer files at once"
    return ValidationFailed(message, rule="manifest.writable")


def _block(data: bytearray, count: int, marker: bytes) -> bytes:
    packed, start = zlib.compress(data, wbits=-zlib.MAX_WBITS), bytearray()
    put_long(start, count)
    put_long(start, len(packed))
    return bytes(start) + packed + marker


def _encoder_of(raw: bytes) -> Encoder:
    return _encoder_once(raw) if len(raw) <= _SCHEMA_KEPT_MAX_BYTES else _made_encoder(raw)


def _made_encoder(raw: bytes) -> Encoder:
    return encoder(fastavro.parse_schema(_plain(orjson.loads(raw), _keep)))


_encoder_once = bounded_cache(_SCHEMAS_KEPT_MAX_BYTES, _raw_weight)(_made_encoder)


def field_schema(schema: AvroSchema, *path: int) -> AvroSchema:
    """The schema found by following field ids down a record schema (options stripped, names resolved), or None."""
    whole = schema
    for field_id in path:
        fields = schema.get("fields", ()) if isinstance(schema, dict) else ()
        schema = _required(next((field["type"] for field in fields if field.get("field-id") == field_id), None))
        if isinstance(schema, str) and schema not in PRIMITIVE:
            # Java defines a type once, and then refers to it by name: two decimals of one precision share theirs.
            schema = dict(named_types(whole)).get(schema, schema)
    return schema


def decimal_of(raw: bytes, schema: AvroSchema) -> Decimal:
    """The number that the bytes of an Avro decimal stand for."""
    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-schema.get("scale", 0), _WIDE)


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    if not data.startswith(MAGIC):
        raise ValueError("it doesn't start with Avro's magic bytes")
    stream = io.BytesIO(data if len(data) <= HEADER_MAX_BYTES else data[:HEADER_MAX_BYTES])
    header = cast("dict[str, Any]", fastavro.schemaless_reader(stream, _HEADER_SCHEMA, None))
    return header, data[stream.tell() :]


def _unpacked(codec: str, block: bytes, most: int) -> bytes:
    """A block unpacked, at least as far as one byte beyond `most`."""
    if codec == "null":
        return block
    if codec == "deflate":
        if most < 0:
            return b""
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(block, most + 1)
    raise ValueError(f"its codec {codec!r} is not known; write deflate or null")


def _joined(header: Mapping[str, Any], body: bytes) -> bytes:
    start = bytearray()
    _put_header(start, header)
    return bytes(start) + body


def _keep(_field_id: int, name: str) -> str:
    return name


def _plain(schema: AvroSchema, rename: Rename) -> AvroSchema:
    """The schema without logical types, and with its fields renamed."""
    if isinstance(schema, list):
        return [_plain(part, rename) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in cast("dict[str, Any]", schema).items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in plain:
            plain[key] = _plain(plain[key], rename)
    if "fields" in plain:
        plain["fields"] = [_plain_field(field, rename) for field in plain["fields"]]
        names = [field["name"] for field in plain["fields"]]
        if len(set(names)) < len(names):
            # Two fields of one id: which one counts would depend on the reader.
            raise ValueError(f"a record has two fields for one of {sorted(names)}")
    return plain


def _plain_field(field: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    name, field_id = field["name"], field.get("field-id")
    return {"name": name if field_id is None else rename(field_id, name), "type": _plain(field["type"], rename)}


def _required(schema: AvroSchema) -> AvroSchema:
    if isinstance(schema, list):
        return next((part for part in cast("list[Any]", schema) if part != "null"), None)
    return schema

"""A few bytes that claim to be very much are refused before anything is made of them."""

from __future__ import annotations

import io
import zlib
from typing import Any

import fastavro
import orjson
import pytest

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_files import ROWS_MAX, UNPACKED_MAX_BYTES
from icetower.iceberg.manifests import read_manifest, read_manifest_list

LONG = fastavro.parse_schema({"type": "long"})


def number(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, LONG, value)
    return out.getvalue()


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def container(column: Any, rows: int, block: bytes, codec: bytes = b"null") -> bytes:
    schema = {"type": "record", "name": "manifest_file", "fields": [{"name": "x", "type": column}]}
    header = number(2) + text(b"avro.schema") + text(orjson.dumps(schema)) + text(b"avro.codec") + text(codec)
    return b"Obj\x01" + header + number(0) + b"S" * 16 + number(rows) + text(block) + b"S" * 16


def deflated(times: int) -> bytes:
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = pack.compress(number(times * (1 << 20)))
    for _ in range(times):
        block += pack.compress(b"a" * (1 << 20))
    return block + pack.flush()


@pytest.mark.parametrize(
    "bomb",
    [
        container("null", ROWS_MAX + 1, b""),
        container("null", 1 << 40, b""),
        container("null", -5, b""),
        container({"type": "array", "items": "null"}, 1, number(1 << 40) + number(0)),
        container({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, 1, number(1 << 40)),
        container({"type": "array", "items": {"type": "record", "name": "r", "fields": []}}, 1, number(1 << 40)),
        container("string", 1, deflated((UNPACKED_MAX_BYTES >> 20) + 1), b"deflate"),
        container("string", 1, b"", b"bzip2"),
    ],
)
def test_a_file_that_would_not_fit_into_memory_is_not_read(bomb: bytes) -> None:
    for read in (read_manifest, read_manifest_list):
        with pytest.raises(ValidationFailed, match="not a readable Avro file"):
            read(bomb)

"""Hostile Arrow streams and bodies are refused with 400, and cost what their length says."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from icetower.errors import BadRequest, IcetowerError
from icetower.protocol.arrow_streams import ROWS_MAX, rows_of_stream
from icetower.protocol.rows import ARROW_TYPE, JSON_TYPE, NDJSON_TYPES, parse_rows
from icetower.rows.arrow_streams import read_stream
from icetower.rows.decoding import decoded
from icetower.rows.schemas import row_schema
from tests.rows.making import column, metadata, stream

TABLE = metadata([column(1, "id", "long"), column(2, "s", "string")])
PLAIN = pa.table({"id": [1, 2, 3], "s": ["a", None, "ccc"]})


def read(data: bytes) -> pa.Table:
    rows_of_stream(data)
    return read_stream(data)


def refused(data: bytes) -> str:
    with pytest.raises(BadRequest) as error:
        read(data)
    return error.value.message


def test_a_plain_stream_is_read() -> None:
    assert read(stream(PLAIN)).equals(PLAIN)
    assert rows_of_stream(stream(PLAIN)) == 3
    assert read(stream(PLAIN)[:-8]).equals(PLAIN)  # without its end marker


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused(codec: str) -> None:
    data = stream(pa.table({"s": ["a" * 100_000] * 1_000}), options=pa.ipc.IpcWriteOptions(compression=codec))
    assert len(data) < 1_000_000
    assert "compressed" in refused(data)


def test_dictionaries_are_refused() -> None:
    assert "dictionary" in refused(stream(pa.table({"s": pa.array(["a" * 1_000] * 9_000).dictionary_encode()})))


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a"], pa.string_view()),
        pa.array([[1]], pa.list_view(pa.int64())),
        pa.array([[1]], pa.list_(pa.int64(), 1)),
        pa.RunEndEncodedArray.from_arrays([1], [1]),
        pa.array([{}], pa.struct([])),
        pa.array([[None]], pa.list_(pa.null())),
        pa.array([b""], pa.binary(0)),
    ],
    ids=lambda array: str(array.type),
)
def test_layouts_that_share_values_or_take_no_bytes_are_refused(array: pa.Array) -> None:
    refused(stream(pa.table({"a": array})))


@pytest.mark.parametrize("scale", [-(2**31), -1, 10, 2**31 - 1])
def test_a_decimal_of_an_odd_scale_is_refused(scale: int) -> None:
    """pyarrow's cast of one with the least scale there is ends the process."""
    data = stream(pa.table({"d": pa.array(["1.25"]).cast(pa.decimal128(9, 5))}))
    words = struct.pack("<ii", 9, 5)
    assert data.count(words) == 1
    assert "scale" in refused(data.replace(words, struct.pack("<ii", 9, scale)))


@pytest.mark.parametrize("zone", [b"\xfeTC", b"\nTC"])
def test_a_time_zone_that_is_no_text_is_refused(zone: bytes) -> None:
    data = stream(pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))}))
    refused(data.replace(b"UTC", zone))


def test_rows_of_nothing_are_counted() -> None:
    with pytest.raises(IcetowerError) as error:
        read(stream(pa.table({"n": pa.nulls(ROWS_MAX + 1)})))
    assert error.value.rule == "limit.rows"
    assert "at least one row" in refused(stream(PLAIN.slice(0, 0)))


def test_a_text_that_is_no_utf8_is_refused() -> None:
    array = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")])
    assert "UTF8" in refused(stream(pa.table({"s": array}))).upper().replace("-", "")


@pytest.mark.parametrize("kind", [JSON_TYPE, NDJSON_TYPES[0], ARROW_TYPE])
def test_no_bytes_at_random_do_more_than_be_refused(kind: str) -> None:
    """A few mutations of bytes; `python -m verify.torture.rows_fuzz` knows the formats, and does a million."""
    chance = random.Random(7)
    good = {
        ARROW_TYPE: stream(PLAIN),
        JSON_TYPE: b'{"rows":[{"id":1,"s":"a"}]}',
        NDJSON_TYPES[0]: b'{"id":1}\n{"s":null}',
    }
    schema, taken = row_schema(TABLE), 0
    for _ in range(1_500):
        data = bytearray(good[kind])
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decoded(parse_rows(bytes(data[: chance.randint(1, len(data))]), kind, None), schema)
            taken += 1
        except IcetowerError as error:
            assert error.status == 400  # noqa: PT017
    assert taken < 1_500

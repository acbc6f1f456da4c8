"""Puffin files and deletion vectors: round trips, torn bytes, and what two vectors for one file become together."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap

from icetower.errors import ValidationFailed
from icetower.iceberg import puffin
from icetower.iceberg.puffin import NewBlob
from icetower.iceberg.vectors import (
    BLOB_MAX_BYTES,
    NOTHING,
    POSITION_MAX,
    Overlap,
    Vector,
    as_blob,
    decode,
    encode,
    merge,
)

POSITIONS = st.sets(st.integers(0, 60) | st.integers(0, POSITION_MAX) | st.integers(2**32 - 3, 2**32 + 3))
RUNS = st.tuples(st.integers(0, 2**33), st.integers(1, 70_000)).map(lambda run: set(range(run[0], run[0] + run[1])))
SMALL = st.frozensets(st.integers(0, 12))


# ── Vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(POSITIONS | RUNS)
@example(set())
@example({0})
@example({POSITION_MAX})
@example(set(range(0, 200_000, 2)))
def test_a_vector_survives_being_written(positions: set[int]) -> None:
    vector = Vector.of(positions)
    again = decode(encode(vector), name="v", cardinality=len(positions))
    assert list(again) == sorted(positions)
    assert (again, len(again)) == (vector, len(positions))
    assert encode(again) == encode(vector)


def test_the_blob_is_laid_out_as_the_specification_says() -> None:
    blob = encode(Vector.of([1, 3, 2**32 + 5]))
    body = blob[4:-4]
    assert struct.unpack(">I", blob[:4]) == (len(body),)
    assert body[:4] == bytes([0xD1, 0xD3, 0x39, 0x64])
    assert struct.unpack(">I", blob[-4:]) == (zlib.crc32(body),)
    first, second = BitMap([1, 3]).serialize(), BitMap([5]).serialize()
    assert body[4:] == struct.pack("<QI", 2, 0) + first + struct.pack("<I", 1) + second
    # Runs are written as such: seven bytes for a million rows, and a frame.
    assert len(encode(Vector.of(range(60_000)))) < 50


def test_iceberg_writes_empty_bitmaps_for_keys_that_are_left_out_and_they_are_read() -> None:
    parts = [(key, BitMap([7] if key in (0, 2) else []).serialize()) for key in range(3)]
    body = bytes.fromhex("d1d33964") + struct.pack("<Q", 3)
    body += b"".join(struct.pack("<I", key) + data for key, data in parts)
    assert list(decode(framed(body), name="v")) == [7, 2**33 + 7]


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def bitmaps(*parts: tuple[int, bytes], count: int | None = None) -> bytes:
    """A blob whose frame is right, around any bitmaps."""
    data = b"".join(struct.pack("<I", key) + data for key, data in parts)
    return framed(bytes.fromhex("d1d33964") + struct.pack("<Q", len(parts) if count is None else count) + data)


ONE = BitMap([1, 2, 3]).serialize()
HOSTILE = [
    # what, blob, words of the message
    ("nothing", b"", "it has 0 bytes"),
    ("huge", bytes(BLOB_MAX_BYTES + 1), "are read"),
    ("magic bytes", framed(b"\xd1\xd3\x39\x65" + struct.pack("<Q", 0)), "magic"),
    ("length", struct.pack(">I", 13) + encode(NOTHING)[4:], "says that it is 13 bytes long"),
    ("checksum", encode(NOTHING)[:-1] + b"\x00", "checksum"),
    ("fewer bitmaps than said", bitmaps((0, ONE), count=2), "bitmap"),
    ("bitmaps without end", bitmaps((0, ONE), count=2**63), "bitmap"),
    ("keys out of order", bitmaps((1, ONE), (0, ONE)), "bitmap"),
    ("a key twice", bitmaps((0, ONE), (0, ONE)), "bitmap"),
    ("values out of order", bitmaps((0, ONE[:-6] + struct.pack("<3H", 3, 2, 1))), "bitmap"),
    ("a torn bitmap", bitmaps((0, ONE[:-2])), "bitmap"),
    ("containers without end", bitmaps((0, struct.pack("<II", 12346, 65_536) + ONE[8:])), "bitmap"),
    ("a negative position", bitmaps((2**31, ONE)), f"the highest is {POSITION_MAX}"),
    ("a position that Iceberg refuses", bitmaps((2**31 - 1, ONE)), f"the highest is {POSITION_MAX}"),
]


@pytest.mark.parametrize(("what", "blob", "words"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_r5_a_vector_that_lies_is_refused_by_name(what: str, blob: bytes, words: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        decode(blob, name="file:///t/dv.puffin", cardinality=None)
    assert caught.value.rule == "vector.readable", what
    assert "file:///t/dv.puffin" in caught.value.message
    assert words in caught.value.message


def test_r5_a_vector_has_as_many_positions_as_its_manifest_says() -> None:
    with pytest.raises(ValidationFailed, match="it has 2 positions, and its manifest says 3"):
        decode(encode(Vector.of([1, 2])), name="v", cardinality=3)


@given(POSITIONS, st.data())
def test_torn_bytes_are_refused_or_say_the_same(positions: set[int], data: st.DataObject) -> None:
    blob = bytearray(encode(Vector.of(positions)))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValidationFailed):
        decode(bytes(blob), name="v")
    with pytest.raises(ValidationFailed):
        decode(bytes(encode(Vector.of(positions))[: data.draw(st.integers(0, len(blob) - 1))]), name="v")


@given(st.binary(max_size=200))
def test_any_bytes_in_a_right_frame_are_read_or_refused(body: bytes) -> None:
    blob = framed(bytes.fromhex("d1d33964") + body)
    try:
        vector = decode(blob, name="v")
    except ValidationFailed:
        return
    assert decode(encode(vector), name="v") == vector


# ── Together ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(SMALL, SMALL, SMALL)
def test_vectors_with_disjoint_new_rows_become_their_union_and_others_are_refused(
    base: frozenset[int], new: frozenset[int], meanwhile: frozenset[int]
) -> None:
    ours, theirs = (Vector.of(base | each) for each in (new, meanwhile))
    merged = merge(ours, Vector.of(base), theirs)
    both = (new & meanwhile) - base
    if both:
        assert isinstance(merged, Overlap)
        assert (merged.count, merged.positions, merged.revived) == (len(both), tuple(sorted(both))[:5], False)
    else:
        assert merged == Vector.of(base | new | meanwhile)
    # Which of the two came first doesn't matter.
    assert merged == merge(theirs, Vector.of(base), ours)


@given(SMALL, SMALL, SMALL)
def test_rows_that_come_back_are_never_merged(
    base: frozenset[int], ours: frozenset[int], theirs: frozenset[int]
) -> None:
    merged = merge(Vector.of(ours), Vector.of(base), Vector.of(theirs))
    revived = base - (ours & theirs)
    assert isinstance(merged, Overlap) or not revived
    if revived:
        assert isinstance(merged, Overlap)
        assert (merged.revived, merged.count) == (True, len(revived))


def test_an_overlap_says_which_rows() -> None:
    assert str(merge(Vector.of([1, 4]), None, Vector.of([4, 9]))) == "both delete row 4"
    many = merge(Vector.of(range(8)), None, Vector.of(range(9)))
    assert str(many) == "both delete rows 0, 1, 2, 3, 4 and 3 more"
    assert str(merge(Vector.of([2]), Vector.of([1]), Vector.of([1]))) == "one of them brings back row 1"


# ── Puffin ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXT = st.text(max_size=8).filter(lambda text: not any(0xD800 <= ord(char) <= 0xDFFF for char in text))
NEW = st.builds(
    NewBlob,
    TEXT,
    st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    st.binary(max_size=20),
    st.dictionaries(TEXT, TEXT, max_size=2),
)


@given(st.lists(NEW, max_size=4), TEXT)
def test_a_puffin_file_survives_being_written(blobs: list[NewBlob], created_by: str) -> None:
    data, placed = puffin.write(blobs, created_by=created_by)
    assert puffin.read(data, path="p") == placed
    end = data[-puffin.footer_bytes(data) :]
    assert puffin.read(end, path="p", before_bytes=len(data) - len(end)) == placed
    assert [data[b.offset : b.offset + b.length_bytes] for b in placed] == [blob.data for blob in blobs]
    assert [(b.type, b.fields, b.properties) for b in placed] == [(b.type, b.fields, b.properties) for b in blobs]


def test_the_file_is_laid_out_as_the_specification_says() -> None:
    data, placed = puffin.write([as_blob(Vector.of([3, 4]), "file:///t/a.parquet")], created_by="us")
    (blob,) = placed
    size = struct.unpack("<i", data[-12:-8])[0]
    payload = data[-12 - size : -12]
    assert (data[:4], data[-4:], data[-8:-4], data[-16 - size : -12 - size]) == (b"PFA1", b"PFA1", bytes(4), b"PFA1")
    assert orjson.loads(payload) == {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": 4,
                "length": blob.length_bytes,
                "properties": {"referenced-data-file": "file:///t/a.parquet", "cardinality": "2"},
            }
        ],
        "properties": {"created-by": "us"},
    }


def footer(payload: bytes, flags: int = 0, length: int | None = None) -> bytes:
    return b"PFA1PFA1" + payload + struct.pack("<iI", len(payload) if length is None else length, flags) + b"PFA1"


TORN: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "magic"),
    ("no Puffin", b"PAR1" * 10, "magic"),
    ("cut off", puffin.write([], created_by="us")[0][:-1], "torn"),
    ("a footer longer than the file", footer(b"{}", length=1_000), "torn"),
    ("a footer of negative length", footer(b"{}", length=-5), "torn"),
    ("compressed", footer(b"{}", flags=1), "compressed"),
    ("unknown flags", footer(b"{}", flags=256), "flags"),
    ("no JSON", footer(b"{"), "JSONDecodeError"),
    ("no blobs", footer(b"{}"), "KeyError"),
    ("a list", footer(b"[]"), "TypeError"),
    ("a blob beyond the file", footer(orjson.dumps({"blobs": [{"offset": 4, "length": 99}]})), "said to lie at 4"),
    ("a blob before the file", footer(orjson.dumps({"blobs": [{"offset": -4, "length": 4}]})), "said to lie at -4"),
    ("a blob without a type", footer(orjson.dumps({"blobs": [{"offset": 4, "length": 0}]})), "'type'"),
]


@pytest.mark.parametrize(("what", "data", "words"), TORN, ids=[row[0] for row in TORN])
def test_a_torn_puffin_file_is_refused(what: str, data: bytes, words: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        puffin.read(data, path="file:///t/x.puffin")
    assert (caught.value.rule, "file:///t/x.puffin" in caught.value.message) == ("puffin.readable", True), what
    assert words in caught.value.message


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_read_as_puffin_or_refused(data: bytes, framed_: bool) -> None:
    try:
        blobs: Any = puffin.read(footer(data) if framed_ else data, path="p")
    except ValidationFailed:
        return
    assert isinstance(blobs, tuple)

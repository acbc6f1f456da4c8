"""Metadata in pieces: the same JSON, the same gzip to every reader, and nothing serialised twice."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.gateway.answers import answer as answer_of
from icetower.table import document as module
from icetower.table.document import Document
from icetower.table.head import HeadState
from icetower.table.keys import Keys

JSON = dict[str, Any]


def snapshot(number: int) -> JSON:
    return {"snapshot-id": number, "summary": {"operation": "append", "note": "größe\u2028" * (number % 3)}}


def metadata(snapshots: Sequence[JSON], log: Sequence[JSON] = ()) -> JSON:
    return {"format-version": 2, "location": "s3://b/t", "snapshots": list(snapshots), "snapshot-log": list(log)}


@settings(deadline=None, max_examples=60)
@given(
    start=st.integers(0, 700),
    steps=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 300), st.lists(st.integers(0, 2000), max_size=5)), max_size=8
    ),
)
def test_a_document_is_the_metadata_whatever_the_versions_before_were(
    start: int, steps: Sequence[tuple[int, int, Sequence[int]]]
) -> None:
    """Snapshots are added at the end, and leave at the beginning, in the middle, or all of them."""
    numbers = iter(range(10**6))
    snapshots = [snapshot(next(numbers)) for _ in range(start)]
    log = [{"snapshot-id": s["snapshot-id"], "timestamp-ms": 1} for s in snapshots]
    document = Document(metadata(snapshots, log))
    for new, oldest, others in steps:
        added = [snapshot(next(numbers)) for _ in range(new)]
        snapshots = [s for at, s in enumerate([*snapshots, *added]) if at >= oldest and at not in others]
        log = [*log[oldest:], *({"snapshot-id": s["snapshot-id"], "timestamp-ms": 1} for s in added)]
        document = Document(metadata(snapshots, log), document)
        assert orjson.loads(document.data) == metadata(snapshots, log)
        assert gzip.decompress(document.gzipped(b"<", b">")) == b"<" + document.data + b">"


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 256, 257])
def test_lists_of_any_length_are_cut_without_loss(count: int) -> None:
    snapshots = [snapshot(number) for number in range(count)]
    document = Document(metadata(snapshots))
    assert orjson.loads(document.data) == metadata(snapshots)
    assert orjson.loads(Document(metadata(snapshots), document).data) == metadata(snapshots)


@pytest.mark.parametrize("given", [{}, {"snapshots": []}, {"a": 1}, {"snapshot-log": [{}], "z": None}])
def test_metadata_that_lacks_a_list_is_told_as_it_is(given: JSON) -> None:
    assert orjson.loads(Document(given).data) == given
    assert orjson.loads(gzip.decompress(Document(given).gzipped())) == given


WITH_PROPERTIES = {"properties": {"x": "y"}, "snapshots": [{"n": 1}]}


@pytest.mark.parametrize("given", [{}, {"a": 1}, {"properties": {}}, WITH_PROPERTIES])
def test_a_document_is_told_with_other_properties_and_stays_what_it_is(given: JSON) -> None:
    document, own = Document(given), {"x": "z", "ü": "1"}
    assert orjson.loads(document.framed(b"", b"", own)) == {**given, "properties": own}
    assert gzip.decompress(document.gzipped(b"<", b">", own)) == document.framed(b"<", b">", own)
    assert orjson.loads(gzip.decompress(document.gzipped())) == given


@pytest.mark.parametrize("size", [0, 1, 0xFFFF, 0x10000, 200_000])
def test_what_one_caller_alone_is_told_may_be_of_any_length(size: int) -> None:
    document, own = Document(WITH_PROPERTIES), {"write.data.path": "x" * size}
    packed = document.gzipped(b"<" * size, b">", own)
    assert gzip.decompress(packed) == document.framed(b"<" * size, b">", own)
    assert document.gzipped(b"<" * size, b">", own) == packed


def test_a_stream_is_one_member_that_simple_readers_take_to_its_end() -> None:
    """Some clients stop after a gzip stream's first member."""
    document = Document(metadata([snapshot(number) for number in range(1000)]))
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert reader.decompress(document.gzipped()) == document.data
    assert reader.eof
    assert reader.unused_data == b""
    assert gzip.GzipFile(fileobj=io.BytesIO(document.gzipped())).read() == document.data


@settings(deadline=None)
@given(parts=st.lists(st.binary(max_size=300), max_size=6))
def test_checksums_of_parts_are_joined_to_that_of_the_whole(parts: Sequence[bytes]) -> None:
    crc = 0
    for part in map(module.Part, parts):
        crc = module._multiplied(part.shift, crc) ^ part.crc
    assert crc == zlib.crc32(b"".join(parts))


def test_a5_versions_share_what_was_serialised_and_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = [snapshot(number) for number in range(20_000)]
    log = [{"snapshot-id": number, "timestamp-ms": 1} for number in range(20_000)]
    before = Document(metadata(snapshots, log))
    before.gzipped()
    packed: list[int] = []
    pack = zlib.compressobj

    def counted(*args: Any) -> Any:
        packed.append(1)
        return pack(*args)

    monkeypatch.setattr(module.zlib, "compressobj", counted)
    kept = [*snapshots[300:], *(snapshot(number) for number in range(20_000, 20_256))]
    document = Document(metadata(kept, [*log[300:], *log[:256]]), before)
    document.gzipped()
    assert len(packed) <= 10  # of about 180 parts
    old = {id(part) for part in before._parts}
    assert sum(id(part) not in old for part in document._parts) <= 10
    assert orjson.loads(document.data) == metadata(kept, [*log[300:], *log[:256]])


def test_the_next_version_of_a_head_takes_over_what_both_have_in_common() -> None:
    first = HeadState("s3://b/1.json", metadata([snapshot(number) for number in range(300)]))
    assert orjson.loads(first.json_bytes) == first.metadata
    grown = metadata([*first.metadata["snapshots"], snapshot(300)])
    index, keys = {**first.snapshots, 300: grown["snapshots"][-1]}, Keys.of(())
    second = first.after("s3://b/2.gz.metadata.json", grown, snapshots=index, indexed=keys)
    assert second.snapshots is index
    assert second.keys is keys
    assert second.document._pieces["snapshots"][0] is first.document._pieces["snapshots"][0]
    assert gzip.decompress(second.file_bytes) == second.json_bytes
    # A version that was never written is no gap in the chain.
    unwritten = second.after("s3://b/3.json", metadata(grown["snapshots"]))
    third = unwritten.after("s3://b/4.json", metadata(grown["snapshots"]))
    assert third.document._pieces["snapshots"][0] is first.document._pieces["snapshots"][0]
    assert third.snapshots == index
    assert third == HeadState("s3://b/4.json", third.metadata)


@pytest.mark.parametrize("compressed", [False, True])
def test_a5_an_answer_is_built_once_a_version(compressed: bool) -> None:
    head = HeadState("s3://b/1.json", metadata([snapshot(number) for number in range(300)]))
    answer = answer_of(head, b'{"a":"b"}', compressed=compressed)
    assert answer_of(head, b'{"a":"b"}', compressed=compressed) is answer
    text = gzip.decompress(answer) if compressed else answer
    assert orjson.loads(text) == {
        "metadata-location": "s3://b/1.json",
        "metadata": head.metadata,
        "config": {"a": "b"},
    }

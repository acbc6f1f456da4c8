"""Answers with properties for one caller alone (trap A6): the same bytes as if all had been written out for it."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from icetower.gateway.answers import answer as answer_of
from icetower.gateway.answers import answer_parts
from icetower.table import document
from icetower.table.head import HeadState

JSON = dict[str, Any]
CONFIG = b'{"s3.endpoint":"http://127.0.0.1"}'
OWN = {"write.data.path": "file:///w/t/data/agent-1", "\u00fc": '"'}


def head(count: int, **properties: str) -> HeadState:
    snapshots = [{"snapshot-id": number, "summary": {"operation": "append"}} for number in range(count)]
    log = [{"snapshot-id": number, "timestamp-ms": 1} for number in range(count)]
    metadata = {"format-version": 2, "location": "file:///w/t", "snapshots": snapshots, "snapshot-log": log}
    return HeadState("file:///w/t/metadata/1.json", {**metadata, "properties": properties})


def plain(state: HeadState, own: JSON) -> JSON:
    metadata = {**state.metadata, "properties": {**state.metadata["properties"], **own}}
    return {"metadata-location": state.location, "metadata": metadata, "config": orjson.loads(CONFIG)}


@pytest.mark.parametrize("count", [0, 1, 300])
@pytest.mark.parametrize("properties", [{}, {"a": "b"}, {"write.data.path": "file:///elsewhere", "z": "\u2028"}])
def test_an_answer_of_ones_own_is_what_a_plain_serialisation_would_be(count: int, properties: dict[str, str]) -> None:
    state = head(count, **properties)
    for own in (None, {}, OWN):
        written = plain(state, own or {})
        # In the document's order: properties first.
        rest = {key: value for key, value in written["metadata"].items() if key != "properties"}
        written["metadata"] = {"properties": written["metadata"]["properties"], **rest}
        answer = answer_of(state, CONFIG, compressed=False, own=own)
        assert answer == orjson.dumps(written)
        assert gzip.decompress(answer_of(state, CONFIG, compressed=True, own=own)) == answer
    assert orjson.loads(state.json_bytes) == state.metadata  # the table knows nothing of it


def test_the_body_is_packed_once_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    compressor = document.zlib.compressobj

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self.inner = compressor(*arguments)

        def compress(self, data: bytes) -> bytes:
            packed.append(len(data))
            return self.inner.compress(data)

        def flush(self, mode: int) -> bytes:
            return self.inner.flush(mode)

    monkeypatch.setattr(document.zlib, "compressobj", Counting)
    state = head(1_000)
    answer_of(state, CONFIG, compressed=True, own={"write.data.path": "1"})
    first = sum(packed)
    assert first > 0.9 * len(state.json_bytes)
    packed.clear()
    for number in range(20):
        answer_of(state, CONFIG, compressed=True, own={"write.data.path": str(number)})
    assert sum(packed) < 20 * 300  # what is around it, and the properties
    packed.clear()
    answer_of(state, CONFIG, compressed=True)
    answer_of(state, CONFIG, compressed=True)
    assert sum(packed) < 300


@pytest.mark.parametrize("compressed", [False, True])
def test_an_answer_of_ones_own_is_made_once_and_all_of_them_are_bounded(compressed: bool) -> None:
    state = head(3, **{f"p{number}": "x" * 100 for number in range(1000)})
    first = answer_parts(state, CONFIG, compressed=compressed, own=OWN)
    again = answer_parts(state, CONFIG, compressed=compressed, own=dict(reversed(OWN.items())))
    assert all(one is other for one, other in zip(first, again, strict=True))
    for number in range(20):
        own: dict[str, str | None] = {"write.data.path": f"file:///w/t/data/agent-{number}"}
        answer_parts(state, CONFIG, compressed=compressed, own=own)
    assert len(state.own_answers) == 1  # it takes as much as the whole version, nearly
    state.shed()
    assert not state.own_answers


def test_a8_a_version_with_the_snapshots_of_its_refs_alone_is_made_and_packed_once() -> None:
    """Each load with `snapshots=refs` packed it anew, on the event loop."""
    snapshots = [{"snapshot-id": number} for number in range(3)]
    metadata = {"snapshots": snapshots, "refs": {"main": {"snapshot-id": 2}}, "properties": {}}
    head = HeadState("s3://b/t/metadata/1.metadata.json", metadata)
    first = answer_parts(head.of_refs, b"{}", compressed=True)
    assert answer_parts(head.of_refs, b"{}", compressed=True) is first
    assert orjson.loads(gzip.decompress(b"".join(first)))["metadata"]["snapshots"] == [{"snapshot-id": 2}]
    assert head.metadata["snapshots"] == snapshots

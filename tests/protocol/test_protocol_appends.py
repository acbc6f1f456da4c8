"""The append request: what is read, what is refused, and by which field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icetower.errors import BadRequest, BodyTooLarge, ValidationFailed
from icetower.protocol.appends import BODY_MAX_BYTES, FILES_PER_APPEND_MAX, append_answer, parse_append

FILE: dict[str, Any] = {
    "file-path": "s3://b/t/data/a.parquet",
    "file-format": "PARQUET",
    "record-count": 3,
    "file-size-in-bytes": 100,
}


def body(**changed: Any) -> bytes:
    return json.dumps({"files": [FILE]} | changed).encode()


def file(**changed: Any) -> bytes:
    return body(files=[FILE | changed])


def test_the_least_that_is_needed() -> None:
    request = parse_append(body())
    assert (request.ref, request.key, request.application) == ("main", None, None)
    (read,) = request.files
    assert (read.path, read.record_count, read.size_bytes) == ("s3://b/t/data/a.parquet", 3, 100)
    assert (read.spec_id, read.partition, read.sort_order_id, read.nan_value_counts) == (None, (), None, {})


def test_everything_that_is_read() -> None:
    request = parse_append(
        body(
            ref="audit",
            key="k",
            application={"id": "ingest", "sequence": 7},
            files=[
                FILE
                | {
                    "content": "data",
                    "file-format": "parquet",
                    "spec-id": 2,
                    "partition": {"day": "2017-01-31", "bucket": None},
                    "sort-order-id": 1,
                    "nan-value-counts": {"keys": [3, 4], "values": [0, 9]},
                    "column-sizes": {"keys": [1], "values": [10]},
                    "split-offsets": [4],
                    "something-newer": {},
                }
            ],
        )
    )
    assert (request.ref, request.key, request.application) == ("audit", "k", ("ingest", 7))
    (read,) = request.files
    assert (read.spec_id, read.partition, read.sort_order_id) == (2, {"day": "2017-01-31", "bucket": None}, 1)
    assert read.nan_value_counts == {3: 0, 4: 9}


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b"[]", "JSON object"),
        (b"{", "not JSON"),
        (body(files=[]), "files"),
        (body(files={}), "files"),
        (body(files=[1]), r"files\[0\]"),
        (body(ref=""), "ref"),
        (body(ref=1), "ref"),
        (body(key="k" * 256), "key"),
        (body(key="a\nb"), "key"),
        (body(application={"id": "a"}), "application.sequence"),
        (body(application={"sequence": 1}), "application.id"),
        (body(application={"id": "a", "sequence": 2**63}), "application.sequence"),
        (body(application=7), "application"),
        (file(**{"file-path": None}), "file-path"),
        (file(**{"file-path": "a\x00b"}), "file-path"),
        (file(**{"file-format": "ORC"}), "file-format"),
        (file(content="position-deletes"), "content"),
        (file(**{"record-count": -1}), "record-count"),
        (file(**{"record-count": True}), "record-count"),
        (file(**{"record-count": 1.5}), "record-count"),
        (file(**{"file-size-in-bytes": "1"}), "file-size-in-bytes"),
        (file(**{"spec-id": "0"}), "spec-id"),
        (file(partition="day=1"), "partition"),
        (file(**{"nan-value-counts": {"keys": [1], "values": []}}), "nan-value-counts"),
        (file(**{"nan-value-counts": {"keys": [1, 1], "values": [0, 5]}}), "nan-value-counts"),
        (file(**{"key-metadata": "00"}), "key-metadata"),
    ],
)
def test_what_is_refused_is_named(sent: bytes, field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        parse_append(sent)


def test_bounds() -> None:
    parse_append(body(files=[FILE] * FILES_PER_APPEND_MAX))
    with pytest.raises(ValidationFailed) as many:
        parse_append(body(files=[FILE] * (FILES_PER_APPEND_MAX + 1)))
    assert many.value.rule == "limit.files"
    with pytest.raises(BodyTooLarge):
        parse_append(b" " * (BODY_MAX_BYTES + 1))


def test_the_answer() -> None:
    assert append_answer(
        snapshot_id=5, sequence_number=None, outcome="replayed", group_size=3, files=2, queue_wait_ms=1.26
    ) == {
        "snapshot-id": 5,
        "sequence-number": None,
        "outcome": "replayed",
        "group-size": 3,
        "files": 2,
        "queue-wait-ms": 1.3,
    }

"""How long records become is known before they are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.iceberg import record_sizes
from icetower.iceberg.avro_files import RECORD_MAX_BYTES, read
from icetower.iceberg.manifest_writing import write_manifest
from icetower.iceberg.manifests import entry_name
from icetower.iceberg.record_sizes import ADDED_MAX_BYTES, record_bytes, value_bytes
from icetower.iceberg.records import ADDED, EXISTING, DataFile, Entry

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "name", "type": "string", "required": False}]}
SPEC = [{"name": "name", "transform": "identity", "source-id": 1, "field-id": 1000}]
NUMBERS = st.lists(
    st.builds(lambda key, value: {"key": key, "value": value}, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    max_size=9,
)
BOUNDS = st.lists(
    st.builds(lambda key, value: {"key": key, "value": value}, st.integers(0, 2**31 - 1), st.binary(max_size=300)),
    max_size=9,
)


def data_file(partition: str | None, **record: Any) -> DataFile:
    path = "s3://b/t/data/größe.parquet"
    own = {"content": 0, "file_path": path, "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 2**50}
    return DataFile(0, path, "PARQUET", (partition,), 10, 2**50, None, None, own | record)


def length(file: DataFile, status: int) -> int:
    """Of its record, as it is written."""
    entry = Entry(status, 2**62, 2**62, 2**62, replace(file, first_row_id=2**62))
    shape: Any = {"spec_fields": SPEC, "spec_id": 0, "schema": SCHEMA, "format_version": 3, "content": 0}
    data = write_manifest([entry], **shape, snapshot_id=2**62)
    return read(data, rename=entry_name, what="it").unpacked_bytes


@given(
    partition=st.none() | st.text(max_size=300),
    counts=NUMBERS,
    bounds=BOUNDS,
    offsets=st.none() | st.lists(st.integers(0, 2**63 - 1), max_size=9),
    rough=st.booleans(),
)
def test_no_record_is_longer_than_is_said(
    partition: str | None, counts: Any, bounds: Any, offsets: Any, rough: bool
) -> None:
    file = data_file(partition, value_counts=counts, upper_bounds=bounds, split_offsets=offsets, key_metadata=b"k")
    with pytest.MonkeyPatch.context() as patch:
        if not rough:
            patch.setattr(record_sizes, "ADDED_MAX_BYTES", 0)
        said = record_bytes(file)
    for status in (ADDED, EXISTING):
        assert length(file, status) <= said + 100
    assert said <= length(file, ADDED) + 300 + 22 * (len(counts) + len(bounds) + len(offsets or ())) * rough


def test_what_may_be_added_can_be_written_and_written_again() -> None:
    file = data_file("x" * 4_096, lower_bounds=[{"key": at, "value": b"b" * 1_000} for at in range(700)])
    assert 700_000 < record_bytes(file) <= ADDED_MAX_BYTES
    assert length(file, EXISTING) < RECORD_MAX_BYTES
    wide = data_file(
        "x",
        **{
            name: [{"key": at, "value": 9} for at in range(10_000)]
            for name in ("value_counts", "nan_value_counts", "null_value_counts", "column_sizes")
        },
    )
    assert record_bytes(wide) <= ADDED_MAX_BYTES  # ten thousand columns are no attack


@pytest.mark.parametrize("strange", [{"k": b"x" * 10**6}, [{"other": b"x" * 10**6}], ["x" * 10**6], [[b"x" * 10**6]]])
def test_fields_that_are_not_known_count(strange: Any) -> None:
    for name in ("of_another", "lower_bounds"):
        if name != "lower_bounds" or not isinstance(strange[0] if isinstance(strange, list) else strange, dict):
            assert record_bytes(data_file("x", **{name: strange})) > 10**6


def test_values_are_as_long_as_their_bytes() -> None:
    assert [value_bytes(each) for each in ("ab", "ü", "\ud800", b"abc", None, 7, 1.5)] == [2, 2, 3, 3, 0, 0, 0]

"""Footers: what a data file is, whatever its writer says of it."""
# ruff: noqa: DTZ001 - columns without a time zone hold just that

from __future__ import annotations

import asyncio
import datetime as dt
import io
import math
import struct
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema

from icetower.errors import Unavailable, ValidationFailed
from icetower.files import footers as footers_module
from icetower.files.footers import Claim, Footers, Layout, Verified, verified
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.partitions import spec_of
from tests.files.parquet_world import PATH, claim, column, field, parquet, table
from verify.kit.storage import MemoryStorage

ID = column(1, "id", "long")
ID_FIELD = field("id", pa.int64(), 1)
ONE = parquet([ID_FIELD], [1, 2, 3])


def look(metadata: dict[str, Any], data: bytes, *partition: Any, **changed: Any) -> Verified:
    return verified(Layout(metadata), claim(metadata, data, *partition, **changed), data)


def refusal(metadata: dict[str, Any], data: bytes, *partition: Any, **changed: Any) -> str:
    with pytest.raises(ValidationFailed) as refused:
        look(metadata, data, *partition, **changed)
    assert refused.value.files == (PATH,)
    assert PATH in refused.value.message
    return str(refused.value.rule)


def fetch(shelf: MemoryStorage, *claims: Claim, metadata: dict[str, Any] | None = None) -> list[Verified]:
    return asyncio.run(Footers(shelf).verify(metadata or table([ID]), claims))  # type: ignore[arg-type]


def fetched_refusal(data: bytes, **changed: Any) -> str:
    metadata = table([ID])
    given = {"path": PATH, "record_count": 3, "size_bytes": len(data)} | changed
    with pytest.raises(ValidationFailed) as refused:
        fetch(MemoryStorage({PATH: data}), Claim(spec=spec_of(metadata, 0), partition=(), **given))
    return str(refused.value.rule)


def by_id(pairs: list[dict[str, Any]] | None) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}


# -- the file itself --------------------------------------------------------------------------------------------------


def test_one_request_tells_length_and_footer() -> None:
    shelf = MemoryStorage({PATH: ONE})
    (found,) = fetch(shelf, claim(table([ID]), ONE))
    assert len(shelf.ranges) == 1
    assert (found.file.path, found.file.record_count, found.file.size_bytes) == (PATH, 3, len(ONE))
    assert (found.file.file_format, found.file.content, found.spec_id, found.unproven) == ("PARQUET", 0, 0, ())


def threads_used(monkeypatch: pytest.MonkeyPatch, *claims: Claim, shelf: MemoryStorage) -> list[str]:
    used: list[str] = []

    def seen(*given: Any) -> Verified:
        used.append(threading.current_thread().name)
        return verified(*given)

    monkeypatch.setattr(footers_module, "verified", seen)
    fetch(shelf, *claims)
    return used


def test_long_footers_are_parsed_in_a_thread_and_short_ones_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, given = MemoryStorage({PATH: ONE}), claim(table([ID]), ONE)
    main = threading.current_thread().name
    assert threads_used(monkeypatch, given, shelf=shelf) == [main]
    long = parquet([ID_FIELD], list(range(1_000)), row_group_size=1)
    assert int.from_bytes(long[-8:-4], "little") > footers_module.ON_LOOP_BYTES
    (name,) = threads_used(monkeypatch, claim(table([ID]), long), shelf=MemoryStorage({PATH: long}))
    assert name.startswith("footers")


def test_many_short_footers_do_not_hold_up_the_loop_either(monkeypatch: pytest.MonkeyPatch) -> None:
    footer_bytes = int.from_bytes(ONE[-8:-4], "little") + 8
    monkeypatch.setattr(footers_module, "ON_LOOP_BYTES", 2 * footer_bytes)
    used = threads_used(monkeypatch, *[claim(table([ID]), ONE)] * 5, shelf=MemoryStorage({PATH: ONE}))
    assert sum(name.startswith("footers") for name in used) == 3


def test_what_is_refused_in_the_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers_module, "ON_LOOP_BYTES", 0)
    assert fetched_refusal(ONE, record_count=4) == "append.records"


def test_a_requests_footers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    footer_bytes = int.from_bytes(ONE[-8:-4], "little") + 8
    monkeypatch.setattr(footers_module, "REQUEST_MAX_BYTES", 2 * footer_bytes)
    shelf, given = MemoryStorage({PATH: ONE}), claim(table([ID]), ONE)
    assert len(fetch(shelf, given, given)) == 2
    with pytest.raises(ValidationFailed, match="send fewer files at once") as refused:
        fetch(shelf, given, given, given)
    assert refused.value.rule == "limit.footers"


def test_what_waits_for_the_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers_module, "ON_LOOP_BYTES", 0)
    monkeypatch.setattr(footers_module, "WAITING_MAX_BYTES", 2 * len(ONE))
    shelf, given = MemoryStorage({PATH: ONE}), claim(table([ID]), ONE)
    fetch(shelf, given)
    with pytest.raises(Unavailable):
        fetch(shelf, *[given] * 20)


def test_the_thread_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers_module, "ON_LOOP_BYTES", 0)
    monkeypatch.setattr(footers_module, "TIMEOUT_S", 0.01)
    go_on = threading.Event()
    monkeypatch.setattr(footers_module, "verified", lambda *_: go_on.wait(10))
    with pytest.raises(Unavailable, match="not read in time"):
        fetch(MemoryStorage({PATH: ONE}), claim(table([ID]), ONE))
    go_on.set()


def test_a_long_footer_takes_a_second_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers_module, "TAIL_BYTES", 16)
    shelf = MemoryStorage({PATH: ONE})
    fetch(shelf, claim(table([ID]), ONE))
    assert len(shelf.ranges) == 2


def test_a_long_file_is_not_read_whole() -> None:
    data = parquet([ID_FIELD], list(range(200_000)), compression="none", use_dictionary=False)
    shelf = MemoryStorage({PATH: data})
    fetch(shelf, claim(table([ID]), data))
    assert sum(length for _, _, length in shelf.ranges) < len(data) / 10


@pytest.mark.parametrize(
    ("data", "changed", "rule"),
    [
        (ONE, {"path": "file:///w/t/data/none.parquet"}, "append.file"),
        (ONE, {"size_bytes": len(ONE) - 1}, "append.size"),
        (ONE, {"size_bytes": len(ONE) + 1}, "append.size"),
        (ONE, {"size_bytes": 10 * len(ONE)}, "append.size"),
        (ONE, {"size_bytes": 0}, "append.footer"),
        (ONE, {"record_count": 2}, "append.records"),
        (ONE[:-4] + b"PARE", {}, "append.footer"),
        (b"not a Parquet file, but long enough", {}, "append.footer"),
        (ONE[:-8] + b"\xff\xff\xff\x7fPAR1", {}, "append.footer"),
        (ONE[:-8] + b"\x00\x00\x00\x00PAR1", {}, "append.footer"),
        (ONE[:-60] + b"\xee" * 52 + ONE[-8:], {}, "append.footer"),
    ],
)
def test_a_file_that_is_not_what_its_writer_says_is_refused(data: bytes, changed: dict[str, Any], rule: str) -> None:
    assert fetched_refusal(data, **changed) == rule


def test_no_bytes_of_a_footer_bring_anything_down() -> None:
    """Every byte of a footer changed: it is refused, or read. (pyarrow 26 ends the process over some of these.)"""
    start = len(ONE) - int.from_bytes(ONE[-8:-4], "little") - 8
    metadata = table([ID])
    layout = Layout(metadata)
    honest = claim(metadata, ONE)
    refused = 0
    for at in range(start, len(ONE) - 8):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(ONE)
            data[at] ^= flip
            try:
                verified(layout, honest, bytes(data))
            except ValidationFailed:
                refused += 1
    assert refused > 100


# -- columns ----------------------------------------------------------------------------------------------------------


def test_s6_files_without_field_ids_are_refused() -> None:
    """Engines would read every value of such a column as null."""
    bare = parquet([field("id", pa.int64(), None)], [1, 2])
    assert refusal(table([ID]), bare) == "append.field-ids"
    partly = parquet([ID_FIELD, field("name", pa.string(), None)], [1], ["x"])
    assert refusal(table([ID, column(2, "name", "string")]), partly) == "append.field-ids"


def test_s6_a_name_mapping_stands_for_ids_where_a_file_has_none() -> None:
    mapping = '[{"field-id": 1, "names": ["id", "ID"]}]'
    mapped = table([ID], **{"schema.name-mapping.default": mapping})
    found = look(mapped, parquet([field("ID", pa.int64(), None)], [1, 2]))
    assert by_id(found.file.record["value_counts"]) == {1: 2}
    assert refusal(mapped, parquet([field("other", pa.int64(), None)], [1])) == "append.field-ids"
    # Readers take ids where a file has any, and then look at no names.
    partly = parquet([field("x", pa.int64(), 1), field("ID", pa.int64(), None)], [1], [2])
    assert refusal(mapped, partly) == "append.field-ids"


def test_s6_nested_columns_need_ids_too() -> None:
    inner = {"type": "struct", "fields": [column(3, "x", "long")]}
    items = {"type": "list", "element-id": 5, "element": "string", "element-required": False}
    metadata = table([column(1, "s", inner), column(2, "l", items)])
    fresh = metadata["schemas"][0]["fields"]
    ids = {"s": fresh[0]["id"], "x": fresh[0]["type"]["fields"][0]["id"], "l": fresh[1]["id"]}
    element = fresh[1]["type"]["element-id"]

    def write(x: int | None, of_element: int | None) -> bytes:
        struct_type = pa.struct([field("x", pa.int64(), x)])
        list_type = pa.list_(field("element", pa.string(), of_element))
        fields = [field("s", struct_type, ids["s"]), field("l", list_type, ids["l"])]
        return parquet(fields, [{"x": 1}, None], [["a", "b"], None])

    found = look(metadata, write(ids["x"], element))
    assert by_id(found.file.record["value_counts"]) == {ids["x"]: 2}
    assert set(by_id(found.file.record["column_sizes"])) == {ids["x"], element}
    assert refusal(metadata, write(None, element)) == "append.field-ids"
    assert refusal(metadata, write(ids["x"], None)) == "append.field-ids"
    assert refusal(metadata, write(ids["x"], ids["x"])) == "append.columns"


@pytest.mark.parametrize(
    ("fields", "values", "rule"),
    [
        ([field("id", pa.int64(), 1), field("no", pa.int64(), 99)], ([1], [2]), "append.columns"),
        ([field("id", pa.int64(), 1), field("id2", pa.int64(), 1)], ([1], [2]), "append.columns"),
        ([field("id", pa.string(), 1)], (["1"],), "append.types"),
        ([field("id", pa.uint64(), 1)], ([1],), "append.types"),
        ([field("id", pa.list_(field("element", pa.int64(), 2)), 1)], ([[1]],), "append.types"),
    ],
)
def test_columns_that_are_not_the_tables_are_refused(fields: list[pa.Field], values: Any, rule: str) -> None:
    assert refusal(table([ID, column(2, "name", "string")]), parquet(fields, *values)) == rule


def test_a_dropped_column_may_be_in_a_file_still_and_is_left_out() -> None:
    metadata = table([ID, column(2, "old", "string")])
    metadata["schemas"] = [*metadata["schemas"], {"type": "struct", "schema-id": 1, "fields": [ID]}]
    metadata["current-schema-id"] = 1
    found = look(metadata, parquet([ID_FIELD, field("old", pa.int32(), 2)], [1], [2]))
    assert by_id(found.file.record["value_counts"]) == {1: 1}


def test_required_columns_must_be_there_and_filled() -> None:
    metadata = table([column(1, "id", "long", required=True)])
    assert look(metadata, parquet([field("id", pa.int64(), 1, nullable=False)], [1])).file.record_count == 1
    assert look(metadata, parquet([ID_FIELD], [1])).file.record_count == 1  # might have nulls, and has none
    assert refusal(metadata, parquet([ID_FIELD], [1, None])) == "append.required"
    assert refusal(metadata, parquet([ID_FIELD], [1], write_statistics=False)) == "append.required"
    both = table([ID, column(2, "name", "string", required=True)])
    assert refusal(both, ONE) == "append.columns"


UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "stored", "value", "fits"),
    [
        ("boolean", pa.bool_(), True, True),
        ("int", pa.int32(), 1, True),
        ("int", pa.int16(), 1, True),
        ("int", pa.int64(), 1, False),
        ("long", pa.int32(), 1, True),
        ("float", pa.float32(), 1.5, True),
        ("float", pa.float64(), 1.5, False),
        ("double", pa.float32(), 1.5, True),
        ("decimal(9, 2)", pa.decimal128(9, 2), Decimal("1.25"), True),
        ("decimal(9, 2)", pa.decimal128(7, 2), Decimal("1.25"), True),
        ("decimal(9, 2)", pa.decimal128(10, 2), Decimal("1.25"), False),
        ("decimal(9, 2)", pa.decimal128(9, 3), Decimal("1.25"), False),
        ("date", pa.date32(), dt.date(2020, 1, 1), True),
        ("date", pa.int32(), 1, False),
        ("time", pa.time64("us"), dt.time(1, 2), True),
        ("timestamp", pa.timestamp("us"), dt.datetime(2020, 1, 1), True),
        ("timestamp", pa.timestamp("ms"), dt.datetime(2020, 1, 1), True),
        ("timestamp", UTC, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), False),
        ("timestamptz", UTC, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), True),
        ("timestamptz", pa.timestamp("us"), dt.datetime(2020, 1, 1), False),
        ("timestamp", pa.timestamp("ns"), dt.datetime(2020, 1, 1), False),
        ("timestamp_ns", pa.timestamp("ns"), dt.datetime(2020, 1, 1), True),
        ("string", pa.string(), "x", True),
        ("string", pa.large_string(), "x", True),
        ("string", pa.dictionary(pa.int32(), pa.string()), "x", True),
        ("string", pa.binary(), b"x", False),
        ("binary", pa.binary(), b"x", True),
        ("fixed[4]", pa.binary(4), b"abcd", True),
        ("fixed[4]", pa.binary(5), b"abcde", False),
        ("uuid", pa.binary(16), b"a" * 16, True),
    ],
)
def test_stored_types_are_those_that_readers_take(kind: str, stored: pa.DataType, value: Any, fits: bool) -> None:
    metadata = table([column(1, "c", kind)], version=3)
    data = parquet([field("c", stored, 1)], [value, None])
    if fits:
        assert by_id(look(metadata, data).file.record["null_value_counts"]) == {1: 1}
    else:
        assert refusal(metadata, data) == "append.types"


def test_files_of_one_schema_are_checked_against_the_schema_once() -> None:
    metadata = table([ID])
    layout = Layout(metadata)
    for _ in range(3):
        verified(layout, claim(metadata, ONE), ONE)
    other = parquet([field("id", pa.int64(), 7)], [1, 2, 3])  # the same name and type, another id
    with pytest.raises(ValidationFailed):
        verified(layout, claim(metadata, other), other)
    nested = parquet([field("s", pa.struct([field("id", pa.int64(), 1)]), None, nullable=False)], [{"id": 1}] * 3)
    with pytest.raises(ValidationFailed):
        verified(layout, claim(metadata, nested), nested)


def test_a_layout_is_kept_while_the_table_asks_for_the_same() -> None:
    metadata = table([ID])
    layout = Layout(metadata)
    assert layout.is_of(metadata | {"snapshots": [1], "last-updated-ms": 7})
    changed = table_metadata.apply(metadata, [{"action": "set-properties", "updates": {"a": "b"}}], now_ms=1)
    assert not layout.is_of(changed)


# -- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_are_computed_over_all_row_groups() -> None:
    metadata = table([ID, column(2, "name", "string")])
    fields = [ID_FIELD, field("name", pa.string(), 2)]
    names = ["b", None, "a" * 20, None, None, "z" * 20]
    data = parquet(fields, [5, 1, 3, 9, 7, 8], names, row_group_size=2)
    record = look(metadata, data).file.record
    assert by_id(record["value_counts"]) == {1: 6, 2: 6}
    assert by_id(record["null_value_counts"]) == {1: 0, 2: 3}
    assert by_id(record["lower_bounds"]) == {1: struct.pack("<q", 1), 2: b"a" * 16}
    assert by_id(record["upper_bounds"]) == {1: struct.pack("<q", 9), 2: b"z" * 15 + b"{"}
    footer = pq.read_metadata(io.BytesIO(data))
    chunks = [footer.row_group(g).column(0).total_compressed_size for g in range(3)]
    assert by_id(record["column_sizes"])[1] == sum(chunks)
    assert len(record["split_offsets"]) == 3
    assert record["split_offsets"] == sorted(record["split_offsets"])


def test_the_statistics_are_those_that_pyiceberg_computes() -> None:
    kinds: list[tuple[str, pa.DataType, list[Any]]] = [
        ("boolean", pa.bool_(), [True, False, None]),
        ("int", pa.int32(), [3, -1, None]),
        ("long", pa.int64(), [2**40, -1, None]),
        ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("-1.25"), Decimal("3.00"), None]),
        ("decimal(30, 2)", pa.decimal128(30, 2), [Decimal("-1.25"), Decimal("3.00"), None]),
        ("date", pa.date32(), [dt.date(1969, 1, 1), dt.date(2020, 1, 1), None]),
        ("time", pa.time64("us"), [dt.time(1), dt.time(23), None]),
        ("timestamp", pa.timestamp("us"), [dt.datetime(1969, 1, 1), dt.datetime(2020, 1, 1), None]),
        ("string", pa.string(), ["ünïcödé and long enough to be cut", "z" * 30, None]),
        ("binary", pa.binary(), [b"\x00" * 20, b"\xfe" * 20, None]),
        ("fixed[3]", pa.binary(3), [b"abc", b"xyz", None]),
    ]
    columns = [column(n, f"c{n}", kind) for n, (kind, _, _) in enumerate(kinds, 1)]
    metadata = table(columns)
    data = parquet(
        [field(f"c{n}", stored, n) for n, (_, stored, _) in enumerate(kinds, 1)], *(values for _, _, values in kinds)
    )
    record = look(metadata, data).file.record
    schema = Schema.model_validate(metadata["schemas"][0])
    theirs = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(io.BytesIO(data)),
        stats_columns=compute_statistics_plan(schema, {}),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    assert by_id(record["column_sizes"]) == theirs.column_sizes
    assert by_id(record["value_counts"]) == theirs.value_counts
    assert by_id(record["null_value_counts"]) == theirs.null_value_counts
    assert record["split_offsets"] == theirs.split_offsets
    expected_lower = {n: theirs.column_aggregates[n].min_as_bytes() for n in theirs.column_aggregates}
    expected_upper = {n: theirs.column_aggregates[n].max_as_bytes() for n in theirs.column_aggregates}
    assert by_id(record["lower_bounds"]) == expected_lower
    assert by_id(record["upper_bounds"]) == expected_upper


def test_the_tables_metrics_modes_are_kept_to() -> None:
    columns = [column(n, f"c{n}", "string") for n in range(1, 5)]
    modes = {"c1": "none", "c2": "counts", "c3": "full"}
    metadata = table(columns, **{f"write.metadata.metrics.column.{name}": mode for name, mode in modes.items()})
    data = parquet([field(f"c{n}", pa.string(), n) for n in range(1, 5)], *(["x" * 40],) * 4)
    record = look(metadata, data).file.record
    assert set(by_id(record["column_sizes"])) == set(by_id(record["value_counts"])) == {2, 3, 4}
    assert by_id(record["upper_bounds"]) == {3: b"x" * 40, 4: b"x" * 15 + b"y"}


def test_long_bounds_are_left_out_and_all_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [column(n, f"c{n}", "string") for n in range(1, 5)]
    metadata = table(columns, **{"write.metadata.metrics.default": "full"})
    monkeypatch.setattr(footers_module, "BOUND_MAX_BYTES", 100)
    lengths = (100, 101, 3, 4)
    data = parquet([field(f"c{n}", pa.string(), n) for n in range(1, 5)], *(["b" * n, "b" * 3] for n in lengths))
    record = look(metadata, data).file.record
    assert {n: len(bound) for n, bound in by_id(record["lower_bounds"]).items()} == {1: 3, 2: 3, 3: 3, 4: 3}
    assert {n: len(bound) for n, bound in by_id(record["upper_bounds"]).items()} == {1: 100, 3: 3, 4: 4}
    assert set(by_id(record["value_counts"])) == {1, 2, 3, 4}
    monkeypatch.setattr(footers_module, "BOUNDS_MAX_BYTES", 10)
    record = look(metadata, data).file.record
    assert (
        sum(len(bound) for name in ("lower_bounds", "upper_bounds") for bound in by_id(record.get(name)).values()) <= 10
    )


def test_what_a_manifest_says_of_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers_module, "ADDED_MAX_BYTES", 300)
    assert refusal(table([ID]), ONE) == "limit.record"


def test_without_statistics_there_are_sizes_alone() -> None:
    record = look(table([ID]), parquet([ID_FIELD], [1], write_statistics=False)).file.record
    assert set(by_id(record["column_sizes"])) == {1}
    assert not {"value_counts", "null_value_counts", "lower_bounds", "upper_bounds"} & set(record)


@pytest.mark.parametrize("counts", [{1: 3}, {1: 4}, {1: 2**63 - 1}, {2: 0}, {9: 1}])
def test_nan_that_cannot_be_is_refused(counts: dict[int, int]) -> None:
    metadata = table([column(1, "x", "double"), column(2, "id", "long")])
    data = parquet([field("x", pa.float64(), 1), field("id", pa.int64(), 2)], [1.5, None, 8.0], [1, 2, 3])
    assert look(metadata, data, nan_value_counts={1: 2})
    assert refusal(metadata, data, nan_value_counts=counts) == "append.nan-counts"


def test_without_statistics_there_is_no_more_nan_than_rows() -> None:
    metadata = table([column(1, "x", "float")])
    data = parquet([field("x", pa.float32(), 1)], [1.5, None, 8.0], write_statistics=False)
    assert look(metadata, data, nan_value_counts={1: 3})
    assert refusal(metadata, data, nan_value_counts={1: 4}) == "append.nan-counts"


def test_floats_have_bounds_only_with_a_count_of_nan() -> None:
    """An engine that knows of no NaN takes all rows to match ``x < 9``: a delete by it would drop the file whole."""
    metadata = table([column(1, "x", "double")])
    data = parquet([field("x", pa.float64(), 1)], [1.5, math.nan, 8.0])
    bare = look(metadata, data).file.record
    assert by_id(bare["value_counts"]) == {1: 3}
    assert not {"lower_bounds", "upper_bounds", "nan_value_counts"} & set(bare)
    told = look(metadata, data, nan_value_counts={1: 1}).file.record
    assert by_id(told["nan_value_counts"]) == {1: 1}
    assert by_id(told["lower_bounds"]) == {1: struct.pack("<d", 1.5)}
    assert by_id(told["upper_bounds"]) == {1: struct.pack("<d", 8.0)}


def test_uuids_have_bounds_only_where_two_orders_agree() -> None:
    metadata = table([column(1, "u", "uuid")])
    stored = [field("u", pa.binary(16), 1)]
    assert "lower_bounds" not in look(metadata, parquet(stored, [b"\x01" * 16, b"\xf1" * 16])).file.record
    assert by_id(look(metadata, parquet(stored, [b"\x01" * 16] * 2)).file.record["lower_bounds"]) == {1: b"\x01" * 16}


def test_a_widened_column_has_bounds_of_the_tables_type() -> None:
    metadata = table([ID, column(2, "x", "timestamp")])
    data = parquet(
        [field("id", pa.int32(), 1), field("x", pa.timestamp("ms"), 2)], [1, 2], [dt.datetime(1970, 1, 1, 0, 0, 1)] * 2
    )
    record = look(metadata, data).file.record
    assert by_id(record["lower_bounds"]) == {1: struct.pack("<q", 1), 2: struct.pack("<q", 1_000_000)}


def test_a_sort_order_must_be_one_of_the_tables() -> None:
    metadata = table(
        [ID], order=[{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}]
    )
    assert look(metadata, ONE, sort_order_id=1).file.record["sort_order_id"] == 1
    assert refusal(metadata, ONE, sort_order_id=2) == "append.sort-order"


# -- partitions -------------------------------------------------------------------------------------------------------


def day(n: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(days=n)


@pytest.mark.parametrize(
    ("kind", "stored", "values", "transform", "given", "found"),
    [
        ("long", pa.int64(), [7, 7], "identity", 7, "proven"),
        ("long", pa.int64(), [7, 7], "identity", 8, "refused"),
        ("long", pa.int64(), [7, 8], "identity", 7, "refused"),
        ("long", pa.int64(), [7, None], "identity", 7, "refused"),
        ("long", pa.int64(), [7, 7], "identity", None, "refused"),
        ("long", pa.int64(), [None, None], "identity", None, "proven"),
        ("long", pa.int64(), [None, None], "identity", 7, "refused"),
        ("long", pa.int64(), [10, 19], "truncate[10]", 10, "proven"),
        ("long", pa.int64(), [10, 20], "truncate[10]", 10, "refused"),
        ("string", pa.string(), ["abc", "abz"], "truncate[2]", "ab", "proven"),
        ("string", pa.string(), ["abc", "acz"], "truncate[2]", "ab", "refused"),
        ("string", pa.string(), ["x" * 70, "x" * 70], "identity", "x" * 70, "proven"),
        ("string", pa.string(), ["x" * 70, "x" * 70], "identity", "y", "refused"),
        ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("1.25")] * 2, "identity", Decimal("1.25"), "proven"),
        ("date", pa.date32(), [dt.date(1970, 1, 3)] * 2, "identity", 2, "proven"),
        ("date", pa.date32(), [dt.date(1970, 1, 3), dt.date(1970, 1, 30)], "month", 0, "proven"),
        ("timestamp", pa.timestamp("us"), [day(2), day(2) + dt.timedelta(hours=23)], "day", 2, "proven"),
        ("timestamp", pa.timestamp("us"), [day(2), day(3)], "day", 2, "refused"),
        ("timestamp", pa.timestamp("us"), [day(2)], "hour", 48, "proven"),
        ("timestamp", pa.timestamp("us"), [day(2)], "hour", 49, "refused"),
        ("timestamp", pa.timestamp("us"), [day(-2)], "day", -1, "unproven"),
        ("long", pa.int64(), [1, 1], "bucket[4]", 0, "proven"),
        ("long", pa.int64(), [1, 1], "bucket[4]", 1, "refused"),
        ("long", pa.int64(), [1, 2], "bucket[4]", 0, "unproven"),
        ("double", pa.float64(), [1.5, 1.5], "identity", 1.5, "unproven"),
        ("long", pa.int64(), [7], "void", None, "proven"),
    ],
)
def test_r5_a_partition_is_proven_believed_or_refused(
    kind: str, stored: pa.DataType, values: list[Any], transform: str, given: Any, found: str
) -> None:
    metadata = table([column(1, "c", kind)], ("p", transform, 1))
    data = parquet([field("c", stored, 1)], values)
    if found == "refused":
        assert refusal(metadata, data, given) == "append.partition"
    else:
        assert look(metadata, data, given).unproven == (() if found == "proven" else ("p",))


def test_r5_cut_statistics_prove_nothing() -> None:
    """Some writers cut the least and greatest text: it is then a bound and not a value."""
    metadata = table([column(1, "c", "string")], ("p", "identity", 1))
    value = "x" * 70
    data = parquet([field("c", pa.string(), 1)], [value])
    at = data.rindex(value.encode()) + len(value)
    assert data[at : at + 2] == b"\x11\x11"  # both are said to be exact
    inexact = data[:at] + b"\x12\x12" + data[at + 2 :]
    assert look(metadata, inexact, value).unproven == ("p",)
    assert look(metadata, inexact, value + "y").unproven == ("p",)


def test_r5_without_statistics_a_partition_is_its_writers_word() -> None:
    metadata = table([ID], ("p", "identity", 1))
    data = parquet([ID_FIELD], [1, 2], write_statistics=False)
    assert look(metadata, data, 7).unproven == ("p",)


def test_r5_a_file_without_the_partitions_column_proves_nothing() -> None:
    metadata = table([ID, column(2, "day", "date")], ("day", "identity", 2))
    assert look(metadata, ONE, None).unproven == ("day",)
    assert look(metadata, ONE, 3).unproven == ("day",)


def test_r5_the_modes_of_metrics_do_not_hide_a_partitions_column() -> None:
    metadata = table([ID], ("p", "identity", 1), **{"write.metadata.metrics.default": "none"})
    found = look(metadata, parquet([ID_FIELD], [7, 7]), 7)
    assert found.unproven == ()
    assert not {"value_counts", "column_sizes", "lower_bounds"} & set(found.file.record)
    assert refusal(metadata, parquet([ID_FIELD], [7, 8]), 7) == "append.partition"


def test_an_empty_file_lies_where_it_says() -> None:
    metadata = table([ID], ("p", "identity", 1))
    assert look(metadata, parquet([ID_FIELD], []), 7).unproven == ()

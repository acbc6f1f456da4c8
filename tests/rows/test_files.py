"""The files of a group: rows parted by the table's spec, in its order, and told apart by their owners."""

from __future__ import annotations

import datetime as dt
import io
import itertools
from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import ValidationFailed
from icetower.iceberg import transforms
from icetower.iceberg.partitions import spec_of
from icetower.rows.batches import PARTITIONS_MAX, Batch, batch_of
from icetower.rows.decoding import decoded
from icetower.rows.encoding import BLOOMS_MAX_BYTES, NewFile, encode
from icetower.rows.schemas import row_schema
from tests.rows.making import arrow_request, by, column, metadata, request

COLUMNS = [
    column(1, "id", "long"),
    column(2, "at", "timestamptz"),
    column(3, "region", "string"),
    column(4, "price", "decimal(9, 2)"),
    column(5, "x", "double"),
    column(6, "who", {"type": "struct", "fields": [column(7, "team", "string")]}),
]


def batch(table: dict[str, Any], *rows: dict[str, Any]) -> Batch:
    return batch_of(decoded(request(*rows), row_schema(table)), spec_of(table, 0))


def made(table: dict[str, Any], *batches: Batch) -> tuple[NewFile, ...]:
    names = (f"n{at}" for at in itertools.count())
    return encode(batches, table, lambda: next(names))


def read(file: NewFile) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(file.data)).to_pylist()
    return found


def owned(file: NewFile) -> dict[int, list[int]]:
    ids = [row["id"] for row in read(file)]
    return {
        owner: [each for start, count in spans for each in ids[start : start + count]]
        for owner, spans in file.owners.items()
    }


def test_requests_share_a_file_and_each_row_has_its_owner() -> None:
    table = metadata(COLUMNS)
    [file] = made(table, *(batch(table, {"id": n}, {"id": 100 + n}) for n in range(3)))
    assert [row["id"] for row in read(file)] == [0, 100, 1, 101, 2, 102]
    assert file.owners == {0: ((0, 2),), 1: ((2, 2),), 2: ((4, 2),)}
    assert file.file.path == "file:///lake/ns/t/data/-rows/n0.parquet"
    assert (file.file.record_count, file.file.size_bytes) == (6, len(file.data))


def test_partitions_have_files_of_their_own_and_nested_sources_count() -> None:
    table = metadata(COLUMNS, spec=[by(2, "day", "day"), by(7, "identity", "team", 1001), by(1, "void", "gone", 1002)])
    at = [f"2026-01-0{day}T12:00:00Z" for day in (1, 2)]
    one = batch(table, {"id": 1, "at": at[0], "who": {"team": "a"}}, {"id": 2, "at": at[1], "who": {"team": "a"}})
    two = batch(table, {"id": 3, "at": at[0], "who": {"team": "a"}}, {"id": 4})
    files = {file.file.partition: owned(file) for file in made(table, one, two)}
    day = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
    assert files == {
        (day, "a", None): {0: [1], 1: [3]},
        (day + 1, "a", None): {0: [2]},
        (None, None, None): {1: [4]},
    }


def test_the_sort_order_is_kept_with_its_nulls_and_owners_follow_their_rows() -> None:
    order = [
        {"source-id": 3, "transform": "truncate[1]", "direction": "desc", "null-order": "nulls-first"},
        {"source-id": 4, "transform": "identity", "direction": "asc", "null-order": "nulls-last"},
    ]
    table = metadata(COLUMNS, order=order)
    one = batch(table, {"id": 1, "region": "ab", "price": "3"}, {"id": 2}, {"id": 3, "region": "b"})
    two = batch(table, {"id": 4, "region": "aa", "price": "1"}, {"id": 5, "region": "ba", "price": "9"})
    [file] = made(table, one, two)
    assert [row["id"] for row in read(file)] == [2, 5, 3, 4, 1]
    assert file.file.record["sort_order_id"] == 1
    assert {owner: sorted(ids) for owner, ids in owned(file).items()} == {0: [1, 2, 3], 1: [4, 5]}


def test_columns_have_the_table_s_ids_and_statistics_are_those_of_the_file() -> None:
    table = metadata(COLUMNS)
    nan = arrow_request(pa.table({"id": [5, 7], "x": [float("nan"), 1.5]}))
    [file] = made(table, batch_of(decoded(nan, row_schema(table)), spec_of(table, 0)))
    schema = pq.read_schema(io.BytesIO(file.data))
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in schema] == [1, 2, 3, 4, 5, 6]
    record = file.file.record
    assert {each["key"]: each["value"] for each in record["nan_value_counts"]} == {5: 1}
    assert {each["key"]: each["value"] for each in record["null_value_counts"]}[4] == 2
    lower = {each["key"]: each["value"] for each in record["lower_bounds"]}
    assert lower[1] == (5).to_bytes(8, "little")


def test_files_row_groups_codec_and_bloom_filters_are_as_the_table_says() -> None:
    asked = {
        "write.target-file-size-bytes": "4000",  # 64 KiB are the least
        "write.parquet.row-group-size-bytes": "1000",
        "write.parquet.compression-codec": "gzip",
        "write.parquet.bloom-filter-enabled.column.id": "true",
    }
    table = metadata(COLUMNS, properties=asked)
    files = made(table, batch(table, *({"id": n, "region": f"r{n}"} for n in range(9_000))))
    assert 3 < len(files) < 10
    assert [row["id"] for file in files for row in read(file)] == list(range(9_000))
    meta = pq.ParquetFile(io.BytesIO(files[0].data)).metadata
    assert meta.num_row_groups > 1
    assert meta.row_group(0).column(0).compression == "GZIP"
    plain = made(metadata(COLUMNS), batch(table, {"id": 1}))[0]
    assert pq.ParquetFile(io.BytesIO(plain.data)).metadata.row_group(0).column(0).compression == "ZSTD"
    bloom = {"write.parquet.bloom-filter-enabled.column.id": "true"}
    with_filter = made(metadata(COLUMNS, properties=bloom), batch(table, {"id": 1}))
    assert len(with_filter[0].data) > len(plain.data)


@pytest.mark.parametrize("value", ["x", "0", "-1", "", "9" * 30, "9" * 4_400])
def test_properties_that_make_no_sense_are_as_if_they_were_not_there(value: str) -> None:
    sizes = ("target-file-size-bytes", "parquet.row-group-size-bytes", "parquet.page-size-bytes")
    names = (*sizes, "parquet.compression-level", "parquet.compression-codec")
    table = metadata(COLUMNS, properties={f"write.{name}": value for name in names})
    assert len(made(table, batch(table, {"id": 1}))) == 1


def test_a_request_reaches_into_so_many_partitions_at_most() -> None:
    table = metadata(COLUMNS, spec=[by(1, "identity", "id")])
    assert len(batch(table, *({"id": n} for n in range(PARTITIONS_MAX))).parts) == PARTITIONS_MAX
    with pytest.raises(ValidationFailed) as error:
        batch(table, *({"id": n} for n in range(PARTITIONS_MAX + 1)))
    assert error.value.rule == "limit.partitions"


def test_partitions_of_floats_differ_where_they_do_for_iceberg() -> None:
    table = metadata(COLUMNS, spec=[by(5, "identity", "x")])
    sent = arrow_request(pa.table({"x": [0.0, -0.0, float("nan"), float("nan")]}))
    parts = batch_of(decoded(sent, row_schema(table)), spec_of(table, 0)).parts
    assert [part.numbers for part in parts] == [(1,), (2,), (3, 4)]


DEEP = [
    column(1, "id", "long"),
    column(2, "wide", "decimal(38, 10)"),
    column(
        3,
        "who",
        {"type": "struct", "fields": [column(4, "u", "uuid", required=True), column(5, "n", "int", required=True)]},
    ),
    column(6, "uids", {"type": "list", "element-id": 7, "element": "uuid", "element-required": False}),
    column(
        8,
        "by",
        {"type": "map", "key-id": 9, "key": "string", "value-id": 10, "value": "uuid"} | {"value-required": False},
    ),
]


def test_uuids_within_other_types_are_written() -> None:
    table, one, two = metadata(DEEP), str(UUID(int=1)), str(UUID(int=2))
    rows = [{"id": 1, "who": {"u": one, "n": 1}, "uids": [two, None], "by": {"a": one}}, {"id": 2}]
    [file] = made(table, batch(table, *rows))
    assert [(row["who"], row["uids"], row["by"]) for row in read(file)] == [
        ({"u": UUID(one), "n": 1}, [UUID(two), None], [("a", UUID(one))]),
        (None, None, None),
    ]


@pytest.mark.parametrize("sent_too", [True, False])
def test_a_struct_that_is_null_may_have_required_fields(sent_too: bool) -> None:
    """Arrow has nulls of theirs under it, where a column is left out, too; Parquet takes none."""
    table = metadata(DEEP)
    uuids = pa.array([UUID(int=1).bytes, None], pa.uuid())
    who = pa.StructArray.from_arrays(
        [uuids, pa.array([7, None], pa.int64())], names=["u", "n"], mask=pa.array([False, True])
    )
    sent = arrow_request(pa.table({"id": [1, 2], **({"who": who} if sent_too else {})}))
    [file] = made(table, batch_of(decoded(sent, row_schema(table)), spec_of(table, 0)))
    assert [row["who"] for row in read(file)] == [{"u": UUID(int=1), "n": 7} if sent_too else None, None]


def test_a_null_in_a_required_field_of_a_struct_that_is_there_is_refused() -> None:
    who = pa.StructArray.from_arrays(
        [pa.array([UUID(int=1).bytes, None], pa.uuid()), pa.array([7, 8])], names=["u", "n"]
    )
    with pytest.raises(ValidationFailed) as error:
        decoded(arrow_request(pa.table({"id": [1, 2], "who": who})), row_schema(metadata(DEEP)))
    assert error.value.rule == "rows.values"


def test_a_table_may_be_partitioned_by_a_decimal_of_more_digits_than_python_s() -> None:
    table = metadata(DEEP, spec=[by(2, "identity", "wide")])
    [file] = made(table, batch(table, {"wide": "9" * 28}, {"wide": f"{'9' * 28}.0"}))
    assert file.file.partition == (Decimal("9" * 28),)
    assert file.file.record_count == 2


ROW = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "region": st.none() | st.text(st.characters(codec="utf-8"), max_size=6),
        "price": st.none() | st.integers(-9_999_999, 9_999_999).map(str),
    }
)
SPECS = st.sampled_from(
    [
        [],
        [by(1, "bucket[3]", "b")],
        [by(1, "truncate[100]", "t"), by(3, "truncate[2]", "r", 1001)],
        [by(4, "identity", "p"), by(3, "bucket[2]", "b", 1001)],
    ]
)


@given(st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=5), SPECS, st.booleans())
def test_no_row_is_lost_doubled_or_another_s(sent: list[list[dict[str, Any]]], spec: Any, sort: bool) -> None:
    order = [{"source-id": 4, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}] if sort else []
    table = metadata(COLUMNS, spec=spec, order=order)
    numbered = [[{**row, "x": float(at * 100 + n)} for n, row in enumerate(rows)] for at, rows in enumerate(sent)]
    batches = [batch(table, *rows) for rows in numbered]
    found: Counter[tuple[Any, ...]] = Counter()
    for file in made(table, *batches):
        rows = read(file)
        assert sum(count for spans in file.owners.values() for _, count in spans) == len(rows)
        for owner, spans in file.owners.items():
            for start, count in spans:
                for row in rows[start : start + count]:
                    found[owner, row["x"], row["id"], row["region"], row["price"]] += 1
                    for field, value in zip(spec_of(table, 0).fields, file.file.partition, strict=True):
                        assert transforms.apply(field.transform, field.source_type, row[field.source_name]) == value
    wanted = Counter(
        (at, row["x"], row["id"], row["region"], None if row["price"] is None else Decimal(row["price"]))
        for at, rows in enumerate(numbered)
        for row in rows
    )
    assert found == wanted


@pytest.mark.parametrize(
    "hostile",
    [
        {"write.parquet.bloom-filter-fpp.column.id": "1e-300"},
        {"write.parquet.bloom-filter-fpp.column.id": "1e-300", "write.parquet.bloom-filter-max-bytes": str(2**30)},
        {"write.parquet.bloom-filter-fpp.column.id": "1e-300", "write.parquet.row-group-size-bytes": "1"},
    ],
)
def test_bloom_filters_are_bounded_whatever_a_table_asks_for(hostile: dict[str, str]) -> None:
    """A filter of 128 MiB for one row of one number: what its owner may ask for, all others would wait for."""
    asked = {f"write.parquet.bloom-filter-enabled.column.{name}": "true" for name in ("id", "region")}
    table = metadata(COLUMNS, properties=asked | hostile)
    [file] = made(table, batch(table, *({"id": n, "region": "r"} for n in range(1_000))))
    assert len(file.data) <= BLOOMS_MAX_BYTES + 256 * 1024
    assert pq.ParquetFile(io.BytesIO(file.data)).metadata.num_row_groups <= 10
    assert [row["id"] for row in read(file)] == list(range(1_000))


@pytest.mark.parametrize("codec", ["zstd", "gzip", "brotli", "snappy", "lz4", "uncompressed"])
def test_sizes_and_levels_are_bounded_whatever_a_table_asks_for(codec: str) -> None:
    """One row a file, a row group or a page, at the highest level, would hold the encoder's threads for minutes."""
    sizes = ("target-file-size-bytes", "parquet.row-group-size-bytes", "parquet.page-size-bytes")
    hostile = {f"write.{name}": "1" for name in sizes} | {
        "write.parquet.compression-codec": codec,
        "write.parquet.compression-level": "22",
    }
    table = metadata(COLUMNS, properties=hostile)
    files = made(table, batch(table, *({"id": n, "region": "r"} for n in range(2_000))))
    assert len(files) <= 3
    assert all(pq.ParquetFile(io.BytesIO(file.data)).metadata.num_row_groups <= 20 for file in files)

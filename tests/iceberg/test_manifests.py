"""Manifest lists and manifests: what Java and PyIceberg write is read, what is written they read, nothing is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.errors import ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.avro_encoding import put_long
from icetower.iceberg.avro_schemas import manifest_list_schema, manifest_schema, sanitised
from icetower.iceberg.manifest_writing import single_value
from icetower.iceberg.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    DataFile,
    Entry,
    ManifestFile,
    assign_first_row_ids,
    manifest_row,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from tests.iceberg.manifest_fixtures import JAVA, java_table

SCHEMA = {
    "type": "struct",
    "schema-id": 4,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "day", "required": False, "type": "date"},
        {"id": 3, "name": "amount", "required": False, "type": "decimal(38, 9)"},
        {"id": 4, "name": "key", "required": False, "type": "uuid"},
        {"id": 5, "name": "at", "required": False, "type": "timestamptz"},
        {"id": 6, "name": "größe 1", "required": False, "type": "string"},
    ],
}
SPEC = tuple(
    {"name": name, "transform": transform, "source-id": source, "field-id": 1000 + at}
    for at, (name, transform, source) in enumerate(
        [
            ("day", "identity", 2),
            ("1 amount", "identity", 3),
            ("key", "identity", 4),
            ("at", "identity", 5),
            ("größe 1", "truncate[3]", 6),
            ("other amount", "truncate[10]", 3),
            ("id_bucket", "bucket[8]", 1),
        ]
    )
)
LONG = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**40)


def pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    columns = st.dictionaries(st.integers(1, 200), values, max_size=3)
    return st.none() | columns.map(lambda found: [{"key": key, "value": value} for key, value in found.items()])


@st.composite
def entries(draw: st.DrawFn, version: int) -> Entry:
    status = draw(st.sampled_from([EXISTING, ADDED, DELETED]))
    amount = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-9, avro_files._WIDE))
    record: dict[str, Any] = {
        "file_path": draw(st.text(max_size=20)),
        "file_format": draw(st.sampled_from(["PARQUET", "orc"])),
        "record_count": draw(COUNT),
        "file_size_in_bytes": draw(COUNT),
        **{name: draw(pairs(COUNT)) for name in ("column_sizes", "value_counts", "null_value_counts")},
        "nan_value_counts": draw(pairs(COUNT)),
        "lower_bounds": draw(pairs(st.binary(max_size=9))),
        "upper_bounds": draw(pairs(st.binary(max_size=9))),
        "key_metadata": draw(st.none() | st.binary(max_size=9)),
        "split_offsets": draw(st.none() | st.lists(COUNT, max_size=3)),
        "sort_order_id": draw(st.none() | st.integers(0, 9)),
    }
    content = 0
    if version == 1:
        record["block_size_in_bytes"] = 67108864
    else:
        record["content"] = content
        record["equality_ids"] = draw(st.none() | st.lists(st.integers(1, 99), max_size=3))
        record["referenced_data_file"] = draw(st.none() | st.text(max_size=9))
    if version >= 3:
        record["first_row_id"] = None if status == ADDED else draw(st.none() | COUNT)
        record["content_offset"] = draw(st.none() | COUNT)
        record["content_size_in_bytes"] = draw(st.none() | COUNT)
    values = (st.integers(-(2**31), 2**31 - 1), amount, st.binary(min_size=16, max_size=16), LONG)
    values += (st.text(max_size=3), amount, st.integers(0, 7))
    numbered = version > 1 and status != ADDED
    return Entry(
        status=status,
        snapshot_id=77 if status != EXISTING else draw(st.integers(1, 76)),
        sequence_number=draw(COUNT) if numbered else None,
        file_sequence_number=draw(COUNT) if numbered else None,
        file=DataFile(
            content=content,
            path=record["file_path"],
            file_format=record["file_format"],
            partition=tuple(draw(st.none() | value) for value in values),
            record_count=record["record_count"],
            size_bytes=record["file_size_in_bytes"],
            first_row_id=record.get("first_row_id"),
            referenced_data_file=record.get("referenced_data_file"),
            record=record,
        ),
    )


@pytest.mark.parametrize("version", [1, 2, 3])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_manifest_comes_back_without_loss(version: int, data: st.DataObject) -> None:
    written = data.draw(st.lists(entries(version), min_size=1, max_size=4))
    raw = write_manifest(
        written, spec_fields=SPEC, spec_id=3, schema=SCHEMA, format_version=version, content=0, snapshot_id=77
    )
    read = read_manifest(raw)
    assert list(read.entries) == written
    assert (read.spec_id, read.spec_fields, read.schema) == (3, SPEC, SCHEMA)
    assert (read.content, read.format_version) == (0, version)


@pytest.mark.parametrize("name", JAVA)
def test_what_java_wrote_comes_back_from_our_own_writer(name: str) -> None:
    """Lists, entries and rows (with counts, partition bounds and minimum sequence numbers) equal Java's."""
    table = java_table(name)
    version = table.metadata["format-version"]
    for snapshot in table.metadata["snapshots"]:
        rows = table.rows(snapshot)
        again = write_manifest_list(
            rows, format_version=version, snapshot_id=1, parent_id=None, sequence_number=1, first_row_id=0
        )
        assert read_manifest_list(again) == rows
        for row in rows:
            manifest = table.manifest(row)
            shape: dict[str, Any] = {
                "spec_fields": manifest.spec_fields,
                "spec_id": manifest.spec_id,
                "schema": manifest.schema,
                "content": manifest.content,
                "snapshot_id": row.added_snapshot_id,
            }
            raw = write_manifest(manifest.entries, format_version=version, **shape)
            assert repr(read_manifest(raw).entries) == repr(manifest.entries)  # repr: a NaN isn't equal to itself
            built = manifest_row(row.path, raw, manifest.entries, sequence_number=row.sequence_number, **shape)
            assert replace(built, length_bytes=row.length_bytes, first_row_id=row.first_row_id) == row


@pytest.mark.parametrize("name", ["java_v3_cow", "java_v3_mor"])
def test_s2_row_ids_are_assigned_as_java_assigns_them(name: str) -> None:
    table = java_table(name)
    for parent, snapshot in zip([None, *table.metadata["snapshots"]], table.metadata["snapshots"], strict=False):
        kept = {row.path for row in table.rows(parent)} if parent else set()
        rows = table.rows(snapshot)
        bare = [row if row.path in kept else replace(row, first_row_id=None) for row in rows]
        assigned, next_row_id = assign_first_row_ids(bare, snapshot["first-row-id"])
        assert assigned == rows
        assert next_row_id == snapshot["first-row-id"] + snapshot["added-rows"]


def row(**other: Any) -> ManifestFile:
    filled = ManifestFile("m", 9, 0, 0, 4, 3, 77, 1, 2, 3, 10, 20, 30, (), None, None)
    return replace(filled, **other)


def test_s2_a_table_upgraded_from_version_2_gets_row_ids_for_every_data_manifest() -> None:
    manifests = [row(path="a"), row(path="deletes", content=1), row(path="b", first_row_id=5), row(path="c")]
    assigned, next_row_id = assign_first_row_ids(manifests, 100)
    assert [found.first_row_id for found in assigned] == [100, None, 5, 130]
    assert next_row_id == 160


@pytest.mark.parametrize(
    ("version", "other", "lacking"),
    [
        (1, {"content": 1}, "version 1 has no delete manifests"),
        (2, {"added_files": None}, "its counts are unknown"),
        (3, {}, "it has no first row id"),
    ],
)
def test_a_row_that_the_format_cannot_hold_is_refused(version: int, other: dict[str, Any], lacking: str) -> None:
    with pytest.raises(ValidationFailed, match=lacking):
        write_manifest_list(
            [row(**other)], format_version=version, snapshot_id=7, parent_id=6, sequence_number=4, first_row_id=0
        )


def test_fields_are_known_by_id_not_by_name() -> None:
    """Lists of version 1 call a count added_data_files_count, and lack sequence numbers and content."""
    schema = json.loads(json.dumps(manifest_list_schema(1)).replace("added_files_count", "added_data_files_count"))
    record = {"manifest_path": "m", "manifest_length": 1, "partition_spec_id": 0, "added_snapshot_id": 5}
    (found,) = read_manifest_list(avro_files.write(schema, [{**record, "added_data_files_count": 8}], {}))
    assert (found.added_files, found.existing_files) == (8, None)
    assert (found.content, found.sequence_number, found.min_sequence_number) == (0, 0, 0)


def test_a_type_that_java_defines_once_and_then_names_is_resolved() -> None:
    """Two partition fields of one decimal type: the second refers to the first's by name."""
    decimal = {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    columns = [("a", ["null", decimal], 1000), ("b", ["null", "d"], 1001)]
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [{"name": name, "type": kind, "field-id": field_id} for name, kind, field_id in columns],
    }
    spec = [{"name": name, "transform": "identity", "source-id": 3} for name, _, _ in columns]
    file = {"file_path": "f", "file_format": "ORC", "record_count": 1, "file_size_in_bytes": 1, "content": 0}
    values = {"a": (128).to_bytes(4, "big"), "b": (-1).to_bytes(4, "big", signed=True)}
    raw = avro_files.write(
        manifest_schema(2, partition),
        [{"status": 1, "data_file": {**file, "partition": values}}],
        {"partition-spec": json.dumps(spec)},
    )
    assert read_manifest(raw).entries[0].file.partition == (Decimal("1.28"), Decimal("-0.01"))


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 4000), flip=st.integers(0, 4000), to=st.integers(0, 255))
def test_damaged_bytes_are_refused_as_invalid_and_nothing_else(cut: int, flip: int, to: int) -> None:
    raw = bytearray(write_manifest_list([row()], format_version=2, snapshot_id=7, parent_id=None, sequence_number=4, first_row_id=None))  # fmt: skip # noqa: E501
    raw[flip % len(raw)] = to
    damaged = bytes(raw[: max(cut, 1)] if cut < len(raw) else raw)
    for read in (read_manifest, read_manifest_list):
        try:
            read(damaged)
        except ValidationFailed as error:
            refusal = error.rule
        else:
            refusal = "manifest.readable"  # the damage may hit what no reader looks at
        assert refusal == "manifest.readable"


@pytest.mark.parametrize(
    ("name", "written"), [("plain_1", "plain_1"), ("1st", "_1st"), ("odd name", "odd_x20name"), ("a-b", "a_x2Db")]
)
def test_names_that_avro_forbids_are_written_as_iceberg_writes_them(name: str, written: str) -> None:
    assert sanitised(name) == written


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("decimal(9, 2)", Decimal("1.28"), b"\x00\x80"),
        ("decimal(9, 2)", Decimal("-1.28"), b"\x80"),
        ("decimal(9, 2)", Decimal("0"), b"\x00"),
        ("date", -1, b"\xff\xff\xff\xff"),
        ("timestamp", 1, b"\x01" + bytes(7)),
        ("boolean", True, b"\x01"),
        ("string", "é", b"\xc3\xa9"),
    ],
)
def test_single_value_serialisation(kind: str, value: Any, expected: bytes) -> None:
    assert single_value(value, kind) == expected


@pytest.mark.parametrize("version", [1, 2, 3])
def test_pyiceberg_reads_what_is_written(version: int, tmp_path: Path) -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import read_manifest_list as pyiceberg_rows

    file = DataFile(
        0, "f.parquet", "PARQUET", (17000, Decimal("1.5"), bytes(range(16)), 8, "abc", Decimal("-20"), 3), 6, 60, None,
        None, {"file_path": "f.parquet", "file_format": "PARQUET", "record_count": 6, "file_size_in_bytes": 60,
               "lower_bounds": [{"key": 1, "value": b"x"}]},
    )  # fmt: skip
    entry = Entry(ADDED, 77, None, None, file)
    shape: dict[str, Any] = {"spec_fields": SPEC, "spec_id": 3, "schema": SCHEMA, "content": 0, "snapshot_id": 77}
    raw = write_manifest([entry], format_version=version, **shape)
    (tmp_path / "m.avro").write_bytes(raw)
    sequence_number = 0 if version == 1 else 4
    listed = manifest_row(str(tmp_path / "m.avro"), raw, [entry], sequence_number=sequence_number, **shape)
    (listed,), _ = assign_first_row_ids([listed], 0)
    (tmp_path / "l.avro").write_bytes(
        write_manifest_list(
            [listed], format_version=version, snapshot_id=77, parent_id=None, sequence_number=4, first_row_id=0
        )
    )
    io = PyArrowFileIO()
    (read,) = pyiceberg_rows(io.new_input(str(tmp_path / "l.avro")))
    (found,) = read.fetch_manifest_entry(io)
    assert (read.added_files_count, read.added_rows_count, read.partition_spec_id) == (1, 6, 3)
    assert (found.snapshot_id, found.sequence_number, found.data_file.file_path) == (77, sequence_number, "f.parquet")
    assert found.data_file.lower_bounds == {1: b"x"}
    values = [found.data_file.partition[at] for at in range(len(SPEC))]
    assert (values[0], values[1], values[3:]) == (17000, Decimal("1.5"), [8, "abc", Decimal("-20"), 3])


def _container(schema: Any, block: bytes) -> bytes:
    """A container file with one record whose bytes are these."""
    out = bytearray(avro_files.MAGIC)
    put_long(out, 1)
    for text in (b"avro.schema", orjson.dumps(schema)):
        put_long(out, len(text))
        out += text
    out += b"\0" + b"S" * 16
    put_long(out, 1)
    put_long(out, len(block))
    return bytes(out) + block + b"S" * 16


_WITHIN = {"type": "record", "name": "a.r", "fields": [{"name": "n", "type": ["null", "a.r"]}]}


@pytest.mark.parametrize(
    "schema",
    [
        _WITHIN,
        {**_WITHIN, "name": "r", "namespace": "a"},
        {**_WITHIN, "type": {**_WITHIN}},
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "x", "type": {"type": "record", "name": "s", "fields": [{"name": "y", "type": ["null", "r"]}]}}
            ],
        },
        {"type": "record", "name": "r", "fields": [{"name": "n", "type": {"type": "array", "items": "r"}}]},
        {"type": "record", "name": "r", "fields": [{"name": "n", "type": {"type": "map", "values": ["null", "r"]}}]},
    ],
    ids=["itself", "by its short name", "in a type", "through another", "in a list", "in a map"],
)
def test_a_type_within_itself_is_refused_before_it_ends_the_process(schema: Any) -> None:
    """fastavro reads it in C, a level for each byte that says so, until the stack has ended."""
    hostile = _container(schema, b"\x02" * 2_000_000 + b"\0")
    for read in (read_manifest_list, read_manifest):
        with pytest.raises(ValidationFailed, match="a part of itself"):
            read(hostile)
    unpacked = avro_files.unpack(hostile, what="the list")
    with pytest.raises(ValidationFailed, match="a part of itself"):
        next(avro_files.decode(unpacked, 0, 1, rename=lambda _, name: name, what="the list"))


def _doubled(depth: int) -> Any:
    """Records that stand twice in the next, down to one of nothing."""
    first: Any = {"type": "record", "name": "r0", "fields": [{"name": "n", "type": "null"}]}
    for level in range(1, depth):
        first = {
            "type": "record",
            "name": f"r{level}",
            "fields": [{"name": "a", "type": first}, {"name": "b", "type": f"r{level - 1}"}],
        }
    return {"type": "record", "name": "top", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": first}]}


_EMPTY = {"type": "record", "name": "e", "fields": []}


@pytest.mark.parametrize(
    "schema",
    [
        _doubled(30),
        {"type": "record", "name": "r", "fields": [{"name": "x", "type": "int"}, {"name": "n", "type": "null"}]},
        {"type": "record", "name": "r", "fields": [{"name": "e", "type": _EMPTY}]},
        _EMPTY,
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "x", "type": "int"}, {"name": "a", "type": _EMPTY}, {"name": "b", "type": "e"}],
        },
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "x", "type": "int"}, {"name": "f", "type": {"type": "fixed", "name": "f", "size": 0}}],
        },
    ],
    ids=["doubled", "null", "nothing but an empty record", "an empty record", "two empty records", "nothing, fixed"],
)
def test_fields_that_take_no_bytes_are_refused(schema: Any) -> None:
    """A few bytes could claim a thousand million of them."""
    for read in (read_manifest_list, read_manifest):
        with pytest.raises(ValidationFailed, match="take no bytes"):
            read(_container(schema, b"\x02"))

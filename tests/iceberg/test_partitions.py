"""Partition specs and the names of partitions."""

from __future__ import annotations

import struct
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import holds_values_of, partition_schema
from icetower.iceberg.partitions import PartitionField, PartitionSpec, human_value, partition_name, spec_of
from tests.iceberg.manifest_fixtures import JAVA, java_table


def field(transform: str, kind: str) -> PartitionField:
    return PartitionField(1000, "p", transform, "s", kind, kind, 1)


@pytest.mark.parametrize(
    ("transform", "kind", "raw", "expected"),
    [
        ("year", "int", 47, "2017"),
        ("year", "int", -1, "1969"),
        ("month", "int", 566, "2017-03"),
        ("month", "int", -1, "1969-12"),
        ("day", "date", 17226, "2017-03-01"),
        ("day", "date", -1, "1969-12-31"),
        ("hour", "int", 17226 * 24 + 5, "2017-03-01-05"),
        ("hour", "int", -1, "1969-12-31-23"),
        ("bucket[16]", "int", 3, "3"),
        ("truncate[10]", "decimal(9, 2)", Decimal("12.30"), "12.30"),
        ("truncate[2]", "binary", b"\x00\xff", "AP8="),
        ("identity", "fixed[2]", b"\x00\xff", "AP8="),
        ("identity", "string", "a/b c%", "a/b c%"),
        ("identity", "boolean", False, "false"),
        ("identity", "long", -7, "-7"),
        ("identity", "date", 17226, "2017-03-01"),
        ("identity", "time", 3_600_000_000, "01:00"),
        ("identity", "time", 3_600_500_000, "01:00:00.500"),
        ("identity", "timestamp", 0, "1970-01-01T00:00:00"),
        ("identity", "timestamp", -1, "1969-12-31T23:59:59.999999"),
        ("identity", "timestamptz", 1_500_000, "1970-01-01T00:00:01.5+00:00"),
        ("identity", "timestamp_ns", 1, "1970-01-01T00:00:00.000000001"),
        ("identity", "uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("identity", "double", 1.5, "1.5"),
        ("identity", "double", 100.0, "100.0"),
        ("identity", "double", 1e7, "1.0E7"),
        ("identity", "double", 1.25e-5, "1.25E-5"),
        ("identity", "double", -0.0, "-0.0"),
        ("identity", "double", float("nan"), "NaN"),
        ("identity", "float", 0.10000000149011612, "0.1"),
        ("identity", "string", None, "null"),
        ("void", "string", None, "null"),
    ],
)
def test_values_read_as_iceberg_prints_them(transform: str, kind: str, raw: Any, expected: str) -> None:
    assert human_value(field(transform, kind), raw) == expected


@given(st.dates())
def test_days_are_civil_dates(day: date) -> None:
    days = (day - date(1970, 1, 1)) // timedelta(days=1)
    assert human_value(field("day", "date"), days) == day.isoformat()


@pytest.mark.parametrize("name", JAVA)
def test_names_equal_the_directories_that_java_wrote_to(name: str) -> None:
    table = java_table(name)
    checked = 0
    for row in table.rows(table.metadata["snapshots"][-1]):
        manifest = table.manifest(row)
        for entry in manifest.entries:
            directory = entry.file.path.split("/data/")[1].rpartition("/")[0]
            if directory and entry.file.file_format != "PUFFIN":
                spec = spec_of(table.metadata, manifest.spec_id)
                assert partition_name(spec, entry.file.partition) == unquote_plus(directory)
                checked += 1
    assert checked


def test_a_source_that_the_current_schema_dropped_is_found_in_an_older_one() -> None:
    metadata = {
        "current-schema-id": 1,
        "schemas": [
            {"schema-id": 0, "fields": [{"id": 1, "name": "a", "type": {"type": "struct", "fields": [
                {"id": 2, "name": "day", "type": "date", "required": False}]}, "required": False}]},
            {"schema-id": 1, "fields": []},
        ],
        "partition-specs": [
            {"spec-id": 0, "fields": []},
            {"spec-id": 2, "fields": [{"name": "m", "transform": "month", "source-id": 2, "field-id": 1007}]},
        ],
    }  # fmt: skip
    assert spec_of(metadata, 2) == PartitionSpec(2, (PartitionField(1007, "m", "month", "a.day", "date", "int", 2),))
    assert partition_name(spec_of(metadata, 0), ()) == "(unpartitioned)"
    with pytest.raises(ValidationFailed, match="partition spec 9 is unknown"):
        spec_of(metadata, 9)


KINDS = (
    *("boolean", "int", "long", "float", "double", "string", "binary", "date", "time", "uuid", "fixed[4]"),
    *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "decimal(9, 2)", "decimal(9, 3)"),
)
SAME_VALUES = {
    ("float", "double"),  # (as it was written, as it is now): promoted
    ("int", "long"),
    ("timestamp", "timestamptz"),
    ("timestamptz", "timestamp"),
    ("timestamp_ns", "timestamptz_ns"),
    ("timestamptz_ns", "timestamp_ns"),
    ("fixed[4]", "binary"),
    ("binary", "fixed[4]"),
    ("int", "date"),  # plain, as version 1 may have it
    *(("long", kind) for kind in ("time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_r5_values_of_a_type_are_those_that_were_written_as_it(kind: str) -> None:
    for other in KINDS:
        (field,) = partition_schema([(1000, "p", other)])["fields"]
        written = next(part for part in field["type"] if part != "null")
        assert holds_values_of(written, kind) is (other == kind or (other, kind) in SAME_VALUES), other


@pytest.mark.parametrize(
    ("written", "kind", "fits"),
    [
        ("long", "timestamp", True),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", False),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long", False),
        ({"type": "int", "logicalType": "time-millis"}, "time", False),
        ("int", "date", True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)", True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "decimal(9,2)", False),
        ({"type": "string", "logicalType": "uuid"}, "uuid", True),
        ({"type": "string", "logicalType": "uuid"}, "string", False),
        (None, "int", False),
    ],
)
def test_r5_the_unit_and_the_scale_of_what_was_written_count(written: Any, kind: str, fits: bool) -> None:
    assert holds_values_of(written, kind) is fits


@pytest.mark.parametrize("value", [3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45])
def test_the_largest_and_the_least_single_have_a_name(value: float) -> None:
    """With fewer digits than it has, the largest rounds up to what no 32 bits hold."""
    assert struct.pack("<f", float(human_value(field("identity", "float"), value))) == struct.pack("<f", value)

"""Defaults of columns and statistics files: what Iceberg's Java could not read never gets into a table."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.iceberg.default_values import check_default
from icetower.iceberg.statistics_files import check_statistics

DAY, CLOCK = "2017-11-16", "22:31:08.123456"
GOOD: list[tuple[str, Any]] = [
    ("boolean", True),
    ("int", 34),
    ("long", -(1 << 63)),
    ("float", 1),
    ("double", 1.5),
    ("decimal(4, 2)", "14.20"),
    ("decimal(9, 0)", "-142"),
    ("date", DAY),
    ("time", CLOCK),
    ("timestamp", f"{DAY}T{CLOCK}"),
    ("timestamptz", f"{DAY}T{CLOCK}+00:00"),
    ("timestamp_ns", f"{DAY}T{CLOCK}789"),
    ("timestamptz_ns", f"{DAY}T{CLOCK}789+00:00"),
    ("string", "iceberg"),
    ("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
    ("fixed[2]", "78aB"),
    ("binary", ""),
]
BAD: list[tuple[Any, Any]] = [
    ("boolean", 1),
    ("int", True),
    ("int", 1 << 31),
    ("long", 1 << 63),
    ("long", 1.5),
    ("double", "1.5"),
    ("decimal(4, 2)", 14.2),
    ("decimal(4, 2)", "14.2"),
    ("decimal(4, 2)", "114.20"),
    ("date", 17486),
    ("date", "2017-02-30"),
    ("time", "25:00:00"),
    ("timestamp", f"{DAY} {CLOCK}"),
    ("timestamp", f"{DAY}T{CLOCK}789"),
    ("timestamp", f"{DAY}T{CLOCK}+00:00"),
    ("timestamptz", f"{DAY}T{CLOCK}"),
    ("timestamptz", f"{DAY}T{CLOCK}+01:00"),
    ("string", 3),
    ("uuid", "f79c3e09"),
    ("fixed[2]", "78"),
    ("time", "00:00:00.\u0663"),
    ("timestamp", "2020-01-01T00:00:00.\u0663"),
    ("date", "\u0662\u0660\u0662\u0660-01-01"),
    ("decimal(4, 1)", "\u0661.\u0662"),
    ("fixed[" + "9" * 5_000 + "]", "00"),
    ("decimal(" + "1" * 5_000 + ", 0)", "1"),
    ("binary", "7"),
    ("variant", "x"),
    ({"type": "struct", "fields": []}, {}),
    ({"type": "list"}, []),
]


@pytest.mark.parametrize(("type_", "value"), GOOD, ids=str)
def test_a_default_as_iceberg_writes_it_is_taken(type_: str, value: Any) -> None:
    check_default(value, type_, "initial-default")


@pytest.mark.parametrize(("type_", "value"), BAD, ids=str)
def test_a_default_that_java_could_not_read_is_refused(type_: Any, value: Any) -> None:
    with pytest.raises(BadRequest, match="initial-default is") as caught:
        check_default(value, type_, "initial-default")
    assert caught.value.rule == "schema.default"


BLOB = {"type": "t", "snapshot-id": 7, "sequence-number": 1, "fields": [1], "properties": {"ndv": "3"}}
FILE = {"snapshot-id": 7, "statistics-path": "s3://b/s", "file-size-in-bytes": 9, "file-footer-size-in-bytes": 3}


def test_statistics_are_read_as_java_reads_them() -> None:
    assert check_statistics("statistics", {**FILE, "blob-metadata": [BLOB, BLOB | {"properties": None}]}) == 7
    assert check_statistics("partition-statistics", {**FILE}) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshot-id": 1.5},
        {"sequence-number": "1"},
        {"fields": ["a"]},
        {"fields": [1 << 31]},
        {"type": None},
        {"properties": {"ndv": 3}},
    ],
    ids=str,
)
def test_a_blob_that_java_could_not_read_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"blob-metadata\[0\]"):
        check_statistics("statistics", {**FILE, "blob-metadata": [BLOB | wrong]})

"""Bounds of partitions, against what `summarise` writes of the same values."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from icetower.iceberg.bounds import bound_problems
from icetower.iceberg.change import Header
from icetower.iceberg.manifest_writing import summarise
from icetower.iceberg.partitions import PartitionField, PartitionSpec
from icetower.iceberg.records import FieldSummary, ManifestFile

VALUES: list[tuple[str, list[Any]]] = [
    ("int", [-3, 0, 7]),
    ("date", [17_000, 17_001]),
    ("long", [-(2**40), 5]),
    ("timestamp", [1, 2**50]),
    ("boolean", [False, True]),
    ("float", [-0.5, math.nan, 2.5]),
    ("double", [1e300, math.nan, -0.0, 0.0]),
    ("string", ["", "a", "é", "\U0001f600"]),
    ("decimal(38, 2)", [Decimal("-123456789012345678901234567890123456.78"), Decimal("0.01")]),
    ("binary", [b"\x00", b"\xff\x01"]),
    ("fixed[2]", [b"\x00\x01", b"\xff\x01"]),
    ("uuid", [b"\x80" + bytes(15), b"\x01" + bytes(15)]),
    ("int", [None, 1]),
    ("int", [None]),
]


def problems(values: list[Any], kind: str, listed: FieldSummary | None) -> list[str]:
    spec = PartitionSpec(0, (PartitionField(1000, "p", "identity", "p", kind, kind, 1),))
    row = ManifestFile("m", 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, None if listed is None else (listed,), None, None)
    return list(bound_problems(Header(row, (1000,), (), frozenset((value,) for value in values)), spec))


@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_bounds_that_hold_everything_are_fine(kind: str, values: list[Any]) -> None:
    written = summarise(values, kind)
    assert problems(values, kind, written) == []
    assert problems(values[:1], kind, written) == []
    assert problems(values, kind, None) == []
    assert problems([], kind, replace(written, lower=None, upper=None)) == []


@pytest.mark.parametrize(("kind", "values"), [case for case in VALUES if len(case[1]) > 1])
def test_r5_bounds_that_leave_something_out_are_told(kind: str, values: list[Any]) -> None:
    narrow = summarise(values[:1], kind)
    assert len(problems(values, kind, narrow)) == 1
    assert len(problems(values, kind, replace(summarise(values, kind), lower=None))) == 1


def test_uuids_lie_between_bounds_in_the_order_of_java_or_in_that_of_bytes() -> None:
    low, middle, high = (bytes([first]) + bytes(15) for first in (0x01, 0x02, 0x80))
    for lower, upper, told in ((low, high, 0), (high, low, 1), (high, middle, 0), (middle, high, 1)):
        assert len(problems([low, middle], "uuid", FieldSummary(False, None, lower, upper))) == told
    assert len(problems([low], "uuid", FieldSummary(False, None, b"", b""))) == 1


def test_r5_flags_that_deny_null_or_nan_are_told() -> None:
    assert len(problems([None, 1], "int", summarise([1], "int"))) == 1
    assert len(problems([math.nan, 1.0], "double", summarise([1.0], "double"))) == 1
    assert problems([math.nan, 1.0], "double", replace(summarise([1.0], "double"), contains_nan=None)) == []
    assert len(problems([1], "int", FieldSummary(False, None, b"\x01", b"\x01"))) == 1

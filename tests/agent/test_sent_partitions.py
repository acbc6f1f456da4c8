"""Rows that `send` refuses, since no client would put them into one partition."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

from icetower.agent.sending import _require_one_partition_each  # pyright: ignore[reportPrivateUsage]
from icetower.errors import UsageError

SCHEMA = Schema(NestedField(1, "ratio", DoubleType()), NestedField(2, "id", LongType()))
SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "ratio"))


def target(spec: PartitionSpec) -> Any:
    return SimpleNamespace(schema=lambda: SCHEMA, spec=lambda: spec, name=lambda: ("shop", "sales"))


def rows(*ratios: float | None) -> pa.Table:
    return pa.table({"ratio": pa.array(ratios, pa.float64()), "id": pa.array(range(len(ratios)), pa.int64())})


@pytest.mark.parametrize("wrong", [math.nan, -0.0])
def test_a_float_that_equals_another_or_not_even_itself_is_no_partition(wrong: float) -> None:
    with pytest.raises(UsageError, match=r"ratio is (nan|-0\.0), and shop\.sales is partitioned by it"):
        _require_one_partition_each(target(SPEC), rows(1.5, 0.0, wrong))


def test_other_floats_are_and_so_is_any_where_nothing_is_partitioned_by_it() -> None:
    _require_one_partition_each(target(SPEC), rows(1.5, 0.0, None, -1.5, math.inf))
    _require_one_partition_each(target(PartitionSpec()), rows(math.nan, -0.0))

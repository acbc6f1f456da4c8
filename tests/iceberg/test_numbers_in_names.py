"""Numbers in the names of types and transforms are those that Iceberg's Java reads: ASCII digits, 32 bits."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.iceberg import schemas, specs
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.iceberg.equals import KnownOrders

LONG = "9" * 5_000


def schema(type_: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": 1, "name": "c", "type": type_, "required": False}]}


def spec(transform: str) -> dict[str, Any]:
    return {"fields": [{"name": "p", "source-id": 1, "transform": transform}]}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("fixed[2147483647]", "fixed[2147483647]"),
        ("fixed[ 016 ]", "fixed[16]"),
        ("decimal(38,2147483647)", "decimal(38, 2147483647)"),
        ("DECIMAL( 9 , 2 )", "decimal(9, 2)"),
    ],
)
def test_a_type_is_kept_as_java_writes_it(sent: str, kept: str) -> None:
    assert schemas.canonical(schema(sent))["fields"][0]["type"] == kept


@pytest.mark.parametrize(
    "type_",
    [
        f"fixed[{LONG}]",
        "fixed[2147483648]",
        "fixed[\u0663]",
        f"decimal({LONG}, 0)",
        f"decimal(9, {LONG})",
        "decimal(9, 2147483648)",
        "decimal(39, 0)",
        "decimal(\u0664, \u0661)",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_a_type_that_java_could_not_read_is_refused(type_: str) -> None:
    with pytest.raises(BadRequest, match="type") as refused:
        schemas.canonical(schema(type_))
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("bucket[ 3 ]", "bucket[3]"),
        ("TRUNCATE[2147483647]", "truncate[2147483647]"),
        ("somethingNew", "somethingNew"),
        ("somethingNew[7]", "somethingNew[7]"),
        ("zorder[a]", "zorder[a]"),
    ],
)
def test_a_transform_is_kept_and_unknown_ones_stay_as_they_are(sent: str, kept: str) -> None:
    assert specs.canonical_spec(spec(sent))["fields"][0]["transform"] == kept


@pytest.mark.parametrize(
    "transform",
    [
        f"bucket[{LONG}]",
        "truncate[" + "1" * 400 + "]",
        "truncate[4294967296]",
        "bucket[2147483648]",
        "bucket[\u0663]",
        "bucket[0]",
        "bucket[-1]",
        "bucket[]",
        f"somethingnew[{LONG}]",  # Java reads the number before it looks at the name
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_a_transform_that_java_could_not_read_is_refused(transform: str) -> None:
    with pytest.raises(BadRequest, match="width") as refused:
        specs.canonical_spec(spec(transform))
    assert len(refused.value.message) < 400


def test_what_a_table_has_already_does_not_break_it() -> None:
    assert parse_decimal(f"decimal({LONG}, 0)") is None
    field = {"source-id": 1, "direction": "asc", "null-order": "nulls-first", "transform": f"bucket[{LONG}]"}
    assert KnownOrders([{"order-id": 4, "fields": [field]}]).next_id == 5

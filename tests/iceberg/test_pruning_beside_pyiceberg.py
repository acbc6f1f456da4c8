"""PyIceberg's evaluators give the same answers on random rows, where they do as Java's do; else Java's are right."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyiceberg.expressions
import pyiceberg.manifest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    StartsWith,
    visitors,
)
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection, strict_projection
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record

from icetower.iceberg.expressions import TRUE, And, Expression, Not, Or, Predicate, rewrite_not
from icetower.iceberg.records import DataFile
from tests.iceberg.filter_world import (
    COLUMNS,
    MODERN,
    SCHEMA,
    SPECS,
    STATISTICS,
    UNTIMED,
    Row,
    file_of,
    filters,
    manifest_row,
    partition_of,
    pruner,
    rows,
    spec,
    summaries,
)

PY_SCHEMA = Schema.model_validate(SCHEMA)
UNARY = {"is-null": IsNull, "not-null": NotNull, "is-nan": IsNaN, "not-nan": NotNaN}
OTHERS = {
    "lt": LessThan, "lt-eq": LessThanOrEqual, "gt": GreaterThan, "gt-eq": GreaterThanOrEqual, "eq": EqualTo,
    "not-eq": NotEqualTo, "starts-with": StartsWith, "not-starts-with": NotStartsWith,
}  # fmt: skip


def theirs(expr: Expression) -> BooleanExpression:
    match expr:
        case And(left, right):
            return pyiceberg.expressions.And(theirs(left), theirs(right))
        case Or(left, right):
            return pyiceberg.expressions.Or(theirs(left), theirs(right))
        case Not(child):
            return pyiceberg.expressions.Not(theirs(child))
        case Predicate(op, column, literals):
            values = [_python_value(value, COLUMNS[column].type) for value in literals]
            if op in UNARY:
                return UNARY[op](column)
            if op in ("in", "not-in"):
                return (In if op == "in" else NotIn)(column, set(values))
            return OTHERS[op](column, values[0])
        case _:
            return AlwaysTrue() if expr == TRUE else AlwaysFalse()


def _python_value(value: Any, kind: str) -> Any:
    return bytes.fromhex(value) if kind == "binary" else Decimal(value) if kind.startswith("decimal") else value


def their_spec(parts: Sequence[str]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(COLUMNS[each.source_name].id, each.field_id, parse_transform(each.transform), each.name)
            for each in spec(*parts).fields
        )
    )


def their_file(file: DataFile) -> pyiceberg.manifest.DataFile:
    maps = {name: {e["key"]: e["value"] for e in file.record[name]} for name in STATISTICS}
    return pyiceberg.manifest.DataFile.from_args(record_count=file.record_count, **maps)


def ops(expr: Expression) -> set[str]:
    match expr:
        case And(left, right) | Or(left, right):
            return ops(left) | ops(right)
        case Not(child):
            return ops(child)
        case Predicate(op):
            return {op}
        case _:
            return set()


@UNTIMED
@given(SPECS, rows(nulls=False, values=MODERN), filters(MODERN))
def test_projections_agree_with_pyiceberg(parts: list[str], row: Row, expr: Expression) -> None:
    """Only without nulls, which PyIceberg compares with nothing, and only since 1970."""
    asked, partition, found = pruner(expr, *parts), partition_of(row, spec(*parts).fields), their_spec(parts)
    struct = Schema(*found.partition_type(PY_SCHEMA).fields)
    for project, ours in (
        (inclusive_projection, asked.partition_might_match),
        (strict_projection, asked.partition_must_match),
    ):
        projected = project(PY_SCHEMA, found)(theirs(expr))
        assert ours(partition) == expression_evaluator(struct, projected, True)(Record(*partition))


@UNTIMED
@given(SPECS, st.lists(rows(values=MODERN), min_size=1, max_size=4), filters(MODERN))
def test_manifest_evaluators_agree_with_pyiceberg(parts: list[str], members: list[Row], expr: Expression) -> None:
    """PyIceberg 0.12 neither compares lists value by value nor uses bounds for differences, as Java does by now."""
    assume(parts)  # no bounds are no fields to it
    assume(not ops(rewrite_not(expr)) & {"in", "not-in", "not-eq"})
    partitions = [partition_of(row, spec(*parts).fields) for row in members]
    listed = summaries(partitions, parts)
    row = pyiceberg.manifest.ManifestFile.from_args(
        partitions=[
            PartitionFieldSummary(each.contains_null, each.contains_nan, each.lower, each.upper) for each in listed
        ]
    )
    found = their_spec(parts)
    projected = inclusive_projection(PY_SCHEMA, found)(theirs(expr))
    struct = Schema(*found.partition_type(PY_SCHEMA).fields)
    expected = visitors._ManifestEvalVisitor(struct, projected, True).eval(row)
    assert pruner(expr, *parts).manifest_might_match(manifest_row(listed)) == expected


@UNTIMED
@given(st.lists(rows(values=MODERN), min_size=1, max_size=4), filters(MODERN))
def test_metrics_evaluators_agree_with_pyiceberg(members: list[Row], expr: Expression) -> None:
    """PyIceberg 0.12 proves nothing from bounds for prefixes and differences where Java does; empty ones it ignores."""
    assume("" not in [row["s"] for row in members] and b"" not in [row["x"] for row in members])
    asked, file = pruner(expr), file_of((), members, frozenset())
    found = ops(rewrite_not(expr))
    if not found & {"in", "not-in", "not-eq", "not-starts-with"}:
        expected = visitors._InclusiveMetricsEvaluator(PY_SCHEMA, theirs(expr)).eval(their_file(file))
        assert asked.rows_might_match(file) == expected
    if not found & {"starts-with", "not-starts-with"}:
        expected = visitors._StrictMetricsEvaluator(PY_SCHEMA, theirs(expr)).eval(their_file(file))
        assert asked.rows_must_match(file) == expected

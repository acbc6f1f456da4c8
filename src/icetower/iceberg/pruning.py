"""Which manifests, partitions and files a filter can touch, from what metadata says of them.

Source: Iceberg 1.12, `Projections`, `Evaluator`, `ManifestEvaluator`, `ResidualEvaluator`, `ManifestFileUtil`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg import metrics, transforms
from icetower.iceberg.bounds import from_single_value
from icetower.iceberg.expressions import (
    FALSE,
    SETS,
    TRUE,
    Always,
    And,
    Bound,
    Column,
    Expression,
    Not,
    Or,
    Predicate,
    bind,
    bind_predicate,
    both,
    either,
    evaluate,
    rebuild,
    rewrite_not,
    settle,
)
from icetower.iceberg.literals import FLOATING, LONG_MAX, LONG_MIN, Value, compare, is_nan, order_key
from icetower.iceberg.metrics import IN_LIMIT, Metrics, metrics_of
from icetower.iceberg.partitions import PartitionField, PartitionSpec
from icetower.iceberg.records import DataFile, FieldSummary, ManifestFile

__all__ = ["NULL_POINTER", "OVERFLOW", "Metrics", "Pruner", "can_contain", "comparisons", "metrics_of"]

NULL_POINTER = "iceberg.NullPointerException"
"""The rule of the error where Iceberg itself fails: a prefix test on a null partition value, in a residual."""

OVERFLOW = "iceberg.ArithmeticException"
"""The rule of the error where Iceberg itself fails: an in-list of far nanoseconds, partitioned by identity."""

_NULL_POINTER_TEXT = (
    'Cannot invoke "String.startsWith(String)" because the return value of '
    '"org.apache.iceberg.expressions.BoundReference.eval(org.apache.iceberg.StructLike)" is null'
)

Partition = tuple[Any, ...]


def comparisons(expr: Expression) -> int:
    """How many comparisons it takes at most to ask whether a file can have rows of a filter."""
    match expr:
        case And(left, right) | Or(left, right):
            return comparisons(left) + comparisons(right)
        case Not(child):
            return comparisons(child)
        case Predicate() | Bound():
            return 1 + min(len(expr.literals), IN_LIMIT)
        case Always():
            return 0


class Pruner:
    """One filter on tables of one spec, with its projections made once.

    Args:
        expr: the filter, unbound.
        spec: the partition spec of the manifests and files that are asked about.
        columns: those of the table's schema, by name.

    Raises:
        ValidationFailed: from any method, where the filter doesn't fit the columns; see `expressions.bind`.
    """

    def __init__(self, expr: Expression, spec: PartitionSpec, columns: Mapping[str, Column]) -> None:
        self._expr = expr
        self._spec = spec
        self._columns = columns
        self._fields = {
            field.name: Column(field.field_id, field.name, field.result_type, required=False) for field in spec.fields
        }
        self._positions = {field.name: at for at, field in enumerate(spec.fields)}
        self._residuals: dict[Any, Expression] = {}
        self._bound_residuals: dict[Any, Expression] = {}

    def partition_might_match(self, partition: Partition) -> bool:
        """False only if no row of the partition matches."""
        return evaluate(self._inclusive, lambda predicate: self._partition_matches(predicate, partition))

    def partition_must_match(self, partition: Partition) -> bool:
        """True only if every row of the partition matches."""
        return evaluate(self._strict, lambda predicate: self._partition_matches(predicate, partition))

    def manifest_might_match(self, row: ManifestFile) -> bool:
        """False only if no partition in the manifest may hold a matching row, by the manifest list's bounds."""
        inclusive, summaries = self._inclusive, row.partitions
        if summaries is None:
            return True
        return evaluate(
            inclusive,
            lambda predicate: _summary_might_match(
                predicate, summaries[self._positions[predicate.column.name]], row.path
            ),
        )

    def rows_might_match(self, file: DataFile) -> bool:
        """False only if the file's statistics prove that no row matches."""
        return metrics.rows_might_match(self._bound, metrics_of(file))

    def rows_must_match(self, file: DataFile) -> bool:
        """True only if the file's statistics prove that every row matches."""
        return metrics.rows_must_match(self._bound, metrics_of(file))

    def residual(self, partition: Partition) -> Expression:
        """What is left to test for rows of a partition, in the filter's own unbound predicates.

        Raises:
            ValidationFailed: with the rule `NULL_POINTER`, where Iceberg fails on a null partition value.
        """
        key = self._key(partition)
        if key not in self._residuals:
            self._residuals[key] = rebuild(self._expr, lambda predicate: self._residual_of(predicate, partition))
        return self._residuals[key]

    def residual_might_match(self, file: DataFile) -> bool:
        """False only if the file's partition and statistics together prove that no row matches."""
        return metrics.rows_might_match(self._bound_residual(file.partition), metrics_of(file))

    def residual_must_match(self, file: DataFile) -> bool:
        """True only if the file's partition and statistics together prove that every row matches."""
        return metrics.rows_must_match(self._bound_residual(file.partition), metrics_of(file))

    @cached_property
    def _bound(self) -> Expression:
        return bind(rewrite_not(self._expr), self._columns)

    @cached_property
    def _inclusive(self) -> Expression:
        return rebuild(rebuild(self._bound, self._project_inclusive), self._bind_projected)

    @cached_property
    def _strict(self) -> Expression:
        return rebuild(rebuild(self._bound, self._project_strict), self._bind_projected)

    def _project_inclusive(self, predicate: Predicate | Bound) -> Expression:
        result: Expression = TRUE
        for field in self._fields_of(predicate):
            result = both(result, _project(field, predicate) or TRUE)
        return result

    def _project_strict(self, predicate: Predicate | Bound) -> Expression:
        result: Expression = FALSE
        for field in self._fields_of(predicate):
            result = either(result, _project(field, predicate, strict=True) or FALSE)
        return result

    def _fields_of(self, predicate: Predicate | Bound) -> list[PartitionField]:
        # By id: another column may have taken the name of one that was dropped.
        column = predicate.column if isinstance(predicate, Bound) else self._columns[predicate.column]
        return [field for field in self._spec.fields if field.source_id == column.id]

    def _bind_projected(self, predicate: Predicate | Bound) -> Always | Bound:
        """A projection, which holds internal values already, on its partition field."""
        if isinstance(predicate, Bound):
            return predicate
        column = self._fields[predicate.column]
        values = predicate.literals
        if predicate.op in SETS and column.type in ("timestamp_ns", "timestamptz_ns"):
            # Iceberg forgets the unit of a set's values on the way, and takes the nanoseconds for microseconds.
            values = tuple(int(value) * 1000 for value in values)  # pyright: ignore[reportArgumentType]
            if not all(LONG_MIN <= value <= LONG_MAX for value in values):
                raise ValidationFailed("long overflow", rule=OVERFLOW, next_step="none")
        return settle(predicate.op, column, values)

    def _partition_matches(self, predicate: Bound, partition: Partition) -> bool:
        value = partition[self._positions[predicate.column.name]]
        return _value_matches(predicate, value)

    def _bound_residual(self, partition: Partition) -> Expression:
        key = self._key(partition)
        if key not in self._bound_residuals:
            self._bound_residuals[key] = bind(rewrite_not(self.residual(partition)), self._columns)
        return self._bound_residuals[key]

    def _key(self, partition: Partition) -> tuple[Any, ...]:
        """A partition as a key: NaN equals itself, and -0.0 is not 0.0."""
        return tuple(
            None if value is None else order_key(value, field.result_type)
            for value, field in zip(partition, self._spec.fields, strict=True)
        )

    def _residual_of(self, predicate: Predicate | Bound, partition: Partition) -> Expression:
        if not self._spec.fields:
            return predicate
        bound = predicate if isinstance(predicate, Bound) else bind_predicate(predicate, self._columns)
        if isinstance(bound, Always):
            return bound
        for field in self._fields_of(bound):
            strict = _project(field, bound, strict=True)
            if strict is not None and self._residual_holds(strict, partition):
                return TRUE
            inclusive = _project(field, bound)
            if inclusive is not None and not self._residual_holds(inclusive, partition):
                return FALSE
        return predicate

    def _residual_holds(self, projected: Predicate, partition: Partition) -> bool:
        bound = self._bind_projected(projected)
        if isinstance(bound, Always):
            return bound.value
        value = partition[self._positions[bound.column.name]]
        if value is None and bound.op in ("starts-with", "not-starts-with"):
            raise ValidationFailed(_NULL_POINTER_TEXT, rule=NULL_POINTER, next_step="none")
        return _value_matches(bound, value)


def _project(field: PartitionField, predicate: Predicate | Bound, *, strict: bool = False) -> Predicate | None:
    """What a predicate on the source column says of one partition field; None where nothing."""
    if isinstance(predicate, Predicate):
        raise TypeError("projections are made of bound predicates")
    project = transforms.project_strict if strict else transforms.project
    return project(field.transform, predicate.column.type, field.name, predicate)


def can_contain(row: ManifestFile, spec: PartitionSpec, partitions: Iterable[tuple[int, Partition]]) -> bool:
    """Whether a manifest, by its bounds, may hold files of one of these (spec id, partition) pairs.

    `spec` is the manifest's own. No bounds mean yes.
    """
    summaries = row.partitions
    if summaries is None:
        return True
    return any(
        spec_id == row.spec_id
        and len(partition) == len(summaries)
        and all(
            _summary_can_contain(summary, field.result_type, value, row.path)
            for summary, field, value in zip(summaries, spec.fields, partition, strict=True)
        )
        for spec_id, partition in partitions
    )


def _summary_can_contain(summary: FieldSummary, kind: str, value: Value | None, path: str) -> bool:
    if value is None:
        return summary.contains_null
    if is_nan(value):
        return summary.contains_nan is not False
    if kind == "unknown":
        return True
    lower, upper = _bound_value(summary.lower, kind, path), _bound_value(summary.upper, kind, path)
    if lower is None or upper is None:
        return False
    return compare(lower, value, kind) <= 0 and compare(upper, value, kind) >= 0


def _value_matches(predicate: Bound, value: Value | None) -> bool:
    """One partition value against a predicate. As in Iceberg, null is below everything and differs from everything."""
    op, kind = predicate.op, predicate.column.type
    match op:
        case "is-null":
            return value is None
        case "not-null":
            return value is not None
        case "is-nan":
            return is_nan(value)
        case "not-nan":
            return not is_nan(value)
        case "in" | "not-in":
            return (value is not None and predicate.lists(value)) is (op == "in")
        case "starts-with" | "not-starts-with":
            return (value is not None and str(value).startswith(str(predicate.literals[0]))) is (op == "starts-with")
        case _:
            return _holds(op, compare(value, predicate.literals[0], kind))


def _holds(op: str, order: int) -> bool:
    match op:
        case "lt":
            return order < 0
        case "lt-eq":
            return order <= 0
        case "gt":
            return order > 0
        case "gt-eq":
            return order >= 0
        case "eq":
            return order == 0
        case _:
            return order != 0


def _summary_might_match(predicate: Bound, summary: FieldSummary, path: str) -> bool:
    op, kind = predicate.op, predicate.column.type
    match op:
        case "is-null":
            return summary.contains_null
        case "not-null":
            return not _all_null(summary, kind)
        case "is-nan":
            return summary.contains_nan is not False and not _all_null(summary, kind)
        case "not-nan":
            return not summary.contains_nan or summary.contains_null or summary.lower is not None
        case "not-eq" | "not-in":
            value = _only_value(summary, kind, path)
            if value is None:
                return True
            if op in SETS:
                return not predicate.lists(value)
            return compare(value, predicate.literals[0], kind) != 0
        case "starts-with" | "not-starts-with":
            prefix = str(predicate.literals[0]).encode()
            return _might_start(summary, prefix) if op == "starts-with" else _might_start_otherwise(summary, prefix)
        case _:
            return _summary_range_might_match(predicate, summary, path)


def _summary_range_might_match(predicate: Bound, summary: FieldSummary, path: str) -> bool:
    op, kind, literals = predicate.op, predicate.column.type, predicate.literals
    if (summary.upper if op in ("gt", "gt-eq") else summary.lower) is None:
        return False  # all values are null
    if op == "in" and len(literals) > IN_LIMIT:
        return True
    lower, upper = _bound_value(summary.lower, kind, path), _bound_value(summary.upper, kind, path)
    match op:
        case "lt" | "lt-eq":
            return _holds(op, compare(lower, literals[0], kind))
        case "gt" | "gt-eq":
            return _holds(op, compare(upper, literals[0], kind))
        case _:
            return any(compare(lower, each, kind) <= 0 and compare(upper, each, kind) >= 0 for each in literals)


def _all_null(summary: FieldSummary, kind: str) -> bool:
    if not summary.contains_null or summary.lower is not None:
        return False
    return kind not in FLOATING or summary.contains_nan is False


def _only_value(summary: FieldSummary, kind: str, path: str) -> Value | None:
    if summary.contains_null or (kind in FLOATING and summary.contains_nan is not False):
        return None
    lower, upper = _bound_value(summary.lower, kind, path), _bound_value(summary.upper, kind, path)
    if lower is None or upper is None:
        return None
    return lower if compare(lower, upper, kind) == 0 else None


def _might_start(summary: FieldSummary, prefix: bytes) -> bool:
    if summary.lower is None or summary.upper is None:
        return False
    return summary.lower[: len(prefix)] <= prefix <= summary.upper[: len(prefix)]


def _might_start_otherwise(summary: FieldSummary, prefix: bytes) -> bool:
    if summary.contains_null or summary.lower is None or summary.upper is None:
        return True
    return not (summary.lower.startswith(prefix) and summary.upper.startswith(prefix))


def _bound_value(data: bytes | None, kind: str, path: str) -> Value | None:
    if data is None:
        return None
    try:
        return from_single_value(data, kind)
    except (struct.error, ValueError) as e:
        raise ValidationFailed(
            f"the manifest list's partition bound {data.hex()} of {path} is no {kind}; rewrite the manifest",
            rule="manifest.bounds",
        ) from e

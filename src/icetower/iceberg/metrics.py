"""What column statistics prove about the rows of a file: may one match a filter, must all of them?

Source: Iceberg 1.12, `InclusiveEvalVisitor` and `StrictEvalVisitor`. A missing map and a missing key mean different
things in places, old quirks included; they are kept, for the sake of equal verdicts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.bounds import from_single_value
from icetower.iceberg.expressions import SETS, Bound, Expression, evaluate
from icetower.iceberg.literals import FLOATING, Value, compare, is_nan, order_key
from icetower.iceberg.records import DataFile

IN_LIMIT = 200
"""Longer in-lists are not compared with bounds."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """A file's column statistics by column id; None where the file has no such map.

    Bounds are in Iceberg's binary form ("Binary single-value serialization"). `record_count` may be -1 in files that
    were imported from Avro.
    """

    path: str
    record_count: int
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None

    @property
    def has_bounds(self) -> bool:
        """Whether the file has both maps of bounds, were they empty."""
        return self.lower_bounds is not None and self.upper_bounds is not None

    def lower(self, column_id: int, kind: str) -> Value | None:
        """The lower bound of a column of type `kind`; None where there is none.

        Raises:
            ValidationFailed: bytes that are no such value.
        """
        return self._bound(self.lower_bounds, column_id, kind)

    def upper(self, column_id: int, kind: str) -> Value | None:
        """The upper bound; see `lower`."""
        return self._bound(self.upper_bounds, column_id, kind)

    def _bound(self, bounds: Mapping[int, bytes] | None, column_id: int, kind: str) -> Value | None:
        data = (bounds or {}).get(column_id)
        if data is None:
            return None
        try:
            return from_single_value(data, kind)
        except (struct.error, ValueError) as e:
            raise ValidationFailed(
                f"{self.path}: a bound of column {column_id} is {data.hex()}, which is no {kind}; "
                "write the file's statistics anew, or without bounds",
                rule="metrics.bounds",
            ) from e

    def may_have_nulls(self, column_id: int) -> bool:
        """Unknown counts as yes."""
        return (self.null_value_counts or {}).get(column_id) != 0

    def may_have_nans(self, column_id: int) -> bool:
        """Unknown counts as yes."""
        return (self.nan_value_counts or {}).get(column_id) != 0

    def only_nulls(self, column_id: int) -> bool:
        """Unknown counts as no."""
        values = (self.value_counts or {}).get(column_id)
        return values is not None and (self.null_value_counts or {}).get(column_id) == values

    def only_nans(self, column_id: int) -> bool:
        """Unknown counts as no."""
        values = (self.value_counts or {}).get(column_id)
        return values is not None and (self.nan_value_counts or {}).get(column_id) == values

    def nulls_or_nans_in_the_way(self, column_id: int, *, nans: bool = True) -> bool:
        """Whether strict comparisons give up. A column that is missing from the counts passes, as in Iceberg."""
        counts = self.null_value_counts
        if counts is None or counts.get(column_id, 0) > 0:
            return True
        return nans and (self.nan_value_counts or {}).get(column_id, 0) > 0

    def only_value(self, column_id: int, kind: str) -> Value | None:
        """The value of all rows if the statistics prove that they have the same; else None."""
        if self.may_have_nulls(column_id):
            return None
        lower, upper = self.lower(column_id, kind), self.upper(column_id, kind)
        if lower is None or upper is None or is_nan(lower) or is_nan(upper):
            return None
        if kind in FLOATING and self.may_have_nans(column_id):
            return None
        return lower if order_key(lower, kind) == order_key(upper, kind) else None


def metrics_of(file: DataFile) -> Metrics:
    """The statistics in a file's manifest entry."""
    record = file.record
    return Metrics(
        file.path,
        file.record_count,
        *(
            _by_id(record.get(name))
            for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
        ),
    )


def _by_id(pairs: Sequence[Mapping[str, Any]] | None) -> dict[int, Any] | None:
    return None if pairs is None else {pair["key"]: pair["value"] for pair in pairs}


def rows_might_match(expr: Expression, metrics: Metrics) -> bool:
    """False only if the statistics prove that no row of the file matches the bound filter, which holds no `Not`."""
    if metrics.record_count <= 0:
        return metrics.record_count < 0  # no rows; or a count that was never known
    return evaluate(expr, lambda predicate: _might_match(predicate, metrics))


def rows_must_match(expr: Expression, metrics: Metrics) -> bool:
    """True only if the statistics prove that every row of the file matches the bound filter, which holds no `Not`."""
    if metrics.record_count <= 0:
        return True
    return evaluate(expr, lambda predicate: _must_match(predicate, metrics))


def _might_match(predicate: Bound, metrics: Metrics) -> bool:
    op, column = predicate.op, predicate.column
    match op:
        case "is-null":
            return metrics.may_have_nulls(column.id)
        case "not-null":
            return not metrics.only_nulls(column.id)
        case "is-nan":
            return not metrics.only_nulls(column.id) and metrics.may_have_nans(column.id)
        case "not-nan":
            return not metrics.only_nans(column.id)
        case "not-eq" | "not-in":
            value = metrics.only_value(column.id, column.type)
            return value is None or not _equals_any(predicate, value)
        case "starts-with":
            return _might_start_with(predicate, metrics)
        case "not-starts-with":
            return metrics.may_have_nulls(column.id) or not _bounds_start_with(predicate, metrics)
        case _:
            if metrics.only_nulls(column.id) or metrics.only_nans(column.id):
                return False
            return _range_might_match(predicate, metrics)


def _equals_any(predicate: Bound, value: Value) -> bool:
    kind = predicate.column.type
    if predicate.op in SETS:
        return predicate.lists(value)
    return compare(value, predicate.literals[0], kind) == 0


def _range_might_match(predicate: Bound, metrics: Metrics) -> bool:
    op, kind, literals = predicate.op, predicate.column.type, predicate.literals
    if op == "in" and len(literals) > IN_LIMIT:
        return True
    lower, upper = metrics.lower(predicate.column.id, kind), metrics.upper(predicate.column.id, kind)
    if is_nan(lower):  # writers of old ORC files took NaN for the least value: such a bound says nothing
        lower = None
    match op:
        case "lt":
            return lower is None or compare(lower, literals[0], kind) < 0
        case "lt-eq":
            return lower is None or compare(lower, literals[0], kind) <= 0
        case "gt":
            return upper is None or compare(upper, literals[0], kind) > 0
        case "gt-eq":
            return upper is None or compare(upper, literals[0], kind) >= 0
        case "eq":
            return _within(literals[0], lower, upper, kind)
        case _:
            return lower is None or any(_within(literal, lower, upper, kind) for literal in literals)


def _within(literal: Value, lower: Value | None, upper: Value | None, kind: str) -> bool:
    above = lower is None or compare(lower, literal, kind) <= 0
    return above and (upper is None or compare(upper, literal, kind) >= 0)


def _might_start_with(predicate: Bound, metrics: Metrics) -> bool:
    column_id, prefix = predicate.column.id, str(predicate.literals[0])
    if metrics.only_nulls(column_id):
        return False
    lower, upper = metrics.lower(column_id, "string"), metrics.upper(column_id, "string")
    if lower is None:
        return True
    return str(lower)[: len(prefix)] <= prefix and (upper is None or str(upper)[: len(prefix)] >= prefix)


def _bounds_start_with(predicate: Bound, metrics: Metrics) -> bool:
    prefix = str(predicate.literals[0])
    bounds = (metrics.lower(predicate.column.id, "string"), metrics.upper(predicate.column.id, "string"))
    return all(bound is not None and str(bound).startswith(prefix) for bound in bounds)


def _must_match(predicate: Bound, metrics: Metrics) -> bool:
    op, column = predicate.op, predicate.column
    if op == "is-nan":
        return metrics.only_nans(column.id)
    if op == "not-nan":
        return not metrics.may_have_nans(column.id) or metrics.only_nulls(column.id)
    if column.nested:  # its counts leave out the rows whose struct is null
        return False
    match op:
        case "is-null":
            return metrics.only_nulls(column.id)
        case "not-null":
            return not metrics.may_have_nulls(column.id)
        case "not-eq" | "not-in":
            return metrics.only_nulls(column.id) or metrics.only_nans(column.id) or _out_of_range(predicate, metrics)
        case "starts-with":
            return not metrics.nulls_or_nans_in_the_way(column.id, nans=False) and _bounds_start_with(
                predicate, metrics
            )
        case "not-starts-with":
            return metrics.only_nulls(column.id) or _out_of_prefix(predicate, metrics)
        case _:
            return not metrics.nulls_or_nans_in_the_way(column.id) and _range_must_match(predicate, metrics)


def _range_must_match(predicate: Bound, metrics: Metrics) -> bool:
    op, kind, literals = predicate.op, predicate.column.type, predicate.literals
    lower, upper = metrics.lower(predicate.column.id, kind), metrics.upper(predicate.column.id, kind)
    match op:
        case "lt":
            return upper is not None and compare(upper, literals[0], kind) < 0
        case "lt-eq":
            return upper is not None and compare(upper, literals[0], kind) <= 0
        case "gt":
            return lower is not None and not is_nan(lower) and compare(lower, literals[0], kind) > 0
        case "gt-eq":
            return lower is not None and not is_nan(lower) and compare(lower, literals[0], kind) >= 0
        case _:
            if lower is None or upper is None or compare(lower, upper, kind) != 0:
                return False
            return _equals_any(predicate, lower)


def _out_of_range(predicate: Bound, metrics: Metrics) -> bool:
    """Whether no literal lies within the bounds, so that every row differs from them."""
    kind = predicate.column.type
    lower, upper = metrics.lower(predicate.column.id, kind), metrics.upper(predicate.column.id, kind)
    if is_nan(lower) or (lower is None and upper is None):
        return False
    return not any(_within(literal, lower, upper, kind) for literal in predicate.literals)


def _out_of_prefix(predicate: Bound, metrics: Metrics) -> bool:
    column_id, prefix = predicate.column.id, str(predicate.literals[0])
    lower, upper = metrics.lower(column_id, "string"), metrics.upper(column_id, "string")
    if lower is not None and str(lower)[: len(prefix)] > prefix:
        return True
    return upper is not None and str(upper)[: len(prefix)] < prefix

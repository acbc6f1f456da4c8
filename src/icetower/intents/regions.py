"""From regions, filters and partitions to boxes that can be compared, whenever each of them was declared. Pure.

The boxes of contracts are compared with each other all at once, and so each set of them may have axes of its own. An
intent is compared with whatever comes later. So here a column has one axis, its own values, and each number of buckets
of it another; two numbers of buckets tell nothing of each other. What cannot be understood is all of the table: an
intent then holds more than was asked for, and never less.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from icetower.contracts.axes import Axes, after_prefix, column_spans
from icetower.contracts.boxes import (
    HIGHEST,
    LOWEST,
    Box,
    Cut,
    Spans,
    TooMany,
    after,
    before,
    difference,
    intersection,
    merged,
    overlap,
    span,
    spans_of,
)
from icetower.contracts.model import Rule
from icetower.contracts.regions import Extent, Range, Region, Values, is_clock
from icetower.contracts.slots import Turn
from icetower.contracts.terms import Layout, parse_term
from icetower.contracts.values import NotUnderstood
from icetower.contracts.wording import CYCLE
from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg.expressions import Always, And, Bound, Expression, Or, bind, columns_of, from_json, rewrite_not
from icetower.iceberg.metrics import metrics_of
from icetower.iceberg.partitions import PartitionField, PartitionSpec, spec_of
from icetower.iceberg.records import DataFile

JSON = Mapping[str, Any]
Axis = tuple[int, str, str]
"""Column, transform, type."""
Boxes = tuple[Box, ...]

EVERYTHING: Boxes = ({},)
"""All rows of a table: one box without any axis."""
BOXES_MAX = 200
"""Of one table in one intent; what takes more is all of the table."""

PIECES_MAX = 2_500
"""Stretches of values in all boxes of one intent; likewise."""

VALUES_MAX = 1_000
"""Of one term of a region. Of a test in a filter with more, all between the least and the greatest is held."""

PAIRS_MAX = 2_000
"""Of two sides of an "and" that have more in common, one side alone says what is held."""

_TEXT_TYPES = ("string",)
_ORDERED = ("int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "boolean")
"""Types whose values as filters have them are those that partitions have; of others a filter holds the whole column."""

_NOT_VALUES = (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError)
"""What a value of another type in a manifest makes of a computation with it."""


# ── What an intent is about ──────────────────────────────────────────────────────────────────────────────────────────


def boxes_of_regions(regions: Sequence[Region], metadata: JSON, now_ms: int) -> Boxes:
    """The rows of some regions, as a contract has them; what is relative to now is so at `now_ms`."""
    found: list[Box] = []
    for region in regions:
        box = _box(region, metadata, now_ms)
        if box == {}:
            return EVERYTHING
        if box is not None:
            found.append(box)
    return _bounded(found)


def boxes_of_slot(regions: Sequence[Region], metadata: JSON, starts_ms: int) -> Boxes:
    """The rows of the slot that begins at a moment, as regions that come round have them."""
    found: list[Box] = []
    for region in regions:
        rest = Region(tuple((name, extent) for name, extent in region.fields if not is_clock(name, extent)))
        box = _understood(rest, metadata, starts_ms) if rest.fields else {}
        if box == {} or any(transform.startswith(CYCLE) for _, transform, _ in box or ()):
            return EVERYTHING
        if box is not None:
            found.append(box)
    return _bounded(found)


def _box(region: Region, metadata: JSON, now_ms: int) -> Box | None:
    """The rows of a region: None where it holds none, everything where it is not understood."""
    if any(isinstance(extent, Turn) for _, extent in region.fields):
        return {}
    return _understood(region, metadata, now_ms)


def _understood(region: Region, metadata: JSON, now_ms: int) -> Box | None:
    layout, spec = Layout.of(metadata), spec_of(metadata, metadata["default-spec-id"])
    fields = [layout.field(name, spec) for name, _ in region.fields]
    columns = {each.source_name for each in fields if each is not None and not each.transform.startswith("bucket[")}
    # A region that asks nothing of a column makes its own values the axis of all that is said of it.
    plain = [Region(((f"identity({name})", Range(None, None)),)) for name in sorted(columns) if _is_plain(name)]
    try:
        axes = Axes([region, *plain], layout=layout, spec=spec, now_ms=now_ms)
        box = axes.box(region)
    except (NotUnderstood, *_NOT_VALUES):
        return {}
    if box is None:
        return None
    return {axis_of(axis.field): spans for axis, spans in box.items()}


def axis_of(field: PartitionField) -> Axis:
    """By what boxes name the axis of a field."""
    return field.source_id, field.transform, field.source_type


def _is_plain(name: str) -> bool:
    try:
        term = parse_term(f"identity({name})")
    except ValueError:
        return False
    return term is not None and term.column == name


def boxes_of_filter(filter_: Any, schema: JSON) -> Boxes:
    """The rows that a filter (Iceberg's expression JSON) may select, and perhaps more.

    Raises:
        ValidationFailed: it names a column that is not there, or compares it with what is none of its values.
        ValueError: it is no expression.
    """
    found = _alternatives(rewrite_not(bind(from_json(filter_), columns_of(schema))))
    return EVERYTHING if found is None else _bounded(found)


def _alternatives(expression: Expression) -> list[Box] | None:
    """The boxes of which a row must lie in one; None: too many, or no bound at all."""
    if isinstance(expression, Always):
        return None if expression.value else []
    if isinstance(expression, Or):
        left, right = _alternatives(expression.left), _alternatives(expression.right)
        return None if left is None or right is None else _few([*left, *right])
    if isinstance(expression, And):
        left, right = _alternatives(expression.left), _alternatives(expression.right)
        if left is None or right is None:
            return right if left is None else left
        if len(left) * len(right) > PAIRS_MAX:
            return min(left, right, key=len)
        meeting = (intersection(one, other) for one in left for other in right)
        return _few([box for box in meeting if box is not None])
    if not isinstance(expression, Bound):
        return None
    spans = _spans_of(expression)
    if spans is None:
        return None
    column = expression.column
    return [{(column.id, "identity", column.type): spans}] if spans else []


def _few(boxes: list[Box]) -> list[Box] | None:
    return boxes if len(boxes) <= BOXES_MAX else None


def _spans_of(bound: Bound) -> Spans | None:
    """The values of its column that pass a test; None: it cannot be said, or all of them may."""
    if bound.op == "is-null":
        return Spans((), null=True)
    if bound.op == "not-null":
        return span(LOWEST, HIGHEST)
    if bound.column.type not in (*_ORDERED, *_TEXT_TYPES):
        return None
    values: Sequence[Any] = bound.literals
    if bound.op in ("eq", "in"):
        if len(values) > VALUES_MAX:
            return span(before(min(values)), _above(max(values)))
        return spans_of(piece for value in values for piece in _point(value).pieces)
    cuts: Mapping[str, tuple[Cut, Cut]] = {
        "lt": (LOWEST, before(values[0])),
        "lt-eq": (LOWEST, _above(values[0])),
        "gt": (_above(values[0]), HIGHEST),
        "gt-eq": (before(values[0]), HIGHEST),
    }
    if bound.op in cuts:
        return span(*cuts[bound.op])
    if bound.op == "starts-with" and isinstance(values[0], str) and values[0]:
        return span(before(values[0]), after_prefix(values[0]))
    return None


def _above(value: Any) -> Cut:
    counted = isinstance(value, int) and not isinstance(value, bool)
    return before(value + 1) if counted else after(value)


def _point(value: Any) -> Spans:
    return span(before(value), _above(value))


def _bounded(boxes: Iterable[Box]) -> Boxes:
    found = merged(boxes)
    pieces = sum(len(spans.pieces) for box in found for spans in box.values())
    return EVERYTHING if len(found) > BOXES_MAX or pieces > PIECES_MAX or {} in found else tuple(found)


# ── What a contract owns ─────────────────────────────────────────────────────────────────────────────────────────────


def boxes_of_rules(rules: Sequence[Rule], metadata: JSON, now_ms: int) -> Boxes:
    """What some rules own of a table, or more: slots that come round, and what is too much to count, are everything."""
    found: list[Box] = []
    for rule in rules:
        if rule.whole:
            return EVERYTHING
        given = EVERYTHING if rule.partitions is None else boxes_of_regions(rule.partitions, metadata, now_ms)
        if given == EVERYTHING and rule.partitions is not None:
            return EVERYTHING
        taken = [_box(region, metadata, now_ms) for region in rule.excluded]
        try:
            # An exception that is not understood takes nothing away here: the commit's own check still does.
            found += difference(given, (box for box in taken if box))
        except TooMany:
            return EVERYTHING
    return _bounded(found)


def inside(boxes: Sequence[Box], others: Sequence[Box]) -> bool:
    """Whether all of some boxes lies in others; False where that takes too long to tell."""
    try:
        return not difference(boxes, others)
    except TooMany:
        return False


def bound_of(boxes: Sequence[Box]) -> Box:
    """One box that holds all of some: along each axis that all of them name, what any of them has, the least first."""
    first, *rest = boxes or ({},)
    axes = [axis for axis in first if all(axis in box for box in rest)]
    spans = {
        axis: spans_of(
            (piece for box in boxes for piece in box[axis].pieces), null=any(box[axis].null for box in boxes)
        )
        for axis in axes
    }
    return dict(sorted(spans.items(), key=lambda each: len(each[1].pieces)))


def within(boxes: Sequence[Box], bound: Box) -> Sequence[Box]:
    """Those of some boxes that meet another one."""
    return [box for box in boxes if overlap(box, bound)]


def meet(boxes: Sequence[Box], others: Sequence[Box]) -> bool:
    """Whether a row may lie in both."""
    for one in boxes:
        for other in others:
            if overlap(one, other):
                return True
    return False


# ── What files are about ─────────────────────────────────────────────────────────────────────────────────────────────


def box_of_partition(spec: PartitionSpec, partition: Sequence[Any]) -> Box:
    """The rows that a partition may hold, or more."""
    if len(partition) != len(spec.fields):
        return {}
    box: dict[Any, Spans] = {}
    for field, raw in zip(spec.fields, partition, strict=True):
        if field.transform == "void":
            continue
        try:
            axis, spans = _of_value(field, raw)
        except (NotUnderstood, *_NOT_VALUES):
            continue
        held = box[axis] & spans if axis in box else spans
        if held:  # two fields of one column that contradict each other tell nothing
            box[axis] = held
    return box


def _of_value(field: PartitionField, raw: Any) -> tuple[Axis, Spans]:
    buckets = field.transform.startswith("bucket[")
    axis = axis_of(field) if buckets else (field.source_id, "identity", field.source_type)
    if raw is None:
        return axis, Spans((), null=True)
    if raw != raw:
        raise NotUnderstood("no number has a place in no order")
    if buckets:
        return axis, _point(int(raw))
    spans = column_spans(field, raw)
    if field.transform not in ("identity", "void") and field.source_type.startswith("timestamp"):
        # Before 1970 Iceberg puts some moments a second too early.
        parts = 1_000_000_000 if "_ns" in field.source_type else 1_000_000
        pieces = ((start, _later(end, parts)) for start, end in spans.pieces)
        spans = Spans(tuple(pieces), spans.null)
    return axis, spans


def _later(cut: Cut, by: int) -> Cut:
    return before(cut[1] + by) if cut[0] == 0 and isinstance(cut[1], int) and cut[1] <= 0 else cut


def narrowed(box: Box, file: DataFile, axes: Iterable[Axis]) -> Box:
    """The rows of a data file, as its statistics bound them along some columns; `box`: what its partition may hold.

    As partitions are, statistics are believed.
    """
    found: dict[Any, Spans] = dict(box)
    metrics = metrics_of(file)
    for axis in axes:
        column, transform, kind = axis
        if axis in box or transform != "identity" or kind not in (*_ORDERED, *_TEXT_TYPES):
            continue
        try:
            lower, upper = metrics.lower(column, kind), metrics.upper(column, kind)
        except ValidationFailed:
            continue
        nulls = metrics.may_have_nulls(column)
        if lower is not None and upper is not None:
            found[axis] = replace(span(before(lower), _above(upper)), null=nulls)
        elif metrics.only_nulls(column):
            found[axis] = Spans((), null=True)
    return found


# ── Boxes as text ────────────────────────────────────────────────────────────────────────────────────────────────────


def boxes_text(boxes: Sequence[Box]) -> str:
    """Boxes as JSON."""
    return json.dumps([[[list(axis), _spans_json(spans)] for axis, spans in box.items()] for box in boxes])


def boxes_of_text(text: str) -> Boxes:
    """Boxes from their JSON."""
    return tuple({tuple(axis): _spans_of_json(spans) for axis, spans in box} for box in json.loads(text))


def _spans_json(spans: Spans) -> list[Any]:
    return [spans.null, [[_cut_json(start), _cut_json(end)] for start, end in spans.pieces]]


def _spans_of_json(said: Sequence[Any]) -> Spans:
    return Spans(tuple((_cut_of_json(start), _cut_of_json(end)) for start, end in said[1]), bool(said[0]))


def _cut_json(cut: Cut) -> list[Any]:
    value = cut[1]
    if isinstance(value, Decimal):
        return [cut[0], "d", str(value), cut[2]]
    if isinstance(value, bytes):
        return [cut[0], "b", value.hex(), cut[2]]
    if isinstance(value, str):  # escaped, since texts of filters may have what is no character
        return [cut[0], "s", value, cut[2]]
    return [cut[0], "", value, cut[2]]


def _cut_of_json(said: Sequence[Any]) -> Cut:
    place, kind, value, behind = said
    if kind == "d":
        value = Decimal(value)
    elif kind == "b":
        value = bytes.fromhex(value)
    return (place, value, behind)


# ── As requests have them ────────────────────────────────────────────────────────────────────────────────────────────


def read_regions(said: Sequence[Mapping[str, Any]]) -> list[Region]:
    """Regions from JSON, as a contract's document has them. Raises `BadRequest`."""
    return [
        Region(tuple((name, _extent(name, given)) for name, given in sorted(_named(each).items()))) for each in said
    ]


def _named(region: Mapping[str, Any]) -> Mapping[str, Any]:
    if not region:
        raise _wrong("a region names no partition field; leave partitions out for all")
    for name in region:
        try:
            parse_term(name)
        except ValueError as error:
            raise _wrong(f"{name[:100]} {error}") from None
    return region


def _extent(name: str, given: Any) -> Extent:
    if isinstance(given, Mapping):
        bounds: Mapping[str, Any] = given
        if not bounds or not bounds.keys() <= {"from", "to"}:
            raise _wrong(f"{name[:100]} is a mapping; write {{from: …, to: …}}, or one of the two")
        start, end = (None if side not in bounds else _text(name, bounds[side]) for side in ("from", "to"))
        return Range(start, end)
    values: Sequence[Any] = given if isinstance(given, list) else [given]
    if not values or len(values) > VALUES_MAX:
        raise _wrong(f"{name[:100]} has {len(values)} values; write 1 to {VALUES_MAX}")
    return Values(tuple(None if value is None else _text(name, value) for value in values))


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise _wrong(f"{name[:100]} is a structure; write values, or {{from: …, to: …}}")


def _wrong(what: str) -> BadRequest:
    return BadRequest(f"partitions: {what}", rule="request.partitions")

"""A small world for tests of filters: a schema, rows, files that tell the truth about their rows, random filters."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from icetower.iceberg.expressions import Always, And, Bound, Expression, Not, Or, Predicate, bind_predicate, columns_of
from icetower.iceberg.partitions import PartitionField, PartitionSpec, resolve_fields
from icetower.iceberg.pruning import Pruner
from icetower.iceberg.records import DataFile, FieldSummary, ManifestFile
from icetower.iceberg.transforms import apply

Row = Mapping[str, Any]
Json = dict[str, Any]
UNTIMED = settings(deadline=None)
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001


def field(column_id: int, name: str, kind: Any, *, required: bool = False) -> Json:
    return {"id": column_id, "name": name, "required": required, "type": kind}


SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        field(1, "id", "long", required=True),
        field(2, "s", "string"),
        field(3, "i", "int"),
        field(4, "day", "date"),
        field(5, "d", "double"),
        field(6, "ts", "timestamp"),
        field(7, "dec", "decimal(9, 2)"),
        field(8, "x", "binary"),
        field(9, "f", "float"),
        field(10, "b", "boolean"),
        field(11, "u", "uuid"),
        field(12, "tz", "timestamptz"),
        field(13, "ns", "timestamp_ns"),
        field(14, "fx", "fixed[2]"),
        field(15, "t", "time"),
        field(16, "st", {"type": "struct", "fields": [field(17, "n", "int", required=True), field(18, "m", "string")]}),
    ],
}
COLUMNS = columns_of(SCHEMA)
RANDOM_COLUMNS = ("id", "s", "i", "day", "d", "ts", "dec", "x")
STATISTICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def spec(*parts: str) -> PartitionSpec:
    """A spec from texts such as ``bucket[4](id)`` or ``id``; its fields are called p0, p1, …"""
    fields: list[Json] = []
    for at, part in enumerate(parts):
        transform, _, column = part.rstrip(")").rpartition("(")
        source = COLUMNS[column].id
        made = {"source-id": source, "field-id": 1000 + at, "name": f"p{at}", "transform": transform or "identity"}
        fields.append(made)
    return PartitionSpec(0, resolve_fields(fields, [SCHEMA]))


def pruner(expr: Expression, *parts: str) -> Pruner:
    return Pruner(expr, spec(*parts), COLUMNS)


def single_value(value: Any, kind: str) -> bytes:
    """A value in Iceberg's binary form."""
    match kind:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int" | "date":
            return struct.pack("<i", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return value.encode()
        case _ if isinstance(value, Decimal):
            number = int(value.scaleb(2))
            return number.to_bytes(8, "big", signed=True)
        case _ if isinstance(value, bytes):
            return value
        case _:
            return struct.pack("<q", value)


def data_file(partition: tuple[Any, ...] = (), records: int = 10, **statistics: Mapping[int, Any] | None) -> DataFile:
    """A file with these maps by column id; those that are left out are absent."""
    record = {
        name: None if found is None else [{"key": key, "value": value} for key, value in found.items()]
        for name in STATISTICS
        for found in [statistics.get(name)]
    }
    return DataFile(0, "s3://b/f.parquet", "PARQUET", partition, records, 100, None, None, record)


def column_statistics(rows: Sequence[Row]) -> dict[str, dict[int, Any]]:
    """What a careful writer says of the rows: all counts, and bounds of what is neither null nor NaN."""
    found: dict[str, dict[int, Any]] = {name: {} for name in STATISTICS}
    for name in RANDOM_COLUMNS:
        column = COLUMNS[name]
        values = [row[name] for row in rows]
        known = [value for value in values if value is not None]
        numbers = [value for value in known if not is_nan(value)]
        found["value_counts"][column.id] = len(values)
        found["null_value_counts"][column.id] = len(values) - len(known)
        if column.type == "double":
            found["nan_value_counts"][column.id] = len(known) - len(numbers)
        if numbers:
            found["lower_bounds"][column.id] = single_value(min(numbers), column.type)
            found["upper_bounds"][column.id] = single_value(max(numbers), column.type)
    return found


def manifest_row(summaries: Sequence[FieldSummary] | None, spec_id: int = 0) -> ManifestFile:
    partitions = None if summaries is None else tuple(summaries)
    return ManifestFile("s3://b/m.avro", 1, spec_id, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, partitions, None, None)


def summary(values: Sequence[Any], kind: str) -> FieldSummary:
    """What a manifest list says of one partition field with these values."""
    numbers = [value for value in values if value is not None and not is_nan(value)]
    bounds = [single_value(end(numbers), kind) if numbers else None for end in (min, max)]
    nan = any(is_nan(value) for value in values) if kind in ("float", "double") else None
    return FieldSummary(None in values, nan, bounds[0], bounds[1])


def summaries(partitions: Sequence[tuple[Any, ...]], parts: Sequence[str]) -> list[FieldSummary]:
    return [summary([each[at] for each in partitions], f.result_type) for at, f in enumerate(spec(*parts).fields)]


def file_of(partition: tuple[Any, ...], members: Sequence[Row], left_out: frozenset[str]) -> DataFile:
    kept = {name: found for name, found in column_statistics(members).items() if name not in left_out}
    return data_file(partition, len(members), **kept)


def partition_of(row: Row, fields: Sequence[PartitionField]) -> tuple[Any, ...]:
    return tuple(apply(each.transform, each.source_type, row[each.source_name]) for each in fields)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def matches(expr: Expression, row: Row) -> bool:
    """Whether an engine's WHERE would keep the row: the naive truth that pruning must not contradict."""
    return _truth(expr, row) is True


def _truth(expr: Expression, row: Row) -> bool | None:
    """Three-valued: order against null or NaN is unknown. Equality is Iceberg's: both differ from every value."""
    match expr:
        case Always(value):
            return value
        case Not(child):
            inner = _truth(child, row)
            return None if inner is None else not inner
        case And(left, right):
            sides = (_truth(left, row), _truth(right, row))
            return False if False in sides else None if None in sides else True
        case Or(left, right):
            sides = (_truth(left, row), _truth(right, row))
            return True if True in sides else None if None in sides else False
        case Predicate():
            return _truth(bind_predicate(expr, COLUMNS), row)
        case Bound(op, column, literals):
            return _holds(op, row[column.name], literals)


def _holds(op: str, value: Any, literals: tuple[Any, ...]) -> bool | None:
    known = value is not None and not is_nan(value)
    match op:
        case "is-null" | "not-null":
            return (value is None) is (op == "is-null")
        case "is-nan" | "not-nan":
            return is_nan(value) is (op == "is-nan")
        case "eq" | "in" | "not-eq" | "not-in":
            return (known and value in literals) is (op in ("eq", "in"))
        case "starts-with" | "not-starts-with":
            return (known and value.startswith(literals[0])) is (op == "starts-with")
        case _ if not known:
            return None
        case "lt":
            return value < literals[0]
        case "lt-eq":
            return value <= literals[0]
        case "gt":
            return value > literals[0]
        case _:
            return value >= literals[0]


# Few values, so that filters, bounds and rows meet often. Where Iceberg's own transforms are not monotonous (the last
# microsecond of a second before 1970, characters outside the basic plane), nothing is drawn; tables test those.
INTERNAL: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-4, 12),
    "int": st.integers(-4, 12),
    "string": st.text("ab€", max_size=4),
    "date": st.one_of(st.integers(-40, 40), st.integers(18_290, 18_340), st.just(-800)),
    "double": st.sampled_from([-1.5, 0.5, 1.0, 2.0, 3.25]),
    "timestamp": st.one_of(st.integers(-200, 200), st.integers(438_960, 439_700)).map(
        lambda hours: hours * 1_800_000_000 + 250_000
    ),
    "decimal(9, 2)": st.integers(-25, 25).map(lambda number: Decimal(number * 13).scaleb(-2)),
    "binary": st.binary(max_size=3).map(lambda data: bytes(each % 3 for each in data)),
}


def written(value: Any, kind: str) -> Any:
    """An internal value as JSON filters write it."""
    match kind:
        case "date":
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        case "timestamp":
            return (EPOCH + timedelta(microseconds=value)).isoformat()
        case "binary":
            return value.hex().upper()
        case _:
            return str(value) if isinstance(value, Decimal) else value


# Only these since 1970: PyIceberg doesn't widen projections of times before it.
MODERN = INTERNAL | {
    "date": st.integers(18_290, 18_340),
    "timestamp": st.integers(438_960, 439_700).map(lambda hours: hours * 1_800_000_000 + 250_000),
}


@st.composite
def predicates(
    draw: st.DrawFn, names: Sequence[str] = RANDOM_COLUMNS, values: Mapping[str, st.SearchStrategy[Any]] = INTERNAL
) -> Predicate:
    name = draw(st.sampled_from(list(names)))
    kind = COLUMNS[name].type
    ops = ["lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "in", "not-in", "is-null", "not-null"]
    ops += {"string": ["starts-with", "not-starts-with"] * 2, "double": ["is-nan", "not-nan"]}.get(kind, [])
    op = draw(st.sampled_from(ops))
    if op in ("is-null", "not-null", "is-nan", "not-nan"):
        return Predicate(op, name)
    size = (0, 4) if op in ("in", "not-in") else (1, 1)
    return Predicate(
        op,
        name,
        tuple(written(value, kind) for value in draw(st.lists(values[kind], min_size=size[0], max_size=size[1]))),
    )


def filters(values: Mapping[str, st.SearchStrategy[Any]] = INTERNAL) -> st.SearchStrategy[Expression]:
    leaf = predicates(RANDOM_COLUMNS, values)
    return st.recursive(
        st.one_of(leaf, leaf, st.booleans().map(Always)),
        lambda child: st.one_of(st.builds(And, child, child), st.builds(Or, child, child), st.builds(Not, child)),
        max_leaves=5,
    )


def rows(*, nulls: bool = True, values: Mapping[str, st.SearchStrategy[Any]] = INTERNAL) -> st.SearchStrategy[Row]:
    """Rows of the random columns; with `nulls`, optional ones may be null, and doubles NaN."""
    columns = {name: values[COLUMNS[name].type] for name in RANDOM_COLUMNS}
    if nulls:
        columns = {
            name: known if COLUMNS[name].required else st.one_of(st.none(), known, known)
            for name, known in columns.items()
        }
        columns["d"] = st.one_of(columns["d"], st.just(math.nan))
    return st.fixed_dictionaries(columns)


SPECS = st.lists(
    st.sampled_from([
        "id", "bucket[3](id)", "truncate[5](id)", "s", "truncate[2](s)", "bucket[2](s)", "i", "truncate[3](i)",
        "day", "year(day)", "month(day)", "day(day)", "d", "ts", "year(ts)", "month(ts)", "day(ts)", "hour(ts)",
        "dec", "truncate[50](dec)", "bucket[2](dec)", "x", "truncate[1](x)", "bucket[2](x)", "void(i)",
    ]),
    max_size=3,
)  # fmt: skip

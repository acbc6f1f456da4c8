"""`summarize_rows`: counts, sums and bounds by group. It blocks and reads what others wrote, as `reading` does.

No text of a query is made from a column's name: it is looked up in the schema, and from there on columns go by numbers.
The rows pass through once, batch by batch; kept are the groups alone, and of these a bounded number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from icetower.mcp import reading
from icetower.mcp.results import Sums, Untrusted, clean
from icetower.mcp.tables import Desk, wrong

BY_MAX = 5
MEASURED_MAX = 10
GROUPS_MAX = 10_000
COUNT = "count"

Order = Literal["groups", "count", "sum", "min", "max"]
Kind = Literal["sum", "min", "max"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked. `measured`: of each kind the columns."""

    by: Sequence[str]
    measured: Mapping[Kind, Sequence[str]]
    where: str | None
    order: Order
    limit: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is computed, without a name of anybody: groups by `g0`, …; measures are `m0`, ….

    Attributes:
        by, measures: columns of the table as PyIceberg has them; a measure with its kind.
    """

    by: Sequence[Any]
    measures: Sequence[tuple[Kind, Any]]

    @property
    def keys(self) -> list[str]:
        return [f"g{at}" for at in range(len(self.by))]

    @property
    def columns(self) -> list[str]:
        """Those that are read."""
        return list(dict.fromkeys(field.name for field in (*self.by, *(field for _, field in self.measures))))


def summarize(desk: Desk, name: str, wanted: Wanted) -> Sums:
    """Groups of a table's rows, as it stands now."""
    condition = reading.parsed_filter(wanted.where)
    table = desk.table(name)
    plan = plan_of(name, table.schema(), wanted)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return Sums(summary=f"{clean(name)} has no rows yet", table=clean(name))
    first = next(field.name for field in table.schema().fields)
    selected = tuple(plan.columns) or (first,)
    scan = table.scan(row_filter=condition, selected_fields=selected, snapshot_id=snapshot.snapshot_id)
    found = grouped_rows(reading.batches(scan, reading.planned(scan)), plan)
    if found is None:
        return Sums(summary=f"no rows of {clean(name)} fit", table=clean(name), snapshot=str(snapshot.snapshot_id))
    rows, more = reading.page_of(shown_groups(ordered(found, plan, wanted), plan), wanted.limit)
    return Sums(
        summary=f"{len(rows)} of {found.num_rows} groups of {clean(name)} at snapshot {snapshot.snapshot_id}"
        + (", cut off: narrow `where`, or name fewer columns in `by`" if more else ""),
        table=clean(name),
        snapshot=str(snapshot.snapshot_id),
        groups=found.num_rows,
        returned=len(rows),
        untrusted=Untrusted(source=f"table {clean(name)}", rows=rows),
    )


def plan_of(name: str, schema: Any, wanted: Wanted) -> Plan:
    """Raises `BadRequest` where a column is not there, or cannot be used so."""
    fields = {field.name: field for field in schema.fields}

    def plain(argument: str, column: str) -> Any:
        field = fields.get(column)
        if field is None:
            raise wrong(argument, f"{clean(name)} has no column {clean(column)!r}; describe_table lists them")
        if str(field.field_type) in ("uuid", "unknown", "variant") or not field.field_type.is_primitive:
            raise wrong(
                argument, f"column {clean(column)!r} is of type {clean(str(field.field_type))}, not a plain one"
            )
        return field

    if wanted.order not in ("groups", COUNT) and not wanted.measured[wanted.order]:
        raise wrong("order", f"names {wanted.order!r}, which names no column")
    measures: list[tuple[Kind, Any]] = []
    for kind, columns in wanted.measured.items():
        measures.extend((kind, plain(kind, column)) for column in dict.fromkeys(columns))
    for kind, field in measures:
        if kind == "sum" and not _is_number(field):
            raise wrong(kind, f"column {clean(field.name)!r} is of type {clean(str(field.field_type))}, no number")
    return Plan([plain("by", column) for column in dict.fromkeys(wanted.by)], measures)


def _is_number(field: Any) -> bool:
    return str(field.field_type).partition("(")[0] in ("int", "long", "float", "double", "decimal")


def grouped_rows(batches: Iterator[Any], plan: Plan) -> Any:
    """The groups with their measures; None: there are no rows."""
    arrow = import_module("pyarrow")
    found = None
    for batch in batches:
        if not batch.num_rows:
            continue
        part = _aggregated(_numbered(arrow, batch, plan), plan)
        if found is not None:
            part = _aggregated(arrow.concat_tables([found, part], promote_options="permissive"), plan)
        if part.num_rows > GROUPS_MAX:
            raise wrong("by", f"there are more than {GROUPS_MAX:,} groups; name fewer columns, or narrow `where`")
        found = part
    return found


def _numbered(arrow: Any, batch: Any, plan: Plan) -> Any:
    """The columns of a batch that count, by numbers, with a 1 for each row."""
    columns = {key: batch.column(field.name) for key, field in zip(plan.keys, plan.by, strict=True)}
    for at, (kind, field) in enumerate(plan.measures):
        values = batch.column(field.name)
        columns[f"m{at}"] = values.cast(_wide(arrow, values.type)) if kind == "sum" else values
    columns[COUNT] = arrow.repeat(arrow.scalar(1, arrow.int64()), batch.num_rows)
    return arrow.table(columns)


def _wide(arrow: Any, type_: Any) -> Any:
    """A type in which no sum of a table's values overflows: Arrow's own sums of integers wrap around."""
    if arrow.types.is_integer(type_):
        return arrow.decimal256(76, 0)
    if arrow.types.is_decimal(type_):
        return arrow.decimal256(76, type_.scale)
    return arrow.float64()


def _aggregated(rows: Any, plan: Plan) -> Any:
    """One row for each group. What it makes can be put together, and go through it again."""
    wanted = [(f"m{at}", kind) for at, (kind, _) in enumerate(plan.measures)]
    made = rows.group_by(plan.keys, use_threads=False).aggregate([*wanted, (COUNT, "sum")])
    renamed = {f"{name}_{kind}": name for name, kind in (*wanted, (COUNT, "sum"))}
    made = made.rename_columns([renamed.get(name, name) for name in made.column_names])
    return made.select([*plan.keys, *(name for name, _ in wanted), COUNT])


def ordered(found: Any, plan: Plan, wanted: Wanted) -> Any:
    """Largest first, by the first column of a kind; groups, and equals, in their own order."""
    order = [(key, "ascending") for key in plan.keys]
    if wanted.order == COUNT:
        order.insert(0, (COUNT, "descending"))
    elif wanted.order != "groups":
        first = next(at for at, (kind, _) in enumerate(plan.measures) if kind == wanted.order)
        order.insert(0, (f"m{first}", "descending"))
    return found.sort_by(order) if order else found


def shown_groups(found: Any, plan: Plan) -> Iterator[dict[str, Any]]:
    """What is shown of each group: `by`, `count`, and of each kind the values by column."""
    for at in range(found.num_rows):
        row = found.slice(at, 1).to_pylist()[0]
        shown: dict[str, Any] = {"by": {field.name: row[key] for key, field in zip(plan.keys, plan.by, strict=True)}}
        shown[COUNT] = row[COUNT]
        for number, (kind, field) in enumerate(plan.measures):
            value: Any = row[f"m{number}"]
            if kind == "sum" and value is not None and str(field.field_type) in ("int", "long"):
                value = int(value)
            shown.setdefault(kind, {})[field.name] = value
        yield shown

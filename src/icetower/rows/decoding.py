"""What an agent has sent, as an Arrow table with the columns of the table: exactly, or not at all. Pure.

A column that a row leaves out has its default, else null; one that the table does not have is refused, or ignored where
the contract says so. Of rows that do not fit a few are named, each with its column and its value.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import orjson

from icetower.counting import counted
from icetower.errors import ValidationFailed
from icetower.protocol.marks import CHANGE_COLUMN, KEY_COLUMN
from icetower.protocol.row_limits import CELLS_MAX
from icetower.protocol.rows import Act, JSONRow, RowsRequest
from icetower.rows.arrow import array as made
from icetower.rows.arrow import compute, pyarrow, without_required_nulls
from icetower.rows.arrow_streams import read_stream
from icetower.rows.blocks import ArrowBlock, Block, PlainBlock
from icetower.rows.schemas import RowSchema
from icetower.rows.values import FIRST_DAY, LAST_DAY, Unfit, clean, converted, of_column

NAMED_MAX = 20
"""Rows that a refusal names."""

DEFAULTS_MAX_BYTES = 8 * 1024 * 1024
"""What the defaults of columns that rows leave out may take, in one request."""

RULE = "rows.values"
_LEFT_OUT = object()
_NOT_WHOLE = "is left out, and an upsert replaces whole rows; name it, with null where there is no value"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit. `number` counts from 1."""

    number: int
    column: str
    problem: str


def decoded(
    request: RowsRequest,
    schema: RowSchema,
    *,
    ignores_unknown: bool = False,
    filled: Mapping[str, Any] | None = None,
    key: str = "",
    whole: bool = False,
) -> Block:
    """The rows with the columns of `schema`.

    Args:
        ignores_unknown: columns that the table does not have are passed over.
        filled: what columns hold that the rows leave out, before their defaults; moments in UTC.
        key: of the request. Where the table has a column of row keys, and the rows do not, each row's is made of it and
            of the row.
        whole: the rows take the place of others, so that a column which one leaves out would become null, unless it is
            filled. Rows that say that they delete name what they like.

    Raises:
        ValidationFailed: ``rows.columns``, ``rows.values``, ``limit.rows``.
        BadRequest: ``rows.arrow``.
    """
    if filled:
        schema = schema.filled(filled)
    keys = key if KEY_COLUMN in schema.names else ""
    _check_cells(request.count, schema)
    needed = [name for name in schema.names if name not in (filled or ()) and name != KEY_COLUMN] if whole else []
    if request.rows is not None:
        _check_whole(request.rows, needed)
        columns = _of_json(request.rows, schema, keys, ignores_unknown=ignores_unknown)
        return PlainBlock(schema, columns, request.count, request.size_bytes)
    assert request.stream is not None
    table = read_stream(request.stream)
    _check_whole_columns(table, needed)
    return ArrowBlock(_of_arrow(table, schema, keys, ignores_unknown=ignores_unknown))


def row_keys(rows: Iterable[str | bytes], key: str) -> list[str]:
    """A key of each row, the same whenever these rows are sent under this key: equal rows are numbered."""
    seen: Counter[str | bytes] = Counter()
    found: list[str] = []
    for row in rows:
        seen[row] += 1
        content = row if isinstance(row, bytes) else row.encode("utf-8", "surrogatepass")
        found.append(hashlib.sha256(b"%s\n%s\n%d" % (key.encode(), content, seen[row])).hexdigest())
    return found


def _check_cells(rows: int, schema: RowSchema) -> None:
    cells = rows * len(schema.fields)
    if cells > CELLS_MAX:
        raise ValidationFailed(
            f"{rows} rows of {len(schema.fields)} columns are {cells} values; at most {CELLS_MAX} go into one request. "
            "Send several, each under a key of its own",
            rule="limit.rows",
        )


def _check_defaults(left_out: Mapping[str, int], schema: RowSchema) -> None:
    """Raises `ValidationFailed` where defaults would make much of little.

    Args:
        left_out: columns with defaults, and how many rows leave them out.
    """
    size_bytes = sum(_size_of(schema.defaults[name]) * rows for name, rows in left_out.items())
    if size_bytes > DEFAULTS_MAX_BYTES:
        longest = max(left_out, key=lambda name: _size_of(schema.defaults[name]) * left_out[name])
        raise _too_much(longest, size_bytes)


def _left_out_within(name: str) -> Callable[[Any, int], None]:
    """Counts the defaults of fields within a column that its values leave out; likewise."""
    size_bytes = 0

    def left_out(default: Any, times: int) -> None:
        nonlocal size_bytes
        size_bytes += _size_of(default) * times
        if size_bytes > DEFAULTS_MAX_BYTES:
            raise _too_much(name, size_bytes)

    return left_out


def _too_much(longest: str, size_bytes: int) -> ValidationFailed:
    return ValidationFailed(
        f"the defaults of columns that the rows leave out, above all {clean(longest, 200)}, would take "
        f"{size_bytes} bytes; at most {DEFAULTS_MAX_BYTES} go into one request. Send fewer rows at once, each part "
        "under a key of its own, or name the column",
        rule="limit.rows",
    )


def _size_of(default: Any) -> int:
    match default:
        case str() | bytes():
            return len(default)
        case Mapping():
            return sum(_size_of(each) for pair in cast("Mapping[Any, Any]", default).items() for each in pair)
        case list() | tuple():
            return sum(map(_size_of, cast("list[Any]", default)))
        case _:
            return 8


def _check_names(given: Sequence[str], schema: RowSchema, *, ignores_unknown: bool) -> None:
    for name in given:
        if name in schema.unwritable:
            raise ValidationFailed(
                f"the column {clean(name, 200)} is of type {schema.unwritable[name]}, which is not written from rows; "
                "leave it out, or append files",
                rule="rows.columns",
            )
    known = {*schema.names, *schema.unwritable}
    unknown = [name for name in given if name not in known]
    if unknown and not ignores_unknown:
        raise ValidationFailed(
            f"the table has no column {', '.join(clean(name, 100) for name in unknown[:5])}; it has "
            f"{', '.join(schema.names[:50])}. Leave it out, or have it added to the table",
            rule="rows.columns",
        )


def _check_whole(rows: Sequence[JSONRow], needed: Sequence[str]) -> None:
    bad: list[BadRow] = []
    for number, row in enumerate(rows, 1) if needed else ():
        if row.get(CHANGE_COLUMN) != Act.DELETE:
            bad += [BadRow(number, name, f"it {_NOT_WHOLE}") for name in needed if name not in row]
        if len(bad) > NAMED_MAX:
            break
    if bad:
        _refuse(bad)


def _check_whole_columns(table: Any, needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in table.column_names]
    if not missing:
        return
    acts = table.column(CHANGE_COLUMN).to_pylist() if table.column_names.count(CHANGE_COLUMN) == 1 else [None]
    if any(act != Act.DELETE for act in acts):
        raise ValidationFailed(f"the column {clean(missing[0], 200)} {_NOT_WHOLE}", rule="rows.columns")


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_json(rows: Sequence[JSONRow], schema: RowSchema, key: str, *, ignores_unknown: bool) -> tuple[list[Any], ...]:
    if key:
        bare = [row for row in rows if row.get(KEY_COLUMN) is None]
        own = iter(row_keys((orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in bare), key))
        rows = [row if row.get(KEY_COLUMN) is not None else {**row, KEY_COLUMN: next(own)} for row in rows]
    _check_names(list(dict.fromkeys(name for row in rows for name in row)), schema, ignores_unknown=ignores_unknown)
    left_out = {name: sum(name not in row for row in rows) for name in schema.defaults}
    _check_defaults(left_out, schema)
    bad: list[BadRow] = []
    rows = _filled_within(rows, schema)
    columns = tuple(_column(rows, field, schema.defaults, bad) for field in schema.fields)
    if bad:
        _refuse(bad)
    return columns


def _filled_within(rows: Sequence[JSONRow], schema: RowSchema) -> Sequence[JSONRow]:
    """The rows with the defaults of fields that are left out within their columns."""
    for name, within in schema.nested.items():
        kind, left_out = schema.arrow.field(name).type, _left_out_within(name)
        rows = [{**row, name: within.filled(row[name], kind, left_out)} if name in row else row for row in rows]
    return rows


def _column(rows: Sequence[JSONRow], field: Any, defaults: Mapping[str, Any], bad: list[BadRow]) -> list[Any]:
    name, kind = field.name, field.type
    convert = of_column(kind)
    missing = defaults.get(name, _LEFT_OUT)
    found: list[Any] = []
    for number, row in enumerate(rows, 1):
        value = row.get(name, _LEFT_OUT)
        if value is _LEFT_OUT and missing is not _LEFT_OUT:
            found.append(missing)
            continue
        try:
            if value is _LEFT_OUT or value is None:
                found.append(converted(None, kind, name, nullable=field.nullable))
            else:
                found.append(convert(value, name))
        except Unfit as error:
            bad.append(BadRow(number, error.path, str(error)))
            if len(bad) > NAMED_MAX:
                _refuse(bad)
    return found


# ── Arrow ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_arrow(table: Any, schema: RowSchema, key: str, *, ignores_unknown: bool) -> Any:
    pa, pc = pyarrow(), compute()
    names: list[str] = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValidationFailed(f"the stream has the column {clean(twice, 200)} twice", rule="rows.columns")
    _check_names(names, schema, ignores_unknown=ignores_unknown)
    count = table.num_rows
    table = table.select(sorted(name for name in names if name in schema.names))
    names = table.column_names
    _check_defaults({name: count for name in schema.defaults if name not in names}, schema)
    if key:
        others = [name for name in names if name != KEY_COLUMN]
        given = table.column(KEY_COLUMN) if KEY_COLUMN in names else None
        if given is None or given.null_count:
            own = pa.chunked_array([row_keys(_row_bytes(table.select(others)) if others else [b""] * count, key)])
            if given is not None and given.null_count < count:
                own = pc.if_else(pc.is_valid(given), given, own.cast(given.type))
            table = table.select(others).append_column(KEY_COLUMN, own) if others else pa.table({KEY_COLUMN: own})
            names = table.column_names
    arrays: list[Any] = []
    bad: list[BadRow] = []
    for field in schema.fields:
        if field.name in names:
            given = table.column(field.name).combine_chunks()
            if field.name in schema.nested:
                given = schema.nested[field.name].widened(_whole(given), field.type, _left_out_within(field.name))
            array = fitted(given, field, field.name)
            _check_moments(array, field.name)
            if (inner := _null_inside(array, field.type)) is not None:
                raise ValidationFailed(
                    f"the column {clean(field.name, 200)} has a null in {clean(inner, 200)}, which is required",
                    rule=RULE,
                )
        elif field.name in schema.defaults:
            array = made([schema.defaults[field.name]] * count, field.type)
        else:
            array = made([None] * count, field.type)
        if not field.nullable and array.null_count:
            positions = pc.indices_nonzero(pc.is_null(array))
            problem = "null does not fit; it takes a value, for it is required"
            bad += [BadRow(at + 1, field.name, problem) for at in positions[: NAMED_MAX + 1].to_pylist()]
        arrays.append(array)
    if bad:
        _refuse(bad)
    return pa.Table.from_arrays(arrays, schema=schema.arrow)


def _row_bytes(table: Any) -> Iterator[bytes]:
    """Each row as Arrow writes it: as Python values, a row with many would hold the interpreter's lock for long."""
    for batch in table.combine_chunks().to_batches():
        for at in range(batch.num_rows):
            yield batch.slice(at, 1).serialize().to_pybytes()


def fitted(array: Any, field: Any, path: str) -> Any:
    """An array as a column's type has it, every value the same. Raises `ValidationFailed`."""
    pa, array = pyarrow(), _whole(array)
    problem = _difference(array.type, field, path)
    if problem is not None:
        raise ValidationFailed(f"the column {clean(path, 200)} {problem}", rule=RULE)
    target = field.type
    try:
        array = without_required_nulls(array, target)
        if array.type == target:
            return array
        if isinstance(target, pa.BaseExtensionType):
            storage = array.storage if isinstance(array, pa.ExtensionArray) else array
            return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
        return array.cast(target, safe=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise ValidationFailed(
            f"the column {clean(path, 200)} has a value that {target} cannot hold as it is: {str(error)[:200]}",
            rule=RULE,
        ) from error


def _whole(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pyarrow().ChunkedArray) else array


def _check_moments(array: Any, path: str) -> None:
    """Raises `ValidationFailed` for a moment or a day outside of the years 1 to 9999, beyond which readers differ."""
    pa, pc = pyarrow(), compute()
    kind = array.type
    if pa.types.is_struct(kind):
        for at, part in enumerate(array.flatten()):
            _check_moments(part, f"{path}.{kind.field(at).name}")
    elif pa.types.is_map(kind):
        _check_moments(array.keys, f"{path}.key")
        _check_moments(array.items, f"{path}.value")
    elif pa.types.is_list(kind):
        _check_moments(array.flatten(), f"{path}.element")
    elif pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        unit = 1 if pa.types.is_date32(kind) else 86_400 * 10**6
        first, last = FIRST_DAY * unit, (LAST_DAY + 1) * unit - 1
        bounds = pc.min_max(array.cast(pa.int32() if unit == 1 else pa.int64()))
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        if least is not None and (least < first or most > last):
            raise ValidationFailed(
                f"the column {clean(path, 200)} has a value outside of the years 1 to 9999; send null",
                rule=RULE,
            )


def _difference(have: Any, field: Any, path: str) -> str | None:
    """Why values of a type are not taken for a column; None where each of them has one meaning there."""
    pa = pyarrow()
    types, want = pa.types, field.type
    if have == want or types.is_null(have):
        return None
    if types.is_struct(want) and types.is_struct(have):
        own, theirs = [each.name for each in want], [each.name for each in have]
        if own != theirs:
            return f"has the fields {', '.join(theirs)[:200]}, and takes {', '.join(own)[:200]} in this order"
        return _first(_inner(have.field(at), want.field(at), path) for at in range(want.num_fields))
    if types.is_list(want) and (types.is_list(have) or types.is_large_list(have)):
        return _inner(have.value_field, want.value_field, path)
    if types.is_map(want) and types.is_map(have):
        return _inner(have.key_field, want.key_field, path) or _inner(have.item_field, want.item_field, path)
    if any(all(is_kind(each) for each in (have, want)) for is_kind in _alike(types)):
        return None
    if types.is_floating(want) and types.is_floating(have) and have.bit_width <= want.bit_width:
        return None
    if types.is_timestamp(want) and types.is_timestamp(have) and bool(have.tz) == bool(want.tz):
        return None
    if "uuid" in str(want) and types.is_fixed_size_binary(have) and have.byte_width == 16:
        return None
    return f"is of type {str(have)[:200]}, and takes {str(want)[:200]}"


def _alike(types: Any) -> tuple[Any, ...]:
    def text(kind: Any) -> bool:
        return types.is_string(kind) or types.is_large_string(kind)

    def binary(kind: Any) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind)

    def fixed(kind: Any) -> bool:
        return types.is_fixed_size_binary(kind) and not types.is_decimal(kind)

    return types.is_integer, types.is_decimal, text, binary, fixed, types.is_date, types.is_time


def _inner(have: Any, want: Any, path: str) -> str | None:
    return _difference(have.type, want, path)


def _first(problems: Any) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _null_inside(array: Any, kind: Any) -> str | None:
    """The name of a required field within a column's type that has a null there; None where there is none."""
    types = pyarrow().types
    if types.is_struct(kind):
        parts = [(kind.field(at), part, array.null_count) for at, part in enumerate(array.flatten())]
    elif types.is_list(kind):
        parts = [(kind.value_field, array.flatten(), 0)]
    elif types.is_map(kind):
        items = array.filter(array.is_valid())
        parts = [(kind.key_field, items.keys, 0), (kind.item_field, items.items, 0)]
    else:
        return None
    for field, values, allowed in parts:
        if not field.nullable and values.null_count > allowed:
            return field.name
        inner = _null_inside(values, field.type)
        if inner is not None:
            return inner
    return None


def _refuse(bad: Sequence[BadRow]) -> NoReturn:
    bad = sorted(bad, key=lambda each: each.number)
    shown = "; ".join(
        f"row {each.number}, column {clean(each.column, 100)}: {clean(each.problem, 300)}" for each in bad[:NAMED_MAX]
    )
    more = ", and others" if len(bad) > NAMED_MAX else ""
    raise ValidationFailed(
        f"{counted(min(len(bad), NAMED_MAX), 'value')} of the rows {'do' if len(bad) > 1 else 'does'} not fit the "
        f"table, and none of the rows was written: {shown}{more}",
        rule=RULE,
    )

"""What tools do with tables, by PyIceberg and the SDK. All of it blocks, and runs in `workers`."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from typing import Any, cast

from icetower.agent import Patience, Sent, Tower, refusal_of, send
from icetower.agent.deliveries import Act
from icetower.ambient import Ambient
from icetower.contracts.check import Clear, Touch, check
from icetower.contracts.model import FILE_OPERATIONS, Operation
from icetower.contracts.terms import Layout
from icetower.contracts.wording import region_text
from icetower.counting import series
from icetower.errors import BadRequest, IcetowerError
from icetower.iceberg.partitions import known_specs, partition_name
from icetower.mcp.caller import Caller, Me
from icetower.mcp.results import CELL_CHARACTERS_MAX, Column, Described, Partition, Rows, Untrusted, clean, cleaned
from icetower.protocol.names import Identifier

ROWS_MAX = 200
"""Rows of one page, read or written by one call."""
WRITTEN_ROWS_MAX = 1_000
CHARACTERS_MAX = 16_000
"""Of the rows of one page."""
OFFSET_MAX = 10_000
"""Rows that may be paged through; beyond, a narrower filter is wanted."""
SCANNED_FILES_MAX = 1_000
SCANNED_BYTES_MAX = 512 * 1024 * 1024
FILTER_CHARACTERS_MAX = 2_000
FILTER_DEPTH_MAX = 20
PARTITIONS_MAX = 100
FILES_LOOKED_AT_MAX = 5_000
WRITE_ATTEMPTS_MAX = 4
WRITE_WITHIN_S = 30.0
TOWER_TIMEOUT_S = 30.0
ASKED_FOR = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE)


class Desk:
    """A caller's clients, for one call."""

    def __init__(self, caller: Caller, ambient: Ambient) -> None:
        self.caller = caller
        self.ambient = ambient
        self.tower = Tower(caller.uri, caller.token, timeout_s=TOWER_TIMEOUT_S)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self.tower.close()

    @cached_property
    def me(self) -> Me:
        return Me.of(self.tower.me())

    @cached_property
    def catalog(self) -> Any:
        load_catalog = import_module("pyiceberg.catalog").load_catalog
        return load_catalog("tower", **{**self.caller.storage, **self.tower.pyiceberg_properties()})

    def table(self, name: str) -> Any:
        """PyIceberg's table. Raises the `IcetowerError` of the tower's answer."""
        identifier = Identifier.parse(name)
        return self.catalog.load_table((*identifier.namespace, identifier.name))


def error_of(raised: BaseException) -> IcetowerError | None:
    """The refusal behind whatever a call has raised; None where it is none, and its text is not for the caller."""
    found = refusal_of(raised)
    if found is not None:
        return found
    if type(raised).__module__ == "pyiceberg.exceptions":
        return BadRequest(f"{type(raised).__name__}: {clean(str(raised))}")
    return None


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_tables(desk: Desk, namespace: str | None, limit: int) -> tuple[list[str], bool]:
    """Names of tables, sorted, and whether there are more."""
    catalog, found = desk.catalog, list[str]()
    spaces = [tuple(namespace.split("."))] if namespace else _namespaces(catalog, limit)
    for space in spaces:
        found += [".".join(each) for each in catalog.list_tables(space)]
        if len(found) > limit:
            break
    found.sort()
    return [clean(name) for name in found[:limit]], len(found) > limit


def _namespaces(catalog: Any, limit: int) -> list[tuple[str, ...]]:
    waiting: list[tuple[str, ...]] = [tuple(each) for each in catalog.list_namespaces()]
    found: list[tuple[str, ...]] = []
    while waiting and len(found) < limit:
        space = waiting.pop(0)
        found.append(space)
        waiting += [tuple(each) for each in catalog.list_namespaces(space)]
    return found


# ── Description ──────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(desk: Desk, name: str) -> Described:
    """Columns, partition fields, partitions and whose they are."""
    table, me = desk.table(name), desk.me
    metadata: Mapping[str, Any] = desk.tower.load(name)["metadata"]
    schema, snapshot = table.schema(), table.current_snapshot()
    keys = set(schema.identifier_field_names())
    columns = [
        Column(name=clean(f.name), type=clean(str(f.field_type)), required=f.required, key=f.name in keys)
        for f in schema.fields[:500]
    ]
    fields = [
        f"{field.name} = {field.transform}({schema.find_column_name(field.source_id)})" for field in table.spec().fields
    ]
    partitions, more = _partitions(table, metadata, me, name, desk.ambient.now_ms())
    summary: Any = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    return Described(
        summary=f"{clean(name)}: {len(columns)} columns, {len(partitions)} partitions shown"
        + (", and there are more" if more else ""),
        table=clean(name),
        columns=columns,
        partition_fields=[clean(each) for each in fields],
        partitions=partitions,
        snapshot=None if snapshot is None else str(snapshot.snapshot_id),
        total_rows=summary.get("total-records"),
        mine=owned_in_words(me, name),
        delivery=_delivery(desk, name),
    )


def _partitions(
    table: Any, metadata: Mapping[str, Any], me: Me, name: str, now_ms: int
) -> tuple[list[Partition], bool]:
    specs, layout, identifier = known_specs(metadata), Layout.of(metadata), Identifier.parse(name)
    found: dict[tuple[int, tuple[Any, ...]], list[int]] = {}
    more = False
    for position, task in enumerate(table.scan().plan_files()):
        file = task.file
        partition = tuple(file.partition[at] for at in range(len(file.partition)))
        key = (file.spec_id, partition)
        if position >= FILES_LOOKED_AT_MAX or (key not in found and len(found) >= PARTITIONS_MAX):
            more = True
            continue
        counted = found.setdefault(key, [0, 0])
        counted[0] += file.record_count
        counted[1] += 1
    shown = list[Partition]()
    for (spec_id, partition), (rows, files) in found.items():
        spec = specs[spec_id]
        held = [
            operation.value
            for operation in ASKED_FOR
            if isinstance(
                check(
                    me.contract,
                    identifier,
                    [Touch(spec, partition, True, 0)],
                    frozenset({operation}),
                    layout=layout,
                    now_ms=now_ms,
                ),
                Clear,
            )
        ]
        shown.append(Partition(name=clean(partition_name(spec, partition)), rows=rows, files=files, mine_for=held))
    return sorted(shown, key=lambda each: each.name), more


def owned_in_words(me: Me, table: str | None = None) -> list[str]:
    """What a contract grants, one line an entry; of one table, or of all."""
    if me.contract.administrator:
        return ["everything, as an administrator"]
    identifier = None if table is None else Identifier.parse(table)
    lines: list[str] = []
    for rule in me.contract.rules if identifier is None else me.contract.rules_for(identifier):
        where = ""
        if rule.partitions == () and any(map(rule.grants, FILE_OPERATIONS)):
            where = ", on no partition yet"
        elif rule.partitions:
            where = ", on rows where " + "; or where ".join(region_text(each) for each in rule.partitions)
        if rule.excluded:
            where += ", but not where " + "; or where ".join(region_text(each) for each in rule.excluded)
        through = f", through the {rule.orchestration.value}" if rule.orchestration.value != "direct" else ""
        lines.append(
            clean(f"{rule.pattern}: {series([each.value for each in Operation if rule.grants(each)])}{where}{through}")
        )
    if me.contract.shadow:
        lines.append("the contract is in shadow mode: it notes what it would refuse, and lets it by")
    return lines


def _delivery(desk: Desk, name: str) -> str | None:
    for operation in ("append", "overwrite", "delete"):
        try:
            found = desk.tower.delivery(name, operation)
        except IcetowerError:
            continue
        return f"{found.pattern}" + (f", through {found.through}" if found.through else "")
    return None


def ways_into(desk: Desk, name: str) -> list[str]:
    """A table, and the log or delta table through which the caller's rows come into it."""
    found = [name]
    for operation in ("append", "overwrite", "delete"):
        try:
            through = desk.tower.delivery(name, operation).through
        except IcetowerError:
            continue
        if through is not None and through not in found:
            found.append(through)
    return found


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page begins: a snapshot, so that pages fit together, and rows to pass over."""

    snapshot: int
    offset: int
    query: str

    def text(self) -> str:
        return base64.urlsafe_b64encode(json.dumps([self.snapshot, self.offset, self.query]).encode()).decode()

    @classmethod
    def read(cls, text: str, query: str) -> Cursor:
        """Raises `BadRequest` where it is none, or of another query."""
        try:
            snapshot, offset, of = json.loads(base64.urlsafe_b64decode(text.encode("ascii", "strict")))
            found = cls(int(snapshot), int(offset), str(of))
        except (ValueError, TypeError, RecursionError) as error:
            raise _wrong("cursor", "is none that query_rows has given") from error
        if found.query != query or found.offset < 0:
            raise _wrong("cursor", "is of another query; leave it out, or ask the same query again")
        return found


def query(desk: Desk, name: str, columns: Sequence[str], where: str | None, limit: int, cursor: str | None) -> Rows:
    """A page of rows."""
    about = hashlib.sha256(json.dumps([name, list(columns), where]).encode()).hexdigest()[:16]
    at = None if cursor is None else Cursor.read(cursor, about)
    condition = parsed_filter(where)
    table = desk.table(name)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return Rows(summary=f"{clean(name)} has no rows yet", table=clean(name))
    snapshot_id = snapshot.snapshot_id if at is None else at.snapshot
    if table.snapshot_by_id(snapshot_id) is None:
        raise _wrong("cursor", "is of a snapshot that has expired; begin again without it")
    offset = 0 if at is None else at.offset
    unknown = [column for column in columns if column not in table.schema().column_names]
    if unknown:
        raise _wrong("columns", f"{clean(name)} has no column {clean(unknown[0])!r}; describe_table lists them")
    scan = table.scan(row_filter=condition, selected_fields=tuple(columns) or ("*",), snapshot_id=snapshot_id)
    _require_bounded(scan)
    rows, more = _page(scan, offset, limit)
    following = offset + len(rows)
    if more and following >= OFFSET_MAX:
        more = False
    return Rows(
        summary=f"{len(rows)} rows of {clean(name)} at snapshot {snapshot_id}"
        + (", and there are more (next_cursor)" if more else ""),
        table=clean(name),
        snapshot=str(snapshot_id),
        columns=[clean(each) for each in (columns or table.schema().column_names)][:500],
        returned=len(rows),
        untrusted=Untrusted(source=f"table {clean(name)}", rows=rows),
        next_cursor=Cursor(snapshot_id, following, about).text() if more else None,
    )


def _require_bounded(scan: Any) -> None:
    files = size_bytes = 0
    for task in scan.plan_files():
        files, size_bytes = files + 1, size_bytes + task.file.file_size_in_bytes
        if files > SCANNED_FILES_MAX or size_bytes > SCANNED_BYTES_MAX:
            raise BadRequest(
                f"the query would read more than {SCANNED_FILES_MAX} files, or {SCANNED_BYTES_MAX >> 20} MiB; name "
                "partitions in `where`",
                rule="mcp.scan",
            )


def _page(scan: Any, offset: int, limit: int) -> tuple[list[dict[str, Any]], bool]:
    rows: list[dict[str, Any]] = []
    characters = 0
    for row in _rows(scan, offset):
        if len(rows) == limit:
            return rows, True
        shown = cast("dict[str, Any]", cleaned(_json(row)))
        characters += len(json.dumps(shown, ensure_ascii=False, default=str))
        if rows and characters > CHARACTERS_MAX:
            return rows, True
        rows.append(shown)
    return rows, False


def _rows(scan: Any, offset: int) -> Iterator[dict[str, Any]]:
    left = offset
    with scan.to_arrow_batch_reader() as reader:
        for batch in reader:
            if left >= batch.num_rows:
                left -= batch.num_rows
                continue
            for at in range(left, batch.num_rows):
                yield batch.slice(at, 1).to_pylist()[0]
            left = 0


def _json(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)  # clients in JavaScript would round it
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return "base64:" + base64.b64encode(value[:CELL_CHARACTERS_MAX]).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in cast("list[Any]", value)]
    return str(value)


def parsed_filter(text: str | None) -> Any:
    """PyIceberg's expression of a filter. Nothing in it is executed. Raises `BadRequest`."""
    expressions = import_module("pyiceberg.expressions")
    if text is None or not text.strip():
        return expressions.AlwaysTrue()
    deepest = depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    words = text.lower().split()
    if len(text) > FILTER_CHARACTERS_MAX or deepest > FILTER_DEPTH_MAX or words.count("not") > FILTER_DEPTH_MAX:
        raise _wrong("where", f"is longer than {FILTER_CHARACTERS_MAX} characters, or nests too deep")
    try:
        return import_module("pyiceberg.expressions.parser").parse(text)
    except Exception as error:
        raise _wrong(
            "where",
            "is no filter: write comparisons of columns with values, such as region = 'eu' AND amount >= 10, with "
            "IN (…), IS NULL, LIKE 'a%', AND, OR, NOT",
        ) from error


def _wrong(what: str, why: str) -> BadRequest:
    return BadRequest(f"{what}: {why}", rule="mcp.arguments")


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def key_of(principal: str, table: str, operation: str, keys: Sequence[str], rows: Sequence[Any], batch: str) -> str:
    """The key of a write, from its content alone: a UUID of version 7 in form."""
    content = json.dumps([principal, table, operation, list(keys), list(rows), batch], sort_keys=True, default=str)
    digest = bytearray(hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()[:16])
    digest[6], digest[8] = 0x70 | digest[6] & 0x0F, 0x80 | digest[8] & 0x3F
    text = bytes(digest).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def write(
    desk: Desk, name: str, rows: Sequence[Mapping[str, Any]], operation: Act, keys: Sequence[str], key: str
) -> Sent:
    """Send rows by the way that the contract says. What is stale is tried again a few times under the same key."""
    target = desk.table(name)
    sent_rows = arrow_of(rows, target.schema().as_arrow())
    patience = Patience(attempts_max=1, total_s=WRITE_WITHIN_S, ambient=desk.ambient)
    until_s = desk.ambient.monotonic_s() + WRITE_WITHIN_S
    for attempt in range(WRITE_ATTEMPTS_MAX):
        try:
            return send(
                sent_rows, name, desk.tower, desk.catalog, operation=operation, key=key, keys=keys, patience=patience
            )
        except Exception as raised:
            refusal = error_of(raised)
            again = refusal is not None and refusal.next_step in ("refresh", "retry")
            late = desk.ambient.monotonic_s() > until_s
            if not again or late or attempt + 1 == WRITE_ATTEMPTS_MAX:
                if refusal is None:
                    raise
                raise refusal from raised
            patience.pause(0.1 * 2**attempt * (0.5 + desk.ambient.uniform() / 2))
    raise AssertionError("the last attempt has returned or raised")


def arrow_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Rows of JSON as a PyArrow table with the columns that they name. Raises `BadRequest` naming the column."""
    pa = import_module("pyarrow")
    if not 0 < len(rows) <= WRITTEN_ROWS_MAX:
        raise _wrong("rows", f"has {len(rows)} rows; send 1 to {WRITTEN_ROWS_MAX} at once")
    named = list(dict.fromkeys(name for row in rows for name in row))
    unknown = [name for name in named if name not in schema.names]
    if unknown:
        raise _wrong("rows", f"the table has no column {clean(unknown[0])!r}; describe_table lists its columns")
    if not named:
        raise _wrong("rows", "no row names a column")
    arrays = [_column(pa, name, [row.get(name) for row in rows], schema.field(name).type) for name in named]
    return pa.Table.from_arrays(arrays, names=named)


def _column(pa: Any, name: str, values: list[Any], kind: Any) -> Any:
    given = (
        [_binary(value) for value in values] if pa.types.is_large_binary(kind) or pa.types.is_binary(kind) else values
    )
    try:
        if any(isinstance(value, str) for value in given) and not (
            pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_nested(kind)
        ):
            texts = [value if value is None or isinstance(value, str) else str(value) for value in given]
            return pa.array(texts, pa.string()).cast(kind)
        if pa.types.is_decimal(kind):
            return pa.array([None if value is None else str(value) for value in given], pa.string()).cast(kind)
        return pa.array(given, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise _wrong("rows", f"a value of column {clean(name)} is no {clean(str(kind))}") from error


def _binary(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return base64.b64decode(value.removeprefix("base64:"), validate=True)

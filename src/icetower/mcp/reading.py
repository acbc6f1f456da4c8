"""`query_rows`: a page of rows. All of it blocks, and reads what others wrote: it runs in a process of its own."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from typing import Any, cast

from icetower.errors import BadRequest
from icetower.mcp.results import CELL_CHARACTERS_MAX, Rows, Untrusted, clean, cleaned
from icetower.mcp.tables import Desk, wrong

ROWS_MAX = 200
"""Rows of one page."""
CHARACTERS_MAX = 16_000
"""Of the rows of one page."""
OFFSET_MAX = 10_000
"""Rows that may be paged through; beyond, a narrower filter is wanted."""
SCANNED_FILES_MAX = 1_000
SCANNED_BYTES_MAX = 512 * 1024 * 1024
UNPACKED_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""As the footers of Parquet say; they are read one after the other, each before its file."""
FILTER_CHARACTERS_MAX = 2_000
FILTER_DEPTH_MAX = 20


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
            raise wrong("cursor", "is none that query_rows has given") from error
        if found.query != query or found.offset < 0:
            raise wrong("cursor", "is of another query; leave it out, or ask the same query again")
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
        raise wrong("cursor", "is of a snapshot that has expired; begin again without it")
    offset = 0 if at is None else at.offset
    unknown = [column for column in columns if column not in table.schema().column_names]
    if unknown:
        raise wrong("columns", f"{clean(name)} has no column {clean(unknown[0])!r}; describe_table lists them")
    scan = table.scan(row_filter=condition, selected_fields=tuple(columns) or ("*",), snapshot_id=snapshot_id)
    rows, more = page_of(rows_of(batches(scan, planned(scan)), offset), limit)
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


def planned(scan: Any) -> list[Any]:
    """What a query reads, as its manifests say. Raises `BadRequest` where it is too much."""
    tasks: list[Any] = []
    size_bytes = 0
    for task in scan.plan_files():
        tasks.append(task)
        size_bytes += task.file.file_size_in_bytes
        _require_little(len(tasks), size_bytes)
    return tasks


def _require_little(files: int, size_bytes: int) -> None:
    if files > SCANNED_FILES_MAX or size_bytes > SCANNED_BYTES_MAX:
        raise BadRequest(
            f"the query would read more than {SCANNED_FILES_MAX} files, or {SCANNED_BYTES_MAX >> 20} MiB; name "
            "partitions in `where`",
            rule="mcp.scan",
        )


def batches(scan: Any, tasks: list[Any]) -> Iterator[Any]:
    """The rows of the files that were planned, batch by batch: PyIceberg's own readers collect whole files first."""
    arrow = import_module("pyiceberg.io.pyarrow")
    projection = scan.projection()
    wanted = {field.field_id for field in projection.fields}
    reader = arrow.ArrowScan(scan.table_metadata, scan.io, projection, scan.row_filter, scan.case_sensitive)
    sizes = Sizes()
    for file in {file.file_path: file for task in tasks for file in task.delete_files}.values():
        sizes.add(scan.io.new_input(file.file_path), file, None)
    deletes = arrow._read_all_delete_files(scan.io, tasks)
    for task in tasks:
        sizes.add(scan.io.new_input(task.file.file_path), task.file, wanted)
        yield from reader._record_batches_from_scan_tasks_and_deletes([task], deletes)


class Sizes:
    """What the files themselves say of their sizes: a manifest may say anything."""

    def __init__(self) -> None:
        self._packed_bytes = self._unpacked_bytes = 0

    def add(self, source: Any, file: Any, wanted: set[int] | None) -> None:
        """A file that is about to be read. `wanted`: columns of it. Raises `BadRequest` where all are too much."""
        self._packed_bytes += len(source)
        _require_little(0, self._packed_bytes)
        if file.file_format.value.lower() != "parquet":
            return
        with source.open() as stream:
            self._unpacked_bytes += unpacked_bytes(stream, wanted)
        if self._unpacked_bytes > UNPACKED_BYTES_MAX:
            raise BadRequest(
                f"the query would unpack more than {UNPACKED_BYTES_MAX >> 20} MiB; name partitions in `where`, or "
                "fewer `columns`",
                rule="mcp.scan",
            )


def unpacked_bytes(stream: Any, wanted: set[int] | None) -> int:
    """What the columns of a Parquet file unpack to, as its footer says. `wanted`: by their field ids; None: all."""
    found = import_module("pyarrow.parquet").ParquetFile(stream)
    fields = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in found.schema_arrow}
    left_out = {name for name, id_ in fields.items() if wanted is not None and id_ and int(id_) not in wanted}
    size_bytes = 0
    for group in map(found.metadata.row_group, range(found.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] not in left_out:
                size_bytes += max(0, column.total_uncompressed_size)
    return size_bytes


def page_of(found: Iterator[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first rows, as they are shown, and whether there are more."""
    rows: list[dict[str, Any]] = []
    characters = 0
    for row in found:
        if len(rows) == limit:
            return rows, True
        shown = cast("dict[str, Any]", cleaned(_json(row)))
        characters += len(json.dumps(shown, ensure_ascii=False, default=str))
        if rows and characters > CHARACTERS_MAX:
            return rows, True
        rows.append(shown)
    return rows, False


def rows_of(batches: Iterator[Any], offset: int) -> Iterator[dict[str, Any]]:
    """The rows after the first `offset`."""
    left = offset
    for batch in batches:
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
        raise wrong("where", f"is longer than {FILTER_CHARACTERS_MAX} characters, or nests too deep")
    try:
        return import_module("pyiceberg.expressions.parser").parse(text)
    except Exception as error:
        raise wrong(
            "where",
            "is no filter: write comparisons of columns with values, such as region = 'eu' AND amount >= 10, with "
            "IN (…), IS NULL, LIKE 'a%', AND, OR, NOT",
        ) from error

"""Data files as they are, and not as their writer says: size, rows, columns, statistics and partition, by the footer.

The footer is read here and not by pyarrow, which a damaged one can make end the process (`thrift`).

One ranged request a file fetches its end and tells its length. What goes into the manifest is computed from the footer;
of the client's own statistics only counts of NaN are taken, since most footers lack them: without these a column of
floating-point numbers has no bounds, for an engine that knows of no NaN may take all rows to match a filter.

A partition tuple is proven where the statistics show that all rows have it: for identity, truncate and the times, where
least and greatest value give the same, and for a bucket where the column has one value only. What the statistics
contradict is refused. The rest is the writer's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson

from icetower.counting import counted
from icetower.errors import NotFound, Unavailable, ValidationFailed
from icetower.iceberg import transforms
from icetower.iceberg.column_metrics import NONE, Mode, lower_bound, modes_of, upper_bound
from icetower.iceberg.manifests import DATA, DataFile
from icetower.iceberg.partitions import PartitionField, PartitionSpec, human_value
from icetower.iceberg.record_sizes import ADDED_MAX_BYTES, BOUND_MAX_BYTES, BOUNDS_MAX_BYTES, record_bytes, too_long
from icetower.iceberg.schemas import columns, source_of
from icetower.parquet.columns import Leaf, TableColumns, leaves_of, read_schema
from icetower.parquet.statistics import Values, orders, values_of
from icetower.parquet.thrift import Struct, inner, read_struct, structs, whole
from icetower.parquet.values import reader, schema_elements
from icetower.recent import Budget, Recent
from icetower.storage.port import Storage
from icetower.threads import Threads

Json = Mapping[str, Any]

TAIL_BYTES = 32 * 1024
"""What is read of a file's end at first. Most footers are shorter, and no store charges more for it than for 1 KiB."""

FOOTER_MAX_BYTES = 4 * 1024 * 1024
"""Enough for 8,000 columns in four row groups. A thread is busy with it for 2.5 to 5 seconds, and since it shares the
interpreter's lock, other requests meanwhile take up to 0.2 s longer: /healthz was asked all the while."""

REQUEST_MAX_BYTES = 16 * 1024 * 1024
"""All footers of one request."""

ON_LOOP_BYTES = 64 * 1024
"""So much of a request's footers is parsed on the event loop, which takes up to 40 ms; what is more, in a thread."""

WAITING_MAX_BYTES = 64 * 1024 * 1024
"""Footers that wait for the thread, of all requests."""

TIMEOUT_S = 60.0
LAYOUTS_SHARE = 0.125
"""The part of the caches' budget for what tables ask of their files, and for the schemas of their last files."""

SCHEMAS_MAX = 16
_LAYOUT_BYTES, _COLUMN_BYTES = 4_000, 1_300
"""What a table's layout takes in memory, and one column of a file's schema."""

_MAGIC = b"PAR1"
_END_BYTES = 8
_UNDECIDED = object()


@dataclass(frozen=True, slots=True)
class Claim:
    """A Parquet file as its writer describes it, with the partition in manifests' form."""

    path: str
    record_count: int
    size_bytes: int
    spec: PartitionSpec
    partition: tuple[Any, ...]
    sort_order_id: int | None = None
    nan_value_counts: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Verified:
    """A data file ready for a manifest. `unproven`: names of partition fields that are its writer's word alone."""

    file: DataFile
    spec_id: int
    unproven: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    leaf: Leaf
    mode: Mode
    read: Callable[[bytes], Any] | None
    is_source: bool
    has_bounds: bool


class Layout:
    """What a table asks of its data files, derived once from its metadata."""

    def __init__(self, metadata: Json) -> None:
        self._parts = _parts_of(metadata)
        schemas: Sequence[Json] = metadata["schemas"]
        current = next(s for s in schemas if s["schema-id"] == metadata["current-schema-id"])
        properties: Mapping[str, str] = metadata["properties"]
        order = next((o for o in metadata["sort-orders"] if o["order-id"] == metadata["default-sort-order-id"]), {})
        self.modes = modes_of(current, properties, order.get("fields") or ())
        self.columns = TableColumns(
            fields=current["fields"],
            known=frozenset(column.id for schema in schemas for column in columns(schema)),
            mapping=_name_mapping(properties.get("schema.name-mapping.default")),
        )
        self.sources = frozenset(source_of(field) for spec in metadata["partition-specs"] for field in spec["fields"])
        self.order_ids = frozenset(o["order-id"] for o in metadata["sort-orders"])
        self._known: list[tuple[bytes, tuple[_Column, ...]]] = []

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, about, with the schemas that it remembers."""
        own = _LAYOUT_BYTES + _COLUMN_BYTES * len(self.columns.known)
        return own + sum(len(begin) + _COLUMN_BYTES * len(found) for begin, found in self._known)

    def is_of(self, metadata: Json) -> bool:
        """Whether metadata asks for the same; versions of a table share what did not change."""
        return all(one is other for one, other in zip(self._parts, _parts_of(metadata), strict=True))

    def columns_of(self, footer: bytes, path: str) -> tuple[tuple[_Column, ...], int]:
        """The columns of a file by its footer, and where in the footer what comes after the schema begins.

        Writers use one schema for all their files: the last few are remembered, by their very bytes.

        Raises:
            ValidationFailed: see `leaves_of`.
            ValueError: this is no footer.
        """
        for begin, found in self._known:
            if footer.startswith(begin):
                return found, len(begin)
        elements, end = schema_elements(footer)
        leaves = leaves_of(read_schema(elements), self.columns, path)
        found = tuple(self._column(leaf) for leaf in leaves)
        self._known = [(footer[:end], found), *self._known[: SCHEMAS_MAX - 1]]
        return found, end

    def _column(self, leaf: Leaf) -> _Column:
        mode = self.modes.get(leaf.id, NONE) if leaf.kind is not None else NONE
        kind = leaf.kind or ""
        read = None if leaf.repeated or leaf.kind is None else reader(leaf.stored, leaf.physical, kind)
        bounds = mode.bounds and read is not None and not kind.startswith(("geometry", "geography"))
        return _Column(leaf, mode, read, leaf.id in self.sources, bounds)


def _parts_of(metadata: Json) -> tuple[Any, ...]:
    names = ("schemas", "partition-specs", "properties", "sort-orders")
    ids = ("current-schema-id", "default-sort-order-id")
    return (*(metadata[name] for name in names), *(metadata[name] for name in ids))


def _name_mapping(text: str | None) -> Sequence[Json] | None:
    if text is None:
        return None
    try:
        mapping: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        mapping = None
    if not isinstance(mapping, list) or not all(isinstance(entry, dict) for entry in mapping):
        raise ValidationFailed(
            "the table property schema.name-mapping.default is no name mapping (a JSON list of objects); correct it",
            rule="append.field-ids",
        )
    return mapping


class _Budget:
    """What one request may ask for."""

    __slots__ = ("_bytes", "_on_loop_bytes")

    def __init__(self) -> None:
        self._bytes = REQUEST_MAX_BYTES
        self._on_loop_bytes = ON_LOOP_BYTES

    def take(self, size_bytes: int) -> None:
        """Raises `ValidationFailed` (``limit.footers``) where the request's footers are too long."""
        self._bytes -= size_bytes
        if self._bytes < 0:
            raise ValidationFailed(
                f"the footers of the append's files have more than {REQUEST_MAX_BYTES} bytes; send fewer files at once",
                rule="limit.footers",
            )

    def on_loop(self, size_bytes: int) -> bool:
        """Whether a footer is parsed on the event loop."""
        if size_bytes > self._on_loop_bytes:
            return False
        self._on_loop_bytes -= size_bytes
        return True


class Footers:
    """Verifies data files by their footers. Of a file nothing is kept."""

    def __init__(self, storage: Storage, *, budget: Budget | None = None) -> None:
        self._storage = storage
        self._threads = Threads(1, "footers")  # more would only fight for the interpreter's lock
        self._waiting_bytes = 0
        self._layouts: Recent[Layout] = (budget or Budget()).cache("layouts of data files", share=LAYOUTS_SHARE)

    async def verify(self, metadata: Json, claims: Sequence[Claim]) -> list[Verified]:
        """The files as they are, in the order given.

        Raises:
            ValidationFailed: one is not what its writer says, or does not fit the table; ``append.*`` says how.
            UpstreamFailed: the storage failed.
            Unavailable: too many long footers wait to be read.
        """
        layout = self._layout(metadata)
        before = layout.memory_bytes
        try:
            return await self._verify_all(layout, claims)
        finally:
            if layout.memory_bytes != before and self._layouts.get(uuid := str(metadata.get("table-uuid"))) is layout:
                self._layouts.reweigh(uuid, layout.memory_bytes)

    async def _verify_all(self, layout: Layout, claims: Sequence[Claim]) -> list[Verified]:
        budget = _Budget()
        if len(claims) == 1:
            return [await self._verify(layout, claims[0], budget)]
        tasks = [asyncio.ensure_future(self._verify(layout, claim, budget)) for claim in claims]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:  # one is refused: nobody wants to know about the others any more
                task.cancel()
            raise

    def _layout(self, metadata: Json) -> Layout:
        uuid = str(metadata.get("table-uuid"))
        layout = self._layouts.get(uuid)
        if layout is None or not layout.is_of(metadata):
            layout = Layout(metadata)
            self._layouts.put(uuid, layout, layout.memory_bytes)
        return layout

    async def _verify(self, layout: Layout, claim: Claim, budget: _Budget) -> Verified:
        end, size_bytes = await self._footer(claim.path, claim.size_bytes, budget)
        if budget.on_loop(size_bytes):
            return verified(layout, claim, end)
        if self._waiting_bytes + size_bytes > WAITING_MAX_BYTES:
            raise Unavailable("too many data files with long footers wait to be read; try again")
        self._waiting_bytes += size_bytes
        try:
            return await self._threads.run(lambda: verified(layout, claim, end), TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable(
                f"the footer of {claim.path} was not read in time (limit {TIMEOUT_S:g} s): try again"
            ) from error
        finally:
            self._waiting_bytes -= size_bytes

    async def _footer(self, path: str, size_bytes: int, budget: _Budget) -> tuple[bytes, int]:
        """The file's end, from its footer on at least; and how long the footer is, in bytes."""
        if size_bytes < len(_MAGIC) + _END_BYTES:
            _refuse(path, "append.footer", f"a Parquet file has more than {size_bytes} bytes")
        tail = await self._end(path, size_bytes, min(TAIL_BYTES, size_bytes))
        if tail[-4:] != _MAGIC:
            _refuse(path, "append.footer", "it does not end as Parquet files do; encrypted footers are not read either")
        wanted = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
        if not _END_BYTES < wanted <= min(size_bytes - len(_MAGIC), FOOTER_MAX_BYTES):
            _refuse(
                path,
                "append.footer",
                f"its footer is said to have {wanted - _END_BYTES} bytes, and at most {FOOTER_MAX_BYTES} are read; "
                "write it with fewer row groups",
            )
        budget.take(wanted)
        return (tail if wanted <= len(tail) else await self._end(path, size_bytes, wanted)), wanted

    async def _end(self, path: str, size_bytes: int, length_bytes: int) -> bytes:
        """The last `length_bytes` bytes of a file that is `size_bytes` long, which is found out on the way."""
        start = size_bytes - length_bytes
        try:
            data = await self._storage.read_range(path, start, length_bytes + 1)
        except NotFound as error:
            raise ValidationFailed(
                f"the data file {path} does not exist; write it first, then append it",
                rule="append.file",
                files=(path,),
            ) from error
        if len(data) > length_bytes:
            _refuse(path, "append.size", f"it has more than the {size_bytes} bytes of its file-size-in-bytes")
        if len(data) < length_bytes:
            had = f"{start + len(data)}" if data else f"at most {start}"
            _refuse(path, "append.size", f"it has {had} bytes, and {size_bytes} by its file-size-in-bytes")
        return data


def verified(layout: Layout, claim: Claim, end: bytes) -> Verified:
    """A file by its footer.

    Args:
        end: the file's last bytes, the whole footer included.

    Raises:
        ValidationFailed: see `Footers.verify`.
    """
    path = claim.path
    length = int.from_bytes(end[-_END_BYTES:-4], "little")
    try:
        footer = end[-_END_BYTES - length : -_END_BYTES]
        found, at = layout.columns_of(footer, path)
        rest, _ = read_struct(footer, at, after=2, until=4)
        rows = whole(rest, 3)
        groups = structs(rest, 4)
        if rows != claim.record_count or sum(whole(group, 3) for group in groups) != rows:
            _refuse(
                path, "append.records", f"it has {counted(rows, 'row')}, and {claim.record_count} by its record-count"
            )
        chunks = [_chunks(group, found, claim.size_bytes) for group in groups]
        ordered = orders(footer, at, [column.leaf for column in found])
        statistics, sources = _statistics(found, chunks, claim, ordered)
        offsets = sorted(_offset(group[0]) for group in chunks if group)
    except (ValueError, IndexError) as error:
        _refuse(path, "append.footer", f"its footer cannot be read: {error}")
    if claim.sort_order_id is not None and claim.sort_order_id not in layout.order_ids:
        _refuse(path, "append.sort-order", f"the table has no sort order {claim.sort_order_id}; leave it out")
    record: dict[str, Any] = {
        "content": DATA,
        "file_path": path,
        "file_format": "PARQUET",
        "record_count": rows,
        "file_size_in_bytes": claim.size_bytes,
        "split_offsets": offsets or None,
        "sort_order_id": claim.sort_order_id,
    }
    unproven = _unproven(claim, sources)
    file = DataFile(
        content=DATA,
        path=path,
        file_format="PARQUET",
        partition=claim.partition,
        record_count=rows,
        size_bytes=claim.size_bytes,
        first_row_id=None,
        referenced_data_file=None,
        record=record | statistics,
    )
    size_bytes = record_bytes(file)
    if size_bytes > ADDED_MAX_BYTES:
        raise too_long(path, size_bytes)
    return Verified(file, claim.spec.spec_id, unproven)


def _chunks(group: Struct, found: Sequence[_Column], size_bytes: int) -> list[Struct]:
    """What a row group says of each column (`ColumnMetaData`). Raises `ValueError`."""
    chunks = structs(group, 1)
    if len(chunks) != len(found):
        raise ValueError(f"a row group has {len(chunks)} columns, and the schema {len(found)}")
    rows = whole(group, 3)
    described: list[Struct] = []
    for chunk, column in zip(chunks, found, strict=True):
        said, leaf = inner(chunk, 3), column.leaf
        if 1 in chunk or 8 in chunk or 9 in chunk:
            raise ValueError(f"the column {leaf.name} lies in another file, or is encrypted")
        if said.get(3) != leaf.path or said.get(1) != leaf.physical:
            raise ValueError(f"a row group has another column where the schema has {leaf.name}")
        values = whole(said, 5)
        if values < rows if leaf.repeated else values != rows:
            raise ValueError(f"the column {leaf.name} has {values} values in a row group of {rows} rows")
        if whole(said, 7) < 0 or not 0 <= _offset(said) <= size_bytes:
            raise ValueError(f"the column {leaf.name} lies outside the file")
        described.append(said)
    return described


def _offset(chunk: Struct) -> int:
    """Where a column's pages begin, and with the first column's its row group."""
    places = [place for place in (whole(chunk, 11, 0), whole(chunk, 9)) if place]
    return min(places, default=len(_MAGIC))


# -- statistics -------------------------------------------------------------------------------------------------------


def _statistics(
    found: Sequence[_Column], groups: Sequence[Sequence[Struct]], claim: Claim, ordered: Sequence[bool]
) -> tuple[dict[str, Any], dict[int, Values]]:
    """The maps of a manifest's entry, and what is known of the sources of partitions."""
    sizes: dict[int, int] = {}
    counts: list[dict[str, int]] = []
    nulls: list[dict[str, int]] = []
    nans: list[dict[str, int]] = []
    lowers: list[dict[str, Any]] = []
    uppers: list[dict[str, Any]] = []
    sources: dict[int, Values] = {}
    left_bytes = BOUNDS_MAX_BYTES
    _check_nan_columns(found, claim)
    for column in found:
        leaf, mode = column.leaf, column.mode
        if not (mode.counts or column.is_source or leaf.must_be_filled):
            continue
        read = column.read if column.has_bounds or column.is_source else None
        values = values_of(leaf, read, (group[leaf.index] for group in groups), ordered=ordered[leaf.index])
        if column.is_source:
            sources[leaf.id] = values
        if leaf.must_be_filled and values.nulls != 0:
            what = "has no count of nulls" if values.nulls is None else f"has {values.nulls} nulls"
            _refuse(claim.path, "append.required", f"its column {leaf.name} is required by the table, and {what}")
        if not mode.counts:
            continue
        sizes[leaf.id] = sizes.get(leaf.id, 0) + values.size_bytes
        if leaf.repeated or values.nulls is None:
            continue
        counts.append({"key": leaf.id, "value": values.count})
        nulls.append({"key": leaf.id, "value": values.nulls})
        if leaf.kind in ("float", "double"):
            nan = _nan_count(leaf, values, claim)
            if nan is None:
                continue
            nans.append({"key": leaf.id, "value": nan})
        if column.has_bounds and values.lower is not None and values.upper is not None:
            # Two orders of UUIDs are about, Parquet's and Java's: bounds are right in both where they are equal.
            if leaf.kind == "uuid" and values.lower != values.upper:
                continue
            lower = lower_bound(values.lower, leaf.kind or "", mode.length)
            upper = upper_bound(values.upper, leaf.kind or "", mode.length)
            for bounds, bound in ((lowers, lower), (uppers, upper)):
                # Readers do without a bound, but not without the table: one of many megabytes may be asked for.
                if bound is not None and len(bound) <= min(BOUND_MAX_BYTES, left_bytes):
                    bounds.append({"key": leaf.id, "value": bound})
                    left_bytes -= len(bound)
    maps = {
        "column_sizes": [{"key": column_id, "value": size} for column_id, size in sizes.items()],
        "value_counts": counts,
        "null_value_counts": nulls,
        "nan_value_counts": nans,
        "lower_bounds": lowers,
        "upper_bounds": uppers,
    }
    return {name: pairs for name, pairs in maps.items() if pairs}, sources


def _check_nan_columns(found: Sequence[_Column], claim: Claim) -> None:
    """Of floating-point columns alone NaN is known; what is above their values is found out with their statistics.

    Within lists and maps there may be more of them than rows, and nobody uses what is said of them. Of what type a
    column was that the table has dropped is not asked: its writer began before.
    """
    if not claim.nan_value_counts:
        return
    floating = {column.leaf.id: column.leaf for column in found if column.leaf.kind in ("float", "double", None)}
    for column_id, nan in claim.nan_value_counts.items():
        leaf = floating.get(column_id)
        if leaf is None:
            _refuse_nan(claim.path, f"of the column {column_id}, and it has no floating-point column of that id")
        if nan > claim.record_count and not leaf.repeated:
            _refuse_nan(claim.path, f"{nan} of the {claim.record_count} rows in {leaf.name}")


def _nan_count(leaf: Leaf, values: Values, claim: Claim) -> int | None:
    """NaN in a column: as the footer counts them (newer writers do), or else as the writer says."""
    nan = claim.nan_value_counts.get(leaf.id, values.nans)
    filled = values.count - (values.nulls or 0)
    if nan is not None and nan > filled:
        _refuse_nan(claim.path, f"{nan} of the {filled} values of {leaf.name}")
    if values.nans is not None and nan != values.nans:
        _refuse_nan(claim.path, f"{nan} in {leaf.name}, and its footer says {values.nans}")
    return nan


def _refuse_nan(path: str, said: str) -> NoReturn:
    _refuse(path, "append.nan-counts", f"its nan-value-counts say {said}; count them again, or leave the counts out")


# -- partitions -------------------------------------------------------------------------------------------------------


def _unproven(claim: Claim, sources: Mapping[int, Values]) -> tuple[str, ...]:
    """The partition fields that are not proven. Raises `ValidationFailed` (``append.partition``) for a contradiction.

    A file without rows lies in whatever partition it says.
    """
    unproven: list[str] = []
    for part, given in zip(claim.spec.fields, claim.partition, strict=True) if claim.record_count else ():
        if part.transform == "void":
            continue
        values = sources.get(part.source_id)
        proven = _proven(part, given, values, claim.record_count)
        if proven is _UNDECIDED:
            unproven.append(part.name)
        elif proven is not None:
            _refuse(
                claim.path,
                "append.partition",
                f"its partition says {part.name}={human_value(part, given)}, and its rows {proven}",
            )
    return tuple(unproven)


def _proven(part: PartitionField, given: Any, values: Values | None, rows: int) -> Any:
    """None: proven. A text: contradicted, and by what. `_UNDECIDED`: unknown."""
    if values is None:  # the file lacks the column: all rows read as null, unless it has a default
        return _UNDECIDED
    if given is None or values.nulls == rows:
        if values.nulls is None:
            return _UNDECIDED
        said = f"have {values.nulls} nulls of {rows} in {part.source_name}"
        return None if given is None and values.nulls == rows else said
    if values.nulls is None or values.nulls > 0:
        return _UNDECIDED if values.nulls is None else f"have {values.nulls} nulls in {part.source_name}"
    if values.lower is None or values.upper is None or part.source_type in ("float", "double"):
        return _UNDECIDED
    if part.transform.startswith("bucket") and values.lower != values.upper:
        return _UNDECIDED
    low, high = (transforms.apply(part.transform, part.source_type, value) for value in (values.lower, values.upper))
    if low == given and high == given:
        return None if values.exact else _UNDECIDED
    # Libraries differ in how they round times before 1970.
    if not values.exact or (isinstance(low, int) and low < 0 and part.transform in ("year", "month", "day", "hour")):
        return _UNDECIDED
    return f"go from {human_value(part, low)} to {human_value(part, high)}"


def _refuse(path: str, rule: str, problem: str) -> NoReturn:
    raise ValidationFailed(f"the data file {path} is refused: {problem}", rule=rule, files=(path,))

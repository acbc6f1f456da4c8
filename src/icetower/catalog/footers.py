"""Data files as they are, and not as their writer says: size, rows, columns, statistics and partition, by the footer.

One ranged request a file fetches its end and tells its length. What goes into the manifest is computed from the footer;
of the client's own statistics only counts of NaN are taken, since a footer does not tell them: without these a
floating-point column has no bounds, for an engine that knows of no NaN may take all rows to match a filter.

A partition tuple is proven where the statistics show that all rows have it: for identity, truncate and the times, where
least and greatest value give the same, and for a bucket where the column has one value only. What the statistics
contradict is refused. The rest is the writer's word.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, NoReturn

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from icetower.catalog.parquet_columns import Leaf, TableColumns, leaves_of
from icetower.catalog.ports import Storage
from icetower.conflicts import transforms
from icetower.errors import NotFound, ValidationFailed
from icetower.table.avro_schemas import parse_decimal
from icetower.table.column_metrics import NONE, Mode, lower_bound, modes_of, upper_bound
from icetower.table.manifests import DATA, DataFile
from icetower.table.partitions import PartitionField, PartitionSpec, human_value
from icetower.table.schemas import columns

Json = Mapping[str, Any]

TAIL_BYTES = 32 * 1024
"""What is read of a file's end at first. Most footers are shorter, and no store charges more for it than for 1 KiB."""

FOOTER_MAX_BYTES = 8 * 1024 * 1024
LAYOUTS_MAX = 256
SCHEMAS_MAX = 16
_MAGIC = b"PAR1"
_END_BYTES = 8
_INEXACT_FROM_BYTES = 64
"""Some writers cut the statistics of longer values without saying so."""

_WIDE = Context(prec=60)
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
class _Values:
    """What a footer says of one column: `lower` and `upper` as internal values; None where it does not say.

    `exact`: whether the bounds are values of the column and not merely around them.
    """

    count: int
    size_bytes: int
    nulls: int | None
    lower: Any
    upper: Any
    exact: bool


@dataclass(frozen=True, slots=True)
class _Column:
    leaf: Leaf
    mode: Mode
    read: Callable[[Any], Any] | None
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
        self.sources = frozenset(
            f["source-id"] if "source-id" in f else f["source-ids"][0]
            for spec in metadata["partition-specs"]
            for f in spec["fields"]
        )
        self.order_ids = frozenset(o["order-id"] for o in metadata["sort-orders"])
        self._flat: list[tuple[Any, tuple[_Column, ...]]] = []

    def is_of(self, metadata: Json) -> bool:
        """Whether metadata asks for the same; versions of a table share what did not change."""
        return all(one is other for one, other in zip(self._parts, _parts_of(metadata), strict=True))

    def columns_of(self, schema: Any, path: str) -> tuple[_Column, ...]:
        """The columns of a file with this Parquet schema. Raises `ValidationFailed`, see `leaves_of`.

        Writers use one schema for all their files, so the last few are remembered. Parquet compares the columns of
        values only, which is enough where there is nothing around them.
        """
        flat = all(schema.column(at).path == schema.column(at).name for at in range(len(schema)))
        for known, found in self._flat if flat else ():
            if known.equals(schema):
                return found
        found = tuple(self._column(leaf) for leaf in leaves_of(schema.to_arrow_schema(), self.columns, path))
        if len(found) != len(schema):
            _refuse(path, "append.columns", f"its schema has {len(schema)} columns of values, of {len(found)} kinds")
        if flat:
            self._flat = [(schema, found), *self._flat[: SCHEMAS_MAX - 1]]
        return found

    def _column(self, leaf: Leaf) -> _Column:
        mode = self.modes.get(leaf.id, NONE) if leaf.kind is not None else NONE
        kind = leaf.kind or ""
        read = None if leaf.repeated or leaf.kind is None else _reader(leaf.stored, kind)
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


class Footers:
    """Verifies data files by their footers. Of a file nothing is kept."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._layouts: OrderedDict[str, Layout] = OrderedDict()

    async def verify(self, metadata: Json, claims: Sequence[Claim]) -> list[Verified]:
        """The files as they are, in the order given.

        Raises:
            ValidationFailed: one is not what its writer says, or does not fit the table; ``append.*`` says how.
            UpstreamFailed: the storage failed.
        """
        layout = self._layout(metadata)
        if len(claims) == 1:
            return [await self._verify(layout, claims[0])]
        return list(await asyncio.gather(*(self._verify(layout, claim) for claim in claims)))

    def _layout(self, metadata: Json) -> Layout:
        uuid = str(metadata.get("table-uuid"))
        layout = self._layouts.get(uuid)
        if layout is None or not layout.is_of(metadata):
            layout = self._layouts[uuid] = Layout(metadata)
        self._layouts.move_to_end(uuid)
        if len(self._layouts) > LAYOUTS_MAX:
            self._layouts.popitem(last=False)
        return layout

    async def _verify(self, layout: Layout, claim: Claim) -> Verified:
        return verified(layout, claim, await self._footer(claim.path, claim.size_bytes))

    async def _footer(self, path: str, size_bytes: int) -> bytes:
        """The file's end, from its footer on at least."""
        if size_bytes < len(_MAGIC) + _END_BYTES:
            _refuse(path, "append.footer", f"a Parquet file has more than {size_bytes} bytes")
        tail = await self._end(path, size_bytes, min(TAIL_BYTES, size_bytes))
        if tail[-4:] != _MAGIC:
            _refuse(path, "append.footer", "it does not end as Parquet files do; encrypted footers are not read either")
        wanted = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
        if not _END_BYTES < wanted <= min(size_bytes - len(_MAGIC), FOOTER_MAX_BYTES):
            _refuse(path, "append.footer", f"its footer is said to have {wanted - _END_BYTES} bytes")
        return tail if wanted <= len(tail) else await self._end(path, size_bytes, wanted)

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
    try:
        footer = pq.read_metadata(pa.BufferReader(end))
        schema = footer.schema
        groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
        rows = footer.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValidationFailed(
            f"the footer of {path} cannot be read ({type(error).__name__}): write the file again",
            rule="append.footer",
            files=(path,),
        ) from error
    if rows != claim.record_count or sum(group.num_rows for group in groups) != rows:
        _refuse(path, "append.records", f"it has {rows} rows, and {claim.record_count} by its record-count")
    if claim.sort_order_id is not None and claim.sort_order_id not in layout.order_ids:
        _refuse(path, "append.sort-order", f"the table has no sort order {claim.sort_order_id}; leave it out")
    found = layout.columns_of(schema, path)
    record: dict[str, Any] = {
        "content": DATA,
        "file_path": path,
        "file_format": "PARQUET",
        "record_count": rows,
        "file_size_in_bytes": claim.size_bytes,
        "split_offsets": sorted(_offset(group) for group in groups) or None,
        "sort_order_id": claim.sort_order_id,
    }
    try:
        statistics, sources = _statistics(found, groups, claim)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        _refuse(path, "append.footer", f"its statistics cannot be read ({type(error).__name__})")
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
    return Verified(file, claim.spec.spec_id, unproven)


def _offset(group: Any) -> int:
    """Where a row group begins."""
    first = group.column(0)
    places = [place for place in (first.dictionary_page_offset, first.data_page_offset) if place]
    return min(places, default=len(_MAGIC))


# -- statistics -------------------------------------------------------------------------------------------------------


def _statistics(
    found: Sequence[_Column], groups: Sequence[Any], claim: Claim
) -> tuple[dict[str, Any], dict[int, _Values]]:
    """The maps of a manifest's entry, and what is known of the sources of partitions."""
    sizes: dict[int, int] = {}
    counts: list[dict[str, int]] = []
    nulls: list[dict[str, int]] = []
    nans: list[dict[str, int]] = []
    lowers: list[dict[str, Any]] = []
    uppers: list[dict[str, Any]] = []
    sources: dict[int, _Values] = {}
    for column in found:
        leaf, mode = column.leaf, column.mode
        if not (mode.counts or column.is_source or leaf.must_be_filled):
            continue
        values = _values(column, groups)
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
            if leaf.id not in claim.nan_value_counts:
                continue
            nans.append({"key": leaf.id, "value": min(claim.nan_value_counts[leaf.id], values.count)})
        if column.has_bounds and values.lower is not None and values.upper is not None:
            # Two orders of UUIDs are about, Parquet's and Java's: bounds are right in both where they are equal.
            if leaf.kind == "uuid" and values.lower != values.upper:
                continue
            lowers.append({"key": leaf.id, "value": lower_bound(values.lower, leaf.kind or "", mode.length)})
            upper = upper_bound(values.upper, leaf.kind or "", mode.length)
            if upper is not None:
                uppers.append({"key": leaf.id, "value": upper})
    maps = {
        "column_sizes": [{"key": column_id, "value": size} for column_id, size in sizes.items()],
        "value_counts": counts,
        "null_value_counts": nulls,
        "nan_value_counts": nans,
        "lower_bounds": lowers,
        "upper_bounds": uppers,
    }
    return {name: pairs for name, pairs in maps.items() if pairs}, sources


def _values(column: _Column, groups: Sequence[Any]) -> _Values:
    """One column over all row groups; a group that says nothing leaves nothing known."""
    count = size_bytes = 0
    nulls: int | None = 0
    lower: Any = None
    upper: Any = None
    bounded = column.read is not None and (column.has_bounds or column.is_source)
    exact = True
    for group in groups:
        chunk = group.column(column.leaf.index)
        statistics = chunk.statistics
        count += chunk.num_values
        size_bytes += chunk.total_compressed_size
        here: int | None = statistics.null_count if statistics is not None and statistics.has_null_count else None
        nulls = None if nulls is None or here is None else nulls + here
        if not bounded or here == chunk.num_values:  # nothing but nulls has no bounds, and takes none away
            continue
        if statistics is None or not statistics.has_min_max:
            bounded, lower, upper = False, None, None
            continue
        low, high, exactly = _bounds(column.read, statistics)
        if low is None or high is None:
            bounded, lower, upper = False, None, None
            continue
        exact = exact and exactly
        lower = low if lower is None or low < lower else lower
        upper = high if upper is None or high > upper else upper
    return _Values(count, size_bytes, nulls, lower, upper, exact)


def _bounds(read: Callable[[Any], Any] | None, statistics: Any) -> tuple[Any, Any, bool]:
    if read is None:
        return None, None, False
    low, high = statistics.min_raw, statistics.max_raw
    short = not isinstance(high, bytes) or max(len(low), len(high)) < _INEXACT_FROM_BYTES
    try:
        return read(low), read(high), short
    except (UnicodeDecodeError, OverflowError, TypeError):
        return None, None, False


def _reader(stored: pa.DataType, kind: str) -> Callable[[Any], Any] | None:
    """From a footer's raw value to the internal value of a column of the type `kind`; None where there is none."""
    match kind:
        case "boolean" | "int" | "long" | "date" | "time" | "timestamp_ns" | "timestamptz_ns":
            return lambda raw: raw
        case "timestamp" | "timestamptz":
            return (lambda raw: raw * 1000) if stored.unit == "ms" else (lambda raw: raw)
        case "float" | "double":
            return lambda raw: None if math.isnan(raw) else raw
        case "string":
            return bytes.decode
        case "binary" | "uuid":
            return bytes
        case _ if kind.startswith("fixed["):
            return bytes
        case _ if decimal := parse_decimal(kind):
            scale = decimal[1]
            return lambda raw: _decimal(raw, scale)
        case _:
            return None


def _decimal(raw: int | bytes, scale: int) -> Decimal:
    number = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    return Decimal(number).scaleb(-scale, _WIDE)


# -- partitions -------------------------------------------------------------------------------------------------------


def _unproven(claim: Claim, sources: Mapping[int, _Values]) -> tuple[str, ...]:
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


def _proven(part: PartitionField, given: Any, values: _Values | None, rows: int) -> Any:
    """None: proven. A text: contradicted, and by what. `_UNDECIDED`: nobody can tell."""
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

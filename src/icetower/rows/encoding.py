"""The data files of a group: rows of many requests, as few Parquet files as their partitions allow. Pure.

Written as the table asks: sort order, compression, sizes of files, row groups and pages, bloom filters, and the metrics
that manifests keep (by the footer, as for anybody's files). What others would wait for is bounded. The owner of each
row is recorded by its position.

Source of the properties and their defaults: Iceberg 1.12, `TableProperties`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.files.footers import Claim, Layout, verified
from icetower.iceberg import transforms
from icetower.iceberg.metadata import data_location
from icetower.iceberg.partitions import PartitionSpec, columns_of
from icetower.iceberg.records import DataFile
from icetower.iceberg.schemas import source_of
from icetower.rows.arrow import compute, parquet, pyarrow
from icetower.rows.batches import Batch, Part
from icetower.rows.blocks import internal_values, source_column, together
from icetower.table.groups import Span

Json = Mapping[str, Any]
FOLDER = "-rows"
"""Under the place of the table's data files, beside the folders of principals: no principal may be called so."""

_MIB = 1024 * 1024
_CODECS = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "lz4": "lz4",
    "brotli": "brotli",
    "uncompressed": "none",
    "none": "none",
}
_LEVELS = {"zstd": 9, "gzip": 9, "brotli": 6}
"""Higher levels take seconds for a few megabytes, and other tables' rows would wait. A compaction may use them."""

FILE_MIN_BYTES = 64 * 1024
GROUP_MIN_ROWS = 100
PAGE_MIN_BYTES = 1024
"""Whatever the table says: else each row could be a file, a row group or a page. Iceberg's writers, too, look after 100
rows first whether a group is full."""

_BLOOM = "write.parquet.bloom-filter-"
_BLOOM_FPP = 0.01
_BLOOM_MIN_BYTES = 32
BLOOMS_MAX_BYTES = 8 * _MIB
"""Of all filters of a file together."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that is not written yet.

    Attributes:
        file: as the manifest has it, with its path.
        owners: by the position of a request in its group, which of the file's rows are its own.
    """

    file: DataFile
    spec_id: int
    data: bytes
    owners: Mapping[int, tuple[Span, ...]]


def rows_folder(location: str, properties: Mapping[str, str]) -> str:
    """Where the tower puts the files that it makes of rows. `location`, `properties`: the table's."""
    return f"{data_location(location, properties)}/{FOLDER}"


def encode(batches: Sequence[Batch], metadata: Json, new_name: Callable[[], str]) -> tuple[NewFile, ...]:
    """The data files for the rows of a group.

    Args:
        batches: one a request, in the order of the group.
        metadata: of the table, with the schema that the rows were read by.
        new_name: gives a name that was never used.
    """
    settings = _Settings(metadata)
    places: dict[Any, list[tuple[int, Part]]] = {}
    for position, batch in enumerate(batches):
        for part in batch.parts:
            places.setdefault(part.place, []).append((position, part))
    return tuple(file for parts in places.values() for file in _files(parts, settings, new_name))


class _Settings:
    """What a table asks of its files."""

    def __init__(self, metadata: Json) -> None:
        self.properties: Mapping[str, str] = metadata["properties"]
        self.folder = rows_folder(metadata["location"], self.properties)
        self.layout = Layout(metadata)
        self.sorting = _sorting(metadata)
        self.codec = _CODECS.get(self.properties.get("write.parquet.compression-codec", "zstd").lower(), "zstd")
        self.level = self._whole("write.parquet.compression-level", None)
        self.file_bytes = max(FILE_MIN_BYTES, self._whole("write.target-file-size-bytes", 512 * _MIB) or 0)
        self.group_bytes = self._whole("write.parquet.row-group-size-bytes", 128 * _MIB) or 128 * _MIB

    def _whole(self, name: str, default: int | None) -> int | None:
        text = self.properties.get(name, "").strip()
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else 0
        return number if 0 < number < 2**40 else default

    def writing(self, table: Any) -> dict[str, Any]:
        """Arguments for `pyarrow.parquet.write_table`."""
        level = self.level if self.codec in ("zstd", "gzip", "brotli") else None
        if level is not None:
            level = min(level, _LEVELS[self.codec])
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        group_rows = max(GROUP_MIN_ROWS, min(1_048_576, self.group_bytes // row_bytes))
        found: dict[str, Any] = {
            "compression": self.codec,
            "row_group_size": group_rows,
            "data_page_size": max(PAGE_MIN_BYTES, self._whole("write.parquet.page-size-bytes", _MIB) or 0),
            "dictionary_pagesize_limit": self._whole("write.parquet.dict-size-bytes", 2 * _MIB),
            "store_schema": False,
            "write_statistics": True,
        }
        if level is not None:
            found["compression_level"] = level
        blooms = self._blooms(table, group_rows)
        return found | ({"bloom_filter_options": blooms} if blooms else {})

    def _blooms(self, table: Any, group_rows: int) -> dict[str, dict[str, Any]]:
        """Each no longer than the table says, and all of them together bounded."""
        begin = f"{_BLOOM}enabled.column."
        columns: list[str] = []
        for name, value in self.properties.items():
            column = name[len(begin) :]
            asked = name.startswith(begin) and value.lower() == "true" and column in table.column_names
            if asked and not pyarrow().types.is_boolean(table.schema.field(column).type):  # of these Parquet has none
                columns.append(column)
        filters = max(1, len(columns)) * -(-table.num_rows // group_rows)
        own_max = self._whole("write.parquet.bloom-filter-max-bytes", _MIB) or _MIB
        max_bytes = min(own_max, BLOOMS_MAX_BYTES // filters)
        if max_bytes < _BLOOM_MIN_BYTES:
            return {}
        ndv = max(1, min(table.num_rows, group_rows))
        return {column: {"ndv": ndv, "fpp": max(self._fpp(column), _fpp_within(ndv, max_bytes))} for column in columns}

    def _fpp(self, column: str) -> float:
        try:
            fpp = float(self.properties.get(f"{_BLOOM}fpp.column.{column}", _BLOOM_FPP))
        except ValueError:
            return _BLOOM_FPP
        return fpp if 0.0 < fpp < 1.0 else _BLOOM_FPP


def _fpp_within(ndv: int, max_bytes: int) -> float:
    """The least probability of a false positive for which a filter of so many values takes no more bytes.

    Source: Parquet, "Bloom Filter": a split block filter of `n` values takes ``-8 n / ln(1 - fpp^(1/8))`` bits, rounded
    up to a power of two.
    """
    bits = 8 * 2 ** int(math.log2(max_bytes))
    return min(0.99, (1 - math.exp(-8 * ndv / bits)) ** 8)


def _files(parts: Sequence[tuple[int, Part]], settings: _Settings, new_name: Callable[[], str]) -> list[NewFile]:
    """The files of one partition."""
    spec, partition = parts[0][1].spec, parts[0][1].partition
    table = together([part.rows for _, part in parts])
    owner_of_row = [position for position, part in parts for _ in range(part.rows.count)]
    order_id: int | None = None
    if settings.sorting is not None:
        order = settings.sorting.order(table)
        table, order_id = table.take(order), settings.sorting.order_id
        owner_of_row = [owner_of_row[at] for at in order.to_pylist()]
    files = max(1, -(-table.nbytes // settings.file_bytes))
    rows_each = -(-table.num_rows // files)
    found: list[NewFile] = []
    for start in range(0, table.num_rows, rows_each):
        some = table.slice(start, rows_each)
        owners = _spans(owner_of_row[start : start + rows_each])
        found.append(
            _file(some, spec, partition, order_id, owners, settings, f"{settings.folder}/{new_name()}.parquet")
        )
    return found


def _spans(owners: Sequence[int]) -> dict[int, tuple[Span, ...]]:
    found: dict[int, list[Span]] = {}
    start = 0
    for at in range(1, len(owners) + 1):
        if at == len(owners) or owners[at] != owners[start]:
            found.setdefault(owners[start], []).append((start, at - start))
            start = at
    return {owner: tuple(spans) for owner, spans in found.items()}


def _file(
    table: Any,
    spec: PartitionSpec,
    partition: tuple[Any, ...],
    order_id: int | None,
    owners: Mapping[int, tuple[Span, ...]],
    settings: _Settings,
    path: str,
) -> NewFile:
    pa, pq = pyarrow(), parquet()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **settings.writing(table))
    data: bytes = sink.getvalue().to_pybytes()
    claim = Claim(path, table.num_rows, len(data), spec, partition, order_id, _nan_counts(table))
    # By its footer, as anybody's file: what a manifest says of it is true of the bytes.
    return NewFile(verified(settings.layout, claim, data).file, spec.spec_id, data, owners)


def _nan_counts(table: Any) -> dict[int, int]:
    """NaN by column id, of the columns that are not within lists and maps."""
    pa, pc = pyarrow(), compute()
    found: dict[int, int] = {}
    waiting = [(field, table.column(at)) for at, field in enumerate(table.schema)]
    while waiting:
        field, values = waiting.pop()
        if pa.types.is_struct(field.type):
            waiting += [(inner, pc.struct_field(values, [at])) for at, inner in enumerate(field.type)]
        elif pa.types.is_floating(field.type):
            found[int(field.metadata[b"PARQUET:field_id"])] = pc.sum(pc.is_nan(values)).as_py() or 0
    return found


# ── Sort orders ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Sorting:
    """A table's default sort order. `keys`: column, its type, transform, ascending, nulls first."""

    order_id: int
    keys: tuple[tuple[str, str, str, bool, bool], ...]

    def order(self, table: Any) -> Any:
        """The positions of the rows, in order."""
        pa, pc = pyarrow(), compute()
        columns: dict[str, Any] = {}
        keys: list[tuple[str, str]] = []
        for at, (name, kind, transform, ascending, nulls_first) in enumerate(self.keys):
            column = source_column(table, name)
            if transform != "identity":
                values = [transforms.apply(transform, kind, value) for value in internal_values(column, kind)]
                column = pa.chunked_array([pa.array(values)])
            elif isinstance(column.type, pa.BaseExtensionType):
                column = pa.chunked_array([chunk.storage for chunk in column.chunks])
            if column.null_count:
                columns[f"null{at}"] = pc.is_null(column)
                keys.append((f"null{at}", "descending" if nulls_first else "ascending"))
            columns[f"value{at}"] = column
            keys.append((f"value{at}", "ascending" if ascending else "descending"))
        return pc.sort_indices(pa.table(columns), sort_keys=keys)


def _sorting(metadata: Json) -> _Sorting | None:
    order = next((o for o in metadata["sort-orders"] if o["order-id"] == metadata["default-sort-order-id"]), None)
    fields: Sequence[Json] = (order or {}).get("fields") or ()
    if order is None or not fields:
        return None
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    columns = dict(columns_of(current))
    keys: list[tuple[str, str, str, bool, bool]] = []
    for field in fields:
        found = columns.get(source_of(field))
        if found is None:
            return None  # sorted by what this schema does not have
        ascending = str(field.get("direction", "asc")).lower() == "asc"
        nulls_first = str(field.get("null-order", "nulls-first")).lower() == "nulls-first"
        keys.append((*found, str(field["transform"]), ascending, nulls_first))
    return _Sorting(int(order["order-id"]), tuple(keys))

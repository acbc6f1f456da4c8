"""Parquet files in memory, and a storage that holds them: what agents write and what they say of it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icetower.files.footers import Claim
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.partitions import spec_of

PATH = "file:///w/t/data/a.parquet"


def column(column_id: int, name: str, kind: Any, *, required: bool = False) -> dict[str, Any]:
    return {"id": column_id, "name": name, "type": kind, "required": required}


def table(
    columns: Sequence[dict[str, Any]],
    *partitions: tuple[str, str, int],
    version: int = 2,
    order: Sequence[dict[str, Any]] = (),
    **properties: str,
) -> dict[str, Any]:
    """A new table's metadata; `partitions`: (name, transform, source column id)."""
    return table_metadata.new_table(
        uuid="u-1",
        location="file:///w/t",
        schema={"type": "struct", "fields": list(columns)},
        spec={
            "fields": [
                {"name": name, "transform": transform, "source-id": source, "field-id": 0}
                for name, transform, source in partitions
            ]
        },
        sort_order={"order-id": 1, "fields": list(order)} if order else None,
        properties={"format-version": str(version)} | {key.replace("_", "-"): text for key, text in properties.items()},
        now_ms=1_000,
    )


def field(name: str, kind: pa.DataType, field_id: int | None, *, nullable: bool = True) -> pa.Field:
    """A column with its field id, as Iceberg's writers set it."""
    metadata = None if field_id is None else {b"PARQUET:field_id": str(field_id).encode()}
    return pa.field(name, kind, nullable=nullable, metadata=metadata)


def parquet(fields: Sequence[pa.Field], *columns: Any, **options: Any) -> bytes:
    """A file of these columns."""
    arrays = [pa.array(values, type=each.type) for each, values in zip(fields, columns, strict=True)]
    out = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=pa.schema(fields)), out, **options)
    return out.getvalue()


def claim(metadata: dict[str, Any], data: bytes, *partition: Any, **changed: Any) -> Claim:
    """What an honest writer says of a file."""
    rows = pq.read_metadata(io.BytesIO(data)).num_rows
    given = {"path": PATH, "record_count": rows, "size_bytes": len(data)} | changed
    spec = spec_of(metadata, given.pop("spec_id", metadata["default-spec-id"]))
    return Claim(spec=spec, partition=tuple(partition), **given)

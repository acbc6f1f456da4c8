"""Tables and requests for the tests of rows."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from icetower.protocol.row_limits import ARROW_TYPE, JSON_TYPE
from icetower.protocol.rows import RowsRequest, parse_rows

UUID = "0198c1a2-0000-7000-8000-000000000001"


def column(id_: int, name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "type": type_, "required": False, **more}


def metadata(
    columns: Sequence[Mapping[str, Any]],
    *,
    spec: Sequence[Mapping[str, Any]] = (),
    order: Sequence[Mapping[str, Any]] = (),
    version: int = 2,
    properties: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "format-version": version,
        "table-uuid": UUID,
        "location": "file:///lake/ns/t",
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": list(columns)}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": list(spec)}],
        "default-sort-order-id": 1 if order else 0,
        "sort-orders": [{"order-id": 1, "fields": list(order)}] if order else [{"order-id": 0, "fields": []}],
        "properties": dict(properties or {}),
    }


def by(source_id: int, transform: str, name: str, field_id: int = 1000) -> dict[str, Any]:
    return {"source-id": source_id, "field-id": field_id, "transform": transform, "name": name}


def request(*rows: Mapping[str, Any]) -> RowsRequest:
    return parse_rows(json.dumps({"rows": rows}).encode(), JSON_TYPE, None)


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def arrow_request(table: pa.Table) -> RowsRequest:
    return parse_rows(stream(table), ARROW_TYPE, None)

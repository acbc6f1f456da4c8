"""Statistics files in table metadata: what Iceberg's Java could not read is refused. Pure.

Source: specification, "Table Statistics" and "Partition Statistics", and Iceberg's `StatisticsFileParser`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.iceberg.shapes import integer, integers, objects, text, text_map


def check_statistics(part: str, file: Mapping[str, Any]) -> int:
    """Raises `BadRequest` for a field that is missing or no value of its type. Returns the snapshot's id.

    Args:
        part: ``statistics`` or ``partition-statistics``.
    """
    snapshot_id = integer(file, "snapshot-id", part)
    text(file, "statistics-path", part)
    integer(file, "file-size-in-bytes", part)
    if part == "statistics":
        integer(file, "file-footer-size-in-bytes", part)
        for position, blob in enumerate(objects(file, "blob-metadata", part)):
            where = f"{part} blob-metadata[{position}]"
            text(blob, "type", where)
            integer(blob, "snapshot-id", where)
            integer(blob, "sequence-number", where)
            integers(blob, "fields", where, bits=32)
            if blob.get("properties") is not None:
                text_map(blob, "properties", where)
    return snapshot_id

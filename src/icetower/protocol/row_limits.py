"""The bounds of a request of rows, and the types of its body."""

from __future__ import annotations

ROWS_MAX = 10_000
"""Rows of one request."""

BODY_MAX_BYTES = 4 * 1024 * 1024
CELLS_MAX = 500_000
"""Values of one request: its rows times the columns of the table, those included that it leaves out."""

JSON_TYPE = "application/json"
NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
ARROW_TYPE = "application/vnd.apache.arrow.stream"

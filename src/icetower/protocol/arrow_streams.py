"""The messages of an Arrow IPC stream, walked before anything reads them: how many rows it has, and in which form.

A stream of a few bytes can stand for gigabytes: by compressed buffers, by a dictionary of one long text to which
millions of rows point, by a million rows of nothing. Its length says nothing of the memory that it takes
decoded, so compression and dictionaries are refused here.

Source: Apache Arrow, "Serialization and Interprocess Communication (IPC)", `Message.fbs`.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from icetower.errors import BadRequest, ValidationFailed
from icetower.protocol.row_limits import ROWS_MAX

BATCHES_MAX = 1_000
SCHEMA_MAX_BYTES = 512 * 1024
_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_COMPRESSION = 3
"""The field of a `RecordBatch` that says how its buffers are compressed."""


def rows_of_stream(data: bytes) -> int:
    """How many rows a stream has. Raises `BadRequest` (``rows.arrow``), `ValidationFailed` (``limit.rows``)."""
    at, rows, batches = 0, 0, 0
    while True:
        if at == len(data):
            break  # a stream may end without its end marker
        if data[at : at + 4] != _CONTINUES or len(data) < at + 8:
            refuse("a message does not begin as Arrow's do since version 0.15")
        size = struct.unpack_from("<i", data, at + 4)[0]
        if size == 0:
            break
        at += 8
        if size < 0 or at + size > len(data):
            refuse("a message is longer than the stream")
        kind, header, body = _message(data[at : at + size])
        if (kind == _SCHEMA) != (batches == 0 and rows == 0 and at == 8):
            refuse("it must begin with its schema, and have one")
        if kind == _SCHEMA and size > SCHEMA_MAX_BYTES:
            refuse(f"its schema has more than {SCHEMA_MAX_BYTES} bytes")
        if kind == _DICTIONARY:
            refuse("it has dictionary-encoded columns; send them as plain values")
        if kind not in (_SCHEMA, _BATCH):
            refuse("it has other messages than a schema and record batches")
        if kind == _BATCH:
            length, compressed = header
            if compressed:
                refuse("its buffers are compressed; send them as they are")
            if length < 0:
                refuse("a record batch has fewer than no rows")
            check_count(max(1, length))
            rows, batches = rows + length, batches + 1
            check_count(max(1, rows))
            if batches > BATCHES_MAX:
                refuse(f"it has more than {BATCHES_MAX} record batches")
        at += size
        if body < 0 or at + body > len(data):
            refuse("a message's body is longer than the stream")
        at += body
    check_count(rows)
    return rows


def _message(buffer: bytes) -> tuple[int, tuple[int, bool], int]:
    """A message's kind, of a record batch its rows and whether it is compressed, and the length of its body."""
    try:
        table = _Flat(buffer, struct.unpack_from("<I", buffer, 0)[0])
        kind = table.number(1, "<B", 0)
        body = table.number(3, "<q", 0)
        header = (0, False)
        if kind == _BATCH:
            batch = table.table(2)
            header = (batch.number(0, "<q", 0), batch.has(_COMPRESSION))
    except (struct.error, IndexError) as error:
        refuse("a message's header cannot be read", error)
    return kind, header, body


class _Flat:
    """A table of FlatBuffers; every offset is checked by `struct`, which raises beyond the end.

    Source: FlatBuffers, "FlatBuffers Internals".
    """

    def __init__(self, buffer: bytes, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - struct.unpack_from("<i", buffer, at)[0]
        if self._fields < 0:
            raise IndexError(self._fields)
        self._size = struct.unpack_from("<H", buffer, self._fields)[0]

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = struct.unpack_from("<H", self._buffer, self._fields + slot)[0] if slot + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def has(self, field: int) -> bool:
        return self._place(field) != 0

    def number(self, field: int, form: str, default: int) -> int:
        place = self._place(field)
        return struct.unpack_from(form, self._buffer, place)[0] if place else default

    def table(self, field: int) -> _Flat:
        place = self._place(field)
        if not place:
            raise IndexError(field)
        return _Flat(self._buffer, place + struct.unpack_from("<I", self._buffer, place)[0])


def refuse(problem: str, cause: BaseException | None = None) -> NoReturn:
    """Raises `BadRequest` (``rows.arrow``)."""
    raise BadRequest(f"the Arrow stream is not taken: {problem}", rule="rows.arrow") from cause


def check_count(rows: int) -> None:
    """Raises `BadRequest` for a request without rows, `ValidationFailed` (``limit.rows``) for one with too many."""
    if not rows:
        raise BadRequest("Cannot parse request of rows: rows: must have at least one row", rule="shape")
    if rows > ROWS_MAX:
        raise ValidationFailed(
            f"the request has {rows} rows; at most {ROWS_MAX} go into one. Send several, each under a key of its own",
            rule="limit.rows",
        )

"""Rows that an agent sends to a table: the request in its three forms.

    POST /v1/namespaces/{ns}/tables/{table}/rows
    application/json                       {"rows": [{"sku": "a", …}, …], "operation": "append", "ref": "main",
                                            "key": "…", "application": {"id": "…", "sequence": 7}}
    application/x-ndjson                   one row a line; ?operation= and ?ref=, and the headers Idempotency-Key,
                                           Icetower-Application, Icetower-Sequence
    application/vnd.apache.arrow.stream    an Arrow IPC stream; likewise

The rows themselves are read when the table's schema is known (`icetower.rows`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic_core import from_json

from icetower.errors import BadRequest, BodyTooLarge
from icetower.protocol.appends import NAME_CHARACTERS_MAX
from icetower.protocol.arrow_streams import check_count, rows_of_stream
from icetower.protocol.leases import leases_of
from icetower.protocol.row_limits import ARROW_TYPE, BODY_MAX_BYTES, JSON_TYPE, NDJSON_TYPES
from icetower.protocol.wire import check_counts, read_object

JSONRow = dict[str, Any]


class Act(StrEnum):
    """What is done with rows.

    append  they are added
    upsert  they take the place of those with the same keys
    delete  those with the same keys are removed
    """

    APPEND = "append"
    UPSERT = "upsert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Rows for one branch of a table.

    Attributes:
        rows: where they came as JSON.
        stream: where they came as an Arrow IPC stream.
        application: (application, sequence), where the caller numbers its requests.
        fingerprint: stands for the rows: equal for a retry.
        size_bytes: of the body.
        count: of the rows.
        seed: of the rows' own keys, where that is not the request's key.
        leases: the intents that the sender believes to hold, each with its fence.
    """

    ref: str
    key: str | None
    application: tuple[str, int] | None
    rows: tuple[JSONRow, ...] | None
    stream: bytes | None
    fingerprint: str
    size_bytes: int
    count: int
    act: Act = Act.APPEND
    seed: str | None = None
    leases: tuple[tuple[str, str], ...] = ()


def parse_rows(data: bytes, content_type: str, ref: str | None, operation: str | None = None) -> RowsRequest:
    """Read a request's body.

    Args:
        content_type: of the request, with parameters or without.
        ref, operation: as the URL has them.

    Raises:
        BodyTooLarge: more than `BODY_MAX_BYTES`.
        BadRequest: another type, or a body that is not what its type says; the message names the place.
        ValidationFailed: ``limit.rows``, more than `ROWS_MAX` rows.
    """
    if len(data) > BODY_MAX_BYTES:
        raise BodyTooLarge(f"the body of a request of rows is longer than {BODY_MAX_BYTES} bytes; send fewer at once")
    kind = content_type.partition(";")[0].strip().lower()
    branch, act = "main" if ref is None else _text(ref, "ref"), _act(operation)
    if kind == ARROW_TYPE:
        digest = hashlib.sha256(data).hexdigest()
        return RowsRequest(branch, None, None, None, data, digest, len(data), rows_of_stream(data), act)
    if kind in NDJSON_TYPES:
        return RowsRequest(
            branch, None, None, rows := _lines(data), None, _fingerprint(rows), len(data), len(rows), act
        )
    if kind not in (JSON_TYPE, ""):
        raise _bad("Content-Type", f"must be {JSON_TYPE}, {NDJSON_TYPES[0]} or {ARROW_TYPE}")
    body = read_object(data, "request of rows")
    unknown = sorted(body.keys() - {"rows", "operation", "ref", "key", "application"})
    if unknown:
        raise _bad(
            unknown[0][:NAME_CHARACTERS_MAX], "is no field of a request of rows: rows, operation, ref, key, application"
        )
    given: Any = body.get("rows")
    if not isinstance(given, list):
        raise _bad("rows", "must be a list of objects, one a row")
    key, named, asked = body.get("key"), body.get("ref"), body.get("operation")
    if operation is not None and asked is not None and operation != asked:
        raise _bad("operation", "differs from the URL's; send one of them")
    if ref is not None and named is not None and ref != named:
        raise _bad("ref", "differs from the URL's; send one of them")
    rows = _checked(given)
    return RowsRequest(
        branch if named is None else _text(named, "ref"),
        None if key is None else _text(key, "key"),
        _application(body.get("application")),
        rows,
        None,
        _fingerprint(rows),
        len(data),
        len(rows),
        act if asked is None else _act(asked),
    )


def seeded(request: RowsRequest, seed: str | None) -> RowsRequest:
    """A request whose rows have keys of their own by what the URL says in `seed`, in place of the request's key.

    Rows that are written anew, since their log was rolled back, go under another key: they keep theirs.
    """
    return request if seed is None else replace(request, seed=_text(seed, "seed"))


def leased(request: RowsRequest, text: str | None) -> RowsRequest:
    """A request whose sender believes to hold the intents that the URL names in `leases`. Raises `BadRequest`."""
    return request if text is None else replace(request, leases=leases_of(text))


def _lines(data: bytes) -> tuple[JSONRow, ...]:
    check_counts(data, "request of rows")
    lines = [line for line in data.split(b"\n") if line.strip()]
    check_count(len(lines))
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(from_json(line, allow_inf_nan=False))
        except ValueError as error:
            raise _bad(f"line {number}", f"is no JSON: {error}") from error
    return _checked(rows)


def _checked(given: list[Any]) -> tuple[JSONRow, ...]:
    check_count(len(given))
    for number, row in enumerate(given, 1):
        if not isinstance(row, dict):
            raise _bad(f"row {number}", "must be an object of column names and values")
    return tuple(given)


def _fingerprint(rows: tuple[JSONRow, ...]) -> str:
    """Of the values, however they are spelled and in whatever order a row names its columns."""
    try:
        content = json.dumps(rows, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise _bad("rows", f"hold a value that JSON has no fixed form for: {error}") from error
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _application(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _bad("application", "must be an object of id and sequence")
    application: dict[str, Any] = value
    sequence = application.get("sequence")
    if type(sequence) is not int or not 0 <= sequence < 2**63:
        raise _bad("application.sequence", f"must be a whole number from 0 to {2**63 - 1}")
    return _text(application.get("id"), "application.id"), sequence


def _act(value: Any) -> Act:
    try:
        return Act.APPEND if value is None else Act(value)
    except ValueError:
        raise _bad("operation", f"must be one of {', '.join(Act)}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARACTERS_MAX or not value.isprintable():
        raise _bad(where, f"must be a text of 1 to {NAME_CHARACTERS_MAX} printable characters")
    return value


def _bad(where: str, problem: str) -> BadRequest:
    return BadRequest(f"Cannot parse request of rows: {where}: {problem}", rule="shape")


def rows_answer(
    *,
    table: str,
    snapshot_id: int,
    sequence_number: int | None,
    outcome: str,
    group_size: int,
    rows: int,
    queue_wait_ms: float,
) -> dict[str, Any]:
    """The body of the answer: in which snapshot the rows are.

    Args:
        table: the one that they were written to.
        sequence_number: of the snapshot; None where it has expired since, and in format version 1.
        outcome: ``appended``, or ``replayed`` where the key or sequence was known.
        group_size: requests that the snapshot stands for.
        rows: of this request.
        queue_wait_ms: how long it waited for its turn, in milliseconds.
    """
    return {
        "table": table,
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        "outcome": outcome,
        "group-size": group_size,
        "rows": rows,
        "queue-wait-ms": round(queue_wait_ms, 1),
    }

"""The fast path's request and answer: data files to append, and nothing else.

    POST /v1/namespaces/{ns}/tables/{table}/append
    {"files": [{"file-path", "file-format", "record-count", "file-size-in-bytes", "spec-id", "partition", …}],
     "ref": "main", "key": "…", "application": {"id": "…", "sequence": 7}}

The fields of a file are those of the REST specification's `DataFile`; so one that a client has built for elsewhere goes
in as it is. It is read by hand and not through models: this is the one route that is called a thousand times a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.errors import BadRequest, BodyTooLarge, ValidationFailed
from icetower.protocol.wire import read_object

FILES_PER_APPEND_MAX = 512
"""Data files in one request. Each is opened by the server."""

BODY_MAX_BYTES = 4 * 1024 * 1024
TEXT_CHARACTERS_MAX = 4_096
"""Longer paths no storage takes."""

NAME_CHARACTERS_MAX = 255
FILE_MAX_BYTES = 2**50
"""A pebibyte: more than any file system or object store holds in one file."""

ROWS_MAX = 2**48
"""Rows of one file. The sums of a snapshot and the row ids of a table stay within 64 bits."""

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FileDescriptor:
    """A data file as its writer describes it.

    Attributes:
        spec_id: of the partition spec; None: the table's default one.
        partition: values by field name, or in the spec's order, in Iceberg's JSON form of single values.
        nan_value_counts: by column id. Of the column statistics this alone is taken from the client: a Parquet footer
            does not tell it.
    """

    path: str
    record_count: int
    size_bytes: int
    spec_id: int | None
    partition: Mapping[str, Any] | Sequence[Any]
    sort_order_id: int | None
    nan_value_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """An append. `application`: (application, sequence), where the caller numbers its appends."""

    ref: str
    files: tuple[FileDescriptor, ...]
    key: str | None
    application: tuple[str, int] | None


def parse_append(data: bytes) -> AppendRequest:
    """Read a request's body.

    Raises:
        BodyTooLarge: more than `BODY_MAX_BYTES`.
        BadRequest: bad JSON or a bad shape; the message names the field.
        ValidationFailed: ``limit.files``, too many files for one request.
    """
    if len(data) > BODY_MAX_BYTES:
        raise BodyTooLarge(f"the body of an append is longer than {BODY_MAX_BYTES} bytes; send fewer files at once")
    body = read_object(data, "append request")
    files = body.get("files")
    if not isinstance(files, list) or not files:
        raise _bad("files", "must be a list of at least one data file")
    if len(files) > FILES_PER_APPEND_MAX:
        raise ValidationFailed(
            f"the append names {len(files)} files; at most {FILES_PER_APPEND_MAX} go into one. Send several",
            rule="limit.files",
        )
    ref = body.get("ref")
    key = body.get("key")
    return AppendRequest(
        ref="main" if ref is None else _text(ref, "ref", NAME_CHARACTERS_MAX),
        files=tuple(_file(file, f"files[{at}]") for at, file in enumerate(files)),
        key=None if key is None else _text(key, "key", NAME_CHARACTERS_MAX),
        application=_application(body.get("application")),
    )


def _file(value: Any, where: str) -> FileDescriptor:
    if not isinstance(value, dict):
        raise _bad(where, "must be an object")
    file: dict[str, Any] = value
    content = file.get("content")
    if content is not None and (not isinstance(content, str) or content.lower() != "data"):
        raise _bad(f"{where}.content", "must be data: delete files go the usual way, in a commit of their own")
    form = file.get("file-format")
    if not isinstance(form, str) or form.upper() != "PARQUET":
        raise _bad(f"{where}.file-format", "must be PARQUET: other formats go the usual way, through a commit")
    for name in ("key-metadata", "encryption-key-metadata"):
        if file.get(name) is not None:
            raise _bad(f"{where}.{name}", "must be left out: encrypted files go the usual way, through a commit")
    partition = file.get("partition")
    if partition is not None and not isinstance(partition, dict | list):
        raise _bad(f"{where}.partition", "must be an object of field names, or a list in the spec's order")
    spec_id = file.get("spec-id")
    order_id = file.get("sort-order-id")
    return FileDescriptor(
        path=_text(file.get("file-path"), f"{where}.file-path", TEXT_CHARACTERS_MAX),
        record_count=_count(file.get("record-count"), f"{where}.record-count", ROWS_MAX),
        size_bytes=_count(file.get("file-size-in-bytes"), f"{where}.file-size-in-bytes", FILE_MAX_BYTES),
        spec_id=None if spec_id is None else _count(spec_id, f"{where}.spec-id", _INT_MAX),
        partition=() if partition is None else partition,
        sort_order_id=None if order_id is None else _count(order_id, f"{where}.sort-order-id", _INT_MAX),
        nan_value_counts=_nan_counts(file, where),
    )


def _nan_counts(file: Mapping[str, Any], where: str) -> Mapping[int, int]:
    counts = file.get("nan-value-counts")
    if counts is None:
        return {}
    keys, values = (counts.get("keys"), counts.get("values")) if isinstance(counts, dict) else (None, None)
    if not isinstance(keys, list) or not isinstance(values, list) or len(keys) != len(values):
        raise _bad(f"{where}.nan-value-counts", "must be an object of two lists of one length, keys and values")
    place = f"{where}.nan-value-counts"
    found = {_count(key, place): _count(value, place) for key, value in zip(keys, values, strict=True)}
    if len(found) < len(keys):
        raise _bad(place, "must name each column once")
    return found


def _application(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _bad("application", "must be an object of id and sequence")
    application: dict[str, Any] = value
    name = _text(application.get("id"), "application.id", NAME_CHARACTERS_MAX)
    return name, _count(application.get("sequence"), "application.sequence")


def _text(value: Any, where: str, characters_max: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= characters_max or not value.isprintable():
        raise _bad(where, f"must be a text of 1 to {characters_max} printable characters")
    return value


def _count(value: Any, where: str, most: int = _LONG_MAX) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _bad(where, f"must be a whole number from 0 to {most}")
    return value


def _bad(where: str, problem: str) -> BadRequest:
    return BadRequest(f"Cannot parse append request: {where}: {problem}", rule="shape")


def append_answer(
    *, snapshot_id: int, sequence_number: int | None, outcome: str, group_size: int, files: int, queue_wait_ms: float
) -> dict[str, Any]:
    """The body of the answer: where the files are, without the table's metadata.

    Args:
        sequence_number: of the snapshot; None where it has expired since, and in format version 1.
        outcome: ``appended``, or ``replayed`` where the key or sequence was known.
        group_size: appends that the snapshot stands for.
        files: data files of this request.
        queue_wait_ms: how long the append waited for its turn, in milliseconds.
    """
    return {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        "outcome": outcome,
        "group-size": group_size,
        "files": files,
        "queue-wait-ms": round(queue_wait_ms, 1),
    }

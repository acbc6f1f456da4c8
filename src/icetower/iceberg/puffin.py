"""Puffin files: a frame around blobs, with a footer in JSON that says what they are. Bytes ↔ records, pure.

Deletion vectors live in them. Readers find a vector by the offset and length in its manifest entry and never look at
the footer; whoever inspects a table does.

Source: Iceberg's "Puffin spec". Footers and blobs that are compressed are not read here: no vector is, and Iceberg's
writers compress no footer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from icetower.errors import ValidationFailed

MAGIC = b"PFA1"
DELETION_VECTOR = "deletion-vector-v1"
_TAIL = struct.Struct("<iI4s")  # length of the payload, flags, magic
_COMPRESSED = 1


@dataclass(frozen=True, slots=True)
class BlobAt:
    """Where a blob lies: the path of its file, and the bytes from `offset` on."""

    path: str
    offset: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Blob:
    """What a footer says of one blob. Snapshot id and sequence number are -1 where they are inherited.

    `codec`: None where the blob is not compressed.
    """

    type: str
    fields: tuple[int, ...]
    offset: int
    length_bytes: int
    snapshot_id: int = -1
    sequence_number: int = -1
    codec: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class NewBlob:
    """A blob to be written, uncompressed."""

    type: str
    fields: tuple[int, ...]
    data: bytes
    properties: Mapping[str, str]


def write(blobs: Sequence[NewBlob], *, created_by: str) -> tuple[bytes, tuple[Blob, ...]]:
    """A Puffin file, and where each blob lies in it.

    Args:
        created_by: which program writes it, and its version.
    """
    parts, position, placed = [MAGIC], len(MAGIC), list[Blob]()
    for blob in blobs:
        placed.append(Blob(blob.type, blob.fields, position, len(blob.data), properties=dict(blob.properties)))
        parts.append(blob.data)
        position += len(blob.data)
    payload = orjson.dumps({"blobs": [_json(blob) for blob in placed], "properties": {"created-by": created_by}})
    parts += (MAGIC, payload, _TAIL.pack(len(payload), 0, MAGIC))
    return b"".join(parts), tuple(placed)


def _json(blob: Blob) -> dict[str, Any]:
    return {
        "type": blob.type,
        "fields": blob.fields,
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length_bytes,
        "properties": blob.properties,
    }


def footer_bytes(data: bytes) -> int:
    """How long the footer is at the end of a file, from its first magic bytes on. Raises `ValueError`.

    Args:
        data: the end of the file.
    """
    if len(data) < _TAIL.size or not data.endswith(MAGIC):
        raise ValueError("it doesn't end with Puffin's magic bytes")
    length = cast("int", _TAIL.unpack_from(data, len(data) - _TAIL.size)[0])
    if length < 0:
        raise ValueError("its footer is torn")
    return len(MAGIC) + length + _TAIL.size


def read(data: bytes, *, path: str, before_bytes: int = 0) -> tuple[Blob, ...]:
    """The blobs of a Puffin file, by its footer.

    Args:
        data: the whole file, or its end, with all of the footer in it.
        path: names the file in messages.
        before_bytes: how much of the file stands before `data`.

    Raises:
        ValidationFailed: it is torn, or no Puffin file; its footer is compressed.
    """
    try:
        return tuple(_blob(blob) for blob in _footer(data, before_bytes)["blobs"])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValidationFailed(
            f"{path} is not a readable Puffin file ({type(error).__name__}: {error}); write it again",
            rule="puffin.readable",
        ) from error


def _footer(data: bytes, before_bytes: int) -> dict[str, Any]:
    whole = before_bytes == 0
    least = len(MAGIC) * (2 if whole else 1)
    if (whole and not data.startswith(MAGIC)) or len(data) < least + _TAIL.size:
        raise ValueError("it doesn't start with Puffin's magic bytes and a footer")
    length, flags, magic = cast("tuple[int, int, bytes]", _TAIL.unpack_from(data, len(data) - _TAIL.size))
    end = len(data) - _TAIL.size
    start = end - length
    if magic != MAGIC or length < 0 or start < least or data[start - len(MAGIC) : start] != MAGIC:
        raise ValueError("its footer is torn")
    if flags & _COMPRESSED:
        raise ValueError("its footer is compressed")
    if flags:
        raise ValueError(f"its footer has unknown flags, {flags:#x}")
    footer = cast("dict[str, Any]", orjson.loads(data[start:end]))
    stop = before_bytes + start - len(MAGIC)
    for blob in footer["blobs"]:
        if not len(MAGIC) <= blob["offset"] <= blob["offset"] + blob["length"] <= stop:
            raise ValueError(f"a blob is said to lie at {blob['offset']}, {blob['length']} bytes long")
    return footer


def _blob(blob: Mapping[str, Any]) -> Blob:
    return Blob(
        type=str(blob["type"]),
        fields=tuple(int(field_id) for field_id in blob["fields"]),
        offset=int(blob["offset"]),
        length_bytes=int(blob["length"]),
        snapshot_id=int(blob["snapshot-id"]),
        sequence_number=int(blob["sequence-number"]),
        codec=blob.get("compression-codec"),
        properties={str(key): str(value) for key, value in (blob.get("properties") or {}).items()},
    )

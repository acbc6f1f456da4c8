"""Deletion vectors: the positions of a data file's deleted rows, as a blob of a Puffin file. Bytes ↔ positions, pure.

A blob is its length, four magic bytes, a 64-bit Roaring bitmap in the portable format, and a checksum
(Puffin specification, "`deletion-vector-v1` blob type"; Iceberg's `BitmapPositionDeleteIndex`).

Two commits that have deleted rows of one data file, each by a vector of its own, can both be right: if nothing is in
both but what was deleted before either of them began, the rows that are gone are those of the one and of the other.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from pyroaring import FrozenBitMap64

from icetower.errors import ValidationFailed
from icetower.iceberg.puffin import DELETION_VECTOR, BlobAt, NewBlob
from icetower.iceberg.records import DataFile

BLOB_MAX_BYTES = 8 * 1024 * 1024
"""No larger vector is read: it would take up to twenty times as much memory. 8 MiB hold 64 million positions."""

POSITION_MAX = (2**31 - 2) << 32 | 2**31
"""Iceberg reads no higher ones."""

POSITION_FIELD_ID = 2147483645
"""Field id of a row's position (specification: "Reserved Field IDs")."""

SHOWN = 5
TARGET = "referenced-data-file"
"""Property of a vector's blob in a Puffin file: the data file that it is about."""
_MAGIC = bytes.fromhex("d1d33964")
_LENGTH = struct.Struct(">I")
_LEAST_BYTES = 2 * _LENGTH.size + len(_MAGIC) + 8


@dataclass(frozen=True, slots=True)
class Vector:
    """Positions of deleted rows, from 0 on."""

    bitmap: FrozenBitMap64

    @staticmethod
    def of(positions: Iterable[int]) -> Vector:
        """Positions between 0 and `POSITION_MAX`."""
        return Vector(FrozenBitMap64(positions))

    def __len__(self) -> int:
        return len(self.bitmap)

    def __iter__(self) -> Iterator[int]:
        return iter(self.bitmap)


NOTHING = Vector.of(())


def blob_of(file: DataFile) -> BlobAt:
    """Where a deletion vector lies, as its manifest entry says. Raises `ValueError` where it says nothing usable."""
    offset, length = file.record.get("content_offset"), file.record.get("content_size_in_bytes")
    if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or not 0 < length <= BLOB_MAX_BYTES:
        raise ValueError(f"its manifest says that it is {length} bytes long at {offset}")
    return BlobAt(file.path, offset, length)


def encode(vector: Vector) -> bytes:
    """A vector as a blob."""
    compact = FrozenBitMap64(vector.bitmap)
    compact.run_optimize()
    body = _MAGIC + compact.serialize()
    return _LENGTH.pack(len(body)) + body + _LENGTH.pack(zlib.crc32(body))


def decode(blob: bytes, *, name: str, cardinality: int | None = None) -> Vector:
    """The vector that a blob holds.

    Args:
        name: of the vector, for messages.
        cardinality: how many positions its manifest entry says that there are.

    Raises:
        ValidationFailed: it is torn, or no vector; it is larger than `BLOB_MAX_BYTES`; the number differs.
    """
    try:
        vector = _decoded(blob)
        if cardinality not in (None, len(vector)):
            raise ValueError(f"it has {len(vector)} positions, and its manifest says {cardinality}")
    except ValueError as error:
        raise ValidationFailed(
            f"the deletion vector {name} cannot be read ({error}); write it again", rule="vector.readable"
        ) from error
    return vector


def decode_of(file: DataFile, blob: bytes) -> Vector:
    """The vector of a manifest entry, by its blob, with as many positions as the entry says. Raises as `decode`."""
    return decode(blob, name=f"at {file.record.get('content_offset')} of {file.path}", cardinality=file.record_count)


def _decoded(blob: bytes) -> Vector:
    if not _LEAST_BYTES <= len(blob) <= BLOB_MAX_BYTES:
        raise ValueError(f"it has {len(blob)} bytes, and {_LEAST_BYTES} to {BLOB_MAX_BYTES} are read")
    body = blob[_LENGTH.size : -_LENGTH.size]
    if _LENGTH.unpack_from(blob)[0] != len(body):
        raise ValueError(f"it says that it is {_LENGTH.unpack_from(blob)[0]} bytes long, and has {len(body)}")
    if not body.startswith(_MAGIC):
        raise ValueError("it doesn't start with the magic bytes of a vector")
    if _LENGTH.unpack_from(blob, len(blob) - _LENGTH.size)[0] != zlib.crc32(body):
        raise ValueError("its checksum doesn't fit")
    # The library checks the order of keys and values and the length of what it is given.
    bitmap = FrozenBitMap64.deserialize(body[len(_MAGIC) :])
    if len(bitmap) and bitmap.max() > POSITION_MAX:
        raise ValueError(f"it has position {bitmap.max()}, and the highest is {POSITION_MAX}")
    return Vector(bitmap)


def as_blob(vector: Vector, target: str) -> NewBlob:
    """A vector as a blob to be written, with what the specification wants to be said of it.

    Args:
        target: path of the data file that the positions are about.
    """
    properties = {TARGET: target, "cardinality": str(len(vector))}
    return NewBlob(DELETION_VECTOR, (POSITION_FIELD_ID,), encode(vector), properties)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two vectors for one data file that cannot both be right.

    Attributes:
        positions: the first few rows that stand in the way.
        count: how many there are.
        revived: they were deleted before, and one of the vectors has them live again; else both have deleted them.
    """

    positions: tuple[int, ...]
    count: int
    revived: bool = False

    def __str__(self) -> str:
        more = f" and {self.count - len(self.positions)} more" if self.count > len(self.positions) else ""
        rows = f"row{'' if self.count == 1 else 's'} {', '.join(map(str, self.positions))}{more}"
        return f"one of them brings back {rows}" if self.revived else f"both delete {rows}"


def merge(ours: Vector, base: Vector | None, theirs: Vector) -> Vector | Overlap:
    """Both deletions from one data file, where they are of different rows.

    Args:
        ours: the positions as one writer left them.
        base: those that were deleted when both began; None where there were none.
        theirs: the positions as others left them meanwhile.
    """
    before = (base or NOTHING).bitmap
    missing = (before - ours.bitmap) | (before - theirs.bitmap)
    if missing:
        return Overlap(tuple(islice(missing, SHOWN)), len(missing), revived=True)
    both = (ours.bitmap & theirs.bitmap) - before
    if both:
        return Overlap(tuple(islice(both, SHOWN)), len(both))
    return Vector(ours.bitmap | theirs.bitmap)

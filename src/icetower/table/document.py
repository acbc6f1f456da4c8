"""`Document`: a table's metadata as JSON, where most of it was serialised, and packed, for the version before.

A history of 20,000 snapshots is 18 MB of JSON, and every group of commits writes it anew: into the metadata file, and
packed for everybody who waits for an answer (trap A5). But all that changes are some snapshots at its ends. So the two
long lists, snapshots and their log, are cut into pieces that versions share; a piece is serialised once and deflated
once.

Sources: RFC 1951, 3.2.3 (blocks of a deflated stream; those of each piece end on a whole byte, and refer to nothing
outside it); RFC 1952, 2.3 (gzip's header, checksum and length); checksums of parts are joined as zlib's
`crc32_combine` does it, by polynomials over two elements.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import is_
from typing import Any

import orjson

JSON = Mapping[str, Any]

PROPERTIES = "properties"
"""What a document begins with, so that other properties can take their place."""
_LONG = {"snapshots": 128, "snapshot-log": 1024}
"""The lists that grow with a table's history, and how many entries make a piece."""
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflated; no name, no time: equal parts give equal bytes
_END_OF_STREAM = b"\x03\x00"  # an empty last block
_STORED_MAX = 0xFFFF


class Part:
    """Some bytes of a document, and what they are in a gzip stream; worked out once, when it is wanted.

    Args:
        data: the bytes.
        level: how hard to pack them, 1 to 9; 0: not at all, which costs next to no time.
        entries: of the list that these bytes are a piece of.
    """

    def __init__(self, data: bytes, *, level: int = 1, entries: Sequence[JSON] = ()) -> None:
        self.data = data
        self.length = len(data)
        self.entries = entries
        self._level = level

    @cached_property
    def packed(self) -> bytes:
        """Deflated so that it can stand anywhere in a stream."""
        if self._level == 0:
            return _stored(self.data)
        pack = zlib.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS)
        return pack.compress(self.data) + pack.flush(zlib.Z_FULL_FLUSH)

    @cached_property
    def crc(self) -> int:
        """CRC-32 of the bytes."""
        return zlib.crc32(self.data)

    @cached_property
    def shift(self) -> int:
        """What the checksum of all that stands before is multiplied by."""
        return _power(8 * len(self.data))


class _Joined(Part):
    """Several parts as one, put together from what each of them is already."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(b"")
        self._parts = tuple(part for part in parts if part.length)
        self.length = sum(part.length for part in self._parts)

    @cached_property
    def packed(self) -> bytes:
        return b"".join(part.packed for part in self._parts)

    @cached_property
    def crc(self) -> int:
        crc = 0
        for part in self._parts:
            crc = _multiplied(part.shift, crc) ^ part.crc
        return crc

    @cached_property
    def shift(self) -> int:
        return _power(8 * self.length)


class Document:
    """A table's metadata as JSON, in parts.

    Args:
        metadata: plain JSON.
        before: the document of an earlier version of the same table, for what both have in common.
    """

    def __init__(self, metadata: JSON, before: Document | None = None) -> None:
        self._pieces: dict[str, tuple[Part, ...]] = {}
        self._rests: dict[bytes, _Joined] = {}  # by what comes after them: the server's settings, or nothing
        self._properties = _beginning(metadata[PROPERTIES]) if PROPERTIES in metadata else b"{"
        parts: list[Part] = []
        rest = {key: value for key, value in metadata.items() if key not in _LONG and key != PROPERTIES}
        open_end = orjson.dumps(rest)[1:-1]
        if open_end and PROPERTIES in metadata:
            open_end = b"," + open_end
        begun = bool(open_end) or PROPERTIES in metadata
        self._then = b"" if PROPERTIES in metadata or not metadata else b","
        for key, size in _LONG.items():
            if key not in metadata:
                continue
            open_end += (b"," if begun else b"") + orjson.dumps(key) + b":"
            begun = True
            known = () if before is None else before._pieces.get(key, ())
            pieces, tail = _cut(metadata[key], size, known)
            self._pieces[key] = pieces
            tail_data = orjson.dumps(tail)
            if pieces:
                parts += [Part(open_end + b"["), *pieces]
                open_end = tail_data[1:]
            else:
                open_end += tail_data
        parts.append(Part(open_end + b"}"))
        self._parts = tuple(parts)

    @property
    def size_bytes(self) -> int:
        """Length of the whole, which is not put together for it."""
        return len(self._properties) + sum(len(part.data) for part in self._parts)

    def shed(self) -> None:
        """Let go of what can be put together again from the parts."""
        self._rests = {}
        for name in ("data", "_rest"):
            self.__dict__.pop(name, None)

    @cached_property
    def data(self) -> bytes:
        """The whole as JSON."""
        return self._properties + self._rest

    @cached_property
    def _rest(self) -> bytes:
        return b"".join(part.data for part in self._parts)

    def framed(self, prefix: bytes, suffix: bytes, properties: Mapping[str, str] | None = None) -> bytes:
        """The whole as JSON between two other texts; with `properties` instead of its own, if they are given."""
        return b"".join(self.framed_parts(prefix, suffix, properties))

    def framed_parts(
        self, prefix: bytes, suffix: bytes, properties: Mapping[str, str] | None = None
    ) -> tuple[bytes, ...]:
        """The same in parts, the longest of which is one for all callers."""
        beginning = self._properties if properties is None else _beginning(properties) + self._then
        return prefix + beginning, self._rest, suffix

    def gzipped(self, prefix: bytes = b"", suffix: bytes = b"", properties: Mapping[str, str] | None = None) -> bytes:
        """As `framed`, as one gzip stream. Other properties change its beginning alone."""
        return b"".join(self.gzipped_parts(prefix, suffix, properties))

    def gzipped_parts(
        self, prefix: bytes = b"", suffix: bytes = b"", properties: Mapping[str, str] | None = None
    ) -> tuple[bytes, ...]:
        """The same in parts, the longest of which is one for all callers."""
        if properties is None:
            beginning = Part(prefix + self._properties)
        else:
            beginning = Part(prefix + _beginning(properties) + self._then, level=0)
        if suffix not in self._rests:
            self._rests[suffix] = _Joined((*self._parts, Part(suffix)))
        return _gzip(beginning, self._rests[suffix])


def _beginning(properties: Mapping[str, str]) -> bytes:
    return b"{" + orjson.dumps(PROPERTIES) + b":" + orjson.dumps(properties)


def _cut(entries: Sequence[JSON], size: int, known: Iterable[Part]) -> tuple[tuple[Part, ...], Sequence[JSON]]:
    """A list in pieces, and the entries after them: at least one, if there are any.

    A piece is entries and the commas after them. Known ones are used again where the very same entries follow one
    another. Where some have gone from the middle of one, what is left of it becomes a smaller piece.
    """
    by_first = {id(piece.entries[0]): piece for piece in known}
    pieces: list[Part] = []
    at = 0
    while at < len(entries):
        piece = by_first.get(id(entries[at]))
        end = at + (size if piece is None else len(piece.entries))
        if piece is None or not all(map(is_, piece.entries, entries[at:end])) or end >= len(entries):
            end = min(at + size, len(entries))
            end = next((k for k in range(at + 1, end) if id(entries[k]) in by_first), end)
            if end == len(entries):
                break
            own = tuple(entries[at:end])
            piece = Part(orjson.dumps(own)[1:-1] + b",", level=6, entries=own)
        pieces.append(piece)
        at = end
    return tuple(pieces), entries[at:]


# ── gzip ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gzip(beginning: Part, rest: Part) -> tuple[bytes, ...]:
    crc = _multiplied(rest.shift, beginning.crc) ^ rest.crc
    length = beginning.length + rest.length & 0xFFFFFFFF
    end = _END_OF_STREAM + struct.pack("<II", crc, length)
    return _GZIP_HEADER + beginning.packed, rest.packed, end


def _stored(data: bytes) -> bytes:
    """Blocks that hold bytes as they are (RFC 1951, 3.2.4)."""
    blocks: list[bytes] = []
    for at in range(0, len(data), _STORED_MAX):
        block = data[at : at + _STORED_MAX]
        blocks += [struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF), block]
    return b"".join(blocks)


_CRC_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # polynomials are written with their constant term first


def _multiplied(one: int, other: int) -> int:
    """The product of two polynomials over two elements, modulo that of CRC-32."""
    product, term = 0, _ONE
    while term:
        if one & term:
            product ^= other
        term >>= 1
        other = other >> 1 ^ _CRC_POLYNOMIAL if other & 1 else other >> 1
    return product


def _squares() -> tuple[int, ...]:
    found = [_ONE >> 1]  # x
    for _ in range(63):
        found.append(_multiplied(found[-1], found[-1]))
    return tuple(found)


_X_TO_POWERS_OF_TWO = _squares()


def _power(exponent: int) -> int:
    """x to the exponent, modulo the polynomial of CRC-32."""
    found = _ONE
    for at, square in enumerate(_X_TO_POWERS_OF_TWO):
        if exponent >> at & 1:
            found = _multiplied(square, found)
    return found

"""Which texts occur in one column of a Parquet file that a stranger wrote: bounded in memory whatever the file says.

Read are the plain and the dictionary encoding of a column at the top of the schema. The entries of a dictionary are
given whether a row uses them or not. What is written otherwise is refused, and nothing is unpacked before it is known
how large it gets.

Source: Apache Parquet's format, `parquet.thrift` and "Encodings".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from icetower.parquet.thrift import Struct, inner, read_struct, structs, whole

FOOTER_MAX_BYTES = 1024 * 1024
UNPACKED_MAX_BYTES = 64 * 1024 * 1024
ROWS_MAX = 1_000_000
"""Bounds of one file."""

HEADER_MAX_BYTES = 64 * 1024

PARQUET_MAGIC = b"PAR1"
_LENGTH = struct.Struct("<I")
_BYTE_ARRAY, _REQUIRED, _REPEATED = 6, 0, 2
_PLAIN, _DICTIONARIES = 0, (2, 8)
_CODECS = {0: None, 1: "snappy", 2: "gzip", 6: "zstd", 7: "lz4_raw"}
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3


def texts_in(data: bytes, field_id: int, called: str | None = None) -> Iterator[set[str]]:
    """The texts of the column with this field id, page by page.

    Args:
        data: the whole file.
        called: the name that the column must have; None: any.

    Raises:
        ValueError: it is damaged, too large, or not written in one of the ways that are read.
    """
    footer = _footer(data)
    name, leaf, optional = _column(structs(footer, 2), field_id)
    if called is not None and name != called.encode():
        raise ValueError(f"the column with the field id {field_id} is not called {called}")
    left = UNPACKED_MAX_BYTES
    rows = 0
    for group in structs(footer, 4):
        if whole(group, 3) == 0:
            continue
        columns = structs(group, 1)
        chunk = columns[leaf] if leaf < len(columns) else {}
        described = inner(chunk, 3)
        if 1 in chunk or 8 in chunk or described.get(3) != [name] or whole(described, 1) != _BYTE_ARRAY:
            raise ValueError("the column lies in another file, is encrypted, or is another than its place says")
        if whole(described, 5) != whole(group, 3):
            raise ValueError("the column has another number of values than its group has rows")
        rows += whole(group, 3)
        if rows > ROWS_MAX:
            raise ValueError(f"it has more than {ROWS_MAX} rows")
        for page in _pages(data, described):
            left -= page.unpacked_bytes
            if left < 0:
                raise ValueError(f"the column has more than {UNPACKED_MAX_BYTES} bytes")
            if page.is_plain:
                yield _plain(page.values(optional), page.values_count)
    if rows != whole(footer, 3):
        raise ValueError("the groups have another number of rows than the file")


def _footer(data: bytes) -> Struct:
    if len(data) < 12 or not data.startswith(PARQUET_MAGIC) or not data.endswith(PARQUET_MAGIC):
        raise ValueError("it doesn't begin and end with Parquet's magic bytes")
    length = cast("int", _LENGTH.unpack_from(data, len(data) - 8)[0])
    if not 0 < length <= min(FOOTER_MAX_BYTES, len(data) - 12):
        raise ValueError(f"its footer has {length} bytes")
    footer, _ = read_struct(data[len(data) - 8 - length : len(data) - 8])
    return footer


def _column(elements: list[Struct], field_id: int) -> tuple[bytes, int, bool]:
    """Name and position of the column at the top of the schema that has this id; whether it may hold nulls."""
    found: list[tuple[bytes, int, bool]] = []
    leaf, at = 0, 1
    open_children = [whole(elements[0], 5)] if elements else []
    while at < len(elements) and open_children:
        element = elements[at]
        children = whole(element, 5, 0)
        open_children[-1] -= 1
        if element.get(9) == field_id:
            name = element.get(4)
            if len(open_children) > 1 or children or whole(element, 3) == _REPEATED or not isinstance(name, bytes):
                raise ValueError("the column is not one of single values at the top of the schema")
            found.append((name, leaf, whole(element, 3) != _REQUIRED))
        if children:
            open_children.append(children)
        else:
            leaf += 1
        while open_children and open_children[-1] <= 0:
            open_children.pop()
        at += 1
    if len(found) != 1:
        raise ValueError(f"{len(found)} columns have the field id {field_id}")
    return found[0]


class _Page:
    """A page as its header describes it."""

    def __init__(self, header: Struct, packed: bytes, codec: str | None) -> None:
        self.kind = whole(header, 1)
        self.unpacked_bytes = whole(header, 2)
        self._packed = packed
        self._codec = codec
        header = inner(header, {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(self.kind, 0))
        self.values_count = whole(header, 1)
        encoding = whole(header, 4 if self.kind == _DATA_V2 else 2)
        self.is_plain = encoding == _PLAIN or self.kind == _DICTIONARY
        if encoding != _PLAIN and encoding not in _DICTIONARIES:
            raise ValueError(f"a page has the encoding {encoding}")
        self._levels_bytes = 0
        if self.kind == _DATA_V2:
            self._levels_bytes = whole(header, 5)
            if whole(header, 6) or not 0 <= self._levels_bytes <= min(len(packed), self.unpacked_bytes):
                raise ValueError("a page has levels of repetition, or longer levels than it is itself")
            if header.get(7) is False:
                self._codec = None
        if self.unpacked_bytes < 0 or self.values_count < 0:
            raise ValueError("a page has a negative size")

    def values(self, optional: bool) -> bytes:
        """What stands behind the levels, which say where nulls are; those of a newer page are not packed."""
        body = self._unpacked(self._packed[self._levels_bytes :], self.unpacked_bytes - self._levels_bytes)
        if not optional or self.kind != _DATA:
            return body
        levels_bytes = cast("int", _LENGTH.unpack_from(body)[0]) if len(body) >= _LENGTH.size else len(body)
        return body[_LENGTH.size + levels_bytes :]

    def _unpacked(self, packed: bytes, size_bytes: int) -> bytes:
        unpacked = packed
        if self._codec is not None and size_bytes:
            try:
                unpacked = pa.decompress(packed, size_bytes, codec=self._codec, asbytes=True)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"a page cannot be unpacked ({error})") from error
        if len(unpacked) != size_bytes:
            raise ValueError("a page is not as long as its header says")
        return cast("bytes", unpacked)


def _pages(data: bytes, column: Struct) -> Iterator[_Page]:
    codec_id = whole(column, 4)
    if codec_id not in _CODECS:
        raise ValueError(f"the column is packed by the codec {codec_id}")
    starts = (whole(column, 9), whole(column, 11, 0))
    at = min((start for start in starts if start > 0), default=0)
    end = at + whole(column, 7)
    values = 0
    if not len(PARQUET_MAGIC) <= at <= end <= len(data):
        raise ValueError("the column lies outside of its file")
    while at < end:
        header, length = read_struct(data[at : at + HEADER_MAX_BYTES])
        body_at = at + length
        at = body_at + whole(header, 3)
        if not body_at <= at <= end:
            raise ValueError("a page lies outside of its column")
        page = _Page(header, data[body_at:at], _CODECS[codec_id])
        values += 0 if page.kind == _DICTIONARY else page.values_count
        yield page
    if values != whole(column, 5):
        raise ValueError("the pages have another number of values than their column")


def _plain(body: bytes, count: int) -> set[str]:
    """Texts, each after its length: at most `count`, as nulls are left out."""
    found: set[str] = set()
    at = 0
    while at < len(body):
        begin = at + _LENGTH.size
        if begin > len(body):
            raise ValueError("a page ends within a value")
        at = begin + cast("int", _LENGTH.unpack_from(body, at)[0])
        if at > len(body) or count == 0:
            raise ValueError("a page ends within a value, or has more than it says")
        found.add(body[begin:at].decode())
        count -= 1
    return found

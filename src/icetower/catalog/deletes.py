"""Inside delete files: the bytes of deletion vectors, and which data files position deletes are about.

Manifests say most of what a commit deletes. What they leave out is here: the rows of a vector (for the row-level
rebase), and the targets of a position delete file that covers a whole partition (trap R6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from icetower.catalog.parquet_texts import texts_in
from icetower.catalog.ports import Storage
from icetower.errors import BadRequest, NotFound, ValidationFailed
from icetower.recent import Recent
from icetower.table import avro_files
from icetower.table.puffin import BlobAt
from icetower.table.records import POSITION_DELETES, DataFile
from icetower.table.vectors import BLOB_MAX_BYTES

KEPT_BYTES = 32 * 1024 * 1024
"""Of the blobs that were read last: a vector that several commits meet is read once."""

FILE_MAX_BYTES = 16 * 1024 * 1024
TARGETS_MAX = 1_000
"""Bounds of one position delete file. What is larger is not looked into."""

INLINE_MAX_BYTES = 64 * 1024
"""What takes longer to decode than this does, a thread decodes."""

_UNREACHED = (NotFound, BadRequest)
"""A file that is not there, or has a path that no storage here knows: its own client may well know it."""

TARGETS_KEPT_MAX = 100_000
PATH_FIELD_ID = 2147483546
"""Column `file_path` of position delete files (specification: "Reserved Field IDs")."""

_PATH = "file_path"


class Blobs:
    """The bytes of blobs by where they lie, kept in memory: what a snapshot names never changes."""

    def __init__(self, storage: Storage, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._storage = storage
        self._kept: Recent[bytes] = Recent(kept_bytes)

    async def read(self, path: str, offset: int, length_bytes: int) -> bytes:
        """The bytes from `offset` on; fewer where the file ends before.

        Raises:
            NotFound: there is no such file.
            ValidationFailed: more bytes than any vector that is read (`BLOB_MAX_BYTES`).
        """
        if not 0 <= length_bytes <= BLOB_MAX_BYTES or offset < 0:
            raise ValidationFailed(
                f"a blob of {length_bytes} bytes at {offset} of {path} is not read; at most {BLOB_MAX_BYTES} bytes are",
                rule="vector.readable",
            )
        key = f"{offset}:{length_bytes}:{path}"
        found = self._kept.get(key)
        if found is None:
            found = await self._storage.read_range(path, offset, length_bytes)
            self._kept.put(key, found, len(found) + len(key))
        return found

    async def read_all(self, blobs: frozenset[BlobAt]) -> dict[BlobAt, bytes]:
        """Several, side by side; no bytes where there is no such file or no way to it, which whoever asks will refuse.

        One client that names such a file must not fail the group that its commit is in.
        """
        wanted = tuple(blobs)
        read = await asyncio.gather(*(self._read_or_nothing(at) for at in wanted))
        return dict(zip(wanted, read, strict=True))

    async def _read_or_nothing(self, at: BlobAt) -> bytes:
        try:
            return await self.read(at.path, at.offset, at.length_bytes)
        except _UNREACHED:
            return b""


class PositionDeletes:
    """Which data files are position delete files about, that don't say so in their manifest?"""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: Recent[tuple[frozenset[str] | None]] = Recent(TARGETS_KEPT_MAX)

    async def targets(self, path: str, file: DataFile) -> frozenset[str] | None:
        """The data files of which the position delete file at `path` deletes rows.

        None where that cannot be told: a file that is missing, out of reach, damaged, too large, encrypted, of a format
        that is not read (ORC), or about too many data files. The caller then takes it for one about every file of its
        partition.

        Raises:
            UpstreamFailed: the storage failed.
        """
        key = f"{file.size_bytes}:{path}"
        known = self._known.get(key)
        if known is None:
            known = (await self._read(path, file),)
            self._known.put(key, known, 1 + len(known[0] or ()))
        return known[0]

    async def _read(self, path: str, file: DataFile) -> frozenset[str] | None:
        reader = {"parquet": _of_parquet, "avro": _of_avro}.get(file.file_format.lower())
        if reader is None or file.content != POSITION_DELETES or file.record.get("key_metadata"):
            return None
        if not 0 < file.size_bytes <= FILE_MAX_BYTES:
            return None
        try:
            data = await self._storage.read_range(path, 0, file.size_bytes + 1)
        except _UNREACHED:
            return None
        if len(data) != file.size_bytes:  # engines look for the footer where the manifest says that the file ends
            return None
        if len(data) <= INLINE_MAX_BYTES:
            return _distinct(reader, data)
        return await asyncio.to_thread(_distinct, reader, data)


def _distinct(reader: Callable[[bytes], Iterator[set[str]]], data: bytes) -> frozenset[str] | None:
    found: set[str] = set()
    try:
        for paths in reader(data):
            found |= paths
            if len(found) > TARGETS_MAX:
                return None
    except (ValidationFailed, ValueError, KeyError):  # what cannot be read
        return None
    return frozenset(found)


def _of_parquet(data: bytes) -> Iterator[set[str]]:
    return texts_in(data, PATH_FIELD_ID)


def _of_avro(data: bytes) -> Iterator[set[str]]:
    file = avro_files.read(data, rename=_avro_name, what="the delete file")
    paths: set[Any] = {record[_PATH] for record in file.records}
    if not all(isinstance(path, str) for path in paths):
        raise ValueError("a path is no text")
    yield paths


def _avro_name(field_id: int, name: str) -> str:
    # A row's own columns, which may stand beside its path, can have any name.
    return _PATH if field_id == PATH_FIELD_ID else f"_{field_id}_{name}"

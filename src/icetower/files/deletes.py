"""Inside delete files: the bytes of deletion vectors, and which data files position deletes are about.

Manifests say most of what a commit deletes. What they leave out is here: the rows of a vector (for the row-level
rebase, and to see whether there are as many as its manifest says), the targets of a position delete file that covers a
whole partition (trap R6), and the data files that any of them names besides those that its manifest tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from icetower.errors import BadRequest, NotFound, ValidationFailed
from icetower.iceberg import avro_files, puffin
from icetower.iceberg.change import Change
from icetower.iceberg.puffin import Blob, BlobAt
from icetower.iceberg.records import PATH_FIELD_ID, POSITION_DELETES, DataFile, is_vector
from icetower.iceberg.vectors import BLOB_MAX_BYTES, TARGET, blob_of, decode_of
from icetower.parquet.texts import PARQUET_MAGIC, texts_in
from icetower.recent import Budget, Recent
from icetower.storage.port import Storage

BLOBS_SHARE, TARGETS_SHARE = 0.0625, 0.0625
"""The parts of the caches' budget for blobs, since several commits meet one vector, and for targets of deletes."""

_TARGET_BYTES = 110
"""What a path takes in a set, without its characters."""

FILE_MAX_BYTES = 16 * 1024 * 1024
TARGETS_MAX = 1_000
"""Bounds of one position delete file. What is larger is not looked into."""

NAMED_MAX = 100_000
"""Data files that one delete file may name, where it is asked whose they are."""

FOOTER_READ_BYTES = 64 * 1024
"""So much of a Puffin file's end is read at first: most footers are shorter."""

INLINE_MAX_BYTES = 64 * 1024
"""What takes longer to decode than this does, a thread decodes."""

_UNREACHED = (NotFound, BadRequest)
"""A file that is not there, or has a path that no storage here knows: its own client may well know it."""

VECTORS_MAX = 100_000
VECTORS_MAX_BYTES = 256 * 1024 * 1024
"""Bounds of the deletion vectors that one commit adds, each of which is looked at."""

RUN_MAX_BYTES = BLOB_MAX_BYTES
RUN_GAP_MAX_BYTES = 4 * 1024
"""Vectors that lie so near to each other in one file are read together."""

RUNS_AT_ONCE = 4
"""So many for one commit, and so many large ones for all: what is decoded may take twenty times as much memory."""

_PATH = "file_path"


class Blobs:
    """The bytes of blobs by where they lie, kept in memory: what a snapshot names never changes."""

    def __init__(self, storage: Storage, *, budget: Budget | None = None) -> None:
        self._storage = storage
        self._kept: Recent[bytes] = (budget or Budget()).cache("deletion vectors", share=BLOBS_SHARE)

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
            self._kept.put(key, found, len(found))
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


class Vectors:
    """Is each deletion vector that a commit adds there, and are as many rows in it as its manifest entry says?

    Readers refuse a data file whose vector is torn or has another number of rows, and nobody could mend it but by
    writing the vector again. What the rows are is the writer's to say.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._room = asyncio.Semaphore(RUNS_AT_ONCE)

    async def verify(self, changes: Sequence[Change]) -> None:
        """Look into the vectors that changes add; into those that are encrypted, or out of this storage's reach, not.

        Raises:
            ValidationFailed: one is missing, torn, or has another number of rows; there are too many.
            UpstreamFailed: the storage failed.
        """
        added = (touched.file for change in changes for touched in change.added)
        files = [file for file in added if is_vector(file) and not file.record.get("key_metadata")]
        # Each once, however many entries name it: a commit must not have one blob decoded again and again.
        placed = {(_place_of(file), file.record_count): file for file in files}
        size = sum(at.length_bytes for at, _ in placed)
        if len(files) > VECTORS_MAX or size > VECTORS_MAX_BYTES:
            raise ValidationFailed(
                f"the commit adds {len(files)} deletion vectors of {size} bytes; at most {VECTORS_MAX} of "
                f"{VECTORS_MAX_BYTES} bytes go into one. Split it",
                rule="limit.vectors",
            )
        runs = _runs([(at, file) for (at, _), file in placed.items()])

        async def verify_next() -> None:
            for run in runs:
                await self._verify_run(run)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(RUNS_AT_ONCE, len(placed))):
                    group.create_task(verify_next())
        except ExceptionGroup as errors:
            raise errors.exceptions[0]  # noqa: B904 - it has its own cause

    async def _verify_run(self, run: Sequence[tuple[BlobAt, DataFile]]) -> None:
        path, start = run[0][0].path, run[0][0].offset
        length_bytes = max(at.offset + at.length_bytes for at, _ in run) - start
        large = length_bytes > INLINE_MAX_BYTES
        async with self._room if large else nullcontext():
            try:
                data = await self._storage.read_range(path, start, length_bytes)
            except ValidationFailed:  # a directory, a FIFO: nobody reads a vector there
                raise
            except BadRequest:  # a path that no storage here knows: its own client may well know it
                return
            except NotFound as error:
                raise ValidationFailed(
                    f"the commit adds a deletion vector in {path}, and there is no such file; write it first",
                    rule="vector.readable",
                ) from error
            parts = [(file, data[at.offset - start :][: at.length_bytes]) for at, file in run]
            if large:
                await asyncio.to_thread(_decode_all, parts)
            else:
                _decode_all(parts)


def _place_of(file: DataFile) -> BlobAt:
    try:
        return blob_of(file)
    except ValueError as error:
        raise ValidationFailed(
            f"the deletion vector for {file.referenced_data_file} in {file.path} cannot be read ({error}); "
            "write it again",
            rule="vector.readable",
        ) from error


def _runs(placed: Sequence[tuple[BlobAt, DataFile]]) -> Iterator[list[tuple[BlobAt, DataFile]]]:
    """Vectors that are read together, in order of where they begin."""
    run: list[tuple[BlobAt, DataFile]] = []
    end = 0
    for at, file in sorted(placed, key=lambda pair: (pair[0].path, pair[0].offset, pair[0].length_bytes)):
        stop = at.offset + at.length_bytes
        apart = not run or at.path != run[0][0].path or at.offset > end + RUN_GAP_MAX_BYTES
        if apart or stop - run[0][0].offset > RUN_MAX_BYTES:
            if run:
                yield run
            run, end = [], 0
        run.append((at, file))
        end = max(end, stop)
    if run:
        yield run


def _decode_all(parts: Sequence[tuple[DataFile, bytes]]) -> None:
    for file, blob in parts:
        decode_of(file, blob)


class PositionDeletes:
    """Which data files are position delete files about, that don't say so in their manifest?"""

    def __init__(self, storage: Storage, *, targets_max: int = TARGETS_MAX, budget: Budget | None = None) -> None:
        self._storage = storage
        self._targets_max = targets_max
        cache = (budget or Budget()).cache("targets of position deletes", share=TARGETS_SHARE)
        self._known: Recent[tuple[frozenset[str] | None]] = cache

    async def targets(self, path: str, file: DataFile) -> frozenset[str] | None:
        """The data files of which the position delete file at `path` deletes rows.

        None where that cannot be determined: a file that is missing, out of reach, damaged, too large, encrypted, of a
        format that is not read (ORC), or about too many data files. The caller then takes it for one about every file
        of its partition.

        Raises:
            UpstreamFailed: the storage failed.
        """
        key = f"{file.file_format.lower()}:{file.size_bytes}:{path}"  # one file may be read in two ways
        known = self._known.get(key)
        if known is None:
            known = (await self._read(path, file),)
            self._known.put(key, known, sum(_TARGET_BYTES + len(target) for target in known[0] or ()))
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
            return _distinct(reader, data, self._targets_max)
        return await asyncio.to_thread(_distinct, reader, data, self._targets_max)


def _distinct(reader: Callable[[bytes], Iterator[set[str]]], data: bytes, targets_max: int) -> frozenset[str] | None:
    found: set[str] = set()
    try:
        for paths in reader(data):
            found |= paths
            if len(found) > targets_max:
                return None
    except (ValidationFailed, ValueError, KeyError):  # what cannot be read
        return None
    return frozenset(found)


def _of_parquet(data: bytes) -> Iterator[set[str]]:
    return texts_in(data, PATH_FIELD_ID, _PATH)  # PyIceberg finds it by its name


def _of_avro(data: bytes) -> Iterator[set[str]]:
    file = avro_files.read(data, rename=_avro_name, what="the delete file")
    paths: set[Any] = {record[_PATH] for record in file.records}
    if not all(isinstance(path, str) for path in paths):
        raise ValueError("a path is no text")
    yield paths


def _avro_name(field_id: int, name: str) -> str:
    # A row's own columns, which may stand beside its path, can have any name.
    return _PATH if field_id == PATH_FIELD_ID else f"_{field_id}_{name}"


class Contents:
    """Which data files do the delete files that a commit adds name inside?

    By the specification a delete file is about the files of its own partition, or about the one that it refers to.
    PyIceberg goes by what stands in it: it deletes rows of whatever data file is named there, in all of a scan. It
    knows no encryption, so that a file is encrypted is not believed of one that anybody can open.
    """

    def __init__(self, storage: Storage, *, budget: Budget | None = None) -> None:
        self._storage = storage
        self._positions = PositionDeletes(storage, targets_max=NAMED_MAX, budget=budget)
        self._room = asyncio.Semaphore(RUNS_AT_ONCE)

    async def named(self, changes: Sequence[Change]) -> dict[str, frozenset[str] | None]:
        """By the paths of position delete files and files of vectors. In those that are encrypted nothing is named.

        None where it cannot be determined, as in `PositionDeletes.targets`. Raises `UpstreamFailed`.
        """
        added = (touched.file for change in changes for touched in change.added)
        files = {file.path: file for file in added if file.content == POSITION_DELETES}
        found = await asyncio.gather(*(self._named_in(path, file) for path, file in files.items()))
        return dict(zip(files, found, strict=True))

    async def _named_in(self, path: str, file: DataFile) -> frozenset[str] | None:
        async with self._room:
            try:
                if file.record.get("key_metadata") and await self._is_sealed(path, file):
                    return frozenset()
                if not is_vector(file):
                    plain = replace(file, record={**file.record, "key_metadata": None})
                    return await self._positions.targets(path, plain)
                blobs = await self._blobs(path, file.size_bytes)
            except (*_UNREACHED, ValidationFailed, ValueError):
                return None
        return frozenset(target for blob in blobs if (target := blob.properties.get(TARGET)) is not None)

    async def _is_sealed(self, path: str, file: DataFile) -> bool:
        """Whether a file that is said to be encrypted can't be opened without its key."""
        if file.file_format.lower() == "parquet":  # Arrow looks at its end alone
            return not (await self._end(path, file.size_bytes, len(PARQUET_MAGIC))).endswith(PARQUET_MAGIC)
        magic = {"avro": avro_files.MAGIC, "puffin": puffin.MAGIC}.get(file.file_format.lower())
        return magic is not None and await self._storage.read_range(path, 0, len(magic)) != magic

    async def _blobs(self, path: str, size_bytes: int) -> Sequence[Blob]:
        """What the footer of a Puffin file says of its blobs."""
        end = await self._end(path, size_bytes, FOOTER_READ_BYTES)
        needed_bytes = puffin.footer_bytes(end)
        if len(end) < needed_bytes <= FILE_MAX_BYTES:
            end = await self._end(path, size_bytes, needed_bytes)
        return puffin.read(end, path=path, before_bytes=size_bytes - len(end))

    async def _end(self, path: str, size_bytes: int, length_bytes: int) -> bytes:
        length_bytes = max(0, min(size_bytes, length_bytes))
        data = await self._storage.read_range(path, size_bytes - length_bytes, length_bytes + 1)
        if len(data) != length_bytes:  # whoever opens the file finds another footer
            raise ValueError(f"it is not {size_bytes} bytes long")
        return data

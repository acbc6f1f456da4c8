"""Storage through PyIceberg's FileIO, in a few threads, with a deadline on every call.

Three ways to a file:

- Local files are written by ourselves, unless ``py-io-impl`` asks for another way: to a hidden name, flushed to disk,
  then linked to the final name, so that no reader and no crash ever shows half a file, and an existing one is never
  replaced. (PyIceberg's local FileIO writes in place, flushes nothing, and looks before it creates.)
- Where the FileIO is PyIceberg's fsspec one, its file system is asked directly: one request to read and one conditional
  PUT to create (``If-None-Match``), instead of two to four. It is the default for S3.
- Any other FileIO (``py-io-impl``, or PyIceberg's choice for the scheme) is used as it is.
"""

from __future__ import annotations

import asyncio
import errno
import io
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyiceberg.io import FSSPEC_FILE_IO, PY_IO_IMPL, SCHEMA_TO_FILE_IO, FileIO, load_file_io

from icetower.errors import (
    AlreadyExists,
    BadRequest,
    DiskFull,
    IcetowerError,
    NotFound,
    UpstreamFailed,
    ValidationFailed,
)
from icetower.storage.local_files import LocalDoor, delete_below, in_its_folder, regular
from icetower.storage.port import ANY_FILE, Bound, too_long
from icetower.threads import Threads

T = TypeVar("T")

THREADS = 64
"""A group's manifest lists are written side by side; fewer threads than lists make a group wait for itself."""

LOCAL_READERS = 2
TIMEOUT_S = 60.0
_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
# A conditional PUT finds the object there, or somebody else just creating it.
_ALREADY_THERE = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_BEYOND_THE_END = frozenset({"InvalidRange", "416"})
_NO_CONDITIONAL_WRITES = frozenset({"NotImplemented", "501"})
_NO_ROOM = frozenset({"ENOSPC", "EDQUOT", "EROFS", "507", "InsufficientStorage", "XMinioStorageFull"})


class FileIOStorage:
    """Storage of whole files.

    Args:
        properties: as for PyIceberg's FileIO, such as ``s3.endpoint``; passed through.
        threads: calls under way at once; the others wait, which counts against their deadline.
        timeout_s: deadline of every call, in seconds.
    """

    def __init__(
        self, properties: Mapping[str, str] | None = None, *, threads: int = THREADS, timeout_s: float = TIMEOUT_S
    ) -> None:
        # A thread whose caller has given up should come back too.
        self._properties = {"s3.connect-timeout": "10", "s3.request-timeout": f"{timeout_s:g}", **(properties or {})}
        self._timeout_s = timeout_s
        self._threads_max = threads
        # What a client names may lie where reads hang. The server's own writes have threads that no read can take.
        self._threads = Threads(threads, "storage")
        self._own_threads = Threads(threads, "storage-own")
        self._doors: dict[str, _AnyDoor] = {}
        self._lock = threading.Lock()

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        return await self._call("read", path, lambda door, place: door.read(place, bound))

    async def read_many(self, paths: Sequence[str], bound: Bound = ANY_FILE) -> list[bytes | None]:
        """All bytes of each file, in the order given; None for one that isn't there.

        A thread takes the next file as soon as it has read one. To wake a thread costs more than to read a file of this
        machine, so few of them do that. Each has the deadline of a call for every file that it may come to. Raises as
        `read` does.
        """
        found: list[bytes | None] = [None] * len(paths)
        waiting = deque((position, path, *_parsed(path)) for position, path in enumerate(paths))
        local = all(scheme == "file" for _, _, scheme, _ in waiting)
        threads = min(LOCAL_READERS if local else self._threads_max, self._threads_max, len(paths))

        def work() -> None:
            while waiting:
                try:
                    position, path, scheme, place = waiting.popleft()
                except IndexError:
                    return
                try:
                    found[position] = self._door(scheme, path).read(place, bound)
                except FileNotFoundError:
                    continue
                except Exception as error:
                    waiting.clear()
                    raise error if isinstance(error, IcetowerError) else _failed("read", path, error) from error

        timeout_s = self._timeout_s * math.ceil(len(paths) / max(threads, 1))
        try:
            await asyncio.gather(*(self._threads.run(work, timeout_s) for _ in range(threads)))
        except TimeoutError as error:
            waiting.clear()
            raise UpstreamFailed(
                f"the storage did not read {len(paths)} files in time (limit {timeout_s:g} s), among them "
                f"{_shown(paths[0])}: try again",
                rule="upstream.storage",
            ) from error
        return found

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        return await self._call("read", path, lambda door, place: door.read_range(place, offset, length_bytes))

    async def write(self, path: str, data: bytes) -> None:
        def work(door: _AnyDoor, place: str) -> None:
            try:
                door.write(place, data)
            except FileExistsError:
                # The same bytes: an earlier attempt landed and only its answer was lost (S3 clients repeat unasked).
                try:
                    same = door.read(place, Bound("file that is there already", len(data))) == data
                except ValidationFailed:
                    same = False
                if not same:
                    raise

        await self._call("write", path, work, own=True)

    async def delete(self, path: str) -> None:
        await self._call("delete", path, lambda door, place: door.delete(place), own=True)

    async def delete_many(self, paths: Iterable[str], *, below: str | None = None) -> tuple[str, ...]:
        folder = None if below is None else _parsed(below)
        waiting = iter(enumerate(paths))

        def remove(door: _AnyDoor, place: str) -> None:
            if folder is not None and folder[0] == "file" and place.startswith("/"):
                delete_below(folder[1], place)
            else:
                door.delete(place)

        failed: list[tuple[int, str]] = []

        async def deleter() -> None:
            for position, path in waiting:
                try:
                    await self._call("delete", path, remove, own=True)
                except IcetowerError:
                    failed.append((position, path))

        await asyncio.gather(*(deleter() for _ in range(self._threads_max)))
        return tuple(path for _, path in sorted(failed))

    async def exists(self, path: str) -> bool:
        return await self._call("look for", path, lambda door, place: door.exists(place))

    async def size(self, path: str) -> int:
        return await self._call("measure", path, lambda door, place: door.size(place))

    async def close(self) -> None:
        """Take no more calls. Those under way end by themselves."""
        self._threads.close(wait=False)
        self._own_threads.close(wait=False)

    async def _call(self, verb: str, path: str, work: Callable[[_AnyDoor, str], T], *, own: bool = False) -> T:
        scheme, place = _parsed(path)

        def in_thread() -> T:
            return work(self._door(scheme, path), place)

        try:
            return await (self._own_threads if own else self._threads).run(in_thread, self._timeout_s)
        except IcetowerError:
            raise
        except TimeoutError as error:
            raise UpstreamFailed(
                f"the storage did not {verb} {_shown(path)} in time (limit {self._timeout_s:g} s): try again",
                rule="upstream.storage",
            ) from error
        except FileNotFoundError as error:
            if verb == "write":
                raise _failed(verb, path, error) from error
            raise NotFound(f"File does not exist: {_shown(path)}", rule="file.exists", next_step="none") from error
        except FileExistsError as error:
            raise AlreadyExists(f"File already exists: {_shown(path)}", rule="file.exists") from error
        except Exception as error:
            # Every storage library has an error tree of its own.
            raise _failed(verb, path, error) from error

    def _door(self, scheme: str, path: str) -> _AnyDoor:
        with self._lock:
            door = self._doors.get(scheme)
            if door is None:
                door = self._doors[scheme] = _open(scheme, path, self._properties, self._threads_max)
            return door


class _Door:
    """Files through any FileIO of PyIceberg. Raises what the FileIO raises."""

    def __init__(self, file_io: FileIO) -> None:
        self._io = file_io

    def read(self, place: str, bound: Bound) -> bytes:
        with _looked_at(place) as path, self._io.new_input(path).open(seekable=False) as stream:
            data = bytes(stream.read(bound.most_bytes + 1))
        return _within(place, bound, data)

    def read_range(self, place: str, offset: int, length_bytes: int) -> bytes:
        with _looked_at(place) as path, self._io.new_input(path).open() as stream:
            stream.seek(0, io.SEEK_END)
            if offset >= stream.tell():  # Arrow fails where others read nothing
                return b""
            stream.seek(offset)
            return bytes(stream.read(length_bytes))

    def write(self, place: str, data: bytes) -> None:
        with _in_its_folder(place, make=True) as path, self._io.new_output(path).create(overwrite=False) as stream:
            stream.write(data)

    def delete(self, place: str) -> None:
        try:
            with _in_its_folder(place) as path:
                self._io.delete(path)
        except FileNotFoundError:
            return

    def exists(self, place: str) -> bool:
        return self._io.new_input(place).exists()

    def size(self, place: str) -> int:
        return len(self._io.new_input(place))


class _FsspecDoor(_Door):
    """Objects through the fsspec file system inside PyIceberg's FsspecFileIO; one for all threads."""

    def __init__(self, file_io: FileIO, file_system: Any) -> None:
        super().__init__(file_io)
        self._file_system = file_system

    def read(self, place: str, bound: Bound) -> bytes:
        # One request: a range that ends one byte beyond the bound tells whether the object does.
        return _within(place, bound, self.read_range(place, 0, bound.most_bytes + 1))

    def read_range(self, place: str, offset: int, length_bytes: int) -> bytes:
        try:
            return bytes(self._file_system.cat_file(place, start=offset, end=offset + length_bytes))
        except OSError as error:
            if _code_of(error) in _BEYOND_THE_END:
                return b""
            raise

    def write(self, place: str, data: bytes) -> None:
        try:
            self._file_system.pipe_file(place, data, mode="create")
        except (OSError, NotImplementedError) as error:
            if isinstance(error, NotImplementedError) or _code_of(error) in _NO_CONDITIONAL_WRITES:
                super().write(place, data)
            elif _code_of(error) in _ALREADY_THERE:
                raise FileExistsError(place) from error
            else:
                raise

    def delete(self, place: str) -> None:
        try:
            self._file_system.rm_file(place)
        except FileNotFoundError:
            return

    def exists(self, place: str) -> bool:
        try:
            self.size(place)
        except FileNotFoundError:
            return False
        return True

    def size(self, place: str) -> int:
        return int(self._file_system.info(place, refresh=True)["size"])


_AnyDoor = _Door | LocalDoor


def _within(place: str, bound: Bound, data: bytes) -> bytes:
    if len(data) > bound.most_bytes:
        raise too_long(_shown(place), bound)
    return data


def _looked_at(place: str) -> AbstractContextManager[str]:
    """The path of what another library opens: of this machine, a regular file only, which never hangs."""
    return regular(place) if place.startswith("/") else nullcontext(place)


def _in_its_folder(place: str, *, make: bool = False) -> AbstractContextManager[str]:
    """Nor may another library write or delete where another user's link leads."""
    return in_its_folder(place, make=make) if place.startswith("/") else nullcontext(place)


def _open(scheme: str, path: str, properties: Mapping[str, str], calls_max: int) -> _AnyDoor:
    if scheme == "file" and PY_IO_IMPL not in properties:
        return LocalDoor()
    chosen = dict(properties)
    if scheme in _S3_SCHEMES:
        chosen.setdefault(PY_IO_IMPL, FSSPEC_FILE_IO)
    file_io = load_file_io(chosen, path)
    get_fs = getattr(file_io, "get_fs", None)
    if get_fs is None or scheme not in _S3_SCHEMES:
        return _Door(file_io)
    file_system = get_fs(scheme)
    # botocore opens ten connections at most: the calls of all our other threads would wait for these.
    file_system.config_kwargs.setdefault("max_pool_connections", calls_max)
    return _FsspecDoor(file_io, file_system)


def _parsed(path: str) -> tuple[str, str]:
    """Scheme, and the path as its door wants it: plain for local files, unchanged otherwise. Nothing is unquoted:
    Hadoop and PyIceberg take the characters of a local URI literally."""
    if "\x00" in path:
        raise BadRequest(f"a path contains a NUL character: {path!r}", rule="request.path")
    if path.startswith("/"):
        return "file", path
    if path.startswith("file:"):
        place = re.sub(r"^file:(//(localhost)?(?=/))?", "", path)
        if place.startswith("/") and not place.startswith("//"):
            return "file", place
        raise BadRequest(f"a local file is written file:///absolute/path, not {path!r}", rule="request.path")
    scheme = urlsplit(path).scheme
    if scheme not in SCHEMA_TO_FILE_IO:
        known = ", ".join(sorted(SCHEMA_TO_FILE_IO))
        raise BadRequest(
            f"{_shown(path)!r} is neither an absolute path nor a URI of a known kind ({known})", rule="request.path"
        )
    return scheme, path


def _shown(path: str) -> str:
    """A path fit for a message: without what may be a credential."""
    return re.sub(r"^([a-z0-9+.-]+://)[^/@]*@", r"\1", path.split("?", 1)[0] if "://" in path else path)


def _failed(verb: str, path: str, error: Exception) -> UpstreamFailed:
    # Only the kind of error: the texts of storage libraries may quote requests and keys.
    kind = errno.errorcode.get(getattr(error, "errno", None) or 0) or type(error).__name__
    if verb == "write" and (kind in _NO_ROOM or _code_of(error) in _NO_ROOM):
        return DiskFull(
            f"there is no room to write {_shown(path)} ({kind}): free or extend the storage, or make it writable, then "
            "send this again"
        )
    return UpstreamFailed(
        f"the storage failed to {verb} {_shown(path)} ({kind}): check that it can be reached, and that "
        f"Icetower may {verb} there",
        rule="upstream.storage",
    )


def _code_of(error: BaseException | None) -> str:
    """S3's error code, from the client's error at the root of a translated one; empty if there is none."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""

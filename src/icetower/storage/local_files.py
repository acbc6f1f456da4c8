"""Files of this machine: opened without waiting, looked at before they are read, written whole and durable.

A path that a client sends may lead to anything: a device that never ends, a FIFO without a writer, a sparse file of
terabytes. So a file is opened with `O_NONBLOCK` and without following a link in its last part, and `fstat` must say
that it is a regular file within its bound before a byte is read (trap A8). A folder on the way may be a link only where
that is root's or the tower's own: one that another user has put into its table's place would have the tower read other
tables' files for it, or write and delete there. So a file is written and deleted by a handle to its folder that was
looked at.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from icetower.errors import ValidationFailed
from icetower.storage.port import Bound, too_long

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HANDLES = "/proc/self/fd"
_HAS_HANDLES = os.path.isdir(_HANDLES)
_LINKS_MAX = 40
"""As many as Linux follows."""
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class LocalDoor:
    """Files by plain path. Raises `OSError`, and `ValidationFailed` for what is no regular file."""

    def read(self, place: str, bound: Bound) -> bytes:
        """All bytes of a regular file. Raises `ValidationFailed` for one that is longer than its bound."""
        handle, size_bytes = _opened(place)
        try:
            if size_bytes > bound.most_bytes:
                raise too_long(place, bound, size_bytes)
            data = _read(handle, size_bytes + 1, 0)
            if len(data) > size_bytes:  # it grows, or its size is a lie, as those of /proc are
                raise too_long(place, Bound(bound.what, size_bytes), len(data))
            return data
        finally:
            os.close(handle)

    def read_range(self, place: str, offset: int, length_bytes: int) -> bytes:
        """At most `length_bytes` bytes from `offset` on."""
        handle, size_bytes = _opened(place)
        try:
            return _read(handle, max(0, min(length_bytes, size_bytes - offset)), offset)
        finally:
            os.close(handle)

    def write(self, place: str, data: bytes) -> None:
        """Create a file, whole and durable. Raises `FileExistsError`."""
        path, name = os.path.split(place)
        # No other live thread of this machine has this name; what a crash left under it may go.
        hidden = f".{name[:200]}.{os.getpid()}-{threading.get_native_id()}.tmp"
        folder = _opened_folder(path, make=True)
        try:
            try:
                _write_through(folder, hidden, data)
            except FileExistsError:
                os.unlink(hidden, dir_fd=folder)
                _write_through(folder, hidden, data)
            try:
                os.link(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                _write_through(folder, name, data)
            finally:
                os.unlink(hidden, dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)

    def delete(self, place: str) -> None:
        """Delete a file; a missing one is fine."""
        path, name = os.path.split(place)
        with suppress(FileNotFoundError):
            folder = _opened_folder(path)
            try:
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)

    def exists(self, place: str) -> bool:
        """Whether there is a regular file."""
        try:
            return stat.S_ISREG(os.lstat(place).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def size(self, place: str) -> int:
        """Length in bytes."""
        found = os.lstat(place)
        _check_kind(place, found.st_mode)
        return found.st_size


def delete_below(folder: str, place: str) -> None:
    """Delete a file below a folder, through no link: its owner may have put one there that leads to others' files.

    Each folder on the way is opened in the one before it, so that nothing can be put in its place meanwhile. A missing
    file is fine. Raises `OSError` for a link on the way, and `ValueError` for a path that does not lead there.
    """
    with suppress(FileNotFoundError), _parent_below(folder, place) as (handle, name):
        os.unlink(name, dir_fd=handle)


def opened_below(folder: str, place: str) -> int:
    """A handle to a regular file below a folder, which is no link itself, through no link.

    Raises `OSError` for a link on the way, `ValueError` for a path that does not lead there, and `ValidationFailed` for
    what is no regular file.
    """
    with _parent_below(folder, place, follow=False) as (handle, name):
        return _opened(name, parent=handle, shown=place)[0]


def check_folders_below(folder: str, place: str) -> None:
    """Raises `OSError` where a link lies on the way from a folder to a file below it; what is missing is fine."""
    with suppress(FileNotFoundError), _parent_below(folder, place, follow=False):
        return


@contextmanager
def _parent_below(folder: str, place: str, *, follow: bool = True) -> Generator[tuple[int, str]]:
    """The folder in which a file lies, opened link by link, and the file's name in it. `follow`: a link to `folder`."""
    parts = os.path.relpath(place, folder).split("/")
    if ".." in parts or ".." in place.split("/"):
        raise ValueError(f"{place} does not lie below {folder}")
    with ExitStack() as opened:
        handle = _opened_folder(folder.rstrip("/"), follow=follow)
        opened.callback(os.close, handle)
        for part in parts[:-1]:
            handle = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=handle)
            opened.callback(os.close, handle)
        yield handle, parts[-1]


@contextmanager
def in_its_folder(place: str, *, make: bool = False) -> Generator[str]:
    """A path by which another library writes or deletes a file in the folder that was looked at, and in no other.

    Where the system is not Linux, it is the place itself.

    Args:
        make: create the folder and its parents.

    Raises:
        FileNotFoundError: there is no such folder.
        ValidationFailed: it is behind another user's link.
    """
    folder, name = os.path.split(place)
    handle = _opened_folder(folder, make=make)
    try:
        yield f"{_HANDLES}/{handle}/{name}" if _HAS_HANDLES else place
    finally:
        os.close(handle)


@contextmanager
def regular(place: str) -> Generator[str]:
    """A path by which another library opens the regular file that is at a place, and nothing that was put there since.

    A FIFO in its stead would keep a thread for ever. Where the system is not Linux, it is the place itself.

    Raises:
        FileNotFoundError: nothing is there.
        ValidationFailed: it is no regular file, or is reached through another user's link.
    """
    handle, _ = _opened(place)
    try:
        yield f"{_HANDLES}/{handle}" if _HAS_HANDLES else place
    finally:
        os.close(handle)


def _opened(place: str, *, parent: int | None = None, shown: str | None = None) -> tuple[int, int]:
    """A handle to a regular file, and how long it is. `parent`: the folder that `place` is in; `shown`: for errors."""
    shown = shown or place
    try:
        handle = os.open(place, _OPEN_FLAGS, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link, or a socket
            _check_kind(shown, os.lstat(place, dir_fd=parent).st_mode)
        raise
    try:
        found = os.fstat(handle)
        _check_kind(shown, found.st_mode)
        if parent is None:
            _check_way(handle, place, found)
    except BaseException:
        os.close(handle)
        raise
    return handle, found.st_size


def _opened_folder(path: str, *, make: bool = False, follow: bool = True) -> int:
    """A handle to a folder. Raises as `_check_links`.

    Args:
        make: create it and its parents, each durable in its own.
        follow: it may be a link itself.
    """
    try:
        handle = os.open(path or "/", _FOLDER_FLAGS | (0 if follow else os.O_NOFOLLOW))
    except FileNotFoundError:
        if not make:
            raise
        parent_path, name = os.path.split(path)
        parent = _opened_folder(parent_path, make=True)
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            os.fsync(parent)
            return os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)
    try:
        _check_way(handle, path, None)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_way(handle: int, place: str, found: os.stat_result | None) -> None:
    """Raises as `_check_links`, of what is opened. `found`: what `fstat` says of it, where that is known.

    One question says of most files that there was no link, where the system is Linux. Each gives the interpreter's lock
    away, so that going the way once more takes ten times as long beside a tower at work.
    """
    with suppress(OSError):
        if os.readlink(f"{_HANDLES}/{handle}") == place:
            return
    _check_links(place, os.fstat(handle) if found is None else found)


def _check_links(place: str, found: os.stat_result) -> None:
    """Raises `ValidationFailed` where a file or folder was reached through a link that is another user's.

    The way is gone once more, folder by folder, after it was opened: by links that are trusted it must lead to the same
    one. A link that is there for the opening alone leads to another one.
    """
    waiting, way, links = place.split("/")[:0:-1], "", 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            way = os.path.dirname(way)
            continue
        at = os.lstat(f"{way}/{part}")
        if not stat.S_ISLNK(at.st_mode):
            way = f"{way}/{part}"
            continue
        links += 1
        if links > _LINKS_MAX or at.st_uid not in (0, os.geteuid()):
            raise ValidationFailed(
                f"{place} leads through {way}/{part}, a link of another user's, which is not followed: name the file "
                "by its real path, or have the link's owner be root or the user that Icetower runs as",
                rule="file.kind",
            )
        target = os.readlink(f"{way}/{part}")
        way = "" if target.startswith("/") else way
        waiting += target.split("/")[::-1]
    if not os.path.samestat(os.lstat(way or "/"), found):
        raise ValidationFailed(
            f"{place} was replaced while it was opened: send this again, and if it stays so look who changes the "
            "folders that it lies in",
            rule="file.kind",
        )


def _check_kind(place: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of an unknown kind")
        raise ValidationFailed(
            f"{place} is {kind}; a table names regular files only, so write the content to one", rule="file.kind"
        )


def _read(handle: int, most_bytes: int, offset: int) -> bytes:
    """Up to so many bytes from a position on; the system may give them in several pieces."""
    first = os.pread(handle, most_bytes, offset)
    parts, size = [first], len(first)
    while parts[-1] and size < most_bytes:
        parts.append(os.pread(handle, most_bytes - size, offset + size))
        size += len(parts[-1])
    return first if len(parts) == 1 else b"".join(parts)


def _write_through(folder: int, name: str, data: bytes) -> None:
    """Create a file and wait until its bytes are on the disk; leave nothing behind if that fails.

    Raises `FileExistsError`, also for a link, which is not followed.
    """
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with open(handle, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise

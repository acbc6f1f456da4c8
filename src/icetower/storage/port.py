"""The port to the storage, which holds the files of tables, and how long a file may be.

An adapter passes the behaviour suite (``tests/storage/behaviour_storage.py``) or isn't offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from icetower.errors import ValidationFailed


class Bound(NamedTuple):
    """What is read, and how long it may be. Whoever reads a file says both; nothing longer is taken into memory."""

    what: str
    most_bytes: int

    def at_most(self, size_bytes: int) -> Bound:
        """The same with a lower bound, where a table says how long the file is."""
        return Bound(self.what, min(self.most_bytes, size_bytes))


_MIB = 1024 * 1024
METADATA_MAX_BYTES = 64 * _MIB
METADATA_FILE = Bound("metadata file", METADATA_MAX_BYTES)
MANIFEST_LIST = Bound("manifest list", 64 * _MIB)
MANIFEST = Bound("manifest", 64 * _MIB)
GROUP_FILE = Bound("group file", 32 * _MIB)
DELETE_FILE = Bound("delete file", 64 * _MIB)
ANY_FILE = Bound("file", 64 * _MIB)
ON_OWN_ACCOUNT = Bound("file", 1024 * _MIB)
"""Iceberg's writers begin a new manifest at 8 MiB; 64 MiB of metadata are 70,000 snapshots. A command reads more than a
server does, since it serves nobody else (`ON_OWN_ACCOUNT`)."""


def too_long(path: str, bound: Bound, size_bytes: int | None = None) -> ValidationFailed:
    """A file that is longer than its bound; it was not read."""
    length = "more bytes than are read" if size_bytes is None else f"{size_bytes} bytes"
    return ValidationFailed(
        f"the {bound.what} {path} has {length}; at most {bound.most_bytes} are read. Write a smaller one",
        rule="limit.file",
    )


class Storage(Protocol):
    """Files by path: ``file:///…``, ``file:/…``, plain absolute paths, ``s3://…`` and what else the adapter reads.

    Every method raises `BadRequest` for a path it cannot understand and `UpstreamFailed`, naming the path, if the
    storage failed or took too long. File names of Iceberg are unique, so an unknown outcome does no harm.

    What is no regular file (a directory, a link, a FIFO, a device) is refused before it is read: `ValidationFailed`.
    """

    async def read(self, path: str, bound: Bound) -> bytes:
        """All bytes of a file. Raises `NotFound`, and `ValidationFailed` for one that is longer than its bound."""
        ...

    async def read_range(self, path: str, offset: int, length_bytes: int) -> bytes:
        """At most `length_bytes` bytes from `offset` on: fewer where the file ends before, none from its end on.

        Raises `NotFound`.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Create a file: whole and durable once this returns.

        Never replaces one where the store can tell: `AlreadyExists`, unless the same bytes are there already.
        """
        ...

    async def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        ...

    async def delete_many(self, paths: Iterable[str], *, below: str | None = None) -> tuple[str, ...]:
        """Delete side by side; returns the paths that could not be deleted, in the order given.

        Args:
            below: the files lie in this folder, by their names, and others may write there: a local file is deleted
                only where no symbolic link stands between the folder and it.
        """
        ...

    async def exists(self, path: str) -> bool: ...

    async def size(self, path: str) -> int:
        """Length in bytes. Raises `NotFound`."""
        ...

"""The two doors to the outside: the upstream catalog that holds the heads of tables, and the storage that holds files.

An adapter passes the behaviour suite (``tests/catalog/behaviour_*.py``) or isn't offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from icetower.errors import ValidationFailed
from icetower.protocol.names import Identifier, Namespace


@dataclass(frozen=True, slots=True)
class Swap:
    """One table's step: its head is to become `new`, if and only if it is still `expected` (metadata locations)."""

    identifier: Identifier
    expected: str
    new: str


class SwapLost(Exception):
    """Nothing was changed: the head of a table was not the expected one, or the table is gone.

    Attributes:
        identifier: the table.
        found: its metadata location as seen in the same transaction; None if there is no such table. A repeated
            swap that finds its own `new` location here has landed before.
    """

    def __init__(self, identifier: Identifier, found: str | None = None) -> None:
        head = "the table is gone" if found is None else f"the head is {found}"
        super().__init__(f"the head of {identifier} is not the expected one: {head}")
        self.identifier = identifier
        self.found = found


class SwapUnknown(Exception):
    """The swap may or may not have happened; nobody can tell from the answer. Repeat the very same swap to find out."""


class PropertiesUpdate(NamedTuple):
    """What became of the keys of a namespace update, each list sorted."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


class Upstream(Protocol):
    """A catalog of namespaces and tables, where each table is one metadata location.

    Every method raises `icetower.errors.UpstreamFailed` if the catalog failed and certainly changed nothing,
    `BadRequest` for a name it cannot hold, and, unless said otherwise, `CommitStateUnknown` if a change may have
    landed. A cancelled call may still take effect.
    """

    @property
    def atomic_multi_table(self) -> bool:
        """Whether `swap` can move several tables in one step."""
        ...

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        """The direct children of `parent`, sorted; of the root if empty. Raises `NoSuchNamespace`."""
        ...

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        """Parents need not exist. Raises `AlreadyExists`."""
        ...

    async def namespace_exists(self, namespace: Namespace) -> bool:
        """A namespace exists if it was created, or if there is a table, view or namespace in it."""
        ...

    async def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        """Raises `NoSuchNamespace`."""
        ...

    async def update_namespace(
        self, namespace: Namespace, removals: Iterable[str], updates: Mapping[str, str]
    ) -> PropertiesUpdate:
        """Remove and set properties in one step. Raises `NoSuchNamespace`; `BadRequest` for a key in both."""
        ...

    async def drop_namespace(self, namespace: Namespace) -> None:
        """Raises `NoSuchNamespace`, `NamespaceNotEmpty`."""
        ...

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        """The tables directly in a namespace, sorted; views are left out. Raises `NoSuchNamespace`."""
        ...

    async def location(self, identifier: Identifier) -> str:
        """The current metadata location. Raises `NoSuchTable`."""
        ...

    async def tables_at(self, part: str) -> list[Identifier]:
        """The tables and views of all namespaces whose metadata location contains `part`, sorted."""
        ...

    async def create_table(self, identifier: Identifier, metadata_location: str) -> None:
        """Raises `NoSuchNamespace`; `AlreadyExists` for a table or view of that name."""
        ...

    async def drop_table(self, identifier: Identifier, expected: str | None = None) -> None:
        """Forget a table; its files stay. With `expected`, only at that head, else `SwapLost`. Raises `NoSuchTable`."""
        ...

    async def rename_table(self, source: Identifier, target: Identifier) -> None:
        """Raises `NoSuchTable`, `NoSuchNamespace` (of the target), `AlreadyExists`. Onto itself: nothing happens."""
        ...

    async def swap(self, swaps: Sequence[Swap]) -> None:
        """Compare and swap, all or nothing.

        Raises:
            SwapLost: the first table whose head is not the expected one; nothing was changed.
            SwapUnknown: nobody can tell.
            BadRequest: a table named twice, or several tables where `atomic_multi_table` is false.
            UpstreamFailed: certainly nothing was changed.
        """
        ...

    async def close(self) -> None: ...


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

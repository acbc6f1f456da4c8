"""The port to the upstream catalog, which holds the heads of tables.

An adapter passes the behaviour suite (``tests/upstream/behaviour_upstream.py``) or isn't offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    """The swap may or may not have happened; the answer does not show it. Repeat the very same swap to find out."""


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

    async def all_tables(self, limit: int) -> list[Identifier]:
        """The tables of all namespaces, sorted, at most `limit` of them; views are left out."""
        ...

    async def location(self, identifier: Identifier) -> str:
        """The current metadata location. Raises `NoSuchTable`."""
        ...

    async def settled_location(self, identifier: Identifier) -> str:
        """The metadata location after every swap of the table that was under way: none of them lands after this.

        So it answers for a swap of another server, too, which may have died since it sent it. Raises `NoSuchTable`;
        `UpstreamFailed` where one stays under way for too long.
        """
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
            SwapUnknown: the outcome is unknown.
            BadRequest: a table named twice, or several tables where `atomic_multi_table` is false.
            UpstreamFailed: certainly nothing was changed.
        """
        ...

    async def close(self) -> None: ...
